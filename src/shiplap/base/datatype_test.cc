#include "shiplap/base/datatype.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

constexpr std::array<std::pair<Datatype, std::int64_t>, 4> kBits{{{Datatype::float8, 8},
                                                                  {Datatype::float16, 16},
                                                                  {Datatype::bfloat16, 16},
                                                                  {Datatype::float32, 32}}};

TEST(Datatype, EachIsFoundByItsOwnName) {
  for (const auto& [type, bits] : kBits) EXPECT_EQ(datatype_called(name(type)), type);
  EXPECT_EQ(name(Datatype::float16), "float16");
}

// The number at the end of a name counts bits.
TEST(Datatype, HasAsManyBytesAsItsNameSays) {
  for (const auto& [type, bits] : kBits) {
    EXPECT_EQ(bytes_of(type) * 8, bits) << name(type);
    EXPECT_TRUE(name(type).ends_with(std::to_string(bits))) << name(type);
  }
}

TEST(Datatype, OtherNamesAreNone) {
  for (const char* other : {"", "float", "Float16", "float16 ", "fp16", "int8", "float64"}) {
    EXPECT_EQ(datatype_called(other), std::nullopt) << other;
  }
}

TEST(Datatype, WhatIsNoneIsOurMistake) {
  EXPECT_THROW((void)bytes_of(static_cast<Datatype>(200)), InternalError);
}

}  // namespace
}  // namespace shiplap
