// Prints what fp8.h and scaling.h say, for another library to compare.
//
//   fp8_codes table              the numbers of all 256 codes: e4m3, e5m2 and e8m0, as raw floats
//   fp8_codes round < FLOATS     for each float six bytes: its e4m3 and e5m2, and the scale of a
//                                block of which it is the largest: round_up and ocp_floor for e4m3,
//                                then for e5m2
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string_view>

#include "shiplap/kernels/fp8.h"
#include "shiplap/kernels/scaling.h"

namespace shiplap::kernels {
namespace {

void print(const auto& values) { std::fwrite(&values, sizeof values, 1, stdout); }

void print_table() {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const float numbers[] = {to_float(E4m3{bits}), to_float(E5m2{bits}), to_float(E8m0{bits})};
    print(numbers);
  }
}

void print_rounded() {
  float x = 0;
  while (std::fread(&x, sizeof x, 1, stdin) == 1) {
    const std::uint8_t codes[] = {to_e4m3(x).bits,
                                  to_e5m2(x).bits,
                                  mx_scale(x, DType::fp8_e4m3, MxRule::round_up).bits,
                                  mx_scale(x, DType::fp8_e4m3, MxRule::ocp_floor).bits,
                                  mx_scale(x, DType::fp8_e5m2, MxRule::round_up).bits,
                                  mx_scale(x, DType::fp8_e5m2, MxRule::ocp_floor).bits};
    print(codes);
  }
}

}  // namespace
}  // namespace shiplap::kernels

int main(int argc, char** argv) try {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "table") {
    shiplap::kernels::print_table();
  } else if (what == "round") {
    shiplap::kernels::print_rounded();
  } else {
    throw std::runtime_error("usage: fp8_codes table | round");
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
