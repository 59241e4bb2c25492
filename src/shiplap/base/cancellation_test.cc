#include "shiplap/base/cancellation.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace shiplap {
namespace {

struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

[[noreturn]] void interrupt() { throw Interrupted(); }

// A long call.
void poll_until_cancelled() {
  while (true) throw_if_cancelled();
}

TEST(Cancellation, NothingIsPolledWithoutAScope) {
  EXPECT_FALSE(is_cancellable());
  EXPECT_NO_THROW(throw_if_cancelled());
}

TEST(Cancellation, TheExceptionOfTheFunctionEndsTheCall) {
  const CancellationScope scope(interrupt);
  EXPECT_TRUE(is_cancellable());
  EXPECT_THROW(poll_until_cancelled(), Interrupted);
}

TEST(Cancellation, TheFunctionIsNotCalledOftenerThanEachInterval) {
  int polls = 0;
  const CancellationScope scope([&] { ++polls; });
  for (int i = 0; i < 1000; ++i) throw_if_cancelled();
  EXPECT_LE(polls, 1);
}

TEST(Cancellation, AScopeEndsWithItsCall) {
  int outer_polls = 0;
  const CancellationScope outer([&] {
    ++outer_polls;
    interrupt();
  });
  {
    const CancellationScope inner(interrupt);
    EXPECT_THROW(poll_until_cancelled(), Interrupted);
    EXPECT_EQ(outer_polls, 0);
  }
  EXPECT_THROW(poll_until_cancelled(), Interrupted);
  EXPECT_EQ(outer_polls, 1);
}

// A task that throws ends, and the others of its scheduler go on, until they poll.
TEST(Cancellation, ACancelledCallStaysCancelled) {
  int polls = 0;
  const CancellationScope scope([&] {
    ++polls;
    interrupt();
  });
  EXPECT_THROW(poll_until_cancelled(), Interrupted);
  EXPECT_THROW(throw_if_cancelled(), Interrupted);
  EXPECT_EQ(polls, 1);
}

TEST(Cancellation, AScopeIsOfOneThread) {
  const CancellationScope scope(interrupt);
  std::thread([] {
    EXPECT_FALSE(is_cancellable());
    EXPECT_NO_THROW(throw_if_cancelled());
  }).join();
}

}  // namespace
}  // namespace shiplap
