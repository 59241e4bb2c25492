#include "shiplap/workload/values.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::workload {
namespace {

IndexSet some(std::vector<std::int32_t> indices) { return IndexSet(std::move(indices)); }

Weight weight(int layer = 1) { return {.layer = layer, .layers = 4, .step = 0, .provenance = {}}; }
OptState opt_state() { return {.layer = 1, .layers = 4, .step = 0, .provenance = {}}; }
WeightGrad grad(IndexSet samples, int layer = 1) {
  return {.layer = layer,
          .layers = 4,
          .samples = std::move(samples),
          .total_samples = 8,
          .provenance = {}};
}
Activation activation(IndexSet samples) {
  return {
      .layer = 1, .layers = 4, .samples = std::move(samples), .total_samples = 8, .provenance = {}};
}
ActivationGrad activation_grad(IndexSet samples) {
  return {
      .layer = 1, .layers = 4, .samples = std::move(samples), .total_samples = 8, .provenance = {}};
}

// Returns the thrown diagnostic, or an empty one.
Diagnostic thrown_diagnostic(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.diagnostics().front();
  }
  return {};
}

void expect_error(const char* code, const std::string& words, const std::function<void()>& call) {
  const Diagnostic found = thrown_diagnostic(call);
  EXPECT_EQ(found.code, code) << found.what;
  EXPECT_NE(found.what.find(words), std::string::npos) << found.what;
  EXPECT_FALSE(found.why.empty());
  EXPECT_FALSE(found.help.empty());
}

// ---------------------------------------------------------------- concepts

static_assert(Reduceable<WeightGrad> && Reduceable<ActivationGrad>);
static_assert(!Reduceable<Weight> && !Reduceable<OptState> && !Reduceable<Activation>);
static_assert(Gatherable<Weight> && Gatherable<OptState> && Gatherable<WeightGrad>);
static_assert(Gatherable<Activation> && !Gatherable<ActivationGrad>);
static_assert(ReduceableGatherable<WeightGrad> && !ReduceableGatherable<Weight>);
static_assert(!Reduceable<std::string> || !Gatherable<std::string>);

// ---------------------------------------------------------------- shards

template <class T>
void expect_cut_and_put_together(const T& whole) {
  for (int of = 1; of <= 6; ++of) {
    T together = whole.shard(of - 1, of);
    EXPECT_EQ(together.is_complete(), of == 1);
    for (int i = of - 2; i >= 0; --i) {
      const T shard = whole.shard(i, of);
      EXPECT_EQ(shard.shards, IndexSet(std::int64_t{i}));
      EXPECT_EQ(shard.num_shards, of);
      EXPECT_EQ(together.combine(shard), shard.combine(together));
      together = together.combine(shard);
      EXPECT_EQ(together.is_complete(), i == 0);
    }
    EXPECT_EQ(together.num_shards, of);
    EXPECT_EQ(together.memory(), whole.memory());
    // A complete value can be sharded again, in another way.
    EXPECT_EQ(together.shard(1, 3), whole.shard(1, 3));
  }
}

TEST(Values, AreCutIntoShardsAndPutTogetherAgain) {
  expect_cut_and_put_together(weight());
  expect_cut_and_put_together(opt_state());
  expect_cut_and_put_together(grad(some({0, 3})));
  expect_cut_and_put_together(activation(some({0, 3})));
}

TEST(Values, AreWholeByThemselves) {
  EXPECT_TRUE(Weight{}.is_complete());
  EXPECT_TRUE(OptState{}.is_complete());
  EXPECT_TRUE(WeightGrad{}.is_complete());
  EXPECT_TRUE(Activation{}.is_complete());
  EXPECT_TRUE(ActivationGrad{}.is_complete());
}

// The right number of shards is not enough: they must be the right ones.
TEST(Values, AreCompleteOnlyWithAllShards) {
  Weight odd = weight();
  odd.num_shards = 2;
  EXPECT_FALSE(odd.is_complete());
  odd.shards = some({0, 2});
  EXPECT_FALSE(odd.is_complete());
  odd.shards = some({0, 1});
  EXPECT_TRUE(odd.is_complete());
}

// Shard j of m of shard i of n is shard i*m + j of n*m, for all small n and m; and the m shards
// gathered again can be sharded in any other way.
template <class T>
void expect_cut_along_two_axes(const T& whole) {
  for (int n = 2; n <= 4; ++n) {
    for (int m = 1; m <= 4; ++m) {
      for (int i = 0; i < n; ++i) {
        T together = whole.shard(i, n).shard(0, m);
        for (int j = 0; j < m; ++j) {
          const T inner = whole.shard(i, n).shard(j, m);
          EXPECT_EQ(inner, whole.shard(i * m + j, n * m));
          together = together.combine(inner);
        }
        EXPECT_FALSE(together.is_complete());
        EXPECT_EQ(together.shards, IndexSet::range(std::int64_t{i} * m, m));
        EXPECT_EQ(together.memory(), whole.shard(i, n).memory());
        EXPECT_EQ(together.shard(m - 1, m), whole.shard(i * m + m - 1, n * m));
        // In seven parts, which the number of shards divides at most once.
        EXPECT_EQ(together.shard(6, 7).shards, IndexSet::range((i + 1) * m * 7 - m, m));
        EXPECT_EQ(together.shard(6, 7).num_shards, 7 * n * m);
      }
    }
  }
}

TEST(Values, AreCutAlongTwoAxes) {
  expect_cut_along_two_axes(weight());
  expect_cut_along_two_axes(opt_state());
  expect_cut_along_two_axes(grad(some({0, 3})));
}

TEST(Values, WhoseShardsAreNotConsecutiveCannotBeCut) {
  const Weight apart = weight().shard(0, 4).combine(weight().shard(2, 4));
  expect_error("D612", "shards 0, 2 of 4, step 0 cannot be sharded: its shards are not consecutive",
               [&] { (void)apart.shard(0, 2); });
  expect_error("D612", "activation", [] { (void)activation({}).shard(1, 2).shard(0, 2); });
  expect_error("D610", "cannot be sharded in 65536",
               [] { (void)weight().shard(0, 65536).shard(0, 65536); });
}

TEST(Features, AreInAsFewPartsAsPossible) {
  const auto expect_part = [](const Weight& w, const IndexSet& parts, int num_parts) {
    EXPECT_EQ(features_of(w).parts, parts) << describe(w);
    EXPECT_EQ(features_of(w).num_parts, num_parts) << describe(w);
  };
  expect_part(weight(), IndexSet(0), 1);
  expect_part(weight().shard(2, 3), IndexSet(2), 3);
  for (int n = 2; n <= 4; ++n) {
    for (int i = 0; i < n; ++i) {
      Weight gathered = weight().shard(3 * i, 3 * n);
      for (int j = 1; j < 3; ++j) gathered = gathered.combine(weight().shard(3 * i + j, 3 * n));
      expect_part(gathered, IndexSet(i), n);
    }
  }
  expect_part(weight().shard(0, 2).combine(weight().shard(1, 2)), IndexSet(0), 1);
  expect_part(weight().shard(1, 4).combine(weight().shard(2, 4)), IndexSet::range(1, 2), 4);
  expect_part(weight().shard(0, 4).combine(weight().shard(2, 4)), some({0, 2}), 4);
}

TEST(Values, HaveNoShardsBeyondTheLast) {
  expect_error("D610", "no shard 2 of 2", [] { (void)weight().shard(2, 2); });
  expect_error("D610", "no shard -1 of 2", [] { (void)opt_state().shard(-1, 2); });
  expect_error("D610", "no shard 0 of 0", [] { (void)grad({}).shard(0, 0); });
}

TEST(Values, OfDifferentThingsCannotBePutTogether) {
  const Weight first = weight().shard(0, 2);
  Weight later = weight().shard(1, 2);
  later.step = 1;
  expect_error("D610", "do not match", [&] { (void)first.combine(later); });
  expect_error("D610", "do not match", [&] { (void)first.combine(weight(2).shard(1, 2)); });
  expect_error("D610", "do not match", [&] { (void)first.combine(weight().shard(1, 3)); });
  expect_error("D610", "do not match",
               [] { (void)grad(some({0})).shard(0, 2).combine(grad(some({1})).shard(1, 2)); });
  expect_error("D610", "do not match", [] {
    (void)activation(some({0})).shard(0, 2).combine(activation(some({1})).shard(1, 2));
  });
}

// ---------------------------------------------------------------- sums

TEST(WeightGrad, IsASumOverSamples) {
  const WeightGrad sum = grad(some({0, 2, 4})) + grad(some({1, 3}));
  EXPECT_EQ(sum.samples, some({0, 1, 2, 3, 4}));
  EXPECT_EQ(sum.layer, 1);
  EXPECT_EQ(sum.total_samples, 8);
  EXPECT_EQ(sum.memory(), grad({}).memory());
}

TEST(WeightGrad, IsTheSameSumInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Random random(seed);
    std::vector<WeightGrad> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(grad(IndexSet(std::int64_t{i})));
    random.shuffle(parts);
    WeightGrad sum = parts.front();
    for (std::size_t i = 1; i < parts.size(); ++i) {
      sum = random.chance() ? sum + parts[i] : parts[i] + sum;
    }
    EXPECT_EQ(sum, grad(IndexSet::range(0, 8))) << "seed " << seed;
  }
}

TEST(WeightGrad, CountsNoSampleTwice) {
  expect_error("D611", "share samples", [] { (void)(grad(some({0, 1})) + grad(some({1, 2}))); });
  const WeightGrad one = grad(some({5}));
  expect_error("D611", "share samples", [&] { (void)(one + one); });
}

TEST(WeightGrad, IsAddedOnlyToItsLike) {
  expect_error("D610", "cannot be added", [] { (void)(grad(some({0}), 1) + grad(some({1}), 2)); });
  expect_error("D610", "cannot be added",
               [] { (void)(grad(some({0})).shard(0, 2) + grad(some({1})).shard(1, 2)); });
  expect_error("D610", "cannot be added",
               [] { (void)(grad(some({0})).shard(0, 2) + grad(some({1})).shard(0, 4)); });
  WeightGrad other = grad(some({1}));
  other.total_samples = 9;
  expect_error("D610", "cannot be added", [&] { (void)(grad(some({0})) + other); });
  EXPECT_EQ((grad(some({0})).shard(1, 2) + grad(some({1})).shard(1, 2)).samples, some({0, 1}));
}

TEST(ActivationGrad, IsASumOverTheShardsItCameThrough) {
  ActivationGrad a = activation_grad(some({0, 1}));
  a.num_summed = 2;
  ActivationGrad b = a;
  b.summed = some({1});
  EXPECT_FALSE(a.is_complete());
  EXPECT_TRUE((a + b).is_complete());
  EXPECT_EQ((a + b).samples, a.samples);
  EXPECT_EQ((a + b).memory(), a.memory());
  expect_error("D611", "share contributions", [&] { (void)(a + a); });
  b.samples = some({2});
  expect_error("D610", "cannot be added", [&] { (void)(a + b); });
}

// ---------------------------------------------------------------- memory

TEST(Memory, OfTheSeedsConstantsIsInBytes) {
  EXPECT_EQ(weight().memory(), Bytes{33'554'432});  // 4096 * 4096 * 2
  EXPECT_EQ(grad({}).memory(), Bytes{33'554'432});
  EXPECT_EQ(opt_state().memory(), Bytes{67'108'864});           // two moments
  EXPECT_EQ(activation(some({3})).memory(), Bytes{8'388'608});  // 4096 * 1024 * 2
  EXPECT_EQ(activation_grad(some({3, 4, 7})).memory(), Bytes{25'165'824});
  EXPECT_EQ(activation({}).memory(), Bytes{0});
}

TEST(Memory, OfThePuzzlesIsTheirsTimesTheElement) {
  const ModelShape puzzles{.hidden = 512, .block = 256, .moments = 1};
  constexpr std::int64_t kUnit = 131'072;  // 512 * 256
  EXPECT_EQ(weight().memory(puzzles), Bytes{4 * kUnit});
  EXPECT_EQ(opt_state().memory(puzzles), Bytes{4 * kUnit});
  EXPECT_EQ(grad({}).memory(puzzles), Bytes{4 * kUnit});
  EXPECT_EQ(activation(some({1})).memory(puzzles), Bytes{2 * kUnit});
  EXPECT_EQ(activation_grad(some({1, 2})).memory(puzzles), Bytes{4 * kUnit});
}

TEST(Memory, FollowsDatatypeAndMoments) {
  const ModelShape wide{.hidden = 64, .block = 16, .datatype = DType::f32, .moments = 3};
  EXPECT_EQ(weight().memory(wide), Bytes{std::int64_t{64} * 64 * 4});
  EXPECT_EQ(opt_state().memory(wide), Bytes{std::int64_t{64} * 64 * 4 * 3});
  EXPECT_EQ(activation(some({0})).memory(wide), Bytes{std::int64_t{64} * 16 * 4});
}

TEST(Memory, IsSharedOutByShards) {
  for (int of = 1; of <= 64; of *= 2) {
    EXPECT_EQ(of * weight().shard(of - 1, of).memory(), weight().memory());
    EXPECT_EQ(of * opt_state().shard(0, of).memory(), opt_state().memory());
    EXPECT_EQ(of * grad({}).shard(0, of).memory(), grad({}).memory());
    EXPECT_EQ(of * activation(some({2})).shard(0, of).memory(), activation(some({2})).memory());
  }
  Weight most = weight();
  most.num_shards = 131'072;
  most.shards = IndexSet::range(0, 131'071);
  EXPECT_EQ(most.memory() + Bytes{256}, weight().memory());
}

// ---------------------------------------------------------------- provenance

TEST(Provenance, TellsNoTwoValuesApart) {
  Weight one = weight();
  one.provenance = {.kind = Provenance::Kind::result, .first = 3};
  EXPECT_EQ(one, weight());
}

TEST(Provenance, KnowsShardsAndSumsOfWhatIsStored) {
  WeightGrad a = grad(some({0}));
  WeightGrad b = grad(some({1}));
  a.provenance = {.kind = Provenance::Kind::result, .first = 3};
  b.provenance = {.kind = Provenance::Kind::result, .first = 5};
  const WeightGrad sum = a + b;
  EXPECT_EQ(sum.provenance.kind, Provenance::Kind::sum);
  EXPECT_EQ(sum.provenance.first, 3);
  EXPECT_EQ(sum.provenance.second, 5);
  const WeightGrad shard = a.shard(1, 2);
  EXPECT_EQ(shard.provenance.kind, Provenance::Kind::shard);
  EXPECT_EQ(shard.provenance.first, 3);
  // Provenance goes back one step only.
  EXPECT_EQ(sum.shard(0, 2).provenance.kind, Provenance::Kind::none);
  EXPECT_EQ((sum + grad(some({2}))).provenance.kind, Provenance::Kind::none);
  EXPECT_EQ(shard.combine(a.shard(0, 2)).provenance.kind, Provenance::Kind::none);
}

// ---------------------------------------------------------------- describe

TEST(Describe, SaysWhichLayerWhichShardsWhichSamples) {
  EXPECT_EQ(describe(weight()), "the weight of layer 1, step 0");
  EXPECT_EQ(describe(weight().shard(1, 4)), "the weight of layer 1, shard 1 of 4, step 0");
  EXPECT_EQ(describe(weight().shard(1, 4).combine(weight().shard(2, 4))),
            "the weight of layer 1, shards 1, 2 of 4, step 0");
  EXPECT_EQ(describe(opt_state().shard(0, 2).combine(opt_state().shard(1, 2))),
            "the optimizer state of layer 1, all 2 shards, step 0");
  EXPECT_EQ(describe(grad(some({3}))), "the weight gradient of layer 1, sample 3 of 8");
  EXPECT_EQ(describe(grad(IndexSet::range(0, 8))), "the weight gradient of layer 1, all 8 samples");
  EXPECT_NE(describe(activation(some({0, 2, 4}))).find("samples 0, 2, 4 of 8"), std::string::npos);
  ActivationGrad part = activation_grad(some({0}));
  part.num_summed = 2;
  EXPECT_EQ(describe(part),
            "the activation gradient of layer 1, contributions 0 of 2, sample 0 of 8");
}

}  // namespace
}  // namespace shiplap::workload
