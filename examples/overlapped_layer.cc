// Two layers of an MLP, cut over ranks, with their communication hidden:
//
//   H = gelu(X A)   rows of X are gathered; each rank has some columns of A
//   Y = H B         each rank has as many rows of B; Y is summed over ranks, which keep some rows
//
//   overlapped_layer [--fp8] [RANKS]    ranks are threads; under mpirun or tools/ranks, processes
//
// How each product is overlapped is chosen for the sizes of a real layer on a real machine. What is
// run then is a small layer of odd sizes, and Y is compared with the product in one process.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include "shiplap/comm/ranks.h"
#include "shiplap/hardware/system.h"
#include "shiplap/kernels/quantize.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/run/buffer_registry.h"

namespace {

using namespace shiplap;
using overlap::Type;

constexpr std::int64_t kTokens = 250;  // rows of X and Y
constexpr std::int64_t kHidden = 96;   // columns of X and Y
constexpr std::int64_t kInner = 398;   // columns of H
constexpr overlap::QuantFormat kMxfp8{.scaling = overlap::Scaling::blocks, .type = DType::fp8_e4m3};

// What a rank has of `count` rows or columns: as even as can be, the first have one more.
struct Share {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};
Share share_of(std::int64_t count, const comm::Communicator& world) {
  const std::int64_t more = count % world.size();
  return {
      .begin = world.rank() * (count / world.size()) + std::min<std::int64_t>(world.rank(), more),
      .size = count / world.size() + (world.rank() < more ? 1 : 0)};
}

// A matrix of one rank, by rows: as floats and, once it is asked for, as MXFP8.
struct Numbers {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<float> wide = std::vector<float>(static_cast<std::size_t>(rows * columns));
  std::vector<std::byte> codes = {};
  std::vector<std::byte> scales = {};

  run::Matrix matrix() {
    return {.data = wide.data(), .rows = rows, .columns = columns, .type = DType::f32};
  }
  run::Matrix coded() {
    const auto shape = kernels::mx_scale_shape(rows, columns, kernels::ScaleOrder::plain);
    codes.resize(wide.size());
    scales.resize(static_cast<std::size_t>(shape.count()));
    const kernels::MatrixView to{.data = codes.data(),
                                 .type = kMxfp8.type,
                                 .rows = rows,
                                 .columns = columns,
                                 .scaling = kernels::ScaleGranularity::per_block,
                                 .scales = scales.data()};
    kernels::quantize_blocks({.data = wide.data(), .rows = rows, .columns = columns}, to);
    return {.data = codes.data(),
            .rows = rows,
            .columns = columns,
            .type = kMxfp8.type,
            .scale_inv = {scales.data(), shape.rows, shape.columns}};
  }
  run::Matrix factor(bool fp8) { return fp8 ? coded() : matrix(); }
};

// Made-up numbers from -0.5 to 0.5, by matrix and by their place in the whole of it.
float number(char matrix, std::int64_t row, std::int64_t column) {
  auto bits =
      static_cast<std::uint32_t>((std::int64_t{matrix} * 1000 + row) * 1000 + column) * 2654435761U;
  bits = (bits ^ (bits >> 15U)) * 2246822519U;
  return static_cast<float>(bits >> 8U) * 0x1p-24F - 0.5F;
}
Numbers made(char matrix, Share rows, Share columns) {
  Numbers all{rows.size, columns.size};
  for (std::int64_t k = 0; k < rows.size * columns.size; ++k) {
    all.wide[static_cast<std::size_t>(k)] =
        number(matrix, rows.begin + k / columns.size, columns.begin + k % columns.size);
  }
  return all;
}

// The best way to overlap a product of these sizes on an H100.
overlap::Chosen choose_for(Type type, overlap::Problem real, bool fp8) {
  if (fp8) real.x = real.w = kMxfp8;
  if (fp8 && type == Type::reduce_scatter) real.sums = kMxfp8;
  const hardware::System h100 = hardware::find_system("h100_80g_nvl8");
  return overlap::choose(type, real, overlap::machine_of(h100, type, real));
}

std::int64_t create_buffer(run::BufferRegistry& registry, const overlap::Chosen& chosen, bool fp8) {
  return registry.create_comm_overlap_buffer(
      {.comm_type = chosen.choice.type,
       .method = chosen.choice.method,
       .buffer_shape = {kTokens, kHidden},  // of X, which is gathered, or of Y, which is summed
       .buffer_dtype = fp8 ? kMxfp8.type : DType::f32,
       .scaling_mode =
           fp8 ? kernels::ScalingMode::mxfp8_1d_scaling : kernels::ScalingMode::no_scaling,
       .result_dtype = DType::f32,
       .atomic_gemm = chosen.choice.atomic,
       .chunks = chosen.problem.chunks,
       .cut = chosen.problem.cut});
}

// A row of Y in one process, in double.
std::vector<double> right_row(std::int64_t row) {
  std::vector<double> y(kHidden);
  for (std::int64_t j = 0; j < kInner; ++j) {
    double h = 0;
    for (std::int64_t k = 0; k < kHidden; ++k) {
      h += double{number('x', row, k)} * double{number('a', j, k)};
    }
    h *= 0.5 * (1 + std::tanh(0.7978845608028654 * (h + 0.044715 * h * h * h)));
    for (std::int64_t k = 0; k < kHidden; ++k) {
      y[static_cast<std::size_t>(k)] += h * double{number('b', k, j)};
    }
  }
  return y;
}

// The length of what is wrong in own rows of Y, over that of what is right.
double error_of(const Numbers& y, const Share& tokens) {
  double wrong = 0;
  double all = 0;
  for (std::int64_t i = 0; i < tokens.size; ++i) {
    const std::vector<double> right = right_row(tokens.begin + i);
    for (std::size_t k = 0; k < right.size(); ++k) {
      const double found = double{y.wide[static_cast<std::size_t>(i * kHidden) + k]};
      wrong += (found - right[k]) * (found - right[k]);
      all += right[k] * right[k];
    }
  }
  return std::sqrt(wrong / all);
}

bool work(comm::Communicator& world, bool fp8) {
  const Share tokens = share_of(kTokens, world);
  const Share inner = share_of(kInner, world);
  const Share hidden{0, kHidden};
  Numbers x = made('x', tokens, hidden);
  Numbers a = made('a', inner, hidden);  // a row for each column, as a Linear of PyTorch has it
  Numbers b = made('b', hidden, inner);
  Numbers h{kTokens, inner.size};
  Numbers y{tokens.size, kHidden};

  const auto up =
      choose_for(Type::all_gather, {.m = 8192, .n = 28672, .k = 8192, .ranks = world.size()}, fp8);
  const auto down = choose_for(Type::reduce_scatter,
                               {.m = 8192, .n = 8192, .k = 28672, .ranks = world.size()}, fp8);
  run::BufferRegistry registry(world);
  const auto gather = registry.find(create_buffer(registry, up, fp8));
  const auto scatter = registry.find(create_buffer(registry, down, fp8));

  gather->multiply({.x = x.factor(fp8),
                    .w = a.factor(fp8),
                    .w_is_transposed = true,
                    .global_size = kInner,
                    .result = h.matrix(),
                    .activation = kernels::Activation::gelu_tanh});
  scatter->multiply({.x = h.factor(fp8),
                     .w = b.factor(fp8),
                     .w_is_transposed = true,
                     .global_size = kInner,
                     .result = y.matrix()});

  const double most = fp8 ? 0.1 : 1e-6;
  std::array wrong{error_of(y, tokens) > most ? 1.0F : 0.0F};
  world.all_reduce(std::span<float>(wrong));
  if (world.rank() == 0) {
    std::printf("X A: %s\nH B: %s\n", up.why.c_str(), down.why.c_str());
    std::printf("%d ranks, error below %g: %s\n", world.size(), most, wrong[0] == 0 ? "yes" : "no");
  }
  return wrong[0] == 0;
}

}  // namespace

int main(int argc, char** argv) {
  bool fp8 = false;
  int ranks = 2;
  for (const char* const word : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (std::string_view(word) == "--fp8") {
      fp8 = true;
    } else {
      ranks = static_cast<int>(std::strtol(word, nullptr, 10));
    }
  }
  std::atomic<bool> is_right = true;
  try {
    comm::run_ranks({.threads = ranks}, [&](comm::Communicator& world) {
      if (!work(world, fp8)) is_right = false;
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return is_right ? 0 : 1;
}
