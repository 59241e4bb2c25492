// Parses arbitrary text as a dispatch, and validates it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/dispatch/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    (void)validate(shiplap::dispatch::read_dispatch(text, "fuzz.json"));
  } catch (const shiplap::InputError&) {
    return 0;
  }
  return 0;
}
