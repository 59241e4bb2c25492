#include "shiplap/trace/summary.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>

#include "shiplap/base/cancellation.h"

namespace shiplap::trace {
namespace {

// The neutral element of add(): an inverted span.
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Span kEmptySpan{.begin = {kInfinity}, .end = {-kInfinity}};

void add(Span& span, Seconds begin, Seconds end) {
  span.begin = std::min(span.begin, begin);
  span.end = std::max(span.end, end);
}

// The span, or [0, 0) if nothing was added.
Span span_or_zero(const Span& span) { return span.begin > span.end ? Span{} : span; }

class TraceSummarizer {
 public:
  explicit TraceSummarizer(const Trace& trace) : trace_(trace) {
    for (const std::string& axes : trace.axes) result_.axes.push_back({.axes = axes});
    counts_.resize(trace.ranks.size());
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) ++counts_[trace.representative(rank)];
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) {
      if (counts_[rank] == 0) continue;
      for (const Event& event : trace.ranks[rank].events) add_event(event, counts_[rank]);
      compare_layers(trace.ranks[rank]);
    }
    result_.whole = span_or_zero(whole_);
    result_.step = span_or_zero(step_);
    // The step includes weights that other ranks still load when it begins.
    result_.step.end = result_.whole.end;
    if (step_.begin > step_.end) result_.step = result_.whole;
    const bool both = forward_begin_ < Seconds{kInfinity} && backward_end_ > Seconds{-kInfinity};
    if (both) result_.passes = {.begin = forward_begin_, .end = backward_end_};
  }

  Summary summary() {
    for (std::size_t rank = 0; rank < trace_.ranks.size(); ++rank) {
      const bool is_own = trace_.is_representative(rank);
      add_rank(is_own ? summarize_rank(rank) : result_.ranks[trace_.representative(rank)]);
    }
    if (is_pipeline_ && result_.passes.length() > Seconds{0}) {
      const Seconds available = std::ssize(trace_.ranks) * result_.passes.length();
      result_.bubble = result_.all.bubble / available;
    }
    for (const KindSummary& kind : kinds_) {
      if (kind.events > 0) result_.kinds.push_back(kind);
    }
    return std::move(result_);
  }

 private:
  void add_event(const Event& event, std::int64_t count);
  void compare_layers(const RankTrace& rank);
  void add_axes(std::size_t rank, const Spans& computation);
  [[nodiscard]] RankSummary summarize_rank(std::size_t rank);
  void add_rank(RankSummary made);

  static constexpr std::size_t kKinds = static_cast<std::size_t>(EventKind::recv) + 1;

  const Trace& trace_;
  std::vector<std::int64_t> counts_;  // by rank: the ranks that it represents
  Span whole_ = kEmptySpan;
  Span step_ = kEmptySpan;
  Seconds forward_begin_{kInfinity};
  Seconds backward_end_{-kInfinity};
  std::optional<std::vector<std::int32_t>> layers_;  // with a forward on the ranks so far
  bool is_pipeline_ = false;
  std::array<KindSummary, kKinds> kinds_{};
  Summary result_;
};

void TraceSummarizer::add_event(const Event& event, std::int64_t count) {
  add(whole_, event.time, event.end());
  if (event.kind != EventKind::load_weights) add(step_, event.time, event.end());
  if (is_forward(event.kind)) forward_begin_ = std::min(forward_begin_, event.time);
  if (is_backward(event.kind)) backward_end_ = std::max(backward_end_, event.end());
  KindSummary& kind = kinds_[static_cast<std::size_t>(event.kind)];
  kind.kind = event.kind;
  kind.events += count;
  kind.time += count * event.duration;
  kind.bytes += {count * event.bytes.count};
  result_.events += count;
}

void TraceSummarizer::compare_layers(const RankTrace& rank) {
  if (is_pipeline_) return;
  std::vector<std::int32_t> layers;
  for (const Event& event : rank.events) {
    if (is_forward(event.kind)) layers.push_back(event.layer);
  }
  std::ranges::sort(layers);
  layers.erase(std::ranges::unique(layers).begin(), layers.end());
  if (layers.empty()) return;
  is_pipeline_ = layers_ && layers != *layers_;
  layers_ = std::move(layers);
}

void TraceSummarizer::add_axes(std::size_t rank, const Spans& computation) {
  if (result_.axes.empty()) return;
  std::vector<std::vector<Span>> along(result_.axes.size());
  for (const Event& event : trace_.ranks[rank].events) {
    if (event.axis >= 0) along[event.axis].push_back({.begin = event.time, .end = event.end()});
  }
  for (std::size_t k = 0; k < along.size(); ++k) {
    const Spans spans = within(united(std::move(along[k])), result_.step);
    result_.axes[k].communication += counts_[rank] * length(spans);
    result_.axes[k].exposed += counts_[rank] * length(without(spans, computation));
  }
}

// From the memory curve, or from the events if there is none.
void find_peak(const RankTrace& rank, RankSummary& result) {
  const auto update = [&result](Seconds time, Bytes bytes) {
    const bool is_first = bytes == result.peak && time < result.peak_time;
    if (bytes > result.peak || is_first) {
      result.peak = bytes;
      result.peak_time = time;
    }
  };
  for (const MemoryPoint& point : rank.memory) update(point.time, point.bytes);
  if (!rank.memory.empty()) return;
  for (const Event& event : rank.events) update(event.time, event.memory);
}

RankSummary TraceSummarizer::summarize_rank(std::size_t rank) {
  const Activity active = activity(trace_.ranks[rank]);
  const Spans computation = within(active.computation, result_.step);
  const Spans communication = within(active.communication, result_.step);
  RankSummary made{.computation = length(computation),
                   .communication = length(communication),
                   .exposed = length(without(communication, computation))};
  const Spans step{result_.step};
  if (result_.step_time() > Seconds{0}) {
    const Spans idle = without(without(step, computation), communication);
    made.idle = length(idle);
    made.bubble = length(within(idle, result_.passes));
  }
  add_axes(rank, computation);
  find_peak(trace_.ranks[rank], made);
  return made;
}

void TraceSummarizer::add_rank(RankSummary made) {
  const int number = static_cast<int>(result_.ranks.size());
  const auto is_most = [&](auto field, int max_rank) {
    return number == 0 || made.*field > result_.ranks[max_rank].*field;
  };
  if (is_most(&RankSummary::exposed, result_.exposed_rank)) result_.exposed_rank = number;
  if (is_most(&RankSummary::idle, result_.idle_rank)) result_.idle_rank = number;
  RankSummary& all = result_.all;
  if (is_most(&RankSummary::peak, result_.peak_rank)) {
    result_.peak_rank = number;
    all.peak = made.peak;
    all.peak_time = made.peak_time;
  }
  for (const auto field : {&RankSummary::computation, &RankSummary::communication,
                           &RankSummary::exposed, &RankSummary::idle, &RankSummary::bubble}) {
    all.*field += made.*field;
  }
  result_.ranks.push_back(made);
}

}  // namespace

double Summary::fraction_of_step(Seconds of_all_ranks) const {
  const Seconds available = std::ssize(ranks) * step_time();
  return available > Seconds{0} ? of_all_ranks / available : 0;
}

Summary summarize(const Trace& trace) { return TraceSummarizer(trace).summary(); }

Activity activity(const RankTrace& rank) {
  std::vector<Span> computation;
  std::vector<Span> communication;
  for (const Event& event : rank.events) {
    throw_if_cancelled();
    auto& spans = is_communication(event.kind) ? communication : computation;
    spans.push_back({.begin = event.time, .end = event.end()});
  }
  return {.computation = united(std::move(computation)),
          .communication = united(std::move(communication))};
}

bool is_forward(EventKind kind) { return kind == EventKind::forward; }

bool is_backward(EventKind kind) {
  return kind == EventKind::backward || kind == EventKind::backward_input ||
         kind == EventKind::backward_weight;
}

}  // namespace shiplap::trace
