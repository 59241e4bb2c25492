// Symbolic contents of rows: which cells of which tensor, which contributions are summed, at which
// scale. Contents are hash-consed (content.cc): equal ids are equal contents.
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

// Coordinates begin, begin+stride, ..; adjacent runs of one dimension form one sequence.
struct Run {
  std::int16_t dimension = 0;
  std::int16_t slope = 0;
  std::int32_t begin = 0;
  std::int32_t count = 0;
  std::int32_t stride = 1;
  friend bool operator==(const Run&, const Run&) = default;
};

// What is known of rows.
enum class RowState : std::uint8_t {
  known,          // a content describes them
  unknown,        // the result of an operator other than sum
  leftover,       // undefined after a reduction in place
  overflow,       // a scale that needs more than 64 bits
  uninitialized,  // never written
  unallocated,    // not allocated yet, or freed
};
// Whether the rows are written, but with an unknown content.
[[nodiscard]] constexpr bool is_unknown(RowState state) {
  return state == RowState::unknown || state == RowState::leftover || state == RowState::overflow;
}

using ContentId = Id<struct ContentTag>;
using ScaleId = Id<struct ScaleTag>;

struct Content {
  plan::TensorId tensor;
  std::int32_t rows = 0;
  // If `of` is not 0: rows `first` to `first + rows` of the `of` rows that the cells occupy.
  std::int32_t first = 0;
  std::int32_t of = 0;
  std::int64_t instance = 0;
  const Run* first_run = nullptr;
  SumId sum;
  ScaleId scale{0};  // 0: 1
  std::int32_t runs_count = 0;
  bool is_new = false;
};

// Consecutive rows with one content. `content` is meaningful only if `state` is known.
struct Piece {
  ContentId content;
  std::int32_t rows = 0;
  RowState state = RowState::known;
  std::int32_t writer = -1;  // the operation that wrote it; -1: it was given
  friend bool operator==(const Piece& a, const Piece& b) {
    return a.content == b.content && a.state == b.state && a.rows == b.rows;
  }
};
using Pieces = std::vector<Piece>;

// Contents in sequence, each followed by its runs, so that a lookup touches one place in memory.
// Addresses are stable. A content's id is its offset, in units of 16 bytes.
class ContentStore {
 public:
  [[nodiscard]] const Content& operator[](ContentId id) const {
    return *std::launder(reinterpret_cast<const Content*>(place(id.index())));
  }
  ContentId add(Content content, std::span<const Run> runs);

 private:
  static constexpr std::size_t kUnit = 16;
  static constexpr std::size_t kUnits = std::size_t{1} << 19U;  // of a block
  static constexpr std::size_t kMaxInlineRuns = 1024;           // more runs go to `long_runs_`
  [[nodiscard]] std::byte* place(std::size_t unit) const {
    return blocks_[unit / kUnits].get() + unit % kUnits * kUnit;
  }

  std::vector<LargeBlock> blocks_;
  std::size_t next_ = 0;  // unit
  Arena long_runs_;
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

  // Returns the id of a content. The runs may have any order and length; they are normalized.
  ContentId intern(const Content& content, std::span<const Run> runs);
  ScaleId intern(const plan::Ratio& scale);
  [[nodiscard]] const plan::Ratio& operator[](ScaleId id) const { return scales_[id.index()]; }

  // Appends `count` rows of the piece, from row `begin`.
  void slice(const Piece& piece, std::int32_t begin, std::int32_t count, Pieces& out);
  // Merges adjacent pieces that continue each other.
  void join(Pieces& pieces);

  enum class Conflict : std::uint8_t {
    none,
    uninitialized,
    unallocated,
    other_cells,
    other_scale,
    duplicate
  };
  struct Union {
    Piece piece;
    Conflict conflict = Conflict::none;
  };
  // Returns the sum of two pieces. REQUIRES: both have the same number of rows.
  [[nodiscard]] Union unite(const Piece& a, const Piece& b);
  // Returns the sum of all pieces; none if two of them conflict.
  [[nodiscard]] std::optional<Piece> unite(std::span<const Piece> pieces);
  [[nodiscard]] Piece scaled(const Piece& piece, const plan::Ratio& by);
  // The content on the rank at these positions. A negative position keeps the slope of its axis.
  [[nodiscard]] Piece bind(const Piece& piece, std::span<const std::int64_t> positions);
  // Returns the affine content that is pieces[k] at position k of an axis. Throws Asymmetric if
  // there is none.
  [[nodiscard]] Piece fit_affine(std::span<const Piece> pieces, std::size_t axis, std::size_t axes);
  // Whether both hold the same. REQUIRES: both have the same number of rows.
  [[nodiscard]] bool same(const Piece& a, const Piece& b) const;
  // The cells of one row, as a list of coordinates.
  [[nodiscard]] std::vector<std::int64_t> cells(const Content& content, std::int64_t row) const;
  [[nodiscard]] static std::int64_t cell_count(std::span<const Run> runs);

  // The coordinates of a dimension.
  [[nodiscard]] IndexSet coordinates(const Content& content, std::int32_t dimension) const;

 private:
  struct Dim {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int32_t count = 0;
  };
  void normalize(std::vector<Run>& runs) const;
  // Appends `next` to the content if it continues it; else returns false.
  bool extend(Content& content, std::vector<Run>& runs, const Content& next) const;
  // The dimensions with several coordinates.
  [[nodiscard]] std::vector<Dim> wide(std::span<const Run> runs) const;
  [[nodiscard]] std::vector<Run> with_coordinates(std::span<const Run> runs, const Dim& dim,
                                                  std::int32_t begin, std::int32_t count) const;
  [[nodiscard]] bool same_but_sum(const Content& a, const Content& b) const;
  // How the rows of a content map to its cells, in the order of its runs. One of the first two
  // numbers is 1.
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
  // A direct-mapped cache of recent lookups, by the first bits of the hash: most lookups repeat,
  // and this avoids a cache miss in a table of millions.
  struct Recent {
    std::uint64_t hash = 0;
    std::int32_t id = -1;
  };
  std::vector<Recent> recent_ = std::vector<Recent>(std::size_t{1} << 12U);
  std::vector<Run> scratch_;
};

}  // namespace shiplap::check
