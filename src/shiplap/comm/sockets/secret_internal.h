// What only the ranks of one job know, and how they prove that they do without saying it:
// HMAC-SHA-256 (RFC 2104, FIPS 180-4) of what both ends of a connection have said, with a number of
// each that is never used twice.
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
// Takes as long wherever they differ.
[[nodiscard]] bool equal_in_constant_time(const Digest& a, const Digest& b);

// From the system, as all that is random here. Throws MissingPart D007 if it gives none.
[[nodiscard]] Nonce random_nonce();

class Secret {
 public:
  // Any text; the empty one is known to everybody.
  explicit Secret(std::string_view text = "") : key_(text) {}

  // The proof of one end (`role` says which) that it knows the secret, in a conversation in which
  // these were said.
  [[nodiscard]] Digest prove(std::string_view role, std::span<const std::byte> question,
                             std::span<const std::byte> answer) const;

 private:
  std::string key_;
};

}  // namespace shiplap::comm
