#include "shiplap/plan/builder.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "shiplap/plan/testing_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

constexpr std::string_view kEverything = R"(shiplap-plan 1
mesh dp=2 tp=4
alias both = dp tp
list cut = 0 3 5 6 8
list rows = 4 1 7
tensor W[3] Weight shard 8
tensor G[3] WeightGrad shard 8 sum sample 16 scale 1/16
tensor P Probability tok 8 sum key 8 mask key<=tok and rows[key]=rows[tok]
table route
  message 0 1 0 2 3
  send 1 0 0 4
program first on dp=0
  buffer w rows 8 row_bytes 2*cut[tp+1] bf16
  buffer g rows 8 row_bytes 64 f32 host
  streams net, side
  keep w[tp*2 +2] = W[0] shard tp*2 +2
  given g = G[1] sum none
  goal g[tp of cut] = G[1] shard tp +1 | 7 +1 sum sample 2*dp +2 by 3 scale 1/8
  let half = (tp-rank) mod 2
  repeat s 3
    when s<2 and half=0
      f[s, half]: @net send w[s +1] to tp+s wrap tag 5+s channel weights async
    end
    u: compute update joined work gemm 2*s flop 8e9 bytes bf16 label all of it
      reads  g = G[s] shard from rows[s +1]
      writes w = new W[s]
      adds   g[0 +1] = G[2] sum sample 0 +1
    receive g[0 +1] from rank 7-rank add after f[s, half], u
  end
  x: @side batch after u
    all_gather w to g over (dp, tp)/other split cut
    repeat k 2
      broadcast w[k +1] over dp{0, 1} root 1
      barrier over ranks{0, 3}
    end
  end
  copy w[from rows[0 +2]] to g[0 +2] add
  reduce w to g over both operator max scale 1/2 root 2
  exchange w to g by route reversed over both add
  allocate g[0 +4]
  free g[0 +4]
  compute probe work 0.001 seconds times 2*both
program second on dp=1 tp=0..1|3
spare on rank=6
)";

void masked_tensor(Builder& b, const ListRef& rows) {
  const DimensionId tok(0);
  const DimensionId key(1);
  b.tensor({.name = "P",
            .kind = "Probability",
            .part = {{"tok", 8}},
            .sum = {{"key", 8}},
            .mask = {{{{}, key}, Comparator::less_equal, {{}, tok}},
                     {{rows.id, key}, Comparator::equal, {rows.id, tok}}}});
}

// On the first two buffers.
void other_actions(Builder& b, const AxisRef& both, const ListRef& rows, TableId route) {
  const BufferRef w{BufferId(0)};
  const BufferRef g{BufferId(1)};
  b.add({.action = Copy{.from = w.listed(rows, 0, 2), .to = g(0, 2), .add = true}});
  b.add({.action = Collective{.kind = CollectiveKind::reduce,
                              .op = ReduceOp::max,
                              .from = w,
                              .to = g,
                              .over = both.group(),
                              .scale = {1, 2},
                              .root = 2}});
  b.add({.action = Exchange{w, g, route, true, true, both.group()}});
  b.add({.action = Allocate{g(0, 4)}});
  b.add({.action = Free{g(0, 4)}});
  b.add({.action = Compute{"probe", {}}, .work = Work{.seconds = 0.001, .times = 2 * both}});
}

Plan everything() {
  Builder b;
  const AxisRef dp = b.axis("dp", 2);
  const AxisRef tp = b.axis("tp", 4);
  const AxisRef both = b.alias("both", {dp, tp});
  const ListRef cut = b.list("cut", {0, 3, 5, 6, 8});
  const ListRef rows = b.list("rows", {4, 1, 7});
  const Dimension shard{"shard", 8};
  const Dimension sample{"sample", 16};
  const TensorRef weight =
      b.tensor({.name = "W", .kind = kWeight, .instances = 3, .part = {shard}});
  const TensorRef gradient = b.tensor({.name = "G",
                                       .kind = "WeightGrad",
                                       .instances = 3,
                                       .part = {shard},
                                       .sum = {sample},
                                       .scale = {1, 16}});
  masked_tensor(b, rows);
  const TableId route = b.table({"route", {{0, 1, 0, 2}, {1, 0, 0, 4}}, {{1, 0, 3, 2}}});

  b.program("first", {dp.at(0)});
  const BufferRef w = b.buffer({.name = "w", .rows = 8, .row_bytes = 2 * cut[tp + 1]});
  const BufferRef g = b.buffer(
      {.name = "g", .rows = 8, .row_bytes = 64, .type = DType::f32, .memory = Memory::host});
  const StreamId net = b.stream("net");
  const StreamId side = b.stream("side");
  b.keep(w(tp * 2, 2), weight[0](shard, tp * 2, 2));
  b.given(g, gradient[1].zero());
  b.goal(g.cut(tp, cut),
         gradient[1](sample, 2 * dp, 2, 3)(shard, tp, 1)(shard, 7, 1).scaled({1, 8}));
  const OperationName f{"f"};
  const OperationName u{"u"};
  const Expr half = b.let("half", mod(tp - Expr::rank(), 2));
  b.repeat("s", 3, [&](const Expr& s) {
    b.when({{s, Comparator::less, 2}, {half, Comparator::equal, 0}}, [&] {
      b.add({.name = f(s, half),
             .stream = net,
             .async = true,
             .action = Send{w(s, 1), tp.wrap(s), 5 + s, "weights"}});
    });
    b.add({.name = u(),
           .joined = true,
           .action =
               Compute{"update",
                       {reads(g, gradient[s].listed(shard, rows, s, 1)),
                        writes(w, weight[s].updated()), adds(g(0, 1), gradient[2](sample, 0, 1))}},
           .work = Work{.kernel_class = "gemm",
                        .flop = 2 * s,
                        .bytes = 8'000'000'000,
                        .type = DType::bf16},
           .label = "all of it"});
    b.add({.action = Receive{.to = g(0, 1), .peer = peer_rank(7 - Expr::rank()), .add = true},
           .after = {f(s, half), u()}});
  });
  b.batch({.name = {.name = "x"}, .stream = side, .after = {u()}}, [&] {
    b.add({.action = Collective{.kind = CollectiveKind::all_gather,
                                .split = cut.id,
                                .from = w,
                                .to = g,
                                .over = {.axes = {dp.id, tp.id}, .channel = "other"}}});
    b.repeat("k", 2, [&](const Expr& k) {
      b.add({.action = Collective{.kind = CollectiveKind::broadcast,
                                  .from = w(k, 1),
                                  .to = w(k, 1),
                                  .over = {.axes = {dp.id}, .positions = {0, 1}},
                                  .root = 1}});
      b.add({.action = Collective{.kind = CollectiveKind::barrier, .over = {.positions = {0, 3}}}});
    });
  });
  other_actions(b, both, rows, route);

  b.program("second", {dp.at(1), {tp.id, {{0, 1}, {3, 3}}}});
  b.spare({{{}, {{6, 6}}}});
  return std::move(b).build();
}

TEST(Builder, BuildsWhatTheTextSays) {
  const Plan plan = everything();
  EXPECT_EQ(to_text(plan), kEverything);
  EXPECT_EQ(plan, parse_text(to_text(plan), "text"));
}

// The common start of all cases.
struct ValidPlan {
  Builder b;
  AxisRef dp = b.axis("dp", 2);
  ListRef cut = b.list("cut", {0, 1, 2});
  Dimension tok{"tok", 8};
  Dimension sample{"sample", 4};
  TensorRef one = b.tensor({.name = "A", .kind = "Activation", .part = {tok}, .sum = {sample}});
  TensorRef many = b.tensor({.name = "W", .kind = kWeight, .instances = 2, .part = {tok}});
};

std::string code_of(const std::function<void(ValidPlan&)>& shared,
                    const std::function<void(ValidPlan&, const BufferRef&)>& inside = {}) {
  return diagnostic_of([&] {
           ValidPlan valid;
           if (shared) shared(valid);
           valid.b.program("all");
           const BufferRef x = valid.b.buffer({.name = "x", .rows = 8, .row_bytes = 4});
           if (inside) inside(valid, x);
           static_cast<void>(std::move(valid.b).build());
         })
      .code;
}

TEST(Builder, RefusesWrongNamesAndMeshes) {
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.list("dp", {1}); }), "D103");
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.list("mod", {1}); }), "D103");
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.list("2nd", {1}); }), "D103");
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.tensor({.name = "A", .kind = "Activation"}); }), "D103");
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.axis("tp", 0); }), "D109");
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.axis("tp", kMaxRanks); }), "D109");
  EXPECT_EQ(code_of([](ValidPlan& s) {
              s.b.alias("both", {s.dp});
              s.b.axis("tp", 2);
            }),
            "D109");
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.spare({s.dp.at(1)}); }), "D108");
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.program("some", {s.dp.at(0)}); }), "D108");
  EXPECT_EQ(diagnostic_of([] { static_cast<void>(Builder().build()); }).code, "D109");
}

TEST(Builder, RefusesWrongBlocksAndValues) {
  const auto code = [](const std::function<void(ValidPlan&, const BufferRef&)>& inside) {
    return code_of({}, inside);
  };
  EXPECT_EQ(code_of([](ValidPlan& s) { s.b.let("n", 1); }), "D101");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef&) { s.b.list("late", {1}); }), "D111");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef&) { s.b.buffer({.name = "x"}); }), "D103");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef&) { s.b.buffer({.name = "to"}); }), "D103");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef&) { s.b.stream("main"); }), "D103");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef&) { s.b.let("dp", 1); }), "D103");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef&) { s.b.begin_repeat("i", 1); }), "D105");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef&) { s.b.end(); }), "D105");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef& x) {
              s.b.add({.action = Free{x}, .after = {{.name = "nobody"}}});
            }),
            "D205");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef& x) { s.b.goal(x, s.one[0]); }), "D112");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef& x) { s.b.goal(x, s.many); }), "D112");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef& x) { s.b.goal(x, s.one.updated()); }), "D112");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef& x) { s.b.goal(x, s.many[0](s.sample, 0, 1)); }),
            "D102");
  EXPECT_EQ(code([](ValidPlan& s, const BufferRef& x) {
              s.b.goal(x, s.one(s.tok, 0, 1).listed(s.tok, s.cut, 0, 1));
            }),
            "D103");
  EXPECT_EQ(
      code([](ValidPlan& s, const BufferRef& x) { s.b.goal(x, s.one.zero()(s.sample, 0, 1)); }),
      "D106");
}

TEST(Builder, NamesHoldToTheEndOfTheirBlock) {
  ValidPlan s;
  s.b.program("all");
  for (int k = 0; k < 2; ++k) {
    s.b.repeat("i", 2, [&](const Expr& i) { EXPECT_EQ(s.b.let("j", i), Expr::local(LocalId(1))); });
  }
  EXPECT_EQ(s.b.let("i", 3), Expr::local(LocalId(0)));
  const Plan plan = std::move(s.b).build();
  EXPECT_EQ(plan, parse_text(to_text(plan), "again"));
}

TEST(Builder, TellsFromWhichLineStatementsAre) {
  ValidPlan s;
  s.b.program("all");
  s.b.set_origin({7});
  const BufferRef x = s.b.buffer({.name = "x", .rows = 8, .row_bytes = 4});
  s.b.goal(x, s.one);
  s.b.add({.action = Compute{"k", {writes(x, s.one)}}});
  const Plan plan = std::move(s.b).build();
  EXPECT_EQ(std::get<Fact>(plan.programs[0].body[0].node).origin.line, 7);
  const auto& operation = std::get<Operation>(plan.programs[0].body[1].node);
  EXPECT_EQ(operation.origin.line, 7);
  EXPECT_EQ(std::get<Compute>(operation.action).accesses[0].origin.line, 7);
}

TEST(Builder, RefusesAnAliasOfAnAlias) {
  Builder b;
  const AxisRef x = b.alias("x", {b.axis("dp", 2), b.axis("tp", 2)});
  EXPECT_THROW(static_cast<void>(b.alias("y", {x})), InputError);
}

TEST(Builder, RefusesMembersOfABatchWithMoreWords) {
  Builder b;
  const AxisRef tp = b.axis("tp", 2);
  b.program("all");
  const BufferRef x = b.buffer({.name = "x", .rows = 2, .row_bytes = 4});
  const auto add = [&](const Operation& operation) {
    b.batch({.action = Batch{}}, [&] { b.add(operation); });
  };
  add({.action = Send{x(0, 1), tp.wrap(1), 0}});
  EXPECT_THROW(add({.async = true, .action = Send{x(0, 1), tp.wrap(1), 0}}), InputError);
}

}  // namespace
}  // namespace shiplap::plan
