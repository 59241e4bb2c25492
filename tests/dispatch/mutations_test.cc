// Sound dispatches with one thing spoilt. Each kind is caught every time, with the right code.
//
// A change that leaves the dispatch sound (two equal rows exchanged) is skipped; whether it does,
// the second opinion says, which counts tokens.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "brute_force.h"
#include "shiplap/dispatch/dense.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap::dispatch {
namespace {

constexpr int kCaught = 400;

struct Expected {
  std::string always;  // this code is among them
  Codes also;          // these may be too
};

// Nothing where the change cannot be made.
using Spoil = std::function<std::optional<QkvDispatch>(const Routing&, Random&)>;

void expect_caught(const Expected& expected, const Spoil& spoil) {
  int caught = 0;
  int skipped = 0;
  for (std::uint64_t seed = 0; seed < 10'000 && caught < kCaught; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random);
    const std::optional<QkvDispatch> spoilt = spoil(routing, random);
    if (!spoilt) continue;
    const std::string why = flaw(*spoilt);
    const auto found = validate(*spoilt);
    if (why.empty()) {
      ASSERT_TRUE(found.empty()) << "seed " << seed << "\n" << render(found);
      ++skipped;
      continue;
    }
    ++caught;
    Codes codes_found = codes(found);
    ASSERT_FALSE(codes_found.empty()) << "seed " << seed << ": " << why;
    if (!expected.always.empty()) {
      ASSERT_EQ(codes_found.erase(expected.always), 1U) << "seed " << seed << ": " << why << "\n"
                                                        << render(found);
    }
    for (const std::string& code : codes_found) {
      ASSERT_TRUE(expected.also.contains(code)) << "seed " << seed << ": " << why << "\n"
                                                << render(found);
    }
  }
  EXPECT_EQ(caught, kCaught);
  EXPECT_LT(skipped, caught);
}

// A change of the tables; false where it cannot be made.
Spoil tables(const std::function<bool(Open&, Random&)>& change) {
  return [change](const Routing& routing, Random& random) -> std::optional<QkvDispatch> {
    Open open = opened(compute_qkv_dispatch(routing));
    if (!change(open, random)) return std::nullopt;
    return closed(open);
  };
}

// Is every token a key of some item? If not, its row goes nowhere, and that is another flaw.
bool all_are_keys(const HandMade& made) {
  std::set<Spot> keys;
  for (const HandMade::Item& item : made.items) keys.insert(item.keys.begin(), item.keys.end());
  std::size_t tokens = 0;
  for (const std::uint32_t at_home : made.home_tokens) tokens += at_home;
  return keys.size() == tokens;
}

// A change of what an item sees, with tables that all agree about it.
Spoil items(const std::function<bool(HandMade&, Random&)>& change) {
  return [change](const Routing& routing, Random& random) -> std::optional<QkvDispatch> {
    HandMade made = made_from(routing);
    if (!change(made, random) || !all_are_keys(made)) return std::nullopt;
    return carried_out(made);
  };
}

bool has_tokens(const Sent& row) { return row.length > 0; }

Sent* row_with_tokens(Rows& rows, Random& random) { return any_row(rows, random, has_tokens); }

template <class T>
T& any_of(std::vector<T>& values, Random& random) {
  return values[random.between(0, static_cast<std::int64_t>(values.size()))];
}

HandMade::Item* any_item(HandMade& made, Random& random, std::size_t least_keys) {
  std::vector<HandMade::Item*> candidates;
  for (HandMade::Item& item : made.items) {
    if (item.keys.size() >= least_keys) candidates.push_back(&item);
  }
  return candidates.empty() ? nullptr : random.pick(candidates);
}

// ---- places

// It leaves a hole where it was (D408), or lands on its neighbour (D405).
TEST(Mutation, AnOffsetThatIsOneTooHigh) {
  expect_caught({.also = {"D405", "D408"}}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.q_forward, random);
                  if (row != nullptr) ++row->copies[0].offset;
                  return row != nullptr;
                }));
  expect_caught({.also = {"D405", "D408"}}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.kv_forward, random);
                  if (row != nullptr) ++any_of(row->copies, random).offset;
                  return row != nullptr;
                }));
}

// Nothing is left of it but the neighbour's last token: D405.
TEST(Mutation, AnOverlapByOneToken) {
  expect_caught({.always = "D405"}, tables([](Open& open, Random& random) {
                  Sent* row = any_row(open.q_forward, random, [](const Sent& one) {
                    return one.length > 0 && one.copies[0].offset > 0;
                  });
                  if (row != nullptr) --row->copies[0].offset;
                  return row != nullptr;
                }));
}

// They land on others (D405), leave holes (D408), or fit by chance and come back to the wrong home
// (D407). What each rank receives no longer matches the attention layout (D401).
TEST(Mutation, RanksOfTwoRowsExchanged) {
  const Spoil exchange = tables([](Open& open, Random& random) {
    Sent* a = row_with_tokens(open.q_forward, random);
    if (a == nullptr) return false;
    Sent* b = row_with_tokens(open.q_forward, random);
    if (a->copies[0].rank == b->copies[0].rank) return false;
    std::swap(a->copies[0].rank, b->copies[0].rank);
    return true;
  });
  expect_caught({.also = {"D401", "D405", "D407", "D408"}}, exchange);
}

// The end of the place is token 2^32, which 32 bits do not count: D410.
TEST(Mutation, AnOffsetBeyondThirtyTwoBits) {
  const auto push_out = [](Rows& rows, Random& random) {
    Sent* row = row_with_tokens(rows, random);
    if (row != nullptr) any_of(row->copies, random).offset = kMax32 - row->length + 1;
    return row != nullptr;
  };
  expect_caught({.always = "D410"}, tables([&](Open& open, Random& random) {
                  return push_out(open.q_forward, random);
                }));
  expect_caught({.always = "D410"}, tables([&](Open& open, Random& random) {
                  return push_out(open.kv_forward, random);
                }));
}

// ---- ranks

// D403; and what does not arrive is missing from the attention layout (D401).
TEST(Mutation, ARankThatDoesNotExist) {
  expect_caught({.always = "D403", .also = {"D401"}}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.kv_forward, random);
                  if (row != nullptr) any_of(row->copies, random).rank = open.world_size();
                  return row != nullptr;
                }));
  expect_caught({.always = "D403", .also = {"D401"}}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.q_forward, random);
                  if (row != nullptr) row->copies[0].rank = -2;
                  return row != nullptr;
                }));
  expect_caught({.always = "D403"}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.kv_reverse, random);
                  if (row != nullptr) row->copies[0].rank = open.world_size() + 5;
                  return row != nullptr;
                }));
}

// -1 means nowhere, and there go no tokens: D402; they are missing from the layout (D401).
TEST(Mutation, PaddingWithALength) {
  expect_caught({.always = "D402", .also = {"D401"}}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.q_forward, random);
                  if (row != nullptr) row->copies[0] = {};
                  return row != nullptr;
                }));
  expect_caught({.always = "D402", .also = {"D401"}}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.kv_forward, random);
                  if (row != nullptr) row->copies.clear();
                  return row != nullptr;
                }));
}

// The unused copies of a row become copies to rank 0, token 0. There they meet others (D405), or
// nobody, and then no row sends them back (D408). The layout knows nothing of them: D401.
TEST(Mutation, MinusOneReadAsRankZero) {
  expect_caught({.always = "D401", .also = {"D405", "D408"}},
                tables([](Open& open, Random& random) {
                  Sent* row = any_row(open.kv_forward, random, [&](const Sent& one) {
                    return one.length > 0 && at(open.max_cp) > one.copies.size();
                  });
                  if (row != nullptr) row->copies.push_back({.rank = 0, .offset = 0});
                  return row != nullptr;
                }));
}

// ---- rows

// Its place is a hole (D408), and the layout has more keys than arrive (D401).
TEST(Mutation, ADroppedCopy) {
  expect_caught(
      {.always = "D408", .also = {"D401"}}, tables([](Open& open, Random& random) {
        Sent* row = any_row(open.kv_forward, random, [](const Sent& one) {
          return one.length > 0 && one.copies.size() > 1;
        });
        if (row == nullptr) return false;
        row->copies.erase(row->copies.begin() +
                          random.between(0, static_cast<std::int64_t>(row->copies.size())));
        return true;
      }));
}

// Both go to one place (D405), and there are more queries than keys at home (D401).
TEST(Mutation, ADuplicatedRow) {
  expect_caught({.always = "D405", .also = {"D401"}}, tables([](Open& open, Random& random) {
                  auto& rank = any_of(open.q_forward, random);
                  if (rank.empty()) return false;
                  const Sent row = any_of(rank, random);
                  rank.push_back(row);
                  return row.length > 0;
                }));
}

// The tokens after it shift. Rows at home no longer are as many as the keys: D401. The rest depends
// on what the neighbours are: D404 and D405 in the reverse exchange, D405, D407 and D408 in the
// forward exchange.
TEST(Mutation, ALengthChangedByOne) {
  const Codes any{"D404", "D405", "D407", "D408"};
  expect_caught({.always = "D401", .also = any}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.q_forward, random);
                  if (row != nullptr) row->length += random.chance() ? 1U : ~0U;
                  return row != nullptr;
                }));
  // In the reverse exchange nothing at home changes; what arrives there does.
  expect_caught({.also = any}, tables([](Open& open, Random& random) {
                  Sent* row = row_with_tokens(open.kv_reverse, random);
                  if (row != nullptr) row->length += random.chance() ? 1U : ~0U;
                  return row != nullptr;
                }));
}

// ---- the reverse exchange

// Of queries, every other place at home is taken (D405) or does not exist (D404). Gradients may
// meet, so there it is the wrong home (D407), and perhaps one that gets nothing (D408).
TEST(Mutation, ARowThatGoesBackToAWrongHome) {
  const auto move = [](Open& open, Rows& rows, Random& random) {
    Sent* row = row_with_tokens(rows, random);
    if (row == nullptr) return false;
    Copy& copy = row->copies[0];
    if (random.chance()) {
      copy.rank = (copy.rank + 1) % open.world_size();
    } else {
      copy.offset += copy.offset > 0 && random.chance() ? ~0U : 1U;
    }
    return true;
  };
  expect_caught({.also = {"D404", "D405"}}, tables([&](Open& open, Random& random) {
                  return move(open, open.q_reverse, random);
                }));
  expect_caught({.also = {"D404", "D407", "D408"}}, tables([&](Open& open, Random& random) {
                  return move(open, open.kv_reverse, random);
                }));
}

// Each place at home still gets a token, but another one: D407.
TEST(Mutation, TwoRowsOfTheWayBackExchanged) {
  expect_caught({.always = "D407"}, tables([](Open& open, Random& random) {
                  auto& rank = any_of(open.q_reverse, random);
                  if (rank.size() < 2) return false;
                  Sent& a = any_of(rank, random);
                  Sent& b = any_of(rank, random);
                  std::swap(a, b);
                  return a != b && a.length > 0 && b.length > 0;
                }));
}

// Of several copies one gradient would stay: D412. They meet at home, where none may: D405.
TEST(Mutation, GradientsPlacedInsteadOfSummed) {
  expect_caught({.always = "D412", .also = {"D405"}}, tables([](Open& open, Random& random) {
                  open.kv_arrival = ArrivalMode::placed;
                  return any_row(open.kv_forward, random, [](const Sent& row) {
                           return row.length > 0 && row.copies.size() > 1;
                         }) != nullptr;
                }));
}

// ---- the attention layout

// More or fewer tokens than arrive: D401.
TEST(Mutation, ATotalOfCuSeqlensOffByOne) {
  expect_caught({.always = "D401"}, tables([](Open& open, Random& random) {
                  auto& rank = any_of(open.items, random);
                  if (rank.empty()) return false;
                  auto& item = any_of(rank, random);
                  auto& length = random.chance() ? item.q_length : item.kv_length;
                  length += length > 0 && random.chance() ? ~0U : 1U;
                  return true;
                }));
}

// As many tokens, but one of them in the neighbour's item: D409.
TEST(Mutation, ABoundOfCuSeqlensOffByOne) {
  expect_caught({.always = "D409"}, tables([](Open& open, Random& random) {
                  auto& rank = any_of(open.items, random);
                  if (rank.size() < 2) return false;
                  auto& a = any_of(rank, random);
                  auto& b = any_of(rank, random);
                  auto& from = random.chance() ? a.q_length : a.kv_length;
                  auto& to = &from == &a.q_length ? b.q_length : b.kv_length;
                  if (&from == &to || from == 0) return false;
                  --from;
                  ++to;
                  return true;
                }));
}

// ---- causality: the tables agree with each other, so all that is left is D409

TEST(Mutation, AKeyOfAnotherDocument) {
  expect_caught({.always = "D409"}, items([](HandMade& made, Random& random) {
                  HandMade::Item* item = any_item(made, random, 1);
                  if (item == nullptr) return false;
                  const HandMade::Item* other = any_item(made, random, 1);
                  const Spot key = random.pick(other->keys);
                  if (std::ranges::find(item->keys, key) != item->keys.end()) return false;
                  any_of(item->keys, random) = key;
                  return true;
                }));
}

TEST(Mutation, AKeyThatComesLaterThanTheLastQuery) {
  expect_caught({.always = "D409"}, items([](HandMade& made, Random& random) {
                  HandMade::Item* item = any_item(made, random, 1);
                  if (item == nullptr) return false;
                  for (const HandMade::Item& other : made.items) {
                    if (other.keys.size() <= item->keys.size()) continue;
                    if (other.keys.front() != item->keys.front()) continue;
                    item->keys.push_back(other.keys[item->keys.size()]);
                    return true;
                  }
                  return false;
                }));
}

TEST(Mutation, TwoKeysExchanged) {
  expect_caught({.always = "D409"}, items([](HandMade& made, Random& random) {
                  HandMade::Item* item = any_item(made, random, 2);
                  if (item == nullptr) return false;
                  std::swap(any_of(item->keys, random), any_of(item->keys, random));
                  return true;
                }));
}

TEST(Mutation, AnItemsKeysShortenedAtTheBeginning) {
  expect_caught({.always = "D409"}, items([](HandMade& made, Random& random) {
                  HandMade::Item* item = any_item(made, random, 2);
                  if (item != nullptr) item->keys.erase(item->keys.begin());
                  return item != nullptr;
                }));
}

TEST(Mutation, AnItemsKeysShortenedAtTheEnd) {
  expect_caught({.always = "D409"}, items([](HandMade& made, Random& random) {
                  HandMade::Item* item = any_item(made, random, 1);
                  if (item == nullptr || item->queries.empty()) return false;
                  item->keys.pop_back();
                  return true;
                }));
}

TEST(Mutation, AnItemsKeysShortenedAnywhere) {
  expect_caught({.always = "D409"}, items([](HandMade& made, Random& random) {
                  HandMade::Item* item = any_item(made, random, 3);
                  if (item == nullptr) return false;
                  item->keys.erase(item->keys.begin() +
                                   random.between(0, static_cast<std::int64_t>(item->keys.size())));
                  return true;
                }));
}

// ---- tensors

DenseMetadata any_dense(Random& random) {
  const QkvDispatch dispatch = compute_qkv_dispatch(any_routing(random));
  return to_dense(random.chance() ? dispatch.q.forward : dispatch.kv.forward);
}

// What is received is not what is sent: D406.
TEST(Mutation, AWrongTotalOfReceivedTokens) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Random random(seed);
    DenseMetadata dense = any_dense(random);
    ASSERT_TRUE(validate(dense).empty()) << "seed " << seed;
    any_of(random.chance() ? dense.num_recv_tokens : present(dense.num_total_recv_tokens),
           random) += random.chance() ? 1 : -1;
    ASSERT_EQ(codes(validate(dense)), Codes{"D406"}) << "seed " << seed;
  }
}

// Padding with a length is D402 in tensors too, and so is padding that is read as rank 0.
TEST(Mutation, PaddingOfTensorsThatIsNotPadding) {
  int caught = 0;
  for (std::uint64_t seed = 0; seed < 4000 && caught < kCaught; ++seed) {
    Random random(seed);
    DenseMetadata dense = any_dense(random);
    const std::size_t cp = at(std::max(dense.max_cp, 1));
    std::vector<std::size_t> padding;
    for (std::size_t row = 0; row < dense.seq_len.size(); ++row) {
      if (dense.dst_rank[row * cp] < 0) padding.push_back(row);
    }
    if (padding.empty()) continue;
    const std::size_t row = random.pick(padding);
    if (random.chance()) {
      dense.seq_len[row] = random.between(1, 10);
    } else {
      dense.dst_rank[row * cp] = 0;
    }
    ASSERT_EQ(codes(validate(dense)), Codes{"D402"}) << "seed " << seed;
    ++caught;
  }
  EXPECT_EQ(caught, kCaught);
}

}  // namespace
}  // namespace shiplap::dispatch
