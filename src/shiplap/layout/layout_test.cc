#include "shiplap/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::layout {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using workload::Model;

const Model& known(const std::string& name) {
  static std::map<std::string, Model> models;
  if (!models.contains(name)) models.emplace(name, workload::find_model(name).model);
  return models.at(name);
}

// 80 layers, 64 heads, 8 of them for keys and values, an MLP of 28,672.
Layout of_llama() {
  return {.tensor = 8,
          .sequence_parallel = true,
          .pipeline = 4,
          .data = 16,
          .sharding = Sharding::optimizer,
          .global_batch = 512,
          .seq_length = 8192};
}

std::vector<std::string> texts(const std::vector<Diagnostic>& found) {
  std::vector<std::string> all;
  for (const Diagnostic& d : found) {
    all.push_back(d.code + " " + d.what + (d.help.empty() ? "" : "; " + d.help));
  }
  return all;
}

// What check_layout finds once `change` is made to a sound layout.
std::vector<std::string> after(const std::function<void(Layout&)>& change,
                               const std::string& model = "llama3-70b", Layout layout = of_llama(),
                               std::int64_t ranks_per_machine = 8) {
  change(layout);
  return texts(check_layout(layout, known(model), ranks_per_machine));
}

// Also divides DeepSeek-V3: 61 layers, 128 heads, 256 experts of 2,048, 1 further token.
Layout of_deepseek() {
  Layout layout{.context = 2,
                .pipeline = 4,
                .data = 32,
                .sharding = Sharding::optimizer,
                .expert = 64,
                .global_batch = 1024};
  layout.stages = {{.embedding = true, .layers = 16},
                   {.layers = 16},
                   {.layers = 16},
                   {.layers = 13, .mtp = 1, .head = true}};
  return layout;
}

TEST(CheckLayout, FindsNothingInASoundLayout) {
  EXPECT_THAT(after([](Layout&) {}), IsEmpty());
  EXPECT_THAT(after([](Layout&) {}, "deepseek-v3", of_deepseek()), IsEmpty());
  EXPECT_EQ(of_llama().ranks(), 512);
  EXPECT_EQ(of_llama().microbatches(), 32);
  EXPECT_EQ(of_deepseek().expert_data(), 1);
}

TEST(CheckLayout, SizesMustBePositiveAndNotTooLarge) {
  EXPECT_THAT(after([](Layout& l) {
                l.tensor = 0;
                l.chunks = -1;
                l.seq_length = std::int64_t{1} << 60;
              }),
              ElementsAre("D606 tensor must be 1 to 2^24, not 0; use tensor 1",
                          "D606 chunks must be 1 to 2^24, not -1; use chunks 1",
                          HasSubstr("seq_length must be 1 to 2^24")));
  EXPECT_THAT(after([](Layout& l) { l.tensor = l.data = l.context = 1 << 20; }),
              ElementsAre(HasSubstr("more than 2^24 ranks")));
  EXPECT_THAT(texts(check_layout(of_llama(), Model{})),
              ElementsAre(HasSubstr("the model has no layers")));
}

TEST(CheckLayout, TensorDividesHeadsAndWidths) {
  EXPECT_THAT(after([](Layout& l) { l.tensor = 6; }, "llama3-70b", of_llama(), 0),
              Contains("D606 tensor 6 must divide the 64 heads of attention; "
                       "use tensor 1, 2, 4, 8, 16 or 32"));
  EXPECT_THAT(after([](Layout& l) { l.tensor = 3; }, "gpt2", {.seq_length = 1024}),
              Contains("D607 tensor 3 does not divide the vocabulary of 50257"));
  EXPECT_THAT(after([](Layout& l) { l.tensor = 7; }, "qwen2.5-7b", {}, 7),  // 28 heads
              Contains("D606 tensor 7 neither divides the 4 heads of keys and values nor is a "
                       "multiple; use 1, 2 or 4 parts"));
}

TEST(CheckLayout, FewKeysAndValuesAreRepeated) {
  EXPECT_THAT(after([](Layout& l) { l.tensor = 16; }, "llama3-70b", of_llama(), 16),
              ElementsAre("D607 tensor 16 is more than the 8 heads of keys and values"));
}

TEST(CheckLayout, SequenceParallelismNeedsTensorParallelism) {
  EXPECT_THAT(after([](Layout& l) { l.tensor = 1; }),
              ElementsAre("D606 sequence parallelism needs tensor > 1; "
                          "use tensor 2, or no sequence parallelism"));
  EXPECT_THAT(after([](Layout& l) { l.seq_length = 8188; }),
              ElementsAre("D606 sequence parallelism divides the 8188 tokens of a sequence by "
                          "tensor x context = 8; use seq_length 8184 or 8192"));
}

TEST(CheckLayout, ContextDividesSequencesAndUlyssesHeads) {
  EXPECT_THAT(after([](Layout& l) {
                l.context = 4;
                l.tensor = 1;
                l.sequence_parallel = false;
                l.seq_length = 4;
              }),
              ElementsAre("D606 context 4 divides the 4 tokens of a sequence into 8 parts; "
                          "use seq_length 8"));
  const auto ulysses = [](std::int64_t context) {
    return [context](Layout& l) {
      l.context = context;
      l.context_method = ContextMethod::ulysses;
    };
  };
  EXPECT_THAT(after(ulysses(8)),
              ElementsAre("D607 tensor 8 x context 8 is more than the 8 heads of keys and values"));
  EXPECT_THAT(after(ulysses(16)),
              ElementsAre("D606 ulysses divides the 8 heads of a tensor rank by context 16; "
                          "use context 1, 2, 4 or 8, or another context method"));
}

TEST(CheckLayout, PipelineAndChunksDivideTheLayers) {
  EXPECT_THAT(after([](Layout& l) { l.pipeline = 12; }),
              ElementsAre("D606 pipeline 12 must divide the 80 layers; "
                          "use pipeline 4, 5, 8, 10, 16 or 20, or write out the stages"));
  EXPECT_THAT(
      after([](Layout& l) {
        l.schedule = PipelineSchedule::interleaved;
        l.pipeline = 16;
        l.chunks = 4;
      }),
      ElementsAre("D606 pipeline 16 x chunks 4 must divide the 80 layers; "
                  "use pipeline 1, 2, 4, 5, 10 or 20 with chunks 4, or write out the stages"));
}

TEST(CheckLayout, SchedulesHaveTheirChunks) {
  EXPECT_THAT(after([](Layout& l) { l.chunks = 2; }),
              ElementsAre("D606 1F1B has 1 chunk on each rank, not 2; "
                          "use chunks 1, or the schedule interleaved"));
  const auto with = [](PipelineSchedule schedule, std::int64_t pipeline, std::int64_t chunks) {
    return [=](Layout& l) {
      l.schedule = schedule;
      l.pipeline = pipeline;
      l.chunks = chunks;
    };
  };
  EXPECT_THAT(after(with(PipelineSchedule::interleaved, 1, 1)),
              ElementsAre("D606 interleaved needs pipeline > 1; use pipeline 2, or 1F1B",
                          "D606 interleaved needs chunks > 1; use chunks 2, or 1F1B"));
  EXPECT_THAT(after(with(PipelineSchedule::dual_pipe_v, 1, 4)),
              ElementsAre("D606 DualPipeV has 2 chunks on each rank, not 4; use chunks 2",
                          "D606 DualPipeV needs pipeline > 1; use pipeline 2, or 1F1B"));
  EXPECT_THAT(after([&](Layout& l) { with(PipelineSchedule::interleaved, 5, 2)(l); }),
              ElementsAre("D606 interleaved passes the 32 microbatches in groups of pipeline = 5; "
                          "use global_batch 480 or 560"));
}

TEST(CheckLayout, WrittenStagesHaveAllLayersInOrder) {
  const auto stages = [](std::vector<Stage> written) {
    return after([&](Layout& l) { l.stages = written; }, "deepseek-v3", of_deepseek());
  };
  const Stage first{.embedding = true, .layers = 16};
  const Stage middle{.layers = 16};
  const Stage last{.layers = 13, .mtp = 1, .head = true};
  EXPECT_THAT(stages({first, middle, middle, last}), IsEmpty());
  EXPECT_THAT(stages({first, middle, middle, {.layers = 13, .head = true}}), IsEmpty());
  EXPECT_THAT(stages({first, middle, last}),
              ElementsAre("D606 there are 3 stages, but pipeline 4 x chunks 1 is 4; "
                          "write out 4 stages",
                          "D606 the stages have 45 layers, the model has 61; "
                          "write stages with 61 layers in total"));
  EXPECT_THAT(stages({middle, first, last, middle}),
              ElementsAre("D606 stage 3 has layers, but a module for further tokens is before "
                          "them; write these modules after all layers",
                          "D606 stage 0 has no embedding; write the embedding on stage 0 only",
                          "D606 stage 1 has the embedding; write the embedding on stage 0 only",
                          "D606 stage 2 has the head; write the head on stage 3 only",
                          "D606 stage 3 has no head; write the head on stage 3 only"));
  EXPECT_THAT(stages({first, {.layers = 32}, {}, {.layers = 13, .mtp = 2, .head = true}}),
              ElementsAre("D607 stage 2 is empty",
                          "D606 the stages have 2 modules for further tokens, the model has 1; "
                          "write stages with at most 1 of them"));
  EXPECT_THAT(stages({first, {.layers = -1}, middle, last}),
              ElementsAre(HasSubstr("stage 1 has -1 layers")));
}

TEST(CheckLayout, TheBatchIsAMultipleOfTheRanks) {
  EXPECT_THAT(after([](Layout& l) { l.global_batch = 500; }),
              ElementsAre("D606 global_batch 500 must be a multiple of micro_batch 1 x data 16; "
                          "use global_batch 496 or 512"));
  EXPECT_THAT(after([](Layout& l) { l.global_batch = 32; }),
              ElementsAre("D607 2 microbatches are fewer than the 4 ranks of the pipeline; "
                          "use a larger global_batch or a smaller micro_batch"));
  EXPECT_THAT(after([](Layout& l) { l.seq_length = 32768; }),
              ElementsAre("D607 seq_length 32768 is more than the 8192 positions of the model"));
}

TEST(CheckLayout, ShardsAreRepeatedEvenly) {
  EXPECT_THAT(after([](Layout& l) { l.replicas = 3; }),
              ElementsAre("D606 replicas 3 must divide the 16 data parallel ranks; "
                          "use replicas 1, 2, 4, 8 or 16"));
  EXPECT_THAT(after([](Layout& l) {
                l.sharding = Sharding::none;
                l.replicas = 2;
              }),
              ElementsAre(HasSubstr("replicas 2 repeat shards, but nothing is sharded")));
  EXPECT_THAT(after([](Layout& l) { l.replicas = 16; }),
              ElementsAre("D607 optimizer are sharded over 1 rank"));
  EXPECT_THAT(after([](Layout& l) { l.sharding = Sharding::weights; }),
              ElementsAre("D607 weights are sharded in a pipeline; shard the optimizer only"));
  EXPECT_THAT(after([](Layout& l) { l.replicas = 2; }, "deepseek-v3", of_deepseek()),
              ElementsAre("D606 replicas 2 must divide the 1 data parallel ranks of an expert; "
                          "use replicas 1"));
}

TEST(CheckLayout, ExpertsHaveGroupsOfTheSameRanks) {
  EXPECT_THAT(after([](Layout& l) { l.expert = 2; }),
              ElementsAre("D606 expert 2 divides experts, but the model has none; use expert 1"));
  const auto deepseek = [](const std::function<void(Layout&)>& change) {
    return after(change, "deepseek-v3", of_deepseek());
  };
  EXPECT_THAT(deepseek([](Layout& l) { l.expert = 48; }),
              ElementsAre("D606 expert 48 must divide the 256 experts; "
                          "use expert 8, 16, 32, 64, 128 or 256",
                          "D606 expert 48 x expert_tensor 1 must divide tensor x context x data = "
                          "64; use expert 2, 4, 8, 16, 32 or 64"));
  EXPECT_THAT(deepseek([](Layout& l) { l.expert_tensor = 3; }),
              ElementsAre("D606 expert_tensor 3 must divide the 2048 features of an expert; "
                          "use expert_tensor 1, 2, 4, 8, 16 or 32",
                          "D606 expert 64 x expert_tensor 3 must divide tensor x context x data = "
                          "64; use expert_tensor 1"));
  EXPECT_THAT(deepseek([](Layout& l) { l.tensor = 2; }),
              ElementsAre("D606 tensor 2 with experts needs sequence parallelism; "
                          "use sequence parallelism or tensor 1"));
}

TEST(CheckLayout, PrecisionIsOfFloatingPointTypes) {
  EXPECT_THAT(after([](Layout& l) {
                l.precision.weights = DType::i8;
                l.precision.gradients = DType::fp8_e4m3;
                l.precision.moments = DType::fp8_e4m3;
              }),
              ElementsAre("D606 weights cannot be i8; use weights f32, bf16 or f16",
                          "D606 gradients cannot be fp8_e4m3; use gradients f32, bf16 or f16"));
  EXPECT_THAT(
      after([](Layout& l) { l.precision = {.weights = DType::f32, .master = DType::bf16}; }),
      ElementsAre("D606 master bf16 is less precise than weights f32; use master f32"));
}

TEST(CheckLayout, GroupsFitMachines) {
  EXPECT_THAT(after([](Layout&) {}, "llama3-70b", of_llama(), 4),
              ElementsAre("D607 a tensor group of 8 ranks spans machines of 4; "
                          "use tensor 1, 2 or 4"));
  EXPECT_THAT(after(
                  [](Layout& l) {
                    l.pipeline = 5;
                    l.data = 1;
                    l.sharding = Sharding::none;
                  },
                  "llama3-70b", of_llama(), 16),
              ElementsAre("D607 40 ranks do not fill machines of 16"));
}

// Any layout at all, of small numbers, most of them impossible.
Layout random_layout(Random& random) {
  const auto size = [&] { return random.between(1, 13); };
  Layout l{.tensor = size(),
           .sequence_parallel = random.chance(),
           .context = size(),
           .context_method = static_cast<ContextMethod>(random.between(0, 3)),
           .pipeline = size(),
           .schedule = static_cast<PipelineSchedule>(random.between(0, 5)),
           .chunks = random.between(1, 4),
           .data = size(),
           .replicas = random.between(1, 4),
           .sharding = static_cast<Sharding>(random.between(0, 4)),
           .expert = size(),
           .expert_tensor = random.between(1, 4),
           .micro_batch = random.between(1, 4),
           .global_batch = random.between(1, 500),
           .seq_length = random.between(1, 9000)};
  return l;
}

void set_field(Layout& layout, const std::string& field, std::int64_t value) {
  const std::map<std::string, std::int64_t*> fields = {
      {"tensor", &layout.tensor},
      {"context", &layout.context},
      {"pipeline", &layout.pipeline},
      {"chunks", &layout.chunks},
      {"replicas", &layout.replicas},
      {"expert", &layout.expert},
      {"expert_tensor", &layout.expert_tensor},
      {"global_batch", &layout.global_batch},
      {"seq_length", &layout.seq_length},
  };
  *fields.at(field) = value;
}

// Without its numbers, which change with the layout.
std::string words(std::string text) {
  std::erase_if(text, [](char c) { return c >= '0' && c <= '9'; });
  return text;
}

bool has_error_like(const std::vector<Diagnostic>& found, const std::string& what) {
  return std::ranges::any_of(found,
                             [&](const Diagnostic& d) { return words(d.what) == words(what); });
}

TEST(CheckLayout, EveryValueThatAnErrorNamesFixesIt) {
  Random random(20261119);
  const std::regex advice(
      "use (\\w+) ([0-9]+(?:, [0-9]+)*(?: or [0-9]+)?)(?: (?:with|and) (\\w+) ([0-9]+))?.*");
  const std::regex number("[0-9]+");
  int followed = 0;
  for (int k = 0; k < 2000; ++k) {
    const Model& model = known(random.chance() ? "llama3-8b" : "mixtral-8x7b");
    const Layout layout = random_layout(random);
    for (const Diagnostic& d : check_layout(layout, model)) {
      std::smatch match;
      if (d.code != "D606" || !std::regex_match(d.help, match, advice)) continue;
      const std::string values = match[2];
      for (auto it = std::sregex_iterator(values.begin(), values.end(), number);
           it != std::sregex_iterator(); ++it) {
        Layout fixed = layout;
        set_field(fixed, match[1], std::stoll(it->str()));
        if (match[3].matched) set_field(fixed, match[3], std::stoll(match[4]));
        EXPECT_FALSE(has_error_like(check_layout(fixed, model), d.what)) << render(d) << it->str();
        ++followed;
      }
    }
  }
  EXPECT_GT(followed, 5000);
}

TEST(StagesOf, AnEvenSplitHasEmbeddingFirstAndHeadLast) {
  const Layout llama = of_llama();
  EXPECT_THAT(stages_of(llama, known("llama3-70b")),
              ElementsAre(Stage{.embedding = true, .layers = 20}, Stage{.layers = 20},
                          Stage{.layers = 20}, Stage{.layers = 20, .head = true}));
  EXPECT_EQ(stages_of(of_deepseek(), known("deepseek-v3")), of_deepseek().stages);
  EXPECT_THAT(stages_of({}, known("deepseek-v3")),
              ElementsAre(Stage{.embedding = true, .layers = 61, .mtp = 1, .head = true}));
}

TEST(OptimizerBytes, AreThoseOfMomentsAndTheCopy) {
  EXPECT_EQ(optimizer_bytes({}), 12);
  EXPECT_EQ(optimizer_bytes({.precision = {.weights = DType::f32}}), 8);
  EXPECT_EQ(optimizer_bytes({.optimizer = Optimizer::sgd}), 8);
  EXPECT_EQ(optimizer_bytes({.optimizer = Optimizer::muon}), 8);
  EXPECT_EQ(optimizer_bytes({.precision = {.master = DType::bf16, .moments = DType::bf16}}), 4);
  EXPECT_EQ(optimizer_bytes({.precision = {.master = DType::f16, .moments = DType::fp8_e4m3}}), 4);
}

TEST(Names, AreThoseOfTheField) {
  EXPECT_EQ(name(ContextMethod::all_gather), "all_gather");
  EXPECT_EQ(name(ContextMethod::ring), "ring");
  EXPECT_EQ(name(PipelineSchedule::zero_bubble), "zero bubble");
  EXPECT_EQ(name(PipelineSchedule::gpipe), "GPipe");
  EXPECT_EQ(name(Recompute::none), "none");
  EXPECT_EQ(name(Recompute::selective), "selective");
  EXPECT_EQ(name(Recompute::full), "full");
  EXPECT_EQ(name(Sharding::none), "none");
  EXPECT_EQ(name(Sharding::gradients), "gradients");
}

}  // namespace
}  // namespace shiplap::layout
