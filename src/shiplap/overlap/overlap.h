// A GEMM overlapped with its communication: the rows of X are gathered, or the result is reduced
// over ranks, chunk by chunk, so that the transfer of one chunk overlaps the GEMM of another.
//
//   const plan::Plan plan = overlap::make_plan({.type = Type::all_gather,
//                                               .method = Method::ring_exchange},
//                                              {.m = 1000, .n = 4096, .k = 1024});
//
// Every algorithm is a plan, so it can be checked, simulated and run. Sizes need not be divisible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::overlap {

enum class Type { none, all_gather, reduce_scatter, all_reduce };

enum class Method {
  none,           // no overlap: communication, then GEMM, or the reverse
  bulk,           // concurrent with an unrelated GEMM
  pipeline,       // one collective per chunk
  ring_exchange,  // point-to-point messages
};

struct Choice {
  Type type = Type::none;
  Method method = Method::none;
  // The GEMM is one call, which raises a counter for each chunk; messages wait for these.
  bool atomic = false;
  friend bool operator==(const Choice&, const Choice&) = default;
};

// A supported choice.
struct SupportedChoice {
  Choice choice;
  std::string_view function;  // of TransformerEngine; "" if it has none
  std::string_view what;
};
// Returns all supported choices.
[[nodiscard]] std::span<const SupportedChoice> supported_choices();
// Throws InputError D800, with the alternatives, if `choice` is unsupported.
void check_supported(const Choice& choice);

[[nodiscard]] std::string_view name(Type type);
[[nodiscard]] std::string_view name(Method method);
// "reduce_scatter, ring_exchange, atomic"
[[nodiscard]] std::string to_string(const Choice& choice);

// How the rows of a rank are split into chunks.
enum class Cut {
  even,
  // Chunks that cannot be overlapped are small: the last ones of an all_gather, which are
  // multiplied after everything has arrived; the first ones of a reduction, which are multiplied
  // before anything can be sent. The sizes of S chunks are proportional to 1, 2, .., S, in
  // multiples of 16 rows if the smallest has at least 8.
  tapered,
};

// The layout of a row, in memory and in messages.
enum class Scaling {
  none,    // high precision
  row,     // FP8 values, then one f32 inverse scale
  blocks,  // FP8 values, then one E8M0 byte per 32 values: MXFP8
};
struct QuantFormat {
  Scaling scaling = Scaling::none;
  DType type = DType::fp8_e4m3;  // of quantized values
  friend bool operator==(const QuantFormat&, const QuantFormat&) = default;
};
[[nodiscard]] inline bool is_high_precision(const QuantFormat& format) {
  return format.scaling == Scaling::none;
}
[[nodiscard]] std::string_view name(Scaling scaling);
// Returns the bytes of a row of `columns` values, which have dtype `type` unless they are
// quantized.
[[nodiscard]] std::int64_t row_bytes(const QuantFormat& format, DType type, std::int64_t columns);
// Bytes of the group number at the end of each gathered row, if there are groups.
inline constexpr std::int64_t kGroupBytes = 4;

// Y = X W over `ranks` ranks, where X is m x k and W is k x n, globally. For all_gather, each rank
// has some rows of X and some columns of W; otherwise some columns of X and the same rows of W.
// Remainders go to the lowest ranks.
struct Problem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType type = DType::bf16;  // of X, W and Y; sums are accumulated in f32
  int ranks = 4;
  int chunks = 1;  // per rank
  Cut cut = Cut::even;
  // The shape of the matrix that a bulk overlap scatters, unrelated to Y. 0: as Y.
  std::int64_t bulk_rows = 0;
  std::int64_t bulk_columns = 0;
  // The formats of X, of W (stored transposed; with one scale per row, all rows have the same
  // scale) and of partial sums in messages. A row of partial sums with an infinity arrives as NaN,
  // or its block loses small values.
  QuantFormat x;
  QuantFormat w;
  QuantFormat sums;
  // If not 0, the number of weight matrices; every row of X belongs to one (experts of an MoE
  // layer).
  int groups = 0;
};

// Returns the row offsets of the chunks of a rank that has `rows` rows, and the end.
[[nodiscard]] std::vector<std::int64_t> chunk_boundaries(std::int64_t rows, const Choice& choice,
                                                         const Problem& problem);

// The most rows of neighbouring chunks that an atomic GEMM of `m` rows multiplies at once, if they
// are ready: not more than share one read of the weights, nor more than a quarter of all, because
// their messages start when all of them are done.
[[nodiscard]] std::int64_t joined_rows(std::int64_t m);

// The buffers are `x`, `w` (transposed: n x k) and `y`, or `out` if the result is scattered. Throws
// InputError D800, D801.
[[nodiscard]] plan::Plan make_plan(const Choice& choice, const Problem& problem);
// The same as text, with a comment that describes the problem.
[[nodiscard]] std::string plan_text(const Choice& choice, const Problem& problem);

}  // namespace shiplap::overlap
