#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/files.h"
#include "shiplap/base/json.h"
#include "shiplap/base/suggest.h"
#include "shiplap/hardware/system.h"

namespace shiplap::hardware {
namespace {

// Larger than any machine, and small enough that no formula overflows a double.
constexpr double kMaxNumber = 1e18;
constexpr std::int64_t kMaxCount = 1'000'000'000;

// `ramp` is in microseconds by the square root of 10^6 bytes.
constexpr double kPerRootMegabyte = 1e-9;

// A JSON value and its path: "networks[0].ops.p2p".
struct JsonNode {
  const Json& json;
  std::string path;

  [[nodiscard]] JsonNode item(std::size_t index) const {
    return {.json = json.as_array()[index], .path = fmt::format("{}[{}]", path, index)};
  }
};

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

// The valid numbers of a field.
struct Range {
  double lowest = 0;
  double highest = kMaxNumber;
  bool without_lowest = false;
  bool without_highest = false;

  [[nodiscard]] bool holds(double x) const {
    return (without_lowest ? x > lowest : x >= lowest) &&
           (without_highest ? x < highest : x <= highest);
  }
  [[nodiscard]] std::string to_string() const {
    return fmt::format("{} {} and {} {}", without_lowest ? "above" : "at least", lowest,
                       without_highest ? "below" : "at most", highest);
  }
};
constexpr Range kAboveZero{.without_lowest = true};
constexpr Range kShare{.highest = 1, .without_lowest = true};

// Parses what it can and collects all errors, so that a file can be fixed in one pass. Fields that
// could not be parsed get some valid value, which is never used.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  System read(const Json& json) {
    const JsonNode whole{.json = json, .path = ""};
    System system;
    system.name = std::filesystem::path(file_).stem().string();
    if (fields(whole, {"matrix", "vector", "mem1", "mem2", "processing_mode", "launch", "networks",
                       "node"})) {
      system.matrix = processor(whole, "matrix");
      system.vector = processor(whole, "vector");
      system.mem1 = memory(whole, "mem1");
      system.mem2 = memory(whole, "mem2");
      system.processing_mode = mode(whole);
      if (json.find("launch") != nullptr) system.launch = {number(whole, "launch", {})};
      system.networks = networks(whole);
      system.node = node(whole);
      system.figures = std::move(figures_);
    }
    if (!errors_.empty()) throw InputError(std::move(errors_));
    return system;
  }

 private:
  void add_error(const std::string& path, std::string what, std::string help = "") {
    errors_.push_back({.code = "D600",
                       .where = {.file = file_, .operation = path},
                       .what = std::move(what),
                       .help = std::move(help)});
  }

  void add_type_error(const JsonNode& place, std::string_view expected) {
    add_error(place.path, fmt::format("expected {}, found {}", expected, describe(place.json)));
  }
  static std::string describe(const Json& json) {
    if (json.is_string()) return "a string";
    if (json.is_array() || json.is_object()) return fmt::format("an {}", json.type_name());
    return to_text(json);
  }

  // Checks that the node is an object with no members except `known`, notes and `basis`.
  bool fields(const JsonNode& place, const std::vector<std::string>& known) {
    if (!place.json.is_object()) {
      add_type_error(place, "an object");
      return false;
    }
    for (const auto& [key, value] : place.json.as_object()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      const std::string path = join(place.path, key);
      if (key == "note" || key == "source") {
        if (!value.is_string()) add_type_error({.json = value, .path = path}, "a string");
      } else if (key == "basis") {
        basis(place, {.json = value, .path = path});
      } else {
        add_error(path, fmt::format("unknown key `{}`", key), suggest(key, known));
      }
    }
    return true;
  }

  // {"published": [keys of the section], ...}
  void basis(const JsonNode& section, const JsonNode& place) {
    static const std::vector<std::string> names{"published", "fitted", "assumed"};
    if (!place.json.is_object()) return add_type_error(place, "an object");
    for (const auto& [name, keys] : place.json.as_object()) {
      const JsonNode list{.json = keys, .path = join(place.path, name)};
      const auto found = std::ranges::find(names, name);
      if (found == names.end()) {
        add_error(list.path, fmt::format("unknown basis `{}`", name), suggest(name, names));
      } else if (!keys.is_array()) {
        add_type_error(list, "a list of keys");
      } else {
        basis_of(section, list, static_cast<Basis>(found - names.begin() + 1));
      }
    }
  }
  void basis_of(const JsonNode& section, const JsonNode& list, Basis basis) {
    for (std::size_t k = 0; k < list.json.as_array().size(); ++k) {
      const JsonNode key = list.item(k);
      if (!key.json.is_string() || section.json.find(key.json.as_string()) == nullptr) {
        add_error(key.path, fmt::format("{} is not a key of this section", to_text(key.json)));
      } else {
        figures_.push_back({.path = join(section.path, key.json.as_string()), .basis = basis});
      }
    }
  }

  // A required member; null if it is missing.
  JsonNode required(const JsonNode& place, std::string_view key) {
    static const Json null;
    const std::string path = join(place.path, key);
    const Json* const found = place.json.find(key);
    if (found == nullptr) add_error(path, fmt::format("`{}` is missing", key));
    return {.json = found == nullptr ? null : *found, .path = path};
  }
  static bool is_missing(const JsonNode& parent, std::string_view key) {
    return parent.json.find(key) == nullptr;
  }

  double number(const JsonNode& place, const Range& range) {
    if (!place.json.is_number()) {
      add_type_error(place, "a number");
      return 1;
    }
    const double x = place.json.as_number();
    if (range.holds(x)) return x;
    add_error(place.path, fmt::format("{} is not {}", to_text(place.json), range.to_string()));
    return 1;
  }
  double number(const JsonNode& parent, std::string_view key, const Range& range) {
    const JsonNode place = required(parent, key);
    return is_missing(parent, key) ? 1 : number(place, range);
  }

  double optional_number(const JsonNode& parent, std::string_view key, const Range& range,
                         double otherwise) {
    const Json* const found = parent.json.find(key);
    return found == nullptr ? otherwise
                            : number({.json = *found, .path = join(parent.path, key)}, range);
  }
  std::int64_t count(const JsonNode& parent, std::string_view key) {
    const JsonNode place = required(parent, key);
    const std::int64_t number = place.json.is_integer() ? place.json.as_integer() : 0;
    if (number >= 1 && number <= kMaxCount) return number;
    if (!is_missing(parent, key)) {
      add_type_error(place, number < 1 ? "an integer, at least 1" : "at most 1,000,000,000");
    }
    return 1;
  }

  // [[threshold, share], ...] or {"limit": share, "half": amount}, amounts in `unit`.
  Efficiency efficiency(const JsonNode& parent, std::string_view key, double unit) {
    const JsonNode list = required(parent, key);
    if (is_missing(parent, key)) return {};
    if (list.json.is_object()) {
      if (!fields(list, {"limit", "half"})) return {};
      return Efficiency(Efficiency::Curve{.limit = number(list, "limit", kShare),
                                          .half = unit * number(list, "half", {})});
    }
    if (!list.json.is_array()) {
      add_type_error(list, "a list of [threshold, efficiency], or an object");
      return {};
    }
    const std::size_t before = errors_.size();
    std::vector<Efficiency::Step> steps;
    for (std::size_t k = 0; k < list.json.as_array().size(); ++k) {
      const JsonNode pair = list.item(k);
      if (!pair.json.is_array() || pair.json.as_array().size() != 2) {
        add_type_error(pair, "[threshold, efficiency]");
        continue;
      }
      const double threshold = number(pair.item(0), {});
      const double share = number(pair.item(1), kShare);
      steps.push_back({.at_least = threshold * unit, .share = share});
    }
    if (errors_.size() != before) return {};
    check_decreasing(list, steps);
    return errors_.size() == before ? Efficiency(std::move(steps)) : Efficiency();
  }
  void check_decreasing(const JsonNode& list, const std::vector<Efficiency::Step>& steps) {
    for (std::size_t k = 1; k < steps.size(); ++k) {
      if (steps[k].at_least < steps[k - 1].at_least) continue;
      add_error(list.item(k).path, "the thresholds are not in decreasing order",
                "list the largest first");
    }
    if (!steps.empty() && steps.back().at_least == 0) return;
    add_error(list.path, "the last threshold is not 0", "end with [0, efficiency of the smallest]");
  }

  Processor processor(const JsonNode& parent, std::string_view key) {
    static const std::vector<std::string> types{"float8", "float16", "bfloat16", "float32"};
    const JsonNode place = required(parent, key);
    Processor processor;
    if (is_missing(parent, key) || !fields(place, types)) return processor;
    bool any = false;
    for (const DType type : {DType::fp8_e4m3, DType::f16, DType::bf16, DType::f32}) {
      const Json* const found = place.json.find(Processor::speed_name(type));
      if (found == nullptr) continue;
      any = true;
      const JsonNode one{.json = *found, .path = join(place.path, Processor::speed_name(type))};
      processor.speed(type) = speed(one);
    }
    if (!any) add_error(place.path, "no data type is listed", suggest("", types));
    return processor;
  }
  Processor::Speed speed(const JsonNode& place) {
    if (!fields(place, {"tflops", "gflops_efficiency"})) return {};
    return {.peak = {1e12 * number(place, "tflops", kAboveZero)},
            .efficiency = efficiency(place, "gflops_efficiency", 1e9)};
  }

  MemoryTier memory(const JsonNode& parent, std::string_view key) {
    const JsonNode place = required(parent, key);
    if (is_missing(parent, key) || !fields(place, {"GiB", "GBps", "MB_efficiency"})) return {};
    const double bytes = std::ldexp(number(place, "GiB", {}), 30);
    const bool fits = bytes < static_cast<double>(kMaxCapacity.count);
    return {.capacity = fits ? Bytes{std::llround(bytes)} : kMaxCapacity,
            .peak = {1e9 * number(place, "GBps", kAboveZero)},
            .efficiency = efficiency(place, "MB_efficiency", 1e6)};
  }

  ProcessingMode mode(const JsonNode& whole) {
    static const std::vector<std::string> modes{"roofline", "no_overlap"};
    const JsonNode place = required(whole, "processing_mode");
    if (is_missing(whole, "processing_mode")) return {};
    if (!place.json.is_string()) {
      add_type_error(place, "`roofline` or `no_overlap`");
      return {};
    }
    const std::string& text = place.json.as_string();
    if (std::ranges::find(modes, text) == modes.end()) {
      add_error(place.path, fmt::format("unknown processing mode `{}`", text),
                suggest(text, modes));
    }
    return text == "no_overlap" ? ProcessingMode::no_overlap : ProcessingMode::roofline;
  }

  std::vector<Network> networks(const JsonNode& whole) {
    const JsonNode list = required(whole, "networks");
    if (is_missing(whole, "networks")) return {};
    if (!list.json.is_array() || list.json.as_array().empty()) {
      add_type_error(list, "a list of at least one network");
      return {};
    }
    std::vector<Network> networks;
    for (std::size_t k = 0; k < list.json.as_array().size(); ++k) {
      networks.push_back(network(list.item(k)));
      if (k == 0 || networks[k].size == 0 || networks[k].size > networks[k - 1].size) continue;
      add_error(list.item(k).path, "this network is not larger than the previous one",
                "list the smallest (innermost) network first");
    }
    for (std::size_t k = 1; k + 1 < networks.size(); ++k) {
      if (networks[k - 1].size == 0 || networks[k].size % networks[k - 1].size == 0) continue;
      add_error(list.item(k).path,
                fmt::format("a block of {} ranks is not made of whole blocks of {}",
                            networks[k].size, networks[k - 1].size),
                "give a multiple of the size of the network before it");
    }
    for (std::size_t k = 1; k < networks.size(); ++k) {
      if (networks[k].collectives.has_value() == networks[0].collectives.has_value()) continue;
      add_error(list.item(k).path, "all networks must have `collectives`, or none");
    }
    return networks;
  }

  Network network(const JsonNode& place) {
    Network network;
    if (!fields(place, {"kind", "bandwidth", "efficiency", "size", "latency", "ops",
                        "must_be_filled", "processor_usage", "collectives", "leaf"})) {
      return network;
    }
    network.kind = kind(place);
    network.bandwidth = {1e9 * number(place, "bandwidth", kAboveZero)};
    network.efficiency = number(place, "efficiency", kShare);
    network.size = size(place);
    network.latency = {number(place, "latency", {})};
    network.processor_usage =
        number(place, "processor_usage", {.highest = 1, .without_highest = true});
    network.must_be_filled = must_be_filled(place);
    network.collectives = collectives(place);
    network.leaf = leaf(place);
    if (network.collectives && is_missing(place, "ops")) return network;
    const JsonNode ops = required(place, "ops");
    if (!is_missing(place, "ops") &&
        fields(ops, {"p2p", "reduce_scatter", "all_gather", "all_reduce"})) {
      network.p2p = factor(ops, "p2p");
      network.reduce_scatter = factor(ops, "reduce_scatter");
      network.all_gather = factor(ops, "all_gather");
      network.all_reduce = factor(ops, "all_reduce");
    }
    return network;
  }
  std::string kind(const JsonNode& parent) {
    const Json* const found = parent.json.find("kind");
    if (found == nullptr) return {};
    if (found->is_string()) return found->as_string();
    add_type_error({.json = *found, .path = join(parent.path, "kind")}, "a string");
    return {};
  }
  std::optional<Leaf> leaf(const JsonNode& parent) {
    if (is_missing(parent, "leaf")) return std::nullopt;
    const JsonNode place = required(parent, "leaf");
    if (!fields(place, {"nodes", "oversubscription"})) return std::nullopt;
    return Leaf{.nodes = count(place, "nodes"),
                .oversubscription = number(place, "oversubscription", {.lowest = 1})};
  }
  std::optional<Node> node(const JsonNode& whole) {
    if (is_missing(whole, "node")) return std::nullopt;
    const JsonNode place = required(whole, "node");
    if (!fields(place, {"devices", "adapters"})) return std::nullopt;
    return Node{.devices = count(place, "devices"), .adapters = count(place, "adapters")};
  }

  std::optional<CollectiveRates> collectives(const JsonNode& parent) {
    if (is_missing(parent, "collectives")) return std::nullopt;
    const JsonNode place = required(parent, "collectives");
    if (!fields(place, {"latency", "ll", "ll128", "ramp", "in_switch", "one_peer"})) {
      return std::nullopt;
    }
    CollectiveRates rates{.latency = optional_number(place, "latency", {}, 1),
                          .ll = optional_number(place, "ll", kShare, 0.5),
                          .ll128 = optional_number(place, "ll128", kShare, 0.9),
                          .ramp = kPerRootMegabyte * optional_number(place, "ramp", {}, 0)};
    rates.in_switch = in_switch(place);
    rates.one_peer = one_peer(place);
    return rates;
  }
  std::optional<CollectiveRates::InSwitch> in_switch(const JsonNode& parent) {
    if (is_missing(parent, "in_switch")) return std::nullopt;
    const JsonNode place = required(parent, "in_switch");
    if (!fields(place, {"share", "ramp"})) return std::nullopt;
    return CollectiveRates::InSwitch{
        .share = number(place, "share", kShare),
        .ramp = kPerRootMegabyte * optional_number(place, "ramp", {}, 0)};
  }
  std::optional<CollectiveRates::OnePeer> one_peer(const JsonNode& parent) {
    if (is_missing(parent, "one_peer")) return std::nullopt;
    const JsonNode place = required(parent, "one_peer");
    if (!fields(place, {"GBps", "MiB"})) return std::nullopt;
    return CollectiveRates::OnePeer{
        .bandwidth = {1e9 * number(place, "GBps", kAboveZero)},
        .bytes = {std::llround(std::ldexp(number(place, "MiB", {.highest = 1e6}), 20))}};
  }
  std::int64_t size(const JsonNode& parent) {
    const JsonNode place = required(parent, "size");
    const std::int64_t size = place.json.is_integer() ? place.json.as_integer() : 0;
    if (size >= 1 && size <= kMaxCount) return size;
    if (!is_missing(parent, "size")) {
      add_type_error(place,
                     size < 1 ? "an integer number of ranks, at least 1" : "at most 1,000,000,000");
    }
    return 0;
  }
  bool must_be_filled(const JsonNode& parent) {
    const JsonNode place = required(parent, "must_be_filled");
    if (place.json.is_bool()) return place.json.as_bool();
    if (!is_missing(parent, "must_be_filled")) add_type_error(place, "true or false");
    return false;
  }

  // [scalar, offset]; an offset of null is 0. The time must not be negative for two ranks, the
  // fewest.
  Network::Factor factor(const JsonNode& parent, std::string_view key) {
    const JsonNode pair = required(parent, key);
    if (is_missing(parent, key)) return {};
    if (!pair.json.is_array() || pair.json.as_array().size() != 2) {
      add_type_error(pair, "[scalar, offset]");
      return {};
    }
    const JsonNode offset = pair.item(1);
    return {.scalar = number(pair.item(0), {}),
            .offset = offset.json.is_null() ? 0 : number(offset, {.lowest = -2})};
  }

  std::string file_;
  std::vector<Diagnostic> errors_;
  std::vector<FigureBasis> figures_;
};

}  // namespace

System parse_system(std::string_view text, std::string_view file) {
  if (is_plan_text(text)) {
    throw InputError(Diagnostic{
        .code = "D600",
        .where = {.file = std::string(file)},
        .what = "this is a plan, not a hardware file",
        .help = "`shiplap hardware` lists the known machines, and prints one to copy and change"});
  }
  return Reader(file).read(parse_json(text, file));
}

}  // namespace shiplap::hardware
