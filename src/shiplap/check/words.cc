#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/units.h"
#include "shiplap/check/words_internal.h"

namespace shiplap::check {
namespace {

const plan::Group& named_group(const plan::Operation& source) {
  const auto* exchange = std::get_if<plan::Exchange>(&source.action);
  return exchange != nullptr ? exchange->over : std::get<plan::Collective>(source.action).over;
}

constexpr std::size_t kMostRuns = 4;

std::string in_words(const plan::Ratio& ratio) {
  if (ratio.denominator() == 1) return std::to_string(ratio.numerator());
  return fmt::format("{}/{}", ratio.numerator(), ratio.denominator());
}

}  // namespace

std::string some_ranks(const std::vector<std::int32_t>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t k = 0; k < std::min(kMost, ranks.size()); ++k) {
    text += fmt::format("{}{}", k == 0 ? "" : k + 1 == ranks.size() ? " and " : ", ", ranks[k]);
  }
  if (ranks.size() > kMost) {
    text += fmt::format(" and {} more", with_separators(std::ssize(ranks) - std::int64_t{kMost}));
  }
  return text;
}

std::string Words::operation(Place place) {
  if (place.operation < 0) return "";
  auto found = programs_.find(place.rank);
  if (found == programs_.end()) {
    found = programs_.emplace(place.rank, plan::expand(job_.plan, Rank(place.rank))).first;
  }
  const plan::RankProgram& program = found->second;
  return program.describe(program.operations[place.operation]);
}

Where Words::where(Place place) {
  Where where{.rank = place.rank, .operation = operation(place)};
  if (place.operation >= 0) where.line = job_.op(place).source->origin.line;
  return where;
}

std::string Words::at(Place place) {
  if (place.operation < 0) return fmt::format("rank {} at the end", place.rank);
  return fmt::format("rank {} in `{}`", place.rank, operation(place));
}

std::string Words::group(const CallGroup& group, Place place) const {
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
  text += fmt::format("{{{}}}", some_ranks(ranks));
  if (!group.linked->channel.empty()) text += "/" + group.linked->channel;
  return text;
}

std::string Words::tensor(const Piece& piece) const {
  const Content& content = job_.contents[piece.content];
  const plan::Tensor& tensor = job_.contents.tensor(content);
  std::string text = content.is_new ? "new " : "";
  text += tensor.name;
  if (tensor.instances > 0) text += fmt::format("[{}]", content.instance);
  return text;
}

std::string Words::scale(const Piece& piece) const {
  return in_words(job_.contents[job_.contents[piece.content].scale]);
}

std::string Words::content(const Piece& piece) const {
  if (piece.nature == Nature::nothing) return "nothing";
  if (piece.nature == Nature::dead) return "memory that is not allocated";
  if (piece.nature == Nature::unknown) return "something that no sum describes";
  if (piece.nature == Nature::leftover) return "what a reduction in place left behind";
  if (piece.nature == Nature::overflow) return "a sum at a scale that needs more than 64 bits";
  const Content& content = job_.contents[piece.content];
  const plan::Tensor& tensor = job_.contents.tensor(content);
  std::string text = this->tensor(piece);
  for (std::size_t k = 0; k < tensor.part.size(); ++k) {
    if (tensor.part[k].size == 1) continue;
    std::string order;  // as the rows have them
    std::size_t runs = 0;
    std::int64_t next = -1;
    bool rising = true;
    for (const Run& run : job_.contents.runs(content)) {
      if (run.dimension != static_cast<std::int32_t>(k)) continue;
      rising = rising && run.begin > next;
      next = run.begin + (std::int64_t{run.count} - 1) * run.stride;
      if (runs++ < kMostRuns) {
        order += (order.empty() ? "" : ", then ") +
                 to_string(IndexSet::range(run.begin, run.count, run.stride));
      }
    }
    if (runs > kMostRuns) order += ", ..";
    const IndexSet set = job_.contents.coordinates(content, static_cast<std::int32_t>(k));
    if (set.covers(tensor.part[k].size) && rising) continue;
    text += fmt::format(" {} {}", tensor.part[k].name, rising ? to_string(set) : order);
  }
  const std::vector<Box>& boxes = job_.contents.sums()[content.sum];
  if (boxes.empty()) return text + ", a sum of nothing yet";
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
  if (scale != plan::Ratio()) text += ", scale " + in_words(scale);
  return text;
}

std::string Words::order(const Piece& piece) const {
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

std::string Words::box(const Piece& piece, const Box& box) const {
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

// The smallest box around them says most; where that is everything, one of them.
std::string Words::boxes(const Piece& piece, const Boxes& boxes) const {
  std::string text = box(piece, outline(boxes));
  if (!text.empty() || boxes.empty()) return text;
  text = box(piece, boxes.front());
  if (text.empty()) return "everything";
  if (boxes.size() > 1) text += fmt::format(" and {} more parts", boxes.size() - 1);
  return text;
}

std::string Words::zone(std::int32_t rank, const Zone& zone) const {
  const Script& script = job_.script(rank);
  const std::string& name = job_.plan.programs[script.program].buffers[zone.buffer].name;
  if (zone.listed < 0 && zone.begin == 0 && zone.count == script.rows[zone.buffer]) {
    return name;
  }
  return fmt::format("{}[{} +{}]", name, zone.begin, zone.count);
}

}  // namespace shiplap::check
