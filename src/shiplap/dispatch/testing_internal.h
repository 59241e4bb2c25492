// Shared by the tests of this module: tables, random routings, and buffers token by token.
//
// Nothing here knows how the module computes anything: a buffer is written out word by word, and
// what should be in it is looked up.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/base/random.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/layout.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

inline constexpr std::uint32_t kMax32 = 0xffffffff;

// ---- errors

// The set of error codes, without the notes "and 3 more of this code".
inline std::set<std::string> codes(const std::vector<Diagnostic>& found) {
  std::set<std::string> codes;
  for (const Diagnostic& one : found) {
    if (one.severity == Severity::error) codes.insert(one.code);
  }
  return codes;
}

// Returns the diagnostics of the InputError that `act` throws. Fails the test if it does not throw.
template <class Act>
std::vector<Diagnostic> thrown_diagnostics(const Act& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.diagnostics();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

template <class Act>
std::set<std::string> thrown_codes(const Act& act) {
  return codes(thrown_diagnostics(act));
}

using Codes = std::set<std::string>;

// What must be there.
template <class Optional>
auto& present(Optional& value) {
  if (!value.has_value()) throw InternalError("an optional field is filled in");
  return *value;
}

// ---- tables

struct Sent {
  std::uint32_t length = 0;
  std::vector<Copy> copies;
  friend bool operator==(const Sent&, const Sent&) = default;
};
using Rows = std::vector<std::vector<Sent>>;  // by rank

// As many ranks as `rows` has.
inline Metadata build(const Rows& rows, int max_cp = 0, ArrivalMode arrival = ArrivalMode::placed) {
  Metadata::Builder builder(
      {.world_size = static_cast<int>(rows.size()), .max_cp = max_cp, .arrival = arrival});
  for (const std::vector<Sent>& rank : rows) {
    for (const Sent& row : rank) builder.add_row(row.length, row.copies);
    builder.end_rank();
  }
  return builder.take();
}

inline Rows rows_of(const Metadata& metadata) {
  Rows rows(at(metadata.world_size()));
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(rank); ++i) {
      const Metadata::Row row = metadata.row(rank, i);
      rows[rank].push_back({row.length, {row.copies.begin(), row.copies.end()}});
    }
  }
  return rows;
}

// A token of a buffer.
struct Spot {
  std::int32_t rank = 0;
  std::uint64_t offset = 0;
  friend auto operator<=>(const Spot&, const Spot&) = default;
};

// Where each token of the sending buffers goes: by rank, token and copy.
inline std::vector<std::vector<std::vector<Spot>>> destinations(const Metadata& metadata) {
  std::vector<std::vector<std::vector<Spot>>> all(at(metadata.world_size()));
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(rank); ++i) {
      const Metadata::Row row = metadata.row(rank, i);
      EXPECT_EQ(row.begin, all[rank].size()) << "rank " << rank << ", row " << i;
      for (std::uint32_t token = 0; token < row.length; ++token) {
        std::vector<Spot> spots;
        for (const Copy& copy : row.copies) {
          if (copy.rank >= 0) spots.push_back({copy.rank, std::uint64_t{copy.offset} + token});
        }
        all[rank].push_back(spots);
      }
    }
    EXPECT_EQ(metadata.num_send_tokens(rank), all[rank].size());
  }
  return all;
}

// What arrives at each place, by sender.
inline std::map<Spot, std::vector<Spot>> sources(const Metadata& metadata) {
  std::map<Spot, std::vector<Spot>> sources;
  const auto sent = destinations(metadata);
  for (std::size_t rank = 0; rank < sent.size(); ++rank) {
    for (std::size_t token = 0; token < sent[rank].size(); ++token) {
      for (const Spot& to : sent[rank][token]) {
        sources[to].push_back({static_cast<std::int32_t>(rank), token});
      }
    }
  }
  return sources;
}

inline std::vector<std::vector<std::uint32_t>> lengths_of(const Metadata& metadata) {
  std::vector<std::vector<std::uint32_t>> lengths;
  for (const auto& rank : rows_of(metadata)) {
    lengths.emplace_back();
    for (const Sent& row : rank) lengths.back().push_back(row.length);
  }
  return lengths;
}

// ---- buffers, word by word

// A token by what it is, wherever it lies.
struct Word {
  std::int32_t document = 0;
  std::uint32_t position = 0;
  friend auto operator<=>(const Word&, const Word&) = default;
};
using Text = std::vector<std::vector<Word>>;  // by rank

inline Text words_of(const Layout& layout) {
  Text text(at(layout.world_size()));
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    for (const Segment& segment : layout.of(rank)) {
      for (std::uint32_t i = 0; i < segment.length; ++i) {
        text[rank].push_back({segment.document, segment.begin + i});
      }
    }
  }
  return text;
}

// ---- masks, asked for every pair of a query and a key

inline std::vector<std::string> all_masks() {
  return {"causal",   "full",     "window:1", "window:2", "window:3",
          "window:5", "prefix:1", "prefix:2", "prefix:4", "prefix:9"};
}

struct QueryAndKey {
  std::uint32_t query = 0;
  std::uint32_t key = 0;
  std::uint32_t length = 0;  // of the document
};
inline bool attends(const std::string& mask, const QueryAndKey& pair) {
  if (pair.key >= pair.length) return false;
  if (mask == "full") return true;
  const auto number = static_cast<std::uint32_t>(std::stoul("0" + mask.substr(mask.find(':') + 1)));
  if (mask.starts_with("prefix:") && pair.key < number) return true;
  if (pair.key > pair.query) return false;
  return !mask.starts_with("window:") || pair.query - pair.key < number;
}

// What an item must see: every key that one of its queries attends to, in order.
inline std::vector<Word> keys_of(const Segment& item, const std::string& mask = "causal",
                                 std::uint32_t length = kMax32) {
  std::vector<Word> keys;
  const std::uint32_t end = length == kMax32 ? item.begin + item.length : length;
  for (std::uint32_t key = 0; key < end; ++key) {
    for (std::uint32_t i = 0; i < item.length; ++i) {
      if (!attends(mask, {.query = item.begin + i, .key = key, .length = length})) continue;
      keys.push_back({item.document, key});
      break;
    }
  }
  return keys;
}

// The length of each document.
inline std::map<std::int32_t, std::uint32_t> document_lengths(const Layout& layout) {
  std::map<std::int32_t, std::uint32_t> lengths;
  for (const Segment& segment : layout.all()) {
    std::uint32_t& length = lengths[segment.document];
    length = std::max(length, segment.begin + segment.length);
  }
  return lengths;
}

inline Text keys_of(const Layout& attention, const std::string& mask = "causal") {
  const auto lengths = document_lengths(attention);
  Text text(at(attention.world_size()));
  for (int rank = 0; rank < attention.world_size(); ++rank) {
    for (const Segment& item : attention.of(rank)) {
      for (const Word& word : keys_of(item, mask, lengths.at(item.document))) {
        text[rank].push_back(word);
      }
    }
  }
  return text;
}

inline std::map<Word, std::vector<Spot>> spots_of(const Text& text) {
  std::map<Word, std::vector<Spot>> spots;
  for (std::size_t rank = 0; rank < text.size(); ++rank) {
    for (std::size_t i = 0; i < text[rank].size(); ++i) {
      spots[text[rank][i]].push_back({static_cast<std::int32_t>(rank), i});
    }
  }
  return spots;
}

// ---- routings

struct Sizes {
  int ranks = 4;
  int documents = 4;
  std::int64_t longest = 7;
};

// Cuts a document anywhere, adds placeholders, and gives every piece to some rank.
inline void scatter(Random& random, Segment document, std::vector<std::vector<Segment>>& by_rank) {
  const auto give = [&](std::uint32_t begin, std::uint32_t length) {
    by_rank[random.between(0, static_cast<std::int64_t>(by_rank.size()))].push_back(
        {document.document, begin, length});
  };
  const bool whole = random.chance(0.3);
  std::uint32_t begin = 0;
  do {
    const std::uint32_t rest = document.length - begin;
    const bool all = whole || rest == 0;
    const auto length =
        all ? rest : static_cast<std::uint32_t>(random.between(1, std::int64_t{rest} + 1));
    give(begin, length);
    begin += length;
  } while (begin < document.length);
  if (random.chance(0.2)) {
    give(static_cast<std::uint32_t>(random.between(0, std::int64_t{document.length} + 1)), 0);
  }
}

// Documents of any length from 0 on, with any numbers, in any order, cut anywhere on either side.
inline Routing any_routing(Random& random, const Sizes& sizes = {}) {
  const auto world = at(random.between(1, sizes.ranks + 1));
  std::vector<std::vector<Segment>> home(world);
  std::vector<std::vector<Segment>> attention(world);
  std::vector<std::int32_t> numbers(at(2 * sizes.documents));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i);
  random.shuffle(numbers);
  numbers.resize(at(random.between(0, sizes.documents + 1)));
  for (const std::int32_t number : numbers) {
    const auto length = static_cast<std::uint32_t>(random.between(0, sizes.longest + 1));
    scatter(random, {.document = number, .length = length}, home);
    scatter(random, {.document = number, .length = length}, attention);
  }
  for (auto& rank : home) random.shuffle(rank);
  for (auto& rank : attention) random.shuffle(rank);
  return {.home = Layout(home), .attention = Layout(attention)};
}

}  // namespace shiplap::dispatch
