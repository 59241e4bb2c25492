#include <algorithm>
#include <optional>
#include <span>

#include "shiplap/dispatch/causality_internal.h"
#include "shiplap/dispatch/received_pieces_internal.h"

// The problem: validate causal attention without document numbers, from the tables alone.
//
// A token is identified by its home (rank and offset, as one number). It is a query in exactly one
// item, which determines its position in its document: the number of keys of the item before its
// own. The invariants checked for every item are:
//
//   1. key number p is a token of position p
//   2. the last keys are those of the item's own queries
//   3. the token before a key is the same as in the item where that token is a query
//   4. each item continues exactly one other item, so documents do not branch
//
// By induction over positions, 1 and 3 imply that all items that hold a token hold the same tokens
// before it: the prefix of its document. Tokens are handled in runs that are contiguous both at
// home and in the item, so the cost is proportional to the pieces (times a binary search), not the
// tokens.

namespace shiplap::dispatch {
namespace {

// A run of tokens that is contiguous at home and in one item: as queries, and as keys.
struct Queries {
  std::uint64_t home = 0;
  std::uint32_t length = 0;
  std::uint32_t position = 0;  // of the first, in its document
  std::uint32_t item = 0;      // over all ranks
};
struct Keys {
  std::uint64_t home = 0;
  std::uint32_t length = 0;
  std::uint32_t index = 0;  // of the first, among the keys of its item
  std::int32_t from = 0;
  std::uint32_t row = 0;
};

struct Item {
  std::int32_t rank = 0;
  int number = 0;  // on its rank
  std::uint32_t queries = 0;
  std::uint32_t keys = 0;
  std::size_t first_key = 0;  // in keys_
  std::size_t end_key = 0;
};

// Splits pieces at the bounds. Calls act(piece, first, length, item) for each part.
template <class Act>
void cut_at(std::span<const std::uint32_t> bounds, std::span<const ReceivedPiece> pieces,
            const Act& act) {
  std::size_t p = 0;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    std::uint64_t token = bounds[i];
    while (token < bounds[i + 1]) {
      while (pieces[p].end() <= token) ++p;
      const std::uint64_t end = std::min<std::uint64_t>(pieces[p].end(), bounds[i + 1]);
      act(pieces[p], token, static_cast<std::uint32_t>(end - token), i);
      token = end;
    }
  }
}

class Causality {
 public:
  Causality(const QkvDispatch& dispatch, Findings& found) : dispatch_(dispatch), found_(found) {
    std::uint64_t base = 0;
    for (int rank = 0; rank < dispatch.world_size(); ++rank) {
      bases_.push_back(base);
      base += dispatch.q.forward.num_send_tokens(rank);
    }
  }

  void run() {
    list_items();
    if (!found_.empty()) return;
    list_queries();
    list_keys();
    for (std::uint32_t i = 0; i < items_.size(); ++i) check(i);
    if (found_.empty()) check_continuations();
  }

 private:
  [[nodiscard]] std::uint64_t home(const ReceivedPiece& piece, std::uint64_t token) const {
    return bases_[piece.from] + piece.begin + (token - piece.offset);
  }

  void list_items() {
    for (int rank = 0; rank < dispatch_.world_size(); ++rank) {
      first_item_.push_back(static_cast<std::uint32_t>(items_.size()));
      const auto q = dispatch_.attention.cu_seqlens_q(rank);
      const auto kv = dispatch_.attention.cu_seqlens_kv(rank);
      for (std::size_t i = 0; i + 1 < q.size(); ++i) {
        Item item{.rank = rank, .number = static_cast<int>(i)};
        item.queries = q[i + 1] - q[i];
        item.keys = kv[i + 1] - kv[i];
        items_.push_back(item);
        if (item.keys >= item.queries) continue;
        found_.add({.code = "D409",
                    .where = {.rank = rank,
                              .operation = fmt::format("attention cu_seqlens_kv, item {}", i)},
                    .what = fmt::format("{} queries have {} keys", item.queries, item.keys),
                    .why = "a query attends to its own key and those before it"});
      }
    }
  }

  void list_queries() {
    const ReceivedPieces arrivals(dispatch_.q.forward);
    for (int rank = 0; rank < dispatch_.world_size(); ++rank) {
      const auto bounds = dispatch_.attention.cu_seqlens_q(rank);
      const std::uint32_t first = first_item_[rank];
      cut_at(bounds, arrivals.on(rank),
             [&](const ReceivedPiece& piece, std::uint64_t token, std::uint32_t length,
                 std::size_t i) {
               const Item& item = items_[first + i];
               queries_.push_back({.home = home(piece, token),
                                   .length = length,
                                   .position = item.keys - item.queries +
                                               static_cast<std::uint32_t>(token - bounds[i]),
                                   .item = first + static_cast<std::uint32_t>(i)});
             });
    }
    std::ranges::sort(queries_, {}, &Queries::home);
  }

  void list_keys() {
    const ReceivedPieces arrivals(dispatch_.kv.forward);
    for (int rank = 0; rank < dispatch_.world_size(); ++rank) {
      const auto bounds = dispatch_.attention.cu_seqlens_kv(rank);
      const std::uint32_t first = first_item_[rank];
      cut_at(bounds, arrivals.on(rank),
             [&](const ReceivedPiece& piece, std::uint64_t token, std::uint32_t length,
                 std::size_t i) {
               Item& item = items_[first + i];
               const auto index = static_cast<std::uint32_t>(token - bounds[i]);
               if (index == 0) item.first_key = keys_.size();
               keys_.push_back({.home = home(piece, token),
                                .length = length,
                                .index = index,
                                .from = piece.from,
                                .row = piece.row});
               item.end_key = keys_.size();
             });
    }
  }

  void check(std::uint32_t i) {
    const Item& item = items_[i];
    for (std::size_t k = item.first_key; k < item.end_key; ++k) {
      const Keys& keys = keys_[k];
      auto owner = std::ranges::upper_bound(queries_, keys.home, {}, &Queries::home) - 1;
      for (std::uint64_t token = keys.home; token < keys.home + keys.length;) {
        const auto index = keys.index + static_cast<std::uint32_t>(token - keys.home);
        if (!check_token(i, k, token, index, *owner)) return;
        token = std::min(owner->home + owner->length, keys.home + keys.length);
        ++owner;
      }
    }
  }

  // Checks the first token of a run that is contiguous in keys_[k] and in `owner`.
  bool check_token(std::uint32_t i, std::size_t k, std::uint64_t token, std::uint32_t index,
                   const Queries& owner) {
    const Item& item = items_[i];
    const std::uint64_t position = owner.position + (token - owner.home);
    if (position != index) {
      return add_violation(item, k, index, fmt::format("is token {} of its document", position));
    }
    if (index >= item.keys - item.queries && owner.item != i) {
      return add_violation(item, k, index, "is not a key of the item's own queries");
    }
    if (index == 0 || owner.item == i) return true;
    const std::uint64_t before = token > keys_[k].home ? token - 1 : last_of(keys_[k - 1]);
    const std::uint64_t expected =
        token > owner.home ? token - 1 : key_at(items_[owner.item], index - 1);
    if (before != expected) {
      return add_violation(item, k, index, "does not follow the token before it in its document");
    }
    return true;
  }

  // Returns the item that ends where `item` begins, if any.
  [[nodiscard]] std::optional<std::uint32_t> continued_by(const Item& item) const {
    const std::uint32_t index = item.keys - item.queries;
    const std::uint64_t before = key_at(item, index - 1);
    const Queries& owner =
        *std::prev(std::ranges::upper_bound(queries_, before, {}, &Queries::home));
    if (items_[owner.item].keys != index) return std::nullopt;
    return owner.item;
  }

  void check_continuations() {
    std::vector<bool> continued(items_.size());
    for (const Item& item : items_) {
      if (item.queries == 0 || item.keys == item.queries) continue;
      const std::optional<std::uint32_t> before = continued_by(item);
      if (before && !continued[*before]) {
        continued[*before] = true;
      } else {
        add_violation(item, item.end_key - 1, item.keys - item.queries,
                      "continues a token that another item already continues");
      }
    }
  }

  static std::uint64_t last_of(const Keys& keys) { return keys.home + keys.length - 1; }

  [[nodiscard]] std::uint64_t key_at(const Item& item, std::uint32_t index) const {
    const auto own = std::span(keys_).subspan(item.first_key, item.end_key - item.first_key);
    const auto next = std::ranges::upper_bound(own, index, {}, &Keys::index);
    const Keys& keys = *std::prev(next);
    return keys.home + (index - keys.index);
  }

  bool add_violation(const Item& item, std::size_t k, std::uint32_t index, std::string_view what) {
    found_.add({.code = "D409",
                .where = {.rank = keys_[k].from,
                          .operation = row_location("kv_forward", "dst_offset", keys_[k].row)},
                .what = fmt::format("key {} of item {} on rank {} {}", index, item.number,
                                    item.rank, what),
                .why = "the keys of an item must be its document up to its last query, in order"});
    return false;
  }

  const QkvDispatch& dispatch_;
  Findings& found_;
  std::vector<std::uint64_t> bases_;
  std::vector<std::uint32_t> first_item_;
  std::vector<Item> items_;
  std::vector<Queries> queries_;  // by home
  std::vector<Keys> keys_;        // by item
};

}  // namespace

void check_causality(const QkvDispatch& dispatch, Findings& found) {
  Causality(dispatch, found).run();
}

}  // namespace shiplap::dispatch
