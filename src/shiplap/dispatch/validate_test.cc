// Each code with the smallest table that has it, and where the diagnostic points.
#include "shiplap/dispatch/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/dispatch/dense.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using ByRank = std::vector<std::vector<Segment>>;

// Exactly one finding.
void expect_one(const std::vector<Diagnostic>& found, const std::string& code, std::int64_t rank,
                const std::string& operation) {
  ASSERT_EQ(found.size(), 1U) << render(found);
  EXPECT_EQ(found[0].code, code) << render(found);
  EXPECT_EQ(found[0].where.rank, rank) << render(found);
  EXPECT_EQ(found[0].where.operation, operation) << render(found);
  EXPECT_EQ(found[0].severity, Severity::error);
}

// ---- one table: What it DOES

TEST(ValidateTable, AcceptsASoundOne) {
  EXPECT_TRUE(validate(build({{{2, {{1, 0}}}, {1, {{0, 0}}}}, {{3, {{1, 2}}}}})).empty());
  EXPECT_TRUE(validate(build({{{0, {{-1, 0}}}, {0, {{0, 3}}}}})).empty());
  EXPECT_TRUE(validate(Metadata()).empty());
}

TEST(ValidateTable, FindsTokensThatGoNowhere) {
  expect_one(validate(build({{}, {{0, {{-1, 0}}}, {3, {{-1, 0}}}}})), "D402", 1,
             "metadata dst_rank, sequence 1");
  expect_one(validate(build({{{3, {{-1, 0}, {-1, 0}}}}}, 2)), "D402", 0,
             "metadata dst_rank, sequence 0");
}

TEST(ValidateTable, FindsRanksThatDoNotExist) {
  expect_one(validate(build({{{1, {{0, 0}}}, {1, {{2, 0}}}}, {}})), "D403", 0,
             "metadata dst_rank, sequence 1");
  expect_one(validate(build({{}, {{1, {{-2, 0}}}}})), "D403", 1, "metadata dst_rank, sequence 0");
  expect_one(validate(build({{{0, {{7, 0}}}}})), "D403", 0, "metadata dst_rank, sequence 0");
}

TEST(ValidateTable, FindsPlacesOutsideTheBuffer) {
  const Metadata metadata = build({{{2, {{1, 3}}}}, {{2, {{0, 0}}}}});
  EXPECT_TRUE(validate(metadata, {.buffer_tokens = {2, 5}}).empty());
  expect_one(validate(metadata, {.table = "q_forward", .buffer_tokens = {2, 4}}), "D404", 0,
             "q_forward dst_offset, sequence 0");
  expect_one(validate(metadata, {.buffer_tokens = {1, 5}}), "D404", 1,
             "metadata dst_offset, sequence 0");
}

TEST(ValidateTable, FindsTwoPiecesInOnePlace) {
  expect_one(validate(build({{{3, {{0, 0}}}}, {{0, {{0, 0}}}, {2, {{0, 2}}}}})), "D405", 1,
             "metadata dst_offset, sequence 1");
  // One token inside another piece, whichever comes first.
  EXPECT_EQ(codes(validate(build({{{1, {{0, 2}}}, {5, {{0, 0}}}}}))), Codes{"D405"});
  EXPECT_EQ(codes(validate(build({{{5, {{0, 0}}}, {1, {{0, 2}}}}}))), Codes{"D405"});
  // A short piece in between does not hide the long one.
  EXPECT_EQ(validate(build({{{9, {{0, 0}}}, {1, {{0, 2}}}, {1, {{0, 7}}}}})).size(), 2U);
  // Copies of one row.
  EXPECT_EQ(codes(validate(build({{{2, {{0, 0}, {0, 1}}}}}, 2))), Codes{"D405"});
}

TEST(ValidateTable, LetsGradientsOfDifferentRowsMeet) {
  EXPECT_TRUE(
      validate(build({{{2, {{0, 0}}}, {2, {{0, 1}}}}, {{3, {{0, 0}}}}}, 0, ArrivalMode::summed))
          .empty());
  expect_one(validate(build({{{2, {{0, 0}, {0, 1}}}}}, 2, ArrivalMode::summed)), "D405", 0,
             "metadata dst_offset, sequence 0");
}

TEST(ValidateTable, FindsGradientsOfOneRowThatMeetBehindALongerOne) {
  // Rank 1 covers tokens 0 to 10; the two copies of rank 0's row still meet at token 1.
  expect_one(validate(build({{{2, {{0, 0}, {0, 1}}}}, {{10, {{0, 0}}}}}, 2, ArrivalMode::summed)),
             "D405", 0, "metadata dst_offset, sequence 0");
}

TEST(ValidateTable, FindsRanksBelowMinusOneAtTheEndOfARow) {
  expect_one(validate(build({{{1, {{0, 0}, {-2, 0}}}}}, 2)), "D403", 0,
             "metadata dst_rank, sequence 0");
}

TEST(ValidateTable, FindsPlacesBeyondThirtyTwoBits) {
  EXPECT_TRUE(validate(build({{{1, {{0, kMax32 - 1}}}}})).empty());
  expect_one(validate(build({{{1, {{0, kMax32}}}}})), "D410", 0, "metadata dst_offset, sequence 0");
}

TEST(ValidateTable, RefusesTheWrongNumberOfBuffers) {
  EXPECT_EQ(codes(validate(build({{}, {}}), {.buffer_tokens = {1}})), Codes{"D401"});
}

TEST(ValidateTable, CountsWhatItDoesNotList) {
  Rows rows(1);
  for (int i = 0; i < 10; ++i) rows[0].push_back({1, {{5, 0}}});
  const auto found = validate(build(rows), {.max_per_code = 3});
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[3].severity, Severity::note);
  EXPECT_EQ(found[3].what, "and 7 more of this code");
}

// Both its 128-token pieces of ranks 0 and 1 go to rank 1, token 0.
TEST(ValidateTable, FindsThatTheFirstDescriptionsExampleOverlaps) {
  const Metadata example = to_sparse({.world_size = 2,
                                      .max_seqs = 3,
                                      .dst_rank = {1, 0, -1, 0, 1, 0},
                                      .dst_offset = {0, 128, 0, 0, 0, 256},
                                      .seq_len = {128, 64, 0, 96, 128, 32},
                                      .num_recv_tokens = {64, 128, 192, 128, 128, 256}});
  const auto found = validate(example);
  expect_one(found, "D405", 1, "metadata dst_offset, sequence 1");
  EXPECT_EQ(found[0].what, "tokens 0 to 128 of rank 1 overlap with sequence 0 of rank 0");
}

// ---- one table: What it does NOT do

TEST(ValidateTable, DoesNotMindHoles) {
  EXPECT_TRUE(validate(build({{{2, {{0, 3}}}, {2, {{0, 100}}}}})).empty());
}

TEST(ValidateTable, DoesNotCheckBuffersThatItDoesNotKnow) {
  EXPECT_TRUE(validate(build({{{2, {{0, 1'000'000}}}}})).empty());
}

// ---- two tables

const Rows kThere{{{2, {{1, 0}}}, {1, {{0, 0}}}}, {{1, {{1, 2}}}}};
const Rows kBack{{{1, {{0, 2}}}}, {{2, {{0, 0}}}, {1, {{1, 0}}}}};

std::vector<Diagnostic> queries(const Rows& there, const Rows& back) {
  return validate_queries({build(there), build(back)}, {.table = "q"});
}

TEST(ValidateQueries, AcceptsAPairThatLeadsBack) {
  EXPECT_TRUE(queries(kThere, kBack).empty());
  // Rows may be cut differently in the reverse exchange.
  EXPECT_TRUE(
      queries(kThere, {{{1, {{0, 2}}}}, {{1, {{0, 0}}}, {1, {{0, 1}}}, {1, {{1, 0}}}}}).empty());
  EXPECT_TRUE(queries({{{1, {{0, 0}}}, {1, {{0, 1}}}}}, {{{2, {{0, 0}}}}}).empty());
}

TEST(ValidateQueries, FindsTokensThatComeBackElsewhere) {
  // Both of a length, so that only the identity is broken.
  const auto found = queries({{{1, {{0, 0}}}, {1, {{0, 1}}}}}, {{{1, {{0, 1}}}, {1, {{0, 0}}}}});
  ASSERT_EQ(codes(found), Codes{"D407"});
  EXPECT_EQ(found[0].where.rank, 0);
  EXPECT_EQ(found[0].where.operation, "q_reverse dst_rank, sequence 0");
}

TEST(ValidateQueries, FindsHolesAndMissingWaysBack) {
  // A hole before token 1.
  expect_one(queries({{{1, {{0, 1}}}}}, {{{1, {{0, 0}}}}}), "D408", 0, "q_forward dst_offset");
  // Nothing brings token 1 back.
  const auto found = queries({{{2, {{0, 0}}}}}, {{{1, {{0, 0}}}}});
  ASSERT_EQ(codes(found), Codes{"D408"});
  EXPECT_EQ(found[0].where.rank, 0);
  EXPECT_EQ(found[0].where.operation, "q_reverse seq_len");
}

TEST(ValidateQueries, FindsAHoleAtTheEnd) {
  // Rank 1 returns a token that no rank sent there, to the same home, where they overlap.
  EXPECT_EQ(codes(queries({{{1, {{0, 0}}}}, {}}, {{{1, {{0, 0}}}}, {{1, {{0, 0}}}}})),
            Codes{"D405"});
}

TEST(ValidateQueries, FindsWhatIsWrongInEitherTable) {
  Rows wrong = kThere;
  wrong[1][0].copies[0].rank = 2;
  expect_one(queries(wrong, kBack), "D403", 1, "q_forward dst_rank, sequence 0");
  wrong = kBack;
  wrong[1][1].copies[0].rank = -1;
  expect_one(queries(kThere, wrong), "D402", 1, "q_reverse dst_rank, sequence 1");
  wrong = kBack;
  wrong[1][1].copies[0].offset = 1;  // rank 1 has one token at home
  expect_one(queries(kThere, wrong), "D404", 1, "q_reverse dst_offset, sequence 1");
}

TEST(ValidateQueries, ChecksBuffersOnTheWayThere) {
  const MetadataPair pair{build(kThere), build(kBack)};
  EXPECT_TRUE(validate_queries(pair, {.buffer_tokens = {1, 3}}).empty());
  expect_one(validate_queries(pair, {.table = "q", .buffer_tokens = {1, 2}}), "D404", 1,
             "q_forward dst_offset, sequence 0");
}

TEST(ValidateQueries, FindsDifferentNumbersOfRanks) {
  EXPECT_EQ(codes(validate_queries({build({{}}), build({{}, {}})})), Codes{"D401"});
}

TEST(ValidateQueries, FindsATokenThatComesBackTwice) {
  // Two copies and a sum give twice the token, not the token.
  const MetadataPair twice{build({{{1, {{0, 0}, {0, 1}}}}}, 2),
                           build({{{1, {{0, 0}}}, {1, {{0, 0}}}}}, 0, ArrivalMode::summed)};
  EXPECT_FALSE(validate_queries(twice).empty());
}

TEST(ValidateQueries, RefusesAWayThatSums) {
  const Metadata placed = build({{{1, {{0, 0}}}}});
  const Metadata summed = build({{{1, {{0, 0}}}}}, 0, ArrivalMode::summed);
  EXPECT_EQ(codes(validate_queries({placed, summed})), Codes{"D412"});
  EXPECT_EQ(codes(validate_queries({summed, placed})), Codes{"D412"});
  EXPECT_EQ(codes(validate_keys({summed, summed})), Codes{"D412"});
}

// Every copy could meet every other: finding it must not take the square of their number.
TEST(ValidateTable, IsQuickWithThousandsOfCopies) {
  constexpr int kCopies = 20000;
  Metadata::Builder builder({.world_size = 1, .max_cp = kCopies, .arrival = ArrivalMode::summed});
  builder.add_row(1, std::vector<Copy>(kCopies, Copy{.rank = 0, .offset = 0}));
  builder.end_rank();
  EXPECT_EQ(codes(validate(builder.take())), Codes{"D405"});
}

TEST(ValidateKeys, RefusesMoreArrivalsThanThirtyTwoBitsCount) {
  // Three ranks whose only keys, 2^31 tokens, all have a copy on each: the sums at home are fine,
  // what arrives for them is too much.
  const std::uint32_t half = std::uint32_t{1} << 31;
  const MetadataPair pair{
      build({{{half, {{0, 0}, {1, 0}, {2, 0}}}}, {}, {}}, 3),
      build({{{half, {{0, 0}}}}, {{half, {{0, 0}}}}, {{half, {{0, 0}}}}}, 0, ArrivalMode::summed)};
  EXPECT_EQ(codes(validate_keys(pair)), Codes{"D410"});
}

TEST(ValidateKeys, AcceptsCopiesThatAreSummedAtHome) {
  EXPECT_TRUE(validate_keys({build({{{1, {{0, 0}, {1, 0}}}}, {}}, 2),
                             build({{{1, {{0, 0}}}}, {{1, {{0, 0}}}}}, 0, ArrivalMode::summed)})
                  .empty());
}

TEST(ValidateKeys, FindsGradientsThatArePlaced) {
  const auto found = validate_keys({build({{{1, {{0, 0}}}, {1, {{0, 1}, {1, 0}}}}, {}}, 2),
                                    build({{{2, {{0, 0}}}}, {{1, {{0, 1}}}}})},
                                   {.table = "kv"});
  ASSERT_TRUE(codes(found).contains("D412")) << render(found);
  EXPECT_EQ(found[0].code, "D412");
  EXPECT_EQ(found[0].where.rank, 0);
  EXPECT_EQ(found[0].where.operation, "kv_reverse arrival, sequence 1");
}

TEST(ValidateKeys, FindsACopyThatGoesHomeTwice) {
  const auto found =
      validate_keys({build({{{1, {{0, 0}}}, {1, {{0, 1}}}}}, 1),
                     build({{{1, {{0, 0}, {0, 1}}}, {1, {{0, 1}}}}}, 2, ArrivalMode::summed)},
                    {.table = "kv"});
  ASSERT_EQ(codes(found), Codes{"D407"}) << render(found);
  EXPECT_EQ(found[0].where.operation, "kv_reverse dst_rank, sequence 0");
}

// ---- a whole dispatch

QkvDispatch small() {
  // One document of four tokens in two items.
  return compute_qkv_dispatch({.home = Layout(ByRank{{{0, 0, 4}}, {}}),
                               .attention = Layout(ByRank{{{0, 0, 2}}, {{0, 2, 2}}})});
}

TEST(ValidateDispatch, AcceptsASoundOne) {
  EXPECT_TRUE(validate(small()).empty());
  EXPECT_TRUE(validate(small(), {.buffer_tokens = {2, 2}, .kv_buffer_tokens = {2, 4}}).empty());
}

TEST(ValidateDispatch, ChecksBothKindsOfBuffers) {
  expect_one(validate(small(), {.buffer_tokens = {2, 1}}), "D404", 0,
             "q_forward dst_offset, sequence 1");
  expect_one(validate(small(), {.kv_buffer_tokens = {2, 3}}), "D404", 0,
             "kv_forward dst_offset, sequence 1");
}

TEST(ValidateDispatch, FindsALayoutThatDoesNotMatch) {
  QkvDispatch dispatch = small();
  dispatch.attention = AttentionLayout({{{2, 2}}, {{1, 4}}});
  auto found = validate(dispatch);
  ASSERT_EQ(codes(found), Codes{"D401"});
  EXPECT_EQ(found[0].where.rank, 1);
  dispatch.attention = AttentionLayout({{{2, 2}}, {{2, 3}}});
  EXPECT_EQ(codes(validate(dispatch)), Codes{"D401"});
  dispatch.attention = AttentionLayout({{{2, 2}}});
  EXPECT_EQ(codes(validate(dispatch)), Codes{"D401"});
}

TEST(ValidateDispatch, FindsQueriesAndKeysOfDifferentTokens) {
  QkvDispatch dispatch = small();
  dispatch.q = {build({{}, {}}), build({{}, {}})};
  EXPECT_TRUE(codes(validate(dispatch)).contains("D401"));
}

TEST(ValidateDispatch, FindsFewerKeysThanQueries) {
  QkvDispatch dispatch =
      compute_qkv_dispatch({.home = Layout(ByRank{{{0, 0, 2}, {1, 0, 2}}}),
                            .attention = Layout(ByRank{{{0, 0, 2}, {1, 0, 2}}})});
  dispatch.attention = AttentionLayout({{{2, 1}, {2, 3}}});
  expect_one(validate(dispatch), "D409", 0, "attention cu_seqlens_kv, item 0");
}

TEST(ValidateDispatch, FindsKeysInTheWrongOrder) {
  // The second item gets tokens 1, 0, 2, 3.
  QkvDispatch dispatch =
      compute_qkv_dispatch({.home = Layout(ByRank{{{0, 0, 1}, {0, 1, 1}, {0, 2, 2}}, {}}),
                            .attention = Layout(ByRank{{{0, 0, 2}}, {{0, 2, 2}}})});
  dispatch.kv = {build({{{1, {{0, 0}, {1, 1}}}, {1, {{0, 1}, {1, 0}}}, {2, {{1, 2}}}}, {}}, 2),
                 build({{{2, {{0, 0}}}}, {{1, {{0, 1}}}, {1, {{0, 0}}}, {2, {{0, 2}}}}}, 0,
                       ArrivalMode::summed)};
  const auto found = validate(dispatch);
  ASSERT_EQ(codes(found), Codes{"D409"}) << render(found);
  EXPECT_EQ(found[0].where.rank, 0);
  EXPECT_EQ(found[0].where.operation, "kv_forward dst_offset, sequence 1");
}

TEST(ValidateDispatch, FindsAKeyThatIsLeftOutInTheMiddle) {
  // Items of tokens 0, 1 and 2; the last one sees 0 and 2 only. All tables agree with that.
  QkvDispatch dispatch;
  dispatch.q = {build({{{3, {{0, 0}}}}}), build({{{3, {{0, 0}}}}})};
  dispatch.kv = {build({{{1, {{0, 0}, {0, 1}, {0, 3}}}, {1, {{0, 2}}}, {1, {{0, 4}}}}}, 3),
                 build({{{1, {{0, 0}}}, {2, {{0, 0}}}, {1, {{0, 0}}}, {1, {{0, 2}}}}}, 0,
                       ArrivalMode::summed)};
  dispatch.attention = AttentionLayout({{{1, 1}, {1, 2}, {1, 2}}});
  EXPECT_EQ(codes(validate(dispatch)), Codes{"D409"});
}

// ---- a whole dispatch: What it does NOT do

TEST(ValidateDispatch, DoesNotAskForBalance) {
  const Layout all_on_one(ByRank{{{0, 0, 4}}, {}});
  EXPECT_TRUE(
      validate(compute_qkv_dispatch({.home = all_on_one, .attention = all_on_one})).empty());
}

}  // namespace
}  // namespace shiplap::dispatch
