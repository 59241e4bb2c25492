// A second opinion on dispatches: sound or not, decided token by token, and dispatches that can be
// changed by hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {

// Why a dispatch is not sound, in a few words; empty if it is.
//
// Causality is judged without positions: the queries of an item are the last of its keys, and of
// two items that share a key, the keys of one are the beginning of the other's. An item without
// queries may hold keys that no query attends to.
[[nodiscard]] std::string flaw(const QkvDispatch& dispatch);

// All numbers of a dispatch, open to changes.
struct Open {
  Rows q_forward;
  Rows q_reverse;
  Rows kv_forward;
  Rows kv_reverse;
  int max_cp = 1;
  ArrivalMode kv_arrival = ArrivalMode::summed;  // in the reverse exchange
  std::vector<std::vector<AttentionLayout::Item>> items;
  DispatchOptions options;

  [[nodiscard]] std::int32_t world_size() const {
    return static_cast<std::int32_t>(q_forward.size());
  }
};
[[nodiscard]] Open opened(const QkvDispatch& dispatch);
[[nodiscard]] QkvDispatch closed(const Open& open);

// A row of `rows` by chance, nullptr if there is none for which wanted(row).
template <class Wanted>
Sent* any_row(Rows& rows, Random& random, const Wanted& wanted) {
  std::vector<Sent*> candidates;
  for (auto& rank : rows) {
    for (Sent& row : rank) {
      if (wanted(row)) candidates.push_back(&row);
    }
  }
  return candidates.empty() ? nullptr : random.pick(candidates);
}

// One random change somewhere, which may leave the dispatch sound.
void change_anything(Open& open, Random& random);

// What the keys of each item are, token by token, for dispatches that no routing would give.
struct HandMade {
  std::vector<std::uint32_t> home_tokens;  // by rank
  struct Item {
    std::int32_t rank = 0;
    std::vector<Spot> queries;
    std::vector<Spot> keys;
  };
  std::vector<Item> items;
  Mask mask;
};
// Tables of rows of one token each that carry it out, all in agreement.
[[nodiscard]] QkvDispatch carried_out(const HandMade& made);
[[nodiscard]] HandMade made_from(const Routing& routing, const std::string& mask = "causal");

}  // namespace shiplap::dispatch
