/* Big-endian integers and zig-zag varints, as in every Kafka record format. Shifts compile to a byte swap. */
#ifndef OTTLA_WIRE_H
#define OTTLA_WIRE_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t ottla_get_u64(const unsigned char *p) {
    return (uint64_t)p[0] << 56 | (uint64_t)p[1] << 48 | (uint64_t)p[2] << 40 | (uint64_t)p[3] << 32 |
           (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 | (uint64_t)p[6] << 8 | (uint64_t)p[7];
}
static inline uint32_t ottla_get_u32(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}
static inline int64_t get64(const unsigned char *p) { return (int64_t)ottla_get_u64(p); }
static inline int32_t get32(const unsigned char *p) { return (int32_t)ottla_get_u32(p); }
static inline int16_t get16(const unsigned char *p) { return (int16_t)((uint16_t)(p[0] << 8) | p[1]); }

static inline void put32(unsigned char *p, int32_t value) {
    uint32_t v = (uint32_t)value;
    p[0] = (unsigned char)(v >> 24), p[1] = (unsigned char)(v >> 16);
    p[2] = (unsigned char)(v >> 8), p[3] = (unsigned char)v;
}
static inline void put64(unsigned char *p, int64_t value) {
    put32(p, (int32_t)((uint64_t)value >> 32));
    put32(p + 4, (int32_t)(uint64_t)value);
}
static inline void put16(unsigned char *p, int16_t value) {
    p[0] = (unsigned char)((uint16_t)value >> 8), p[1] = (unsigned char)value;
}

static inline int varint_size(int64_t value) {
    uint64_t v = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
#if defined(__GNUC__) || defined(__clang__)
    return (70 - __builtin_clzll(v | 1)) / 7;
#else
    int n = 1;
    for (; v >= 0x80; v >>= 7) n++;
    return n;
#endif
}
static inline unsigned char *put_varint(unsigned char *p, int64_t value) {
    uint64_t v = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; v >= 0x80; v >>= 7) *p++ = (unsigned char)(v | 0x80);
    *p = (unsigned char)v;
    return p + 1;
}

/* The next read returns the position after the varint, or NULL when it runs past `end` or is too long. */
static inline const unsigned char *get_varlong(const unsigned char *p, const unsigned char *end,
                                               int64_t *out) {
    uint64_t v = 0;
    for (int shift = 0; shift < 70 && p < end; shift += 7) {
        unsigned char byte = *p++;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            /* the tenth byte has room for one bit */
            if (shift == 63 && byte > 1) return NULL;
            *out = (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
            return p;
        }
    }
    return NULL;
}
static inline const unsigned char *get_varint(const unsigned char *p, const unsigned char *end,
                                              int32_t *out) {
    uint64_t v;
    if (p >= end) return NULL;
    v = *p++;
    if (v >= 0x80) {
        v &= 0x7f;
        for (int shift = 7;; shift += 7) {
            if (p >= end || shift > 28) return NULL;
            unsigned char byte = *p++;
            v |= (uint64_t)(byte & 0x7f) << shift;
            if (byte < 0x80) break;
        }
        /* five bytes hold 35 bits, an int32 has 32 */
        if (v > 0xffffffffu) return NULL;
    }
    *out = (int32_t)((uint32_t)v >> 1) ^ -(int32_t)((uint32_t)v & 1);
    return p;
}

#endif
