// The weights of a step: which ranks share them, and the rows and values that stand for them.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::Sharding;
using workload::Layer;
using workload::Part;
using workload::PartKind;

}  // namespace

void StepWriter::cut_by_tensor(WeightGroup& group) const {
  group.dimensions = fmt::format("ff {} ", shares());
  const std::int64_t mine = shares() / layout_.tensor;
  group.at = run("ff", times(axes_.tp, mine), mine);
  group.shards_first = mine > 1;
}

Kind StepWriter::kind_of(std::size_t number) const {
  const Layer& layer = model_.kinds[number];
  Kind kind{.parts = parts_of(layer), .groups = {}};
  const auto begins = [](const Part& part, std::string_view with) {
    return std::string_view(part.name).starts_with(with);
  };
  const auto is_whole = [](const Part& part) { return cut_of(part) == Cut::none; };
  const auto of_head = [](const Part& part) {
    return part.kind == PartKind::norm && part.vectors > 1;
  };
  const std::string suffix = model_.kinds.size() == 1 ? "" : std::to_string(number);
  auto& groups = kind.groups;
  const auto add = [&](const std::string& name, const auto& belongs) {
    add_group(groups, layer, name, belongs);
    return !groups.empty() && groups.back().name == name;
  };
  if (add("attention", [&](const Part& p) { return begins(p, "attention") && !is_whole(p); })) {
    cut_by_tensor(groups.back());
  }
  if (add("attention_norms",
          [&](const Part& p) { return begins(p, "attention") && is_whole(p) && !of_head(p); })) {
    groups.back().sums_tensor = gathers_tokens();
  }
  if (add("head_norms", [&](const Part& p) { return begins(p, "attention") && of_head(p); })) {
    groups.back().sums_tensor = layout_.tensor > 1;
    groups.back().sums_features = true;
  }
  if (add("mlp", [&](const Part& p) { return begins(p, "mlp.") && !is_whole(p); })) {
    cut_by_tensor(groups.back());
  }
  if (add("mlp_norms", [&](const Part& p) { return begins(p, "mlp.") && is_whole(p); })) {
    groups.back().sums_tensor = gathers_tokens();
  }
  if (add("router", [&](const Part& p) { return p.name == "router"; })) {
    groups.back().sums_tensor = gathers_tokens();
    groups.back().dimensions = fmt::format("eg {} ", layout_.expert);
    groups.back().shards_first = true;
  }
  if (add("experts", [&](const Part& p) { return begins(p, "experts."); })) {
    WeightGroup& group = groups.back();
    group.of_experts = true;
    group.sharing = axes_.experts;
    group.dimensions = fmt::format("eg {} et {} ", layout_.expert, layout_.expert_tensor);
    group.at = run("eg", axes_.ep, 1) + " " + run("et", axes_.etp, 1);
  }
  if (add("shared", [&](const Part& p) { return begins(p, "shared."); })) {
    cut_by_tensor(groups.back());
  }
  for (WeightGroup& group : groups) {
    group.buffer = group.name + suffix;
    set_sharding(group, layout_.sharding);
  }
  return kind;
}

void StepWriter::set_sharding(WeightGroup& group, Sharding sharding) {
  group.sharding = group.sharing.shards == 1 ? Sharding::none : sharding;
  if (group.sharding != Sharding::none) return;
  group.sharing.shards = 1;
  group.sharing.position = "0";
}

void StepWriter::add_edges() {
  const auto add = [&](const Layer& layer, const std::string& name, bool has_words,
                       const auto& belongs) {
    std::vector<WeightGroup> found;
    add_group(found, layer, name, belongs);
    for (WeightGroup& group : found) {
      group.is_alone = true;
      group.buffer = name;
      if (has_words) {
        group.dimensions = fmt::format("voc {} ", layout_.tensor);
        group.at = run("voc", axes_.tp, 1);
      } else {
        group.sums_tensor = gathers_tokens();
      }
      // As a root module of FSDP: whole during the step.
      set_sharding(group, std::min(layout_.sharding, Sharding::gradients));
      edges_.push_back(group);
    }
  };
  tied_ = std::ranges::any_of(model_.head.parts, [](const Part& part) { return part.tied; });
  add(model_.embedding, "embedding", true, [](const Part&) { return true; });
  add(model_.head, "final_norm", false,
      [](const Part& part) { return part.kind == PartKind::norm; });
  if (!tied_) {
    add(model_.head, "head", true, [](const Part& part) { return part.kind == PartKind::linear; });
  }
  const std::int64_t of_words = 1 + modules_;
  for (WeightGroup& group : edges_) {
    group.is_at_ends = group.name == "embedding" && (tied_ || modules_ > 0);
    if (group.name == "embedding") group.uses = (tied_ ? 2 : 1) * of_words;
    if (group.name == "head") group.uses = of_words;
  }
  if (modules_ > 0) add_modules();
}

const WeightGroup& StepWriter::edge(std::string_view name) const {
  return *std::ranges::find(edges_, name, &WeightGroup::name);
}

const WeightGroup& StepWriter::head_weight() const { return edge(tied_ ? "embedding" : "head"); }

std::string StepWriter::whole(const WeightGroup& group, std::string_view letter) const {
  std::string value = fmt::format("{}_{}{}", letter, group.name, instance(group));
  if (group.shards_first && !group.at.empty()) {
    value += fmt::format(" {} 0 +{}", shard_name(group), group.sharing.shards);
  }
  if (!group.at.empty()) value += " " + group.at;
  return value;
}

std::string StepWriter::shard(const WeightGroup& group, std::string_view letter) const {
  std::string value = fmt::format("{}_{}{}", letter, group.name, instance(group));
  const std::string mine = " " + run(shard_name(group), group.sharing.position, 1);
  if (group.shards_first) value += mine;
  if (!group.at.empty()) value += " " + group.at;
  if (!group.shards_first) value += mine;
  return value;
}

std::string StepWriter::rows_at(const WeightGroup& group, std::string_view buffer,
                                std::int64_t rows) const {
  const std::string index = group.of_modules ? "module" : group.is_alone ? "0" : "q";
  return fmt::format("{}_{}[{} +{}]", buffer, group.buffer, times(index, rows), rows);
}

std::string StepWriter::in_use(const WeightGroup& group, std::string_view buffer,
                               std::int64_t rows) const {
  const std::string index = group.is_alone ? "0" : "(k mod 2)";
  return fmt::format("{}_{}[{} +{}]", buffer, group.buffer, times(index, rows), rows);
}

std::string StepWriter::weight_rows(const WeightGroup& group) const {
  return group.sharding == Sharding::weights ? in_use(group, "f", group.sharing.shards)
                                             : rows_at(group, "w", group.sharing.shards);
}

std::string StepWriter::gradient_rows(const WeightGroup& group) const {
  return group.sharding >= Sharding::gradients ? in_use(group, "t", group.sharing.shards)
                                               : rows_at(group, "g", group.sharing.shards);
}

void StepWriter::read_weight(const WeightGroup& group) {
  line("  reads {} = {}", weight_rows(group), whole(group, "W"));
}

void StepWriter::add_gradient(const WeightGroup& group, const std::string& of,
                              const std::string& use) {
  std::string sum = of;
  if (group.sums_features) sum += ff();
  if (group.uses > 1) sum += " use " + use;
  line("  adds {} = {} sum {}", gradient_rows(group), whole(group, "G"), sum);
}

void StepWriter::read_weight(const Kind& kind, std::string_view name) {
  for (const WeightGroup& group : kind.groups) {
    if (group.name == name) read_weight(group);
  }
}

void StepWriter::add_gradient(const Kind& kind, std::string_view name, const std::string& of) {
  for (const WeightGroup& group : kind.groups) {
    if (group.name == name) add_gradient(group, of);
  }
}

void StepWriter::weight_tensors(const WeightGroup& group, const std::string& place) {
  const std::int64_t instances = group.of_modules ? modules_ : layers_ + 2 * modules_;
  const bool has_one = group.is_alone && !group.of_modules;
  const std::string count = has_one ? "" : fmt::format("[{}]", instances);
  const std::string shards = fmt::format("{} {} ", shard_name(group), group.sharing.shards);
  const std::string part =
      group.shards_first ? shards + group.dimensions : group.dimensions + shards;
  line("tensor W_{}{} Weight {}", group.name, count, part);
  line("tensor O_{}{} OptState {}", group.name, count, part);
  std::string sum = place;
  if (group.sums_features) sum += fmt::format(" ff {}", shares());
  if (group.uses > 1) sum += fmt::format(" use {}", group.uses);
  line("tensor G_{}{} WeightGrad {}sum {} scale 1/{}", group.name, count, part, sum, samples_);
}

void StepWriter::weight_buffers(const WeightGroup& group, std::int64_t layers) {
  const std::int64_t shards = group.sharing.shards;
  const std::int64_t unit = (group.parameters + shards - 1) / shards;
  const DType type = model_.type;
  const DType sums = layout_.precision.gradients;
  const std::int64_t weight = unit * element();
  const std::int64_t gradient = unit * bytes_of(sums);
  const auto one = [&](const char* letter, std::int64_t rows, std::int64_t bytes, DType of) {
    buffer(fmt::format("{}_{}", letter, group.buffer), rows, bytes, of);
  };
  const std::int64_t in_use = group.is_alone ? 1 : 2;
  if (group.sharding != Sharding::weights) one("w", layers * shards, weight, type);
  if (group.sharding == Sharding::weights) one("f", in_use * shards, weight, type);
  if (group.sharding < Sharding::gradients) one("g", layers * shards, gradient, sums);
  if (group.sharding >= Sharding::gradients) {
    one("t", in_use * shards, gradient, sums);
    one("st", in_use, gradient, sums);
  }
  if (group.sharding != Sharding::none) {
    one("sw", layers, weight, type);
    one("sg", layers, gradient, sums);
  }
  one("o", layers, unit * layout::optimizer_bytes(layout_), DType::u8);
}

}  // namespace shiplap::step
