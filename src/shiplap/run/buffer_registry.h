// The buffers of communication on one rank, each with a number by which others may name it.
//
//   BufferRegistry registry(world);
//   const auto id = registry.create_comm_overlap_buffer({.comm_type = Type::reduce_scatter,
//                                                        .method = Method::ring_exchange,
//                                                        .buffer_shape = {8, 1024, 4096}});
//   registry.find(id)->split_overlap_rs(..);
//   registry.destroy_comm_overlap_buffer(id);
//
// Any thread may use it. It is an object like others: a process may have several, and what needs
// one for the whole process keeps it there.
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

// Memory of this many bytes, a multiple of 256, that begins at a multiple of 256. It throws
// std::bad_alloc if there is none.
using Allocate = std::function<std::shared_ptr<std::byte>(std::int64_t bytes)>;

struct BufferOptions {
  Allocate allocate;  // empty: ordinary memory of the process
  Progress progress = Progress::threads;
  // Whether memory that a call borrows is filled with NaN first, so that what nobody wrote shows.
  bool poison = false;
  // Whether what a call returns has events.
  bool traces = false;
};

// What the buffers of a rank hold, in bytes. Packed weights are not counted: kernels have them.
struct MemoryReport {
  struct Buffer {
    std::int64_t id = 0;
    std::string what;         // "all_gather, ring_exchange: 1000 x 4096 bf16"
    std::int64_t own = 0;     // between calls
    std::int64_t shared = 0;  // that its largest call so far took from what calls share
  };
  std::int64_t own = 0;         // of all buffers, also of those that were destroyed but are in use
  std::int64_t shared = 0;      // blocks that calls share, whether one has them or not
  std::int64_t leased = 0;      // of which calls have now
  std::int64_t peak = 0;        // of own and shared together, so far
  std::vector<Buffer> buffers;  // by id

  [[nodiscard]] std::int64_t total() const { return own + shared; }
  // What it would be if no two buffers shared anything.
  [[nodiscard]] std::int64_t unshared() const;
};
[[nodiscard]] Json to_json(const MemoryReport& report);
// A line for each buffer, and one for all.
[[nodiscard]] std::string to_string(const MemoryReport& report);

class BufferRegistry {
 public:
  // `world` must live longer than the registry and what find() gave. From the first call of a
  // buffer on, nothing else may use it while a buffer is met for the first time.
  explicit BufferRegistry(comm::Communicator& world, BufferOptions options = {});
  BufferRegistry(const BufferRegistry&) = delete;
  BufferRegistry& operator=(const BufferRegistry&) = delete;
  ~BufferRegistry();

  // A number greater than all before; none is used twice. This rank alone: ranks meet when they
  // call (CommOverlapCore::connect). Throws InputError D800, D801, D802, D803, D805, D809,
  // D813.
  std::int64_t create_comm_overlap_buffer(const BufferRequest& request);

  // Shared with the registry and with threads that call, so that memory goes when the last use
  // ends. Throws InputError D806.
  [[nodiscard]] std::shared_ptr<CommOverlapCore> find(std::int64_t id) const;
  [[nodiscard]] std::vector<std::int64_t> ids() const;

  // MPI frees what ranks met with together, so all ranks destroy in the same order. Throws
  // InputError D806.
  void destroy_comm_overlap_buffer(std::int64_t id);
  // Gives back the memory that calls share, too.
  void destroy_all_comm_overlap_buffers();

  [[nodiscard]] MemoryReport memory() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace shiplap::run
