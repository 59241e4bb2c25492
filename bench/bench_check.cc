// Benchmark of check: its time for a training step of the size of Llama 3 405B, up to 131,072
// ranks, and its detection rate.
//
//   bench_check [--json] [--only time|found] [--oracle-plans N] [--oracle-seed N]
//
// Prints a table, or one JSON object. Times are of check() only, without parsing the plan: median,
// minimum and maximum.
#include <malloc.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "check_found.h"
#include "figures.h"
#include "llama_plan.h"
#include "shiplap/base/json.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"

namespace shiplap {
namespace {

// Returns freed memory to the system and resets the peak.
void start_over() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}

// Since start_over().
double peak_gib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / (1024.0 * 1024.0);
  }
  return 0;
}

// ---- time

enum class Symmetry { off, on };

struct Timed {
  double seconds = 0;
  std::int64_t operations = 0;  // that were checked
};

// Throws if the plan is not sound: a check that stops early is not a benchmark.
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

// Checks the plan a few times, or once if that takes long.
struct Runs {
  std::vector<double> seconds;
  std::int64_t operations = 0;
};
Runs runs_of(const plan::Plan& plan, Symmetry symmetry) {
  constexpr std::size_t kMaxRuns = 5;
  constexpr double kLong = 20;
  Runs runs;
  double total = 0;
  while (runs.seconds.size() < kMaxRuns && total < kLong) {
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
// Returns the median time, and the number of checked operations.
Timed measure(Json& json, const Series& series) {
  start_over();
  const Runs runs = runs_of(plan_for(series.dp), series.symmetry);
  put(json, series.name + "_s", spread(runs.seconds));
  json.set(series.name + "_runs", static_cast<std::int64_t>(runs.seconds.size()));
  json.set(series.name + "_operations", runs.operations);
  json.set(series.name + "_peak_gib", peak_gib());
  return {.seconds = spread(runs.seconds).median, .operations = runs.operations};
}

// The slope of a linear fit to the logarithms; nullopt if it is undefined.
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
  std::vector<Timed> points{
      measure(json, {.name = "check_8192", .dp = 64, .symmetry = Symmetry::off})};
  measure(json, {.name = "check_8192_symmetry", .dp = 64});
  measure(json, {.name = "check_131072", .dp = 1024});
  for (int dp = 1; dp < 64; dp *= 2) {
    const Runs runs = runs_of(plan_for(dp), Symmetry::off);
    points.push_back({.seconds = spread(runs.seconds).median, .operations = runs.operations});
  }
  const std::optional<double> slope = exponent(points);
  json.set("growth_exponent", slope ? Json(*slope) : Json());
}

// ---- options

struct Options {
  bool json = false;
  bool time = true;
  bool found = true;
  FoundSizes sizes;
};

constexpr const char* kUsage =
    "usage: bench_check [--json] [--only time|found] [--oracle-plans N] [--oracle-seed N]";

Options parse_options(std::span<char*> arguments) {
  Options options;
  for (std::size_t k = 1; k < arguments.size(); ++k) {
    const std::string_view word = arguments[k];
    if (word == "--json") {
      options.json = true;
      continue;
    }
    const std::string value = k + 1 < arguments.size() ? arguments[k + 1] : "";
    const bool half = word == "--only" && (value == "time" || value == "found");
    const bool number = !value.empty() && value.find_first_not_of("0123456789") == value.npos;
    if (half) {
      options.time = value == "time";
      options.found = value == "found";
    } else if (word == "--oracle-plans" && number) {
      options.sizes.oracle_plans = std::stoll(value);
    } else if (word == "--oracle-seed" && number) {
      options.sizes.oracle_seed = std::stoull(value);
    } else {
      throw std::runtime_error(kUsage);
    }
    ++k;
  }
  return options;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) try {
  const shiplap::Options options =
      shiplap::parse_options(std::span(argv, static_cast<std::size_t>(argc)));
  shiplap::Json result = shiplap::Json::object({{"schema", "shiplap.bench.check/1"}});
  if (options.time) shiplap::measure_time(result);
  if (options.found) shiplap::measure_findings(result, options.sizes, SHIPLAP_MUSEUM);
  if (options.json) {
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
