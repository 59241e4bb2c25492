#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "shiplap/base/random.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/comm/sockets/protocol_internal.h"

namespace shiplap::comm {
namespace {

std::byte byte(int value) { return static_cast<std::byte>(value); }

ControlMessage reply_with(const std::string& text) {
  ControlMessage message{.kind = ControlMessage::Kind::probe_reply,
                         .culprit = -1,
                         .group = 0xfedcba9876543210,
                         .arrived = 1234567890123,
                         .waits = 1,
                         .run = 3,
                         .awaited = {7, 0, 1, 2, 3, 4, 5, ControlMessage::kMore}};
  text.copy(message.text.data(), message.text.size() - 1);
  return message;
}

TEST(Protocol, RoundTrips) {
  const Hello hello{.status = HandshakeStatus::duplicate_rank,
                    .from = 3,
                    .to = 70000,
                    .size = 100000,
                    .session = 0x0123456789abcdef,
                    .nonce = random_nonce(),
                    .proof = sha256({})};
  EXPECT_EQ(decode_hello(encode(hello)), hello);
  const Header header{.kind = Header::Kind::rts,
                      .tag = Communicator::kMaxTag,
                      .group = 0xfedcba9876543210,
                      .bytes = 1ULL << 40,
                      .id = 77};
  EXPECT_EQ(decode_header(encode(header)), header);
  const StoreMessage request{.kind = StoreMessage::Kind::get, .key = 256, .value = 4096};
  EXPECT_EQ(decode_store_message(encode(request)), request);
  const ControlMessage message = reply_with("barrier number 3 of `world`");
  const auto again = decode_control(encode(message));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->kind, message.kind);
  EXPECT_EQ(again->culprit, -1);
  EXPECT_EQ(again->group, message.group);
  EXPECT_EQ(again->arrived, message.arrived);
  EXPECT_EQ(again->waits, 1);
  EXPECT_EQ(again->run, 3);
  EXPECT_EQ(again->awaited, message.awaited);
  EXPECT_EQ(again->text, message.text);
}

// The bytes themselves: two machines must agree on them, and a change needs a new version.
TEST(Protocol, NumbersAreLittleEndian) {
  const auto hello = encode(Hello{.from = 1, .to = 0x0203, .size = 4, .session = 5});
  EXPECT_EQ(std::memcmp(hello.data(), "SHIPLAP\n", 8), 0);
  EXPECT_EQ(hello[8], byte(4));  // the version
  EXPECT_EQ(hello[16], byte(1));
  EXPECT_EQ(hello[20], byte(3));
  EXPECT_EQ(hello[21], byte(2));
  EXPECT_EQ(hello[32], byte(5));
  const auto header = encode(Header{.tag = 0x0102, .group = 3, .bytes = 0x0405, .id = 6});
  EXPECT_EQ(std::memcmp(header.data(), "SL\1\0\2\1\0\0\3", 9), 0);
  EXPECT_EQ(header[16], byte(5));
  EXPECT_EQ(header[17], byte(4));
  EXPECT_EQ(header[24], byte(6));
}

TEST(Protocol, RejectsInvalidBytes) {
  auto hello = encode(Hello{.size = 2});
  hello[0] = byte('G');  // "GET / HTTP", say
  EXPECT_FALSE(decode_hello(hello));
  EXPECT_FALSE(decode_hello(encode(Hello{.size = 0})));
  EXPECT_FALSE(decode_hello(encode(Hello{.from = -1})));
  EXPECT_FALSE(decode_hello(encode(Hello{.status = static_cast<HandshakeStatus>(99)})));

  EXPECT_FALSE(decode_header(encode(Header{.kind = static_cast<Header::Kind>(0)})));
  EXPECT_FALSE(decode_header(encode(Header{.kind = static_cast<Header::Kind>(8)})));
  EXPECT_FALSE(decode_header(encode(Header{.tag = -1})));
  EXPECT_FALSE(decode_header(encode(Header{.tag = 1 << 30})));
  EXPECT_FALSE(decode_header(encode(Header{.bytes = Header::kMaxEager + 1})));
  EXPECT_TRUE(decode_header(encode(Header{.bytes = Header::kMaxEager})));
  EXPECT_FALSE(decode_header(encode(Header{.kind = Header::Kind::frame, .bytes = 0})));
  EXPECT_FALSE(
      decode_header(encode(Header{.kind = Header::Kind::frame, .bytes = Header::kMaxFrame + 1})));
  EXPECT_FALSE(decode_header(encode(Header{.kind = Header::Kind::control, .bytes = 1})));
  EXPECT_FALSE(decode_header(encode(Header{.kind = Header::Kind::cts, .bytes = 1})));
  EXPECT_FALSE(decode_header(encode(Header{.kind = Header::Kind::rts, .bytes = ~0ULL})));

  EXPECT_FALSE(decode_store_message(encode(StoreMessage{.key = 257})));
  EXPECT_FALSE(decode_store_message(encode(StoreMessage{.value = 4097})));
  EXPECT_FALSE(
      decode_store_message(encode(StoreMessage{.kind = static_cast<StoreMessage::Kind>(0)})));

  auto message = encode(reply_with("x"));
  message.back() = byte('!');  // a text that is not terminated
  EXPECT_FALSE(decode_control(message));
  EXPECT_FALSE(
      decode_control(encode(ControlMessage{.kind = static_cast<ControlMessage::Kind>(4)})));
}

TEST(Protocol, ReadsTheVersionOfAnotherVersion) {
  const auto hello = decode_hello(encode(Hello{.version = 7, .size = -5}));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->version, 7U);
  const auto message = decode_store_message(encode(StoreMessage{.version = 7, .key = ~0U}));
  ASSERT_TRUE(message);
  EXPECT_EQ(message->version, 7U);
}

// A header that is accepted encodes to the same bytes.
TEST(Protocol, AcceptsOnlyWhatItCouldHaveWritten) {
  Random random(1);
  for (int k = 0; k < 20000; ++k) {
    auto bytes = encode(Header{.kind = static_cast<Header::Kind>(random.between(1, 7)), .tag = 5});
    for (int change = 0; change < 3; ++change) {
      const auto at = static_cast<std::size_t>(random.between(0, Header::kBytes - 1));
      bytes.at(at) = byte(static_cast<int>(random.between(0, 255)));
    }
    if (const auto header = decode_header(bytes)) {
      EXPECT_EQ(encode(*header), bytes);
    }
  }
}

}  // namespace
}  // namespace shiplap::comm
