/* Milliseconds of a monotonic clock: a few nanoseconds per read, a resolution of up to 10 ms. */
#ifndef OTTLA_MONOTONIC_CLOCK_H
#define OTTLA_MONOTONIC_CLOCK_H

#include <stdint.h>

#ifdef _WIN32
#include <windows.h>
static inline int64_t coarse_ms(void) { return (int64_t)GetTickCount64(); }
#else
#include <time.h>
#ifdef CLOCK_MONOTONIC_COARSE
#define OTTLA_CLOCK CLOCK_MONOTONIC_COARSE
#else
#define OTTLA_CLOCK CLOCK_MONOTONIC
#endif
static inline int64_t coarse_ms(void) {
    struct timespec now;
    clock_gettime(OTTLA_CLOCK, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
#endif

#endif
