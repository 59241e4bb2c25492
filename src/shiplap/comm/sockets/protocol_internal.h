// The bytes on a connection: a handshake of Hello messages, then frames, each with a header. The
// TcpStore has messages of its own. Numbers are little-endian on every machine.
//
// Decoding trusts nothing: it returns nothing for bytes that no rank of this version sends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "shiplap/comm/failure_detector_internal.h"
#include "shiplap/comm/sockets/secret_internal.h"

namespace shiplap::comm {

// Changes with every format here, also with those of the TcpStore.
inline constexpr std::uint32_t kSocketsVersion = 4;

enum class HandshakeStatus : std::uint32_t {
  request,           // from the rank that connects
  ok,                // reply; the proof is expected next
  version_mismatch,  // reply; `version` is that of the accepting rank
  size_mismatch,     // reply; `size` is that of the accepting rank
  job_mismatch,      // reply
  duplicate_rank,    // reply: a rank with this number is already connected
  wrong_rank,        // reply: the request is for another rank; `from` is the accepting rank
  proof,             // from the rank that connects, after an ok
  ready,             // to rank 0: this rank is connected to all others
  go,                // from rank 0: all ranks are ready
};

// A message of the handshake: request, reply, and proof that the connecting rank knows the secret
// of the job. The reply has a proof as well.
struct Hello {
  static constexpr std::size_t kBytes = 96;
  static constexpr std::size_t kSignedBytes = 64;  // the prefix that proofs cover
  static constexpr std::size_t kCommonBytes =
      40;  // a prefix of all versions; begins with magic, version, status
  std::uint32_t version = kSocketsVersion;
  HandshakeStatus status = HandshakeStatus::request;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t size = 1;      // of the world
  std::uint64_t session = 0;  // of the world
  Nonce nonce{};
  Digest proof{};
  friend bool operator==(const Hello&, const Hello&) = default;
};
[[nodiscard]] std::array<std::byte, Hello::kBytes> encode(const Hello& hello);
// In a Hello of another version only `version` and `status` are valid.
[[nodiscard]] std::optional<Hello> decode_hello(std::span<const std::byte, Hello::kBytes> bytes);
// Returns the version of the sender; nothing if it is not Shiplap.
[[nodiscard]] std::optional<std::uint32_t> version_of_hello(
    std::span<const std::byte, Hello::kCommonBytes> bytes);

// Header of a frame of the eager or the rendezvous protocol (endpoint.cc).
struct Header {
  static constexpr std::size_t kBytes = 32;
  enum class Kind : std::uint8_t {
    eager = 1,  // followed by `bytes` of data
    rts,        // ready (request) to send a message of `bytes`
    cts,        // clear to send, from the receiver
    reject,     // from the receiver, whose buffer has only `bytes`
    frame,      // followed by the next `bytes` of a message that has its cts
    cancel,     // from the sender: the message will not be completed
    control,    // followed by a ControlMessage
  };
  static constexpr std::size_t kMaxEager = std::size_t{64} * 1024;
  static constexpr std::size_t kMaxFrame = std::size_t{1024} * 1024;
  static constexpr std::uint64_t kMaxMessage = std::uint64_t{1} << 48;

  Kind kind = Kind::eager;
  std::int32_t tag = 0;
  std::uint64_t group = 0;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;  // of a rendezvous message; unique for its sender
  friend bool operator==(const Header&, const Header&) = default;
};
[[nodiscard]] std::array<std::byte, Header::kBytes> encode(const Header& header);
[[nodiscard]] std::optional<Header> decode_header(std::span<const std::byte, Header::kBytes> bytes);

inline constexpr std::size_t kControlBytes = 320;
[[nodiscard]] std::array<std::byte, kControlBytes> encode(const ControlMessage& message);
[[nodiscard]] std::optional<ControlMessage> decode_control(
    std::span<const std::byte, kControlBytes> bytes);

// Header of a request to a TcpStore, or of its reply. A key and a value follow.
struct StoreMessage {
  static constexpr std::size_t kBytes = 24;
  enum class Kind : std::uint32_t {
    put = 1,
    get,               // the reply comes when the key exists
    ok,                // reply: it was put, or this is the value
    key_exists,        // reply: not stored; the key exists or the store is full
    version_mismatch,  // reply; `version` is that of the server
    hello,             // a nonce; the reply has one too, and a proof. Must be first
    proof,             // no reply; requests are accepted after it
    shutdown,          // no request: rank 0 ends the store; the value is the reason
  };
  static constexpr std::size_t kMaxKey = 256;
  static constexpr std::size_t kMaxValue = 4096;

  std::uint32_t version = kSocketsVersion;
  Kind kind = Kind::put;
  std::uint32_t key = 0;  // bytes
  std::uint32_t value = 0;
  friend bool operator==(const StoreMessage&, const StoreMessage&) = default;
};
[[nodiscard]] std::array<std::byte, StoreMessage::kBytes> encode(const StoreMessage& message);
[[nodiscard]] std::optional<StoreMessage> decode_store_message(
    std::span<const std::byte, StoreMessage::kBytes> bytes);

}  // namespace shiplap::comm
