// The classes of overlap on threads, against the same product in one process.
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
using run::BufferRegistry;
using run::Contents;
using run::OverlapCall;

std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    if (legal.choice.type != Type::none) all.push_back(legal.choice);
  }
  return all;
}

// A product beside a bulk transfer is the same size on all ranks.
Given given_for(const Choice& choice, Problem problem) {
  if (choice.method == Method::bulk) problem.depth *= problem.ranks;
  return given(problem);
}

class EveryClass : public testing::TestWithParam<int> {};

TEST_P(EveryClass, GivesTheProduct) {
  const int ranks = GetParam();
  for (const Choice& choice : choices()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const auto& [rows, columns, depth, chunks, cut] :
           {std::tuple(1, 9, 8, 1, overlap::Cut::even),
            std::tuple(29, 11, 23, 3, overlap::Cut::tapered)}) {
        const Given all = given_for(choice, {.rows = rows,
                                             .columns = columns,
                                             .depth = depth,
                                             .type = type,
                                             .ranks = ranks,
                                             .chunks = chunks,
                                             .cut = cut});
        on_threads(ranks, [&](comm::Communicator& world) {
          EXPECT_EQ(wrong_class(world, choice, all), "")
              << to_string(choice) << ", " << rows << " x " << depth << " by " << columns;
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
  Held bias;
  Held before;
  Held old;
};

Extras add_extras(OverlapCall& call, Deal& own) {
  const Held& result = own.result;
  Extras made{.bias = held(1, result.columns, DType::f32),
              .before = held(result.rows, result.columns, DType::f32),
              .old = held(result.rows, result.columns, result.type)};
  for (std::int64_t k = 0; k < result.columns; ++k) {
    put(*made.bias.bytes, DType::f32, k, 0.25 * static_cast<double>(k % 5) - 0.5);
  }
  for (std::int64_t k = 0; k < result.rows * result.columns; ++k) {
    put(*made.old.bytes, result.type, k, static_cast<double>(k % 7) - 3);
  }
  *own.result.bytes = *made.old.bytes;
  call.alpha = 0.5F;
  call.beta = 2;
  call.bias = made.bias.matrix();
  call.before_activation = made.before.matrix();
  call.activation = kernels::Activation::gelu_tanh;
  return made;
}

void expect_finished(const Choice& choice, const Given& all, int rank, const Deal& own,
                     const Extras& extras) {
  const Wanted want = wanted(choice, all.problem, rank);
  const double unit = all.problem.type == DType::bf16 ? 0x1p-8 : 0x1p-22;
  for (std::int64_t i = 0; i < want.cut.rows; ++i) {
    for (std::int64_t j = 0; j < want.cut.columns; ++j) {
      const std::int64_t k = i * want.cut.columns + j;
      const Truth sum = truth(all, want, want.cut.row + i, want.cut.column + j);
      const double before = 0.5 * sum.right + 2 * get(*extras.old.bytes, all.problem.type, k) +
                            get(*extras.bias.bytes, DType::f32, j);
      const double most = 0.5 * sum.most + 1e-6 * (1 + std::abs(before));
      ASSERT_NEAR(get(*extras.before.bytes, DType::f32, k), before, most);
      ASSERT_NEAR(get(*own.result.bytes, all.problem.type, k), gelu(before),
                  1.13 * most + unit * std::abs(gelu(before)) + 1e-5)
          << to_string(choice);
    }
  }
}

TEST(Epilogue, ComesOnceAfterTheSum) {
  for (const Choice& choice : choices()) {
    for (const DType type : {DType::f32, DType::bf16}) {
      // Of more columns than rows are deep, and the other way round.
      for (const auto& [columns, depth] : {std::pair{19, 8}, std::pair{7, 30}}) {
        const Given all = given_for(choice, {.rows = 13,
                                             .columns = columns,
                                             .depth = depth,
                                             .type = type,
                                             .ranks = 3,
                                             .chunks = 2});
        on_threads(3, [&](comm::Communicator& world) {
          Deal own = deal(choice, all, world.rank());
          OverlapCall call = own.call(choice, all);
          const Extras extras = add_extras(call, own);
          BufferRegistry registry(world);
          const auto id = registry.create_comm_overlap_buffer(request_for(choice, all.problem));
          registry.find(id)->multiply(call);
          expect_finished(choice, all, world.rank(), own, extras);
        });
      }
    }
  }
}

// ---- what lies in the buffer

TEST(Buffer, HoldsWhatIsGatheredBetweenCalls) {
  const Choice choice{Type::all_gather, Method::ring_exchange};
  const Given all =
      given({.rows = 11, .columns = 8, .depth = 6, .type = DType::f32, .ranks = 3, .chunks = 2});
  on_threads(3, [&](comm::Communicator& world) {
    const Deal own = deal(choice, all, world.rank());
    BufferRegistry registry(world);
    run::BufferRequest request = request_for(choice, all.problem);
    request.contents = Contents::between_calls;
    const auto object = registry.find(registry.create_comm_overlap_buffer(request));
    object->copy_into_buffer(own.x.matrix());
    const Held gathered = held(11, 6, DType::f32);
    OverlapCall call = own.call(choice, all);
    call.x = {};
    call.gathered = gathered.matrix();
    object->split_overlap_ag(call);
    EXPECT_EQ(wrong_number(*own.result.bytes, choice, all, world.rank()), "");
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
    const Given all = given({.rows = 11, .columns = 8, .depth = 6, .type = DType::f32, .ranks = 3});
    on_threads(3, [&](comm::Communicator& world) {
      const Deal own = deal(choice, all, world.rank());
      BufferRegistry registry(world);
      run::BufferRequest request = request_for(choice, all.problem);
      request.contents = Contents::between_calls;
      const auto object = registry.find(registry.create_comm_overlap_buffer(request));
      OverlapCall call = own.call(choice, all);
      call.result = {};
      object->split_overlap_ar(call);
      const auto* const sums = static_cast<const std::byte*>(object->buffer().data);
      EXPECT_EQ(wrong_number({sums, 352}, choice, all, world.rank()), "");
    });
  }
}

TEST(Buffer, TakesNewWeightsUnlessToldThatTheyAreTheSame) {
  const Choice choice{Type::reduce_scatter, Method::ring_exchange};
  const Given all = given({.rows = 6, .columns = 4, .depth = 4, .type = DType::f32, .ranks = 2});
  on_threads(2, [&](comm::Communicator& world) {
    const Deal own = deal(choice, all, world.rank());
    BufferRegistry registry(world);
    const auto object =
        registry.find(registry.create_comm_overlap_buffer(request_for(choice, all.problem)));
    OverlapCall call = own.call(choice, all);
    call.weights_version = 1;
    object->split_overlap_rs(call);
    const std::vector<std::byte> first = *own.result.bytes;
    for (std::int64_t k = 0; k < 8; ++k) put(*own.w.bytes, DType::f32, k, 0);
    object->split_overlap_rs(call);
    EXPECT_EQ(*own.result.bytes, first);
    call.weights_version = 2;
    object->split_overlap_rs(call);
    EXPECT_EQ(*own.result.bytes, std::vector<std::byte>(first.size()));
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
        const Given all =
            given({.rows = count, .columns = 32, .depth = 8, .type = DType::f32, .ranks = 2});
        const Deal own = deal(choice, all, world.rank());
        const auto id = registry.create_comm_overlap_buffer(request_for(choice, all.problem));
        registry.find(id)->split_overlap_rs(own.call(choice, all));
        EXPECT_EQ(wrong_number(*own.result.bytes, choice, all, world.rank()), "");
      }
      // All of y and the own half of it once (pipeline: the sum) or twice (got, total).
      const auto bytes = [&](std::int64_t count) {
        return count * 32 * 4 * (method == Method::pipeline ? 3 : 4) / 2;
      };
      const run::MemoryReport report = registry.memory();
      EXPECT_EQ(report.own, 0);
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

// Every class with every scaling mode, coded sums or plain ones, one W or several.
TEST(ScaledClasses, AreTheProduct) {
  using kernels::ScalingMode;
  int tried = 0;
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    if (legal.choice.type == Type::none) continue;
    for (const ScalingMode mode :
         {ScalingMode::delayed_tensor_scaling, ScalingMode::current_tensor_scaling,
          ScalingMode::mxfp8_1d_scaling}) {
      for (const bool codes_travel : {true, false}) {
        for (const int groups : {0, 3}) {
          for (const DType type : {DType::bf16, DType::f32}) {
            const int ranks = 3;
            const bool is_bulk = legal.choice.method == Method::bulk;
            // In bulk every rank multiplies something as large.
            const Problem problem{.rows = 29,
                                  .columns = 37,
                                  .depth = is_bulk ? 45 : 70,
                                  .type = type,
                                  .ranks = ranks,
                                  .chunks = 2};
            on_threads(ranks, [&](comm::Communicator& world) {
              EXPECT_EQ(wrong_scaled_class(
                            world, legal.choice, problem,
                            {.mode = mode, .codes_travel = codes_travel, .groups = groups}),
                        "")
                  << to_string(legal.choice) << ", " << kernels::name(mode) << ", "
                  << (codes_travel ? "codes travel, " : "") << groups << " groups, " << name(type);
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
