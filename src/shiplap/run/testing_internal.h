// Shared by the tests of plan execution: plans on threads, and recording kernels.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/plan/text.h"
#include "shiplap/run/execute.h"

namespace shiplap::run {

inline std::span<float> floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

// Calls `work` on each of the plan's ranks, as threads.
inline void on_ranks(const plan::Plan& plan, const std::function<void(comm::Communicator&)>& work,
                     Seconds timeout = {20}) {
  comm::run_ranks({.threads = static_cast<int>(plan.mesh.ranks()), .timeout = timeout}, work);
}

// All of a buffer on each rank, by rank.
using Numbers = std::vector<std::vector<float>>;

// Sets up each rank's memory, runs one step, and returns what `buffer` holds then.
inline Numbers after_step(const plan::Plan& plan, const std::string& buffer,
                          const std::function<void(Executor&, int rank)>& fill,
                          const KernelTable& kernels, const ExecuteOptions& options) {
  Numbers result(static_cast<std::size_t>(plan.mesh.ranks()));
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels, options);
    fill(executor, world.rank());
    executor.step();
    const std::span<float> held = floats(executor.rows(buffer));
    result[world.rank()].assign(held.begin(), held.end());
  });
  return result;
}

// With threads. Without them it must be the same, unless it is rejected.
inline Numbers after_step(const std::string& text, const std::string& buffer,
                          const std::function<void(Executor&, int rank)>& fill,
                          const KernelTable& kernels = {}) {
  const plan::Plan plan = plan::parse_text("shiplap-plan 1\n" + text, "test");
  Numbers result = after_step(plan, buffer, fill, kernels, {});
  try {
    EXPECT_EQ(after_step(plan, buffer, fill, kernels, {.progress = Progress::polled}), result);
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D643");
  }
  return result;
}

// Element k of a buffer of rank r is 10 r + k.
inline void count_up(Executor& executor, int rank, const std::string& buffer) {
  float number = 10 * static_cast<float>(rank);
  for (float& here : floats(executor.rows(buffer))) here = number++;
}

// What each rank threw: "D640: .."; empty if nothing.
inline std::vector<std::string> failures(const plan::Plan& plan,
                                         const std::function<void(comm::Communicator&)>& work,
                                         Seconds timeout = {20}) {
  std::vector<std::string> said(plan.mesh.ranks());
  const auto act = [&](comm::Communicator& world) {
    std::string& own = said[world.rank()];
    try {
      work(world);
    } catch (const comm::Failure& error) {
      own = error.diagnostic().code + ": " + error.what();
      throw;
    } catch (const InputError& error) {
      own = error.diagnostics()[0].code + ": " + error.what();
      throw;
    } catch (const std::exception& error) {
      own = error.what();
      throw;
    }
  };
  try {
    on_ranks(plan, act, timeout);
  } catch (const std::exception&) {
    return said;
  }
  return said;
}

}  // namespace shiplap::run
