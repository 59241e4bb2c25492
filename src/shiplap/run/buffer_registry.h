// The communication buffers of one rank, by id.
//
//   BufferRegistry registry(world);
//   const auto id = registry.create_comm_overlap_buffer({.comm_type = Type::reduce_scatter,
//                                                        .method = Method::ring_exchange,
//                                                        .buffer_shape = {8, 1024, 4096}});
//   registry.find(id)->split_overlap_rs(..);
//   registry.destroy_comm_overlap_buffer(id);
//
// Thread-safe. A process may have several registries; there is no global one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/comm/communicator.h"
#include "shiplap/run/comm_overlap.h"

namespace shiplap::run {

// Returns `bytes` bytes, a multiple of 256, aligned to 256. Throws std::bad_alloc if out of memory.
using Allocate = std::function<std::shared_ptr<std::byte>(std::int64_t bytes)>;

struct BufferOptions {
  Allocate allocate;  // empty: ordinary memory of the process
  Progress progress = Progress::threads;
  // Fills the memory that a call leases with NaN, to expose reads of uninitialized memory.
  bool poison = false;
  // Whether the result of a call has trace events.
  bool traces = false;
};

// Memory of the buffers of a rank, in bytes. Packed weights are not counted: the kernels own them.
struct MemoryReport {
  struct Buffer {
    std::int64_t id = 0;
    std::string what;  // "all_gather, ring_exchange: 1000 x 4096 bf16"
    std::int64_t persistent = 0;
    std::int64_t shared = 0;  // the largest amount that a call has leased from the pool
  };
  std::int64_t persistent = 0;  // including destroyed buffers that are still in use
  std::int64_t shared = 0;      // size of the pool
  std::int64_t leased = 0;      // of the pool, leased now
  std::int64_t peak = 0;        // of persistent + shared, so far
  std::vector<Buffer> buffers;  // by id

  [[nodiscard]] std::int64_t total() const { return persistent + shared; }
  // Returns the total if no two buffers shared memory.
  [[nodiscard]] std::int64_t unshared() const;
};
[[nodiscard]] Json to_json(const MemoryReport& report);
// One line per buffer, and one for the total.
[[nodiscard]] std::string to_string(const MemoryReport& report);

class BufferRegistry {
 public:
  // REQUIRES: `world` outlives the registry and all objects that find() has returned. Nothing else
  // uses `world` while a buffer connects.
  explicit BufferRegistry(comm::Communicator& world, BufferOptions options = {});
  BufferRegistry(const BufferRegistry&) = delete;
  BufferRegistry& operator=(const BufferRegistry&) = delete;
  ~BufferRegistry();

  // Returns the new id, greater than all before; ids are not reused. Local: ranks connect at the
  // first call (CommOverlapCore::connect). Throws InputError D800, D801, D802, D803, D805, D809,
  // D813.
  std::int64_t create_comm_overlap_buffer(const BufferRequest& request);

  // Returns the buffer. Its memory is freed with the last reference. Throws InputError D806 if
  // there is no such buffer.
  [[nodiscard]] std::shared_ptr<CommOverlapCore> find(std::int64_t id) const;
  [[nodiscard]] std::vector<std::int64_t> ids() const;

  // REQUIRES: all ranks destroy buffers in the same order, since freeing a communicator is
  // collective in MPI. Throws InputError D806.
  void destroy_comm_overlap_buffer(std::int64_t id);
  // Also frees the shared pool.
  void destroy_all_comm_overlap_buffers();

  [[nodiscard]] MemoryReport memory() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::run
