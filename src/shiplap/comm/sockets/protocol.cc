#include <algorithm>
#include <cstring>
#include <type_traits>

#include "shiplap/comm/messages_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"

namespace shiplap::comm {
namespace {

// As they appear in a packet dump.
constexpr std::uint64_t kHelloMagic = 0x0a50414c50494853;  // "SHIPLAP\n"
constexpr std::uint64_t kStoreMagic = 0x3f50414c50494853;  // "SHIPLAP?"
constexpr std::uint16_t kHeaderMagic = 0x4c53;             // "SL"
constexpr std::size_t kTextAt = 64;
constexpr std::size_t kNonceAt = 40;

static_assert(kNonceAt + std::tuple_size_v<Nonce> == Hello::kSignedBytes);
static_assert(Hello::kSignedBytes + std::tuple_size_v<Digest> == Hello::kBytes);

static_assert(std::tuple_size_v<decltype(ControlMessage::text)> + kTextAt == kControlBytes);

template <std::size_t kBytes>
class Writer {
 public:
  template <class T>
  Writer& put(T value) {
    for (std::size_t k = 0; k < sizeof(T); ++k) {
      bytes_.at(at_++) = static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * k));
    }
    return *this;
  }
  [[nodiscard]] std::array<std::byte, kBytes>& bytes() { return bytes_; }

 private:
  std::array<std::byte, kBytes> bytes_{};
  std::size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    std::uint64_t value = 0;
    for (std::size_t k = 0; k < sizeof(T); ++k) {
      value |= std::to_integer<std::uint64_t>(bytes_[at_++]) << (8 * k);
    }
    return static_cast<T>(value);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

template <class Enum>
bool is_between(std::underlying_type_t<Enum> value, Enum first, Enum last) {
  return value >= static_cast<std::underlying_type_t<Enum>>(first) &&
         value <= static_cast<std::underlying_type_t<Enum>>(last);
}

// Whether `bytes` is valid for the kind of header.
bool has_valid_size(const Header& header) {
  switch (header.kind) {
    case Header::Kind::eager:
      return header.bytes <= Header::kMaxEager;
    case Header::Kind::frame:
      return header.bytes > 0 && header.bytes <= Header::kMaxFrame;
    case Header::Kind::control:
      return header.bytes == kControlBytes;
    case Header::Kind::rts:
    case Header::Kind::reject:
      return header.bytes <= Header::kMaxMessage;
    case Header::Kind::cts:
    case Header::Kind::cancel:
      return header.bytes == 0;
  }
  return false;
}

}  // namespace

std::array<std::byte, Hello::kBytes> encode(const Hello& hello) {
  Writer<Hello::kBytes> writer;
  writer.put(kHelloMagic)
      .put(hello.version)
      .put(static_cast<std::uint32_t>(hello.status))
      .put(hello.from)
      .put(hello.to)
      .put(hello.size)
      .put(std::uint32_t{0})
      .put(hello.session);
  const auto rest = std::ranges::copy(hello.nonce, writer.bytes().begin() + kNonceAt).out;
  std::ranges::copy(hello.proof, rest);
  return writer.bytes();
}

std::optional<std::uint32_t> version_of_hello(
    std::span<const std::byte, Hello::kCommonBytes> bytes) {
  Reader reader(bytes);
  if (reader.get<std::uint64_t>() != kHelloMagic) return std::nullopt;
  return reader.get<std::uint32_t>();
}

std::optional<Hello> decode_hello(std::span<const std::byte, Hello::kBytes> bytes) {
  Reader reader(bytes);
  if (reader.get<std::uint64_t>() != kHelloMagic) return std::nullopt;
  Hello hello{.version = reader.get<std::uint32_t>()};
  const auto status = reader.get<std::uint32_t>();
  if (!is_between(status, HandshakeStatus::request, HandshakeStatus::go)) {
    return std::nullopt;
  }
  hello.status = static_cast<HandshakeStatus>(status);
  hello.from = reader.get<std::int32_t>();
  hello.to = reader.get<std::int32_t>();
  hello.size = reader.get<std::int32_t>();
  const auto unused = reader.get<std::uint32_t>();
  hello.session = reader.get<std::uint64_t>();
  std::ranges::copy(bytes.subspan<kNonceAt, std::tuple_size_v<Nonce>>(), hello.nonce.begin());
  std::ranges::copy(bytes.subspan<Hello::kSignedBytes>(), hello.proof.begin());
  if (hello.version != kSocketsVersion) return hello;
  const bool is_valid = unused == 0 && hello.size >= 1 && hello.from >= 0 && hello.to >= 0;
  return is_valid ? std::optional(hello) : std::nullopt;
}

std::array<std::byte, Header::kBytes> encode(const Header& header) {
  return Writer<Header::kBytes>()
      .put(kHeaderMagic)
      .put(static_cast<std::uint8_t>(header.kind))
      .put(std::uint8_t{0})
      .put(header.tag)
      .put(header.group)
      .put(header.bytes)
      .put(header.id)
      .bytes();
}

std::optional<Header> decode_header(std::span<const std::byte, Header::kBytes> bytes) {
  Reader reader(bytes);
  if (reader.get<std::uint16_t>() != kHeaderMagic) return std::nullopt;
  const auto kind = reader.get<std::uint8_t>();
  const auto unused = reader.get<std::uint8_t>();
  if (!is_between(kind, Header::Kind::eager, Header::Kind::control) || unused != 0) {
    return std::nullopt;
  }
  Header header{.kind = static_cast<Header::Kind>(kind)};
  header.tag = reader.get<std::int32_t>();
  header.group = reader.get<std::uint64_t>();
  header.bytes = reader.get<std::uint64_t>();
  header.id = reader.get<std::uint64_t>();
  const bool has_tag = header.tag >= 0 && header.tag <= MessageCommunicator::kTagsNeeded;
  return has_tag && has_valid_size(header) ? std::optional(header) : std::nullopt;
}

std::array<std::byte, kControlBytes> encode(const ControlMessage& message) {
  Writer<kControlBytes> writer;
  writer.put(static_cast<std::int32_t>(message.kind))
      .put(message.culprit)
      .put(message.group)
      .put(message.arrived)
      .put(message.waits)
      .put(message.run);
  for (const std::int32_t rank : message.awaited) writer.put(rank);
  std::ranges::copy(std::as_bytes(std::span(message.text)), writer.bytes().begin() + kTextAt);
  return writer.bytes();
}

std::optional<ControlMessage> decode_control(std::span<const std::byte, kControlBytes> bytes) {
  Reader reader(bytes);
  const auto kind = reader.get<std::int32_t>();
  if (!is_between(kind, ControlMessage::Kind::probe, ControlMessage::Kind::goodbye))
    return std::nullopt;
  ControlMessage message{.kind = static_cast<ControlMessage::Kind>(kind)};
  message.culprit = reader.get<std::int32_t>();
  message.group = reader.get<std::uint64_t>();
  message.arrived = reader.get<std::int64_t>();
  message.waits = reader.get<std::int32_t>();
  message.run = reader.get<std::int32_t>();
  for (std::int32_t& rank : message.awaited) rank = reader.get<std::int32_t>();
  std::ranges::copy(bytes.subspan(kTextAt),
                    std::as_writable_bytes(std::span(message.text)).begin());
  return message.text.back() == '\0' ? std::optional(message) : std::nullopt;
}

std::array<std::byte, StoreMessage::kBytes> encode(const StoreMessage& message) {
  return Writer<StoreMessage::kBytes>()
      .put(kStoreMagic)
      .put(message.version)
      .put(static_cast<std::uint32_t>(message.kind))
      .put(message.key)
      .put(message.value)
      .bytes();
}

std::optional<StoreMessage> decode_store_message(
    std::span<const std::byte, StoreMessage::kBytes> bytes) {
  Reader reader(bytes);
  if (reader.get<std::uint64_t>() != kStoreMagic) return std::nullopt;
  StoreMessage message{.version = reader.get<std::uint32_t>()};
  const auto kind = reader.get<std::uint32_t>();
  if (!is_between(kind, StoreMessage::Kind::put, StoreMessage::Kind::shutdown)) return std::nullopt;
  message.kind = static_cast<StoreMessage::Kind>(kind);
  message.key = reader.get<std::uint32_t>();
  message.value = reader.get<std::uint32_t>();
  if (message.version != kSocketsVersion) return message;
  const bool fits =
      message.key <= StoreMessage::kMaxKey && message.value <= StoreMessage::kMaxValue;
  return fits ? std::optional(message) : std::nullopt;
}

}  // namespace shiplap::comm
