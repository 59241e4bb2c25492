// Memoized calls against the same calls without a memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/check/call_memo_internal.h"
#include "shiplap/check/testing_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::check {
namespace {

using Lists = CallMemo::Lists;

constexpr std::array<std::int64_t, 1> kCall{0};
constexpr std::int32_t kMembers = 3;
constexpr std::int32_t kRows = 2;  // of each piece of an output

plan::Plan plan_of_memo() {
  return plan::parse_text(R"(shiplap-plan 1
mesh dp=1
tensor Y[90] Other a 90 b 90 c 90
tensor X[90] Other a 90 b 90 c 90 sum s 4
program all on all
  compute other
)",
                          "test.plan");
}

// By how much inputs are moved.
struct Translation {
  std::int64_t instance = 0;
  std::array<std::int32_t, 3> by{};  // by dimension
};

class CallMemoTest : public testing::Test {
 protected:
  std::int32_t between(std::int32_t low, std::int32_t high) {
    return static_cast<std::int32_t>(random_.between(low, high + 1));
  }

  Piece piece(std::int32_t rows, std::int64_t instance, const std::vector<check::Run>& runs) {
    const Content content{.tensor = plan::TensorId(between(0, 1)),
                          .rows = rows,
                          .instance = instance,
                          .sum = contents_.sums().intern({Box{}})};
    return {.content = contents_.intern(content, runs), .rows = rows};
  }

  // Runs of all dimensions, in any order, of which some continue each other or move with the rank.
  Piece random_piece(std::int32_t rows) {
    std::vector<check::Run> runs;
    std::vector<std::int16_t> dimensions{0, 1, 2};
    random_.shuffle(dimensions);
    for (const std::int16_t dimension : dimensions) {
      const auto slope = static_cast<std::int16_t>(contents_.slopes().intern({between(0, 2)}));
      const std::int32_t begin = between(0, 3);
      const std::int32_t count = between(0, 1) == 0 ? 1 : rows;
      const std::int32_t stride = between(1, 3);
      runs.push_back({dimension, slope, begin, count, stride});
      if (between(0, 3) > 0) continue;
      runs.push_back({dimension, slope, begin + count * stride, count, stride});
    }
    return piece(rows, between(0, 1), runs);
  }

  Lists random_inputs() {
    Lists inputs(kMembers);
    for (Pieces& list : inputs) {
      for (std::int32_t left = kMembers * kRows; left > 0;) {
        const std::int32_t rows = between(1, left);
        list.push_back(random_piece(rows));
        left -= rows;
      }
    }
    return inputs;
  }

  Lists moved(Lists lists, const Translation& translation) {
    for (Pieces& list : lists) {
      for (Piece& piece : list) {
        Content content = contents_[piece.content];
        std::vector<check::Run> runs(Contents::runs(content).begin(),
                                     Contents::runs(content).end());
        content.instance += translation.instance;
        for (check::Run& run : runs) run.begin += translation.by.at(run.dimension);
        piece.content = contents_.intern(content, runs);
      }
    }
    return lists;
  }

  // What an all-to-all does.
  Lists exchanged(const Lists& inputs) {
    Lists outputs(inputs.size());
    for (std::int32_t from = 0; from < kMembers; ++from) {
      const std::array<std::int64_t, 1> position{from};
      Pieces bound;
      for (const Piece& piece : inputs[from]) bound.push_back(contents_.bind(piece, position));
      std::int32_t row = 0;
      for (const Piece& piece : bound) {
        for (std::int32_t k = 0; k < piece.rows; ++k) {
          contents_.slice(piece, k, 1, outputs[row++ / kRows]);
        }
      }
    }
    for (Pieces& pieces : outputs) contents_.join(pieces);
    return outputs;
  }

  Lists recalled(const Lists& inputs, std::span<const std::int64_t> call = kCall) {
    return memo_.get(call, inputs, [&] { return exchanged(inputs); });
  }

  Random random_{7};
  plan::Plan plan_ = plan_of_memo();
  Contents contents_{plan_};
  CallMemo memo_{contents_};
};

TEST_F(CallMemoTest, ATranslationOfTheInputsTranslatesTheOutputs) {
  for (int k = 0; k < 1000; ++k) {
    const Lists inputs = random_inputs();
    static_cast<void>(recalled(inputs));
    const std::int64_t computed = memo_.computed();
    const Translation translation{.instance = between(-1, 5),
                                  .by = {between(0, 9), between(0, 9), between(0, 9)}};
    const Lists further = moved(inputs, translation);
    ASSERT_EQ(recalled(further), exchanged(further)) << k;
    EXPECT_EQ(memo_.computed(), computed) << k;
  }
}

TEST_F(CallMemoTest, WhatIsNoTranslationIsComputed) {
  const auto inputs_of = [&](const std::vector<check::Run>& runs, std::int64_t instance,
                             std::int32_t begin) {
    Lists inputs(1);
    random_ = Random(7);  // the same tensors
    inputs[0].push_back(piece(2, 4, {{.dimension = 0, .begin = 3, .count = 2}}));
    inputs[0].push_back(piece(2, instance, runs));
    inputs[0].push_back(piece(2, 4, {{.dimension = 1, .begin = begin, .count = 2}}));
    return inputs;
  };
  const check::Run run{.dimension = 0, .begin = 5, .count = 2, .stride = 1};
  const Lists first = inputs_of({run}, 4, 0);
  const auto compute = [&] { return Lists(first); };
  static_cast<void>(memo_.get(kCall, first, compute));
  std::int64_t expected = 1;
  const auto is_new = [&](const Lists& inputs, std::int64_t call = 0) {
    static_cast<void>(memo_.get(std::array{call}, inputs, compute));
    return memo_.computed() == ++expected;
  };
  EXPECT_TRUE(is_new(first, 1)) << "another call";
  check::Run other = run;
  other.begin = 6;
  EXPECT_TRUE(is_new(inputs_of({other}, 4, 0))) << "one piece moved, and not the one before it";
  other = run;
  other.stride = 2;
  EXPECT_TRUE(is_new(inputs_of({other}, 4, 0)));
  other = run;
  other.dimension = 2;
  EXPECT_TRUE(is_new(inputs_of({other}, 4, 0)));
  other = run;
  other.slope = static_cast<std::int16_t>(contents_.slopes().intern({1}));
  EXPECT_TRUE(is_new(inputs_of({other}, 4, 0)));
  EXPECT_TRUE(is_new(inputs_of({run}, 5, 0))) << "another instance than the piece before it";
  Lists changed = first;
  Content content = contents_[first[0][0].content];
  content.sum = contents_.sums().intern({});
  changed[0][0].content = contents_.intern(content, Contents::runs(content));
  EXPECT_TRUE(is_new(changed));
  content = contents_[first[0][0].content];
  content.is_new = true;
  changed[0][0].content = contents_.intern(content, Contents::runs(content));
  EXPECT_TRUE(is_new(changed));
  content = contents_[first[0][0].content];
  content.scale = contents_.intern(plan::Ratio(1, 2));
  changed[0][0].content = contents_.intern(content, Contents::runs(content));
  EXPECT_TRUE(is_new(changed));
  changed = first;
  changed.push_back({changed[0].back()});
  changed[0].pop_back();
  EXPECT_TRUE(is_new(changed)) << "the same pieces, on two members";
  static_cast<void>(memo_.get(kCall, inputs_of({run}, 4, 8), compute));
  EXPECT_EQ(memo_.computed(), expected) << "a dimension of its own moved: a translation";
}

// Layers and microbatches, each with the same all-to-all.
constexpr std::string_view kExperts = R"(mesh ep=4
tensor D[3] Dispatched eg 4 sample 12
program all on all
  buffer sd rows 4 row_bytes 8 f32
  buffer rd rows 4 row_bytes 8 f32
  repeat m 3
    repeat l 3
      compute other
        writes sd = D[l] eg 0 +4 sample 3*ep+m +1
      all_to_all sd to rd over ep
      compute other
        reads rd = D[l] eg ep +1 sample m +4 by 3
    end
  end
)";

TEST(CallMemo, TheLastMicrobatchIsCheckedLikeTheFirst) {
  expect_finding({kExperts, "3*ep+m +1", "3*ep+m-m div 2 +1"},
                 {"D744", 3, 20, "sample 2, 5, .. 11, and finds D[0] eg 3 sample 1, 4"});
  expect_finding({kExperts, "sample m +4", "sample m-m div 2 +4"},
                 {"D735", 3, 13, "overwrites D[0] eg 3 sample 1, 4, .. 10"});
}

TEST(CallMemo, TheLastLayerIsCheckedLikeTheFirst) {
  expect_finding({kExperts, "sd = D[l]", "sd = D[l-m div 2*(l div 2)]"},
                 {"D744", 3, 26, "reads D[2] eg 3 sample 2, 5, .. 11, and finds D[1]"});
  expect_finding({kExperts, "rd = D[l]", "rd = D[l-m div 2*(l div 2)]"},
                 {"D735", 3, 25, "overwrites D[1] eg 3 sample 2, 5, .. 11"});
}

}  // namespace
}  // namespace shiplap::check
