// Invalid calls of the overlap classes, and their messages. tests/overlap compares results with a
// reference GEMM.
#include "shiplap/run/comm_overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/run/buffer_registry.h"

namespace shiplap::run {
namespace {

using overlap::Choice;
using overlap::Method;
using overlap::Type;
using testing::HasSubstr;

void on_threads(int ranks, const std::function<void(comm::Communicator&)>& work) {
  comm::run_ranks({.threads = ranks, .timeout = {20}}, work);
}

Diagnostic refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  return {};
}

BufferRequest request(const Choice& choice, std::vector<std::int64_t> shape) {
  return {.comm_type = choice.type,
          .method = choice.method,
          .buffer_shape = std::move(shape),
          .buffer_dtype = DType::f32,
          .atomic_gemm = choice.atomic};
}

Matrix matrix(std::vector<float>& numbers, std::int64_t rows, std::int64_t columns) {
  return {.data = numbers.data(), .rows = rows, .columns = columns, .type = DType::f32};
}

using Function = StepResult (CommOverlapCore::*)(const OverlapCall&);
const std::array kFunctions{
    std::pair<std::string, Function>{"bulk_overlap", &CommOverlapCore::bulk_overlap},
    std::pair<std::string, Function>{"split_overlap_ag", &CommOverlapCore::split_overlap_ag},
    std::pair<std::string, Function>{"split_overlap_rs", &CommOverlapCore::split_overlap_rs},
    std::pair<std::string, Function>{"split_overlap_ar", &CommOverlapCore::split_overlap_ar},
    std::pair<std::string, Function>{"atomic_gemm_overlap_ag",
                                     &CommOverlapCore::atomic_gemm_overlap_ag},
    std::pair<std::string, Function>{"atomic_gemm_overlap_rs",
                                     &CommOverlapCore::atomic_gemm_overlap_rs},
    std::pair<std::string, Function>{"atomic_gemm_overlap_ar",
                                     &CommOverlapCore::atomic_gemm_overlap_ar}};

// For each kind of object exactly one function accepts the call; all others throw D803.
TEST(InvalidCollectiveType, IsSaidOfEveryFunctionButOne) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    int refused = 0;
    for (const overlap::SupportedChoice& supported : overlap::supported_choices()) {
      if (supported.choice.type == Type::none) continue;
      const auto object =
          registry.find(registry.create_comm_overlap_buffer(request(supported.choice, {4, 4})));
      EXPECT_EQ(object->choice(), supported.choice);
      for (const auto& [name, function] : kFunctions) {
        const Diagnostic said = refusal([&] { (object.get()->*function)({}); });
        if (name == function_name(supported.choice)) {
          EXPECT_EQ(said.code, "D807") << to_string(supported.choice);  // nothing was given
          continue;
        }
        ++refused;
        EXPECT_EQ(said.code, "D803") << to_string(supported.choice) << ": " << name;
        EXPECT_EQ(said.what, "Invalid collective type: " + name + "() of a buffer for " +
                                 to_string(supported.choice));
        EXPECT_THAT(said.help,
                    HasSubstr("call " + function_name(supported.choice) + "(), or create a"));
      }
    }
    EXPECT_EQ(refused, 14 * 7 - 11);
  });
}

TEST(InvalidCollectiveType, SaysWhichBufferToCreate) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const Choice choice{Type::all_gather, Method::ring_exchange};
    const auto object = registry.find(registry.create_comm_overlap_buffer(request(choice, {4, 4})));
    EXPECT_EQ(refusal([&] { object->split_overlap_rs({}); }).help,
              "call split_overlap_ag(), or create a buffer with comm_type = reduce_scatter, method "
              "= pipeline or comm_type = reduce_scatter, method = ring_exchange");
    EXPECT_EQ(refusal([&] { object->atomic_gemm_overlap_ag({}); }).help,
              "call split_overlap_ag(), or create a buffer with comm_type = all_gather, method = "
              "ring_exchange, atomic_gemm = true");
  });
}

// A valid call, and how to invalidate it. Rank 1 of 2 calls alone: it must not wait for rank 0.
struct InvalidCall {
  std::string what;
  std::string code;
  std::function<void(OverlapCall&)> change;
};

void expect_refused(const BufferRequest& wanted, const OverlapCall& valid,
                    const std::vector<InvalidCall>& all) {
  on_threads(2, [&](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto object = registry.find(registry.create_comm_overlap_buffer(wanted));
    if (world.rank() == 0) return;
    for (const InvalidCall& invalid : all) {
      OverlapCall call = valid;
      invalid.change(call);
      const Diagnostic said = refusal([&] { object->multiply(call); });
      EXPECT_EQ(said.code, invalid.code);
      EXPECT_EQ(said.what, invalid.what);
      EXPECT_THAT(said.why, HasSubstr("buffer 1 ("));
      EXPECT_FALSE(said.help.empty());
      EXPECT_EQ(said.where.rank, 1);
    }
  });
}

TEST(BufferSize, IsCheckedBeforeAnythingIsSentOfGatheredRows) {
  std::vector<float> memory(64);
  // 5 rows over 2 ranks: rank 1 has 2. 7 columns: rank 1 has 3.
  const OverlapCall valid{.x = matrix(memory, 2, 4),
                          .w = matrix(memory, 4, 3),
                          .global_size = 7,
                          .result = matrix(memory, 5, 3)};
  expect_refused(
      request({Type::all_gather, Method::ring_exchange}, {5, 4}), valid,
      {{"Buffer size is incorrect: `x` is 3 x 4 f32, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.x.rows = 3; }},
       {"Buffer size is incorrect: `x` is 2 x 4 f32, and should be 4 x 2 f32", "D804",
        [](OverlapCall& call) { call.x_is_transposed = true; }},
       {"Buffer size is incorrect: `x` is 2 x 4 bf16, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.x.type = DType::bf16; }},
       {"Buffer size is incorrect: `w` is 5 x 3 f32, and should be 4 x 3 f32", "D804",
        [](OverlapCall& call) { call.w.rows = 5; }},
       {"Buffer size is incorrect: `result` is 2 x 3 f32, and should be 5 x 3 f32", "D804",
        [](OverlapCall& call) { call.result.rows = 2; }},
       {"Buffer size is incorrect: of 8 columns of w, rank 1 of 2 has 4, not 3", "D804",
        [](OverlapCall& call) { call.global_size = 8; }},
       {"Buffer size is incorrect: `bias` is 1 x 4 f32, and should be 1 x 3 f32", "D804",
        [&](OverlapCall& call) { call.bias = matrix(memory, 1, 4); }},
       {"Buffer size is incorrect: `pre_activation` is 5 x 4 f32, and should be 5 x 3 f32", "D804",
        [&](OverlapCall& call) { call.pre_activation = matrix(memory, 5, 4); }},
       {"Buffer size is incorrect: `bias` has dtype f16", "D804",
        [&](OverlapCall& call) {
          call.bias = matrix(memory, 1, 3);
          call.bias.type = DType::f16;
        }},
       {"Buffer size is incorrect: `gathered` is 4 x 4 f32, and should be 5 x 4 f32", "D804",
        [&](OverlapCall& call) { call.gathered = matrix(memory, 4, 4); }},
       {"`x` is missing", "D807", [](OverlapCall& call) { call.x = {}; }},
       {"`w` is missing", "D807", [](OverlapCall& call) { call.w.data = nullptr; }},
       {"`result` is missing", "D807", [](OverlapCall& call) { call.result = {}; }},
       {"`scattered` is unsupported here", "D807",
        [&](OverlapCall& call) { call.scattered = matrix(memory, 5, 4); }}});
}

TEST(BufferSize, IsCheckedBeforeAnythingIsSentOfSums) {
  std::vector<float> memory(64);
  const OverlapCall valid{
      .x = matrix(memory, 5, 3), .w = matrix(memory, 3, 4), .result = matrix(memory, 2, 4)};
  expect_refused(
      request({Type::reduce_scatter, Method::pipeline}, {5, 4}), valid,
      {{"Buffer size is incorrect: `x` is 4 x 3 f32, and should be 5 x 3 f32", "D804",
        [](OverlapCall& call) { call.x.rows = 4; }},
       {"Buffer size is incorrect: `w` is 3 x 5 f32, and should be 3 x 4 f32", "D804",
        [](OverlapCall& call) { call.w.columns = 5; }},
       {"Buffer size is incorrect: `result` is 5 x 4 f32, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.result.rows = 5; }},
       {"Buffer size is incorrect: of 5 columns of x, rank 1 of 2 has 2, not 3", "D804",
        [](OverlapCall& call) { call.global_size = 5; }},
       {"Buffer size is incorrect: `pre_activation` is 5 x 4 f32, and should be 2 x 4 f32", "D804",
        [&](OverlapCall& call) { call.pre_activation = matrix(memory, 5, 4); }},
       {"`gathered` is unsupported here", "D807",
        [&](OverlapCall& call) { call.gathered = matrix(memory, 5, 4); }}});
}

TEST(BufferSize, IsCheckedBeforeAnythingIsSentInBulk) {
  std::vector<float> memory(64);
  const OverlapCall valid{.x = matrix(memory, 3, 2),
                          .w = matrix(memory, 2, 4),
                          .result = matrix(memory, 3, 4),
                          .to_scatter = matrix(memory, 5, 4),
                          .scattered = matrix(memory, 2, 4)};
  expect_refused(
      request({Type::reduce_scatter, Method::bulk}, {5, 4}), valid,
      {{"Buffer size is incorrect: `w` is 3 x 4 f32, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.w.rows = 3; }},
       {"Buffer size is incorrect: `to_scatter` is 4 x 4 f32, and should be 5 x 4 f32", "D804",
        [](OverlapCall& call) { call.to_scatter.rows = 4; }},
       {"Buffer size is incorrect: `scattered` is 5 x 4 f32, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.scattered.rows = 5; }},
       {"`to_scatter` is missing", "D807", [](OverlapCall& call) { call.to_scatter = {}; }},
       {"`scattered` is missing", "D807", [](OverlapCall& call) { call.scattered = {}; }},
       {"`global_size` is unsupported here", "D807",
        [](OverlapCall& call) { call.global_size = 4; }}});
}

TEST(BufferSize, OfALastingSumIsCheckedToo) {
  std::vector<float> memory(64);
  BufferRequest lasting = request({Type::all_reduce, Method::ring_exchange}, {5, 4});
  lasting.lifetime = BufferLifetime::persistent;
  const OverlapCall valid{.x = matrix(memory, 5, 3), .w = matrix(memory, 3, 4)};
  expect_refused(lasting, valid,
                 {{"`beta` without `result`: nothing to accumulate into", "D807",
                   [](OverlapCall& call) { call.beta = 1; }},
                  {"Buffer size is incorrect: `result` is 2 x 4 f32, and should be 5 x 4 f32",
                   "D804", [&](OverlapCall& call) { call.result = matrix(memory, 2, 4); }}});
}

TEST(BufferLifetime, OnlyAPersistentBufferHasContents) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    BufferRequest wanted = request({Type::all_gather, Method::ring_exchange}, {4, 4});
    const auto passing = registry.find(registry.create_comm_overlap_buffer(wanted));
    EXPECT_EQ(refusal([&] { static_cast<void>(passing->buffer()); }).code, "D807");
    EXPECT_EQ(passing->persistent_bytes(), 0);
    wanted.lifetime = BufferLifetime::persistent;
    const auto lasting = registry.find(registry.create_comm_overlap_buffer(wanted));
    EXPECT_EQ(lasting->persistent_bytes(), 256);
    std::vector<float> memory(16, 3);
    EXPECT_EQ(refusal([&] { lasting->copy_into_buffer(matrix(memory, 3, 4)); }).code, "D804");
    lasting->copy_into_buffer(matrix(memory, 4, 4), BufferRows::all);
    EXPECT_EQ(static_cast<const float*>(lasting->buffer().data)[15], 3);
  });
}

// ---- ranks that disagree

Matrix quantized(std::vector<float>& memory, std::int64_t rows, std::int64_t columns) {
  Matrix made = matrix(memory, rows, columns);
  made.type = DType::fp8_e4m3;
  return made;
}

TEST(Scales, AreMissedAndCounted) {
  using kernels::ScalingMode;
  std::vector<float> memory(4096);
  BufferRequest wanted = request({Type::all_gather, Method::ring_exchange}, {5, 70});
  wanted.buffer_dtype = DType::fp8_e4m3;
  wanted.result_dtype = DType::f32;
  wanted.scaling_mode = ScalingMode::mxfp8_1d_scaling;
  OverlapCall valid{.x = quantized(memory, 2, 70),
                    .w = quantized(memory, 70, 3),
                    .global_size = 7,
                    .result = matrix(memory, 5, 3)};
  valid.x.scale_inv = {.data = memory.data(), .rows = 2, .columns = 3};
  valid.w.scale_inv = {.data = memory.data(), .rows = 3, .columns = 3};
  expect_refused(
      wanted, valid,
      {{"Missing inverse scaling factor: `x` is fp8_e4m3 and has no scale_inv", "D811",
        [](OverlapCall& call) { call.x.scale_inv = {}; }},
       {"Missing inverse scaling factor: `w` is fp8_e4m3 and has no scale_inv", "D811",
        [](OverlapCall& call) { call.w.scale_inv = {}; }},
       {"the scales of `x` are 2 x 2, and should be 2 x 3", "D812",
        [](OverlapCall& call) { call.x.scale_inv.columns = 2; }},
       {"the scales of `x` are 2 x 3 swizzled, and should be 128 x 4", "D812",
        [](OverlapCall& call) { call.x.scale_inv.order = kernels::ScaleOrder::swizzled; }},
       {"the scales of `w` are 1 x 1, and should be 3 x 3", "D812",
        [](OverlapCall& call) { call.w.scale_inv.rows = call.w.scale_inv.columns = 1; }},
       {"Buffer size is incorrect: `x` is 3 x 70 fp8_e4m3, and should be 2 x 70 fp8_e4m3", "D804",
        [](OverlapCall& call) { call.x.rows = 3; }},
       {"Buffer size is incorrect: `x` has dtype fp8_e5m2, but the buffer has fp8_e4m3", "D804",
        [](OverlapCall& call) { call.x.type = DType::fp8_e5m2; }},
       {"`x` has dtype f32 and a scale_inv", "D807",
        [](OverlapCall& call) { call.x.type = DType::f32; }},
       {"transposed FP8 `x` is unsupported", "D807",
        [](OverlapCall& call) {
          call.x_is_transposed = true;
          std::swap(call.x.rows, call.x.columns);
        }},
       {"group_sizes mismatch: they sum to 3, but `x` has 2 rows", "D814",
        [](OverlapCall& call) { call.group_sizes = {1, 0, 2}; }},
       {"group_sizes[0] is negative: -2", "D814",
        [](OverlapCall& call) { call.group_sizes = {-2, 4}; }}});
  wanted.scaling_mode = ScalingMode::delayed_tensor_scaling;
  valid.x.scale_inv.rows = valid.x.scale_inv.columns = 1;
  valid.w.scale_inv = valid.x.scale_inv;
  expect_refused(
      wanted, valid,
      {{"`x` is in high precision, but delayed scaling needs a scale from earlier steps", "D807",
        [](OverlapCall& call) {
          call.x.type = DType::f32;
          call.x.scale_inv = {};
        }},
       {"the scales of `w` are 2 x 1, and should be 1 x 1", "D812",
        [](OverlapCall& call) { call.w.scale_inv.rows = 2; }}});
  const BufferRequest plain = request({Type::reduce_scatter, Method::ring_exchange}, {5, 4});
  OverlapCall summed{.x = matrix(memory, 5, 3),
                     .w = matrix(memory, 3, 4),
                     .global_size = 6,
                     .result = matrix(memory, 2, 4)};
  expect_refused(plain, summed,
                 {{"`x` has dtype fp8_e4m3, but its buffer has no_scaling", "D813",
                   [](OverlapCall& call) { call.x.type = DType::fp8_e4m3; }},
                  {"a bias with groups is unsupported for reduce_scatter and all_reduce", "D807",
                   [&](OverlapCall& call) {
                     call.group_sizes = {2, 3};
                     call.w = matrix(memory, 6, 4);
                     call.bias = matrix(memory, 2, 4);
                   }}});
}

TEST(Scales, OfABufferFitItsType) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto refused = [&](const std::function<void(BufferRequest&)>& change) {
      BufferRequest wanted = request({Type::all_reduce, Method::ring_exchange}, {5, 4});
      wanted.buffer_dtype = DType::fp8_e5m2;
      wanted.scaling_mode = kernels::ScalingMode::current_tensor_scaling;
      change(wanted);
      const Diagnostic said = refusal([&] { registry.create_comm_overlap_buffer(wanted); });
      return said.code + ": " + said.what;
    };
    EXPECT_EQ(refused([](BufferRequest& wanted) {
                wanted.scaling_mode = kernels::ScalingMode::no_scaling;
              }),
              "D813: no_scaling is unsupported for a buffer of fp8_e5m2");
    EXPECT_EQ(refused([](BufferRequest& wanted) { wanted.lifetime = BufferLifetime::persistent; }),
              "D813: a persistent FP8 buffer is unsupported");
    EXPECT_EQ(refused([](BufferRequest& wanted) { wanted.result_dtype = DType::f16; }),
              "D813: f16 results are unsupported for an FP8 buffer");
    EXPECT_EQ(refused([](BufferRequest& wanted) { wanted.result_dtype = DType::i32; }),
              "D802: GEMM of i32 is unsupported");
  });
}

TEST(Ranks, ThatMeetWithDifferentBuffersAreToldSo) {
  on_threads(2, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const Choice choice{Type::all_gather, Method::ring_exchange};
    const auto first = registry.create_comm_overlap_buffer(request(choice, {4, 4}));
    const auto second = registry.create_comm_overlap_buffer(request(choice, {4, 8}));
    const Diagnostic said =
        refusal([&] { registry.find(world.rank() == 0 ? first : second)->connect(); });
    EXPECT_EQ(said.code, "D808");
    EXPECT_THAT(said.why, HasSubstr("rank 0: buffer 1 (all_gather, ring_exchange: 4 x 4 f32)"));
    EXPECT_THAT(said.why, HasSubstr("rank 1: buffer 2 (all_gather, ring_exchange: 4 x 8 f32)"));
    registry.find(second)->connect();  // nothing is lost
    registry.find(second)->connect();
  });
}

TEST(Ranks, ThatMultiplyDifferentSizesAreToldSo) {
  on_threads(2, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto object = registry.find(registry.create_comm_overlap_buffer(
        request({Type::all_gather, Method::ring_exchange}, {4, 4})));
    std::vector<float> memory(64);
    const int columns = world.rank() == 0 ? 3 : 2;
    OverlapCall call{.x = matrix(memory, 2, 4),
                     .w = matrix(memory, 4, columns),
                     .result = matrix(memory, 4, columns)};
    const Diagnostic said = refusal([&] { object->split_overlap_ag(call); });
    EXPECT_EQ(said.code, "D808");
    EXPECT_THAT(said.why,
                HasSubstr("rank 0: 4 x 4 f32 by 4 x 6 f32; rank 1: 4 x 4 f32 by 4 x 4 f32"));
    call.global_size = 5;
    object->split_overlap_ag(call);
  });
}

// If a rank does not call, the other times out, and its memory is leaked: a transport may still
// write there.
TEST(Ranks, ThatDoNotComeAreMissed) {
  comm::run_ranks({.threads = 2, .timeout = {0.3}}, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto object = registry.find(registry.create_comm_overlap_buffer(
        request({Type::reduce_scatter, Method::ring_exchange}, {4, 4})));
    std::vector<float> memory(64);
    const OverlapCall call{
        .x = matrix(memory, 4, 3), .w = matrix(memory, 3, 4), .result = matrix(memory, 2, 4)};
    object->split_overlap_rs(call);
    EXPECT_EQ(registry.memory().leased, 0);
    if (world.rank() == 1) return;
    EXPECT_THROW(object->split_overlap_rs(call), comm::Failure);
    EXPECT_GT(registry.memory().leased, 0);
    EXPECT_THROW(object->split_overlap_rs(call), comm::CommunicatorDead);
  });
}

// In a chain of waiting ranks, all report the rank that failed first, not their direct peer.
TEST(Ranks, ThatHearOfAFailureFromOthersNameWhoFailed) {
  for (const Progress progress : {Progress::threads, Progress::polled}) {
    on_threads(4, [&](comm::Communicator& world) {
      BufferRegistry registry(world, {.progress = progress});
      const auto object = registry.find(registry.create_comm_overlap_buffer(
          request({Type::all_gather, Method::ring_exchange}, {8, 3})));
      std::vector<float> memory(64);
      const OverlapCall call{
          .x = matrix(memory, 2, 3), .w = matrix(memory, 3, 4), .result = matrix(memory, 8, 4)};
      // A slow rank may be notified during the first call.
      try {
        object->split_overlap_ag(call);
        if (world.rank() == 2) return world.abort("planted");
        object->split_overlap_ag(call);
        ADD_FAILURE() << "rank " << world.rank() << " went on";
      } catch (const comm::RankFailed& error) {
        EXPECT_EQ(error.rank(), 2) << "by rank " << world.rank() << ": " << error.what();
        EXPECT_THAT(error.what(), HasSubstr("planted"));
      }
    });
  }
}

// With traces, a call returns its events, and gather_steps() returns those of all ranks.
TEST(Ranks, SayWhatACallDid) {
  on_threads(2, [](comm::Communicator& world) {
    BufferRegistry silent(world);
    BufferRegistry traced(world, {.traces = true});
    std::vector<float> memory(64);
    const OverlapCall call{
        .x = matrix(memory, 2, 3), .w = matrix(memory, 3, 4), .result = matrix(memory, 4, 4)};
    const BufferRequest wanted = request({Type::all_gather, Method::ring_exchange}, {4, 3});
    const auto run = [&](BufferRegistry& registry) {
      return registry.find(registry.create_comm_overlap_buffer(wanted))->multiply(call);
    };
    EXPECT_TRUE(run(silent).trace.events.empty());
    const StepResult local = run(traced);
    const std::vector<StepResult> all = gather_steps(world, local);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[world.rank()].trace, local.trace);
    EXPECT_EQ(all[world.rank()].duration, local.duration);
    for (const StepResult& rank : all) {
      const auto sends =
          std::ranges::count(rank.trace.events, trace::EventKind::send, &trace::Event::kind);
      EXPECT_EQ(sends, 1);
    }
  });
}

// A collective may write directly into a result that has an owner, which is leaked if the call
// fails. Memory without an owner is not passed to a transport.
TEST(Ranks, ThatFailKeepTheOwnerOfAResult) {
  std::weak_ptr<void> watched;
  comm::run_ranks({.threads = 2, .timeout = {0.3}}, [&](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto object = registry.find(registry.create_comm_overlap_buffer(
        request({Type::reduce_scatter, Method::pipeline}, {4, 4})));
    std::vector<float> memory(64);
    const auto result = std::make_shared<std::vector<float>>(8);
    OverlapCall call{
        .x = matrix(memory, 4, 3), .w = matrix(memory, 3, 4), .result = matrix(*result, 2, 4)};
    call.result.owner = result;
    object->split_overlap_rs(call);
    call.result.owner = nullptr;
    EXPECT_EQ(result.use_count(), 1);  // a successful call does not keep it
    if (world.rank() == 1) return;
    call.result.owner = result;
    watched = result;
    EXPECT_THROW(object->split_overlap_rs(call), comm::Failure);
  });
  EXPECT_FALSE(watched.expired());
}

}  // namespace
}  // namespace shiplap::run
