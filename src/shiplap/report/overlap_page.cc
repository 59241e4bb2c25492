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

// As many ranks as are drawn.
int drawn(const overlap::Problem& problem) { return std::min(problem.ranks, kMaxLanes); }

// A number and its unit or sign are not to be parted.
std::string together(const Cell& cell) {
  std::string text = cell.text;
  for (std::size_t at = text.find(' '); at != std::string::npos; at = text.find(' ')) {
    text.replace(at, 1, "\u00A0");
  }
  return text;
}

LaneWords words_of(const overlap::Step& step) {
  const std::string rows =
      step.rows == 1 ? fmt::format("row {}", step.first_row)
                     : fmt::format("rows {} to {}", step.first_row, step.first_row + step.rows - 1);
  const std::string chunk = step.chunk >= 0 ? fmt::format("chunk {}, ", step.name) : "";
  LaneWords words{.label = step.name,
                  .facts = fmt::format("{} {}{}", step.word, chunk, rows),
                  .group = step.owner};
  if (step.kind == overlap::Step::Kind::collective && step.owner < 0 && !step.name.empty()) {
    words.facts = fmt::format("{} chunk {} of every rank", step.word, step.name.substr(2));
  }
  if (step.kind == overlap::Step::Kind::sum) {
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

Html lanes_html(const Scene& scene) {
  const plan::Plan plan = overlap::make_plan(scene.choice, scene.problem);
  std::vector<std::vector<overlap::Step>> steps;
  Lanes lanes{.window = {.begin = {0}, .end = scene.end}, .end = overlap::end_of(scene.trace)};
  for (int rank = 0; rank < drawn(scene.problem); ++rank) {
    steps.push_back(overlap::steps_of(plan, rank));
    lanes.rows.push_back(
        {.name = std::to_string(rank), .rank = &scene.trace.ranks[rank], .number = rank});
  }
  lanes.words = [&](const trace::Event& event) {
    return words_of(steps[event.rank][event.operation]);
  };
  lanes.hues = scene.problem.ranks;
  lanes.memory = Lanes::Memory::left_out;
  lanes.ways = Lanes::Ways::apart;
  lanes.most_arrows = 0;  // they would cross the names of the chunks
  return to_html(lanes);
}

Legend legend_of(const overlap::Study& study) {
  const int last = study.problem.ranks - 1;
  Legend legend;
  legend.entries.push_back(
      {.swatch = Swatch::ramp,
       .text = last == 0 ? "multiplying" : fmt::format("multiplying rows of rank 0 to {}", last)});
  if (study.choice.type != overlap::Type::all_gather &&
      study.choice.method == overlap::Method::ring_exchange) {
    legend.entries.push_back({.swatch = Swatch::update, .text = "adding up (+)"});
  }
  legend.entries.push_back({.swatch = Swatch::hidden, .text = "communication, hidden"});
  legend.entries.push_back({.swatch = Swatch::exposed, .text = "exposed"});
  legend.entries.push_back({.swatch = Swatch::waiting, .text = "waiting"});
  return legend;
}

std::string how_to_read(const overlap::Study& study) {
  const bool has_messages = study.choice.method == overlap::Method::ring_exchange;
  const bool sums = has_messages && study.choice.type != overlap::Type::all_gather;
  std::string text = "A row is a rank, time goes right: above what it multiplies";
  text += sums ? ", then what it adds up, " : ", then ";
  text += has_messages ? "what it sends, below what it receives." : "the collectives.";
  if (study.problem.chunks > 1) text += " 2.1 is chunk 1 of the rows of rank 2";
  if (study.problem.chunks > 1) text += has_messages ? "." : ", *.1 that of every rank.";
  if (study.problem.ranks > kMaxLanes) {
    text += fmt::format(" Of {} ranks the first {} are drawn.", study.problem.ranks, kMaxLanes);
  }
  return text;
}

// ---- panels

// All that is drawn in one scale.
Seconds longest(const overlap::Prediction& prediction, const trace::Trace* measured) {
  const Seconds predicted = std::max(prediction.times.serial, prediction.times.overlapped);
  return measured != nullptr ? std::max(predicted, overlap::end_of(*measured)) : predicted;
}

void add_lanes(std::vector<Panel>& panels, const overlap::Study& study) {
  const overlap::Prediction& prediction = study.drawn();
  const bool traced = study.measured && !study.measured->trace.ranks.empty();
  trace::Trace measured;
  if (traced) measured = overlap::with_messages_begun(study.measured->trace);
  const Seconds end = longest(prediction, traced ? &measured : nullptr);
  const auto panel = [&](std::string title, std::string note, const Scene& scene) {
    Panel made{.title = std::move(title), .note = std::move(note), .body = {}};
    if (panels.empty()) made.body = to_html(legend_of(study));
    made.body += lanes_html(scene);
    panels.push_back(std::move(made));
  };
  panel(study.calibrated ? fmt::format("Predicted from the measured G and C: {}",
                                       together(prediction.times.overlapped))
                         : fmt::format("Overlapped: {}", together(prediction.times.overlapped)),
        how_to_read(study), {study.choice, study.problem, prediction.trace, end});
  if (traced) {
    panel(fmt::format("Measured: {}", together(overlap::end_of(measured))),
          "One step, of median length among a few, in the same scale. A transfer lasts from when "
          "both ends are ready until it is noticed to be complete.",
          {study.choice, study.problem, measured, end});
  }
  const overlap::Choice serial{.type = study.choice.type};
  panel(fmt::format("One after the other: {}", together(prediction.times.serial)),
        study.calibrated ? "Predicted, in the same scale." : "In the same scale.",
        {serial, study.problem, prediction.serial_trace, end});
  if (!study.calibrated || !study.predicted) return;
  const Seconds own = longest(*study.predicted, nullptr);
  panel(fmt::format("Predicted for {}: {}", study.predicted->system,
                    together(study.predicted->times.overlapped)),
        "In a scale of its own.", {study.choice, study.problem, study.predicted->trace, own});
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
  Table table({Column::words("what"), Column::numbers("chunk"), Column::numbers("first row"),
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

overlap::Times told_times(const overlap::Study& study) {
  if (study.measured) return study.measured->times();
  return study.drawn().times;
}

std::string title_of(const overlap::Study& study) {
  const overlap::Times times = told_times(study);
  std::string title = overlap_name(study.choice, study.problem) + ": ";
  const bool is_clear =
      !study.measured || std::min(times.product, times.communication) >= study.measured->noise();
  const std::string hidden = together(hidden_text(times));
  if (!hidden.empty() && !hidden.starts_with('-') && is_clear)
    title += fmt::format("{} hidden, ", hidden);
  return title + fmt::format("{:.2f} of the time of one after the other", times.of_serial());
}

std::vector<KeyNumber> key_numbers(const overlap::Study& study) {
  const overlap::Times times = told_times(study);
  const auto spread = [&](overlap::Spread overlap::Measurement::* which) -> std::string {
    if (!study.measured) return "predicted";
    const overlap::Spread& all = (*study.measured).*which;
    return fmt::format("measured, {} to {}", all.least, all.most);
  };
  return {{.label = "Overlapped, T",
           .value = times.overlapped,
           .note = spread(&overlap::Measurement::overlapped)},
          {.label = "One after the other",
           .value = times.serial,
           .note = spread(&overlap::Measurement::serial)},
          {.label = "Product alone, G",
           .value = times.product,
           .note = spread(&overlap::Measurement::product)},
          {.label = "Communication alone, C",
           .value = times.communication,
           .note = spread(&overlap::Measurement::communication)}};
}

std::vector<KeyNumber> more_numbers(const overlap::Study& study) {
  const overlap::Times times = told_times(study);
  const Seconds bound = method_bound(study.choice, study.problem, times);
  std::vector<KeyNumber> more{
      {.label = "max(G, C) / T", .value = fmt::format("{:.2f}", times.least_of_it())},
      {.label = "bound of this method / T",
       .value =
           fmt::format("{:.2f}", times.overlapped > Seconds{0} ? bound / times.overlapped : 1)}};
  const overlap::Prediction& prediction = study.drawn();
  if (study.calibrated) {
    more.push_back(
        {.label = "T predicted from G and C / T measured",
         .value = fmt::format("{:.2f}", prediction.times.overlapped / times.overlapped)});
  } else {
    more.push_back({.label = "product in tiles", .value = prediction.tiles});
  }
  return more;
}

std::vector<std::string> assumptions(const overlap::Study& study) {
  std::vector<std::string> said{overlap_shape(study.problem) + "."};
  if (study.predicted) {
    said.push_back(fmt::format("Predicted for {}: messages of a rank leave one after the other.",
                               study.predicted->system));
  }
  if (study.measured) {
    said.push_back(fmt::format("Measured on {}{}; products by {}.", study.measured->backend,
                               study.measured->polled ? ", polled" : "",
                               study.measured->multiplied_by));
  }
  for (std::string& warning : overlap_warnings(study)) said.push_back(std::move(warning));
  return said;
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
