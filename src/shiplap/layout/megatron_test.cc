#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/layout/framework.h"

namespace shiplap::layout {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const workload::Model& shipped(const std::string& name) {
  static std::map<std::string, workload::Model> models;
  if (!models.contains(name)) models.emplace(name, workload::find_model(name).model);
  return models.at(name);
}

LayoutFile read(const std::string& text, const std::string& model = "llama3-70b") {
  return read_layout(Framework::megatron, text, shipped(model));
}

std::vector<std::string> errors(const std::string& text, const std::string& model = "llama3-70b") {
  std::vector<std::string> all;
  try {
    (void)read(text, model);
  } catch (const InputError& error) {
    for (const Diagnostic& d : error.diagnostics()) {
      all.push_back(d.code + " " + d.what + "; " + d.help);
    }
  }
  return all;
}

std::vector<std::string> warnings(const std::string& text,
                                  const std::string& model = "llama3-70b") {
  std::vector<std::string> all;
  for (const Diagnostic& d : read(text, model).warnings) {
    all.push_back(d.code + " " + d.what + "; " + d.why + (d.help.empty() ? "" : "; " + d.help));
  }
  return all;
}

// A command that is read without a finding, with `more` flags at its end.
std::string command(const std::string& more = "", const std::string& ranks = "512") {
  return "torchrun --nnodes " + ranks +
         " --nproc-per-node 1 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 512 "
         "--seq-length 8192 --bf16 " +
         more;
}

TEST(Megatron, ReadsACommandAsItIsPasted) {
  const LayoutFile file = read(R"(
$ CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG=WARN torchrun --nnodes=64 --nproc_per_node=8 \
    --master_addr "$MASTER_ADDR" pretrain_gpt.py \
    --tensor-model-parallel-size 8 --sequence-parallel \
    --pipeline-model-parallel-size=4 \
    --num-layers-per-virtual-pipeline-stage "5" \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --micro-batch-size 2   # sequences
    --global-batch-size 1024 --seq-length 8192 --max-position-embeddings 8192 \
    --num-layers 80 --hidden-size 8192 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --ffn-hidden-size 28672 \
    --recompute-activations --bf16 --fp8-format hybrid --fp8-recipe tensorwise \
    --save $CHECKPOINTS --lr 1.5e-4 --data-path 0.5 /data/a 0.5 /data/b --split '99,1,0' \
    2>&1 | tee log.txt
)");
  const Layout expected{.tensor = 8,
                        .sequence_parallel = true,
                        .pipeline = 4,
                        .schedule = PipelineSchedule::interleaved,
                        .chunks = 4,
                        .data = 16,
                        .sharding = Sharding::optimizer,
                        .micro_batch = 2,
                        .global_batch = 1024,
                        .seq_length = 8192,
                        .recompute = Recompute::selective,
                        .precision = {.fp8 = Fp8::current}};
  EXPECT_EQ(file.layout, expected);
  EXPECT_EQ(file.ranks_per_machine, 8);
  EXPECT_THAT(file.warnings, IsEmpty());
}

TEST(Megatron, ReadsAScriptWithVariables) {
  const LayoutFile file = read(R"sh(#!/bin/bash
#SBATCH --nodes=32
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
TP=${TP:-4}
PP=2; MBS=1
MODEL_ARGS=(
    --num-layers 32  # of Llama 3 8B
    --seq-length 4096
)
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES"
PARALLEL_ARGS="
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size ${PP}
"
PARALLEL_ARGS+=" --sequence-parallel"
srun torchrun $DISTRIBUTED_ARGS pretrain_gpt.py ${MODEL_ARGS[@]} "${MODEL_ARGS[@]}" \
    $PARALLEL_ARGS --micro-batch-size $MBS --bf16 --tensorboard-dir "$OUT/$(date)"
)sh",
                               "llama3-8b");
  EXPECT_EQ(file.layout.tensor, 4);
  EXPECT_EQ(file.layout.pipeline, 2);
  EXPECT_EQ(file.layout.data, 32);
  EXPECT_TRUE(file.layout.sequence_parallel);
  EXPECT_EQ(file.layout.global_batch, 32);
  EXPECT_EQ(file.ranks_per_machine, 8);
}

TEST(Megatron, TheRanksMayComeFromElsewhere) {
  const std::string flags = "--micro-batch-size 1 --seq-length 4096";
  const auto data = [&](const std::string& launcher) {
    return read(launcher + " pretrain_gpt.py " + flags).layout.data;
  };
  EXPECT_EQ(data("srun -N 4 --ntasks-per-node=8 python"), 32);
  EXPECT_EQ(data("mpirun -np 24 python"), 24);
  EXPECT_EQ(data("WORLD_SIZE=256 python"), 256);
  EXPECT_EQ(data("torchrun --nproc-per-node 8"), 8);
  EXPECT_EQ(read("--nnodes 2 --nproc-per-node 8 --rdzv-id 7 " + flags).layout.data, 16);
  const auto given =
      read_layout(Framework::megatron, "torchrun --nproc-per-node $GPUS pretrain_gpt.py " + flags,
                  shipped("llama3-70b"), 48);
  EXPECT_EQ(given.layout.data, 48);
  EXPECT_THAT(errors("pretrain_gpt.py " + flags),
              ElementsAre("D609 the number of ranks is not given; "
                          "add `--nnodes` and `--nproc-per-node`, or give the ranks"));
  EXPECT_THAT(errors("torchrun --nproc-per-node gpu pretrain_gpt.py " + flags),
              Contains(HasSubstr("`--nproc-per-node` must be 1 to 2^24, not `gpu`")));
}

TEST(Megatron, VariablesWithoutAValueAreErrorsWhereTheyMatter) {
  EXPECT_THAT(errors(command("--tensor-model-parallel-size $TP --save $OUT")),
              ElementsAre("D609 the value of `$TP` is not known; "
                          "write the value in its place, or assign it above"));
  EXPECT_THAT(errors(command("${MODEL_ARGS[@]}")),
              ElementsAre("D609 the value of `${MODEL_ARGS[@]}` is not known; "
                          "write the flags in its place, or assign it above"));
  EXPECT_THAT(errors(command("--save $OUT $OPTIONS")),
              ElementsAre(HasSubstr("the value of `$OPTIONS` is not known")));
  EXPECT_THAT(errors(command("--bf16 $(nproc)")), ElementsAre(HasSubstr("`$(nproc)`")));
}

TEST(Megatron, UnreadableTextsAreErrorsWithTheirPlace) {
  try {
    (void)read("torchrun\n  pretrain_gpt.py 'a");
    FAIL();
  } catch (const InputError& error) {
    const Diagnostic& d = error.diagnostics()[0];
    EXPECT_EQ(d.code, "D609");
    EXPECT_EQ(d.what, "this quote is not closed");
    EXPECT_EQ(d.where.line, 2);
    EXPECT_EQ(d.where.column, 19);
    EXPECT_EQ(d.where.excerpt, "  pretrain_gpt.py 'a");
  }
  EXPECT_THAT(errors("a \"b"), ElementsAre("D609 this quote is not closed; add a `\"`"));
  EXPECT_THAT(errors("A=(1 2"), ElementsAre("D609 this `(` is not closed; add a `)`"));
  EXPECT_THAT(errors("a ${B"), ElementsAre("D609 this `${` is not closed; add a `}`"));
  std::string doubling = "A0=0123456789\n";
  for (int k = 0; k < 30; ++k) {
    doubling += fmt::format("A{}=$A{}$A{}\n", k + 1, k, k);
  }
  EXPECT_THAT(errors(doubling), ElementsAre(HasSubstr("longer than 2^20 characters")));
  EXPECT_THAT(errors(command("--tensor-model-parallel-size 2 4")),
              ElementsAre("D609 `--tensor-model-parallel-size` has 2 values; give it one"));
  EXPECT_THAT(errors(command("--tensor-model-parallel-size two")),
              ElementsAre("D609 `--tensor-model-parallel-size` must be 1 to 2^24, not `two`; "
                          "give it a number"));
  EXPECT_THAT(errors(command("--sequence-parallel maybe")),
              ElementsAre("D609 `--sequence-parallel` must be true or false, not `maybe`; "
                          "use true or false"));
}

TEST(Megatron, FlagsThatDoNotExistAreNamed) {
  EXPECT_THAT(warnings(command("--tensor-model-paralel-size 8 --frobnicate")),
              ElementsAre("D608 `--frobnicate` is not understood; "
                          "it is assumed not to change the layout",
                          "D608 `--tensor-model-paralel-size` is not understood; it is assumed not "
                          "to change the layout; did you mean `--tensor-model-parallel-size`?"));
  EXPECT_THAT(warnings(command("--optimizer-cpu-offload")),
              ElementsAre("D608 `--optimizer-cpu-offload` is not modelled; "
                          "the optimizer is assumed to be on the GPU"));
  EXPECT_THAT(errors(command("--model-parallel-size 8")),
              ElementsAre("D606 Megatron-LM has no `--model-parallel-size` any more; "
                          "use `--tensor-model-parallel-size`"));
}

TEST(Megatron, MissingSizesAreAssumed) {
  EXPECT_THAT(warnings("torchrun --nproc-per-node 8 pretrain_gpt.py"),
              ElementsAre("D608 `--micro-batch-size` is missing; 1 is assumed",
                          "D608 `--seq-length` is missing; 4096 is assumed"));
}

TEST(Megatron, TheModelIsNotContradicted) {
  EXPECT_THAT(errors(command("--num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
                             "--group-query-attention --num-query-groups 4 "
                             "--ffn-hidden-size 14336 --num-experts 8")),
              ElementsAre("D606 `--num-layers 32`, but the model has 80 layers; "
                          "use `--num-layers 80`, or another model",
                          HasSubstr("the model has 8192 features"),
                          HasSubstr("the model has 64 heads of attention"),
                          HasSubstr("the model has 28672 features of the MLP"),
                          HasSubstr("the model has 0 experts"),
                          HasSubstr("the model has 8 heads of keys and values")));
  EXPECT_THAT(warnings(command("--vocab-size 128000")),
              ElementsAre("D607 `--vocab-size 128000`, but the model has 128256; "
                          "128256 is used"));
  EXPECT_THAT(
      warnings(command("--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
                       "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8"),
               "mixtral-8x7b"),
      IsEmpty());
}

TEST(Megatron, GroupsDivideTheRanks) {
  EXPECT_THAT(errors(command("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 5")),
              ElementsAre("D606 tensor 8 x context 1 x pipeline 5 must divide the 512 ranks; "
                          "use 40 ranks, or other sizes"));
  EXPECT_THAT(
      errors(command("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 5", "520")),
      AllOf(Contains(HasSubstr("global_batch 512 must be a multiple of micro_batch 1 x "
                               "data 13")),
            testing::SizeIs(1)));
}

TEST(Megatron, ContextHasFourMethods) {
  const auto method = [](const std::string& types) {
    return read(command("--context-parallel-size 2 --cp-comm-type " + types)).layout.context_method;
  };
  EXPECT_EQ(method("p2p"), ContextMethod::ring);
  EXPECT_EQ(method("a2a"), ContextMethod::ulysses);
  EXPECT_EQ(method("all_gather"), ContextMethod::all_gather);
  EXPECT_EQ(method("allgather"), ContextMethod::all_gather);
  const std::string context = "--context-parallel-size 2 --cp-comm-type ";
  EXPECT_THAT(warnings(command(context + "a2a+p2p")),
              ElementsAre("D608 `a2a+p2p` is not understood; a ring is assumed"));
  EXPECT_THAT(warnings(command(context + "a2a p2p")),
              ElementsAre("D608 layers differ in `--cp-comm-type`; "
                          "all layers are assumed to use a2a"));
  EXPECT_THAT(errors(command(context + "ring")),
              ElementsAre("D606 `--cp-comm-type` cannot be `ring`; "
                          "use p2p, all_gather, a2a or a2a+p2p"));
  EXPECT_THAT(errors("torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 "
                     "--seq-length 8194 --cp-comm-type a2a --context-parallel-size 2"),
              ElementsAre("D606 `--seq-length 8194` is not a multiple of 2 x context 2; "
                          "use one that is"));
}

TEST(Megatron, PipelinesAreDividedInSixWays) {
  const std::string pipeline = "--pipeline-model-parallel-size 4 ";
  const auto layers = [&](const std::string& flags) {
    const LayoutFile file = read(command(pipeline + flags));
    std::vector<std::int64_t> all;
    for (const Stage& stage : stages_of(file.layout, shipped("llama3-70b"))) {
      all.push_back(stage.layers);
    }
    return all;
  };
  EXPECT_THAT(layers(""), ElementsAre(20, 20, 20, 20));
  EXPECT_THAT(layers("--num-layers-per-virtual-pipeline-stage 10"),
              ElementsAre(10, 10, 10, 10, 10, 10, 10, 10));
  EXPECT_THAT(layers("--num-virtual-stages-per-pipeline-rank 2"),
              ElementsAre(10, 10, 10, 10, 10, 10, 10, 10));
  EXPECT_THAT(layers("--decoder-first-pipeline-num-layers 18"
                     " --decoder-last-pipeline-num-layers 16"),
              ElementsAre(18, 23, 23, 16));
  EXPECT_THAT(layers("--decoder-last-pipeline-num-layers 14"
                     " --num-virtual-stages-per-pipeline-rank 2"),
              ElementsAre(11, 11, 11, 7, 11, 11, 11, 7));
  EXPECT_THAT(layers("--pipeline-model-parallel-layout 'Et*18|t*22,|(tt)*10|t*20L'"),
              ElementsAre(18, 22, 20, 20));
  const std::string llama8 =
      "--pipeline-model-parallel-size 2 "
      "--account-for-embedding-in-pipeline-split ";
  EXPECT_THAT(errors(command(llama8)),
              ElementsAre("D606 pipeline 2 x chunks 1 must divide 81 layers, embedding and loss "
                          "included; use `--pipeline-model-parallel-size 1, 3, 9, 27 or 81`"));
  const Layout both = read(command(llama8 + "--account-for-loss-in-pipeline-split")).layout;
  EXPECT_THAT(both.stages, ElementsAre(Stage{.embedding = true, .layers = 40},
                                       Stage{.layers = 40, .head = true}));
}

TEST(Megatron, PipelinesThatAreDividedInTwoWaysAreErrors) {
  const std::string pipeline = "--pipeline-model-parallel-size 4 ";
  EXPECT_THAT(errors(command(pipeline + "--num-layers-per-virtual-pipeline-stage 10 "
                                        "--num-virtual-stages-per-pipeline-rank 2")),
              Contains("D606 --num-layers-per-virtual-pipeline-stage and "
                       "--num-virtual-stages-per-pipeline-rank exclude each other; "
                       "use --num-layers-per-virtual-pipeline-stage only"));
  EXPECT_THAT(errors(command(pipeline + "--pipeline-model-parallel-layout 'Et*20|t*20|t*20|t*20L' "
                                        "--decoder-first-pipeline-num-layers 20")),
              ElementsAre(HasSubstr("exclude each other")));
  EXPECT_THAT(errors(command(pipeline + "--num-layers-per-virtual-pipeline-stage 10 "
                                        "--decoder-first-pipeline-num-layers 20")),
              ElementsAre(HasSubstr("use `--num-virtual-stages-per-pipeline-rank`")));
  EXPECT_THAT(errors(command(pipeline + "--account-for-loss-in-pipeline-split "
                                        "--decoder-first-pipeline-num-layers 20")),
              ElementsAre(HasSubstr("excludes `--account-for-..`")));
  EXPECT_THAT(errors(command(pipeline + "--num-layers-per-virtual-pipeline-stage 3")),
              ElementsAre("D606 pipeline 4 x 3 layers of a virtual stage must divide the 80 "
                          "layers; use `--num-layers-per-virtual-pipeline-stage 1, 2, 4, 5, 10 or "
                          "20`"));
  EXPECT_THAT(errors(command("--pipeline-model-parallel-size 3 "
                             "--num-layers-per-virtual-pipeline-stage 3",
                             "513")),
              Contains(HasSubstr("use `--pipeline-model-parallel-size 1, 2, 4, 5, 8 or 10`")));
  EXPECT_THAT(errors(command(pipeline + "--decoder-first-pipeline-num-layers 21")),
              ElementsAre("D606 59 layers are left for 3 ranks of 1 chunks; "
                          "use numbers whose rest they divide"));
}

TEST(Megatron, WrittenStagesAreUnrolled) {
  const auto stages = [](const std::string& text) {
    return errors(command("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout '" +
                          text + "'"));
  };
  EXPECT_THAT(stages("Et*20|t*20|t*20|t*20L"), IsEmpty());
  EXPECT_THAT(stages("Et*20|t*20|t*20"),
              ElementsAre("D606 the layout has 3 stages, which pipeline 4 does not divide; "
                          "write out 4 or 8 stages"));
  EXPECT_THAT(stages("Et*20|t*20|t*20|t*20"),
              ElementsAre("D606 stage 3 has no head; write the head on stage 3 only"));
  EXPECT_THAT(stages("Et*20|t*20|x*20|t*20L"),
              ElementsAre("D609 `x` is no kind of layer; use E (embedding), t (layer), m (further "
                          "tokens), L (loss) and |"));
  for (const char* const text : {"Et*", "E(t*20", "Et*1000000000", "E((t))", "(t*9999)*9999"}) {
    EXPECT_THAT(stages(text), ElementsAre(HasSubstr("cannot be read; write `*` and a number")))
        << text;
  }
}

TEST(Megatron, DeepSeekHasAModuleForFurtherTokens) {
  const std::string groups = "--pipeline-model-parallel-size 16 --expert-model-parallel-size 32 ";
  // The layout of the issue's brief, as in Megatron-LM's documentation of the flag.
  const Layout written =
      read(command(groups + "--pipeline-model-parallel-layout 'Et*3|(tt|)*29,m|L' "
                            "--mtp-num-layers 1"),
           "deepseek-v3")
          .layout;
  ASSERT_EQ(written.stages.size(), 32U);
  EXPECT_EQ(written.chunks, 2);
  EXPECT_EQ(written.stages[0], (Stage{.embedding = true, .layers = 3}));
  EXPECT_EQ(written.stages[1], (Stage{.layers = 2}));
  EXPECT_EQ(written.stages[30], (Stage{.mtp = 1}));
  EXPECT_EQ(written.stages[31], (Stage{.head = true}));
  EXPECT_THAT(errors(command(groups + "--pipeline-model-parallel-layout 'Et*3|(tt|)*29,m|L' "
                                      "--mtp-num-layers 2"),
                     "deepseek-v3"),
              ElementsAre("D606 `--mtp-num-layers 2`, but the layout has 1 of them; "
                          "use `--mtp-num-layers 1`"));
  EXPECT_THAT(errors(command("--mtp-num-layers 2"), "deepseek-v3"),
              ElementsAre(HasSubstr("the model has 1 modules for further tokens")));
  EXPECT_THAT(
      warnings(command(), "deepseek-v3"),
      ElementsAre("D608 `--mtp-num-layers` is missing; the 1 modules for further tokens are "
                  "assumed not to be trained"));
  EXPECT_EQ(read(command(), "deepseek-v3").layout.stages[0].mtp, 0);
  EXPECT_THAT(read(command("--mtp-num-layers 1"), "deepseek-v3").layout.stages, IsEmpty());
}

TEST(Megatron, ExpertsAreDividedByTensorUnlessTheyAreTold) {
  const std::string groups =
      "--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4 ";
  EXPECT_EQ(read(command(groups), "mixtral-8x7b").layout.expert_tensor, 2);
  EXPECT_EQ(read(command(groups + "--expert-tensor-parallel-size 1"), "mixtral-8x7b")
                .layout.expert_tensor,
            1);
  EXPECT_EQ(read(command("--tensor-model-parallel-size 2")).layout.expert_tensor, 1);
}

TEST(Megatron, ShardingIsOfTheOptimizerOrFsdp) {
  const auto sharding = [](const std::string& flags) {
    return read(command(flags)).layout.sharding;
  };
  EXPECT_EQ(sharding(""), Sharding::none);
  EXPECT_EQ(sharding("--use-distributed-optimizer"), Sharding::optimizer);
  EXPECT_EQ(sharding("--use-megatron-fsdp"), Sharding::weights);
  EXPECT_EQ(sharding("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads"),
            Sharding::gradients);
  EXPECT_EQ(sharding("--use-torch-fsdp2"), Sharding::weights);
  EXPECT_EQ(sharding("--optimizer dist_muon"), Sharding::optimizer);
  EXPECT_EQ(read(command("--use-distributed-optimizer --num-distributed-optimizer-instances 4"))
                .layout.replicas,
            4);
  EXPECT_THAT(errors(command("--overlap-param-gather")),
              ElementsAre("D606 `--overlap-param-gather` needs `--use-distributed-optimizer`; "
                          "add `--use-distributed-optimizer`",
                          "D606 `--overlap-param-gather` needs `--overlap-grad-reduce`; "
                          "add `--overlap-grad-reduce`"));
  EXPECT_THAT(errors(command("--use-torch-fsdp2 --use-distributed-optimizer")),
              ElementsAre(HasSubstr("exclude each other")));
  EXPECT_THAT(errors(command("--optimizer adamw")),
              ElementsAre("D606 `--optimizer` cannot be `adamw` here; did you mean `adam`?"));
}

TEST(Megatron, PrecisionIsThatOfWeightsGradientsAndTheOptimizer) {
  const auto precision = [](const std::string& flags) {
    return read("torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 8192 " + flags)
        .layout.precision;
  };
  EXPECT_EQ(precision(""), (Precision{.weights = DType::f32}));
  EXPECT_EQ(precision("--bf16"), Precision{});
  EXPECT_EQ(precision("--bf16 --grad-reduce-in-bf16"), (Precision{.gradients = DType::bf16}));
  EXPECT_EQ(precision("--fp16"), (Precision{.weights = DType::f16, .gradients = DType::f16}));
  EXPECT_EQ(precision("--fp16 --accumulate-allreduce-grads-in-fp32"),
            (Precision{.weights = DType::f16}));
  EXPECT_EQ(precision("--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16 "
                      "--main-params-dtype fp16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"),
            (Precision{.gradients = DType::bf16, .master = DType::f16, .moments = DType::bf16}));
  EXPECT_EQ(precision("--bf16 --use-megatron-fsdp"), (Precision{.gradients = DType::bf16}));
  EXPECT_EQ(precision("--bf16 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp32 "
                      "--megatron-fsdp-main-params-dtype auto"),
            (Precision{.master = DType::bf16}));
  EXPECT_EQ(precision("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8").fp8, Fp8::mx);
  EXPECT_EQ(precision("--bf16 --fp8-recipe mxfp8").fp8, Fp8::none);
  EXPECT_EQ(precision("--bf16 --fp8-format hybrid").fp8, Fp8::delayed);
  EXPECT_THAT(errors(command("--fp16")), ElementsAre(HasSubstr("--bf16 and --fp16 exclude")));
  EXPECT_THAT(errors(command("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16")),
              Contains("D606 `--exp-avg-dtype` needs `--use-precision-aware-optimizer`; "
                       "add `--use-precision-aware-optimizer`"));
  EXPECT_THAT(warnings(command("--use-precision-aware-optimizer --exp-avg-dtype bf16")),
              ElementsAre("D608 the moments differ in their types; both are assumed to be f32"));
}

TEST(Megatron, RecomputationIsSelectiveOrFull) {
  EXPECT_EQ(read(command("--recompute-granularity full --recompute-method uniform "
                         "--recompute-num-layers 1"))
                .layout.recompute,
            Recompute::full);
  EXPECT_THAT(warnings(command("--recompute-granularity full")),
              ElementsAre("D607 full recomputation without `--recompute-method` and "
                          "`--recompute-num-layers`; Megatron-LM does not start without them"));
  EXPECT_THAT(warnings(command("--recompute-granularity full --recompute-method block "
                               "--recompute-num-layers 4")),
              ElementsAre("D608 `--recompute-num-layers 4` is not understood; "
                          "every layer is assumed to be recomputed on its own"));
  EXPECT_THAT(errors(command("--recompute-activations --recompute-method uniform")),
              ElementsAre(HasSubstr("selective recomputation has no `--recompute-method`")));
}

TEST(Megatron, OtherFlagsOfTheLayout) {
  EXPECT_THAT(warnings(command("--sequence-parallel")),
              ElementsAre("D607 `--sequence-parallel` with tensor 1; Megatron-LM turns it off"));
  EXPECT_TRUE(read(command("--use-tp-pp-dp-mapping")).layout.pipeline_fastest);
  EXPECT_EQ(read(command("--calculate-per-token-loss")).layout.loss, LossMean::tokens);
  EXPECT_EQ(read(command("--optimizer sgd")).layout.optimizer, Optimizer::sgd);
  EXPECT_THAT(errors(command("--max-position-embeddings 4096")),
              ElementsAre("D606 `--max-position-embeddings 4096` is less than `--seq-length 8192`; "
                          "use `--max-position-embeddings 8192`"));
  EXPECT_THAT(errors(command("--pipeline-model-parallel-size 4 "
                             "--num-virtual-stages-per-pipeline-rank 2 --global-batch-size 640")),
              Contains(HasSubstr("D606 interleaved passes the 5 microbatches in groups of "
                                 "pipeline = 4")));
}

TEST(Megatron, SomeLayoutsHaveNoWords) {
  const auto refused = [](const Layout& layout) -> std::string {
    try {
      (void)write_layout(Framework::megatron, layout, shipped("llama3-70b"));
    } catch (const InputError& error) {
      return error.diagnostics()[0].code + " " + error.diagnostics()[0].what;
    }
    return "";
  };
  EXPECT_EQ(refused({.pipeline = 2, .schedule = PipelineSchedule::gpipe}),
            "D606 megatron has no words for the schedule GPipe");
  EXPECT_EQ(refused({.precision = {.master = DType::bf16}}),
            "D606 megatron has no words for a master copy in bf16");
  EXPECT_EQ(refused({.precision = {.moments = DType::fp8_e5m2}}),
            "D606 megatron has no words for moments in fp8_e5m2");
  EXPECT_EQ(refused({.precision = {.gradients = DType::f16}}),
            "D606 megatron has no words for gradients in f16 of weights in bf16");
  EXPECT_THAT(refused({.tensor = 7}), HasSubstr("D606 tensor 7 must divide"));
}

}  // namespace
}  // namespace shiplap::layout
