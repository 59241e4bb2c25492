#include "shiplap/base/aside.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <thread>

namespace shiplap {
namespace {

using namespace std::chrono_literals;

// Whether it becomes ready; the bound on time is generous.
template <class T>
bool comes(std::future<T>& result) {
  return result.wait_for(20s) == std::future_status::ready;
}

TEST(RunAside, DoesNotKeepTheCaller) {
  std::promise<void> go;
  auto done = std::make_shared<std::promise<std::thread::id>>();
  std::future<std::thread::id> result = done->get_future();
  run_aside([may = go.get_future().share(), done] {
    may.wait();
    done->set_value(std::this_thread::get_id());
  });
  EXPECT_EQ(result.wait_for(10ms), std::future_status::timeout);
  go.set_value();
  ASSERT_TRUE(comes(result));
  EXPECT_NE(result.get(), std::this_thread::get_id());
}

TEST(RunAside, WorksThatWaitForEachOtherAllEnd) {
  for (const int count : {2, 7, 20, 5}) {
    auto meeting = std::make_shared<std::barrier<>>(count + 1);
    for (int k = 0; k < count; ++k) {
      run_aside([meeting] { meeting->arrive_and_wait(); });
    }
    meeting->arrive_and_wait();  // hangs if one of them has not begun
  }
}

// What XLA does with a sum behind a call: the thread that gave the work waits for its result.
TEST(RunAside, AWorkThatWaitsForOneThatItGaveEnds) {
  for (int turn = 0; turn < 100; ++turn) {
    auto whole = std::make_shared<std::promise<int>>();
    std::future<int> result = whole->get_future();
    run_aside([whole] {
      auto inner = std::make_shared<std::promise<int>>();
      std::future<int> of_inner = inner->get_future();
      run_aside([inner] { inner->set_value(7); });
      whole->set_value(of_inner.get());
    });
    ASSERT_TRUE(comes(result)) << turn;
    EXPECT_EQ(result.get(), 7);
  }
}

TEST(RunAside, AThreadThatIsFreeTakesWhatItGave) {
  struct Chain {
    int left = 300;
    int stayed = 0;
    std::thread::id last;
    std::promise<int> end;
    static void step(const std::shared_ptr<Chain>& self) {
      if (std::this_thread::get_id() == self->last) ++self->stayed;
      self->last = std::this_thread::get_id();
      if (--self->left == 0) return self->end.set_value(self->stayed);
      run_aside([self] { step(self); });
    }
  };
  // Another thread is there, so that it could take them.
  auto meeting = std::make_shared<std::barrier<>>(3);
  for (int k = 0; k < 2; ++k) run_aside([meeting] { meeting->arrive_and_wait(); });
  meeting->arrive_and_wait();
  auto chain = std::make_shared<Chain>();
  std::future<int> result = chain->end.get_future();
  run_aside([chain] { Chain::step(chain); });
  ASSERT_TRUE(comes(result));
  EXPECT_GT(result.get(), 30);  // all but a few, on an idle machine
}

TEST(RunAside, TreesOfWorksThatSometimesWaitAreDoneToTheLast) {
  struct Tree {
    std::atomic<int> left;
    std::promise<void> end;
    static void grow(const std::shared_ptr<Tree>& self, unsigned seed) {
      std::minstd_rand draw(seed);
      for (int k = 0; k < 2 && self->left.fetch_sub(1) > 0; ++k) {
        const auto next = static_cast<unsigned>(draw());
        if (draw() % 4 != 0) {
          run_aside([self, next] { grow(self, next); });
        } else {
          auto inner = std::make_shared<std::promise<void>>();
          std::future<void> of_inner = inner->get_future();
          run_aside([self, next, inner] {
            grow(self, next);
            inner->set_value();
          });
          of_inner.wait();
        }
      }
      if (self->left.load() <= 0 && !self->is_ended.exchange(true)) self->end.set_value();
    }
    std::atomic<bool> is_ended = false;
  };
  for (unsigned seed = 1; seed <= 20; ++seed) {
    auto tree = std::make_shared<Tree>();
    tree->left = 200;
    std::future<void> result = tree->end.get_future();
    run_aside([tree, seed] { Tree::grow(tree, seed); });
    ASSERT_TRUE(comes(result)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace shiplap
