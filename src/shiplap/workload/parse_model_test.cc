#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/workload/model.h"

namespace shiplap::workload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two small layers of llama, with `more` members in place of or beside the usual ones.
std::string config(const std::string& type, const std::string& more = "") {
  Json json = Json::object({{"model_type", type},
                            {"hidden_size", 64},
                            {"intermediate_size", 96},
                            {"num_hidden_layers", 2},
                            {"num_attention_heads", 4},
                            {"num_key_value_heads", 2},
                            {"vocab_size", 100},
                            {"max_position_embeddings", 512}});
  const Json changes = parse_json("{" + more + "}", "more");
  for (const auto& [key, value] : changes.as_object()) json.set(key, value);
  return to_text(json);
}

Model model(const std::string& type, const std::string& more = "") {
  const ModelFile file = parse_model(config(type, more), "tiny.json");
  EXPECT_TRUE(file.warnings.empty()) << render(file.warnings);
  return file.model;
}

std::vector<std::string> errors(const std::string& text) {
  std::vector<std::string> all;
  try {
    (void)parse_model(text, "tiny.json");
  } catch (const InputError& error) {
    for (const Diagnostic& d : error.diagnostics()) all.push_back(d.code + " " + d.what);
  }
  return all;
}

const Part& part(const Layer& layer, std::string_view name) {
  const auto found = std::ranges::find(layer.parts, name, &Part::name);
  if (found == layer.parts.end()) throw std::runtime_error("there is no part " + std::string(name));
  return *found;
}

constexpr std::int64_t kEmbedding = 100L * 64;
constexpr std::int64_t kAttention = 64L * (4 + 2L * 2) * 16 + 64L * 64;
constexpr std::int64_t kMlp = 3L * 64 * 96;

TEST(ParseModel, LlamaHasGroupedQueriesAndAGatedMlp) {
  const Model m = model("llama");
  EXPECT_EQ(m.name, "tiny");
  EXPECT_EQ(m.layers, (std::vector<std::int32_t>{0, 0}));
  EXPECT_EQ(m.parameters(), 2 * kEmbedding + 2L * (kAttention + kMlp + 2L * 64) + 64);
  EXPECT_EQ(part(m.kinds[0], "attention.qkv").out, 128);
  EXPECT_EQ(part(m.kinds[0], "mlp.up").out, 192);
}

TEST(ParseModel, TiedEmbeddingsAreCountedOnce) {
  const std::int64_t both = model("llama").parameters();
  const Model tied = model("llama", R"("tie_word_embeddings": true)");
  EXPECT_EQ(tied.parameters(), both - kEmbedding);
  EXPECT_EQ(tied.forward_flop({}), model("llama").forward_flop({}));
}

TEST(ParseModel, HeadsMayBeWiderThanTheModel) {
  const Model m = model("llama", R"("head_dim": 32)");
  EXPECT_EQ(part(m.kinds[0], "attention.qkv").out, 256);
  EXPECT_EQ(part(m.kinds[0], "attention.out").in, 128);
}

TEST(ParseModel, QwenHasBiasesOrNormsOfHeads) {
  const std::int64_t llama = model("llama").parameters();
  EXPECT_EQ(model("qwen2").parameters(), llama + 2L * 128);
  EXPECT_EQ(model("qwen3").parameters(), llama + 2L * 2 * 16);
}

TEST(ParseModel, WindowsAreOfTheLayersThatHaveThem) {
  const auto windows = [](const Model& m) {
    std::vector<std::int64_t> all;
    for (std::size_t k = 0; k < m.layers.size(); ++k) {
      all.push_back(part(m.layer(k), "attention").attention.window);
    }
    return all;
  };
  const std::string window = R"("sliding_window": 7, "num_hidden_layers": 4)";
  EXPECT_THAT(windows(model("mistral", window)), ElementsAre(7, 7, 7, 7));
  EXPECT_THAT(windows(model("gemma2", window)), ElementsAre(7, 0, 7, 0));
  EXPECT_THAT(windows(model("qwen2", window)), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(windows(model("gemma3_text", window + R"(, "sliding_window_pattern": 2)")),
              ElementsAre(7, 0, 7, 0));
  EXPECT_THAT(windows(model("mistral", window + R"(, "layer_types": ["full_attention",
      "sliding_attention", "sliding_attention", "full_attention"])")),
              ElementsAre(0, 7, 7, 0));
}

TEST(ParseModel, MixtralHasARouterAndExperts) {
  const Model m = model("mixtral", R"("num_local_experts": 8, "num_experts_per_tok": 2)");
  EXPECT_EQ(m.parameters(), 2 * kEmbedding + 2L * (kAttention + 8 * kMlp + 8L * 64 + 2L * 64) + 64);
  EXPECT_EQ(m.parameters() - m.active_parameters(), 2L * 6 * kMlp);
}

TEST(ParseModel, SomeLayersOfQwenAreDense) {
  const Model m = model("qwen3_moe", R"("num_experts": 8, "num_experts_per_tok": 2,
      "moe_intermediate_size": 32, "mlp_only_layers": [1])");
  EXPECT_EQ(m.layer(0).name, "moe");
  EXPECT_EQ(m.layer(1).name, "dense");
  EXPECT_EQ(part(m.layer(0), "experts.up").out, 64);
}

TEST(ParseModel, DeepseekHasLatentAttentionSharedExpertsAndFurtherTokens) {
  const std::string shape = R"("kv_lora_rank": 20, "qk_nope_head_dim": 16,
      "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2,
      "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
      "num_key_value_heads": 4)";
  const Model m =
      model("deepseek_v3", shape + R"(, "q_lora_rank": 24, "num_nextn_predict_layers": 1)");
  const std::int64_t attention =
      64L * 24 + 24 + 24L * 4 * 24 + 64L * 28 + 20 + 20L * 4 * (16 + 12) + 4L * 12 * 64;
  const std::int64_t moe = attention + 2L * 64 + 64L * 8 + (8 + 2L) * 3 * 64 * 32;
  EXPECT_EQ(m.parameters(), 2 * kEmbedding + (attention + 2L * 64 + kMlp) + moe + 64);
  EXPECT_EQ(m.mtp_parameters(), moe + 3L * 64 + 2L * 64 * 64);
  EXPECT_EQ(part(m.layer(0), "attention").in, 4L * 24 + 4L * 28 + 8);
  const Model direct = model("deepseek_v2", shape);
  EXPECT_EQ(part(direct.layer(0), "attention.q").parameters(), 64L * 4 * 24);
}

TEST(ParseModel, GptOssHasSinksAndBiases) {
  const Model m = model("gpt_oss", R"("num_local_experts": 8, "num_experts_per_tok": 2,
      "sliding_window": 4)");
  const std::int64_t layer =
      kAttention + 128 + 64 + 4 + (64L * 8 + 8) + 8L * (kMlp + 192 + 64) + 2L * 64;
  EXPECT_EQ(m.parameters(), 2 * kEmbedding + 2 * layer + 64);
}

TEST(ParseModel, Gpt2HasPositionsAndBiases) {
  const ModelFile file =
      parse_model(R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
      "n_positions": 32, "vocab_size": 100, "n_inner": null})",
                  "gpt2.json");
  EXPECT_TRUE(file.warnings.empty());
  const std::int64_t layer = 4 * 64 * 64 + 4 * 64 + 8 * 64 * 64 + 5 * 64 + 4 * 64;
  EXPECT_EQ(file.model.parameters(), 100L * 64 + 32L * 64 + 2 * layer + 2L * 64);
}

TEST(ParseModel, ReadsTheTextPartOfAModelThatSees) {
  const std::string text = config("gemma3_text", R"("sliding_window": 4)");
  EXPECT_EQ(parse_model(R"({"model_type": "gemma3", "text_config": )" + text + "}", "a.json")
                .model.family,
            "gemma3_text");
}

TEST(ParseModel, WarnsOfWhatItDoesNotUnderstand) {
  const ModelFile file = parse_model(
      config("llama", R"("use_magic": true, "rope_theta": 1e4, "nothing": null)"), "a.json");
  ASSERT_EQ(file.warnings.size(), 1);
  EXPECT_EQ(file.warnings[0].code, "D604");
  EXPECT_EQ(file.warnings[0].what, "`use_magic` is not understood");
}

TEST(ParseModel, SaysWhatItAssumes) {
  const ModelFile file = parse_model(config("llama", R"("num_key_value_heads": null)"), "a.json");
  ASSERT_EQ(file.warnings.size(), 1);
  EXPECT_EQ(file.warnings[0].what, "`num_key_value_heads` is missing");
  EXPECT_EQ(file.warnings[0].why, "4 is assumed");
}

TEST(ParseModel, RefusesWhatIsNoModel) {
  EXPECT_THAT(errors("[]"), ElementsAre(HasSubstr("D603 there is no `model_type`")));
  EXPECT_THAT(errors(config("lama")), ElementsAre(HasSubstr("type `lama` are not known")));
  EXPECT_THAT(
      errors(config("llama", R"("hidden_size": null, "vocab_size": -3)")),
      ElementsAre("D603 `hidden_size` is missing", "D603 `vocab_size` must be 1 to 2^24, not -3"));
  EXPECT_THAT(errors(config("llama", R"("num_attention_heads": 5)")),
              testing::Contains(HasSubstr("5 heads cannot share 2 keys and values")));
  EXPECT_THAT(errors(config("llama", R"("num_attention_heads": 6)")),
              ElementsAre(HasSubstr("64 cannot be divided into 6 heads")));
  EXPECT_THAT(errors(config("llama", R"("num_hidden_layers": 1000000)")),
              ElementsAre(HasSubstr("more than 10,000")));
  EXPECT_THAT(errors(config("llama", R"("hidden_size": 16000000, "head_dim": 16000000)")),
              ElementsAre(HasSubstr("more than 1e16 parameters")));
  EXPECT_THAT(errors(config("mixtral", R"("num_local_experts": 2, "num_experts_per_tok": 3)")),
              ElementsAre(HasSubstr("a token cannot use 3 of 2 experts")));
  EXPECT_THAT(errors(config("mistral", R"("layer_types": ["full_attention"])")),
              ElementsAre(HasSubstr("`layer_types` must name 2 layers")));
  EXPECT_THAT(errors(config("llama", R"("hidden_size": "64")")),
              ElementsAre(HasSubstr("must be an integer")));
}

}  // namespace
}  // namespace shiplap::workload
