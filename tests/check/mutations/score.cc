#include "score.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>

#include "benign.h"
#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::mutations {
namespace {

// Of the three libraries, the one that asks least beyond the plan: bugs and rewritings are about
// plans, not about how a library launches them.
constexpr check::Rules kByThemselves = check::Rules::gloo;

// Findings about NCCL on a plan that is sound otherwise are no false alarm.
bool is_about_a_library(const std::string& code) {
  return code == "D719" || code == "D723" || code == "D724" || code == "D725";
}

std::size_t statements_of(const plan::Plan& unrolled) {
  std::size_t statements = 0;
  for (const plan::Program& program : unrolled.programs) statements += program.body.size();
  return statements;
}

std::string in_short(const check::Finding& finding) {
  return finding.diagnostic.code + (finding.only_rendezvous ? " (rendezvous only)" : "");
}

std::string format_expected(const Expected& expected) {
  std::string text;
  for (const std::string& code : expected.codes) text += code + " ";
  text += "at";
  for (std::size_t k = 0; k < std::min<std::size_t>(expected.places.size(), 12); ++k) {
    text += " " + std::to_string(expected.places[k].rank) + "#" +
            std::to_string(expected.places[k].operation);
  }
  return text;
}

// One example of each wrong answer, for people.
void keep(const Mutation& mutation, const Sound& sound, const Mutant& mutant,
          const std::string& answer) {
  std::filesystem::create_directories("/tmp/mutations");
  std::ofstream out("/tmp/mutations/" + std::to_string(mutation.number) + ".plan");
  out << "# " << mutation.number << ": " << mutation.name << "\n# from " << sound.name
      << "\n# expected: " << format_expected(mutant.expected) << "\n# answer: " << answer << "\n"
      << plan::to_text(mutant.plan);
}

void judge(const Mutation& mutation, const Sound& sound, const Mutant& mutant, Score& score) {
  ++score.applied;
  std::string answer;
  try {
    const check::Report report = check::check(mutant.plan, {.rules = kByThemselves});
    score.findings.push_back(report.findings.size());
    if (!report.sound()) ++score.caught;
    if (!report.sound() && is_expected(report.findings.front(), mutant.expected)) {
      ++score.right;
      return;
    }
    if (report.findings.empty()) {
      answer = "silent";
    } else {
      const check::Finding& first = report.findings.front();
      const auto& codes = mutant.expected.codes;
      const bool code = std::ranges::find(codes, first.diagnostic.code) != codes.end();
      answer = in_short(first) + (code ? " elsewhere" : "");
    }
    if (score.wrong[answer]++ > 0) return;
    if (!report.findings.empty()) {
      const check::Finding& first = report.findings.front();
      answer += " at " + std::to_string(first.place.rank) + "#" +
                std::to_string(first.place.operation) + " " + first.diagnostic.what;
    }
  } catch (const InputError& error) {
    answer = "refused " + error.diagnostics().front().code;
    if (score.wrong[answer]++ > 0) return;
    answer += " " + error.diagnostics().front().what;
  } catch (const std::exception& error) {
    answer = std::string("exception ") + error.what();
    if (score.wrong[answer]++ > 0) return;
  }
  keep(mutation, sound, mutant, answer);
}

// Errors and exceptions; empty if it is called sound.
std::string objections(const plan::Plan& plan) {
  try {
    std::string text;
    for (const check::Finding& finding : check::check(plan, {}).findings) {
      if (is_about_a_library(finding.diagnostic.code)) continue;
      if (finding.diagnostic.severity == Severity::error) text += render(finding.diagnostic);
    }
    return text;
  } catch (const std::exception& error) {
    return error.what();
  }
}

void listen(const plan::Plan& plan, const std::string& name, Alarms& alarms) {
  const std::string said = objections(plan);
  if (!said.empty()) alarms.false_alarms.push_back(name + ": " + said);
}

}  // namespace

bool is_small(const plan::Plan& unrolled) { return statements_of(unrolled) <= 500; }

Score Scoring::score(const Mutation& mutation, std::int64_t plans) {
  Score score;
  for (std::size_t k = 0; k < sound_.size() && score.applied < plans; ++k) {
    if (unrolled_.size() <= k) unrolled_.push_back(plan::unrolled(sound_[k].plan));
    if (!is_small(unrolled_[k])) continue;
    const auto mutant = mutated(mutation, unrolled_[k], 1000 * k + 1);
    if (mutant) judge(mutation, sound_[k], *mutant, score);
  }
  return score;
}

std::size_t median(std::vector<std::size_t> numbers) {
  if (numbers.empty()) return 0;
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

Alarms alarms_as_written(std::span<const Sound> sound) {
  Alarms alarms;
  for (const Sound& one : sound) {
    alarms.plans += 2;
    listen(one.plan, one.name, alarms);
    listen(plan::unrolled(one.plan), one.name + ", unrolled", alarms);
  }
  return alarms;
}

Alarms alarms_as_rewritten(std::span<const Sound> sound) {
  constexpr std::size_t kMaxStatements = 1000;
  Alarms alarms;
  for (std::size_t k = 0; k < sound.size(); ++k) {
    const plan::Plan unrolled = plan::unrolled(sound[k].plan);
    if (statements_of(unrolled) > kMaxStatements) continue;
    for (const Rewrite& rewrite : all_rewrites()) {
      const auto plan = rewrite.apply(unrolled, k);
      if (!plan) continue;
      ++alarms.plans;
      ++alarms.rewrites[rewrite.name];
      const std::string name = rewrite.name + ", " + sound[k].name;
      if (*plan == unrolled) alarms.false_alarms.push_back(name + ": nothing was rewritten");
      listen(*plan, name, alarms);
    }
  }
  return alarms;
}

}  // namespace shiplap::mutations
