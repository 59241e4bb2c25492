// Every overlap on threads, compared with the reference GEMM.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "reference_gemm.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/kernels/linear.h"

namespace shiplap::tests {
namespace {

using overlap::Cut;
using overlap::Method;
using overlap::Problem;
using overlap::Type;
using run::OverlappedGemm;

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

struct Setting {
  int ranks = 1;
  run::Progress progress = run::Progress::threads;
};
class EveryOverlap : public testing::TestWithParam<Setting> {};

TEST_P(EveryOverlap, IsTheProductAndHasTheSameBitsEveryTime) {
  const auto& [ranks, progress] = GetParam();
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const auto& [rows, columns, k, chunks, cut] :
           {std::tuple(1, 9, 8, 1, Cut::even), std::tuple(29, 11, 23, 3, Cut::even),
            std::tuple(64, 32, 48, 2, Cut::tapered), std::tuple(301, 9, 8, 3, Cut::tapered)}) {
        const Given all = given({.m = rows,
                                 .n = columns,
                                 .k = k,
                                 .type = type,
                                 .ranks = ranks,
                                 .chunks = chunks,
                                 .cut = cut});
        on_threads(ranks, [&](comm::Communicator& world) {
          OverlappedGemm gemm(supported.choice, all.problem, world, {.progress = progress});
          fill_rank(gemm, supported.choice.type, all, world.rank());
          gemm.prepare();
          gemm.run();
          EXPECT_EQ(find_mismatch(gemm, supported.choice, all, world.rank()), "")
              << to_string(supported.choice) << ", " << rows << " x " << k << " by " << columns;
          const char* const result = wanted(supported.choice, all.problem, world.rank()).buffer;
          const std::vector<std::byte> first = copy_of(gemm.buffer(result));
          fill_rank(gemm, supported.choice.type, all, world.rank());
          gemm.run();
          EXPECT_EQ(copy_of(gemm.buffer(result)), first) << "other bits the second time";
        });
        if (HasFailure()) return;
      }
    }
  }
}

// Of rows and sums as FP8, of groups: which there are.
struct Formats {
  overlap::QuantFormat x;
  overlap::QuantFormat w;
  overlap::QuantFormat sums;
  int groups = 0;
};

std::vector<Formats> all_formats() {
  using overlap::Scaling;
  const auto e4m3 = [](Scaling scaling) { return overlap::QuantFormat{.scaling = scaling}; };
  const auto e5m2 = [](Scaling scaling) {
    return overlap::QuantFormat{.scaling = scaling, .type = DType::fp8_e5m2};
  };
  return {{.x = e4m3(Scaling::row), .w = e4m3(Scaling::row), .sums = e4m3(Scaling::row)},
          {.x = e4m3(Scaling::blocks), .w = e4m3(Scaling::blocks), .sums = e4m3(Scaling::blocks)},
          {.x = e5m2(Scaling::blocks), .w = e4m3(Scaling::blocks), .sums = e5m2(Scaling::row)},
          {.x = e5m2(Scaling::row), .w = e4m3(Scaling::row)},
          {.sums = e4m3(Scaling::blocks)},
          {.groups = 5},
          {.x = e4m3(Scaling::blocks),
           .w = e4m3(Scaling::blocks),
           .sums = e5m2(Scaling::blocks),
           .groups = 3}};
}

void set(Problem& problem, const Formats& formats, Type type) {
  problem.x = formats.x;
  problem.w = formats.w;
  problem.groups = formats.groups;
  if (type == Type::reduce_scatter || type == Type::all_reduce) problem.sums = formats.sums;
}

struct Shape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  int chunks = 1;
  DType type = DType::f32;
};

void expect_product(const overlap::Choice& choice, const Given& all, run::Progress progress) {
  on_threads(all.problem.ranks, [&](comm::Communicator& world) {
    OverlappedGemm gemm(choice, all.problem, world, {.progress = progress});
    const LocalOperands local = local_operands(choice.type, all, world.rank());
    fill_rank(gemm, choice.type, all, world.rank());
    gemm.prepare();
    gemm.run(args_of(local, choice.type));
    EXPECT_EQ(find_mismatch(gemm, choice, all, world.rank()), "")
        << to_string(choice) << ", " << all.problem.m << " x " << all.problem.k << " by "
        << all.problem.n << ", X " << name(all.problem.x.scaling) << ", sums "
        << name(all.problem.sums.scaling) << ", " << all.problem.groups << " groups"
        << (all.is_exact ? "" : ", any numbers");
  });
}

TEST_P(EveryOverlap, IsTheProductWhateverItsRowsAreWrittenAs) {
  const auto& [ranks, progress] = GetParam();
  std::vector<Shape> shapes{{29, 11, 23, 3, DType::bf16}};
  const bool is_thorough = ranks == 3 && progress == run::Progress::threads;
  if (is_thorough) {
    shapes.push_back({1, 9, 8, 1, DType::f32});
    shapes.push_back({70, 40, 66, 2, DType::f32});
  }
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    for (const Formats& formats : all_formats()) {
      for (const Shape& shape : shapes) {
        Problem problem{.m = shape.m,
                        .n = shape.n,
                        .k = shape.k,
                        .type = shape.type,
                        .ranks = ranks,
                        .chunks = shape.chunks};
        set(problem, formats, supported.choice.type);
        expect_product(supported.choice, given(problem), progress);
        if (is_thorough) expect_product(supported.choice, given_any(problem), progress);
        if (HasFailure()) return;
      }
    }
  }
}

constexpr run::Progress kPolled = run::Progress::polled;
INSTANTIATE_TEST_SUITE_P(Ranks, EveryOverlap,
                         testing::Values(Setting{1}, Setting{2}, Setting{3}, Setting{4}, Setting{8},
                                         Setting{1, kPolled}, Setting{2, kPolled},
                                         Setting{3, kPolled}, Setting{4, kPolled},
                                         Setting{8, kPolled}));

// The bits of a gathered GEMM are those of the same chunks multiplied one after the other.
TEST(Gathered, HasTheBitsOfItsChunks) {
  const Given all =
      given({.m = 37, .n = 24, .k = 40, .type = DType::bf16, .ranks = 3, .chunks = 2});
  for (const bool atomic : {false, true}) {
    on_threads(3, [&](comm::Communicator& world) {
      OverlappedGemm gemm({Type::all_gather, Method::ring_exchange, atomic}, all.problem, world);
      fill_rank(gemm, Type::all_gather, all, world.rank());
      gemm.prepare();
      gemm.run();
      kernels::LinearKernel linear({.n = 8, .k = 40, .type = DType::bf16, .typical_rows = 128});
      linear.prepare({.data = gemm.buffer("w").data(), .type = DType::bf16, .is_transposed = true});
      std::vector<std::byte> right(gemm.buffer("y").size());
      for (int rank = 0; rank < 3; ++rank) {
        const std::int64_t begin = begin_of(rank, 37, 3);
        const std::int64_t count = begin_of(rank + 1, 37, 3) - begin;
        for (std::int64_t u = 0; u < 2; ++u) {
          const std::int64_t row = begin + begin_of(u, count, 2);
          const std::int64_t rows = begin_of(u + 1, count, 2) - begin_of(u, count, 2);
          linear.multiply(
              {.data = gemm.buffer("x").data() + row * 80, .type = DType::bf16, .rows = rows},
              {.data = right.data() + row * 16, .type = DType::bf16});
        }
      }
      EXPECT_EQ(copy_of(gemm.buffer("y")), right);
    });
  }
}

// A bulk overlap scatters an unrelated matrix.
TEST(Bulk, ScattersSomethingElse) {
  const Given all = given({.m = 10, .n = 4, .k = 6, .type = DType::f32, .ranks = 3});
  on_threads(3, [&](comm::Communicator& world) {
    OverlappedGemm gemm({Type::reduce_scatter, Method::bulk}, all.problem, world);
    fill_rank(gemm, Type::reduce_scatter, all, world.rank());
    for (std::int64_t k = 0; k < 40; ++k) {
      put(gemm.buffer("z"), DType::f32, k, static_cast<double>(k * (world.rank() + 1)));
    }
    gemm.prepare();
    gemm.run();
    const std::int64_t row = begin_of(world.rank(), 10, 3);
    const std::span<const std::byte> out = gemm.buffer("out");
    for (std::int64_t k = 0; k < std::ssize(out) / 4; ++k) {
      EXPECT_EQ(get(out, DType::f32, k), static_cast<double>((row * 4 + k) * 6));
    }
  });
}

std::string refused(const Problem& problem) {
  std::string said;
  on_threads(2, [&](comm::Communicator& world) {
    try {
      const OverlappedGemm gemm({Type::all_gather, Method::ring_exchange}, problem, world);
    } catch (const InputError& error) {
      if (world.rank() == 0) said = error.diagnostics().front().code;
    }
  });
  return said;
}

TEST(Refused, IsWhatCannotBeDone) {
  EXPECT_EQ(refused({.m = 4, .n = 4, .k = 4, .ranks = 3}), "D802");
  EXPECT_EQ(refused({.m = 4, .n = 4, .k = 4, .type = DType::i32, .ranks = 2}), "D802");
  EXPECT_EQ(refused({.m = 4, .n = 1, .k = 4, .ranks = 2}), "D801");
}

}  // namespace
}  // namespace shiplap::tests
