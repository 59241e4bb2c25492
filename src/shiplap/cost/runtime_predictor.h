// Predicts the time of the steps of training on a system, for strategies. Every computation is also
// available as ComputeWork, so that a plan that states this work has the same cost (compute_time in
// cost_model.h). The formulas are in docs/hardware.md.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/hardware/system.h"
#include "shiplap/plan/operation.h"
#include "shiplap/workload/shape.h"

namespace shiplap::cost {

// Values that can be communicated: those of workload/values.h.
template <class T>
concept Communicable = requires(const T& value, const workload::ModelShape& shape) {
  { value.memory(shape) } -> std::same_as<Bytes>;
};

// The work of a part of a layer; its name is that of the part in the shape.
struct PartCost {
  std::string name;
  ComputeWork work;
  friend bool operator==(const PartCost&, const PartCost&) = default;
};

class RuntimePredictor {
 public:
  explicit RuntimePredictor(std::int64_t world_size,
                            hardware::System system = hardware::find_system("h100_80g_nvl8"),
                            workload::ModelShape shape = {});
  [[nodiscard]] std::int64_t world_size() const { return world_size_; }
  [[nodiscard]] const hardware::System& system() const { return system_; }
  [[nodiscard]] const workload::ModelShape& shape() const { return shape_; }
  [[nodiscard]] RankSpan world() const;

  // The work of one layer. Flops and bytes are whole numbers, as in a plan. REQUIRES: they are
  // below 2^62.
  //
  // A layer multiplies `batch_size` samples by its weight; a tensor-parallel layer, by `on_device`
  // of `num_shards` shards of it. Bytes are those of the weight, the input and the output.
  [[nodiscard]] ComputeWork forward_work(std::int64_t batch_size, std::int64_t on_device = 1,
                                         std::int64_t num_shards = 1) const;
  // Two GEMMs of the size of forward_work, for the gradients of the input and of the weight. As one
  // piece of work, twice as large, they may reach a higher step of an efficiency curve than the
  // halves do.
  [[nodiscard]] ComputeWork backward_work(std::int64_t batch_size, std::int64_t on_device = 1,
                                          std::int64_t num_shards = 1) const;
  // Either half of backward, if they run separately.
  [[nodiscard]] ComputeWork backward_half_work(std::int64_t batch_size, std::int64_t on_device = 1,
                                               std::int64_t num_shards = 1) const {
    return forward_work(batch_size, on_device, num_shards);
  }
  // The works of the parts of a layer, in the order of their kernels. `on_device` of `num_shards`
  // shards of every part but the norms, whose whole weight each rank has. REQUIRES: the shape has
  // layers of parts.
  enum class Pass : std::uint8_t { forward, backward_input, backward_weight, backward };
  [[nodiscard]] std::vector<PartCost> part_works(Pass pass, std::size_t layer,
                                                 std::int64_t batch_size, std::int64_t on_device,
                                                 std::int64_t num_shards) const;

  // Adam on the shards held: 11 operations per weight, as Calculon counts. Gradient, weight and
  // optimizer state are read, the latter two also written.
  [[nodiscard]] ComputeWork update_work(std::int64_t on_device, std::int64_t num_shards,
                                        std::size_t layer = 0) const;
  // Weight and optimizer state are copied from the host.
  [[nodiscard]] ComputeWork load_work(std::int64_t on_device, std::int64_t num_shards,
                                      std::size_t layer = 0) const;

  [[nodiscard]] Seconds time(const ComputeWork& work) const { return compute_time(system_, work); }

  // On the matrix unit, in the datatype of the shape.
  [[nodiscard]] Seconds compute_flops_time(Flops flops) const;
  [[nodiscard]] Seconds compute_mem_time(Bytes bytes_read_write) const;
  // Both, combined according to System::processing_mode.
  [[nodiscard]] Seconds get_processing_time(Flops flops, Bytes bytes_read_write) const;
  // One GEMM of forward or backward.
  [[nodiscard]] Seconds get_forward_backward_time(std::int64_t batch_size) const;
  [[nodiscard]] Seconds get_update_step_time(std::int64_t num_shards_on_device,
                                             std::int64_t num_shards) const;
  [[nodiscard]] Seconds get_weight_load_time(std::int64_t num_shards_on_device,
                                             std::int64_t num_shards) const;

  // Of the shards held.
  template <Communicable T>
  [[nodiscard]] Bytes get_comm_bytes(const T& value) const {
    return value.memory(shape_);
  }

  // `value` is the input of each rank; the result of an all_gather is `span.ranks` times larger.
  template <Communicable T>
  [[nodiscard]] Seconds get_collective_time(CollectiveKind kind, const T& value,
                                            const RankSpan& span) const {
    const Bytes local = get_comm_bytes(value);
    const bool gathers = kind == CollectiveKind::all_gather;
    return collective_time(system_, kind, gathers ? span.ranks * local : local, span);
  }
  template <Communicable T>
  [[nodiscard]] Seconds get_collective_time(CollectiveKind kind, const T& value) const {
    return get_collective_time(kind, value, world());
  }
  // `name` is a plan's name of a collective. Throws InputError D602 if it is unknown.
  template <Communicable T>
  [[nodiscard]] Seconds get_collective_time(std::string_view name, const T& value,
                                            const RankSpan& span) const {
    return get_collective_time(parse_collective(name), value, span);
  }
  template <Communicable T>
  [[nodiscard]] Seconds get_collective_time(std::string_view name, const T& value) const {
    return get_collective_time(name, value, world());
  }

  // Of a whole buffer, as in cost_model.h.
  [[nodiscard]] Seconds get_collective_time(std::string_view name, Bytes whole) const {
    return collective_time(system_, parse_collective(name), whole, world());
  }

  template <Communicable T>
  [[nodiscard]] Seconds get_send_recv_time(const T& value, Rank from, Rank to) const {
    return message_time(system_, get_comm_bytes(value), from, to);
  }
  // From the first rank to the last.
  template <Communicable T>
  [[nodiscard]] Seconds get_send_recv_time(const T& value) const {
    return get_send_recv_time(value, Rank(0), Rank(static_cast<std::int32_t>(world_size_ - 1)));
  }

 private:
  [[nodiscard]] static CollectiveKind parse_collective(std::string_view name);

  std::int64_t world_size_;
  hardware::System system_;
  workload::ModelShape shape_;
};

}  // namespace shiplap::cost
