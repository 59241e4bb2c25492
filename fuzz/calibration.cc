// Reads any text as a calibration, and what it accepts says the same when it is written again.
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
    shiplap::ensure(again == read, "what is written again says the same");
  } catch (const shiplap::InputError&) {
    return 0;
  }
  return 0;
}
