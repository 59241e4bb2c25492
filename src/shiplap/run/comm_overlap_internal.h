// What stands behind a CommOverlapCore: one communicated matrix, and the products it was used for.
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
#include "shiplap/run/overlapped_product.h"

namespace shiplap::run {

// What all buffers of a registry share.
struct OverlapShared {
  OverlapShared(comm::Communicator& all, BufferOptions given);
  comm::Communicator& world;
  std::mutex mutex;  // one thread at a time may use the world
  BufferOptions options;
  std::shared_ptr<BufferPool> pool;
};

// A request that makes sense, on this rank.
struct OverlapBuffer {
  std::int64_t id = 0;
  BufferRequest request;
  overlap::Choice choice;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int rank = 0;
  int ranks = 1;

  // Of what travels.
  [[nodiscard]] overlap::Form form() const;
  // Of results, and of what travels if that has no scales.
  [[nodiscard]] DType type() const;
  [[nodiscard]] std::int64_t row_bytes() const {
    return overlap::row_bytes(form(), type(), columns);
  }
  [[nodiscard]] std::int64_t bytes() const { return rows * row_bytes(); }
  [[nodiscard]] std::int64_t own_begin() const;
  [[nodiscard]] std::int64_t own_rows() const;
  [[nodiscard]] bool lasts() const { return request.contents == Contents::between_calls; }
};
// Throws InputError D800, D801, D802, D803, D805, D813.
[[nodiscard]] OverlapBuffer checked(const BufferRequest& request, const comm::Communicator& world);
// "all_gather, ring_exchange: 1000 x 4096 bf16"
[[nodiscard]] std::string describe(const OverlapBuffer& buffer);
// "buffer 3 (all_gather, ring_exchange: 1000 x 4096 bf16)"
[[nodiscard]] std::string describe_with_id(const OverlapBuffer& buffer);

// How many of `count` things rank `rank` of `ranks` has.
[[nodiscard]] std::int64_t share_of(std::int64_t count, int rank, int ranks);

// How numbers of a type lie in rows.
[[nodiscard]] overlap::Form form_of(DType type, kernels::ScalingMode mode);
// Throws InputError D813 if the types of a request do not fit its scaling mode.
void demand_scaling(const BufferRequest& request);

// The product of a call. Throws InputError D804, D807, D811, D812, D814.
[[nodiscard]] overlap::Problem checked(const OverlapBuffer& buffer, const OverlapCall& call);
// Throws InputError D804 unless `matrix` is of this shape, and of this type or that of results.
using Shape = kernels::MatrixShape;
void demand_shape(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                  const Shape& shape, std::optional<DType> type = {});
// The same of a factor, as it is given, which may be FP8 if the buffer has a scaling mode; of the
// two sizes, this one is the inner. Throws InputError D804, D811, D812.
enum class Inner { rows, columns };
void demand_factor(const OverlapBuffer& buffer, std::string_view name, const Matrix& matrix,
                   const Shape& shape, Inner inner);

// Rows of x as they lie in the plan: with their scales, and the numbers of their groups, behind
// them, each row so many bytes after the one before. `matrix` was checked.
void write_rows(const Matrix& matrix, const overlap::Form& form,
                std::span<const std::int64_t> group_sizes, std::span<std::byte> to);
// The weights of each group, or the only ones. What they need beside the call is in `scales`.
[[nodiscard]] std::vector<kernels::MatrixView> weights_of(const OverlapBuffer& buffer,
                                                          const OverlapCall& call,
                                                          std::vector<std::byte>& scales);

class OverlapObject {
 public:
  OverlapObject(OverlapBuffer buffer, std::shared_ptr<OverlapShared> shared);

  [[nodiscard]] const OverlapBuffer& buffer() const { return buffer_; }
  [[nodiscard]] Matrix matrix(Part part) const;
  void copy_in(const Matrix& source, Part part);
  [[nodiscard]] std::int64_t own_bytes() const;
  [[nodiscard]] std::int64_t shared_bytes() const { return most_shared_; }
  void connect();
  StepResult run(const OverlapCall& call);

 private:
  struct Product {
    OverlappedProduct overlapped;
    std::int64_t weights_version = 0;
  };
  // Where a buffer of the plan lies.
  struct Place {
    std::string name;
    std::span<std::byte> bytes;
    std::shared_ptr<void> owner;
    bool is_left_out = false;  // it lies nowhere
  };
  using Places = std::vector<Place>;

  // All of these with the lock held.
  void connect_here();
  void agree(const std::string& own, const std::string& what, const std::string& help);
  Product& product_for(const overlap::Problem& problem);
  Places places_of(const OverlappedProduct& product, const OverlapCall& call);
  void fill(const Places& places, const OverlapCall& call) const;
  void deliver_gathered(const Places& places, const OverlapCall& call) const;
  // `weights` that are not prepared yet.
  StepResult run_at(Product& product, const Places& places, const OverlapCall& call,
                    std::span<const kernels::MatrixView> weights);
  void deliver(const Places& places, const OverlapCall& call, bool is_finished) const;

  OverlapBuffer buffer_;
  std::shared_ptr<OverlapShared> shared_;
  std::shared_ptr<std::byte> memory_;  // of contents that last
  std::atomic<std::int64_t> most_shared_ = 0;
  std::mutex mutex_;
  std::unique_ptr<comm::Communicator> channel_;
  std::map<std::string, Product> products_;  // by sizes and forms
};

}  // namespace shiplap::run
