// Modules for further predicted tokens (MTP, DeepSeek-V3 technical report, 2024, section 2.2), on
// the last stage. A module joins the hidden vector of each token, normed, with the embedding of a
// further one, normed; a layer and the head follow. The embedding, which the first stage has too,
// and the head are those of the model, and their gradients sums over all uses.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::Sharding;
using workload::Part;

}  // namespace

void StepWriter::add_modules() {
  const auto add = [&](const std::string& name, const auto& belongs) {
    add_group(edges_, model_.mtp.front(), name, belongs);
    WeightGroup& group = edges_.back();
    group.buffer = name;
    group.is_alone = true;
    group.of_modules = true;
    group.sums_tensor = gathers_tokens();
    set_sharding(group, std::min(layout_.sharding, Sharding::gradients));
  };
  add("mtp", [](const Part& part) { return part.name.starts_with("mtp."); });
  add("mtp_norm", [](const Part& part) { return part.name == "norm"; });
}

std::vector<Part> StepWriter::joining_parts() const {
  std::vector<Part> parts;
  std::ranges::copy_if(model_.mtp.front().parts, std::back_inserter(parts),
                       [](const Part& part) { return part.name.starts_with("mtp."); });
  return parts;
}

std::string StepWriter::module_tokens(std::string_view buffer) const {
  const std::int64_t rows = rows_of_sequence();
  return fmt::format("{}[{} +{}]", buffer, times(plus(times("m", modules_), "module"), rows), rows);
}

std::string StepWriter::embedded_row() const {
  return fmt::format("me[{} +1]", plus(times("m", modules_), "module"));
}

void StepWriter::for_module_rows(std::string_view words, const std::string& after) {
  line("{}[{} +{}]{}", words, plus(times("slot", hidden_rows()), layers_in_chunk() + "+1"),
       2 * modules_, after);
}

void StepWriter::modules_forward() {
  if (modules_here() == 0) return;
  block_if(chunks_ > 1, fmt::format("when c={}", chunks_ - 1),
           [&] { for_module_rows("allocate h"); });
  each_module_of_chunk(false, [&] {
    const Kind& kind = kinds_[module_kind()];
    line("allocate {}", embedded_row());
    look_up(fmt::format("{} = MI[module] {}", module_tokens("mids"), of_sequence()), "MPE[module]",
            fmt::format("{} = {}", embedded_row(), at_block("ME", "[module]")));
    join_forward();
    if (!recomputes()) {
      line("allocate x[kept*3 +3]");
      line("allocate {}", attention_row("ao"));
      allocate_kept_of("allocate", kind, module_kind());
    }
    gather_module(Direction::forward);
    attention_forward(kind, module_kind());
    mlp_forward(kind, module_kind(), true);
    head_forward(module_head());
  });
}

void StepWriter::join_forward() {
  line("compute {}", works(joining_parts(), Direction::forward));
  line("  reads {} = {}", h_row("k-1"), at_block("H", "[l-1]"));
  line("  reads {} = {}", embedded_row(), at_block("ME", "[module]"));
  read_weight(edge("mtp"));
  line("  writes {} = {}", h_row(), at_block("H"));
}

// Leaves the gradient of the last layer's output, of the first module, in `dj`.
void StepWriter::modules_backward() {
  if (modules_here() == 0) return;
  if (splits_) for_module_rows("allocate dh");
  each_module(true, [&] {
    if (!recomputes()) {
      line("let kept = {}+{}+module", times("slot", layer_slots()), most_layers_);
    }
    head_backward(module_head(), "module+1");
    gather_module(backward());
    layer_backward(kinds_[module_kind()], module_kind());
    wait_for_module_reductions(false);
    if (!recomputes() && !splits_) {
      line("free x[kept*3 +3]");
      line("free {}", attention_row("ao"));
      allocate_kept_of("free", kinds_[module_kind()], module_kind());
    }
    join_backward();
  });
  for_module_rows("free h");
}

void StepWriter::join_backward() {
  const WeightGroup& joined = edge("mtp");
  const WeightGroup& embedding = edge("embedding");
  zero_gradients({&joined, &embedding});
  line("compute {}", works(joining_parts(), Direction::backward));
  line("  reads {} = {}", dh_row("k"), at_block("dH"));
  line("  reads {} = {}", h_row("k-1"), at_block("H", "[l-1]"));
  line("  reads {} = {}", embedded_row(), at_block("ME", "[module]"));
  read_weight(joined);
  line("  writes dj = {}", at_block("dJ", "[module]"));
  line("  writes de = {}", at_block("dME", "[module]"));
  add_gradient(joined, of_block());
  line("free {}", embedded_row());
  const std::string full = gathered("de", "dfull");
  line("compute {}", works(model_.embedding.parts, Direction::backward));
  line("  reads {} = {}", full, at_sequence("dME", "[module]"));
  line("  reads {} = MI[module] {}", module_tokens("mids"), of_sequence());
  const std::string use = tied_ ? "2+2*module" : "1+module";
  add_gradient(embedding, of_sequence(), use + " +1");
  reduce_now({&joined}, "module");
  reduce_now({&embedding}, use);
}

void StepWriter::modules_weight_backward() {
  each_module_of_chunk(true, [&] {
    const Kind& kind = kinds_[module_kind()];
    head_weight_backward(module_head());
    gather_module(Direction::backward_weight);
    layer_weight_backward(kind, module_kind());
    wait_for_module_reductions(true);
    line("free x[kept*3 +3]");
    line("free {}", attention_row("ao"));
    allocate_kept_of("free", kind, module_kind());
  });
  if (modules_here() == 0) return;
  block_if(chunks_ > 1, fmt::format("when c={}", chunks_ - 1), [&] { for_module_rows("free dh"); });
}

}  // namespace shiplap::step
