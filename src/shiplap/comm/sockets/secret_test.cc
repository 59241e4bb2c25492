#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "shiplap/comm/sockets/secret_internal.h"

namespace shiplap::comm {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte one : digest) text += fmt::format("{:02x}", std::to_integer<int>(one));
  return text;
}

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// The examples of FIPS 180-4, and lengths around the border of a block (by Python's hashlib).
TEST(Sha256, OfKnownTexts) {
  const auto of = [](const std::string& text) { return hex(sha256(bytes(text))); };
  EXPECT_EQ(of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Test cases 1, 2, 3 and 6 of RFC 4231.
TEST(Hmac, OfKnownTexts) {
  const auto of = [](const std::string& key, const std::string& text) {
    return hex(hmac_sha256(bytes(key), bytes(text)));
  };
  EXPECT_EQ(of(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(of("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(of(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Secret, ProofsDifferByRoleSecretAndWhatWasSaid) {
  const std::string one = "question";
  const std::string two = "answer";
  const Secret secret("a secret");
  std::set<std::string> all{hex(secret.prove("answer", bytes(one), bytes(two))),
                            hex(secret.prove("proof", bytes(one), bytes(two))),
                            hex(secret.prove("answer", bytes(two), bytes(two))),
                            hex(secret.prove("answer", bytes(one), bytes(one))),
                            hex(Secret().prove("answer", bytes(one), bytes(two))),
                            hex(Secret("another").prove("answer", bytes(one), bytes(two)))};
  EXPECT_EQ(all.size(), 6U);
  EXPECT_TRUE(equal_in_constant_time(secret.prove("answer", bytes(one), bytes(two)),
                                     Secret("a secret").prove("answer", bytes(one), bytes(two))));
}

TEST(Nonce, IsNeverTheSame) {
  std::set<Nonce> all;
  for (int k = 0; k < 1000; ++k) all.insert(random_nonce());
  EXPECT_EQ(all.size(), 1000U);
}

}  // namespace
}  // namespace shiplap::comm
