#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "shiplap/run/actions_internal.h"
#include "shiplap/run/labels_internal.h"
#include "shiplap/run/links_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;
using plan::flat::Region;
using trace::Kind;

// What a row holds, as far as events tell it.
struct Holding {
  const plan::Tensor* tensor = nullptr;  // null: nothing is known
  std::int64_t instance = -1;
  std::vector<std::int32_t> samples;  // of activations and their gradients
};
using HeldRows = std::vector<Holding>;

bool is_activation(const plan::Tensor& tensor) {
  return tensor.kind == "Activation" || tensor.kind == "ActivationGrad";
}

// The coordinates of one dimension, as they lie.
std::vector<std::int64_t> coordinates(std::span<const plan::flat::Run> runs,
                                      plan::DimensionId dimension) {
  std::vector<std::int64_t> all;
  for (const plan::flat::Run& run : runs) {
    if (run.dimension != dimension) continue;
    for (std::int64_t k = 0; k < run.count; ++k) all.push_back(run.begin + k * run.stride);
  }
  return all;
}

plan::DimensionId sample_of(const plan::Tensor& tensor) {
  const auto found = std::ranges::find(tensor.part, "sample", &plan::Dimension::name);
  return found == tensor.part.end()
             ? plan::DimensionId()
             : plan::DimensionId(static_cast<std::size_t>(found - tensor.part.begin()));
}

// What each of `count` rows holds of a value: cells lie in rows as written.
HeldRows holdings(const plan::RankProgram& program, const plan::flat::Value& value,
                  std::int64_t count) {
  const plan::Tensor& tensor = program.plan->tensors[value.tensor];
  const Holding plain{.tensor = &tensor, .instance = value.instance};
  HeldRows rows(static_cast<std::size_t>(count), plain);
  const plan::DimensionId sample = sample_of(tensor);
  if (!is_activation(tensor) || !sample.exists() || count == 0) return rows;
  const auto runs = program.runs_of(value);
  const std::vector<std::int64_t> samples = coordinates(runs, sample);
  std::int64_t cells = 1;
  std::int64_t inner = 1;  // cells for each sample
  bool is_passed = false;
  plan::DimensionId last;
  for (const plan::flat::Run& run : runs) {
    if (run.dimension == last || tensor.in_sum(run.dimension)) continue;
    last = run.dimension;
    const std::int64_t size = std::ssize(coordinates(runs, run.dimension));
    cells *= size;
    if (is_passed) inner *= size;
    is_passed = is_passed || run.dimension == sample;
  }
  for (std::int64_t row = 0; row < count; ++row) {
    std::set<std::int32_t> here;
    const std::int64_t first = cells >= count ? row * (cells / count) : row / (count / cells);
    const std::int64_t many = std::max<std::int64_t>(1, cells / count);
    for (std::int64_t cell = first; cell < first + many; ++cell) {
      const auto index = static_cast<std::size_t>(cell / inner % std::ssize(samples));
      here.insert(static_cast<std::int32_t>(samples[index]));
    }
    rows[row].samples.assign(here.begin(), here.end());
  }
  return rows;
}

Kind kind_of(const Operation& op) {
  struct Visitor {
    Kind operator()(const plan::Compute& compute) const {
      return trace::kind_of_kernel(compute.kernel);
    }
    Kind operator()(const plan::Copy& /*copy*/) const { return Kind::copy; }
    Kind operator()(const plan::Send& /*send*/) const { return Kind::send; }
    Kind operator()(const plan::Receive& /*receive*/) const { return Kind::recv; }
    Kind operator()(const plan::Exchange& /*exchange*/) const { return Kind::exchange; }
    Kind operator()(const plan::Collective& collective) const {
      return trace::kind_of(collective.kind);
    }
    Kind operator()(const plan::Allocate& /*allocate*/) const { return Kind::compute; }
    Kind operator()(const plan::Free& /*free*/) const { return Kind::compute; }
    Kind operator()(const plan::Batch& /*batch*/) const { return Kind::compute; }
  };
  return std::visit(Visitor{}, op.source->action);
}

// ---- one rank, in listed order

// Bytes alive: rows that an `allocate` names live from there to `free`, others throughout.
class Alive {
 public:
  explicit Alive(const plan::RankProgram& program) : program_(program) {
    for (const plan::flat::Buffer& buffer : program.buffers) {
      alive_.emplace_back(static_cast<std::size_t>(buffer.rows), true);
    }
    for (std::size_t k = 0; k < program.buffers.size(); ++k) {
      if (on_device(plan::BufferId(k))) {
        bytes_ += program.buffers[k].rows * program.buffers[k].row_bytes;
      }
    }
    for (const Operation& op : program.operations) {
      if (std::holds_alternative<plan::Allocate>(op.source->action)) set(op.from, false);
    }
  }
  void set(const Region& region, bool alive) {
    std::vector<bool>& rows = alive_[region.buffer.index()];
    const std::int64_t width =
        on_device(region.buffer) ? program_.buffers[region.buffer].row_bytes : 0;
    for (std::int64_t k = region.begin; k < region.begin + region.count; ++k) {
      const auto row = static_cast<std::size_t>(k);
      if (rows[row] == alive) continue;
      rows[row] = alive;
      bytes_ += alive ? width : -width;
    }
  }
  [[nodiscard]] Bytes bytes() const { return {bytes_}; }

 private:
  [[nodiscard]] bool on_device(plan::BufferId id) const {
    return program_.plan->programs[program_.program].buffers[id].memory == plan::Memory::device;
  }
  const plan::RankProgram& program_;
  std::vector<std::vector<bool>> alive_;
  std::int64_t bytes_ = 0;
};

// A message between its send and its receive.
struct Parcel {
  HeldRows rows;
  trace::Event sent;
};
using Lane = std::tuple<std::string, std::int64_t, std::int32_t, std::int32_t>;

struct Post {
  std::map<Lane, std::deque<Parcel>> parcels;
};

class RankLabeller {
 public:
  RankLabeller(const plan::Plan& plan, Rank rank) : program_(expand(plan, rank)), alive_(program_) {
    for (const plan::flat::Buffer& buffer : program_.buffers) {
      held_.emplace_back(static_cast<std::size_t>(buffer.rows));
    }
    for (const plan::flat::Fact& fact : program_.given) {
      hold(fact.region, holdings(program_, fact.value, fact.region.count));
    }
    labels_.events.resize(program_.operations.size());
    labels_.is_event.resize(program_.operations.size());
  }

  [[nodiscard]] bool is_done() const { return next_ == program_.operations.size(); }
  [[nodiscard]] RankLabels take() { return std::move(labels_); }

  // As far as it can; true if at least one operation was labelled. With `forced`, the first
  // receive does not wait for its send.
  bool advance(Post& post, bool forced) {
    const std::size_t before = next_;
    while (!is_done()) {
      const Operation& op = program_.operations[next_];
      if (std::holds_alternative<plan::Receive>(op.source->action)) {
        auto& queue = post.parcels[lane_of(op, op.peer, program_.rank)];
        if (queue.empty() && !std::exchange(forced, false)) break;
      }
      label_next(op, post);
      ++next_;
    }
    return next_ > before;
  }

 private:
  static Lane lane_of(const Operation& op, Rank from, Rank to) {
    return {*message_channel(op), op.tag, from.value, to.value};
  }

  void label_next(const Operation& op, Post& post) {
    trace::Event& event = labels_.events[next_];
    const bool is_batch = std::holds_alternative<plan::Batch>(op.source->action);
    if (std::holds_alternative<plan::Allocate>(op.source->action)) alive_.set(op.from, true);
    if (std::holds_alternative<plan::Free>(op.source->action)) alive_.set(op.from, false);
    const bool is_memory = std::holds_alternative<plan::Allocate>(op.source->action) ||
                           std::holds_alternative<plan::Free>(op.source->action);
    labels_.is_event[next_] = !is_batch && !is_memory;
    const plan::StreamId stream = op.batch < 0 ? op.stream : program_.operations[op.batch].stream;
    event.kind = kind_of(op);
    event.rank = program_.rank.value;
    event.stream = stream.value;
    event.operation = static_cast<std::int32_t>(next_);
    event.memory = alive_.bytes();
    std::visit([&](const auto& action) { act(action, op, event, post); }, op.source->action);
  }

  // ---- what rows hold

  [[nodiscard]] HeldRows held(const Region& region) const {
    HeldRows rows;
    for (std::int64_t k = 0; k < region.count; ++k) {
      rows.push_back(held_[region.buffer.index()][row_of(region, k)]);
    }
    return rows;
  }
  // Row by row; where there are more or fewer rows than holdings, in proportion.
  void hold(const Region& region, const HeldRows& rows) {
    for (std::int64_t k = 0; k < region.count && !rows.empty(); ++k) {
      const auto from = static_cast<std::size_t>(k * std::ssize(rows) / region.count);
      held_[region.buffer.index()][row_of(region, k)] = rows[from];
    }
  }
  [[nodiscard]] std::size_t row_of(const Region& region, std::int64_t k) const {
    return static_cast<std::size_t>(region.listed < 0 ? region.begin + k
                                                      : program_.listed_rows[region.listed + k]);
  }

  static void describe(const HeldRows& rows, trace::Event& event) {
    std::vector<std::int32_t> samples;
    const Holding* first = nullptr;
    for (const Holding& row : rows) {
      if (row.tensor == nullptr) continue;
      if (first == nullptr) first = &row;
      samples.insert(samples.end(), row.samples.begin(), row.samples.end());
    }
    if (first == nullptr) return;
    const bool is_gradient = first->tensor->kind == "ActivationGrad";
    event.layer = static_cast<std::int32_t>(first->instance - (is_gradient ? 1 : 0));
    event.samples = IndexSet(std::move(samples));
  }

  // ---- actions

  void act(const plan::Compute& compute, const Operation& op, trace::Event& event, Post& /*post*/) {
    event.layer = layer_of(event.kind, op);
    std::vector<std::int32_t> samples;
    const bool reads_batch = compute.kernel == "read_batch";
    const bool has_samples =
        reads_batch || (event.kind != Kind::compute && event.kind != Kind::load_weights &&
                        event.kind != Kind::update);
    for (const plan::flat::Access& access : program_.accesses_of(op)) {
      const bool is_read = access.kind == plan::Access::Kind::reads;
      const plan::Tensor& tensor = program_.plan->tensors[access.value.tensor];
      if (has_samples && is_activation(tensor) && is_read != reads_batch) {
        for (const std::int64_t k : coordinates(program_.runs_of(access.value), sample_of(tensor)))
          samples.push_back(static_cast<std::int32_t>(k));
      }
      if (is_read) continue;
      hold(access.region, holdings(program_, access.value, access.region.count));
    }
    event.samples = IndexSet(std::move(samples));
  }

  [[nodiscard]] std::int32_t layer_of(Kind kind, const Operation& op) const {
    if (kind == Kind::loss) return -1;
    const std::string of = kind == Kind::backward_weight ? "WeightGrad" : plan::kWeight;
    for (const plan::flat::Access& access : program_.accesses_of(op)) {
      const plan::Tensor& tensor = program_.plan->tensors[access.value.tensor];
      const bool is_it =
          kind == Kind::compute ? access.kind != plan::Access::Kind::reads : tensor.kind == of;
      if (is_it) return static_cast<std::int32_t>(access.value.instance);
    }
    return -1;
  }

  void act(const plan::Copy& /*copy*/, const Operation& op, trace::Event& event, Post& /*post*/) {
    const HeldRows rows = held(op.from);
    describe(rows, event);
    hold(op.to, rows);
  }

  void act(const plan::Send& /*send*/, const Operation& op, trace::Event& event, Post& post) {
    const HeldRows rows = held(op.from);
    describe(rows, event);
    event.bytes = {program_.bytes_of(op.from)};
    event.peer = op.peer.value;
    event.match = (std::int64_t{program_.rank.value} << 24) + sends_++;
    post.parcels[lane_of(op, program_.rank, op.peer)].push_back({.rows = rows, .sent = event});
  }

  void act(const plan::Receive& /*receive*/, const Operation& op, trace::Event& event, Post& post) {
    event.bytes = {program_.bytes_of(op.to)};
    event.peer = op.peer.value;
    auto& queue = post.parcels[lane_of(op, op.peer, program_.rank)];
    if (queue.empty()) return;
    event.layer = queue.front().sent.layer;
    event.samples = queue.front().sent.samples;
    event.match = queue.front().sent.match;
    hold(op.to, queue.front().rows);
    queue.pop_front();
  }

  // The own piece stands for those of the others: they hold other parts of the same.
  void act(const plan::Collective& collective, const Operation& op, trace::Event& event,
           Post& /*post*/) {
    if (collective.kind == CollectiveKind::barrier) return;
    const bool gathers = collective.kind == CollectiveKind::all_gather;
    event.bytes = {program_.bytes_of(gathers ? op.to : op.from)};
    const HeldRows rows = held(gathers && same_rows(op.from, op.to) ? own_piece(op) : op.from);
    describe(rows, event);
    const plan::RankSet& ranks = program_.groups[op.group].ranks;
    const bool stays =
        collective.kind == CollectiveKind::reduce && ranks.find(program_.rank) != op.root;
    if (stays) return;
    if (collective.kind == CollectiveKind::reduce_scatter && !same_rows(op.from, op.to)) {
      return hold(op.to, held(own_piece(op)));
    }
    if (!gathers) return hold(op.to, rows);
    for (std::int64_t k = 0; k < ranks.size(); ++k) hold(piece(op, k), rows);
  }

  [[nodiscard]] Region own_piece(const Operation& op) const {
    return piece(op, program_.groups[op.group].ranks.find(program_.rank));
  }
  // Pieces that are no whole rows count as the row they begin in.
  [[nodiscard]] Region piece(const Operation& op, std::int64_t position) const {
    const auto& collective = std::get<plan::Collective>(op.source->action);
    Region whole = collective.kind == CollectiveKind::all_gather ? op.to : op.from;
    const std::vector<std::int64_t> ends = piece_ends(program_, op);
    if (ends.empty() || whole.count == 0) return whole;
    const std::int64_t width = program_.buffers[whole.buffer].row_bytes;
    const auto k = static_cast<std::size_t>(position);
    const std::int64_t first = ends[k] / width;
    whole.count =
        std::max<std::int64_t>(ends[k + 1] > ends[k] ? 1 : 0, ends[k + 1] / width - first);
    whole.begin += first;
    return whole;
  }

  void act(const plan::Exchange& exchange, const Operation& op, trace::Event& event,
           Post& /*post*/) {
    const plan::ExchangeTable& table = program_.plan->tables[exchange.table];
    const std::int64_t rank = program_.rank.value;
    const std::int64_t width = program_.buffers[op.from.buffer].row_bytes;
    for (const plan::TableRow& row :
         exchange.reversed ? table.receives_of(rank) : table.sends_of(rank)) {
      if (row.peer != rank) event.bytes += {row.count * width};
    }
    const HeldRows rows = held(op.from);
    describe(rows, event);
    hold(op.to, rows);
  }

  template <class Other>
  void act(const Other& /*other*/, const Operation& /*op*/, trace::Event& /*event*/,
           Post& /*post*/) {}

  plan::RankProgram program_;
  Alive alive_;
  std::vector<HeldRows> held_;  // by buffer and row
  RankLabels labels_;
  std::size_t next_ = 0;
  std::int64_t sends_ = 0;
};

}  // namespace

std::vector<RankLabels> label(const plan::Plan& plan) {
  std::deque<RankLabeller> ranks;
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank)
    ranks.emplace_back(plan, Rank(rank));
  Post post;
  bool forced = false;
  while (!std::ranges::all_of(ranks, &RankLabeller::is_done)) {
    bool advanced = false;
    for (RankLabeller& rank : ranks) {
      const bool moved = rank.advance(post, forced);
      // One receive that nobody answers is enough to let others go on.
      if (moved) forced = false;
      advanced = advanced || moved;
    }
    forced = !advanced;
  }
  std::vector<RankLabels> labels;
  for (RankLabeller& rank : ranks) labels.push_back(rank.take());
  return labels;
}

}  // namespace shiplap::run
