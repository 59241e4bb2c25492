#include "comparison.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <vector>

#include "isolated.h"
#include "oracle.h"
#include "shiplap/base/error.h"
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
const std::string kRaceOrValues = "race or values";  // of single operations: either comes first

std::string stage(const Verdict& verdict, check::Sends sends) {
  const bool waits =
      verdict.deadlock_eager || (sends == check::Sends::rendezvous && verdict.deadlock_rendezvous);
  if (!verdict.matched) return kMatching;
  if (waits) return kOrder;
  if (verdict.unordered && verdict.race) return kEither;
  if (verdict.unordered) return kOrder;
  if (verdict.race && verdict.values_wrong) return kRaceOrValues;
  if (verdict.race) return kRace;
  return verdict.values_wrong ? kValues : kSound;
}

// What a library does not do is asked of plans that are sound by themselves.
std::string stage_on_nccl(const Verdict& verdict) {
  std::string by_itself = stage(verdict, check::Sends::rendezvous);
  if (by_itself != kSound) return by_itself;
  if (verdict.nccl_messages) return kMatching;
  return verdict.nccl_deadlock || verdict.nccl_calls ? kOrder : kSound;
}

bool same(const std::string& expected, const std::string& found) {
  return expected == found || (expected == kEither && (found == kOrder || found == kRace)) ||
         (expected == kRaceOrValues && (found == kRace || found == kValues));
}

// The oracle ignores D760 (no value was checked).
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
    return examined.property == "declared values" && examined.reached;
  });
  for (const check::Finding& finding : report.findings) {
    if (finding.diagnostic.severity != Severity::error) continue;
    const auto found = std::ranges::find(order, stage_of(finding.diagnostic.code, followed));
    first = std::min(first, static_cast<std::size_t>(found - order.begin()));
  }
  return order[first];
}

// Some rank that is no spare does nothing: check reports only D700.
bool is_idle(const plan::Plan& plan) {
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    const plan::RankProgram program = plan::expand(plan, Rank(rank));
    if (program.program.exists() && program.operations.empty()) return true;
  }
  return false;
}

// The verdict of check on a plan with some options.
struct Answer {
  std::string under;  // ", eager"
  std::string stage;
  std::string code;  // of the first error
  std::string said;
};

Answer answer_of(const plan::Plan& plan, const std::string& under, const check::Options& options) {
  Answer answer{.under = under};
  try {
    const check::Report report = check::check(plan, options);
    answer.stage = stage(report);
    for (const check::Finding& finding : report.findings) {
      if (answer.code.empty()) answer.code = finding.diagnostic.code;
      answer.said += render(finding.diagnostic);
    }
  } catch (const std::exception& error) {
    answer.stage = std::string("nothing but ") + error.what();
  }
  return answer;
}

std::vector<Answer> answers_of(const plan::Plan& plan) {
  constexpr check::Rules kGloo = check::Rules::gloo;  // no more than what the plan says itself
  return {answer_of(plan, ", eager", {.rules = kGloo, .sends = check::Sends::eager}),
          answer_of(plan, ", rendezvous", {.rules = kGloo, .sends = check::Sends::rendezvous}),
          answer_of(plan, ", both", {.rules = kGloo}),
          answer_of(plan, ", without symmetry", {.rules = kGloo, .symmetry = false}),
          answer_of(plan, ", any", {}),
          answer_of(plan, ", any, without symmetry", {.symmetry = false})};
}

// The same, from a child process.
std::vector<Answer> isolated_answers(const plan::Plan& plan) {
  constexpr char kEnd = 1;  // occurs in no message
  const std::string text = isolated([&] {
    std::string all;
    for (const Answer& answer : answers_of(plan)) {
      all += answer.under + kEnd + answer.stage + kEnd + answer.code + kEnd + answer.said + kEnd;
    }
    return all;
  });
  std::vector<Answer> answers;
  std::istringstream all(text);
  for (Answer answer;
       std::getline(all, answer.under, kEnd) && std::getline(all, answer.stage, kEnd) &&
       std::getline(all, answer.code, kEnd) && std::getline(all, answer.said, kEnd);) {
    answers.push_back(answer);
  }
  if (answers.empty()) answers.push_back({.under = ", both", .stage = text});
  return answers;
}

Verdict verdict_of(const plan::Plan& plan) {
  Verdict verdict = judge(plan);
  if (is_idle(plan)) verdict.matched = false;
  return verdict;
}

std::string expected(const Verdict& verdict, const Answer& answer) {
  if (answer.under.starts_with(", any")) return stage_on_nccl(verdict);
  const bool eager = answer.under == ", eager";
  return stage(verdict, eager ? check::Sends::eager : check::Sends::rendezvous);
}

// The first that differs.
const Answer* different(const Verdict& verdict, const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) {
    if (!same(expected(verdict, answer), answer.stage)) return &answer;
  }
  return nullptr;
}

std::string cause_of(const Verdict& verdict, const Answer& answer) {
  std::string cause = "check: " + answer.stage;
  if (!answer.code.empty()) cause += " (" + answer.code + ")";
  cause += "; oracle: " + expected(verdict, answer);
  if (!verdict.rule.empty()) cause += " (" + verdict.rule + ")";
  return cause;
}

}  // namespace

void Comparison::compare(const std::string& name, const std::string& text) {
  const plan::Plan plan = plan::parse_text(text, "small.plan");
  const Verdict verdict = verdict_of(plan);
  ++plans_;
  ++counts_[stage(verdict, check::Sends::eager)];
  ++counts_[stage(verdict, check::Sends::rendezvous)];
  ++counts_[stage_on_nccl(verdict)];
  for (const auto& [rule, count] : verdict.rules) {
    rules_[rule].held += count.held > 0 ? 1 : 0;
    rules_[rule].broken += count.broken;
  }
  const auto answers = process_ == Process::own ? isolated_answers(plan) : answers_of(plan);
  const Answer* other = different(verdict, answers);
  if (other == nullptr) return;
  ++disagreements_;
  Cause& cause = causes_[cause_of(verdict, *other)];
  constexpr std::int64_t kMaxPlans = 40;
  if (cause.count++ < kMaxPlans) cause.plans.emplace_back(name, text);
  constexpr std::size_t kMax = 3;
  if (examples_.size() < kMax) {
    examples_.push_back(name + other->under + ": " + cause_of(verdict, *other) + "\n" +
                        other->said + plan::to_text(plan));
  }
}

std::string Comparison::summary() const {
  std::string text = std::to_string(plans_) + " plans, each three times:";
  for (const auto& [what, count] : counts_) text += " " + std::to_string(count) + " " + what;
  return text + "; " + std::to_string(disagreements_) + " disagreements";
}

std::string disagreement(const std::string& text) {
  try {
    const plan::Plan plan = plan::parse_text(text, "small.plan");
    const Verdict verdict = verdict_of(plan);
    const std::vector<Answer> answers = isolated_answers(plan);
    const Answer* other = different(verdict, answers);
    return other == nullptr ? "" : cause_of(verdict, *other);
  } catch (const InputError&) {
    return "";
  }
}

}  // namespace shiplap::oracle
