#include "shiplap/report/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/overlap/steps.h"
#include "shiplap/report/quantities_internal.h"

namespace shiplap::report {
namespace {

using overlap::Candidate;
using overlap::Choice;
using overlap::Chosen;
using overlap::Compared;
using overlap::Comparison;
using overlap::Measurement;
using overlap::Method;
using overlap::Prediction;
using overlap::Problem;
using overlap::Study;
using overlap::TimedStep;
using overlap::Times;

constexpr std::size_t kMaxSteps = 16;  // in the terminal
constexpr std::size_t kMaxCandidates = 6;

std::string ratio(double value) { return fmt::format("{:.2f}", value); }

bool is_tapered(overlap::Cut cut) { return cut == overlap::Cut::tapered; }
std::string_view cut_name(overlap::Cut cut) { return is_tapered(cut) ? "tapered" : "even"; }

std::string method_text(const Choice& choice) {
  return fmt::format("{}{}", name(choice.method), choice.atomic ? ", atomic" : "");
}
std::string chunks_text(const Choice& choice, int chunks) {
  return choice.method == Method::none ? "" : std::to_string(chunks);
}

// ---- steps

std::string rows_text(const overlap::Step& step) {
  if (step.rows == 0) return "";
  if (step.rows == 1) return std::to_string(step.first_row);
  return fmt::format("{}-{}", step.first_row, step.first_row + step.rows - 1);
}

std::string what_text(const TimedStep& timed) {
  std::string text(timed.step.word);
  if (timed.peer < 0) return text;
  const bool sends = timed.step.kind == overlap::Step::Kind::send;
  return text + fmt::format(" {} {}", sends ? "to" : "from", timed.peer);
}

// Of many steps, the first and the last.
std::string steps_text(const Study& study, const TextStyle& style) {
  const Prediction& prediction = study.listed();
  const std::vector<TimedStep>& steps = prediction.steps;
  const TimeColumn times(prediction.times.overlapped);
  Table table({Column::numbers(times.title("start"), 5), Column::numbers(times.title("end"), 5),
               Column::text("what", 5), Column::text("chunk", 5), Column::text("rows", 2),
               Column::numbers("bytes").hidden_if_empty()});
  const bool all = steps.size() <= kMaxSteps;
  const std::size_t head = all ? steps.size() : kMaxSteps * 2 / 3;
  const std::size_t tail = all ? steps.size() : steps.size() - kMaxSteps / 3;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (k == head) table.add({"..", "", fmt::format("{} more", tail - head), "", "", ""});
    if (k >= head && k < tail) continue;
    const TimedStep& one = steps[k];
    table.add({times.cell(one.start), times.cell(one.end), what_text(one), one.step.name,
               rows_text(one.step), one.bytes.count > 0 ? Cell(one.bytes) : Cell("")});
  }
  return fmt::format("rank {}, which ends last:\n", prediction.last_rank) + table.text(style);
}

Json steps_json(const Prediction& prediction) {
  Json all = Json::array();
  for (const TimedStep& one : prediction.steps) {
    Json step = Json::object({{"what", one.step.word},
                              {"chunk", one.step.name},
                              {"first_row", one.step.first_row},
                              {"rows", one.step.rows},
                              {"start_s", one.start.value},
                              {"end_s", one.end.value}});
    if (one.peer >= 0) step.set("peer", one.peer);
    if (one.bytes.count > 0) step.set("bytes", one.bytes.count);
    all.push(std::move(step));
  }
  return all;
}

// ---- numbers

// JSON members that several reports share.
void add_choice(Json& json, const Choice& choice) {
  json.set("type", name(choice.type)).set("method", name(choice.method));
  json.set("atomic", choice.atomic);
}

// Sizes, types and ranks, without chunks.
void add_problem(Json& json, const Problem& problem) {
  json.set("m", problem.m).set("n", problem.n).set("k", problem.k);
  json.set("element_type", shiplap::name(problem.type)).set("ranks", problem.ranks);
  if (!is_high_precision(problem.x)) {
    json.set("scaling", problem.x.scaling == overlap::Scaling::row ? "tensor" : "mxfp8");
    json.set("fp8", shiplap::name(problem.x.type))
        .set("quantized_sums", !is_high_precision(problem.sums));
  }
  if (problem.groups > 0) json.set("groups", problem.groups);
}

void add_chunks(Json& json, const Problem& problem) {
  json.set("chunks", problem.chunks).set("cut", cut_name(problem.cut));
}

void add_times(Json& json, const Times& times) {
  json.set("gemm_s", times.gemm.value).set("communication_s", times.communication.value);
  json.set("serial_s", times.serial.value).set("overlapped_s", times.overlapped.value);
  json.set("lower_bound_s", times.lower_bound().value)
      .set("overlapped_over_serial", times.relative_to_serial());
  json.set("efficiency", times.efficiency());
  const std::optional<double> hidden = times.hidden();
  json.set("hidden", hidden ? Json(*hidden) : Json());
}

Json prediction_json(const Prediction& prediction) {
  Json json = Json::object({{"system", prediction.system}});
  add_times(json, prediction.times);
  json.set("gemm_tiles_s", prediction.tiles.value);
  return json.set("method_bound_s", prediction.bound.value);
}

Json measurement_json(const Measurement& measured) {
  Json json = Json::object({{"backend", measured.backend},
                            {"progress", measured.polled ? "polled" : "threads"},
                            {"gemm_backend", measured.gemm_backend},
                            {"rounds", measured.rounds},
                            {"cores", measured.cores}});
  add_times(json, measured.times());
  const auto add = [&](const std::string& name, const overlap::Spread& spread) {
    json.set(name + "_min_s", spread.min.value).set(name + "_max_s", spread.max.value);
  };
  add("gemm", measured.gemm);
  add("communication", measured.communication);
  add("serial", measured.serial);
  add("overlapped", measured.overlapped);
  json.set("max_difference", measured.difference);
  return json.set("tolerance", measured.tolerance);
}

// "mxfp8 e4m3", "tensor e5m2, quantized sums".
std::string quantization_text(const Problem& problem) {
  return fmt::format("{} {}{}", problem.x.scaling == overlap::Scaling::row ? "tensor" : "mxfp8",
                     problem.x.type == DType::fp8_e5m2 ? "e5m2" : "e4m3",
                     is_high_precision(problem.sums) ? "" : ", quantized sums");
}

// Sentences on a measurement.
std::vector<std::string> verdicts(const Study& study, const Measurement& measured) {
  std::vector<std::string> sentences;
  if (study.choice.method != Method::none) {
    const double share = measured.overlapped.median / measured.serial.median;
    if (measured.overlapped.max < measured.serial.min) {
      sentences.push_back(
          fmt::format("Faster than serial in every round, by {:.0f} %.", 100 * (1 - share)));
    } else if (measured.overlapped.min > measured.serial.max) {
      sentences.push_back(
          fmt::format("Slower than serial in every round, by {:.0f} %.", 100 * (share - 1)));
    } else {
      sentences.emplace_back("Faster than serial in some rounds and slower in others.");
    }
  }
  const Seconds parts = measured.gemm.median + measured.communication.median;
  const Seconds rest = measured.serial.median - parts;
  if (study.choice.type != overlap::Type::all_gather && rest.value > 0.5 * parts.value) {
    sentences.push_back(fmt::format(
        "{} of the serial time are neither GEMM nor messages, but sums and their conversion.",
        rest));
  }
  if (measured.is_right()) {
    sentences.push_back(
        fmt::format("The result matches the serial one within {:.2g} of the largest value; "
                    "rounding explains {:.2g}.",
                    measured.difference, measured.tolerance));
  }
  return sentences;
}

std::string times_text(const Study& study, const TextStyle& style) {
  std::string text = styled(overlap_name(study.choice, study.problem), kBold, style.colour) + "\n" +
                     overlap_shape(study.problem);
  if (study.predicted) text += fmt::format("; predicted for {}", study.predicted->system);
  if (study.measured) {
    text += fmt::format("\nmeasured on {}{} in {}; GEMM backend: {}", study.measured->backend,
                        study.measured->polled ? ", polled," : "",
                        counted(study.measured->rounds, "round"), study.measured->gemm_backend);
  }
  text += "\n\n" + overlap_table(study).text(style);
  std::vector<std::string> remarks = overlap_warnings(study);
  if (study.measured) {
    std::ranges::move(verdicts(study, *study.measured), std::back_inserter(remarks));
  }
  for (const std::string& remark : remarks) {
    text += "\n" + wrapped(remark, 0, static_cast<std::size_t>(style.width)) + "\n";
  }
  return study.measured ? text : text + "\n" + steps_text(study, style);
}

Json times_to_json(const Study& study) {
  Json json = Json::object({{"schema", "shiplap.overlap/1"}});
  add_choice(json, study.choice);
  add_problem(json, study.problem);
  add_chunks(json, study.problem);
  if (study.predicted) json.set("predicted", prediction_json(*study.predicted));
  if (study.calibrated) json.set("calibrated", prediction_json(*study.calibrated));
  if (study.measured) json.set("measured", measurement_json(*study.measured));
  return json.set("rank", study.listed().last_rank).set("steps", steps_json(study.listed()));
}

// ---- comparisons

std::string comparison_text(const Comparison& comparison, const TextStyle& style) {
  const Choice& best = comparison.candidates.front().choice;
  Table table({Column::text("method", 5), Column::numbers("chunks", 5), Column::numbers("G", 3),
               Column::numbers("C", 3), Column::numbers("T", 5), Column::numbers("T / serial", 4),
               Column::numbers("max(G, C) / T", 2), Column::numbers("hidden", 2)});
  for (const Compared& each : comparison.candidates) {
    const Times& times = each.times;
    table.add({method_text(each.choice), chunks_text(each.choice, each.chunks), times.gemm,
               times.communication, times.overlapped, ratio(times.relative_to_serial()),
               ratio(times.efficiency()), hidden_text(times)});
  }
  const std::string title =
      fmt::format("{} on {}", name(best.type), counted(comparison.problem.ranks, "rank"));
  return fmt::format("{}\n{}; predicted for {}\n\n{}", styled(title, kBold, style.colour),
                     overlap_shape(comparison.problem), comparison.system, table.text(style));
}

Json comparison_json(const Comparison& comparison) {
  Json json = Json::object({{"schema", "shiplap.overlap.compare/1"},
                            {"type", name(comparison.candidates.front().choice.type)}});
  add_problem(json, comparison.problem);
  json.set("system", comparison.system);
  Json all = Json::array();
  for (const Compared& each : comparison.candidates) {
    Json one = Json::object({{"method", name(each.choice.method)},
                             {"atomic", each.choice.atomic},
                             {"chunks", each.chunks}});
    add_times(one, each.times);
    all.push(std::move(one));
  }
  return json.set("candidates", std::move(all));
}

// ---- the chosen method

// Whether a single (atomic) launch has no benefit: the same in several launches is as fast.
bool is_redundant(const Candidate& candidate, const Chosen& chosen) {
  if (!candidate.choice.atomic) return false;
  return std::ranges::any_of(chosen.candidates, [&](const Candidate& each) {
    return each.choice.method == candidate.choice.method && !each.choice.atomic &&
           each.chunks == candidate.chunks && each.cut == candidate.cut &&
           each.time <= candidate.time;
  });
}

double relative_to_serial(const Candidate& candidate, const Chosen& chosen) {
  return chosen.serial.value > 0 ? candidate.time / chosen.serial : 1;
}

// The reason in the first line; then the best candidates and the serial one.
std::string chosen_text(const Chosen& chosen, const TextStyle& style) {
  Table table({Column::text("method", 5), Column::numbers("chunks", 5), Column::text("tapered", 4),
               Column::numbers("T", 5), Column::numbers("T / serial", 5)});
  std::size_t shown = 0;
  for (const Candidate& each : chosen.candidates) {
    const bool is_none = each.choice.method == Method::none;
    if (!is_none && (shown >= kMaxCandidates || is_redundant(each, chosen))) continue;
    shown += is_none ? 0 : 1;
    table.add({method_text(each.choice), chunks_text(each.choice, each.chunks),
               is_tapered(each.cut) ? "yes" : "", each.time,
               ratio(relative_to_serial(each, chosen))});
  }
  return fmt::format("{}\n{}\n\n{}", chosen.why, overlap_shape(chosen.problem), table.text(style));
}

// All candidates, the fastest first.
Json chosen_json(const Chosen& chosen) {
  Json json = Json::object({{"schema", "shiplap.overlap.auto/1"}, {"why", chosen.why}});
  add_choice(json, chosen.choice);
  add_problem(json, chosen.problem);
  add_chunks(json, chosen.problem);
  json.set("time_s", chosen.time.value).set("serial_s", chosen.serial.value);
  json.set("gemm_s", chosen.gemm.value).set("communication_s", chosen.communication.value);
  Json all = Json::array();
  for (const Candidate& each : chosen.candidates) {
    all.push(Json::object({{"method", name(each.choice.method)},
                           {"atomic", each.choice.atomic},
                           {"chunks", each.chunks},
                           {"cut", cut_name(each.cut)},
                           {"time_s", each.time.value},
                           {"time_over_serial", relative_to_serial(each, chosen)}}));
  }
  return json.set("candidates", std::move(all));
}

std::string speed_text(double seconds_per_one, const char* unit) {
  if (seconds_per_one <= 0) return fmt::format("no time per {}", unit);
  return fmt::format("{:.3g} G{}/s", 1e-9 / seconds_per_one, unit);
}

// Removes the common prefix.
std::string_view short_function_name(std::string_view function) {
  constexpr std::string_view kPrefix = "CommOverlap";
  return function.starts_with(kPrefix) ? function.substr(kPrefix.size()) : function;
}

}  // namespace

std::string overlap_text(const Study& study, const TextStyle& style) {
  if (study.comparison) return comparison_text(*study.comparison, style);
  std::string text = study.chosen ? chosen_text(*study.chosen, style) : "";
  if (!study.has_times()) return text;
  return text + (study.chosen ? "\n" : "") + times_text(study, style);
}

Json overlap_json(const Study& study) {
  if (study.comparison) return comparison_json(*study.comparison);
  if (!study.has_times() && study.chosen) return chosen_json(*study.chosen);
  Json json = times_to_json(study);
  if (study.chosen) json.set("chosen", chosen_json(*study.chosen));
  return json;
}

std::string overlap_list_text(const TextStyle& style) {
  Table table({Column::text("type", 5), Column::text("method", 5), Column::text("atomic", 5),
               Column::text("what happens", 3), Column::text("CommOverlap..", 2)});
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    table.add({name(supported.choice.type), name(supported.choice.method),
               supported.choice.atomic ? "yes" : "", supported.what,
               short_function_name(supported.function)});
  }
  return table.text(style);
}

Json overlap_list_json() {
  Json choices = Json::array();
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    Json one = Json::object();
    add_choice(one, supported.choice);
    choices.push(one.set("what", supported.what).set("function", supported.function));
  }
  return Json::object({{"schema", "shiplap.overlap.list/1"}, {"choices", choices}});
}

std::string calibration_text(const overlap::Calibration& calibration) {
  std::string text = fmt::format("measured on {}\n", calibration.machine);
  if (calibration.ranks > 1) {
    text += fmt::format("a message takes {}, its bytes {}; a collective {}\n",
                        calibration.latency + calibration.message,
                        speed_text(calibration.seconds_per_byte, "B"), calibration.collective);
  }
  for (const overlap::Calibration::GemmCost& each : calibration.gemms) {
    text += fmt::format("a GEMM in {} takes {} and {}\n", shiplap::name(each.type), each.call,
                        speed_text(each.seconds_per_flop, "flop"));
  }
  if (calibration.ranks > 1) {
    text += fmt::format("a step takes {}, each of its tiles {}, and {} more without --atomic\n",
                        calibration.step, calibration.tile_overhead, calibration.launch);
  }
  return text;
}

std::string overlap_name(const Choice& choice, const Problem& problem) {
  const std::string chunks = problem.chunks > 1
                                 ? fmt::format(", {} {}chunks on each", problem.chunks,
                                               is_tapered(problem.cut) ? "tapered " : "")
                                 : "";
  return fmt::format("{} on {}{}", to_string(choice), counted(problem.ranks, "rank"), chunks);
}

std::string overlap_shape(const Problem& problem) {
  const std::string k = with_separators(problem.k);
  std::string text = fmt::format("X {} x {}, W {} x {}, {}", with_separators(problem.m), k, k,
                                 with_separators(problem.n), shiplap::name(problem.type));
  if (!is_high_precision(problem.x)) text += ", " + quantization_text(problem);
  if (problem.groups > 0) text += ", " + counted(problem.groups, "group");
  return text;
}

std::string hidden_text(const Times& times, Seconds noise) {
  const std::optional<double> hidden = times.hidden();
  if (hidden && std::min(times.gemm, times.communication) < noise) return "in the noise";
  return hidden ? fmt::format("{:.0f} %", 100 * *hidden) : "";
}

Table overlap_table(const Study& study) {
  std::vector<Column> columns{Column::text("", 5)};
  std::vector<std::vector<Cell>> rows{
      {"GEMM alone, G"}, {"communication alone, C"}, {"serial"},
      {"overlapped, T"}, {"lower bound: max(G, C)"}, {"lower bound of this method"},
      {"T / serial"},    {"max(G, C) / T"},          {"hidden: (G + C - T) / min(G, C)"}};
  const auto add = [&](const std::string& title, const std::vector<Cell>& cells) {
    columns.push_back(Column::numbers(title, 5));
    for (std::size_t k = 0; k < rows.size(); ++k) {
      rows[k].push_back(k < cells.size() ? cells[k] : Cell(""));
    }
  };
  const auto add_all = [&](const std::string& title, const Times& times, Seconds bound,
                           Seconds noise = {}) {
    add(title, {times.gemm, times.communication, times.serial, times.overlapped,
                times.lower_bound(), bound, ratio(times.relative_to_serial()),
                ratio(times.efficiency()), hidden_text(times, noise)});
  };
  if (study.predicted) {
    add_all(study.measured ? study.predicted->system : "predicted", study.predicted->times,
            study.predicted->bound);
  }
  if (study.calibrated) {
    add_all("from G and C", study.calibrated->times, study.calibrated->bound);
  }
  if (study.measured) {
    const Measurement& all = *study.measured;
    add_all("measured", all.times(), method_bound(study.choice, study.problem, all.times()),
            all.noise());
    add("min", {all.gemm.min, all.communication.min, all.serial.min, all.overlapped.min});
    add("max", {all.gemm.max, all.communication.max, all.serial.max, all.overlapped.max});
  }
  Table table(std::move(columns));
  for (std::vector<Cell>& row : rows) table.add(std::move(row));
  return table;
}

std::vector<std::string> overlap_warnings(const Study& study) {
  std::vector<std::string> warnings;
  if (!study.measured) return warnings;
  const Measurement& measured = *study.measured;
  if (measured.cores > 0 && study.problem.ranks > measured.cores) {
    warnings.push_back(
        fmt::format("{} ranks share {}: computation and communication compete for them, so "
                    "little can be hidden.",
                    study.problem.ranks, counted(measured.cores, "core")));
  }
  if (!measured.is_right()) {
    warnings.push_back(
        fmt::format("The result is wrong: it differs from the serial one by {:.2g} of the "
                    "largest value; rounding explains {:.2g}.",
                    measured.difference, measured.tolerance));
  }
  return warnings;
}

}  // namespace shiplap::report
