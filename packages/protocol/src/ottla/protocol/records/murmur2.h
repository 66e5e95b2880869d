/* Java's Utils.murmur2, as a signed 32-bit value: what partitioners take of a key. */
#ifndef OTTLA_MURMUR2_H
#define OTTLA_MURMUR2_H

#include <stddef.h>
#include <stdint.h>

static inline int32_t ottla_murmur2(const unsigned char *data, size_t size) {
    const uint32_t m = 0x5bd1e995u;
    uint32_t h = 0x9747b28cu ^ (uint32_t)size;
    for (; size >= 4; size -= 4, data += 4) {
        uint32_t k = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        k *= m;
        k ^= k >> 24;
        k *= m;
        h *= m;
        h ^= k;
    }
    if (size == 3) h ^= (uint32_t)data[2] << 16;
    if (size >= 2) h ^= (uint32_t)data[1] << 8;
    if (size >= 1) {
        h ^= (uint32_t)data[0];
        h *= m;
    }
    h ^= h >> 13;
    h *= m;
    h ^= h >> 15;
    return (int32_t)h;
}

#endif
