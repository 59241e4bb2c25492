// What it costs to check a plan: a step in the shape of Llama 3 405B, up to 131,072 ranks; and how
// much the checker finds of what is wrong.
//
//   bench_check [--json]
//
// Prints a table, or one JSON object. Times are of check() alone, not of reading the plan; medians,
// with the least and the most beside them.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "llama_plan.h"
#include "shiplap/base/json.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"

namespace shiplap {
namespace {

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};
Spread spread(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

void put(Json& json, const std::string& name, const Spread& s) {
  json.set(name, s.median);
  json.set(name + "_least", s.least);
  json.set(name + "_most", s.most);
}

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1024.0 * 1024.0);
}

// ---- time

enum class Symmetry { off, on };

struct Timed {
  double seconds = 0;
  std::int64_t operations = 0;  // that were looked at
};

// A benchmark of a checker that does not get to the end would say nothing.
Timed timed_check(const plan::Plan& plan, Symmetry symmetry) {
  check::Options options;
  options.symmetry = symmetry == Symmetry::on;
  const auto begin = std::chrono::steady_clock::now();
  const check::Report report = check::check(plan, options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (!report.sound()) {
    throw std::runtime_error("a false alarm:\n" + render(report.findings.front().diagnostic));
  }
  return {.seconds = took.count(), .operations = report.operations};
}

plan::Plan plan_for(int dp) { return plan::parse_text(llama_plan({.dp = dp}), "llama"); }

// Checks the plan a few times; once is enough of what takes long.
struct Runs {
  std::vector<double> seconds;
  std::int64_t operations = 0;
};
Runs runs_of(const plan::Plan& plan, Symmetry symmetry) {
  constexpr std::size_t kMost = 5;
  constexpr double kLong = 20;
  Runs runs;
  double total = 0;
  while (runs.seconds.size() < kMost && total < kLong) {
    const Timed run = timed_check(plan, symmetry);
    runs.seconds.push_back(run.seconds);
    runs.operations = run.operations;
    total += run.seconds;
  }
  return runs;
}

struct Series {
  std::string name;
  int dp = 1;
  Symmetry symmetry = Symmetry::on;
};
// Returns the median, and the operations that were looked at.
Timed measure(Json& json, const Series& series) {
  const Runs runs = runs_of(plan_for(series.dp), series.symmetry);
  put(json, series.name + "_s", spread(runs.seconds));
  json.set(series.name + "_runs", static_cast<std::int64_t>(runs.seconds.size()));
  json.set(series.name + "_operations", runs.operations);
  json.set(series.name + "_peak_gib", peak_gib());  // so far; the series grow
  return {.seconds = spread(runs.seconds).median, .operations = runs.operations};
}

// The slope of a straight line through the logarithms; nothing if there is none.
std::optional<double> exponent(const std::vector<Timed>& points) {
  double x_sum = 0;
  double y_sum = 0;
  for (const Timed& point : points) {
    if (point.operations <= 0 || point.seconds <= 0) return std::nullopt;
    x_sum += std::log(static_cast<double>(point.operations));
    y_sum += std::log(point.seconds);
  }
  const auto count = static_cast<double>(points.size());
  double above = 0;
  double below = 0;
  for (const Timed& point : points) {
    const double x = std::log(static_cast<double>(point.operations)) - x_sum / count;
    above += x * (std::log(point.seconds) - y_sum / count);
    below += x * x;
  }
  if (below <= 0) return std::nullopt;
  return above / below;
}

void measure_time(Json& json) {
  measure(json, {.name = "check_8192_symmetry", .dp = 64});
  measure(json, {.name = "check_131072", .dp = 1024});
  std::vector<Timed> points;
  for (int dp = 1; dp < 64; dp *= 2) {
    const Runs runs = runs_of(plan_for(dp), Symmetry::off);
    points.push_back({.seconds = spread(runs.seconds).median, .operations = runs.operations});
  }
  points.push_back(measure(json, {.name = "check_8192", .dp = 64, .symmetry = Symmetry::off}));
  const std::optional<double> slope = exponent(points);
  json.set("growth_exponent", slope ? Json(*slope) : Json());
}

// ---- what is found. Each group waits for a library under tests/check; until it is linked, null.

struct Mutations {
  std::int64_t total = 0;
  std::int64_t caught = 0;
  std::int64_t right_diagnosis = 0;
  std::int64_t false_alarms = 0;  // on what is sound
};
// TODO(check): link tests/check/mutations.
std::optional<Mutations> count_mutations() { return std::nullopt; }

// Plans on which the checker and the exhaustive oracle disagree.
// TODO(check): link tests/check/oracle.
std::optional<std::int64_t> count_oracle_disagreements() { return std::nullopt; }

// Plans of museum/ of which the checker names what they show.
// TODO(check): read museum/.
std::optional<std::int64_t> count_museum_found() { return std::nullopt; }

void measure_findings(Json& json) {
  const std::optional<Mutations> mutations = count_mutations();
  const auto set = [&](const char* name, std::optional<std::int64_t> value) {
    json.set(name, value ? Json(*value) : Json());
  };
  const auto of = [&](std::int64_t Mutations::* field) {
    return mutations ? std::optional((*mutations).*field) : std::nullopt;
  };
  set("mutations_total", of(&Mutations::total));
  set("mutations_caught", of(&Mutations::caught));
  set("mutations_right_diagnosis", of(&Mutations::right_diagnosis));
  set("false_alarms", of(&Mutations::false_alarms));
  set("oracle_disagreements", count_oracle_disagreements());
  set("museum_found", count_museum_found());
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) try {
  const bool json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: bench_check [--json]\n");
    return 2;
  }
  shiplap::Json result = shiplap::Json::object({{"schema", "shiplap.bench.check/1"}});
  shiplap::measure_time(result);
  shiplap::measure_findings(result);
  if (json) {
    std::printf("%s\n", shiplap::to_text(result).c_str());
  } else {
    for (const auto& [key, value] : result.as_object()) {
      std::printf("%-34s %s\n", key.c_str(), shiplap::to_text(value).c_str());
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
