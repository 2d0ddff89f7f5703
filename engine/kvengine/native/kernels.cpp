// The kernels' entries, for ctypes. Sums are taken in float32, whatever the tensors are kept in; `type` arguments are
// codes: 0 float32, 1 bfloat16, 2 float16, 3 float8 e4m3 (caches only).

#include "attention.hpp"
#include "rows.hpp"

namespace {

template <class T>
struct Tag {
  using type = T;
};

// Calls body with the tag of the type that the code stands for.
template <class Body>
void with_type(int code, Body body) {
  if (code == 0) body(Tag<float>());
  if (code == 1) body(Tag<BFloat16>());
  if (code == 2) body(Tag<_Float16>());
}

// The same for the types of a tensor and of a cache.
template <class Body>
void with_types(int code, int cache_code, Body body) {
  with_type(code, [&](auto tag) {
    with_type(cache_code, [&](auto cache_tag) { body(tag, cache_tag); });
    if (cache_code == 3) body(tag, Tag<Float8>());
  });
}

}  // namespace

extern "C" {

void kv_attend(int type, int cache_type, const void* q, int64_t q_stride, int64_t num_queries, const void* keys,
               const void* values, const int32_t* tables, int64_t table_stride, const int32_t* rows,
               const int32_t* lengths, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t value_size,
               int64_t block_size, float scale, int64_t window, float softcap, const float* k_scale,
               const float* v_scale, void* out) {
  const Heads heads = {num_heads, num_kv_heads, head_dim, value_size, block_size};
  const Scoring scoring = {scale, window, softcap, k_scale, v_scale};
  with_types(type, cache_type, [&](auto tag, auto cache_tag) {
    using Q = typename decltype(tag)::type;
    using C = typename decltype(cache_tag)::type;
    const Queries<Q> queries = {static_cast<const Q*>(q), q_stride, num_queries, tables, table_stride, rows, lengths};
    const Pool<C> pool = {static_cast<const C*>(keys), static_cast<const C*>(values)};
    attend(queries, pool, heads, scoring, static_cast<Q*>(out));
  });
}

void kv_store(int type, int cache_type, const void* from, int64_t token_stride, const int64_t* slots,
              int64_t num_tokens, int64_t num_kv_heads, int64_t head_dim, int64_t block_size, const float* scale,
              void* to) {
  with_types(type, cache_type, [&](auto tag, auto cache_tag) {
    using Q = typename decltype(tag)::type;
    using C = typename decltype(cache_tag)::type;
    store_lines(static_cast<const Q*>(from), token_stride, slots, num_tokens, num_kv_heads, head_dim, block_size, scale,
                static_cast<C*>(to));
  });
}

void kv_rms_norm(int type, const void* x, const void* weight, void* out, int64_t num_rows, int64_t size,
                 float epsilon) {
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    rms_norm(static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(out), num_rows, size, epsilon);
  });
}

void kv_swiglu(int type, const void* gate_up, void* out, int64_t num_rows, int64_t size) {
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    swiglu(static_cast<const T*>(gate_up), static_cast<T*>(out), num_rows, size);
  });
}

void kv_rope(int type, void* heads, int64_t token_stride, int64_t head_stride, int64_t num_tokens, int64_t num_heads,
             const void* cos, const void* sin, int64_t half) {
  with_type(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    rope(static_cast<T*>(heads), token_stride, head_stride, num_tokens, num_heads, static_cast<const T*>(cos),
         static_cast<const T*>(sin), half);
  });
}
}
