// The implementation of a CommOverlapCore: one communicated matrix, and the GEMMs that use it.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/run/buffer_pool_internal.h"
#include "shiplap/run/comm_overlap.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/overlapped_gemm.h"

namespace shiplap::run {

// Shared by all buffers of a registry.
struct OverlapContext {
  OverlapContext(comm::Communicator& all, BufferOptions given);
  comm::Communicator& world;
  std::mutex mutex;  // guards `world`
  BufferOptions options;
  std::shared_ptr<BufferPool> pool;
};

// A valid request, as this rank sees it.
struct OverlapBuffer {
  std::int64_t id = 0;
  BufferRequest request;
  overlap::Choice choice;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int rank = 0;
  int ranks = 1;

  // The format of the communicated matrix.
  [[nodiscard]] overlap::QuantFormat quant_format() const;
  // The dtype of results, and of the communicated matrix unless that is quantized.
  [[nodiscard]] DType type() const;
  [[nodiscard]] std::int64_t row_bytes() const {
    return overlap::row_bytes(quant_format(), type(), columns);
  }
  [[nodiscard]] std::int64_t bytes() const { return rows * row_bytes(); }
  [[nodiscard]] std::int64_t local_begin() const;
  [[nodiscard]] std::int64_t local_rows() const;
  [[nodiscard]] bool is_persistent() const {
    return request.lifetime == BufferLifetime::persistent;
  }
};
// Throws InputError D800, D801, D802, D803, D805, D813.
[[nodiscard]] OverlapBuffer checked(const BufferRequest& request, const comm::Communicator& world);
// "all_gather, ring_exchange: 1000 x 4096 bf16"
[[nodiscard]] std::string describe(const OverlapBuffer& buffer);
// "buffer 3 (all_gather, ring_exchange: 1000 x 4096 bf16)"
[[nodiscard]] std::string describe_with_id(const OverlapBuffer& buffer);

// Returns how many of `count` items rank `rank` of `ranks` has: an even split, remainders go to the
// lowest ranks.
[[nodiscard]] std::int64_t local_share(std::int64_t count, int rank, int ranks);

// Returns the row format of a dtype.
[[nodiscard]] overlap::QuantFormat quant_format_of(DType type, kernels::ScalingMode mode);
// Throws InputError D813 if the dtypes of a request do not match its scaling mode.
void check_scaling(const BufferRequest& request);

// Returns the GEMM of a call. Throws InputError D804, D807, D811, D812, D814.
[[nodiscard]] overlap::Problem checked(const OverlapBuffer& buffer, const OverlapCall& call);
// Throws InputError D804 unless `matrix` has this shape, and this dtype (default: that of results).
using Shape = kernels::MatrixShape;
void check_shape(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                 const Shape& shape, std::optional<DType> type = {});
// The same for an operand as the caller passes it, which may be FP8 if the buffer has a scaling
// mode. `inner` says which dimension is K. Throws InputError D804, D807, D811, D812, D813.
enum class Inner { rows, columns };
void check_operand(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                   const Shape& shape, Inner inner);

// Writes rows of x in the layout of the plan: each row is followed by its scales and its group
// number; the row stride is to.size() / matrix.rows. REQUIRES: `matrix` has been checked.
void write_rows(const Matrix& matrix, const overlap::QuantFormat& format,
                std::span<const std::int64_t> group_sizes, std::span<std::byte> to);
// Returns the weights of each group, or the only ones. They point into the call and into `scales`.
[[nodiscard]] std::vector<kernels::MatrixView> weights_of(const OverlapBuffer& buffer,
                                                          const OverlapCall& call,
                                                          std::vector<std::byte>& scales);

class OverlapObject {
 public:
  OverlapObject(OverlapBuffer buffer, std::shared_ptr<OverlapContext> context);

  [[nodiscard]] const OverlapBuffer& buffer() const { return buffer_; }
  [[nodiscard]] Matrix matrix(BufferRows rows) const;
  void copy_in(const Matrix& source, BufferRows rows);
  [[nodiscard]] std::int64_t persistent_bytes() const;
  [[nodiscard]] std::int64_t shared_bytes() const { return max_shared_; }
  void connect();
  StepResult run(const OverlapCall& call);

 private:
  struct CachedGemm {
    OverlappedGemm overlapped;
    std::int64_t weights_version = 0;
  };
  // The memory of a buffer of the plan.
  struct BufferBinding {
    std::string name;
    std::span<std::byte> bytes;
    std::shared_ptr<void> owner;
    bool is_skipped = false;  // it has no memory
  };
  using Bindings = std::vector<BufferBinding>;

  // REQUIRES: mutex_ is held.
  void connect_locked();
  void check_agreement(const std::string& local, const std::string& what, const std::string& help);
  CachedGemm& gemm_for(const overlap::Problem& problem);
  Bindings bind_buffers(const OverlappedGemm& gemm, const OverlapCall& call);
  void fill_inputs(const Bindings& bindings, const OverlapCall& call) const;
  void copy_out_gathered(const Bindings& bindings, const OverlapCall& call) const;
  // `weights` is empty if they are packed already.
  StepResult run_bound(CachedGemm& gemm, const Bindings& bindings, const OverlapCall& call,
                       std::span<const kernels::MatrixView> weights);
  void copy_out(const Bindings& bindings, const OverlapCall& call, bool has_epilogue) const;

  OverlapBuffer buffer_;
  std::shared_ptr<OverlapContext> context_;
  std::shared_ptr<std::byte> memory_;  // if the buffer is persistent
  std::atomic<std::int64_t> max_shared_ = 0;
  std::mutex mutex_;
  std::unique_ptr<comm::Communicator> channel_;
  std::map<std::string, CachedGemm> gemms_;  // by sizes and dtypes
};

}  // namespace shiplap::run
