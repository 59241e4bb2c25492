#include "shiplap/workload/model.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace shiplap::workload {
namespace {

constexpr Tokens kTokens{.sequences = 3, .length = 10};

Part linear(std::int64_t in, std::int64_t out) {
  return {.name = "l", .kind = PartKind::linear, .in = in, .out = out};
}

Part attention(AttentionShape shape) {
  return {.name = "attention",
          .kind = PartKind::attention,
          .in = (shape.heads + shape.kv_heads) * shape.qk_dim + shape.kv_heads * shape.v_dim,
          .out = shape.heads * shape.v_dim,
          .attention = shape};
}

TEST(Parts, PairsAreThoseOfTheMaskWrittenOut) {
  for (std::int64_t length = 1; length < 20; ++length) {
    for (std::int64_t window = 0; window < 24; ++window) {
      std::int64_t pairs = 0;
      for (std::int64_t q = 0; q < length; ++q) {
        for (std::int64_t k = 0; k <= q; ++k) pairs += window == 0 || q - k < window ? 1 : 0;
      }
      EXPECT_EQ(causal_pairs(length, window), pairs) << length << ", " << window;
    }
  }
}

TEST(Parts, ALinearPartIsThreeProducts) {
  Part part = linear(5, 7);
  EXPECT_EQ(part.parameters(), 35);
  part.bias = true;
  EXPECT_EQ(part.parameters(), 42);
  const std::int64_t bytes = 2L * (30L * (5 + 7) + 42);
  EXPECT_EQ(forward(part, kTokens, DType::bf16), (PartWork{2 * 5 * 7 * 30, bytes}));
  EXPECT_EQ(backward_input(part, kTokens, DType::bf16), (PartWork{2 * 5 * 7 * 30, bytes}));
  EXPECT_EQ(backward_weight(part, kTokens, DType::bf16), (PartWork{2 * 5 * 7 * 30, bytes}));
  EXPECT_EQ(kept(part, kTokens, DType::f32), (Bytes{4L * 5 * 30}));
}

TEST(Parts, ATokenUsesSomeExperts) {
  Part part = linear(5, 7);
  part.experts = 8;
  part.top_k = 2;
  EXPECT_EQ(part.parameters(), 8 * 35);
  EXPECT_EQ(part.active_parameters(), 2 * 35);
  EXPECT_EQ(forward(part, kTokens, DType::bf16).flop, 2 * 2 * 35 * 30);
  EXPECT_EQ(forward(part, kTokens, DType::bf16).bytes, 2 * (2 * 30 * 12 + 8 * 35));
  // One token reads the weights of its two experts only.
  EXPECT_EQ(forward(part, {}, DType::bf16).bytes, 2 * (2 * 12 + 2 * 35));
}

TEST(Parts, ATiedWeightCountsOnceButIsMultiplied) {
  Part part = linear(5, 7);
  part.tied = true;
  EXPECT_EQ(part.parameters(), 0);
  EXPECT_EQ(forward(part, kTokens, DType::bf16), forward(linear(5, 7), kTokens, DType::bf16));
}

TEST(Parts, AttentionMultipliesThePairsThatTheMaskLeaves) {
  const Part part = attention({.heads = 4, .kv_heads = 2, .qk_dim = 8, .v_dim = 6});
  EXPECT_EQ(part.parameters(), 0);
  EXPECT_EQ(forward(part, kTokens, DType::bf16).flop, 3 * 4 * 55 * 2 * (8 + 6));
  EXPECT_EQ(forward(part, kTokens, DType::bf16).bytes, 2 * 30 * (4 * 8 + 2 * 8 + 2 * 6 + 4 * 6));
  EXPECT_EQ(backward_input(part, kTokens, DType::bf16).flop, 2 * 3 * 4 * 55 * 2 * (8 + 6));
  EXPECT_EQ(backward_weight(part, kTokens, DType::bf16), PartWork{});
}

TEST(Parts, NormsOfHeadsShareAWeight) {
  const Part part{.name = "q_norm", .kind = PartKind::norm, .in = 8, .out = 8, .vectors = 4};
  EXPECT_EQ(part.parameters(), 8);
  EXPECT_EQ(part.active_parameters(), 8);
  EXPECT_EQ(forward(part, kTokens, DType::bf16), (PartWork{0, 2 * 30 * 4 * 16}));
}

TEST(Models, AreTheSumOfTheirLayers) {
  const Layer layer{.name = "dense", .parts = {linear(4, 4), linear(4, 8)}};
  Model model{.name = "m",
              .embedding = {.parts = {{.kind = PartKind::embedding, .in = 10, .out = 4}}},
              .kinds = {layer},
              .layers = {0, 0, 0},
              .head = {.parts = {linear(4, 10)}}};
  EXPECT_EQ(model.parameters(), 40 + 3 * (16 + 32) + 40);
  EXPECT_EQ(model.forward_flop(kTokens), 2 * 30 * (3 * (16 + 32) + 40));
  model.mtp = {layer};
  EXPECT_EQ(model.parameters(), 40 + 3 * (16 + 32) + 40);
  EXPECT_EQ(model.mtp_parameters(), 48);
  EXPECT_EQ(model.forward_flop(kTokens), 2 * 30 * (3 * (16 + 32) + 40));
  EXPECT_EQ(model.forward_flop(kTokens, 1), 2 * 30 * (4 * (16 + 32) + 40));
}

}  // namespace
}  // namespace shiplap::workload
