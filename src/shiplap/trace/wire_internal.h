// Protocol buffers on the wire, as far as traces need them: fields of whole numbers, of eight
// bytes, and of bytes with their length before them.
//
// https://protobuf.dev/programming-guides/encoding/ has the rules. A message inside another is
// written into a buffer of its own first, because its length comes before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shiplap::trace {

class Wire {
 public:
  Wire& number(int field, std::uint64_t value) {
    varint(key(field, 0));
    varint(value);
    return *this;
  }
  // A negative number has all its 64 bits written.
  Wire& number(int field, std::int64_t value) {
    return number(field, static_cast<std::uint64_t>(value));
  }
  Wire& number(int field, int value) { return number(field, std::int64_t{value}); }

  Wire& eight_bytes(int field, std::uint64_t value) {
    varint(key(field, 1));
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    return *this;
  }

  Wire& text(int field, std::string_view value) {
    varint(key(field, 2));
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Wire& message(int field, const Wire& inner) { return text(field, inner.bytes_); }

  void clear() { bytes_.clear(); }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::string take() { return std::move(bytes_); }

 private:
  static std::uint64_t key(int field, std::uint64_t type) {
    return static_cast<std::uint64_t>(field) << 3 | type;
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>((value & 0x7f) | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

}  // namespace shiplap::trace
