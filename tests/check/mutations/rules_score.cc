#include "rules_score.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <filesystem>
#include <fstream>

#include "../oracle/oracle.h"
#include "../oracle/small_plans.h"
#include "score.h"
#include "shiplap/base/error.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::mutations {
namespace {

// "" if the plan is sound, otherwise the code of the first finding; a warning, or that a kernel is
// listed as assumed, counts if it is one of these.
struct Answer {
  std::string code;
  std::string said;
  bool has_meaning = true;
};

Answer answer(const plan::Plan& plan, bool symmetry, const std::vector<std::string>& codes) {
  try {
    const check::Report report = check::check(plan, {.symmetry = symmetry});
    if (!report.sound()) {
      const Diagnostic& first = report.findings.front().diagnostic;
      return {.code = first.code, .said = first.what};
    }
    std::vector<std::string> said;
    for (const Diagnostic& warning : report.advice) said.push_back(warning.code);
    for (const check::Assumed& some : report.assumed) said.push_back("assumed " + some.kernel);
    const auto found = std::ranges::find_first_of(said, codes);
    if (found != said.end()) return {.code = *found};
    return {};
  } catch (const InputError& error) {
    return {.code = error.diagnostics().front().code, .has_meaning = false};
  } catch (const std::exception& error) {
    return {.code = "exception", .said = error.what()};
  }
}

bool is_sound(const oracle::Verdict& verdict) {
  return verdict.matched && !verdict.deadlock_eager && !verdict.deadlock_rendezvous &&
         !verdict.race && !verdict.unordered && !verdict.values_wrong && !verdict.nccl_messages &&
         !verdict.nccl_calls && !verdict.nccl_deadlock;
}

std::string format_verdict(const oracle::Verdict& verdict) {
  std::string text;
  if (!verdict.matched) text += " mismatch";
  if (verdict.deadlock_eager || verdict.deadlock_rendezvous) text += " deadlock";
  if (verdict.nccl_messages || verdict.nccl_calls || verdict.nccl_deadlock) text += " on NCCL";
  if (verdict.race) text += " race";
  if (verdict.unordered) text += " unordered";
  if (verdict.values_wrong) text += " " + verdict.rule;
  return text;
}

std::string file_name(const RuleMutation& mutation, const std::string& answer) {
  std::string name = mutation.name + " " + answer;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return "/tmp/mutations/" + name + ".plan";
}

// One example of each, for people.
void keep_example(const RuleMutation& mutation, const Sound& sound, const RuleMutant& mutant,
                  const std::string& answer, const std::string& said) {
  std::filesystem::create_directories("/tmp/mutations");
  const std::string file = file_name(mutation, answer);
  if (std::filesystem::exists(file)) return;
  std::ofstream(file) << "# " << mutation.rule << ": " << mutation.name << "\n# from " << sound.name
                      << ": " << mutant.where << "\n# answer: " << answer << " " << said << "\n"
                      << plan::to_text(mutant.plan);
}

// Whether the edit changes no rank.
bool is_unchanged(const plan::Plan& mutant, const plan::Plan& unrolled) {
  return mutant.tensors.size() >= unrolled.tensors.size() &&
         std::ranges::equal(plan::unrolled(mutant).programs, unrolled.programs, {},
                            &plan::Program::body, &plan::Program::body) &&
         std::equal(unrolled.tensors.begin(), unrolled.tensors.end(), mutant.tensors.begin());
}

void judge_mutant(const RuleMutation& mutation, const Sound& sound, const plan::Plan& unrolled,
                  const RuleMutant& mutant, RuleScore& score) {
  const std::string name = sound.name + ": " + mutant.where;
  const Answer with = answer(mutant.plan, true, mutation.codes);
  const Answer without = answer(mutant.plan, false, mutation.codes);
  if (with.code != without.code) {
    score.asymmetric.push_back(name + ": " + with.code + " and, without symmetry, " + without.code);
    keep_example(mutation, sound, mutant, "asymmetric", with.code + "/" + without.code);
  }
  if (!with.has_meaning) return;
  // The adapters race with another stream: then it is not this rule alone that is broken.
  const auto expects = [&](const char* code) {
    return mutation.codes.empty() ||
           std::ranges::find(mutation.codes, code) != mutation.codes.end();
  };
  if ((with.code == "D730" || with.code == "D731") && !expects("D730")) return;
  if (with.code.empty() && is_unchanged(mutant.plan, unrolled)) return;
  if (with.code.empty()) {
    const oracle::Verdict verdict = oracle::judge(mutant.plan, {.operations = 0});
    if (is_sound(verdict)) {
      ++score.harmless;
      keep_example(mutation, sound, mutant, "harmless", "");
      return;
    }
    ++score.mutants;
    score.holes.push_back(name + ":" + format_verdict(verdict));
    keep_example(mutation, sound, mutant, "hole", format_verdict(verdict));
    return;
  }
  ++score.mutants;
  ++score.found;
  const auto& codes = mutation.codes;
  const bool named = codes.empty() || std::ranges::find(codes, with.code) != codes.end();
  if (named) ++score.named;
  ++(named ? score.codes : score.other_codes)[with.code];
  if (!named) keep_example(mutation, sound, mutant, with.code, with.said);
}

}  // namespace

RuleScore RuleScoring::score(const RuleMutation& mutation, const RuleSample& sample) {
  RuleScore score;
  std::int64_t plans = 0;
  for (std::size_t k = 0; k < sound_.size() && plans < sample.plans; ++k) {
    if (unrolled_.size() <= k) {
      unrolled_.push_back(plan::unrolled(sound_[k].plan));
      usable_.push_back(is_small(unrolled_[k]) && answer(unrolled_[k], true, {}).code.empty());
    }
    if (!usable_[k]) continue;
    const std::int64_t before = score.mutants;
    for (const Extent extent : mutation.extents) {
      const plan::Plan& plan = extent == Extent::one ? unrolled_[k] : sound_[k].plan;
      for (const RuleMutant& mutant : rule_mutants(mutation, plan, extent, sample.mutants, k)) {
        judge_mutant(mutation, sound_[k], unrolled_[k], mutant, score);
      }
    }
    if (score.mutants > before) ++plans;
  }
  return score;
}

std::vector<Sound> rule_plans(std::size_t most) {
  std::vector<Sound> all;
  const auto add_random = [&](const std::string& family, std::uint64_t seed,
                              const std::string& text) {
    Sound sound{.family = family, .name = family + " seed=" + std::to_string(seed)};
    sound.plan = plan::parse_text(text, sound.name);
    if (answer(sound.plan, true, {}).code.empty()) all.push_back(std::move(sound));
  };
  std::uint64_t seed = 0;
  for (Sound& sound : sound_plans()) {
    if (all.size() >= most) break;
    all.push_back(std::move(sound));
    if (++seed % 2 == 0) add_random("random values", seed, oracle::random_sound_values(seed));
    if (seed % 8 == 0) add_random("random meetings", seed, oracle::random_sound(seed));
  }
  return all;
}

}  // namespace shiplap::mutations
