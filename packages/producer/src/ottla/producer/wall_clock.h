/* Milliseconds since 1970, from the cheapest clock that ticks a few hundred times a second. */
#ifndef OTTLA_WALL_CLOCK_H
#define OTTLA_WALL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ottla_wall_ms(void) {
    struct timespec now;
#ifdef CLOCK_REALTIME_COARSE
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
#else
    timespec_get(&now, TIME_UTC);
#endif
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
