// orchestrate_simulate and sum_simulate: plain copies and plain sums, nothing more.
#include <gtest/gtest.h>

#include <limits>

#include "shiplap/dispatch/simulate.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

using Bytewise = std::vector<std::vector<int>>;

Buffers<std::byte> bytes(const Bytewise& values) {
  Buffers<std::byte> buffers;
  for (const auto& rank : values) {
    buffers.emplace_back();
    for (const int value : rank) buffers.back().push_back(static_cast<std::byte>(value));
  }
  return buffers;
}

Bytewise numbers(const Buffers<std::byte>& buffers) {
  Bytewise values;
  for (const auto& rank : buffers) {
    values.emplace_back();
    for (const std::byte value : rank) values.back().push_back(std::to_integer<int>(value));
  }
  return values;
}

// ---- What orchestrate_simulate DOES

TEST(OrchestrateSimulate, CopiesEveryRowToItsPlace) {
  const Metadata swap = build({{{2, {{1, 1}}}, {1, {{0, 0}}}}, {{1, {{1, 0}}}}});
  Buffers<std::byte> output = bytes({{0}, {0, 0, 0}});
  orchestrate_simulate(bytes({{11, 12, 13}, {21}}), output, swap, 1);
  EXPECT_EQ(numbers(output), (Bytewise{{13}, {21, 11, 12}}));
}

TEST(OrchestrateSimulate, CopiesARowToAllItsPlaces) {
  const Metadata copies = build({{{1, {{0, 2}, {-1, 0}, {1, 0}}}, {1, {{0, 0}}}}, {}}, 3);
  Buffers<std::byte> output = bytes({{0, 0, 0}, {0}});
  orchestrate_simulate(bytes({{7, 8}, {}}), output, copies, 1);
  EXPECT_EQ(numbers(output), (Bytewise{{8, 0, 7}, {7}}));
}

TEST(OrchestrateSimulate, MovesWholeTokensOfAnyWidth) {
  const Metadata one = build({{{1, {{0, 1}}}, {1, {{0, 0}}}}});
  Buffers<std::byte> output = bytes({{0, 0, 0, 0, 0, 0}});
  orchestrate_simulate(bytes({{1, 2, 3, 4, 5, 6}}), output, one, 3);
  EXPECT_EQ(numbers(output), (Bytewise{{4, 5, 6, 1, 2, 3}}));
}

TEST(OrchestrateSimulate, LeavesPaddingAndPlaceholdersAlone) {
  const Metadata padding = build({{{0, {{-1, 0}}}, {0, {{0, 1}}}, {1, {{0, 0}}}}});
  Buffers<std::byte> output = bytes({{9}});
  orchestrate_simulate(bytes({{5}}), output, padding, 1);
  EXPECT_EQ(numbers(output), (Bytewise{{5}}));
}

TEST(OrchestrateSimulate, AgreesWithMovingTokensOneByOne) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const Metadata forward = compute_metadata_kv(any_routing(random)).forward;
    Buffers<std::byte> input(at(forward.world_size()));
    Buffers<std::byte> output(at(forward.world_size()));
    for (int rank = 0; rank < forward.world_size(); ++rank) {
      for (std::uint32_t i = 0; i < 2 * forward.num_send_tokens(rank); ++i) {
        input[rank].push_back(static_cast<std::byte>(random.between(0, 256)));
      }
      output[rank].resize(2 * forward.num_total_recv_tokens(rank));
    }
    orchestrate_simulate(input, output, forward, 2);
    for (const auto& [to, from] : sources(forward)) {
      for (const std::uint64_t half : {0U, 1U}) {
        ASSERT_EQ(output[to.rank][2 * to.offset + half],
                  input[from[0].rank][2 * from[0].offset + half])
            << "seed " << seed;
      }
    }
  }
}

// ---- What orchestrate_simulate does NOT do

TEST(OrchestrateSimulate, DoesNotSumWhatArrivesInOnePlace) {
  const Metadata summed = build({{{1, {{0, 0}}}, {1, {{0, 0}}}}}, 0, ArrivalMode::summed);
  Buffers<std::byte> output = bytes({{0}});
  orchestrate_simulate(bytes({{3, 4}}), output, summed, 1);
  EXPECT_EQ(numbers(output), (Bytewise{{4}}));
}

TEST(OrchestrateSimulate, DoesNotCheckOverlapsTheLastOneStays) {
  const Metadata overlap = build({{{2, {{0, 0}}}}, {{2, {{0, 1}}}}});
  Buffers<std::byte> output = bytes({{0, 0, 0}, {}});
  orchestrate_simulate(bytes({{1, 2}, {3, 4}}), output, overlap, 1);
  EXPECT_EQ(numbers(output), (Bytewise{{1, 3, 4}, {}}));
}

TEST(OrchestrateSimulate, DoesNotTouchWhatNothingArrivesAt) {
  Buffers<std::byte> output = bytes({{9, 9, 9}});
  orchestrate_simulate(bytes({{1}}), output, build({{{1, {{0, 1}}}}}), 1);
  EXPECT_EQ(numbers(output), (Bytewise{{9, 1, 9}}));
}

TEST(OrchestrateSimulate, DoesNotReadOrWriteOutsideABuffer) {
  const auto rejected = [](const Rows& rows, const Bytewise& in, const Bytewise& out) {
    Buffers<std::byte> output = bytes(out);
    return thrown_codes([&] { orchestrate_simulate(bytes(in), output, build(rows), 1); });
  };
  EXPECT_EQ(rejected({{{2, {{0, 1}}}}}, {{1, 2}}, {{0, 0}}), Codes{"D404"});
  EXPECT_EQ(rejected({{{1, {{0, kMax32}}}}}, {{1}}, {{0, 0}}), Codes{"D404"});
  EXPECT_EQ(rejected({{{2, {{0, 0}}}}}, {{1}}, {{0, 0}}), Codes{"D404"});
  EXPECT_EQ(rejected({{{1, {{1, 0}}}}}, {{1}}, {{0}}), Codes{"D404"});
}

TEST(OrchestrateSimulate, DoesNotGuessMissingBuffers) {
  Buffers<std::byte> output = bytes({{0}});
  const Metadata two = build({{{1, {{0, 0}}}}, {}});
  EXPECT_EQ(thrown_codes([&] { orchestrate_simulate(bytes({{1}, {}}), output, two, 1); }),
            Codes{"D400"});
  EXPECT_EQ(thrown_codes([&] { orchestrate_simulate(bytes({{1}}), output, two, 1); }),
            Codes{"D400"});
}

// ---- What sum_simulate DOES

TEST(SumSimulate, AddsUpWhatArrivesInOnePlace) {
  const Metadata summed =
      build({{{1, {{0, 0}}}, {2, {{0, 0}}}}, {{1, {{0, 1}}}}}, 0, ArrivalMode::summed);
  Buffers<float> output{{0, 0}, {}};
  sum_simulate({{1, 2, 3}, {4}}, output, summed, 1);
  EXPECT_EQ(output, (Buffers<float>{{3, 7}, {}}));
}

TEST(SumSimulate, AddsTokensOfAnyWidth) {
  const Metadata summed = build({{{1, {{0, 0}}}, {1, {{0, 0}}}}}, 0, ArrivalMode::summed);
  Buffers<float> output{{0, 0}};
  sum_simulate({{1, 10, 2, 20}}, output, summed, 2);
  EXPECT_EQ(output, (Buffers<float>{{3, 30}}));
}

// In floats (2^24 + 1) + 1 is 2^24, and (1 + 1) + 2^24 is 2^24 + 2: the order shows.
TEST(SumSimulate, AddsBySenderThenByRow) {
  const float large = 16777216.0F;
  const Metadata ranks =
      build({{{1, {{2, 0}}}}, {{1, {{2, 0}}}}, {{1, {{2, 0}}}}}, 0, ArrivalMode::summed);
  const auto sum_of_ranks = [&](float a, float b, float c) {
    Buffers<float> output{{}, {}, {0}};
    sum_simulate({{a}, {b}, {c}}, output, ranks, 1);
    return output[2][0];
  };
  EXPECT_EQ(sum_of_ranks(large, 1, 1), large);
  EXPECT_EQ(sum_of_ranks(1, large, 1), large);
  EXPECT_EQ(sum_of_ranks(1, 1, large), large + 2);

  const Metadata rows =
      build({{{1, {{0, 0}}}, {1, {{0, 0}}}, {1, {{0, 0}}}}}, 0, ArrivalMode::summed);
  const auto sum_of_rows = [&](float a, float b, float c) {
    Buffers<float> output{{0}};
    sum_simulate({{a, b, c}}, output, rows, 1);
    return output[0][0];
  };
  EXPECT_EQ(sum_of_rows(large, 1, 1), large);
  EXPECT_EQ(sum_of_rows(1, 1, large), large + 2);
}

// ---- What sum_simulate does NOT do

TEST(SumSimulate, DoesNotBeginAtZeroItself) {
  Buffers<float> output{{100}};
  sum_simulate({{1}}, output, build({{{1, {{0, 0}}}}}, 0, ArrivalMode::summed), 1);
  EXPECT_EQ(output, (Buffers<float>{{101}}));
}

TEST(SumSimulate, DoesNotWriteOutsideABuffer) {
  Buffers<float> output{{0}};
  EXPECT_EQ(thrown_codes([&] { sum_simulate({{1}}, output, build({{{1, {{0, 1}}}}}), 1); }),
            Codes{"D404"});
}

}  // namespace
}  // namespace shiplap::dispatch
