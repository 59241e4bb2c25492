// Writes the protocol buffers wire format, as far as traces need it: varint, fixed64 and
// length-delimited fields.
//
// https://protobuf.dev/programming-guides/encoding/ has the rules. A nested message is written into
// its own buffer first, because its length precedes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shiplap::trace {

class ProtoWriter {
 public:
  ProtoWriter& number(int field, std::uint64_t value) {
    varint(key(field, 0));
    varint(value);
    return *this;
  }
  // A negative number takes ten bytes, as in protobuf.
  ProtoWriter& number(int field, std::int64_t value) {
    return number(field, static_cast<std::uint64_t>(value));
  }
  ProtoWriter& number(int field, int value) { return number(field, std::int64_t{value}); }

  ProtoWriter& fixed64(int field, std::uint64_t value) {
    varint(key(field, 1));
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    return *this;
  }

  ProtoWriter& text(int field, std::string_view value) {
    varint(key(field, 2));
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoWriter& message(int field, const ProtoWriter& inner) { return text(field, inner.bytes_); }

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
