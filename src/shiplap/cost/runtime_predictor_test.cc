#include "shiplap/cost/runtime_predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "shiplap/base/error.h"
#include "shiplap/workload/values.h"

namespace shiplap::cost {
namespace {

using workload::ModelShape;

// The formulas of the puzzles, from the raw numbers of the file: an independent oracle.
class Raw {
 public:
  explicit Raw(const std::string& path) {
    std::ifstream file(path);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    json_ = parse_json(text, path);
  }
  [[nodiscard]] double flops(const char* unit, const char* type, double flop) const {
    const Json& speed = *json_.find(unit)->find(type);
    const Json& curve = *speed.find("gflops_efficiency");
    return flop / (speed.find("tflops")->as_number() * 1e12 * share(curve, flop / 1e9));
  }
  [[nodiscard]] double memory(const char* tier, double bytes) const {
    const Json& memory = *json_.find(tier);
    const double reached = share(*memory.find("MB_efficiency"), bytes / 1e6);
    return bytes / (memory.find("GBps")->as_number() * 1e9 * reached);
  }
  [[nodiscard]] double network(std::size_t which, const char* op, double bytes, int ranks) const {
    const Json& network = json_.find("networks")->as_array()[which];
    const Json::Array& factor = network.find("ops")->find(op)->as_array();
    const double offset = factor[1].is_null() ? 0 : factor[1].as_number();
    const double moved = bytes * factor[0].as_number() * (1 + offset / ranks);
    return network.find("latency")->as_number() +
           moved / (network.find("bandwidth")->as_number() * 1e9 *
                    network.find("efficiency")->as_number());
  }

 private:
  static double share(const Json& curve, double amount) {
    for (const Json& step : curve.as_array()) {
      if (step.as_array()[0].as_number() <= amount) return step.as_array()[1].as_number();
    }
    return 0;
  }
  Json json_;
};

constexpr double kWeight = 4096.0 * 4096 * 2;      // bytes
constexpr double kActivation = 4096.0 * 1024 * 2;  // bytes of a sample

// Relative, for numbers as small as these.
void expect_same(Seconds seconds, double expected) {
  EXPECT_NEAR(seconds.value / expected, 1, 1e-12);
}

// Files in Calculon's format, without rates of NCCL's algorithms.
std::string in_calculon_format(const std::string& name) {
  return "tests/hardware/" + name + ".json";
}

class Predictor : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] RuntimePredictor predictor(std::int64_t world_size) const {
    return RuntimePredictor(world_size, hardware::find_system(in_calculon_format(GetParam())));
  }
  Raw raw_{in_calculon_format(GetParam())};
};

TEST_P(Predictor, TimesComputationAsThePuzzlesDo) {
  const RuntimePredictor one = predictor(1);
  for (const double flop : {1.0, 1e8, 999999999.0, 1e9, 15.9e9, 16e9, 127e9, 128e9, 1e15}) {
    expect_same(one.compute_flops_time({flop}), raw_.flops("matrix", "float16", flop));
  }
  for (const std::int64_t bytes : {1L, 999'999L, 1'000'000L, 10'000'000L, 100'000'000L}) {
    expect_same(one.compute_mem_time({bytes}), raw_.memory("mem1", static_cast<double>(bytes)));
    expect_same(one.get_processing_time({1e9}, {bytes}),
                std::max(raw_.flops("matrix", "float16", 1e9),
                         raw_.memory("mem1", static_cast<double>(bytes))));
  }
}

TEST_P(Predictor, TimesLayersAsThePuzzlesDo) {
  const RuntimePredictor one = predictor(1);
  for (const int batch : {1, 2, 3, 8, 64, 1000}) {
    const double flop = 2.0 * 4096 * 4096 * 1024 * batch;
    const double bytes = kWeight + 2 * kActivation * batch;
    const double forward =
        std::max(raw_.flops("matrix", "float16", flop), raw_.memory("mem1", bytes));
    expect_same(one.get_forward_backward_time(batch), forward);
    expect_same(one.time(one.backward_half_work(batch)), forward);
    expect_same(
        one.time(one.backward_work(batch)),
        std::max(raw_.flops("matrix", "float16", 2 * flop), raw_.memory("mem1", 2 * bytes)));
  }
}

TEST_P(Predictor, TimesUpdatesAndLoadsOfTheShardsHeld) {
  const RuntimePredictor one = predictor(1);
  const char* const type = GetParam() == "mi300x" ? "float32" : "float16";
  for (const int shards : {1, 2, 8, 64}) {
    for (int held = 1; held <= shards; held *= 2) {
      const double part = static_cast<double>(held) / shards;
      const double flop = 11.0 * 4096 * 4096 * part;
      expect_same(
          one.get_update_step_time(held, shards),
          std::max(raw_.flops("vector", type, flop), raw_.memory("mem1", 7 * kWeight * part)));
      expect_same(one.get_weight_load_time(held, shards), raw_.memory("mem2", 3 * kWeight * part));
    }
  }
}

TEST_P(Predictor, TimesCommunicationByTheBytesOfTheShardsHeld) {
  const workload::Weight shard = workload::Weight{}.shard(1, 4);
  const workload::WeightGrad grad{.samples = IndexSet(0)};
  const RuntimePredictor four = predictor(4);
  expect_same(four.get_collective_time("all_gather", shard),
              raw_.network(0, "all_gather", kWeight, 4));
  expect_same(four.get_collective_time("all_reduce", grad),
              raw_.network(0, "all_reduce", kWeight, 4));
  expect_same(four.get_collective_time(CollectiveKind::reduce_scatter, grad),
              raw_.network(0, "reduce_scatter", kWeight, 4));
  expect_same(four.get_collective_time("all_gather", workload::ModelShape{}.weight()),
              raw_.network(0, "all_gather", kWeight, 4));
  expect_same(four.get_send_recv_time(shard), raw_.network(0, "p2p", kWeight / 4, 2));

  const RuntimePredictor many = predictor(64);
  expect_same(many.get_collective_time("all_reduce", grad),
              raw_.network(1, "all_reduce", kWeight, 64));
  expect_same(
      many.get_collective_time("all_reduce", grad, {.ranks = 8, .lowest = 8, .highest = 15}),
      raw_.network(0, "all_reduce", kWeight, 8));
  expect_same(many.get_send_recv_time(grad), raw_.network(1, "p2p", kWeight, 2));
  expect_same(many.get_send_recv_time(grad, Rank(9), Rank(8)), raw_.network(0, "p2p", kWeight, 2));
}

INSTANTIATE_TEST_SUITE_P(Systems, Predictor, ::testing::Values("h100_80g_nvl8", "mi300x"),
                         [](const auto& test) { return test.param; });

TEST(RuntimePredictor, IsByDefaultThePuzzlesH100AndShape) {
  const RuntimePredictor predictor(16);
  EXPECT_EQ(predictor.system().name, "h100_80g_nvl8");
  EXPECT_EQ(predictor.shape(), ModelShape());
  EXPECT_EQ(predictor.world_size(), 16);
  EXPECT_EQ(predictor.world().highest, 15);
  EXPECT_THROW(RuntimePredictor(0), InternalError);
}

// 2 x 4096 x 4096 x 1024 = 34.36 Gflop at 0.9 x 989.4 Tflop/s; 50.3 MB at 0.75 x 3350 GB/s.
TEST(RuntimePredictor, GivesTheTimeComputedByHand) {
  const RuntimePredictor predictor(1, hardware::find_system(in_calculon_format("h100_80g_nvl8")));
  EXPECT_NEAR(predictor.get_forward_backward_time(1).value, 38.586e-6, 1e-9);
  EXPECT_NEAR(predictor.compute_mem_time({50331648}).value, 20.033e-6, 1e-9);
  // 3 x 33.55 MB at 0.95 x 64 GB/s.
  EXPECT_NEAR(predictor.get_weight_load_time(1, 1).value, 1.6556e-3, 1e-7);
}

TEST(RuntimePredictor, CountsTheBytesOfAllValues) {
  const RuntimePredictor predictor(4);
  const auto is = [&](const auto& value, double bytes) {
    EXPECT_EQ(static_cast<double>(predictor.get_comm_bytes(value).count), bytes);
  };
  is(workload::Weight{}, kWeight);
  is(workload::Weight{.shards = IndexSet(2), .num_shards = 4}, kWeight / 4);
  is(workload::WeightGrad{.samples = IndexSet(0)}, kWeight);
  is(workload::OptState{}, 2 * kWeight);
  is(workload::OptState{.shards = IndexSet(0), .num_shards = 8}, kWeight / 4);
  is(workload::Activation{.samples = IndexSet(3), .total_samples = 4}, kActivation);
  is(workload::ActivationGrad{.samples = IndexSet(3), .total_samples = 4}, kActivation);
}

TEST(RuntimePredictor, RefusesUnknownCollectives) {
  const RuntimePredictor predictor(4);
  EXPECT_GT(predictor.get_collective_time("barrier", workload::Weight{}).value, 0);
  try {
    (void)predictor.get_collective_time("allreduce", workload::Weight{});
    FAIL() << "has a time";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics()[0].code, "D602");
    EXPECT_EQ(error.diagnostics()[0].help, "did you mean `all_reduce`?");
  }
}

TEST(RuntimePredictor, HonoursTheProcessingMode) {
  hardware::System system = hardware::find_system("h100_80g_nvl8");
  system.processing_mode = hardware::ProcessingMode::no_overlap;
  const RuntimePredictor predictor(1, system);
  EXPECT_EQ(predictor.get_processing_time({1e12}, {1 << 20}),
            predictor.compute_flops_time({1e12}) + predictor.compute_mem_time({1 << 20}));
}

// A plan states whole numbers, without loss.
TEST(RuntimePredictor, TellsWorkThatAPlanCanState) {
  for (const std::int64_t hidden : {1, 7, 4096, 20000}) {
    const RuntimePredictor predictor(1, hardware::zero_cost_system(),
                                     {.hidden = hidden, .block = 13});
    for (std::int64_t shards = 1; shards <= 9; ++shards) {
      for (std::int64_t held = 0; held <= shards; ++held) {
        for (const ComputeWork& work :
             {predictor.forward_work(5, held, shards), predictor.backward_work(5, held, shards),
              predictor.update_work(held, shards), predictor.load_work(held, shards)}) {
          for (const double amount : {work.flop, work.bytes}) {
            EXPECT_EQ(amount, std::floor(amount));
            EXPECT_EQ(static_cast<double>(static_cast<std::int64_t>(amount)), amount);
            EXPECT_LT(amount, 0x1p62);
          }
        }
      }
    }
  }
  const RuntimePredictor huge(1, hardware::zero_cost_system(),
                              {.hidden = 1 << 20, .block = 1 << 20});
  EXPECT_THROW((void)huge.forward_work(16), InternalError);
}

// The shards of a tensor-parallel layer: each computes a part of the GEMM; all read the whole
// input.
TEST(RuntimePredictor, SplitsALayerAmongItsShards) {
  const RuntimePredictor predictor(8);
  const ComputeWork whole = predictor.forward_work(4);
  EXPECT_EQ(whole.flop, 2.0 * 4096 * 4096 * 4096);
  EXPECT_EQ(whole.bytes, kWeight + 8 * kActivation);
  const ComputeWork part = predictor.forward_work(4, 1, 8);
  EXPECT_EQ(8 * part.flop, whole.flop);
  EXPECT_EQ(part.bytes, kWeight / 8 + 4 * kActivation + 4 * kActivation / 8);
  EXPECT_EQ(part.kernel_class, "gemm");
  const ComputeWork all = predictor.forward_work(4096, 131072, 131072);
  EXPECT_EQ(all.flop, predictor.forward_work(4096).flop);
  EXPECT_EQ(all.bytes, predictor.forward_work(4096).bytes);
}

}  // namespace
}  // namespace shiplap::cost
