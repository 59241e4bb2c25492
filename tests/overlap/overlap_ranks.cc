// Every overlap on real ranks, as threads or as processes.
//
//   overlap_ranks [--ranks N] [--polled] [--long] [--plain]    N threads, unless an MPI launcher
//   started it
//
// With --long, messages have hundreds of kilobytes; with --plain, the classes are left out, and all
// forms but one.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "classes.h"
#include "reference_gemm.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::tests {
namespace {

struct Options {
  int ranks = 4;
  run::Progress progress = run::Progress::threads;
  bool is_long = false;
  bool is_plain = false;
};

std::string run_overlap(comm::Communicator& world, const overlap::Choice& choice, const Given& all,
                        const Options& options) {
  run::OverlappedGemm gemm(choice, all.problem, world, {.progress = options.progress});
  const LocalOperands local = local_operands(choice.type, all, world.rank());
  std::string mismatch;
  for (int step = 0; step < 2 && mismatch.empty(); ++step) {
    fill_rank(gemm, choice.type, all, world.rank());
    gemm.prepare();
    gemm.run(args_of(local, choice.type));
    mismatch = find_mismatch(gemm, choice, all, world.rank());
  }
  const bool is_even = choice.method != overlap::Method::bulk || all.problem.k % world.size() == 0;
  const bool is_quantized = !is_high_precision(all.problem.x) || all.problem.groups > 0;
  if (!mismatch.empty() || options.is_plain || is_quantized || choice.type == overlap::Type::none ||
      !is_even) {
    return mismatch;
  }
  return find_class_mismatch(world, choice, all, options.progress);
}

// FP8 and MXFP8 with coded sums, and groups.
int mismatches_by_format(comm::Communicator& world, const Options& options) {
  int wrong = 0;
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    for (const overlap::Scaling scaling :
         {overlap::Scaling::none, overlap::Scaling::row, overlap::Scaling::blocks}) {
      if (options.is_plain && scaling != overlap::Scaling::blocks) continue;
      overlap::Problem problem{.m = 45, .n = 39, .k = 70, .ranks = world.size(), .chunks = 2};
      problem.x.scaling = problem.w.scaling = scaling;
      if (scaling != overlap::Scaling::row) problem.groups = 4;
      const bool has_sums = supported.choice.type == overlap::Type::reduce_scatter ||
                            supported.choice.type == overlap::Type::all_reduce;
      if (has_sums) problem.sums.scaling = scaling;
      const std::string mismatch = run_overlap(world, supported.choice, given(problem), options);
      if (mismatch.empty()) continue;
      ++wrong;
      fmt::print("rank {}: {}, scales {}: {}\n", world.rank(), to_string(supported.choice),
                 name(scaling), mismatch);
    }
  }
  return wrong;
}

int wrong_overlaps(comm::Communicator& world, const Options& options) {
  using Shape = std::tuple<int, int, int, int, overlap::Cut>;
  std::vector<Shape> shapes{{61, 37, 45, 3, overlap::Cut::tapered},
                            {5, 16, 32, 1, overlap::Cut::even}};
  if (options.is_long) {
    shapes = {{31, 5, 4000, 1, overlap::Cut::even}, {31, 4000, 5, 1, overlap::Cut::even}};
  }
  int wrong = 0;
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const auto& [rows, columns, k, chunks, cut] : shapes) {
        const Given all = given({.m = rows,
                                 .n = columns,
                                 .k = k,
                                 .type = type,
                                 .ranks = world.size(),
                                 .chunks = chunks,
                                 .cut = cut});
        const std::string mismatch = run_overlap(world, supported.choice, all, options);
        if (mismatch.empty()) continue;
        ++wrong;
        fmt::print("rank {}: {}, {}: {}\n", world.rank(), to_string(supported.choice), name(type),
                   mismatch);
      }
    }
  }
  wrong += mismatches_by_format(world, options);
  if (world.rank() == 0) {
    fmt::print("{} overlaps on {} ranks\n", overlap::supported_choices().size(), world.size());
  }
  return wrong;
}

int main_of(const Options& options) {
  std::atomic<int> wrong = 0;
  comm::run_ranks({.threads = options.ranks, .timeout = {60}},
                  [&](comm::Communicator& world) { wrong += wrong_overlaps(world, options); });
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shiplap::tests

int main(int argc, char** argv) {
  shiplap::tests::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--ranks" && i + 1 < argc) {
      options.ranks = static_cast<int>(std::strtol(argv[i + 1], nullptr, 10));
    }
    if (word == "--polled") options.progress = shiplap::run::Progress::polled;
    if (word == "--long") options.is_long = true;
    if (word == "--plain") options.is_plain = true;
  }
  try {
    return shiplap::tests::main_of(options);
  } catch (const shiplap::InputError& error) {
    fmt::print(stderr, "{}", shiplap::render(error.diagnostics()));
  } catch (const shiplap::comm::Failure& failure) {
    fmt::print(stderr, "{}", shiplap::render(failure.diagnostic()));
  }
  return 1;
}
