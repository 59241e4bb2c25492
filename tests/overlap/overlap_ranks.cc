// Every overlap on real ranks, as threads or as processes.
//
//   overlap_ranks [--ranks N]    N threads, unless an MPI launcher started it
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "product.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::tests {
namespace {

std::string tried(comm::Communicator& world, const overlap::Choice& choice, const Given& all) {
  run::OverlappedProduct product(choice, all.problem, world);
  std::string said;
  for (int step = 0; step < 2 && said.empty(); ++step) {
    fill_rank(product, choice.type, all, world.rank());
    product.prepare();
    product.run();
    said = wrong_number(product, choice, all, world.rank());
  }
  return said;
}

int wrong_overlaps(comm::Communicator& world) {
  int wrong = 0;
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    for (const plan::ElementType type : {plan::ElementType::f32, plan::ElementType::bf16}) {
      for (const auto& [rows, columns, depth, chunks] :
           {std::array{61, 37, 45, 3}, std::array{5, 16, 32, 1}}) {
        const Given all = given({.rows = rows,
                                 .columns = columns,
                                 .depth = depth,
                                 .type = type,
                                 .ranks = world.size(),
                                 .chunks = chunks});
        const std::string said = tried(world, legal.choice, all);
        if (said.empty()) continue;
        ++wrong;
        fmt::print("rank {}: {}, {}: {}\n", world.rank(), to_string(legal.choice), name(type),
                   said);
      }
    }
  }
  if (world.rank() == 0) {
    fmt::print("{} overlaps on {} ranks\n", overlap::legal_choices().size(), world.size());
  }
  return wrong;
}

int main_of(int ranks) {
  std::atomic<int> wrong = 0;
  comm::run_ranks({.threads = ranks, .timeout = {60}},
                  [&](comm::Communicator& world) { wrong += wrong_overlaps(world); });
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shiplap::tests

int main(int argc, char** argv) {
  int ranks = 4;
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--ranks")
      ranks = static_cast<int>(std::strtol(argv[i + 1], nullptr, 10));
  }
  try {
    return shiplap::tests::main_of(ranks);
  } catch (const shiplap::InputError& error) {
    fmt::print(stderr, "{}", shiplap::render(error.diagnostics()));
  } catch (const shiplap::comm::Failure& failure) {
    fmt::print(stderr, "{}", shiplap::render(failure.diagnostic()));
  }
  return 1;
}
