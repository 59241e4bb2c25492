#include "shiplap/cli/foreign_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace shiplap::cli {
namespace {

using testing::HasSubstr;

std::string recognized(const std::string& text) {
  const auto error = foreign_file_error({.file = "a file", .text = text});
  return error ? error->code + ": " + error->what + "; " + error->help : "";
}

TEST(ForeignFile, IsRecognized) {
  EXPECT_THAT(recognized(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8192})"),
              HasSubstr("D008: expected a plan; this is a model configuration of Hugging Face"));
  EXPECT_THAT(recognized("#!/bin/bash\ntorchrun pretrain.py --tensor-model-parallel-size 8\n"),
              HasSubstr("flags of Megatron-LM"));
  EXPECT_THAT(recognized("\x80\x04\x95"), HasSubstr("Python pickle"));
  EXPECT_THAT(recognized(R"({"version": "2.5", "pg_config": {}, "entries": []})"),
              HasSubstr("flight recorder"));
  EXPECT_THAT(recognized(R"({"schemaVersion": 1, "traceEvents": []})"), HasSubstr("profiler"));
  EXPECT_THAT(recognized("0F0,0F1,,0B0\n,1F0\n"),
              HasSubstr("`shiplap check --schedule 'a file'`; also show, simulate and export"));
  EXPECT_THAT(recognized("0SEND_F1, 0F0\r\n"), HasSubstr("pipeline schedule"));
}

TEST(ForeignFile, OfAFrameworkSaysHowAModelIsSplit) {
  EXPECT_THAT(recognized(R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers":32})"),
              HasSubstr("`shiplap simulate --model 'a file' --from megatron '--tensor"));
  for (const auto& [text, framework] :
       {std::pair("srun pretrain.py --tensor-model-parallel-size 8 --num-layers $LAYERS",
                  "megatron"),
        std::pair("[training]\nsteps = 3\n[parallelism]\n", "torchtitan"),
        std::pair(R"({"zero_optimization": {"stage": 3}})", "deepspeed"),
        std::pair("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n", "accelerate")}) {
    EXPECT_THAT(recognized(text), HasSubstr(std::string("--from ") + framework + " 'a file'`"));
  }
}

TEST(ForeignFile, TheMessageSaysWhatTheCommandReads) {
  const auto error = foreign_file_error({.file = "x", .text = "\x80\x04"}, "a dispatch");
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->what, HasSubstr("expected a dispatch; this is a Python pickle"));
}

TEST(ForeignFile, InPlaceOfASchedule) {
  const auto schedule_error = [](const std::string& text) {
    const auto error = foreign_schedule_error({.file = "x", .text = text});
    return error ? error->code + ": " + error->what + "; " + error->help : "";
  };
  const std::string plan = "D008: expected a pipeline schedule; this is a plan; remove --schedule";
  EXPECT_EQ(schedule_error("shiplap-plan 1\nmesh dp=2\n"), plan);
  EXPECT_EQ(schedule_error("# data parallel\r\n\n  # two ranks\nshiplap-plan 1\n"), plan);
  EXPECT_EQ(schedule_error("{\n  \"schema\": \"shiplap.plan/1\"}"), plan);
  EXPECT_THAT(schedule_error(R"({"model_type": "llama"})"),
              HasSubstr("D008: expected a pipeline schedule; this is a model configuration"));
  for (const char* text : {"", "#", "# shiplap-plan 1", "0F0\n1X0\n", "0F0,0X0\n", ",,\n"}) {
    EXPECT_EQ(schedule_error(text), "") << text;
  }
}

TEST(ForeignFile, IsNotGuessed) {
  EXPECT_EQ(recognized(""), "");
  EXPECT_EQ(recognized("shiplap-plan 2\n"), "");
  EXPECT_EQ(recognized("{\"schema\": \"shiplap.plan/1\"}"), "");
  EXPECT_EQ(recognized("0.5,1.5\n"), "");
  EXPECT_EQ(recognized("hidden_size 12\n"), "");
  EXPECT_EQ(recognized(",,\n"), "");
}

TEST(ForeignFile, IsNotAPlanWithErrors) {
  EXPECT_EQ(recognized("# from --tensor-model-parallel-size 8\nshiplap-plan 1\nmehs dp=2\n"), "");
  EXPECT_EQ(recognized("# no shiplap-plan: --micro-batch-size\n  shiplap-plan 1\nmehs dp=2\n"), "");
  EXPECT_EQ(recognized("shiplap-plan 1\nmehs dp=2  # --tensor-model-parallel-size\n"), "");
  EXPECT_EQ(recognized(R"({"schema": "shiplap.plan/1", "tensors": [{"name": "model_type"}]})"), "");
  EXPECT_THAT(recognized("# not a shiplap-plan\n--micro-batch-size 1\n"), HasSubstr("Megatron"));
  EXPECT_EQ(recognized(R"({"schema": "shiplap.dispatch/1", "model_type": 1})"), "");
}

}  // namespace
}  // namespace shiplap::cli
