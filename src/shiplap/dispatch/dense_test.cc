// The padded tensors: there and back, and every way in which they can contradict themselves.
#include "shiplap/dispatch/dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <type_traits>

#include "shiplap/dispatch/indices.h"
#include "shiplap/dispatch/simulate.h"
#include "shiplap/dispatch/testing_internal.h"
#include "shiplap/dispatch/traffic.h"

namespace shiplap::dispatch {
namespace {

using Numbers = std::vector<std::int64_t>;

// The first description's example with two dimensions: 2 ranks, at most 3 sequences each.
DenseMetadata queries_of_the_description() {
  return {.world_size = 2,
          .max_seqs = 3,
          .dst_rank = {1, 0, -1, 0, 1, 0},
          .dst_offset = {0, 128, 0, 0, 0, 256},
          .seq_len = {128, 64, 0, 96, 128, 32},
          // To rank 0: 64 from rank 0, 96 and 32 from rank 1. To rank 1: 128 from each.
          .num_recv_tokens = {64, 128, 192, 128, 128, 256}};
}

// Its example with copies gives the ranks only; lengths are those from above.
DenseMetadata keys_of_the_description() {
  return {.world_size = 2,
          .max_seqs = 3,
          .max_cp = 2,
          .dst_rank = {1, 0, 0, -1, -1, -1, 0, 1, 1, 0, 0, -1},
          .dst_offset = {0, 0, 128, 0, 0, 0, 192, 128, 224, 288, 416, 0},
          .seq_len = {128, 64, 0, 96, 128, 32},
          .num_recv_tokens = {192, 256, 448, 128, 224, 352},
          .seq_recv_mask = {{1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0}},
          .num_seqs = {{2, 3}}};
}

Codes found_in(const DenseMetadata& dense) {
  const Codes found = codes(validate(dense));
  if (!found.empty()) {
    EXPECT_EQ(thrown_codes([&] { (void)to_sparse(dense); }), found);
  }
  return found;
}

// ---- What it DOES

TEST(ToSparse, ReadsTheDescriptionsExampleOfQueries) {
  const Metadata metadata = to_sparse(queries_of_the_description());
  EXPECT_EQ(rows_of(metadata), (Rows{{{128, {{1, 0}}}, {64, {{0, 128}}}},
                                     {{96, {{0, 0}}}, {128, {{1, 0}}}, {32, {{0, 256}}}}}));
  EXPECT_EQ(metadata.num_seqs(0), 2U);  // the third is padding
  EXPECT_EQ(metadata.max_cp(), 0);
}

TEST(ToSparse, ReadsTheDescriptionsExampleOfKeys) {
  const Metadata metadata = to_sparse(keys_of_the_description());
  EXPECT_EQ(rows_of(metadata),
            (Rows{{{128, {{1, 0}, {0, 0}}}, {64, {{0, 128}}}},
                  {{96, {{0, 192}, {1, 128}}}, {128, {{1, 224}, {0, 288}}}, {32, {{0, 416}}}}}));
  EXPECT_EQ(metadata.max_cp(), 2);
}

// The value of any function of a table is that of its tensors, of either type.
TEST(Dense, IsTakenByFunctionsOfTables) {
  const DenseMetadata dense = keys_of_the_description();
  const Metadata sparse = to_sparse(dense);
  EXPECT_EQ(flows(dense), flows(sparse));
  EXPECT_EQ(flows(normalize_dtype(dense)), flows(sparse));
  Buffers<std::byte> input{Buffers<std::byte>::value_type(192),
                           Buffers<std::byte>::value_type(256)};
  for (std::size_t k = 0; k < 192; ++k) input[0][k] = static_cast<std::byte>(k);
  Buffers<std::byte> expected{Buffers<std::byte>::value_type(448),
                              Buffers<std::byte>::value_type(352)};
  Buffers<std::byte> found = expected;
  orchestrate_simulate(input, expected, sparse, 1);
  orchestrate_simulate(input, found, dense, 1);
  EXPECT_EQ(found, expected);
  Buffers<float> sums{std::vector<float>(448), std::vector<float>(352)};
  Buffers<float> dense_sums = sums;
  const Buffers<float> ones{std::vector<float>(192, 1), std::vector<float>(256, 1)};
  sum_simulate(ones, sums, sparse, 1);
  sum_simulate(ones, dense_sums, normalize_dtype(dense), 1);
  EXPECT_EQ(dense_sums, sums);
  EXPECT_EQ(exchange_indices(dense, 1), exchange_indices(sparse, 1));
}

TEST(Dense, ThatContradictsItselfIsRefusedByFunctionsOfTables) {
  DenseMetadata wrong = queries_of_the_description();
  wrong.dst_rank[0] = 2;
  EXPECT_EQ(thrown_codes([&] { (void)flows(wrong); }), Codes{"D403"});
  EXPECT_EQ(thrown_codes([&] { (void)exchange_indices(wrong, 0); }), Codes{"D403"});
}

TEST(ToDense, GivesTheDescriptionsTensorsBack) {
  const DenseMetadata q = queries_of_the_description();
  const DenseMetadata q_again = to_dense(to_sparse(q));
  EXPECT_EQ(q_again.dst_rank, q.dst_rank);
  EXPECT_EQ(q_again.dst_offset, q.dst_offset);
  EXPECT_EQ(q_again.seq_len, q.seq_len);
  EXPECT_EQ(q_again.num_recv_tokens, q.num_recv_tokens);
  EXPECT_EQ(q_again.num_seqs, (Numbers{2, 3}));
  EXPECT_EQ(q_again.num_total_recv_tokens, (Numbers{192, 256}));
  EXPECT_FALSE(q_again.seq_recv_mask);

  const DenseMetadata kv = keys_of_the_description();
  const DenseMetadata kv_again = to_dense(to_sparse(kv));
  EXPECT_EQ(kv_again.dst_rank, kv.dst_rank);
  EXPECT_EQ(kv_again.dst_offset, kv.dst_offset);
  EXPECT_EQ(kv_again.seq_recv_mask, kv.seq_recv_mask);
  EXPECT_EQ(kv_again.num_recv_tokens, kv.num_recv_tokens);
  // Rank 0 receives at 0, 128, 192, 288, 416; rank 1 at 0, 128, 224.
  EXPECT_EQ(kv_again.recv_seq_lens, (Numbers{128, 64, 96, 128, 32, 128, 96, 128, 0, 0}));
}

TEST(ToDense, PadsWithRankMinusOneOffsetZeroAndLengthZero) {
  const DenseMetadata dense = to_dense(build({{{3, {{1, 4}}}, {0, {{0, 2}}}}, {{5, {{0, 0}}}}}));
  EXPECT_EQ(dense.dst_rank, (Numbers{1, 0, 0, -1}));
  EXPECT_EQ(dense.dst_offset, (Numbers{4, 2, 0, 0}));
  EXPECT_EQ(dense.seq_len, (Numbers{3, 0, 5, 0}));
  EXPECT_EQ(dense.num_seqs, (Numbers{2, 1}));  // a placeholder counts
}

// Counts tokens one by one; lengths of received pieces are found by walking the buffer.
void expect_dense(const Metadata& metadata, const DenseMetadata& dense) {
  const auto world = static_cast<std::int64_t>(metadata.world_size());
  Numbers received(at(world * (world + 1)));
  for (const auto& [to, from] : sources(metadata)) {
    for (const Spot& spot : from) {
      ++received[to.rank * (world + 1) + spot.rank];
      ++received[to.rank * (world + 1) + world];
    }
  }
  ASSERT_EQ(dense.num_recv_tokens, received);
  ASSERT_EQ(dense.max_seqs, metadata.max_seqs());
  const std::size_t cp = at(std::max(metadata.max_cp(), 1));
  const Rows rows = rows_of(metadata);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    ASSERT_EQ(present(dense.num_seqs)[rank], static_cast<std::int64_t>(rows[rank].size()));
    for (std::size_t i = 0; i < metadata.max_seqs(); ++i) {
      const Sent row = i < rows[rank].size() ? rows[rank][i] : Sent{};
      const std::size_t entry = rank * metadata.max_seqs() + i;
      ASSERT_EQ(dense.seq_len[entry], row.length);
      for (std::size_t c = 0; c < cp; ++c) {
        const Copy copy = c < row.copies.size() ? row.copies[c] : Copy{};
        ASSERT_EQ(dense.dst_rank[entry * cp + c], copy.rank);
        ASSERT_EQ(dense.dst_offset[entry * cp + c], copy.offset);
      }
    }
  }
}

TEST(Dense, ComesBackFromSparseForRandomTables) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Random random(seed);
    const Routing routing = any_routing(random);
    const MetadataPair q = compute_metadata(routing);
    const MetadataPair kv = compute_metadata_kv(routing);
    for (const Metadata* metadata : {&q.forward, &q.reverse, &kv.forward, &kv.reverse}) {
      const DenseMetadata dense = to_dense(*metadata);
      ASSERT_NO_FATAL_FAILURE(expect_dense(*metadata, dense)) << "seed " << seed;
      ASSERT_TRUE(validate(dense).empty()) << "seed " << seed << "\n" << render(validate(dense));
      ASSERT_EQ(to_sparse(dense), *metadata) << "seed " << seed;
      ASSERT_EQ(to_dense(to_sparse(dense)), dense) << "seed " << seed;
    }
  }
}

TEST(Dense, KeepsCopiesToNowhereInTheMiddleOfARow) {
  const Metadata metadata = build({{{2, {{-1, 0}, {0, 3}}}, {0, {}}}, {}}, 3);
  const DenseMetadata dense = to_dense(metadata);
  EXPECT_EQ(dense.dst_rank, (Numbers{-1, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(dense.seq_recv_mask, (std::vector<std::uint8_t>{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(dense.num_seqs, (Numbers{2, 0}));
  EXPECT_EQ(to_sparse(dense), metadata);
}

// Without num_seqs, rows after the last destination are padding.
TEST(ToSparse, FindsTheRowsItselfWithoutNumSeqs) {
  DenseMetadata dense = to_dense(build({{{0, {{-1, 0}}}, {1, {{0, 0}}}, {0, {{-1, 0}}}}}));
  dense.num_seqs.reset();
  EXPECT_EQ(rows_of(to_sparse(dense)), (Rows{{{0, {{-1, 0}}}, {1, {{0, 0}}}}}));
}

// What lies between two places where a row begins or ends is a piece; of gradients, once.
TEST(Dense, ListsReceivedLengthsByPlace) {
  const Metadata placed = build({{{3, {{0, 4}}}, {0, {{0, 2}}}, {4, {{0, 0}}}}, {{2, {{1, 0}}}}});
  EXPECT_EQ(to_dense(placed).recv_seq_lens, (Numbers{4, 3, 0, 2, 0, 0}));
  const Metadata summed =
      build({{{3, {{0, 0}}}, {2, {{0, 3}}}}, {{3, {{0, 0}}}}}, 0, ArrivalMode::summed);
  EXPECT_EQ(to_dense(summed).recv_seq_lens, (Numbers{3, 2, 0, 0}));
}

TEST(Dense, ListsReceivedLengthsInAsManyColumnsAsRows) {
  const Metadata metadata = build({{{3, {{1, 0}}}, {2, {{1, 3}}}, {4, {{0, 0}}}}, {}});
  EXPECT_EQ(to_dense(metadata).recv_seq_lens, (Numbers{4, 0, 0, 3, 2, 0}));
  // Rank 0 receives more rows than any rank sends.
  const Metadata wide = build({{{3, {{0, 0}}}}, {{2, {{0, 3}}}}});
  EXPECT_EQ(to_dense(wide).recv_seq_lens, (Numbers{3, 2, 0, 0}));
}

TEST(GetSlice, GivesTheRowsOfOneRankWithoutPadding) {
  const DenseMetadata dense = to_dense(to_sparse(keys_of_the_description()));
  const auto slice = dense.get_slice(0);
  EXPECT_EQ(slice.rank, 0);
  EXPECT_EQ(slice.world_size, 2);
  EXPECT_EQ(slice.max_cp, 2);
  EXPECT_EQ(slice.num_seqs, 2);
  EXPECT_EQ(slice.dst_rank, (Numbers{1, 0, 0, -1}));
  EXPECT_EQ(slice.dst_offset, (Numbers{0, 0, 128, 0}));
  EXPECT_EQ(slice.seq_len, (Numbers{128, 64}));
  EXPECT_EQ(slice.seq_recv_mask, (std::vector<std::uint8_t>{1, 1, 1, 0}));
  EXPECT_EQ(slice.num_total_recv_tokens, 448);
  EXPECT_EQ(dense.get_slice(1).seq_len, (Numbers{96, 128, 32}));
}

TEST(GetSlice, KeepsAllColumnsOfReceivedTokens) {
  const DenseMetadata dense = to_dense(build({{{1, {{2, 0}}}}, {}, {{2, {{2, 1}}}}}));
  EXPECT_EQ(dense.get_slice(2).num_recv_tokens, (Numbers{1, 0, 2, 3}));
  EXPECT_EQ(dense.get_slice(1).num_recv_tokens, (Numbers{0, 0, 0, 0}));
}

TEST(GetSlice, RefusesARankThatDoesNotExist) {
  const DenseMetadata dense = queries_of_the_description();
  EXPECT_EQ(thrown_codes([&] { (void)dense.get_slice(2); }), Codes{"D400"});
  EXPECT_EQ(thrown_codes([&] { (void)dense.get_slice(-1); }), Codes{"D400"});
}

TEST(NormalizeDtype, GivesTheTypesThatKernelsUse) {
  static_assert(std::is_same_v<decltype(NormalizedMetadata::dst_rank), std::vector<std::int32_t>>);
  static_assert(
      std::is_same_v<decltype(NormalizedMetadata::dst_offset), std::vector<std::uint32_t>>);
  static_assert(std::is_same_v<decltype(NormalizedMetadata::seq_len), std::vector<std::uint32_t>>);
  static_assert(
      std::is_same_v<decltype(NormalizedMetadata::num_recv_tokens), std::vector<std::uint64_t>>);
  static_assert(NormalizedMetadata::normalized);
  static_assert(!DenseMetadata::normalized);
  const NormalizedMetadata small = normalize_dtype(to_dense(to_sparse(keys_of_the_description())));
  EXPECT_EQ(small.dst_rank[3], -1);
  EXPECT_EQ(small.dst_offset[2], 128U);
  EXPECT_EQ(small.get_slice(1).num_total_recv_tokens, 352U);
  EXPECT_EQ(present(small.recv_seq_lens).size(), 10U);
}

TEST(NormalizeDtype, RefusesValuesJustOutOfRangeAndNoOthers) {
  constexpr std::int64_t kMaxValue = kMax32;
  constexpr std::int64_t kRank = std::numeric_limits<std::int32_t>::max();
  const auto with = [](auto field, std::int64_t value) {
    DenseMetadata dense = to_dense(to_sparse(queries_of_the_description()));
    field(dense).front() = value;
    return dense;
  };
  const auto rank = [](DenseMetadata& d) -> Numbers& { return d.dst_rank; };
  const auto offset = [](DenseMetadata& d) -> Numbers& { return d.dst_offset; };
  const auto length = [](DenseMetadata& d) -> Numbers& { return d.seq_len; };
  const auto count = [](DenseMetadata& d) -> Numbers& { return d.num_recv_tokens; };
  const auto pieces = [](DenseMetadata& d) -> Numbers& { return present(d.recv_seq_lens); };
  const auto totals = [](DenseMetadata& d) -> Numbers& { return present(d.num_total_recv_tokens); };
  const auto rejected = [&](auto field, std::int64_t value) {
    const DenseMetadata dense = with(field, value);
    return thrown_codes([&] { (void)normalize_dtype(dense); }) == Codes{"D410"};
  };
  EXPECT_EQ(normalize_dtype(with(rank, kRank)).dst_rank[0], kRank);
  EXPECT_EQ(normalize_dtype(with(rank, -kRank - 1)).dst_rank[0], -kRank - 1);
  EXPECT_TRUE(rejected(rank, kRank + 1));
  EXPECT_TRUE(rejected(rank, -kRank - 2));
  EXPECT_EQ(normalize_dtype(with(offset, kMaxValue)).dst_offset[0], kMax32);
  EXPECT_TRUE(rejected(offset, kMaxValue + 1));
  EXPECT_TRUE(rejected(offset, -1));
  EXPECT_EQ(normalize_dtype(with(length, kMaxValue)).seq_len[0], kMax32);
  EXPECT_TRUE(rejected(length, kMaxValue + 1));
  EXPECT_TRUE(rejected(length, -1));
  EXPECT_EQ(normalize_dtype(with(count, kMaxValue + 1)).num_recv_tokens[0], std::uint64_t{1} << 32);
  EXPECT_TRUE(rejected(count, -1));
  EXPECT_TRUE(rejected(pieces, kMaxValue + 1));
  EXPECT_TRUE(rejected(totals, -1));
}

TEST(NormalizeDtype, SaysEachFieldThatDoesNotFit) {
  DenseMetadata dense = queries_of_the_description();
  dense.dst_offset[3] = -5;
  dense.seq_len[1] = std::int64_t{1} << 32;
  const auto found = thrown_diagnostics([&] { (void)normalize_dtype(dense); });
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].where.operation, "dst_offset, entry 3");
  EXPECT_EQ(found[1].where.operation, "seq_len, entry 1");
}

TEST(ToDense, RefusesMoreElementsThanTheLimit) {
  const Metadata metadata = build({{{1, {{0, 0}}}}, {{1, {{1, 0}}}}});
  EXPECT_NO_THROW((void)to_dense(metadata, 100));
  EXPECT_EQ(thrown_codes([&] { (void)to_dense(metadata, 10); }), Codes{"D411"});
  EXPECT_EQ(thrown_codes([&] { (void)to_dense(build(Rows(20'000))); }), Codes{"D411"});
}

// ---- contradictions

TEST(ValidateDense, FindsWrongShapes) {
  DenseMetadata dense = queries_of_the_description();
  EXPECT_EQ(found_in(dense), Codes{});
  const auto shortened = [](auto change) {
    DenseMetadata all = to_dense(to_sparse(keys_of_the_description()));
    change(all);
    return found_in(all);
  };
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.dst_rank.pop_back(); }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.dst_offset.push_back(0); }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.seq_len.pop_back(); }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.num_recv_tokens.pop_back(); }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { present(d.seq_recv_mask).pop_back(); }),
            Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { present(d.num_seqs).pop_back(); }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { present(d.recv_seq_lens).pop_back(); }),
            Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { present(d.num_total_recv_tokens).pop_back(); }),
            Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.max_cp = 1; }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.max_cp = -1; }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.world_size = 0; }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { d.max_seqs = -1; }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { present(d.num_seqs)[0] = 4; }), Codes{"D401"});
  EXPECT_EQ(shortened([](DenseMetadata& d) { present(d.num_seqs)[1] = -1; }), Codes{"D401"});
}

TEST(ValidateDense, FindsPaddingWithLengthOrDestination) {
  DenseMetadata dense = queries_of_the_description();
  dense.seq_len[2] = 1;
  EXPECT_EQ(found_in(dense), Codes{"D402"});
  dense = queries_of_the_description();
  dense.num_seqs = {1, 3};
  EXPECT_EQ(found_in(dense), Codes{"D402"});
  dense = keys_of_the_description();
  present(dense.seq_recv_mask)[0] = 0;
  EXPECT_EQ(found_in(dense), Codes{"D402"});
  dense = keys_of_the_description();
  present(dense.seq_recv_mask)[3] = 1;
  EXPECT_EQ(found_in(dense), Codes{"D402"});
  const auto found = validate(dense);
  EXPECT_EQ(found[0].where.rank, 0);
  EXPECT_EQ(found[0].where.operation, "seq_recv_mask, sequence 1");
}

TEST(ValidateDense, FindsRanksThatDoNotExist) {
  for (const std::int64_t rank : {std::int64_t{2}, std::int64_t{-2}, std::int64_t{1} << 40}) {
    DenseMetadata dense = queries_of_the_description();
    dense.dst_rank[4] = rank;
    EXPECT_EQ(found_in(dense), Codes{"D403"});
    EXPECT_EQ(validate(dense)[0].where.rank, 1);
    EXPECT_EQ(validate(dense)[0].where.operation, "dst_rank, sequence 1");
  }
}

TEST(ValidateDense, FindsCountsThatAreNotWhatIsSent) {
  for (std::size_t entry = 0; entry < 6; ++entry) {
    DenseMetadata dense = queries_of_the_description();
    ++dense.num_recv_tokens[entry];
    EXPECT_EQ(found_in(dense), Codes{"D406"});
    EXPECT_EQ(validate(dense)[0].where.rank, static_cast<std::int64_t>(entry / 3));
    EXPECT_EQ(validate(dense)[0].where.operation,
              "num_recv_tokens, column " + std::to_string(entry % 3));
  }
  DenseMetadata dense = to_dense(to_sparse(queries_of_the_description()));
  --present(dense.num_total_recv_tokens)[1];
  EXPECT_EQ(found_in(dense), Codes{"D406"});
  dense = to_dense(to_sparse(queries_of_the_description()));
  std::swap(present(dense.recv_seq_lens)[0], present(dense.recv_seq_lens)[1]);
  EXPECT_EQ(found_in(dense), Codes{"D406"});
}

TEST(ValidateDense, FindsNumbersThatDoNotFit) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 32;
  const auto with = [](auto change) {
    DenseMetadata dense = queries_of_the_description();
    change(dense);
    return found_in(dense);
  };
  EXPECT_EQ(with([](DenseMetadata& d) { d.dst_offset[0] = -1; }), Codes{"D410"});
  EXPECT_EQ(with([](DenseMetadata& d) { d.dst_offset[0] = kLarge; }), Codes{"D410"});
  EXPECT_EQ(with([](DenseMetadata& d) { d.dst_offset[0] = kLarge - 128; }), Codes{"D410"});
  EXPECT_EQ(with([](DenseMetadata& d) { d.dst_offset[0] = kLarge - 129; }), Codes{});
  EXPECT_EQ(
      with([](DenseMetadata& d) { d.dst_offset[0] = std::numeric_limits<std::int64_t>::max(); }),
      Codes{"D410"});
  EXPECT_EQ(with([](DenseMetadata& d) { d.seq_len[0] = -1; }), Codes{"D410"});
  EXPECT_EQ(with([](DenseMetadata& d) { d.seq_len[0] = kLarge; }), Codes{"D410"});
}

// ---- What it does NOT do

TEST(ValidateDense, DoesNotJudgeWhetherTheTableIsSound) {
  // Two pieces of the description's example overlap; validate.h reports it.
  EXPECT_TRUE(validate(queries_of_the_description()).empty());
}

TEST(ValidateDense, DoesNotReadOffsetsOfPadding) {
  DenseMetadata dense = queries_of_the_description();
  dense.dst_offset[2] = -7;
  EXPECT_EQ(found_in(dense), Codes{});
  EXPECT_EQ(to_sparse(dense), to_sparse(queries_of_the_description()));
}

// ---- known flaws: to be enabled with their repair

constexpr std::int64_t kLong = 3'000'000'000;

DenseMetadata too_long_for_a_rank() {
  return {.world_size = 2,
          .max_seqs = 2,
          .dst_rank = {0, 1, -1, -1},
          .dst_offset = {0, 0, 0, 0},
          .seq_len = {kLong, kLong, 0, 0},
          .num_recv_tokens = {kLong, 0, kLong, kLong, 0, kLong}};
}

TEST(ValidateDense, FindsMoreTokensOnASendingRankThanThirtyTwoBitsCount) {
  DenseMetadata dense = too_long_for_a_rank();
  EXPECT_EQ(found_in(dense), Codes{"D410"});
  dense.recv_seq_lens = {kLong, kLong};
  EXPECT_EQ(found_in(dense), Codes{"D410"});
}

TEST(ToDense, CountsTheReceivedLengthsInTheLimit) {
  Rows all_to_one(10);
  for (std::uint32_t rank = 0; rank < 10; ++rank) all_to_one[rank].push_back({1, {{0, rank}}});
  const Metadata metadata = build(all_to_one);
  const DenseMetadata dense = to_dense(metadata);
  const std::size_t elements =
      dense.dst_rank.size() + dense.dst_offset.size() + dense.seq_len.size() +
      dense.num_recv_tokens.size() + present(dense.recv_seq_lens).size() +
      present(dense.num_seqs).size() + present(dense.num_total_recv_tokens).size();
  EXPECT_EQ(
      thrown_codes([&] { (void)to_dense(metadata, static_cast<std::int64_t>(elements) - 1); }),
      Codes{"D411"});
}

}  // namespace
}  // namespace shiplap::dispatch
