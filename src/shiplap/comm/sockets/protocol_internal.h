// What goes over a connection, as bytes: first a hello from both ends, then messages and control
// messages, each behind a header. Numbers are little-endian, whatever the machine.
//
// Reading trusts nothing: it gives nothing for bytes that no rank of this version sends.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "shiplap/comm/failure_detector_internal.h"
#include "shiplap/comm/sockets/secret_internal.h"

namespace shiplap::comm {

// Changes with anything that is sent, also by the Meeting.
inline constexpr std::uint32_t kSocketsVersion = 4;

// Who is there, said by the rank that connects; the answer to it; and the proof of the first that
// it knows the secret of the job, after which it is let in. The answer has a proof as well.
struct Hello {
  static constexpr std::size_t kBytes = 96;
  static constexpr std::size_t kSaid = 64;           // what proofs are about, in front of them
  static constexpr std::size_t kOfAllVersions = 40;  // in which mark, version and verdict are
  enum class Verdict : std::uint32_t {
    question,       // of the rank that connects
    welcome,        // all others are answers
    other_version,  // `version` is that of who answers
    other_size,     // `size` likewise
    other_job,
    taken,        // there is a rank with this number already
    wrong_place,  // the rank that connects has meant another; `from` is who answers
    proof,        // of the rank that connects, after a welcome
    ready,        // to rank 0: this one has a connection to every other
    go,           // from rank 0: all have
  };
  std::uint32_t version = kSocketsVersion;
  Verdict verdict = Verdict::question;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t size = 1;
  std::uint64_t session = 0;  // which world
  Nonce nonce{};
  Digest proof{};
  friend bool operator==(const Hello&, const Hello&) = default;
};
[[nodiscard]] std::array<std::byte, Hello::kBytes> encode(const Hello& hello);
// Of another version only `version` and `verdict` have a meaning.
[[nodiscard]] std::optional<Hello> decode_hello(std::span<const std::byte, Hello::kBytes> bytes);
// The version of who says hello, from what all versions have in common; nothing if it is no rank.
[[nodiscard]] std::optional<std::uint32_t> version_of_hello(
    std::span<const std::byte, Hello::kOfAllVersions> bytes);

// The eager and the rendezvous protocol. A short message goes at once, with its data. A longer one
// is announced (ready to send); when the receiver has a place for it, it says so (clear to send),
// and the message comes in frames, so that others can go between them.
struct Header {
  static constexpr std::size_t kBytes = 32;
  enum class Kind : std::uint8_t {
    eager = 1,  // followed by `bytes` of data
    rts,        // ready to send a message of `bytes`
    cts,        // clear to send, from the receiver
    refuse,     // from the receiver, which has only room for `bytes`
    frame,      // followed by the next `bytes` of a message that has its cts
    withdraw,   // from the sender: the message will not be completed
    control,    // followed by a ControlMessage
  };
  static constexpr std::size_t kMostEager = std::size_t{64} * 1024;
  static constexpr std::size_t kMostFrame = std::size_t{1024} * 1024;
  static constexpr std::uint64_t kMostMessage = std::uint64_t{1} << 48;

  Kind kind = Kind::eager;
  std::int32_t tag = 0;
  std::uint64_t group = 0;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;  // of a message that has an rts, by its sender
  friend bool operator==(const Header&, const Header&) = default;
};
[[nodiscard]] std::array<std::byte, Header::kBytes> encode(const Header& header);
[[nodiscard]] std::optional<Header> decode_header(std::span<const std::byte, Header::kBytes> bytes);

inline constexpr std::size_t kControlBytes = 320;
[[nodiscard]] std::array<std::byte, kControlBytes> encode(const ControlMessage& message);
[[nodiscard]] std::optional<ControlMessage> decode_control(
    std::span<const std::byte, kControlBytes> bytes);

// What a rank asks of a Meeting, and what that answers. A key and a value follow.
struct Inquiry {
  static constexpr std::size_t kBytes = 24;
  enum class Kind : std::uint32_t {
    put = 1,
    get,            // answered when the key is there
    done,           // answer: it was put, or this is its value
    taken,          // answer: another value was put there before
    other_version,  // answer: `version` is that of who answers
    greeting,       // a nonce; the answer has one too, and a proof. Nothing else is heard before
    proof,          // not answered; what follows is heard
    over,           // answer to nothing: rank 0 ends the Meeting, and this is why
  };
  static constexpr std::size_t kMostKey = 256;
  static constexpr std::size_t kMostValue = 4096;

  std::uint32_t version = kSocketsVersion;
  Kind kind = Kind::put;
  std::uint32_t key = 0;  // bytes
  std::uint32_t value = 0;
  friend bool operator==(const Inquiry&, const Inquiry&) = default;
};
[[nodiscard]] std::array<std::byte, Inquiry::kBytes> encode(const Inquiry& inquiry);
[[nodiscard]] std::optional<Inquiry> decode_inquiry(
    std::span<const std::byte, Inquiry::kBytes> bytes);

}  // namespace shiplap::comm
