/* CRC-32C (Castagnoli, reflected 0x82F63B78), chosen at run time by what the processor can do.
 *
 * Everything works on the raw register: no inversion before or after. Every constant is computed when the
 * module loads, and a fast routine is used only after it has agreed with the table on a set of buffers, so a
 * wrong constant, or an emulator with a broken instruction, costs speed and not data.
 *
 * Notation: bit 31 of a 32-bit value is x^0, bit 0 is x^31. A carry-less product of two such values, read as
 * a 64-bit value in the same bit order, is their product times x; the crc32 instruction over a 64-bit value
 * from register zero multiplies by x^32 and reduces. Hence the "- 33" in the exponents.
 */
#ifndef OTTLA_CRC32C_H
#define OTTLA_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OTTLA_CRC_POLYNOMIAL 0x82F63B78u

typedef uint32_t (*ottla_crc_function)(uint32_t, const unsigned char *, size_t);

/* ------------------------------------------------------------------ table */

static uint32_t ottla_crc_table[8][256];

static void ottla_crc_fill_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t r = i;
        for (int bit = 0; bit < 8; bit++) r = (r & 1) ? (r >> 1) ^ OTTLA_CRC_POLYNOMIAL : r >> 1;
        ottla_crc_table[0][i] = r;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t r = ottla_crc_table[k - 1][i];
            ottla_crc_table[k][i] = (r >> 8) ^ ottla_crc_table[0][r & 255];
        }
}

static inline uint32_t ottla_le32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t ottla_crc_sliced(uint32_t r, const unsigned char *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = r ^ ottla_le32(p), b = ottla_le32(p + 4);
        r = ottla_crc_table[7][a & 255] ^ ottla_crc_table[6][(a >> 8) & 255] ^
            ottla_crc_table[5][(a >> 16) & 255] ^ ottla_crc_table[4][a >> 24] ^
            ottla_crc_table[3][b & 255] ^ ottla_crc_table[2][(b >> 8) & 255] ^
            ottla_crc_table[1][(b >> 16) & 255] ^ ottla_crc_table[0][b >> 24];
    }
    for (; n; n--, p++) r = (r >> 8) ^ ottla_crc_table[0][(r ^ *p) & 255];
    return r;
}

/* a * b mod P */
static uint32_t ottla_crc_multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = (b & 1) ? (b >> 1) ^ OTTLA_CRC_POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^n mod P */
static uint32_t ottla_crc_x_power(uint64_t n) {
    uint32_t power = 1u << 31, square = 1u << 30;
    for (; n; n >>= 1) {
        if (n & 1) power = ottla_crc_multiply(power, square);
        square = ottla_crc_multiply(square, square);
    }
    return power;
}

/* -------------------------------------------------------------------- x86 */

#if (defined(__x86_64__) || defined(_M_X64)) && (defined(__GNUC__) || defined(__clang__))
#define OTTLA_CRC_X86 1
#include <cpuid.h>
#include <immintrin.h>

/* One turn of the loop takes 64 bytes through four folding lanes and three times 24 bytes through the crc32
 * instruction: the two use different execution ports, so together they are about twice as fast as either. */
enum { OTTLA_CRC_TURN = 136, OTTLA_CRC_MAX_TURNS = 240 };

static uint32_t ottla_crc_shift[OTTLA_CRC_MAX_TURNS + 1][3];
static uint64_t ottla_crc_fold_512[2], ottla_crc_fold_128[2], ottla_crc_fold_2048[2];

static void ottla_crc_set_fold(uint64_t *fold, uint64_t bits) {
    fold[0] = ottla_crc_x_power(bits + 64 - 33);
    fold[1] = ottla_crc_x_power(bits - 33);
}

static void ottla_crc_fill_x86(void) {
    static const uint64_t bits[3] = {8 * 72, 8 * 48, 8 * 24};
    for (int i = 0; i < 3; i++) {
        const uint32_t step = ottla_crc_x_power(bits[i]);
        uint32_t power = ottla_crc_x_power(bits[i] - 33);
        for (int k = 1; k <= OTTLA_CRC_MAX_TURNS; k++) {
            ottla_crc_shift[k][i] = power;
            power = ottla_crc_multiply(power, step);
        }
    }
    ottla_crc_set_fold(ottla_crc_fold_128, 128);
    ottla_crc_set_fold(ottla_crc_fold_512, 512);
    ottla_crc_set_fold(ottla_crc_fold_2048, 2048);
}

static inline uint64_t ottla_crc_load64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* crc32 instruction alone, one stream: the tail, and processors without PCLMULQDQ */
__attribute__((target("sse4.2")))
static uint32_t ottla_crc_sse42(uint32_t r, const unsigned char *p, size_t n) {
    uint64_t state = r;
    for (; n >= 8; n -= 8, p += 8) state = _mm_crc32_u64(state, ottla_crc_load64(p));
    r = (uint32_t)state;
    if (n & 4) {
        uint32_t v;
        memcpy(&v, p, 4);
        r = _mm_crc32_u32(r, v);
        p += 4;
    }
    if (n & 2) {
        uint16_t v;
        memcpy(&v, p, 2);
        r = _mm_crc32_u16(r, v);
        p += 2;
    }
    if (n & 1) r = _mm_crc32_u8(r, *p);
    return r;
}

#define OTTLA_CRC_FOLD(lane, constant, next)                                                         \
    OTTLA_CRC_XOR3(_mm_clmulepi64_si128(lane, constant, 0x00),                                       \
                   _mm_clmulepi64_si128(lane, constant, 0x11), next)

#define OTTLA_CRC_AT(p) _mm_loadu_si128((const __m128i *)(p))
#define OTTLA_CRC_TIMES(a, b)                                                                        \
    _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)(a)), _mm_cvtsi32_si128((int)(b)), 0)

#define OTTLA_CRC_HYBRID(NAME, TARGET)                                                               \
    __attribute__((target(TARGET)))                                                                  \
    static uint32_t NAME(uint32_t r, const unsigned char *p, size_t n) {                             \
        while (n >= 2 * OTTLA_CRC_TURN) {                                                            \
            size_t turns = n / OTTLA_CRC_TURN;                                                       \
            if (turns > OTTLA_CRC_MAX_TURNS) turns = OTTLA_CRC_MAX_TURNS;                            \
            const unsigned char *v = p, *a = p + 64 * turns, *b = a + 24 * turns, *c = b + 24 * turns; \
            const uint32_t *shift = ottla_crc_shift[turns];                                          \
            const __m128i by_512 = OTTLA_CRC_AT(ottla_crc_fold_512);                                 \
            const __m128i by_128 = OTTLA_CRC_AT(ottla_crc_fold_128);                                 \
            __m128i x0 = OTTLA_CRC_AT(v), x1 = OTTLA_CRC_AT(v + 16);                                 \
            __m128i x2 = OTTLA_CRC_AT(v + 32), x3 = OTTLA_CRC_AT(v + 48);                            \
            uint64_t ra = 0, rb = 0, rc = 0;                                                         \
            x0 = _mm_xor_si128(x0, _mm_cvtsi32_si128((int)r));                                       \
            for (size_t i = turns;;) {                                                               \
                ra = _mm_crc32_u64(ra, ottla_crc_load64(a));                                         \
                rb = _mm_crc32_u64(rb, ottla_crc_load64(b));                                         \
                rc = _mm_crc32_u64(rc, ottla_crc_load64(c));                                         \
                ra = _mm_crc32_u64(ra, ottla_crc_load64(a + 8));                                     \
                rb = _mm_crc32_u64(rb, ottla_crc_load64(b + 8));                                     \
                rc = _mm_crc32_u64(rc, ottla_crc_load64(c + 8));                                     \
                ra = _mm_crc32_u64(ra, ottla_crc_load64(a + 16));                                    \
                rb = _mm_crc32_u64(rb, ottla_crc_load64(b + 16));                                    \
                rc = _mm_crc32_u64(rc, ottla_crc_load64(c + 16));                                    \
                if (--i == 0) break;                                                                 \
                a += 24, b += 24, c += 24, v += 64;                                                  \
                x0 = OTTLA_CRC_FOLD(x0, by_512, OTTLA_CRC_AT(v));                                    \
                x1 = OTTLA_CRC_FOLD(x1, by_512, OTTLA_CRC_AT(v + 16));                               \
                x2 = OTTLA_CRC_FOLD(x2, by_512, OTTLA_CRC_AT(v + 32));                               \
                x3 = OTTLA_CRC_FOLD(x3, by_512, OTTLA_CRC_AT(v + 48));                               \
            }                                                                                        \
            x1 = OTTLA_CRC_FOLD(x0, by_128, x1);                                                     \
            x2 = OTTLA_CRC_FOLD(x1, by_128, x2);                                                     \
            x3 = OTTLA_CRC_FOLD(x2, by_128, x3);                                                     \
            uint64_t rv = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(x3, 0));                      \
            rv = _mm_crc32_u64(rv, (uint64_t)_mm_extract_epi64(x3, 1));                              \
            __m128i t = OTTLA_CRC_TIMES(rv, shift[0]);                                               \
            t = _mm_xor_si128(t, OTTLA_CRC_TIMES(ra, shift[1]));                                     \
            t = _mm_xor_si128(t, OTTLA_CRC_TIMES(rb, shift[2]));                                     \
            r = (uint32_t)(_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(t)) ^ rc);                   \
            p += OTTLA_CRC_TURN * turns;                                                             \
            n -= OTTLA_CRC_TURN * turns;                                                             \
        }                                                                                            \
        return ottla_crc_sse42(r, p, n);                                                             \
    }

#define OTTLA_CRC_XOR3(a, b, c) _mm_xor_si128(_mm_xor_si128(a, b), c)
OTTLA_CRC_HYBRID(ottla_crc_pclmul, "sse4.2,pclmul")
#undef OTTLA_CRC_XOR3
#define OTTLA_CRC_XOR3(a, b, c) _mm_ternarylogic_epi64(a, b, c, 0x96)
OTTLA_CRC_HYBRID(ottla_crc_avx512, "sse4.2,pclmul,avx512f,avx512vl")

/* Four 512-bit lanes. -DOTTLA_EMULATE_VPCLMUL lets a processor without the wide instruction test it. */
#ifdef OTTLA_EMULATE_VPCLMUL
#define OTTLA_CRC_WIDE_TARGET "sse4.2,pclmul,avx512f,avx512vl"
__attribute__((target(OTTLA_CRC_WIDE_TARGET)))
static inline __m512i ottla_crc_wide_multiply(__m512i a, __m512i b, const int selector) {
    __m128i x[4], y[4];
    _mm512_storeu_si512(x, a);
    _mm512_storeu_si512(y, b);
    for (int i = 0; i < 4; i++)
        x[i] = selector ? _mm_clmulepi64_si128(x[i], y[i], 0x11) : _mm_clmulepi64_si128(x[i], y[i], 0x00);
    return _mm512_loadu_si512(x);
}
#else
#define OTTLA_CRC_WIDE_TARGET "sse4.2,pclmul,avx512f,avx512vl,vpclmulqdq"
#define ottla_crc_wide_multiply(a, b, selector) _mm512_clmulepi64_epi128(a, b, selector)
#endif
#define OTTLA_CRC_WIDE_FOLD(lane, constant, next)                                                    \
    _mm512_ternarylogic_epi64(ottla_crc_wide_multiply(lane, constant, 0x00),                         \
                              ottla_crc_wide_multiply(lane, constant, 0x11), next, 0x96)

__attribute__((target(OTTLA_CRC_WIDE_TARGET)))
static uint32_t ottla_crc_vpclmul(uint32_t r, const unsigned char *p, size_t n) {
    if (n >= 1024) {
        const __m512i by_2048 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)ottla_crc_fold_2048));
        const __m512i by_512 = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)ottla_crc_fold_512));
        const __m128i by_128 = _mm_loadu_si128((const __m128i *)ottla_crc_fold_128);
        __m512i z0 = _mm512_loadu_si512(p), z1 = _mm512_loadu_si512(p + 64);
        __m512i z2 = _mm512_loadu_si512(p + 128), z3 = _mm512_loadu_si512(p + 192);
        z0 = _mm512_xor_si512(z0, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)r)));
        p += 256, n -= 256;
        for (; n >= 256; p += 256, n -= 256) {
            z0 = OTTLA_CRC_WIDE_FOLD(z0, by_2048, _mm512_loadu_si512(p));
            z1 = OTTLA_CRC_WIDE_FOLD(z1, by_2048, _mm512_loadu_si512(p + 64));
            z2 = OTTLA_CRC_WIDE_FOLD(z2, by_2048, _mm512_loadu_si512(p + 128));
            z3 = OTTLA_CRC_WIDE_FOLD(z3, by_2048, _mm512_loadu_si512(p + 192));
        }
        z1 = OTTLA_CRC_WIDE_FOLD(z0, by_512, z1);
        z2 = OTTLA_CRC_WIDE_FOLD(z1, by_512, z2);
        z3 = OTTLA_CRC_WIDE_FOLD(z2, by_512, z3);
        __m128i x = _mm512_extracti32x4_epi32(z3, 0);
        x = OTTLA_CRC_FOLD(x, by_128, _mm512_extracti32x4_epi32(z3, 1));
        x = OTTLA_CRC_FOLD(x, by_128, _mm512_extracti32x4_epi32(z3, 2));
        x = OTTLA_CRC_FOLD(x, by_128, _mm512_extracti32x4_epi32(z3, 3));
        uint64_t state = _mm_crc32_u64(0, (uint64_t)_mm_extract_epi64(x, 0));
        r = (uint32_t)_mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(x, 1));
        /* Compilers clear the upper halves before a return, not before a tail call. While they are dirty, every
         * SSE instruction of the process merges with them and waits for the one before it. */
        _mm256_zeroupper();
    }
    return ottla_crc_avx512(r, p, n);
}

/* Whether a routine leaves upper halves of vector registers dirty; -1 where the processor cannot tell. */
__attribute__((target("xsave")))
static int ottla_crc_leaves_dirty(ottla_crc_function routine, const unsigned char *p, size_t n) {
    unsigned int features, unused, low, high;
    if (!__get_cpuid_count(0xD, 1, &features, &unused, &unused, &unused) || !(features & 4)) return -1;
    if (__builtin_cpu_supports("avx")) __asm__ volatile("vzeroupper");
    routine(0, p, n);
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1)); /* XINUSE: 4 is AVX, 64 the upper half of ZMM */
    return (low & (4 | 64)) != 0;
}
#else
static int ottla_crc_leaves_dirty(ottla_crc_function routine, const unsigned char *p, size_t n) {
    (void)routine, (void)p, (void)n;
    return -1;
}
#endif

/* ---------------------------------------------------------------- aarch64 */

#if defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#define OTTLA_CRC_ARM 1
#if defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif
#if defined(__clang__)
#define OTTLA_CRC_ARM_TARGET __attribute__((target("crc")))
#else
#define OTTLA_CRC_ARM_TARGET __attribute__((target("+crc")))
#endif
#include <arm_acle.h>

enum { OTTLA_CRC_ARM_SPAN = 1024 };
static uint32_t ottla_crc_arm_shift[2][4][256];

static void ottla_crc_fill_arm(void) {
    for (int k = 0; k < 2; k++) {
        uint32_t power = ottla_crc_x_power((uint64_t)8 * OTTLA_CRC_ARM_SPAN * (k + 1));
        for (int byte = 0; byte < 4; byte++)
            for (uint32_t i = 0; i < 256; i++)
                ottla_crc_arm_shift[k][byte][i] = ottla_crc_multiply(i << (8 * byte), power);
    }
}

static inline uint32_t ottla_crc_arm_shifted(int k, uint32_t r) {
    return ottla_crc_arm_shift[k][0][r & 255] ^ ottla_crc_arm_shift[k][1][(r >> 8) & 255] ^
           ottla_crc_arm_shift[k][2][(r >> 16) & 255] ^ ottla_crc_arm_shift[k][3][r >> 24];
}

static inline uint64_t ottla_crc_arm_load64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

OTTLA_CRC_ARM_TARGET
static uint32_t ottla_crc_armv8(uint32_t r, const unsigned char *p, size_t n) {
    for (; n >= 3 * OTTLA_CRC_ARM_SPAN; p += 3 * OTTLA_CRC_ARM_SPAN, n -= 3 * OTTLA_CRC_ARM_SPAN) {
        uint32_t b = 0, c = 0;
        for (size_t i = 0; i < OTTLA_CRC_ARM_SPAN; i += 8) {
            r = __crc32cd(r, ottla_crc_arm_load64(p + i));
            b = __crc32cd(b, ottla_crc_arm_load64(p + i + OTTLA_CRC_ARM_SPAN));
            c = __crc32cd(c, ottla_crc_arm_load64(p + i + 2 * OTTLA_CRC_ARM_SPAN));
        }
        r = ottla_crc_arm_shifted(1, r) ^ ottla_crc_arm_shifted(0, b) ^ c;
    }
    for (; n >= 8; p += 8, n -= 8) r = __crc32cd(r, ottla_crc_arm_load64(p));
    for (; n; p++, n--) r = __crc32cb(r, *p);
    return r;
}
#endif

/* ----------------------------------------------------------------- choice */

enum { OTTLA_CRC_MAX_IMPLEMENTATIONS = 6 };
static ottla_crc_function ottla_crc_best = ottla_crc_sliced;
static ottla_crc_function ottla_crc_functions[OTTLA_CRC_MAX_IMPLEMENTATIONS];
static const char *ottla_crc_names[OTTLA_CRC_MAX_IMPLEMENTATIONS];
static int ottla_crc_count = 0;

static int ottla_crc_agrees(ottla_crc_function candidate) {
    static const size_t lengths[] = {0,   1,   7,   8,    15,   64,   135,  271, 272,
                                     273, 600, 1023, 1024, 1300, 3071, 3072, 4000};
    unsigned char data[4001];
    uint32_t seed = 12345;
    for (size_t i = 0; i < sizeof data; i++) {
        seed = seed * 1103515245u + 12345u;
        data[i] = (unsigned char)(seed >> 16);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const unsigned char *start = data + (i & 1);
        if (candidate(seed, start, lengths[i]) != ottla_crc_sliced(seed, start, lengths[i])) return 0;
    }
    return 1;
}

/* later means faster */
static void ottla_crc_offer(const char *name, ottla_crc_function candidate) {
    if (!ottla_crc_agrees(candidate)) return;
    ottla_crc_names[ottla_crc_count] = name;
    ottla_crc_functions[ottla_crc_count++] = candidate;
    ottla_crc_best = candidate;
}

static void ottla_crc_choose(void) {
    if (ottla_crc_count) return;
    ottla_crc_fill_table();
    ottla_crc_offer("table", ottla_crc_sliced);
#ifdef OTTLA_CRC_X86
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2")) return;
    ottla_crc_offer("sse4.2", ottla_crc_sse42);
    if (!__builtin_cpu_supports("pclmul")) return;
    ottla_crc_fill_x86();
    ottla_crc_offer("pclmul", ottla_crc_pclmul);
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) return;
    ottla_crc_offer("avx512", ottla_crc_avx512);
#ifndef OTTLA_EMULATE_VPCLMUL
    if (!__builtin_cpu_supports("vpclmulqdq")) return;
#endif
    ottla_crc_offer("vpclmul", ottla_crc_vpclmul);
#endif
#ifdef OTTLA_CRC_ARM
#if defined(__linux__)
    if (!(getauxval(AT_HWCAP) & HWCAP_CRC32)) return;
#endif
    ottla_crc_fill_arm();
    ottla_crc_offer("armv8", ottla_crc_armv8);
#endif
}

/* the CRC-32C of `n` bytes, continued from `value` (0 to begin) */
static inline uint32_t ottla_crc32c(uint32_t value, const unsigned char *p, size_t n) {
    return ~ottla_crc_best(~value, p, n);
}

#endif
