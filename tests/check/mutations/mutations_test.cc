// Every planted bug is found, named rightly, and located: SHIPLAP_MUTATION_PLANS=40 for the full
// run, SHIPLAP_MUTATION=17 for one of them.
#include "mutations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>

#include "families.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "shiplap/plan/unroll.h"

namespace shiplap::mutations {
namespace {

std::int64_t setting(const char* name, std::int64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::atoll(text);
}

// Bugs are planted in small plans: what is found in them is found in large ones.
bool is_small(const plan::Plan& unrolled) {
  std::size_t statements = 0;
  for (const plan::Program& program : unrolled.programs) statements += program.body.size();
  return statements <= 500;
}

struct Score {
  int applied = 0;
  int caught = 0;
  int right = 0;
  std::vector<std::size_t> findings;
  std::map<std::string, int> wrong;  // answers, in short
};

std::string in_short(const check::Finding& finding) {
  return finding.diagnostic.code + (finding.only_rendezvous ? " (rendezvous only)" : "");
}

std::string told(const Expected& expected) {
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
      << "\n# expected: " << told(mutant.expected) << "\n# answer: " << answer << "\n"
      << plan::to_text(mutant.plan);
}

void judge(const Mutation& mutation, const Sound& sound, const Mutant& mutant, Score& score) {
  ++score.applied;
  std::string answer;
  try {
    const check::Report report = check::check(mutant.plan, {});
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

std::size_t median(std::vector<std::size_t> numbers) {
  if (numbers.empty()) return 0;
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

void print(const Mutation& mutation, const Score& score) {
  std::cout << std::setw(3) << mutation.number << "  " << std::left << std::setw(46)
            << mutation.name << std::right << std::setw(4) << score.applied << std::setw(4)
            << score.caught << std::setw(4) << score.right << std::setw(4)
            << median(score.findings);
  for (const auto& [answer, count] : score.wrong) std::cout << "  " << count << "x " << answer;
  std::cout << "\n";
}

TEST(Mutations, EveryOneIsCaughtNamedAndLocated) {
  const std::int64_t plans = setting("SHIPLAP_MUTATION_PLANS", 6);
  const std::int64_t only = setting("SHIPLAP_MUTATION", 0);
  const std::vector<Sound> sound = sound_plans();
  std::vector<plan::Plan> unrolled;
  std::vector<std::size_t> all_findings;
  std::cout << "  #  mutation, on how many plans, caught, right, median findings, wrong answers\n";
  for (const Mutation& mutation : all_mutations()) {
    if (only != 0 && mutation.number != only) continue;
    Score score;
    for (std::size_t k = 0; k < sound.size() && score.applied < plans; ++k) {
      if (unrolled.size() <= k) unrolled.push_back(plan::unrolled(sound[k].plan));
      if (!is_small(unrolled[k])) continue;
      const auto mutant = mutated(mutation, unrolled[k], 1000 * k + 1);
      if (mutant) judge(mutation, sound[k], *mutant, score);
    }
    print(mutation, score);
    all_findings.insert(all_findings.end(), score.findings.begin(), score.findings.end());
    EXPECT_EQ(score.applied, plans) << mutation.name;
    EXPECT_EQ(score.caught, score.applied) << mutation.name;
    EXPECT_EQ(score.right, score.applied) << mutation.name;
    EXPECT_LE(median(score.findings), 1U) << mutation.name;
  }
  std::cout << "median findings of all: " << median(all_findings) << "\n";
}

// The text is what people see of it, and other tools read.
TEST(Mutations, AreStillPlans) {
  const std::vector<Sound> sound = sound_plans();
  for (std::size_t k = 0; k < sound.size(); k += 29) {
    const plan::Plan unrolled = plan::unrolled(sound[k].plan);
    if (!is_small(unrolled)) continue;
    for (const Mutation& mutation : all_mutations()) {
      const auto mutant = mutated(mutation, unrolled, k);
      if (!mutant) continue;
      EXPECT_NE(mutant->plan, unrolled) << mutation.name << ", " << sound[k].name;
      EXPECT_FALSE(mutant->expected.places.empty()) << mutation.name << ", " << sound[k].name;
      EXPECT_EQ(plan::parse_text(plan::to_text(mutant->plan), "mutant.plan"), mutant->plan)
          << mutation.name << ", " << sound[k].name;
      for (std::int32_t rank = 0; rank < unrolled.mesh.ranks(); ++rank) {
        EXPECT_NO_THROW((void)plan::expand(mutant->plan, Rank(rank)))
            << mutation.name << ", " << sound[k].name << ", rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace shiplap::mutations
