#include "shiplap/plan/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "shiplap/plan/testing_internal.h"

namespace shiplap::plan {
namespace {

// A plan in the form in which it is printed, with every kind of statement.
const char* const kPrinted = R"(shiplap-plan 1
mesh dp=2 tp=4
alias all_of = tp dp
list cuts = 0 2 -3 9223372036854775807
list none_at_all =
tensor A[3] Activation tok 8
tensor G[2] WeightGrad shard 4 sum sample 8 use 2 scale 1/8 mask sample<=shard and cuts[use]=shard
tensor W Weight
table there
  message 0 1 0 2 3
  send 1 0 0 1
  receive 0 1 5 2
program first on dp=0 tp=0..1|3
  buffer x rows 8 row_bytes 2*tp+16 bf16
  buffer h rows 4 row_bytes 8 f32 host
  streams net, side
  keep h = W
  given x[0 +4] = A[tp-1] tok 0 +2 | 4 +2 by 2
  goal x[1 of cuts] = G[0] shard from cuts[0 +1] sum sample 2*dp +2 use 0 +1 scale 1/8
  a: compute zero
    writes h = G[1] sum none
  repeat i 4-dp
    let k = (i+1) mod 2
    when i>0 and k!=1
      f[i, k]: compute gemm after a, f[i-1, k] joined work gemm 4e9 flop 12*i bytes bf16 label one
        reads  x[4*i +2] = A[i]
        adds   h = new W
    end
  end
  compute sleep work 0.25 seconds times 2*tp
  s: @net batch after a async label "a;b"
    send x[0 +2] to tp+1 wrap tag 3 channel c
    receive x[2 +2] from tp-(1+dp) wrap add
    all_reduce h over (dp, tp)/side operator max scale 3/2
  end
  @net all_gather x[0 +1] to x over tp{0, dp+1} split cuts
  @side broadcast x over ranks{0, 1} root 1
  barrier over dp
  copy x[from cuts[0 +2]] to h[0 +2] add
  exchange x to h by there reversed over all_of/z add
  send x to rank 7-rank
  allocate h
  free h[0 +0]
program rest on rank=2|4..6
spare on dp=1 tp=3
)";

TEST(PlanText, IsPrintedAsItIsWritten) {
  EXPECT_EQ(to_text(parse_text(kPrinted, "test.plan")), kPrinted);
}

// The plan of a recorded program: what is moved, and the line of the program that moves it.
const char* const kRecorded = R"(shiplap-plan 1
mesh dp=2
values undeclared
source s0 "train \"1\".py" in "Trainer.<lambda>"
source s1 "/site packages/x.py"
program all on all
  buffer x rows 8 row_bytes 4 f32
  compute other work gemm 8 flop 4 bytes f32 at s1:2147483647 label x y
    reads  x[0 +2]
    adds   x[2 +2]
  batch async at s0:1
    send x to dp+1 wrap at s1:3
    receive x from dp-1 wrap tag dp at s0:2
  end
  compute other work 0.5 seconds at s0:4
  barrier over dp at s1:3 label at the end
)";

TEST(PlanText, OfARecordingIsPrintedAsItIsWritten) {
  const Plan plan = parse_text(kRecorded, "test.plan");
  EXPECT_EQ(to_text(plan), kRecorded);
  EXPECT_EQ(parse_plan(shiplap::to_text(to_json(plan)), "test.json"), plan);
}

TEST(PlanText, ValuesAreDeclaredOrNot) {
  const std::string head = "shiplap-plan 1\nmesh a=2\nvalues undeclared\n";
  const auto code = [&](const std::string& rest) {
    return diagnostic_of([&] { (void)parse_text(head + rest, "test.plan"); }).code;
  };
  EXPECT_EQ(code("tensor T Weight d 2\n"), "D111");
  const std::string program = "program p on all\nbuffer x rows 8 row_bytes 2 bf16\n";
  EXPECT_EQ(code(program + "given x = T\n"), "D111");
  EXPECT_EQ(code(program + "compute k\nreads x = T\n"), "D111");
  EXPECT_EQ(code(program + "values undeclared\n"), "D111");
  EXPECT_EQ(code("source flop \"f\"\n" + program), "D103");
  EXPECT_EQ(code(program + "barrier over a at s:1\n"), "D102");
  EXPECT_EQ(code("source s \"f\"\n" + program + "barrier over a at s:0\n"), "D104");
  EXPECT_EQ(code("source s f\n" + program), "D101");
}

const std::string kHead =
    "shiplap-plan 1\nmesh a=2 b=3\nlist l = 1 2\ntensor T[4] Weight d 6\n"
    "program p on all\nbuffer x rows 8 row_bytes 2 bf16\n";

Plan body(const std::string& text) { return parse_text(kHead + text, "test.plan"); }
std::string printed(const std::string& text) {
  const std::string all = to_text(body(text));
  return all.substr(all.find("bf16\n") + 5);
}

TEST(PlanText, BlanksCommentsAndSemicolonsDecideNothing) {
  const Plan plan = body("repeat i 3\n  f[i]: compute k\n    reads x = T[i]\nend\n");
  EXPECT_EQ(plan, body("repeat i 3;f[i]:compute k;reads x=T[i];end"));
  EXPECT_EQ(plan, body("\n\n# c\n\trepeat i 3 # c;d\r\n\r\nf [ i ] : compute   k\n\n  reads x = T "
                       "[ i ] ;; end"));
}

TEST(PlanText, AListGoesOnInTheNextLine) {
  const auto values = [](const std::string& text) {
    return parse_text("shiplap-plan 1\nmesh a=1\nlist l =" + text + "\nprogram p on all\n", "")
        .lists.at(0)
        .values;
  };
  EXPECT_EQ(values(" 1 2\n  3, -4\n\n 5 # six\n"), (std::vector<std::int64_t>{1, 2, 3, -4, 5}));
  EXPECT_EQ(values("\n 1"), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(values(""), (std::vector<std::int64_t>{}));
  EXPECT_EQ(values(" 9223372036854775807 -9223372036854775808").size(), 2U);
}

TEST(PlanText, ALongListIsPrintedInSeveralLinesAndReadBack) {
  Plan plan = body("");
  for (std::int64_t k = -300; k < 300; ++k) plan.lists[0].values.push_back(k * k * k);
  const std::string text = to_text(plan);
  EXPECT_EQ(parse_text(text, ""), plan);
  EXPECT_GT(std::ranges::count(text, '\n'), 30);
}

TEST(PlanText, NumbersMayHaveAnExponent) {
  EXPECT_EQ(body("let v = 4e9"), body("let v = 4000000000"));
  EXPECT_EQ(printed("compute k work gemm 4000000000 flop 1500000 bytes"),
            "  compute k work gemm 4e9 flop 1500000 bytes\n");
}

TEST(PlanText, NegativeNumbersReadAsTheyPrint) {
  for (const std::string text :
       {"-1", "-9223372036854775808", "a-(-1)", "-1*a", "-a*b", "-(a*b)", "a*(-b)", "a-(b-a)",
        "a-b-a", "(a+b)*a", "a div b*a", "a div (b*a)", "-(-a)", "a mod (-3)", "-l[-a]"}) {
    EXPECT_EQ(printed("let v = " + text), "  let v = " + text + "\n");
  }
  EXPECT_EQ(printed("let v = --1"), "  let v = 1\n");
  EXPECT_EQ(printed("send x[-1 +-2] to a-1"), "  send x[-1 +-2] to a-1\n");
  EXPECT_EQ(printed("send x to a+-1"), "  send x to a-1\n");
}

TEST(PlanText, OperationsMayBeNamedAfterAnyWord) {
  for (const std::string word : {"end", "reads", "buffer", "streams", "program", "list", "repeat",
                                 "when", "let", "keep", "compute", "batch", "after"}) {
    for (const std::string index : {"", "[3]"}) {
      const std::string text = word + index + ": compute " + word + " after " + word + index;
      const Plan plan = body("z: compute k\n" + text);
      const auto& operation = std::get<Operation>(plan.programs[0].body.at(1).node);
      EXPECT_EQ(operation.name.name, word);
      EXPECT_EQ(operation.after.at(0).name, word);
      EXPECT_EQ(std::get<Compute>(operation.action).kernel, word);
    }
  }
}

TEST(PlanText, ANumberMayHaveTheNameOfAnElementType) {
  EXPECT_EQ(printed("let f32 = 3\ncompute k work gemm f32 flop f32 bytes f32"),
            "  let f32 = 3\n  compute k work gemm f32 flop f32 bytes f32\n");
  EXPECT_EQ(printed("compute k work gemm f32 label f32"), "  compute k work gemm f32 label f32\n");
}

TEST(PlanText, ALabelRunsToTheEndOfTheLineOrIsQuoted) {
  const auto label = [](const std::string& text) {
    return std::get<Operation>(body("compute k label " + text).programs[0].body.at(0).node).label;
  };
  EXPECT_EQ(label("after all, async  # comment"), "after all, async");
  EXPECT_EQ(label("\"a # b; c\"  # comment"), "a # b; c");
  EXPECT_EQ(label("\" \""), " ");
  EXPECT_EQ(label("say \"hi\""), "say \"hi\"");
}

TEST(PlanText, MainIsTheNameOfWhatIsNotNamed) {
  EXPECT_EQ(body("@main barrier over a/main"), body("barrier over a"));
  EXPECT_EQ(body("send x to a+1 channel main"), body("send x to a+1"));
  EXPECT_EQ(body("all_reduce x to x over (a)"), body("all_reduce x over a"));
  EXPECT_EQ(body("all_reduce x over a operator sum scale 2/2"), body("all_reduce x over a"));
}

// ---- errors

std::vector<std::string> codes(const std::string& text) {
  std::vector<std::string> result;
  for (const Diagnostic& d : diagnostics_of([&] { (void)parse_text(text, "test.plan"); })) {
    result.push_back(d.code);
    EXPECT_FALSE(d.what.empty());
  }
  return result;
}
std::string code(const std::string& text) {
  const auto all = codes(text);
  return all.empty() ? "" : all.front();
}

TEST(PlanText, WhatIsNoPlanIsRefused) {
  EXPECT_EQ(code(""), "D100");
  EXPECT_EQ(code("mesh a=2"), "D100");
  EXPECT_EQ(code("shiplap-plan 2\n"), "D100");
  EXPECT_EQ(code("shiplap-plan 1\n"), "D109");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=2\n"), "D108");
  EXPECT_EQ(code("shiplap-plan 1\nlist l = 1\n"), "D109");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=2\nmesh b=2\n"), "D109");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=1048576 b=2\n"), "D109");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=0\n"), "D104");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=2 a=2\n"), "D103");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=2\nprogram p on a=2\n"), "D104");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=2\nprogram p on a=0\n"), "D108");
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=2\ntable t\nmessage 0 2 0 1 0\n"), "D113");
}

TEST(PlanText, AStatementThatMakesNoSenseIsRefused) {
  const auto in_body = [](const std::string& text) { return code(kHead + text); };
  EXPECT_EQ(in_body("compote k"), "D101");
  EXPECT_EQ(in_body("send y to a+1"), "D102");
  EXPECT_EQ(in_body("send x to a"), "D101");
  EXPECT_EQ(in_body("let a = 1"), "D103");
  EXPECT_EQ(in_body("let v = 1.5"), "D104");
  EXPECT_EQ(in_body("let v = 9223372036854775808"), "D104");
  EXPECT_EQ(in_body("end"), "D105");
  EXPECT_EQ(in_body("repeat i 3"), "D105");
  EXPECT_EQ(in_body("send x to a+1 b"), "D106");
  EXPECT_EQ(in_body("send x async to a+1"), "D101");
  EXPECT_EQ(in_body("send x[0] to a+1"), "D107");
  EXPECT_EQ(in_body("send x[0 + 1] to a+1"), "D107");
  EXPECT_EQ(in_body("compute k async"), "D111");
  EXPECT_EQ(in_body("send x[from l[0 +1]] to a+1"), "D111");
  EXPECT_EQ(in_body("batch\ncompute k\nend"), "D111");
  EXPECT_EQ(in_body("given x = T"), "D112");
  EXPECT_EQ(in_body("compute k after nobody"), "D205");
  EXPECT_EQ(in_body("given x = T[0] d 0 +1 d 1 +1"), "D103");
  EXPECT_EQ(in_body("let v = " + std::string(101, '(') + "1" + std::string(101, ')')), "D114");
  EXPECT_EQ(in_body("let v = " + std::string(101, '-') + "a"), "D114");
}

TEST(PlanText, ALabelIsUtf8SoThatJsonCanHoldIt) {
  EXPECT_EQ(code(kHead + "compute k label a\xFF b"), "D101");
  EXPECT_EQ(code(kHead + "compute k label \"a\xC3\""), "D101");
  EXPECT_EQ(printed("compute k label é, 漢"), "  compute k label é, 漢\n");
}

TEST(PlanText, ADimensionHasOneSizeInAllTensors) {
  EXPECT_EQ(code("shiplap-plan 1\nmesh a=1\ntensor S X d 2\ntensor T X d 3\nprogram p on all\n"),
            "D110");
}

TEST(PlanText, SeveralMistakesAreReportedAtOnceButNotWithoutEnd) {
  const auto two = codes(kHead + "compote k\nsend y to a+1\ncompute k\n");
  EXPECT_THAT(two, testing::ElementsAre("D101", "D102"));
  std::string many = kHead;
  for (int k = 0; k < 1000; ++k) many += "send y" + std::to_string(k) + " to a+1\n";
  EXPECT_EQ(codes(many).size(), 20U);
}

TEST(PlanText, ATooDeepExpressionDoesNotSpoilThoseAfterIt) {
  const std::string deep = std::string(101, '(') + "1" + std::string(101, ')');
  EXPECT_THAT(codes(kHead + "let v = " + deep + "\nlet w = ((1)+2)\nlet u = (a\nlet t = (a)\n"),
              testing::ElementsAre("D114", "D101"));
}

TEST(PlanText, VeryLongLinesTakeNoMoreThanTheirTime) {
  // Regression: inputs that took, or could take, quadratic time.
  std::string sum = "let v = a";
  for (int k = 0; k < 200'000; ++k) sum += "+a";
  EXPECT_EQ(code(kHead + sum), "D114");
  std::string after = "compute k after n0";
  for (int k = 1; k < 20'000; ++k) after += ", n" + std::to_string(k);
  EXPECT_EQ(codes(kHead + after).size(), 20U);
}

}  // namespace
}  // namespace shiplap::plan
