#include "value_change.h"

#include <algorithm>

namespace shiplap::oracle {
namespace {

class ValueChange {
 public:
  ValueChange(ValuePlan& plan, Random& random) : plan_(plan), random_(random) {}

  void make() {
    rank_ = below(plan_.ranks.size());
    ValueRank& rank = plan_.ranks[rank_];
    if (rank.steps.empty() || (random_.chance(0.15) && !rank.facts.empty())) {
      if (!rank.facts.empty()) change(rank.facts[below(rank.facts.size())]);
      return;
    }
    const std::size_t k = below(rank.steps.size());
    if (rank.steps[k].action == "compute") return change_compute(k);
    if (rank.steps[k].action == "copy") return change_copy(k);
    change_communication(k);
  }

 private:
  std::size_t below(std::size_t end) {
    return static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(end)));
  }

  // ---- statements

  // A wrong value in one statement; or in all statements about these rows, so that they agree.
  void change(Assertion& assertion) {
    const BufferRows place = assertion.place;
    const StatedValue before = assertion.value;
    change(assertion.value);
    const StatedValue after = assertion.value;
    if (!random_.chance(0.4)) return;
    const auto follow = [&](Assertion& other) {
      if (other.place == place && other.value == before) other.value = after;
    };
    ValueRank& rank = plan_.ranks[rank_];
    for (Assertion& fact : rank.facts) follow(fact);
    for (Step& step : rank.steps) {
      for (Assertion& other : step.assertions) follow(other);
    }
  }

  void change(StatedValue& value) {
    const Declaration& tensor = plan_.declaration(value.tensor);
    switch (below(7)) {
      case 0:
        if (tensor.instances > 1) value.instance = (value.instance + 1) % tensor.instances;
        return;
      case 1:
        if (tensor.kind == "Weight" || tensor.kind == "OptState") value.is_new = !value.is_new;
        return;
      case 2:
        value.denominator = value.denominator == 1 ? 2 : 1;
        if (value.zero) value.denominator = 1;
        return;
      case 3:
        if (!value.part.empty()) change_part(value.part[below(value.part.size())], tensor.part);
        return;
      default:
        change_sum(value, tensor);
    }
  }

  // Another coordinate in the place of one: the number of cells stays.
  void change_part(Extent& extent, const std::vector<std::pair<std::string, int>>& sizes) {
    if (extent.at.empty()) return;
    const int size = size_of(extent.dimension, sizes);
    extent.at[below(extent.at.size())] = static_cast<int>(below(static_cast<std::size_t>(size)));
  }

  void change_sum(StatedValue& value, const Declaration& tensor) {
    if (tensor.sum.empty()) return;
    if (value.zero || random_.chance(0.1)) {
      value.zero = !value.zero;
      value.denominator = 1;
      value.sum.clear();
      return;
    }
    const auto& [name, size] = tensor.sum[below(tensor.sum.size())];
    auto found = std::ranges::find(value.sum, name, &Extent::dimension);
    if (found == value.sum.end()) {
      value.sum.push_back({name, {}});
      found = value.sum.end() - 1;
      for (int k = 0; k < size; ++k) found->at.push_back(k);
    }
    if (random_.chance(0.08)) return found->at.push_back(found->at.front());
    const int k = static_cast<int>(below(static_cast<std::size_t>(size)));
    const auto at = std::ranges::find(found->at, k);
    if (at == found->at.end()) {
      found->at.push_back(k);
    } else if (found->at.size() > 1) {
      found->at.erase(at);
    }
  }

  static int size_of(const std::string& name,
                     const std::vector<std::pair<std::string, int>>& sizes) {
    const auto found = std::ranges::find(sizes, name, &std::pair<std::string, int>::first);
    return found == sizes.end() ? 1 : found->second;
  }

  // ---- operations

  void change_compute(std::size_t k) {
    std::vector<Step>& steps = plan_.ranks[rank_].steps;
    Step& step = steps[k];
    if (step.assertions.empty()) return;
    const std::size_t n = below(step.assertions.size());
    switch (below(10)) {
      case 0:
        step.kernel = random_.pick(std::vector<std::string>{"other", "add", "cast", "scale", "zero",
                                                            "forward", "backward", "bakward",
                                                            "update", "loss"});
        return;
      case 1:
        step.assertions.erase(step.assertions.begin() + static_cast<std::ptrdiff_t>(n));
        return;
      case 2:
        if (step.assertions[n].kind == "reads") step.assertions.push_back(step.assertions[n]);
        return;
      case 3:
        if (step.assertions[n].kind != "reads") {
          step.assertions[n].kind = step.assertions[n].kind == "adds" ? "writes" : "adds";
        }
        return;
      case 4:
        change_order(steps, k);
        return;
      default:
        change(step.assertions[n]);
    }
  }

  void change_order(std::vector<Step>& steps, std::size_t k) {
    const bool next = k + 1 < steps.size() && steps[k + 1].action == "compute";
    if (next && random_.chance()) return std::swap(steps[k], steps[k + 1]);
    if (random_.chance()) {
      steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(k), Step(steps[k]));
    } else {
      steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }

  void change_copy(std::size_t k) {
    std::vector<Step>& steps = plan_.ranks[rank_].steps;
    Step& step = steps[k];
    switch (below(5)) {
      case 0:
        step.add = !step.add;
        return;
      case 1:
        return change_order(steps, k);
      case 2:  // one of the rows is named twice
        if (step.to.listed.size() > 1) step.to.listed.back() = step.to.listed.front();
        return;
      case 3:
        if (step.from.listed.size() > 1) step.from.listed.back() = step.from.listed.front();
        return;
      default:
        if (step.to.listed.empty() && step.to.count == step.from.count && step.to.count > 1) {
          for (int row = 0; row < step.to.count; ++row) {
            step.to.listed.push_back(step.to.begin + (row == 1 ? 0 : row));
          }
        }
    }
  }

  // On all ranks, where they do the same: else it would only not match.
  void change_communication(std::size_t k) {
    const std::string action = plan_.ranks[rank_].steps[k].action;
    const std::string words = plan_.ranks[rank_].steps[k].words;
    const std::size_t what = below(3);
    if (action == "send" || action == "receive" || action == "batch") {
      if (action == "receive") plan_.ranks[rank_].steps[k].add ^= true;
      return;
    }
    for (ValueRank& rank : plan_.ranks) {
      std::size_t seen = 0;
      for (std::size_t n = 0; n < rank.steps.size(); ++n) {
        Step& step = rank.steps[n];
        if (step.action != action || step.words != words || seen++ > 0) continue;
        if (what == 0 && action != "exchange") {
          const bool reduces = action.find("reduce") != std::string::npos;
          if (reduces) step.denominator = step.denominator == 1 ? 2 : 1;
        } else if (what == 1) {
          rank.steps.insert(rank.steps.begin() + static_cast<std::ptrdiff_t>(n), Step(step));
          break;
        } else {
          rank.steps.erase(rank.steps.begin() + static_cast<std::ptrdiff_t>(n));
          break;
        }
      }
    }
  }

  ValuePlan& plan_;
  Random& random_;
  std::size_t rank_ = 0;
};

}  // namespace

void change_value(ValuePlan& plan, Random& random) { ValueChange(plan, random).make(); }

}  // namespace shiplap::oracle
