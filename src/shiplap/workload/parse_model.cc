// Reads the config.json of Hugging Face. Each family has its own names of keys and its own
// defaults, those of its class in `transformers`; what they describe is put together from the same
// few parts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/base/suggest.h"
#include "shiplap/workload/model.h"

namespace shiplap::workload {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;
constexpr double kMaxParameters = 1e16;

// They do not change a shape.
constexpr std::array<std::string_view, 90> kWithoutEffect = {
    "_name_or_path",
    "activation_function",
    "architectures",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_implementation",
    "attn_logit_softcapping",
    "attn_pdrop",
    "auto_map",
    "aux_loss_alpha",
    "begin_suppress_tokens",
    "bos_token_id",
    "boi_token_index",
    "cache_implementation",
    "classifier_dropout",
    "decoder_start_token_id",
    "do_sample",
    "dtype",
    "embd_pdrop",
    "embedding_dropout",
    "eoi_token_index",
    "eos_token_id",
    "ep_size",
    "final_logit_softcapping",
    "hidden_act",
    "hidden_activation",
    "hidden_dropout",
    "hidden_dropout_prob",
    "image_token_index",
    "initial_context_length",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "max_length",
    "max_window_layers",
    "mm_tokens_per_image",
    "moe_router_dtype",
    "n_ctx",
    "n_group",
    "norm_topk_prob",
    "original_max_position_embeddings",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "query_pre_attn_scalar",
    "quantization_config",
    "reorder_and_upcast_attn",
    "resid_pdrop",
    "rms_norm_eps",
    "rope_interleave",
    "rope_local_base_freq",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_pct",
    "routed_scaling_factor",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "scoring_func",
    "seq_aux",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "swiglu_limit",
    "task_specific_params",
    "topk_group",
    "topk_method",
    "topk_group_by_device",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "use_bidirectional_attention",
    "use_cache",
    "use_parallel_residual",
    "vision_config",
    "bad_words_ids",
    "id2label",
    "label2id",
    "problem_type",
    "tokenizer_class",
    "partial_rotary_factor",
    "experts_implementation",
};

// The members of a file. Remembers which were read, so that the others can be reported.
class Config {
 public:
  Config(const Json& json, std::string_view file) : json_(&json), file_(file) {}

  [[nodiscard]] bool has(std::string_view key) const {
    const Json* const found = json_->find(key);
    return found != nullptr && !found->is_null();
  }

  // The first of these spellings that the file has.
  std::int64_t size(std::initializer_list<std::string_view> keys) {
    const std::int64_t found = size_or(keys, 0);
    if (found != 0) return found;
    error(*keys.begin(), fmt::format("`{}` is missing", *keys.begin()));
    return 1;
  }
  std::int64_t size_or(std::initializer_list<std::string_view> keys, std::int64_t value,
                       std::int64_t lowest = 1) {
    for (const std::string_view key : keys) read_.insert(std::string(key));
    const auto found = std::ranges::find_if(keys, [&](std::string_view key) { return has(key); });
    return found == keys.end() ? value : integer(*found, lowest);
  }
  // Warns if the file is silent.
  std::int64_t size_assumed(std::string_view key, std::int64_t value) {
    if (!has(key)) {
      warn(fmt::format("`{}` is missing", key), fmt::format("{} is assumed", value));
    }
    return size_or({key}, value);
  }

  bool flag(std::string_view key, bool value) {
    const Json* const found = member(key);
    if (found == nullptr) return value;
    if (found->is_bool()) return found->as_bool();
    error(key, fmt::format("`{}` must be true or false", key));
    return value;
  }
  std::string word(std::string_view key) {
    const Json* const found = member(key);
    if (found == nullptr) return "";
    if (found->is_string()) return found->as_string();
    error(key, fmt::format("`{}` must be a string", key));
    return "";
  }
  // Null if the file has none.
  const Json::Array* list(std::string_view key) {
    const Json* const found = member(key);
    if (found == nullptr) return nullptr;
    if (found->is_array()) return &found->as_array();
    error(key, fmt::format("`{}` must be a list", key));
    return nullptr;
  }

  void error(std::string_view key, std::string what, std::string help = "") {
    errors_.push_back({.code = "D603",
                       .where = {.file = file_, .operation = std::string(key)},
                       .what = std::move(what),
                       .help = std::move(help)});
  }
  void warn(std::string what, std::string why) {
    warnings_.push_back({.code = "D604",
                         .severity = Severity::warning,
                         .where = {.file = file_},
                         .what = std::move(what),
                         .why = std::move(why)});
  }

  // The warnings about all keys that nobody read. Throws the errors.
  std::vector<Diagnostic> finish() {
    if (!errors_.empty()) throw InputError(std::move(errors_));
    for (const auto& [key, value] : json_->as_object()) {
      if (read_.contains(key) || value.is_null()) continue;
      if (std::ranges::find(kWithoutEffect, key) != kWithoutEffect.end()) continue;
      warn(fmt::format("`{}` is not understood", key),
           "it is assumed not to change the shape of the model");
    }
    return std::move(warnings_);
  }
  void throw_errors() {
    if (!errors_.empty()) throw InputError(std::move(errors_));
  }

 private:
  // Null if the file has no such member, or null.
  const Json* member(std::string_view key) {
    read_.insert(std::string(key));
    return has(key) ? json_->find(key) : nullptr;
  }

  std::int64_t integer(std::string_view key, std::int64_t lowest) {
    const Json& found = *member(key);
    if (!found.is_integer()) {
      error(key, fmt::format("`{}` must be an integer, not {}", key, to_text(found)));
      return lowest;
    }
    const std::int64_t value = found.as_integer();
    if (value < lowest || value > kMaxSize) {
      error(key, fmt::format("`{}` must be {} to 2^24, not {}", key, lowest, value));
      return lowest;
    }
    return value;
  }

  const Json* json_;
  std::string file_;
  std::set<std::string> read_;
  std::vector<Diagnostic> errors_;
  std::vector<Diagnostic> warnings_;
};

// What families have in common, and where they differ.
struct Family {
  std::string_view name;    // of `model_type`
  bool layer_norm = false;  // with biases, instead of RMSNorm
  bool gated = true;        // the MLP has a gate beside up
  bool mlp_bias = false;
  bool qkv_bias = false;  // if `attention_bias` does not say
  bool out_bias = false;
  bool qk_norm = false;      // of each head
  bool norms_after = false;  // a second norm after attention and MLP
  bool tied = false;
};

constexpr std::array kFamilies = {
    Family{.name = "llama"},
    Family{.name = "mistral"},
    Family{.name = "mixtral"},
    Family{.name = "qwen2", .qkv_bias = true},
    Family{.name = "qwen3", .qk_norm = true},
    Family{.name = "qwen3_moe", .qk_norm = true},
    Family{.name = "deepseek_v2"},
    Family{.name = "deepseek_v3"},
    Family{.name = "gpt_oss", .qkv_bias = true, .out_bias = true},
    Family{.name = "gemma", .tied = true},
    Family{.name = "gemma2", .norms_after = true, .tied = true},
    Family{.name = "gemma3_text", .qk_norm = true, .norms_after = true, .tied = true},
    Family{.name = "gpt2",
           .layer_norm = true,
           .gated = false,
           .mlp_bias = true,
           .qkv_bias = true,
           .out_bias = true,
           .tied = true},
    Family{.name = "gpt_neox",
           .layer_norm = true,
           .gated = false,
           .mlp_bias = true,
           .qkv_bias = true,
           .out_bias = true},
};

class Builder {
 public:
  Builder(Config& config, const Family& family) : config_(config), family_(family) {}

  Model build() {
    model_.family = family_.name;
    model_.hidden = config_.size({"hidden_size", "n_embd"});
    model_.vocabulary = config_.size({"vocab_size"});
    model_.type = type();
    const std::int64_t count = config_.size({"num_hidden_layers", "n_layer"});
    config_.throw_errors();
    if (count > 10'000) config_.error("num_hidden_layers", "more than 10,000 layers");
    config_.throw_errors();
    const bool tied = config_.flag("tie_word_embeddings", family_.tied);
    embedding();
    for (std::int64_t k = 0; k < count; ++k) add(layer(k, count));
    head(tied);
    const std::int64_t further = config_.size_or({"num_nextn_predict_layers"}, 0, 0);
    if (further > 100) {
      config_.error("num_nextn_predict_layers", "more than 100 further tokens are predicted");
      config_.throw_errors();
    }
    predict_more(further, count);
    if (approximate_parameters() > kMaxParameters) {
      config_.error("hidden_size", "the model has more than 1e16 parameters");
      config_.throw_errors();
    }
    return std::move(model_);
  }

 private:
  using Parts = std::vector<Part>;

  // Cannot overflow.
  [[nodiscard]] double approximate_parameters() const {
    double total = 0;
    for (const Layer& kind : model_.kinds) {
      for (const Part& part : kind.parts) {
        total += static_cast<double>(part.in) * static_cast<double>(part.out) *
                 static_cast<double>(part.experts) * static_cast<double>(model_.layers.size());
      }
    }
    return total;
  }

  DType type() {
    std::string name = config_.word("torch_dtype");
    if (name.empty()) name = config_.word("dtype");
    if (name == "float16") return DType::f16;
    if (name == "float32") return DType::f32;
    if (!name.empty() && name != "bfloat16") {
      config_.warn(fmt::format("the datatype `{}` is not understood", name), "bfloat16 is assumed");
    }
    return DType::bf16;
  }

  [[nodiscard]] Part norm(std::string name, std::int64_t features) const {
    return {.name = std::move(name),
            .kind = PartKind::norm,
            .in = features,
            .out = features,
            .bias = family_.layer_norm};
  }
  static Part linear(std::string name, std::int64_t in, std::int64_t out, bool bias = false) {
    return {.name = std::move(name), .kind = PartKind::linear, .in = in, .out = out, .bias = bias};
  }

  void embedding() {
    model_.embedding.name = "embedding";
    Parts& parts = model_.embedding.parts;
    parts.push_back({.name = "embedding",
                     .kind = PartKind::embedding,
                     .in = model_.vocabulary,
                     .out = model_.hidden});
    if (family_.name == "gpt2") {
      model_.positions = config_.size({"n_positions"});
      parts.push_back({.name = "positions",
                       .kind = PartKind::embedding,
                       .in = model_.positions,
                       .out = model_.hidden});
    } else {
      model_.positions = config_.size_or({"max_position_embeddings", "seq_length"}, 0);
    }
  }

  void head(bool tied) {
    model_.head.name = "head";
    Part logits = linear("head", model_.hidden, model_.vocabulary);
    logits.tied = tied;
    model_.head.parts = {norm("norm", model_.hidden), std::move(logits), loss()};
  }
  [[nodiscard]] Part loss() const {
    return {.name = "loss", .kind = PartKind::loss, .in = model_.vocabulary};
  }

  // Equal layers share a kind.
  void add(Layer layer) {
    const auto found = std::ranges::find(model_.kinds, layer);
    model_.layers.push_back(static_cast<std::int32_t>(found - model_.kinds.begin()));
    if (found == model_.kinds.end()) model_.kinds.push_back(std::move(layer));
  }

  Layer layer(std::int64_t k, std::int64_t count) {
    Layer layer;
    const bool after = family_.norms_after;
    layer.parts.push_back(norm("attention.norm", model_.hidden));
    const std::int64_t window = window_of(k, count);
    if (family_.name.starts_with("deepseek")) {
      latent_attention(layer.parts);
    } else {
      attention(layer.parts, window);
    }
    if (after) layer.parts.push_back(norm("attention.norm_after", model_.hidden));
    layer.parts.push_back(norm("mlp.norm", model_.hidden));
    const bool experts = has_experts(k);
    if (experts) {
      mixture(layer.parts);
    } else {
      mlp(layer.parts, "mlp",
          config_.size_or({"intermediate_size", "n_inter", "n_inner"},
                          family_.name == "gpt2" ? 4 * model_.hidden : 0, 1));
    }
    if (after) layer.parts.push_back(norm("mlp.norm_after", model_.hidden));
    layer.name = experts ? "moe" : "dense";
    if (window > 0) layer.name += ", window";
    return layer;
  }

  // Of layer k; 0: none.
  std::int64_t window_of(std::int64_t k, std::int64_t count) {
    const std::int64_t window = config_.size_or({"sliding_window"}, 0, 0);
    if (const Json::Array* const types = config_.list("layer_types")) {
      if (std::ssize(*types) != count || !(*types)[k].is_string()) {
        config_.error("layer_types", fmt::format("`layer_types` must name {} layers", count));
        config_.throw_errors();
      }
      const std::string& kind = (*types)[k].as_string();
      if (kind == "sliding_attention") return window;
      if (kind != "full_attention") {
        config_.error("layer_types", fmt::format("unknown type of a layer `{}`", kind));
      }
      return 0;
    }
    const bool used = config_.flag("use_sliding_window", !family_.name.starts_with("qwen"));
    if (!used) return 0;
    if (family_.name == "gemma2") return k % 2 == 0 ? window : 0;
    if (family_.name == "gpt_oss") return k % 2 == 0 ? window : 0;
    const std::int64_t pattern =
        config_.size_or({"sliding_window_pattern"}, family_.name == "gemma3_text" ? 6 : 0, 0);
    if (pattern > 0) return (k + 1) % pattern != 0 ? window : 0;
    if (family_.name.starts_with("qwen")) {
      return k >= config_.size_or({"max_window_layers"}, 28, 0) ? window : 0;
    }
    return window;
  }

  void attention(Parts& parts, std::int64_t window) {
    const std::int64_t heads = config_.size({"num_attention_heads", "n_head"});
    std::int64_t kv_heads = heads;
    if (family_.name != "gpt2" && family_.name != "gpt_neox") {
      kv_heads = config_.has("num_key_value_heads") || noted_
                     ? config_.size_or({"num_key_value_heads"}, heads)
                     : config_.size_assumed("num_key_value_heads", heads);
      noted_ = true;
    }
    if (heads % kv_heads != 0) {
      config_.error("num_key_value_heads",
                    fmt::format("{} heads cannot share {} keys and values", heads, kv_heads));
    }
    if (!config_.has("head_dim") && model_.hidden % heads != 0) {
      config_.error(
          "num_attention_heads",
          fmt::format("a hidden size of {} cannot be divided into {} heads", model_.hidden, heads));
    }
    config_.throw_errors();
    const std::int64_t dim = config_.size_or({"head_dim"}, model_.hidden / heads);
    const bool said = config_.has("attention_bias");
    const bool bias = config_.flag("attention_bias", family_.qkv_bias);
    const std::int64_t width = (heads + 2 * kv_heads) * dim;
    parts.push_back(linear("attention.qkv", model_.hidden, width, bias));
    if (family_.qk_norm) {
      parts.push_back(norm("attention.q_norm", dim));
      parts.back().vectors = heads;
      parts.push_back(norm("attention.k_norm", dim));
      parts.back().vectors = kv_heads;
    }
    parts.push_back(
        {.name = "attention",
         .kind = PartKind::attention,
         .in = width,
         .out = heads * dim,
         .attention =
             {.heads = heads, .kv_heads = kv_heads, .qk_dim = dim, .v_dim = dim, .window = window},
         .other = family_.name == "gpt_oss" ? heads : 0});
    // In qwen2 only q, k and v have one.
    const bool out_bias = said ? bias && family_.name != "qwen2" : family_.out_bias;
    parts.push_back(linear("attention.out", heads * dim, model_.hidden, out_bias));
  }

  // Multi-head latent attention: q, k and v come from vectors of low rank.
  void latent_attention(Parts& parts) {
    const std::int64_t heads = config_.size({"num_attention_heads"});
    (void)config_.size_or({"num_key_value_heads"}, heads);
    const std::int64_t nope = config_.size({"qk_nope_head_dim"});
    const std::int64_t rope = config_.size({"qk_rope_head_dim"});
    const std::int64_t v_dim = config_.size({"v_head_dim"});
    const std::int64_t kv_rank = config_.size({"kv_lora_rank"});
    const std::int64_t q_rank = config_.size_or({"q_lora_rank"}, 0, 0);
    const bool bias = config_.flag("attention_bias", false);
    const std::int64_t hidden = model_.hidden;
    const std::int64_t queries = heads * (nope + rope);
    const std::int64_t keys = heads * (nope + v_dim);
    if (q_rank > 0) {
      parts.push_back(linear("attention.q_down", hidden, q_rank, bias));
      parts.push_back(norm("attention.q_norm", q_rank));
      parts.push_back(linear("attention.q_up", q_rank, queries));
    } else {
      parts.push_back(linear("attention.q", hidden, queries));
    }
    parts.push_back(linear("attention.kv_down", hidden, kv_rank + rope, bias));
    parts.push_back(norm("attention.kv_norm", kv_rank));
    parts.push_back(linear("attention.kv_up", kv_rank, keys));
    parts.push_back({.name = "attention",
                     .kind = PartKind::attention,
                     .in = queries + keys + rope,
                     .out = heads * v_dim,
                     .attention = {.heads = heads,
                                   .kv_heads = heads,
                                   .qk_dim = nope + rope,
                                   .v_dim = v_dim,
                                   .window = 0}});
    parts.push_back(linear("attention.out", heads * v_dim, hidden, bias));
  }

  bool has_experts(std::int64_t k) {
    const std::string_view name = family_.name;
    if (name == "mixtral" || name == "gpt_oss") return true;
    if (name == "qwen3_moe") {
      const Json::Array* const dense = config_.list("mlp_only_layers");
      if (dense != nullptr && std::ranges::find(*dense, Json(k)) != dense->end()) return false;
      return (k + 1) % config_.size_or({"decoder_sparse_step"}, 1) == 0;
    }
    if (name.starts_with("deepseek")) {
      const std::int64_t first = config_.size_or({"first_k_dense_replace"}, 0, 0);
      return k >= first && k % config_.size_or({"moe_layer_freq"}, 1) == 0;
    }
    return false;
  }

  void mlp(Parts& parts, const std::string& name, std::int64_t width) {
    if (width <= 0) {
      config_.error("intermediate_size", "`intermediate_size` is missing");
      config_.throw_errors();
    }
    const bool bias = config_.flag("mlp_bias", family_.mlp_bias);
    const std::int64_t up = family_.gated ? 2 * width : width;
    parts.push_back(linear(name + ".up", model_.hidden, up, bias));
    parts.push_back(
        {.name = name + ".activation", .kind = PartKind::activation, .in = up, .out = width});
    parts.push_back(linear(name + ".down", width, model_.hidden, bias));
  }

  void mixture(Parts& parts) {
    const std::int64_t experts =
        config_.size({"num_local_experts", "num_experts", "n_routed_experts"});
    const std::int64_t top_k = config_.size({"num_experts_per_tok", "experts_per_token"});
    if (top_k > experts) {
      config_.error("num_experts_per_tok",
                    fmt::format("a token cannot use {} of {} experts", top_k, experts));
      config_.throw_errors();
    }
    (void)config_.size_or({"intermediate_size"}, 0);  // also if no layer is dense
    const bool biased = family_.name == "gpt_oss";
    parts.push_back(linear("router", model_.hidden, experts, biased));
    const bool same = family_.name == "mixtral" || biased;  // one size for all layers
    const std::int64_t width =
        same ? config_.size({"intermediate_size"}) : config_.size({"moe_intermediate_size"});
    const std::size_t first = parts.size();
    mlp(parts, "experts", width);
    for (std::size_t k = first; k < parts.size(); ++k) {
      parts[k].experts = experts;
      parts[k].top_k = top_k;
      parts[k].bias = biased && parts[k].kind == PartKind::linear;
    }
    const std::int64_t shared = config_.size_or({"n_shared_experts"}, 0, 0);
    if (shared > 0) mlp(parts, "shared", shared * width);
  }

  // Multi-token prediction as in DeepSeek-V3: each module joins what the model knows of a token
  // with the embedding of the next one, and shares embedding and head with the model.
  void predict_more(std::int64_t modules, std::int64_t count) {
    for (std::int64_t k = 0; k < modules; ++k) {
      Layer module{.name = fmt::format("mtp {}", k + 1), .parts = {}};
      module.parts.push_back(norm("mtp.embedding_norm", model_.hidden));
      module.parts.push_back(norm("mtp.hidden_norm", model_.hidden));
      module.parts.push_back(linear("mtp.projection", 2 * model_.hidden, model_.hidden));
      const Layer& last = model_.layer(count - 1);
      module.parts.insert(module.parts.end(), last.parts.begin(), last.parts.end());
      module.parts.push_back(norm("norm", model_.hidden));
      module.parts.push_back(linear("head", model_.hidden, model_.vocabulary));
      module.parts.back().tied = true;
      module.parts.push_back(loss());
      model_.mtp.push_back(std::move(module));
    }
  }

  Config& config_;
  const Family& family_;
  Model model_;
  bool noted_ = false;
};

// The text part of a model that also sees, or all of another one.
const Json* text_part(const Json* json) {
  const Json* const text = json->find("text_config");
  return text != nullptr && text->is_object() ? text : json;
}

[[noreturn]] void throw_not_a_model(std::string_view file, std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D603",
                              .where = {.file = std::string(file)},
                              .what = std::move(what),
                              .help = std::move(help)});
}

}  // namespace

ModelFile parse_model(std::string_view text, std::string_view file) {
  const Json whole = parse_json(text, file);
  const Json& json = *text_part(&whole);
  const Json* const type = json.find("model_type");
  if (!json.is_object() || type == nullptr || !type->is_string()) {
    throw_not_a_model(file, "there is no `model_type`",
                      "this must be the config.json of a model of Hugging Face");
  }
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  const std::string& typed = type->as_string();
  const auto family = std::ranges::find(kFamilies, typed, &Family::name);
  if (family == kFamilies.end()) {
    throw InputError(
        Diagnostic{.code = "D603",
                   .where = {.file = std::string(file), .operation = "model_type"},
                   .what = fmt::format("models of the type `{}` are not known", typed),
                   .why = fmt::format("known are {}", fmt::join(names, ", ")),
                   .help = nearest(typed, names).empty()
                               ? "set `model_type` to the family that has the same layers"
                               : suggest(typed, names)});
  }
  Config config(json, file);
  (void)config.word("model_type");
  ModelFile result{.model = Builder(config, *family).build(), .warnings = {}};
  result.warnings = config.finish();
  result.model.name = std::filesystem::path(file).filename().string();
  constexpr std::string_view kEnding = ".json";
  std::string& name = result.model.name;
  if (name.ends_with(kEnding)) name.resize(name.size() - kEnding.size());
  return result;
}

}  // namespace shiplap::workload
