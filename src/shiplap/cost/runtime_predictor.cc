#include "shiplap/cost/runtime_predictor.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"

namespace shiplap::cost {
namespace {

constexpr std::int64_t kFlopsOfUpdate = 11;  // per weight; Calculon's count for Adam

std::int64_t checked_product(std::initializer_list<std::int64_t> factors) {
  double size = 1;
  for (const std::int64_t factor : factors) size *= static_cast<double>(factor);
  ensure(size < 0x1p62, "work is counted below 2^62");
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) result *= factor;
  return result;
}

// Rounds down, as values do for the bytes of their shards. In two parts to avoid 64-bit overflow.
std::int64_t share(std::int64_t whole, std::int64_t on_device, std::int64_t num_shards) {
  ensure(num_shards >= 1 && on_device >= 0 && on_device <= num_shards,
         "a rank holds some of the shards");
  return whole / num_shards * on_device +
         checked_product({whole % num_shards, on_device}) / num_shards;
}

std::string_view kernel_class_of(workload::PartKind kind) {
  switch (kind) {
    case workload::PartKind::linear:
      return "gemm";
    case workload::PartKind::attention:
      return "attention";
    case workload::PartKind::embedding:
    case workload::PartKind::activation:
    case workload::PartKind::norm:
    case workload::PartKind::loss:
      return workload::name(kind);
  }
  throw InternalError("unknown kind of part");
}

}  // namespace

RuntimePredictor::RuntimePredictor(std::int64_t world_size, hardware::System system,
                                   workload::ModelShape shape)
    : world_size_(world_size), system_(std::move(system)), shape_(std::move(shape)) {
  ensure(world_size >= 1 && world_size <= plan::kMaxRanks, "a world has a rank");
}

RankSpan RuntimePredictor::world() const {
  return {.ranks = world_size_, .lowest = 0, .highest = world_size_ - 1};
}

ComputeWork RuntimePredictor::forward_work(std::int64_t batch_size, std::int64_t on_device,
                                           std::int64_t num_shards) const {
  ensure(batch_size >= 0, "the number of samples is not negative");
  const std::int64_t tokens = checked_product({batch_size, shape_.block});
  const std::int64_t flop = checked_product({2, shape_.hidden, shape_.hidden, tokens});
  const std::int64_t activation = checked_product({batch_size, shape_.activation().count});
  const std::int64_t bytes = share(shape_.weight().count, on_device, num_shards) + activation +
                             share(activation, on_device, num_shards);
  return {.kernel_class = "gemm",
          .flop = static_cast<double>(share(flop, on_device, num_shards)),
          .bytes = static_cast<double>(bytes),
          .type = shape_.datatype};
}

ComputeWork RuntimePredictor::backward_work(std::int64_t batch_size, std::int64_t on_device,
                                            std::int64_t num_shards) const {
  ComputeWork work = forward_work(batch_size, on_device, num_shards);
  work.flop *= 2;
  work.bytes *= 2;
  ensure(work.flop < 0x1p62 && work.bytes < 0x1p62, "work is counted below 2^62");
  return work;
}

std::vector<PartCost> RuntimePredictor::part_works(Pass pass, std::size_t layer,
                                                   std::int64_t batch_size, std::int64_t on_device,
                                                   std::int64_t num_shards) const {
  using workload::Part;
  using workload::PartWork;
  const workload::Tokens tokens{.sequences = batch_size, .length = shape_.block};
  std::vector<PartCost> works;
  const auto add = [&](const Part& part, const PartWork& whole, const char* suffix) {
    if (whole == PartWork{}) return;
    const bool is_whole = part.kind == workload::PartKind::norm;
    const double held =
        is_whole ? 1 : static_cast<double>(on_device) / static_cast<double>(num_shards);
    ensure(whole.flop < 0x1p62 && whole.bytes < 0x1p62, "work is counted below 2^62");
    works.push_back({.name = part.name + suffix,
                     .work = {.kernel_class = kernel_class_of(part.kind),
                              .flop = std::floor(whole.flop * held),
                              .bytes = std::floor(whole.bytes * held),
                              .type = shape_.datatype}});
  };
  const std::vector<Part>& parts = shape_.layers.at(layer).parts;
  if (pass == Pass::forward) {
    for (const Part& part : parts) add(part, forward(part, tokens, shape_.datatype), "");
    return works;
  }
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (pass != Pass::backward_weight) {
      add(*part, backward_input(*part, tokens, shape_.datatype), ", input gradient");
    }
    if (pass != Pass::backward_input) {
      add(*part, backward_weight(*part, tokens, shape_.datatype), ", weight gradient");
    }
  }
  return works;
}

ComputeWork RuntimePredictor::update_work(std::int64_t on_device, std::int64_t num_shards,
                                          std::size_t layer) const {
  const std::int64_t weights = checked_product({shape_.parameters(layer)});
  const std::int64_t weight = share(shape_.weight(layer).count, on_device, num_shards);
  const std::int64_t state = share(shape_.opt_state(layer).count, on_device, num_shards);
  const std::int64_t flop =
      share(checked_product({kFlopsOfUpdate, weights}), on_device, num_shards);
  return {.kernel_class = "update",
          .flop = static_cast<double>(flop),
          .bytes = static_cast<double>(checked_product({3, weight}) + checked_product({2, state})),
          .type = shape_.datatype};
}

ComputeWork RuntimePredictor::load_work(std::int64_t on_device, std::int64_t num_shards,
                                        std::size_t layer) const {
  const std::int64_t weight = share(shape_.weight(layer).count, on_device, num_shards);
  const std::int64_t state = share(shape_.opt_state(layer).count, on_device, num_shards);
  return {.kernel_class = "load",
          .bytes = static_cast<double>(weight + state),
          .type = shape_.datatype};
}

Seconds RuntimePredictor::compute_flops_time(Flops flops) const {
  return get_processing_time(flops, {});
}

Seconds RuntimePredictor::compute_mem_time(Bytes bytes_read_write) const {
  return get_processing_time({}, bytes_read_write);
}

Seconds RuntimePredictor::get_processing_time(Flops flops, Bytes bytes_read_write) const {
  return time({.kernel_class = "gemm",
               .flop = flops.count,
               .bytes = static_cast<double>(bytes_read_write.count),
               .type = shape_.datatype});
}

Seconds RuntimePredictor::get_forward_backward_time(std::int64_t batch_size) const {
  return time(forward_work(batch_size));
}

Seconds RuntimePredictor::get_update_step_time(std::int64_t num_shards_on_device,
                                               std::int64_t num_shards) const {
  return time(update_work(num_shards_on_device, num_shards));
}

Seconds RuntimePredictor::get_weight_load_time(std::int64_t num_shards_on_device,
                                               std::int64_t num_shards) const {
  return time(load_work(num_shards_on_device, num_shards));
}

CollectiveKind RuntimePredictor::parse_collective(std::string_view name) {
  std::vector<std::string> names;
  for (const CollectiveKind kind : kCollectives) {
    if (shiplap::name(kind) == name) return kind;
    names.emplace_back(shiplap::name(kind));
  }
  throw InputError({.code = "D602",
                    .what = fmt::format("unknown collective `{}`", name),
                    .help = suggest(name, names)});
}

}  // namespace shiplap::cost
