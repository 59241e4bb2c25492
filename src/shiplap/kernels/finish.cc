#include "shiplap/kernels/finish.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "shiplap/kernels/epilogue_internal.h"

namespace shiplap::kernels {
Result from_row(const Result& result, std::int64_t row, std::int64_t columns) {
  if (result.data == nullptr) return result;
  const std::int64_t stride = result.stride == 0 ? columns : result.stride;
  auto* const data = static_cast<std::byte*>(result.data);
  return {
      .data = data + row * stride * bytes_of(result.type), .type = result.type, .stride = stride};
}

bool is_identity(const Epilogue& epilogue) {
  return epilogue.alpha == 1 && epilogue.beta == 0 && epilogue.bias.data == nullptr &&
         epilogue.activation == Activation::none && epilogue.before_activation.data == nullptr;
}

void finish(const Sums& sums, const Result& c, const Epilogue& epilogue) {
  if (sums.rows == 0 || sums.columns == 0) return;
  std::vector<float> bias;
  if (epilogue.bias.data != nullptr) {
    bias.resize(sums.columns);
    widen({.from = epilogue.bias.data,
           .type = epilogue.bias.type,
           .count = sums.columns,
           .to = bias.data()});
  }
  // So many rows at once that they stay in the cache.
  const std::int64_t most = std::max<std::int64_t>(1, 4096 / sums.columns);
  std::vector<float> floats(std::min(most, sums.rows) * sums.columns);
  EpilogueStep step{.columns = sums.columns,
                    .sums = floats.data(),
                    .stride_sums = sums.columns,
                    .bias = bias.empty() ? nullptr : bias.data(),
                    .alpha = epilogue.alpha,
                    .beta = epilogue.beta,
                    .activation = epilogue.activation};
  const auto row_bytes = sums.columns * bytes_of(sums.type);
  for (std::int64_t row = 0; row < sums.rows; row += most) {
    step.rows = std::min(most, sums.rows - row);
    step.c = from_row(c, row, sums.columns);
    step.before_activation = from_row(epilogue.before_activation, row, sums.columns);
    widen({.from = static_cast<const std::byte*>(sums.data) + row * row_bytes,
           .type = sums.type,
           .count = step.rows * sums.columns,
           .to = floats.data()});
    apply_epilogue(step);
  }
}

}  // namespace shiplap::kernels
