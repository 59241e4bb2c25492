// A product whose communication is hidden: the rows of its factor are gathered, or its result is
// scattered or summed over ranks, piece by piece while other pieces are multiplied.
//
//   const plan::Plan plan = overlap::make_plan({.type = Type::all_gather,
//                                               .method = Method::ring_exchange},
//                                              {.rows = 1000, .columns = 4096, .depth = 1024});
//
// Every algorithm is a plan, so that it is checked, simulated and run as any other. Nothing need
// divide anything.
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
  none,           // one after the other
  bulk,           // beside a product that has nothing to do with it
  pipeline,       // a collective for each chunk
  ring_exchange,  // messages between pairs of ranks
};

struct Choice {
  Type type = Type::none;
  Method method = Method::none;
  // The product is one launch, and its tiles raise counters that the messages wait for.
  bool atomic = false;
  friend bool operator==(const Choice&, const Choice&) = default;
};

// A choice that there is, and what does it.
struct Legal {
  Choice choice;
  std::string_view function;  // as users of TransformerEngine know it; "" if it has none
  std::string_view what;
};
// All of them.
[[nodiscard]] std::span<const Legal> legal_choices();
// Throws InputError D800, with what there is instead.
void demand_legal(const Choice& choice);

[[nodiscard]] std::string_view name(Type type);
[[nodiscard]] std::string_view name(Method method);
// "reduce_scatter, ring_exchange, atomic"
[[nodiscard]] std::string to_string(const Choice& choice);

// How the rows of a rank are cut into chunks.
enum class Cut {
  even,
  // What nothing can be hidden behind is small: the last chunks where rows are gathered, which are
  // multiplied when all has arrived; the first ones where a product is summed, which are multiplied
  // before anything can be sent. Of S chunks, the sizes are as 1 to 2 to .. to S, in multiples of
  // 16 rows if the smallest has at least 8.
  tapered,
};

// How the numbers of a row lie, in memory and on their way.
enum class Scaling {
  none,    // one after the other
  row,     // codes of FP8, then the float that they are to be multiplied by
  blocks,  // codes of FP8, then a power of two (E8M0, a byte) for every 32 of them: MXFP8
};
struct Form {
  Scaling scaling = Scaling::none;
  DType type = DType::fp8_e4m3;  // of the codes
  friend bool operator==(const Form&, const Form&) = default;
};
[[nodiscard]] inline bool is_plain(const Form& form) { return form.scaling == Scaling::none; }
[[nodiscard]] std::string_view name(Scaling scaling);
// Bytes of a row of so many numbers, which are of `type` unless they have a scale.
[[nodiscard]] std::int64_t row_bytes(const Form& form, DType type, std::int64_t columns);
// Behind a row of X that is gathered and belongs to a group: the number of the group.
inline constexpr std::int64_t kGroupBytes = 4;

// Y = X W over `ranks` ranks, where X has rows x depth numbers and W depth x columns, in all. If X
// is gathered, each rank has some rows of X and some columns of W; otherwise some columns of X and
// as many rows of W. Of what does not divide, the first ranks have one more.
struct Problem {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  DType type = DType::bf16;  // of X, W and Y; sums are made in f32
  int ranks = 4;
  int chunks = 1;  // into which the rows of each rank are cut
  Cut cut = Cut::even;
  // Of what is scattered in bulk beside Y, which it has nothing to do with. 0: as Y.
  std::int64_t bulk_rows = 0;
  std::int64_t bulk_columns = 0;
  // Of X, of W (whose rows are columns of the matrix; with one scale each, all have the same) and
  // of parts of sums on their way. A row of those in which something is infinite arrives as NaN, or
  // its block loses what is small.
  Form x;
  Form w;
  Form sums;
  // If not 0, there are so many W, and every row of X belongs to one: experts of a mixture.
  int groups = 0;
};

// Where the chunks of a rank with so many rows begin among them, and the end.
[[nodiscard]] std::vector<std::int64_t> chunks_of(std::int64_t rows, const Choice& choice,
                                                  const Problem& problem);

// The buffers are called `x`, `w` (by rows: one for each column of W) and `y`, or `out` where the
// result is scattered. Throws InputError D800, D801.
[[nodiscard]] plan::Plan make_plan(const Choice& choice, const Problem& problem);
// The same as text, below a comment that says which problem it is.
[[nodiscard]] std::string plan_text(const Choice& choice, const Problem& problem);

}  // namespace shiplap::overlap
