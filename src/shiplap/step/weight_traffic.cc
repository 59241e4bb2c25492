// Communication of weights and gradients, and the update.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/step/step_writer_internal.h"

namespace shiplap::step {

namespace {

using layout::Sharding;

}  // namespace

void StepWriter::gather_weights(Direction direction) {
  if (!shards_weights()) return;
  const bool forward = direction == Direction::forward;
  const bool is_second_half = direction == Direction::backward_weight;
  const std::string_view pass = pass_of(direction);
  const std::string last = layers_in_chunk() + "-1";
  const std::string first_of_pass = forward ? "0" : last;
  const std::string sign = forward ? "+" : "-";
  block(fmt::format("when k={}", first_of_pass), [&] {
    gather_layer("l", "q", "k", pass, "");
    // After the pass before, also if this layer has no sharded weights.
    line("v[{},slot]: compute other work 0 seconds label a pass begins", pass);
  });
  block(fmt::format("when k{}{}", forward ? "<" : ">", forward ? last : "0"), [&] {
    const std::string next = counts_before() ? fmt::format("before[l{}1]", sign) : "q" + sign + "1";
    const std::string computed =
        forward ? "u[slot,k-1]" : fmt::format("{}[slot,k+1]", is_second_half ? "y" : layer_done());
    gather_layer("l" + sign + "1", next, "k" + sign + "1", pass,
                 fmt::format(" after {0}, w[{1},slot,k], v[{1},slot]", computed, pass));
  });
  line("compute other after w[{},slot,k] work 0 seconds label has its weights", pass);
}

void StepWriter::wait_for_module_reductions(bool put_off) {
  std::vector<std::string> names;
  for (const WeightGroup* group : groups_of(kinds_[module_kind()], put_off)) {
    if (group->sharding >= Sharding::gradients) names.push_back(reduced_name(*group, ""));
  }
  if (names.empty()) return;
  line("compute other after {} work 0 seconds label gradients are reduced", fmt::join(names, ", "));
}

std::string_view StepWriter::pass_of(Direction direction) {
  if (direction == Direction::forward) return "0";
  return direction == Direction::backward_weight ? "2" : "1";
}

void StepWriter::gather_module(Direction direction) {
  if (!shards_weights()) return;
  gather_kind(module_kind(), "q", "k", pass_of(direction), "");
}

bool StepWriter::shards_weights() const {
  return std::ranges::any_of(here_, [&](std::size_t k) {
    return std::ranges::any_of(kinds_[k].groups, [](const WeightGroup& group) {
      return group.sharding == Sharding::weights;
    });
  });
}

void StepWriter::gather_layer(const std::string& l, const std::string& q, const std::string& k,
                              std::string_view pass, const std::string& after) {
  for (const std::size_t number : here_) {
    block_if(here_.size() > 1, fmt::format("when kind[{}]={}", l, number),
             [&] { gather_kind(number, q, k, pass, after); });
  }
}

void StepWriter::gather_kind(std::size_t number, const std::string& q, const std::string& k,
                             std::string_view pass, const std::string& after) {
  std::vector<const WeightGroup*> groups;
  for (const WeightGroup& group : kinds_[number].groups) {
    if (group.sharding == Sharding::weights) groups.push_back(&group);
  }
  for (const WeightGroup* group : groups) {
    const std::int64_t shards = group->sharing.shards;
    const std::string call = fmt::format(
        "all_gather sw_{}[{} +1] to f_{}[{} +{}] over {}/weights", group->buffer, q, group->buffer,
        times(fmt::format("(({}) mod 2)", k), shards), shards, group->sharing.over);
    const bool is_last = group == groups.back();
    line("{}{}{}{}", is_last ? fmt::format("w[{},slot,{}]: ", pass, k) : "",
         after.empty() ? "" : "@weights ", call, after);
  }
}

void StepWriter::zero_gradients(const std::vector<const WeightGroup*>& groups) {
  for (const WeightGroup* group : groups) {
    if (group->sharding < Sharding::gradients) continue;
    const std::string after = group->is_alone ? "" : " after " + reduced_name(*group, "", "k+2");
    line("compute zero{}", after);
    line("  writes {} = {} sum none", in_use(*group, "t", group->sharing.shards),
         whole(*group, "G"));
  }
}

void StepWriter::reduce_now(const std::vector<const WeightGroup*>& groups, const std::string& use,
                            std::string_view computed) {
  for (const WeightGroup* group : groups) {
    if (group->sharding < Sharding::gradients) continue;
    const std::string scale =
        group->sharing.over_replicas.empty() ? fmt::format(" scale 1/{}", samples_) : "";
    const std::string stream = group->is_alone ? "" : "@net ";
    const std::string after = group->is_alone ? "" : fmt::format(" after {}[slot,k]", computed);
    line("{}reduce_scatter {} to {} over {}/gradients{}{}", stream,
         in_use(*group, "t", group->sharing.shards), in_use(*group, "st", 1), group->sharing.over,
         scale, after);
    line("{}: {}copy {} to {} add", reduced_name(*group, use), stream, in_use(*group, "st", 1),
         rows_at(*group, "sg", 1));
  }
}

std::string StepWriter::reduced_name(const WeightGroup& group, const std::string& use,
                                     const std::string& k) const {
  return group.is_alone ? fmt::format("r_{}[slot,{}]", group.name, use)
                        : fmt::format("r_{}[slot,{}]", group.buffer, k);
}

void StepWriter::wait_for_reductions(bool put_off) {
  std::vector<std::string> names;
  for (const std::size_t k : here_) {
    for (const WeightGroup* group : groups_of(kinds_[k], put_off)) {
      if (group->sharding < Sharding::gradients) continue;
      for (const char* layer : {"0", "1"}) names.push_back(reduced_name(*group, "", layer));
    }
  }
  if (names.empty()) return;
  line("compute other after {} work 0 seconds label gradients are reduced", fmt::join(names, ", "));
}

void StepWriter::last_reductions() {
  block(fmt::format("repeat j {}", layers_in_chunk()), [&] {
    line("let k = {}-1-j", layers_in_chunk());
    let_layer();
    each_kind([&](const Kind& kind, std::size_t) {
      for (const WeightGroup& group : kind.groups) reduce_at_end(group, "y[slot,k]");
    });
  });
  each_module_of_chunk(true, [&] {
    for (const WeightGroup& group : kinds_[module_kind()].groups) {
      reduce_at_end(group, "y[slot,k]");
    }
  });
}

void StepWriter::reduce_at_end(const WeightGroup& group, const std::string& computed) {
  const std::int64_t shards = group.sharing.shards;
  const bool is_sharded = group.sharding >= Sharding::gradients;
  const std::string rows = is_sharded ? rows_at(group, "sg", 1) : rows_at(group, "g", shards);
  const std::string scale = fmt::format(" scale 1/{}", samples_);
  const std::string index = operation_index(group);
  std::vector<std::string> calls;
  if (group.sums_tensor) calls.push_back(fmt::format("all_reduce {} over tp/norms", rows));
  if (sums_stages(group)) {
    calls.push_back(fmt::format("all_reduce {} over pp{{0, {}}}/embedding", rows, pipeline_ - 1));
  }
  const std::string& over = group.sharing.over;
  const std::string& replicas = group.sharing.over_replicas;
  if (is_sharded) {
    if (!replicas.empty()) {
      calls.push_back(fmt::format("all_reduce {} over {}/replicas{}", rows, replicas, scale));
    }
  } else if (group.sharding == Sharding::optimizer) {
    const std::string to = rows_at(group, "sg", 1);
    calls.push_back(fmt::format("reduce_scatter {} to {} over {}/gradients{}", rows, to, over,
                                replicas.empty() ? scale : ""));
    if (!replicas.empty()) {
      calls.push_back(fmt::format("all_reduce {} over {}/replicas{}", to, replicas, scale));
    }
  } else {
    if (!over.empty()) {
      calls.push_back(fmt::format("all_reduce {} over {}/gradients{}", rows, over,
                                  replicas.empty() ? scale : ""));
    }
    if (!replicas.empty()) {
      calls.push_back(fmt::format("all_reduce {} over {}/replicas{}", rows, replicas, scale));
    }
    if (over.empty() && replicas.empty() && samples_ > 1) {
      calls.push_back(fmt::format("compute scale\n{0}  reads {1} = {2}\n{0}  writes {1} = {2}{3}",
                                  std::string(2 * depth_, ' '), rows, whole(group, "G"), scale));
    }
  }
  for (std::size_t k = 0; k < calls.size(); ++k) {
    const bool is_compute = calls[k].starts_with("compute");
    const bool is_last = k + 1 == calls.size();
    const std::string name = is_last ? fmt::format("d_{}{}: ", group.buffer, index) : "";
    // Calls of the stream follow each other; the first one waits for the gradient.
    std::string call = "@net " + calls[k];
    if (k == 0) call.insert(is_compute ? call.find('\n') : call.size(), " after " + computed);
    line("{}{}", name, call);
  }
}

void StepWriter::reduce_edges() {
  line("end: compute other work 0 seconds label all gradients are computed");
  each_edge([&](const WeightGroup& group) { reduce_at_end(group, "end"); });
}

void StepWriter::update() {
  each_layer([&](const WeightGroup& group) {
    const std::int64_t shards = group.sharing.shards;
    const bool whole_here = group.sharding == Sharding::none;
    const std::int64_t parameters = (group.parameters + shards - 1) / shards;
    const std::string index = operation_index(group);
    const std::string after = fmt::format(" after d_{}{}", group.buffer, index);
    const auto value = [&](std::string_view letter) {
      return whole_here ? whole(group, letter) : shard(group, letter);
    };
    const std::string g = rows_at(group, whole_here ? "g" : "sg", 1);
    const std::string w = rows_at(group, whole_here ? "w" : "sw", 1);
    const std::string o = rows_at(group, "o", 1);
    const std::int64_t bytes = parameters * (bytes_of(layout_.precision.gradients) + 2 * element() +
                                             2 * layout::optimizer_bytes(layout_));
    line("n_{}{}: compute update{} work update {} flop {} bytes f32", group.buffer, index,
         has_end_call(group) ? after : "", 11 * parameters, bytes);
    const std::string scale = samples_ > 1 ? fmt::format(" scale 1/{}", samples_) : "";
    line("  reads {} = {}{}", g, value("G"), scale);
    line("  reads {} = {}", w, value("W"));
    line("  reads {} = {}", o, value("O"));
    line("  writes {} = new {}", w, value("W"));
    line("  writes {} = new {}", o, value("O"));
    if (group.sharding == Sharding::optimizer || group.sharding == Sharding::gradients) {
      line("@net all_gather {} to {} over {}/gradients after n_{}{}", w,
           rows_at(group, "w", shards), group.sharing.over, group.buffer, index);
    }
  });
}

bool StepWriter::has_end_call(const WeightGroup& group) const {
  return group.sharding < Sharding::gradients
             ? !group.sharing.over.empty() || !group.sharing.over_replicas.empty() ||
                   samples_ > 1 || group.sums_tensor || sums_stages(group)
             : group.sums_tensor || sums_stages(group) || !group.sharing.over_replicas.empty();
}

}  // namespace shiplap::step
