#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/run/training_layout_internal.h"

namespace shiplap::run {
namespace {

void check_size(const KernelAccess& access, std::int64_t numbers) {
  if (access.type != DType::f32) {
    throw_unsupported_layout(access, fmt::format("{} of {}: these kernels compute in f32",
                                                 access.tensor->name, name(access.type)));
  }
  const auto expected = static_cast<std::size_t>(numbers) * sizeof(float);
  if (access.bytes.size() == expected) return;
  throw_unsupported_layout(access,
                           fmt::format("size mismatch: {} bytes for a value of `{}` that needs {}",
                                       access.bytes.size(), access.tensor->name, expected));
}

// The stride of a dimension in the piece index.
std::int64_t piece_stride(const plan::Tensor& tensor, plan::DimensionId dimension) {
  std::int64_t stride = 1;
  for (std::size_t k = dimension.index() + 1; k < tensor.part.size(); ++k) {
    if (tensor.part[k].name != "sample") stride *= tensor.part[k].size;
  }
  return stride;
}

// The dimensions of the part, in memory order.
std::vector<plan::DimensionId> memory_order(const KernelAccess& access) {
  std::vector<plan::DimensionId> order;
  for (const plan::flat::Run& run : access.runs) {
    const bool is_new = std::ranges::find(order, run.dimension) == order.end();
    if (is_new && !access.tensor->in_sum(run.dimension)) order.push_back(run.dimension);
  }
  return order;
}

}  // namespace

void throw_unsupported_layout(const KernelAccess& access, const std::string& what) {
  throw InputError(Diagnostic{
      .code = "D641",
      .what = "not supported by run: " + what,
      .why = fmt::format("`{}` is a tensor of kind {}", access.tensor->name, access.tensor->kind)});
}

ShardLayout shard_layout_of(const KernelAccess& access) {
  const plan::Tensor& tensor = *access.tensor;
  ShardLayout part{.samples = {0}, .pieces = {0}};
  const std::vector<plan::DimensionId> order = memory_order(access);
  bool samples_seen = false;
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::vector<std::int64_t> here = coordinates(access, order[k]);
    const plan::Dimension& dimension = tensor.dimension(order[k]);
    if (dimension.name == "sample") {
      part.samples = here;
      part.samples_vary_fastest = k > 0;
      samples_seen = true;
      if (k > 0 && k + 1 < order.size())
        throw_unsupported_layout(access, "`sample` between two dimensions");
      continue;
    }
    part.all_pieces *= dimension.size;
    std::vector<std::int64_t> finer;
    for (const std::int64_t piece : part.pieces) {
      for (const std::int64_t at : here) {
        finer.push_back(piece + at * piece_stride(tensor, order[k]));
      }
    }
    part.pieces = std::move(finer);
  }
  if (!samples_seen) part.samples_vary_fastest = true;
  return part;
}

Activations::Activations(const KernelAccess& access, const TrainingOptions& options)
    : access_(access),
      part_(shard_layout_of(access)),
      block_(options.block),
      hidden_(options.hidden),
      width_(options.hidden / part_.all_pieces) {
  if (hidden_ % part_.all_pieces != 0) {
    throw_unsupported_layout(access,
                             fmt::format("{} features in {} pieces", hidden_, part_.all_pieces));
  }
  check_size(access, std::ssize(part_.samples) * std::ssize(part_.pieces) * block_ * width_);
}

float* Activations::cell(std::size_t sample, std::size_t piece) const {
  const std::size_t cells = part_.samples_vary_fastest ? piece * part_.samples.size() + sample
                                                       : sample * part_.pieces.size() + piece;
  return access_.as<float>().data() + cells * static_cast<std::size_t>(block_ * width_);
}

std::vector<Stripe> Activations::stripes(std::size_t sample) const {
  std::vector<Stripe> all;
  for (std::size_t k = 0; k < part_.pieces.size(); ++k) {
    all.push_back({.begin = part_.pieces[k] * width_,
                   .count = width_,
                   .data = cell(sample, k),
                   .stride = width_});
  }
  return all;
}

float* Activations::whole(std::size_t sample, std::span<float> room) const {
  if (is_plain()) return plain(sample);
  if (std::ssize(part_.pieces) != part_.all_pieces) {
    throw_unsupported_layout(access_,
                             fmt::format("{} of {} pieces of the features, where all are needed",
                                         part_.pieces.size(), part_.all_pieces));
  }
  for (const Stripe& stripe : stripes(sample)) {
    for (std::int64_t token = 0; token < block_; ++token) {
      std::copy_n(stripe.data + token * stripe.stride, stripe.count,
                  room.data() + token * hidden_ + stripe.begin);
    }
  }
  return room.data();
}

std::vector<Stripe> weight_stripes(const KernelAccess& access, const TrainingOptions& options) {
  const ShardLayout part = shard_layout_of(access);
  if (options.hidden % part.all_pieces != 0) {
    throw_unsupported_layout(access,
                             fmt::format("{} rows in {} shards", options.hidden, part.all_pieces));
  }
  const std::int64_t rows = options.hidden / part.all_pieces;
  check_size(access, std::ssize(part.pieces) * rows * options.hidden);
  std::vector<Stripe> all;
  float* data = access.as<float>().data();
  for (const std::int64_t piece : part.pieces) {
    if (!all.empty() && all.back().begin + all.back().count == piece * rows) {
      all.back().count += rows;
    } else {
      all.push_back({.begin = piece * rows, .count = rows, .data = data, .stride = options.hidden});
    }
    data += rows * options.hidden;
  }
  return all;
}

}  // namespace shiplap::run
