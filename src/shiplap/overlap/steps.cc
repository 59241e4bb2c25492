#include "shiplap/overlap/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/plan/expand.h"

namespace shiplap::overlap {
namespace {

using Kind = Step::Kind;

class Steps {
 public:
  Steps(const plan::Plan& plan, int rank)
      : rank_(rank),
        program_(plan::expand(plan, Rank(rank))),
        cut_(list(plan, "cut")),
        begins_(list(plan, "at")),
        is_staged_(std::ranges::find(plan.lists, "stage", &plan::List::name) != plan.lists.end()) {}

  std::vector<Step> all() {
    std::vector<Step> steps;
    for (const plan::flat::Operation& op : program_.operations) steps.push_back(step_of(op));
    return steps;
  }

 private:
  static std::vector<std::int64_t> list(const plan::Plan& plan, std::string_view name) {
    const auto found = std::ranges::find(plan.lists, name, &plan::List::name);
    ensure(found != plan.lists.end(), "the plan of an overlap has lists of chunk offsets");
    return found->values;
  }

  Step step_of(const plan::flat::Operation& op) {
    const plan::Action& action = op.source->action;
    Step step{.word = std::string(plan::keyword(action))};
    if (const auto* const compute = std::get_if<plan::Compute>(&action)) {
      const bool multiplies = compute->kernel == "gemm";
      step.kind = multiplies ? Kind::gemm : Kind::sum;
      step.word = multiplies ? "multiply" : compute->kernel;
      place(step, program_.accesses_of(op)[0].region);
    } else if (std::holds_alternative<plan::Send>(action)) {
      step.kind = Kind::send;
      place(step, op.from);
    } else if (std::holds_alternative<plan::Receive>(action)) {
      step.kind = Kind::receive;
      place(step, op.to);
    } else {
      step.kind = Kind::collective;
      place_collective(step, op);
    }
    return step;
  }

  // Stage i of a pipeline is chunk i of every rank.
  void place_collective(Step& step, const plan::flat::Operation& op) {
    const std::int64_t number = collectives_++;
    place(step, op.from);
    if (!is_staged_) return;
    step.owner = -1;
    step.chunk = -1;
    step.first_row = 0;
    step.rows = 0;
    step.name = fmt::format("*.{}", number);
  }

  // Returns the row of X and Y of a region: `got` holds the local rows once per other rank, `out`
  // and `total` once.
  [[nodiscard]] std::int64_t first_row(const plan::flat::Region& region) const {
    const std::string& buffer =
        program_.plan->programs[program_.program].buffers[region.buffer].name;
    const std::int64_t local = cut_[rank_ + 1] - cut_[rank_];
    if (buffer == "got") return cut_[rank_] + (local > 0 ? region.begin % local : 0);
    if (buffer == "out" || buffer == "total") return cut_[rank_] + region.begin;
    return region.begin;
  }

  void place(Step& step, const plan::flat::Region& region) const {
    step.first_row = first_row(region);
    step.rows = region.count;
    if (region.count == 0) return;
    // The last one that starts at or before the row: earlier ones with the same start are empty.
    const auto last_before = [&](const std::vector<std::int64_t>& begins) {
      return std::ranges::upper_bound(begins, step.first_row) - begins.begin() - 1;
    };
    const auto owner = last_before(cut_);
    if (step.first_row + step.rows > cut_[owner + 1]) return;
    step.owner = static_cast<int>(owner);
    step.name = std::to_string(owner);
    const auto chunk = last_before(begins_);
    const std::int64_t per_rank = (std::ssize(begins_) - 1) / (std::ssize(cut_) - 1);
    if (step.first_row + step.rows > begins_[chunk + 1]) return;
    step.chunk = chunk;
    if (per_rank > 1) step.name = fmt::format("{}.{}", owner, chunk - owner * per_rank);
  }

  int rank_;
  plan::RankProgram program_;
  std::vector<std::int64_t> cut_;     // row offsets of the ranks, and the end
  std::vector<std::int64_t> begins_;  // row offsets of the chunks, and the end
  bool is_staged_;
  std::int64_t collectives_ = 0;
};

}  // namespace

std::vector<Step> steps_of(const plan::Plan& plan, int rank) { return Steps(plan, rank).all(); }

std::vector<TimedStep> timeline(const plan::Plan& plan, const trace::Trace& trace, int rank) {
  const std::vector<Step> steps = steps_of(plan, rank);
  std::vector<TimedStep> timed;
  for (const trace::Event& event : trace.ranks[rank].events) {
    if (event.duration <= Seconds{0}) continue;
    timed.push_back({.step = steps[event.operation],
                     .start = event.time,
                     .end = event.end(),
                     .peer = event.peer,
                     .operation = event.operation,
                     .bytes = event.bytes});
  }
  std::ranges::sort(timed, {}, [](const TimedStep& one) {
    return std::tuple(one.start, one.step.kind, one.operation);
  });
  return timed;
}

namespace {

Seconds end_of_rank(const trace::RankTrace& rank) {
  Seconds end;
  for (const trace::Event& event : rank.events) end = std::max(end, event.end());
  return end;
}

}  // namespace

int last_rank(const trace::Trace& trace) {
  return static_cast<int>(std::ranges::max_element(trace.ranks, {}, end_of_rank) -
                          trace.ranks.begin());
}

Seconds end_of(const trace::Trace& trace) {
  return trace.ranks.empty() ? Seconds{} : end_of_rank(trace.ranks[last_rank(trace)]);
}

}  // namespace shiplap::overlap
