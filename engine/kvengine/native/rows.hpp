// What is computed of each row by itself: norms, SwiGLU, rotary positions.
#pragma once

#include <cmath>

#include "vectors.hpp"

namespace {

template <class T>
void rms_norm(const T* x, const T* weight, T* out, int64_t num_rows, int64_t size, float epsilon) {
#pragma omp parallel for schedule(static) if (num_rows * size > kWorthThreads)
  for (int64_t row = 0; row < num_rows; ++row) {
    const T* line = x + row * size;
    Floats squares = {};
    each_vector(size, [&](int64_t at, auto count) {
      const Floats values = load_some(line + at, count);
      squares += values * values;
    });
    const float factor = 1.0f / std::sqrt(sum_of(squares) / size + epsilon);
    each_vector(size, [&](int64_t at, auto count) {
      store_some(out + row * size + at, load_some(line + at, count) * factor * load_some(weight + at, count), count);
    });
  }
}

template <class T>
void swiglu(const T* gate_up, T* out, int64_t num_rows, int64_t size) {
#pragma omp parallel for schedule(static) if (num_rows * size > kWorthThreads)
  for (int64_t row = 0; row < num_rows; ++row) {
    const T *gate = gate_up + row * 2 * size, *up = gate + size;
    each_vector(size, [&](int64_t at, auto count) {
      const Floats x = load_some(gate + at, count), negative = x < 0.0f ? x : -x;
      const Floats tail = exponential(negative);  // of -|x|, which cannot overflow
      const Floats sigmoid = (x < 0.0f ? tail : Floats{} + 1.0f) / (tail + 1.0f);
      store_some(out + row * size + at, x * sigmoid * load_some(up + at, count), count);
    });
  }
}

template <class T>
void rope(T* heads, int64_t token_stride, int64_t head_stride, int64_t num_tokens, int64_t num_heads, const T* cos,
          const T* sin, int64_t half) {
#pragma omp parallel for schedule(static) if (num_tokens * num_heads * half > kWorthThreads)
  for (int64_t token = 0; token < num_tokens; ++token)
    for (int64_t head = 0; head < num_heads; ++head) {
      T *first = heads + token * token_stride + head * head_stride, *second = first + half;
      each_vector(half, [&](int64_t at, auto count) {
        const Floats x = load_some(first + at, count), y = load_some(second + at, count);
        const Floats c = load_some(cos + token * half + at, count), s = load_some(sin + token * half + at, count);
        store_some(first + at, x * c - y * s, count);
        store_some(second + at, y * c + x * s, count);
      });
    }
}

}  // namespace
