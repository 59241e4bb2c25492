#include "thread_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>

namespace shiplap::python::jax {
namespace {

using namespace std::chrono_literals;

void submit(std::function<void()> task) { ThreadPool::instance().submit(std::move(task)); }

// Whether it becomes ready; the bound on time is generous.
template <class T>
bool comes(std::future<T>& result) {
  return result.wait_for(20s) == std::future_status::ready;
}

TEST(ThreadPool, DoesNotKeepTheCaller) {
  std::promise<void> go;
  auto done = std::make_shared<std::promise<std::thread::id>>();
  std::future<std::thread::id> result = done->get_future();
  submit([may = go.get_future().share(), done] {
    may.wait();
    done->set_value(std::this_thread::get_id());
  });
  EXPECT_EQ(result.wait_for(10ms), std::future_status::timeout);
  go.set_value();
  ASSERT_TRUE(comes(result));
  EXPECT_NE(result.get(), std::this_thread::get_id());
}

TEST(ThreadPool, TasksThatWaitForEachOtherAllEnd) {
  for (const int count : {2, 7, 20, 5}) {
    auto meeting = std::make_shared<std::barrier<>>(count + 1);
    for (int k = 0; k < count; ++k) {
      submit([meeting] { meeting->arrive_and_wait(); });
    }
    meeting->arrive_and_wait();  // hangs if one of them has not begun
  }
}

// What XLA does with a sum behind a call: the thread that submitted the task waits for its result.
bool inner_task_ends() {
  auto whole = std::make_shared<std::promise<void>>();
  std::future<void> result = whole->get_future();
  submit([whole] {
    auto inner = std::make_shared<std::promise<void>>();
    std::future<void> of_inner = inner->get_future();
    submit([inner] { inner->set_value(); });
    of_inner.get();
    whole->set_value();
  });
  return comes(result);
}

TEST(ThreadPool, ATaskThatWaitsForOneThatItSubmittedEnds) {
  for (int turn = 0; turn < 100; ++turn) ASSERT_TRUE(inner_task_ends()) << turn;
}

// The same for tasks of several threads: the one that is woken may take another's.
TEST(ThreadPool, TasksOfATaskAndOfOthersAllBegin) {
  for (int turn = 0; turn < 100; ++turn) {
    auto meeting = std::make_shared<std::barrier<>>(4);
    submit([meeting] {
      submit([meeting] { meeting->arrive_and_wait(); });
      meeting->arrive_and_wait();
    });
    submit([meeting] { meeting->arrive_and_wait(); });
    meeting->arrive_and_wait();
  }
}

void hear(int /*signal*/) {}

TEST(ThreadPool, SignalsDoNotKeepAnyoneFromBeingWoken) {
  struct sigaction hearing = {};  // without SA_RESTART, as Python's are
  struct sigaction before = {};
  hearing.sa_handler = hear;
  ASSERT_EQ(sigaction(SIGUSR1, &hearing, &before), 0);
  std::atomic<bool> is_over = false;
  std::thread sender([&] {
    while (!is_over) kill(getpid(), SIGUSR1);
  });
  for (int turn = 0; turn < 100; ++turn) EXPECT_TRUE(inner_task_ends()) << turn;
  is_over = true;
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
}

constexpr int kTasks = 200;

TEST(ThreadPool, TreesOfTasksThatSometimesWaitAreDoneToTheLast) {
  struct Tree {
    std::atomic<int> left = kTasks - 1;
    std::atomic<int> done = 0;
    std::promise<void> end;
    static void grow(const std::shared_ptr<Tree>& self, unsigned seed) {
      std::minstd_rand draw(seed);
      for (int k = 0; k < 2 && self->left.fetch_sub(1) > 0; ++k) {
        const auto next = static_cast<unsigned>(draw());
        auto inner = std::make_shared<std::promise<void>>();
        std::future<void> of_inner = inner->get_future();
        submit([self, next, inner] {
          grow(self, next);
          inner->set_value();
        });
        if (draw() % 4 == 0) of_inner.wait();
      }
      if (self->done.fetch_add(1) + 1 == kTasks) self->end.set_value();
    }
  };
  for (unsigned seed = 1; seed <= 20; ++seed) {
    auto tree = std::make_shared<Tree>();
    std::future<void> result = tree->end.get_future();
    submit([tree, seed] { Tree::grow(tree, seed); });
    ASSERT_TRUE(comes(result)) << "seed " << seed << ": " << tree->done << " done";
  }
}

}  // namespace
}  // namespace shiplap::python::jax
