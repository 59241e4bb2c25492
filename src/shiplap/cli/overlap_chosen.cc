#include "shiplap/cli/overlap_chosen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "shiplap/cli/overlap_show.h"
#include "shiplap/cli/table.h"

namespace shiplap::cli {
namespace {

using overlap::Candidate;
using overlap::Chosen;

constexpr std::size_t kMostShown = 6;

bool is_none(const Candidate& candidate) {
  return candidate.choice.method == overlap::Method::none;
}
bool is_tapered(const Candidate& candidate) { return candidate.cut == overlap::Cut::tapered; }

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

std::string speed(double seconds_per_one, const char* unit) {
  if (seconds_per_one <= 0) return fmt::format("nothing for a {}", unit);
  return fmt::format("{:.3g} G{}/s", 1e-9 / seconds_per_one, unit);
}

}  // namespace

std::string show_chosen(const Chosen& chosen, const Context& context) {
  Table table({{.title = "method", .worth = 5},
               {.title = "chunks", .align = Align::right, .worth = 5},
               {.title = "tapered", .worth = 4},
               {.title = "T", .align = Align::right, .worth = 5},
               {.title = "T / serial", .align = Align::right, .worth = 5}});
  std::size_t shown = 0;
  for (const Candidate& each : chosen.candidates) {
    if (!is_none(each) && (shown >= kMostShown || is_needless(each, chosen))) continue;
    shown += is_none(each) ? 0 : 1;
    table.add({fmt::format("{}{}", name(each.choice.method), each.choice.atomic ? ", atomic" : ""),
               is_none(each) ? "" : std::to_string(each.chunks), is_tapered(each) ? "yes" : "",
               to_string(each.time), fmt::format("{:.2f}", of_serial(each, chosen))});
  }
  return fmt::format("{}\n{}\n\n{}", chosen.why, overlap_shape(chosen.problem),
                     table.text(context.width(), context.out.colour));
}

Json chosen_to_json(const Chosen& chosen) {
  Json json = Json::object({{"schema", "shiplap.overlap.auto/1"},
                            {"why", chosen.why},
                            {"type", std::string(name(chosen.choice.type))},
                            {"method", std::string(name(chosen.choice.method))},
                            {"atomic", chosen.choice.atomic}});
  const Json problem = overlap_problem_json(chosen.problem);
  for (const auto& [key, value] : problem.as_object()) json.set(key, value);
  json.set("chunks", std::int64_t{chosen.problem.chunks});
  json.set("cut", chosen.problem.cut == overlap::Cut::tapered ? "tapered" : "even");
  json.set("time_s", chosen.time.value);
  json.set("serial_s", chosen.serial.value);
  json.set("product_s", chosen.product.value);
  json.set("communication_s", chosen.communication.value);
  Json all = Json::array();
  for (const Candidate& each : chosen.candidates) {
    all.push(Json::object({{"method", std::string(name(each.choice.method))},
                           {"atomic", each.choice.atomic},
                           {"chunks", std::int64_t{each.chunks}},
                           {"cut", is_tapered(each) ? "tapered" : "even"},
                           {"time_s", each.time.value},
                           {"time_over_serial", of_serial(each, chosen)}}));
  }
  return json.set("candidates", std::move(all));
}

std::string show_calibration(const overlap::Calibration& calibration) {
  std::string text = fmt::format("measured on {}\n", calibration.machine);
  if (calibration.ranks > 1) {
    text +=
        fmt::format("a message takes {} and its bytes {}; a collective {}\n",
                    to_string(calibration.latency + calibration.message),
                    speed(calibration.seconds_per_byte, "B"), to_string(calibration.collective));
  }
  for (const overlap::Calibration::Product& each : calibration.products) {
    text += fmt::format("a product of {} takes {} and {}\n", shiplap::name(each.type),
                        to_string(each.call), speed(each.seconds_per_flop, "flop"));
  }
  if (calibration.ranks > 1) {
    text += fmt::format("a step takes {}, each piece of it {}\n", to_string(calibration.step),
                        to_string(calibration.piece));
  }
  return text;
}

}  // namespace shiplap::cli
