// Labels of events whose data came from other ranks.
#include <utility>
#include <vector>

#include "shiplap/plan/labels_internal.h"

namespace shiplap::plan {
namespace {

// Depth-first search over deferred labels, without recursion: data may have passed through every
// rank of a ring.
class LabelResolver {
 public:
  LabelResolver(const DeferredLabels& deferred, LinkedProgram& linked)
      : deferred_(deferred),
        linked_(linked),
        label_of_(linked.matches.size(), -1),
        state_(deferred.deferred.size()) {
    for (std::size_t k = 0; k < deferred.deferred.size(); ++k) {
      label_of_[linked.index(deferred.deferred[k].id)] = static_cast<std::int32_t>(k);
    }
  }

  void resolve_labels() {
    for (std::size_t k = 0; k < deferred_.deferred.size(); ++k) resolve_from(k);
  }

 private:
  enum class LabelState : std::uint8_t { unknown, visiting, resolved };

  void resolve_from(std::size_t label) {
    push(label);
    while (!stack_.empty()) {
      const std::size_t top = stack_.back();
      if (push_next(top)) continue;
      stack_.pop_back();
      fill_in(deferred_.deferred[top]);
      state_[top] = LabelState::resolved;
    }
  }

  void push(std::size_t label) {
    if (state_[label] != LabelState::unknown) return;
    state_[label] = LabelState::visiting;
    stack_.push_back(label);
  }

  // Pushes one unvisited label that `label` depends on, so that the stack is a path. A label that
  // is being visited and not resolved depends on itself; it stays unknown.
  bool push_next(std::size_t label) {
    const std::size_t before = stack_.size();
    each_origin(deferred_.deferred[label], [&](OperationId origin) {
      const std::int32_t next = label_of_[linked_.index(origin)];
      if (next >= 0 && stack_.size() == before) push(static_cast<std::size_t>(next));
    });
    return stack_.size() > before;
  }

  template <class Visit>
  void each_origin(const DeferredLabel& label, const Visit& visit) const {
    if (label.count == 0) {
      const OperationId end = other_end(label.id);
      if (end.exists()) visit(end);
      return;
    }
    for (std::int32_t k = 0; k < label.count; ++k) {
      const LabelSource& source = deferred_.sources[label.first + k];
      if (source.operation >= 0) visit(OperationId{label.id.rank, source.operation});
    }
  }

  [[nodiscard]] OperationId other_end(OperationId id) const {
    const Step& step = linked_.step(id);
    if (step.action == ActionKind::receive) return linked_.other_end(id);
    const GroupCalls& group = linked_.group(id);
    const std::int32_t slot = group.slot_of(group.ranks[step.detail].value);
    return slot < 0 ? OperationId{} : group.call(slot, linked_.match(id).n);
  }

  void fill_in(const DeferredLabel& label) {
    trace::Event& event = linked_.event(label.id);
    if (label.count == 0) {
      const OperationId end = other_end(label.id);
      if (!end.exists()) return;
      event.layer = linked_.event(end).layer;
      event.samples = linked_.event(end).samples;
      return;
    }
    for (std::int32_t k = 0; k < label.count; ++k) {
      const LabelSource& source = deferred_.sources[label.first + k];
      const bool received = source.operation >= 0;
      const trace::Event* from =
          received ? &linked_.event({label.id.rank, source.operation}) : nullptr;
      if (k == 0) event.layer = received ? from->layer : source.layer;
      event.samples = event.samples.united(received ? from->samples : source.samples);
    }
  }

  const DeferredLabels& deferred_;
  LinkedProgram& linked_;
  std::vector<std::int32_t> label_of_;  // by operation
  std::vector<LabelState> state_;
  std::vector<std::size_t> stack_;
};

}  // namespace

void resolve_labels(const DeferredLabels& deferred, LinkedProgram& linked) {
  if (!deferred.deferred.empty()) LabelResolver(deferred, linked).resolve_labels();
}

}  // namespace shiplap::plan
