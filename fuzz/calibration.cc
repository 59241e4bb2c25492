// Parses arbitrary text as a calibration. What is accepted must round-trip.
#include "shiplap/overlap/calibration.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using shiplap::overlap::calibration_from;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto read = calibration_from(shiplap::parse_json(text, "fuzz.json"), "fuzz.json");
    const std::string written = shiplap::to_text(to_json(read));
    const auto again = calibration_from(shiplap::parse_json(written, "again.json"), "again.json");
    shiplap::ensure(again == read, "a calibration round-trips");
  } catch (const shiplap::InputError&) {
    return 0;
  }
  return 0;
}
