// Counts the operations of the plans: what is multiplied, what is sent, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"

namespace shiplap::overlap {
namespace {

using plan::RankProgram;
using plan::flat::Operation;

std::vector<RankProgram> expanded(const plan::Plan& plan) {
  std::vector<RankProgram> programs;
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    programs.push_back(plan::expand(plan, Rank(rank)));
  }
  return programs;
}

bool multiplies(const Operation& op) {
  const auto* const compute = std::get_if<plan::Compute>(&op.source->action);
  return compute != nullptr && compute->kernel == "gemm";
}

// How often each row of X is multiplied.
std::vector<int> multiplied(const RankProgram& program, std::int64_t rows) {
  std::vector<int> times(rows);
  for (const Operation& op : program.operations) {
    if (!multiplies(op)) continue;
    const plan::flat::Region& x = program.accesses_of(op)[0].region;
    for (std::int64_t k = 0; k < x.count; ++k) ++times[x.begin + k];
  }
  return times;
}

std::int64_t sent(const RankProgram& program) {
  std::int64_t bytes = 0;
  for (const Operation& op : program.operations) {
    if (std::holds_alternative<plan::Send>(op.source->action)) bytes += program.bytes_of(op.from);
  }
  return bytes;
}

struct Case {
  Choice choice;
  Problem problem;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const SupportedChoice& supported : supported_choices()) {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const int chunks : {1, 2, 4}) {
        for (const std::int64_t rows : {1, 4, 7, 23, 350}) {
          for (const Cut cut : {Cut::even, Cut::tapered}) {
            all.push_back({supported.choice,
                           {.m = rows,
                            .n = 7,
                            .k = 9,
                            .type = DType::f32,
                            .ranks = ranks,
                            .chunks = chunks,
                            .cut = cut}});
          }
        }
      }
    }
  }
  return all;
}

TEST(Plans, MultiplyEveryRowOnce) {
  for (const auto& [choice, problem] : cases()) {
    const plan::Plan plan = make_plan(choice, problem);
    for (const RankProgram& program : expanded(plan)) {
      EXPECT_THAT(multiplied(program, problem.m), testing::Each(1)) << plan_text(choice, problem);
    }
  }
}

// Plans are built, not parsed; this checks that their text is valid.
TEST(Plans, ReadBackAsTheyAre) {
  for (auto [choice, problem] : cases()) {
    if (problem.m > 7) continue;
    for (const Scaling scaling : {Scaling::none, Scaling::row, Scaling::blocks}) {
      problem.x = problem.w = {.scaling = scaling};
      const bool sums = choice.type == Type::reduce_scatter || choice.type == Type::all_reduce;
      if (sums) problem.sums = problem.x;
      EXPECT_EQ(plan::parse_text(plan_text(choice, problem), "again"), make_plan(choice, problem));
    }
  }
}

// A ring and direct messages are bandwidth-optimal: each row is sent once per other rank.
TEST(Plans, SendAsLittleAsThereIs) {
  for (const auto& [choice, problem] : cases()) {
    if (choice.method != Method::ring_exchange) continue;
    const plan::Plan plan = make_plan(choice, problem);
    std::int64_t bytes = 0;
    for (const RankProgram& program : expanded(plan)) bytes += sent(program);
    const std::int64_t row = 4 * (choice.type == Type::all_gather ? problem.k : problem.n);
    const std::int64_t times = choice.type == Type::all_reduce ? 2 : 1;
    EXPECT_EQ(bytes, times * (problem.ranks - 1) * problem.m * row) << to_string(choice);
  }
}

// The flop of all tiles of all ranks add up to that of the whole GEMM.
TEST(Plans, StateTheWorkOfTheWholeProduct) {
  for (const auto& [choice, problem] : cases()) {
    const plan::Plan plan = make_plan(choice, problem);
    double flop = 0;
    for (const RankProgram& program : expanded(plan)) {
      for (const Operation& op : program.operations) {
        const bool computes = std::holds_alternative<plan::Compute>(op.source->action);
        EXPECT_EQ(computes, op.source->work.has_value());
        if (!multiplies(op)) continue;
        flop += op.work.flop;
        double bytes = 0;  // a product touches each number of its three regions once
        for (const plan::flat::Access& access : program.accesses_of(op)) {
          bytes += static_cast<double>(program.bytes_of(access.region));
        }
        EXPECT_EQ(op.work.bytes, bytes) << plan_text(choice, problem);
      }
    }
    EXPECT_EQ(flop, 2.0 * static_cast<double>(problem.m * problem.n * problem.k))
        << plan_text(choice, problem);
  }
}

// A sum reads the received rows and the accumulator, and writes the accumulator.
TEST(Plans, StateTheWorkOfSums) {
  const Problem problem{.m = 6, .n = 5, .k = 4, .ranks = 3, .chunks = 2};
  const plan::Plan plan = make_plan({Type::reduce_scatter, Method::ring_exchange}, problem);
  for (const RankProgram& program : expanded(plan)) {
    for (const Operation& op : program.operations) {
      if (!std::holds_alternative<plan::Compute>(op.source->action) || multiplies(op)) continue;
      const auto accesses = program.accesses_of(op);
      const bool adds = accesses[1].kind == plan::Access::Kind::adds;
      const std::int64_t bytes = program.bytes_of(accesses[0].region) +
                                 (adds ? 2 : 1) * program.bytes_of(accesses[1].region);
      EXPECT_EQ(op.work.bytes, static_cast<double>(bytes));
      EXPECT_EQ(op.work.flop, adds ? 5 : 0);  // a chunk is one row of five numbers
    }
  }
}

TEST(Plans, AtomicProductsAreOneLaunch) {
  for (const auto& [choice, problem] : cases()) {
    const plan::Plan plan = make_plan(choice, problem);
    for (const RankProgram& program : expanded(plan)) {
      for (const Operation& op : program.operations) {
        if (!multiplies(op)) continue;
        EXPECT_EQ(op.source->joined, choice.atomic);
      }
    }
  }
}

TEST(Plans, ChunksAreAsEvenAsCanBe) {
  const std::string text = plan_text({Type::all_gather, Method::ring_exchange},
                                     {.m = 11, .n = 3, .k = 2, .ranks = 3, .chunks = 2});
  EXPECT_THAT(text, testing::HasSubstr("list cut = 0 4 8 11\n"));
  EXPECT_THAT(text, testing::HasSubstr("list at = 0 2 4 6 8 10 11\n"));
}

TEST(Plans, TaperedChunksAreSmallWhereNothingHidesThem) {
  Problem problem{.m = 1000, .n = 3, .k = 2, .ranks = 2, .chunks = 4, .cut = Cut::tapered};
  EXPECT_THAT(plan_text({Type::all_gather, Method::ring_exchange}, problem),
              testing::HasSubstr("list at = 0 196 356 452 500 696 856 952 1000\n"));
  EXPECT_THAT(plan_text({Type::reduce_scatter, Method::ring_exchange}, problem),
              testing::HasSubstr("list at = 0 48 144 304 500 548 644 804 1000\n"));
  problem.m = 21;
  EXPECT_THAT(plan_text({Type::all_reduce, Method::pipeline}, problem),
              testing::HasSubstr("list at = 0 1 3 6 11 12 14 17 21\n"));
}

TEST(Plans, WhatIsScatteredInBulkHasItsOwnShape) {
  const Choice bulk{Type::reduce_scatter, Method::bulk};
  const Problem problem{
      .m = 9, .n = 3, .k = 4, .type = DType::f32, .ranks = 2, .bulk_rows = 5, .bulk_columns = 7};
  const std::string text = plan_text(bulk, problem);
  EXPECT_THAT(text, testing::HasSubstr("buffer y rows 9 row_bytes 12 f32"));
  EXPECT_THAT(text, testing::HasSubstr("buffer z rows 5 row_bytes 28 f32"));
  EXPECT_THAT(text, testing::HasSubstr("buffer out rows cut[tp+1]-cut[tp] row_bytes 28 f32"));
  EXPECT_THAT(text, testing::HasSubstr("list cut = 0 3 5\n"));
  const plan::Plan plan = make_plan(bulk, problem);
  for (const RankProgram& program : expanded(plan)) {
    EXPECT_THAT(multiplied(program, 9), testing::Each(1));
  }
}

std::string error_of(const Choice& choice, const Problem& problem) {
  try {
    static_cast<void>(make_plan(choice, problem));
  } catch (const InputError& error) {
    const Diagnostic& diagnostic = error.diagnostics().front();
    return diagnostic.code + ": " + diagnostic.what + "; " + diagnostic.help;
  }
  return "";
}

TEST(Plans, SizesThatMakeNoSenseAreRefused) {
  const Choice gather{Type::all_gather, Method::ring_exchange};
  const Choice scatter{Type::reduce_scatter, Method::ring_exchange};
  const Problem sound{.m = 4, .n = 3, .k = 3, .ranks = 3};
  EXPECT_EQ(error_of(gather, sound), "");
  EXPECT_EQ(error_of(scatter, sound), "");
  Problem problem = sound;
  problem.ranks = 0;
  EXPECT_EQ(error_of(gather, problem), "D801: the number of ranks: 0; choose 1 to 1024");
  problem = sound;
  problem.m = 0;
  EXPECT_EQ(error_of(gather, problem), "D801: the rows of X: 0; choose 1 to 2147483646");
  problem = sound;
  problem.bulk_rows = -1;
  EXPECT_EQ(error_of({Type::reduce_scatter, Method::bulk}, problem),
            "D801: the rows of what is scattered: -1; choose 0 to 2147483646");
  problem = sound;
  problem.n = 2;
  EXPECT_EQ(error_of(gather, problem), "D801: the columns of W: 2; choose 3 to 2147483646");
  EXPECT_EQ(error_of(scatter, problem), "");
  problem = sound;
  problem.k = 2;
  EXPECT_EQ(error_of(gather, problem), "");
  EXPECT_EQ(error_of(scatter, problem), "D801: the columns of X: 2; choose 3 to 2147483646");
  problem = sound;
  problem.chunks = 5000;
  EXPECT_EQ(error_of(gather, problem),
            "D801: the number of chunks of a rank's rows: 5000; choose 1 to 4096");
  problem = sound;
  problem.m = problem.n = std::int64_t{1} << 30;
  EXPECT_EQ(error_of(gather, problem),
            "D801: the columns of X, for these rows of X and columns of W: 3; choose 0 to 2");
}

TEST(PlanText, RefusesFormsThatThereAreNot) {
  const Choice gather{Type::all_gather, Method::ring_exchange};
  const Choice scatter{Type::reduce_scatter, Method::ring_exchange};
  const Problem right{.m = 8, .n = 8, .k = 8, .ranks = 2};
  EXPECT_NO_THROW(static_cast<void>(plan_text(gather, right)));
  Problem wrong = right;
  wrong.x = {.scaling = Scaling::row, .type = DType::bf16};
  EXPECT_THROW(static_cast<void>(plan_text(gather, wrong)), InputError);
  wrong = right;
  wrong.sums = {.scaling = Scaling::blocks};
  EXPECT_THROW(static_cast<void>(plan_text(gather, wrong)), InputError);
  EXPECT_NO_THROW(static_cast<void>(plan_text(scatter, wrong)));
  wrong.groups = -1;
  EXPECT_THROW(static_cast<void>(plan_text(scatter, wrong)), InputError);
}

TEST(PlanText, RowsHaveTheBytesThatAreSaid) {
  for (const Scaling scaling : {Scaling::none, Scaling::row, Scaling::blocks}) {
    const QuantFormat format{.scaling = scaling};
    for (const std::int64_t inner : {2, 31, 32, 33, 64, 100}) {
      const plan::Plan plan =
          make_plan({Type::all_gather, Method::ring_exchange},
                    {.m = 3, .n = 4, .k = inner, .ranks = 2, .x = format, .w = format});
      const RankProgram program = plan::expand(plan, Rank(0));
      const std::int64_t due = row_bytes(format, DType::bf16, inner);
      EXPECT_EQ(program.buffers[0].row_bytes, due);
      EXPECT_EQ(program.buffers[1].row_bytes, due);
      const std::int64_t scales = scaling == Scaling::row ? 4 : (inner + 31) / 32;
      EXPECT_EQ(due, scaling == Scaling::none ? 2 * inner : inner + scales);
    }
  }
}

// Half the bytes of bf16, and the scales.
TEST(PlanText, CodesHalveWhatIsSent) {
  for (const Case& one : cases()) {
    if (one.choice.method != Method::ring_exchange) continue;
    Problem quantized = one.problem;
    quantized.type = DType::bf16;
    quantized.n = quantized.k = 64;
    const Problem high_precision = quantized;
    const bool sums = one.choice.type != Type::all_gather && one.choice.type != Type::none;
    quantized.x = quantized.w = {.scaling = Scaling::blocks};
    if (sums) quantized.sums = quantized.x;
    const plan::Plan high_precision_plan = make_plan(one.choice, high_precision);
    const plan::Plan quantized_plan = make_plan(one.choice, quantized);
    const auto a = expanded(high_precision_plan);
    const auto b = expanded(quantized_plan);
    for (std::size_t rank = 0; rank < a.size(); ++rank) {
      EXPECT_EQ(sent(b[rank]) * 128, sent(a[rank]) * 66) << to_string(one.choice);
    }
  }
}

}  // namespace
}  // namespace shiplap::overlap
