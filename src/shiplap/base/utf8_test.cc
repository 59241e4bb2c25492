#include <gtest/gtest.h>

#include <string>

#include "shiplap/base/utf8_internal.h"

namespace shiplap {
namespace {

// The encoder, which shares nothing with the decoder under test.
std::string encode(char32_t c) {
  const auto byte = [](char32_t value) {
    return static_cast<char>(static_cast<unsigned char>(value));
  };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 + c / 64), byte(0x80 + c % 64)};
  if (c < 0x10000) return {byte(0xE0 + c / 4096), byte(0x80 + c / 64 % 64), byte(0x80 + c % 64)};
  return {byte(0xF0 + c / 262144), byte(0x80 + c / 4096 % 64), byte(0x80 + c / 64 % 64),
          byte(0x80 + c % 64)};
}

bool is_surrogate(char32_t c) { return c >= 0xD800 && c <= 0xDFFF; }

TEST(FirstCodePoint, ReadsBackEveryCharacterThereIs) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_surrogate(c)) continue;
    const std::string text = encode(c);
    const auto read = first_code_point(text + "x");
    ASSERT_TRUE(read) << "U+" << std::hex << static_cast<unsigned>(c);
    ASSERT_EQ(*read, (CodePoint{c, text.size()}));
  }
}

// Of all sequences of bytes of one length, exactly the encodings of the characters that take so
// many bytes are well-formed; the test above has shown that those are read, so counting is enough.
TEST(FirstCodePoint, RefusesEverySequenceOfTwoBytesThatIsNoCharacter) {
  int well_formed = 0;
  for (int a = 0x80; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string text{static_cast<char>(a), static_cast<char>(b)};
      if (first_code_point(text)) ++well_formed;
    }
  }
  EXPECT_EQ(well_formed, 0x800 - 0x80);
}

TEST(FirstCodePoint, RefusesEverySequenceOfThreeBytesThatIsNoCharacter) {
  int well_formed = 0;
  for (int a = 0xE0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      for (int c = 0; c < 256; ++c) {
        const std::string text{static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        if (first_code_point(text)) ++well_formed;
      }
    }
  }
  EXPECT_EQ(well_formed, 0x10000 - 0x800 - 0x800);  // without surrogates
}

TEST(FirstCodePoint, RefusesWhatIsCutOffOrOutOfRange) {
  EXPECT_FALSE(first_code_point(""));
  EXPECT_FALSE(first_code_point("\xE2\x82"));              // the beginning of a euro sign
  EXPECT_FALSE(first_code_point("\xF4\x90\x80\x80"));      // U+110000
  EXPECT_FALSE(first_code_point("\xF0\x8F\xBF\xBF"));      // U+FFFF in four bytes
  EXPECT_FALSE(first_code_point("\xF8\x88\x80\x80\x80"));  // five bytes
}

}  // namespace
}  // namespace shiplap
