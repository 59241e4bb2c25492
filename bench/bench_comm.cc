// Benchmark of comm over MPI: overhead over bare MPI calls, and utilization of a real link.
//
//   bench_comm [--json]
//
// Starts bench_comm_worker (in the same folder) with tools/ranks: two ranks on this machine, then
// two hosts with a link of 1 Gbit/s between them, which needs root. Prints a table, or one JSON
// object.
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "launch.h"
#include "shiplap/base/json.h"

namespace shiplap {
namespace {

constexpr double kLinkBits = 1e9;
constexpr const char* kWorker = "bench_comm_worker";

void print_table(const Json& result) {
  for (const std::string_view call : {"alltoallv", "allreduce", "pingpong"}) {
    const Json* const sizes = result.find(call);
    if (sizes == nullptr) continue;
    for (const Json& one : sizes->as_array()) {
      std::printf("%-10.*s %9lld bytes  bare %10.1f us  ours/bare %.3f  [%.3f, %.3f]\n",
                  static_cast<int>(call.size()), call.data(),
                  static_cast<long long>(one.find("bytes")->as_integer()),
                  one.find("bare_us")->as_number(), one.find("ratio")->as_number(),
                  one.find("lower_quartile")->as_number(), one.find("upper_quartile")->as_number());
    }
  }
  for (const std::string_view key : {"checked_mode_us", "line_rate_fraction"}) {
    const Json* const value = result.find(key);
    if (value == nullptr || value->is_null()) continue;
    std::printf("%.*s %.3f\n", static_cast<int>(key.size()), key.data(), value->as_number());
  }
}

int run(bool json) {
  Json result = worker("-n 2 --on openmpi", kWorker, "calls");
  if (result.is_null()) return 1;
  const Json line = worker("-n 2 --on hosts --hosts 2 --rate 1gbit", kWorker,
                           "line " + std::to_string(static_cast<long long>(kLinkBits)));
  const Json* const fraction = line.find("line_rate_fraction");
  result.set("line_rate_fraction", fraction == nullptr ? Json() : *fraction);
  result.set("line", line);
  if (json) {
    std::printf("%s\n", to_text(result).c_str());
  } else {
    print_table(result);
  }
  return line.is_null() ? 1 : 0;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: bench_comm [--json]\n");
    return 2;
  }
  try {
    return shiplap::run(json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_comm: %s\n", error.what());
    return 1;
  }
}
