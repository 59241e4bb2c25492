// What docs/overlap shows and examples/overlapped_layer.cc does not have: it compiles, and does
// what the pages say.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/hardware/system.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/kernels/quantize.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/run/buffer_registry.h"
#include "shiplap/run/overlapped_gemm.h"

namespace shiplap {
namespace {

using comm::Communicator;
using kernels::Bf16;
using overlap::Method;
using overlap::Type;
using run::BufferRegistry;

void on_two_ranks(const std::function<void(Communicator&)>& work) {
  comm::run_ranks({.threads = 2}, work);
}

std::size_t index(std::int64_t k) { return static_cast<std::size_t>(k); }

// A matrix of bf16 that are all the same.
struct Size {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
std::vector<Bf16> numbers(Size size, float each) {
  return {index(size.rows * size.columns), kernels::to_bf16(each)};
}

void expect_all(const std::vector<Bf16>& found, float right) {
  for (const Bf16 each : found) ASSERT_EQ(kernels::to_float(each), right);
}

TEST(Classes, AreCreatedCalledAndDestroyed) {
  on_two_ranks([](Communicator& world) {
    std::vector<Bf16> x_numbers = numbers({32, 16}, 1);
    std::vector<Bf16> w_numbers = numbers({64, 16}, 0.5F);
    std::vector<Bf16> b_numbers = numbers({1, 64}, 3);
    std::vector<Bf16> y_numbers = numbers({16, 64}, 0);
    void* const x = x_numbers.data();
    void* const w = w_numbers.data();
    void* const b = b_numbers.data();
    void* const y = y_numbers.data();

    BufferRegistry registry(world);
    const std::int64_t id =
        registry.create_comm_overlap_buffer({.comm_type = Type::reduce_scatter,
                                             .method = Method::ring_exchange,
                                             .buffer_shape = {4, 8, 64},  // of all ranks
                                             .buffer_dtype = DType::bf16,
                                             .chunks = 2});
    registry.find(id)->split_overlap_rs({.x = {x, 32, 16},  // rows x columns, of this rank
                                         .w = {w, 64, 16},
                                         .w_is_transposed = true,  // as a Linear of PyTorch has it
                                         .result = {y, 16, 64},
                                         .bias = {b, 1, 64}});
    registry.destroy_comm_overlap_buffer(id);
    expect_all(y_numbers, 2 * 16 * 0.5F + 3);
  });
}

TEST(Classes, LeaveRowsInABufferThatLasts) {
  on_two_ranks([](Communicator& world) {
    std::vector<Bf16> rows = numbers({8, 16}, 1);
    std::vector<Bf16> weights = numbers({16, 4}, 1);
    std::vector<Bf16> y = numbers({16, 4}, 0);
    const run::Matrix source{.data = rows.data(), .rows = 8, .columns = 16};
    const run::Matrix w{.data = weights.data(), .rows = 16, .columns = 4};
    const run::Matrix result{.data = y.data(), .rows = 16, .columns = 4};

    BufferRegistry registry(world);
    const auto gather = registry.find(
        registry.create_comm_overlap_buffer({.comm_type = Type::all_gather,
                                             .method = Method::ring_exchange,
                                             .buffer_shape = {16, 16},
                                             .lifetime = run::BufferLifetime::persistent}));
    gather->copy_into_buffer(source);  // local rows
    gather->split_overlap_ag({.w = w, .result = result});
    const run::Matrix all = gather->buffer();  // now the rows of all ranks

    expect_all(y, 16);
    EXPECT_EQ(all.rows, 16);
    const Bf16* const gathered = static_cast<const Bf16*>(all.data);
    EXPECT_EQ(kernels::to_float(gathered[16 * 16 - 1]), 1);
  });
}

TEST(Classes, AreCalledByThreadsInAnyOrderOnceTheyAreConnected) {
  on_two_ranks([](Communicator& world) {
    constexpr std::size_t kLayers = 3;
    BufferRegistry registry(world);
    std::vector<std::shared_ptr<run::CommOverlapCore>> layers;
    for (std::size_t k = 0; k < kLayers; ++k) {
      layers.push_back(
          registry.find(registry.create_comm_overlap_buffer({.comm_type = Type::all_reduce,
                                                             .method = Method::ring_exchange,
                                                             .buffer_shape = {8, 4}})));
      layers.back()->connect();  // all ranks, in this order
    }
    std::vector<std::vector<Bf16>> results(kLayers, numbers({8, 4}, 0));
    const auto call = [&](std::size_t k) {
      std::vector<Bf16> x = numbers({8, 2}, 1);
      std::vector<Bf16> w = numbers({2, 4}, static_cast<float>(k));
      layers[k]->split_overlap_ar(
          {.x = {x.data(), 8, 2}, .w = {w.data(), 2, 4}, .result = {results[k].data(), 8, 4}});
    };
    std::vector<std::jthread> threads;
    for (std::size_t k = 0; k < kLayers; ++k) {
      // Another order on every rank.
      const std::size_t which = world.rank() == 0 ? k : kLayers - 1 - k;
      threads.emplace_back([&call, which] { call(which); });
    }
    threads.clear();
    for (std::size_t k = 0; k < kLayers; ++k) expect_all(results[k], static_cast<float>(4 * k));
  });
}

TEST(Classes, RefuseOnTheRankThatIsWrong) {
  on_two_ranks([](Communicator& world) {
    BufferRegistry registry(world);
    const auto gather = registry.find(registry.create_comm_overlap_buffer(
        {.comm_type = Type::all_gather, .method = Method::ring_exchange, .buffer_shape = {16, 4}}));
    std::vector<Bf16> x = numbers({9, 4}, 1);
    std::vector<Bf16> w = numbers({4, 4}, 1);
    std::vector<Bf16> y = numbers({16, 4}, 1);
    const run::OverlapCall call{.x = {x.data(), 9, 4},  // a row too many
                                .w = {w.data(), 4, 4},
                                .result = {y.data(), 16, 4}};
    std::string code;
    try {
      gather->split_overlap_ag(call);
    } catch (const InputError& error) {  // nothing was sent; this rank can fix it and call again
      code = error.diagnostics().front().code;
    } catch (const comm::Failure& failure) {  // the others are gone, or late: the buffer is dead
      code = failure.diagnostic().code;
    }
    EXPECT_EQ(code, "D804");
  });
}

TEST(Products, AreRunFromThePlan) {
  on_two_ranks([](Communicator& world) {
    const overlap::Problem problem{.m = 9, .n = 6, .k = 5, .ranks = 2, .chunks = 2};
    run::OverlappedGemm product({Type::all_gather, Method::ring_exchange}, problem, world);
    const auto fill = [](std::span<std::byte> bytes) {
      const Bf16 one = kernels::to_bf16(1);
      for (std::size_t k = 0; k < bytes.size(); k += sizeof(one)) {
        std::memcpy(bytes.data() + k, &one, sizeof(one));
      }
    };
    fill(product.buffer("x"));
    fill(product.buffer("w"));
    product.prepare();  // the weights are packed once, and used for all chunks
    product.run();      // as often as there are new rows
    Bf16 found;
    std::memcpy(&found, product.buffer("y").data(), sizeof(found));
    EXPECT_EQ(kernels::to_float(found), 5);
  });
}

TEST(Scaling, TensorsHaveAScaleThatIsFoundStepByStep) {
  on_two_ranks([](Communicator& world) {
    std::vector<float> rows(256, 0.25F);
    std::vector<std::byte> codes(rows.size());
    std::vector<std::byte> w_codes(512);
    std::vector<float> y(256);
    float x_inverse = 0;
    float w_inverse = 0;
    const auto put_scale = [](float& inverse) {
      return std::as_writable_bytes(std::span(&inverse, 1)).data();
    };
    const std::vector<float> weights(512, 2);
    const kernels::ConstMatrixView wide_w{.data = weights.data(), .rows = 16, .columns = 32};
    kernels::quantize(wide_w, kernels::current_scale(2, DType::fp8_e4m3),
                      {.data = w_codes.data(),
                       .type = DType::fp8_e4m3,
                       .rows = 16,
                       .columns = 32,
                       .scales = put_scale(w_inverse)});

    BufferRegistry registry(world);
    const auto gather = registry.find(registry.create_comm_overlap_buffer(
        {.comm_type = Type::all_gather,
         .method = Method::ring_exchange,
         .buffer_shape = {16, 32},
         .buffer_dtype = DType::fp8_e4m3,
         .scaling_mode = kernels::ScalingMode::delayed_tensor_scaling,
         .result_dtype = DType::f32}));

    kernels::AmaxHistory history({.format = DType::fp8_e4m3, .length = 16});
    for (int step = 0; step < 3; ++step) {
      const kernels::ConstMatrixView x{.data = rows.data(), .rows = 8, .columns = 32};
      kernels::quantize(x, history.scale(),  // from the steps before
                        {.data = codes.data(),
                         .type = DType::fp8_e4m3,
                         .rows = 8,
                         .columns = 32,
                         .scales = put_scale(x_inverse)});
      gather->split_overlap_ag({.x = {.data = codes.data(),
                                      .rows = 8,
                                      .columns = 32,
                                      .type = DType::fp8_e4m3,
                                      .scale_inv = {&x_inverse}},
                                .w = {.data = w_codes.data(),
                                      .rows = 16,
                                      .columns = 32,
                                      .type = DType::fp8_e4m3,
                                      .scale_inv = {&w_inverse}},
                                .w_is_transposed = true,
                                .result = {y.data(), 16, 16, DType::f32}});
      history.record(kernels::compute_amax(x));
      history.update();
    }
    EXPECT_EQ(history.scale(), 448 / 0.25F);
    for (const float each : y) ASSERT_NEAR(each, 32 * 0.25F * 2, 1e-5);
  });
}

TEST(Scaling, ScalesMayBeSwizzled) {
  const kernels::MatrixShape plain = kernels::mx_scale_shape(200, 100, kernels::ScaleOrder::plain);
  const kernels::MatrixShape tiles =
      kernels::mx_scale_shape(200, 100, kernels::ScaleOrder::swizzled);
  EXPECT_EQ(plain, (kernels::MatrixShape{200, 4}));  // 100 numbers are 4 blocks, the last of 4
  EXPECT_EQ(tiles, (kernels::MatrixShape{256, 4}));
  std::vector<std::byte> scales(index(plain.count()), std::byte{127});
  std::vector<std::byte> swizzled(index(tiles.count()));
  kernels::swizzle(plain, scales, swizzled);
  EXPECT_EQ(std::ranges::count(swizzled, std::byte{127}), 800);
}

TEST(Groups, AreMultipliedAlone) {
  constexpr std::int64_t kK = 8;
  constexpr std::int64_t kN = 4;
  std::vector<std::vector<Bf16>> each{numbers({kK, kN}, 1), numbers({kK, kN}, 2),
                                      numbers({kK, kN}, 3)};
  std::vector<Bf16> x = numbers({5, kK}, 1);
  std::vector<Bf16> y = numbers({5, kN}, 0);

  kernels::LinearKernel experts({.groups = 3, .n = kN, .k = kK, .type = DType::bf16});
  std::vector<kernels::MatrixView> weights;
  for (auto& numbers_of_one : each) weights.push_back({numbers_of_one.data(), DType::bf16});
  experts.prepare(weights);  // one for each group
  const std::array runs{kernels::GroupRows{.group = 0, .rows = 2},
                        kernels::GroupRows{.group = 2, .rows = 3}};
  experts.multiply({.data = x.data(), .type = DType::bf16, .rows = 5},
                   {.data = y.data(), .type = DType::bf16}, {}, runs);

  EXPECT_EQ(kernels::to_float(y.front()), 8);
  EXPECT_EQ(kernels::to_float(y.back()), 24);
}

TEST(Groups, AreMultipliedWhileRowsTravel) {
  on_two_ranks([](Communicator& world) {
    // Two experts; rank 0 has 3 rows of the first and none of the second, rank 1 one and two.
    const std::vector<std::int64_t> sizes =
        world.rank() == 0 ? std::vector<std::int64_t>{3, 0} : std::vector<std::int64_t>{1, 2};
    std::vector<Bf16> x = numbers({3, 8}, 1);
    std::vector<Bf16> w = numbers({8, 8}, 1);
    std::fill(w.begin() + 32, w.end(), kernels::to_bf16(2));
    std::vector<Bf16> y = numbers({6, 4}, 0);

    BufferRegistry registry(world);
    const auto gather = registry.find(registry.create_comm_overlap_buffer(
        {.comm_type = Type::all_gather, .method = Method::ring_exchange, .buffer_shape = {6, 8}}));
    gather->split_overlap_ag({.x = {x.data(), 3, 8},  // sorted by expert
                              .w = {w.data(), 8, 8},  // of one expert after another: 4 columns each
                              .w_is_transposed = true,
                              .group_sizes = sizes,
                              .result = {y.data(), 6, 4}});

    EXPECT_EQ(kernels::to_float(y[12]), 8);   // row 3, the first of rank 1: expert 0
    EXPECT_EQ(kernels::to_float(y[16]), 16);  // row 4: expert 1
  });
}

TEST(Choices, AreMadeForAMachine) {
  const overlap::Problem problem{.m = 8192, .n = 28672, .k = 8192, .ranks = 4};
  const overlap::Machine machine =
      machine_of(hardware::find_system("h100_80g_nvl8"), Type::all_gather, problem);
  const overlap::Chosen chosen = choose(Type::all_gather, problem, machine);
  const plan::Plan plan = make_plan(chosen.choice, chosen.problem);
  EXPECT_TRUE(chosen.overlaps());
  EXPECT_EQ(plan.programs.size(), 1);
  EXPECT_NE(chosen.why.find("instead of"), std::string::npos) << chosen.why;
}

}  // namespace
}  // namespace shiplap
