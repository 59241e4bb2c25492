// What the mutations share. Each looks for places where it is certainly a bug, and plants it at one
// of them.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "draft.h"
#include "mutations.h"
#include "reading.h"
#include "shiplap/base/random.h"

namespace shiplap::mutations {

// The expected finding, in marks, which stay valid while the plan changes.
struct Outcome {
  std::vector<std::string> codes;
  std::vector<Mark> marks;
  std::vector<std::int32_t> ranks;  // the goal, or the whole rank
  std::vector<check::OperationId> places;
  bool only_rendezvous = false;
};

class Planter {
 public:
  static constexpr std::size_t kPatience = 60;  // a plan has thousands of places
  explicit Planter(std::uint64_t seed) : random(seed) {}
  Random random;

  // Tries candidates in random order until one works; `attempt` changes nothing unless it does.
  template <class T, class Attempt>
  std::optional<Outcome> any_of(std::vector<T> candidates, const Attempt& attempt) {
    random.shuffle(candidates);
    if (candidates.size() > kPatience) candidates.resize(kPatience);
    for (const T& candidate : candidates) {
      if (std::optional<Outcome> outcome = attempt(candidate)) return outcome;
    }
    return std::nullopt;
  }
};

using Codes = std::vector<std::string>;

// Found at the read.
[[nodiscard]] Outcome found_by(Codes codes, const Readers& readers);
// Of two members none is the odd one out.
[[nodiscard]] Outcome found_at_member(Codes codes, const Call& call, std::size_t member);
// Whether two operations of a rank can change places: nothing between them minds.
[[nodiscard]] bool can_swap(const Draft& draft, Mark first, Mark second);
// They do, and whoever waited for one waits for both.
void swap_actions(Draft& draft, Mark first, Mark second);
// The gradient of a weight.
[[nodiscard]] bool is_gradient(const Draft& draft, const plan::Value& value);
// In place or to a region of its own; on the way out its piece stays what it was.
void drop_reduction(Draft& draft, const Call& call);
// The rows that are this member's piece of the whole.
[[nodiscard]] plan::Region piece(const plan::Region& whole, std::size_t member,
                                 std::size_t members);
// What a read of something that is not there yet, or no longer, is called.
[[nodiscard]] Codes codes_of_early_read(const Draft& draft, Mark mark, const plan::Region& region);

using Apply = std::optional<Outcome>(Draft&, Planter&);

Apply drop_collective_on_one, drop_forward_reduction, drop_gradient_reduction,
    duplicate_gradient_reduction, reduce_becomes_gather, gather_becomes_reduce,
    reduce_becomes_broadcast_on_one, other_count_on_one, other_type_on_one, other_operator,
    other_root_on_one, swap_calls_of_one_group, swap_calls_of_two_groups, other_axis,
    rank_left_out_of_group, group_in_other_order, extra_collective;
Apply drop_send, drop_receive, other_peer, swap_sends, other_tag, other_size, both_receive_first,
    both_send_first, ring_sends_first;
Apply swap_forward_and_backward, omit_microbatch, repeat_microbatch, same_samples_on_two,
    drop_layer, layer_on_two_stages, swap_layers, backward_in_forward_order, empty_rank_or_plan;
Apply drop_wait_for_receive, drop_wait_for_send, two_write_one_buffer, shift_shard, free_too_early,
    reuse_too_early;
Apply drop_weight_gather, other_shard_updated, reduce_before_last_microbatch, drop_final_gather,
    drop_tied_reduction, other_scale, drop_norm_reduction;
Apply drop_ring_step, repeat_ring_step, ring_in_other_direction, swap_chunks, drop_combine,
    asymmetric_split;

}  // namespace shiplap::mutations
