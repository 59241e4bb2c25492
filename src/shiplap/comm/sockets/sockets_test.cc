#include "shiplap/comm/sockets/sockets.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "shiplap/comm/ranks.h"
#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/testing_internal.h"

namespace shiplap::comm {
namespace {

constexpr Seconds kLong{20};

void expect_sum(Communicator& world) {
  std::vector<std::int64_t> sum{world.rank() + 1};
  world.all_reduce(std::span(sum));
  EXPECT_EQ(sum[0], std::int64_t{world.size()} * (world.size() + 1) / 2);
}

void expect_nothing(const std::vector<std::exception_ptr>& thrown) {
  for (const std::exception_ptr& one : thrown) EXPECT_EQ(text_of(one), "");
}

// ---- connecting

TEST(Connect, RanksConnectThroughAnyStore) {
  for (const int ranks : {1, 2, 5})
    expect_nothing(on_sockets(ranks, {.timeout = kLong}, expect_sum));
}

TEST(Connect, TakesItsSettings) {
  expect_nothing(on_sockets(2, {.timeout = Seconds{3}, .checked = true}, [](Communicator& world) {
    EXPECT_DOUBLE_EQ(world.timeout().value, 3);
    EXPECT_TRUE(world.checked());
    EXPECT_EQ(world.name(), "world");
  }));
}

TEST(Connect, RejectsAnInvalidRank) {
  Store store;
  for (const RankInfo self : {RankInfo{-1, 2}, RankInfo{2, 2}, RankInfo{0, 0}}) {
    EXPECT_EQ(code_thrown([&] { (void)connect(self, store); }), "D300");
  }
}

TEST(Connect, NamesTheMissingRanks) {
  Store store;
  const SocketOptions options{.connect_timeout = Seconds{0.3}};
  std::vector<std::thread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      try {
        (void)connect({.rank = rank, .size = 4}, store, options);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const TimeoutError& error) {
        EXPECT_EQ(error.missing(), (std::vector<int>{1, 3})) << error.what();
        EXPECT_EQ(error.diagnostic().code, "D301");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- unknown peers

// Rank 0, played by the test; its address is in the store.
struct PlayedRank {
  PlayedRank() {
    store.put("shiplap/session", "00000000000000aa");
    store.put("shiplap/0", to_string(listener.local_address()));
  }
  // Returns what a rank throws that connects and gets this reply.
  std::string answered_with(std::span<const std::byte> answer) {
    std::string text;
    std::thread rank(
        [&] { text = text_thrown([&] { (void)connect({.rank = 1, .size = 2}, store); }); });
    EXPECT_TRUE(wait_ready(listener, Ready::read, seconds_now() + 10));
    Socket socket = accept_from(listener);
    std::array<std::byte, Hello::kBytes> hello{};
    EXPECT_TRUE(receive_all(socket, hello, seconds_now() + 10));
    request = decode_hello(hello);
    if (request) request->nonce = {};  // random
    EXPECT_TRUE(send_all(socket, answer, seconds_now() + 10));
    socket.close();
    rank.join();
    return text;
  }

  Store store;
  Socket listener = listen_at({.host = "127.0.0.1"}, 4);
  std::optional<Hello> request;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Connect, SendsItsRank) {
  PlayedRank played;
  (void)played.answered_with({});
  EXPECT_EQ(played.request, (Hello{.from = 1, .to = 0, .size = 2, .session = 0xaa}));
}

TEST(Connect, EveryRejectionIsExplained) {
  const std::vector<std::pair<Hello, std::string>> cases{
      {{.version = 9, .status = HandshakeStatus::version_mismatch}, "rank 0 has version 9"},
      {{.status = HandshakeStatus::size_mismatch, .size = 8},
       "world size mismatch: rank 0 has 8 ranks, this rank 2"},
      {{.status = HandshakeStatus::job_mismatch}, "belongs to another job"},
      {{.status = HandshakeStatus::duplicate_rank}, "already connected to a rank 1"},
      {{.status = HandshakeStatus::wrong_rank, .from = 5},
       "the server at the address of rank 0 is rank 5"},
      {{.status = HandshakeStatus::request}, "is not Shiplap rank 0"}};
  for (const auto& [answer, expected] : cases) {
    PlayedRank played;
    const std::string text = played.answered_with(encode(answer));
    EXPECT_TRUE(contains(text, "D307") && contains(text, expected)) << text;
  }
}

TEST(Connect, GarbageInsteadOfARankIsRecognized) {
  PlayedRank played;
  const std::vector<std::byte> garbage(Hello::kBytes, std::byte{0x47});
  const std::string text = played.answered_with(garbage);
  EXPECT_TRUE(contains(text, "D307") && contains(text, "is not Shiplap rank 0")) << text;
}

TEST(Connect, ARankThatDisconnectsIsNamed) {
  PlayedRank played;
  const std::string text = played.answered_with({});
  EXPECT_TRUE(contains(text, "D302") && contains(text, "rank 0 failed")) << text;
}

// Sends a request and its proof. Returns the status of the reply to the request.
HandshakeStatus handshake(const Socket& socket, const Hello& hello, const std::string& secret) {
  const auto signed_part = [](std::span<const std::byte> bytes) {
    return bytes.first(Hello::kSignedBytes);
  };
  const auto request = encode(hello);
  std::array<std::byte, Hello::kBytes> answer{};
  EXPECT_TRUE(send_all(socket, request, seconds_now() + 10));
  EXPECT_TRUE(receive_all(socket, answer, seconds_now() + 10));
  const Hello proof{
      .status = HandshakeStatus::proof,
      .from = hello.from,
      .to = hello.to,
      .size = hello.size,
      .proof = Secret(secret).prove("proof", signed_part(request), signed_part(answer))};
  EXPECT_TRUE(send_all(socket, encode(proof), seconds_now() + 10));
  return require_value(decode_hello(answer)).status;
}

// Rank 0 of two, whose address is known to the test.
class Host {
 public:
  explicit Host(Seconds within, const std::string& secret = "") : secret_(secret) {
    thread_ = std::thread([this, within] {
      text_ = text_thrown([&] {
        const auto world =
            connect({.rank = 0, .size = 2}, store_,
                    {.timeout = kLong, .connect_timeout = within, .secret = secret_});
        expect_sum(*world);
      });
    });
    address_ = parse_address(require_value(store_.get("shiplap/0", kLong)), "it", Port::needed);
    session_text_ = require_value(store_.get("shiplap/session", kLong));
    session_ = std::stoull(session_text_, nullptr, 16);
  }
  [[nodiscard]] const std::string& session() const { return session_text_; }
  Socket call() { return connect_to(address_, seconds_now() + 10); }
  // Returns its reply.
  std::optional<Hello> answer_to(const Socket& socket, const Hello& hello) {
    EXPECT_TRUE(send_all(socket, encode(hello), seconds_now() + 10));
    std::array<std::byte, Hello::kBytes> answer{};
    if (!receive_all(socket, answer, seconds_now() + 10)) return std::nullopt;
    return decode_hello(answer);
  }
  [[nodiscard]] Hello hello() const { return {.from = 1, .to = 0, .size = 2, .session = session_}; }
  // Returns the text of its exception.
  std::string end() {
    thread_.join();
    return text_;
  }
  Store& store() { return store_; }

 private:
  Store store_;
  std::string secret_;
  Address address_;
  std::string session_text_;
  std::uint64_t session_ = 0;
  std::string text_;
  std::thread thread_;
};

TEST(Connect, UnknownPeersAreHarmless) {
  Host host(kLong);
  std::vector<Socket> peers;
  for (const std::size_t bytes : {0UL, 1UL, 39UL, 40UL, 96UL, 100000UL}) {
    peers.push_back(host.call());
    const std::vector<std::byte> garbage(bytes, std::byte{0x47});
    (void)send_all(peers.back(), garbage, seconds_now() + 0.2);
  }
  Hello hello = host.hello();
  const auto status = [&](const Hello& request) {
    const auto answer = host.answer_to(host.call(), request);
    return answer ? answer->status : HandshakeStatus::request;
  };
  hello.version = 9;
  EXPECT_EQ(status(hello), HandshakeStatus::version_mismatch);
  hello = host.hello();
  hello.session = 1;
  EXPECT_EQ(status(hello), HandshakeStatus::job_mismatch);
  hello = host.hello();
  hello.size = 3;
  EXPECT_EQ(status(hello), HandshakeStatus::size_mismatch);
  for (const int from : {0, 2, 1 << 30}) {
    hello = host.hello();
    hello.from = from;
    EXPECT_EQ(status(hello), HandshakeStatus::wrong_rank);
  }
  // The real rank 1 is still accepted.
  const auto world = connect({.rank = 1, .size = 2}, host.store(), {.timeout = kLong});
  expect_sum(*world);
  EXPECT_EQ(host.end(), "");
}

// The first peer that connects is rank 1. Of three ranks, rank 2 never starts.
TEST(Connect, ADuplicateRankIsRejected) {
  Store store;
  std::string first;
  std::thread host([&] {
    first = text_thrown(
        [&] { (void)connect({.rank = 0, .size = 3}, store, {.connect_timeout = Seconds{1}}); });
  });
  const Address address =
      parse_address(require_value(store.get("shiplap/0", kLong)), "it", Port::needed);
  const std::string session = require_value(store.get("shiplap/session", kLong));
  const Hello hello{.from = 1, .to = 0, .size = 3, .session = std::stoull(session, nullptr, 16)};
  const Socket one = connect_to(address, seconds_now() + 10);
  EXPECT_EQ(handshake(one, hello, session), HandshakeStatus::ok);
  HandshakeStatus second = HandshakeStatus::ok;
  for (int k = 0; k < 100 && second == HandshakeStatus::ok;
       ++k) {  // until the first proof was read
    second = handshake(connect_to(address, seconds_now() + 10), hello, "nothing");
  }
  EXPECT_EQ(second, HandshakeStatus::duplicate_rank);
  host.join();
  EXPECT_TRUE(contains(first, "D301") &&
              contains(first, "connections rejected, the last from rank 1 of 3"))
      << first;
}

// The attacker has read the session from the store, but does not know the secret.
TEST(Connect, AWrongSecretIsRejected) {
  Host host(kLong, "a secret");
  for (const std::string& guess :
       {host.session(), std::string("a secret"), "another" + host.session()}) {
    const Socket socket = host.call();
    EXPECT_EQ(handshake(socket, host.hello(), guess), HandshakeStatus::ok);
    std::array<std::byte, 1> more{};
    EXPECT_FALSE(receive_all(socket, more, seconds_now() + 10)) << "it was accepted";
  }
  const std::string text = text_thrown([&] {
    (void)connect({.rank = 1, .size = 2}, host.store(), {.timeout = kLong, .secret = "another"});
  });
  EXPECT_TRUE(contains(text, "D307") && contains(text, "has the wrong secret")) << text;
  const auto world =
      connect({.rank = 1, .size = 2}, host.store(), {.timeout = kLong, .secret = "a secret"});
  expect_sum(*world);
  EXPECT_EQ(host.end(), "");
}

// The proof of one connection is not valid on another.
TEST(Connect, AProofCannotBeUsedAgain) {
  Host host(kLong, "a secret");
  const auto signed_part = [](std::span<const std::byte> bytes) {
    return bytes.first(Hello::kSignedBytes);
  };
  const auto request = encode(host.hello());
  std::array<std::byte, Hello::kBytes> old_answer{};
  const Socket first = host.call();
  EXPECT_TRUE(send_all(first, request, seconds_now() + 10));
  EXPECT_TRUE(receive_all(first, old_answer, seconds_now() + 10));
  const Digest proof = Secret("a secret" + host.session())
                           .prove("proof", signed_part(request), signed_part(old_answer));
  const Socket second = host.call();
  std::array<std::byte, Hello::kBytes> answer{};
  EXPECT_TRUE(send_all(second, request, seconds_now() + 10));
  EXPECT_TRUE(receive_all(second, answer, seconds_now() + 10));
  EXPECT_TRUE(send_all(second,
                       encode(Hello{.status = HandshakeStatus::proof, .size = 2, .proof = proof}),
                       seconds_now() + 10));
  std::array<std::byte, 1> more{};
  EXPECT_FALSE(receive_all(second, more, seconds_now() + 10)) << "it was accepted";
  const auto world =
      connect({.rank = 1, .size = 2}, host.store(), {.timeout = kLong, .secret = "a secret"});
  expect_sum(*world);
  EXPECT_EQ(host.end(), "");
}

// The start barrier.
void start_barrier(const Socket& socket) {
  EXPECT_TRUE(send_all(socket,
                       encode(Hello{.status = HandshakeStatus::ready, .from = 1, .size = 2}),
                       seconds_now() + 10));
  std::array<std::byte, Hello::kBytes> answer{};
  EXPECT_TRUE(receive_all(socket, answer, seconds_now() + 10));
  const auto hello = decode_hello(answer);
  EXPECT_TRUE(hello && hello->status == HandshakeStatus::go);
}

// A rank that sends garbage after the handshake counts as failed.
TEST(Connect, GarbageAfterTheHelloIsAFailedRank) {
  Host host(kLong);
  const Socket socket = host.call();
  EXPECT_EQ(handshake(socket, host.hello(), host.session()), HandshakeStatus::ok);
  start_barrier(socket);
  const std::vector<std::byte> garbage(100, std::byte{0x47});
  EXPECT_TRUE(send_all(socket, garbage, seconds_now() + 10));
  const std::string text = host.end();
  EXPECT_TRUE(contains(text, "D302") && contains(text, "it sent an invalid")) << text;
}

TEST(Connect, GarbageBeforeTheWorkIsAFailedRank) {
  Host host(kLong);
  const Socket socket = host.call();
  EXPECT_EQ(handshake(socket, host.hello(), host.session()), HandshakeStatus::ok);
  EXPECT_TRUE(send_all(socket, std::vector<std::byte>(100), seconds_now() + 10));
  const std::string text = host.end();
  EXPECT_TRUE(contains(text, "D302") && contains(text, "it sent an invalid")) << text;
}

// Frames without an rts.
TEST(Connect, FramesWithoutAnRtsAreAFailedRank) {
  Host host(kLong);
  const Socket socket = host.call();
  EXPECT_EQ(handshake(socket, host.hello(), host.session()), HandshakeStatus::ok);
  start_barrier(socket);
  const auto frame = encode(Header{.kind = Header::Kind::frame, .bytes = 10, .id = 5});
  EXPECT_TRUE(send_all(socket, frame, seconds_now() + 10));
  const std::string text = host.end();
  EXPECT_TRUE(contains(text, "D302") && contains(text, "more of a message")) << text;
}

// ---- the environment

class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(SocketJob, IsReadFromTheEnvironment) {
  EXPECT_FALSE(socket_job());
  const Setting where("SHIPLAP_SOCKETS", "h0:4711");
  EXPECT_EQ(code_thrown([] { (void)socket_job(); }), "D300");
  const Setting size("SHIPLAP_WORLD_SIZE", "4");
  for (const char* const value : {"", "x", "-1", "4", "1.5"}) {
    const Setting rank("SHIPLAP_RANK", value);
    EXPECT_EQ(code_thrown([] { (void)socket_job(); }), "D300") << value;
  }
  const Setting rank("SHIPLAP_RANK", "3");
  const Setting address("SHIPLAP_ADDRESS", "h3");
  const Setting secret("SHIPLAP_SECRET", "a secret");
  const auto job = socket_job();
  ASSERT_TRUE(job);
  EXPECT_EQ(job->where, "h0:4711");
  EXPECT_EQ(job->self.rank, 3);
  EXPECT_EQ(job->self.size, 4);
  EXPECT_EQ(job->address, "h3");
  EXPECT_EQ(job->secret, "a secret");
}

TEST(SocketJob, ReadsTheFormerNameOfTheWorldSize) {
  const Setting where("SHIPLAP_SOCKETS", "h0:4711");
  const Setting rank("SHIPLAP_RANK", "3");
  const Setting old_size("SHIPLAP_SIZE", "4");
  EXPECT_EQ(socket_job().value_or(SocketJob{}).self.size, 4);
  const Setting size("SHIPLAP_WORLD_SIZE", "5");
  EXPECT_EQ(socket_job().value_or(SocketJob{}).self.size, 5);
}

TEST(SocketJob, OneRankNeedsNobody) {
  const Setting where("SHIPLAP_SOCKETS", free_address());
  const Setting size("SHIPLAP_WORLD_SIZE", "1");
  const Setting rank("SHIPLAP_RANK", "0");
  bool ran = false;
  run_ranks({.threads = 7}, [&](Communicator& world) {
    EXPECT_EQ(world.size(), 1);
    expect_sum(world);
    ran = true;
  });
  EXPECT_TRUE(ran);
}

// As processes would, each with its own job.
void run_jobs(int ranks, const std::string& where, const std::function<void(Communicator&)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const SocketJob job{.where = where, .self = {.rank = rank, .size = ranks}};
      for (int again = 0; again < 3; ++again) {
        EXPECT_EQ(text_thrown([&] { run_on_sockets(job, {.timeout = kLong}, work); }), "");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SocketJob, RunsAgainAndAgainFromOneAddress) { run_jobs(3, free_address(), expect_sum); }

TEST(SocketJob, RunsAgainAndAgainFromAListOfAddresses) {
  const std::string list = free_address() + "," + free_address() + "," + free_address();
  run_jobs(3, list, expect_sum);
}

TEST(SocketJob, DoesNotListenEverywhere) {
  for (const char* const where : {"0.0.0.0:4711", "[::]:4711"}) {
    const SocketJob job{.where = where, .self = {.rank = 0, .size = 2}};
    EXPECT_EQ(code_thrown([&] { run_on_sockets(job, {}, [](Communicator&) {}); }), "D308");
  }
  const SocketJob job{
      .where = "127.0.0.1:4711", .self = {.rank = 0, .size = 2}, .address = "0.0.0.0"};
  EXPECT_EQ(code_thrown([&] { run_on_sockets(job, {}, [](Communicator&) {}); }), "D308");
}

TEST(SocketJob, NeedsAnAddressForEveryRank) {
  const SocketJob job{.where = "h0:1,h1:1", .self = {.rank = 0, .size = 3}};
  EXPECT_EQ(code_thrown([&] { run_on_sockets(job, {}, [](Communicator&) {}); }), "D308");
}

}  // namespace
}  // namespace shiplap::comm
