#include "mutations.h"

#include <algorithm>
#include <utility>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Collective;
using plan::Region;
using plan::Value;

const std::vector<Mutation>& all_mutations() {
  static const std::vector<Mutation> kAll = {
      {1, "drop a collective on one rank", drop_collective_on_one},
      {2, "drop a forward reduction on all ranks", drop_forward_reduction},
      {3, "drop the gradient reduction of a layer", drop_gradient_reduction},
      {4, "duplicate a gradient all_reduce", duplicate_gradient_reduction},
      {5, "all_reduce becomes all_gather on all ranks", reduce_becomes_gather},
      {6, "all_gather becomes all_reduce on all ranks", gather_becomes_reduce},
      {7, "all_reduce becomes broadcast on one rank", reduce_becomes_broadcast_on_one},
      {8, "another count on one rank", other_count_on_one},
      {9, "another element type on one rank", other_type_on_one},
      {10, "sum becomes max, on one rank or all", other_operator},
      {11, "another root on one rank", other_root_on_one},
      {12, "swap two calls of one group on one rank", swap_calls_of_one_group},
      {13, "swap calls of two groups on one rank", swap_calls_of_two_groups},
      {14, "another axis, on one rank or all", other_axis},
      {15, "a rank left out of a group", rank_left_out_of_group},
      {16, "a group in another order on one rank", group_in_other_order},
      {17, "drop a send", drop_send},
      {18, "drop a receive", drop_receive},
      {19, "another peer of a send", other_peer},
      {20, "swap two sends to one peer", swap_sends},
      {21, "another tag", other_tag},
      {22, "another size of a send", other_size},
      {23, "two ranks receive first", both_receive_first},
      {24, "two ranks send first", both_send_first},
      {25, "a ring sends first", ring_sends_first},
      {26, "swap forward and backward of a microbatch", swap_forward_and_backward},
      {27, "omit a microbatch on one stage", omit_microbatch},
      {28, "repeat a microbatch on one stage", repeat_microbatch},
      {29, "the same samples on two ranks", same_samples_on_two},
      {30, "remove a layer", drop_layer},
      {31, "a layer on two stages", layer_on_two_stages},
      {32, "swap two layers", swap_layers},
      {33, "backward in forward order", backward_in_forward_order},
      {34, "drop a wait for what arrives", drop_wait_for_receive},
      {35, "drop a wait for what leaves", drop_wait_for_send},
      {36, "two operations write one buffer", two_write_one_buffer},
      {37, "shift a shard by one row", shift_shard},
      {38, "free an activation before its backward", free_too_early},
      {39, "reuse an activation buffer too early", reuse_too_early},
      {40, "drop a gather of weights", drop_weight_gather},
      {41, "update another shard, or none", other_shard_updated},
      {42, "reduce before the last microbatch", reduce_before_last_microbatch},
      {43, "drop the final gather of weights", drop_final_gather},
      {44, "drop a step of ring attention", drop_ring_step},
      {45, "repeat a step of ring attention", repeat_ring_step},
      {46, "the other way round the ring on one rank", ring_in_other_direction},
      {47, "swap two chunks on one rank", swap_chunks},
      {48, "drop the combine of tokens", drop_combine},
      {49, "the ends of a message differ", asymmetric_split},
      {50, "drop the reduction of tied embeddings", drop_tied_reduction},
      {51, "a scale twice or never", other_scale},
      {52, "drop the reduction of norm gradients", drop_norm_reduction},
      {53, "an extra collective on one rank", extra_collective},
      {54, "a rank, or the plan, is empty", empty_rank_or_plan},
  };
  return kAll;
}

std::optional<Mutant> mutated(const Mutation& mutation, const plan::Plan& unrolled,
                              std::uint64_t seed) {
  Draft draft(unrolled);
  Planter planter(seed);
  const std::optional<Outcome> outcome = mutation.apply(draft, planter);
  if (!outcome) return std::nullopt;
  // A rank that has nothing left to do is a bug of its own.
  const bool idle = std::ranges::any_of(draft.plan.programs, [&](const plan::Program& program) {
    return program.body.empty() ||
           !std::holds_alternative<plan::Operation>(program.body.back().node);
  });
  if (idle && mutation.apply != empty_rank_or_plan) return std::nullopt;
  Mutant mutant{.expected = {.codes = outcome->codes,
                             .places = outcome->places,
                             .only_rendezvous = outcome->only_rendezvous},
                .what = mutation.name};
  for (const Mark mark : outcome->marks) {
    if (draft.exists(mark)) mutant.expected.places.push_back(draft.place(mark));
  }
  for (const std::int32_t rank : outcome->ranks) {
    mutant.expected.places.push_back({.rank = rank, .operation = -1});
  }
  mutant.plan = std::move(draft.plan);
  return mutant;
}

bool is_expected(const check::Finding& finding, const Expected& expected) {
  return std::ranges::find(expected.codes, finding.diagnostic.code) != expected.codes.end() &&
         std::ranges::find(expected.places, finding.place) != expected.places.end() &&
         finding.only_rendezvous == expected.only_rendezvous;
}

// ---- what they share

Outcome found_by(Codes codes, const Readers& readers) {
  return {.codes = std::move(codes), .marks = readers.marks, .ranks = readers.goals};
}

Outcome found_at_member(Codes codes, const Call& call, std::size_t member) {
  Outcome outcome{.codes = std::move(codes), .marks = {call.members[member]}};
  if (call.members.size() == 2) outcome.marks = call.members;
  return outcome;
}

bool can_swap(const Draft& draft, Mark first, Mark second) {
  const Line& a = draft.line(first);
  const Line& b = draft.line(second);
  if (a.batch != 0 || b.batch != 0 || a.operation->stream != b.operation->stream) return false;
  if (a.operation->async || b.operation->async || touch_each_other(draft, first, second)) {
    return false;
  }
  const auto& lines = draft.lines(a.rank);
  for (auto k = static_cast<std::size_t>(a.index) + 1; k < static_cast<std::size_t>(b.index); ++k) {
    const Line& between = lines[k];
    if (touch_each_other(draft, between.mark, first) ||
        touch_each_other(draft, between.mark, second)) {
      return false;
    }
    // What the second waits for must be listed before the first.
    const auto& name = between.operation->name;
    if (!name.name.empty() &&
        std::ranges::find(b.operation->after, name) != b.operation->after.end()) {
      return false;
    }
  }
  const auto& name = a.operation->name;
  return name.name.empty() ||
         std::ranges::find(b.operation->after, name) == b.operation->after.end();
}

void swap_actions(Draft& draft, Mark first, Mark second) {
  const Line a = draft.line(first);
  const Line b = draft.line(second);
  std::swap(a.operation->action, b.operation->action);
  for (const plan::Reference& reference : b.operation->after) draft.wait(first, reference);
  const plan::Reference name = a.operation->name;
  if (name.name.empty()) return;
  const plan::Reference both = draft.name_of(second);
  for (const Line& line : draft.lines(a.rank)) {
    if (line.index <= b.index) continue;
    if (std::ranges::find(line.operation->after, name) != line.operation->after.end()) {
      draft.wait(line.mark, both);
    }
  }
}

bool is_gradient(const Draft& draft, const Value& value) {
  return tensor_of(draft, value).kind == "WeightGrad";
}

Region piece(const Region& whole, std::size_t member, std::size_t members) {
  Region result = whole;
  const std::int64_t rows = whole.count.literal() / static_cast<std::int64_t>(members);
  result.begin = whole.begin.literal() + rows * static_cast<std::int64_t>(member);
  result.count = rows;
  return result;
}

void drop_reduction(Draft& draft, const Call& call) {
  for (std::size_t k = 0; k < call.members.size(); ++k) {
    const Mark mark = call.members[k];
    const Collective old = collective(draft, mark);
    if (overlap(draft, old.from, old.to)) {
      draft.erase(mark);
      continue;
    }
    Region from = old.from;
    if (old.kind == CollectiveKind::reduce_scatter) {
      from = piece(old.from, k, call.members.size());
      if (old.split.exists()) {
        const auto& cuts = draft.plan.lists[old.split].values;
        from.begin = old.from.begin.literal() + cuts[k];
        from.count = cuts[k + 1] - cuts[k];
      }
    }
    draft.line(mark).operation->action = plan::Copy{.from = from, .to = old.to};
  }
}

Codes codes_of_early_read(const Draft& draft, Mark mark, const Region& region) {
  switch (rows_before(draft, mark, region)) {
    case Rows::not_alive:
      return {"D733"};
    case Rows::never_written:
      return {"D732"};
    case Rows::written:
      return {"D744"};
  }
  return {};
}

}  // namespace shiplap::mutations
