// A shared secret of the ranks of one job, and the proof of knowledge without sending it:
// HMAC-SHA-256 (RFC 2104, FIPS 180-4) over the messages of both ends of a connection, each of which
// has a nonce.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace shiplap::comm {

using Digest = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 24>;

[[nodiscard]] Digest sha256(std::span<const std::byte> data);
[[nodiscard]] Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);
// Takes the same time wherever they differ.
[[nodiscard]] bool equal_in_constant_time(const Digest& a, const Digest& b);

// From getrandom(). Throws MissingDependency D007 if that fails.
[[nodiscard]] Nonce random_nonce();

class Secret {
 public:
  // Any text; the empty one is no secret.
  explicit Secret(std::string_view text = "") : key_(text) {}

  // Returns the proof of one end (`role` says which) for a connection with these two messages.
  [[nodiscard]] Digest prove(std::string_view role, std::span<const std::byte> request,
                             std::span<const std::byte> reply) const;

 private:
  std::string key_;
};

}  // namespace shiplap::comm
