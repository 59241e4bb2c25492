// A product whose communication is hidden, on real ranks: executes what overlap::make_plan() plans.
//
//   OverlappedProduct product({Type::all_gather, Method::ring_exchange}, problem, world);
//   fill(product.buffer("x")), fill(product.buffer("w"));
//   product.prepare();                      // the weights are packed once
//   product.run();                          // as often as there are new rows in "x"
//   use(product.buffer("y"));
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/execute.h"

namespace shiplap::run {

// What of it is really done.
enum class Work { all, communication };

class OverlappedProduct {
 public:
  // All ranks of `world` together, which has as many as the problem; it must live longer. Throws
  // InputError D800, D801, D802 on all ranks if it cannot be done.
  OverlappedProduct(const overlap::Choice& choice, const overlap::Problem& problem,
                    comm::Communicator& world, const ExecuteOptions& options = {});
  OverlappedProduct(OverlappedProduct&&) noexcept;
  OverlappedProduct& operator=(OverlappedProduct&&) noexcept;
  ~OverlappedProduct();

  [[nodiscard]] const plan::Plan& plan() const;
  // This rank's memory, as the plan declares it. Between runs.
  [[nodiscard]] std::span<std::byte> buffer(std::string_view name) const;

  // Takes the weights that lie in `w`. Again whenever they have changed.
  void prepare();
  // All ranks together. Promises that prepare() was called. With the communication alone, to time
  // it, there is no result. Throws comm::Failure with the overlap and the step of it where it
  // happened; it is of no use then.
  StepResult run(Work work = Work::all);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::run
