// Attention over paged keys and values, one query token at a time, and how these get into the pool and out of it.
//
// Keys and values of a layer are [num_blocks, num_kv_heads, block_size, head_dim] each, of which attention takes the
// first value_size elements of a value; with latent rows both are the same. A slot is block * block_size + offset, a
// negative one is padding. Sizes and strides count elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vectors.hpp"

namespace {

// Tokens that one thread attends to at a time. Fixed, and counted from position 0, so that the order in which a
// request's sums are taken depends on the request alone, not on its neighbours or on the number of threads.
constexpr int64_t kSplit = 512;

template <class T>
inline void prefetch(const T* from, int64_t count) {
  const char* line = reinterpret_cast<const char*>(from);
  for (int64_t byte = 0; byte < count * int64_t(sizeof(T)); byte += 64) __builtin_prefetch(line + byte);
}

// scores[g][j] = q[g] . keys[j] for `count` keys that lie side by side. Meanwhile the keys of the next block and the
// values of this one are fetched: blocks are too short for the processor to guess where it goes on.
template <int G, class C>
inline void score(const float* q, int64_t q_stride, const C* keys, const C* next_keys, const C* values, int64_t count,
                  int64_t dim, float* scores) {
  for (int64_t j = 0; j < count; ++j) {
    prefetch(next_keys + j * dim, dim);
    prefetch(values + j * dim, dim);
    Floats sums[G] = {};
    each_vector(dim, [&](int64_t at, auto size) {
      const Floats key = load_some(keys + j * dim + at, size);
      for (int g = 0; g < G; ++g) sums[g] += key * load(q + g * q_stride + at);
    });
    for (int g = 0; g < G; ++g) scores[g * kSplit + j] = sum_of(sums[g]);
  }
}

// out[g] += weights[g][j] * values[j] for `Width` vectors of `count` values, which lie `dim` apart; the sums stay in
// registers.
template <int G, int Width, class C>
inline void blend_columns(const float* weights, const C* values, int64_t count, int64_t dim, float* out,
                          int64_t out_stride) {
  Floats sums[G][Width];
  for (int g = 0; g < G; ++g)
    for (int w = 0; w < Width; ++w) sums[g][w] = load(out + g * out_stride + w * kLanes);
  for (int64_t j = 0; j < count; ++j)
    for (int w = 0; w < Width; ++w) {
      const Floats value = load(values + j * dim + w * kLanes);
      for (int g = 0; g < G; ++g) sums[g][w] += value * weights[g * kSplit + j];
    }
  for (int g = 0; g < G; ++g)
    for (int w = 0; w < Width; ++w) store(out + g * out_stride + w * kLanes, sums[g][w]);
}

template <int G, class C>
inline void blend(const float* weights, const C* values, int64_t count, int64_t dim, int64_t size, float* out,
                  int64_t out_stride) {
  int64_t at = 0;
  for (; at + 4 * kLanes <= size; at += 4 * kLanes)
    blend_columns<G, 4>(weights, values + at, count, dim, out + at, out_stride);
  for (; at + kLanes <= size; at += kLanes)
    blend_columns<G, 1>(weights, values + at, count, dim, out + at, out_stride);
  if (at == size) return;
  for (int64_t j = 0; j < count; ++j) {
    const Floats value = load_first(values + j * dim + at, size - at);
    for (int g = 0; g < G; ++g) {
      float* sums = out + g * out_stride + at;
      store(sums, load(sums) + value * weights[g * kSplit + j]);
    }
  }
}

// Turns scores into weights relative to their largest; gives that and the weights' sum.
void soften(float* scores, int64_t count, float softcap, float* largest, float* total) {
  if (softcap > 0)
    for (int64_t j = 0; j < count; ++j) scores[j] = softcap * std::tanh(scores[j] / softcap);
  float top = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < count; ++j) top = std::max(top, scores[j]);
  Floats sums = {};
  each_vector(count, [&](int64_t at, auto size) {
    Floats weights = exponential(load_some(scores + at, size) - top);
    for (int64_t lane = size; lane < kLanes; ++lane) weights[lane] = 0;
    sums += weights;
    store_some(scores + at, weights, size);
  });
  *largest = top;
  *total = sum_of(sums);
}

int64_t whole_vectors(int64_t size) { return (size + kLanes - 1) / kLanes * kLanes; }

struct Heads {
  int64_t num_heads, num_kv_heads, head_dim, value_size, block_size;
  int64_t group() const { return num_heads / num_kv_heads; }
  // What is kept of one head and part of a context: the blended values, the largest score, the sum of the weights.
  int64_t partial_size() const { return whole_vectors(value_size) + 2; }
};

template <class C>
struct Pool {
  const C* keys;
  const C* values;
};

// Part of what one query token sees, [first, end), attended to by the query heads of one KV head.
struct Part {
  int64_t query, first, end;
};

// Attends from G query heads that share a KV head, `q_stride` apart.
template <int G, class C>
void attend_heads(const Heads& heads, const Pool<C>& pool, const int32_t* table, int64_t kv_head, const Part& part,
                  float softcap, const float* q, int64_t q_stride, float* scores, float* partial) {
  const int64_t dim = heads.head_dim, block_size = heads.block_size;
  const int64_t values = whole_vectors(heads.value_size), stride = heads.partial_size();
  const auto place_of = [&](int64_t position) {
    const int64_t line = int64_t(table[position / block_size]) * heads.num_kv_heads + kv_head;
    return (line * block_size + position % block_size) * dim;
  };
  const auto each_block = [&](auto body) {
    int64_t place = place_of(part.first);
    for (int64_t at = part.first; at < part.end;) {
      const int64_t count = std::min(block_size - at % block_size, part.end - at);
      const int64_t next = at + count < part.end ? place_of(at + count) : place;
      body(place, next, count, at - part.first);
      place = next;
      at += count;
    }
  };
  each_block([&](int64_t place, int64_t next, int64_t count, int64_t token) {
    score<G>(q, q_stride, pool.keys + place, pool.keys + next, pool.values + place, count, dim, scores + token);
  });
  for (int g = 0; g < G; ++g) {
    float* sums = partial + g * stride;
    soften(scores + g * kSplit, part.end - part.first, softcap, sums + values, sums + values + 1);
    std::fill(sums, sums + values, 0.0f);
  }
  each_block([&](int64_t place, int64_t, int64_t count, int64_t token) {
    blend<G>(scores + token, pool.values + place, count, dim, heads.value_size, partial, stride);
  });
}

// Attends from all query heads of a KV head, up to four at a time, so that a key is read once for four.
template <class Q, class C>
void attend_part(const Heads& heads, const Pool<C>& pool, const int32_t* table, int64_t kv_head, const Part& part,
                 float softcap, float scale, const Q* q, float* partial) {
  const int64_t group = heads.group(), padded = whole_vectors(heads.head_dim);
  thread_local std::vector<float> scratch;
  scratch.resize(group * padded + 4 * kSplit);
  float *queries = scratch.data(), *scores = queries + group * padded;
  for (int64_t g = 0; g < group; ++g)
    each_vector(heads.head_dim, [&](int64_t at, auto size) {
      store(queries + g * padded + at, load_some(q + g * heads.head_dim + at, size) * scale);
    });
  for (int64_t g = 0; g < group; g += 4) {
    float *from = queries + g * padded, *to = partial + g * heads.partial_size();
    switch (std::min<int64_t>(group - g, 4)) {
      case 1: attend_heads<1>(heads, pool, table, kv_head, part, softcap, from, padded, scores, to); break;
      case 2: attend_heads<2>(heads, pool, table, kv_head, part, softcap, from, padded, scores, to); break;
      case 3: attend_heads<3>(heads, pool, table, kv_head, part, softcap, from, padded, scores, to); break;
      default: attend_heads<4>(heads, pool, table, kv_head, part, softcap, from, padded, scores, to);
    }
  }
}

// One head's result from what is kept of all parts of its context, `stride` apart; zeros where there are none.
template <class Q>
void merge(const float* partial, int64_t num_parts, int64_t stride, const Heads& heads, float scale, Q* out) {
  const float* tops = partial + whole_vectors(heads.value_size);
  float top = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t p = 0; p < num_parts; ++p) top = std::max(top, tops[p * stride]);
  for (int64_t p = 0; p < num_parts; ++p) total += std::exp(tops[p * stride] - top) * tops[p * stride + 1];
  const float share = num_parts ? scale / total : 0;
  each_vector(heads.value_size, [&](int64_t at, auto size) {
    Floats sum = {};
    for (int64_t p = 0; p < num_parts; ++p)
      sum += load(partial + p * stride + at) * std::exp(tops[p * stride] - top);
    store_some(out + at, sum * share, size);
  });
}

// Query tokens, and what each of them sees: the first `lengths[i]` tokens, or a window of the last of them, of the
// request whose blocks are in row `rows[i]` of the tables, or in row i where there are no `rows`.
template <class Q>
struct Queries {
  const Q* data;
  int64_t stride, count;
  const int32_t* tables;
  int64_t table_stride;
  const int32_t* rows;
  const int32_t* lengths;
  const int32_t* table(int64_t query) const { return tables + (rows ? rows[query] : query) * table_stride; }
};

struct Scoring {
  float scale;
  int64_t window;
  float softcap;
  const float* k_scale;
  const float* v_scale;
};

// Cuts what a query sees at multiples of kSplit.
inline void add_parts(int64_t query, int64_t length, int64_t window, std::vector<Part>& parts) {
  const int64_t first = window > 0 ? std::max<int64_t>(0, length - window) : 0;
  for (int64_t at = first; at < length; at = at / kSplit * kSplit + kSplit)
    parts.push_back({query, at, std::min(length, at / kSplit * kSplit + kSplit)});
}

// Attends from queries `first` to `end`, whose parts are given; query i's begin at starts[i - first].
template <class Q, class C>
void attend_range(const Queries<Q>& queries, int64_t first, int64_t end, const std::vector<Part>& parts,
                  const std::vector<int64_t>& starts, const Pool<C>& pool, const Heads& heads, const Scoring& scoring,
                  float* partial, Q* out) {
  const int64_t kv_heads = heads.num_kv_heads, group = heads.group();
  const int64_t line = heads.partial_size(), stride = heads.num_heads * line;
  int64_t num_tokens = 0;
  for (const Part& part : parts) num_tokens += part.end - part.first;
#pragma omp parallel if (num_tokens * heads.num_heads * heads.head_dim > kWorthThreads)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < int64_t(parts.size()) * kv_heads; ++item) {
      const int64_t index = item / kv_heads, kv_head = item % kv_heads;
      const Part& part = parts[index];
      const float scale = scoring.k_scale ? scoring.scale * scoring.k_scale[kv_head] : scoring.scale;
      attend_part(heads, pool, queries.table(part.query), kv_head, part, scoring.softcap, scale,
                  queries.data + part.query * queries.stride + kv_head * group * heads.head_dim,
                  partial + index * stride + kv_head * group * line);
    }
#pragma omp for schedule(static)
    for (int64_t item = first * heads.num_heads; item < end * heads.num_heads; ++item) {
      const int64_t query = item / heads.num_heads - first, head = item % heads.num_heads;
      merge(partial + starts[query] * stride + head * line, starts[query + 1] - starts[query], stride, heads,
            scoring.v_scale ? scoring.v_scale[head / group] : 1.0f, out + item * heads.value_size);
    }
  }
}

// Attends from all queries, as many at a time as what is kept of their parts stays in the processor's cache.
template <class Q, class C>
void attend(const Queries<Q>& queries, const Pool<C>& pool, const Heads& heads, const Scoring& scoring, Q* out) {
  constexpr int64_t kPartialSize = 1 << 19;
  const int64_t stride = heads.num_heads * heads.partial_size();
  std::vector<Part> parts;
  std::vector<int64_t> starts;
  thread_local std::vector<float> partial;
  for (int64_t first = 0, end = 0; first < queries.count; first = end) {
    parts.clear();
    starts.assign(1, 0);
    while (end < queries.count && (end == first || int64_t(parts.size()) * stride < kPartialSize)) {
      add_parts(end, queries.lengths[end], scoring.window, parts);
      starts.push_back(parts.size());
      ++end;
    }
    if (partial.size() < parts.size() * stride) partial.resize(parts.size() * stride);
    attend_range(queries, first, end, parts, starts, pool, heads, scoring, partial.data(), out);
  }
}

template <class Q, class C>
void store_lines(const Q* from, int64_t token_stride, const int64_t* slots, int64_t num_tokens, int64_t num_heads,
                 int64_t head_dim, int64_t block_size, const float* scale, C* to) {
#pragma omp parallel for schedule(static) if (num_tokens * num_heads * head_dim > kWorthThreads)
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (slots[token] < 0) continue;
    const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
    for (int64_t head = 0; head < num_heads; ++head) {
      const Q* source = from + token * token_stride + head * head_dim;
      C* target = to + ((block * num_heads + head) * block_size + offset) * head_dim;
      if constexpr (std::is_same_v<Q, C>) {
        std::memcpy(target, source, head_dim * sizeof(C));
      } else {
        const float factor = scale ? 1.0f / scale[head] : 1.0f;
        each_vector(head_dim, [&](int64_t at, auto size) {
          store_some(target + at, load_some(source + at, size) * factor, size);
        });
      }
    }
  }
}

}  // namespace
