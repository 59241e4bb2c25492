// Calls of the overlap classes through their public interface.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reference_gemm.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/run/buffer_registry.h"

namespace shiplap::tests {

// Memory with its shape.
struct OwnedMatrix {
  std::shared_ptr<std::vector<std::byte>> bytes;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  DType type = DType::f32;

  // To a result with an owner a transport may write at once.
  [[nodiscard]] run::Matrix matrix() const;
  [[nodiscard]] run::Matrix owned() const;
};
[[nodiscard]] OwnedMatrix owned_matrix(std::int64_t rows, std::int64_t columns, DType type);
[[nodiscard]] OwnedMatrix owned_matrix(std::vector<std::byte> bytes, std::int64_t rows,
                                       std::int64_t columns, DType type);
[[nodiscard]] OwnedMatrix transposed(const OwnedMatrix& from);

// The inputs and outputs of a call on one rank.
struct RankData {
  OwnedMatrix x;
  OwnedMatrix w;  // a row for each column
  OwnedMatrix result;
  OwnedMatrix to_scatter;  // of ones, in bulk
  OwnedMatrix scattered;
  [[nodiscard]] run::OverlapCall call(const overlap::Choice& choice, const Given& given) const;
};
[[nodiscard]] RankData rank_data(const overlap::Choice& choice, const Given& given, int rank);

// Returns the buffer request for a GEMM. For bulk, the scattered matrix is 7 x 3.
[[nodiscard]] run::BufferRequest request_for(const overlap::Choice& choice,
                                             const overlap::Problem& problem);

// Calls the function by its name.
run::StepResult call_by_name(run::CommOverlapCore& object, const std::string& function,
                             const run::OverlapCall& call);
// All functions that an object has.
[[nodiscard]] const std::vector<std::string>& function_names();

// Runs every class on every rank of `world`, twice, and compares with the reference GEMM. Returns
// the first mismatch, or "".
[[nodiscard]] std::string find_class_mismatch(comm::Communicator& world,
                                              const overlap::Choice& choice, const Given& given,
                                              run::Progress progress = run::Progress::threads);

// The same with FP8 operands: gathered rows also in high precision, scales also swizzled; partial
// sums quantized or not; in `groups` groups if not 0.
struct ScaledSetting {
  kernels::ScalingMode mode = kernels::ScalingMode::mxfp8_1d_scaling;
  bool quantized_comm = true;
  int groups = 0;
};
[[nodiscard]] std::string find_fp8_class_mismatch(comm::Communicator& world,
                                                  const overlap::Choice& choice,
                                                  overlap::Problem problem,
                                                  const ScaledSetting& setting);

}  // namespace shiplap::tests
