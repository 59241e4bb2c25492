// Peers that violate the protocol, and broken links.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <numeric>
#include <set>
#include <thread>

#include "shiplap/base/error.h"
#include "shiplap/comm/sockets/endpoint_internal.h"
#include "shiplap/comm/sockets/socket_communicator_internal.h"
#include "shiplap/comm/sockets/testing_internal.h"

namespace shiplap::comm {
namespace {

std::array<Socket, 2> socket_pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {Socket(ends[0]), Socket(ends[1])};
}

// Rank 0 of two; the test plays rank 1, byte by byte.
class HostilePeer : public testing::Test {
 protected:
  HostilePeer() {
    std::array<Socket, 2> ends = socket_pair();
    theirs_ = std::move(ends[1]);
    PeerSockets peers;
    peers.sockets.resize(2);
    peers.sockets[1] = std::move(ends[0]);
    endpoint_ = std::make_unique<Endpoint>(RankInfo{.rank = 0, .size = 2}, std::move(peers));
  }

  void send(std::span<const std::byte> bytes) {
    EXPECT_TRUE(send_all(theirs_, bytes, seconds_now() + 1));
    const MutexLock lock(endpoint_->mutex());
    for (int k = 0; k < 10; ++k) endpoint_->progress();
  }
  void send(const Header& header) { send(encode(header)); }
  std::shared_ptr<PendingReceive> receive(int tag, std::span<std::byte> room) {
    const MutexLock lock(endpoint_->mutex());
    return endpoint_->start_receive({.group = 1, .from = 1, .tag = tag}, room);
  }
  [[nodiscard]] bool is_lost() {
    const MutexLock lock(endpoint_->mutex());
    return endpoint_->peer_state(1) == Endpoint::PeerState::lost;
  }
  static Header header(Header::Kind kind, int tag, std::uint64_t bytes, std::uint64_t id) {
    return {.kind = kind, .tag = tag, .group = 1, .bytes = bytes, .id = id};
  }

  Socket theirs_;                       // NOLINT(*-non-private-member-variables-in-classes)
  std::unique_ptr<Endpoint> endpoint_;  // NOLINT(*-non-private-member-variables-in-classes)
};

// The data of the first would be written past the end of the second buffer.
TEST_F(HostilePeer, CannotSendTwoMessagesWithOneId) {
  std::vector<std::byte> long_room(200'000);
  std::vector<std::byte> short_room(100);
  const auto first = receive(1, long_room);
  send(header(Header::Kind::rts, 1, long_room.size(), 7));
  send(header(Header::Kind::rts, 2, short_room.size(), 7));
  EXPECT_TRUE(is_lost());
  const auto second = receive(2, short_room);
  EXPECT_FALSE(first->is_done);
  EXPECT_FALSE(second->is_done);
}

TEST_F(HostilePeer, CannotSendMoreThanItAnnounced) {
  std::vector<std::byte> room(100);
  const auto receiving = receive(1, room);
  send(header(Header::Kind::rts, 1, room.size(), 1));
  send(header(Header::Kind::frame, 1, 60, 1));
  send(std::vector<std::byte>(60));
  EXPECT_FALSE(is_lost());
  send(header(Header::Kind::frame, 1, 41, 1));
  EXPECT_TRUE(is_lost());
  EXPECT_FALSE(receiving->is_done);
}

TEST_F(HostilePeer, CannotReuseAnId) {
  std::vector<std::byte> room(64);
  const auto receiving = receive(1, room);
  send(header(Header::Kind::rts, 1, room.size(), 3));
  send(header(Header::Kind::frame, 1, room.size(), 3));
  send(std::vector<std::byte>(room.size()));
  EXPECT_TRUE(receiving->is_done);
  send(header(Header::Kind::rts, 1, room.size(), 3));
  EXPECT_TRUE(is_lost());
}

TEST_F(HostilePeer, CannotReportARankThatDoesNotExist) {
  ControlMessage message{.kind = ControlMessage::Kind::abort, .culprit = 1'000'000};
  send(Header{.kind = Header::Kind::control, .bytes = kControlBytes});
  send(encode(message));
  const auto failed = endpoint_->detector().failed_among(std::vector{1});
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->culprit, 1);
}

// Unexpected messages are kept, up to a limit.
TEST_F(HostilePeer, CannotFillTheMemoryWithUnexpectedMessages) {
  constexpr std::size_t kLong = Header::kMaxEager;
  std::vector<std::byte> message(Header::kBytes + kLong);
  std::ranges::copy(encode(header(Header::Kind::eager, 1, kLong, 0)), message.begin());
  std::size_t sent = 0;
  for (; sent < (std::size_t{2} << 30U) && !is_lost(); sent += kLong) {
    (void)send_all(theirs_, message, seconds_now());
    const MutexLock lock(endpoint_->mutex());
    endpoint_->progress();
  }
  EXPECT_TRUE(is_lost());
  EXPECT_GT(sent, std::size_t{450} << 20U);
}

// Messages that were received do not count.
TEST_F(HostilePeer, MaySendAsMuchAsIsReceived) {
  constexpr std::size_t kLong = Header::kMaxEager;
  std::vector<std::byte> message(Header::kBytes + kLong);
  std::ranges::copy(encode(header(Header::Kind::eager, 1, kLong, 0)), message.begin());
  std::vector<std::byte> room(kLong);
  for (std::size_t sent = 0; sent < (std::size_t{600} << 20U); sent += kLong) {
    send(message);
    const auto receiving = receive(1, room);
    ASSERT_TRUE(receiving->is_done);
  }
  EXPECT_FALSE(is_lost());
}

// A program that splits in every step.
TEST_F(HostilePeer, MayEndAsManyGroupsAsItLikes) {
  std::vector<std::byte> room(8);
  for (std::uint64_t group = 2; group < 3 * FailureDetector::kEndedGroupsKept; ++group) {
    endpoint_->detector().set_arrived(group, 1);
    const MutexLock lock(endpoint_->mutex());
    endpoint_->end_group(group, false);
  }
  // A message for a group that has just ended is discarded; for one of long ago it may be kept.
  Header late = header(Header::Kind::eager, 1, 0, 0);
  late.group = 3 * FailureDetector::kEndedGroupsKept - 1;
  send(late);
  const MutexLock lock(endpoint_->mutex());
  const auto receiving = endpoint_->start_receive({.group = late.group, .from = 1, .tag = 1}, room);
  EXPECT_FALSE(receiving->is_done);
}

// ---- links

// Which rank each of four ranks reports after a barrier; -1: none. The link between `a` and `b`
// loses all data.
std::vector<int> named_when_broken(int a, int b) {
  constexpr int kRanks = 4;
  std::vector<PeerSockets> joined(kRanks);
  for (PeerSockets& one : joined) one.sockets.resize(kRanks);
  std::vector<Socket> nowhere;
  const auto at = [&](int rank, int peer) -> Socket& { return joined[rank].sockets[peer]; };
  for (int x = 0; x < kRanks; ++x) {
    for (int y = x + 1; y < kRanks; ++y) {
      std::array<Socket, 2> ends = socket_pair();
      at(x, y) = std::move(ends[0]);
      if (x != std::min(a, b) || y != std::max(a, b)) {
        at(y, x) = std::move(ends[1]);
        continue;
      }
      nowhere.push_back(std::move(ends[1]));
      std::array<Socket, 2> back = socket_pair();
      at(y, x) = std::move(back[0]);
      nowhere.push_back(std::move(back[1]));
    }
  }
  std::vector<int> named(kRanks, -2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto endpoint = std::make_shared<Endpoint>(RankInfo{.rank = rank, .size = kRanks},
                                                       std::move(joined[rank]));
      try {
        abort_peers_on_exception(endpoint->detector(), [&] {
          MonitoredCommunicator::Members all{.rank = rank, .group = 1};
          all.world_ranks.resize(kRanks);
          std::iota(all.world_ranks.begin(), all.world_ranks.end(), 0);
          SocketCommunicator world(endpoint, std::move(all), "world");
          world.set_timeout(Seconds{1});
          for (int k = 0; k < 3; ++k) world.barrier();
          std::vector<float> numbers(100'000, 1);
          world.all_reduce(std::span(numbers));
        });
      } catch (const Failure& failure) {
        named[rank] = failure.culprit().value_or(-1);
      }
    });
  }
  threads.clear();
  return named;
}

TEST(BrokenLink, IsNotReportedAsAnotherRank) {
  for (const auto& [a, b] : std::vector<std::pair<int, int>>{{0, 1}, {1, 2}, {1, 3}, {2, 3}}) {
    const std::vector<int> named = named_when_broken(a, b);
    for (const int rank : named) {
      EXPECT_THAT(rank, testing::AnyOf(-1, a, b))
          << "link " << a << " - " << b << " is broken: " << testing::PrintToString(named);
    }
    EXPECT_THAT(named, testing::Contains(testing::AnyOf(a, b)));
  }
}

// ---- descriptors

class FileLimit {
 public:
  explicit FileLimit(rlim_t max) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit lower{.rlim_cur = max, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  ~FileLimit() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  [[nodiscard]] rlim_t hard() const { return before_.rlim_max; }
  static rlim_t now() {
    rlimit limit{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
  }

 private:
  rlimit before_{};
};

TEST(Descriptors, AreReservedAsFarAsTheSystemAllows) {
  const FileLimit limit(64);
  reserve_descriptors(10);
  EXPECT_EQ(FileLimit::now(), 64U);
  reserve_descriptors(100);
  EXPECT_GT(FileLimit::now(), 100U);
  if (limit.hard() > 2'000'000'000) return;  // practically unlimited
  EXPECT_EQ(code_thrown([&] { reserve_descriptors(static_cast<int>(limit.hard())); }), "D007");
}

TEST(Descriptors, ThatAreExhaustedAreReported) {
  if (dlsym(RTLD_DEFAULT, "__ubsan_handle_dynamic_type_cache_miss") != nullptr) {
    GTEST_SKIP() << "the sanitizer for undefined behaviour needs descriptors itself";
  }
  const Socket listener = listen_at({.host = "127.0.0.1"}, 4);
  const Socket waiting = connect_to(listener.local_address(), seconds_now() + 5);
  ASSERT_TRUE(waiting.is_open());
  // The kernel returns the lowest free number: use all below the limit.
  std::vector<Socket> fillers;
  do {
    fillers.emplace_back(dup(STDERR_FILENO));
  } while (fillers.back().descriptor() < waiting.descriptor());
  const FileLimit limit(static_cast<rlim_t>(fillers.back().descriptor()) + 1);
  EXPECT_EQ(code_thrown([&] { (void)accept_from(listener); }), "D007");
  EXPECT_EQ(code_thrown([&] { (void)connect_to(listener.local_address(), seconds_now() + 5); }),
            "D007");
}

}  // namespace
}  // namespace shiplap::comm
