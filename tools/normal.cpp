// The normal numbers of torch on a processor, bit for bit, but faster: torch draws its random bits one
// call at a time, here the Mersenne twister advances in blocks that the compiler turns into vector instructions. The
// transform to normal numbers is torch's own, from its header. See tools/long_runs.py.

#include <immintrin.h>

#include <cstdint>

#include <ATen/native/cpu/avx_mathfun.h>

struct State {  // what torch.Generator.get_state() begins with
  uint64_t seed;
  int32_t left, seeded;
  uint64_t next, words[624];
};

namespace {

constexpr int WORDS = 624, SHIFT = 397;
constexpr int64_t PIECE = 4096;  // numbers that stay in the first cache between bits and transform

uint32_t mixed(uint32_t high, uint32_t low) {
  return (((high & 0x80000000u) | (low & 0x7fffffffu)) >> 1) ^ ((low & 1) ? 0x9908b0dfu : 0u);
}

struct Twister {
  uint32_t words[WORDS];
  int64_t left, next;

  void advance() {  // what a loop reads lies at least 227 words before what it writes
    uint32_t* w = words;
    for (int i = 0; i < WORDS - SHIFT; i++) w[i] = w[i + SHIFT] ^ mixed(w[i], w[i + 1]);
#pragma GCC ivdep
    for (int i = WORDS - SHIFT; i < 2 * (WORDS - SHIFT); i++) w[i] = w[i + SHIFT - WORDS] ^ mixed(w[i], w[i + 1]);
#pragma GCC ivdep
    for (int i = 2 * (WORDS - SHIFT); i < WORDS - 1; i++) w[i] = w[i + SHIFT - WORDS] ^ mixed(w[i], w[i + 1]);
    w[WORDS - 1] = w[SHIFT - 1] ^ mixed(w[WORDS - 1], w[0]);
    left = WORDS + 1;
    next = 0;
  }

  void uniform(float* out, int64_t size) {  // [0, 1), 24 bits each
    while (size > 0) {
      if (left == 1) advance();
      const int64_t count = left - 1 < size ? left - 1 : size;
      const uint32_t* w = words + next;
      for (int64_t i = 0; i < count; i++) {
        uint32_t y = w[i];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680u;
        y ^= (y << 15) & 0xefc60000u;
        y ^= y >> 18;
        out[i] = static_cast<float>(static_cast<int32_t>(y & 0xffffffu)) * (1.0f / 16777216.0f);
      }
      next += count, left -= count, out += count, size -= count;
    }
  }
};

struct BoxMuller {  // eight pairs of uniform numbers at a time
  __m256 mean, std;

  void operator()(float* data) const {
    const __m256 u = _mm256_sub_ps(_mm256_set1_ps(1.0f), _mm256_loadu_ps(data));
    const __m256 radius = _mm256_sqrt_ps(_mm256_mul_ps(_mm256_set1_ps(-2.0f), log256_ps(u)));
    const float two_pi = 2.0f * 3.14159265358979323846;
    const __m256 angle = _mm256_mul_ps(_mm256_set1_ps(two_pi), _mm256_loadu_ps(data + 8));
    __m256 sine, cosine;
    sincos256_ps(angle, &sine, &cosine);
    _mm256_storeu_ps(data, _mm256_fmadd_ps(_mm256_mul_ps(radius, cosine), std, mean));
    _mm256_storeu_ps(data + 8, _mm256_fmadd_ps(_mm256_mul_ps(radius, sine), std, mean));
  }
};

}  // namespace

// Fill `data` (16 numbers or more) as normal_ does, and move the state on.
extern "C" void fill_normal(State* state, float* data, int64_t size, double mean, double std) {
  Twister twister;
  for (int i = 0; i < WORDS; i++) twister.words[i] = static_cast<uint32_t>(state->words[i]);
  twister.left = state->left;
  twister.next = static_cast<int64_t>(state->next);
  const BoxMuller transform{_mm256_set1_ps(static_cast<float>(mean)), _mm256_set1_ps(static_cast<float>(std))};
  const int64_t whole = size / 16 * 16;
  for (int64_t start = 0; start < whole; start += PIECE) {
    const int64_t end = whole - start < PIECE ? whole : start + PIECE;
    twister.uniform(data + start, end - start);
    for (int64_t i = start; i < end; i += 16) transform(data + i);
  }
  if (size > whole) {  // torch draws numbers for the rest, and then the last sixteen anew
    float unused[16];
    twister.uniform(unused, size - whole);
    twister.uniform(data + size - 16, 16);
    transform(data + size - 16);
  }
  for (int i = 0; i < WORDS; i++) state->words[i] = twister.words[i];
  state->left = static_cast<int32_t>(twister.left);
  state->next = static_cast<uint64_t>(twister.next);
}
