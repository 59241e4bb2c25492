// The forward pass of layers, embedding and head.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using workload::Part;
using workload::PartKind;

}  // namespace

DType StepWriter::type_of(const Part& part) const {
  const bool quantized = layout_.precision.fp8 != layout::Fp8::none;
  return quantized && part.kind == PartKind::linear && part.name != "head" ? DType::fp8_e4m3
                                                                           : model_.type;
}

std::string StepWriter::works(std::vector<Part> parts, Direction direction,
                              std::string_view otherwise, const std::string& after) {
  const bool is_backward = direction != Direction::forward;
  if (is_backward) std::ranges::reverse(parts);
  const std::string_view pass = is_backward ? "backward" : "forward";
  const std::string_view label = direction == Direction::forward           ? ""
                                 : direction == Direction::backward        ? ", backward"
                                 : direction == Direction::backward_weight ? ", gradient of weight"
                                                                           : ", gradient of input";
  std::string last = fmt::format("{}_{}{}", pass, otherwise, after);
  bool is_first = true;
  for (const Part& part : parts) {
    const std::string work = work_text(local_part(part, layout_), direction, type_of(part));
    if (work.empty()) continue;
    if (!is_first) line("compute {}", last);
    is_first = false;
    last = fmt::format("{}_{}{} work {} label {}{}", pass, class_of_kernel(part.kind), after, work,
                       part.name, label);
  }
  return last;
}

void StepWriter::all_works(const std::vector<Part>& parts, Direction direction) {
  if (!parts.empty()) line("compute {}", works(parts, direction));
}

std::string StepWriter::at_block(std::string_view tensor, std::string_view l) const {
  return fmt::format("{}{} {} {}", tensor, l, sample(), axes_.block);
}

std::string StepWriter::at_sequence(std::string_view tensor, std::string_view l) const {
  return fmt::format("{}{} {} {}", tensor, l, sample(), axes_.sequence);
}

std::string StepWriter::ff() const {
  const std::int64_t mine = shares() / layout_.tensor;
  return " " + run("ff", times(axes_.tp, mine), mine);
}

std::string StepWriter::cut(std::string_view tensor) const {
  if (splits_heads()) return fmt::format("{}[l]{} {}", tensor, ff(), of_sequence());
  return at_sequence(tensor) + ff();
}

std::string StepWriter::heads_here(std::string_view tensor) const {
  const std::string share = plus(times(axes_.tp, layout_.context), axes_.cp);
  return fmt::format("{}[l] {} tok 0 +{} {}", tensor, sample(), axes_.toks, run("ff", share, 1));
}

std::string StepWriter::of_experts() const {
  return axes_.samples_at_experts + " " + axes_.toks_at_experts;
}

std::string StepWriter::h_row(const std::string& of) const {
  return fmt::format("h[{} +1]", plus(times("slot", hidden_rows()), of));
}

std::string StepWriter::x_row(int index) const {
  const std::string base = recomputes() ? "0" : fmt::format("kept*{}", 3);
  return fmt::format("x[{} +1]", plus(base, std::to_string(index)));
}

std::string StepWriter::kept_row(const std::string& buffer) const {
  return fmt::format("{}[{} +1]", buffer, recomputes() ? "0" : "kept");
}

std::string StepWriter::attention_row(const std::string& buffer) const {
  const std::int64_t rows = splits_heads() ? layout_.context : 1;
  return fmt::format("{}[{} +{}]", buffer, times(recomputes() ? "0" : "kept", rows), rows);
}

std::string StepWriter::dh_row(const std::string& of) const {
  if (splits_) return fmt::format("dh[{} +1]", plus(times("slot", hidden_rows()), of));
  const std::string row = fmt::format("m mod {}", gradients_);
  return fmt::format("d[{} +1]", plus(times(chunk(), gradients_), row));
}

std::string StepWriter::da_row() const { return splits_ ? "da[kept +1]" : dh_row("k"); }

std::string StepWriter::gathered(const std::string& from, const std::string& to) {
  if (!gathers_tokens()) return from;
  line("all_gather {} to {} over tp", from, to);
  return to;
}

std::string StepWriter::reduced() {
  if (gathers_tokens()) {
    line("reduce_scatter part to e over tp");
    return "e";
  }
  if (layout_.tensor > 1) line("all_reduce part over tp");
  return "part";
}

void StepWriter::forward_pass() {
  const auto embedding = [&] {
    allocate_h();
    embed();
  };
  const auto received = [&] {
    line("compute other after rf[slot] work 0 seconds label has its activations");
  };
  if (is_first_) {
    block_if(chunks_ > 1, "when c=0", embedding);
    if (chunks_ > 1) block("when c>0", received);
  } else {
    received();
  }
  block(fmt::format("repeat k {}", layers_in_chunk()), [&] {
    let_layer();
    let_kept();
    if (!recomputes()) allocate_kept("allocate");
    gather_weights(Direction::forward);
    each_kind([&](const Kind& kind, std::size_t number) {
      attention_forward(kind, number);
      mlp_forward(kind, number, true);
    });
  });
  if (has_head_) {
    block_if(chunks_ > 1, fmt::format("when c={}", chunks_ - 1),
             [&] { head_forward(main_head()); });
  }
  modules_forward();
  send_activations();
}

void StepWriter::allocate_h() {
  line("allocate h[{} +{}+1]", times("slot", hidden_rows()), layers_in_chunk());
}

void StepWriter::let_kept() {
  if (!recomputes()) line("let kept = {}", plus(times("slot", layer_slots()), "k"));
}

void StepWriter::allocate_kept(std::string_view word) {
  line("{} x[kept*3 +3]", word);
  line("{} {}", word, attention_row("ao"));
  each_kind([&](const Kind& kind, std::size_t number) { allocate_kept_of(word, kind, number); });
}

void StepWriter::allocate_kept_of(std::string_view word, const Kind& kind, std::size_t number) {
  line("{} {}", word, attention_row(fmt::format("ka{}", number)));
  if (!kind.parts.mlp.empty()) line("{} km{}[kept +1]", word, number);
  if (!kind.parts.experts.empty()) line("{} kx{}[kept +1]", word, number);
  if (!kind.parts.shared.empty()) line("{} ks{}[kept +1]", word, number);
}

void StepWriter::embed() {
  look_up(fmt::format("{} = I {}", token_rows("ids"), of_sequence()), "PE",
          fmt::format("{} = {}", h_row("0"), at_block("H", "[0]")));
}

void StepWriter::look_up(const std::string& ids, const std::string& sum, const std::string& to) {
  line("compute {}", works(model_.embedding.parts, Direction::forward));
  line("  reads {}", ids);
  read_weight(edge("embedding"));
  line("  writes part = {} sum {}", at_sequence(sum, ""), run("voc", axes_.tp, 1));
  const std::string here = reduced();
  line("compute cast");
  line("  reads {} = {}", here, at_block(sum, ""));
  line("  writes {}", to);
}

std::string StepWriter::token_rows(std::string_view buffer) const {
  return fmt::format("{}[{} +{}]", buffer, times("m", rows_of_sequence()), rows_of_sequence());
}

void StepWriter::norm(const std::vector<Part>& parts, const Kind& kind, std::string_view group,
                      std::pair<std::string, std::string> from,
                      std::pair<std::string, std::string> to) {
  line("compute {}", works(parts, Direction::forward));
  line("  reads {} = {}", from.first, from.second);
  read_weight(kind, group);
  line("  writes {} = {}", to.first, to.second);
}

void StepWriter::attention_forward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  norm(parts.attention_norm, kind, "attention_norms", {h_row(), at_block("H")},
       {x_row(0), at_block("XA")});
  const std::string full = gathered(x_row(0), "full");
  const std::string ka = attention_row(fmt::format("ka{}", number));
  const std::string last = works(parts.queries, Direction::forward);
  line("compute {}", last);
  line("  reads {} = {}", full, at_sequence("XA"));
  read_weight(kind, "attention");
  read_weight(kind, "head_norms");
  line("  writes {} = {}", splits_heads() ? "u" : ka, cut("KA"));
  core_forward(kind, ka);
  const std::string out = works(parts.out, Direction::forward);
  line("compute {}", out);
  line("  reads {} = {}", attention_row("ao"), cut("AO"));
  read_weight(kind, "attention");
  line("  writes part = {} sum{}", at_sequence("PA"), ff());
  const std::string sum = reduced();
  line("compute {}", works(parts.attention_after, Direction::forward, "residual"));
  line("  reads {} = {}", sum, at_block("PA"));
  line("  reads {} = {}", h_row(), at_block("H"));
  if (!parts.attention_after.empty()) read_weight(kind, "attention_norms");
  line("  writes {} = {}", x_row(1), at_block("A"));
}

std::string StepWriter::keys_here(std::string_view tensor) const {
  return fmt::format("{}[l] {} {}{}", tensor, sample(), run("key", axes_.cp, 1), ff());
}

std::string StepWriter::all_keys(std::string_view tensor) const {
  return fmt::format("{}[l] {}{}", tensor, sample(), ff());
}

std::string StepWriter::keys_at(std::string_view tensor, const std::string& step) const {
  const std::string entry = plus(times(axes_.cp, layout_.context), step);
  return fmt::format("{}[l] {} key ring[{}] +1{}", tensor, sample(), entry, ff());
}

std::string StepWriter::key_of_sum(const std::string& step) const {
  return fmt::format("sum key ring[{}] +1", plus(times(axes_.cp, layout_.context), step));
}

std::string StepWriter::core_work(const Kind& kind, Direction direction, std::int64_t steps) const {
  const Part& part = kind.parts.core.front();
  const std::string_view of = steps > 1                          ? ", a step of the ring"
                              : direction == Direction::backward ? ", backward"
                                                                 : "";
  return fmt::format(" work {} label {}{}",
                     work_text(local_part(part, layout_), direction, model_.type, steps), part.name,
                     of);
}

void StepWriter::core_forward(const Kind& kind, const std::string& ka) {
  const std::string ao = attention_row("ao");
  if (layout_.context == 1) {
    line("compute forward_attention{}", core_work(kind, Direction::forward, 1));
    line("  reads {} = {}", ka, cut("KA"));
    line("  writes {} = {}", ao, cut("AO"));
    return;
  }
  if (gathers_keys()) {
    gather_keys(ka);
    line("compute forward_attention{}", core_work(kind, Direction::forward, 1));
    line("  reads {} = {}", ka, cut("KA"));
    line("  reads kv = {}", all_keys("KV"));
    line("  writes {} = {}", ao, cut("AO"));
    return;
  }
  if (splits_heads()) {
    line("all_to_all u to {} over cp/context", ka);
    line("compute forward_attention{}", core_work(kind, Direction::forward, 1));
    line("  reads {} = {}", ka, heads_here("KA"));
    line("  writes uo = {}", heads_here("AO"));
    line("all_to_all uo to {} over cp/context", ao);
    return;
  }
  line("compute zero");
  line("  writes {} = {} sum none", ao, cut("AO"));
  const std::string pass = is_recomputing_ ? "2" : "0";
  around_the_ring(ka, pass, [&](const std::string& step) {
    line("compute forward_attention after z[{},slot,k,{}]{}", pass, step + "-1",
         core_work(kind, Direction::forward, layout_.context));
    line("  reads {} = {}", ka, cut("KA"));
    line("  reads kv[{} +1] = {}", step, keys_at("KV", step));
    line("  adds {} = {} {}", ao, cut("AO"), key_of_sum(step));
  });
}

void StepWriter::gather_keys(const std::string& ka) {
  line("compute other label keys and values");
  line("  reads {} = {}", ka, cut("KA"));
  line("  writes kvl = {}", keys_here("KV"));
  line("all_gather kvl to kv over cp/context");
}

void StepWriter::mlp_forward(const Kind& kind, std::size_t number, bool writes_output) {
  const LayerParts& parts = kind.parts;
  norm(parts.mlp_norm, kind, "mlp_norms", {x_row(1), at_block("A")}, {x_row(2), at_block("XM")});
  const bool dense = !parts.mlp.empty();
  if (!parts.experts.empty()) dispatch_forward(kind, number);
  std::string sum;
  if (dense || !parts.shared.empty()) {
    sum = dense ? dense_forward(kind, number, parts.mlp, {"mlp", "km", "KM", "PM"})
                : dense_forward(kind, number, parts.shared, {"shared", "ks", "KS", "PS"});
  }
  if (!writes_output) return;
  line("u[slot,k]: compute {}", works(parts.mlp_after, Direction::forward, "residual"));
  if (!sum.empty()) line("  reads {} = {}", sum, at_block(dense ? "PM" : "PS"));
  if (!parts.experts.empty()) line("  reads sy = {}", at_block("Y"));
  line("  reads {} = {}", x_row(1), at_block("A"));
  if (!parts.mlp_after.empty()) read_weight(kind, "mlp_norms");
  line("  writes {} = {}", h_row("k+1"), at_block("H", "[l+1]"));
}

std::string StepWriter::dense_forward(const Kind& kind, std::size_t number,
                                      const std::vector<Part>& parts, const DenseNames& names) {
  const std::string full = gathered(x_row(2), "full");
  const std::string kept = kept_row(fmt::format("{}{}", names.buffer, number));
  const std::vector<Part> down{parts.back()};
  const std::string up = works({parts.begin(), parts.end() - 1}, Direction::forward);
  line("compute {}", up);
  line("  reads {} = {}", full, at_sequence("XM"));
  read_weight(kind, names.group);
  line("  writes {} = {}", kept, cut(names.kept));
  line("compute {}", works(down, Direction::forward));
  line("  reads {} = {}", kept, cut(names.kept));
  read_weight(kind, names.group);
  line("  writes part = {} sum{}", at_sequence(names.sum), ff());
  return reduced();
}

std::string StepWriter::to_all_experts(std::string_view tensor) const {
  return fmt::format("{}[l] {}", tensor, of_block());
}

std::string StepWriter::all_te() const {
  return axes_.tes > 1 ? fmt::format(" te 0 +{}", axes_.tes) : "";
}

std::string StepWriter::of_all_te(std::string_view tensor) const {
  return fmt::format("{}[l] {}{} {}", tensor, run("eg", axes_.ep, 1), all_te(), of_experts());
}

std::string StepWriter::at_experts(const std::string& from, const std::string& to,
                                   const std::string& all) {
  std::string where = from;
  if (layout_.expert > 1) {
    line("all_to_all {} to {} over ep/experts", from, to);
    where = to;
  }
  if (layout_.expert_tensor > 1) {
    line("all_gather {} to {} over etp/experts", where, all);
    where = all;
  }
  return where;
}

void StepWriter::from_experts(const std::string& all, const std::string& at,
                              const std::string& to) {
  const std::string& reduced = layout_.expert > 1 ? at : to;
  if (layout_.expert_tensor > 1) {
    line("reduce_scatter {} to {} over etp/experts", all, reduced);
  }
  if (layout_.expert > 1) line("all_to_all {} to {} over ep/experts", at, to);
}

std::string StepWriter::written_by_experts(const std::string& all, const std::string& at,
                                           const std::string& to) const {
  if (layout_.expert_tensor > 1) return all;
  return layout_.expert > 1 ? at : to;
}

void StepWriter::dispatch_forward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  line("compute {}", works(parts.router, Direction::forward));
  line("  reads {} = {}", x_row(2), at_block("XM"));
  read_weight(kind, "router");
  line("  writes sd = {}", to_all_experts("D"));
  const std::string tokens = at_experts("sd", "rd", "xd");
  const std::string kx = kept_row(fmt::format("kx{}", number));
  const std::string up =
      works({parts.experts.begin(), parts.experts.end() - 1}, Direction::forward);
  line("compute {}", up);
  line("  reads {} = {}", tokens, of_all_te("D"));
  read_weight(kind, "experts");
  line("  writes {} = {}{}", kx, of_all_te("KX"), et());
  line("compute {}", works({parts.experts.back()}, Direction::forward));
  line("  reads {} = {}{}", kx, of_all_te("KX"), et());
  read_weight(kind, "experts");
  line("  writes {} = {} sum{}", written_by_experts("xy", "ry", "sy"), of_all_te("Y"), et());
  from_experts("xy", "ry", "sy");
}

}  // namespace shiplap::step
