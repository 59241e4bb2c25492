// Benchmark of dispatch: computing its tables, and exchanging the tokens.
//
//   bench_dispatch [--json] [--lengths FOLDER]
//
// Tables: four for 8 to 4,096 ranks, from in_RANKS_wlbllm4.txt in FOLDER (../shared/data/
// document_lengths next to the project by default), CP 4; CPU time. Exchange: starts
// bench_dispatch_worker with tools/ranks on two ranks of this machine, then on four hosts with
// links of 1 Gbit/s, which needs root. Prints a table, or one JSON object.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "launch.h"
#include "shiplap/base/json.h"
#include "shiplap/base/random.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap {
namespace {

constexpr const char* kWorker = "bench_dispatch_worker";
constexpr int kRounds = 21;

double cpu_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

template <class Act>
std::vector<double> times_of(const Act& act) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = cpu_ms();
    act();
    times.push_back(cpu_ms() - begin);
  }
  std::ranges::sort(times);
  return times;
}

// The 4,096 ranks have eight times the documents of 512, shuffled.
std::vector<std::uint32_t> read_lengths(const std::string& folder, int ranks) {
  const bool eight = ranks == 4096;
  std::ifstream file(folder + "/in_" + std::to_string(eight ? 512 : ranks) + "_wlbllm4.txt");
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t length = 0; file >> length;) lengths.push_back(length);
  if (!eight) return lengths;
  const std::vector<std::uint32_t> once = lengths;
  for (int k = 1; k < 8; ++k) lengths.insert(lengths.end(), once.begin(), once.end());
  Random(0).shuffle(lengths);
  return lengths;
}

Json tables(const std::string& folder, int ranks) {
  const std::vector<std::uint32_t> lengths = read_lengths(folder, ranks);
  if (lengths.empty()) return {};
  const std::vector<int> degrees(lengths.size(), 4);
  const dispatch::Routing routing{
      .home = dispatch::pack_documents(lengths, ranks),
      .attention = dispatch::assign_randomly(dispatch::cut_documents(lengths, degrees), ranks, 0)};
  dispatch::QkvDispatch made;
  const std::vector<double> making =
      times_of([&] { made = dispatch::compute_qkv_dispatch(routing); });
  std::size_t findings = 0;
  const std::vector<double> proving = times_of([&] { findings += validate(made).size(); });
  if (findings > 0) throw std::runtime_error("the tables are unsound");
  const Bytes bytes = made.q.forward.bytes() + made.q.reverse.bytes() + made.kv.forward.bytes() +
                      made.kv.reverse.bytes();
  return Json::object({{"ranks", ranks},
                       {"documents", std::ssize(lengths)},
                       {"rows", static_cast<std::int64_t>(made.q.forward.rows())},
                       {"copies", static_cast<std::int64_t>(made.kv.forward.copies())},
                       {"cpu_ms", making[making.size() / 2]},
                       {"min_ms", making.front()},
                       {"max_ms", making.back()},
                       {"validate_cpu_ms", proving[proving.size() / 2]},
                       {"bytes", bytes.count},
                       {"layout_bytes", made.attention.bytes().count}});
}

// The worst ratio of the measurements with `pieces` pieces per pair; null if there is none.
Json worst(const Json::Array& all, int pieces, std::string_view key) {
  Json most;
  for (const Json& one : all) {
    if (*one.find("pieces_per_pair") != Json(pieces)) continue;
    const Json* const ratio = one.find(key);
    if (ratio == nullptr) continue;
    if (most.is_null() || ratio->as_number() > most.as_number()) most = *ratio;
  }
  return most;
}

Json::Array moves(const std::string& launch) {
  Json::Array all;
  for (const int mebibytes : {1, 16}) {
    for (const int pieces : {16, 64}) {
      Json one =
          worker(launch, kWorker,
                 std::to_string(std::int64_t{mebibytes} << 20) + " " + std::to_string(pieces));
      if (one.is_null()) return all;
      all.push_back(std::move(one));
    }
  }
  return all;
}

void print_table(const Json& result) {
  for (const Json& one : result.find("tables")->as_array()) {
    std::printf("%5lld ranks  %7lld copies  tables %8.2f ms  %9lld bytes  validate %8.2f ms\n",
                static_cast<long long>(one.find("ranks")->as_integer()),
                static_cast<long long>(one.find("copies")->as_integer()),
                one.find("cpu_ms")->as_number(),
                static_cast<long long>(one.find("bytes")->as_integer()),
                one.find("validate_cpu_ms")->as_number());
  }
  for (const std::string_view where : {"shm", "net"}) {
    for (const Json& one : result.find(where)->as_array()) {
      std::printf(
          "%.*s %9lld bytes a pair in %2lld pieces  bare %9.1f us  ours/bare %.3f "
          "[%.3f, %.3f]  over bare and two copies %.3f\n",
          static_cast<int>(where.size()), where.data(),
          static_cast<long long>(one.find("bytes")->as_integer()),
          static_cast<long long>(one.find("pieces_per_pair")->as_integer()),
          one.find("bare_us")->as_number(), one.find("ratio")->as_number(),
          one.find("lower_quartile")->as_number(), one.find("upper_quartile")->as_number(),
          one.find("ratio_with_two_copies")->as_number());
    }
  }
}

int run(bool json, const std::string& folder) {
  Json::Array made;
  Json result = Json::object();
  for (const int ranks : {8, 32, 128, 512, 4096}) {
    Json one = tables(folder, ranks);
    if (one.is_null()) {
      std::fprintf(stderr, "bench_dispatch: no lengths for %d ranks in %s\n", ranks,
                   folder.c_str());
      continue;
    }
    const std::string suffix = "_" + std::to_string(ranks);
    result.set("metadata_cpu_ms" + suffix, *one.find("cpu_ms"));
    result.set("metadata_bytes" + suffix, *one.find("bytes"));
    made.push_back(std::move(one));
  }
  const Json::Array shm = moves("-n 2 --on openmpi");
  const Json::Array net = moves("-n 4 --on hosts --hosts 4 --rate 1gbit");
  result.set("ratio_to_bare_alltoallv_shm", worst(shm, 16, "ratio"));
  result.set("ratio_to_bare_alltoallv_net", worst(net, 16, "ratio"));
  result.set("ratio_to_alltoallv_and_two_copies_shm", worst(shm, 16, "ratio_with_two_copies"));
  result.set("ratio_to_bare_alltoallv_shm_64_pieces", worst(shm, 64, "ratio"));
  result.set("ratio_to_bare_alltoallv_net_64_pieces", worst(net, 64, "ratio"));
  result.set("tables", made);
  result.set("shm", shm);
  result.set("net", net);
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
  bool json = false;
  std::string folder = std::string(SHIPLAP_SOURCE) + "/../shared/data/document_lengths";
  for (int k = 1; k < argc; ++k) {
    const std::string_view word = argv[k];
    if (word == "--json") {
      json = true;
    } else if (word == "--lengths" && k + 1 < argc) {
      folder = argv[++k];
    } else {
      std::fprintf(stderr, "usage: bench_dispatch [--json] [--lengths FOLDER]\n");
      return 2;
    }
  }
  try {
    return shiplap::run(json, folder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_dispatch: %s\n", error.what());
    return 1;
  }
}
