#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/rendezvous.h"
#include "shiplap/comm/sockets/socket_internal.h"
#include "shiplap/comm/sockets/testing_internal.h"

namespace shiplap::comm {
namespace {

constexpr Seconds kLong{20};
constexpr Seconds kShort{0.1};

// A server that answers whoever comes with some bytes, once.
class Impostor {
 public:
  explicit Impostor(std::vector<std::byte> answer)
      : listener_(listen_at({.host = "127.0.0.1"}, 4)), thread_([this, answer = std::move(answer)] {
          if (!wait_ready(listener_, Ready::read, seconds_now() + 10)) return;
          const Socket socket = accept_from(listener_);
          (void)send_all(socket, answer, seconds_now() + 10);
          std::array<std::byte, 1000> rest{};  // until the other side has had enough
          (void)receive_all(socket, rest, seconds_now() + 10);
        }) {}
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  ~Impostor() { thread_.join(); }
  [[nodiscard]] std::string address() const { return to_string(listener_.own_address()); }

 private:
  Socket listener_;
  std::thread thread_;
};

TEST(Address, IsReadAndWritten) {
  const auto read = [](const std::string& text, Port port = Port::needed) {
    return parse_address(text, "it", port);
  };
  EXPECT_EQ(read("h0:80"), (Address{.host = "h0", .port = 80}));
  EXPECT_EQ(read("[::1]:65535"), (Address{.host = "::1", .port = 65535}));
  EXPECT_EQ(read("127.0.0.1", Port::optional), (Address{.host = "127.0.0.1", .port = 0}));
  EXPECT_EQ(to_string(read("[::1]:80")), "[::1]:80");
  EXPECT_EQ(to_string(read("h0:80")), "h0:80");
}

TEST(Address, ThatIsNoneIsRefused) {
  for (const char* const text : {"", ":80", "h0", "h0:", "h0:0", "h0:65536", "h0:8x", "h0:-1",
                                 "[::1", "[::1]80", "[::1]", "::1:80", "h0:80:81"}) {
    EXPECT_EQ(code_thrown([&] { (void)parse_address(text, "it", Port::needed); }), "D308") << text;
  }
  EXPECT_EQ(code_thrown([] { (void)meet_by_list({"h0:1", "h1"}); }), "D308");
}

TEST(Address, OfAnotherMachineCannotBeListenedTo) {
  // A documentation address: no machine has it. (RFC 5737; testbeds use 192.0.2.)
  EXPECT_EQ(code_thrown([] { (void)listen_at({.host = "203.0.113.5", .port = 80}, 1); }), "D308");
  EXPECT_EQ(code_thrown([] { (void)connect_to({.host = "no.such.host.invalid", .port = 1}, 0); }),
            "D308");
}

TEST(Address, ThatIsListenedToIsTaken) {
  const Socket first = listen_at({.host = "127.0.0.1"}, 1);
  EXPECT_EQ(code_thrown([&] { (void)listen_at(first.own_address(), 1); }), "D308");
}

TEST(Meeting, KeepsWhatIsPut) {
  const std::string address = free_address();
  std::thread visitor([&] {
    const auto meeting = meet_at(address, {.rank = 1, .size = 2}, kLong);
    EXPECT_EQ(meeting->own_host(), "127.0.0.1");
    EXPECT_EQ(meeting->get("from 0", kLong), "hello");
    EXPECT_EQ(meeting->get("nothing", kShort), std::nullopt);
    meeting->put("from 1", "world");
    EXPECT_EQ(meeting->get("from 1", kLong), "world");
  });
  {
    const auto meeting = meet_at(address, {.rank = 0, .size = 2}, kLong);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the other waits for it
    meeting->put("from 0", "hello");
    EXPECT_EQ(meeting->get("from 1", kLong), "world");
    EXPECT_EQ(meeting->get("nothing", kShort), std::nullopt);
  }
  visitor.join();
}

TEST(Meeting, ForgetsAnInquiryThatWasGivenUp) {
  const std::string address = free_address();
  std::thread visitor([&] {
    const auto meeting = meet_at(address, {.rank = 1, .size = 2}, kLong);
    EXPECT_EQ(meeting->get("later", kShort), std::nullopt);
    meeting->put("asked", "yes");
    EXPECT_EQ(meeting->get("other", kLong), "2");
    EXPECT_EQ(meeting->get("later", kLong), "1");
  });
  {
    const auto meeting = meet_at(address, {.rank = 0, .size = 2}, kLong);
    EXPECT_EQ(meeting->get("asked", kLong), "yes");
    meeting->put("later", "1");
    meeting->put("other", "2");
  }
  visitor.join();
}

TEST(Meeting, AKeyBelongsToOneRank) {
  const std::string address = free_address();
  std::thread visitor([&] {
    const auto meeting = meet_at(address, {.rank = 1, .size = 2}, kLong);
    meeting->put("mine", "1");
    EXPECT_EQ(meeting->get("theirs", kLong), "0");
    EXPECT_EQ(code_thrown([&] { meeting->put("theirs", "1"); }), "D307");
  });
  {
    const auto meeting = meet_at(address, {.rank = 0, .size = 2}, kLong);
    meeting->put("theirs", "0");
    EXPECT_EQ(meeting->get("mine", kLong), "1");
    EXPECT_EQ(code_thrown([&] { meeting->put("mine", "0"); }), "D307");
  }
  visitor.join();
}

TEST(Meeting, NobodyThereIsAPassedDeadline) {
  try {
    (void)meet_at(free_address(), {.rank = 3, .size = 4}, kShort);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DeadlinePassed& error) {
    EXPECT_EQ(error.missing(), std::vector<int>{0});
    EXPECT_EQ(error.diagnostic().code, "D301");
  }
}

TEST(Meeting, RankZeroThatLeavesIsNamed) {
  const std::string address = free_address();
  std::thread visitor([&] {
    const auto meeting = meet_at(address, {.rank = 1, .size = 2}, kLong);
    meeting->put("here", "1");
    try {
      (void)meeting->get("never", kLong);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const RankFailed& error) {
      EXPECT_EQ(error.rank(), 0);
    }
  });
  try {
    const auto meeting = meet_at(address, {.rank = 0, .size = 2}, kLong);
    EXPECT_EQ(meeting->get("here", kLong), "1");
    throw std::runtime_error("planted");
  } catch (const std::runtime_error&) {
    visitor.join();  // the server did not wait for anybody
  }
}

TEST(Meeting, AnotherProgramAtThePortIsRecognized) {
  const std::string_view page = "HTTP/1.0 400 Bad Request\r\n\r\nnot a rank";
  const Impostor impostor(
      {std::as_bytes(std::span(page)).begin(), std::as_bytes(std::span(page)).end()});
  EXPECT_EQ(code_thrown([&] { (void)meet_at(impostor.address(), {.rank = 1, .size = 2}, kLong); }),
            "D307");
}

TEST(Meeting, RankZeroOfAnotherVersionIsRecognized) {
  const auto answer = encode(Inquiry{.version = 9, .kind = Inquiry::Kind::other_version});
  const Impostor impostor({answer.begin(), answer.end()});
  const std::string text =
      text_thrown([&] { (void)meet_at(impostor.address(), {.rank = 1, .size = 2}, kLong); });
  EXPECT_NE(text.find("rank 0 speaks version 9 of the protocol, this rank 4"), std::string::npos)
      << text;
}

TEST(Meeting, AVisitorOfAnotherVersionIsToldSo) {
  const std::string address = free_address();
  const auto meeting = meet_at(address, {.rank = 0, .size = 2}, Seconds{0.5});
  const Socket socket = connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10);
  (void)send_all(socket, encode(Inquiry{.version = 9}), seconds_now() + 10);
  std::array<std::byte, Inquiry::kBytes> answer{};
  ASSERT_TRUE(receive_all(socket, answer, seconds_now() + 10));
  const auto read = decode_inquiry(answer);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, Inquiry::Kind::other_version);
  EXPECT_EQ(read->version, kSocketsVersion);
}

// Who does not know the secret can neither read nor write, with our own visitor or by hand.
TEST(Meeting, IsForThoseWhoKnowTheSecret) {
  const std::string address = free_address();
  const auto meeting = meet_at(address, {.rank = 0, .size = 2}, Seconds{0.5}, "a secret");
  meeting->put("key", "value");
  for (const std::string& other : {std::string("another"), std::string()}) {
    const std::string text =
        text_thrown([&] { (void)meet_at(address, {.rank = 1, .size = 2}, Seconds{0.5}, other); });
    EXPECT_NE(text.find("does not know the secret of this job"), std::string::npos) << text;
  }
  for (const Inquiry::Kind kind : {Inquiry::Kind::get, Inquiry::Kind::put, Inquiry::Kind::proof}) {
    const Socket socket =
        connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10);
    const auto inquiry = encode(Inquiry{.kind = kind, .key = 3});
    EXPECT_TRUE(send_all(socket, inquiry, seconds_now() + 10));
    EXPECT_TRUE(send_all(socket, std::as_bytes(std::span("key", 3)), seconds_now() + 10));
    std::array<std::byte, Inquiry::kBytes> answer{};
    EXPECT_FALSE(receive_all(socket, answer, seconds_now() + 10));
  }
  const auto right = meet_at(address, {.rank = 1, .size = 2}, kLong, "a secret");
  EXPECT_EQ(right->get("key", kLong), "value");
}

// Silent connections do not keep ranks out, however many there are.
TEST(Meeting, SilentStrangersMakeRoom) {
  const std::string address = free_address();
  const auto meeting = meet_at(address, {.rank = 0, .size = 2}, Seconds{0.5});
  meeting->put("key", "value");
  std::vector<Socket> silent;
  for (int k = 0; k < 200; ++k) {
    silent.push_back(connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10));
  }
  const auto right = meet_at(address, {.rank = 1, .size = 2}, kLong);
  EXPECT_EQ(right->get("key", kLong), "value");
}

TEST(Meeting, GarbageIsTurnedAwayAndHarmsNobody) {
  const std::string address = free_address();
  std::thread visitor([&] {
    std::vector<Socket> strangers;
    for (const std::size_t bytes : {0UL, 1UL, 24UL, 10000UL}) {
      strangers.push_back(
          connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10));
      const std::vector<std::byte> garbage(bytes, std::byte{0x47});
      (void)send_all(strangers.back(), garbage, seconds_now() + 10);
    }
    const auto meeting = meet_at(address, {.rank = 1, .size = 2}, kLong);
    EXPECT_EQ(meeting->get("from 0", kLong), "hello");
    meeting->put("from 1", "world");
  });
  {
    const auto meeting = meet_at(address, {.rank = 0, .size = 2}, kLong);
    meeting->put("from 0", "hello");
    EXPECT_EQ(meeting->get("from 1", kLong), "world");
  }
  visitor.join();
}

}  // namespace
}  // namespace shiplap::comm
