#include "shiplap/plan/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/labels_internal.h"
#include "shiplap/plan/link_matching_internal.h"
#include "shiplap/plan/rank_template_internal.h"

namespace shiplap::plan {
namespace {

// Messages of one rank are numbered below this.
constexpr std::int64_t kMaxSends = std::int64_t{1} << 24;

class Linker {
 public:
  Linker(const Plan& plan, const LinkOptions& options)
      : plan_(plan),
        options_(options),
        matching_(linked_),
        labeller_(plan),
        streams_(trace_streams(plan)) {
    linked_.plan = &plan;
    recent_.resize(plan.programs.size(), -1);
  }

  LinkedProgram link() && {
    Assignment assignment = assign_programs(plan_);
    if (!assignment.problems.empty()) throw InputError(std::move(assignment.problems));
    linked_.trace.streams = streams_.names;
    const std::size_t ranks = assignment.program_of.size();
    linked_.ranks.resize(ranks);
    linked_.trace.ranks.resize(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      add(expand(plan_, Rank(rank), assignment.program_of[rank]));
    }
    matching_.close();
    resolve_labels(deferred_, linked_);
    return std::move(linked_);
  }

 private:
  void add(const RankProgram& program) {
    const auto rank = program.rank.index();
    const std::size_t total = linked_.links.size() + program.operations.size();
    iterations_ += program.iterations;
    if (std::cmp_greater(total, options_.operations)) {
      too_large(options_.operations, "operations",
                "all of them are held at once, about 250 bytes each");
    }
    if (iterations_ > options_.iterations) {
      too_large(options_.iterations, "iterations of loops",
                "every rank is expanded, which takes time for each of them");
    }
    linked_.ranks[rank].first = std::ssize(linked_.links);
    linked_.ranks[rank].rank_template = shared_template(program);
    linked_.links.resize(total);
    linked_.call_of.resize(total, -1);
    write_events(program);
    matching_.join(program);
    labeller_.follow(program, linked_, deferred_);
  }

  [[noreturn]] static void too_large(std::int64_t limit, std::string_view what, std::string why) {
    throw InputError(Diagnostic{.code = "D632",
                                .what = fmt::format("this plan has more than {} {} on all ranks "
                                                    "together",
                                                    with_separators(limit), what),
                                .why = std::move(why),
                                .help = "use a smaller mesh, or raise the limit"});
  }

  // Ranks of a program are mostly alike, neighbours above all.
  std::int32_t shared_template(const RankProgram& program) {
    if (!program.program.exists()) return spare();
    RankTemplate made = plan::template_of(program, streams_.index[program.program], options_);
    std::int32_t& recent = recent_[program.program.index()];
    if (recent >= 0 && linked_.templates[recent].same_steps(made)) {
      return recent;
    }
    const std::uint64_t hash = hash_of(made);
    const auto [first, last] = known_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (linked_.templates[it->second].same_steps(made)) {
        return recent = it->second;
      }
    }
    connect(made);
    recent = static_cast<std::int32_t>(linked_.templates.size());
    linked_.templates.push_back(std::move(made));
    known_.emplace(hash, recent);
    return recent;
  }

  std::int32_t spare() {
    if (spare_ < 0) {
      spare_ = static_cast<std::int32_t>(linked_.templates.size());
      linked_.templates.emplace_back();
    }
    return spare_;
  }

  static std::uint64_t hash_of(const RankTemplate& rank_template) {
    std::uint64_t hash = rank_template.steps.size();
    const auto mix = [&](std::int64_t more) {
      hash = (hash ^ static_cast<std::uint64_t>(more)) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 31U;
    };
    for (const Step& step : rank_template.steps) {
      mix(step.source->origin.line);
      mix(step.bytes);
      mix(step.detail);
      mix(std::bit_cast<std::int64_t>(step.cost));
    }
    return hash;
  }

  void write_events(const RankProgram& program) {
    const RankTemplate& rank_template = linked_.template_of(program.rank.value);
    std::vector<trace::Event>& events = linked_.trace.ranks[program.rank.index()].events;
    events.reserve(rank_template.events);
    std::int64_t sends = 0;
    for (std::size_t k = 0; k < rank_template.steps.size(); ++k) {
      const Step& step = rank_template.steps[k];
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
      if (step.act == Act::send) event.match = program.rank.value * kMaxSends + sends++;
    }
  }

  const Plan& plan_;
  const LinkOptions& options_;
  std::int64_t iterations_ = 0;
  LinkedProgram linked_;
  Matching matching_;
  Labeller labeller_;
  DeferredLabels deferred_;
  TraceStreams streams_;
  std::vector<std::int32_t> recent_;  // by program: the last rank_template
  std::unordered_multimap<std::uint64_t, std::int32_t> known_;
  std::int32_t spare_ = -1;
};

}  // namespace

TraceStreams trace_streams(const Plan& plan) {
  TraceStreams streams{.names = trace::Trace().streams};
  for (const Program& program : plan.programs) {
    auto& index = streams.index.emplace_back(1, 0);
    for (const std::string& stream : program.streams) {
      const auto known = std::ranges::find(streams.names, stream);
      index.push_back(static_cast<std::int32_t>(known - streams.names.begin()));
      if (known == streams.names.end()) streams.names.push_back(stream);
    }
  }
  return streams;
}

LinkedProgram link(const Plan& plan, const LinkOptions& options) {
  return Linker(plan, options).link();
}

}  // namespace shiplap::plan
