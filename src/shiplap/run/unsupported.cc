// Finds operations that are valid in a plan but unsupported by this executor, before anything runs.
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

class SupportChecker {
 public:
  explicit SupportChecker(const plan::RankProgram& program) : program_(program) {}

  std::vector<Diagnostic> all() && {
    if (!program_.plan->declares_values) return {undeclared_values()};
    for (const Operation& op : program_.operations) {
      std::visit([&](const auto& action) { check(action, op); }, op.source->action);
    }
    return std::move(found_);
  }

  // Only what is moved is known, not what is computed.
  static Diagnostic undeclared_values() {
    return {.code = "D641",
            .what = "not supported by run: `values undeclared`",
            .why = "run initializes buffers and computes; the plan says what is moved only",
            .help = "`shiplap check` and `shiplap simulate` accept it"};
  }

 private:
  void add(const Operation& op, std::string what) {
    constexpr std::size_t kMaxListed = 20;
    if (found_.size() >= kMaxListed) return;
    found_.push_back({.code = "D641",
                      .where = program_.where(op),
                      .what = "not supported by run: " + std::move(what)});
  }

  [[nodiscard]] const plan::Buffer& buffer(const Region& region) const {
    return program_.plan->programs[program_.program].buffers[region.buffer];
  }
  [[nodiscard]] std::int64_t bytes(const Region& region) const { return program_.bytes_of(region); }

  // Both regions have the same type, which supports addition.
  void check_addition(const Operation& op, const Region& a, const Region& b) {
    if (buffer(a).type != buffer(b).type) {
      add(op, fmt::format("adding {} to {}", name(buffer(a).type), name(buffer(b).type)));
    } else if (!can_add(buffer(a).type)) {
      add(op, fmt::format("adding {}", name(buffer(a).type)));
    }
  }

  void check(const plan::Compute& /*action*/, const Operation& /*op*/) {}
  void check(const plan::Allocate& /*action*/, const Operation& /*op*/) {}
  void check(const plan::Free& /*action*/, const Operation& /*op*/) {}
  void check(const plan::Batch& /*action*/, const Operation& /*op*/) {}
  void check(const plan::Send& /*action*/, const Operation& /*op*/) {}

  void check(const plan::Receive& receive, const Operation& op) {
    if (receive.add) check_addition(op, op.to, op.to);
  }

  void check(const plan::Copy& copy, const Operation& op) {
    const bool listed = op.from.listed >= 0 || op.to.listed >= 0;
    if (bytes(op.from) != bytes(op.to) || (listed && op.from.count != op.to.count)) {
      add(op, fmt::format("size mismatch: {} bytes to {}", bytes(op.from), bytes(op.to)));
    }
    if (copy.add) check_addition(op, op.from, op.to);
  }

  // `local` is this rank's piece of `whole`, equal to it, or disjoint from it.
  void check_pieces(const Operation& op, const Region& whole, const Region& local) {
    const std::vector<std::int64_t> ends = piece_offsets(program_, op);
    if (ends.empty()) {
      return add(
          op, fmt::format("{} rows split in this way for {} ranks", whole.count, group(op).size()));
    }
    const auto me = static_cast<std::size_t>(group(op).find(program_.rank));
    const std::int64_t piece = ends[me + 1] - ends[me];
    if (same_rows(whole, local)) return;
    if (bytes(local) != piece) {
      return add(op, fmt::format("size mismatch: a piece of {} bytes for a region of {} bytes",
                                 piece, bytes(local)));
    }
    const std::int64_t width = program_.buffers[whole.buffer].row_bytes;
    const bool is_piece = local.begin * width == whole.begin * width + ends[me];
    if (whole.buffer == local.buffer && overlap(whole, local) && !is_piece) {
      add(op, "overlapping regions where neither is this rank's piece of the other");
    }
  }

  [[nodiscard]] static bool overlap(const Region& a, const Region& b) {
    return a.buffer == b.buffer && a.begin < b.begin + b.count && b.begin < a.begin + a.count;
  }
  [[nodiscard]] const plan::RankSet& group(const Operation& op) const {
    return program_.groups[op.group].ranks;
  }

  // The regions have the same size and are equal or disjoint.
  void check_equal_sizes(const Operation& op) {
    if (bytes(op.from) != bytes(op.to)) {
      add(op, fmt::format("size mismatch: {} bytes to {}", bytes(op.from), bytes(op.to)));
    } else if (overlap(op.from, op.to) && !same_rows(op.from, op.to)) {
      add(op, "partially overlapping regions");
    }
  }

  // Uneven pieces: this rank receives one of its own piece size from each rank.
  void check_uneven_all_to_all(const Operation& op) {
    const std::vector<std::int64_t> ends = piece_offsets(program_, op);
    if (ends.empty()) return;  // reported above
    const auto me = static_cast<std::size_t>(group(op).find(program_.rank));
    const std::int64_t due = (ends[me + 1] - ends[me]) * group(op).size();
    if (bytes(op.to) != due) {
      add(op,
          fmt::format("size mismatch: a region of {} bytes where {} arrive", bytes(op.to), due));
    } else if (overlap(op.from, op.to) && !same_rows(op.from, op.to)) {
      add(op, "partially overlapping regions");
    }
  }

  void check(const plan::Collective& collective, const Operation& op) {
    if (collective.kind == CollectiveKind::barrier) return;
    if (reduces(collective.kind)) check_reduction(collective, op);
    switch (collective.kind) {
      case CollectiveKind::all_gather:
        return check_pieces(op, op.to, op.from);
      case CollectiveKind::reduce_scatter:
        return check_pieces(op, op.from, op.to);
      case CollectiveKind::all_to_all:
        check_pieces(op, op.from, op.from);
        return collective.split.exists() ? check_uneven_all_to_all(op) : check_equal_sizes(op);
      default:
        return check_equal_sizes(op);
    }
  }

  void check_reduction(const plan::Collective& collective, const Operation& op) {
    const DType type = buffer(op.from).type;
    if (buffer(op.to).type != type || !can_add(type)) {
      add(op, fmt::format("reducing {} into {}", name(type), name(buffer(op.to).type)));
    }
    if (!can_combine(collective.op)) {
      add(op, fmt::format("the reduction {}", name(collective.op)));
    }
    if (collective.scale != plan::Ratio() && !is_floating(type)) {
      add(op, fmt::format("a scale on {}", name(type)));
    }
  }

  void check(const plan::Exchange& exchange, const Operation& op) {
    const plan::ExchangeTable& table = program_.plan->tables[exchange.table];
    const std::int64_t rank = program_.rank.value;
    const auto sent = exchange.reversed ? table.receives_of(rank) : table.sends_of(rank);
    const auto got = exchange.reversed ? table.sends_of(rank) : table.receives_of(rank);
    check_rows(op, sent, op.from);
    check_rows(op, got, op.to);
    const std::int64_t from_width = program_.buffers[op.from.buffer].row_bytes;
    const std::int64_t to_width = program_.buffers[op.to.buffer].row_bytes;
    if (from_width != to_width) {
      add(op, fmt::format("size mismatch: rows of {} bytes to rows of {}", from_width, to_width));
    }
    if (exchange.add) check_addition(op, op.from, op.to);
  }

  void check_rows(const Operation& op, std::span<const plan::TableRow> rows, const Region& region) {
    for (const plan::TableRow& row : rows) {
      if (group(op).find(Rank(row.peer)) < 0) {
        return add(op, fmt::format("a message between this rank and rank {}, which is not in "
                                   "the group",
                                   row.peer));
      }
      if (row.first < 0 || row.count > region.count - row.first) {
        return add(
            op, fmt::format("rows {} +{} of a region of {}", row.first, row.count, region.count));
      }
    }
  }

  const plan::RankProgram& program_;
  std::vector<Diagnostic> found_;
};

}  // namespace

std::vector<std::int64_t> piece_offsets(const plan::RankProgram& program, const Operation& op) {
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
  return SupportChecker(program).all();
}

}  // namespace shiplap::run
