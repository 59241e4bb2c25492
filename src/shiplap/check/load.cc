#include <fmt/format.h>

#include <limits>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/check/happens_before_internal.h"
#include "shiplap/check/job_internal.h"
#include "shiplap/check/operation_checker_internal.h"

namespace shiplap::check {
namespace {

constexpr std::int64_t kLargestDimension = (std::int64_t{1} << 31) - 2;
// Vector clocks have one entry per operation and stream (happens_before.cc).
constexpr std::int64_t kMaxClocks = 200'000'000;
constexpr std::int64_t kMaxStreams = 32'767;
constexpr std::int64_t kLargestMasked = std::int64_t{1} << 20;  // a mask is evaluated cell by cell

[[noreturn]] void throw_too_large(std::string what, std::string why,
                                  std::string help = "check a smaller mesh") {
  throw InputError(Diagnostic{
      .code = "D632", .what = std::move(what), .why = std::move(why), .help = std::move(help)});
}

void check_dimensions(const plan::Plan& plan) {
  for (const plan::Tensor& tensor : plan.tensors) {
    for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
      const plan::Dimension& dimension = tensor.dimension(plan::DimensionId(k));
      if (dimension.size <= (tensor.mask.empty() ? kLargestDimension : kLargestMasked)) continue;
      throw_too_large(fmt::format("dimension `{}` of `{}` has {} coordinates", dimension.name,
                                  tensor.name, with_separators(dimension.size)),
                      "coordinates are counted up to 2^31, under a mask up to 2^20",
                      "give the tensor fewer, larger parts");
    }
  }
}

// A mask needs a list entry for each coordinate.
void check_mask_lists(const plan::Plan& plan) {
  for (const plan::Tensor& tensor : plan.tensors) {
    for (const plan::MaskTerm& term : tensor.mask) {
      for (const plan::MaskSide& side : {term.left, term.right}) {
        if (!side.list.exists()) continue;
        const plan::List& list = plan.lists[side.list];
        const plan::Dimension& dimension = tensor.dimension(side.dimension);
        if (std::ssize(list.values) >= dimension.size) continue;
        throw InputError(Diagnostic{
            .code = "D203",
            .what = fmt::format("list `{}` has {} entries, and `{}` has {} coordinates", list.name,
                                with_separators(std::ssize(list.values)), dimension.name,
                                with_separators(dimension.size)),
            .why = fmt::format("the mask of `{}` needs an entry for each of them", tensor.name),
            .help = "make the list as long as the dimension"});
      }
    }
  }
}

void check_streams(const Script& script) {
  const std::int64_t streams = std::ssize(script.steps->heads);
  if (streams <= kMaxStreams && streams * std::ssize(script.ops) <= kMaxClocks) return;
  throw_too_large(fmt::format("rank {} has {} operations on {} streams", script.rank,
                              with_separators(std::ssize(script.ops)), with_separators(streams)),
                  fmt::format("their order takes a clock for each operation and stream, up to {}",
                              with_separators(kMaxClocks)));
}

}  // namespace

std::unique_ptr<Job> load(const plan::Plan& plan, const Symmetry& symmetry, const Options& options,
                          std::vector<Violation>& violations) {
  check_dimensions(plan);
  check_mask_lists(plan);
  plan::Assignment assignment = plan::assign_programs(plan);
  if (!assignment.problems.empty()) throw InputError(std::move(assignment.problems));
  auto job = std::make_unique<Job>(plan);
  job->symmetry = symmetry;
  const std::vector<plan::Image> images = plan::images_of(symmetry);
  plan::Linker linker(plan, {.operations = options.operations,
                             .iterations = std::numeric_limits<std::int64_t>::max(),
                             .cost = {},
                             .events = false,
                             .symmetry = symmetry});
  OperationChecker checker(plan, job->statements);
  ScriptBuilder builder(job->statements, job->arena, options.rules);
  const auto ranks = static_cast<std::int32_t>(plan.mesh.ranks());
  job->script_of.assign(ranks, -1);
  std::int64_t operations = 0;
  std::int64_t iterations = 0;
  plan::RankProgram expanded;
  ProgressTicker ticker(options.progress,
                        {.what = "expanding ranks", .unit = "ranks", .total = ranks});
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    if (!symmetry.is_representative(rank)) continue;
    ticker.advance_to(rank);
    const plan::ProgramId program = assignment.program_of[rank];
    expanded = plan::expand(plan, Rank(rank), program, options.one_rank, std::move(expanded));
    operations += std::ssize(expanded.operations);
    if (operations > options.operations) {
      throw_too_large(fmt::format("this plan has more than {} operations on all ranks together",
                                  with_separators(options.operations)),
                      "all are held in memory, about 200 bytes each");
    }
    iterations += expanded.iterations * (1 + std::ssize(images));  // all of them are expanded
    if (iterations > options.iterations) {
      throw_too_large(
          fmt::format("this plan has more than {} iterations of loops on all ranks together",
                      with_separators(options.iterations)),
          "every rank is expanded, which takes time for each iteration");
    }
    const std::vector<SlopeId> slopes =
        slopes_of(expanded, symmetry, images, job->contents.slopes());
    checker.check_program(expanded, slopes, violations);
    linker.add(expanded);
    Script script = builder.make(expanded, slopes, linker.linked());
    check_streams(script);
    job->accesses += find_races(script, violations);
    job->script_of[rank] = static_cast<std::int32_t>(job->scripts.size());
    job->scripts.push_back(std::move(script));
  }
  checker.finish(violations);
  job->linked = std::move(linker).finish();
  find_members(*job);
  job->computations = checker.computations();
  for (const auto& [kernel, count] : checker.assumed()) job->assumed.push_back({kernel, count});
  return job;
}

}  // namespace shiplap::check
