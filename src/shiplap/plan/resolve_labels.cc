// What events show of data that came from other ranks.
#include <utility>
#include <vector>

#include "shiplap/plan/labels_internal.h"

namespace shiplap::plan {
namespace {

// Follows deferred by depth, without recursion: data may have gone through every rank of a ring.
class Resolution {
 public:
  Resolution(const DeferredLabels& deferred, LinkedProgram& linked)
      : deferred_(deferred),
        linked_(linked),
        label_of_(linked.matches.size(), -1),
        state_(deferred.deferred.size()) {
    for (std::size_t k = 0; k < deferred.deferred.size(); ++k) {
      label_of_[linked.index(deferred.deferred[k].place)] = static_cast<std::int32_t>(k);
    }
  }

  void resolve_labels() {
    for (std::size_t k = 0; k < deferred_.deferred.size(); ++k) resolve_from(k);
  }

 private:
  enum class State : std::uint8_t { unknown, asked, resolved };

  void resolve_from(std::size_t label) {
    ask(label);
    while (!stack_.empty()) {
      const std::size_t top = stack_.back();
      if (ask_next(top)) continue;
      stack_.pop_back();
      fill_in(deferred_.deferred[top]);
      state_[top] = State::resolved;
    }
  }

  void ask(std::size_t label) {
    if (state_[label] != State::unknown) return;
    state_[label] = State::asked;
    stack_.push_back(label);
  }

  // Puts one thing on the stack that a label depends on and that nobody has asked for yet, so that
  // the stack is a path. What is asked for and not settled depends on itself: it stays unknown.
  bool ask_next(std::size_t label) {
    const std::size_t before = stack_.size();
    each_origin(deferred_.deferred[label], [&](Place origin) {
      const std::int32_t next = label_of_[linked_.index(origin)];
      if (next >= 0 && stack_.size() == before) ask(static_cast<std::size_t>(next));
    });
    return stack_.size() > before;
  }

  template <class Act>
  void each_origin(const DeferredLabel& label, const Act& act) const {
    if (label.count == 0) {
      const Place end = other_end(label.place);
      if (end.exists()) act(end);
      return;
    }
    for (std::int32_t k = 0; k < label.count; ++k) {
      const Source& source = deferred_.sources[label.first + k];
      if (source.operation >= 0) act(Place{label.place.rank, source.operation});
    }
  }

  [[nodiscard]] Place other_end(Place place) const {
    const Step& step = linked_.step(place);
    if (step.act == Act::receive) return linked_.other_end(place);
    const GroupCalls& group = linked_.group(place);
    const std::int32_t slot = group.slot_of(group.ranks[step.detail].value);
    return slot < 0 ? Place{} : group.call(slot, linked_.match(place).n);
  }

  void fill_in(const DeferredLabel& label) {
    trace::Event& event = linked_.event(label.place);
    if (label.count == 0) {
      const Place end = other_end(label.place);
      if (!end.exists()) return;
      event.layer = linked_.event(end).layer;
      event.samples = linked_.event(end).samples;
      return;
    }
    for (std::int32_t k = 0; k < label.count; ++k) {
      const Source& source = deferred_.sources[label.first + k];
      const bool brought = source.operation >= 0;
      const trace::Event* from =
          brought ? &linked_.event({label.place.rank, source.operation}) : nullptr;
      if (k == 0) event.layer = brought ? from->layer : source.layer;
      event.samples = event.samples.united(brought ? from->samples : source.samples);
    }
  }

  const DeferredLabels& deferred_;
  LinkedProgram& linked_;
  std::vector<std::int32_t> label_of_;  // by operation
  std::vector<State> state_;
  std::vector<std::size_t> stack_;
};

}  // namespace

void resolve_labels(const DeferredLabels& deferred, LinkedProgram& linked) {
  if (!deferred.deferred.empty()) Resolution(deferred, linked).resolve_labels();
}

}  // namespace shiplap::plan
