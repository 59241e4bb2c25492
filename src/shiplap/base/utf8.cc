#include "shiplap/base/utf8_internal.h"

namespace shiplap {
namespace {

// The decoded first byte of a sequence.
struct LeadByte {
  std::size_t bytes;
  char32_t bits;      // of the value, in the first byte
  char32_t smallest;  // smaller values have a shorter encoding
};

std::optional<LeadByte> parse_lead_byte(unsigned char byte) {
  if (byte < 0x80) return LeadByte{1, byte, 0};
  if ((byte & 0xE0) == 0xC0) return LeadByte{2, byte & 0x1Fu, 0x80};
  if ((byte & 0xF0) == 0xE0) return LeadByte{3, byte & 0x0Fu, 0x800};
  if ((byte & 0xF8) == 0xF0) return LeadByte{4, byte & 0x07u, 0x10000};
  return std::nullopt;
}

bool is_scalar_value(char32_t value) {
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return value <= 0x10FFFF && !surrogate;
}

}  // namespace

std::optional<CodePoint> first_code_point(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto first = parse_lead_byte(static_cast<unsigned char>(text[0]));
  if (!first || text.size() < first->bytes) return std::nullopt;

  char32_t value = first->bits;
  for (std::size_t i = 1; i < first->bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return std::nullopt;
    value = (value << 6) | (byte & 0x3Fu);
  }
  if (value < first->smallest || !is_scalar_value(value)) return std::nullopt;
  return CodePoint{value, first->bytes};
}

}  // namespace shiplap
