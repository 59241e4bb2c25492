// Parses arbitrary bytes as a plan in its text form.
#include <cstddef>
#include <cstdint>

#include "check_plan.h"
#include "shiplap/plan/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shiplap::plan::check_bytes(data, size, shiplap::plan::parse_text);
  return 0;
}
