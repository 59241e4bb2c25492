#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/units.h"
#include "shiplap/check/format_internal.h"

namespace shiplap::check {
namespace {

const plan::Group& named_group(const plan::Operation& source) {
  const auto* exchange = std::get_if<plan::Exchange>(&source.action);
  return exchange != nullptr ? exchange->over : std::get<plan::Collective>(source.action).over;
}

constexpr std::size_t kMaxRuns = 4;

}  // namespace

std::string format_factor(const plan::Ratio& found, const plan::Ratio& due) {
  const auto value = [](const plan::Ratio& ratio) {
    return static_cast<double>(ratio.numerator()) / static_cast<double>(ratio.denominator());
  };
  const double factor = value(found) / value(due);
  const bool is_large = factor > 1;
  return fmt::format("{:.6g} times too {}", is_large ? factor : 1 / factor,
                     is_large ? "large" : "small");
}

std::string format_ranks(const std::vector<std::int32_t>& ranks) {
  constexpr std::size_t kMaxShown = 8;
  std::string text;
  for (std::size_t k = 0; k < std::min(kMaxShown, ranks.size()); ++k) {
    text += fmt::format("{}{}", k == 0 ? "" : k + 1 == ranks.size() ? " and " : ", ", ranks[k]);
  }
  if (ranks.size() > kMaxShown) {
    text +=
        fmt::format(" and {} more", with_separators(std::ssize(ranks) - std::int64_t{kMaxShown}));
  }
  return text;
}

const plan::RankProgram& Formatter::program(std::int32_t rank) {
  auto found = programs_.find(rank);
  if (found == programs_.end()) {
    found = programs_.emplace(rank, plan::expand(job_.plan, Rank(rank))).first;
  }
  return found->second;
}

std::string Formatter::operation(OperationId place) {
  if (place.operation < 0) return "";
  const plan::RankProgram& here = program(place.rank);
  return here.describe(here.operations[place.operation]);
}

Where Formatter::where(OperationId place) {
  if (place.operation < 0) return {.rank = place.rank};
  const plan::RankProgram& here = program(place.rank);
  return here.where(here.operations[place.operation]);
}

std::string Formatter::at(OperationId place) {
  if (place.operation < 0) return fmt::format("rank {} at the end", place.rank);
  return fmt::format("rank {} in `{}`", place.rank, operation(place));
}

std::string Formatter::group(const CallGroup& group, OperationId place) const {
  std::string text;
  if (place.operation >= 0) {
    const plan::Group& named = named_group(*job_.op(place).source);
    for (const plan::AxisId axis : named.axes) {
      text += (text.empty() ? "" : ", ") + job_.plan.mesh.name(axis);
    }
    if (named.axes.size() > 1) text = "(" + text + ")";
    if (!text.empty()) text += " ";
  }
  std::vector<std::int32_t> ranks;
  for (std::int64_t k = 0; k < group.ranks().size(); ++k) ranks.push_back(group.ranks()[k].value);
  text += fmt::format("{{{}}}", format_ranks(ranks));
  if (!group.linked->channel.empty()) text += "/" + group.linked->channel;
  return text;
}

std::string Formatter::tensor(const Piece& piece) const {
  const Content& content = job_.contents[piece.content];
  const plan::Tensor& tensor = job_.contents.tensor(content);
  std::string text = content.is_new ? "new " : "";
  text += tensor.name;
  if (tensor.instances > 0) text += fmt::format("[{}]", content.instance);
  return text;
}

std::string Formatter::scale(const Piece& piece) const {
  return plan::format_ratio(scale_of(piece));
}

std::string Formatter::factor(const Piece& found, const Piece& due) const {
  return format_factor(scale_of(found), scale_of(due));
}

const plan::Ratio& Formatter::scale_of(const Piece& piece) const {
  return job_.contents[job_.contents[piece.content].scale];
}

std::string Formatter::content(const Piece& piece) const {
  if (piece.state == RowState::uninitialized) return "uninitialized memory";
  if (piece.state == RowState::unallocated) return "unallocated memory";
  if (piece.state == RowState::unknown) return "something that is not a sum";
  if (piece.state == RowState::leftover) return "undefined leftovers of an in-place reduction";
  if (piece.state == RowState::overflow) return "a sum at a scale that needs more than 64 bits";
  const Content& content = job_.contents[piece.content];
  const plan::Tensor& tensor = job_.contents.tensor(content);
  std::string text = this->tensor(piece);
  for (std::size_t k = 0; k < tensor.part.size(); ++k) {
    if (tensor.part[k].size == 1) continue;
    std::string order;  // in row order
    std::size_t runs = 0;
    std::int64_t next = -1;
    bool rising = true;
    for (const Run& run : job_.contents.runs(content)) {
      if (run.dimension != static_cast<std::int32_t>(k)) continue;
      rising = rising && run.begin > next;
      next = run.begin + (std::int64_t{run.count} - 1) * run.stride;
      if (runs++ < kMaxRuns) {
        order += (order.empty() ? "" : ", then ") +
                 to_string(IndexSet::range(run.begin, run.count, run.stride));
      }
    }
    if (runs > kMaxRuns) order += ", ..";
    const IndexSet set = job_.contents.coordinates(content, static_cast<std::int32_t>(k));
    if (set.covers(tensor.part[k].size) && rising) continue;
    text += fmt::format(" {} {}", tensor.part[k].name, rising ? to_string(set) : order);
  }
  const std::vector<Box>& boxes = job_.contents.sums()[content.sum];
  if (boxes.empty()) return text + ", an empty sum";
  bool whole = boxes.size() == 1 && boxes.front().size() == tensor.sum.size();
  for (std::size_t k = 0; k < tensor.sum.size() && whole; ++k) {
    whole = boxes.front()[k].set.covers(tensor.sum[k].size);
  }
  if (!tensor.sum.empty() && !whole && boxes.size() == 1) {
    text += ", summed over " + box(piece, boxes.front());
  } else if (!whole) {
    text += ", summed over a part";
  }
  const plan::Ratio& scale = job_.contents[content.scale];
  if (scale != plan::Ratio()) text += ", scale " + format_ratio(scale);
  return text;
}

std::string Formatter::order(const Piece& piece) const {
  const Content& content = job_.contents[piece.content];
  const plan::Tensor& tensor = job_.contents.tensor(content);
  std::string text;
  std::int32_t last = -1;
  for (const Run& run : job_.contents.runs(content)) {
    if (run.dimension == last) continue;
    last = run.dimension;
    text += (text.empty() ? "" : ", then ") + tensor.part[last].name;
  }
  return text;
}

std::string Formatter::box(const Piece& piece, const Box& box) const {
  const plan::Tensor& tensor = job_.contents.tensor(job_.contents[piece.content]);
  std::string text;
  const std::size_t first = box.size() > tensor.sum.size() ? 1 : 0;  // which cell of a row
  for (std::size_t k = first; k < box.size(); ++k) {
    const plan::Dimension& dimension = tensor.sum[k - first];
    if (tensor.sum.size() > 1 && box[k].set.covers(dimension.size)) continue;
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : " and ", dimension.name, to_string(box[k].set));
  }
  return text;
}

// The bounding box is the most informative; if it covers everything, the first box is shown
// instead.
std::string Formatter::boxes(const Piece& piece, const Boxes& boxes) const {
  std::string text = box(piece, bounding_box(boxes));
  if (!text.empty() || boxes.empty()) return text;
  text = box(piece, boxes.front());
  if (text.empty()) return "everything";
  if (boxes.size() > 1) text += fmt::format(" and {} more parts", boxes.size() - 1);
  return text;
}

std::string Formatter::row_range(std::int32_t rank, const RowRange& row_range) const {
  const Script& script = job_.script(rank);
  const std::string& name = job_.plan.programs[script.program].buffers[row_range.buffer].name;
  if (row_range.listed < 0 && row_range.begin == 0 &&
      row_range.count == script.rows[row_range.buffer]) {
    return name;
  }
  return fmt::format("{}[{} +{}]", name, row_range.begin, row_range.count);
}

}  // namespace shiplap::check
