// The backward pass of layers, embedding and head.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::Recompute;
using workload::Part;

}  // namespace

bool StepWriter::is_put_off(const WeightGroup& group) const {
  constexpr std::array<std::string_view, 4> kProducts{"attention", "mlp", "shared", "experts"};
  return splits_ && std::ranges::find(kProducts, group.name) != kProducts.end();
}

std::vector<const WeightGroup*> StepWriter::groups_of(const Kind& kind, bool put_off) const {
  std::vector<const WeightGroup*> groups;
  for (const WeightGroup& group : kind.groups) {
    if (is_put_off(group) == put_off) groups.push_back(&group);
  }
  return groups;
}

std::string StepWriter::dy_rows() const {
  return fmt::format("dy[{0} +{1}]", times("kept", layout_.expert * layout_.expert_tensor),
                     layout_.expert * layout_.expert_tensor);
}

void StepWriter::dispatch_backward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  const std::string kx = kept_row(fmt::format("kx{}", number));
  const std::string all = splits_ ? dy_rows() : "xy";
  const std::string here = splits_ && layout_.expert_tensor == 1 ? all : "ry";
  const bool stays = layout_.expert * layout_.expert_tensor == 1;
  const std::string from = splits_ && stays ? all : "sy";
  line("compute backward_gemm label combine, backward");
  line("  reads {} = {}", dh_row("k+1"), at_block("dH", "[l+1]"));
  line("  reads {} = {}", x_row(2), at_block("XM"));
  read_weight(kind, "router");
  line("  writes {} = {}", from, to_all_experts("dY"));
  const std::string gradients = at_experts(from, here, all);
  const std::string words = works(parts.experts, backward());
  line("compute {}", words);
  line("  reads {} = {}", gradients, of_all_te("dY"));
  line("  reads {} = {}{}", kx, of_all_te("KX"), et());
  read_weight(kind, "experts");
  line("  writes {} = {} sum{}", written_by_experts("xd", "rd", "sd"), of_all_te("dD"), et());
  if (!splits_) add_gradient(kind, "experts", of_experts() + all_te());
  from_experts("xd", "rd", "sd");
}

std::string StepWriter::after_gradient_sent() const {
  if (splits_ || !sends_backward()) return "";
  return fmt::format(" after b[{},m-{}]", chunk(), gradients_);
}

void StepWriter::allocate_dh() {
  line("allocate dh[{} +{}+1]", times("slot", hidden_rows()), layers_in_chunk());
}

void StepWriter::allocate_gradients(std::string_view word, const Kind& kind) {
  line("{} da[kept +1]", word);
  line("{} {}", word, attention_row("dq"));
  if (has_keys()) line("{} dkt[kept +1]", word);
  if (!kind.parts.experts.empty()) line("{} {}", word, dy_rows());
}

void StepWriter::backward_pass() {
  const auto received = [&] {
    line("compute other after rb[slot] work 0 seconds label has its gradient");
  };
  if (has_head_) {
    block_if(chunks_ > 1, fmt::format("when c={}", chunks_ - 1), [&] {
      if (splits_) allocate_dh();
      modules_backward();
      head_backward(main_head(), modules_ > 0 ? "0" : "");
    });
    if (chunks_ > 1) block(fmt::format("when c<{}", chunks_ - 1), received);
  } else {
    received();
  }
  each_layer_backward([&] {
    gather_weights(backward());
    each_kind([&](const Kind& kind, std::size_t number) { layer_backward(kind, number); });
    if (!recomputes() && !splits_) allocate_kept("free");
  });
  wait_for_reductions(false);
  if (is_first_) block_if(chunks_ > 1, "when c=0", [&] { embedding_backward(); });
  send_gradient();
  line("free h[{} +{}+1]{}", times("slot", hidden_rows()), layers_in_chunk(),
       sends_forward() ? " after f[slot]" : "");
}

void StepWriter::layer_backward(const Kind& kind, std::size_t number) {
  if (recomputes()) {
    is_recomputing_ = true;
    attention_forward(kind, number);
    mlp_forward(kind, number, false);
    is_recomputing_ = false;
  }
  if (splits_) allocate_gradients("allocate", kind);
  zero_gradients(groups_of(kind, false));
  mlp_backward(kind, number);
  attention_backward(kind, number);
  reduce_now(groups_of(kind, false), "", layer_done());
}

void StepWriter::layer_weight_backward(const Kind& kind, std::size_t number) {
  zero_gradients(groups_of(kind, true));
  mlp_weight_backward(kind, number);
  attention_weight_backward(kind);
  reduce_now(groups_of(kind, true));
  allocate_gradients("free", kind);
}

void StepWriter::backward_weight_pass() {
  if (has_head_) {
    block_if(chunks_ > 1, fmt::format("when c={}", chunks_ - 1),
             [&] { head_weight_backward(main_head()); });
  }
  modules_weight_backward();
  each_layer_backward([&] {
    gather_weights(Direction::backward_weight);
    each_kind([&](const Kind& kind, std::size_t number) { layer_weight_backward(kind, number); });
    allocate_kept("free");
  });
  wait_for_reductions(true);
  line("free dh[{} +{}+1]{}", times("slot", hidden_rows()), layers_in_chunk(),
       sends_backward() ? fmt::format(" after b[{},m]", chunk()) : "");
}

void StepWriter::embedding_backward() {
  const WeightGroup& group = edge("embedding");
  zero_gradients({&group});
  const std::string full = gathered(dh_row("0"), "dfull");
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
    const std::string gradient = gathered(dh_row("k+1"), "dfull");
    const std::string full = gathered(x_row(2), "full");
    const std::string words = works(of, backward());
    line("compute {}", words);
    read_for_mlp_gradients(kind, number, gradient, full);
    line("  writes part = {} sum{}", at_sequence("dXM"), ff());
    if (!splits_) add_gradient(kind, dense ? "mlp" : "shared", of_sequence());
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
  line("  reads {} = {}", dh_row("k+1"), at_block("dH", "[l+1]"));
  read_weight(kind, "mlp_norms");
  line("  writes {} = {}", da_row(), at_block("dA"));
  add_gradient(kind, "mlp_norms", of_block());
  add_gradient(kind, "router", of_block());
}

void StepWriter::read_for_mlp_gradients(const Kind& kind, std::size_t number,
                                        const std::string& gradient, const std::string& full) {
  const bool dense = !kind.parts.mlp.empty();
  line("  reads {} = {}", gradient, at_sequence("dH", "[l+1]"));
  line("  reads {} = {}", full, at_sequence("XM"));
  line("  reads {} = {}", kept_row(fmt::format("{}{}", dense ? "km" : "ks", number)),
       cut(dense ? "KM" : "KS"));
  read_weight(kind, dense ? "mlp" : "shared");
}

void StepWriter::mlp_weight_backward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  if (!parts.experts.empty()) {
    const std::string words = works(parts.experts, Direction::backward_weight);
    line("compute {}", words);
    line("  reads {} = {}", dy_rows(), of_all_te("dY"));
    line("  reads {} = {}{}", kept_row(fmt::format("kx{}", number)), of_all_te("KX"), et());
    read_weight(kind, "experts");
    add_gradient(kind, "experts", of_experts() + all_te());
  }
  const bool dense = !parts.mlp.empty();
  if (!dense && parts.shared.empty()) return;
  const std::string gradient = gathered(dh_row("k+1"), "dfull");
  const std::string full = gathered(x_row(2), "full");
  const std::string words = works(dense ? parts.mlp : parts.shared, Direction::backward_weight);
  line("compute {}", words);
  read_for_mlp_gradients(kind, number, gradient, full);
  add_gradient(kind, dense ? "mlp" : "shared", of_sequence());
}

void StepWriter::attention_backward(const Kind& kind, std::size_t number) {
  const LayerParts& parts = kind.parts;
  const std::string ka = attention_row(fmt::format("ka{}", number));
  all_works(parts.attention_after, Direction::backward);
  const std::string gradient = gathered(da_row(), "dfull");
  const std::string full = gathered(x_row(0), "full");
  line("compute {}", works(parts.out, backward()));
  line("  reads {} = {}", gradient, at_sequence("dA"));
  line("  reads {} = {}", attention_row("ao"), cut("AO"));
  read_weight(kind, "attention");
  line("  writes {} = {}", splits_heads() ? "vo" : "dao", cut("dAO"));
  if (layout_.recompute == Recompute::selective) {
    line("compute forward_attention{}, again", core_work(kind, Direction::forward, 1));
  }
  core_backward(kind, ka);
  const std::string words = works(parts.queries, backward());
  line("compute {}", words);
  read_for_attention_gradients(kind, gradient, full);
  line("  writes part = {} sum{}", at_sequence("dXA"), ff());
  if (!splits_) add_gradient(kind, "attention", of_sequence());
  add_gradient(kind, "head_norms", of_sequence());
  const std::string sum = reduced();
  line("{}[slot,k]: compute {}", layer_done(), works(parts.attention_norm, Direction::backward));
  line("  reads {} = {}", sum, at_block("dXA"));
  line("  reads {} = {}", h_row(), at_block("H"));
  line("  reads {} = {}", da_row(), at_block("dA"));
  read_weight(kind, "attention_norms");
  line("  writes {} = {}", dh_row("k"), at_block("dH"));
  add_gradient(kind, "attention_norms", of_block());
}

std::string StepWriter::dq_rows() const {
  if (splits_) return attention_row("dq");
  return splits_heads() ? "u" : "dq";
}

// The gradient of the weight of `out` is computed with the rest of its group.
void StepWriter::read_for_attention_gradients(const Kind& kind, const std::string& gradient,
                                              const std::string& full) {
  line("  reads {} = {}", dq_rows(), cut("dKA"));
  line("  reads {} = {}", gradient, at_sequence("dA"));
  line("  reads {} = {}", attention_row("ao"), cut("AO"));
  if (has_keys()) line("  reads {} = {}", dkt_row(), cut("dKT"));
  line("  reads {} = {}", full, at_sequence("XA"));
  read_weight(kind, "attention");
  read_weight(kind, "head_norms");
}

void StepWriter::attention_weight_backward(const Kind& kind) {
  const std::string gradient = gathered(da_row(), "dfull");
  const std::string full = gathered(x_row(0), "full");
  std::vector<Part> products = kind.parts.queries;
  products.insert(products.end(), kind.parts.out.begin(), kind.parts.out.end());
  const std::string words = works(products, Direction::backward_weight);
  line("y[slot,k]: compute {}", words);
  read_for_attention_gradients(kind, gradient, full);
  add_gradient(kind, "attention", of_sequence());
}

void StepWriter::core_backward(const Kind& kind, const std::string& ka) {
  if (layout_.context == 1) {
    line("compute backward_attention{}", core_work(kind, Direction::backward, 1));
    line("  reads dao = {}", cut("dAO"));
    line("  reads {} = {}", ka, cut("KA"));
    line("  writes {} = {}", dq_rows(), cut("dKA"));
    return;
  }
  if (splits_heads()) {
    line("all_to_all vo to uo over cp/context");
    line("compute backward_attention{}", core_work(kind, Direction::backward, 1));
    line("  reads uo = {}", heads_here("dAO"));
    line("  reads {} = {}", ka, heads_here("KA"));
    line("  writes v = {}", heads_here("dKA"));
    line("all_to_all v to {} over cp/context", dq_rows());
    return;
  }
  if (is_ring()) {
    line("compute zero");
    line("  writes {} = {} sum none", dq_rows(), cut("dKA"));
    line("  writes dkv[0 +1] = {} sum none", keys_here("dKV"));
    around_the_ring(ka, "1", [&](const std::string& step) {
      line("a[slot,k,r]: compute backward_attention after z[1,slot,k,r-1], g[slot,k,r-1]{}",
           core_work(kind, Direction::backward, layout_.context));
      line("  reads dao = {}", cut("dAO"));
      line("  reads {} = {}", ka, cut("KA"));
      line("  reads {} = {}", attention_row("ao"), cut("AO"));
      line("  reads kv[r +1] = {}", keys_at("KV", step));
      line("  adds {} = {} {}", dq_rows(), cut("dKA"), key_of_sum(step));
      line("  adds dkv[r +1] = {} sum {}", keys_at("dKV", step), axes_.sequence);
      line("g[slot,k,r]: @gradients batch after a[slot,k,r]");
      line("  send dkv[r +1] to cp+1 wrap channel key_gradients");
      line("  receive dkv[r+1 +1] from cp-1 wrap channel key_gradients");
      line("end");
    });
    line("compute other after g[slot,k,{}] label gradients of keys and values",
         layout_.context - 1);
    line("  reads dkv[{} +1] = {}", layout_.context, keys_here("dKV"));
    line("  writes {} = {}", dkt_row(), cut("dKT"));
    return;
  }
  gather_keys(ka);
  line("compute backward_attention{}", core_work(kind, Direction::backward, 1));
  line("  reads dao = {}", cut("dAO"));
  line("  reads {} = {}", ka, cut("KA"));
  line("  reads kv = {}", all_keys("KV"));
  line("  writes {} = {}", dq_rows(), cut("dKA"));
  line("  writes dkv = {} sum {}", all_keys("dKV"), axes_.sequence);
  line("reduce_scatter dkv to dkvl over cp/context");
  line("compute other label gradients of keys and values");
  line("  reads dkvl = {}", keys_here("dKV"));
  line("  writes {} = {}", dkt_row(), cut("dKT"));
}

}  // namespace shiplap::step
