// Masks beside the causal one, and shared keys: random dispatches are sound, wrong keys are found
// exactly where no documents would explain them, and gradients are those of every pair of a query
// and a key.
#include <gtest/gtest.h>

#include <algorithm>

#include "brute_force.h"
#include "shiplap/dispatch/simulate.h"
#include "shiplap/dispatch/traffic.h"
#include "shiplap/dispatch/validate.h"

namespace shiplap::dispatch {
namespace {

std::string mask_of(std::uint64_t seed) {
  const auto masks = all_masks();
  return masks[seed % masks.size()];
}

std::string named(std::uint64_t seed) {
  return "seed " + std::to_string(seed) + ", mask " + mask_of(seed);
}

QkvDispatch any_dispatch(Random& random, const std::string& mask, const Sizes& sizes = {}) {
  return compute_qkv_dispatch(any_routing(random, sizes),
                              {.mask = parse_mask(mask), .shares_keys = random.chance()});
}

TEST(TestMasks, RandomDispatchesAreSound) {
  for (std::uint64_t seed = 0; seed < 30'000; ++seed) {
    Random random(seed);
    const auto found = validate(any_dispatch(random, mask_of(seed), {.ranks = 3, .longest = 6}));
    ASSERT_TRUE(found.empty()) << named(seed) << "\n" << render(found);
  }
}

TEST(TestMasks, LargerDispatchesAreSound) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const auto found = validate(
        any_dispatch(random, mask_of(seed), {.ranks = 20, .documents = 20, .longest = 99}));
    ASSERT_TRUE(found.empty()) << named(seed) << "\n" << render(found);
  }
}

// ---- wrong keys

// One order of all tokens, cut into documents. Are the keys of all items those that the mask asks
// for?
class Arrangement {
 public:
  Arrangement(const std::vector<Spot>& order, const std::vector<bool>& ends) {
    std::int32_t document = 0;
    std::uint32_t position = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      words_[order[i]] = {document, position++};
      lengths_.resize(at(document) + 1);
      lengths_.back() = position;
      spots_[words_[order[i]]] = order[i];
      if (!ends[i]) continue;
      ++document;
      position = 0;
    }
  }

  [[nodiscard]] bool explains(const HandMade& made, const std::string& mask) const {
    return std::ranges::all_of(made.items,
                               [&](const HandMade::Item& item) { return explains(item, mask); });
  }

 private:
  [[nodiscard]] bool explains(const HandMade::Item& item, const std::string& mask) const {
    if (item.queries.empty()) return item.keys.empty();
    const Word first = words_.at(item.queries.front());
    const Segment segment{first.document, first.position,
                          static_cast<std::uint32_t>(item.queries.size())};
    for (std::uint32_t i = 0; i < segment.length; ++i) {
      if (words_.at(item.queries[i]) != Word{first.document, first.position + i}) return false;
    }
    std::vector<Spot> keys;
    for (const Word& word : keys_of(segment, mask, lengths_[first.document])) {
      keys.push_back(spots_.at(word));
    }
    return keys == item.keys;
  }

  std::map<Spot, Word> words_;
  std::map<Word, Spot> spots_;
  std::vector<std::uint32_t> lengths_;
};

bool is_explained(const HandMade& made, const std::string& mask) {
  std::vector<Spot> order;
  for (std::size_t rank = 0; rank < made.home_tokens.size(); ++rank) {
    for (std::uint32_t i = 0; i < made.home_tokens[rank]; ++i) {
      order.push_back({static_cast<std::int32_t>(rank), i});
    }
  }
  do {
    for (std::uint64_t cuts = 0; cuts < std::uint64_t{1} << order.size(); cuts += 2) {
      std::vector<bool> ends;
      for (std::size_t i = 0; i < order.size(); ++i) ends.push_back((cuts >> (i + 1) & 1) != 0);
      if (Arrangement(order, ends).explains(made, mask)) return true;
    }
  } while (std::ranges::next_permutation(order).found);
  return false;
}

void change_keys(HandMade& made, Random& random) {
  HandMade::Item& item =
      made.items[random.between(0, static_cast<std::int64_t>(made.items.size()))];
  if (item.queries.empty()) return;
  auto& keys = item.keys;
  const auto pick = [&] { return random.between(0, static_cast<std::int64_t>(keys.size())); };
  if (keys.empty()) return;
  const auto& other = random.pick(made.items).keys;
  switch (random.between(0, 4)) {
    case 0:
      keys.erase(keys.begin() + pick());
      break;
    case 1:
      std::swap(keys[pick()], keys[pick()]);
      break;
    case 2:
      if (!other.empty()) keys.insert(keys.begin() + pick(), Spot(random.pick(other)));
      break;
    default:
      if (!other.empty()) keys[pick()] = random.pick(other);
  }
}

TEST(TestMasks, WrongKeysAreFoundExactlyIfNoDocumentsExplainThem) {
  int sound = 0;
  int unsound = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random, {.ranks = 2, .documents = 2, .longest = 3});
    HandMade made = made_from(routing, mask_of(seed));
    if (made.items.empty()) continue;
    std::uint32_t tokens = 0;
    for (const std::uint32_t count : made.home_tokens) tokens += count;
    if (tokens > 5) continue;
    const std::int64_t changes = random.between(0, 4);
    for (std::int64_t i = 0; i < changes; ++i) change_keys(made, random);
    const QkvDispatch dispatch = carried_out(made);
    // A key that no item holds is missing in the tables, whatever the mask.
    const bool is_right = is_explained(made, mask_of(seed));
    const auto found = validate(dispatch);
    ASSERT_EQ(found.empty(), is_right) << named(seed) << "\n" << render(found);
    ++(is_right ? sound : unsound);
  }
  EXPECT_GT(sound, 1000);
  EXPECT_GT(unsound, 500);
}

// ---- gradients

float gradient(const Word& query, const Word& key) {
  return static_cast<float>((7 * query.position + 3 * key.position + 5 * at(key.document)) % 11 +
                            1);
}

// Every item adds a term for each of its pairs to its keys, which may be those of other items too.
// Small whole numbers, so that sums are exact.
TEST(TestMasks, GradientsAreTheSumsOverAllPairs) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random, {.ranks = 3, .documents = 3, .longest = 9});
    const std::string mask = mask_of(seed);
    const QkvDispatch dispatch =
        compute_qkv_dispatch(routing, {.mask = parse_mask(mask), .shares_keys = random.chance()});
    const auto lengths = document_lengths(routing.attention);
    Buffers<float> gradients;
    for (int rank = 0; rank < dispatch.world_size(); ++rank) {
      gradients.emplace_back(dispatch.kv.reverse.num_send_tokens(rank));
      const auto items = routing.attention.of(rank);
      for (std::size_t i = 0; i < items.size(); ++i) {
        const KeyRange range = dispatch.attention.keys(rank, static_cast<int>(i));
        const auto keys = keys_of(items[i], mask, lengths.at(items[i].document));
        for (std::uint32_t q = 0; q < items[i].length; ++q) {
          const Word query{items[i].document, items[i].begin + q};
          for (std::size_t k = 0; k < keys.size(); ++k) {
            if (attends(mask, {.query = query.position,
                               .key = keys[k].position,
                               .length = lengths.at(query.document)})) {
              gradients.back()[range.begin + k] += gradient(query, keys[k]);
            }
          }
        }
      }
    }
    Buffers<float> home;
    Buffers<float> expected;
    const Text words = words_of(routing.home);
    for (const auto& rank : words) {
      home.emplace_back(rank.size());
      expected.emplace_back();
      for (const Word& key : rank) {
        const std::uint32_t length = lengths.at(key.document);
        float sum = 0;
        for (std::uint32_t q = 0; q < length; ++q) {
          if (attends(mask, {.query = q, .key = key.position, .length = length})) {
            sum += gradient({key.document, q}, key);
          }
        }
        expected.back().push_back(sum);
      }
    }
    sum_simulate(gradients, home, dispatch.kv.reverse, 1);
    ASSERT_EQ(home, expected) << named(seed);
  }
}

// ---- traffic

TEST(TestMasks, SharedKeysAreNeverMoreThanSeparateOnes) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random);
    const Mask mask = parse_mask(mask_of(seed));
    const auto tokens = [&](bool shares_keys) {
      const MetadataPair kv =
          compute_metadata_kv(routing, {.mask = mask, .shares_keys = shares_keys});
      return summarize(flows(kv.forward), 1).tokens;
    };
    ASSERT_LE(tokens(true), tokens(false)) << named(seed);
  }
}

}  // namespace
}  // namespace shiplap::dispatch
