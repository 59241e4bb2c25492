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

// A server that replies with some bytes to the first connection.
class Impostor {
 public:
  explicit Impostor(std::vector<std::byte> answer)
      : listener_(listen_at({.host = "127.0.0.1"}, 4)), thread_([this, answer = std::move(answer)] {
          if (!wait_ready(listener_, Ready::read, seconds_now() + 10)) return;
          const Socket socket = accept_from(listener_);
          (void)send_all(socket, answer, seconds_now() + 10);
          std::array<std::byte, 1000> rest{};  // until the client closes the connection
          (void)receive_all(socket, rest, seconds_now() + 10);
        }) {}
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;
  ~Impostor() { thread_.join(); }
  [[nodiscard]] std::string address() const { return to_string(listener_.local_address()); }

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

TEST(Address, ThatIsInvalidIsRejected) {
  for (const char* const text : {"", ":80", "h0", "h0:", "h0:0", "h0:65536", "h0:8x", "h0:-1",
                                 "[::1", "[::1]80", "[::1]", "::1:80", "h0:80:81"}) {
    EXPECT_EQ(code_thrown([&] { (void)parse_address(text, "it", Port::needed); }), "D308") << text;
  }
  EXPECT_EQ(code_thrown([] { (void)make_static_rendezvous({"h0:1", "h1"}); }), "D308");
}

TEST(Address, OfAnotherHostCannotBeUsed) {
  // A documentation address: no machine has it. (RFC 5737; testbeds use 192.0.2.)
  EXPECT_EQ(code_thrown([] { (void)listen_at({.host = "203.0.113.5", .port = 80}, 1); }), "D308");
  EXPECT_EQ(code_thrown([] { (void)connect_to({.host = "no.such.host.invalid", .port = 1}, 0); }),
            "D308");
}

TEST(Address, ThatIsInUseIsRejected) {
  const Socket first = listen_at({.host = "127.0.0.1"}, 1);
  EXPECT_EQ(code_thrown([&] { (void)listen_at(first.local_address(), 1); }), "D308");
}

TEST(TcpStore, KeepsWhatIsPut) {
  const std::string address = free_address();
  std::thread client([&] {
    const auto store = connect_store(address, {.rank = 1, .size = 2}, kLong);
    EXPECT_EQ(store->local_host(), "127.0.0.1");
    EXPECT_EQ(store->get("from 0", kLong), "hello");
    EXPECT_EQ(store->get("nothing", kShort), std::nullopt);
    store->put("from 1", "world");
    EXPECT_EQ(store->get("from 1", kLong), "world");
  });
  {
    const auto store = connect_store(address, {.rank = 0, .size = 2}, kLong);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that the client waits for it
    store->put("from 0", "hello");
    EXPECT_EQ(store->get("from 1", kLong), "world");
    EXPECT_EQ(store->get("nothing", kShort), std::nullopt);
  }
  client.join();
}

TEST(TcpStore, DiscardsTheReplyToAGetThatTimedOut) {
  const std::string address = free_address();
  std::thread client([&] {
    const auto store = connect_store(address, {.rank = 1, .size = 2}, kLong);
    EXPECT_EQ(store->get("later", kShort), std::nullopt);
    store->put("asked", "yes");
    EXPECT_EQ(store->get("other", kLong), "2");
    EXPECT_EQ(store->get("later", kLong), "1");
  });
  {
    const auto store = connect_store(address, {.rank = 0, .size = 2}, kLong);
    EXPECT_EQ(store->get("asked", kLong), "yes");
    store->put("later", "1");
    store->put("other", "2");
  }
  client.join();
}

TEST(TcpStore, AKeyBelongsToOneRank) {
  const std::string address = free_address();
  std::thread client([&] {
    const auto store = connect_store(address, {.rank = 1, .size = 2}, kLong);
    store->put("mine", "1");
    EXPECT_EQ(store->get("theirs", kLong), "0");
    EXPECT_EQ(code_thrown([&] { store->put("theirs", "1"); }), "D307");
  });
  {
    const auto store = connect_store(address, {.rank = 0, .size = 2}, kLong);
    store->put("theirs", "0");
    EXPECT_EQ(store->get("mine", kLong), "1");
    EXPECT_EQ(code_thrown([&] { store->put("mine", "0"); }), "D307");
  }
  client.join();
}

TEST(TcpStore, NoServerIsATimeout) {
  try {
    (void)connect_store(free_address(), {.rank = 3, .size = 4}, kShort);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TimeoutError& error) {
    EXPECT_EQ(error.missing(), std::vector<int>{0});
    EXPECT_EQ(error.diagnostic().code, "D301");
  }
}

TEST(TcpStore, RankZeroThatLeavesIsNamed) {
  const std::string address = free_address();
  std::thread client([&] {
    const auto store = connect_store(address, {.rank = 1, .size = 2}, kLong);
    store->put("here", "1");
    try {
      (void)store->get("never", kLong);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const RankFailed& error) {
      EXPECT_EQ(error.rank(), 0);
    }
  });
  try {
    const auto store = connect_store(address, {.rank = 0, .size = 2}, kLong);
    EXPECT_EQ(store->get("here", kLong), "1");
    throw std::runtime_error("planted");
  } catch (const std::runtime_error&) {
    client.join();  // the server did not wait for the client
  }
}

TEST(TcpStore, AnotherProgramAtThePortIsRecognized) {
  const std::string_view page = "HTTP/1.0 400 Bad Request\r\n\r\nnot a rank";
  const Impostor impostor(
      {std::as_bytes(std::span(page)).begin(), std::as_bytes(std::span(page)).end()});
  EXPECT_EQ(
      code_thrown([&] { (void)connect_store(impostor.address(), {.rank = 1, .size = 2}, kLong); }),
      "D307");
}

TEST(TcpStore, RankZeroOfAnotherVersionIsRecognized) {
  const auto answer =
      encode(StoreMessage{.version = 9, .kind = StoreMessage::Kind::version_mismatch});
  const Impostor impostor({answer.begin(), answer.end()});
  const std::string text =
      text_thrown([&] { (void)connect_store(impostor.address(), {.rank = 1, .size = 2}, kLong); });
  EXPECT_NE(text.find("protocol version mismatch: rank 0 has version 9, this rank 4"),
            std::string::npos)
      << text;
}

TEST(TcpStore, AClientOfAnotherVersionGetsAMismatch) {
  const std::string address = free_address();
  const auto store = connect_store(address, {.rank = 0, .size = 2}, Seconds{0.5});
  const Socket socket = connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10);
  (void)send_all(socket, encode(StoreMessage{.version = 9}), seconds_now() + 10);
  std::array<std::byte, StoreMessage::kBytes> answer{};
  ASSERT_TRUE(receive_all(socket, answer, seconds_now() + 10));
  const auto read = decode_store_message(answer);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, StoreMessage::Kind::version_mismatch);
  EXPECT_EQ(read->version, kSocketsVersion);
}

// A process without the secret can neither read nor write, with our client or by hand.
TEST(TcpStore, NeedsTheSecret) {
  const std::string address = free_address();
  const auto store = connect_store(address, {.rank = 0, .size = 2}, Seconds{0.5}, "a secret");
  store->put("key", "value");
  for (const std::string& other : {std::string("another"), std::string()}) {
    const std::string text = text_thrown(
        [&] { (void)connect_store(address, {.rank = 1, .size = 2}, Seconds{0.5}, other); });
    EXPECT_NE(text.find("has the wrong secret"), std::string::npos) << text;
  }
  for (const StoreMessage::Kind kind :
       {StoreMessage::Kind::get, StoreMessage::Kind::put, StoreMessage::Kind::proof}) {
    const Socket socket =
        connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10);
    const auto message = encode(StoreMessage{.kind = kind, .key = 3});
    EXPECT_TRUE(send_all(socket, message, seconds_now() + 10));
    EXPECT_TRUE(send_all(socket, std::as_bytes(std::span("key", 3)), seconds_now() + 10));
    std::array<std::byte, StoreMessage::kBytes> answer{};
    EXPECT_FALSE(receive_all(socket, answer, seconds_now() + 10));
  }
  const auto right = connect_store(address, {.rank = 1, .size = 2}, kLong, "a secret");
  EXPECT_EQ(right->get("key", kLong), "value");
}

// Silent connections do not keep ranks out, however many there are.
TEST(TcpStore, SilentConnectionsMakeRoom) {
  const std::string address = free_address();
  const auto store = connect_store(address, {.rank = 0, .size = 2}, Seconds{0.5});
  store->put("key", "value");
  std::vector<Socket> silent;
  for (int k = 0; k < 200; ++k) {
    silent.push_back(connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10));
  }
  const auto right = connect_store(address, {.rank = 1, .size = 2}, kLong);
  EXPECT_EQ(right->get("key", kLong), "value");
}

TEST(TcpStore, GarbageIsRejectedAndHarmless) {
  const std::string address = free_address();
  std::thread client([&] {
    std::vector<Socket> peers;
    for (const std::size_t bytes : {0UL, 1UL, 24UL, 10000UL}) {
      peers.push_back(connect_to(parse_address(address, "it", Port::needed), seconds_now() + 10));
      const std::vector<std::byte> garbage(bytes, std::byte{0x47});
      (void)send_all(peers.back(), garbage, seconds_now() + 10);
    }
    const auto store = connect_store(address, {.rank = 1, .size = 2}, kLong);
    EXPECT_EQ(store->get("from 0", kLong), "hello");
    store->put("from 1", "world");
  });
  {
    const auto store = connect_store(address, {.rank = 0, .size = 2}, kLong);
    store->put("from 0", "hello");
    EXPECT_EQ(store->get("from 1", kLong), "world");
  }
  client.join();
}

}  // namespace
}  // namespace shiplap::comm
