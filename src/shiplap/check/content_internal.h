// What rows of a buffer hold, as mathematics: which cells of which tensor, which contributions
// summed, at which scale. Every content is kept once, so equal ids are equal contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/check/arena_internal.h"
#include "shiplap/check/sums_internal.h"
#include "shiplap/plan/plan.h"

namespace shiplap::check {

// Coordinates begin, begin+stride, ..; neighbouring runs of one dimension make one ordered set.
struct Run {
  std::int16_t dimension = 0;
  std::int16_t slope = 0;
  std::int32_t begin = 0;
  std::int32_t count = 0;
  std::int32_t stride = 1;
  friend bool operator==(const Run&, const Run&) = default;
};

// Rows of what no statement says.
enum class Nature : std::uint8_t {
  stated,
  unknown,   // the result of an operator that sums cannot follow
  leftover,  // where a reduction in place leaves no result
  overflow,  // a scale that needs more than 64 bits
  nothing,   // never written
  dead,      // not allocated, or freed
};
// Whether there is something of which nothing is known.
[[nodiscard]] constexpr bool is_unknown(Nature nature) {
  return nature == Nature::unknown || nature == Nature::leftover || nature == Nature::overflow;
}

using ContentId = Id<struct ContentTag>;
using ScaleId = Id<struct ScaleTag>;

struct Content {
  plan::TensorId tensor;
  std::int32_t rows = 0;
  // If `of` is not 0: rows `first` to `first + rows` of the `of` rows that the cells take.
  std::int32_t first = 0;
  std::int32_t of = 0;
  std::int64_t instance = 0;
  const Run* first_run = nullptr;
  SumId sum;
  ScaleId scale{0};  // 0: 1
  std::int32_t runs_count = 0;
  bool is_new = false;
};

// So many rows with one content. Of what is not stated, only the nature is known.
struct Piece {
  ContentId content;
  std::int32_t rows = 0;
  Nature nature = Nature::stated;
  std::int32_t writer = -1;  // the operation that put it there; -1: it was given
  friend bool operator==(const Piece& a, const Piece& b) {
    return a.content == b.content && a.nature == b.nature && a.rows == b.rows;
  }
};
using Pieces = std::vector<Piece>;

// Contents one after the other, each with its runs behind it: one place in memory to look at. They
// stay where they are. A content's id is its place, in units of 16 bytes.
class ContentStore {
 public:
  [[nodiscard]] const Content& operator[](ContentId id) const {
    return *std::launder(reinterpret_cast<const Content*>(place(id.index())));
  }
  ContentId add(Content content, std::span<const Run> runs);

 private:
  static constexpr std::size_t kUnit = 16;
  static constexpr std::size_t kUnits = std::size_t{1} << 19U;  // of a block
  static constexpr std::size_t kMostBehind = 1024;              // more runs lie elsewhere
  [[nodiscard]] std::byte* place(std::size_t unit) const {
    return blocks_[unit / kUnits].get() + unit % kUnits * kUnit;
  }

  std::vector<LargeBlock> blocks_;
  std::size_t next_ = 0;  // unit
  Arena elsewhere_;
};

class Contents {
 public:
  explicit Contents(const plan::Plan& plan) : plan_(plan), sums_(slopes_) {}

  [[nodiscard]] const Content& operator[](ContentId id) const { return known_[id]; }
  [[nodiscard]] static std::span<const Run> runs(const Content& content) {
    return {content.first_run, static_cast<std::size_t>(content.runs_count)};
  }
  [[nodiscard]] const plan::Tensor& tensor(const Content& content) const {
    return plan_.tensors[content.tensor];
  }
  [[nodiscard]] const plan::Plan& plan() const { return plan_; }
  [[nodiscard]] Slopes& slopes() { return slopes_; }
  [[nodiscard]] Sums& sums() { return sums_; }
  [[nodiscard]] const Sums& sums() const { return sums_; }

  // Runs as a plan states them, in any order and length; they are brought into the one form.
  ContentId find(const Content& content, std::span<const Run> runs);
  ScaleId find(const plan::Ratio& scale);
  [[nodiscard]] const plan::Ratio& operator[](ScaleId id) const { return scales_[id.index()]; }

  // Some rows of it, from the top.
  void slice(const Piece& piece, std::int32_t begin, std::int32_t count, Pieces& out);
  // Pieces that follow each other, with as few as possible.
  void join(Pieces& pieces);

  enum class Trouble : std::uint8_t { none, nothing, dead, other_cells, other_scale, twice };
  struct Union {
    Piece piece;
    Trouble trouble = Trouble::none;
  };
  // Promises that both have as many rows.
  [[nodiscard]] Union unite(const Piece& a, const Piece& b);
  // All of them at once; nothing if any two cannot be united.
  [[nodiscard]] std::optional<Piece> unite(std::span<const Piece> pieces);
  [[nodiscard]] Piece scaled(const Piece& piece, const plan::Ratio& by);
  // On the rank at these positions; below 0: as it was.
  [[nodiscard]] Piece bind(const Piece& piece, std::span<const std::int64_t> positions);
  // One content that is pieces[k] at the k-th position of an axis. Throws Asymmetric.
  [[nodiscard]] Piece fit(std::span<const Piece> pieces, std::size_t axis, std::size_t axes);
  // Whether they hold the same. Promises that both have as many rows.
  [[nodiscard]] bool same(const Piece& a, const Piece& b) const;
  // The cells of one row as numbers that can be compared.
  [[nodiscard]] std::vector<std::int64_t> cells(const Content& content, std::int64_t row) const;
  [[nodiscard]] static std::int64_t cell_count(std::span<const Run> runs);

  // Coordinates of a dimension.
  [[nodiscard]] IndexSet coordinates(const Content& content, std::int32_t dimension) const;

 private:
  struct Dim {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int32_t count = 0;
  };
  void normalize(std::vector<Run>& runs) const;
  // The second added to the first, if they continue each other.
  bool extend(Content& content, std::vector<Run>& runs, const Content& next) const;
  // Only those with several coordinates.
  [[nodiscard]] std::vector<Dim> wide(std::span<const Run> runs) const;
  [[nodiscard]] std::vector<Run> with_coordinates(std::span<const Run> runs, const Dim& dim,
                                                  std::int32_t begin, std::int32_t count) const;
  [[nodiscard]] bool same_but_sum(const Content& a, const Content& b) const;
  // Which cells the rows of a content take, in the order of its runs. Either number is 1.
  struct Layout {
    std::int64_t cells_per_row = 1;
    std::int64_t rows_per_cell = 1;
    std::int64_t phase = 0;  // of the first row in its cell
    std::int64_t first = 0;
    std::int64_t cells = 0;
  };
  [[nodiscard]] Layout layout(const Content& content) const;
  [[nodiscard]] bool same_cells(const Content& x, const Content& y) const;

  const plan::Plan& plan_;
  Slopes slopes_;
  Sums sums_;
  ContentStore known_;
  std::vector<plan::Ratio> scales_{plan::Ratio()};
  IdTable by_hash_;
  // What was asked for lately, by the first bits of its hash: mostly it is asked for again, and
  // here that does not reach out into a table of millions.
  struct Recent {
    std::uint64_t hash = 0;
    std::int32_t id = -1;
  };
  std::vector<Recent> recent_ = std::vector<Recent>(std::size_t{1} << 12U);
  std::vector<Run> scratch_;
};

}  // namespace shiplap::check
