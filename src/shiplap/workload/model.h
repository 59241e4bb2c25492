// What is trained: a model as layers of named parts, each with its shape, parameters, FLOPs and
// bytes.
//
// A part is what one kernel does: a product with a weight, attention, a norm. Counts are exact:
// parameters as the published weights have them, FLOPs as papers count them (a multiplication and
// an addition are two; norms, rotations and softmax are not counted), bytes as what a kernel reads
// and writes if each value crosses the memory bus once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/dtype.h"
#include "shiplap/base/units.h"

namespace shiplap::workload {

// The batch that passes through a part.
struct Tokens {
  std::int64_t sequences = 1;
  std::int64_t length = 1;  // tokens of a sequence
  [[nodiscard]] std::int64_t count() const { return sequences * length; }
};

enum class PartKind : std::uint8_t {
  embedding,   // looks up a row of a table with `in` rows of `out` features
  linear,      // out = in x weight
  attention,   // softmax(QK^T)V: reads q, k and v, writes one vector per head
  activation,  // elementwise, such as SwiGLU
  norm,        // RMSNorm, or LayerNorm if it has a bias
  loss,        // cross-entropy of `in` logits
};
[[nodiscard]] std::string_view name(PartKind kind);

struct AttentionShape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t qk_dim = 1;  // of a head
  std::int64_t v_dim = 1;
  std::int64_t window = 0;  // how many keys a query sees, itself included; 0: all before it
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

struct Part {
  std::string name;  // "attention.qkv"
  PartKind kind = PartKind::linear;
  std::int64_t in = 0;   // features read for a token
  std::int64_t out = 0;  // features written
  bool bias = false;
  std::int64_t experts = 1;  // copies of the part
  std::int64_t top_k = 1;    // of them, for a token
  std::int64_t vectors = 1;  // of a token that share the weight: the heads of a norm of each head
  AttentionShape attention;  // of attention
  std::int64_t other = 0;    // further parameters, such as the sinks of attention
  bool tied = false;         // the weight is that of another part

  [[nodiscard]] std::int64_t parameters() const;
  [[nodiscard]] std::int64_t active_parameters() const;  // that a token meets
  friend bool operator==(const Part&, const Part&) = default;
};

// FLOPs and bytes of a part: exact below 2^53.
struct PartWork {
  double flop = 0;
  double bytes = 0;
  friend bool operator==(const PartWork&, const PartWork&) = default;
};
[[nodiscard]] PartWork forward(const Part& part, Tokens tokens, DType type);
// The gradient of the input, and that of the weight; the whole backward pass is both.
[[nodiscard]] PartWork backward_input(const Part& part, Tokens tokens, DType type);
[[nodiscard]] PartWork backward_weight(const Part& part, Tokens tokens, DType type);
// What the forward pass keeps for the backward pass, if nothing is recomputed: the inputs. At most
// 2^62.
[[nodiscard]] Bytes kept(const Part& part, Tokens tokens, DType type);

// Pairs of a query and a key that it sees, in a causal sequence.
[[nodiscard]] std::int64_t causal_pairs(std::int64_t length, std::int64_t window);

struct Layer {
  std::string name;  // "dense", "moe"
  std::vector<Part> parts;
  [[nodiscard]] std::int64_t parameters() const;
  [[nodiscard]] std::int64_t active_parameters() const;
  friend bool operator==(const Layer&, const Layer&) = default;
};

struct Model {
  std::string name;
  std::string family;  // "llama"
  DType type = DType::bf16;
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;  // the longest sequence
  Layer embedding;
  std::vector<Layer> kinds;          // the transformer layers that differ
  std::vector<std::int32_t> layers;  // by layer: its kind
  Layer head;                        // final norm, head and loss
  std::vector<Layer> mtp;            // further predicted tokens, each with its own layer

  [[nodiscard]] const Layer& layer(std::size_t k) const { return kinds[layers[k]]; }
  // Without mtp, as parameter counts are published.
  [[nodiscard]] std::int64_t parameters() const;
  [[nodiscard]] std::int64_t active_parameters() const;
  [[nodiscard]] std::int64_t mtp_parameters() const;
  // Of a whole forward pass, with the first `modules` of mtp; the backward pass has twice as many.
  // REQUIRES: there are that many.
  [[nodiscard]] double forward_flop(Tokens tokens, std::int64_t modules = 0) const;
  friend bool operator==(const Model&, const Model&) = default;
};

// A model, and what was assumed where its file is silent or says more than is understood.
struct ModelFile {
  Model model;
  std::vector<Diagnostic> warnings;  // D604
};

// A config.json of Hugging Face. Throws InputError D603: it is not one, or its family is not known,
// or a size is missing or impossible (all such errors at once).
[[nodiscard]] ModelFile parse_model(std::string_view text, std::string_view file);

// Names of the models that are shipped, such as "llama3-70b".
[[nodiscard]] std::vector<std::string> known_models();
// A known model, a config.json, or a folder with one. Throws InputError D603, or D605: there is
// none.
[[nodiscard]] ModelFile find_model(const std::string& name_or_path);

}  // namespace shiplap::workload
