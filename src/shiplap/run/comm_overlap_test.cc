// What the classes of overlap refuse, and what they say. What they compute is held against the
// product in tests/overlap.
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

// Every function of every kind of object: one of them looks at the call, and all others refuse it.
TEST(InvalidCollectiveType, IsSaidOfEveryFunctionButOne) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    int refused = 0;
    for (const overlap::Legal& legal : overlap::legal_choices()) {
      if (legal.choice.type == Type::none) continue;
      const auto object =
          registry.find(registry.create_comm_overlap_buffer(request(legal.choice, {4, 4})));
      EXPECT_EQ(object->choice(), legal.choice);
      for (const auto& [name, function] : kFunctions) {
        const Diagnostic said = refusal([&] { (object.get()->*function)({}); });
        if (name == function_of(legal.choice)) {
          EXPECT_EQ(said.code, "D807") << to_string(legal.choice);  // nothing was given
          continue;
        }
        ++refused;
        EXPECT_EQ(said.code, "D803") << to_string(legal.choice) << ": " << name;
        EXPECT_EQ(said.what, "Invalid collective type: " + name + "() of a buffer for " +
                                 to_string(legal.choice));
        EXPECT_THAT(said.help, HasSubstr("call " + function_of(legal.choice) + "(), or create a"));
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

// A call that would be sound, and how to spoil it. Rank 1 of 2 calls alone: it must not wait for
// rank 0.
struct Spoiled {
  std::string what;
  std::string code;
  std::function<void(OverlapCall&)> spoil;
};

void expect_refused(const BufferRequest& wanted, const OverlapCall& sound,
                    const std::vector<Spoiled>& all) {
  on_threads(2, [&](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto object = registry.find(registry.create_comm_overlap_buffer(wanted));
    if (world.rank() == 0) return;
    for (const Spoiled& spoiled : all) {
      OverlapCall call = sound;
      spoiled.spoil(call);
      const Diagnostic said = refusal([&] { object->multiply(call); });
      EXPECT_EQ(said.code, spoiled.code);
      EXPECT_EQ(said.what, spoiled.what);
      EXPECT_THAT(said.why, HasSubstr("buffer 1 ("));
      EXPECT_FALSE(said.help.empty());
      EXPECT_EQ(said.where.rank, 1);
    }
  });
}

TEST(BufferSize, IsCheckedBeforeAnythingIsSentOfGatheredRows) {
  std::vector<float> memory(64);
  // 5 rows over 2 ranks: rank 1 has 2. 7 columns: rank 1 has 3.
  const OverlapCall sound{.x = matrix(memory, 2, 4),
                          .w = matrix(memory, 4, 3),
                          .size_of_all = 7,
                          .result = matrix(memory, 5, 3)};
  expect_refused(
      request({Type::all_gather, Method::ring_exchange}, {5, 4}), sound,
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
        [](OverlapCall& call) { call.size_of_all = 8; }},
       {"Buffer size is incorrect: `bias` is 1 x 4 f32, and should be 1 x 3 f32", "D804",
        [&](OverlapCall& call) { call.bias = matrix(memory, 1, 4); }},
       {"Buffer size is incorrect: `before_activation` is 5 x 4 f32, and should be 5 x 3 f32",
        "D804", [&](OverlapCall& call) { call.before_activation = matrix(memory, 5, 4); }},
       {"Buffer size is incorrect: `bias` is of f16", "D804",
        [&](OverlapCall& call) {
          call.bias = matrix(memory, 1, 3);
          call.bias.type = DType::f16;
        }},
       {"Buffer size is incorrect: `gathered` is 4 x 4 f32, and should be 5 x 4 f32", "D804",
        [&](OverlapCall& call) { call.gathered = matrix(memory, 4, 4); }},
       {"`x` is not given", "D807", [](OverlapCall& call) { call.x = {}; }},
       {"`w` is not given", "D807", [](OverlapCall& call) { call.w.data = nullptr; }},
       {"`result` is not given", "D807", [](OverlapCall& call) { call.result = {}; }},
       {"`scattered` has no meaning here", "D807",
        [&](OverlapCall& call) { call.scattered = matrix(memory, 5, 4); }}});
}

TEST(BufferSize, IsCheckedBeforeAnythingIsSentOfSums) {
  std::vector<float> memory(64);
  const OverlapCall sound{
      .x = matrix(memory, 5, 3), .w = matrix(memory, 3, 4), .result = matrix(memory, 2, 4)};
  expect_refused(
      request({Type::reduce_scatter, Method::pipeline}, {5, 4}), sound,
      {{"Buffer size is incorrect: `x` is 4 x 3 f32, and should be 5 x 3 f32", "D804",
        [](OverlapCall& call) { call.x.rows = 4; }},
       {"Buffer size is incorrect: `w` is 3 x 5 f32, and should be 3 x 4 f32", "D804",
        [](OverlapCall& call) { call.w.columns = 5; }},
       {"Buffer size is incorrect: `result` is 5 x 4 f32, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.result.rows = 5; }},
       {"Buffer size is incorrect: of 5 columns of x, rank 1 of 2 has 2, not 3", "D804",
        [](OverlapCall& call) { call.size_of_all = 5; }},
       {"Buffer size is incorrect: `before_activation` is 5 x 4 f32, and should be 2 x 4 f32",
        "D804", [&](OverlapCall& call) { call.before_activation = matrix(memory, 5, 4); }},
       {"`gathered` has no meaning here", "D807",
        [&](OverlapCall& call) { call.gathered = matrix(memory, 5, 4); }}});
}

TEST(BufferSize, IsCheckedBeforeAnythingIsSentInBulk) {
  std::vector<float> memory(64);
  const OverlapCall sound{.x = matrix(memory, 3, 2),
                          .w = matrix(memory, 2, 4),
                          .result = matrix(memory, 3, 4),
                          .to_scatter = matrix(memory, 5, 4),
                          .scattered = matrix(memory, 2, 4)};
  expect_refused(
      request({Type::reduce_scatter, Method::bulk}, {5, 4}), sound,
      {{"Buffer size is incorrect: `w` is 3 x 4 f32, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.w.rows = 3; }},
       {"Buffer size is incorrect: `to_scatter` is 4 x 4 f32, and should be 5 x 4 f32", "D804",
        [](OverlapCall& call) { call.to_scatter.rows = 4; }},
       {"Buffer size is incorrect: `scattered` is 5 x 4 f32, and should be 2 x 4 f32", "D804",
        [](OverlapCall& call) { call.scattered.rows = 5; }},
       {"`to_scatter` is not given", "D807", [](OverlapCall& call) { call.to_scatter = {}; }},
       {"`scattered` is not given", "D807", [](OverlapCall& call) { call.scattered = {}; }},
       {"`size_of_all` has no meaning here", "D807",
        [](OverlapCall& call) { call.size_of_all = 4; }}});
}

TEST(BufferSize, OfALastingSumIsCheckedToo) {
  std::vector<float> memory(64);
  BufferRequest lasting = request({Type::all_reduce, Method::ring_exchange}, {5, 4});
  lasting.contents = Contents::between_calls;
  const OverlapCall sound{.x = matrix(memory, 5, 3), .w = matrix(memory, 3, 4)};
  expect_refused(lasting, sound,
                 {{"`beta` without a `result` to which to add", "D807",
                   [](OverlapCall& call) { call.beta = 1; }},
                  {"Buffer size is incorrect: `result` is 2 x 4 f32, and should be 5 x 4 f32",
                   "D804", [&](OverlapCall& call) { call.result = matrix(memory, 2, 4); }}});
}

TEST(Contents, AreThereOnlyWhereTheyLast) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    BufferRequest wanted = request({Type::all_gather, Method::ring_exchange}, {4, 4});
    const auto passing = registry.find(registry.create_comm_overlap_buffer(wanted));
    EXPECT_EQ(refusal([&] { static_cast<void>(passing->buffer()); }).code, "D807");
    EXPECT_EQ(passing->own_bytes(), 0);
    wanted.contents = Contents::between_calls;
    const auto lasting = registry.find(registry.create_comm_overlap_buffer(wanted));
    EXPECT_EQ(lasting->own_bytes(), 256);
    std::vector<float> memory(16, 3);
    EXPECT_EQ(refusal([&] { lasting->copy_into_buffer(matrix(memory, 3, 4)); }).code, "D804");
    lasting->copy_into_buffer(matrix(memory, 4, 4), Part::all);
    EXPECT_EQ(static_cast<const float*>(lasting->buffer().data)[15], 3);
  });
}

// ---- ranks that do not mean the same

Matrix codes(std::vector<float>& memory, std::int64_t rows, std::int64_t columns) {
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
  OverlapCall sound{.x = codes(memory, 2, 70),
                    .w = codes(memory, 70, 3),
                    .size_of_all = 7,
                    .result = matrix(memory, 5, 3)};
  sound.x.scale_inv = {.data = memory.data(), .rows = 2, .columns = 3};
  sound.w.scale_inv = {.data = memory.data(), .rows = 3, .columns = 3};
  expect_refused(
      wanted, sound,
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
       {"Buffer size is incorrect: `x` is of fp8_e5m2, and fp8_e4m3 travels", "D804",
        [](OverlapCall& call) { call.x.type = DType::fp8_e5m2; }},
       {"`x` is of f32 and has a scale_inv", "D807",
        [](OverlapCall& call) { call.x.type = DType::f32; }},
       {"`x` of FP8 is transposed", "D807",
        [](OverlapCall& call) {
          call.x_is_transposed = true;
          std::swap(call.x.rows, call.x.columns);
        }},
       {"group_sizes add up to 3, and `x` has 2 rows", "D814",
        [](OverlapCall& call) { call.group_sizes = {1, 0, 2}; }},
       {"group_sizes[0] is -2", "D814", [](OverlapCall& call) { call.group_sizes = {-2, 4}; }}});
  wanted.scaling_mode = ScalingMode::delayed_tensor_scaling;
  sound.x.scale_inv.rows = sound.x.scale_inv.columns = 1;
  sound.w.scale_inv = sound.x.scale_inv;
  expect_refused(wanted, sound,
                 {{"`x` is wide, and its scale would be that of this step", "D807",
                   [](OverlapCall& call) {
                     call.x.type = DType::f32;
                     call.x.scale_inv = {};
                   }},
                  {"the scales of `w` are 2 x 1, and should be 1 x 1", "D812",
                   [](OverlapCall& call) { call.w.scale_inv.rows = 2; }}});
  const BufferRequest plain = request({Type::reduce_scatter, Method::ring_exchange}, {5, 4});
  OverlapCall summed{.x = matrix(memory, 5, 3),
                     .w = matrix(memory, 3, 4),
                     .size_of_all = 6,
                     .result = matrix(memory, 2, 4)};
  expect_refused(plain, summed,
                 {{"`x` is of fp8_e4m3, and its buffer has no_scaling", "D813",
                   [](OverlapCall& call) { call.x.type = DType::fp8_e4m3; }},
                  {"a bias for groups of a product that is summed", "D807", [&](OverlapCall& call) {
                     call.group_sizes = {2, 3};
                     call.w = matrix(memory, 6, 4);
                     call.bias = matrix(memory, 2, 4);
                   }}});
}

TEST(Scales, OfABufferFitItsType) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto refused = [&](const std::function<void(BufferRequest&)>& spoil) {
      BufferRequest wanted = request({Type::all_reduce, Method::ring_exchange}, {5, 4});
      wanted.buffer_dtype = DType::fp8_e5m2;
      wanted.scaling_mode = kernels::ScalingMode::current_tensor_scaling;
      spoil(wanted);
      const Diagnostic said = refusal([&] { registry.create_comm_overlap_buffer(wanted); });
      return said.code + ": " + said.what;
    };
    EXPECT_EQ(refused([](BufferRequest& wanted) {
                wanted.scaling_mode = kernels::ScalingMode::no_scaling;
              }),
              "D813: a buffer of fp8_e5m2 with no_scaling");
    EXPECT_EQ(refused([](BufferRequest& wanted) { wanted.contents = Contents::between_calls; }),
              "D813: a buffer of FP8 whose contents last");
    EXPECT_EQ(refused([](BufferRequest& wanted) { wanted.result_dtype = DType::f16; }),
              "D813: a buffer of FP8 with results of f16");
    EXPECT_EQ(refused([](BufferRequest& wanted) { wanted.result_dtype = DType::i32; }),
              "D802: products of i32 are not built");
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
    call.size_of_all = 5;
    object->split_overlap_ag(call);
  });
}

// A rank that does not come makes the other fail, and its memory is kept: somebody may still write
// there.
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

// Of a chain of ranks that wait for each other, all name the one that began, not the one before.
TEST(Ranks, ThatHearOfAFailureFromOthersNameWhoFailed) {
  for (const Progress progress : {Progress::threads, Progress::polled}) {
    on_threads(4, [&](comm::Communicator& world) {
      BufferRegistry registry(world, {.progress = progress});
      const auto object = registry.find(registry.create_comm_overlap_buffer(
          request({Type::all_gather, Method::ring_exchange}, {8, 3})));
      std::vector<float> memory(64);
      const OverlapCall call{
          .x = matrix(memory, 2, 3), .w = matrix(memory, 3, 4), .result = matrix(memory, 8, 4)};
      // A slow rank may hear of it while it is still in the first call.
      try {
        object->split_overlap_ag(call);
        if (world.rank() == 2) return world.leave("planted");
        object->split_overlap_ag(call);
        ADD_FAILURE() << "rank " << world.rank() << " went on";
      } catch (const comm::RankFailed& error) {
        EXPECT_EQ(error.rank(), 2) << "by rank " << world.rank() << ": " << error.what();
        EXPECT_THAT(error.what(), HasSubstr("planted"));
      }
    });
  }
}

// Who asks for traces sees what a call did, on all ranks once they are gathered.
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
    const StepResult own = run(traced);
    const std::vector<StepResult> all = gather_steps(world, own);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[world.rank()].trace, own.trace);
    EXPECT_EQ(all[world.rank()].duration, own.duration);
    for (const StepResult& rank : all) {
      const auto sends =
          std::ranges::count(rank.trace.events, trace::Kind::send, &trace::Event::kind);
      EXPECT_EQ(sends, 1);
    }
  });
}

// A collective may write straight into a result that has an owner, which is then kept if it fails.
// Memory without one is not given to a transport.
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
    EXPECT_EQ(result.use_count(), 1);  // nobody keeps it after a call that went well
    if (world.rank() == 1) return;
    call.result.owner = result;
    watched = result;
    EXPECT_THROW(object->split_overlap_rs(call), comm::Failure);
  });
  EXPECT_FALSE(watched.expired());
}

}  // namespace
}  // namespace shiplap::run
