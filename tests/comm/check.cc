#include "check.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "shiplap/base/units.h"

namespace shiplap::comm {
namespace {

constexpr Seconds kTimeout{20};
constexpr std::size_t kMaxFailures = 8;  // per rank and check

struct LeakedMemory {
  std::mutex mutex;  // shared by ranks that are threads
  std::vector<std::unique_ptr<std::byte[]>> pieces;
};

}  // namespace

std::span<std::byte> leak_bytes(std::size_t bytes) {
  // Not destroyed at exit: MPI ends later.
  static LeakedMemory& kept = *std::make_unique<LeakedMemory>().release();
  const std::lock_guard lock(kept.mutex);
  kept.pieces.push_back(std::make_unique<std::byte[]>(bytes));
  return {kept.pieces.back().get(), bytes};
}

void CheckContext::record(const std::string& what, const char* file, int line) {
  if (failures_.size() >= kMaxFailures) return;
  const std::string path = file;
  const std::string name = path.substr(path.rfind('/') + 1);
  failures_.push_back(name + ":" + std::to_string(line) + ": " + what);
}

void run_caught(const Check& check, CheckContext& ctx) {
  try {
    check.run(ctx);
  } catch (const std::exception& error) {
    ctx.record(std::string("unexpected: ") + error.what(), __FILE__, __LINE__);
  }
}

void print_failures(int rank, const std::string& name, const std::vector<std::string>& failures) {
  std::string text;
  for (const std::string& failure : failures) {
    text += "rank " + std::to_string(rank) + ": " + name + ": " + failure + "\n";
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void print_result(bool passed, int number, const std::string& name) {
  std::printf("%s %d %s\n", passed ? "ok" : "not ok", number, name.c_str());
  std::fflush(stdout);
}

void run_check(Communicator& world, const Check& check, std::uint64_t seed, Tally& tally) {
  std::vector<std::string> failures;
  {
    const std::unique_ptr<Communicator> fresh = world.channel(check.name);
    fresh->set_timeout(kTimeout);
    fresh->set_checked(true);
    CheckContext ctx(*fresh, seed);
    run_caught(check, ctx);
    failures = ctx.failures();
  }
  print_failures(world.rank(), check.name, failures);
  std::int64_t ranks_failed = failures.empty() ? 0 : 1;
  world.all_reduce(std::span(&ranks_failed, 1));

  const int number = tally.passed + static_cast<int>(tally.failed.size()) + 1;
  if (world.rank() == 0) print_result(ranks_failed == 0, number, check.name);
  if (ranks_failed == 0) {
    ++tally.passed;
  } else {
    tally.failed.push_back(check.name);
  }
}

}  // namespace shiplap::comm
