// Lowers the recordings of all ranks to one plan.
//
// Problem: a plan is parametric (one program for many ranks, with expressions of the mesh
// position), but recordings are concrete. Lowering every rank and then merging the programs is
// correct and too slow for large worlds: lowering a rank takes as long as hundreds of comparisons
// of numbers.
//
// Idea (decision 027): sample, and extrapolate what is known to be affine.
// 1. Group the ranks into classes with equal steps: same position on the same tape (recorder.cc). A
//    rank in the middle of a communication is a class of its own.
// 2. For a class of more than 64 ranks, check that every recorded number (layers, samples, shards,
//    peers, tags) is an affine function of the mesh position, base + sum over axes of slope *
//    position. Slopes come from one neighbour of the first rank per axis; then every rank is
//    checked. The numbers of the lowered program are computed from the recorded ones and are
//    proportional to them (rows follow the begin and end of shards), so they are affine too; so
//    are the quotient and the remainder of a shard that is sharded along two axes, if the
//    neighbours and the last rank agree with one affine function. This is an affine dependence as
//    in the polyhedral model (Feautrier, "Dataflow Analysis of Array and Scalar References", 1991),
//    with mesh coordinates in place of loop indices.
// 3. If the class is affine, lower only the first rank, its neighbour on every axis, the last rank,
//    and 30 between them. Otherwise lower all ranks.
// 4. Merge the lowered programs (program_deduplicator.cc), which fits expressions to their numbers,
//    and extrapolate each sampled class to all of its ranks. If the samples do not share a program,
//    or a number fits no expression, lower the whole class and start again.
//
// Invariant: recorded numbers are checked on every rank, lowered numbers on the lowered ranks.
//
// Not done: replaying only one rank per class in sim. It needs a proof that the matching of their
// communication is symmetric, which check has and sim does not have yet (decision 027).
#include "shiplap/strategy/to_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/strategy/program_deduplicator_internal.h"
#include "shiplap/strategy/rank_program_internal.h"

namespace shiplap::strategy {
namespace {

void require_whole_rows(const workload::ModelShape& shape, const Grain& grain) {
  const bool fits = shape.weight().count % grain.weight == 0 && shape.hidden % grain.sample == 0;
  if (fits) return;
  throw InputError(Diagnostic{
      .code = "D622",
      .what = fmt::format("a weight of {} x {} cannot be divided into {} equal shards",
                          shape.hidden, shape.hidden, std::max(grain.weight, grain.sample)),
      .why = "every shard has the same number of bytes",
      .help = "take a hidden size that is a multiple of the number of shards"});
}

// Without the loaded values that are dropped before they are used: of a whole weight whose
// optimizer state is sharded, `load_weights` returns a state that nobody stores.
Recording without_unused_loads(Recording recording) {
  std::vector<int> uses(recording.values.size(), 0);  // reads other than drops
  std::vector<Step*> drops(recording.values.size(), nullptr);
  for (Step& step : recording.steps) {
    if (step.type == StepType::drop) drops[step.reads[0]] = &step;
    if (step.type == StepType::drop) continue;
    for (const ValueNumber v : step.reads) {
      if (v >= 0) ++uses[v];
    }
  }
  for (Step& step : recording.steps) {
    const bool loads =
        step.type == StepType::compute && step.kind == trace::EventKind::load_weights;
    for (ValueNumber& v : step.writes) {
      if (!loads || v < 0 || uses[v] > 0 || drops[v] == nullptr) continue;
      *drops[v] = Step{.type = StepType::take};  // which lowers to nothing
      v = -1;
    }
  }
  return recording;
}

Recording recording_of(const Dist& dist, std::int32_t rank, LoweringPurpose purpose) {
  const Model* const model = dist.models()[rank];
  if (model == nullptr) return {};
  return without_unused_loads(purpose == LoweringPurpose::execution ? model->recording()
                                                                    : model->recording_so_far());
}

std::vector<RankClass> find_rank_classes(const Dist& dist, LoweringPurpose purpose) {
  std::vector<RankClass> classes;
  using Key = std::tuple<const Tape*, std::int32_t, std::int32_t, std::vector<std::string>>;
  std::map<Key, std::size_t> known;
  for (std::int32_t rank = 0; rank < dist.size(); ++rank) {
    const Model* const model = dist.models()[rank];
    Key key;
    if (model != nullptr) {
      const Tapes::Position at = model->recorder().position();
      key = {at.tape, at.steps, at.values, model->streams()};
    }
    // Results that are complete and not yet awaited are not on the tape.
    const bool alone = model != nullptr && model->has_pending_ops();
    const auto found = alone ? known.end() : known.find(key);
    if (found != known.end()) {
      classes[found->second].ranks.push_back(rank);
      continue;
    }
    if (!alone) known.emplace(std::move(key), classes.size());
    classes.push_back({.ranks = {rank}, .first = recording_of(dist, rank, purpose)});
  }
  return classes;
}

// Whether every recorded number of these ranks is affine in the mesh position: base + sum of slope
// * position over the axes. Then so are the numbers of their programs, which are computed from them
// alone: rows are proportional to the begin and end of shards.
bool are_affine(const Dist& dist, const std::vector<std::int32_t>& ranks,
                const Positions& positions) {
  const auto numbers_of = [&](std::size_t k) {
    const Recorder& recorder = dist.models()[ranks[k]]->recorder();
    std::vector<std::int64_t> all(recorder.numbers().begin(), recorder.numbers().end());
    all.insert(all.end(), recorder.messages().begin(), recorder.messages().end());
    return all;
  };
  const std::vector<std::int64_t> base = numbers_of(0);
  std::vector<std::vector<std::int64_t>> slopes(positions.axes());
  for (std::size_t a = 0; a < slopes.size(); ++a) {
    const std::optional<std::size_t> neighbour = positions.neighbour(a);
    if (!neighbour) continue;
    const std::int64_t steps = positions.at(*neighbour, a) - positions.at(0, a);
    slopes[a] = numbers_of(*neighbour);
    for (std::size_t i = 0; i < base.size(); ++i) {
      slopes[a][i] -= base[i];
      if (slopes[a][i] % steps != 0) return false;
      slopes[a][i] /= steps;
    }
  }
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    std::vector<std::int64_t> expected = base;
    for (std::size_t a = 0; a < slopes.size(); ++a) {
      const std::int64_t steps = positions.at(k, a) - positions.at(0, a);
      if (slopes[a].empty() || steps == 0) continue;
      for (std::size_t i = 0; i < base.size(); ++i) expected[i] += slopes[a][i] * steps;
    }
    if (expected != numbers_of(k)) return false;
  }
  return true;
}

// The first rank, a neighbour of it on every axis, the last rank, and some between them.
std::vector<std::int32_t> sampled_ranks(const std::vector<std::int32_t>& ranks,
                                        const Positions& positions) {
  std::vector<std::int32_t> samples{ranks.front(), ranks.back()};
  for (std::size_t a = 0; a < positions.axes(); ++a) {
    if (const auto neighbour = positions.neighbour(a)) samples.push_back(ranks[*neighbour]);
  }
  constexpr std::size_t kBetween = 30;
  for (std::size_t k = 1; k <= kBetween; ++k)
    samples.push_back(ranks[k * ranks.size() / (kBetween + 1)]);
  std::ranges::sort(samples);
  samples.erase(std::unique(samples.begin(), samples.end()), samples.end());
  return samples;
}

// Lowering a rank takes as long as hundreds of comparisons. Of larger classes only a sample is
// lowered, if their numbers are affine.
constexpr std::size_t kMaxAllLowered = 64;

std::vector<std::vector<std::int32_t>> ranks_to_lower(const Dist& dist,
                                                      const std::vector<RankClass>& classes) {
  std::vector<std::vector<std::int32_t>> result;
  for (const RankClass& rank_class : classes) {
    result.push_back(rank_class.ranks);
    if (rank_class.ranks.size() <= kMaxAllLowered ||
        dist.models()[rank_class.ranks.front()] == nullptr)
      continue;
    const Positions positions(dist.mesh(), rank_class.ranks);
    if (are_affine(dist, rank_class.ranks, positions)) {
      result.back() = sampled_ranks(rank_class.ranks, positions);
    }
  }
  return result;
}

}  // namespace

LoweredRanks lower(const Dist& dist, LoweringPurpose purpose) {
  LoweredRanks result{.plan = {}, .classes = find_rank_classes(dist, purpose)};
  GrainBuilder grains;
  for (const RankClass& rank_class : result.classes) grains.add(rank_class.first);
  const Grain grain = grains.build();
  const workload::ModelShape& shape = dist.world().shape;
  if (purpose == LoweringPurpose::execution && shape.layers.empty()) {
    require_whole_rows(shape, grain);
  }
  const LayerClasses classes(shape);
  Training training;
  for (const Model* model : dist.models()) {
    if (model != nullptr) training = model->training();
  }
  const Tensors tensors(training, grain);
  result.plan.mesh = dist.mesh();
  result.plan.tensors = tensors.all();
  const LoweringContext lowering{
      .dist = dist, .grain = grain, .classes = classes, .tensors = tensors, .purpose = purpose};
  std::vector<std::vector<std::int32_t>> chosen = ranks_to_lower(dist, result.classes);
  for (bool done = false; !done;) {
    // In the order of ranks.
    std::vector<std::pair<std::int32_t, std::size_t>> all;
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      for (const std::int32_t rank : chosen[k]) all.emplace_back(rank, k);
    }
    std::ranges::sort(all);
    ProgramDeduplicator deduplicator(result.plan.mesh);
    ProgressTicker ticker(dist.world().progress,
                          {.what = "lowering ranks", .unit = "ranks", .total = std::ssize(all)});
    for (const auto& [rank, k] : all) {
      RankClass& rank_class = result.classes[k];
      ticker.advance();
      const bool is_first = rank == rank_class.ranks.front();
      deduplicator.add(
          rank, is_first ? rank_program(lowering, rank, rank_class.first, &rank_class.step_of)
                         : rank_program(lowering, rank, recording_of(dist, rank, purpose)));
    }
    done = true;
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      if (chosen[k].size() == result.classes[k].ranks.size()) continue;
      if (deduplicator.extrapolate(chosen[k], result.classes[k].ranks)) continue;
      chosen[k] = result.classes[k].ranks;
      done = false;
    }
    if (done) deduplicator.finish(result.plan);
  }
  return result;
}

plan::Plan to_plan(const Trainer& trainer) {
  return lower(trainer.dist(), LoweringPurpose::execution).plan;
}

}  // namespace shiplap::strategy
