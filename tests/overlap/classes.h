// The classes of overlap, called as their users do, with what each rank has of a product.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "product.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/run/buffer_registry.h"

namespace shiplap::tests {

// Memory with its shape.
struct Held {
  std::shared_ptr<std::vector<std::byte>> bytes;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  DType type = DType::f32;

  // To a result with an owner a transport may write at once.
  [[nodiscard]] run::Matrix matrix() const;
  [[nodiscard]] run::Matrix owned() const;
};
[[nodiscard]] Held held(std::int64_t rows, std::int64_t columns, DType type);
[[nodiscard]] Held held(std::vector<std::byte> bytes, std::int64_t rows, std::int64_t columns,
                        DType type);
[[nodiscard]] Held transposed(const Held& from);

// What rank `rank` gives to a call, and gets.
struct Deal {
  Held x;
  Held w;  // a row for each column
  Held result;
  Held to_scatter;  // of ones, in bulk
  Held scattered;
  [[nodiscard]] run::OverlapCall call(const overlap::Choice& choice, const Given& given) const;
};
[[nodiscard]] Deal deal(const overlap::Choice& choice, const Given& given, int rank);

// The buffer for a product. In bulk what is scattered has 7 x 3 numbers.
[[nodiscard]] run::BufferRequest request_for(const overlap::Choice& choice,
                                             const overlap::Problem& problem);

// Calls the function by its name.
run::StepResult call_by_name(run::CommOverlapCore& object, const std::string& function,
                             const run::OverlapCall& call);
// All functions that an object has.
[[nodiscard]] const std::vector<std::string>& function_names();

// Every class on every rank of `world`, twice, against the product in one process: what is wrong
// first; "" if nothing.
[[nodiscard]] std::string wrong_class(comm::Communicator& world, const overlap::Choice& choice,
                                      const Given& given,
                                      run::Progress progress = run::Progress::threads);

// The same with FP8: factors as codes and scales, rows to gather also wide, scales also swizzled;
// parts of sums coded or not; in `groups` groups if not 0.
struct ScaledSetting {
  kernels::ScalingMode mode = kernels::ScalingMode::mxfp8_1d_scaling;
  bool codes_travel = true;
  int groups = 0;
};
[[nodiscard]] std::string wrong_scaled_class(comm::Communicator& world,
                                             const overlap::Choice& choice,
                                             overlap::Problem problem,
                                             const ScaledSetting& setting);

}  // namespace shiplap::tests
