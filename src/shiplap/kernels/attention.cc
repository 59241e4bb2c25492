// Causal attention in blocks, after FlashAttention: the matrix of scores is never stored as a
// whole.
//
// Forward, for a block of queries: S = Q K^T, P = exp(S - max), O += P V over the blocks of keys.
// The running maximum and sum of the softmax are rescaled when a block raises the maximum (online
// softmax). Only lse = max + log(sum) is kept for backward.
//
// Backward recomputes P = exp(S - lse) from Q, K and lse, with D = rowsum(dO * O):
//   dV += P^T dO,  dP = dO V^T,  dS = P (dP - D),  dQ += dS K,  dK += dS^T Q.
//
// The query heads that share a key head (GQA) are rows of the same block, so each GEMM covers all
// of them and dK, dV are summed over the group without further work. Blocks are padded to few
// different sizes, because oneDNN compiles a kernel for each shape (blocks_internal.h).
#include "shiplap/kernels/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/kernels/blocks_internal.h"
#include "shiplap/kernels/engines_internal.h"
#include "shiplap/kernels/softmax_internal.h"
#include "shiplap/kernels/workspace_internal.h"

namespace shiplap::kernels {
namespace {

[[noreturn]] void throw_invalid(std::string_view operation, std::string what) {
  throw InputError(Diagnostic{
      .code = "D500", .where = {.operation = std::string(operation)}, .what = std::move(what)});
}

AttentionShape checked(AttentionShape shape) {
  constexpr std::string_view kOperation = "attention";
  if (shape.heads <= 0 || shape.kv_heads <= 0 || shape.head_dim <= 0) {
    throw_invalid(kOperation,
                  fmt::format("{} heads, {} key heads and a head dimension of {}, where each "
                              "must be at least 1",
                              shape.heads, shape.kv_heads, shape.head_dim));
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw_invalid(kOperation, fmt::format("{} heads cannot share {} key heads evenly", shape.heads,
                                          shape.kv_heads));
  }
  if (!std::isfinite(shape.scale)) throw_invalid(kOperation, "the scale is not a finite number");
  if (shape.scale == 0) shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  return shape;
}

void check_cu_seqlens(std::string_view operation, std::string_view name,
                      std::span<const std::uint32_t> ends) {
  if (ends.empty()) throw_invalid(operation, fmt::format("{} is empty", name));
  if (ends.front() != 0) {
    throw_invalid(operation, fmt::format("{} begins with {} instead of 0", name, ends.front()));
  }
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] < ends[i - 1]) {
      throw_invalid(operation, fmt::format("{} decreases from {} to {} at entry {}", name,
                                           ends[i - 1], ends[i], i));
    }
  }
}

void check(std::string_view operation, const Sequences& sequences) {
  const auto& q = sequences.cu_seqlens_q;
  const auto& kv = sequences.cu_seqlens_kv;
  check_cu_seqlens(operation, "cu_seqlens_q", q);
  check_cu_seqlens(operation, "cu_seqlens_kv", kv);
  if (q.size() != kv.size()) {
    throw_invalid(operation, fmt::format("cu_seqlens_q has {} entries and cu_seqlens_kv {}",
                                         q.size(), kv.size()));
  }
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    const Sequence sequence = sequence_at(sequences, i);
    if (sequence.queries > 0 && sequence.keys < sequence.queries) {
      throw_invalid(operation, fmt::format("sequence {} has {} queries but only {} keys", i,
                                           sequence.queries, sequence.keys));
    }
  }
}

struct TensorSize {
  std::string_view operation;
  std::size_t tokens;
  std::size_t row;

  void check(std::string_view name, std::size_t size) const {
    if (size == tokens * row) return;
    throw_invalid(operation, fmt::format("{} has {} elements, where {} tokens of {} were expected",
                                         name, size, tokens, row));
  }
};

struct TensorSizes {
  TensorSize queries;  // q, o and their gradients
  TensorSize keys;     // k, v and their gradients
  TensorSize lse;
};

TensorSizes sizes_of(std::string_view operation, const AttentionShape& shape,
                     const Sequences& sequences) {
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t queries = sequences.cu_seqlens_q.back();
  const std::size_t keys = sequences.cu_seqlens_kv.back();
  return {.queries = {operation, queries, heads * dim},
          .keys = {operation, keys, kv_heads * dim},
          .lse = {operation, queries, heads}};
}

// Checks the tensors that forward and backward have in common.
template <class Data>
TensorSizes checked_sizes(std::string_view operation, const AttentionShape& shape,
                          const Sequences& sequences, const Data& data) {
  check(operation, sequences);
  const TensorSizes sizes = sizes_of(operation, shape, sequences);
  sizes.queries.check("q", data.q.size());
  sizes.keys.check("k", data.k.size());
  sizes.keys.check("v", data.v.size());
  sizes.queries.check("o", data.o.size());
  sizes.lse.check("lse", data.lse.size());
  return sizes;
}

template <class T>
void check(const AttentionShape& shape, const Sequences& sequences,
           const AttentionForward<T>& data) {
  (void)checked_sizes("attention forward", shape, sequences, data);
}

template <class T>
void check(const AttentionShape& shape, const Sequences& sequences,
           const AttentionBackward<T>& data) {
  const TensorSizes sizes = checked_sizes("attention backward", shape, sequences, data);
  sizes.queries.check("d_o", data.d_o.size());
  sizes.queries.check("d_q", data.d_q.size());
  sizes.keys.check("d_k", data.d_k.size());
  sizes.keys.check("d_v", data.d_v.size());
}

float as_float(float value) { return value; }
float as_float(Bf16 value) { return to_float(value); }
void assign(float& to, float value) { to = value; }
void assign(Bf16& to, float value) { to = to_bf16(value); }

constexpr auto kLog2E = std::numbers::log2e_v<float>;
constexpr auto kLn2 = std::numbers::ln2_v<float>;

// Forward or backward of one key head of one sequence, and the query heads that share it (GQA).
template <class T>
class AttentionPass {
 public:
  AttentionPass(const AttentionShape& shape, GemmEngine& gemm, Workspace<T>& space)
      : shape_(shape),
        dim_(shape.head_dim),
        group_(shape.heads / shape.kv_heads),
        gemm_(gemm),
        space_(space) {}

  void forward(const Sequence& sequence, std::int64_t kv_head, const AttentionForward<T>& data) {
    copy_keys(sequence, kv_head, data.k, space_.keys);
    copy_keys(sequence, kv_head, data.v, space_.values);
    for (std::int64_t first = 0; first < sequence.queries; first += block_queries(group_)) {
      const QueryBlock queries = query_block(sequence, first, group_);
      copy_queries(sequence, kv_head, queries, data.q, space_.queries);
      std::fill_n(space_.lse.data(), queries.rows, -std::numeric_limits<float>::infinity());
      std::fill_n(space_.dot.data(), queries.rows, 0.0F);
      std::fill_n(space_.sums.data(), queries.rows * dim_, 0.0F);
      for (std::int64_t key = 0; key < queries.visible; key += kBlockKeys) {
        forward_block(queries, key_block(queries, key));
      }
      finish_forward(sequence, kv_head, queries, data);
    }
  }

  void backward(const Sequence& sequence, std::int64_t kv_head, const AttentionBackward<T>& data) {
    copy_keys(sequence, kv_head, data.k, space_.keys);
    copy_keys(sequence, kv_head, data.v, space_.values);
    std::fill_n(space_.d_keys.data(), sequence.keys * dim_, 0.0F);
    std::fill_n(space_.d_values.data(), sequence.keys * dim_, 0.0F);
    for (std::int64_t first = 0; first < sequence.queries; first += block_queries(group_)) {
      const QueryBlock queries = query_block(sequence, first, group_);
      copy_queries(sequence, kv_head, queries, data.q, space_.queries);
      copy_queries(sequence, kv_head, queries, data.d_o, space_.d_output);
      prepare_backward(sequence, kv_head, queries, data);
      for (std::int64_t key = 0; key < queries.visible; key += kBlockKeys) {
        backward_block(queries, key_block(queries, key));
      }
      finish_backward(sequence, kv_head, queries, data.d_q);
    }
    write_keys(sequence, kv_head, {space_.d_keys.data(), shape_.scale}, data.d_k);
    write_keys(sequence, kv_head, {space_.d_values.data(), 1.0F}, data.d_v);
  }

 private:
  static constexpr DType kType = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
  struct OperandPair {
    T* a;
    T* b;
  };

  void forward_block(const QueryBlock& queries, const KeyBlock& keys) {
    scores(queries, keys, {space_.queries.data(), space_.keys.data()}, space_.scores.data());
    softmax_step(SoftmaxStep<T>{.block = score_block(queries, keys),
                                .weights = space_.weights(),
                                .maximum = space_.lse.data(),
                                .sum = space_.dot.data(),
                                .output = space_.sums.data(),
                                .head_dim = dim_});
    add_by_query(queries, keys, {space_.weights(), space_.values.data()}, space_.sums.data());
  }

  // P = exp(S - lse), dV += P^T dO, dP = dO V^T, dS = P (dP - D), dQ += dS K, dK += dS^T Q; the
  // scale of the last two is applied at the end. The GEMMs over rows sum over the heads of the
  // group.
  void backward_block(const QueryBlock& queries, const KeyBlock& keys) {
    scores(queries, keys, {space_.queries.data(), space_.keys.data()}, space_.scores.data());
    scores(queries, keys, {space_.d_output.data(), space_.values.data()}, space_.d_weights.data());
    gradient_step(GradientStep<T>{.block = score_block(queries, keys),
                                  .lse = space_.lse.data(),
                                  .dot = space_.dot.data(),
                                  .d_weights = space_.d_weights.data(),
                                  .weights = space_.weights(),
                                  .d_scores = space_.d_scores()});
    add_by_key(queries, keys, {space_.weights(), space_.d_output.data()}, space_.d_values.data());
    add_by_query(queries, keys, {space_.d_scores(), space_.keys.data()}, space_.sums.data());
    add_by_key(queries, keys, {space_.d_scores(), space_.queries.data()}, space_.d_keys.data());
  }

  // c = a b^T for rows of queries and keys, where b begins with the sequence.
  void scores(const QueryBlock& queries, const KeyBlock& keys, const OperandPair& operands,
              float* c) {
    gemm_.multiply({.m = queries.rows,
                    .n = keys.padded,
                    .k = dim_,
                    .type = kType,
                    .a = {.stride = dim_},
                    .b = {.is_transposed = true, .stride = dim_},
                    .stride_c = keys.padded},
                   {.a = operands.a, .b = operands.b + keys.first * dim_, .c = c});
  }

  // c += a b, where a is a block of weights or d_scores and b begins with the sequence.
  void add_by_query(const QueryBlock& queries, const KeyBlock& keys, const OperandPair& operands,
                    float* c) {
    gemm_.multiply({.m = queries.rows,
                    .n = dim_,
                    .k = keys.padded,
                    .type = kType,
                    .a = {.stride = keys.padded},
                    .b = {.stride = dim_},
                    .stride_c = dim_,
                    .write_mode = WriteMode::accumulate},
                   {.a = operands.a, .b = operands.b + keys.first * dim_, .c = c});
  }

  // c += a^T b, where a is a block of weights or d_scores and c begins with the sequence.
  void add_by_key(const QueryBlock& queries, const KeyBlock& keys, const OperandPair& operands,
                  float* c) {
    gemm_.multiply({.m = keys.padded,
                    .n = dim_,
                    .k = queries.rows,
                    .type = kType,
                    .a = {.is_transposed = true, .stride = keys.padded},
                    .b = {.stride = dim_},
                    .stride_c = dim_,
                    .write_mode = WriteMode::accumulate},
                   {.a = operands.a, .b = operands.b, .c = c + keys.first * dim_});
  }

  ScoreBlock score_block(const QueryBlock& queries, const KeyBlock& keys) {
    count_visible(queries, keys, space_.visible);
    return {.rows = queries.rows,
            .columns = keys.padded,
            .visible = space_.visible.data(),
            .factor = shape_.scale * kLog2E,
            .scores = space_.scores.data()};
  }

  // Index in lse of a token and head; times head_dim, in q, o and their gradients.
  [[nodiscard]] std::int64_t lse_index(const Sequence& sequence, std::int64_t query,
                                       std::int64_t head) const {
    return (sequence.first_query + query) * shape_.heads + head;
  }
  [[nodiscard]] std::int64_t key_index(const Sequence& sequence, std::int64_t key,
                                       std::int64_t kv_head) const {
    return ((sequence.first_key + key) * shape_.kv_heads + kv_head) * dim_;
  }

  // Calls visit(row of the block, index in lse) for each query that is not padding.
  template <class Visit>
  void for_each_row(const Sequence& sequence, std::int64_t kv_head, const QueryBlock& queries,
                    Visit visit) const {
    for (std::int64_t head = 0; head < group_; ++head) {
      for (std::int64_t i = 0; i < queries.count; ++i) {
        visit(head * queries.padded + i,
              lse_index(sequence, queries.first + i, kv_head * group_ + head));
      }
    }
  }

  void copy_queries(const Sequence& sequence, std::int64_t kv_head, const QueryBlock& queries,
                    std::span<const T> from, Buffer<T>& to) const {
    for (std::int64_t head = 0; head < group_; ++head) {
      T* const padding = to.data() + (head * queries.padded + queries.count) * dim_;
      std::fill_n(padding, (queries.padded - queries.count) * dim_, T{});
    }
    for_each_row(sequence, kv_head, queries, [&](std::int64_t row, std::int64_t index) {
      std::copy_n(from.data() + index * dim_, dim_, to.data() + row * dim_);
    });
  }

  void copy_keys(const Sequence& sequence, std::int64_t kv_head, std::span<const T> from,
                 Buffer<T>& to) const {
    for (std::int64_t key = 0; key < sequence.keys; ++key) {
      std::copy_n(from.data() + key_index(sequence, key, kv_head), dim_, to.data() + key * dim_);
    }
    const std::int64_t end = divide_up(sequence.keys, kBlockKeys) * kBlockKeys;
    std::fill(to.data() + sequence.keys * dim_, to.data() + end * dim_, T{});
  }

  void finish_forward(const Sequence& sequence, std::int64_t kv_head, const QueryBlock& queries,
                      const AttentionForward<T>& data) const {
    for_each_row(sequence, kv_head, queries, [&](std::int64_t row, std::int64_t index) {
      const float maximum = space_.lse.data()[row];
      const float sum = space_.dot.data()[row];
      data.lse.data()[index] = maximum * kLn2 + std::log(sum);
      write(space_.sums.data() + row * dim_, 1 / sum, data.o.data() + index * dim_);
    });
  }

  // Padded rows are zero, so they add nothing to any gradient.
  void prepare_backward(const Sequence& sequence, std::int64_t kv_head, const QueryBlock& queries,
                        const AttentionBackward<T>& data) {
    std::fill_n(space_.lse.data(), queries.rows, 0.0F);
    std::fill_n(space_.dot.data(), queries.rows, 0.0F);
    std::fill_n(space_.sums.data(), queries.rows * dim_, 0.0F);
    for_each_row(sequence, kv_head, queries, [&](std::int64_t row, std::int64_t index) {
      const T* const o = data.o.data() + index * dim_;
      const T* const d_o = data.d_o.data() + index * dim_;
      float dot = 0;
      for (std::int64_t i = 0; i < dim_; ++i) dot += as_float(o[i]) * as_float(d_o[i]);
      space_.dot.data()[row] = dot;
      space_.lse.data()[row] = data.lse.data()[index] * kLog2E;
    });
  }

  void finish_backward(const Sequence& sequence, std::int64_t kv_head, const QueryBlock& queries,
                       std::span<T> d_q) const {
    for_each_row(sequence, kv_head, queries, [&](std::int64_t row, std::int64_t index) {
      write(space_.sums.data() + row * dim_, shape_.scale, d_q.data() + index * dim_);
    });
  }

  struct Scaled {
    const float* values;
    float scale;
  };

  void write_keys(const Sequence& sequence, std::int64_t kv_head, const Scaled& from,
                  std::span<T> to) const {
    for (std::int64_t key = 0; key < sequence.keys; ++key) {
      write(from.values + key * dim_, from.scale, to.data() + key_index(sequence, key, kv_head));
    }
  }

  void write(const float* from, float scale, T* to) const {
    for (std::int64_t i = 0; i < dim_; ++i) assign(to[i], from[i] * scale);
  }

  const AttentionShape& shape_;
  std::int64_t dim_;
  std::int64_t group_;
  GemmEngine& gemm_;
  Workspace<T>& space_;
};

WorkspaceSizes workspace_sizes(const AttentionShape& shape, const Sequences& sequences) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  std::int64_t keys = 0;
  for (std::size_t i = 0; i + 1 < sequences.cu_seqlens_q.size(); ++i) {
    keys = std::max(keys, sequence_at(sequences, i).keys);
  }
  return {.rows = group * block_queries(group),
          .columns = kBlockKeys,
          .keys = divide_up(keys, kBlockKeys) * kBlockKeys,
          .head_dim = shape.head_dim};
}

}  // namespace

struct Attention::State {
  AttentionShape shape;
  std::unique_ptr<GemmEngine> gemm;
  Workspace<float> f32;
  Workspace<Bf16> bf16;

  template <class T>
  Workspace<T>& workspace() {
    if constexpr (std::is_same_v<T, float>) {
      return f32;
    } else {
      return bf16;
    }
  }

  // Calls visit(sequence, key head) for each, in order.
  template <class Visit>
  void for_each(const Sequences& sequences, Visit visit) const {
    for (std::size_t i = 0; i + 1 < sequences.cu_seqlens_q.size(); ++i) {
      const Sequence sequence = sequence_at(sequences, i);
      for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        visit(sequence, kv_head);
      }
    }
  }
};

Attention::Attention(const AttentionShape& shape)
    : state_(std::make_unique<State>(State{.shape = checked(shape), .gemm = make_gemm_engine()})) {}
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;
Attention::~Attention() = default;

template <class T>
void Attention::forward(const Sequences& sequences, const AttentionForward<T>& data) {
  check(state_->shape, sequences, data);
  Workspace<T>& space = state_->template workspace<T>();
  space.grow_forward(workspace_sizes(state_->shape, sequences));
  AttentionPass<T> pass(state_->shape, *state_->gemm, space);
  state_->for_each(sequences, [&](const Sequence& sequence, std::int64_t kv_head) {
    if (sequence.queries > 0) pass.forward(sequence, kv_head, data);
  });
}

template <class T>
void Attention::backward(const Sequences& sequences, const AttentionBackward<T>& data) {
  check(state_->shape, sequences, data);
  Workspace<T>& space = state_->template workspace<T>();
  space.grow_backward(workspace_sizes(state_->shape, sequences));
  AttentionPass<T> pass(state_->shape, *state_->gemm, space);
  state_->for_each(sequences, [&](const Sequence& sequence, std::int64_t kv_head) {
    pass.backward(sequence, kv_head, data);
  });
}

template void Attention::forward(const Sequences&, const AttentionForward<float>&);
template void Attention::forward(const Sequences&, const AttentionForward<Bf16>&);
template void Attention::backward(const Sequences&, const AttentionBackward<float>&);
template void Attention::backward(const Sequences&, const AttentionBackward<Bf16>&);

}  // namespace shiplap::kernels
