// The plan as a witness: it decides where ranks only contradict each other.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/postmortem/call_site_internal.h"
#include "shiplap/postmortem/plan_alignment_internal.h"
#include "shiplap/postmortem/plan_witness_internal.h"

namespace shiplap::postmortem {
namespace {

constexpr std::size_t kMaxPlanned = 16;  // ranks
constexpr double kFits = 0.5;            // the plan is of this job

std::string planned_text(const PlannedPosition& position) {
  const auto text = [](const PlannedCall& call) {
    std::string words = fmt::format("operation {}, {}", call.operation, call.what);
    if (!call.frame.file.empty()) words += " at " + to_string(call.frame);
    return words;
  };
  using Relation = PlannedPosition::Relation;
  const std::string rank = fmt::format("rank {}", position.rank);
  if (!position.next.exists()) return rank + " is at the end of the plan";
  switch (position.relation) {
    case Relation::skips:
      return fmt::format("{} skips {}", rank, text(position.next));
    case Relation::adds:
      return fmt::format("{} makes a call that is not in the plan before {}", rank,
                         text(position.next));
    case Relation::changes:
      return fmt::format("{} should make another call there: {}", rank, text(position.next));
    case Relation::follows:
      break;
  }
  if (position.call.exists())
    return fmt::format("{} is where it should be: {}", rank, text(position.next));
  if (!position.done.exists()) return fmt::format("{} should be in {}", rank, text(position.next));
  return fmt::format("{} should be in {}, and left operation {}", rank, text(position.next),
                     position.done.operation);
}

bool is_divergence(const Suspect& suspect) {
  return suspect.fault == FaultClass::divergence ||
         suspect.fault == FaultClass::order_across_groups;
}

class PlanWitness {
 public:
  PlanWitness(const plan::Plan& plan, const Progress& progress)
      : plan_(plan), progress_(progress) {}

  // Where ranks contradict each other, the one that leaves the plan is wrong; if all do, the plan
  // lacks something.
  void weigh(std::vector<Suspect>& suspects) {
    bool any_follows = false;
    std::vector<Suspect*> leaving;
    for (Suspect& suspect : suspects) {
      const PlannedPosition* position = planned(suspect.ranks.front());
      const PlannedPosition* other =
          suspect.expected.exists() ? planned(suspect.expected.rank) : nullptr;
      if (position != nullptr || other != nullptr) {
        suspect.by_plan = planned_text(position != nullptr ? *position : *other);
      }
      if (position == nullptr) continue;
      const bool follows = position->relation == PlannedPosition::Relation::follows;
      any_follows |= follows;
      if (!is_divergence(suspect)) continue;
      any_follows |= other != nullptr && other->relation == PlannedPosition::Relation::follows;
      if (follows) {
        suspect.confidence *= 0.5;
      } else {
        leaving.push_back(&suspect);
      }
    }
    for (Suspect* suspect : leaving) {
      if (any_follows) suspect->confidence = std::max(suspect->confidence, 0.95);
    }
  }

  void add_positions(Postmortem& result) const {
    for (const auto& [rank, position] : positions_) {
      if (position) result.planned.push_back(*position);
    }
    const auto fits = [](const PlannedPosition& position) { return position.fit >= kFits; };
    if (!result.planned.empty() && std::ranges::none_of(result.planned, fits)) {
      result.notes.emplace_back(
          "the plan is not of this job: less than half of the calls are in it");
    }
  }

 private:
  // Returns null if it is unknown, or if the plan is not of this job.
  const PlannedPosition* planned(std::int32_t rank) {
    auto found = positions_.find(rank);
    if (found == positions_.end() && positions_.size() < kMaxPlanned) {
      found = positions_.emplace(rank, planned_position(plan_, progress_, rank)).first;
    }
    if (found == positions_.end()) return nullptr;
    const std::optional<PlannedPosition>& position = found->second;
    return position && position->fit >= kFits ? &*position : nullptr;
  }

  const plan::Plan& plan_;
  const Progress& progress_;
  std::map<std::int32_t, std::optional<PlannedPosition>> positions_;  // by rank
};

}  // namespace

void ask_plan(const plan::Plan& plan, const Progress& progress, Postmortem& result) {
  PlanWitness witness(plan, progress);
  witness.weigh(result.suspects);
  witness.add_positions(result);
}

}  // namespace shiplap::postmortem
