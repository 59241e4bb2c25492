#include "shiplap/strategy/library.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "shiplap/strategy/library_testing_internal.h"
#include "shiplap/trace/summary.h"

namespace shiplap::strategy {
namespace {

using testing::diagnostic_of;
using testing::kPuzzle;
using testing::machine;
using testing::StrategyRun;
using trace::EventKind;

// Divides among 8 stages of 2 chunks and 8 ranks.
TrainingSize size_for(int ranks) {
  return {.ranks = ranks, .layers = 16, .batch = 32, .shape = kPuzzle};
}

std::int64_t along(const StrategyRun& ran, std::string_view axis) {
  for (const plan::Axis& a : ran.trainer().models().front()->dist().mesh().axes) {
    if (a.name == axis) return a.size;
  }
  return 1;
}

bool legal(const StrategyInfo& entry, int ranks) { return !entry.axes.empty() || ranks == 1; }

// Properties of every strategy, on every number of ranks.
void for_all(const std::function<void(const StrategyInfo&, int)>& law) {
  for (const StrategyInfo& entry : strategies()) {
    for (const int ranks : {1, 2, 4, 8}) {
      if (!legal(entry, ranks)) continue;
      SCOPED_TRACE(entry.name + " on " + std::to_string(ranks) + " ranks");
      law(entry, ranks);
    }
  }
}

TEST(Strategies, EndOnEveryKindOfMachine) {
  const hardware::System real = hardware::find_system("h100_80g_nvl8");
  const hardware::System slow = machine({.flops_per_second = 1e12, .bytes_per_second = 1e8});
  const hardware::System fast = machine({.flops_per_second = 1e12, .bytes_per_second = 1e13});
  for_all([&](const StrategyInfo& entry, int ranks) {
    for (const hardware::System& system : {real, slow, fast, hardware::zero_cost_system()}) {
      for (const Bytes eager : {Bytes{0}, Bytes{1 << 30}}) {
        EXPECT_NO_THROW(StrategyRun(entry, size_for(ranks), system, eager)) << system.name;
      }
    }
  });
}

TEST(Strategies, LeaveInMemoryWhatTheyLoaded) {
  for_all([](const StrategyInfo& entry, int ranks) {
    const StrategyRun ran(entry, size_for(ranks), machine({}), {});
    std::int64_t parts = along(ran, "pp");
    for (const std::string& axis : entry.shards) parts *= along(ran, axis);
    const Bytes each{48 * kPuzzle.weight().count / parts};
    for (int rank = 0; rank < ran.ranks(); ++rank) {
      const Model& model = ran.model(rank);
      EXPECT_EQ(model.memory(), each) << model.status();
    }
  });
}

// What an event does of forward and the two halves of backward.
std::vector<EventKind> halves_of(EventKind kind) {
  switch (kind) {
    case EventKind::forward:
    case EventKind::backward_input:
    case EventKind::backward_weight:
      return {kind};
    case EventKind::backward:
      return {EventKind::backward_input, EventKind::backward_weight};
    default:
      return {};
  }
}

TEST(Strategies, TakeEverySampleThroughEveryLayerOnceEachWay) {
  for_all([](const StrategyInfo& entry, int ranks) {
    const StrategyRun ran(entry, size_for(ranks), machine({}), {});
    std::map<std::tuple<EventKind, int, int>, std::int64_t> times;  // kind, layer, sample
    std::int64_t losses = 0;
    for (int rank = 0; rank < ran.ranks(); ++rank) {
      for (const Event& event : ran.model(rank).log()) {
        if (event.kind == EventKind::loss) losses += event.samples.size();
        for (const int sample : event.samples.indices()) {
          for (const EventKind half : halves_of(event.kind)) ++times[{half, event.layer, sample}];
        }
      }
    }
    EXPECT_EQ(times.size(), std::size_t{3} * 16 * 32);
    for (const auto& [what, count] : times) EXPECT_EQ(count, along(ran, "tp"));
    EXPECT_EQ(losses, 32 * along(ran, "tp"));
  });
}

TEST(Strategies, UpdateEveryShardOfEveryLayerOnEveryRankThatHasIt) {
  for_all([](const StrategyInfo& entry, int ranks) {
    const StrategyRun ran(entry, size_for(ranks), machine({}), {});
    for (int rank = 0; rank < ran.ranks(); ++rank) {
      std::multiset<int> loaded;
      std::multiset<int> updated;
      for (const Event& event : ran.model(rank).log()) {
        if (event.kind == EventKind::load_weights) loaded.insert(event.layer);
        if (event.kind == EventKind::update) updated.insert(event.layer);
      }
      EXPECT_EQ(loaded, updated);
      EXPECT_EQ(static_cast<std::int64_t>(loaded.size()), 16 / along(ran, "pp"));
    }
  });
}

TEST(Strategies, ReceiveEverythingThatIsSentOnce) {
  for_all([](const StrategyInfo& entry, int ranks) {
    const StrategyRun ran(entry, size_for(ranks), machine({}), {});
    std::map<std::int64_t, int> open;
    for (int rank = 0; rank < ran.ranks(); ++rank) {
      for (const Event& event : ran.model(rank).log()) {
        if (event.kind == EventKind::send) open[event.match] += 1;
        if (event.kind == EventKind::recv) open[event.match] += 100;
      }
    }
    for (const auto& [match, count] : open) EXPECT_EQ(count, 101) << match;
    EXPECT_EQ(!open.empty(), along(ran, "pp") > 1);
  });
}

TEST(Strategies, AreTimedAlikeEachTime) {
  for_all([](const StrategyInfo& entry, int ranks) {
    const StrategyRun once(entry, size_for(ranks), hardware::find_system("h100_80g_nvl8"), {});
    const StrategyRun again(entry, size_for(ranks), hardware::find_system("h100_80g_nvl8"), {});
    EXPECT_EQ(once.time(), again.time());
    for (int rank = 0; rank < once.ranks(); ++rank) {
      EXPECT_EQ(once.model(rank).log(), again.model(rank).log()) << "rank " << rank;
    }
  });
}

// ---------------------------------------------------------------- memory

// So few tokens that the weights dominate.
TrainingSize with_short_samples(int ranks) {
  TrainingSize size = size_for(ranks);
  size.shape.block = 1;
  return size;
}

TEST(PeakMemory, FallsFromDdpOverZero1AndZero2ToFsdp) {
  for (const int ranks : {2, 4, 8}) {
    const auto peak = [&](const char* name) {
      return StrategyRun(name, with_short_samples(ranks), machine({})).peak();
    };
    EXPECT_LT(peak("zero1"), peak("ddp"));
    EXPECT_LT(peak("zero2"), peak("zero1"));
    EXPECT_LT(peak("fsdp"), peak("zero2"));
    EXPECT_LT(peak("weight_sharded"), peak("zero1"));
    EXPECT_LT(peak("fsdp"), peak("weight_sharded"));
  }
}

TEST(PeakMemory, OfDdpIsWeightsStatesGradientsAndTheActivationsOfOneLayer) {
  // At backward of layer 0: four of each of 16 layers; of 8 samples the input, the gradient of the
  // output, and that of the input.
  const TrainingSize size = with_short_samples(4);
  const std::int64_t samples = 8;
  EXPECT_EQ(StrategyRun("ddp", size, machine({})).peak(),
            64 * size.shape.weight() + 3 * samples * size.shape.activation());
}

// Both peak when all gradients are live: whole weights and gradients of 16 layers, and all
// optimizer states or 1 / `ranks` of them.
TEST(PeakMemory, OfZero1MissesTheOptimizerStatesOfTheOthers) {
  for (const int ranks : {2, 4, 8}) {
    const Bytes ddp = StrategyRun("ddp", with_short_samples(ranks), machine({})).peak();
    const Bytes zero1 = StrategyRun("zero1", with_short_samples(ranks), machine({})).peak();
    const std::int64_t states = 16 * kPuzzle.opt_state().count;
    EXPECT_EQ(ddp - zero1, Bytes{states - states / ranks});
  }
}

// The same moment, at which zero2 has one whole gradient and shards of the other 15.
TEST(PeakMemory, OfZero2MissesTheGradientsOfTheOthers) {
  for (const int ranks : {2, 4, 8}) {
    const Bytes zero1 = StrategyRun("zero1", with_short_samples(ranks), machine({})).peak();
    const Bytes zero2 = StrategyRun("zero2", with_short_samples(ranks), machine({})).peak();
    const std::int64_t gradients = 15 * kPuzzle.weight().count;
    EXPECT_EQ(zero1 - zero2, Bytes{gradients - gradients / ranks});
  }
}

TEST(PeakMemory, OfFsdpIsTwoWholeLayersAndTheirGradientsBesideTheShards) {
  for (const int ranks : {2, 4, 8}) {
    const TrainingSize size = with_short_samples(ranks);
    const Bytes weight = size.shape.weight();
    // At backward of layer 1, when layer 0 is gathered and gradient 2 is reduced: three shards of
    // each layer and gradients of the 13 layers above; the input of layers 0 and 1, the gradients
    // of the output and the input of layer 1.
    const Bytes shards{(16 * 3 + 13) * weight.count / ranks};
    const Bytes samples = 32 / ranks * size.shape.activation();
    EXPECT_EQ(StrategyRun("fsdp", size, machine({})).peak(), shards + 4 * weight + 4 * samples);
  }
}

// The same moment: as fsdp on the replicas, with weights that are split along tp.
TEST(PeakMemory, OfTensorParallelFsdpIsThatOfFsdpWithLayersSplitInTwo) {
  for (const int replicas : {2, 4}) {
    const TrainingSize size = with_short_samples(2 * replicas);
    const Bytes weight{size.shape.weight().count / 2};
    const Bytes shards{(16 * 3 + 13) * weight.count / replicas};
    const Bytes samples = 32 / replicas * size.shape.activation();
    EXPECT_EQ(StrategyRun("tensor_parallel_fsdp", size, machine({})).peak(),
              shards + 4 * weight + 4 * samples);
  }
}

TEST(ZeroStages, OfHybridShardMoreAndMoreAlongDp) {
  const auto run = [](int stage) {
    TrainingSize size = with_short_samples(16);
    size.zero_stage = stage;
    return StrategyRun("hybrid", size, machine({}));
  };
  Bytes before = run(0).peak();
  for (int stage = 1; stage <= 3; ++stage) {
    const StrategyRun ran = run(stage);
    EXPECT_LT(ran.peak(), before) << stage;
    before = ran.peak();
    // Of 8 layers an eighth of the weight and of its two moments.
    EXPECT_EQ(ran.model(15).memory(), Bytes{3 * kPuzzle.weight().count});
  }
}

TEST(ZeroStages, AreThoseOfHybrid) {
  const auto error_for = [](const char* name, int stage) {
    return diagnostic_of([&] {
      (void)training_for(find_strategy(name), {.layers = 4, .batch = 4, .zero_stage = stage});
    });
  };
  EXPECT_EQ(error_for("ddp", 1).code, "D622");
  EXPECT_EQ(error_for("ddp", 1).what, "`ddp` has no stage 1 of ZeRO");
  EXPECT_EQ(error_for("hybrid", 4).help, "take 0, 1, 2 or 3");
  EXPECT_EQ(error_for("hybrid", -1).why, "the stages are 0 to 3");
}

TEST(PeakMemory, OfGradientAccumulationFallsWithTheMicrobatches) {
  TrainingSize size = size_for(1);
  Bytes before{std::numeric_limits<std::int64_t>::max()};
  for (const int microbatches : {1, 2, 4, 8, 16, 32}) {
    size.microbatches = microbatches;
    const Bytes peak = StrategyRun("gradient_accumulation", size, machine({})).peak();
    EXPECT_LT(peak, before) << microbatches;
    before = peak;
  }
}

TEST(PeakMemory, Of1f1bDoesNotGrowWithTheMicrobatchesButThatOfGpipeDoes) {
  const auto peak = [](const char* name, int microbatches) {
    TrainingSize size{.ranks = 4, .layers = 8, .batch = microbatches, .shape = kPuzzle};
    size.microbatches = microbatches;
    return StrategyRun(name, size, machine({.flops_per_second = 1e12})).peak();
  };
  EXPECT_EQ(peak("1f1b", 8), peak("1f1b", 32));
  EXPECT_LT(peak("1f1b", 8), peak("gpipe", 8));
  // 24 microbatches more, each with the inputs of two layers and the output that was sent.
  EXPECT_EQ(peak("gpipe", 32) - peak("gpipe", 8), 72 * kPuzzle.activation());
}

TEST(PeakMemory, Of1f1bFallsFromStageToStage) {
  const StrategyRun ran("1f1b", size_for(8), machine({.flops_per_second = 1e12}));
  for (int rank = 1; rank < 7; ++rank) EXPECT_LT(ran.peak(rank), ran.peak(rank - 1));
}

// ---------------------------------------------------------------- time

// A second per layer and sample forward, two backward, whatever it takes to send a weight.
struct Clock {
  double sample = 1;  // forward of one sample
  double weight = 0;  // transfer of one whole weight
  [[nodiscard]] hardware::System system() const {
    const double flop = 2.0 * 512 * 512 * 256;
    return machine({.flops_per_second = flop / sample,
                    .bytes_per_second = weight > 0 ? 512 * 512 * 2 / weight : 0});
  }
};

TEST(Time, OfASingleRankIsThatOfItsWork) {
  EXPECT_NEAR(StrategyRun("single", size_for(1), Clock{}.system()).time(), 16 * 32 * 3, 1e-9);
  EXPECT_NEAR(StrategyRun("gradient_accumulation", size_for(1), Clock{}.system()).time(),
              16 * 32 * 3, 1e-9);
}

TEST(Time, OfDdpIsItsShareOfTheWorkAndASumPerLayer) {
  for (const int ranks : {2, 4, 8}) {
    const StrategyRun ran("ddp", size_for(ranks), Clock{.weight = 5}.system());
    EXPECT_NEAR(ran.time(), 16 * (3.0 * 32 / ranks + 5), 1e-9);
  }
}

TEST(Time, OfDdpOverlapHidesTheShorterOfBackwardAndSums) {
  const double forward = 16 * 4;
  // Eight samples per layer and rank backward; sums of 20 are longer, sums of 5 shorter.
  EXPECT_NEAR(StrategyRun("ddp_overlap", size_for(8), Clock{.weight = 20}.system()).time(),
              forward + 2 * 8 + 16 * 20, 1e-9);
  EXPECT_NEAR(StrategyRun("ddp_overlap", size_for(8), Clock{.weight = 5}.system()).time(),
              forward + 16 * 8 + 2 * 5, 1e-9);
}

TEST(Time, OfFsdpShowsOnlyTheFirstGatherAndTheLastReduction) {
  EXPECT_NEAR(StrategyRun("fsdp", size_for(8), Clock{.weight = 3}.system()).time(), 3 + 16 * 12 + 3,
              1e-9);
  // If a transfer is longer than backward, which is 8, the gathers are back to back: of all layers
  // forward and of all but the last backward. Exposed besides them are only the last layer forward,
  // the first one backward, and its reduction.
  const double slow = StrategyRun("fsdp", size_for(8), Clock{.weight = 20}.system()).time();
  EXPECT_NEAR(slow, 20 * (16 + 15) + 4 + 8 + 20, 1e-9);
}

TEST(Time, OfOverlapIsShorterWhereTransfersAreSlow) {
  for (const double weight : {1.0, 4.0, 16.0, 64.0}) {
    const hardware::System system = Clock{.weight = weight}.system();
    const auto time = [&](const char* name) {
      return StrategyRun(name, size_for(4), system).time();
    };
    EXPECT_LT(time("ddp_overlap"), time("ddp")) << weight;
    EXPECT_LT(time("fsdp"), time("weight_sharded")) << weight;
    EXPECT_LT(time("fsdp"), time("zero2")) << weight;
  }
}

TEST(Time, OfTensorParallelIsItsShareOfTheWork) {
  for (const int ranks : {2, 4, 8}) {
    EXPECT_NEAR(StrategyRun("tensor_parallel", size_for(ranks), Clock{}.system()).time(),
                16 * 32 * 3.0 / ranks, 1e-9);
  }
}

// ---------------------------------------------------------------- bubbles

struct Pipe {
  const char* name;
  int stages;
  int chunks;
};

// First oracle: the logged time of forward and backward, relative to the time of all ranks.
double bubble_of(const StrategyRun& ran) {
  double busy = 0;
  for (int rank = 0; rank < ran.ranks(); ++rank) {
    for (const Event& event : ran.model(rank).log()) {
      if (event.kind == EventKind::forward || event.kind == EventKind::backward ||
          event.kind == EventKind::backward_input || event.kind == EventKind::backward_weight)
        busy += event.duration.value;
    }
  }
  return 1 - busy / (ran.ranks() * ran.time());
}

TEST(Bubble, OfPipelinesIsThatOfTheTextbookWhereMessagesAreFree) {
  for (const int stages : {2, 4, 8}) {
    for (const Pipe& pipe : {Pipe{"gpipe", stages, 1}, Pipe{"1f1b", stages, 1},
                             Pipe{"interleaved", stages, 2}, Pipe{"interleaved", stages, 3}}) {
      for (const int groups : {1, 2, 3, 5}) {
        const int m = groups * stages;
        const TrainingSize size{.ranks = stages,
                                .layers = stages * pipe.chunks * 2,
                                .batch = 3 * m,
                                .microbatches = m,
                                .chunks = pipe.chunks,
                                .shape = kPuzzle};
        const StrategyRun ran(pipe.name, size, Clock{.sample = 0.7e-3}.system());
        const double textbook = (stages - 1.0) / (pipe.chunks * m + stages - 1.0);
        EXPECT_NEAR(bubble_of(ran), textbook, 1e-9)
            << pipe.name << ", " << stages << " stages, " << m << " microbatches, " << pipe.chunks
            << " chunks";
        EXPECT_NEAR(trace::summarize(ran.trainer().trace()).bubble.value_or(-1), textbook, 1e-9);
      }
    }
  }
}

// Forward and both halves of backward take the same time, t for the layers of a rank: ZB-H1 is idle
// for (p - 1) t, DualPipeV, whose chunks have half of the layers, for (p - 1) t / 2, and 1F1B for
// (p - 1) 3 t.
TEST(Bubble, OfZeroBubblePipelinesIsThatOfTheirPapersWhereMessagesAreFree) {
  for (const int stages : {2, 4, 8}) {
    for (const int m : {2 * stages, 2 * stages + 1, 5 * stages}) {
      for (const auto& [name, idle] : {std::pair{"zb_h1", 1.0}, std::pair{"dualpipev", 0.5}}) {
        const TrainingSize size{
            .ranks = stages, .layers = stages * 4, .batch = m, .microbatches = m, .shape = kPuzzle};
        const StrategyRun ran(name, size, Clock{.sample = 0.7e-3}.system());
        const double textbook = (stages - 1) * idle / (3.0 * m + (stages - 1) * idle);
        EXPECT_NEAR(bubble_of(ran), textbook, 1e-9) << name << ", " << stages << " stages, " << m;
        EXPECT_NEAR(trace::summarize(ran.trainer().trace()).bubble.value_or(-1), textbook, 1e-9);
      }
    }
  }
}

TEST(Bubble, IsThatOfTheTextbookAlsoForMicrobatchesThatStagesDoNotDivide) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for (const int m : {1, 3, 5, 7, 13}) {
      const TrainingSize size{
          .ranks = 4, .layers = 4, .batch = m, .microbatches = m, .shape = kPuzzle};
      EXPECT_NEAR(bubble_of(StrategyRun(name, size, Clock{}.system())), 3.0 / (m + 3), 1e-9)
          << name << m;
    }
  }
}

TEST(Bubble, OfPipelineFsdpAndHybridIsThatOf1f1b) {
  for (const char* name : {"pipeline_fsdp", "hybrid"}) {
    TrainingSize size = size_for(8);
    size.microbatches = 8;
    EXPECT_NEAR(bubble_of(StrategyRun(name, size, Clock{}.system())), 1.0 / 9, 1e-9) << name;
  }
}

// ---------------------------------------------------------------- sizes

TEST(FindStrategy, KnowsNamesAndAliases) {
  EXPECT_EQ(find_strategy("1f1b").name, "1f1b");
  EXPECT_EQ(find_strategy("zero3").name, "fsdp");
  EXPECT_EQ(find_strategy("tp").name, "tensor_parallel");
  EXPECT_EQ(find_strategy("one_f_one_b").name, "1f1b");
  EXPECT_EQ(find_strategy("pp").name, "gpipe");
  EXPECT_EQ(strategies().size(), 17);
  std::set<std::string> names;
  for (const StrategyInfo& entry : strategies()) {
    EXPECT_TRUE(names.insert(entry.name).second);
    for (const std::string& alias : entry.aliases) EXPECT_TRUE(names.insert(alias).second);
  }
}

TEST(FindStrategy, SaysWhatWasMeant) {
  const Diagnostic near = diagnostic_of([] { (void)find_strategy("fspd"); });
  EXPECT_EQ(near.code, "D624");
  EXPECT_EQ(near.what, "unknown strategy `fspd`");
  EXPECT_EQ(near.help, "did you mean `fsdp`?");
  const Diagnostic far = diagnostic_of([] { (void)find_strategy("magic"); });
  EXPECT_NE(far.why.find("1f1b"), std::string::npos);
}

std::vector<plan::Axis> mesh_of(const char* name, int ranks) {
  return world_for(find_strategy(name), TrainingSize{.ranks = ranks}).mesh;
}

TEST(WorldFor, GivesEveryStrategyItsAxes) {
  using Mesh = std::vector<plan::Axis>;
  EXPECT_EQ(mesh_of("ddp", 6), (Mesh{{"dp", 6}}));
  EXPECT_EQ(mesh_of("gpipe", 4), (Mesh{{"pp", 4}}));
  EXPECT_EQ(mesh_of("tp", 4), (Mesh{{"tp", 4}}));
  EXPECT_EQ(mesh_of("pipeline_fsdp", 1), (Mesh{{"pp", 1}, {"dp", 1}}));
  EXPECT_EQ(mesh_of("pipeline_fsdp", 8), (Mesh{{"pp", 2}, {"dp", 4}}));
  EXPECT_EQ(mesh_of("hybrid", 1), (Mesh{{"dp", 1}, {"pp", 1}, {"tp", 1}}));
  EXPECT_EQ(mesh_of("hybrid", 2), (Mesh{{"dp", 1}, {"pp", 2}, {"tp", 1}}));
  EXPECT_EQ(mesh_of("hybrid", 4), (Mesh{{"dp", 1}, {"pp", 2}, {"tp", 2}}));
  EXPECT_EQ(mesh_of("hybrid", 16), (Mesh{{"dp", 4}, {"pp", 2}, {"tp", 2}}));
}

TEST(WorldFor, TakesAMeshThatIsGiven) {
  const StrategyInfo& hybrid = find_strategy("hybrid");
  const std::vector<plan::Axis> mesh{{"dp", 1}, {"pp", 4}, {"tp", 4}};
  EXPECT_EQ(world_for(hybrid, {.mesh = mesh}).mesh, mesh);
  EXPECT_EQ(world_for(hybrid, {.ranks = 16, .mesh = mesh}).mesh, mesh);
  EXPECT_EQ(diagnostic_of([&] { (void)world_for(hybrid, {.ranks = 8, .mesh = mesh}); }).what,
            "mesh mismatch: the mesh has 16 ranks, not 8");
  EXPECT_EQ(diagnostic_of([&] { (void)world_for(hybrid, {.ranks = 8, .mesh = mesh}); }).help,
            "take pp=2, or 16 ranks");
  EXPECT_EQ(diagnostic_of([&] { (void)world_for(hybrid, {.mesh = {{"cp", 4}}}); }).why,
            "its mesh has dp, pp, tp");
  EXPECT_EQ(diagnostic_of([&] {
              (void)world_for(hybrid, {.mesh = {{"dp", 0}, {"pp", 4}, {"tp", 4}}});
            }).what,
            "invalid mesh: axis `dp` has size 0");
}

TEST(WorldFor, FillsInOneMissingAxis) {
  using Mesh = std::vector<plan::Axis>;
  const auto completed = [](const char* name, int ranks, Mesh mesh) {
    return world_for(find_strategy(name), {.ranks = ranks, .mesh = std::move(mesh)}).mesh;
  };
  EXPECT_EQ(completed("hybrid", 512, {{"pp", 4}, {"tp", 8}}),
            (Mesh{{"dp", 16}, {"pp", 4}, {"tp", 8}}));
  EXPECT_EQ(completed("hybrid", 512, {{"tp", 8}, {"pp", 4}}),
            (Mesh{{"dp", 16}, {"tp", 8}, {"pp", 4}}));
  EXPECT_EQ(completed("hybrid", 8, {{"dp", 2}, {"pp", 4}}),
            (Mesh{{"dp", 2}, {"pp", 4}, {"tp", 1}}));
  EXPECT_EQ(completed("hybrid", 8, {{"dp", 2}, {"tp", 2}}),
            (Mesh{{"dp", 2}, {"pp", 2}, {"tp", 2}}));
  EXPECT_EQ(completed("pipeline_fsdp", 8, {{"dp", 2}}), (Mesh{{"pp", 4}, {"dp", 2}}));
}

TEST(WorldFor, AsksForAxesThatDoNotFollow) {
  const auto error_for = [](int ranks, const std::vector<plan::Axis>& mesh) {
    return diagnostic_of(
        [&] { (void)world_for(find_strategy("hybrid"), {.ranks = ranks, .mesh = mesh}); });
  };
  EXPECT_EQ(error_for(0, {{"dp", 2}, {"pp", 2}}).help,
            "give all sizes, for instance dp=2,pp=2,tp=1");
  EXPECT_EQ(error_for(8, {{"tp", 2}}).what, "the mesh of `hybrid` lacks dp, pp");
  EXPECT_EQ(error_for(8, {{"tp", 2}}).help, "give all sizes, for instance dp=4,pp=1,tp=2");
  EXPECT_EQ(error_for(64, {{"pp", 8}}).help, "give all sizes, for instance dp=8,pp=8,tp=1");
  EXPECT_EQ(error_for(10, {{"tp", 2}, {"pp", 2}}).help, "take 8 or 12 ranks");
  EXPECT_EQ(error_for(8, {{"tp", 2}, {"tp", 4}}).what, "the mesh has two axes `tp`");
}

TEST(WorldFor, RefusesRanksThatFitNoMesh) {
  const auto error_for = [](const char* name, int ranks) {
    return diagnostic_of([&] { (void)world_for(find_strategy(name), {.ranks = ranks}); });
  };
  EXPECT_EQ(error_for("single", 2).code, "D622");
  EXPECT_EQ(error_for("single", 2).why, "it is for one rank");
  EXPECT_EQ(error_for("pipeline_fsdp", 5).help, "take 4 or 6 ranks, or give the mesh");
  EXPECT_EQ(error_for("hybrid", 6).help, "take 4 or 8 ranks, or give the mesh");
  EXPECT_EQ(error_for("tensor_parallel_fsdp", 5).why,
            "unless a mesh is given, it has layers split in 2");
  EXPECT_EQ(error_for("tensor_parallel_fsdp", 5).help, "take 4 or 6 ranks, or give the mesh");
  EXPECT_EQ(error_for("tensor_parallel_fsdp", 6).what,
            "4096 features cannot be divided among 6 ranks along `tp` and `dp`");
  EXPECT_EQ(error_for("ddp", -1).code, "D622");
  EXPECT_EQ(error_for("tp", 3).help, "take 4095 or 4098 features");
  EXPECT_EQ(error_for("fsdp", 3).help, "take 4095 or 4098 features");
  EXPECT_EQ(mesh_of("fsdp", 8192).front().size, 8192) << "a shard need not be whole rows";
}

TEST(DefaultLayers, DivideAmongStagesAndChunks) {
  const auto layers = [](const char* name, int ranks) {
    return default_layers(find_strategy(name), {.ranks = ranks}, 4);
  };
  EXPECT_EQ(layers("ddp", 8), 4);
  EXPECT_EQ(layers("1f1b", 2), 4);
  EXPECT_EQ(layers("1f1b", 3), 6);
  EXPECT_EQ(layers("1f1b", 8), 8);
  EXPECT_EQ(layers("interleaved", 8), 16);
  EXPECT_EQ(layers("hybrid", 64), 4);
  for (const StrategyInfo& entry : strategies()) {
    TrainingSize size{.ranks = entry.axes.empty() ? 1 : 8, .batch = 32};
    size.layers = default_layers(entry, size, 4);
    EXPECT_NO_THROW((void)training_for(entry, size)) << entry.name;
  }
}

TEST(TrainingFor, TakesOneSamplePerMicrobatchInPipelines) {
  const auto microbatches = [](const char* name, int ranks, int batch) {
    return training_for(find_strategy(name), {.ranks = ranks, .layers = 16, .batch = batch})
        .microbatches;
  };
  EXPECT_EQ(microbatches("gpipe", 4, 32), 32);
  EXPECT_EQ(microbatches("gpipe", 4, 6), 6);
  EXPECT_EQ(microbatches("gpipe", 4, 1), 1);
  EXPECT_EQ(microbatches("interleaved", 4, 4), 4);
  EXPECT_EQ(microbatches("interleaved", 4, 12), 12);
  EXPECT_EQ(microbatches("gradient_accumulation", 2, 24), 4);
  EXPECT_EQ(microbatches("hybrid", 8, 32), 16);
  EXPECT_EQ(microbatches("ddp", 8, 32), 1);
}

TEST(TrainingFor, RefusesNumbersThatDoNotFitAndNamesThoseThatDo) {
  const auto error_for = [](const char* name, const TrainingSize& size) {
    return diagnostic_of([&] { (void)training_for(find_strategy(name), size); });
  };
  const Diagnostic layers = error_for("gpipe", {.ranks = 4, .layers = 6, .batch = 8});
  EXPECT_EQ(layers.code, "D622");
  EXPECT_EQ(layers.what, "6 layers cannot be divided among 4 stages");
  EXPECT_EQ(layers.help, "take 4 or 8 layers");
  EXPECT_EQ(error_for("interleaved", {.ranks = 4, .layers = 12, .batch = 8}).help,
            "take 8 or 16 layers");
  EXPECT_EQ(error_for("ddp", {.ranks = 4, .batch = 6}).what,
            "6 samples cannot be divided among 4 ranks");
  EXPECT_EQ(error_for("ddp", {.ranks = 4, .batch = 1}).help, "take 4 samples");
  EXPECT_EQ(error_for("1f1b", {.ranks = 2, .batch = 6, .microbatches = 4}).help,
            "take 4 or 8 samples");
  EXPECT_EQ(
      error_for("interleaved", {.ranks = 4, .layers = 8, .batch = 12, .microbatches = 6}).help,
      "take 4 or 8 microbatches");
  EXPECT_EQ(error_for("interleaved", {.ranks = 4, .layers = 8, .batch = 2}).help, "take 4 samples");
  EXPECT_EQ(error_for("ddp", {.microbatches = 2}).why, "it takes all samples of a rank at once");
  EXPECT_EQ(error_for("gpipe", {.chunks = 2}).why, "its layers are not split into chunks");
  EXPECT_EQ(error_for("interleaved", {.chunks = -1}).code, "D622");
  EXPECT_EQ(error_for("gpipe", {.microbatches = -1}).code, "D622");
  EXPECT_EQ(error_for("single", {.layers = 0}).code, "D622");
  EXPECT_EQ(error_for("single", {.batch = 0}).code, "D622");
}

TEST(Pipelines, RefuseLayersThatStagesDoNotDivideAlsoWhereNobodyAskedBefore) {
  const Diagnostic d = diagnostic_of([] {
    Trainer trainer(World{.mesh = {{"pp", 2}}}, {.layers = 3, .batch = 2, .microbatches = 2});
    trainer.run(gpipe);
  });
  EXPECT_EQ(d.code, "D622");
  EXPECT_EQ(d.what, "3 layers cannot be divided among 2 stages");
}

}  // namespace
}  // namespace shiplap::strategy
