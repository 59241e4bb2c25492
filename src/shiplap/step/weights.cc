#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/step/weights_internal.h"

namespace shiplap::step {
namespace {

using layout::Layout;
using workload::Part;
using workload::PartKind;
using workload::PartWork;
using workload::Tokens;

std::int64_t share_of(std::int64_t whole, std::int64_t ranks) {
  return (whole + ranks - 1) / ranks;
}

PartWork sum_of(PartWork a, PartWork b) { return {a.flop + b.flop, a.bytes + b.bytes}; }

}  // namespace

std::string_view class_of_kernel(PartKind kind) {
  return kind == PartKind::linear ? "gemm" : workload::name(kind);
}

Cut cut_of(const Part& part) {
  const std::string_view name = part.name;
  if (part.kind == PartKind::norm || name == "router" || name.ends_with("_down")) return Cut::none;
  if (name == "mtp.projection") return Cut::none;
  if (name.starts_with("experts.")) return Cut::experts;
  if (name.ends_with(".out") || name.ends_with(".down")) return Cut::rows;
  return Cut::columns;
}

LocalPart local_part(const Part& part, const Layout& layout) {
  LocalPart local{.part = part,
                  .tokens = {.sequences = layout.micro_batch,
                             .length = share_of(layout.seq_length, layout.context)}};
  const std::int64_t tensor = layout.tensor;
  switch (cut_of(part)) {
    case Cut::none:
      if (layout.sequence_parallel) local.tokens.length = share_of(local.tokens.length, tensor);
      return local;
    case Cut::columns:
      local.part.out = share_of(part.out, tensor);
      if (part.kind != PartKind::linear) local.part.in = share_of(part.in, tensor);
      if (part.kind == PartKind::embedding) {  // a table of words
        local.part.out = part.out;
        local.part.in = share_of(part.in, tensor);
      }
      if (part.kind == PartKind::attention) {
        local.part.attention.heads = share_of(part.attention.heads, tensor);
        local.part.attention.kv_heads = share_of(part.attention.kv_heads, tensor);
        local.share = 1.0 / static_cast<double>(layout.context);
      }
      local.part.other = share_of(part.other, tensor);
      return local;
    case Cut::rows:
      local.part.in = share_of(part.in, tensor);
      return local;
    case Cut::experts: {
      // Tokens are assumed to be routed evenly.
      local.part.experts = part.experts / layout.expert;
      local.part.top_k = 1;
      if (layout.sequence_parallel) local.tokens.length = share_of(local.tokens.length, tensor);
      local.tokens.length *= part.top_k * layout.expert_tensor;
      const bool is_input = part.name.ends_with(".down");
      const bool is_output = part.name.ends_with(".up");
      if (is_input || !is_output) local.part.in = share_of(part.in, layout.expert_tensor);
      if (!is_input) local.part.out = share_of(part.out, layout.expert_tensor);
      return local;
    }
  }
  throw InternalError("unknown cut");
}

std::string work_text(const LocalPart& local, Direction direction, DType type, std::int64_t steps) {
  PartWork work;
  if (direction == Direction::forward) work = forward(local.part, local.tokens, type);
  if (direction == Direction::backward || direction == Direction::backward_input) {
    work = backward_input(local.part, local.tokens, type);
  }
  if (direction == Direction::backward || direction == Direction::backward_weight) {
    work = sum_of(work, backward_weight(local.part, local.tokens, type));
  }
  if (local.part.kind == PartKind::attention && work != PartWork{}) {
    // Pairs are counted in whole sequences, of which each context rank has an equal share.
    const Tokens here = local.tokens;
    const auto ranks = std::llround(1 / local.share);
    const Tokens whole{.sequences = here.sequences, .length = here.length * ranks};
    const double times = direction == Direction::forward ? 1 : 2;
    work.flop = times * forward(local.part, whole, type).flop * local.share;
  }
  if (work == PartWork{}) return "";
  return fmt::format("{} {} flop {} bytes {}", class_of_kernel(local.part.kind),
                     static_cast<std::int64_t>(work.flop) / steps,
                     static_cast<std::int64_t>(work.bytes) / steps, name(type));
}

}  // namespace shiplap::step
