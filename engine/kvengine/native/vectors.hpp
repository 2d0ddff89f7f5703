// Sixteen numbers at a time: reading and writing them in every type, computing with them in float32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr int64_t kLanes = 16;
// Elements of work below which waking a second thread costs more than it saves.
constexpr int64_t kWorthThreads = 1 << 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t HalfWords __attribute__((vector_size(32)));
typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef _Float16 Halfs __attribute__((vector_size(32)));

struct BFloat16 {
  uint16_t bits;
};
struct Float8 {
  uint8_t bits;
};

template <class To, class From>
To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "only the type changes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class Vector, class T>
Vector read(const T* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

Floats load(const float* from) { return read<Floats>(from); }

Floats load(const BFloat16* from) {
  return bits_as<Floats>(__builtin_convertvector(read<HalfWords>(from), Words) << 16);
}

// Written out where there is an instruction for it, which compilers may miss.
Floats widened(Halfs halfs) {
#ifdef __AVX512F__
  return bits_as<Floats>(_mm512_cvtph_ps(bits_as<__m256i>(halfs)));
#else
  return __builtin_convertvector(halfs, Floats);
#endif
}

Halfs narrowed(Floats values) {
#ifdef __AVX512F__
  return bits_as<Halfs>(_mm512_cvtps_ph(bits_as<__m512>(values), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  return __builtin_convertvector(values, Halfs);
#endif
}

Floats load(const _Float16* from) { return widened(read<Halfs>(from)); }

// Sign, 4 bits of exponent (bias 7), 3 of mantissa: the middle bits of a float16 (bias 15), which is 2^8 times smaller.
// 0x7f is not a number.
Floats load(const Float8* from) {
  const HalfWords code = __builtin_convertvector(read<Bytes>(from), HalfWords), magnitude = code & 0x7f;
  const HalfWords placed = (magnitude == 0x7f ? HalfWords{} + 0x7e00 : magnitude << 7) | (code & 0x80) << 8;
  return widened(bits_as<Halfs>(placed)) * 256.0f;
}

void store(float* to, Floats values) { std::memcpy(to, &values, sizeof(values)); }

void store(BFloat16* to, Floats values) {
  const Words bits = bits_as<Words>(values);
  const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Words quiet = bits >> 16 | 0x40;
  const HalfWords kept = __builtin_convertvector(values == values ? rounded : quiet, HalfWords);
  std::memcpy(to, &kept, sizeof(kept));
}

void store(_Float16* to, Floats values) {
  const Halfs kept = narrowed(values);
  std::memcpy(to, &kept, sizeof(kept));
}

// Rounds to nearest, ties to even; what is beyond 448 becomes 448.
void store(Float8* to, Floats values) {
  const Words bits = bits_as<Words>(values);
  Floats size = bits_as<Floats>(bits & 0x7fffffff);
  const Words is_nan = bits_as<Words>(size != size);
  size = size > 448.0f ? Floats{} + 448.0f : size;
  // From 2^14 on neighbouring floats are 2^-9 apart, so that this sum rounds to whole steps.
  const Words steps = bits_as<Words>(size + 0x1p14f) - bits_as<uint32_t>(0x1p14f);
  const Words wide = bits_as<Words>(size);
  const Words normal = (wide + 0x7ffff + (wide >> 20 & 1) - (120u << 23)) >> 20;
  Words code = size < 0x1p-6f ? steps : normal;
  code = (is_nan ? Words{} + 0x7f : code) | (bits >> 24 & 0x80);
  const Bytes kept = __builtin_convertvector(code, Bytes);
  std::memcpy(to, &kept, sizeof(kept));
}

template <class T>
Floats load_first(const T* from, int64_t count) {
  T padded[kLanes] = {};
  std::memcpy(padded, from, count * sizeof(T));
  return load(padded);
}

template <class T>
void store_first(T* to, Floats values, int64_t count) {
  T padded[kLanes];
  store(padded, values);
  std::memcpy(to, padded, count * sizeof(T));
}

// Calls body(offset, count) for whole vectors, then once for the rest.
template <class Body>
inline void each_vector(int64_t size, Body body) {
  int64_t at = 0;
  for (; at + kLanes <= size; at += kLanes) body(at, std::integral_constant<int64_t, kLanes>());
  if (at < size) body(at, size - at);
}

template <class T>
Floats load_some(const T* from, std::integral_constant<int64_t, kLanes>) {
  return load(from);
}
template <class T>
Floats load_some(const T* from, int64_t count) {
  return load_first(from, count);
}
template <class T>
void store_some(T* to, Floats values, std::integral_constant<int64_t, kLanes>) {
  store(to, values);
}
template <class T>
void store_some(T* to, Floats values, int64_t count) {
  store_first(to, values, count);
}

float sum_of(Floats v) {
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return v[0];
}

// e^x to 2 units in the last place for x <= 88; what is below -87 counts as -87, about 1e-38.
Floats exponential(Floats x) {
  x = x < -87.0f ? Floats{} - 87.0f : x;
  const Floats shifted = x * 1.44269504f + 0x1.8p23f;  // the sum's last bits are the nearest whole number
  const Floats whole = shifted - 0x1.8p23f;
  const Floats rest = x - whole * 0.693359375f - whole * -2.12194440e-4f;
  Floats power = Floats{} + 1.0f / 720;
  for (const float coefficient : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    power = power * rest + coefficient;
  return power * bits_as<Floats>((bits_as<Words>(shifted) << 23) + (127u << 23));
}

}  // namespace
