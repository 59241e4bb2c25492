#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/cost/price.h"
#include "shiplap/sim/skeleton_internal.h"

namespace shiplap::sim {
namespace {

using plan::RankProgram;
using plan::flat::Region;

[[noreturn]] void too_many_bytes() {
  throw InputError(Diagnostic{.code = "D633",
                              .what = "more bytes than 64 bits can count",
                              .why = "the bytes of a rank's buffers, and those that an operation "
                                     "moves, are added up"});
}

// total + count * bytes.
std::int64_t grown(std::int64_t total, std::int64_t count, std::int64_t bytes) {
  std::int64_t more = 0;
  if (__builtin_mul_overflow(count, bytes, &more) || __builtin_add_overflow(total, more, &total)) {
    too_many_bytes();
  }
  return total;
}

// What a rank sends, or receives, by an exchange table: only within its group, and not to itself.
struct Direction {
  std::span<const plan::TableRow> rows;
  std::int64_t row_bytes = 0;
};

std::vector<cost::ExchangeLoad::Way> loads(const hardware::System& system, const Direction& way,
                                           const plan::RankSet& group) {
  std::vector<cost::ExchangeLoad::Way> by_network(system.networks.size());
  for (const plan::TableRow& row : way.rows) {
    if (row.rank == row.peer || group.find(Rank(row.peer)) < 0) continue;
    const auto [lowest, highest] = std::minmax(row.rank, row.peer);
    const hardware::Network& network =
        cost::network_for(system, {.ranks = 2, .lowest = lowest, .highest = highest});
    auto& load = by_network[&network - system.networks.data()];
    ++load.messages;
    load.bytes = {grown(load.bytes.count, row.count, way.row_bytes)};
  }
  return by_network;
}

// Rows begin .. end-1 of one buffer.
struct Interval {
  plan::BufferId buffer;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

class Builder {
 public:
  Builder(const RankProgram& program, const hardware::System& system,
          std::span<const std::int32_t> streams)
      : program_(program), system_(system), streams_(streams), last_(streams.size(), -1) {}

  Skeleton build() && {
    if (!program_.program.exists()) return {};
    result_.memory = alive_throughout();  // all its parts are in the sum of the buffers
    memory_ = result_.memory;
    result_.steps.reserve(program_.operations.size());
    result_.after.assign(program_.dependencies.begin(), program_.dependencies.end());
    for (const plan::flat::Operation& op : program_.operations) add(op);
    return std::move(result_);
  }

 private:
  [[nodiscard]] const plan::Buffer& buffer(const Region& region) const {
    return program_.plan->programs[program_.program].buffers[region.buffer];
  }
  [[nodiscard]] bool on_device(plan::BufferId id) const {
    return buffer({.buffer = id}).memory == plan::Memory::device;
  }

  // Rows that no `allocate` names.
  [[nodiscard]] std::int64_t alive_throughout() const {
    std::int64_t alive = 0;
    for (std::size_t k = 0; k < program_.buffers.size(); ++k) {
      const plan::flat::Buffer& flat = program_.buffers[k];
      if (on_device(plan::BufferId(k))) alive = grown(alive, flat.rows, flat.row_bytes);
    }
    std::vector<Interval> allocated;
    for (const plan::flat::Operation& op : program_.operations) {
      if (!std::holds_alternative<plan::Allocate>(op.source->action)) continue;
      if (!on_device(op.from.buffer)) continue;
      allocated.push_back({op.from.buffer, op.from.begin, op.from.begin + op.from.count});
    }
    return alive - bytes_covered(std::move(allocated));
  }

  [[nodiscard]] std::int64_t bytes_covered(std::vector<Interval> intervals) const {
    std::ranges::sort(intervals, {},
                      [](const Interval& i) { return std::pair(i.buffer, i.begin); });
    std::int64_t bytes = 0;
    plan::BufferId buffer;
    std::int64_t reached = 0;
    for (const Interval& interval : intervals) {
      if (interval.buffer != buffer) reached = 0;
      buffer = interval.buffer;
      const std::int64_t begin = std::max(interval.begin, reached);
      if (interval.end <= begin) continue;
      bytes += (interval.end - begin) * program_.buffers[buffer].row_bytes;
      reached = interval.end;
    }
    return bytes;
  }

  void add(const plan::flat::Operation& op) {
    Step step{.source = op.source,
              .memory = memory_,
              .after_first = op.after.first,
              .after_count = op.after.count};
    place(op, step);
    try {
      std::visit([&](const auto& action) { read(op, action, step); }, op.source->action);
    } catch (const InputError& error) {  // it does not know where it is
      Diagnostic diagnostic = error.diagnostics().front();
      diagnostic.where.rank = program_.rank.value;
      diagnostic.where.line = op.source->origin.line;
      diagnostic.where.operation = program_.describe(op);
      throw InputError(std::move(diagnostic));
    }
    if (step.act != Act::moment && step.act != Act::batch) step.event = result_.events++;
    result_.steps.push_back(step);
  }

  // In its stream, or in its batch.
  void place(const plan::flat::Operation& op, Step& step) {
    if (op.batch >= 0) {
      Step& batch = result_.steps[op.batch];
      ++batch.detail;
      step.gate = op.batch;
      step.opens_at_start = true;
      step.member = true;
      step.stream = batch.stream;
      return;
    }
    std::int32_t& last = last_[op.stream.index()];
    step.gate = last;
    step.opens_at_start = last >= 0 && result_[last].source->async;
    step.stream = streams_[op.stream.index()];
    last = static_cast<std::int32_t>(result_.steps.size());
  }

  void read(const plan::flat::Operation& op, const plan::Compute& compute, Step& step) {
    step.kind = trace::kind_of_kernel(compute.kernel);
    step.price = compute_price(op).value;
  }

  // Without `work`, a computation takes as long as reading and writing what it names.
  [[nodiscard]] Seconds compute_price(const plan::flat::Operation& op) const {
    const auto accesses = program_.accesses_of(op);
    const std::optional<plan::Work>& work = op.source->work;
    if (work && work->kernel_class.empty()) return {op.work.seconds};
    cost::ComputeWork todo;
    if (work) {
      todo = {.kernel_class = work->kernel_class, .flop = op.work.flop, .bytes = op.work.bytes};
    } else {
      for (const plan::flat::Access& access : accesses) {
        todo.bytes += static_cast<double>(program_.bytes_of(access.region));
      }
    }
    if (work && work->type) {
      todo.type = *work->type;
    } else if (!accesses.empty()) {
      const auto written = std::ranges::find_if(accesses, [](const plan::flat::Access& access) {
        return access.kind != plan::Access::Kind::reads;
      });
      const auto& access = written == accesses.end() ? accesses.front() : *written;
      todo.type = buffer(access.region).type;
    }
    return cost::compute_time(system_, todo);
  }

  void read(const plan::flat::Operation& op, const plan::Copy&, Step& step) {
    step.kind = trace::Kind::copy;
    step.price = cost::copy_time(system_, {program_.bytes_of(op.from)}, buffer(op.from).memory,
                                 buffer(op.to).memory)
                     .value;
  }

  void move(const Region& region, Step& step) const {
    step.bytes = program_.bytes_of(region);
    if (region.buffer.exists()) step.type = buffer(region).type;
  }

  void read(const plan::flat::Operation& op, const plan::Send&, Step& step) const {
    step.act = Act::send;
    step.kind = trace::Kind::send;
    move(op.from, step);
  }

  void read(const plan::flat::Operation& op, const plan::Receive&, Step& step) const {
    step.act = Act::receive;
    step.kind = trace::Kind::recv;
    move(op.to, step);
  }

  void read(const plan::flat::Operation& op, const plan::Collective& collective, Step& step) const {
    step.act = Act::collective;
    step.kind = trace::kind_of(collective.kind);
    step.detail = op.root;
    move(whole_buffer(program_, op, collective), step);
  }

  void read(const plan::flat::Operation& op, const plan::Exchange& exchange, Step& step) const {
    const plan::ExchangeTable& table = program_.plan->tables[exchange.table];
    const plan::RankSet& group = program_.groups[op.group].ranks;
    Direction out{table.sends_of(program_.rank.value), program_.buffers[op.from.buffer].row_bytes};
    Direction in{table.receives_of(program_.rank.value), program_.buffers[op.to.buffer].row_bytes};
    if (exchange.reversed) std::swap(out.rows, in.rows);
    const cost::ExchangeLoad load{.out = loads(system_, out, group),
                                  .in = loads(system_, in, group)};
    step.act = Act::exchange;
    step.kind = trace::Kind::exchange;
    step.type = buffer(op.from).type;
    step.detail = out.row_bytes;
    step.price = cost::exchange_time(system_, load).value;
    for (const auto& way : load.out) step.bytes = grown(step.bytes, 1, way.bytes.count);
  }

  void read(const plan::flat::Operation& op, const plan::Allocate&, Step& step) {
    grow(op.from, 1, step);
  }
  void read(const plan::flat::Operation& op, const plan::Free&, Step& step) {
    grow(op.from, -1, step);
  }
  void grow(const Region& rows, std::int64_t sign, Step& step) {
    step.act = Act::moment;
    step.bytes = on_device(rows.buffer) ? sign * program_.bytes_of(rows) : 0;
    memory_ = grown(memory_, 1, step.bytes);
  }

  void read(const plan::flat::Operation&, const plan::Batch&, Step& step) const {
    step.act = Act::batch;
  }

  const RankProgram& program_;
  const hardware::System& system_;
  std::span<const std::int32_t> streams_;
  std::vector<std::int32_t> last_;  // by stream of the program
  std::int64_t memory_ = 0;
  Skeleton result_;
};

}  // namespace

const Region& whole_buffer(const RankProgram& program, const plan::flat::Operation& op,
                           const plan::Collective& collective) {
  if (collective.kind == CollectiveKind::all_gather) return op.to;
  if (collective.kind != CollectiveKind::broadcast) return op.from;
  const plan::RankSet& group = program.groups[op.group].ranks;
  return group.find(program.rank) == op.root ? op.from : op.to;
}

Skeleton skeleton_of(const RankProgram& program, const hardware::System& system,
                     std::span<const std::int32_t> streams) {
  return Builder(program, system, streams).build();
}

void connect(Skeleton& skeleton) {
  const std::size_t count = skeleton.steps.size();
  skeleton.inputs.assign(count, 0);
  skeleton.releases.assign(count, {});
  const auto each = [&](const auto& act) {  // who waits for whom, until its start or its end
    for (std::size_t k = 0; k < count; ++k) {
      const Step& step = skeleton.steps[k];
      if (step.gate >= 0) act(k, static_cast<std::size_t>(step.gate), step.opens_at_start);
      for (std::int32_t a = 0; a < step.after_count; ++a) {
        const auto at = static_cast<std::size_t>(step.after_first + a);
        act(k, static_cast<std::size_t>(skeleton.after[at]), false);
      }
    }
  };
  // First `at_end` and `last` count the two kinds, then they become ends of the ranges.
  each([&](std::size_t waiting, std::size_t earlier, bool at_start) {
    ++skeleton.inputs[waiting];
    Releases& releases = skeleton.releases[earlier];
    ++(at_start ? releases.at_end : releases.last);
  });
  std::int32_t total = 0;
  for (Releases& releases : skeleton.releases) {
    const std::int32_t at_start = releases.at_end;
    const std::int32_t at_end = releases.last;
    releases = {.first = total, .at_end = total + at_start, .last = total + at_start + at_end};
    total = releases.last;
  }
  skeleton.successors.resize(total);
  std::vector<std::pair<std::int32_t, std::int32_t>> next;  // free places of both kinds
  next.reserve(count);
  for (const Releases& releases : skeleton.releases)
    next.emplace_back(releases.first, releases.at_end);
  each([&](std::size_t waiting, std::size_t earlier, bool at_start) {
    std::int32_t& place = at_start ? next[earlier].first : next[earlier].second;
    skeleton.successors[place++] = static_cast<std::int32_t>(waiting);
  });
}

}  // namespace shiplap::sim
