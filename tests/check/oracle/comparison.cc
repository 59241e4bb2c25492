#include "comparison.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "oracle.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"

namespace shiplap::oracle {
namespace {

const std::string kSound = "sound";
const std::string kMatching = "matching";
const std::string kOrder = "order";
const std::string kRace = "race";
const std::string kEither = "order or race";  // two findings about one rank: either comes first
const std::string kValues = "values";

std::string stage(const Verdict& verdict, check::Sends sends) {
  const bool waits =
      verdict.deadlock_eager || (sends == check::Sends::rendezvous && verdict.deadlock_rendezvous);
  if (!verdict.matched) return kMatching;
  if (waits) return kOrder;
  if (verdict.unordered && verdict.race) return kEither;
  if (verdict.unordered) return kOrder;
  if (verdict.race) return kRace;
  return verdict.values_wrong ? kValues : kSound;
}

bool same(const std::string& expected, const std::string& found) {
  return expected == found || (expected == kEither && (found == kOrder || found == kRace));
}

// That no value was looked at (D760) is no concern of the oracle's.
std::string stage_of(const std::string& code, bool followed_values) {
  if (code == "D760") return kSound;
  if (code == "D714" && followed_values) return kValues;  // seen by what was delivered
  if (code < "D720") return kMatching;
  if (code < "D730") return kOrder;
  return code == "D730" || code == "D731" ? kRace : kValues;
}

std::string stage(const check::Report& report) {
  const std::vector<std::string> order{kMatching, kOrder, kRace, kValues, kSound};
  std::size_t first = order.size() - 1;
  const bool followed = std::ranges::any_of(report.examined, [](const check::Examined& examined) {
    return examined.property == "statements" && examined.reached;
  });
  for (const check::Finding& finding : report.findings) {
    if (finding.diagnostic.severity != Severity::error) continue;
    const auto found = std::ranges::find(order, stage_of(finding.diagnostic.code, followed));
    first = std::min(first, static_cast<std::size_t>(found - order.begin()));
  }
  return order[first];
}

// Some rank that is no spare does nothing: check says so (D700) and no more.
bool is_idle(const plan::Plan& plan) {
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const plan::RankProgram program = plan::expand(plan, Rank(rank));
    if (program.program.exists() && program.operations.empty()) return true;
  }
  return false;
}

}  // namespace

void Comparison::look(const std::string& name, const std::string& text) {
  const plan::Plan plan = plan::parse_text(text, "small.plan");
  Verdict verdict = judge(plan);
  if (is_idle(plan)) verdict.matched = false;
  const std::string eager = stage(verdict, check::Sends::eager);
  const std::string rendezvous = stage(verdict, check::Sends::rendezvous);
  ++plans_;
  ++counts_[eager];
  ++counts_[rendezvous];
  const bool agree =
      agrees(name + ", eager", plan, {.sends = check::Sends::eager}, eager) &&
      agrees(name + ", rendezvous", plan, {.sends = check::Sends::rendezvous}, rendezvous) &&
      agrees(name + ", both", plan, {}, rendezvous) &&
      agrees(name + ", without symmetry", plan, {.symmetry = false}, rendezvous);
  if (!agree) ++disagreements_;
}

std::string Comparison::summary() const {
  std::string text = std::to_string(plans_) + " plans, each twice:";
  for (const auto& [what, count] : counts_) text += " " + std::to_string(count) + " " + what;
  return text + "; " + std::to_string(disagreements_) + " disagreements";
}

bool Comparison::agrees(const std::string& name, const plan::Plan& plan,
                        const check::Options& options, const std::string& expected) {
  std::string found;
  std::string said;
  try {
    const check::Report report = check::check(plan, options);
    found = stage(report);
    for (const check::Finding& finding : report.findings) said += render(finding.diagnostic);
  } catch (const std::exception& error) {
    found = std::string("nothing but ") + error.what();
  }
  if (same(expected, found)) return true;
  constexpr std::size_t kMost = 3;
  if (examples_.size() < kMost) {
    examples_.push_back(name + ": the oracle says " + expected + ", check says " + found + "\n" +
                        said + plan::to_text(plan));
  }
  return false;
}

}  // namespace shiplap::oracle
