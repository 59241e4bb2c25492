#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/sim/contents_internal.h"
#include "shiplap/sim/job_internal.h"
#include "shiplap/sim/matching_internal.h"
#include "shiplap/sim/skeleton_internal.h"

namespace shiplap::sim {
namespace {

// Messages of one rank are numbered below this.
constexpr std::int64_t kMostSends = std::int64_t{1} << 24;

class Loader {
 public:
  Loader(const plan::Plan& plan, const ReplayOptions& options)
      : plan_(plan), options_(options), matching_(job_), contents_(plan) {
    job_.plan = &plan;
    job_.system = &options.system;
    recent_.resize(plan.programs.size(), -1);
  }

  Job load() && {
    plan::Assignment assignment = plan::assign_programs(plan_);
    if (!assignment.problems.empty()) throw InputError(std::move(assignment.problems));
    number_streams();
    const std::size_t ranks = assignment.program_of.size();
    job_.ranks.resize(ranks);
    job_.trace.ranks.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      add(plan::expand(plan_, Rank(rank), assignment.program_of[rank]));
    }
    matching_.close();
    settle(debts_, job_);
    return std::move(job_);
  }

 private:
  // Streams of the same name are one in the trace.
  void number_streams() {
    std::vector<std::string>& names = job_.trace.streams;
    for (const plan::Program& program : plan_.programs) {
      std::vector<std::int32_t>& numbers = streams_.emplace_back(1, 0);
      for (const std::string& stream : program.streams) {
        const auto known = std::ranges::find(names, stream);
        numbers.push_back(static_cast<std::int32_t>(known - names.begin()));
        if (known == names.end()) names.push_back(stream);
      }
    }
  }

  void add(const plan::RankProgram& program) {
    const auto rank = program.rank.index();
    const std::size_t total = job_.links.size() + program.operations.size();
    iterations_ += program.iterations;
    if (std::cmp_greater(total, options_.operations)) {
      too_large(options_.operations, "operations",
                "a replay holds all of them at once, about 250 bytes each");
    }
    if (iterations_ > options_.iterations) {
      too_large(options_.iterations, "iterations of loops",
                "a replay expands every rank, which takes time for each of them");
    }
    job_.ranks[rank].first = std::ssize(job_.links);
    job_.ranks[rank].skeleton = skeleton(program);
    job_.links.resize(total);
    job_.meeting_of.resize(total, -1);
    write_events(program);
    matching_.join(program);
    contents_.follow(program, job_, debts_);
  }

  [[noreturn]] static void too_large(std::int64_t limit, std::string_view what, std::string why) {
    throw InputError(Diagnostic{.code = "D632",
                                .what = fmt::format("this plan has more than {} {} on all ranks "
                                                    "together",
                                                    with_separators(limit), what),
                                .why = std::move(why),
                                .help = "replay a smaller mesh, or raise the limit"});
  }

  // Ranks of a program are mostly alike, neighbours above all.
  std::int32_t skeleton(const plan::RankProgram& program) {
    if (!program.program.exists()) return spare();
    Skeleton made = skeleton_of(program, *job_.system, streams_[program.program.index()]);
    std::int32_t& recent = recent_[program.program.index()];
    if (recent >= 0 && job_.skeletons[recent].same_steps(made)) {
      return recent;
    }
    const std::uint64_t hash = hash_of(made);
    const auto [first, last] = known_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (job_.skeletons[it->second].same_steps(made)) {
        return recent = it->second;
      }
    }
    connect(made);
    recent = static_cast<std::int32_t>(job_.skeletons.size());
    job_.skeletons.push_back(std::move(made));
    known_.emplace(hash, recent);
    return recent;
  }

  std::int32_t spare() {
    if (spare_ < 0) {
      spare_ = static_cast<std::int32_t>(job_.skeletons.size());
      job_.skeletons.emplace_back();
    }
    return spare_;
  }

  static std::uint64_t hash_of(const Skeleton& skeleton) {
    std::uint64_t hash = skeleton.steps.size();
    const auto mix = [&](std::int64_t more) {
      hash = (hash ^ static_cast<std::uint64_t>(more)) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 31U;
    };
    for (const Step& step : skeleton.steps) {
      mix(step.source->origin.line);
      mix(step.bytes);
      mix(step.detail);
      mix(std::bit_cast<std::int64_t>(step.price));
    }
    return hash;
  }

  void write_events(const plan::RankProgram& program) {
    const Skeleton& skeleton = job_.skeleton(program.rank.value);
    std::vector<trace::Event>& events = job_.trace.ranks[program.rank.index()].events;
    events.reserve(skeleton.events);
    std::int64_t sends = 0;
    for (std::size_t k = 0; k < skeleton.steps.size(); ++k) {
      const Step& step = skeleton.steps[k];
      if (step.event < 0) continue;
      trace::Event& event = events.emplace_back();
      event.kind = step.kind;
      event.rank = program.rank.value;
      event.stream = step.stream;
      event.operation = static_cast<std::int32_t>(k);
      event.memory = {step.memory};
      const bool moves = step.act != Act::timed;
      if (moves) event.bytes = {step.bytes};
      if (step.act == Act::send || step.act == Act::receive) {
        event.peer = program.operations[k].peer.value;
      }
      if (step.act == Act::send) event.match = program.rank.value * kMostSends + sends++;
    }
  }

  const plan::Plan& plan_;
  const ReplayOptions& options_;
  std::int64_t iterations_ = 0;
  Job job_;
  Matching matching_;
  Contents contents_;
  Debts debts_;
  std::vector<std::vector<std::int32_t>> streams_;  // by program: streams of the trace
  std::vector<std::int32_t> recent_;                // by program: the last skeleton
  std::unordered_multimap<std::uint64_t, std::int32_t> known_;
  std::int32_t spare_ = -1;
};

}  // namespace

Job load(const plan::Plan& plan, const ReplayOptions& options) {
  return Loader(plan, options).load();
}

}  // namespace shiplap::sim
