// How much of the communication of a product is hidden.
//
//   bench_overlap [--json] [--rounds N] [--rate 200mbit]
//
// Starts bench_overlap_worker on two hosts with a slow link, which needs root. First it is found
// how fast this machine multiplies and how fast the link is; then the columns of W are chosen so
// that communication takes half, once and twice as long as the product. Rows of X are gathered.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch.h"
#include "shiplap/base/json.h"

namespace shiplap {
namespace {

constexpr const char* kWorker = "bench_overlap_worker";
constexpr std::int64_t kRows = 1024;
constexpr std::int64_t kDepth = 2048;
constexpr std::int64_t kTrialColumns = 8192;
constexpr std::int64_t kRanks = 2;
constexpr std::array kRatios{"T_over_serial", "max_over_T", "ring_bound_over_T", "hidden"};

struct Options {
  bool json = false;
  std::string rounds = "21";
  std::string rate = "200mbit";
};

double number(const Json& json, const std::string& key) { return json.find(key)->as_number(); }

Json measured(const Options& options, std::int64_t columns, const std::string& rounds,
              const std::string& chunks) {
  const std::string launch = "-n 2 --on hosts --hosts 2 --rate " + options.rate;
  Json result = worker(launch, kWorker,
                       "ag " + std::to_string(kRows) + " " + std::to_string(columns) + " " +
                           std::to_string(kDepth) + " " + rounds + " " + chunks);
  if (result.is_null()) throw std::runtime_error("the worker failed");
  return result;
}

// A link that is faster than it can be is none.
void demand_throttle(const Options& options, const Json& result) {
  constexpr double kBurst = 65536;
  const double megabits = std::stod(options.rate);
  constexpr std::int64_t kSent = kRows / kRanks * kDepth * 2;
  const auto bytes = static_cast<double>(kSent);
  const double least_ms = (bytes - kBurst) * 8 / (megabits * 1e3);
  if (number(result, "C_least_ms") < least_ms) {
    throw std::runtime_error("void: the link was not throttled");
  }
}

// The way with the largest max(G, C) / T, and its figures under names without it.
void judge(Json& result, const std::vector<std::string>& ways) {
  result.set("C_over_G", number(result, "C_ms") / number(result, "G_ms"));
  const std::string best = *std::ranges::max_element(
      ways, {}, [&](const std::string& way) { return number(result, "max_over_T_" + way); });
  result.set("best", best);
  result.set("T_ms", number(result, "T_" + best + "_ms"));
  for (const char* const key : kRatios) result.set(key, number(result, key + ("_" + best)));
  result.set("chunked_over_whole_gemm",
             number(result, "chunked_over_whole_" + std::to_string(std::stoi(best))));
}

int run(const Options& options) {
  // Numbers of chunks; `p`: polled, `t`: tapered (overlap_worker.cc).
  const std::vector<std::string> ways{"1", "2p", "4", "4p", "4tp", "6p", "8", "8p", "8tp", "16p"};
  std::string words;
  for (const std::string& each : ways) words += each + " ";
  const Json trial = measured(options, kTrialColumns, "15", "1");
  demand_throttle(options, trial);
  const double columns_at_one =
      static_cast<double>(kTrialColumns) * number(trial, "C_ms") / number(trial, "G_ms");
  Json result = Json::object({{"schema", "shiplap.bench.overlap/1"}, {"rate", options.rate}});
  Json::Array shapes;
  for (const auto& [ratio, name] : {std::pair(0.5, ""), {1.0, "_at_C_equal_G"}, {2.0, ""}}) {
    const auto columns = static_cast<std::int64_t>(columns_at_one / ratio) / 64 * 64;
    Json shape = measured(options, columns, options.rounds, words);
    demand_throttle(options, shape);
    judge(shape, ways);
    if (*name != '\0') {
      for (const char* const key : kRatios) result.set(key + std::string(name), *shape.find(key));
      result.set("chunked_over_whole_gemm", *shape.find("chunked_over_whole_gemm"));
    }
    shapes.push_back(std::move(shape));
  }
  result.set("shapes", shapes);
  if (options.json) {
    std::printf("%s\n", to_text(result).c_str());
    return 0;
  }
  for (const Json& shape : shapes) {
    std::printf(
        "C/G %.2f  G %.1f ms  C %.1f ms  serial %.1f ms  T %.1f ms in %s chunks  max/T %.3f  "
        "hidden %.2f\n",
        number(shape, "C_over_G"), number(shape, "G_ms"), number(shape, "C_ms"),
        number(shape, "serial_ms"), number(shape, "T_ms"), shape.find("best")->as_string().c_str(),
        number(shape, "max_over_T"), number(shape, "hidden"));
  }
  return 0;
}

std::optional<Options> options_of(int argc, char** argv) {
  Options options;
  for (int k = 1; k < argc; ++k) {
    const std::string_view word = argv[k];
    if (word == "--json") {
      options.json = true;
    } else if (word == "--rounds" && k + 1 < argc) {
      options.rounds = argv[++k];
    } else if (word == "--rate" && k + 1 < argc) {
      options.rate = argv[++k];
    } else {
      return std::nullopt;
    }
  }
  return options;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  const auto options = shiplap::options_of(argc, argv);
  if (!options) {
    std::fprintf(stderr, "usage: bench_overlap [--json] [--rounds N] [--rate 200mbit]\n");
    return 2;
  }
  try {
    return shiplap::run(*options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_overlap: %s\n", error.what());
    return 1;
  }
}
