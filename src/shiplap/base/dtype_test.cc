#include "shiplap/base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

// The first number in a name: 16 of "bf16".
std::int64_t bits_in(std::string_view name) {
  const auto at = name.find_first_of("0123456789");
  std::int64_t bits = 0;
  std::from_chars(name.data() + at, name.data() + name.size(), bits);
  return bits;
}

TEST(DType, HasAsManyBytesAsItsNamesSay) {
  for (const DType type : kDTypes) {
    EXPECT_EQ(bits_in(name(type)), 8 * bytes_of(type)) << name(type);
    EXPECT_EQ(bits_in(long_name(type)), 8 * bytes_of(type)) << long_name(type);
  }
}

TEST(DType, HasAShortAndALongName) {
  EXPECT_EQ(name(DType::f16), "f16");
  EXPECT_EQ(long_name(DType::f16), "float16");
  EXPECT_EQ(long_name(DType::fp8_e5m2), "float8");
}

TEST(DType, OnlyTwoAreFp8) { EXPECT_EQ(std::ranges::count_if(kDTypes, is_fp8), 2); }

TEST(DType, AnUnknownOneHasANameAndNoSize) {
  const auto unknown = static_cast<DType>(200);
  EXPECT_EQ(name(unknown), "unknown type");
  EXPECT_EQ(long_name(unknown), "unknown type");
  EXPECT_THROW((void)bytes_of(unknown), InternalError);
}

}  // namespace
}  // namespace shiplap
