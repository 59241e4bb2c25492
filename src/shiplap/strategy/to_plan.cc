#include "shiplap/strategy/to_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/strategy/rank_program_internal.h"
#include "shiplap/strategy/share_internal.h"

namespace shiplap::strategy {
namespace {

void require_whole_rows(const workload::ModelShape& shape, const Grain& grain) {
  const bool fits = shape.weight().count % grain.weight == 0 && shape.hidden % grain.sample == 0;
  if (fits) return;
  throw InputError(Diagnostic{
      .code = "D622",
      .what = fmt::format("a weight of {} x {} cannot be cut into {} equal shards", shape.hidden,
                          shape.hidden, std::max(grain.weight, grain.sample)),
      .why = "every shard has the same number of bytes",
      .help = "take a hidden size that is a multiple of the number of shards"});
}

Recording recording_of(const Dist& dist, std::int32_t rank, Lowered purpose) {
  const Model* const model = dist.models()[rank];
  if (model == nullptr) return {};
  return purpose == Lowered::to_be_repeated ? model->recording() : model->recording_so_far();
}

std::vector<LoweredRanks::Kind> find_kinds(const Dist& dist, Lowered purpose) {
  std::vector<LoweredRanks::Kind> kinds;
  using Key = std::tuple<const Tape*, std::int32_t, std::int32_t, std::vector<std::string>>;
  std::map<Key, std::size_t> known;
  for (std::int32_t rank = 0; rank < dist.size(); ++rank) {
    const Model* const model = dist.models()[rank];
    Key key;
    if (model != nullptr) {
      const Tapes::Position at = model->recorder().position();
      key = {at.tape, at.steps, at.values, model->streams()};
    }
    // What is complete and not yet waited for is on no tape.
    const bool alone = model != nullptr && model->is_between_waits();
    const auto found = alone ? known.end() : known.find(key);
    if (found != known.end()) {
      kinds[found->second].ranks.push_back(rank);
      continue;
    }
    if (!alone) known.emplace(std::move(key), kinds.size());
    kinds.push_back({.ranks = {rank}, .first = recording_of(dist, rank, purpose)});
  }
  return kinds;
}

// Whether every recorded number of these ranks is base + sum of factor * position on the axes. Then
// so are the numbers of their programs, which are made from them alone: rows are cut where shards
// begin and end, in proportion.
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

// The first, a neighbour of it on every axis, the last, and some between them.
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

// Lowering a rank takes as long as hundreds of comparisons: of many alike, some are lowered, if the
// others can differ from them only by expressions of the position.
constexpr std::size_t kMaxAllLowered = 64;

std::vector<std::vector<std::int32_t>> ranks_to_lower(
    const Dist& dist, const std::vector<LoweredRanks::Kind>& kinds) {
  std::vector<std::vector<std::int32_t>> result;
  for (const LoweredRanks::Kind& kind : kinds) {
    result.push_back(kind.ranks);
    if (kind.ranks.size() <= kMaxAllLowered || dist.models()[kind.ranks.front()] == nullptr)
      continue;
    const Positions positions(dist.mesh(), kind.ranks);
    if (are_affine(dist, kind.ranks, positions)) {
      result.back() = sampled_ranks(kind.ranks, positions);
    }
  }
  return result;
}

}  // namespace

LoweredRanks lower(const Dist& dist, Lowered purpose) {
  LoweredRanks result{.plan = {}, .kinds = find_kinds(dist, purpose)};
  Grain grain;
  for (const LoweredRanks::Kind& kind : result.kinds) grain = common_grain(grain, kind.first);
  // Where layers are split, the features that a weight writes and an activation has are the same.
  if (grain.sample > 1) grain.weight = grain.sample = std::lcm(grain.weight, grain.sample);
  if (purpose == Lowered::to_be_repeated) require_whole_rows(dist.world().shape, grain);
  Training training;
  for (const Model* model : dist.models()) {
    if (model != nullptr) training = model->training();
  }
  const Tensors tensors(training, grain);
  result.plan.mesh = dist.mesh();
  result.plan.tensors = tensors.all();
  const Lowering lowering{.dist = dist, .grain = grain, .tensors = tensors, .purpose = purpose};
  std::vector<std::vector<std::int32_t>> chosen = ranks_to_lower(dist, result.kinds);
  for (bool done = false; !done;) {
    // In the order of ranks, in which kinds are found.
    std::vector<std::pair<std::int32_t, std::size_t>> all;
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      for (const std::int32_t rank : chosen[k]) all.emplace_back(rank, k);
    }
    std::ranges::sort(all);
    ProgramSharing sharing(result.plan.mesh);
    ProgressTicker ticker(dist.world().progress,
                          {.what = "lowering ranks", .unit = "ranks", .total = std::ssize(all)});
    for (const auto& [rank, k] : all) {
      LoweredRanks::Kind& kind = result.kinds[k];
      ticker.advance();
      const bool is_first = rank == kind.ranks.front();
      sharing.add(rank, is_first ? rank_program(lowering, rank, kind.first, &kind.step_of)
                                 : rank_program(lowering, rank, recording_of(dist, rank, purpose)));
    }
    done = true;
    for (std::size_t k = 0; k < chosen.size(); ++k) {
      if (chosen[k].size() == result.kinds[k].ranks.size()) continue;
      if (sharing.extend(chosen[k], result.kinds[k].ranks)) continue;
      chosen[k] = result.kinds[k].ranks;
      done = false;
    }
    if (done) sharing.finish(result.plan);
  }
  return result;
}

plan::Plan to_plan(const Trainer& trainer) {
  return lower(trainer.dist(), Lowered::to_be_repeated).plan;
}

}  // namespace shiplap::strategy
