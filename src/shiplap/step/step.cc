#include "shiplap/step/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::ContextMethod;
using layout::Layout;
using layout::PipelineSchedule;
using layout::Sharding;
using layout::Stage;
using workload::Layer;
using workload::Model;
using workload::Part;
using workload::PartKind;

[[noreturn]] void throw_unknown(std::string what, std::string help) {
  throw InputError(
      {.code = "D645", .where = {}, .what = std::move(what), .why = "", .help = std::move(help)});
}

}  // namespace

LayerParts parts_of(const Layer& layer) {
  LayerParts result;
  for (const Part& part : layer.parts) {
    const std::string_view name = part.name;
    if (name == "attention.norm") {
      result.attention_norm.push_back(part);
    } else if (name == "mlp.norm") {
      result.mlp_norm.push_back(part);
    } else if (name == "mlp.norm_after") {
      result.mlp_after.push_back(part);
    } else if (name == "attention.norm_after") {
      result.attention_after.push_back(part);
    } else if (part.kind == PartKind::attention) {
      result.core.push_back(part);
    } else if (name.starts_with("attention.")) {
      (result.core.empty() ? result.queries : result.out).push_back(part);
    } else if (name == "router") {
      result.router.push_back(part);
    } else if (name.starts_with("experts.")) {
      result.experts.push_back(part);
    } else if (name.starts_with("shared.")) {
      result.shared.push_back(part);
    } else if (name.starts_with("mlp.")) {
      result.mlp.push_back(part);
    } else {
      throw InternalError("a part of a layer is of no known block");
    }
  }
  return result;
}

StepWriter::StepWriter(const Model& model, const Layout& layout)
    : model_(model),
      layout_(layout),
      axes_(layout, has_experts(model)),
      stages_(layout::stages_of(layout, model)),
      pipeline_(layout.pipeline),
      chunks_(layout.chunks),
      microbatches_(layout.microbatches()),
      samples_(layout.data * layout.microbatches()),
      layers_(static_cast<std::int64_t>(model.layers.size())),
      splits_(layout.pipeline > 1 && (layout.schedule == PipelineSchedule::zero_bubble ||
                                      layout.schedule == PipelineSchedule::dual_pipe_v)),
      is_v_(layout.pipeline > 1 && layout.schedule == PipelineSchedule::dual_pipe_v) {
  require_known();
  std::int64_t first = 0;
  modules_ = stages_.back().mtp;
  for (const Stage& stage : stages_) {
    firsts_.push_back(first);
    first += stage.layers;
    most_layers_ = std::max(most_layers_, stage.layers);
  }
  even_ = std::ranges::all_of(stages_,
                              [&](const Stage& stage) { return stage.layers == most_layers_; });
  if (pipeline_ > 1) order_pipeline();
  for (std::size_t k = 0; k < model.kinds.size(); ++k) kinds_.push_back(kind_of(k));
  add_edges();
}

std::string StepWriter::write() {
  line("shiplap-plan 1");
  line("# {}: {} ranks, tensor {}, context {}, pipeline {} x {}, data {}, expert {}, {}",
       model_.name, layout_.ranks(), layout_.tensor, layout_.context, pipeline_, chunks_,
       layout_.data, layout_.expert, name(layout_.sharding));
  line("mesh {}", axes_.mesh);
  for (const std::string& alias : axes_.aliases) line("alias {}", alias);
  lists();
  tensors();
  for (std::int64_t from = 0; from < pipeline_;) {
    std::int64_t to = from + 1;
    while (to < pipeline_ && content_of(to) == content_of(from)) ++to;
    program(from, to - 1);
    from = to;
  }
  return std::move(text_);
}

bool StepWriter::has_experts(const Model& model) {
  return std::ranges::any_of(model.kinds, [](const Layer& layer) {
    return std::ranges::any_of(layer.parts, [](const Part& p) { return p.experts > 1; });
  });
}

void StepWriter::require_known() const {
  if (splits_ && layout_.recompute == layout::Recompute::full) {
    throw_unknown(fmt::format("full recomputation in a {} pipeline is not planned yet",
                              name(layout_.schedule)),
                  "recompute attention only, or use 1F1B");
  }
  for (const Stage& stage : stages_) {
    if (stage.mtp > 0 && &stage != &stages_.back()) {
      throw_unknown("modules for further predicted tokens are only planned on the last stage",
                    "write them, and the head, on the last stage");
    }
  }
  if (layout_.expert * layout_.expert_tensor > 1 && layout_.tensor > 1 &&
      !layout_.sequence_parallel) {
    throw_unknown("experts with tensor parallelism need sequence parallelism",
                  "turn sequence parallelism on");
  }
  for (const Layer& layer : model_.kinds) {
    for (const Part& part : layer.parts) {
      const std::int64_t heads = part.attention.kv_heads;
      if (part.kind != PartKind::attention || heads % shares() == 0) continue;
      throw_unknown(fmt::format("{} ranks divide {} heads of keys and values, and the gradients of "
                                "a head that several have are not summed yet",
                                shares(), heads),
                    fmt::format("divide the heads over at most {} ranks", heads));
    }
  }
  if (!stages_.front().embedding || !stages_.back().head) {
    throw_unknown("the first stage must have the embedding and the last one the head",
                  "write the stages so");
  }
}

std::int64_t StepWriter::tokens_of_sequence() const {
  return layout_.micro_batch * layout_.seq_length / layout_.context;
}

std::int64_t StepWriter::tokens_of_block() const {
  return tokens_of_sequence() / axes_.blocks_of_sequence;
}

bool StepWriter::splits_heads() const {
  return layout_.context > 1 && layout_.context_method == ContextMethod::ulysses;
}

std::int64_t StepWriter::shares() const {
  return layout_.tensor * (splits_heads() ? layout_.context : 1);
}

std::string StepWriter::instance(const WeightGroup& group) const {
  if (group.of_modules) return "[module]";
  return group.is_alone ? "" : "[l]";
}

std::string StepWriter::operation_index(const WeightGroup& group) {
  if (group.of_modules) return "[module]";
  return group.is_alone ? "" : "[q]";
}

std::string StepWriter::shard_name(const WeightGroup& group) {
  return group.of_experts ? "ze" : "z";
}

bool StepWriter::is_ring() const {
  return layout_.context > 1 && layout_.context_method == ContextMethod::ring;
}

bool StepWriter::gathers_keys() const {
  return layout_.context > 1 && layout_.context_method == ContextMethod::all_gather;
}

const Stage& StepWriter::stage_at(std::int64_t rank, std::int64_t chunk) const {
  return stages_[stage_index(rank, chunk)];
}

std::vector<std::int64_t> StepWriter::content_of(std::int64_t rank) const {
  std::vector<std::int64_t> content{rank == 0, rank == pipeline_ - 1};
  for (std::int64_t c = 0; c < chunks_; ++c) {
    const Stage& stage = stage_at(rank, c);
    content.push_back(stage.embedding);
    content.push_back(stage.head);
  }
  std::vector<std::int64_t> counts = layers_by_kind(rank);
  for (std::int64_t& count : counts) count = std::min<std::int64_t>(count, 1);
  content.insert(content.end(), counts.begin(), counts.end());
  return content;
}

std::vector<std::int64_t> StepWriter::layers_by_kind(std::int64_t rank) const {
  std::vector<std::int64_t> counts(kinds_.size());
  for (std::int64_t c = 0; c < chunks_; ++c) {
    const std::int64_t s = stage_index(rank, c);
    for (std::int64_t l = firsts_[s]; l < firsts_[s] + stages_[s].layers; ++l) {
      ++counts[model_.layers[l]];
    }
  }
  return counts;
}

void StepWriter::program(std::int64_t from, std::int64_t to) {
  first_rank_ = from;
  is_first_ = from == 0;
  is_last_ = to == pipeline_ - 1;
  has_head_ = is_v_ ? is_first_ : is_last_;
  here_.clear();
  most_.assign(kinds_.size(), 0);
  for (std::int64_t rank = from; rank <= to; ++rank) {
    const std::vector<std::int64_t> counts = layers_by_kind(rank);
    for (std::size_t k = 0; k < counts.size(); ++k) most_[k] = std::max(most_[k], counts[k]);
  }
  if (modules_here() > 0) {
    module_first_ = most_[module_kind()];
    most_[module_kind()] += modules_;
  }
  for (std::size_t k = 0; k < most_.size(); ++k) {
    if (most_[k] > 0) here_.push_back(k);
  }
  edges_here_.clear();
  for (const WeightGroup& group : edges_) {
    const bool of_embedding = group.name == "embedding";
    if ((of_embedding && is_first_) || (has_head_ && (!of_embedding || group.is_at_ends))) {
      edges_here_.push_back(&group);
    }
  }
  const std::string name = pipeline_ == 1 ? "all"
                           : is_first_    ? "first"
                           : is_last_     ? "last"
                                          : "middle";
  const std::string suffix = name == "middle" && middles_++ > 0 ? std::to_string(middles_) : "";
  std::string on = "all";
  if (pipeline_ > 1)
    on = from == to ? fmt::format("pp={}", from) : fmt::format("pp={}..{}", from, to);
  line("program {}{} on {}", name, suffix, on);
  ++depth_;
  buffers();
  start();
  body();
  reduce_edges();
  update();
  --depth_;
}

void StepWriter::buffer(std::string_view name, std::int64_t rows, std::int64_t bytes, DType type) {
  line("buffer {} rows {} row_bytes {} {}", name, rows, bytes, shiplap::name(type));
}

std::string StepWriter::layers_in_chunk() const {
  return even_ ? std::to_string(most_layers_) : fmt::format("count[{}]", stage());
}

std::string StepWriter::first_layer() const {
  return even_ ? times(stage(), most_layers_) : fmt::format("first[{}]", stage());
}

std::string StepWriter::stage() const {
  if (pipeline_ == 1) return "0";
  return chunks_ == 1 ? "pp" : "s";
}

void StepWriter::let_stage() {
  if (is_v_) {
    line("let s = pp+c*({}-2*pp)", 2 * pipeline_ - 1);
  } else if (chunks_ > 1) {
    line("let s = {}", plus(times("c", pipeline_), "pp"));
  }
}

void StepWriter::let_layer() {
  line("let l = {}", plus(first_layer(), "k"));
  if (counts_before()) {
    line("let q = before[l]");
  } else {
    line("let q = {}", plus(chunks_ == 1 ? "0" : times("c", most_layers_), "k"));
  }
}

void StepWriter::start() {
  each_layer([&](const WeightGroup& group) {
    const std::int64_t shards = group.sharing.shards;
    if (group.sharding != Sharding::weights) {
      line("keep {} = {}", rows_at(group, "w", shards), whole(group, "W"));
    }
    if (group.sharding == Sharding::none) {
      line("keep {} = {}", rows_at(group, "o", 1), whole(group, "O"));
    } else {
      line("keep {} = {}", rows_at(group, "sw", 1), shard(group, "W"));
      line("keep {} = {}", rows_at(group, "o", 1), shard(group, "O"));
    }
    line("compute zero");
    if (group.sharding >= Sharding::gradients) {
      line("  writes {} = {} sum none", rows_at(group, "sg", 1), shard(group, "G"));
    } else {
      line("  writes {} = {} sum none", rows_at(group, "g", shards), whole(group, "G"));
    }
  });
  if (is_first_ || has_head_) {
    block(fmt::format("repeat m {}", microbatches_), [&] {
      if (is_first_) line("given {} = I {}", token_rows("ids"), of_sequence());
      if (has_head_) line("given {} = L {}", token_rows("labels"), of_sequence());
      if (modules_here() == 0) return;
      block(fmt::format("repeat module {}", modules_), [&] {
        line("given {} = MI[module] {}", module_tokens("mids"), of_sequence());
        line("given {} = ML[module] {}", module_tokens("mlabels"), of_sequence());
      });
    });
  }
}

void StepWriter::body() {
  if (pipeline_ == 1) {
    block(fmt::format("repeat m {}", microbatches_), [&] {
      line("let slot = m");
      forward_pass();
      backward_pass();
      block(fmt::format("when m={}", microbatches_ - 1), [&] { last_reductions(); });
    });
    return;
  }
  turns(order_[first_rank_]);
}

std::string step_text(const Model& model, const Layout& layout) {
  return StepWriter(model, layout).write();
}

plan::Plan step_plan(const Model& model, const Layout& layout) {
  return plan::parse_text(step_text(model, layout), model.name);
}

}  // namespace shiplap::step
