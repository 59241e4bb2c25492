// Benchmark of overlap: how much of the communication of a GEMM is hidden.
//
//   bench_overlap [--json] [--part overlap|choice|kernels]... [--rounds N] [--megabits 200]
//                 [--choice-megabits 1000]
//
// Overlap: starts bench_overlap_worker on two hosts with a slow link, which needs root. Rows of X
// are gathered, for several values of N. Each measurement is between two of the GEMM alone, and
// each overlap after the communication alone; it is discarded if those GEMM times differ or that
// communication was slow. The others are binned by C / G into about a half, one and two, whatever
// the speed of the machine was at the time.
//
// Choice: what overlap::choose() selects for thirty shapes from a calibration, compared with other
// methods (choice.h). Kernels: the main results of bench_quantize and bench_grouped. Without
// --part, all.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choice.h"
#include "figures.h"
#include "launch.h"
#include "shiplap/base/json.h"

namespace shiplap {
namespace {

constexpr const char* kWorker = "bench_overlap_worker";
constexpr std::int64_t kRows = 1024;
constexpr std::int64_t kDepth = 2048;
constexpr std::int64_t kRanks = 2;
// Numbers of chunks; `p`: polled, `t`: tapered (overlap_worker.cc).
constexpr std::array kVariants{"1", "4", "4p", "4tp", "8p", "8tp"};
// Values of N: with one of them the GEMM takes about as long as the communication, on any machine.
constexpr std::array kColumns{4096, 6144, 9216, 12288, 20480, 28672};
// The maximum ratio of two times of the GEMM, and of C / G to its bin.
constexpr double kSame = 1.2;
// The maximum ratio of C to its usual value: the link has one speed.
constexpr double kSteady = 1.1;

constexpr std::array<std::string_view, 3> kParts{"overlap", "choice", "kernels"};

struct Options {
  bool json = false;
  std::string rounds = "17";
  double megabits = 200;
  std::vector<std::string> parts;  // none: all of them
  double choice_megabits = 1000;
  [[nodiscard]] std::string rate() const { return rate_of(megabits); }
  [[nodiscard]] static std::string rate_of(double megabits) {
    return std::to_string(static_cast<std::int64_t>(megabits)) + "mbit";
  }
};

double number(const Json& json, const std::string& key) { return json.find(key)->as_number(); }

// One measurement of an overlap, with the times measured next to it.
struct Sample {
  double g = 0;
  double c = 0;
  double serial = 0;  // 0: discarded
  double t = 0;
};

// By ratio of C to G (0: half, 1: one, 2: two), then by variant.
struct Pool {
  std::array<std::map<std::string, std::vector<Sample>>, 3> samples;
  std::map<int, std::vector<double>> chunked_over_whole;
  std::int64_t taken = 0;  // all measurements
  std::int64_t used = 0;   // overlap measurements that were not discarded
};

bool are_alike(double a, double b) { return std::max(a, b) < kSame * std::min(a, b); }

std::optional<std::size_t> bin_of(double ratio) {
  for (const auto& [middle, bin] : {std::pair(0.5, 0U), {1.0, 1U}, {2.0, 2U}}) {
    if (are_alike(ratio, middle)) return bin;
  }
  return std::nullopt;
}

// Throws if the communication was faster than the throttled link allows.
void check_throttle(const Options& options, double took_ms) {
  constexpr double kBurst = 65536;
  constexpr std::int64_t kSent = kRows / kRanks * kDepth * 2;
  const double least_ms = (static_cast<double>(kSent) - kBurst) * 8 / (options.megabits * 1e3);
  if (took_ms < least_ms)
    throw std::runtime_error("invalid measurement: the link was not throttled");
}

void add(const Options& options, const Json& result, Pool& pool) {
  std::vector<double> all_c;
  for (const Json& each : result.find("rounds")->as_array()) {
    if (each.find("what")->as_string() == "C") all_c.push_back(number(each, "ms"));
  }
  const double usual = spread(all_c).median;
  double c = 0;
  double serial_over_g = 0;  // without the communication, in this round; 0: discarded
  double round = -1;
  for (const Json& each : result.find("rounds")->as_array()) {
    const std::string& what = each.find("what")->as_string();
    const double took = number(each, "ms");
    const double before = number(each, "before");
    const double after = number(each, "after");
    const double g = (before + after) / 2;
    if (number(each, "round") != round) {
      round = number(each, "round");
      serial_over_g = 0;
    }
    ++pool.taken;
    if (what == "C") {
      c = took;
      check_throttle(options, took);
    }
    if (!are_alike(before, after)) continue;
    if (what == "serial") serial_over_g = c > kSteady * usual ? 0 : (took - c) / g;
    if (what.starts_with("chunked_")) {
      pool.chunked_over_whole[std::stoi(what.substr(8))].push_back(took / g);
    }
    const std::optional<std::size_t> bin = bin_of(c / g);
    if (!what.starts_with("T_") || !bin) continue;
    if (c > kSteady * usual) continue;
    ++pool.used;
    pool.samples[*bin][what.substr(2)].push_back(
        {.g = g, .c = c, .serial = serial_over_g == 0 ? 0 : c + serial_over_g * g, .t = took});
  }
}

template <class Of>
std::vector<double> each(const std::vector<Sample>& samples, const Of& of) {
  std::vector<double> numbers;
  for (const Sample& sample : samples) numbers.push_back(of(sample));
  return numbers;
}

Json judged(const std::vector<Sample>& samples) {
  Json json = Json::object({{"samples", std::ssize(samples)}});
  const auto set = [&](const char* name, const auto& of) {
    put(json, name, spread(each(samples, of)));
  };
  set("G_ms", [](const Sample& s) { return s.g; });
  set("C_ms", [](const Sample& s) { return s.c; });
  set("T_ms", [](const Sample& s) { return s.t; });
  set("max_over_T", [](const Sample& s) { return std::max(s.g, s.c) / s.t; });
  set("hidden", [](const Sample& s) { return (s.g + s.c - s.t) / std::min(s.g, s.c); });
  // With one chunk for each rank: finer ones can be faster than that.
  set("ring_bound_over_T",
      [](const Sample& s) { return (s.g / 2 + std::max(s.g / 2, s.c)) / s.t; });
  set("C_over_G", [](const Sample& s) { return s.c / s.g; });
  // C followed by the GEMM, scaled to the current speed of the machine.
  std::vector<Sample> with_serial = samples;
  std::erase_if(with_serial, [](const Sample& s) { return s.serial == 0; });
  if (with_serial.empty()) with_serial = {{.serial = 0, .t = 0}};
  put(json, "serial_ms", spread(each(with_serial, [](const Sample& s) { return s.serial; })));
  put(json, "T_over_serial", spread(each(with_serial, [](const Sample& s) {
        return s.serial == 0 ? 0 : s.t / s.serial;
      })));
  return json;
}

constexpr std::array kRatios{"T_over_serial", "max_over_T", "ring_bound_over_T", "hidden"};

// All variants of one ratio, and the best one: the largest max(G, C) / T among those with enough
// samples. That is a selection among noisy values, so the others are printed as well.
Json shape_of(const std::map<std::string, std::vector<Sample>>& ways) {
  constexpr std::size_t kOften = 5;
  Json shape = Json::object({});
  std::string best;
  double largest = 0;
  Json all = Json::object({});
  for (const auto& [way, samples] : ways) {
    const Json judgement = judged(samples);
    all.set(way, judgement);
    if (samples.size() < kOften || number(judgement, "max_over_T") <= largest) continue;
    best = way;
    largest = number(judgement, "max_over_T");
  }
  shape.set("best", best);
  shape.set("ways", all);
  return shape;
}

Pool measured(const Options& options) {
  Pool pool;
  const std::string launch = "-n 2 --on hosts --hosts 2 --rate " + options.rate();
  std::string ways;
  for (const char* const way : kVariants) ways += std::string(" ") + way;
  for (const int columns : kColumns) {
    const Json result = worker(launch, kWorker,
                               "ag " + std::to_string(kRows) + " " + std::to_string(columns) + " " +
                                   std::to_string(kDepth) + " " + options.rounds + ways);
    if (result.is_null()) throw std::runtime_error("the worker failed");
    add(options, result, pool);
  }
  return pool;
}

void print(const std::string& ratio, const Json& shape) {
  for (const char* const way : kVariants) {
    const Json* const of = shape.find("ways")->find(way);
    if (of == nullptr) continue;
    std::printf(
        "C/G %s  %4s  n %3.0f  G %5.1f ms  C %5.1f ms  serial %5.1f ms  T %5.1f ms  max/T %.3f  "
        "T/serial %.3f  hidden %.2f\n",
        ratio.c_str(), way, number(*of, "samples"), number(*of, "G_ms"), number(*of, "C_ms"),
        number(*of, "serial_ms"), number(*of, "T_ms"), number(*of, "max_over_T"),
        number(*of, "T_over_serial"), number(*of, "hidden"));
  }
}

// Runs another benchmark for a few rounds and adds some of its keys.
void add_kernels(const std::string& program, const std::string& arguments,
                 const std::vector<std::string>& keys, Json& result) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const Json found =
      parse_json(output_of((folder / program).string() + " --json " + arguments), program);
  for (const std::string& key : keys) {
    for (const char* const of : {"", "_min", "_max"}) {
      if (const Json* const value = found.find(key + of)) result.set(key + of, *value);
    }
  }
}

void run_kernels(Json& result) {
  add_kernels("bench_quantize", "--rounds 7", {"quantize_over_memcpy"}, result);
  add_kernels("bench_grouped", "--case bf16_2048x1024x1024 --rounds 15",
              {"grouped_over_loop", "grouped_over_loop_fresh_sizes"}, result);
}

void run_choice(const Options& options, Json& result) {
  const Json found = measured_choices(
      {.rate = Options::rate_of(options.choice_megabits), .prints = !options.json});
  for (const auto& [key, value] : found.as_object()) result.set(key, value);
}

void run_overlap(const Options& options, Json& result) {
  const Pool pool = measured(options);
  result.set("rate", options.rate());
  result.set("taken", pool.taken);
  result.set("used", pool.used);
  const std::array<std::string, 3> names{"half", "equal", "twice"};
  for (std::size_t bin = 0; bin < names.size(); ++bin) {
    const Json shape = shape_of(pool.samples[bin]);
    if (!options.json) print(names[bin], shape);
    const std::string best = shape.find("best")->as_string();
    if (names[bin] == "equal" && !best.empty()) {
      const Json& of = *shape.find("ways")->find(best);
      for (const char* const key : kRatios) {
        result.set(key + std::string("_at_C_equal_G"), *of.find(key));
      }
      result.set("way_at_C_equal_G", best);
    }
    result.set("C_" + names[bin] + "_G", shape);
  }
  for (const auto& [chunks, ratios] : pool.chunked_over_whole) {
    put(result, "chunked_over_whole_gemm" + (chunks == 4 ? "" : "_" + std::to_string(chunks)),
        spread(ratios));
  }
}

int run(const Options& options) {
  Json result = Json::object({{"schema", "shiplap.bench.overlap/3"}});
  const auto is_asked = [&](std::string_view part) {
    return options.parts.empty() || std::ranges::find(options.parts, part) != options.parts.end();
  };
  if (is_asked("overlap")) run_overlap(options, result);
  if (is_asked("choice")) run_choice(options, result);
  if (is_asked("kernels")) run_kernels(result);
  if (options.json) {
    std::printf("%s\n", to_text(result).c_str());
    return 0;
  }
  for (const char* const key :
       {"worst_T_over_serial_auto", "choice_regret_worst", "choice_regret_median",
        "shapes_overlapped", "fp8_over_bf16_comm", "quantize_over_memcpy", "grouped_over_loop"}) {
    if (result.find(key) != nullptr) std::printf("%s %.3f\n", key, number(result, key));
  }
  return 0;
}

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  for (int k = 1; k < argc; ++k) {
    const std::string_view word = argv[k];
    if (word == "--json") {
      options.json = true;
    } else if (word == "--part" && k + 1 < argc) {
      options.parts.emplace_back(argv[++k]);
      if (std::ranges::find(kParts, options.parts.back()) == kParts.end()) return std::nullopt;
    } else if (word == "--choice-megabits" && k + 1 < argc) {
      options.choice_megabits = std::strtod(argv[++k], nullptr);
    } else if (word == "--rounds" && k + 1 < argc) {
      options.rounds = argv[++k];
    } else if (word == "--megabits" && k + 1 < argc) {
      options.megabits = std::strtod(argv[++k], nullptr);
    } else {
      return std::nullopt;
    }
  }
  return options;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  const auto options = shiplap::parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr,
                 "usage: bench_overlap [--json] [--part overlap|choice|kernels]... [--rounds N] "
                 "[--megabits 200] [--choice-megabits 1000]\n");
    return 2;
  }
  try {
    return shiplap::run(*options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_overlap: %s\n", error.what());
    return 1;
  }
}
