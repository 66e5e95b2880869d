/* Python's monotonic clock on Linux, in milliseconds, without a call of Python. */
#ifndef OTTLA_PYTHON_CLOCK_H
#define OTTLA_PYTHON_CLOCK_H

#ifdef __linux__
#include <time.h>
#define OTTLA_HAS_PYTHON_CLOCK 1
static inline double python_clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}
#else
#define OTTLA_HAS_PYTHON_CLOCK 0
static inline double python_clock_ms(void) { return 0; }
#endif

#endif
