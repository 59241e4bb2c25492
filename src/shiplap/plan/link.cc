// Linking: one value for all ranks of a plan.
//
// Problem: the replay, the executor and the checker need the same facts about a plan: what each
// operation waits for, which operations of different ranks match, and the event of each operation.
// Up to 131,072 ranks must fit in memory and link in interactive time.
//
// Idea: ranks of a program mostly have equal operations. What depends on the rank's own operations
// alone is a RankTemplate, stored once for all ranks that agree in it (hash-consing: E. Goto,
// "Monocopy and associative algorithms in extended Lisp", 1974). A new rank is compared with the
// last template of its program first, because neighbours are mostly equal, then by hash. What does
// differ from rank to rank is one Match per operation, and the event.
//
// Invariants:
// - Templates compare by steps, memory and dependencies; costs are part of a step. A template never
//   moves (deque), so pointers to it stay valid while ranks are added.
// - LinkedRank::first makes (rank, operation) an index into flat arrays over all operations.
// - A message has one number in the trace, on both ends: rank * 2^24 + number of the send.
// - A layer or sample that comes from another rank is unknown while its rank is added; it is
//   deferred and resolved when all ranks are linked (labels.cc, resolve_labels.cc).
//
// Costs come from a callback, so this module does not depend on hardware. Before there was one
// linked program, check, sim and the executor had three matchings and two derivations of events.
#include "shiplap/plan/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/plan/alike_internal.h"
#include "shiplap/plan/labels_internal.h"
#include "shiplap/plan/rank_template_internal.h"
#include "shiplap/plan/trace_axes_internal.h"

namespace shiplap::plan {
namespace {

// Limit of the messages of one rank: see Event::match.
constexpr std::int64_t kMaxSends = std::int64_t{1} << 24;

}  // namespace

class Linker::Impl {
 public:
  Impl(const Plan& plan, LinkOptions options)
      : options_(std::move(options)),
        labeller_(plan),
        streams_(trace_streams(plan)),
        axes_(plan.mesh, linked_.trace.axes) {
    const auto ranks = static_cast<std::size_t>(plan.mesh.ranks());
    linked_.plan = &plan;
    linked_.symmetry = options_.symmetry;
    linked_.ranks.resize(ranks);
    if (options_.events) {
      linked_.trace.streams = streams_.names;
      linked_.trace.ranks.resize(ranks);
    }
    recent_.resize(plan.programs.size(), -1);
  }

  [[nodiscard]] const LinkedProgram& linked() const { return linked_; }

  LinkedProgram finish() {
    linked_.matching = std::move(matcher_).finish(linked_.symmetry);
    if (options_.events) {
      match_events();
      resolve_labels(deferred_, linked_);
    }
    return std::move(linked_);
  }

  void add(const RankProgram& program) {
    const auto rank = program.rank.index();
    const std::size_t total = linked_.matches.size() + program.operations.size();
    iterations_ += program.iterations;
    if (std::cmp_greater(total, options_.operations)) {
      throw_too_large(options_.operations, "operations",
                      "all of them are kept in memory, about 250 bytes each");
    }
    if (iterations_ > options_.iterations) {
      throw_too_large(options_.iterations, "iterations of loops",
                      "every rank is expanded, which takes time for each iteration");
    }
    linked_.ranks[rank].first = std::ssize(linked_.matches);
    linked_.ranks[rank].rank_template = shared_template(program);
    matcher_.join(program, linked_.matches);
    if (!options_.events) return;
    write_events(program);
    labeller_.annotate(program, linked_, deferred_);
  }

 private:
  [[noreturn]] static void throw_too_large(std::int64_t limit, std::string_view what,
                                           std::string why) {
    throw InputError(Diagnostic{.code = "D632",
                                .what = fmt::format("this plan has more than {} {} on all ranks "
                                                    "together",
                                                    with_separators(limit), what),
                                .why = std::move(why),
                                .help = "use a smaller mesh, or raise the limit"});
  }

  // Returns the index of an equal template, or adds a new one.
  std::int32_t shared_template(const RankProgram& program) {
    if (!program.program.exists()) return spare();
    RankTemplate made = plan::template_of(program, options_);
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
    if (options_.events) connect(made);
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
      throw_if_cancelled();
      const Step& step = rank_template.steps[k];
      if (step.event < 0) continue;
      trace::Event& event = events.emplace_back();
      event.kind = step.kind;
      event.rank = program.rank.value;
      event.stream = streams_.index[program.program][StreamId(step.stream)];
      event.operation = static_cast<std::int32_t>(k);
      event.memory = {step.memory};
      const bool moves = step.action != ActionKind::compute && step.action != ActionKind::copy;
      if (moves) event.bytes = {step.bytes};
      if (step.action == ActionKind::send || step.action == ActionKind::receive) {
        event.peer = program.operations[k].peer.value;
      }
      if (is_message(step.action) || is_call(step.action)) {
        event.axis = axes_.of(program, program.operations[k], step);
      }
      if (step.action == ActionKind::send) event.match = program.rank.value * kMaxSends + sends++;
    }
  }

  // Gives each receive the number of its send.
  void match_events() {
    for (const MessageQueue& queue : linked_.matching.queues) {
      for (std::size_t n = 0; n < std::min(queue.sends.size(), queue.receives.size()); ++n) {
        linked_.event({queue.to, queue.receives[n]}).match =
            linked_.event({queue.from, queue.sends[n]}).match;
      }
    }
  }

  LinkOptions options_;
  std::int64_t iterations_ = 0;
  LinkedProgram linked_;
  Matcher matcher_;
  Labeller labeller_;
  DeferredLabels deferred_;
  TraceStreams streams_;
  TraceAxes axes_;
  std::vector<std::int32_t> recent_;  // by program: the template of its last rank
  std::unordered_multimap<std::uint64_t, std::int32_t> known_;
  std::int32_t spare_ = -1;
};

Linker::Linker(const Plan& plan, LinkOptions options)
    : impl_(std::make_unique<Impl>(plan, std::move(options))) {}
Linker::~Linker() = default;
void Linker::add(const RankProgram& program) { impl_->add(program); }
const LinkedProgram& Linker::linked() const { return impl_->linked(); }
LinkedProgram Linker::finish() && { return impl_->finish(); }

OperationId LinkedProgram::other_end(OperationId id) const {
  const Match at = match(id);
  const MessageQueue& queue = matching.queues[at.with];
  const bool sends = step(id).action == ActionKind::send;
  const std::vector<std::int32_t>& side = sends ? queue.receives : queue.sends;
  if (at.n >= std::ssize(side)) return {};
  return {sends ? queue.to : queue.from, side[at.n]};
}

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
  Assignment assignment = assign_programs(plan);
  if (!assignment.problems.empty()) throw InputError(std::move(assignment.problems));
  Linker linker(plan, options);
  ProgressTicker ticker(
      options.progress,
      {.what = "expanding ranks", .unit = "ranks", .total = std::ssize(assignment.program_of)});
  RankProgram expanded;
  const bool is_folded = !options.symmetry.axes.empty();
  for (std::size_t rank = 0; rank < assignment.program_of.size(); ++rank) {
    if (is_folded && !options.symmetry.is_representative(static_cast<std::int32_t>(rank))) continue;
    expanded = expand(plan, Rank(rank), assignment.program_of[rank], {}, std::move(expanded));
    linker.add(expanded);
    if (is_folded) throw_if_unlike(expanded, linker.linked().template_of(rank), options);
    ticker.advance_to(static_cast<std::int64_t>(rank) + 1);
  }
  return std::move(linker).finish();
}

}  // namespace shiplap::plan
