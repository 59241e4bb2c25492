#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "shiplap/comm/sockets/protocol_internal.h"
#include "shiplap/comm/sockets/testing_internal.h"

// What the conformance suite cannot test: the limits between the protocols of this transport, and
// operations that are cancelled in the middle.

namespace shiplap::comm {
namespace {

constexpr Seconds kLong{20};
constexpr std::size_t kEager = Header::kMaxEager;
constexpr std::size_t kBuffer = std::size_t{16} * 1024;  // read-ahead of a connection
constexpr std::size_t kFrame = Header::kMaxFrame;

std::vector<std::uint8_t> pattern(std::size_t bytes, int seed) {
  std::vector<std::uint8_t> data(bytes);
  for (std::size_t k = 0; k < bytes; ++k) {
    data[k] = static_cast<std::uint8_t>(k * 31 + k / 251 + static_cast<std::size_t>(seed));
  }
  return data;
}

void send(Communicator& world, const std::vector<std::uint8_t>& data, int to, int tag = 0) {
  world.send(std::span<const std::uint8_t>(data), to, tag);
}

void expect_received(Communicator& world, std::size_t bytes, int seed, int from, int tag = 0) {
  std::vector<std::uint8_t> got(bytes + 3, 99);
  EXPECT_EQ(world.receive(std::span(got), from, tag), bytes);
  std::vector<std::uint8_t> expected = pattern(bytes, seed);
  expected.resize(bytes + 3, 99);
  EXPECT_TRUE(got == expected) << bytes << " bytes";
}

void run(int ranks, const std::function<void(Communicator&)>& work) {
  for (const std::exception_ptr& thrown : on_sockets(ranks, {.timeout = kLong}, work)) {
    EXPECT_EQ(text_of(thrown), "");
  }
}

std::vector<std::size_t> border_sizes() {
  std::vector<std::size_t> sizes{0, 1, 31, 32, 33, kBuffer - 32, kBuffer};
  for (const std::size_t border : {kEager, kFrame, 3 * kFrame}) {
    for (const std::size_t size : {border - 1, border, border + 1}) sizes.push_back(size);
  }
  return sizes;
}

TEST(Sockets, EverySizeArrivesWhicheverEndComesFirst) {
  run(2, [](Communicator& world) {
    const int peer = 1 - world.rank();
    for (const std::size_t bytes : border_sizes()) {
      if (world.rank() == 0) {
        send(world, pattern(bytes, 1), peer);  // most of the time the receive is posted
        const std::vector<std::uint8_t> second = pattern(bytes, 2);
        Request late = world.isend(std::span<const std::uint8_t>(second), peer, 1);
        send(world, pattern(bytes, 3), peer, 2);
        late.wait();
      } else {
        expect_received(world, bytes, 1, peer);
        expect_received(world, bytes, 3, peer, 2);  // the one before is unexpected
        expect_received(world, bytes, 2, peer, 1);
      }
    }
  });
}

// Both ends of a pair send more than the kernel takes before either receives.
TEST(Sockets, BothSendFirst) {
  run(2, [](Communicator& world) {
    const int peer = 1 - world.rank();
    const std::size_t bytes = 20 * kFrame + 7;
    const std::vector<std::uint8_t> data = pattern(bytes, world.rank());
    Request send = world.isend(std::span<const std::uint8_t>(data), peer);
    expect_received(world, bytes, peer, peer);
    send.wait();
  });
}

// More short messages than the socket buffers hold: the sender must wait to write.
TEST(Sockets, ManyShortMessagesWaitForTheReceiver) {
  run(2, [](Communicator& world) {
    constexpr int kMessages = 400;
    const int peer = 1 - world.rank();
    if (world.rank() == 0) {
      const std::vector<std::uint8_t> data = pattern(kEager, 5);
      std::vector<Request> sends;
      for (int k = 0; k < kMessages; ++k) {
        sends.push_back(world.isend(std::span<const std::uint8_t>(data), peer));
      }
      std::uint8_t go = 1;
      world.send(std::span<const std::uint8_t>(&go, 1), peer, 1);
      for (Request& send : sends) send.wait();
    } else {
      std::uint8_t go = 0;
      world.receive(std::span(&go, 1), peer, 1);
      for (int k = 0; k < kMessages; ++k) expect_received(world, kEager, 5, peer);
    }
  });
}

// Requests that are cancelled at every stage; later messages arrive whole.
TEST(Sockets, EverythingCanBeCancelled) {
  run(2, [](Communicator& world) {
    const int peer = 1 - world.rank();
    for (const std::size_t bytes : {std::size_t{10}, kEager, kEager + 1, 30 * kFrame}) {
      // A send without a posted receive: only short ones arrive.
      if (world.rank() == 0) {
        {
          const std::vector<std::uint8_t> data = pattern(bytes, 1);
          const Request send = world.isend(std::span<const std::uint8_t>(data), peer, 1);
        }
        send(world, pattern(100, 2), peer, 1);
      } else {
        if (bytes <= kEager) expect_received(world, bytes, 1, peer, 1);
        // It may have matched the long one, which then is cancelled.
        std::vector<std::uint8_t> got(bytes + 100);
        EXPECT_EQ(world.receive(std::span(got), peer, 1), 100U);
        got.resize(100);
        EXPECT_TRUE(got == pattern(100, 2));
      }
      world.barrier();
      // A send in flight, from memory that is overwritten afterwards.
      std::vector<std::uint8_t> room(bytes);
      if (world.rank() == 0) {
        std::vector<std::uint8_t> data = pattern(bytes, 3);
        {
          Request send = world.isend(std::span<const std::uint8_t>(data), peer, 2);
          for (int k = 0; k < 50; ++k) (void)send.test();
        }
        std::ranges::fill(data, 0xee);
      } else {
        Request receive = world.ireceive(std::span(room), peer, 2);
        for (int k = 0; k < 50; ++k) (void)receive.test();
        // Dropped here, wherever it is.
      }
      world.barrier();
      std::ranges::fill(room, 0x11);
      if (world.rank() == 0) {
        send(world, pattern(2 * kFrame, 4), peer, 3);
      } else {
        expect_received(world, 2 * kFrame, 4, peer, 3);
      }
      world.barrier();
      const bool untouched = std::ranges::all_of(room, [](auto one) { return one == 0x11; });
      EXPECT_TRUE(untouched) << "a cancelled receive wrote into its memory";
    }
  });
}

void wait_until(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

// Part of the data is still queued in the endpoint when the memory of the user is overwritten.
TEST(Sockets, CancelledShortMessagesArriveUnchanged) {
  std::atomic<bool> is_overwritten = false;
  run(2, [&](Communicator& world) {
    constexpr int kMessages = 400;
    if (world.rank() == 0) {
      std::vector<std::uint8_t> data = pattern(kEager, 6);
      for (int k = 0; k < kMessages; ++k) {
        const Request send = world.isend(std::span<const std::uint8_t>(data), 1);
      }
      std::ranges::fill(data, 0xee);
      is_overwritten = true;
    } else {
      wait_until(is_overwritten);
      for (int k = 0; k < kMessages; ++k) expect_received(world, kEager, 6, 0);
    }
    world.barrier();
  });
}

// Rank 1 stops reading in the middle of a frame; then the sender cancels the message.
TEST(Sockets, TheRestOfACancelledFrameIsSentFromACopy) {
  std::atomic<bool> has_begun = false;
  std::atomic<bool> is_overwritten = false;
  run(2, [&](Communicator& world) {
    constexpr std::size_t kBytes = 64 * kFrame;
    if (world.rank() == 0) {
      std::vector<std::uint8_t> data(kBytes, 0x33);
      {
        Request send = world.isend(std::span<const std::uint8_t>(data), 1);
        while (!has_begun) (void)send.test();
        for (int k = 0; k < 100; ++k) (void)send.test();  // until the socket buffers are full
      }
      std::ranges::fill(data, 0xee);
      is_overwritten = true;
      send(world, pattern(10, 1), 1);
    } else {
      std::vector<std::uint8_t> got(kBytes, 0x11);
      Request receive = world.ireceive(std::span(got), 0);
      while (got[0] == 0x11) (void)receive.test();
      has_begun = true;
      wait_until(is_overwritten);
      EXPECT_EQ(receive.wait(), 10);  // the next message, in place of the cancelled one
      EXPECT_EQ(std::ranges::count(got, 0xee), 0);
    }
    world.barrier();
  });
}

TEST(Sockets, ACancelledReceiveIsNotWrittenTo) {
  run(2, [](Communicator& world) {
    constexpr std::size_t kBytes = 64 * kFrame;
    if (world.rank() == 0) {
      const std::vector<std::uint8_t> data(kBytes, 0x33);
      world.send(std::span<const std::uint8_t>(data), 1);
      send(world, pattern(10, 1), 1);
    } else {
      std::vector<std::uint8_t> got(kBytes, 0x11);
      {
        Request receive = world.ireceive(std::span(got), 0);
        while (got[0] == 0x11) (void)receive.test();
      }
      EXPECT_NE(got.back(), 0x33) << "all of it was there already";
      std::ranges::fill(got, 0x22);
      expect_received(world, 10, 1, 0);
      EXPECT_EQ(std::ranges::count(got, 0x22), std::ssize(got));
    }
    world.barrier();
  });
}

TEST(Sockets, AShortMessageOvertakesALongOne) {
  run(2, [](Communicator& world) {
    const int peer = 1 - world.rank();
    if (world.rank() == 0) {
      const std::vector<std::uint8_t> data = pattern(64 * kFrame, 1);
      Request large = world.isend(std::span<const std::uint8_t>(data), peer, 1);
      send(world, pattern(10, 2), peer, 2);
      large.wait();
    } else {
      std::vector<std::uint8_t> got(64 * kFrame);
      Request large = world.ireceive(std::span(got), peer, 1);
      expect_received(world, 10, 2, peer, 2);
      large.wait();
      EXPECT_TRUE(got == pattern(64 * kFrame, 1));
    }
  });
}

TEST(Sockets, ALongMessageThatDoesNotFitFailsOnBothSides) {
  const auto thrown = on_sockets(2, {.timeout = kLong}, [](Communicator& world) {
    std::vector<std::uint8_t> data(world.rank() == 0 ? 2 * kEager : kEager + 5);
    if (world.rank() == 0) {
      world.send(std::span<const std::uint8_t>(data), 1);
    } else {
      world.receive(std::span(data), 0);
    }
  });
  for (const std::exception_ptr& one : thrown) {
    EXPECT_NE(text_of(one).find("too long for the receive buffer of 65541 bytes"),
              std::string::npos)
        << text_of(one);
  }
}

TEST(Sockets, ThreadsOfARankUseChannelsAtTheSameTime) {
  run(3, [](Communicator& world) {
    constexpr int kThreads = 3;
    std::vector<std::unique_ptr<Communicator>> channels;
    for (int k = 0; k < kThreads; ++k) {
      channels.push_back(world.channel("thread " + std::to_string(k)));
    }
    std::vector<std::thread> threads;
    for (int k = 0; k < kThreads; ++k) {
      threads.emplace_back([&, k] {
        const std::int64_t sum = std::int64_t{3} * (1 + k);
        Communicator& own = *channels[k];
        for (std::size_t round = 0; round < 30; ++round) {
          const std::size_t count = round % 3 == 0 ? 1 : round % 3 == 1 ? 5000 : 150000;
          std::vector<std::int64_t> data(count, own.rank() + k);
          own.all_reduce(std::span(data));
          const bool right =
              std::ranges::all_of(data, [&](std::int64_t one) { return one == sum; });
          EXPECT_TRUE(right) << "thread " << k << ", round " << round;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// One thread sleeps in epoll_wait, the other on the condition variable; both are woken.
TEST(Sockets, AWaitingThreadDoesNotDelayAnother) {
  run(2, [](Communicator& world) {
    constexpr int kTurns = 300;
    const auto other = world.channel("other");
    const int peer = 1 - world.rank();
    std::uint8_t byte = 0;
    if (world.rank() == 0) {
      std::atomic<bool> first_is_done = false;
      std::thread first([&] {
        std::uint8_t late = 0;
        world.receive(std::span(&late, 1), peer);
        first_is_done = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      std::vector<double> turns;
      for (int k = 0; k < kTurns; ++k) {
        const double begin = seconds_now();
        other->receive(std::span(&byte, 1), peer);
        other->send(std::span<const std::uint8_t>(&byte, 1), peer);
        turns.push_back(seconds_now() - begin);
      }
      EXPECT_FALSE(first_is_done);
      // Unless it is woken it sleeps for 10 ms, each time. A busy machine makes some turns long.
      std::ranges::sort(turns);
      EXPECT_LT(turns[kTurns / 4], 5e-3);
      other->send(std::span<const std::uint8_t>(&byte, 1), peer, 1);
      first.join();
    } else {
      for (int k = 0; k < kTurns; ++k) {
        std::this_thread::sleep_for(std::chrono::microseconds(300));  // so that it is asleep
        other->send(std::span<const std::uint8_t>(&byte, 1), peer);
        other->receive(std::span(&byte, 1), peer);
      }
      other->receive(std::span(&byte, 1), peer, 1);
      world.send(std::span<const std::uint8_t>(&byte, 1), peer);
    }
  });
}

// ---- the end

TEST(Sockets, MessagesArriveAfterTheirSenderHasExited) {
  run(2, [](Communicator& world) {
    if (world.rank() == 0) {
      for (int k = 0; k < 20; ++k) send(world, pattern(kEager, k), 1, k);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (int k = 19; k >= 0; --k) expect_received(world, kEager, k, 0, k);
  });
}

TEST(Sockets, WaitingForAFinishedRankFailsAtOnce) {
  const auto thrown = on_sockets(3, {.timeout = kLong}, [](Communicator& world) {
    std::uint8_t byte = 0;
    world.barrier();
    if (world.rank() == 0) return;
    const double begin = seconds_now();
    try {
      world.receive(std::span(&byte, 1), 0);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const RankFailed& error) {
      EXPECT_EQ(error.rank(), 0);
      EXPECT_EQ(error.diagnostic().why, "it has finished its work and disconnected");
    }
    EXPECT_LT(seconds_now() - begin, 5);
  });
  EXPECT_EQ(text_of(thrown[0]), "");
}

// The other ranks may still communicate.
TEST(Sockets, AFinishedRankDoesNotDisturbOthers) {
  run(3, [](Communicator& world) {
    const auto rest = world.split(world.rank() == 0 ? 0 : 1, 0, "rest");
    std::uint8_t byte = 1;
    if (world.rank() == 0) return;
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      world.send(std::span<const std::uint8_t>(&byte, 1), 2);
    } else {
      world.receive(std::span(&byte, 1), 1);
    }
    rest->barrier();
  });
}

TEST(Sockets, SeveralWorldsLiveInOneProcess) {
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k) {
    threads.emplace_back([k] {
      run(2, [k](Communicator& world) {
        for (int round = 0; round < 20; ++round) {
          std::int64_t sum = k;
          world.all_reduce(std::span(&sum, 1));
          EXPECT_EQ(sum, 2 * k);
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace shiplap::comm
