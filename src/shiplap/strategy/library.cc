#include "shiplap/strategy/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/schedule/schedule.h"
#include "shiplap/strategy/library/divide_internal.h"

namespace shiplap::strategy {
namespace {

[[noreturn]] void throw_bad_size(std::string what, std::string why, std::string help) {
  throw InputError(Diagnostic{
      .code = "D622", .what = std::move(what), .why = std::move(why), .help = std::move(help)});
}

std::vector<StrategyInfo> data_parallel_entries() {
  return {
      {.name = "single", .summary = "one rank does everything", .strategy = single},
      {.name = "gradient_accumulation",
       .summary = "data parallel, one microbatch at a time, gradients summed once",
       .strategy = gradient_accumulation,
       .axes = {"dp"},
       .split = WorkSplit::microbatches,
       .aliases = {"accumulation"}},
      {.name = "ddp",
       .summary = "data parallel: whole weights everywhere, gradients summed",
       .strategy = ddp,
       .axes = {"dp"},
       .aliases = {"dp"}},
      {.name = "ddp_overlap",
       .summary = "data parallel, gradients summed in buckets while backward goes on",
       .strategy = ddp_overlap,
       .axes = {"dp"}},
      {.name = "weight_sharded",
       .summary = "data parallel, weights sharded and gathered layer by layer",
       .strategy = weight_sharded,
       .axes = {"dp"},
       .shards = {"dp"}},
      {.name = "zero1",
       .summary = "ZeRO 1: optimizer state sharded",
       .strategy = zero1,
       .axes = {"dp"},
       .shards = {"dp"}},
      {.name = "zero2",
       .summary = "ZeRO 2: optimizer state and gradients sharded",
       .strategy = zero2,
       .axes = {"dp"},
       .shards = {"dp"}},
      {.name = "fsdp",
       .summary = "ZeRO 3: everything sharded, the next layer gathered ahead",
       .strategy = fsdp,
       .axes = {"dp"},
       .shards = {"dp"},
       .aliases = {"zero3"}},
  };
}

std::vector<StrategyInfo> pipeline_entries() {
  return {
      {.name = "gpipe",
       .summary = "pipeline: all microbatches forward, then all backward",
       .strategy = gpipe,
       .axes = {"pp"},
       .split = WorkSplit::microbatches,
       .aliases = {"pp", "pipeline"}},
      {.name = "1f1b",
       .summary = "pipeline: one forward, one backward",
       .strategy = one_f_one_b,
       .axes = {"pp"},
       .split = WorkSplit::microbatches,
       .aliases = {"one_f_one_b"}},
      {.name = "interleaved",
       .summary = "pipeline: one forward, one backward, several chunks of layers per rank",
       .strategy = interleaved,
       .axes = {"pp"},
       .split = WorkSplit::chunks,
       .aliases = {"interleaved_1f1b"}},
      {.name = "zb_h1",
       .summary = "zero bubble: 1f1b, the gradients of weights computed in the bubble",
       .strategy = zb_h1,
       .axes = {"pp"},
       .split = WorkSplit::microbatches,
       .aliases = {"zero_bubble"}},
      {.name = "dualpipev",
       .summary = "pipeline in a V: every rank has two chunks, the first one also the last layers",
       .strategy = dualpipev,
       .axes = {"pp"},
       .split = WorkSplit::two_chunks,
       .aliases = {"dualpipe_v"}},
  };
}

std::vector<StrategyInfo> other_entries() {
  return {
      {.name = "pipeline_fsdp",
       .summary = "1f1b, the weights of each stage sharded over its replicas",
       .strategy = pipeline_fsdp,
       .axes = {"pp", "dp"},
       .shards = {"dp"},
       .split = WorkSplit::microbatches},
      {.name = "tensor_parallel",
       .summary = "every layer split among the ranks",
       .strategy = tensor_parallel,
       .axes = {"tp"},
       .shards = {"tp"},
       .aliases = {"tp"}},
      {.name = "tensor_parallel_fsdp",
       .summary = "every layer split among the ranks of a group, each part sharded over the groups",
       .strategy = tensor_parallel_fsdp,
       .axes = {"dp", "tp"},
       .shards = {"tp", "dp"},
       .aliases = {"tp_fsdp"}},
      {.name = "hybrid",
       .summary = "data parallel replicas of a 1f1b pipeline of split layers",
       .strategy = hybrid,
       .axes = {"dp", "pp", "tp"},
       .shards = {"tp"},
       .split = WorkSplit::microbatches,
       .zero_stages = true},
  };
}

std::vector<StrategyInfo> all_entries() {
  std::vector<StrategyInfo> all = data_parallel_entries();
  for (const auto& entries : {pipeline_entries(), other_entries()}) {
    all.insert(all.end(), entries.begin(), entries.end());
  }
  return all;
}

// ---------------------------------------------------------------- meshes

// Returns the size of an axis; 1 if the mesh has no such axis.
std::int64_t axis_size(const std::vector<plan::Axis>& mesh, std::string_view axis) {
  const auto found = std::ranges::find(mesh, axis, &plan::Axis::name);
  return found == mesh.end() ? 1 : found->size;
}

std::vector<plan::Axis> default_mesh(const StrategyInfo& entry, int ranks) {
  if (entry.axes.empty()) {
    if (ranks == 1) return {{.name = "dp", .size = 1}};
    throw_bad_size(
        fmt::format("{} ranks cannot train as `{}`", ranks, entry.name), "it is for one rank",
        "take one rank, or another strategy: `ddp` gives every rank some of the samples");
  }
  if (entry.axes.size() == 1) return {{.name = entry.axes.front(), .size = ranks}};
  const auto has = [&](const char* axis) { return std::ranges::count(entry.axes, axis) > 0; };
  const std::int64_t pp = has("pp") && ranks > 1 ? 2 : 1;
  const std::int64_t tp = has("tp") && ranks > pp ? 2 : 1;
  if (ranks % (pp * tp) != 0) {
    const std::string stages = pp == 1 ? "" : fmt::format("{} stages{}", pp, tp == 1 ? "" : " of ");
    throw_bad_size(
        fmt::format("{} ranks cannot train as `{}`", ranks, entry.name),
        fmt::format("unless a mesh is given, it has {}{}", stages,
                    tp == 1 ? "" : fmt::format("layers split in {}", tp)),
        fmt::format("take {} ranks, or give the mesh", nearest_multiples(ranks, pp * tp)));
  }
  std::vector<plan::Axis> mesh;
  for (const std::string& axis : entry.axes) {
    std::int64_t size = ranks / (pp * tp);
    if (axis == "pp") size = pp;
    if (axis == "tp") size = tp;
    mesh.push_back({.name = axis, .size = size});
  }
  return mesh;
}

// Returns the number of ranks of a mesh. Throws if an axis is empty or the mesh is too large.
std::int64_t count_ranks(const std::vector<plan::Axis>& mesh) {
  std::int64_t ranks = 1;
  for (const plan::Axis& axis : mesh) {
    const bool fits = axis.size >= 1 && axis.size <= plan::kMaxRanks / ranks;
    if (!fits) {
      throw_bad_size(
          fmt::format("invalid mesh: axis `{}` has size {}", axis.name, axis.size),
          fmt::format("every axis has at least one position, and there are at most {} ranks",
                      with_separators(plan::kMaxRanks)),
          "give each axis a size of at least 1");
    }
    ranks *= axis.size;
  }
  return ranks;
}

// The axes that the mesh of a strategy lacks. Throws if it has one that the strategy does not have.
std::vector<std::string> missing_axes(const StrategyInfo& entry,
                                      const std::vector<plan::Axis>& mesh) {
  std::vector<std::string> missing = entry.axes;
  if (missing.empty()) missing = {"dp"};
  const std::string wanted = fmt::format("its mesh has {}", fmt::join(missing, ", "));
  for (const plan::Axis& axis : mesh) {
    if (std::erase(missing, axis.name) > 0) continue;
    const bool twice = std::ranges::count(mesh, axis.name, &plan::Axis::name) > 1;
    throw_bad_size(twice ? fmt::format("the mesh has two axes `{}`", axis.name)
                         : fmt::format("`{}` has no axis `{}`", entry.name, axis.name),
                   wanted, fmt::format("leave out `{}={}`", axis.name, axis.size));
  }
  return missing;
}

// Inserts the one missing axis, before those that follow it in the strategy's own order, so that
// `dp` varies slowest and `tp` fastest.
std::vector<plan::Axis> add_axis(const StrategyInfo& entry, std::vector<plan::Axis> mesh,
                                 const plan::Axis& axis) {
  const auto order = [&](const std::string& name) {
    return std::ranges::find(entry.axes, name) - entry.axes.begin();
  };
  const auto follows = [&](const plan::Axis& other) {
    return order(other.name) > order(axis.name);
  };
  mesh.insert(std::ranges::find_if(mesh, follows), axis);
  return mesh;
}

// Completes a mesh that lacks axes of the strategy: one of them follows from the number of ranks.
std::vector<plan::Axis> complete_mesh(const StrategyInfo& entry, const TrainingSize& size) {
  const std::vector<std::string> missing = missing_axes(entry, size.mesh);
  const std::int64_t given = count_ranks(size.mesh);
  if (missing.empty()) return size.mesh;
  std::vector<plan::Axis> example = size.mesh;
  for (const std::string& axis : missing) {
    const bool takes_rest = axis == missing[0] && size.ranks > 0 && size.ranks % given == 0;
    example = add_axis(entry, example, {axis, takes_rest ? size.ranks / given : 1});
  }
  if (missing.size() > 1 || size.ranks == 0) {
    throw_bad_size(fmt::format("the mesh of `{}` lacks {}", entry.name, fmt::join(missing, ", ")),
                   size.ranks == 0 ? "the size of one axis follows from the number of ranks, which "
                                     "is not given either"
                                   : "only one axis follows from the number of ranks",
                   fmt::format("give all sizes, for instance {}", format_axes(example)));
  }
  if (size.ranks % given != 0) {
    throw_bad_size(
        fmt::format("{} ranks cannot be divided by {}", size.ranks, format_axes(size.mesh)),
        fmt::format("`{}` would have {} / {} positions", missing[0], size.ranks, given),
        fmt::format("take {} ranks", nearest_multiples(size.ranks, given)));
  }
  return add_axis(entry, size.mesh, {missing[0], size.ranks / given});
}

// For a mesh whose sizes do not multiply to the number of ranks: the change of one axis that fixes
// it, of `dp` if possible.
std::string mismatch_help(const StrategyInfo& entry, const TrainingSize& size, std::int64_t ranks) {
  for (const std::string& name : entry.axes) {
    const std::int64_t others = ranks / axis_size(size.mesh, name);
    if (size.ranks % others == 0) {
      return fmt::format("take {}={}, or {} ranks", name, size.ranks / others, ranks);
    }
  }
  return fmt::format("take {} ranks", ranks);
}

std::vector<plan::Axis> mesh_for(const StrategyInfo& entry, const TrainingSize& size) {
  if (size.ranks < 0) {
    throw_bad_size(fmt::format("invalid number of ranks: {}", size.ranks),
                   "there is at least one rank", "take 1 rank or more");
  }
  if (size.mesh.empty()) return default_mesh(entry, std::max(size.ranks, 1));
  std::vector<plan::Axis> mesh = complete_mesh(entry, size);
  const std::int64_t ranks = count_ranks(mesh);
  if (size.ranks != 0 && size.ranks != ranks) {
    throw_bad_size(fmt::format("mesh mismatch: the mesh has {} ranks, not {}", ranks, size.ranks),
                   "the sizes of the axes multiply to the number of ranks",
                   mismatch_help(entry, size, ranks));
  }
  if (entry.axes.empty() && ranks != 1) return default_mesh(entry, static_cast<int>(ranks));
  return mesh;
}

// ---------------------------------------------------------------- numbers

// Constraints on the number of microbatches.
struct MicrobatchConstraints {
  std::int64_t batch = 1;
  std::int64_t replicas = 1;  // data-parallel ranks or pipelines that share the batch
  std::int64_t groups = 1;    // the number of microbatches is a multiple of it
  [[nodiscard]] bool fits(std::int64_t microbatches) const {
    return microbatches % groups == 0 && batch % (replicas * microbatches) == 0;
  }
};

int default_microbatches(const MicrobatchConstraints& constraints, std::int64_t wanted) {
  for (std::int64_t m = wanted; m >= 1; --m) {
    if (constraints.fits(m)) return static_cast<int>(m);
  }
  // Not even the minimum fits: the check that follows throws.
  return static_cast<int>(constraints.groups);
}

constexpr Noun kRank{.singular = "rank", .plural = "ranks"};
constexpr Noun kMicrobatch{.singular = "microbatch", .plural = "microbatches"};

std::string format_replicas(std::int64_t replicas, std::int64_t microbatches) {
  if (microbatches == 1) return format_count(replicas, kRank);
  if (replicas == 1) return format_count(microbatches, kMicrobatch);
  return fmt::format("{} of {} microbatches", format_count(replicas, kRank), microbatches);
}

int chunks_for(const StrategyInfo& entry, const TrainingSize& size) {
  if (entry.split == WorkSplit::two_chunks) {
    if (size.chunks == 0 || size.chunks == 2) return 2;
    throw_bad_size(fmt::format("`{}` cannot have {} chunks", entry.name, size.chunks),
                   "every rank has two, which form a V", "leave out the number of chunks");
  }
  const bool has_chunks = entry.split == WorkSplit::chunks;
  if (size.chunks < 0 || (!has_chunks && size.chunks > 1)) {
    throw_bad_size(fmt::format("`{}` cannot have {} chunks", entry.name, size.chunks),
                   has_chunks ? "there is at least one" : "its layers are not split into chunks",
                   has_chunks ? "take 1 or more" : "take `interleaved`, which splits them");
  }
  if (size.chunks > 0) return size.chunks;
  return has_chunks ? 2 : 1;
}

int zero_stage_for(const StrategyInfo& entry, const TrainingSize& size) {
  constexpr int kMaxStage = 3;
  const bool exists = size.zero_stage >= 0 && size.zero_stage <= kMaxStage;
  if (exists && (entry.zero_stages || size.zero_stage == 0)) return size.zero_stage;
  throw_bad_size(fmt::format("`{}` has no stage {} of ZeRO", entry.name, size.zero_stage),
                 exists ? "it shards the same values in every training" : "the stages are 0 to 3",
                 exists ? "take `hybrid`, or `zero1`, `zero2` or `fsdp` without a stage"
                        : "take 0, 1, 2 or 3");
}

int microbatches_for(const StrategyInfo& entry, const TrainingSize& size,
                     const MicrobatchConstraints& constraints, std::int64_t stages) {
  if (size.microbatches < 0 || (entry.split == WorkSplit::none && size.microbatches > 1)) {
    throw_bad_size(fmt::format("`{}` cannot have {} microbatches", entry.name, size.microbatches),
                   entry.split == WorkSplit::none ? "it takes all samples of a rank at once"
                                                  : "there is at least one",
                   entry.split == WorkSplit::none ? "take `gradient_accumulation` or a pipeline"
                                                  : "take 1 or more");
  }
  if (entry.split == WorkSplit::none) return 1;
  constexpr std::int64_t kWithoutPipeline = 4;
  if (size.microbatches == 0) {
    const std::int64_t samples =
        std::max<std::int64_t>(1, constraints.batch / constraints.replicas);
    return default_microbatches(constraints,
                                stages > 1 ? samples : std::min(samples, kWithoutPipeline));
  }
  // The schedule throws if it does not support this number.
  if (constraints.groups > 1) {
    (void)schedule::interleaved(
        {.stages = static_cast<int>(stages), .microbatches = size.microbatches, .chunks = 2}, 0);
  }
  return size.microbatches;
}

}  // namespace

std::span<const StrategyInfo> strategies() {
  static const std::vector<StrategyInfo> kEntries = all_entries();
  return kEntries;
}

const StrategyInfo& find_strategy(std::string_view name) {
  std::vector<std::string> names;
  std::vector<std::string> all;
  for (const StrategyInfo& entry : strategies()) {
    if (entry.name == name || std::ranges::count(entry.aliases, name) > 0) return entry;
    names.push_back(entry.name);
    all.push_back(entry.name);
    all.insert(all.end(), entry.aliases.begin(), entry.aliases.end());
  }
  throw InputError(
      Diagnostic{.code = "D624",
                 .what = fmt::format("unknown strategy `{}`", name),
                 .why = fmt::format("available: {}", fmt::join(names, ", ")),
                 .help = nearest(name, all).empty() ? "use one of these" : suggest(name, all)});
}

World world_for(const StrategyInfo& entry, const TrainingSize& size) {
  World world;
  world.mesh = mesh_for(entry, size);
  world.shape = size.shape;
  const std::int64_t hidden = size.shape.hidden;
  std::vector<std::string> sharded = entry.shards;
  if (zero_stage_for(entry, size) > 0) sharded.emplace_back("dp");
  std::int64_t shards = 1;
  std::string axes;
  for (const std::string& axis : sharded) {
    shards *= axis_size(world.mesh, axis);
    axes += fmt::format("{}`{}`", axes.empty() ? "" : " and ", axis);
    // Computing with a shard needs whole rows; only storing it does not.
    const bool cut_anywhere = axis != "tp" && hidden >= 1 && hidden * hidden % shards == 0;
    if (cut_anywhere) continue;
    divide({.number = hidden,
            .things = "features",
            .parts = shards,
            .by = fmt::format("{} along {}", format_count(shards, kRank), axes)});
  }
  return world;
}

int default_layers(const StrategyInfo& entry, const TrainingSize& size, int layers) {
  const std::int64_t parts = axis_size(mesh_for(entry, size), "pp") * chunks_for(entry, size);
  return static_cast<int>((layers + parts - 1) / parts * parts);
}

Training training_for(const StrategyInfo& entry, const TrainingSize& size) {
  const std::vector<plan::Axis> mesh = mesh_for(entry, size);
  const std::int64_t stages = axis_size(mesh, "pp");
  const int chunks = chunks_for(entry, size);
  divide({.number = size.layers,
          .things = "layers",
          .parts = stages * chunks,
          .by = format_stages(stages, chunks)});
  const MicrobatchConstraints constraints{
      .batch = size.batch,
      .replicas = axis_size(mesh, "dp"),
      .groups = chunks > 1 && entry.split == WorkSplit::chunks ? stages : 1};
  const int microbatches = microbatches_for(entry, size, constraints, stages);
  divide({.number = size.batch,
          .things = "samples",
          .parts = constraints.replicas * microbatches,
          .by = format_replicas(constraints.replicas, microbatches)});
  return {.layers = size.layers,
          .batch = size.batch,
          .microbatches = microbatches,
          .chunks = chunks,
          .zero_stage = zero_stage_for(entry, size)};
}

}  // namespace shiplap::strategy
