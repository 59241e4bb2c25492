#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shiplap/base/version.h"
#include "shiplap/overlap/steps.h"
#include "shiplap/report/lanes.h"
#include "shiplap/report/legend.h"
#include "shiplap/report/overlap.h"
#include "shiplap/report/quantities_internal.h"
#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

constexpr int kMaxLanes = 16;
constexpr std::size_t kMaxStepsListed = 1000;

// The number of drawn ranks.
int drawn(const overlap::Problem& problem) { return std::min(problem.ranks, kMaxLanes); }

// Replaces spaces by no-break spaces, to keep numbers and units together.
std::string with_hard_spaces(const Cell& cell) {
  std::string text = cell.text;
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ')) {
    text.replace(at, 1, "\u00A0");
  }
  return text;
}

EventLabel label_of(const overlap::Step& step) {
  const std::string rows =
      step.rows == 1 ? fmt::format("row {}", step.first_row)
                     : fmt::format("rows {} to {}", step.first_row, step.first_row + step.rows - 1);
  const std::string chunk = step.chunk >= 0 ? fmt::format("chunk {}, ", step.name) : "";
  EventLabel result{.label = step.name,
                    .tooltip = fmt::format("{} {}{}", step.word, chunk, rows),
                    .group = step.owner};
  if (step.kind == overlap::Step::Kind::collective && step.owner < 0 && !step.name.empty()) {
    result.tooltip = fmt::format("{} chunk {} of every rank", step.word, step.name.substr(2));
  }
  if (step.kind == overlap::Step::Kind::sum) {
    result.label = "+";
    result.style = EventLabel::Style::secondary;
  } else if (step.owner >= 0) {
    result.style = EventLabel::Style::hue;
    result.hue = step.owner;
  }
  return result;
}

// The drawn part of one trace.
struct Scene {
  const overlap::Choice& choice;
  const overlap::Problem& problem;
  const trace::Trace& trace;
  Seconds end;  // of the picture
};

Html lanes_html(const Scene& scene) {
  const plan::Plan plan = overlap::make_plan(scene.choice, scene.problem);
  std::vector<std::vector<overlap::Step>> steps;
  Lanes lanes{.window = {.begin = {0}, .end = scene.end}, .end = overlap::end_of(scene.trace)};
  for (int rank = 0; rank < drawn(scene.problem); ++rank) {
    steps.push_back(overlap::steps_of(plan, rank));
    lanes.rows.push_back(
        {.name = std::to_string(rank), .rank = &scene.trace.ranks[rank], .number = rank});
  }
  lanes.label_event = [&](const trace::Event& event) {
    return label_of(steps[event.rank][event.operation]);
  };
  lanes.hues = scene.problem.ranks;
  lanes.memory = Lanes::Memory::left_out;
  lanes.directions = Lanes::Directions::separate;
  lanes.max_arrows = 0;  // they would cross the names of the chunks
  return to_html(lanes);
}

Legend legend_of(const overlap::Study& study) {
  const int last = study.problem.ranks - 1;
  Legend legend;
  legend.entries.push_back(
      {.swatch = Swatch::ramp,
       .text = last == 0 ? "GEMM" : fmt::format("GEMM, rows of rank 0 to {}", last)});
  if (study.choice.type != overlap::Type::all_gather &&
      study.choice.method == overlap::Method::ring_exchange) {
    legend.entries.push_back({.swatch = Swatch::update, .text = "summation (+)"});
  }
  legend.entries.push_back({.swatch = Swatch::hidden, .text = "communication, hidden"});
  legend.entries.push_back({.swatch = Swatch::exposed, .text = "exposed"});
  legend.entries.push_back({.swatch = Swatch::waiting, .text = "waiting"});
  return legend;
}

std::string how_to_read(const overlap::Study& study) {
  const bool has_messages = study.choice.method == overlap::Method::ring_exchange;
  const bool sums = has_messages && study.choice.type != overlap::Type::all_gather;
  std::string text = "Each row is a rank, time goes right: its GEMMs on top";
  text += sums ? ", then sums, " : ", then ";
  text += has_messages ? "sends, and receives at the bottom." : "collectives.";
  if (study.problem.chunks > 1) text += " 2.1 is chunk 1 of the rows of rank 2";
  if (study.problem.chunks > 1) text += has_messages ? "." : ", *.1 that of every rank.";
  if (study.problem.ranks > kMaxLanes) {
    text += fmt::format(" The first {1} of {0} ranks are drawn.", study.problem.ranks, kMaxLanes);
  }
  return text;
}

// ---- panels

// The common time scale of the drawn traces.
Seconds longest(const overlap::Prediction& prediction, const trace::Trace* measured) {
  const Seconds predicted = std::max(prediction.times.serial, prediction.times.overlapped);
  return measured != nullptr ? std::max(predicted, overlap::end_of(*measured)) : predicted;
}

void add_lanes(std::vector<Panel>& panels, const overlap::Study& study) {
  const overlap::Prediction& prediction = study.drawn();
  const bool traced = study.measured && !study.measured->trace.ranks.empty();
  const trace::Trace* const measured = traced ? &study.measured->trace : nullptr;
  const Seconds end = longest(prediction, measured);
  const auto panel = [&](std::string title, std::string note, const Scene& scene) {
    Panel made{.title = std::move(title), .note = std::move(note), .body = {}};
    if (panels.empty()) made.body = to_html(legend_of(study));
    made.body += lanes_html(scene);
    panels.push_back(std::move(made));
  };
  panel(study.calibrated
            ? fmt::format("Predicted from the measured G and C: {}",
                          with_hard_spaces(prediction.times.overlapped))
            : fmt::format("Overlapped: {}", with_hard_spaces(prediction.times.overlapped)),
        how_to_read(study), {study.choice, study.problem, prediction.trace, end});
  if (traced) {
    panel(fmt::format("Measured: {}", with_hard_spaces(overlap::end_of(*measured))),
          "One step, of median length among a few, in the same scale. A transfer lasts from when "
          "both ends are ready until its completion is detected.",
          {study.choice, study.problem, *measured, end});
  }
  const overlap::Choice serial{.type = study.choice.type};
  panel(fmt::format("Serial: {}", with_hard_spaces(prediction.times.serial)),
        study.calibrated ? "Predicted, in the same scale." : "In the same scale.",
        {serial, study.problem, prediction.serial_trace, end});
  if (!study.calibrated || !study.predicted) return;
  const Seconds scale_end = longest(*study.predicted, nullptr);
  panel(fmt::format("Predicted for {}: {}", study.predicted->system,
                    with_hard_spaces(study.predicted->times.overlapped)),
        "In its own scale.", {study.choice, study.problem, study.predicted->trace, scale_end});
}

Panel numbers_panel(const overlap::Study& study) {
  std::string note;
  if (study.measured) {
    note = fmt::format("Measured: medians of {}, of the slowest rank.",
                       counted(study.measured->rounds, "round"));
  }
  return {.title = "The numbers", .note = note, .body = to_html(overlap_table(study))};
}

Panel steps_panel(const overlap::Study& study) {
  const overlap::Prediction& prediction = study.drawn();
  const TimeColumn times(prediction.times.overlapped);
  Table table({Column::text("what"), Column::numbers("chunk"), Column::numbers("first row"),
               Column::numbers("rows"), Column::numbers(times.title("start")),
               Column::numbers(times.title("end")), Column::numbers("bytes"),
               Column::numbers("with rank")});
  for (const overlap::TimedStep& one : prediction.steps) {
    if (table.rows() == kMaxStepsListed) break;
    table.add({one.step.word, one.step.name, std::to_string(one.step.first_row),
               std::to_string(one.step.rows), times.cell(one.start), times.cell(one.end),
               one.bytes.count > 0 ? Cell(one.bytes) : Cell(""),
               one.peer >= 0 ? std::to_string(one.peer) : ""});
  }
  std::string note = fmt::format("Of rank {}, which ends last; predicted.", prediction.last_rank);
  if (table.rows() == kMaxStepsListed) note += " Only the first 1,000.";
  return {.title = "Step by step",
          .note = note,
          .body = to_html(table),
          .starts = Panel::Starts::folded};
}

// ---- the head of the page

overlap::Times reported_times(const overlap::Study& study) {
  if (study.measured) return study.measured->times();
  return study.drawn().times;
}

std::string title_of(const overlap::Study& study) {
  const overlap::Times times = reported_times(study);
  std::string title = overlap_name(study.choice, study.problem) + ": ";
  const bool is_clear =
      !study.measured || std::min(times.gemm, times.communication) >= study.measured->noise();
  const std::string hidden = with_hard_spaces(hidden_text(times));
  if (!hidden.empty() && !hidden.starts_with('-') && is_clear)
    title += fmt::format("{} hidden, ", hidden);
  return title + fmt::format("{:.2f} of the serial time", times.relative_to_serial());
}

std::vector<KeyNumber> key_numbers(const overlap::Study& study) {
  const overlap::Times times = reported_times(study);
  const auto spread = [&](overlap::Spread overlap::Measurement::* which) -> std::string {
    if (!study.measured) return "predicted";
    const overlap::Spread& all = (*study.measured).*which;
    return fmt::format("measured, {} to {}", all.min, all.max);
  };
  return {
      {.label = "Overlapped, T",
       .value = times.overlapped,
       .note = spread(&overlap::Measurement::overlapped)},
      {.label = "Serial", .value = times.serial, .note = spread(&overlap::Measurement::serial)},
      {.label = "GEMM alone, G", .value = times.gemm, .note = spread(&overlap::Measurement::gemm)},
      {.label = "Communication alone, C",
       .value = times.communication,
       .note = spread(&overlap::Measurement::communication)}};
}

std::vector<KeyNumber> more_numbers(const overlap::Study& study) {
  const overlap::Times times = reported_times(study);
  const Seconds bound = method_bound(study.choice, study.problem, times);
  std::vector<KeyNumber> more{
      {.label = "max(G, C) / T", .value = fmt::format("{:.2f}", times.efficiency())},
      {.label = "bound of this method / T",
       .value =
           fmt::format("{:.2f}", times.overlapped > Seconds{0} ? bound / times.overlapped : 1)}};
  const overlap::Prediction& prediction = study.drawn();
  if (study.calibrated) {
    more.push_back(
        {.label = "T predicted from G and C / T measured",
         .value = fmt::format("{:.2f}", prediction.times.overlapped / times.overlapped)});
  } else {
    more.push_back({.label = "GEMM in tiles", .value = prediction.tiles});
  }
  return more;
}

std::vector<std::string> assumptions(const overlap::Study& study) {
  std::vector<std::string> sentences{overlap_shape(study.problem) + "."};
  if (study.predicted) {
    sentences.push_back(
        fmt::format("Predicted for {}: the messages of a rank are sent one at a time.",
                    study.predicted->system));
  }
  if (study.measured) {
    sentences.push_back(fmt::format("Measured on {}{}; GEMM backend: {}.", study.measured->backend,
                                    study.measured->polled ? ", polled" : "",
                                    study.measured->gemm_backend));
  }
  for (std::string& warning : overlap_warnings(study)) sentences.push_back(std::move(warning));
  return sentences;
}

}  // namespace

Page overlap_page(const overlap::Study& study, const std::string& command) {
  Page page{.title = title_of(study),
            .numbers = key_numbers(study),
            .more = more_numbers(study),
            .assumed = assumptions(study),
            .panels = {},
            .command = command,
            .version = std::string(version())};
  add_lanes(page.panels, study);
  page.panels.push_back(numbers_panel(study));
  page.panels.push_back(steps_panel(study));
  return page;
}

}  // namespace shiplap::report
