#include "shiplap/cli/schedule_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

namespace shiplap::cli {
namespace {

constexpr std::string_view kCostsHelp =
    "write milliseconds of forward, backward, and its halves for the input and the weights: "
    "F=10,B=20,I=10,W=10";
constexpr double kMaxMilliseconds = 1e9;

// "10" or "2.5", in milliseconds; nullopt if it is not a number, or not one of a cost.
std::optional<Seconds> parse_milliseconds(const std::string& text) {
  const std::optional<double> value = parse_decimal(text);
  if (!value || *value > kMaxMilliseconds) return std::nullopt;
  return Seconds{*value / 1000};
}

std::map<char, Seconds> parse_costs(const std::string& text) {
  std::map<char, Seconds> costs;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    at = end + 1;
    const bool known =
        word.size() > 2 && word[1] == '=' && std::string_view("FBIW").find(word[0]) != word.npos;
    const std::optional<Seconds> cost =
        known ? parse_milliseconds(word.substr(2)) : std::optional<Seconds>();
    if (!cost) {
      throw_flag_error("--costs", fmt::format("expected an action and its cost, found `{}`", word),
                       std::string(kCostsHelp));
    }
    if (!costs.emplace(word[0], *cost).second) {
      throw_flag_error("--costs", fmt::format("the cost of {} is given twice", word[0]),
                       "give it once");
    }
  }
  return costs;
}

}  // namespace

void declare_schedule(Flags& flags, ScheduleFlags& options) {
  flags.file({.name = "--schedule",
              .value = "CSV",
              .help = "a PyTorch pipeline schedule: one row of actions (0F0, 1B3, ..) per rank",
              .example = "schedule.csv"},
             options.schedule);
  flags.text({.name = "--costs",
              .value = "MS",
              .help = "milliseconds of each action of the schedule (F=10,B=20,I=10,W=10)",
              .example = "F=10,B=20"},
             options.costs);
}

strategy::ActionCosts costs_of(const ScheduleFlags& options) {
  strategy::ActionCosts result;
  if (!options.costs) return result;
  const std::map<char, Seconds> costs = parse_costs(*options.costs);
  const auto cost = [&costs](char action, Seconds otherwise) {
    const auto found = costs.find(action);
    return found == costs.end() ? otherwise : found->second;
  };
  result.forward = cost('F', result.forward);
  result.backward_input = cost('I', result.forward);
  result.backward_weight = cost('W', result.forward);
  result.backward = cost('B', result.backward_input + result.backward_weight);
  return result;
}

std::string describe_costs(const strategy::ActionCosts& costs) {
  return fmt::format("F takes {}, B {}, I {}, W {}; activations of {}", to_string(costs.forward),
                     to_string(costs.backward), to_string(costs.backward_input),
                     to_string(costs.backward_weight), to_string(strategy::kScheduleActivation));
}

}  // namespace shiplap::cli
