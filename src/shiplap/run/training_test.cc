#include "shiplap/run/training.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using testing::HasSubstr;

constexpr TrainingOptions kSmall{.hidden = 8, .block = 4};
constexpr int kSteps = 5;

struct Trained {
  std::vector<double> losses;
  GatheredWeights weights;
};

plan::Plan parsed(const std::string& text) {
  return plan::parse_text("shiplap-plan 1\n" + text, "test");
}

Trained train(const std::string& text, const ExecuteOptions& options = {},
              const TrainingOptions& training = kSmall) {
  const plan::Plan plan = parsed(text);
  Trained result;
  on_ranks(plan, [&](comm::Communicator& world) {
    TrainingKernels kernels(training);
    KernelTable table;
    kernels.bind(table);
    Executor executor(plan, world, table, options);
    std::vector<double> losses;
    for (int k = 0; k < kSteps; ++k) {
      executor.step();
      losses.push_back(kernels.mean_loss(world));
    }
    GatheredWeights weights = gather_weights(world, executor, training);
    if (world.rank() != 0) return;
    result = {.losses = std::move(losses), .weights = std::move(weights)};
  });
  EXPECT_EQ(result.weights.unequal, 0);
  return result;
}

// The largest difference between two sets of weights, over the largest weight.
double distance(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.weights.layers.size(), b.weights.layers.size());
  double most = 0;
  double largest = 0;
  for (const auto& [layer, numbers] : a.weights.layers) {
    const std::vector<float>& others = b.weights.layers.at(layer);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto here = static_cast<double>(numbers[i]);
      most = std::max(most, std::abs(here - static_cast<double>(others[i])));
      largest = std::max(largest, std::abs(here));
      if (std::isnan(here) || std::isnan(others[i])) return 1e9;
    }
  }
  return most / largest;
}

bool same_bits(const Trained& a, const Trained& b) {
  return a.weights.layers == b.weights.layers && a.losses == b.losses;
}

const std::string kTensors = R"(tensor A[3] Activation sample 4
tensor D[3] ActivationGrad sample 4
tensor W[2] Weight shard 2
tensor O[2] OptState shard 2
tensor G[2] WeightGrad shard 2 sum sample 4
)";

// Data parallel: `ranks` ranks, the samples of each in microbatches of `size`.
std::string data_parallel(int ranks, int size) {
  return fmt::format("mesh dp={}\n", ranks) + kTensors +
         fmt::format(R"(program all on all
  buffer w rows 4 row_bytes 128 f32
  buffer o rows 4 row_bytes 256 f32
  buffer g rows 4 row_bytes 128 f32
  buffer a rows 12 row_bytes 128 f32
  buffer d rows 12 row_bytes 128 f32
  streams net
  repeat l 2
    keep w[2*l +2] = W[l]
    keep o[2*l +2] = O[l]
    compute load_weights
      reads w[2*l +2] = W[l]
      writes w[2*l +2] = W[l]
    compute zero
      writes g[2*l +2] = G[l] sum none
  end
  repeat m {1}
    let i = {0}*dp+m*{2}
    compute read_batch
      writes a[m*{2} +{2}] = A[0] sample i +{2}
    repeat l 2
      compute forward
        reads a[4*l+m*{2} +{2}] = A[l] sample i +{2}
        reads w[2*l +2] = W[l]
        writes a[4*l+4+m*{2} +{2}] = A[l+1] sample i +{2}
    end
    compute loss
      reads a[8+m*{2} +{2}] = A[2] sample i +{2}
      writes d[8+m*{2} +{2}] = D[2] sample i +{2}
    repeat k 2
      let l = 1-k
      b[m,l]: compute backward
        reads a[4*l+m*{2} +{2}] = A[l] sample i +{2}
        reads d[4*l+4+m*{2} +{2}] = D[l+1] sample i +{2}
        reads w[2*l +2] = W[l]
        writes d[4*l+m*{2} +{2}] = D[l] sample i +{2}
        adds g[2*l +2] = G[l] sum sample i +{2}
    end
  end
  repeat k 2
    r[1-k]: @net all_reduce g[2-2*k +2] over dp/net after b[{1}-1,1-k] async
  end
  repeat l 2
    compute update after r[l]
      reads g[2*l +2] = G[l]
      reads w[2*l +2] = W[l]
      reads o[2*l +2] = O[l]
      writes w[2*l +2] = new W[l]
      writes o[2*l +2] = new O[l]
  end
)",
                     4 / ranks, 4 / ranks / size, size);
}

// Weights in shards of two ranks, gathered when needed; backward in two halves, on two streams.
const std::string kFullySharded = "mesh dp=2\n" + kTensors + R"(program all on all
  buffer w rows 2 row_bytes 128 f32
  buffer o rows 2 row_bytes 256 f32
  buffer full rows 4 row_bytes 128 f32
  buffer g rows 4 row_bytes 128 f32
  buffer gs rows 2 row_bytes 128 f32
  buffer a rows 6 row_bytes 128 f32
  buffer d rows 6 row_bytes 128 f32
  streams net, out, side
  given a[0 +2] = A[0] sample 2*dp +2
  repeat l 2
    keep w[l +1] = W[l] shard dp +1
    keep o[l +1] = O[l] shard dp +1
    ag[l]: @net all_gather w[l +1] to full[2*l +2] over dp/net
  end
  repeat l 2
    compute forward after ag[l]
      reads a[2*l +2] = A[l] sample 2*dp +2
      reads full[2*l +2] = W[l]
      writes a[2*l+2 +2] = A[l+1] sample 2*dp +2
  end
  compute loss
    reads a[4 +2] = A[2] sample 2*dp +2
    writes d[4 +2] = D[2] sample 2*dp +2
  f: allocate d[2 +2]
  repeat k 2
    let l = 1-k
    when k=0
      i[l]: compute backward_input
        reads a[2*l +2] = A[l] sample 2*dp +2
        reads d[2*l+2 +2] = D[l+1] sample 2*dp +2
        reads full[2*l +2] = W[l]
        writes d[2*l +2] = D[l] sample 2*dp +2
    end
    b[l]: @side compute backward_weight after f, i[l+1]
      reads a[2*l +2] = A[l] sample 2*dp +2
      reads d[2*l+2 +2] = D[l+1] sample 2*dp +2
      writes g[2*l +2] = G[l] sum sample 2*dp +2
    rs[l]: @out reduce_scatter g[2*l +2] to gs[l +1] over dp/grads after b[l] async
  end
  repeat l 2
    compute update after rs[l]
      reads gs[l +1] = G[l] shard dp +1
      reads w[l +1] = W[l] shard dp +1
      reads o[l +1] = O[l] shard dp +1
      writes w[l +1] = new W[l] shard dp +1
      writes o[l +1] = new O[l] shard dp +1
  end
  free d[2 +2] after b[0]
)";

// Layer l on rank l, the samples one by one, messages asynchronous.
const std::string kPipeline = "mesh pp=2\n" + kTensors + R"(program all on all
  buffer w rows 2 row_bytes 128 f32
  buffer o rows 2 row_bytes 256 f32
  buffer g rows 2 row_bytes 128 f32
  buffer x rows 4 row_bytes 128 f32
  buffer y rows 4 row_bytes 128 f32
  buffer dx rows 4 row_bytes 128 f32
  buffer dy rows 4 row_bytes 128 f32
  keep w = W[pp]
  keep o = O[pp]
  repeat m 4
    when pp=0
      compute read_batch
        writes x[m +1] = A[0] sample m +1
    end
    when pp=1
      x[m]: receive x[m +1] from pp-1 tag m async
    end
  end
  repeat m 4
    f[m]: compute forward after x[m]
      reads x[m +1] = A[pp] sample m +1
      reads w = W[pp]
      writes y[m +1] = A[pp+1] sample m +1
    when pp=0
      send y[m +1] to pp+1 tag m async
      d[m]: receive dy[m +1] from pp+1 tag 4+m async
    end
    when pp=1
      compute loss
        reads y[m +1] = A[2] sample m +1
        writes dy[m +1] = D[2] sample m +1
    end
  end
  compute zero
    writes g = G[pp] sum none
  repeat m 4
    compute backward after d[m]
      reads x[m +1] = A[pp] sample m +1
      reads dy[m +1] = D[pp+1] sample m +1
      reads w = W[pp]
      writes dx[m +1] = D[pp] sample m +1
      adds g = G[pp] sum sample m +1
    when pp=1
      send dx[m +1] to pp-1 tag 4+m async
    end
  end
  compute update
    reads g = G[pp]
    reads w = W[pp]
    reads o = O[pp]
    writes w = new W[pp]
    writes o = new O[pp]
)";

// Each rank has half of the rows of both weights, and so half of the features of what they make.
const std::string kTensorParallel = R"(mesh tp=2
tensor A[3] Activation sample 4
tensor B[3] Activation half 2 sample 4
tensor D[3] ActivationGrad sample 4 sum half 2
tensor W[2] Weight half 2
tensor O[2] OptState half 2
tensor G[2] WeightGrad half 2 sum sample 4
program all on all
  buffer w rows 2 row_bytes 128 f32
  buffer o rows 2 row_bytes 256 f32
  buffer g rows 2 row_bytes 128 f32
  buffer x rows 4 row_bytes 128 f32
  buffer y rows 8 row_bytes 64 f32
  buffer full rows 16 row_bytes 64 f32
  buffer d rows 12 row_bytes 128 f32
  repeat l 2
    keep w[l +1] = W[l] half tp +1
    keep o[l +1] = O[l] half tp +1
  end
  compute read_batch
    writes x = A[0] sample 0 +4
  compute forward
    reads x = A[0] sample 0 +4
    reads w[0 +1] = W[0] half tp +1
    writes y[0 +4] = B[1] half tp +1 sample 0 +4
  all_gather y[0 +4] to full[0 +8] over tp
  compute forward
    reads full[0 +8] = B[1] half 0 +2 sample 0 +4
    reads w[1 +1] = W[1] half tp +1
    writes y[4 +4] = B[2] half tp +1 sample 0 +4
  all_gather y[4 +4] to full[8 +8] over tp
  compute loss
    reads full[8 +8] = B[2] half 0 +2 sample 0 +4
    writes d[8 +4] = D[2] sample 0 +4
  compute backward
    reads full[0 +8] = B[1] half 0 +2 sample 0 +4
    reads d[8 +4] = D[2] sample 0 +4
    reads w[1 +1] = W[1] half tp +1
    writes d[4 +4] = D[1] sample 0 +4 sum half tp +1
    writes g[1 +1] = G[1] half tp +1
  all_reduce d[4 +4] over tp
  compute backward
    reads x = A[0] sample 0 +4
    reads d[4 +4] = D[1] sample 0 +4
    reads w[0 +1] = W[0] half tp +1
    writes g[0 +1] = G[0] half tp +1
  repeat l 2
    compute update
      reads g[l +1] = G[l] half tp +1
      reads w[l +1] = W[l] half tp +1
      reads o[l +1] = O[l] half tp +1
      writes w[l +1] = new W[l] half tp +1
      writes o[l +1] = new O[l] half tp +1
  end
)";

TEST(Training, TheLossFalls) {
  const Trained single = train(data_parallel(1, 4));
  ASSERT_EQ(single.losses.size(), std::size_t{kSteps});
  for (int k = 1; k < kSteps; ++k) {
    EXPECT_LT(single.losses[k], single.losses[k - 1]);
  }
  EXPECT_LT(single.losses.back(), 0.9 * single.losses.front());
}

TEST(Training, MicrobatchesOfAnySizeGiveTheSameBits) {
  const Trained single = train(data_parallel(1, 4));
  EXPECT_TRUE(same_bits(single, train(data_parallel(1, 1))));
  EXPECT_TRUE(same_bits(single, train(data_parallel(1, 2))));
}

TEST(Training, ASampleOnEachRankGivesTheSameBits) {
  EXPECT_TRUE(same_bits(train(data_parallel(1, 4)), train(data_parallel(4, 1))));
}

TEST(Training, SeveralSamplesOnEachRankAreSummedInAnotherOrder) {
  EXPECT_LT(distance(train(data_parallel(1, 4)), train(data_parallel(2, 1))), 1e-4);
}

TEST(Training, ShardedWeightsGiveTheBitsOfDataParallel) {
  EXPECT_TRUE(same_bits(train(data_parallel(2, 2)), train(kFullySharded)));
  EXPECT_TRUE(same_bits(train(data_parallel(2, 2)), train(kFullySharded, {.poison = true})));
}

TEST(Training, APipelineGivesTheBitsOfOneRank) {
  EXPECT_TRUE(same_bits(train(data_parallel(1, 1)), train(kPipeline)));
}

TEST(Training, HalvesOfTheWeightsGiveTheSameUpToRounding) {
  EXPECT_LT(distance(train(data_parallel(1, 4)), train(kTensorParallel)), 1e-4);
}

TEST(Training, PoisonReachesTheWeightsWhereDeadRowsAreUsed) {
  // The weight of layer 1 is freed before backward needs it.
  std::string wrong = kFullySharded;
  const std::string early = "  f: allocate d[2 +2]";
  wrong.replace(wrong.find(early), early.size(), "  f: free full[2 +2]");
  EXPECT_EQ(distance(train(data_parallel(2, 2)), train(wrong)), 0);  // it goes unnoticed
  const Trained poisoned = train(wrong, {.poison = true});
  EXPECT_TRUE(std::isnan(poisoned.weights.layers.at(0).front()));
}

// ---- gradients against differences of the loss

const std::string kGradient = R"(mesh dp=1
tensor A[3] Activation sample 2
tensor D[3] ActivationGrad sample 2
tensor W[2] Weight
tensor G[2] WeightGrad sum sample 2
program all on all
  buffer w rows 2 row_bytes 256 f32
  buffer g rows 2 row_bytes 256 f32
  buffer a rows 6 row_bytes 128 f32
  buffer d rows 6 row_bytes 128 f32
  repeat l 2
    keep w[l +1] = W[l]
  end
  given a[0 +2] = A[0]
  repeat l 2
    compute forward
      reads a[2*l +2] = A[l]
      reads w[l +1] = W[l]
      writes a[2*l+2 +2] = A[l+1]
  end
  compute loss
    reads a[4 +2] = A[2]
    writes d[4 +2] = D[2]
  repeat k 2
    compute backward
      reads a[2-2*k +2] = A[1-k]
      reads d[4-2*k +2] = D[2-k]
      reads w[1-k +1] = W[1-k]
      writes d[2-2*k +2] = D[1-k]
      writes g[1-k +1] = G[1-k]
  end
)";

TEST(Training, GradientsAreThoseOfTheLoss) {
  const plan::Plan plan = parsed(kGradient);
  on_ranks(plan, [&](comm::Communicator& world) {
    TrainingKernels kernels(kSmall);
    KernelTable table;
    kernels.bind(table);
    Executor executor(plan, world, table);
    const auto loss = [&] {
      executor.step();
      return kernels.mean_loss(world);
    };
    loss();
    const std::span<float> w = floats(executor.rows("w"));
    const std::span<float> held = floats(executor.rows("g"));
    const std::vector<float> g(held.begin(), held.end());
    const float step = 0.01F;
    double largest = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const float before = w[i];
      w[i] = before + step;
      const double above = loss();
      w[i] = before - step;
      const double below = loss();
      w[i] = before;
      EXPECT_NEAR((above - below) / 0.02, static_cast<double>(g[i]), 2e-5) << "weight " << i;
      largest = std::max(largest, std::abs(static_cast<double>(g[i])));
    }
    EXPECT_GT(largest, 1e-2);  // so the tolerance means something
  });
}

// ---- refusals

std::string rejected(std::string text, const std::string& from, const std::string& to) {
  text.replace(text.find(from), from.size(), to);
  const plan::Plan plan = parsed(text);
  return failures(plan,
                  [&](comm::Communicator& world) {
                    TrainingKernels kernels(kSmall);
                    KernelTable table;
                    kernels.bind(table);
                    Executor executor(plan, world, table);
                    executor.step();
                  })
      .at(0);
}

TEST(Training, RefusesRegionsThatDoNotHoldWhatTheySay) {
  for (const std::string& said :
       {rejected(kGradient, "buffer a rows 6 row_bytes 128 f32",
                 "buffer a rows 6 row_bytes 120 f32"),
        rejected(kGradient, "buffer w rows 2 row_bytes 256 f32",
                 "buffer w rows 2 row_bytes 256 bf16"),
        rejected(kGradient, "buffer g rows 2 row_bytes 256 f32",
                 "buffer g rows 2 row_bytes 128 f32"),
        rejected(kGradient, "      reads w[l +1] = W[l]\n", ""),
        rejected(kTensorParallel, "reads full[0 +8] = B[1] half 0 +2 sample 0 +4",
                 "reads full[0 +4] = B[1] half 0 +1 sample 0 +4")}) {
    EXPECT_THAT(said, testing::StartsWith("D641"));
    EXPECT_THAT(said, HasSubstr("not supported by run"));
  }
}

}  // namespace
}  // namespace shiplap::run
