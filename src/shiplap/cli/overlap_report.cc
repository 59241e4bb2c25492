#include "shiplap/cli/overlap_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shiplap/base/version.h"
#include "shiplap/cli/table.h"
#include "shiplap/report/lanes.h"
#include "shiplap/report/legend.h"
#include "shiplap/report/table.h"

namespace shiplap::cli {
namespace {

using report::KeyNumber;
using report::LaneWords;
using report::Panel;

constexpr int kMaxLanes = 16;
constexpr std::size_t kMostStepsListed = 1000;

// As many ranks as are drawn.
int drawn(const overlap::Problem& problem) { return std::min(problem.ranks, kMaxLanes); }

// A number and its sign are not to be parted.
std::string together(std::string text) {
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ')) {
    text.replace(at, 1, "\u00A0");
  }
  return text;
}

LaneWords words_of(const OverlapStep& step) {
  const std::string rows =
      step.rows == 1 ? fmt::format("row {}", step.first_row)
                     : fmt::format("rows {} to {}", step.first_row, step.first_row + step.rows - 1);
  const std::string chunk = step.chunk >= 0 ? fmt::format("chunk {}, ", step.name) : "";
  LaneWords words{.label = step.name,
                  .facts = fmt::format("{} {}{}", step.word, chunk, rows),
                  .group = step.owner};
  if (step.kind == OverlapStep::Kind::collective && step.owner < 0 && !step.name.empty()) {
    words.facts = fmt::format("{} chunk {} of every rank", step.word, step.name.substr(2));
  }
  if (step.kind == OverlapStep::Kind::sum) {
    words.label = "+";
    words.look = LaneWords::Look::aside;
  } else if (step.owner >= 0) {
    words.look = LaneWords::Look::hue;
    words.hue = step.owner;
  }
  return words;
}

// What is drawn of one trace.
struct Scene {
  const overlap::Choice& choice;
  const overlap::Problem& problem;
  const trace::Trace& trace;
  Seconds end;  // of the picture
};

report::Html lanes_html(const Scene& scene) {
  const plan::Plan plan = overlap::make_plan(scene.choice, scene.problem);
  std::vector<std::vector<OverlapStep>> steps;
  report::Lanes lanes{.window = {.begin = {0}, .end = scene.end}, .end = end_of(scene.trace)};
  for (int rank = 0; rank < drawn(scene.problem); ++rank) {
    steps.push_back(steps_of(plan, rank));
    lanes.rows.push_back(
        {.name = std::to_string(rank), .rank = &scene.trace.ranks[rank], .number = rank});
  }
  lanes.words = [&](const trace::Event& event) {
    return words_of(steps[event.rank][event.operation]);
  };
  lanes.hues = scene.problem.ranks;
  lanes.memory = report::Lanes::Memory::left_out;
  lanes.ways = report::Lanes::Ways::apart;
  lanes.most_arrows = 0;  // they would cross the names of the chunks
  return to_html(lanes);
}

report::Legend legend_of(const OverlapView& view) {
  using report::Swatch;
  const int last = view.problem.ranks - 1;
  report::Legend legend;
  legend.entries.push_back(
      {.swatch = Swatch::ramp,
       .text = last == 0 ? "multiplying" : fmt::format("multiplying rows of rank 0 to {}", last)});
  if (view.choice.type != overlap::Type::all_gather &&
      view.choice.method == overlap::Method::ring_exchange) {
    legend.entries.push_back({.swatch = Swatch::update, .text = "adding up (+)"});
  }
  legend.entries.push_back({.swatch = Swatch::hidden, .text = "communication, hidden"});
  legend.entries.push_back({.swatch = Swatch::exposed, .text = "exposed"});
  legend.entries.push_back({.swatch = Swatch::waiting, .text = "waiting"});
  return legend;
}

std::string how_to_read(const OverlapView& view) {
  const bool has_messages = view.choice.method == overlap::Method::ring_exchange;
  const bool sums = has_messages && view.choice.type != overlap::Type::all_gather;
  std::string text = "A row is a rank, time goes right: above what it multiplies";
  text += sums ? ", then what it adds up, " : ", then ";
  text += has_messages ? "what it sends, below what it receives." : "the collectives.";
  if (view.problem.chunks > 1) text += " 2.1 is chunk 1 of the rows of rank 2";
  if (view.problem.chunks > 1) text += has_messages ? "." : ", *.1 that of every rank.";
  if (view.problem.ranks > kMaxLanes) {
    text += fmt::format(" Of {} ranks the first {} are drawn.", view.problem.ranks, kMaxLanes);
  }
  return text;
}

// ---- panels

// All that is drawn in one scale.
Seconds longest(const OverlapPrediction& prediction, const trace::Trace* measured) {
  const Seconds predicted = std::max(prediction.times.serial, prediction.times.overlapped);
  return measured != nullptr ? std::max(predicted, end_of(*measured)) : predicted;
}

void add_lanes(std::vector<Panel>& panels, const OverlapView& view) {
  const OverlapPrediction& prediction = view.drawn();
  const bool traced = view.measured && !view.measured->trial.trace.ranks.empty();
  trace::Trace measured;
  if (traced) measured = with_messages_begun(view.measured->trial.trace);
  const Seconds end = longest(prediction, traced ? &measured : nullptr);
  const auto panel = [&](std::string title, std::string note, const Scene& scene) {
    Panel made{.title = std::move(title), .note = std::move(note), .body = {}};
    if (panels.empty()) made.body = to_html(legend_of(view));
    made.body += lanes_html(scene);
    panels.push_back(std::move(made));
  };
  panel(view.calibrated
            ? fmt::format("Predicted from the measured G and C: {}",
                          together(to_string(prediction.times.overlapped)))
            : fmt::format("Overlapped: {}", together(to_string(prediction.times.overlapped))),
        how_to_read(view), {view.choice, view.problem, prediction.trace, end});
  if (traced) {
    panel(fmt::format("Measured: {}", together(to_string(end_of(measured)))),
          "One step, of median length among a few, in the same scale. A transfer lasts from when "
          "both ends are ready until it is noticed to be complete.",
          {view.choice, view.problem, measured, end});
  }
  const overlap::Choice serial{.type = view.choice.type};
  panel(fmt::format("One after the other: {}", together(to_string(prediction.times.serial))),
        view.calibrated ? "Predicted, in the same scale." : "In the same scale.",
        {serial, view.problem, prediction.serial_trace, end});
  if (!view.calibrated || !view.predicted) return;
  const Seconds own = longest(*view.predicted, nullptr);
  panel(fmt::format("Predicted for {}: {}", view.predicted->system,
                    together(to_string(view.predicted->times.overlapped))),
        "In a scale of its own.", {view.choice, view.problem, view.predicted->trace, own});
}

Panel numbers_panel(const OverlapView& view) {
  const OverlapNumbers numbers = overlap_numbers(view);
  report::Table table;
  for (const std::string& title : numbers.columns) table.columns.push_back({.title = title});
  table.columns.front().holds = report::Column::Holds::words;
  table.rows = numbers.rows;
  std::string note;
  if (view.measured) {
    note = fmt::format("Measured: medians of {}, of the slowest rank.",
                       counted(view.measured->rounds, "round"));
  }
  return {.title = "The numbers", .note = note, .body = to_html(table)};
}

Panel steps_panel(const OverlapView& view) {
  const OverlapPrediction& prediction = view.drawn();
  const plan::Plan plan = overlap::make_plan(view.choice, view.problem);
  const int rank = last_rank(prediction.trace);
  const TimeColumn times(prediction.times.overlapped);
  using Holds = report::Column::Holds;
  report::Table table{.columns = {{.title = "what", .holds = Holds::words},
                                  {.title = "chunk"},
                                  {.title = "first row"},
                                  {.title = "rows"},
                                  {.title = times.title("start")},
                                  {.title = times.title("end")},
                                  {.title = "bytes"},
                                  {.title = "with rank"}}};
  for (const TimedStep& one : timeline(plan, prediction.trace, rank)) {
    if (table.rows.size() == kMostStepsListed) break;
    table.rows.push_back({std::string(one.step.word), one.step.name,
                          std::to_string(one.step.first_row), std::to_string(one.step.rows),
                          times.cell(one.start), times.cell(one.end),
                          one.bytes.count > 0 ? to_string(one.bytes) : "",
                          one.peer >= 0 ? std::to_string(one.peer) : ""});
  }
  std::string note = fmt::format("Of rank {}, which ends last; predicted.", rank);
  if (table.rows.size() == kMostStepsListed) note += " Only the first 1,000.";
  return {.title = "Step by step",
          .note = note,
          .body = to_html(table),
          .starts = Panel::Starts::folded};
}

// ---- the head of the page

OverlapTimes told_times(const OverlapView& view) {
  if (view.measured) return view.measured->times();
  return view.drawn().times;
}

std::string title_of(const OverlapView& view) {
  const OverlapTimes times = told_times(view);
  std::string title = overlap_name(view.choice, view.problem) + ": ";
  const bool is_clear =
      !view.measured || std::min(times.product, times.communication) >= view.measured->noise();
  const std::string hidden = together(hidden_text(times));
  if (!hidden.empty() && !hidden.starts_with('-') && is_clear)
    title += fmt::format("{} hidden, ", hidden);
  return title + fmt::format("{:.2f} of the time of one after the other", times.of_serial());
}

std::vector<KeyNumber> key_numbers(const OverlapView& view) {
  const OverlapTimes times = told_times(view);
  const auto spread = [&](const run::Spread run::OverlapTrialResult::* which) -> std::string {
    if (!view.measured) return "predicted";
    const run::Spread& all = view.measured->trial.*which;
    return fmt::format("measured, {} to {}", to_string(all.least), to_string(all.most));
  };
  return {{.label = "Overlapped, T",
           .value = to_string(times.overlapped),
           .note = spread(&run::OverlapTrialResult::overlapped)},
          {.label = "One after the other",
           .value = to_string(times.serial),
           .note = spread(&run::OverlapTrialResult::serial)},
          {.label = "Product alone, G",
           .value = to_string(times.product),
           .note = spread(&run::OverlapTrialResult::product)},
          {.label = "Communication alone, C",
           .value = to_string(times.communication),
           .note = spread(&run::OverlapTrialResult::communication)}};
}

std::vector<KeyNumber> more_numbers(const OverlapView& view) {
  const OverlapTimes times = told_times(view);
  const Seconds bound = method_bound(view.choice, view.problem, times);
  std::vector<KeyNumber> more{
      {.label = "max(G, C) / T", .value = fmt::format("{:.2f}", times.least_of_it())},
      {.label = "bound of this method / T",
       .value =
           fmt::format("{:.2f}", times.overlapped > Seconds{0} ? bound / times.overlapped : 1)}};
  const OverlapPrediction& prediction = view.drawn();
  if (view.calibrated) {
    more.push_back(
        {.label = "T predicted from G and C / T measured",
         .value = fmt::format("{:.2f}", prediction.times.overlapped / times.overlapped)});
  } else {
    more.push_back({.label = "product in tiles", .value = to_string(prediction.tiles)});
  }
  return more;
}

std::vector<std::string> assumptions(const OverlapView& view) {
  std::vector<std::string> said{overlap_shape(view.problem) + "."};
  if (view.predicted) {
    said.push_back(fmt::format("Predicted for {}: messages of a rank leave one after the other.",
                               view.predicted->system));
  }
  if (view.measured) {
    said.push_back(fmt::format("Measured on {}{}; products by {}.", view.measured->backend,
                               view.measured->polled ? ", polled" : "",
                               view.measured->trial.multiplied_by));
  }
  for (std::string& warning : overlap_warnings(view)) said.push_back(std::move(warning));
  return said;
}

}  // namespace

report::Page overlap_page(const OverlapView& view, const std::string& command) {
  report::Page page{.title = title_of(view),
                    .numbers = key_numbers(view),
                    .more = more_numbers(view),
                    .assumed = assumptions(view),
                    .panels = {},
                    .command = command,
                    .version = std::string(version())};
  add_lanes(page.panels, view);
  page.panels.push_back(numbers_panel(view));
  page.panels.push_back(steps_panel(view));
  return page;
}

}  // namespace shiplap::cli
