// Texts as people paste them: whole scripts, cut down to the lines that once were misread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/layout/framework.h"

namespace shiplap::layout {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

workload::Model llama() { return workload::find_model("llama3-8b").model; }

LayoutFile pasted(const std::string& text, Framework framework = Framework::megatron) {
  return read_layout(framework, text, llama());
}

std::vector<std::string> pasted_errors(const std::string& text,
                                       Framework framework = Framework::megatron) {
  std::vector<std::string> all;
  try {
    (void)pasted(text, framework);
  } catch (const InputError& error) {
    for (const Diagnostic& d : error.diagnostics()) {
      all.push_back(d.code + " " + d.what + "; " + d.help);
    }
  }
  return all;
}

std::vector<std::string> pasted_warnings(const std::string& text,
                                         Framework framework = Framework::megatron) {
  std::vector<std::string> all;
  for (const Diagnostic& d : pasted(text, framework).warnings) {
    all.push_back(d.code + " " + d.what + "; " + d.why);
  }
  return all;
}

// A command that `before` prepares, with `flags`.
std::string after(const std::string& before, const std::string& flags) {
  return before +
         "\ntorchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --seq-length "
         "4096 --bf16 " +
         flags + "\n";
}

std::int64_t tensor_after(const std::string& before, const std::string& flags = "$ARGS") {
  return pasted(after(before, flags)).layout.tensor;
}

// examples/mixtral/train_mixtral_8x7b_distributed.sh of Megatron-LM.
TEST(Pasted, DefaultsHaveQuotesVariablesAndArithmetic) {
  const Layout layout = pasted(R"sh(
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"2"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
PP_SIZE=${PP_SIZE:-$((WORLD_SIZE / 8))}
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py --bf16 \
  --micro-batch-size ${MBS:-1} --seq-length 4096 --pipeline-model-parallel-size $PP_SIZE \
  --tensor-model-parallel-size $(( ($NNODES > 1) ? 2 * (1 + 1) : 1 )))sh")
                            .layout;
  EXPECT_EQ(layout.pipeline, 2);
  EXPECT_EQ(layout.tensor, 4);
  EXPECT_EQ(layout.data, 2);
  EXPECT_THAT(pasted_errors(after("", "--tensor-model-parallel-size $((N + 1))")),
              ElementsAre(HasSubstr("D609 the value of `$((N + 1))` is not known")));
  for (const char* const wrong : {"1 / 0", "2 +", "(1", "1 2", "9223372036854775807 + 1", "--"}) {
    EXPECT_THAT(
        pasted_errors(after("", std::string("--tensor-model-parallel-size $((") + wrong + "))")),
        testing::SizeIs(1))
        << wrong;
  }
}

// examples/llama/train_llama3_8b_h100_fp8.sh of Megatron-LM.
TEST(Pasted, TheCommandThatTrainsIsFound) {
  const Layout layout = pasted(R"sh(
PRETRAIN_SCRIPT_PATH="pretrain_gpt.py"
mkdir -p "$(dirname "$CHECKPOINT_PATH")"
python tools/preprocess_data.py --workers 8
if [ ! -f "$PRETRAIN_SCRIPT_PATH" ]; then
    echo "Error: pretrain_gpt.py not found at $PRETRAIN_SCRIPT_PATH"
    exit 1
fi
ARGS="--tensor-model-parallel-size 4 --seq-length 4096 --micro-batch-size 1"
echo torchrun pretrain_gpt.py $ARGS
torchrun --nproc_per_node 8 "$PRETRAIN_SCRIPT_PATH" $ARGS
set +x
)sh")
                            .layout;
  EXPECT_EQ(layout.tensor, 4);
  EXPECT_EQ(layout.data, 2);
  for (const char* const launcher :
       {"python -m torch.distributed.run --nproc_per_node 8 pretrain_gpt.py",
        "python3 -m torch.distributed.launch --nproc_per_node=8 pretrain_gpt.py",
        "torchrun --nproc_per_node 8 -m pretrain_gpt",
        "mpirun -np $((2 * 4)) -x A=1 python a.py"}) {
    EXPECT_EQ(pasted(std::string(launcher) + " --tensor-model-parallel-size 2").layout.data, 4)
        << launcher;
  }
}

TEST(Pasted, RedirectionsAreNoValues) {
  for (const char* const end : {"2>&1 | tee log.txt", "> log.txt 2>&1 &", "&> $OUTPUT/training.log",
                                ">>log 2> >(tee errors)", "</dev/null", "|& tee log", ")"}) {
    EXPECT_EQ(tensor_after("", std::string("--tensor-model-parallel-size 2 ") + end), 2) << end;
    EXPECT_THAT(pasted_errors(after("", std::string("--sequence-parallel ") + end)), IsEmpty())
        << end;
  }
}

TEST(Pasted, BlanksAfterABackslashDoNotMatter) {
  EXPECT_EQ(tensor_after("", "\\ \n --tensor-model-parallel-size 2 \\\t\n --sequence-parallel"), 2);
}

TEST(Pasted, OnlyTheRightBranchIsRead) {
  const std::string two = "ARGS='--tensor-model-parallel-size 2'\n";
  const std::string four = "ARGS='--tensor-model-parallel-size 4'\n";
  const auto choose = [&](const std::string& before, const std::string& condition) {
    return tensor_after(before + "\nif " + condition + "; then\n" + two + "else\n" + four + "fi");
  };
  EXPECT_EQ(choose("DTYPE=fp8", "[[ \"$DTYPE\" == \"fp8\" ]]"), 2);
  EXPECT_EQ(choose("DTYPE=bf16", "[ $DTYPE = fp8 ]"), 4);
  EXPECT_EQ(choose("N=4", "[ $N -gt 1 ] && [ $N -le 4 ]"), 2);
  EXPECT_EQ(choose("N=4", "(( N > 4 ))"), 4);
  EXPECT_EQ(choose("N=4", "! [[ $N == 4 || $N == 5 ]]"), 4);
  EXPECT_EQ(choose("", "[ -z ${MP_VP} ]"), 2);
  EXPECT_EQ(choose("", "[ -n \"$COMM_MODE\" ]"), 4);
  EXPECT_EQ(choose("", "[ \"$OUTPUT\" == \"\" ]"), 2);
  EXPECT_EQ(choose("FP8=true", "$FP8"), 2);
  EXPECT_EQ(choose("NAME=llama-8b", "[[ $NAME == *8b ]]"), 2);
  EXPECT_EQ(tensor_after("A=2\nif [ $A = 1 ]; then\n" + four + "elif [ $A = 2 ]; then\n" + two +
                         "elif [ $A = 2 ]; then\n" + four + "else\n" + four + "fi"),
            2);
  EXPECT_EQ(tensor_after(two + "SP=0\n[ $SP = 1 ] && " + four + "[ $SP = 0 ] || " + four), 2);
  EXPECT_EQ(tensor_after("A=2;B=2;if [ $A = $B ];then\n" + two + "fi;" + four), 4);
  EXPECT_EQ(choose("", "[ \"${FP8}\" = 1 ]"), 4);
  EXPECT_EQ(choose("", "[ $FP8 != 1 ]"), 2);
  // Left out, so unset.
  EXPECT_EQ(tensor_after("if [ a = b ]; then\nOPTIONS=--sequence-parallel\nfi", "$OPTIONS"), 1);
}

TEST(Pasted, UnknownConditionsAreWarnings) {
  EXPECT_THAT(pasted_warnings(after("if [ $1 = fast ]; then\nTP=4\nelse\nTP=2\nfi",
                                    "--tensor-model-parallel-size $TP")),
              ElementsAre("D608 whether `[ $1 = fast ]` is true is not known; its branches are all "
                          "read, and the last assignment counts"));
  EXPECT_THAT(pasted_warnings(
                  after("if grep -q H100 gpus; then TP=4; fi", "--tensor-model-parallel-size $TP")),
              ElementsAre("D608 whether `grep -q H100 gpus` is true is not known; its branch is "
                          "read"));
  EXPECT_THAT(pasted_warnings(after("if [ ! -f x ]; then\n  echo no; exit 1\nfi", "")), IsEmpty());
}

TEST(Pasted, CasesAndLoopsOverArguments) {
  const std::string models =
      "case $MODEL in\n  70b|\"70B\")\n    TP=8\n    ;;\n  8b) TP=2;;\n  *)\n"
      "    TP=1\nesac\n";
  const std::string flag = "--tensor-model-parallel-size $TP";
  EXPECT_EQ(tensor_after("MODEL=8b\n" + models, flag), 2);
  EXPECT_EQ(tensor_after("MODEL=70B\n" + models, flag), 8);
  EXPECT_EQ(tensor_after("MODEL=1b\n" + models, flag), 1);
  EXPECT_THAT(pasted_errors(after("TP=1\n" + models, flag)),
              ElementsAre(HasSubstr("D609 the value of `$TP` is not known")));
  // examples/gptoss/02_train.sh of Megatron-LM.
  EXPECT_EQ(
      tensor_after("TP=4\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    --tp)\n      TP=\"$2\"\n"
                   "      shift 2\n      ;;\n    *) echo \"Unknown: $1\"; exit 1 ;;\n  esac\n"
                   "done",
                   flag),
      4);
  EXPECT_EQ(pasted("for k in 1 2; do\ntorchrun --nproc-per-node 8 a.py --bf16\ndone").layout.data,
            8);
  // Words of a sentence.
  EXPECT_EQ(tensor_after("if it hangs:\ncase closed\n", "--tensor-model-parallel-size 2"), 2);
}

// examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh of Megatron-LM.
TEST(Pasted, ScriptsInsideScriptsAreRead) {
  const LayoutFile file = pasted(R"sh(
ARGS=(
    --tensor-model-parallel-size 2
    --micro-batch-size 1 --seq-length 4096
)
ARGS=(
    "${ARGS[@]}"
    --bf16
)
TRAINING_CMD="
cd ${MEGATRON_PATH};
export PYTHONPATH=${MEGATRON_PATH}:${PYTHONPATH};
python ${MEGATRON_PATH}/pretrain_gpt.py ${ARGS[@]}"
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
srun --mpi=pmix -l bash -x -c "${TRAINING_CMD}" 2>&1 | tee ${LOGS}/\${SLURM_JOB_ID}.log
EOF
)sh");
  EXPECT_EQ(file.layout.tensor, 2);
  EXPECT_EQ(file.layout.data, 16);
  EXPECT_EQ(file.layout.precision, Precision{});
  EXPECT_EQ(file.ranks_per_machine, 8);
  EXPECT_EQ(pasted("CMD=\"torchrun --nproc_per_node 8 a.py\n --tensor-model-parallel-size 2\"\n"
                   "echo $CMD\neval \"$CMD\"")
                .layout.tensor,
            2);
  EXPECT_EQ(tensor_after("cat > a.json <<EOF\n{\"it's\": 1}\nEOF", "--bf16"), 1);
}

TEST(Pasted, TasksOfTheSchedulerStartLaunchers) {
  // multinode_trainer.slurm of torchtitan.
  const std::string text = R"sh(#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --nodes=4
#SBATCH --gpus-per-task=8
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
echo Node IP: $head_node_ip
dcgmi profile --pause
srun torchrun --nnodes 4 --nproc_per_node 8 --rdzv_id 101 --rdzv_endpoint "$head_node_ip:29500" \
  -m torchtitan.train --parallelism.tensor_parallel_degree 8 "$@"
dcgmi profile --resume
)sh";
  const LayoutFile file = pasted(text, Framework::torchtitan);
  EXPECT_EQ(file.layout.ranks(), 32);
  EXPECT_EQ(file.layout.tensor, 8);
  EXPECT_EQ(file.ranks_per_machine, 8);
}

// examples/llama3_1/run_mcore_llama3_1.sh of Pai-Megatron-Patch.
TEST(Pasted, OnlyTheUnknownFlagIsUnknown) {
  const std::string text = R"sh(
GPUS=`python -c "import torch; print(torch.cuda.device_count())"`
ARGS="--nproc_per_node $GPUS --nnodes 1"
OPTIONS=" --tensor-model-parallel-size 2 \
  --save $OUT/$NAME"
CMD="torchrun $ARGS pretrain_gpt.py ${OPTIONS} --micro-batch-size 1 --seq-length 4096"
eval ${CMD}
)sh";
  EXPECT_THAT(pasted_errors(text),
              ElementsAre(HasSubstr("D609 the value of ``python -c \"import")));
  const LayoutFile file = read_layout(Framework::megatron, text, llama(), 8);
  EXPECT_EQ(file.layout.tensor, 2);
}

TEST(Pasted, VariablesOfSlurmComeFromItsLines) {
  EXPECT_EQ(pasted("#SBATCH --nodes=4\n#SBATCH --gpus-per-node 8\n"
                   "mpirun -np $((SLURM_JOB_NUM_NODES * SLURM_GPUS_PER_NODE)) python a.py --bf16")
                .layout.data,
            32);
  EXPECT_EQ(pasted("#SBATCH -N 2 --ntasks-per-node=4\nsrun python a.py --bf16").layout.data, 8);
}

TEST(Pasted, TextsWithoutACommandAreErrors) {
  EXPECT_THAT(pasted_errors("MODEL_OPTIONS=\" --bf16 --tensor-model-parallel-size 4\"\n"),
              ElementsAre("D609 no command has flags, only the variable MODEL_OPTIONS; "
                          "add the command, as in `torchrun pretrain_gpt.py $MODEL_OPTIONS`"));
  EXPECT_THAT(pasted_errors("tensor_model_parallel_size: 4\n"),
              ElementsAre("D609 there is no flag in this text; "
                          "pass the command that trains, or its flags"));
}

TEST(Pasted, OverridesAreNoFlags) {
  EXPECT_THAT(pasted_errors("torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b "
                            "model.tensor_model_parallel_size=4 train.micro_batch_size=1"),
              ElementsAre("D609 `model.tensor_model_parallel_size=4` is an override, not a flag; "
                          "write `--tensor-model-parallel-size 4`",
                          "D609 `train.micro_batch_size=1` is an override, not a flag; "
                          "write `--micro-batch-size 1`"));
}

// examples/rl/model_configs/qwen3_30b_a3b_moe.sh of Megatron-LM.
TEST(Pasted, TheWidthOfLayersThatAreNotThereDoesNotMatter) {
  const workload::Model qwen = workload::find_model("qwen3-30b-a3b").model;
  const std::string text =
      "torchrun --nproc-per-node 8 pretrain_gpt.py --micro-batch-size 1 --seq-length 8192 "
      "--num-experts 128 --ffn-hidden-size 6144 ";
  EXPECT_THAT(read_layout(Framework::megatron, text + "--moe-ffn-hidden-size 768", qwen).warnings,
              IsEmpty());
  // Here it is that of the experts.
  EXPECT_THROW((void)read_layout(Framework::megatron, text, qwen), InputError);
}

TEST(Pasted, OtherFilesAreNotRead) {
  const std::string assumed =
      "defaults of torchtitan are assumed for what the command does not "
      "say";
  for (const auto& [command, name] : std::vector<std::pair<std::string, std::string>>{
           {"CONFIG_FILE=llama3_8b.toml NGPU=8 ./run_train.sh", "CONFIG_FILE"},
           {"NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh", "CONFIG"},
           {"torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file a.toml",
            "job.config_file"},
           {"torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b",
            "config"}}) {
    EXPECT_THAT(pasted_warnings(command + " --training.seq_len 8192", Framework::torchtitan),
                Contains("D608 the configuration of `" + name + "` is not read; " + assumed))
        << command;
  }
}

TEST(Pasted, TorchtitanHadOtherNames) {
  const Layout layout =
      pasted(
          "torchrun --nproc_per_node=8 train.py --training.tensor_parallel_degree 2 "
          "--experimental.context_parallel_degree 2 --experimental.pipeline_parallel_degree 2 "
          "--training.data_parallel_shard_degree 1 --training.batch_size 4 --training.seq_len "
          "8192 --activation_checkpoint.mode none",
          Framework::torchtitan)
          .layout;
  EXPECT_EQ(layout.tensor, 2);
  EXPECT_EQ(layout.context, 2);
  EXPECT_EQ(layout.pipeline, 2);
  EXPECT_EQ(layout.global_batch, 4);
}

TEST(Pasted, ListsOfTomlMayHaveSeveralLines) {
  const std::string text = R"([training]
seq_len = 8_192
local_batch_size = 4
[activation_checkpoint]
mode = 'none'
[model]
converters = [
  "float8",  # of the linear layers
]
[parallelism]
pipeline_parallel_degree = 2
module_fqns_per_model_part = [
  ["tok_embeddings", "layers.0", 'layers.1'],  # light
  [PARTS"norm", "output", ],
]
)";
  std::string parts;
  for (int k = 2; k < 32; ++k) parts += "\"layers." + std::to_string(k) + "\", ";
  std::string all = text;
  all.replace(all.find("PARTS"), 5, parts);
  const Layout layout = read_layout(Framework::torchtitan, all, llama(), 8).layout;
  EXPECT_EQ(layout.seq_length, 8192);
  EXPECT_EQ(layout.precision.fp8, Fp8::current);
  EXPECT_THAT(layout.stages, ElementsAre(Stage{.embedding = true, .layers = 2},
                                         Stage{.layers = 30, .head = true}));
  EXPECT_THAT(pasted_errors("[model]\nconverters = [ \"a\",\n", Framework::torchtitan),
              ElementsAre(HasSubstr("D609 a bracket in this line is not closed")));
}

// Files that accelerate wrote, in its tests and in issues 2397 and 2925.
TEST(Pasted, MappingsOfYamlMayBeInBraces) {
  const std::string file =
      "deepspeed_config: {}\ndistributed_type: FSDP\nmixed_precision: bf16\n"
      "tpu_env: []\nnum_processes: 8\n";
  const auto sharding = [&](const std::string& text) {
    return pasted(file + text, Framework::accelerate).layout.sharding;
  };
  EXPECT_EQ(sharding("fsdp_config: {}\n"), Sharding::weights);
  EXPECT_EQ(sharding("fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_min: null}\n"),
            Sharding::gradients);
  EXPECT_EQ(sharding("fsdp_config: {\n  fsdp_offload_params: false,  # no\n"
                     "  'fsdp_sharding_strategy': \"NO_SHARD\",\n}\n"),
            Sharding::none);
  EXPECT_EQ(sharding("fsdp_config:\n  min_num_params: 2000\n  sharding_strategy: 2\n"),
            Sharding::gradients);
  for (const char* const wrong : {"a: {", "a: {b}", "a: {b: }}", "a: {b: c d: e}", "a: {b: [}",
                                  "a: {: c}", "a: {b: {c: 1}"}) {
    EXPECT_THAT(pasted_errors(file + wrong, Framework::accelerate), ElementsAre(HasSubstr("D609 ")))
        << wrong;
  }
}

TEST(Pasted, AccelerateEnvPrintsItems) {
  const Layout layout = pasted(
                            "- `Accelerate` version: 0.24.1\n"
                            "- Platform: Linux-5.15.0-x86_64-with-glibc2.35\n"
                            "- `Accelerate` default config:\n"
                            "\t- distributed_type: FSDP\n\t- mixed_precision: bf16\n"
                            "\t- num_processes: 8\n\t- same_network: True\n"
                            "\t- fsdp_config: {'fsdp_offload_params': False, "
                            "'fsdp_sharding_strategy': 'SHARD_GRAD_OP'}\n\t- tpu_env: []\n",
                            Framework::accelerate)
                            .layout;
  EXPECT_EQ(layout.data, 8);
  EXPECT_EQ(layout.sharding, Sharding::gradients);
}

TEST(Pasted, SectionsThatDoNotExistAreNamed) {
  EXPECT_THAT(pasted_warnings("torchrun --nproc_per_node 8 train.py --training.seq_len 8192 "
                              "--training.local_batch_size 1 --activation_checkpoint.mode none "
                              "--paralelism.tensor_parallel_degree 8 --zero-stage 3 "
                              "--compile.enable --module llama3",
                              Framework::torchtitan),
              ElementsAre("D608 `paralelism.tensor_parallel_degree` is not understood; "
                          "it is assumed not to change the layout",
                          "D608 `zero_stage` is not understood; "
                          "it is assumed not to change the layout"));
}

TEST(Pasted, CommandsAreNoFiles) {
  EXPECT_THAT(pasted_errors("deepspeed --num_gpus=8 train.py --deepspeed_config=conf/ds.json",
                            Framework::deepspeed),
              ElementsAre("D609 this is no ds_config.json; pass the file `conf/ds.json`"));
  EXPECT_THAT(pasted_errors("", Framework::deepspeed),
              ElementsAre("D609 this is no ds_config.json; "
                          "pass the file of --deepspeed_config or --deepspeed"));
  EXPECT_THAT(
      pasted_errors("accelerate launch --config_file fsdp.yaml train.py", Framework::accelerate),
      ElementsAre("D609 this is a command, not a configuration file; "
                  "pass the file `fsdp.yaml`"));
  EXPECT_THAT(pasted_errors("#!/bin/bash\nsrun accelerate launch \\\n --config_file a/b.yml c.py",
                            Framework::accelerate),
              ElementsAre(HasSubstr("pass the file `a/b.yml`")));
  EXPECT_THAT(pasted_errors("accelerate launch --use_fsdp train.py", Framework::accelerate),
              ElementsAre("D609 this is a command, not a configuration file; "
                          "pass the file that `accelerate config` wrote"));
}

TEST(Pasted, FlagsOfMegatronComeInOtherSpellings) {
  // ms-swift.
  const std::string swift =
      "NPROC_PER_NODE=8 NNODES=2 megatron sft --tensor_model_parallel_size 4 "
      "--micro_batch_size 1 --seq-length 4096 --frob_nicate 1";
  EXPECT_EQ(pasted(swift).layout.tensor, 4);
  EXPECT_EQ(pasted(swift).layout.data, 4);
  EXPECT_THAT(pasted_warnings(swift),
              ElementsAre("D607 `--micro_batch_size` is read as `--micro-batch-size`; "
                          "Megatron-LM itself does not know it",
                          "D607 `--tensor_model_parallel_size` is read as "
                          "`--tensor-model-parallel-size`; Megatron-LM itself does not know it",
                          "D608 `--frob_nicate` is not understood; "
                          "it is assumed not to change the layout"));
  // model_config.yaml in the functional tests of Megatron-LM.
  const Layout layout =
      read_layout(Framework::megatron,
                  "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n"
                  "  --micro-batch-size: 4\n  --seq-length: 1024\n  --bf16: true\n"
                  "  --tensor-model-parallel-size: 2\n  --sequence-parallel: true\n",
                  llama(), 8)
          .layout;
  EXPECT_EQ(layout.tensor, 2);
  EXPECT_TRUE(layout.sequence_parallel);
  EXPECT_EQ(layout.micro_batch, 4);
}

}  // namespace
}  // namespace shiplap::layout
