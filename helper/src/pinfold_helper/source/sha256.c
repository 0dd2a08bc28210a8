/* SHA-256 (FIPS 180-4); by the processor's own instructions where it has them. */
#include "helper.h"

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress_plain(uint32_t state[8], const uint8_t *at, size_t blocks) {
    for (; blocks--; at += 64) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)at[4 * i] << 24 | (uint32_t)at[4 * i + 1] << 16 |
                   (uint32_t)at[4 * i + 2] << 8 | at[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
                   (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
        }
        memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; i++) {
            uint32_t e = s[4], a = s[0];
            uint32_t t = s[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                         ((e & s[5]) ^ (~e & s[6])) + K[i] + w[i];
            uint32_t u = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                         ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof s[0]);
            s[4] += t;
            s[0] = t + u;
        }
        for (int i = 0; i < 8; i++) state[i] += s[i];
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("sha,sse4.1,ssse3"))) static void
compress_fast(uint32_t state[8], const uint8_t *at, size_t blocks) {
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i t = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(t, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, t, 0xf0);
    for (; blocks--; at += 64) {
        __m128i m[4], was_abef = abef, was_cdgh = cdgh;
        for (int i = 0; i < 4; i++)
            m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(at + 16 * i)), order);
        for (int i = 0; i < 16; i++) {
            __m128i w = m[i & 3];
            __m128i k = _mm_add_epi32(w, _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
            if (i < 12) { /* the words of four steps further on */
                __m128i last = m[(i + 3) & 3];
                __m128i next = _mm_sha256msg1_epu32(w, m[(i + 1) & 3]);
                next = _mm_add_epi32(next, _mm_alignr_epi8(last, m[(i + 2) & 3], 4));
                m[i & 3] = _mm_sha256msg2_epu32(next, last);
            }
        }
        abef = _mm_add_epi32(abef, was_abef);
        cdgh = _mm_add_epi32(cdgh, was_cdgh);
    }
    t = _mm_shuffle_epi32(abef, 0x1b);
    efgh = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(t, efgh, 0xf0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(efgh, t, 8));
}

#include <cpuid.h>

static bool is_fast(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 29;
}

#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>

__attribute__((target("sha2"))) static void
compress_fast(uint32_t state[8], const uint8_t *at, size_t blocks) {
    uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
    for (; blocks--; at += 64) {
        uint32x4_t m[4], was_abcd = abcd, was_efgh = efgh;
        for (int i = 0; i < 4; i++)
            m[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(at + 16 * i)));
        for (int i = 0; i < 16; i++) {
            uint32x4_t w = m[i & 3], k = vaddq_u32(w, vld1q_u32(K + 4 * i)), was = abcd;
            abcd = vsha256hq_u32(abcd, efgh, k);
            efgh = vsha256h2q_u32(efgh, was, k);
            if (i < 12)
                m[i & 3] = vsha256su1q_u32(vsha256su0q_u32(w, m[(i + 1) & 3]), m[(i + 2) & 3],
                                           m[(i + 3) & 3]);
        }
        abcd = vaddq_u32(abcd, was_abcd);
        efgh = vaddq_u32(efgh, was_efgh);
    }
    vst1q_u32(state, abcd);
    vst1q_u32(state + 4, efgh);
}

static bool is_fast(void) { return getauxval(AT_HWCAP) & 1u << 6; }

#else
static bool is_fast(void) { return false; }
#define compress_fast compress_plain
#endif

static void compress(uint32_t state[8], const uint8_t *at, size_t blocks) {
    static int fast = -1;
    if (fast < 0) fast = is_fast();
    if (fast)
        compress_fast(state, at, blocks);
    else
        compress_plain(state, at, blocks);
}

void sha256_begin(struct sha256 *h) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(h->state, start, sizeof start);
    h->total = 0;
}

void sha256_add(struct sha256 *h, const void *data, size_t len) {
    const uint8_t *at = data;
    size_t used = h->total % 64;
    if (!len) return;
    h->total += len;
    if (used) {
        size_t part = len < 64 - used ? len : 64 - used;
        memcpy(h->block + used, at, part);
        at += part;
        len -= part;
        if (used + part < 64) return;
        compress(h->state, h->block, 1);
    }
    compress(h->state, at, len / 64);
    if (len % 64) memcpy(h->block, at + (len & ~(size_t)63), len % 64);
}

void sha256_end(struct sha256 *h, uint8_t digest[32]) {
    uint8_t tail[72] = {0x80};
    uint64_t bits = h->total * 8;
    size_t pad = (119 - h->total % 64) % 64 + 1;
    for (int i = 0; i < 8; i++) tail[pad + (size_t)i] = (uint8_t)(bits >> 8 * (7 - i));
    sha256_add(h, tail, pad + 8);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(h->state[i / 4] >> 8 * (3 - i % 4));
}
