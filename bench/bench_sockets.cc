// Benchmark of the sockets transport against Open MPI over TCP: message cost on one machine, and
// utilization of a link of 1 Gbit/s between hosts.
//
//   bench_sockets [--json]
//
// Starts bench_sockets_worker (in the same folder) with tools/ranks, alternating between both;
// hosts need root. Prints a table, or one JSON object.
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "figures.h"
#include "launch.h"
#include "shiplap/base/json.h"

namespace shiplap {
namespace {

constexpr int kTurns = 5;
constexpr const char* kWorker = "bench_sockets_worker";

// Runs the same measurement on both, alternating; returns their results in the order of `kinds`.
std::vector<std::vector<Json>> in_turn(const std::vector<std::string>& kinds,
                                       const std::string& question) {
  std::vector<std::vector<Json>> answers(kinds.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      Json answer = worker(kinds[k], kWorker, question);
      if (answer.is_null()) throw std::runtime_error("no answer from ranks " + kinds[k]);
      answers[k].push_back(std::move(answer));
    }
  }
  return answers;
}

Json messages() {
  const auto answers = in_turn({"-n 2 --on sockets", "-n 2 --on openmpi-tcp"}, "messages");
  Json sizes = Json::array();
  for (std::size_t size = 0; size < answers[0][0].find("sizes")->as_array().size(); ++size) {
    Json one = Json::object({});
    for (std::size_t k = 0; k < answers.size(); ++k) {
      std::vector<double> times;
      for (const Json& answer : answers[k]) {
        const Json& found = answer.find("sizes")->as_array()[size];
        one.set("bytes", found.find("bytes")->as_integer());
        times.push_back(found.find("us")->as_number());
      }
      put(one, k == 0 ? "sockets_us" : "openmpi_tcp_us", spread(times));
    }
    sizes.push(one);
  }
  return sizes;
}

Json lines(int hosts) {
  const std::string ranks =
      "-n " + std::to_string(hosts) + " --hosts " + std::to_string(hosts) + " --rate 1gbit --on ";
  const auto answers = in_turn({ranks + "socket-hosts", ranks + "hosts"}, "line 1000000000");
  Json result = Json::object({});
  for (std::size_t k = 0; k < answers.size(); ++k) {
    std::vector<double> fractions;
    for (const Json& answer : answers[k]) {
      fractions.push_back(answer.find("fraction")->as_number());
    }
    put(result, k == 0 ? "sockets" : "openmpi_tcp", spread(fractions));
  }
  return result;
}

void print_table(const Json& result) {
  for (const Json& one : result.find("messages")->as_array()) {
    std::printf("%9lld bytes  sockets %10.1f us  Open MPI over TCP %10.1f us\n",
                static_cast<long long>(one.find("bytes")->as_integer()),
                one.find("sockets_us")->as_number(), one.find("openmpi_tcp_us")->as_number());
  }
  for (const char* const key : {"line_rate_fraction", "exchange_fraction"}) {
    const Json* const found = result.find(key);
    std::printf("%-20s sockets %.3f  Open MPI over TCP %.3f\n", key,
                found->find("sockets")->as_number(), found->find("openmpi_tcp")->as_number());
  }
}

int run(bool json) {
  Json result = Json::object({{"messages", messages()}});
  result.set("line_rate_fraction", lines(2));
  result.set("exchange_fraction", lines(4));
  if (json) {
    std::printf("%s\n", to_text(result).c_str());
  } else {
    print_table(result);
  }
  return 0;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: bench_sockets [--json]\n");
    return 2;
  }
  try {
    return shiplap::run(json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_sockets: %s\n", error.what());
    return 1;
  }
}
