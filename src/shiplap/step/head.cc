// Head and loss: of the model, and of modules for further tokens.
#include <fmt/format.h>

#include <string_view>

#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

StepWriter::Head StepWriter::main_head() const {
  return {.letter = "",
          .index = "",
          .row = "m",
          .layer = fmt::format("[{}]", layers_),
          .hidden = layers_in_chunk(),
          .norm = "final_norm",
          .use = tied_ ? "1" : "0",
          .label = ""};
}

StepWriter::Head StepWriter::module_head() const {
  return {.letter = "m",
          .index = "[module]",
          .row = plus(times("m", modules_), "module"),
          .layer = "[l+1]",
          .hidden = "k+1",
          .norm = "mtp_norm",
          .use = tied_ ? "3+2*module" : "1+module",
          .label = " of a further token, weighted"};
}

std::string StepWriter::head_row(const Head& head, std::string_view buffer) const {
  return fmt::format("{}{}[{} +1]", head.letter, buffer, head.row);
}

std::string StepWriter::labels_row(const Head& head) const {
  if (head.letter.empty()) return fmt::format("{} = L {}", token_rows("labels"), of_sequence());
  return fmt::format("{} = ML[module] {}", module_tokens("mlabels"), of_sequence());
}

std::string StepWriter::logits(const Head& head, std::string_view tensor) const {
  return fmt::format("{} {}", at_sequence(tensor, head.index), run("voc", axes_.tp, 1));
}

void StepWriter::head_forward(const Head& head) {
  const std::vector<workload::Part>& parts = model_.head.parts;
  const std::string m = head.letter.empty() ? "" : "M";
  const std::string xf = head_row(head, "xf");
  const std::string z = head_row(head, "z");
  line("allocate {}", xf);
  line("allocate {}", z);
  line("compute {}", works({parts.front()}, Direction::forward));
  line("  reads {} = {}", h_row(head.hidden), at_block("H", head.layer));
  read_weight(edge(head.norm));
  line("  writes {} = {}", xf, at_block(m + "XF", head.index));
  const std::string full = gathered(xf, "full");
  line("compute {}", works({parts[1]}, Direction::forward));
  line("  reads {} = {}", full, at_sequence(m + "XF", head.index));
  read_weight(head_weight());
  line("  writes {} = {}", z, logits(head, m + "Z"));
  line("compute {}{}", works({parts.back()}, Direction::forward), head.label);
  line("  reads {} = {}", z, logits(head, m + "Z"));
  line("  reads {}", labels_row(head));
  line("  writes st = {} sum {}", at_sequence(m + "ST", head.index), run("voc", axes_.tp, 1));
  if (layout_.tensor > 1) line("all_reduce st over tp");
  line("compute {}{}", works({parts.back()}, Direction::backward), head.label);
  line("  reads {} = {}", z, logits(head, m + "Z"));
  line("  reads st = {}", at_sequence(m + "ST", head.index));
  line("  reads {}", labels_row(head));
  line("  writes {} = {}", z, logits(head, "d" + m + "Z"));
}

void StepWriter::head_backward(const Head& head, const std::string& from) {
  const std::string m = head.letter.empty() ? "" : "M";
  const WeightGroup& norm = edge(head.norm);
  std::vector<const WeightGroup*> groups{&norm};
  if (!splits_) groups.insert(groups.begin(), &head_weight());
  zero_gradients(groups);
  const std::string full = gathered(head_row(head, "xf"), "full");
  line("compute {}", works({model_.head.parts[1]}, backward()));
  line("  reads {} = {}", head_row(head, "z"), logits(head, "d" + m + "Z"));
  line("  reads {} = {}", full, at_sequence(m + "XF", head.index));
  read_weight(head_weight());
  line("  writes part = {} sum {}", at_sequence("d" + m + "XF", head.index),
       run("voc", axes_.tp, 1));
  if (!splits_) add_gradient(head_weight(), of_sequence(), head.use + " +1");
  const std::string sum = reduced();
  const bool is_last = from == "module+1";  // which has no module after it
  block_if(is_last && modules_ > 1, fmt::format("when module={}", modules_ - 1),
           [&] { head_norm_backward(head, sum, is_last ? "" : from); });
  if (is_last && modules_ > 1) {
    block(fmt::format("when module<{}", modules_ - 1),
          [&] { head_norm_backward(head, sum, from); });
  }
  if (!splits_) free_head(head);
  reduce_now(groups, head.use);
}

void StepWriter::head_norm_backward(const Head& head, const std::string& sum,
                                    const std::string& from) {
  const std::string m = head.letter.empty() ? "" : "M";
  line("compute {}",
       works({model_.head.parts.front()}, Direction::backward, "norm", after_gradient_sent()));
  line("  reads {} = {}", sum, at_block("d" + m + "XF", head.index));
  if (!from.empty()) line("  reads dj = {}", at_block("dJ", fmt::format("[{}]", from)));
  line("  reads {} = {}", h_row(head.hidden), at_block("H", head.layer));
  read_weight(edge(head.norm));
  line("  writes {} = {}", dh_row(head.hidden), at_block("dH", head.layer));
  add_gradient(edge(head.norm), of_block());
}

void StepWriter::free_head(const Head& head) {
  line("free {}", head_row(head, "xf"));
  line("free {}", head_row(head, "z"));
}

void StepWriter::head_weight_backward(const Head& head) {
  const std::string m = head.letter.empty() ? "" : "M";
  zero_gradients({&head_weight()});
  const std::string full = gathered(head_row(head, "xf"), "full");
  line("compute {}", works({model_.head.parts[1]}, Direction::backward_weight));
  line("  reads {} = {}", head_row(head, "z"), logits(head, "d" + m + "Z"));
  line("  reads {} = {}", full, at_sequence(m + "XF", head.index));
  add_gradient(head_weight(), of_sequence(), head.use + " +1");
  free_head(head);
  reduce_now({&head_weight()}, head.use);
}

}  // namespace shiplap::step
