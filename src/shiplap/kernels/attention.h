// Causal attention over sequences of different lengths, forward and backward, on the CPU.
//
// Sequences are packed (varlen): their queries are concatenated, and so are keys and values.
// Sequence i has queries cu_seqlens_q[i] .. cu_seqlens_q[i+1] and keys cu_seqlens_kv[i] ..
// cu_seqlens_kv[i+1]. The last query sees all the keys, the one before it all but one, and so on: a
// sequence may be the end of a document whose earlier keys came from elsewhere. It has at least as
// many keys as queries, unless it has no queries; then it has no effect and its keys get a gradient
// of zero.
//
// Heads share keys in groups (GQA): query head h uses key head h / (heads / kv_heads).
//
// The GEMMs are blocked and done by oneDNN (by reference loops if it is missing), with an online
// softmax from block to block (Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018; used the same way by FlashAttention), so memory is linear in the tokens. bf16 is the
// storage type: sums, softmax and intermediate gradients are f32, except that the weights and the
// gradients of the scores are rounded to bf16 as operands of a GEMM. A call uses only the calling
// thread; results are bitwise reproducible on the same kind of processor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shiplap/kernels/bf16.h"

namespace shiplap::kernels {

struct AttentionShape {
  std::int32_t heads = 1;
  std::int32_t kv_heads = 1;  // divides heads
  std::int32_t head_dim = 64;
  float scale = 0;  // of the scores; 0: 1 / sqrt(head_dim)
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// Both begin with 0 and have one entry more than there are sequences.
struct Sequences {
  std::span<const std::uint32_t> cu_seqlens_q;
  std::span<const std::uint32_t> cu_seqlens_kv;
};

// Row t of q, o and their gradients has heads * head_dim elements, row t of k, v and theirs
// kv_heads * head_dim. A row of `lse` has one float per head: the logarithm of the sum of the
// exponentials, which backward needs.
template <class T>
struct AttentionForward {
  std::span<const T> q;
  std::span<const T> k;
  std::span<const T> v;
  std::span<T> o;
  std::span<float> lse;
};

template <class T>
struct AttentionBackward {
  std::span<const T> q;
  std::span<const T> k;
  std::span<const T> v;
  std::span<const T> o;
  std::span<const float> lse;
  std::span<const T> d_o;
  std::span<T> d_q;
  std::span<T> d_k;
  std::span<T> d_v;
};

// For T = float and Bf16. Throws InputError D500 on a mismatch of shapes or lengths. Not
// thread-safe: it caches its workspace and the GEMM of each block size. Threads may have one each.
class Attention {
 public:
  explicit Attention(const AttentionShape& shape);
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;
  ~Attention();

  template <class T>
  void forward(const Sequences& sequences, const AttentionForward<T>& data);
  template <class T>
  void backward(const Sequences& sequences, const AttentionBackward<T>& data);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "oneDNN 3.2.0", or "reference".
[[nodiscard]] std::string_view gemm_backend_name();

}  // namespace shiplap::kernels
