#include "shiplap/overlap/calibration.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::overlap {
namespace {

// Version 1 has other names for `gemms` and `tile_seconds`. Versions 1 and 2 have no launch cost.
constexpr const char* kKind = "calibration 3";
constexpr const char* kKind2 = "calibration 2";
constexpr const char* kKind1 = "calibration 1";

class CalibrationReader {
 public:
  CalibrationReader(const Json& json, std::string_view file) : json_(json), file_(file) {}

  Calibration read() const {
    const Json* const kind = json_.find("shiplap");
    const bool is_version_1 = kind != nullptr && *kind == Json(kKind1);
    const bool is_version_3 = kind != nullptr && *kind == Json(kKind);
    const bool is_version_2 = kind != nullptr && *kind == Json(kKind2);
    if (!is_version_1 && !is_version_2 && !is_version_3) {
      throw_invalid(
          "not a calibration file",
          "pass a file that `shiplap overlap --calibrate FILE` of this version has written");
    }
    Calibration made{.machine = text(json_, "machine"),
                     .ranks = count("ranks"),
                     .latency = seconds("latency_seconds"),
                     .message = seconds("message_seconds"),
                     .seconds_per_byte = number(json_, "seconds_per_byte"),
                     .burst_bytes = number(json_, "burst_bytes", 0, 1e12),
                     .burst_seconds_per_byte = number(json_, "burst_seconds_per_byte"),
                     .processor_seconds_per_byte = number(json_, "processor_seconds_per_byte"),
                     .sum_seconds_per_byte = number(json_, "sum_seconds_per_byte"),
                     .collective = seconds("collective_seconds"),
                     .collective_share = number(json_, "collective_share", 0, 10),
                     .step = seconds("step_seconds"),
                     .tile_overhead = seconds(is_version_1 ? "piece_seconds" : "tile_seconds"),
                     .gemms = {}};
    if (is_version_3) made.launch = seconds("launch_seconds");
    const char* const key = is_version_1 ? "products" : "gemms";
    const Json* const gemms = json_.find(key);
    if (gemms == nullptr || !gemms->is_array())
      throw_invalid(fmt::format("`{}` is not a list", key), kAgain);
    for (const Json& each : gemms->as_array()) made.gemms.push_back(gemm(each));
    return made;
  }

 private:
  static constexpr const char* kAgain = "measure again: shiplap overlap --calibrate FILE";

  [[noreturn]] void throw_invalid(std::string what, std::string help) const {
    throw InputError(Diagnostic{.code = "D815",
                                .where = {.file = std::string(file_)},
                                .what = std::move(what),
                                .help = std::move(help)});
  }
  [[nodiscard]] std::string text(const Json& from, std::string_view key) const {
    const Json* const found = from.find(key);
    if (found == nullptr || !found->is_string())
      throw_invalid(fmt::format("`{}` is not a string", key), kAgain);
    return found->as_string();
  }
  [[nodiscard]] double number(const Json& from, std::string_view key, double min = 0,
                              double max = 1e9) const {
    const Json* const found = from.find(key);
    if (found == nullptr) throw_invalid(fmt::format("`{}` is missing", key), kAgain);
    const double value = found != nullptr && found->is_number() ? found->as_number() : NAN;
    if (value >= min && value <= max) return value;
    throw_invalid(fmt::format("`{}` is not a number from {} to {:g}", key, min, max), kAgain);
  }
  [[nodiscard]] int count(std::string_view key) const {
    const double value = number(json_, key, 1, 1e6);
    if (value == std::floor(value)) return static_cast<int>(value);
    throw_invalid(fmt::format("`{}` is not an integer", key), kAgain);
  }
  [[nodiscard]] Seconds seconds(std::string_view key) const { return {number(json_, key)}; }

  [[nodiscard]] Calibration::GemmCost gemm(const Json& from) const {
    const std::string type = text(from, "type");
    for (const DType each : {DType::f32, DType::bf16, DType::f16}) {
      if (shiplap::name(each) != type) continue;
      return {.type = each,
              .call = {number(from, "call_seconds")},
              .seconds_per_weight_byte = number(from, "seconds_per_weight_byte"),
              .seconds_per_flop = number(from, "seconds_per_flop"),
              .first_seconds_per_weight_byte = number(from, "first_seconds_per_weight_byte"),
              .scatter_seconds_per_byte = number(from, "scatter_seconds_per_byte")};
    }
    throw_invalid(fmt::format("unsupported dtype `{}`", type), "use f32, bf16 or f16");
  }

  const Json& json_;
  std::string_view file_;
};

}  // namespace

Json to_json(const Calibration& calibration) {
  Json::Array gemms;
  for (const Calibration::GemmCost& each : calibration.gemms) {
    gemms.push_back(
        Json::object({{"type", shiplap::name(each.type)},
                      {"call_seconds", each.call.value},
                      {"seconds_per_weight_byte", each.seconds_per_weight_byte},
                      {"seconds_per_flop", each.seconds_per_flop},
                      {"first_seconds_per_weight_byte", each.first_seconds_per_weight_byte},
                      {"scatter_seconds_per_byte", each.scatter_seconds_per_byte}}));
  }
  return Json::object({{"shiplap", kKind},
                       {"machine", calibration.machine},
                       {"ranks", calibration.ranks},
                       {"latency_seconds", calibration.latency.value},
                       {"message_seconds", calibration.message.value},
                       {"seconds_per_byte", calibration.seconds_per_byte},
                       {"burst_bytes", calibration.burst_bytes},
                       {"burst_seconds_per_byte", calibration.burst_seconds_per_byte},
                       {"processor_seconds_per_byte", calibration.processor_seconds_per_byte},
                       {"sum_seconds_per_byte", calibration.sum_seconds_per_byte},
                       {"collective_seconds", calibration.collective.value},
                       {"collective_share", calibration.collective_share},
                       {"step_seconds", calibration.step.value},
                       {"tile_seconds", calibration.tile_overhead.value},
                       {"launch_seconds", calibration.launch.value},
                       {"gemms", std::move(gemms)}});
}

Calibration calibration_from(const Json& json, std::string_view file) {
  return CalibrationReader(json, file).read();
}

}  // namespace shiplap::overlap
