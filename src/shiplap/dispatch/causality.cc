#include <algorithm>
#include <optional>
#include <span>

#include "shiplap/base/cancellation.h"
#include "shiplap/dispatch/causality_internal.h"
#include "shiplap/dispatch/received_pieces_internal.h"

// The problem: validate the keys of attention without document numbers, from the tables alone.
//
// A token is identified by its home (rank and offset, as one number). It is a query in exactly one
// item. The position of an item in its document follows from the mask and the keys that the item
// holds (position_items). The invariants checked for every item are:
//
//   1. key number k is a token of the k-th position that the mask asks for
//   2. the keys at the positions of the item's queries are those of its own queries
//   3. the token before a key is the same as in the item where that token is a query
//   4. each item continues exactly one other item, so documents do not branch
//   5. if the keys end behind the item's queries (full, prefix), all items of the document agree
//      where
//
// By induction over positions, 1 and 3 imply that all items that hold a token hold the same tokens
// before it, as far as the mask asks for them: the document. Tokens are handled in runs that are
// contiguous both at home and in the item, so the cost is proportional to the pieces (times a
// binary search), not the tokens.

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
  std::uint32_t query_key = 0;  // index of the key of its first query, among its keys
  std::uint64_t position = 0;   // of its first query, in its document
  bool has_position = false;
  std::uint64_t first_query = 0;  // its home
  std::size_t first_key = 0;      // in keys_
  std::size_t end_key = 0;
};

// Splits pieces at the bounds of a range of a buffer. Calls act(piece, first, length) for each
// part.
template <class Act>
void cut_at(const KeyRange& range, std::span<const ReceivedPiece> pieces, const Act& act) {
  auto piece = std::ranges::upper_bound(pieces, range.begin, {}, &ReceivedPiece::end);
  for (std::uint64_t token = range.begin; token < range.end; ++piece) {
    const std::uint64_t end = std::min(piece->end(), range.end);
    act(*piece, token, static_cast<std::uint32_t>(end - token));
    token = end;
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
    list_keys();
    list_queries();
    position_items();
    if (!found_.empty()) return;
    for (Queries& queries : queries_) {
      const Item& item = items_[queries.item];
      queries.position += static_cast<std::uint32_t>(item.position);
    }
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      throw_if_cancelled();
      check(i);
    }
    if (found_.empty()) check_continuations();
  }

 private:
  [[nodiscard]] std::uint64_t home(const ReceivedPiece& piece, std::uint64_t token) const {
    return bases_[piece.from] + piece.begin + (token - piece.offset);
  }

  [[nodiscard]] const Mask& mask() const { return dispatch_.attention.mask(); }

  void list_items() {
    for (int rank = 0; rank < dispatch_.world_size(); ++rank) {
      const auto q = dispatch_.attention.cu_seqlens_q(rank);
      for (std::size_t i = 0; i + 1 < q.size(); ++i) {
        Item item{.rank = rank, .number = static_cast<int>(i)};
        item.queries = q[i + 1] - q[i];
        item.keys =
            static_cast<std::uint32_t>(dispatch_.attention.keys(rank, item.number).length());
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

  // Positions count from the first query of the item, until position_items() is done.
  void list_queries() {
    const ReceivedPieces arrivals(dispatch_.q.forward);
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      throw_if_cancelled();
      const auto bounds = dispatch_.attention.cu_seqlens_q(items_[i].rank);
      const auto number = static_cast<std::size_t>(items_[i].number);
      const KeyRange range{.begin = bounds[number], .end = bounds[number + 1]};
      cut_at(range, arrivals.on(items_[i].rank),
             [&](const ReceivedPiece& piece, std::uint64_t token, std::uint32_t length) {
               queries_.push_back({.home = home(piece, token),
                                   .length = length,
                                   .position = static_cast<std::uint32_t>(token - range.begin),
                                   .item = i});
             });
    }
    for (const Queries& queries : queries_) {
      if (queries.position == 0) items_[queries.item].first_query = queries.home;
    }
    std::ranges::sort(queries_, {}, &Queries::home);
  }

  void list_keys() {
    const ReceivedPieces arrivals(dispatch_.kv.forward);
    for (Item& item : items_) {
      const KeyRange range = dispatch_.attention.keys(item.rank, item.number);
      item.first_key = keys_.size();
      cut_at(range, arrivals.on(item.rank),
             [&](const ReceivedPiece& piece, std::uint64_t token, std::uint32_t length) {
               keys_.push_back({.home = home(piece, token),
                                .length = length,
                                .index = static_cast<std::uint32_t>(token - range.begin),
                                .from = piece.from,
                                .row = piece.row});
             });
      item.end_key = keys_.size();
    }
  }

  // ---- positions

  void position_items() {
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      throw_if_cancelled();
      Item& item = items_[i];
      if (item.keys == 0) continue;
      item.query_key = item.keys - item.queries;
      if (mask().kind() == Mask::Kind::full || mask().kind() == Mask::Kind::prefix) find_own(i);
      item.position = item.query_key;
      if (!has_right_length(item)) {
        add_violation(item, item.end_key - 1, item.keys - 1, "is outside of the mask");
      }
      // In a window, fewer keys than N before the queries are all that the document has.
      item.has_position = mask().kind() != Mask::Kind::window ||
                          item.query_key + 1 != mask().tokens() || item.query_key == 0;
    }
    for (std::uint32_t i = 0; i < items_.size(); ++i) {
      throw_if_cancelled();
      if (items_[i].keys > 0 && !items_[i].has_position) follow(i);
    }
  }

  // Whether a window or the keys behind a prefix are as long as they must be, if the document is.
  [[nodiscard]] bool has_right_length(const Item& item) const {
    const std::uint64_t queries_end = std::uint64_t{item.query_key} + item.queries;
    if (queries_end > item.keys) return false;
    if (mask().kind() == Mask::Kind::window) return item.query_key < mask().tokens();
    if (mask().kind() == Mask::Kind::prefix) {
      return item.keys <= mask().tokens() || queries_end == item.keys;
    }
    return true;
  }

  // Keys that begin with the document may end behind the queries: finds the first query.
  void find_own(std::uint32_t i) {
    Item& item = items_[i];
    if (item.queries == 0) return;
    for (std::size_t k = item.first_key; k < item.end_key; ++k) {
      const Keys& keys = keys_[k];
      if (item.first_query < keys.home || item.first_query >= keys.home + keys.length) continue;
      item.query_key = keys.index + static_cast<std::uint32_t>(item.first_query - keys.home);
      return;
    }
    found_.add(
        {.code = "D409",
         .where = {.rank = item.rank,
                   .operation = fmt::format("attention cu_seqlens_kv, item {}", item.number)},
         .what = "the key of the item's first query is missing",
         .why = "a query attends to its own key"});
  }

  // The keys of an item inside of its document begin at a position that they do not tell: it is
  // that of the item before it, plus its queries. Follows this chain to an item whose position is
  // known, and back.
  void follow(std::uint32_t i) {
    std::vector<std::uint32_t> chain;
    while (!items_[i].has_position) {
      chain.push_back(i);
      const std::optional<std::uint32_t> before =
          chain.size() > items_.size() ? std::nullopt : item_before(items_[i]);
      if (!before) {
        Item& item = items_[chain.front()];
        add_violation(item, item.first_key, 0, "does not lead to the beginning of a document");
        return;
      }
      i = *before;
    }
    while (!chain.empty()) {
      Item& item = items_[chain.back()];
      item.position = items_[i].position + items_[i].queries;
      item.has_position = true;
      i = chain.back();
      chain.pop_back();
    }
  }

  // ---- keys

  void check(std::uint32_t i) {
    const Item& item = items_[i];
    if (item.keys == 0) return;
    if (item.position < item.query_key) {
      add_violation(item, item.first_key, 0, "lies before the beginning of its document");
      return;
    }
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
    if (position != item.position - item.query_key + index) {
      return add_violation(item, k, index, fmt::format("is token {} of its document", position));
    }
    const bool is_own = index >= item.query_key && index < item.query_key + item.queries;
    if (is_own && owner.item != i) {
      return add_violation(item, k, index, "is not a key of the item's own queries");
    }
    if (!agree_on_end(item, items_[owner.item])) {
      return add_violation(
          item, k, index,
          fmt::format("is a query of item {} on rank {}, which has {} keys",
                      items_[owner.item].number, items_[owner.item].rank, items_[owner.item].keys));
    }
    if (index == 0 || owner.item == i) return true;
    const Item& other = items_[owner.item];
    // Where the keys of the other item begin with this token, it does not tell the one before.
    const std::uint64_t in_other = other.query_key + (position - other.position);
    if (token == owner.home && in_other == 0) return true;
    const std::uint64_t before = token > keys_[k].home ? token - 1 : last_of(keys_[k - 1]);
    const std::uint64_t expected =
        token > owner.home ? token - 1 : key_at(other, static_cast<std::uint32_t>(in_other - 1));
    if (before != expected) {
      return add_violation(item, k, index, "does not follow the token before it in its document");
    }
    return true;
  }

  // Whether two items of one document can have these numbers of keys. Under `full` each has all.
  // Under `prefix`, an item of fewer than N keys has all of a document of fewer than N tokens.
  [[nodiscard]] bool agree_on_end(const Item& a, const Item& b) const {
    if (mask().kind() == Mask::Kind::full) return a.keys == b.keys;
    if (mask().kind() != Mask::Kind::prefix) return true;
    const std::uint32_t n = mask().tokens();
    return a.keys < n || b.keys < n ? a.keys == b.keys : true;
  }

  // Returns the item that ends where `item` begins, if any.
  [[nodiscard]] std::optional<std::uint32_t> item_before(const Item& item) const {
    const std::uint64_t before = key_at(item, item.query_key - 1);
    const Queries& owner =
        *std::prev(std::ranges::upper_bound(queries_, before, {}, &Queries::home));
    const Item& other = items_[owner.item];
    const std::uint32_t last_query = other.query_key + other.queries - 1;
    if (key_at(other, last_query) != before) return std::nullopt;
    return owner.item;
  }

  void check_continuations() {
    std::vector<bool> continued(items_.size());
    for (const Item& item : items_) {
      if (item.queries == 0 || item.query_key == 0) continue;
      const std::optional<std::uint32_t> before = item_before(item);
      if (before && !continued[*before]) {
        continued[*before] = true;
      } else {
        add_violation(item, item.end_key - 1, item.query_key,
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
                .why = mask().is_causal()
                           ? "the keys of an item must be its document up to its last query, in "
                             "order"
                           : fmt::format("the keys of an item must be those that the mask `{}` "
                                         "asks for, in order",
                                         to_string(mask()))});
    return false;
  }

  const QkvDispatch& dispatch_;
  Findings& found_;
  std::vector<std::uint64_t> bases_;
  std::vector<Item> items_;
  std::vector<Queries> queries_;  // by home
  std::vector<Keys> keys_;        // by item
};

}  // namespace

void check_causality(const QkvDispatch& dispatch, Findings& found) {
  Causality(dispatch, found).run();
}

}  // namespace shiplap::dispatch
