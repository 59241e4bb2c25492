// Symbolic contents, hash-consed.
//
// Problem: after each operation the checker compares what rows hold with what is stated. There are
// millions of such values, most of them equal (the same layer on many ranks, microbatches, steps),
// and each is a structure: tensor, instance, runs of coordinates by dimension, sum, scale.
//
// Idea: hash-consing (Ershov 1958; Goto 1974; Filliatre and Conchon 2006). intern() brings a
// structure into a canonical form and stores it once, so equal ids mean equal contents, and a
// piece of a buffer is 16 bytes. Sums are interned by the same scheme (sums.cc), so
// a content refers to its sum by an id; the results of uniting sums are memoized by pairs of ids.
//
// Invariants:
//   - Contents are immutable and are never freed: ids and addresses stay valid, and there is no
//     reference counting. Memory comes in large blocks (arena.cc).
//   - The canonical form (normalize): runs of a dimension are as long as possible, however the
//     sequence was cut before (take_run); dimensions with one coordinate come first, since their
//     place does not change the order of rows; a content that covers all its rows has `of` = 0;
//     zero has scale 1.
//   - The converse does not hold: different ids may hold the same cells in the same order, as runs
//     of several dimensions can describe one sequence in several ways. same() compares cell by cell
//     then.
//
// Lookups go through a small direct-mapped cache, then an open-addressing table with 32-bit hashes
// (id_table_internal.h), then the content itself, which has its runs directly behind it.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/check/content_internal.h"

namespace shiplap::check {
namespace {

std::uint64_t hash_of(const Content& content, std::span<const Run> runs) {
  std::uint64_t hash =
      hash_combine(content.tensor.index(), content.instance * 2 + (content.is_new ? 1 : 0));
  hash = hash_combine(hash, std::int64_t{content.rows} << 32 | (content.first * 31 + content.of));
  hash = hash_combine(hash, std::int64_t{content.scale.value} << 32 | content.sum.value);
  for (const Run& run : runs) {
    hash = hash_combine(hash, std::int64_t{run.begin} << 32 | (run.dimension * 4096 + run.slope));
    hash = hash_combine(hash, std::int64_t{run.count} << 32 | run.stride);
  }
  return hash;
}

bool alike(const Content& a, const Content& b) {
  return a.tensor == b.tensor && a.is_new == b.is_new && a.instance == b.instance &&
         a.rows == b.rows && a.first == b.first && a.of == b.of;
}

std::int64_t last_of(const Run& run) {
  return run.begin + (std::int64_t{run.count} - 1) * run.stride;
}

// Takes the longest run with one stride from the front of the rest of a dimension. Two coordinates
// that are not adjacent form a run only if nothing follows. So a sequence has one form, however it
// was cut before.
Run take_run(std::vector<Run>& rest, std::size_t& at, std::size_t end) {
  Run run = rest[at++];
  if (run.count == 1) run.stride = 1;
  const auto drop_first = [&](Run& next) {
    next.begin += next.stride;
    if (--next.count == 0) ++at;
  };
  if (run.count == 1 && at < end && rest[at].slope == run.slope && rest[at].begin > run.begin) {
    run.stride = rest[at].begin - run.begin;
    run.count = 2;
    drop_first(rest[at]);
  }
  while (run.count > 1 && at < end && rest[at].slope == run.slope &&
         rest[at].begin == last_of(run) + run.stride) {
    Run& next = rest[at];
    if (next.count == 1 || next.stride == run.stride) {
      run.count += next.count;
      ++at;
    } else {
      ++run.count;
      drop_first(next);
    }
  }
  if (run.count == 2 && run.stride > 1 && at < end) {  // only the first of the two
    const auto second = static_cast<std::int32_t>(last_of(run));
    rest[--at] = {run.dimension, run.slope, second, 1, 1};
    run.count = 1;
    run.stride = 1;
  }
  return run;
}

// None if it needs more than 64 bits.
std::optional<plan::Ratio> product(const plan::Ratio& a, const plan::Ratio& b) {
  const std::int64_t one = std::gcd(a.numerator(), b.denominator());
  const std::int64_t two = std::gcd(b.numerator(), a.denominator());
  std::int64_t above = 0;
  std::int64_t below = 0;
  if (__builtin_mul_overflow(a.numerator() / one, b.numerator() / two, &above) ||
      __builtin_mul_overflow(a.denominator() / two, b.denominator() / one, &below)) {
    return std::nullopt;
  }
  return plan::Ratio(above, below);
}

}  // namespace

ContentId ContentStore::add(Content content, std::span<const Run> runs) {
  static_assert(sizeof(Content) % kUnit == 0 && sizeof(Run) == kUnit);
  const bool many = runs.size() > kMaxInlineRuns;
  const std::size_t units = sizeof(Content) / kUnit + (many ? 0 : runs.size());
  if (next_ + units > blocks_.size() * kUnits) {
    next_ = blocks_.size() * kUnits;
    if (next_ + kUnits > std::numeric_limits<std::int32_t>::max()) throw std::bad_alloc();
    blocks_.emplace_back(static_cast<std::byte*>(allocate_large(kUnits * kUnit)));
  }
  const ContentId id(next_);
  next_ += units;
  std::byte* memory = place(id.index());
  content.runs_count = static_cast<std::int32_t>(runs.size());
  if (many) {
    content.first_run = long_runs_.keep(runs).data();
  } else {
    auto* behind = reinterpret_cast<Run*>(memory + sizeof(Content));
    std::ranges::uninitialized_copy(runs, std::span(behind, runs.size()));
    content.first_run = behind;
  }
  new (memory) Content(content);
  return id;
}

void Contents::normalize(std::vector<Run>& runs) const {
  std::erase_if(runs, [](const Run& run) { return run.count == 0; });
  bool several = false;
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (runs[k].count == 1) runs[k].stride = 1;
    several = several || (k > 0 && runs[k].dimension == runs[k - 1].dimension);
  }
  if (several) {
    std::vector<Run> even;
    for (std::size_t k = 0; k < runs.size();) {
      std::size_t last = k + 1;
      while (last < runs.size() && runs[last].dimension == runs[k].dimension) ++last;
      while (k < last) even.push_back(take_run(runs, k, last));
    }
    runs = std::move(even);
  }
  // Dimensions with one coordinate come first: their place does not change the order of rows.
  const auto narrow = [&](std::size_t k) {
    return runs[k].count == 1 && (k == 0 || runs[k - 1].dimension != runs[k].dimension) &&
           (k + 1 == runs.size() || runs[k + 1].dimension != runs[k].dimension);
  };
  bool ordered = true;
  bool seen_wide = false;
  std::int32_t last = -1;
  for (std::size_t k = 0; k < runs.size(); ++k) {
    const bool is_narrow = narrow(k);
    if (is_narrow && (seen_wide || runs[k].dimension < last)) ordered = false;
    if (is_narrow) last = runs[k].dimension;
    if (!is_narrow) seen_wide = true;
  }
  if (ordered) return;
  std::vector<Run> single;
  std::vector<Run> rest;
  for (std::size_t k = 0; k < runs.size(); ++k) (narrow(k) ? single : rest).push_back(runs[k]);
  std::ranges::sort(single, {}, &Run::dimension);
  single.insert(single.end(), rest.begin(), rest.end());
  runs = std::move(single);
}

ScaleId Contents::intern(const plan::Ratio& scale) {
  const auto found = std::ranges::find(scales_, scale);
  const ScaleId id(static_cast<std::size_t>(found - scales_.begin()));
  if (found == scales_.end()) scales_.push_back(scale);
  return id;
}

ContentId Contents::intern(const Content& content, std::span<const Run> runs) {
  scratch_.assign(runs.begin(), runs.end());
  normalize(scratch_);
  Content made = content;
  if (made.first == 0 && made.of == made.rows) made.of = 0;
  if (sums_.zero(made.sum)) made.scale = ScaleId(0);  // zero has none
  const std::uint64_t hash = hash_of(made, scratch_);
  const auto same = [&](std::int32_t id) {
    const Content& known = known_[ContentId(id)];
    return alike(known, made) && known.scale == made.scale && known.sum == made.sum &&
           std::ranges::equal(this->runs(known), scratch_);
  };
  Recent& recent = recent_[hash >> 52U];
  if (recent.id >= 0 && recent.hash == hash && same(recent.id)) return ContentId(recent.id);
  const std::int32_t found = by_hash_.find(hash, same);
  if (found >= 0) {
    recent = {hash, found};
    return ContentId(found);
  }
  const ContentId id = known_.add(made, scratch_);
  by_hash_.insert(hash, id.value);
  recent = {hash, id.value};
  return id;
}

std::vector<Contents::Dim> Contents::wide(std::span<const Run> runs) const {
  std::vector<Dim> result;
  for (std::size_t k = 0; k < runs.size();) {
    Dim dim{.first = k, .last = k, .count = 0};
    while (dim.last < runs.size() && runs[dim.last].dimension == runs[k].dimension) {
      dim.count += runs[dim.last++].count;
    }
    if (dim.count > 1) result.push_back(dim);
    k = dim.last;
  }
  return result;
}

std::vector<Run> Contents::with_coordinates(std::span<const Run> runs, const Dim& dim,
                                            std::int32_t begin, std::int32_t count) const {
  std::vector<Run> result(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(dim.first));
  for (std::size_t k = dim.first; k < dim.last; ++k) {
    Run run = runs[k];
    const std::int32_t skip = std::min(begin, run.count);
    begin -= skip;
    run.begin += skip * run.stride;
    run.count = std::min(run.count - skip, count);
    count -= run.count;
    if (run.count > 0) result.push_back(run);
  }
  result.insert(result.end(), runs.begin() + static_cast<std::ptrdiff_t>(dim.last), runs.end());
  return result;
}

void Contents::slice(const Piece& piece, std::int32_t begin, std::int32_t count, Pieces& out) {
  if (count == 0) return;
  Piece part = piece;
  part.rows = count;
  if (piece.state != RowState::known || (begin == 0 && count == piece.rows)) {
    out.push_back(part);
    return;
  }
  Content content = (*this)[piece.content];
  const std::vector<Run> all(runs(content).begin(), runs(content).end());
  const std::vector<Dim> dims = content.of == 0 ? wide(all) : std::vector<Dim>{};
  content.rows = count;
  const std::int32_t most = dims.empty() ? 0 : dims.front().count;
  if (most > 0 && piece.rows % most == 0) {
    const std::int32_t each = piece.rows / most;  // rows of one coordinate
    const std::int32_t head = std::min(count, (each - begin % each) % each);
    // Some rows of one coordinate.
    const auto within = [&](std::int32_t coordinate, std::int32_t from, std::int32_t rows) {
      if (rows == 0) return;
      Content one = content;
      one.rows = each;
      Piece inner = piece;
      inner.rows = each;
      inner.content = intern(one, with_coordinates(all, dims.front(), coordinate, 1));
      slice(inner, from, rows, out);
    };
    within(begin / each, begin % each, head);
    const std::int32_t whole = (count - head) / each;
    if (whole > 0) {
      content.rows = whole * each;
      part.rows = content.rows;
      part.content =
          intern(content, with_coordinates(all, dims.front(), (begin + head) / each, whole));
      out.push_back(part);
    }
    within((begin + count) / each, 0, count - head - whole * each);
    return;
  }
  if (most > 0 && most % piece.rows == 0) {
    const std::int32_t each = most / piece.rows;  // coordinates of one row
    part.content = intern(content, with_coordinates(all, dims.front(), begin * each, count * each));
    out.push_back(part);
    return;
  }
  content.of = content.of == 0 ? piece.rows : content.of;
  content.first += begin;
  part.content = intern(content, all);
  out.push_back(part);
}

bool Contents::extend(Content& content, std::vector<Run>& runs, const Content& next) const {
  if (content.tensor != next.tensor || content.is_new != next.is_new ||
      content.instance != next.instance || content.scale != next.scale || content.sum != next.sum ||
      content.of != next.of) {
    return false;
  }
  const std::span<const Run> more = this->runs(next);
  if (content.of != 0) {
    if (next.first != content.first + content.rows || !std::ranges::equal(runs, more)) return false;
    content.rows += next.rows;
    return true;
  }
  if (cell_count(runs) * next.rows != cell_count(more) * content.rows) return false;
  // They may differ in one dimension, the slowest-varying one of both.
  std::int16_t differs = -1;
  const auto differ = [&](std::span<const Run> a, std::span<const Run> b) {
    for (const Run& run : a) {
      if (std::ranges::find(b, run) != b.end()) continue;
      if (differs >= 0 && differs != run.dimension) return false;
      differs = run.dimension;
    }
    return true;
  };
  if (!differ(runs, more) || !differ(more, runs) || differs < 0) return false;
  const auto slowest = [&](std::span<const Run> all) {
    const std::vector<Dim> dims = wide(all);
    std::int64_t count = 0;
    for (const Run& run : all) count += run.dimension == differs ? run.count : 0;
    return count == 1 || (!dims.empty() && all[dims.front().first].dimension == differs);
  };
  if (!slowest(runs) || !slowest(more)) return false;
  std::vector<Run> all;
  std::vector<Run> rest;
  std::vector<Run> other;
  for (const Run& run : runs) (run.dimension == differs ? all : rest).push_back(run);
  for (const Run& run : more) (run.dimension == differs ? all : other).push_back(run);
  if (rest != other) return false;
  all.insert(all.end(), rest.begin(), rest.end());
  normalize(all);
  runs = std::move(all);
  content.rows += next.rows;
  return true;
}

void Contents::join(Pieces& pieces) {
  std::size_t end = 0;
  for (std::size_t k = 0; k < pieces.size();) {
    Piece piece = pieces[k++];
    if (piece.rows == 0) continue;
    if (piece.state != RowState::known) {
      while (k < pieces.size() && pieces[k].state == piece.state) piece.rows += pieces[k++].rows;
    } else if (k < pieces.size() && pieces[k].state == RowState::known) {
      Content content = (*this)[piece.content];
      std::vector<Run> all(runs(content).begin(), runs(content).end());
      while (k < pieces.size() && pieces[k].state == RowState::known &&
             extend(content, all, (*this)[pieces[k].content])) {
        ++k;
      }
      if (content.rows != piece.rows) {
        piece.rows = content.rows;
        piece.content = intern(content, all);
      }
    }
    pieces[end++] = piece;
  }
  pieces.resize(end);
}

std::int64_t Contents::cell_count(std::span<const Run> runs) {
  std::int64_t count = 1;
  std::int64_t dim = 1;
  for (std::size_t k = 0; k < runs.size(); ++k) {
    const bool goes_on = k > 0 && runs[k].dimension == runs[k - 1].dimension;
    if (!goes_on) count *= dim;
    dim = goes_on ? dim + runs[k].count : runs[k].count;
  }
  return count * dim;
}

bool Contents::same_but_sum(const Content& a, const Content& b) const {
  return alike(a, b) && std::ranges::equal(runs(a), runs(b));
}

Contents::Union Contents::unite(const Piece& a, const Piece& b) {
  for (const Piece* piece : {&a, &b}) {
    if (piece->state == RowState::unallocated) return {*piece, Conflict::unallocated};
    if (piece->state == RowState::uninitialized) return {*piece, Conflict::uninitialized};
  }
  if (is_unknown(a.state)) return {a};
  if (is_unknown(b.state)) return {b};
  const Content x = (*this)[a.content];
  const Content y = (*this)[b.content];
  if (!same_but_sum(x, y)) return {a, Conflict::other_cells};
  if (sums_.zero(x.sum)) return {b};
  if (sums_.zero(y.sum)) return {a};
  if (x.scale != y.scale) return {a, Conflict::other_scale};
  const std::optional<SumId> sum = sums_.unite(x.sum, y.sum);
  if (!sum) return {a, Conflict::duplicate};
  Content both = x;
  both.sum = *sum;
  Piece piece = a;
  piece.content = intern(both, runs(x));
  return {piece};
}

std::optional<Piece> Contents::unite(std::span<const Piece> pieces) {
  const auto stated = [](const Piece& piece) { return piece.state == RowState::known; };
  if (!std::ranges::all_of(pieces, stated)) return std::nullopt;
  Content both = (*this)[pieces.front().content];
  bool zero = true;
  std::vector<SumId> sums;
  for (const Piece& piece : pieces) {
    const Content& next = (*this)[piece.content];
    if (!same_but_sum(both, next)) return std::nullopt;
    sums.push_back(next.sum);
    if (sums_.zero(next.sum)) continue;
    if (!zero && both.scale != next.scale) return std::nullopt;
    both.scale = next.scale;
    zero = false;
  }
  const std::optional<SumId> sum = sums_.unite(std::move(sums));
  if (!sum) return std::nullopt;
  both.sum = *sum;
  Piece result = pieces.front();
  result.content = intern(both, runs(both));
  return result;
}

Piece Contents::scaled(const Piece& piece, const plan::Ratio& by) {
  if (piece.state != RowState::known || by == plan::Ratio()) return piece;
  Content content = (*this)[piece.content];
  const std::optional<plan::Ratio> scale = product((*this)[content.scale], by);
  Piece result = piece;
  if (!scale) {
    result.state = RowState::overflow;
    return result;
  }
  content.scale = intern(*scale);
  result.content = intern(content, runs(content));
  return result;
}

Piece Contents::bind(const Piece& piece, std::span<const std::int64_t> positions) {
  if (positions.empty() || piece.state != RowState::known) return piece;
  Content content = (*this)[piece.content];
  std::vector<Run> moved(runs(content).begin(), runs(content).end());
  const SumId sum = sums_.bind(content.sum, positions);
  bool changed = sum != content.sum;
  for (Run& run : moved) {
    if (run.slope == 0) continue;
    const Slopes::Bound bound = slopes_.bind(run.slope, positions);
    run.begin += static_cast<std::int32_t>(bound.by);
    run.slope = static_cast<std::int16_t>(bound.rest);
    changed = true;
  }
  if (!changed) return piece;
  content.sum = sum;
  Piece result = piece;
  result.content = intern(content, moved);
  return result;
}

Piece Contents::fit_affine(std::span<const Piece> pieces, std::size_t axis, std::size_t axes) {
  if (pieces.size() == 1) return pieces.front();
  const Piece& first = pieces.front();
  const auto even = [&](const Piece& p) { return p.state == first.state && p.rows == first.rows; };
  if (!std::ranges::all_of(pieces, even)) throw Asymmetric();
  if (first.state != RowState::known) return first;
  Content content = (*this)[first.content];
  const Content next = (*this)[pieces[1].content];
  std::vector<Run> runs_here(runs(content).begin(), runs(content).end());
  const std::span<const Run> there = runs(next);
  if (there.size() != runs_here.size()) throw Asymmetric();
  for (std::size_t k = 0; k < runs_here.size(); ++k) {
    if (there[k].slope != runs_here[k].slope) throw Asymmetric();
    std::vector<std::int64_t> slope = slopes_[runs_here[k].slope];
    slope.resize(axes);
    if (slope[axis] != 0) throw Asymmetric();
    slope[axis] = there[k].begin - runs_here[k].begin;
    runs_here[k].slope = static_cast<std::int16_t>(slopes_.intern(std::move(slope)));
  }
  Piece result = first;
  result.content = intern(content, runs_here);
  std::vector<std::int64_t> positions(axes, -1);
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    positions[axis] = static_cast<std::int64_t>(k);
    if (bind(result, positions) != pieces[k]) throw Asymmetric();
  }
  return result;
}

bool Contents::same(const Piece& a, const Piece& b) const {
  if (a.state != b.state) return false;
  if (a.content == b.content) return true;
  const Content& x = (*this)[a.content];
  const Content& y = (*this)[b.content];
  if (x.tensor != y.tensor || x.is_new != y.is_new || x.instance != y.instance ||
      x.scale != y.scale || !sums_.same(x.sum, y.sum)) {
    return false;
  }
  return same_but_sum(x, y) || same_cells(x, y);
}

IndexSet Contents::coordinates(const Content& content, std::int32_t dimension) const {
  IndexSet set;
  for (const Run& run : runs(content)) {
    if (run.dimension == dimension) {
      set = set.united(IndexSet::range(run.begin, run.count, run.stride));
    }
  }
  return set;
}

// ---- the cells of rows, and whether two contents have the same cells in the same order

namespace {

// The limit of steps to compare two orders of cells. A step compares the cells that are consecutive
// in both.
constexpr std::int64_t kMaxStepsCompared = 50'000'000;

// Iterates the cells of a content in order, a run of coordinates at a time.
class CellCursor {
 public:
  CellCursor(std::span<const Run> runs, std::int64_t cell, std::size_t dimensions)
      : runs_(runs), coordinates_(dimensions), slopes_(dimensions) {
    for (std::size_t end = runs.size(); end > 0;) {  // the last dimension changes fastest
      Digit digit{.begin = end};
      while (digit.begin > 0 && runs[digit.begin - 1].dimension == runs[end - 1].dimension) {
        digit.count += runs[--digit.begin].count;
      }
      std::int64_t value = cell % digit.count;
      cell /= digit.count;
      digit.run = digit.begin;
      while (value >= runs[digit.run].count) value -= runs[digit.run++].count;
      digit.in_run = value;
      digit.end = end;
      end = digit.begin;
      digits_.push_back(digit);
      write(digits_.back());
    }
  }

  [[nodiscard]] const std::vector<std::int64_t>& coordinates() const { return coordinates_; }
  [[nodiscard]] const std::vector<std::int32_t>& slopes() const { return slopes_; }
  // Cells from here to the end of the run of the dimension that changes fastest.
  [[nodiscard]] std::int64_t in_run() const {
    return digits_.empty() ? 1 : runs_[digits_.front().run].count - digits_.front().in_run;
  }
  [[nodiscard]] bool goes_on_like(const CellCursor& other) const {
    const Run& here = runs_[digits_.front().run];
    const Run& there = other.runs_[other.digits_.front().run];
    return here.dimension == there.dimension && here.stride == there.stride;
  }
  // REQUIRES: cells <= in_run().
  void skip(std::int64_t cells) {
    if (digits_.empty()) return;
    digits_.front().in_run += cells;
    for (Digit& digit : digits_) {
      if (digit.in_run == runs_[digit.run].count) {
        digit.in_run = 0;
        ++digit.run;
      }
      const bool carry = digit.run == digit.end;
      if (carry) digit.run = digit.begin;
      write(digit);
      if (!carry) return;
      if (&digit != &digits_.back()) ++(&digit + 1)->in_run;
    }
  }

 private:
  struct Digit {
    std::size_t begin = 0;  // its runs
    std::size_t end = 0;
    std::int64_t count = 0;
    std::size_t run = 0;
    std::int64_t in_run = 0;
  };
  void write(const Digit& digit) {
    const Run& run = runs_[digit.run];
    const auto dimension = static_cast<std::size_t>(run.dimension);
    coordinates_[dimension] = run.begin + digit.in_run * run.stride;
    slopes_[dimension] = run.slope;
  }

  std::span<const Run> runs_;
  std::vector<Digit> digits_;
  std::vector<std::int64_t> coordinates_;
  std::vector<std::int32_t> slopes_;
};

}  // namespace

std::vector<std::int64_t> Contents::cells(const Content& content, std::int64_t row) const {
  const std::span<const Run> all = runs(content);
  const std::int64_t total = cell_count(all);
  const std::int64_t rows = content.of == 0 ? content.rows : content.of;
  row += content.first;
  std::vector<std::int64_t> result;
  const auto add_cell = [&](std::int64_t cell) {
    std::vector<std::int64_t> at(tensor(content).part.size());
    for (std::size_t end = all.size(); end > 0;) {
      std::size_t begin = end;
      std::int64_t count = 0;
      while (begin > 0 && all[begin - 1].dimension == all[end - 1].dimension) {
        count += all[--begin].count;
      }
      std::int64_t k = cell % count;
      cell /= count;
      for (std::size_t run = begin; run < end; ++run) {
        if (k < all[run].count) {
          at[all[run].dimension] = all[run].begin + k * all[run].stride;
          break;
        }
        k -= all[run].count;
      }
      end = begin;
    }
    result.insert(result.end(), at.begin(), at.end());
  };
  if (total >= rows) {
    const std::int64_t each = total / rows;
    for (std::int64_t k = 0; k < each; ++k) add_cell(row * each + k);
  } else {
    const std::int64_t each = rows / total;
    add_cell(row / each);
    result.push_back(row % each);
    result.push_back(each);
  }
  return result;
}

// REQUIRES: both have the same number of rows.
bool Contents::same_cells(const Content& x, const Content& y) const {
  const Layout in_x = layout(x);
  const Layout in_y = layout(y);
  if (in_x.cells_per_row != in_y.cells_per_row || in_x.rows_per_cell != in_y.rows_per_cell ||
      in_x.phase != in_y.phase) {
    return false;
  }
  std::int64_t left = in_x.cells;
  CellCursor at_x(runs(x), in_x.first, tensor(x).part.size());
  CellCursor at_y(runs(y), in_y.first, tensor(y).part.size());
  bool same_slopes = true;
  for (std::int64_t steps = 0; left > 0; ++steps) {
    if (steps == kMaxStepsCompared) {
      throw InputError(
          {.code = "D632",
           .what = fmt::format("two orders of {} cells of `{}` are too long to compare",
                               with_separators(in_x.cells), tensor(x).name),
           .why = fmt::format("they are compared in {} steps at most",
                              with_separators(kMaxStepsCompared)),
           .help = "state the cells in the order in which they are held, or in larger parts"});
    }
    const std::int64_t count = std::min({left, at_x.in_run(), at_y.in_run()});
    if (at_x.coordinates() != at_y.coordinates()) return false;
    if (count > 1 && !at_x.goes_on_like(at_y)) return false;
    same_slopes = same_slopes && at_x.slopes() == at_y.slopes();
    left -= count;
    at_x.skip(count);
    at_y.skip(count);
  }
  if (!same_slopes) throw Asymmetric();
  return true;
}

Contents::Layout Contents::layout(const Content& content) const {
  const std::int64_t total = cell_count(runs(content));
  const std::int64_t rows = content.of == 0 ? content.rows : content.of;
  Layout result;
  if (total >= rows) {
    result.cells_per_row = total / rows;
    result.first = content.first * result.cells_per_row;
    result.cells = content.rows * result.cells_per_row;
    return result;
  }
  result.rows_per_cell = rows / total;
  result.phase = content.first % result.rows_per_cell;
  result.first = content.first / result.rows_per_cell;
  result.cells = (content.first + content.rows - 1) / result.rows_per_cell - result.first + 1;
  return result;
}

}  // namespace shiplap::check
