// The overlap classes on threads, compared with the reference GEMM.
#include "classes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::tests {
namespace {

using overlap::Choice;
using overlap::Method;
using overlap::Problem;
using overlap::Type;
using run::BufferLifetime;
using run::BufferRegistry;
using run::OverlapCall;

std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    if (supported.choice.type != Type::none) all.push_back(supported.choice);
  }
  return all;
}

// The GEMM of a bulk overlap has the same size on all ranks.
Given given_for(const Choice& choice, Problem problem) {
  if (choice.method == Method::bulk) problem.k *= problem.ranks;
  return given(problem);
}

class EveryClass : public testing::TestWithParam<int> {};

TEST_P(EveryClass, GivesTheProduct) {
  const int ranks = GetParam();
  for (const Choice& choice : choices()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const auto& [rows, columns, k, chunks, cut] :
           {std::tuple(1, 9, 8, 1, overlap::Cut::even),
            std::tuple(29, 11, 23, 3, overlap::Cut::tapered)}) {
        const Given all = given_for(choice, {.m = rows,
                                             .n = columns,
                                             .k = k,
                                             .type = type,
                                             .ranks = ranks,
                                             .chunks = chunks,
                                             .cut = cut});
        on_threads(ranks, [&](comm::Communicator& world) {
          EXPECT_EQ(find_class_mismatch(world, choice, all), "")
              << to_string(choice) << ", " << rows << " x " << k << " by " << columns;
        });
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryClass, testing::Values(1, 2, 3, 4, 8));

// ---- bias and activation

double gelu(double x) {
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return x / 2 * (1 + std::tanh(inner));
}

struct Extras {
  OwnedMatrix bias;
  OwnedMatrix before;
  OwnedMatrix old;
};

Extras add_extras(OverlapCall& call, RankData& local) {
  const OwnedMatrix& result = local.result;
  Extras made{.bias = owned_matrix(1, result.columns, DType::f32),
              .before = owned_matrix(result.rows, result.columns, DType::f32),
              .old = owned_matrix(result.rows, result.columns, result.type)};
  for (std::int64_t k = 0; k < result.columns; ++k) {
    put(*made.bias.bytes, DType::f32, k, 0.25 * static_cast<double>(k % 5) - 0.5);
  }
  for (std::int64_t k = 0; k < result.rows * result.columns; ++k) {
    put(*made.old.bytes, result.type, k, static_cast<double>(k % 7) - 3);
  }
  *local.result.bytes = *made.old.bytes;
  call.alpha = 0.5F;
  call.beta = 2;
  call.bias = made.bias.matrix();
  call.pre_activation = made.before.matrix();
  call.activation = kernels::Activation::gelu_tanh;
  return made;
}

void expect_finished(const Choice& choice, const Given& all, int rank, const RankData& local,
                     const Extras& extras) {
  const Wanted want = wanted(choice, all.problem, rank);
  const double unit = all.problem.type == DType::bf16 ? 0x1p-8 : 0x1p-22;
  for (std::int64_t i = 0; i < want.cut.rows; ++i) {
    for (std::int64_t j = 0; j < want.cut.columns; ++j) {
      const std::int64_t k = i * want.cut.columns + j;
      const ExpectedValue sum = expected_value(all, want, want.cut.row + i, want.cut.column + j);
      const double before = 0.5 * sum.right + 2 * get(*extras.old.bytes, all.problem.type, k) +
                            get(*extras.bias.bytes, DType::f32, j);
      const double most = 0.5 * sum.most + 1e-6 * (1 + std::abs(before));
      ASSERT_NEAR(get(*extras.before.bytes, DType::f32, k), before, most);
      ASSERT_NEAR(get(*local.result.bytes, all.problem.type, k), gelu(before),
                  1.13 * most + unit * std::abs(gelu(before)) + 1e-5)
          << to_string(choice);
    }
  }
}

TEST(Epilogue, ComesOnceAfterTheSum) {
  for (const Choice& choice : choices()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      // Of more columns than rows are deep, and the other way round.
      for (const auto& [columns, k] : {std::pair{19, 8}, std::pair{7, 30}}) {
        const Given all = given_for(
            choice, {.m = 13, .n = columns, .k = k, .type = type, .ranks = 3, .chunks = 2});
        on_threads(3, [&](comm::Communicator& world) {
          RankData local = rank_data(choice, all, world.rank());
          OverlapCall call = local.call(choice, all);
          const Extras extras = add_extras(call, local);
          BufferRegistry registry(world);
          const auto id = registry.create_comm_overlap_buffer(request_for(choice, all.problem));
          registry.find(id)->multiply(call);
          expect_finished(choice, all, world.rank(), local, extras);
        });
      }
    }
  }
}

// ---- what lies in the buffer

TEST(Buffer, HoldsWhatIsGatheredBetweenCalls) {
  const Choice choice{Type::all_gather, Method::ring_exchange};
  const Given all = given({.m = 11, .n = 8, .k = 6, .type = DType::f32, .ranks = 3, .chunks = 2});
  on_threads(3, [&](comm::Communicator& world) {
    const RankData local = rank_data(choice, all, world.rank());
    BufferRegistry registry(world);
    run::BufferRequest request = request_for(choice, all.problem);
    request.lifetime = BufferLifetime::persistent;
    const auto object = registry.find(registry.create_comm_overlap_buffer(request));
    object->copy_into_buffer(local.x.matrix());
    const OwnedMatrix gathered = owned_matrix(11, 6, DType::f32);
    OverlapCall call = local.call(choice, all);
    call.x = {};
    call.gathered = gathered.matrix();
    object->split_overlap_ag(call);
    EXPECT_EQ(find_mismatch(*local.result.bytes, choice, all, world.rank()), "");
    const auto* const rows = static_cast<const std::byte*>(object->buffer().data);
    for (std::int64_t k = 0; k < 66; ++k) {
      const double right = all.x.numbers[k];
      EXPECT_EQ(get({rows, 264}, DType::f32, k), right);
      EXPECT_EQ(get(*gathered.bytes, DType::f32, k), right);
    }
  });
}

TEST(Buffer, HoldsWhatIsSummedBetweenCalls) {
  for (const Method method : {Method::pipeline, Method::ring_exchange}) {
    const Choice choice{Type::all_reduce, method};
    const Given all = given({.m = 11, .n = 8, .k = 6, .type = DType::f32, .ranks = 3});
    on_threads(3, [&](comm::Communicator& world) {
      const RankData local = rank_data(choice, all, world.rank());
      BufferRegistry registry(world);
      run::BufferRequest request = request_for(choice, all.problem);
      request.lifetime = BufferLifetime::persistent;
      const auto object = registry.find(registry.create_comm_overlap_buffer(request));
      OverlapCall call = local.call(choice, all);
      call.result = {};
      object->split_overlap_ar(call);
      const auto* const sums = static_cast<const std::byte*>(object->buffer().data);
      EXPECT_EQ(find_mismatch({sums, 352}, choice, all, world.rank()), "");
    });
  }
}

TEST(Buffer, TakesNewWeightsUnlessToldThatTheyAreTheSame) {
  const Choice choice{Type::reduce_scatter, Method::ring_exchange};
  const Given all = given({.m = 6, .n = 4, .k = 4, .type = DType::f32, .ranks = 2});
  on_threads(2, [&](comm::Communicator& world) {
    const RankData local = rank_data(choice, all, world.rank());
    BufferRegistry registry(world);
    const auto object =
        registry.find(registry.create_comm_overlap_buffer(request_for(choice, all.problem)));
    OverlapCall call = local.call(choice, all);
    call.weights_version = 1;
    object->split_overlap_rs(call);
    const std::vector<std::byte> first = *local.result.bytes;
    for (std::int64_t k = 0; k < 8; ++k) put(*local.w.bytes, DType::f32, k, 0);
    object->split_overlap_rs(call);
    EXPECT_EQ(*local.result.bytes, first);
    call.weights_version = 2;
    object->split_overlap_rs(call);
    EXPECT_EQ(*local.result.bytes, std::vector<std::byte>(first.size()));
  });
}

// ---- memory

// Layers used one after another need the memory of the largest, and not that of all.
TEST(Memory, IsSharedByLayersOneAfterAnother) {
  const std::array<std::int64_t, 4> rows{16, 64, 32, 48};
  for (const Method method : {Method::pipeline, Method::ring_exchange}) {
    const Choice choice{Type::reduce_scatter, method};
    on_threads(2, [&](comm::Communicator& world) {
      BufferRegistry registry(world);
      for (const std::int64_t count : rows) {
        const Given all = given({.m = count, .n = 32, .k = 8, .type = DType::f32, .ranks = 2});
        const RankData local = rank_data(choice, all, world.rank());
        const auto id = registry.create_comm_overlap_buffer(request_for(choice, all.problem));
        registry.find(id)->split_overlap_rs(local.call(choice, all));
        EXPECT_EQ(find_mismatch(*local.result.bytes, choice, all, world.rank()), "");
      }
      // All of y and the local half of it once (pipeline: the sum) or twice (got, total).
      const auto bytes = [&](std::int64_t count) {
        return count * 32 * 4 * (method == Method::pipeline ? 3 : 4) / 2;
      };
      const run::MemoryReport report = registry.memory();
      EXPECT_EQ(report.persistent, 0);
      EXPECT_EQ(report.leased, 0);
      EXPECT_EQ(report.total(), bytes(64));
      EXPECT_EQ(report.peak, bytes(64));
      EXPECT_EQ(report.unshared(), bytes(16 + 64 + 32 + 48));
      EXPECT_THAT(to_string(report),
                  testing::HasSubstr("4 buffers: " + std::to_string(bytes(64)) + " bytes, "));
      registry.destroy_all_comm_overlap_buffers();
      EXPECT_EQ(registry.memory().total(), 0);
      EXPECT_EQ(registry.memory().peak, bytes(64));
    });
  }
}

// Every class with every scaling mode, quantized sums or not, one W or several.
TEST(ScaledClasses, AreTheProduct) {
  using kernels::ScalingMode;
  int tried = 0;
  for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
    if (supported.choice.type == Type::none) continue;
    for (const ScalingMode mode :
         {ScalingMode::delayed_tensor_scaling, ScalingMode::current_tensor_scaling,
          ScalingMode::mxfp8_1d_scaling}) {
      for (const bool quantized_comm : {true, false}) {
        for (const int groups : {0, 3}) {
          for (const DType type : {DType::bf16, DType::f32}) {
            const int ranks = 3;
            const bool is_bulk = supported.choice.method == Method::bulk;
            // In bulk every rank multiplies something as large.
            const Problem problem{.m = 29,
                                  .n = 37,
                                  .k = is_bulk ? 45 : 70,
                                  .type = type,
                                  .ranks = ranks,
                                  .chunks = 2};
            on_threads(ranks, [&](comm::Communicator& world) {
              EXPECT_EQ(find_fp8_class_mismatch(
                            world, supported.choice, problem,
                            {.mode = mode, .quantized_comm = quantized_comm, .groups = groups}),
                        "")
                  << to_string(supported.choice) << ", " << kernels::name(mode) << ", "
                  << (quantized_comm ? "codes travel, " : "") << groups << " groups, "
                  << name(type);
            });
            ++tried;
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_EQ(tried, 14 * 3 * 2 * 2 * 2);
}

}  // namespace
}  // namespace shiplap::tests
