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

// Of many, the first and the last.
std::string steps_text(const Study& study, const TextLook& look) {
  const Prediction& prediction = study.listed();
  const std::vector<TimedStep>& steps = prediction.steps;
  const TimeColumn times(prediction.times.overlapped);
  Table table({Column::numbers(times.title("start"), 5), Column::numbers(times.title("end"), 5),
               Column::words("what", 5), Column::words("chunk", 5), Column::words("rows", 2),
               Column::numbers("bytes").shown_if_any()});
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
  return fmt::format("rank {}, which ends last:\n", prediction.last_rank) + table.text(look);
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

// The members of an object that several answers share.
void add_choice(Json& json, const Choice& choice) {
  json.set("type", name(choice.type)).set("method", name(choice.method));
  json.set("atomic", choice.atomic);
}

// Its sizes, types and ranks, without its chunks.
void add_problem(Json& json, const Problem& problem) {
  json.set("m", problem.rows).set("n", problem.columns).set("k", problem.depth);
  json.set("element_type", shiplap::name(problem.type)).set("ranks", problem.ranks);
  if (!is_plain(problem.x)) {
    json.set("scaling", problem.x.scaling == overlap::Scaling::row ? "tensor" : "mxfp8");
    json.set("fp8", shiplap::name(problem.x.type)).set("coded_sums", !is_plain(problem.sums));
  }
  if (problem.groups > 0) json.set("groups", problem.groups);
}

void add_chunks(Json& json, const Problem& problem) {
  json.set("chunks", problem.chunks).set("cut", cut_name(problem.cut));
}

void add_times(Json& json, const Times& times) {
  json.set("product_s", times.product.value).set("communication_s", times.communication.value);
  json.set("serial_s", times.serial.value).set("overlapped_s", times.overlapped.value);
  json.set("least_s", times.least().value).set("overlapped_over_serial", times.of_serial());
  json.set("least_over_overlapped", times.least_of_it());
  const std::optional<double> hidden = times.hidden();
  json.set("hidden", hidden ? Json(*hidden) : Json());
}

Json prediction_json(const Prediction& prediction) {
  Json json = Json::object({{"system", prediction.system}});
  add_times(json, prediction.times);
  json.set("product_in_tiles_s", prediction.tiles.value);
  return json.set("method_bound_s", prediction.bound.value);
}

Json measurement_json(const Measurement& measured) {
  Json json = Json::object({{"backend", measured.backend},
                            {"progress", measured.polled ? "polled" : "threads"},
                            {"multiplied_by", measured.multiplied_by},
                            {"rounds", measured.rounds},
                            {"cores", measured.cores}});
  add_times(json, measured.times());
  const auto add = [&](const std::string& name, const overlap::Spread& spread) {
    json.set(name + "_least_s", spread.least.value).set(name + "_most_s", spread.most.value);
  };
  add("product", measured.product);
  add("communication", measured.communication);
  add("serial", measured.serial);
  add("overlapped", measured.overlapped);
  json.set("largest_difference", measured.difference);
  return json.set("tolerated_difference", measured.tolerance);
}

// "mxfp8 e4m3", "tensor e5m2, coded sums".
std::string form_text(const Problem& problem) {
  return fmt::format("{} {}{}", problem.x.scaling == overlap::Scaling::row ? "tensor" : "mxfp8",
                     problem.x.type == DType::fp8_e5m2 ? "e5m2" : "e4m3",
                     is_plain(problem.sums) ? "" : ", coded sums");
}

// What was measured, in words.
std::vector<std::string> verdicts(const Study& study, const Measurement& measured) {
  std::vector<std::string> said;
  if (study.choice.method != Method::none) {
    const double share = measured.overlapped.median / measured.serial.median;
    if (measured.overlapped.most < measured.serial.least) {
      said.push_back(fmt::format("Faster than one after the other in every round, by {:.0f} %.",
                                 100 * (1 - share)));
    } else if (measured.overlapped.least > measured.serial.most) {
      said.push_back(fmt::format("Slower than one after the other in every round, by {:.0f} %.",
                                 100 * (share - 1)));
    } else {
      said.emplace_back("Faster in some rounds and slower in others than one after the other.");
    }
  }
  const Seconds parts = measured.product.median + measured.communication.median;
  const Seconds rest = measured.serial.median - parts;
  if (study.choice.type != overlap::Type::all_gather && rest.value > 0.5 * parts.value) {
    said.push_back(fmt::format(
        "{} of one after the other are neither product nor messages: sums and what they are "
        "written as.",
        rest));
  }
  if (measured.is_right()) {
    said.push_back(
        fmt::format("The result is that of one after the other, within {:.2g} of the "
                    "largest number; {:.2g} is explained by rounding.",
                    measured.difference, measured.tolerance));
  }
  return said;
}

std::string times_text(const Study& study, const TextLook& look) {
  std::string text = painted(overlap_name(study.choice, study.problem), kBold, look.colour) + "\n" +
                     overlap_shape(study.problem);
  if (study.predicted) text += fmt::format("; predicted for {}", study.predicted->system);
  if (study.measured) {
    text += fmt::format("\nmeasured on {}{} in {}; products by {}", study.measured->backend,
                        study.measured->polled ? ", polled," : "",
                        counted(study.measured->rounds, "round"), study.measured->multiplied_by);
  }
  text += "\n\n" + overlap_table(study).text(look);
  std::vector<std::string> remarks = overlap_warnings(study);
  if (study.measured) {
    std::ranges::move(verdicts(study, *study.measured), std::back_inserter(remarks));
  }
  for (const std::string& remark : remarks) {
    text += "\n" + wrapped(remark, 0, static_cast<std::size_t>(look.width)) + "\n";
  }
  return study.measured ? text : text + "\n" + steps_text(study, look);
}

Json times_to_json(const Study& study) {
  Json json = Json::object({{"schema", "shiplap.overlap/1"}});
  add_choice(json, study.choice);
  add_problem(json, study.problem);
  add_chunks(json, study.problem);
  if (study.predicted) json.set("predicted", prediction_json(*study.predicted));
  if (study.calibrated) json.set("from_measured_parts", prediction_json(*study.calibrated));
  if (study.measured) json.set("measured", measurement_json(*study.measured));
  return json.set("rank", study.listed().last_rank).set("steps", steps_json(study.listed()));
}

// ---- comparisons

std::string comparison_text(const Comparison& about, const TextLook& look) {
  const Choice& best = about.candidates.front().choice;
  Table table({Column::words("method", 5), Column::numbers("chunks", 5), Column::numbers("G", 3),
               Column::numbers("C", 3), Column::numbers("T", 5), Column::numbers("T / serial", 4),
               Column::numbers("max(G, C) / T", 2), Column::numbers("hidden", 2)});
  for (const Compared& each : about.candidates) {
    const Times& times = each.times;
    table.add({method_text(each.choice), chunks_text(each.choice, each.chunks), times.product,
               times.communication, times.overlapped, ratio(times.of_serial()),
               ratio(times.least_of_it()), hidden_text(times)});
  }
  const std::string title =
      fmt::format("{} on {}", name(best.type), counted(about.problem.ranks, "rank"));
  return fmt::format("{}\n{}; predicted for {}\n\n{}", painted(title, kBold, look.colour),
                     overlap_shape(about.problem), about.system, table.text(look));
}

Json comparison_json(const Comparison& about) {
  Json json = Json::object({{"schema", "shiplap.overlap.compare/1"},
                            {"type", name(about.candidates.front().choice.type)}});
  add_problem(json, about.problem);
  json.set("system", about.system);
  Json all = Json::array();
  for (const Compared& each : about.candidates) {
    Json one = Json::object({{"method", name(each.choice.method)},
                             {"atomic", each.choice.atomic},
                             {"chunks", each.chunks}});
    add_times(one, each.times);
    all.push(std::move(one));
  }
  return json.set("candidates", std::move(all));
}

// ---- what was chosen

// Whether it is one launch for nothing: the same in several is as fast.
bool is_needless(const Candidate& candidate, const Chosen& chosen) {
  if (!candidate.choice.atomic) return false;
  return std::ranges::any_of(chosen.candidates, [&](const Candidate& each) {
    return each.choice.method == candidate.choice.method && !each.choice.atomic &&
           each.chunks == candidate.chunks && each.cut == candidate.cut &&
           each.time <= candidate.time;
  });
}

double of_serial(const Candidate& candidate, const Chosen& chosen) {
  return chosen.serial.value > 0 ? candidate.time / chosen.serial : 1;
}

// Why, in the first line; then the best candidates, beside one after the other.
std::string chosen_text(const Chosen& chosen, const TextLook& look) {
  Table table({Column::words("method", 5), Column::numbers("chunks", 5),
               Column::words("tapered", 4), Column::numbers("T", 5),
               Column::numbers("T / serial", 5)});
  std::size_t shown = 0;
  for (const Candidate& each : chosen.candidates) {
    const bool is_none = each.choice.method == Method::none;
    if (!is_none && (shown >= kMaxCandidates || is_needless(each, chosen))) continue;
    shown += is_none ? 0 : 1;
    table.add({method_text(each.choice), chunks_text(each.choice, each.chunks),
               is_tapered(each.cut) ? "yes" : "", each.time, ratio(of_serial(each, chosen))});
  }
  return fmt::format("{}\n{}\n\n{}", chosen.why, overlap_shape(chosen.problem), table.text(look));
}

// All candidates, the fastest first.
Json chosen_json(const Chosen& chosen) {
  Json json = Json::object({{"schema", "shiplap.overlap.auto/1"}, {"why", chosen.why}});
  add_choice(json, chosen.choice);
  add_problem(json, chosen.problem);
  add_chunks(json, chosen.problem);
  json.set("time_s", chosen.time.value).set("serial_s", chosen.serial.value);
  json.set("product_s", chosen.product.value).set("communication_s", chosen.communication.value);
  Json all = Json::array();
  for (const Candidate& each : chosen.candidates) {
    all.push(Json::object({{"method", name(each.choice.method)},
                           {"atomic", each.choice.atomic},
                           {"chunks", each.chunks},
                           {"cut", cut_name(each.cut)},
                           {"time_s", each.time.value},
                           {"time_over_serial", of_serial(each, chosen)}}));
  }
  return json.set("candidates", std::move(all));
}

std::string speed_text(double seconds_per_one, const char* unit) {
  if (seconds_per_one <= 0) return fmt::format("nothing for a {}", unit);
  return fmt::format("{:.3g} G{}/s", 1e-9 / seconds_per_one, unit);
}

// All of them begin alike.
std::string_view known_as(std::string_view function) {
  constexpr std::string_view kAlike = "CommOverlap";
  return function.starts_with(kAlike) ? function.substr(kAlike.size()) : function;
}

}  // namespace

std::string overlap_text(const Study& study, const TextLook& look) {
  if (study.comparison) return comparison_text(*study.comparison, look);
  std::string text = study.chosen ? chosen_text(*study.chosen, look) : "";
  if (!study.has_times()) return text;
  return text + (study.chosen ? "\n" : "") + times_text(study, look);
}

Json overlap_json(const Study& study) {
  if (study.comparison) return comparison_json(*study.comparison);
  if (!study.has_times() && study.chosen) return chosen_json(*study.chosen);
  Json json = times_to_json(study);
  if (study.chosen) json.set("chosen", chosen_json(*study.chosen));
  return json;
}

std::string overlap_list_text(const TextLook& look) {
  Table table({Column::words("type", 5), Column::words("method", 5), Column::words("atomic", 5),
               Column::words("what happens", 3), Column::words("CommOverlap..", 2)});
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    table.add({name(legal.choice.type), name(legal.choice.method), legal.choice.atomic ? "yes" : "",
               legal.what, known_as(legal.function)});
  }
  return table.text(look);
}

Json overlap_list_json() {
  Json choices = Json::array();
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    Json one = Json::object();
    add_choice(one, legal.choice);
    choices.push(one.set("what", legal.what).set("function", legal.function));
  }
  return Json::object({{"schema", "shiplap.overlap.list/1"}, {"choices", choices}});
}

std::string calibration_text(const overlap::Calibration& calibration) {
  std::string text = fmt::format("measured on {}\n", calibration.machine);
  if (calibration.ranks > 1) {
    text += fmt::format("a message takes {} and its bytes {}; a collective {}\n",
                        calibration.latency + calibration.message,
                        speed_text(calibration.seconds_per_byte, "B"), calibration.collective);
  }
  for (const overlap::Calibration::Product& each : calibration.products) {
    text += fmt::format("a product of {} takes {} and {}\n", shiplap::name(each.type), each.call,
                        speed_text(each.seconds_per_flop, "flop"));
  }
  if (calibration.ranks > 1) {
    text +=
        fmt::format("a step takes {}, each piece of it {}\n", calibration.step, calibration.piece);
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
  const std::string depth = with_separators(problem.depth);
  std::string text =
      fmt::format("X {} x {}, W {} x {}, {}", with_separators(problem.rows), depth, depth,
                  with_separators(problem.columns), shiplap::name(problem.type));
  if (!is_plain(problem.x)) text += ", " + form_text(problem);
  if (problem.groups > 0) text += ", " + counted(problem.groups, "group");
  return text;
}

std::string hidden_text(const Times& times, Seconds noise) {
  const std::optional<double> hidden = times.hidden();
  if (hidden && std::min(times.product, times.communication) < noise) return "in the noise";
  return hidden ? fmt::format("{:.0f} %", 100 * *hidden) : "";
}

Table overlap_table(const Study& study) {
  std::vector<Column> columns{Column::words("", 5)};
  std::vector<std::vector<Cell>> rows{{"product alone, G"},
                                      {"communication alone, C"},
                                      {"one after the other"},
                                      {"overlapped, T"},
                                      {"at least, for this G, C: max(G, C)"},
                                      {"at least, by this method"},
                                      {"T / one after the other"},
                                      {"max(G, C) / T"},
                                      {"hidden: (G + C - T) / min(G, C)"}};
  const auto add = [&](const std::string& title, const std::vector<Cell>& cells) {
    columns.push_back(Column::numbers(title, 5));
    for (std::size_t k = 0; k < rows.size(); ++k) {
      rows[k].push_back(k < cells.size() ? cells[k] : Cell(""));
    }
  };
  const auto add_all = [&](const std::string& title, const Times& times, Seconds bound,
                           Seconds noise = {}) {
    add(title,
        {times.product, times.communication, times.serial, times.overlapped, times.least(), bound,
         ratio(times.of_serial()), ratio(times.least_of_it()), hidden_text(times, noise)});
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
    add("least",
        {all.product.least, all.communication.least, all.serial.least, all.overlapped.least});
    add("most", {all.product.most, all.communication.most, all.serial.most, all.overlapped.most});
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
        fmt::format("{} ranks share {} here: what they compute and what they send take turns, "
                    "so little can be hidden.",
                    study.problem.ranks, counted(measured.cores, "core")));
  }
  if (!measured.is_right()) {
    warnings.push_back(
        fmt::format("The result is wrong: it is {:.2g} of the largest number away from that of "
                    "one after the other, where {:.2g} is explained by rounding.",
                    measured.difference, measured.tolerance));
  }
  return warnings;
}

}  // namespace shiplap::report
