// Masks, compared with asking every pair of a query and a key.
#include "shiplap/dispatch/mask.h"

#include <gtest/gtest.h>

#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

// ---- What it DOES

TEST(Mask, GivesAnItemTheKeysThatItsQueriesAttendTo) {
  for (const std::string& mask : all_masks()) {
    for (std::uint32_t length = 1; length <= 7; ++length) {
      for (std::uint32_t begin = 0; begin < length; ++begin) {
        for (std::uint32_t end = begin + 1; end <= length; ++end) {
          const Segment item{.begin = begin, .length = end - begin};
          const KeyRange range = parse_mask(mask).keys_of(item, length);
          double pairs = 0;
          for (std::uint32_t key = 0; key < length; ++key) {
            int queries = 0;
            for (std::uint32_t query = begin; query < end; ++query) {
              queries += attends(mask, {.query = query, .key = key, .length = length}) ? 1 : 0;
            }
            EXPECT_EQ(queries > 0, key >= range.begin && key < range.end)
                << mask << ", tokens " << begin << " to " << end << " of " << length;
            pairs += queries;
          }
          EXPECT_EQ(parse_mask(mask).pairs({.queries = end - begin, .keys = range.length()}), pairs)
              << mask << ", tokens " << begin << " to " << end << " of " << length;
        }
      }
    }
  }
}

TEST(Mask, ReadsWhatItWrites) {
  for (const std::string& mask : all_masks()) EXPECT_EQ(to_string(parse_mask(mask)), mask);
  EXPECT_EQ(parse_mask("window:4294967295").tokens(), kMax32);
  EXPECT_EQ(Mask(), parse_mask("causal"));
  EXPECT_NE(parse_mask("window:2"), parse_mask("window:3"));
}

// ---- What it does NOT do

TEST(Mask, DoesNotGuessWhatIsMeant) {
  for (const char* const text : {"", "Causal", "window", "window:", "window:0", "prefix:0",
                                 "window:-1", "window:4k", "prefix:4294967296", "full:3"}) {
    EXPECT_EQ(thrown_codes([&] { (void)parse_mask(text); }), Codes{"D003"}) << text;
  }
}

TEST(Mask, DoesNotGiveKeysToAnItemWithoutQueries) {
  for (const std::string& mask : all_masks()) {
    EXPECT_EQ(parse_mask(mask).keys_of({.begin = 3, .length = 0}, 7).length(), 0U);
    EXPECT_EQ(parse_mask(mask).pairs({.queries = 0, .keys = 0}), 0) << mask;
  }
}

}  // namespace
}  // namespace shiplap::dispatch
