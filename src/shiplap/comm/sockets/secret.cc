#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "shiplap/base/resources.h"
#include "shiplap/comm/sockets/secret_internal.h"

namespace shiplap::comm {
namespace {

constexpr std::size_t kBlock = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRounds{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using Sha256State = std::array<std::uint32_t, 8>;

void compress(Sha256State& state, std::span<const std::byte, kBlock> block) {
  std::array<std::uint32_t, 64> words{};
  for (std::size_t k = 0; k < 16; ++k) {
    for (std::size_t b = 0; b < 4; ++b) {
      words[k] = words[k] << 8U | std::to_integer<std::uint32_t>(block[4 * k + b]);
    }
  }
  for (std::size_t k = 16; k < 64; ++k) {
    const std::uint32_t a = words[k - 15];
    const std::uint32_t b = words[k - 2];
    words[k] = words[k - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3U) + words[k - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10U);
  }
  Sha256State s = state;
  for (std::size_t k = 0; k < 64; ++k) {
    const std::uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const std::uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const std::uint32_t first = s[7] +
                                (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                                choice + kRounds[k] + words[k];
    const std::uint32_t second =
        (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + majority;
    s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (std::size_t k = 0; k < state.size(); ++k) state[k] += s[k];
}

std::vector<std::byte> concatenate(std::span<const std::byte> a, std::span<const std::byte> b) {
  std::vector<std::byte> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

Digest sha256(std::span<const std::byte> data) {
  std::vector<std::byte> padded(data.begin(), data.end());
  padded.push_back(std::byte{0x80});
  while (padded.size() % kBlock != kBlock - 8) padded.push_back(std::byte{0});
  const std::uint64_t bits = std::uint64_t{data.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) {
    padded.push_back(static_cast<std::byte>(bits >> static_cast<unsigned>(shift)));
  }
  Sha256State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  for (std::size_t at = 0; at < padded.size(); at += kBlock) {
    compress(state, std::span<const std::byte>(padded).subspan(at).first<kBlock>());
  }
  Digest digest{};
  for (std::size_t k = 0; k < digest.size(); ++k) {
    digest.at(k) = static_cast<std::byte>(state.at(k / 4) >> (24 - 8 * (k % 4)));
  }
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  std::array<std::byte, kBlock> block{};
  if (key.size() > kBlock) {
    std::ranges::copy(sha256(key), block.begin());
  } else {
    std::ranges::copy(key, block.begin());
  }
  std::array<std::byte, kBlock> inner = block;
  std::array<std::byte, kBlock> outer = block;
  for (std::byte& one : inner) one ^= std::byte{0x36};
  for (std::byte& one : outer) one ^= std::byte{0x5c};
  return sha256(concatenate(outer, sha256(concatenate(inner, data))));
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
  std::byte differs{};
  for (std::size_t k = 0; k < a.size(); ++k) differs |= a.at(k) ^ b.at(k);
  return differs == std::byte{};
}

Nonce random_nonce() {
  Nonce nonce{};
  std::size_t count = 0;
  while (count < nonce.size()) {
    const ssize_t got = getrandom(nonce.data() + count, nonce.size() - count, 0);
    if (got < 0 && errno != EINTR)
      throw_resource_exhausted("getrandom() failed: no random numbers");
    if (got > 0) count += static_cast<std::size_t>(got);
  }
  return nonce;
}

Digest Secret::prove(std::string_view role, std::span<const std::byte> request,
                     std::span<const std::byte> reply) const {
  const auto messages = concatenate(request, reply);
  return hmac_sha256(std::as_bytes(std::span(key_)),
                     concatenate(std::as_bytes(std::span(role)), messages));
}

}  // namespace shiplap::comm
