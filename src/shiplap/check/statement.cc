#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/check/statement_internal.h"

namespace shiplap::check {
namespace {

Run run_of(const plan::flat::Run& run, SlopeId slope) {
  return {.dimension = static_cast<std::int16_t>(run.dimension.value),
          .slope = static_cast<std::int16_t>(slope),
          .begin = static_cast<std::int32_t>(run.begin),
          .count = static_cast<std::int32_t>(run.count),
          .stride = static_cast<std::int32_t>(run.stride)};
}

constexpr std::int64_t kMaxIndices = 100'000'000;
constexpr std::int64_t kMaxBoxes = 1'000'000;

[[noreturn]] void throw_too_many(const plan::Tensor& tensor, std::string_view things,
                                 std::int64_t most) {
  throw InputError({.code = "D632",
                    .what = fmt::format("the mask of `{}` leaves more than {} {}", tensor.name,
                                        with_separators(most), things),
                    .why = "a mask is evaluated cell by cell",
                    .help = "give every cell separate rows, or check a shorter sequence"});
}

bool in_mask(const plan::Tensor& tensor, std::size_t dimension) {
  return std::ranges::any_of(tensor.mask, [&](const plan::MaskTerm& term) {
    return term.left.dimension.index() == dimension || term.right.dimension.index() == dimension;
  });
}

}  // namespace

Statements::Statements(Contents& contents) : contents_(contents) {
  for (const plan::Tensor& tensor : contents.plan().tensors) {
    full_.push_back(contents.sums().intern({whole_box(tensor)}));
  }
}

Box Statements::whole_box(const plan::Tensor& tensor) const {
  Box box;
  for (const plan::Dimension& dimension : tensor.sum) {
    box.push_back({IndexSet::range(0, dimension.size)});
  }
  return box;
}

Box box_of(const plan::Tensor& tensor, const Statement& statement, std::size_t first) {
  const plan::flat::Value& value = statement.value;
  Box box(tensor.dimensions() - first);
  std::vector<bool> seen(box.size());
  const std::span<const plan::flat::Run> runs = statement.program.runs_of(value);
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (runs[k].dimension.index() < first) continue;
    const std::size_t at = runs[k].dimension.index() - first;
    const SlopeId slope = statement.slopes.empty()
                              ? 0
                              : statement.slopes[static_cast<std::size_t>(value.runs.first) + k];
    if (seen[at] && box[at].slope != slope) throw Asymmetric();
    box[at].slope = slope;
    seen[at] = true;
    box[at].set = box[at].set.united(IndexSet::range(runs[k].begin, runs[k].count, runs[k].stride));
  }
  return box;
}

std::string name_of(const plan::Tensor& tensor, const plan::flat::Value& value) {
  std::string text = value.is_new ? "new " : "";
  text += tensor.name;
  if (tensor.instances > 0) text += fmt::format("[{}]", value.instance);
  return text;
}

Box Statements::sum_box(const Statement& statement) const {
  const plan::Tensor& tensor = contents_.plan().tensors[statement.value.tensor];
  return box_of(tensor, statement, tensor.part.size());
}

void Statements::evaluate(const Statement& statement, std::int64_t rows, Pieces& out) {
  if (rows == 0) return;
  const plan::flat::Value& value = statement.value;
  const plan::Tensor& tensor = contents_.plan().tensors[value.tensor];
  Content content{.tensor = value.tensor,
                  .rows = static_cast<std::int32_t>(rows),
                  .instance = value.instance,
                  .scale = contents_.intern(value.scale),
                  .is_new = value.is_new};
  if (!tensor.mask.empty() && !value.zero) {
    return mask(statement, sum_box(statement), out, content);
  }
  part_.clear();
  summed_.clear();
  const std::span<const plan::flat::Run> runs = statement.program.runs_of(value);
  for (std::size_t k = 0; k < runs.size(); ++k) {
    const auto at = static_cast<std::size_t>(value.runs.first) + k;
    const Run run = run_of(runs[k], statement.slopes.empty() ? 0 : statement.slopes[at]);
    (tensor.in_sum(runs[k].dimension) ? summed_ : part_).push_back(run);
  }
  content.sum = sum_of(statement);
  out.push_back({.content = contents_.intern(content, part_), .rows = content.rows});
}

SumId Statements::sum_of(const Statement& statement) {
  if (statement.value.zero) return contents_.sums().intern({});
  const plan::TensorId tensor = statement.value.tensor;
  std::uint64_t hash = tensor.index();
  for (const Run& run : summed_) hash = hash_combine(hash_combine(hash, run.begin), run.count);
  Recent& recent = recent_[hash % recent_.size()];
  if (recent.sum.exists() && recent.tensor == tensor && recent.runs == summed_) return recent.sum;
  Box box = sum_box(statement);
  const bool empty = std::ranges::any_of(box, [](const BoxSide& p) { return p.set.empty(); });
  Boxes boxes;
  if (!empty) boxes.push_back(std::move(box));
  recent = {tensor, summed_, contents_.sums().intern(std::move(boxes))};
  return recent.sum;
}

// Starts from the content without a mask, then clips the sum of each row.
void Statements::mask(const Statement& statement, const Box& box, Pieces& out, Content content) {
  const plan::Tensor& tensor = contents_.plan().tensors[content.tensor];
  if (std::ranges::any_of(statement.slopes, [](SlopeId slope) { return slope != 0; })) {
    throw Asymmetric();
  }
  content.sum = full_[content.tensor.index()];
  std::vector<Run> part;
  for (const plan::flat::Run& run : statement.program.runs_of(statement.value)) {
    if (tensor.in_sum(run.dimension)) continue;
    part.push_back(run_of(run, 0));
  }
  const Piece all{.content = contents_.intern(content, part), .rows = content.rows};
  // Cells in a row, or rows that share a cell.
  const std::int64_t cell_count = Contents::cell_count(part);
  const auto in_row =
      static_cast<std::size_t>(std::max<std::int64_t>(1, cell_count / content.rows));
  const auto step = static_cast<std::int32_t>(
      std::max<std::int64_t>(1, content.rows / std::max<std::int64_t>(1, cell_count)));
  std::int32_t begin = 0;
  SumId sum;
  const auto close = [&](std::int32_t end) {
    if (end == begin) return;
    Pieces pieces;
    contents_.slice(all, begin, end - begin, pieces);
    for (Piece& piece : pieces) {
      Content clipped = contents_[piece.content];
      clipped.sum = sum;
      const std::span<const Run> runs = contents_.runs(clipped);
      piece.content = contents_.intern(clipped, runs);
      out.push_back(piece);
    }
    begin = end;
  };
  for (std::int32_t row = 0; row < content.rows; row += step) {
    const std::vector<std::int64_t> cells = contents_.cells(contents_[all.content], row);
    const SumId here = sum_of_row(tensor, box, std::span(cells).first(in_row * tensor.part.size()));
    if (row > 0 && here != sum) close(row);
    sum = here;
  }
  close(content.rows);
}

// If a row has several cells, each with its own contributions, the cell becomes the first dimension
// of the sum.
SumId Statements::sum_of_row(const plan::Tensor& tensor, const Box& box,
                             std::span<const std::int64_t> cells) {
  const std::size_t width = tensor.part.size();
  const std::size_t count = width == 0 ? 1 : cells.size() / width;
  Boxes all;
  for (std::size_t k = 0; k < count; ++k) {
    for (Box& left : clipped(tensor, box, cells.subspan(k * width, width))) {
      if (count > 1) {
        left.insert(left.begin(), {IndexSet(static_cast<std::int64_t>(k))});
      }
      if (std::ssize(all) == kMaxBoxes) throw_too_many(tensor, "parts of one row", kMaxBoxes);
      all.push_back(std::move(left));
    }
  }
  return contents_.sums().intern(std::move(all));
}

Boxes Statements::clipped(const plan::Tensor& tensor, const Box& box,
                          std::span<const std::int64_t> cell) {
  Boxes boxes{box};
  for (const plan::MaskTerm& term : tensor.mask) clip(tensor, term, cell, boxes);
  std::erase_if(boxes, [](const Box& b) {
    return std::ranges::any_of(b, [](const BoxSide& part) { return part.set.empty(); });
  });
  return boxes;
}

void Statements::clip(const plan::Tensor& tensor, const plan::MaskTerm& term,
                      std::span<const std::int64_t> cell, Boxes& boxes) {
  const bool left_summed = tensor.in_sum(term.left.dimension);
  const bool right_summed = tensor.in_sum(term.right.dimension);
  const auto at = [&](const plan::MaskSide& side) {
    return side.dimension.index() - tensor.part.size();
  };
  const auto fixed = [&](const plan::MaskSide& side) {
    return entry(side, cell[side.dimension.index()]);
  };
  if (!left_summed && !right_summed) {
    const bool holds = term.comparator == plan::Comparator::equal
                           ? fixed(term.left) == fixed(term.right)
                           : fixed(term.left) <= fixed(term.right);
    if (!holds) boxes.clear();
    return;
  }
  if (left_summed && right_summed) {  // one box for each coordinate of the left side
    Boxes cut;
    for (const Box& box : boxes) {
      for (const std::int32_t coordinate : box[at(term.left)].set.indices()) {
        Box one = box;
        one[at(term.left)].set = IndexSet(std::int64_t{coordinate});
        BoxSide& other = one[at(term.right)];
        other.set =
            other.set.intersected(allowed(tensor, term, false, entry(term.left, coordinate)));
        cut.push_back(std::move(one));
      }
    }
    boxes = std::move(cut);
    return;
  }
  const plan::MaskSide& open = left_summed ? term.left : term.right;
  const plan::MaskSide& closed = left_summed ? term.right : term.left;
  for (Box& box : boxes) {
    BoxSide& part = box[at(open)];
    part.set = part.set.intersected(allowed(tensor, term, left_summed, fixed(closed)));
  }
}

std::int64_t Statements::entry(const plan::MaskSide& side, std::int64_t coordinate) const {
  if (!side.list.exists()) return coordinate;
  return contents_.plan().lists[side.list].values[coordinate];
}

// Coordinates that satisfy a comparison are adjacent when sorted by the numbers that the mask
// compares. Usually they are also consecutive; then the set is a range and is found at once.
const std::vector<Statements::Entry>& Statements::sorted(const plan::Tensor& tensor,
                                                         const plan::MaskSide& side) {
  const auto [found, is_new] = sorted_.try_emplace(&side);
  std::vector<Entry>& all = found->second;
  if (!is_new) return all;
  const std::int64_t size = tensor.dimension(side.dimension).size;
  for (std::int64_t k = 0; k < size; ++k) {
    all.push_back({.number = entry(side, k), .coordinate = static_cast<std::int32_t>(k)});
  }
  std::ranges::stable_sort(all, {}, &Entry::number);
  for (std::size_t k = 1; k < all.size(); ++k) {
    if (all[k].coordinate == all[k - 1].coordinate + 1) all[k].following = all[k - 1].following + 1;
  }
  return all;
}

const IndexSet& Statements::allowed(const plan::Tensor& tensor, const plan::MaskTerm& term,
                                    bool free_left, std::int64_t fixed) {
  const plan::MaskSide& side = free_left ? term.left : term.right;
  const std::vector<Entry>& all = sorted(tensor, side);
  const bool equal = term.comparator == plan::Comparator::equal;
  auto first = all.begin();
  auto last = all.end();
  if (equal || !free_left) first = std::ranges::lower_bound(all, fixed, {}, &Entry::number);
  if (equal || free_left) last = std::ranges::upper_bound(all, fixed, {}, &Entry::number);
  const auto [found, is_new] =
      allowed_.try_emplace(std::tuple(&side, first - all.begin(), last - all.begin()));
  if (!is_new || first == last) return found->second;
  if (last[-1].following >= last - first - 1) {
    return found->second = IndexSet::range(first->coordinate, last - first);
  }
  indices_ += last - first;
  if (indices_ > kMaxIndices) throw_too_many(tensor, "coordinates", kMaxIndices);
  std::vector<std::int32_t> indices;
  for (auto at = first; at != last; ++at) indices.push_back(at->coordinate);
  return found->second = IndexSet(std::move(indices));
}

template <class Visit>
void Statements::for_each_cell(const plan::Tensor& tensor, const Box& box, const Visit& visit) {
  if (std::ranges::any_of(box, [](const BoxSide& side) { return side.slope != 0; })) {
    throw Asymmetric();
  }
  const auto first_of_sum = box.begin() + static_cast<std::ptrdiff_t>(tensor.part.size());
  const Box sum(first_of_sum, box.end());
  std::vector<std::vector<std::int32_t>> coordinates;
  for (std::size_t k = 0; k < tensor.part.size(); ++k) {
    coordinates.push_back(in_mask(tensor, k) ? box[k].set.indices() : std::vector<std::int32_t>{0});
  }
  std::vector<std::size_t> at(coordinates.size());
  std::vector<std::int64_t> cell(coordinates.size());
  for (std::size_t k = 0; k < at.size(); ++k) cell[k] = coordinates[k].front();
  while (visit(cell, clipped(tensor, sum, cell))) {
    std::size_t k = at.size();
    while (k > 0 && ++at[k - 1] == coordinates[k - 1].size()) at[--k] = 0;
    if (k == 0) return;
    for (std::size_t m = k - 1; m < at.size(); ++m) cell[m] = coordinates[m][at[m]];
  }
}

Boxes Statements::unmasked(const plan::Tensor& tensor, const Box& box) {
  if (empty(box)) return {};
  if (tensor.mask.empty()) return {box};
  Boxes result;
  for_each_cell(tensor, box, [&](const std::vector<std::int64_t>& cell, const Boxes& sums) {
    for (const Box& sum : sums) {
      Box left = box;
      for (std::size_t k = 0; k < cell.size(); ++k) {
        if (in_mask(tensor, k)) left[k].set = IndexSet(cell[k]);
      }
      std::ranges::copy(sum, left.begin() + static_cast<std::ptrdiff_t>(cell.size()));
      if (result.empty() || !join(result.back(), left)) result.push_back(std::move(left));
    }
    return true;
  });
  return result;
}

bool Statements::is_masked_out(const plan::Tensor& tensor, const Box& box) {
  if (empty(box)) return true;
  if (tensor.mask.empty()) return false;
  bool all = true;
  for_each_cell(tensor, box, [&](const std::vector<std::int64_t>&, const Boxes& sums) {
    all = sums.empty();
    return all;
  });
  return all;
}

}  // namespace shiplap::check
