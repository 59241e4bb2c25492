// The backward pass of layers, embedding and head.
#include <fmt/format.h>

#include "shiplap/base/error.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::Recompute;
using workload::Part;

}  // namespace

void StepWriter::dispatch_backward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  const std::string kx = kept_row(fmt::format("kx{}", number));
  line("compute backward_gemm label combine, backward");
  line("  reads {} = {}", d_row(), at_block("dH", "[l+1]"));
  line("  reads {} = {}", x_row(2), at_block("XM"));
  read_weight(kind, "router");
  line("  writes sy = {}", to_all_experts("dY"));
  const std::string gradients = at_experts("sy", "ry", "xy");
  const std::string words = works(parts.experts, Direction::backward);
  line("compute {}", words);
  line("  reads {} = {}", gradients, of_all_te("dY"));
  line("  reads {} = {}{}", kx, of_all_te("KX"), et());
  read_weight(kind, "experts");
  line("  writes {} = {} sum{}", written_by_experts("xd", "rd", "sd"), of_all_te("dD"), et());
  add_gradient(kind, "experts", of_experts() + all_te());
  from_experts("xd", "rd", "sd");
}

void StepWriter::head_backward() {
  const std::vector<Part>& parts = model_.head.parts;
  zero_gradients({&head_weight(), &edge("final_norm")});
  const std::string full = gathered("xf[m +1]", "full");
  line("compute {}", works({parts[1]}, Direction::backward));
  line("  reads z[m +1] = {} {}", at_sequence("dZ", ""), run("voc", axes_.tp, 1));
  line("  reads {} = {}", full, at_sequence("XF", ""));
  read_weight(head_weight());
  line("  writes part = {} sum {}", at_sequence("dXF", ""), run("voc", axes_.tp, 1));
  add_gradient(head_weight(), of_sequence(), "1 +1");
  const std::string sum = reduced();
  line("compute {}", works({parts.front()}, Direction::backward, "norm", after_gradient_sent()));
  line("  reads {} = {}", sum, at_block("dXF", ""));
  line("  reads {} = {}", h_row(layers_in_chunk()), at_block("H", fmt::format("[{}]", layers_)));
  read_weight(edge("final_norm"));
  line("  writes {} = {}", d_row(), at_block("dH", fmt::format("[{}]", layers_)));
  add_gradient(edge("final_norm"), of_block());
  line("free xf[m +1]");
  line("free z[m +1]");
  reduce_now({&head_weight(), &edge("final_norm")}, "1");
}

std::string StepWriter::after_gradient_sent() const {
  return sends_backward() ? fmt::format(" after b[{},m-{}]", chunk(), gradients_) : "";
}

void StepWriter::backward_pass() {
  const auto received = [&] {
    line("compute other after rb[slot] work 0 seconds label has its gradient");
  };
  if (is_last_) {
    block_if(chunks_ > 1, fmt::format("when c={}", chunks_ - 1), [&] { head_backward(); });
    if (chunks_ > 1) block(fmt::format("when c<{}", chunks_ - 1), received);
  } else {
    received();
  }
  block(fmt::format("repeat j {}", layers_in_chunk()), [&] {
    line("let k = {}-1-j", layers_in_chunk());
    let_layer();
    let_kept();
    gather_weights(Direction::backward);
    each_kind([&](const Kind& kind, std::size_t number) {
      std::vector<const WeightGroup*> groups;
      for (const WeightGroup& group : kind.groups) groups.push_back(&group);
      if (recomputes()) {
        is_recomputing_ = true;
        attention_forward(kind, number);
        mlp_forward(kind, number, false);
        is_recomputing_ = false;
      }
      zero_gradients(groups);
      mlp_backward(kind, number);
      attention_backward(kind, number);
      reduce_now(groups);
    });
    if (!recomputes()) allocate_kept("free");
  });
  wait_for_reductions();
  if (is_first_) block_if(chunks_ > 1, "when c=0", [&] { embedding_backward(); });
  send_gradient();
  line("free h[{} +{}+1]{}", times("slot", most_layers_ + 1), layers_in_chunk(),
       sends_forward() ? " after f[slot]" : "");
}

void StepWriter::embedding_backward() {
  const WeightGroup& group = edge("embedding");
  zero_gradients({&group});
  const std::string full = gathered(d_row(), "dfull");
  line("e[m]: compute {}", works(model_.embedding.parts, Direction::backward));
  line("  reads {} = {}", full, at_sequence("dH", "[0]"));
  line("  reads {} = I {}", token_rows("ids"), of_sequence());
  add_gradient(group, of_sequence(), "0 +1");
  reduce_now({&group}, "0");
}

void StepWriter::mlp_backward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  const bool dense = !parts.mlp.empty();
  all_works(parts.mlp_after, Direction::backward);
  if (!parts.experts.empty()) dispatch_backward(kind, number);
  std::string sum;
  if (dense || !parts.shared.empty()) {
    const std::vector<Part>& of = dense ? parts.mlp : parts.shared;
    const std::string gradient = gathered(d_row(), "dfull");
    const std::string full = gathered(x_row(2), "full");
    const std::string words = works(of, Direction::backward);
    line("compute {}", words);
    line("  reads {} = {}", gradient, at_sequence("dH", "[l+1]"));
    line("  reads {} = {}", full, at_sequence("XM"));
    line("  reads {} = {}", kept_row(fmt::format("{}{}", dense ? "km" : "ks", number)),
         cut(dense ? "KM" : "KS"));
    read_weight(kind, dense ? "mlp" : "shared");
    line("  writes part = {} sum{}", at_sequence("dXM"), ff());
    add_gradient(kind, dense ? "mlp" : "shared", of_sequence());
    sum = reduced();
  }
  std::vector<Part> norms = parts.mlp_norm;
  norms.insert(norms.end(), parts.router.begin(), parts.router.end());
  const std::string words = works(norms, Direction::backward);
  line("compute {}", words);
  if (!sum.empty()) line("  reads {} = {}", sum, at_block("dXM"));
  if (!parts.experts.empty()) {
    line("  reads sd = {}", to_all_experts("dD"));
    line("  reads {} = {}", x_row(2), at_block("XM"));
    read_weight(kind, "router");
  }
  line("  reads {} = {}", x_row(1), at_block("A"));
  line("  reads {} = {}", d_row(), at_block("dH", "[l+1]"));
  read_weight(kind, "mlp_norms");
  line("  writes {} = {}", d_row(), at_block("dA"));
  add_gradient(kind, "mlp_norms", of_block());
  add_gradient(kind, "router", of_block());
}

void StepWriter::attention_backward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  const std::string ka = attention_row(fmt::format("ka{}", number));
  all_works(parts.attention_after, Direction::backward);
  const std::string gradient = gathered(d_row(), "dfull");
  const std::string full = gathered(x_row(0), "full");
  line("compute {}", works(parts.out, Direction::backward));
  line("  reads {} = {}", gradient, at_sequence("dA"));
  line("  reads {} = {}", attention_row("ao"), cut("AO"));
  read_weight(kind, "attention");
  line("  writes {} = {}", splits_heads() ? "vo" : "dao", cut("dAO"));
  if (layout_.recompute == Recompute::selective) {
    line("compute forward_attention{}, again", core_work(kind, Direction::forward, 1));
  }
  const bool has_keys = core_backward(kind, ka);
  const std::string words = works(parts.queries, Direction::backward);
  line("compute {}", words);
  line("  reads {} = {}", splits_heads() ? "u" : "dq", cut("dKA"));
  // The gradient of the weight of `out` is computed with the rest of its group.
  line("  reads {} = {}", gradient, at_sequence("dA"));
  line("  reads {} = {}", attention_row("ao"), cut("AO"));
  if (has_keys) line("  reads dkt = {}", cut("dKT"));
  line("  reads {} = {}", full, at_sequence("XA"));
  read_weight(kind, "attention");
  read_weight(kind, "head_norms");
  line("  writes part = {} sum{}", at_sequence("dXA"), ff());
  add_gradient(kind, "attention", of_sequence());
  add_gradient(kind, "head_norms", of_sequence());
  const std::string sum = reduced();
  line("y[slot,k]: compute {}", works(parts.attention_norm, Direction::backward));
  line("  reads {} = {}", sum, at_block("dXA"));
  line("  reads {} = {}", h_row(), at_block("H"));
  line("  reads {} = {}", d_row(), at_block("dA"));
  read_weight(kind, "attention_norms");
  line("  writes {} = {}", d_row(), at_block("dH"));
  add_gradient(kind, "attention_norms", of_block());
}

bool StepWriter::core_backward(const Kind& kind, const std::string& ka) {
  if (layout_.context == 1) {
    line("compute backward_attention{}", core_work(kind, Direction::backward, 1));
    line("  reads dao = {}", cut("dAO"));
    line("  reads {} = {}", ka, cut("KA"));
    line("  writes dq = {}", cut("dKA"));
    return false;
  }
  if (splits_heads()) {
    line("all_to_all vo to uo over cp/context");
    line("compute backward_attention{}", core_work(kind, Direction::backward, 1));
    line("  reads uo = {}", heads_here("dAO"));
    line("  reads {} = {}", ka, heads_here("KA"));
    line("  writes v = {}", heads_here("dKA"));
    line("all_to_all v to u over cp/context");
    return false;
  }
  if (is_ring()) {
    line("compute zero");
    line("  writes dq = {} sum none", cut("dKA"));
    line("  writes dkv[0 +1] = {} sum none", keys_here("dKV"));
    around_the_ring(ka, "1", [&](const std::string& step) {
      line("a[slot,k,r]: compute backward_attention after z[1,slot,k,r-1], g[slot,k,r-1]{}",
           core_work(kind, Direction::backward, layout_.context));
      line("  reads dao = {}", cut("dAO"));
      line("  reads {} = {}", ka, cut("KA"));
      line("  reads {} = {}", attention_row("ao"), cut("AO"));
      line("  reads kv[r +1] = {}", keys_at("KV", step));
      line("  adds dq = {} {}", cut("dKA"), key_of_sum(step));
      line("  adds dkv[r +1] = {} sum {}", keys_at("dKV", step), axes_.sequence);
      line("g[slot,k,r]: @gradients batch after a[slot,k,r]");
      line("  send dkv[r +1] to cp+1 wrap channel key_gradients");
      line("  receive dkv[r+1 +1] from cp-1 wrap channel key_gradients");
      line("end");
    });
    line("compute other after g[slot,k,{}] label gradients of keys and values",
         layout_.context - 1);
    line("  reads dkv[{} +1] = {}", layout_.context, keys_here("dKV"));
    line("  writes dkt = {}", cut("dKT"));
    return true;
  }
  gather_keys(ka);
  line("compute backward_attention{}", core_work(kind, Direction::backward, 1));
  line("  reads dao = {}", cut("dAO"));
  line("  reads {} = {}", ka, cut("KA"));
  line("  reads kv = {}", all_keys("KV"));
  line("  writes dq = {}", cut("dKA"));
  line("  writes dkv = {} sum {}", all_keys("dKV"), axes_.sequence);
  line("reduce_scatter dkv to dkvl over cp/context");
  line("compute other label gradients of keys and values");
  line("  reads dkvl = {}", keys_here("dKV"));
  line("  writes dkt = {}", cut("dKT"));
  return true;
}

}  // namespace shiplap::step
