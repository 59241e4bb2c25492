// Memory layout of activations and weights in training.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiplap/run/kernel_table.h"
#include "shiplap/run/training.h"

namespace shiplap::run {

// Throws InputError D641.
[[noreturn]] void throw_unsupported_layout(const KernelAccess& access, const std::string& what);

// The part of a tensor that a region holds: some samples, and of each some pieces of its features
// (or, of a weight, of its rows). Pieces are counted over all other dimensions, as declared.
struct ShardLayout {
  std::vector<std::int64_t> samples;  // {0} if there is no dimension `sample`
  std::vector<std::int64_t> pieces;   // in memory order
  std::int64_t all_pieces = 1;        // in total
  bool samples_vary_fastest = true;
};
[[nodiscard]] ShardLayout shard_layout_of(const KernelAccess& access);

// Contiguous features (or rows of a weight) begin, begin+1, ..
struct Stripe {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  float* data = nullptr;
  std::int64_t stride = 0;  // from one token (row of a weight) to the next
};

// A region of activations or their gradients: [piece][sample][token][feature of the piece], or
// [sample][piece][token][feature of the piece].
class Activations {
 public:
  Activations(const KernelAccess& access, const TrainingOptions& options);
  [[nodiscard]] std::span<const std::int64_t> samples() const { return part_.samples; }
  // The local features of a sample.
  [[nodiscard]] std::vector<Stripe> stripes(std::size_t sample) const;
  // Whether each sample is a contiguous block x hidden matrix.
  [[nodiscard]] bool is_plain() const { return part_.all_pieces == 1; }
  [[nodiscard]] float* plain(std::size_t sample) const { return cell(sample, 0); }
  // Returns the sample as block x hidden, gathered into `room` if needed. Throws D641 if a feature
  // is missing. REQUIRES: `room` has that size.
  [[nodiscard]] float* whole(std::size_t sample, std::span<float> room) const;
  [[nodiscard]] const KernelAccess& access() const { return access_; }

 private:
  [[nodiscard]] float* cell(std::size_t sample, std::size_t piece) const;

  const KernelAccess& access_;
  ShardLayout part_;
  std::int64_t block_;
  std::int64_t hidden_;
  std::int64_t width_;  // of a piece
};

// A region of weights or their gradients: rows of hidden numbers, in shards. Shards that follow
// each other are one stripe.
[[nodiscard]] std::vector<Stripe> weight_stripes(const KernelAccess& access,
                                                 const TrainingOptions& options);

}  // namespace shiplap::run
