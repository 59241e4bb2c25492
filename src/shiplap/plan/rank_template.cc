// The template of a rank: its operations, and the dependence graph between them.
//
// TemplateBuilder turns the expansion of a rank into Steps: one pass in program order that keeps
// the last operation of each stream and the bytes that are alive. It leaves out everything that
// differs between ranks that do the same (peers, group members, tags, contents), so that such ranks
// get equal templates and link() stores one of them.
//
// The edges of the graph are implicit in the steps: to the predecessor in the stream (released by
// its start if it is asynchronous, otherwise by its completion; a member of a batch is released by
// the start of the batch), and to each operation named after `after` (released by its completion).
// connect() makes them explicit in compressed sparse row form, two counting passes without
// allocation per edge: in_degree[k], and the successors of each operation, those released by its
// start before those released by its completion. The clock of sim walks these arrays; check and
// Execution use the steps and need no connect().
//
// All sums of bytes are checked for 64-bit overflow (D633), because the numbers come from input.
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/intervals_internal.h"
#include "shiplap/plan/rank_template_internal.h"

namespace shiplap::plan {
namespace {

[[noreturn]] void throw_too_many_bytes() {
  throw InputError(Diagnostic{.code = "D633",
                              .what = "the byte count overflows 64 bits",
                              .why = "the bytes of a rank's buffers, and those that an operation "
                                     "moves, are summed"});
}

// total + count * bytes.
std::int64_t grown(std::int64_t total, std::int64_t count, std::int64_t bytes) {
  std::int64_t more = 0;
  if (__builtin_mul_overflow(count, bytes, &more) || __builtin_add_overflow(total, more, &total)) {
    throw_too_many_bytes();
  }
  return total;
}

class TemplateBuilder {
 public:
  TemplateBuilder(const RankProgram& program, const LinkOptions& options)
      : program_(program), options_(options) {}

  RankTemplate build() && {
    if (!program_.program.exists()) return {};
    last_.assign(program_.plan->programs[program_.program].streams.size() + 1, -1);
    result_.heads = last_;
    if (options_.events) result_.memory = alive_throughout();
    memory_ = result_.memory;
    result_.steps.reserve(program_.operations.size());
    result_.after.assign(program_.dependencies.begin(), program_.dependencies.end());
    for (const flat::Operation& op : program_.operations) {
      throw_if_cancelled();
      add(op);
    }
    return std::move(result_);
  }

 private:
  [[nodiscard]] const Buffer& buffer(const flat::Region& region) const {
    return program_.plan->programs[program_.program].buffers[region.buffer];
  }
  [[nodiscard]] bool on_device(BufferId id) const {
    return buffer({.buffer = id}).memory == Memory::device;
  }

  // Bytes of the rows that no `allocate` names.
  [[nodiscard]] std::int64_t alive_throughout() const {
    std::int64_t alive = 0;
    for (std::size_t k = 0; k < program_.buffers.size(); ++k) {
      const flat::Buffer& flat = program_.buffers[k];
      if (on_device(BufferId(k))) alive = grown(alive, flat.rows, flat.row_bytes);
    }
    std::vector<Interval> allocated;
    for (const flat::Operation& op : program_.operations) {
      if (!std::holds_alternative<Allocate>(op.source->action)) continue;
      if (!on_device(op.from.buffer)) continue;
      allocated.push_back({op.from.buffer, op.from.begin, op.from.begin + op.from.count});
    }
    for (const auto& [buffer, rows] : rows_covered(std::move(allocated))) {
      alive -= rows * program_.buffers[buffer].row_bytes;
    }
    return alive;
  }

  void add(const flat::Operation& op) {
    Step step{.source = op.source,
              .memory = memory_,
              .after_first = op.after.first,
              .after_count = op.after.count};
    set_stream_order(op, step);
    try {
      std::visit([&](const auto& action) { read(op, action, step); }, op.source->action);
      const bool local = step.action == ActionKind::compute || step.action == ActionKind::copy;
      if (options_.cost && (local || step.action == ActionKind::exchange)) {
        step.cost = options_.cost(program_, op);
      }
    } catch (const InputError& error) {  // without a location: add it
      Diagnostic diagnostic = error.diagnostics().front();
      diagnostic.where.rank = program_.rank.value;
      diagnostic.where.line = op.source->origin.line;
      diagnostic.where.operation = program_.describe(op);
      throw InputError(std::move(diagnostic));
    }
    if (!is_lifetime(step.action) && step.action != ActionKind::batch)
      step.event = result_.events++;
    result_.steps.push_back(step);
  }

  // Sets its predecessor: in its stream, or its batch.
  void set_stream_order(const flat::Operation& op, Step& step) {
    if (op.batch >= 0) {
      Step& batch = result_.steps[op.batch];
      ++batch.detail;
      step.predecessor = op.batch;
      step.overlaps_predecessor = true;
      step.member = true;
      step.stream = batch.stream;
      return;
    }
    const auto here = static_cast<std::int32_t>(result_.steps.size());
    std::int32_t& last = last_[op.stream.index()];
    step.predecessor = last;
    step.overlaps_predecessor = last >= 0 && result_[last].source->async;
    step.stream = op.stream.value;
    (last >= 0 ? result_.steps[last].next : result_.heads[step.stream]) = here;
    last = here;
  }

  void read(const flat::Operation& /*op*/, const Compute& compute, Step& step) const {
    if (options_.events) step.kind = trace::kind_of_kernel(compute.kernel);
  }

  void read(const flat::Operation& /*op*/, const Copy& /*copy*/, Step& step) const {
    step.action = ActionKind::copy;
    step.kind = trace::EventKind::copy;
  }

  void move(const flat::Region& region, Step& step) const {
    step.bytes = program_.bytes_of(region);
    if (region.buffer.exists()) step.type = buffer(region).type;
  }

  void read(const flat::Operation& op, const Send&, Step& step) const {
    step.action = ActionKind::send;
    step.kind = trace::EventKind::send;
    move(op.from, step);
  }

  void read(const flat::Operation& op, const Receive&, Step& step) const {
    step.action = ActionKind::receive;
    step.kind = trace::EventKind::recv;
    move(op.to, step);
  }

  void read(const flat::Operation& op, const Collective& collective, Step& step) const {
    step.action = ActionKind::collective;
    step.kind = trace::kind_of(collective.kind);
    step.detail = op.root;
    move(whole_buffer(program_, op, collective), step);
  }

  void read(const flat::Operation& op, const Exchange& exchange, Step& step) const {
    const ExchangeTable& table = program_.plan->tables[exchange.table];
    std::span<const TableRow> out = table.sends_of(program_.rank.value);
    std::span<const TableRow> in = table.receives_of(program_.rank.value);
    if (exchange.reversed) std::swap(out, in);
    step.action = ActionKind::exchange;
    step.kind = trace::EventKind::exchange;
    step.type = buffer(op.from).type;
    step.detail = program_.buffers[op.from.buffer].row_bytes;
    if (!options_.events) return;
    step.bytes = bytes_of(op, out, step.detail);
    static_cast<void>(bytes_of(op, in, program_.buffers[op.to.buffer].row_bytes));  // 64 bits
  }
  // The bytes that are exchanged with other members of the group.
  [[nodiscard]] std::int64_t bytes_of(const flat::Operation& op, std::span<const TableRow> rows,
                                      std::int64_t row_bytes) const {
    const RankSet& group = program_.groups[op.group].ranks;
    std::int64_t bytes = 0;
    for (const TableRow& row : rows) {
      if (row.rank == row.peer || group.find(Rank(row.peer)) < 0) continue;
      bytes = grown(bytes, row.count, row_bytes);
    }
    return bytes;
  }

  void read(const flat::Operation& op, const Allocate&, Step& step) {
    step.action = ActionKind::allocate;
    grow(op.from, 1, step);
  }
  void read(const flat::Operation& op, const Free&, Step& step) {
    step.action = ActionKind::free;
    grow(op.from, -1, step);
  }
  void grow(const flat::Region& rows, std::int64_t sign, Step& step) {
    if (!options_.events) return;
    step.bytes = on_device(rows.buffer) ? sign * program_.bytes_of(rows) : 0;
    memory_ = grown(memory_, 1, step.bytes);
  }

  void read(const flat::Operation&, const Batch&, Step& step) const {
    step.action = ActionKind::batch;
  }

  const RankProgram& program_;
  const LinkOptions& options_;
  std::vector<std::int32_t> last_;  // by stream of the program
  std::int64_t memory_ = 0;
  RankTemplate result_;
};

}  // namespace

const flat::Region& whole_buffer(const RankProgram& program, const flat::Operation& op,
                                 const Collective& collective) {
  if (collective.kind == CollectiveKind::all_gather) return op.to;
  if (collective.kind != CollectiveKind::broadcast) return op.from;
  const RankSet& group = program.groups[op.group].ranks;
  return group.find(program.rank) == op.root ? op.from : op.to;
}

RankTemplate template_of(const RankProgram& program, const LinkOptions& options) {
  return TemplateBuilder(program, options).build();
}

void connect(RankTemplate& rank_template) {
  const std::size_t count = rank_template.steps.size();
  rank_template.in_degree.assign(count, 0);
  rank_template.releases.assign(count, {});
  // Calls visit(waiting operation, earlier operation, released at its start?) for every edge.
  const auto each = [&](const auto& visit) {
    for (std::size_t k = 0; k < count; ++k) {
      const Step& step = rank_template.steps[k];
      if (step.predecessor >= 0)
        visit(k, static_cast<std::size_t>(step.predecessor), step.overlaps_predecessor);
      for (std::int32_t a = 0; a < step.after_count; ++a) {
        const auto at = static_cast<std::size_t>(step.after_first + a);
        visit(k, static_cast<std::size_t>(rank_template.after[at]), false);
      }
    }
  };
  // First `at_end` and `last` count both kinds of edges, then they become ends of ranges.
  each([&](std::size_t waiting, std::size_t earlier, bool at_start) {
    ++rank_template.in_degree[waiting];
    Releases& releases = rank_template.releases[earlier];
    ++(at_start ? releases.at_end : releases.last);
  });
  std::int32_t total = 0;
  for (Releases& releases : rank_template.releases) {
    const std::int32_t at_start = releases.at_end;
    const std::int32_t at_end = releases.last;
    releases = {.first = total, .at_end = total + at_start, .last = total + at_start + at_end};
    total = releases.last;
  }
  rank_template.successors.resize(total);
  std::vector<std::pair<std::int32_t, std::int32_t>> next;  // next free slots of both kinds
  next.reserve(count);
  for (const Releases& releases : rank_template.releases)
    next.emplace_back(releases.first, releases.at_end);
  each([&](std::size_t waiting, std::size_t earlier, bool at_start) {
    std::int32_t& slot = at_start ? next[earlier].first : next[earlier].second;
    rank_template.successors[slot++] = static_cast<std::int32_t>(waiting);
  });
}

}  // namespace shiplap::plan
