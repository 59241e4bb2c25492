// The lists, tensors and buffers of a step.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <tuple>

#include "shiplap/base/error.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::Recompute;
using layout::Stage;
using workload::Part;
using workload::PartKind;

}  // namespace

std::int64_t StepWriter::kept_by(const std::vector<Part>& parts) const {
  std::int64_t bytes = 0;
  for (const Part& part : parts) {
    const bool reads_norm = part.kind == PartKind::linear && part.in == model_.hidden;
    const bool is_expert = part.name.starts_with("experts.");
    if (reads_norm && !is_expert) continue;
    const LocalPart local = local_part(part, layout_);
    bytes += kept(local.part, local.tokens, model_.type).count;
  }
  return std::max<std::int64_t>((bytes + 7) / 8 * 8, 8);
}

void StepWriter::lists() {
  if (pipeline_ > 1) pipeline_lists();
  if (!even_) {
    std::vector<std::int64_t> counts;
    for (const Stage& stage : stages_) counts.push_back(stage.layers);
    list("first", firsts_);
    list("count", counts);
  }
  if (counts_before()) {
    // Of each layer, how many of its kind its rank has before it.
    std::vector<std::int64_t> before(model_.layers.size());
    for (std::int64_t rank = 0; rank < pipeline_; ++rank) {
      std::map<std::int32_t, std::int64_t> seen;
      for (std::int64_t c = 0; c < chunks_; ++c) {
        const std::int64_t s = stage_index(rank, c);
        for (std::int64_t l = firsts_[s]; l < firsts_[s] + stages_[s].layers; ++l) {
          before[l] = seen[model_.layers[l]]++;
        }
      }
    }
    if (kinds_.size() > 1) list("kind", model_.layers);
    list("before", before);
  }
  if (is_ring()) {
    std::vector<std::int64_t> around;
    const std::int64_t ranks = layout_.context;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      for (std::int64_t step = 0; step < ranks; ++step) {
        around.push_back((rank - step + ranks) % ranks);
      }
    }
    list("ring", around);
  }
}

void StepWriter::tensors() {
  const std::string te = axes_.tes > 1 ? fmt::format(" te {}", axes_.tes) : "";
  const std::string place = fmt::format("sample {} tok {}{}", samples_, axes_.toks, te);
  const std::string ff = fmt::format(" ff {}", shares());
  const std::string sum_ff = " sum" + ff;
  const std::int64_t n = layers_ + 2 * modules_;
  line("tensor I Tokens {}", place);
  line("tensor L Labels {}", place);
  for (const auto& [name, kind, count, rest] :
       std::initializer_list<std::tuple<const char*, const char*, std::int64_t, std::string>>{
           {"H", "Hidden", n + 1, ""},
           {"XA", "Normed", n, ""},
           {"KA", "Kept", n, ff},
           {"AO", "AttentionOutput", n, ff + (is_ring() ? key_sum() : "")},
           {"PA", "Partial", n, sum_ff},
           {"A", "Hidden", n, ""},
           {"XM", "Normed", n, ""},
           {"dH", "HiddenGrad", n + 1, ""},
           {"dA", "HiddenGrad", n, ""},
           {"dXM", "NormedGrad", n, sum_ff},
           {"dAO", "AttentionGrad", n, ff},
           {"dKA", "KeptGrad", n, ff + (is_ring() ? key_sum() : "")},
           {"dXA", "NormedGrad", n, sum_ff}}) {
    line("tensor {}[{}] {} {}{}", name, count, kind, place, rest);
  }
  if (layout_.context > 1 && !splits_heads()) {
    const std::string keys = fmt::format("sample {} key {}{}", samples_, layout_.context, ff);
    line("tensor KV[{}] Kept {}", n, keys);
    line("tensor dKV[{}] KeptGrad {} sum tok {}{}", n, keys, axes_.toks, te);
    line("tensor dKT[{}] KeptGrad {}{}", n, place, ff);
  }
  if (any_kind([](const Kind& kind) { return !kind.parts.mlp.empty(); })) {
    line("tensor KM[{}] Kept {}{}", n, place, ff);
    line("tensor PM[{}] Partial {}{}", n, place, sum_ff);
  }
  if (any_kind([](const Kind& kind) { return !kind.parts.shared.empty(); })) {
    line("tensor KS[{}] Kept {}{}", n, place, ff);
    line("tensor PS[{}] Partial {}{}", n, place, sum_ff);
  }
  if (any_kind([](const Kind& kind) { return !kind.parts.experts.empty(); })) {
    const std::string eg = fmt::format("eg {} ", layout_.expert);
    const std::string et = fmt::format(" et {}", layout_.expert_tensor);
    line("tensor D[{}] Dispatched {}{}", n, eg, place);
    line("tensor KX[{}] Kept {}{}{}", n, eg, place, et);
    line("tensor Y[{}] ExpertOutput {}{} sum{}", n, eg, place, et);
    line("tensor dY[{}] ExpertOutputGrad {}{}", n, eg, place);
    line("tensor dD[{}] DispatchedGrad {}{} sum{}", n, eg, place, et);
  }
  const std::string voc = fmt::format(" voc {}", layout_.tensor);
  line("tensor PE Partial {} sum{}", place, voc);
  line("tensor XF Normed {}", place);
  line("tensor Z Logits {}{}", place, voc);
  line("tensor ST LossSum {} sum{}", place, voc);
  line("tensor dZ LogitsGrad {}{}", place, voc);
  line("tensor dXF NormedGrad {} sum{}", place, voc);

  if (modules_ > 0) module_tensors(place, voc);

  std::map<std::string, const WeightGroup*> groups;
  for (const Kind& kind : kinds_) {
    for (const WeightGroup& group : kind.groups) groups[group.name] = &group;
  }
  for (const WeightGroup& group : edges_) groups[group.name] = &group;
  for (const auto& [name, group] : groups) weight_tensors(*group, place);
}

void StepWriter::module_tensors(const std::string& place, const std::string& voc) {
  for (const auto& [name, rest] : std::initializer_list<std::pair<const char*, std::string>>{
           {"MI", "Tokens " + place},
           {"ML", "Labels " + place},
           {"MPE", "Partial " + place + " sum" + voc},
           {"ME", "Hidden " + place},
           {"MXF", "Normed " + place},
           {"MZ", "Logits " + place + voc},
           {"MST", "LossSum " + place + " sum" + voc},
           {"dMZ", "LogitsGrad " + place + voc},
           {"dMXF", "NormedGrad " + place + " sum" + voc},
           {"dME", "HiddenGrad " + place},
           {"dJ", "HiddenGrad " + place}}) {
    line("tensor {}[{}] {}", name, modules_, rest);
  }
}

void StepWriter::buffers() {
  const DType type = model_.type;
  const std::int64_t slots = chunks_ * microbatches_;
  for (const WeightGroup* group : edges_here_) {
    weight_buffers(*group, group->of_modules ? modules_ : 1);
  }
  for (const std::size_t k : here_) {
    for (const WeightGroup& group : kinds_[k].groups) weight_buffers(group, most_[k]);
  }
  const bool keeps = layout_.recompute != Recompute::full;
  const std::int64_t kept_layers = keeps ? slots * layer_slots() : 1;
  const auto token_buffer = [&](std::string_view name) {
    buffer(name, microbatches_ * rows_of_sequence(), 8 * tokens_of_block(), DType::i64);
  };
  if (is_first_) token_buffer("ids");
  if (has_head_) token_buffer("labels");
  buffer("h", slots * hidden_rows(), row(), type);
  buffer("x", kept_layers * 3, row(), type);
  const std::int64_t heads = splits_heads() ? layout_.context : 1;
  buffer("ao", kept_layers * heads, divided(kept_by_out(), heads), type);
  for (const std::size_t k : here_) {
    const LayerParts& parts = kinds_[k].parts;
    const auto kept_buffer = [&](const char* name, const std::vector<Part>& of) {
      if (!of.empty()) buffer(fmt::format("{}{}", name, k), kept_layers, kept_by(of), type);
    };
    std::vector<Part> attention = parts.queries;
    attention.insert(attention.end(), parts.core.begin(), parts.core.end());
    buffer(fmt::format("ka{}", k), kept_layers * heads, divided(kept_by(attention), heads), type);
    kept_buffer("km", parts.mlp);
    kept_buffer("kx", parts.experts);
    kept_buffer("ks", parts.shared);
  }
  if (splits_) {
    buffer("dh", slots * hidden_rows(), row(), type);
    buffer("da", kept_layers, row(), type);
  } else {
    buffer("d", gradients_ * chunks_, row(), type);
  }
  buffer("full", rows_of_sequence(), row(), type);
  buffer("dfull", rows_of_sequence(), row(), type);
  buffer("part", rows_of_sequence(), row(), type);
  buffer("e", 1, row(), type);
  if (!splits_heads()) buffer("dao", 1, kept_by_out(), type);
  attention_buffers();
  expert_buffers();
  if (has_head_) {
    const std::int64_t words = (model_.vocabulary + layout_.tensor - 1) / layout_.tensor;
    buffer("xf", microbatches_, row(), type);
    buffer("z", microbatches_, tokens_of_sequence() * words * element(), type);
    buffer("st", 1, 4 * tokens_of_sequence(), DType::f32);
    if (modules_ > 0) module_buffers(tokens_of_sequence() * words * element());
  }
  line("streams net{}{}", shards_weights() ? ", weights" : "",
       is_ring() ? ", keys, gradients" : "");
}

void StepWriter::module_buffers(std::int64_t logits) {
  const std::int64_t rows = microbatches_ * modules_;
  for (const char* name : {"mids", "mlabels"}) {
    buffer(name, rows * rows_of_sequence(), 8 * tokens_of_block(), DType::i64);
  }
  buffer("me", rows, row(), model_.type);
  buffer("mxf", rows, row(), model_.type);
  buffer("mz", rows, logits, model_.type);
  for (const char* name : {"de", "dj"}) buffer(name, 1, row(), model_.type);
}

std::int64_t StepWriter::divided(std::int64_t bytes, std::int64_t parts) {
  return (bytes + 8 * parts - 1) / (8 * parts) * 8;
}

std::int64_t StepWriter::kept_by_out() const {
  std::int64_t bytes = 8;
  for (const Kind& kind : kinds_) {
    const std::vector<Part> out{kind.parts.out.front()};
    const LocalPart local = local_part(out.front(), layout_);
    bytes = std::max(bytes, kept(local.part, local.tokens, model_.type).count);
  }
  return (bytes + 7) / 8 * 8;
}

std::int64_t StepWriter::key_bytes() const {
  std::int64_t bytes = 8;
  for (const Kind& kind : kinds_) {
    const LocalPart local = local_part(kind.parts.core.front(), layout_);
    const workload::AttentionShape& shape = local.part.attention;
    bytes = std::max(
        bytes, tokens_of_sequence() * shape.kv_heads * (shape.qk_dim + shape.v_dim) * element());
  }
  return bytes;
}

std::int64_t StepWriter::query_bytes() const {
  std::int64_t bytes = 8;
  for (const Kind& kind : kinds_) {
    const LocalPart local = local_part(kind.parts.core.front(), layout_);
    bytes = std::max(bytes, tokens_of_sequence() * local.part.in * element());
  }
  return (bytes + 7) / 8 * 8;
}

std::int64_t StepWriter::layer_rows() const {
  return splits_ ? chunks_ * microbatches_ * layer_slots() : 1;
}

void StepWriter::attention_buffers() {
  const DType type = model_.type;
  const std::int64_t ranks = layout_.context;
  if (splits_heads()) {
    std::int64_t kept = 8;
    for (const std::size_t k : here_) {
      std::vector<Part> attention = kinds_[k].parts.queries;
      attention.push_back(kinds_[k].parts.core.front());
      kept = std::max(kept, kept_by(attention));
    }
    buffer("u", ranks, divided(kept, ranks), type);
    if (splits_) buffer("dq", layer_rows() * ranks, divided(kept, ranks), type);
    buffer("v", ranks, divided(kept, ranks), type);
    buffer("uo", ranks, divided(kept_by_out(), ranks), type);
    buffer("vo", ranks, divided(kept_by_out(), ranks), type);
    return;
  }
  buffer("dq", layer_rows(), query_bytes(), type);
  if (ranks == 1) return;
  buffer("kv", ranks, key_bytes(), type);
  buffer("dkv", ranks + (is_ring() ? 1 : 0), key_bytes(), type);
  buffer("dkt", layer_rows(), key_bytes(), type);
  if (gathers_keys()) {
    buffer("kvl", 1, key_bytes(), type);
    buffer("dkvl", 1, key_bytes(), type);
  }
}

std::int64_t StepWriter::dispatched_bytes() const {
  for (const std::size_t k : here_) {
    for (const Part& part : kinds_[k].parts.experts) {
      const std::int64_t copies = tokens_of_block() * part.top_k;
      return (copies + layout_.expert - 1) / layout_.expert * model_.hidden * element();
    }
  }
  return 0;
}

void StepWriter::expert_buffers() {
  const std::int64_t bytes = dispatched_bytes();
  if (bytes == 0) return;
  for (const char* name : {"sd", "rd", "sy", "ry"})
    buffer(name, layout_.expert, bytes, model_.type);
  const std::int64_t at_experts = layout_.expert * layout_.expert_tensor;
  for (const char* name : {"xd", "xy"}) buffer(name, at_experts, bytes, model_.type);
  if (splits_) buffer("dy", layer_rows() * at_experts, bytes, model_.type);
}

}  // namespace shiplap::step
