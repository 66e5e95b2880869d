/* SipHash-2-4 with a result of 128 bits (Aumasson and Bernstein): a hash whose collisions nobody can find
 * without its key. Two keys of records with one hash would be taken for one key, and lose a record. */
#ifndef OTTLA_SIP_HASH_H
#define OTTLA_SIP_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t low, high;
} ottla_hash128;

#define OTTLA_ROTATED(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define OTTLA_SIP_ROUND                                                                      \
    do {                                                                                     \
        v0 += v1; v1 = OTTLA_ROTATED(v1, 13); v1 ^= v0; v0 = OTTLA_ROTATED(v0, 32);          \
        v2 += v3; v3 = OTTLA_ROTATED(v3, 16); v3 ^= v2;                                      \
        v0 += v3; v3 = OTTLA_ROTATED(v3, 21); v3 ^= v0;                                      \
        v2 += v1; v1 = OTTLA_ROTATED(v1, 17); v1 ^= v2; v2 = OTTLA_ROTATED(v2, 32);          \
    } while (0)

/* Eight bytes, the lowest first on every machine. */
static inline uint64_t ottla_little64(const unsigned char *p) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | p[i];
    return value;
}

static inline ottla_hash128 ottla_sip_hash(const unsigned char *data, size_t size, uint64_t k0, uint64_t k1) {
    uint64_t v0 = 0x736f6d6570736575ULL ^ k0, v1 = 0x646f72616e646f6dULL ^ k1 ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261ULL ^ k0, v3 = 0x7465646279746573ULL ^ k1;
    const unsigned char *end = data + (size & ~(size_t)7);
    uint64_t last = (uint64_t)size << 56, word;
    ottla_hash128 hash;
    for (; data != end; data += 8) {
        word = ottla_little64(data);
        v3 ^= word;
        OTTLA_SIP_ROUND;
        OTTLA_SIP_ROUND;
        v0 ^= word;
    }
    for (size_t i = 0; i < (size & 7); i++) last |= (uint64_t)data[i] << (8 * i);
    v3 ^= last;
    OTTLA_SIP_ROUND;
    OTTLA_SIP_ROUND;
    v0 ^= last;
    v2 ^= 0xee;
    for (int i = 0; i < 4; i++) OTTLA_SIP_ROUND;
    hash.low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < 4; i++) OTTLA_SIP_ROUND;
    hash.high = v0 ^ v1 ^ v2 ^ v3;
    return hash;
}

#endif
