#include "check_found.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "check/mutations/families.h"
#include "check/mutations/mutations.h"
#include "check/mutations/score.h"
#include "check/oracle/comparison.h"
#include "check/oracle/small_plans.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"

namespace shiplap {
namespace {

void count_mutations(Json& json, const std::vector<mutations::Sound>& sound, std::int64_t plans) {
  mutations::Score all;
  mutations::Scoring scoring(sound);
  for (const mutations::Mutation& mutation : mutations::all_mutations()) {
    const mutations::Score score = scoring.score(mutation, plans);
    all.applied += score.applied;
    all.caught += score.caught;
    all.right += score.right;
    all.findings.insert(all.findings.end(), score.findings.begin(), score.findings.end());
  }
  json.set("mutation_kinds", std::ssize(mutations::all_mutations()));
  json.set("mutations_total", all.applied);
  json.set("mutations_caught", all.caught);
  json.set("mutations_right_diagnosis", all.right);
  json.set("findings_median", static_cast<std::int64_t>(mutations::median(all.findings)));
}

void count_false_alarms(Json& json, const std::vector<mutations::Sound>& sound) {
  const mutations::Alarms written = mutations::alarms_as_written(sound);
  const mutations::Alarms rewritten = mutations::alarms_as_rewritten(sound);
  json.set("sound_plans", std::ssize(sound));
  json.set("sound_plans_checked", written.plans);  // as written, and unrolled
  json.set("benign_rewrites", rewritten.plans);
  json.set("false_alarms", std::ssize(written.false_alarms) + std::ssize(rewritten.false_alarms));
}

void count_disagreements(Json& json, const FoundSizes& sizes) {
  oracle::Comparison comparison;
  for (std::int64_t k = 0; k < sizes.oracle_plans; ++k) {
    const std::uint64_t seed = sizes.oracle_seed + static_cast<std::uint64_t>(k);
    comparison.compare("seed " + std::to_string(seed), oracle::random_small(seed));
  }
  json.set("oracle_plans", comparison.plans());
  json.set("oracle_first_seed", static_cast<std::int64_t>(sizes.oracle_seed));
  json.set("oracle_disagreements", comparison.disagreements());
}

std::string text_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

const Json& member(const Json& object, const char* key) {
  const Json* found = object.find(key);
  if (found == nullptr) throw std::runtime_error(std::string("museum.json lacks ") + key);
  return *found;
}

check::Report report_on(const std::string& path) {
  return check::check(plan::parse_plan(text_of(path), path), {});
}

// Whether the first finding has one of the codes and the location, and the fixed plan is sound.
bool is_found(const Json& exhibit, const std::string& museum) {
  const std::string path = museum + "/" + member(exhibit, "name").as_string();
  const check::Report report = report_on(path + ".plan");
  if (report.sound() || !report_on(path + ".fixed.plan").findings.empty()) return false;
  const check::Finding& first = report.findings.front();
  const Json::Array& codes = member(exhibit, "codes").as_array();
  return std::ranges::find(codes, Json(first.diagnostic.code)) != codes.end() &&
         first.diagnostic.severity == Severity::error &&
         first.place.rank == member(exhibit, "rank").as_integer() &&
         first.place.operation == member(exhibit, "operation").as_integer() &&
         first.only_rendezvous == member(exhibit, "passes_eager").as_bool();
}

void count_museum(Json& json, const std::string& museum) {
  const std::string path = museum + "/museum.json";
  const Json list = parse_json(text_of(path), path);
  const Json::Array& exhibits = member(list, "exhibits").as_array();
  json.set("museum_total", std::ssize(exhibits));
  json.set("museum_found", std::ranges::count_if(exhibits, [&](const Json& exhibit) {
             return is_found(exhibit, museum);
           }));
}

}  // namespace

void measure_findings(Json& json, const FoundSizes& sizes, const std::string& museum) {
  const std::vector<mutations::Sound> sound = mutations::sound_plans();
  count_mutations(json, sound, sizes.mutation_plans);
  count_false_alarms(json, sound);
  count_disagreements(json, sizes);
  count_museum(json, museum);
}

}  // namespace shiplap
