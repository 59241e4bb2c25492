#include "shiplap/report/trace_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/base/version.h"
#include "shiplap/report/lanes.h"
#include "shiplap/report/legend.h"
#include "shiplap/report/table.h"
#include "shiplap/report/text.h"
#include "shiplap/trace/summary.h"
#include "shiplap/trace/text.h"

namespace shiplap::report {
namespace {

using trace::RankSummary;
using trace::Trace;

constexpr std::size_t kMaxEventsListed = 1000;
constexpr double kSameTime = 1e-9;  // of the whole

// With a no-break space before the sign.
std::string page_percent(double part) {
  const double value = 100 * part;
  if (value > 1e-9 && value < 0.05) return "<0.1\u00A0%";
  return fmt::format("{:.1f}\u00A0%", std::abs(value) < 0.05 ? 0 : value);
}

// A row of the timeline and of the table: one rank, which may represent others.
struct Row {
  int rank = 0;
  std::string name;
};
struct Rows {
  std::vector<Row> rows;
  std::string note;  // what is merged or omitted
};

// A row for every rank.
Rows every_rank(const Trace& trace) {
  Rows result;
  for (int rank = 0; rank < std::ssize(trace.ranks); ++rank) {
    result.rows.push_back({.rank = rank, .name = std::to_string(rank)});
  }
  return result;
}

// Samples rows evenly, including the first, the last, and the one with the peak.
void sample_rows(Rows& rows, std::size_t most, int peak_rank) {
  const std::size_t all = rows.rows.size();
  std::vector<Row> kept;
  for (std::size_t i = 0; i < all; ++i) {
    const bool is_even = i * (most - 1) / (all - 1) != (i + 1) * (most - 1) / (all - 1);
    if (is_even || i == 0 || rows.rows[i].rank == peak_rank) kept.push_back(rows.rows[i]);
  }
  rows.note += fmt::format(" {1} of {0} different rows are drawn.",
                           with_separators(static_cast<std::int64_t>(all)), kept.size());
  rows.rows = std::move(kept);
}

Rows rows_of(const Trace& trace, const trace::Summary& summary, const TraceReportText& text) {
  if (std::ssize(trace.ranks) <= kMaxUnfoldedRanks) return every_rank(trace);
  Rows result;
  std::string folded;      // the ranks of rows that the mesh does not name
  std::size_t listed = 0;  // such rows
  bool shares = false;
  for (const IdenticalRanks& group : group_identical_ranks(trace)) {
    const int first = group.ranks.front();
    const std::size_t others = group.ranks.size() - 1;
    const std::string name = name_by_mesh(group.ranks, text.mesh);
    result.rows.push_back({.rank = first, .name = name.empty() ? std::to_string(first) : name});
    if (others == 0) continue;
    shares = true;
    if (!name.empty()) continue;
    result.rows.back().name += fmt::format(" and {} more", others);
    if (++listed > 8) continue;
    folded +=
        fmt::format("; {} and {} more: ranks {}", first, others, to_string(IndexSet(group.ranks)));
  }
  if (listed > 8) folded += fmt::format("; and so on for {} more", listed - 8);
  if (shares) {
    result.note = " Ranks with identical timelines share one row" + folded +
                  ". The samples are those of the first.";
  }
  const std::size_t most = text.limits.rows;
  if (result.rows.size() > most) sample_rows(result, most, summary.peak_rank);
  return result;
}

std::string title_of(const Trace& trace, const TraceReportText& text,
                     const trace::Summary& summary) {
  std::string title =
      fmt::format("{} on {}: ", text.name, counted(std::ssize(trace.ranks), "rank"));
  title +=
      summary.bubble ? page_percent(*summary.bubble) + " bubble" : to_string(summary.step_time());
  if (summary.all.peak.count == 0) return title;
  return title +
         fmt::format(", peak {} on rank {}", to_string(summary.all.peak), summary.peak_rank);
}

std::vector<KeyNumber> key_numbers(const trace::Summary& summary, const TraceScale& scale) {
  std::vector<KeyNumber> numbers;
  const bool has_loading = summary.total() > summary.step_time();
  numbers.push_back({.label = "Time per step",
                     .value = to_string(summary.step_time()),
                     .note = scale.tokens > 0 ? format_throughput(summary, scale)
                             : has_loading
                                 ? to_string(summary.total()) + " with loading the weights"
                                 : "from the first event to the end of the last"});
  numbers.push_back(
      {.label = "Peak memory",
       .value = to_string(summary.all.peak),
       .note = fmt::format(
           "{}on rank {}, {}",
           scale.capacity.count > 0 ? fmt::format("of {}, ", to_string(scale.capacity)) : "",
           summary.peak_rank, format_peak_time(summary))});
  if (summary.bubble) {
    numbers.push_back({.label = "Bubble",
                       .value = page_percent(*summary.bubble),
                       .note = fmt::format("idle ranks between the first forward and the last "
                                           "backward, {}",
                                           to_string(summary.passes.length()))});
  }
  if (summary.all.communication > Seconds{0}) {
    const RankSummary& worst = summary.ranks[summary.exposed_rank];
    const std::string axes = format_exposed_axes(summary);
    numbers.push_back({.label = "Exposed communication",
                       .value = page_percent(summary.fraction_of_step(summary.all.exposed)),
                       .note = fmt::format("of the ranks' time in the step{}; most on rank {}, {}",
                                           axes.empty() ? "" : ": " + axes, summary.exposed_rank,
                                           to_string(worst.exposed))});
  }
  return numbers;
}

std::vector<KeyNumber> more_numbers(const trace::Summary& summary) {
  Bytes sent;
  Bytes collective;
  for (const trace::KindSummary& kind : summary.kinds) {
    if (kind.kind == trace::EventKind::send) {
      sent += kind.bytes;
    } else if (trace::is_communication(kind.kind) && kind.kind != trace::EventKind::recv) {
      collective += kind.bytes;
    }
  }
  std::vector<KeyNumber> more{
      {.label = "computing",
       .value = page_percent(summary.fraction_of_step(summary.all.computation))},
      {.label = "waiting", .value = page_percent(summary.fraction_of_step(summary.all.idle))},
      {.label = "events", .value = with_separators(summary.events)}};
  if (sent.count > 0) more.push_back({.label = "sent in messages", .value = to_string(sent)});
  if (collective.count > 0) {
    more.push_back({.label = "in collectives",
                    .value = to_string(collective),
                    .note = "buffers of all ranks"});
  }
  return more;
}

Legend legend_of(const trace::Summary& summary, const Lanes& lanes) {
  const std::int64_t layers = layers_of(lanes);
  Legend legend;
  const auto has = [&](auto&& is_meant) {
    return std::ranges::any_of(summary.kinds,
                               [&](const auto& kind) { return is_meant(kind.kind); });
  };
  if (has(trace::is_forward) || has(trace::is_backward)) {
    const std::string range = layers == 1 ? "layer 0" : fmt::format("layers 0 to {}", layers - 1);
    legend.entries.push_back({.swatch = Swatch::ramp, .text = "forward, " + range});
    legend.entries.push_back({.swatch = Swatch::pale, .text = "backward, paler"});
  }
  if (has([](trace::EventKind kind) { return kind == trace::EventKind::update; })) {
    legend.entries.push_back({.swatch = Swatch::update, .text = "update (U)"});
  }
  const auto draws_other = [](const Lanes::Row& row) {
    return std::ranges::any_of(row.rank->events, [](const trace::Event& event) {
      return event.kind == trace::EventKind::load_weights || event.kind == trace::EventKind::copy;
    });
  };
  if (std::ranges::any_of(lanes.rows, draws_other)) {
    legend.entries.push_back({.swatch = Swatch::computation, .text = "loading, other work"});
  }
  legend.entries.push_back({.swatch = Swatch::waiting, .text = "waiting"});
  if (has(trace::is_communication)) {
    legend.entries.push_back({.swatch = Swatch::hidden, .text = "communication, hidden"});
    legend.entries.push_back({.swatch = Swatch::exposed, .text = "communication, exposed"});
  }
  if (summary.all.peak.count > 0) {
    legend.entries.push_back({.swatch = Swatch::memory, .text = "memory, its peak marked"});
    legend.entries.push_back({.swatch = Swatch::wrong, .text = "highest peak"});
  }
  return legend;
}

// Weights are loaded once but there are many steps, so the timeline shows only the step.
std::string loading_note(const trace::Summary& summary) {
  const Seconds loading = summary.step.begin - summary.whole.begin;
  if (loading <= Seconds{0}) return "";
  return fmt::format(" Loading the weights, {} before the step, is not drawn.", to_string(loading));
}

std::string clock_note(const Trace& trace) {
  if (trace.clock_uncertainty <= Seconds{0}) return "";
  return fmt::format(" The clocks of the ranks are aligned to ±\u00A0{}.",
                     to_string(trace.clock_uncertainty));
}

Panel lanes_panel(const Trace& trace, const trace::Summary& summary, const Rows& rows,
                  const TracePageLimits& limits) {
  Lanes lanes{.window = summary.step,
              .max_boxes = limits.boxes,
              .max_memory_points = limits.memory_points,
              .min_gap = limits.min_gap};
  std::vector<trace::RankTrace> drawn;  // of the rows
  drawn.reserve(rows.rows.size());
  for (const Row& row : rows.rows) {
    const RankSummary& rank = summary.ranks[row.rank];
    drawn.push_back(cut_before(trace.of(row.rank), summary.step.begin));
    if (row.rank == summary.peak_rank && summary.all.peak.count > 0) {
      lanes.peak_row = static_cast<int>(lanes.rows.size());
    }
    lanes.rows.push_back({.name = row.name,
                          .rank = &drawn.back(),
                          .number = row.rank,
                          .peak = rank.peak,
                          .peak_time = std::max(rank.peak_time, summary.step.begin)});
  }
  Panel panel{.title = "Timeline",
              .note =
                  "Each row is a rank, time goes right: computation on top, then communication, "
                  "then memory. Numbers in boxes are samples." +
                  rows.note + loading_note(summary) + clock_note(trace),
              .by_hand =
                  "Point at a box, or use the arrow keys, to follow its samples; ctrl and "
                  "the wheel, or + and -, zoom."};
  panel.body = to_html(legend_of(summary, lanes));
  panel.body += to_html(lanes);
  return panel;
}

Panel ranks_panel(const trace::Summary& summary, const Rows& rows) {
  const TimeColumn times(summary.total());
  Table table({Column::numbers("rank"), Column::numbers(times.title("computing")),
               Column::numbers(times.title("communicating")),
               Column::numbers(times.title("exposed")), Column::numbers(times.title("waiting")),
               Column::numbers("waiting"), Column::numbers("peak memory"),
               Column::numbers(times.title("at"))});
  for (const Row& row : rows.rows) {
    const RankSummary& rank = summary.ranks[row.rank];
    const double idle = summary.step_time() > Seconds{0} ? rank.idle / summary.step_time() : 0;
    table.add({row.name, times.cell(rank.computation), times.cell(rank.communication),
               times.cell(rank.exposed), times.cell(rank.idle), page_percent(idle),
               to_string(rank.peak), times.cell(rank.peak_time - summary.step.begin)});
  }
  return {.title = "Rank by rank",
          .note =
              "Within the step. Computing, exposed and waiting add up to it; communication that "
              "is not exposed overlaps computation. Times at which memory peaks are from the "
              "start of the step." +
              rows.note,
          .body = to_html(table)};
}

Panel kinds_panel(const trace::Summary& summary) {
  const TimeColumn times(summary.total());
  Table table({Column::text("kind"), Column::numbers("events"),
               Column::numbers(times.title("time")), Column::numbers("mean"),
               Column::numbers("bytes")});
  for (const trace::KindSummary& kind : summary.kinds) {
    const Seconds mean{kind.time.value / static_cast<double>(kind.events)};
    table.add({std::string(name(kind.kind)), with_separators(kind.events), times.cell(kind.time),
               to_string(mean), trace::is_communication(kind.kind) ? to_string(kind.bytes) : ""});
  }
  return {.title = "Kind by kind",
          .note =
              "Durations added up over all ranks. A message counts for its send and again for "
              "its recv, a collective for each of its ranks.",
          .body = to_html(table)};
}

Panel events_panel(const Trace& trace, const trace::Summary& summary, const Rows& rows) {
  const TimeColumn times(summary.total());
  Table table({Column::numbers("rank"), Column::text("event"),
               Column::numbers(times.title("start")), Column::numbers(times.title("duration")),
               Column::numbers("bytes"), Column::numbers("memory"), Column::numbers("operation")});
  for (const Row& row : rows.rows) {
    for (const trace::Event& event : trace.of(row.rank).events) {
      if (table.rows() == kMaxEventsListed) break;
      const bool communicates = trace::is_communication(event.kind);
      table.add({std::to_string(row.rank), trace::label(event),
                 times.cell(event.time - summary.step.begin), times.cell(event.duration),
                 communicates ? to_string(event.bytes) : "", to_string(event.memory),
                 event.operation >= 0 ? std::to_string(event.operation) : ""});
    }
  }
  std::string note =
      "In program order: L is the layer, s the samples. Times are from the start of the step; "
      "weights are loaded before it.";
  if (table.rows() == kMaxEventsListed) note += " Only the first 1,000.";
  return {.title = "Event by event",
          .note = note,
          .body = to_html(table),
          .starts = Panel::Starts::folded};
}

bool is_same_time(Seconds a, Seconds b, Seconds whole) {
  return std::abs(a.value - b.value) <= kSameTime * whole.value;
}

// Keeps the last of several changes at one time: ranks may free the same rows in different pieces.
std::vector<trace::MemoryPoint> final_values(const std::vector<trace::MemoryPoint>& points) {
  std::vector<trace::MemoryPoint> result;
  for (const trace::MemoryPoint& point : points) {
    if (!result.empty() && result.back().time == point.time) result.pop_back();
    result.push_back(point);
  }
  return result;
}

bool is_identical(const trace::RankTrace& a, const trace::RankTrace& b, Seconds whole) {
  const auto same_event = [&](const trace::Event& x, const trace::Event& y) {
    return x.kind == y.kind && x.layer == y.layer && x.stream == y.stream &&
           is_same_time(x.time, y.time, whole) && is_same_time(x.duration, y.duration, whole);
  };
  const auto same_point = [&](const trace::MemoryPoint& x, const trace::MemoryPoint& y) {
    return x.bytes == y.bytes && is_same_time(x.time, y.time, whole);
  };
  return std::ranges::equal(a.events, b.events, same_event) &&
         std::ranges::equal(final_values(a.memory), final_values(b.memory), same_point);
}

// Equal for identical ranks and rarely for others. Hashes only the fields that is_identical()
// compares exactly.
std::uint64_t fingerprint(const trace::RankTrace& rank) {
  std::uint64_t hash = 14'695'981'039'346'656'037U;  // FNV-1a, over whole numbers
  const auto add = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 1'099'511'628'211U;
  };
  for (const trace::Event& event : rank.events) {
    add(static_cast<std::int64_t>(event.kind));
    add(event.layer);
    add(event.stream);
  }
  for (const trace::MemoryPoint& point : final_values(rank.memory)) add(point.bytes.count);
  return hash;
}

// Identical ranks are in the same bucket or in neighbouring ones: the sums of their times differ by
// at most the width of a bucket.
std::int64_t bucket_of(const trace::RankTrace& rank, const trace::Span& whole) {
  if (whole.length() <= Seconds{0}) return 0;
  double sum = 0;
  for (const trace::Event& event : rank.events) sum += (event.time - whole.begin) / whole.length();
  const double width = kSameTime * static_cast<double>(rank.events.size() + 1);
  return static_cast<std::int64_t>(std::floor(sum / width));
}

}  // namespace

trace::RankTrace cut_before(trace::RankTrace rank, Seconds begin) {
  std::erase_if(rank.events, [&](const trace::Event& event) { return event.end() <= begin; });
  for (trace::Event& event : rank.events) {
    const Seconds end = event.end();
    event.time = std::max(event.time, begin);
    event.duration = end - event.time;
  }
  for (trace::MemoryPoint& point : rank.memory) point.time = std::max(point.time, begin);
  return rank;
}

std::string format_peak_time(const trace::Summary& summary) {
  const Seconds after = summary.all.peak_time - summary.step.begin;
  if (after < Seconds{0}) return "while loading the weights, before the step";
  if (after == Seconds{0}) return "at the start of the step";
  return to_string(after) + " into the step";
}

std::string name_by_mesh(const std::vector<int>& ranks, const plan::Mesh& mesh) {
  if (ranks.size() < 2 || std::ssize(ranks) == mesh.ranks()) return "";
  if (ranks.back() >= mesh.ranks()) return "";
  std::vector<std::set<std::int32_t>> positions(mesh.axes.size());
  for (const int rank : ranks) {
    const std::vector<std::int64_t> at = mesh.positions(Rank(rank));
    for (std::size_t k = 0; k < positions.size(); ++k) {
      positions[k].insert(static_cast<std::int32_t>(at[k]));
    }
  }
  std::string name;
  std::size_t product = 1;
  std::size_t axes = 0;  // with several positions
  for (std::size_t k = 0; k < positions.size(); ++k) {
    const plan::Axis& axis = mesh.axes[k];
    product *= positions[k].size();
    if (axis.size > 1) ++axes;
    if (std::ssize(positions[k]) == axis.size) continue;
    const std::vector<std::int32_t> listed(positions[k].begin(), positions[k].end());
    name += fmt::format("{}{}={}", name.empty() ? "" : " ", axis.name, to_string(IndexSet(listed)));
  }
  return axes > 1 && product == ranks.size() ? name : "";
}

std::vector<IdenticalRanks> group_identical_ranks(const Trace& trace) {
  const trace::Summary summary = trace::summarize(trace);
  std::vector<IdenticalRanks> groups;
  std::map<std::pair<std::uint64_t, std::int64_t>, std::vector<std::size_t>> buckets;
  std::vector<std::size_t> group_of(trace.ranks.size());
  for (int rank = 0; rank < std::ssize(trace.ranks); ++rank) {
    if (!trace.is_representative(rank)) {
      group_of[rank] = group_of[trace.representative(rank)];
      groups[group_of[rank]].ranks.push_back(rank);
      continue;
    }
    const trace::RankTrace& rank_trace = trace.ranks[rank];
    const std::uint64_t print = fingerprint(rank_trace);
    const std::int64_t bucket = bucket_of(rank_trace, summary.whole);
    const auto matches = [&](std::size_t group) {
      return is_identical(trace.ranks[groups[group].ranks.front()], rank_trace, summary.total());
    };
    std::size_t found = groups.size();
    for (const std::int64_t near : {bucket - 1, bucket, bucket + 1}) {
      const auto in_bucket = buckets.find({print, near});
      if (in_bucket == buckets.end()) continue;
      const auto first = std::ranges::find_if(in_bucket->second, matches);
      if (first != in_bucket->second.end()) found = std::min(found, *first);
    }
    group_of[rank] = found;
    if (found < groups.size()) {
      groups[found].ranks.push_back(rank);
    } else {
      buckets[{print, bucket}].push_back(groups.size());
      groups.push_back({.ranks = {rank}});
    }
  }
  return groups;
}

Page trace_page(const Trace& trace, const TraceReportText& text) {
  const trace::Summary summary = trace::summarize(trace);
  const Rows rows = rows_of(trace, summary, text);
  return {.title = title_of(trace, text, summary),
          .numbers = key_numbers(summary, text.scale),
          .more = more_numbers(summary),
          .assumed = text.assumed,
          .panels = {lanes_panel(trace, summary, rows, text.limits), ranks_panel(summary, rows),
                     kinds_panel(summary), events_panel(trace, summary, rows)},
          .command = text.command,
          .version = std::string(version())};
}

}  // namespace shiplap::report
