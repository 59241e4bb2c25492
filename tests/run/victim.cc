// Dispatches queries on four ranks, step after step; in the third step rank 1 kills itself when a
// stage begins, or stops. For death_test.py.
//
//   run_victim pack|exchange|unpack kill|stop
//
// Each rank that lives prints what it learned: `rank R: failed F` or `rank R: missing M`.
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "shiplap/comm/ranks.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::run {
namespace {

struct Fate {
  Dispatcher::Stage stage = Dispatcher::Stage::pack;
  int signal = SIGKILL;
};

void report(int rank, const std::string& what) {
  std::printf("rank %d: %s\n", rank, what.c_str());
  std::fflush(stdout);
}

void dispatch_until(comm::Communicator& world, const Fate& fate) {
  int step = 0;
  Dispatcher dispatcher(world, {.pack_below = 4096, .on_stage = [&](Dispatcher::Stage stage) {
                                  if (world.rank() == 1 && step == 2 && stage == fate.stage) {
                                    std::raise(fate.signal);
                                  }
                                }});
  const auto plan = dispatcher.plan(dispatch::create_qkv_dispatch({.world_size = world.size(),
                                                                   .total_seq_len = 4000,
                                                                   .num_seqs = 5,
                                                                   .max_cp_degree = 4,
                                                                   .seed = 1}));
  constexpr std::int64_t kRow = 512;
  const std::vector<std::byte> q(plan->q_forward.send_tokens() * std::size_t{kRow});
  std::vector<std::byte> there(plan->q_forward.receive_tokens() * std::size_t{kRow});
  try {
    for (; step < 5; ++step) dispatcher.exchange(plan->q_forward, q, there, kRow);
    report(world.rank(), "nothing happened");
  } catch (const comm::RankFailed& error) {
    report(world.rank(), "failed " + std::to_string(error.rank()));
  } catch (const comm::TimeoutError& error) {
    report(world.rank(),
           "missing " + (error.missing().empty() ? std::string("somebody")
                                                 : std::to_string(error.missing()[0])));
  }
}

}  // namespace
}  // namespace shiplap::run

int main(int argc, char** argv) {
  using Stage = shiplap::run::Dispatcher::Stage;
  const std::map<std::string, Stage> stages{
      {"pack", Stage::pack}, {"exchange", Stage::exchange}, {"unpack", Stage::unpack}};
  if (argc != 3 || !stages.contains(argv[1])) {
    std::fprintf(stderr, "usage: run_victim pack|exchange|unpack kill|stop\n");
    return 2;
  }
  const shiplap::run::Fate fate{.stage = stages.at(argv[1]),
                                .signal = std::string(argv[2]) == "stop" ? SIGSTOP : SIGKILL};
  try {
    shiplap::comm::run_ranks(
        {.threads = 4, .timeout = {3}},
        [&](shiplap::comm::Communicator& world) { shiplap::run::dispatch_until(world, fate); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "victim: %s\n", error.what());
    return 1;
  }
  return 0;
}
