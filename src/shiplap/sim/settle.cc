// What events show of data that came from other ranks.
#include <utility>
#include <vector>

#include "shiplap/sim/contents_internal.h"

namespace shiplap::sim {
namespace {

// Follows debts by depth, without recursion: data may have gone through every rank of a ring.
class Settling {
 public:
  Settling(const Debts& debts, Job& job)
      : debts_(debts), job_(job), debt_of_(job.links.size(), -1), state_(debts.debts.size()) {
    for (std::size_t k = 0; k < debts.debts.size(); ++k) {
      debt_of_[job.index(debts.debts[k].place)] = static_cast<std::int32_t>(k);
    }
  }

  void settle() {
    for (std::size_t k = 0; k < debts_.debts.size(); ++k) settle_from(k);
  }

 private:
  enum class State : std::uint8_t { unknown, asked, settled };

  void settle_from(std::size_t debt) {
    ask(debt);
    while (!stack_.empty()) {
      const std::size_t top = stack_.back();
      if (ask_next(top)) continue;
      stack_.pop_back();
      fill_in(debts_.debts[top]);
      state_[top] = State::settled;
    }
  }

  void ask(std::size_t debt) {
    if (state_[debt] != State::unknown) return;
    state_[debt] = State::asked;
    stack_.push_back(debt);
  }

  // Puts one thing on the stack that a debt depends on and that nobody has asked for yet, so that
  // the stack is a path. What is asked for and not settled depends on itself: it stays unknown.
  bool ask_next(std::size_t debt) {
    const std::size_t before = stack_.size();
    each_origin(debts_.debts[debt], [&](Place origin) {
      const std::int32_t next = debt_of_[job_.index(origin)];
      if (next >= 0 && stack_.size() == before) ask(static_cast<std::size_t>(next));
    });
    return stack_.size() > before;
  }

  template <class Act>
  void each_origin(const Debt& debt, const Act& act) const {
    if (debt.count == 0) {
      const Place end = other_end(debt.place);
      if (end.exists()) act(end);
      return;
    }
    for (std::int32_t k = 0; k < debt.count; ++k) {
      const Source& source = debts_.sources[debt.first + k];
      if (source.operation >= 0) act(Place{debt.place.rank, source.operation});
    }
  }

  [[nodiscard]] Place other_end(Place place) const {
    const bool message = job_.step(place).act == Act::receive;
    return message ? job_.link(place) : job_.meeting(place).root;
  }

  void fill_in(const Debt& debt) {
    trace::Event& event = job_.event(debt.place);
    if (debt.count == 0) {
      const Place end = other_end(debt.place);
      if (!end.exists()) return;
      event.layer = job_.event(end).layer;
      event.samples = job_.event(end).samples;
      return;
    }
    for (std::int32_t k = 0; k < debt.count; ++k) {
      const Source& source = debts_.sources[debt.first + k];
      const bool brought = source.operation >= 0;
      const trace::Event* from =
          brought ? &job_.event({debt.place.rank, source.operation}) : nullptr;
      if (k == 0) event.layer = brought ? from->layer : source.layer;
      event.samples = event.samples.united(brought ? from->samples : source.samples);
    }
  }

  const Debts& debts_;
  Job& job_;
  std::vector<std::int32_t> debt_of_;  // by operation
  std::vector<State> state_;
  std::vector<std::size_t> stack_;
};

}  // namespace

void settle(const Debts& debts, Job& job) {
  if (!debts.debts.empty()) Settling(debts, job).settle();
}

}  // namespace shiplap::sim
