#include "shiplap/plan/unroll.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

const char* const kEverything = R"(shiplap-plan 1
mesh dp=2 tp=2 spare_axis=1
list order = 3 1 2 0
list cut = 0 1 2
tensor W[2] Weight shard 2
tensor O OptState shard 2
tensor X Activation tok 4 head 2
tensor P Partial tok 4 head 2 sum ff 2 sample 4
table t
  message 0 1 0 1 0
program p on dp=0
  buffer w rows 2*tp+2 row_bytes 8 bf16
  buffer x rows 4 row_bytes 8 bf16
  streams net
  keep w[0 +2] = W[tp]
  given x = X head tp +1 tok from order[0 +4]
  a[-1]: compute other work gemm 4*tp flop 2 bytes bf16 label hello
    reads x = X tok 0 +4 head tp +1
    writes x = P head tp +1 sum sample 2*tp +2 scale 1/2
  repeat s 2
    when s+tp!=1
      a[s]: @net batch after a[s-1], a[-1]
        send x[s +1] to tp+1 wrap tag s channel c
        receive x[2+s +1] from tp-1 wrap add tag s
      end
    end
    copy x[from order[2*s +2]] to x[2*s +2] after a[s]
  end
  compute other work 0.5 seconds times 2*tp
    writes x = P head tp +1 sum none
  all_gather x[tp +1] to x[0 +2] over (dp, tp){0, 1}/k split cut async
  reduce x over tp operator max scale 1/3 root tp
  barrier over dp{0}
  exchange x[0 +1] to x[2 +1] by t over tp add
  allocate x[tp of cut]
  free x[tp of cut]
spare on dp=1
)";

std::vector<std::int64_t> numbers(const RankProgram& program, const flat::Region& region) {
  std::vector<std::int64_t> all = {region.buffer.value, region.begin, region.count};
  for (std::int64_t k = 0; region.listed >= 0 && k < region.count; ++k) {
    all.push_back(program.listed_rows[region.listed + k]);
  }
  return all;
}

std::vector<std::int64_t> numbers(const RankProgram& program, const flat::Value& value) {
  std::vector<std::int64_t> all = {
      value.tensor.value,      value.is_new,    value.zero, value.instance,
      value.scale.numerator(), value.runs.count};
  for (const flat::Run& run : program.runs_of(value)) {
    all.insert(all.end(), {run.dimension.value, run.begin, run.count, run.stride});
  }
  return all;
}

std::vector<std::int64_t> numbers(const RankProgram& program, const flat::Operation& operation) {
  std::vector<std::int64_t> all = {operation.stream.value, operation.batch, operation.peer.value,
                                   operation.tag,          operation.root,  operation.group.value,
                                   operation.source->async};
  for (const auto* region : {&operation.from, &operation.to}) {
    const auto more = numbers(program, *region);
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const flat::Access& access : program.accesses_of(operation)) {
    for (const auto& more : {numbers(program, access.region), numbers(program, access.value)}) {
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  return all;
}

void expect_same_facts(const RankProgram& a, const RankProgram& b) {
  for (const auto facts : {&RankProgram::given, &RankProgram::goal}) {
    ASSERT_EQ((a.*facts).size(), (b.*facts).size());
    for (std::size_t k = 0; k < (a.*facts).size(); ++k) {
      EXPECT_EQ(numbers(a, (a.*facts)[k].region), numbers(b, (b.*facts)[k].region));
      EXPECT_EQ(numbers(a, (a.*facts)[k].value), numbers(b, (b.*facts)[k].value));
    }
  }
}

// "send" of "send [i=1]": an unrolled operation is in no loop.
std::string without_loops(const std::string& text) { return text.substr(0, text.find(" [")); }

void expect_same(const RankProgram& a, const RankProgram& b) {
  expect_same_facts(a, b);
  ASSERT_EQ(a.operations.size(), b.operations.size());
  EXPECT_EQ(a.dependencies, b.dependencies);
  EXPECT_EQ(a.groups, b.groups);
  EXPECT_TRUE(b.absent.empty());
  for (std::size_t k = 0; k < a.operations.size(); ++k) {
    const flat::Operation& x = a.operations[k];
    const flat::Operation& y = b.operations[k];
    EXPECT_EQ(without_loops(a.describe(x)), b.describe(y));
    EXPECT_EQ(numbers(a, x), numbers(b, y));
    EXPECT_EQ(std::tuple(x.work.flop, x.work.bytes, x.work.seconds),
              std::tuple(y.work.flop, y.work.bytes, y.work.seconds));
  }
}

TEST(Unroll, EveryRankExpandsToTheSame) {
  const Plan plan = parse_text(kEverything, "everything.plan");
  const Plan flat = unrolled(plan);
  for (std::int32_t r = 0; r < 4; ++r) {
    SCOPED_TRACE(r);
    expect_same(expand(plan, Rank(r)), expand(flat, Rank(r)));
  }
}

TEST(Unroll, HasOneProgramPerRankThatIsNoSpare) {
  const Plan flat = unrolled(parse_text(kEverything, "everything.plan"));
  ASSERT_EQ(flat.programs.size(), 2U);
  EXPECT_EQ(flat.programs[1].name, "r1");
  EXPECT_EQ(flat.spares.size(), 1U);
}

TEST(Unroll, ReadsBackAsText) {
  const Plan flat = unrolled(parse_text(kEverything, "everything.plan"));
  EXPECT_EQ(parse_text(to_text(flat), "flat.plan"), flat);
}

TEST(Unroll, OnceIsEnough) {
  const Plan flat = unrolled(parse_text(kEverything, "everything.plan"));
  EXPECT_EQ(unrolled(flat), flat);
}

TEST(Unroll, SaysNothingOfDimensionsThatAreWhole) {
  const std::string text = to_text(unrolled(parse_text(kEverything, "everything.plan")));
  EXPECT_NE(text.find("= P head 0 +1 sum sample 0 +2 scale 1/2"), std::string::npos) << text;
}

}  // namespace
}  // namespace shiplap::plan
