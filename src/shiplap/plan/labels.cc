// Labels of events: which layer and which samples an operation works on.
//
// Computations declare what they write; every other operation moves rows. So the contents of each
// buffer are tracked as sorted, disjoint segments, in program order, one rank at a time (the
// reaching definitions of straight-line code). A write replaces the segments that it overlaps. The
// label of a transfer is that of the segments it reads: all their samples, and the layer of the
// latest write.
//
// Rows that were received from another rank have an unknown label while their rank is scanned. Such
// a segment records the receiving operation, and events that read it are deferred; resolve_labels()
// follows them across ranks once matching is complete. Labels are for display: a race or a label
// that depends on itself gives an unknown label, not an error.
#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/labels_internal.h"
#include "shiplap/plan/rank_template_internal.h"

namespace shiplap::plan {
namespace {

bool is_written(const flat::Access& access) { return access.kind != Access::Kind::reads; }

// Sets of samples that are not one run are listed one by one, up to this number.
constexpr std::int64_t kMaxListedSamples = 1 << 20;

// Samples are numbered with 31 bits; larger numbers are not shown.
bool can_be_shown(const flat::Run& run) {
  return run.count > 0 &&
         run.begin + (run.count - 1) * run.stride <= std::numeric_limits<std::int32_t>::max();
}

}  // namespace

Labeller::Labeller(const Plan& plan) {
  constexpr std::array<std::pair<std::string_view, TensorKind>, 4> kKinds{
      {{"Weight", TensorKind::weight},
       {"WeightGrad", TensorKind::weight_grad},
       {"Activation", TensorKind::activation},
       {"ActivationGrad", TensorKind::activation_grad}}};
  for (const Tensor& tensor : plan.tensors) {
    TensorLabel& entry = tensors_.emplace_back();
    entry.indexed = tensor.instances > 0;
    for (const auto& [name, kind] : kKinds) {
      if (tensor.kind == name) entry.kind = kind;
    }
    for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
      if (tensor.dimension(DimensionId(k)).name != "sample") continue;
      entry.sample = static_cast<std::int32_t>(k);
    }
  }
}

void Labeller::start(const RankProgram& program) {
  program_ = &program;
  writes_ = 0;
  buffers_.resize(std::max(buffers_.size(), program.buffers.size()));
  for (Segments& segments : buffers_) segments.clear();
  for (const flat::Fact& fact : program.given) put(fact.region, {.value = &fact.value});
}

void Labeller::annotate(const RankProgram& program, LinkedProgram& linked,
                        DeferredLabels& deferred) {
  if (!program.plan->declares_values) return;
  start(program);
  for (std::size_t k = 0; k < program.operations.size(); ++k) {
    throw_if_cancelled();
    const flat::Operation& op = program.operations[k];
    const OperationId id{program.rank.value, static_cast<std::int32_t>(k)};
    const Step& step = linked.step(id);
    if (step.event < 0) continue;
    if (step.action == ActionKind::compute) {
      compute(op, linked.event(id));
    } else {
      move(op, id, linked, deferred);
    }
  }
}

// ---- computations

void Labeller::compute(const flat::Operation& op, trace::Event& event) {
  event.layer = layer_of(op, event.kind);
  switch (event.kind) {
    case trace::EventKind::forward:
    case trace::EventKind::backward:
    case trace::EventKind::backward_input:
    case trace::EventKind::backward_weight:
    case trace::EventKind::loss:
      event.samples = samples_of(op, Access::Kind::reads);
      break;
    default:
      if (std::get<Compute>(op.source->action).kernel == "read_batch") {
        event.samples = samples_of(op, Access::Kind::writes);
      }
  }
  for (const flat::Access& access : program_->accesses_of(op)) {
    if (is_written(access)) put(access.region, {.value = &access.value});
  }
}

std::int32_t Labeller::layer_of(const flat::Operation& op, trace::EventKind kind) const {
  if (kind == trace::EventKind::loss) return -1;
  const auto accesses = program_->accesses_of(op);
  auto found = accesses.end();
  if (kind != trace::EventKind::compute) {
    const TensorKind wanted =
        kind == trace::EventKind::backward_weight ? TensorKind::weight_grad : TensorKind::weight;
    found = std::ranges::find_if(accesses, [&](const flat::Access& access) {
      return tensors_[access.value.tensor.index()].kind == wanted;
    });
  }
  if (found == accesses.end()) found = std::ranges::find_if(accesses, is_written);
  if (found == accesses.end()) return -1;
  const flat::Value& value = found->value;
  return tensors_[value.tensor.index()].indexed ? static_cast<std::int32_t>(value.instance) : -1;
}

IndexSet Labeller::samples_of(const flat::Operation& op, Access::Kind kind) const {
  IndexSet all;
  for (const flat::Access& access : program_->accesses_of(op)) {
    const bool read = access.kind == Access::Kind::reads;
    if (read == (kind == Access::Kind::reads)) all = all.united(samples_of(access.value));
  }
  return all;
}

// The samples of activations and their gradients; other tensors are shown without samples.
IndexSet Labeller::samples_of(const flat::Value& value) const {
  const TensorLabel& tensor = tensors_[value.tensor.index()];
  const bool shown =
      tensor.kind == TensorKind::activation || tensor.kind == TensorKind::activation_grad;
  if (!shown || tensor.sample < 0) return {};
  std::vector<flat::Run> runs;
  std::int64_t total = 0;
  for (const flat::Run& run : program_->runs_of(value)) {
    if (run.dimension.value != tensor.sample || !can_be_shown(run)) continue;
    runs.push_back(run);
    total += run.count;
  }
  if (runs.size() == 1) return IndexSet::range(runs[0].begin, runs[0].count, runs[0].stride);
  if (total > kMaxListedSamples) return {};
  std::vector<std::int32_t> indices;
  indices.reserve(total);
  for (const flat::Run& run : runs) {
    for (std::int64_t k = 0; k < run.count; ++k) {
      indices.push_back(static_cast<std::int32_t>(run.begin + k * run.stride));
    }
  }
  return IndexSet(std::move(indices));
}

// The gradient of the output of layer l is labelled as layer l.
LabelSource Labeller::label_of(const flat::Value& value) const {
  const TensorLabel& tensor = tensors_[value.tensor.index()];
  LabelSource source{.samples = samples_of(value)};
  if (tensor.indexed) source.layer = static_cast<std::int32_t>(value.instance);
  if (tensor.indexed && tensor.kind == TensorKind::activation_grad) --source.layer;
  return source;
}

// ---- transfers

void Labeller::move(const flat::Operation& op, OperationId id, LinkedProgram& linked,
                    DeferredLabels& deferred) {
  if (const auto* collective = std::get_if<Collective>(&op.source->action)) {
    const bool receives = collective->kind == CollectiveKind::broadcast &&
                          &whole_buffer(*program_, op, *collective) == &op.to;
    if (receives) {
      deferred.deferred.push_back({.id = id});
      return put(op.to, {.operation = id.operation});
    }
    set_label(op.from, id, linked, deferred);
    return arrive(op.from, op.to);
  }
  if (std::holds_alternative<Receive>(op.source->action)) {
    deferred.deferred.push_back({.id = id});
    return put(op.to, {.operation = id.operation});
  }
  set_label(op.from, id, linked, deferred);
  if (std::holds_alternative<Copy>(op.source->action)) return copy(op.from, op.to);
  if (std::holds_alternative<Exchange>(op.source->action)) arrive(op.from, op.to);
}

void Labeller::set_label(const flat::Region& region, OperationId id, LinkedProgram& linked,
                         DeferredLabels& deferred) {
  find(region, found_);
  if (found_.empty()) return;
  const auto latest = std::ranges::max_element(found_, {}, &Segment::when);
  std::iter_swap(found_.begin(), latest);
  trace::Event& event = linked.event(id);
  if (std::ranges::none_of(found_, [](const Segment& s) { return s.value == nullptr; })) {
    event.layer = label_of(*found_.front().value).layer;
    for (const Segment& segment : found_) {
      event.samples = event.samples.united(samples_of(*segment.value));
    }
    return;
  }
  deferred.deferred.push_back({.id = id,
                               .first = static_cast<std::int32_t>(deferred.sources.size()),
                               .count = static_cast<std::int32_t>(found_.size())});
  for (const Segment& segment : found_) {
    deferred.sources.push_back(segment.value != nullptr
                                   ? label_of(*segment.value)
                                   : LabelSource{.operation = segment.operation});
  }
}

// Row by row if the two regions have equal length. Otherwise (gathers, scatters, reductions of
// parts of one tensor) the output is labelled like the input of this rank.
void Labeller::arrive(const flat::Region& from, const flat::Region& to) {
  if (!from.buffer.exists()) return;
  if (from.count == to.count) return copy(from, to);
  find(from, found_);
  Segment what{.begin = to.begin, .end = to.begin + to.count};
  if (!found_.empty()) {
    const Segment& latest = *std::ranges::max_element(found_, {}, &Segment::when);
    what.value = latest.value;
    what.operation = latest.operation;
  }
  put(to, what);
}

void Labeller::copy(const flat::Region& from, const flat::Region& to) {
  const bool in_place =
      from.buffer == to.buffer && from.begin == to.begin && from.listed < 0 && to.listed < 0;
  if (in_place || from.count != to.count) return;
  if (from.listed < 0 && to.listed < 0) {
    find(from, found_);
    const Segments moved = found_;
    put(to, {});
    for (Segment segment : moved) {
      segment.begin += to.begin - from.begin;
      segment.end += to.begin - from.begin;
      segment.when = ++writes_;
      put(to.buffer, segment);
    }
    return;
  }
  const auto row = [&](const flat::Region& region, std::int64_t k) {
    if (region.listed < 0) return region.begin + k;
    return program_->listed_rows[region.listed + k];
  };
  Segments moved;
  for (std::int64_t k = 0; k < from.count; ++k) {
    find({.buffer = from.buffer, .begin = row(from, k), .count = 1}, found_);
    Segment what = found_.empty() ? Segment{} : found_.front();
    what.begin = row(to, k);
    what.end = what.begin + 1;
    moved.push_back(what);
  }
  for (Segment& what : moved) {
    what.when = ++writes_;
    put(to.buffer, what);
  }
}

// ---- rows

void Labeller::find(const flat::Region& region, Segments& found) const {
  found.clear();
  if (!region.buffer.exists() || region.count == 0) return;
  const Segments& segments = buffers_[region.buffer.index()];
  const auto look = [&](std::int64_t begin, std::int64_t end) {
    auto it = std::ranges::upper_bound(segments, begin, {}, &Segment::end);
    for (; it != segments.end() && it->begin < end; ++it) {
      found.push_back(*it);
      found.back().begin = std::max(it->begin, begin);
      found.back().end = std::min(it->end, end);
    }
  };
  if (region.listed < 0) return look(region.begin, region.begin + region.count);
  for (std::int64_t k = 0; k < region.count; ++k) {
    const std::int64_t row = program_->listed_rows[region.listed + k];
    look(row, row + 1);
  }
}

void Labeller::put(const flat::Region& region, Segment what) {
  what.begin = region.begin;
  what.end = region.begin + region.count;
  what.when = ++writes_;
  put(region.buffer, what);
}

// Replaces the contents of its rows; an empty segment only clears them.
void Labeller::put(BufferId buffer, const Segment& what) {
  if (what.begin == what.end) return;
  Segments& segments = buffers_[buffer.index()];
  const auto first = std::ranges::upper_bound(segments, what.begin, {}, &Segment::end);
  const auto last = std::ranges::lower_bound(segments, what.end, {}, &Segment::begin);
  rest_.clear();
  if (first < last && first->begin < what.begin) {
    rest_.push_back(*first);
    rest_.back().end = what.begin;
  }
  if (what.value != nullptr || what.operation >= 0) rest_.push_back(what);
  if (first < last && (last - 1)->end > what.end) {
    rest_.push_back(*(last - 1));
    rest_.back().begin = what.end;
  }
  // Fast path: most writes replace one segment by one.
  const std::ptrdiff_t gone = last - first;
  const auto same = std::min<std::ptrdiff_t>(gone, std::ssize(rest_));
  std::copy_n(rest_.begin(), same, first);
  if (gone > same) {
    segments.erase(first + same, last);
  } else {
    segments.insert(first + same, rest_.begin() + same, rest_.end());
  }
}

}  // namespace shiplap::plan
