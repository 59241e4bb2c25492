// What a plan may say and this executor cannot do, found before anything runs.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shiplap/run/actions_internal.h"
#include "shiplap/run/arithmetic_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;
using plan::flat::Region;

class Judge {
 public:
  explicit Judge(const plan::RankProgram& program) : program_(program) {}

  std::vector<Diagnostic> all() && {
    for (const Operation& op : program_.operations) {
      std::visit([&](const auto& action) { judge(action, op); }, op.source->action);
    }
    return std::move(found_);
  }

 private:
  void refuse(const Operation& op, std::string what) {
    constexpr std::size_t kMost = 20;
    if (found_.size() >= kMost) return;
    found_.push_back({.code = "D641",
                      .where = {.line = op.source->origin.line,
                                .rank = program_.rank.value,
                                .operation = program_.describe(op)},
                      .what = "not supported by run: " + std::move(what)});
  }

  [[nodiscard]] const plan::Buffer& buffer(const Region& region) const {
    return program_.plan->programs[program_.program].buffers[region.buffer];
  }
  [[nodiscard]] std::int64_t bytes(const Region& region) const { return program_.bytes_of(region); }

  // Both can be added to each other.
  void judge_addition(const Operation& op, const Region& a, const Region& b) {
    if (buffer(a).type != buffer(b).type) {
      refuse(op, fmt::format("adding {} to {}", name(buffer(a).type), name(buffer(b).type)));
    } else if (!can_add(buffer(a).type)) {
      refuse(op, fmt::format("adding {}", name(buffer(a).type)));
    }
  }

  void judge(const plan::Compute& /*action*/, const Operation& /*op*/) {}
  void judge(const plan::Allocate& /*action*/, const Operation& /*op*/) {}
  void judge(const plan::Free& /*action*/, const Operation& /*op*/) {}
  void judge(const plan::Batch& /*action*/, const Operation& /*op*/) {}
  void judge(const plan::Send& /*action*/, const Operation& /*op*/) {}

  void judge(const plan::Receive& receive, const Operation& op) {
    if (receive.add) judge_addition(op, op.to, op.to);
  }

  void judge(const plan::Copy& copy, const Operation& op) {
    const bool listed = op.from.listed >= 0 || op.to.listed >= 0;
    if (bytes(op.from) != bytes(op.to) || (listed && op.from.count != op.to.count)) {
      refuse(op, fmt::format("{} bytes to {}", bytes(op.from), bytes(op.to)));
    }
    if (copy.add) judge_addition(op, op.from, op.to);
  }

  // One is this rank's piece of the other, the same, or apart from it.
  void judge_places(const Operation& op, const Region& whole, const Region& own) {
    const std::vector<std::int64_t> ends = piece_ends(program_, op);
    if (ends.empty()) {
      return refuse(op, fmt::format("{} rows cut into pieces for {} ranks in this way", whole.count,
                                    group(op).size()));
    }
    const auto me = static_cast<std::size_t>(group(op).find(program_.rank));
    const std::int64_t piece = ends[me + 1] - ends[me];
    if (same_rows(whole, own)) return;
    if (bytes(own) != piece) {
      return refuse(op, fmt::format("a piece of {} bytes for {} bytes", piece, bytes(own)));
    }
    const std::int64_t width = program_.buffers[whole.buffer].row_bytes;
    const bool is_piece = own.begin * width == whole.begin * width + ends[me];
    if (whole.buffer == own.buffer && overlap(whole, own) && !is_piece) {
      refuse(op, "regions that overlap, where neither is this rank's piece of the other");
    }
  }

  [[nodiscard]] static bool overlap(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.begin < b.begin + b.count && b.begin < a.begin + a.count;
  }
  [[nodiscard]] const plan::RankSet& group(const Operation& op) const {
    return program_.groups[op.group].ranks;
  }

  // Regions of the same size, equal or apart.
  void judge_equal(const Operation& op) {
    if (bytes(op.from) != bytes(op.to)) {
      refuse(op, fmt::format("{} bytes to {}", bytes(op.from), bytes(op.to)));
    } else if (overlap(op.from, op.to) && !same_rows(op.from, op.to)) {
      refuse(op, "regions that overlap in part");
    }
  }

  // Uneven pieces: one of the own size arrives from each rank.
  void judge_turned(const Operation& op) {
    const std::vector<std::int64_t> ends = piece_ends(program_, op);
    if (ends.empty()) return;  // was refused
    const auto me = static_cast<std::size_t>(group(op).find(program_.rank));
    const std::int64_t due = (ends[me + 1] - ends[me]) * group(op).size();
    if (bytes(op.to) != due) {
      refuse(op, fmt::format("{} bytes where {} arrive", bytes(op.to), due));
    } else if (overlap(op.from, op.to) && !same_rows(op.from, op.to)) {
      refuse(op, "regions that overlap in part");
    }
  }

  void judge(const plan::Collective& collective, const Operation& op) {
    if (collective.kind == CollectiveKind::barrier) return;
    if (reduces(collective.kind)) judge_reduction(collective, op);
    switch (collective.kind) {
      case CollectiveKind::all_gather:
        return judge_places(op, op.to, op.from);
      case CollectiveKind::reduce_scatter:
        return judge_places(op, op.from, op.to);
      case CollectiveKind::all_to_all:
        judge_places(op, op.from, op.from);
        return collective.split.exists() ? judge_turned(op) : judge_equal(op);
      default:
        return judge_equal(op);
    }
  }

  void judge_reduction(const plan::Collective& collective, const Operation& op) {
    const DType type = buffer(op.from).type;
    if (buffer(op.to).type != type || !can_add(type)) {
      refuse(op, fmt::format("combining {} into {}", name(type), name(buffer(op.to).type)));
    }
    if (!can_combine(collective.op)) {
      refuse(op, fmt::format("the operator {}", name(collective.op)));
    }
    if (collective.scale != plan::Ratio() && !is_floating(type)) {
      refuse(op, fmt::format("a scale on {}", name(type)));
    }
  }

  void judge(const plan::Exchange& exchange, const Operation& op) {
    const plan::ExchangeTable& table = program_.plan->tables[exchange.table];
    const std::int64_t rank = program_.rank.value;
    const auto sent = exchange.reversed ? table.receives_of(rank) : table.sends_of(rank);
    const auto got = exchange.reversed ? table.sends_of(rank) : table.receives_of(rank);
    judge_rows(op, sent, op.from);
    judge_rows(op, got, op.to);
    const std::int64_t from_width = program_.buffers[op.from.buffer].row_bytes;
    const std::int64_t to_width = program_.buffers[op.to.buffer].row_bytes;
    if (from_width != to_width) {
      refuse(op, fmt::format("rows of {} bytes to rows of {}", from_width, to_width));
    }
    if (exchange.add) judge_addition(op, op.from, op.to);
  }

  void judge_rows(const Operation& op, std::span<const plan::TableRow> rows, const Region& region) {
    for (const plan::TableRow& row : rows) {
      if (group(op).find(Rank(row.peer)) < 0) {
        return refuse(op, fmt::format("a message between this rank and rank {}, which is not in "
                                      "the group",
                                      row.peer));
      }
      if (row.first < 0 || row.count > region.count - row.first) {
        return refuse(
            op, fmt::format("rows {} +{} of a region of {}", row.first, row.count, region.count));
      }
    }
  }

  const plan::RankProgram& program_;
  std::vector<Diagnostic> found_;
};

}  // namespace

std::vector<std::int64_t> piece_ends(const plan::RankProgram& program, const Operation& op) {
  const auto& collective = std::get<plan::Collective>(op.source->action);
  const Region& whole = collective.kind == CollectiveKind::all_gather ? op.to : op.from;
  const std::int64_t width = program.buffers[whole.buffer].row_bytes;
  const std::int64_t ranks = program.groups[op.group].ranks.size();
  std::vector<std::int64_t> ends;
  if (!collective.split.exists()) {
    const std::int64_t bytes = whole.count * width;
    const plan::Buffer& buffer = program.plan->programs[program.program].buffers[whole.buffer];
    if (bytes % (ranks * bytes_of(buffer.type)) != 0) return {};
    for (std::int64_t k = 0; k <= ranks; ++k) ends.push_back(bytes / ranks * k);
    return ends;
  }
  const std::vector<std::int64_t>& cuts = program.plan->lists[collective.split].values;
  const bool fits = std::ssize(cuts) == ranks + 1 && cuts.front() == 0 &&
                    cuts.back() == whole.count && std::ranges::is_sorted(cuts);
  if (!fits) return {};
  for (const std::int64_t cut : cuts) ends.push_back(cut * width);
  return ends;
}

std::vector<Diagnostic> unsupported(const plan::RankProgram& program) {
  return Judge(program).all();
}

}  // namespace shiplap::run
