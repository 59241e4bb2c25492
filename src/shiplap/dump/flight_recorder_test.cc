#include "shiplap/dump/flight_recorder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap::dump {
namespace {

std::string group(const std::string& name, const std::string& ranks) {
  return fmt::format(R"("{0}": {{"name": "{0}", "desc": "mesh_{0}", "ranks": "{1}"}})", name,
                     ranks);
}

std::string entry(const std::string& name, const std::string& in_group, int sequence) {
  return fmt::format(
      R"({{"record_id": {1}, "process_group": ["{2}", "mesh_{2}"], "profiling_name": "{0}",
          "collective_seq_id": {1}, "p2p_seq_id": 0, "is_p2p": false, "state": "completed",
          "input_sizes": [[4, 2]], "input_dtypes": ["Float"], "output_sizes": [[8]],
          "output_dtypes": ["Float"], "time_created_ns": 5, "timeout_ms": 600000}})",
      name, sequence, in_group);
}

std::string dump_text(const std::vector<std::string>& groups,
                      const std::vector<std::string>& entries) {
  return fmt::format(R"({{"version": "2.10", "pg_config": {{{}}}, "entries": [{}]}})",
                     fmt::join(groups, ","), fmt::join(entries, ","));
}

JobDump read(const std::vector<std::pair<std::string, std::string>>& files) {
  JobReader reader;
  for (const auto& [name, text] : files) reader.add({.name = name, .bytes = text});
  return std::move(reader).finish();
}

TEST(FlightRecorder, CallsHaveGroupsAndSignatures) {
  const JobDump job =
      read({{"rank_0", dump_text({group("tp", "[0, 1]")}, {entry("nccl:all_gather", "tp", 7)})}});
  ASSERT_EQ(job.ranks.size(), 1U);
  const Call& call = job.ranks[0].calls.at(0);
  EXPECT_EQ(call.sequence, 7);
  EXPECT_EQ(call.state, CallState::completed);
  EXPECT_EQ(job.ranks[0].library, "nccl");
  EXPECT_TRUE(job.ranks[0].evicted);
  EXPECT_EQ(job.groups[call.group].ranks, (std::vector<std::int32_t>{0, 1}));
  const Signature& signature = job.signatures[call.signature];
  EXPECT_EQ(signature.operation, "all_gather");
  EXPECT_EQ(signature.input_sizes, (Sizes{{4, 2}}));
  EXPECT_EQ(signature.output_types, (std::vector<std::string>{"Float"}));
  EXPECT_EQ(job.world, 2);
}

// The groups of a process on a mesh have one rank in common: itself.
TEST(FlightRecorder, TheRankIsThatOfTheContent) {
  const std::string text =
      dump_text({group("dp", "[1, 3]"), group("tp", "[2, 3]")}, {entry("nccl:barrier", "tp", 0)});
  EXPECT_EQ(read({{"nccl_trace_rank_0", text}}).ranks.at(0).rank, 3);
  const std::string send =
      dump_text({group("pp", "[4, 6, 8]")}, {entry("nccl:send 1->2", "pp", 0)});
  const JobDump job = read({{"whatever", send}});
  EXPECT_EQ(job.ranks.at(0).rank, 6);
  EXPECT_EQ(job.ranks.at(0).calls.at(0).peer, 8);
  EXPECT_EQ(job.ranks.at(0).calls.at(0).kind, CallKind::send);
}

TEST(FlightRecorder, TheNameTellsTheRankIfTheContentDoesNot) {
  const std::string text =
      dump_text({group("world", "[0, 1, 2]")}, {entry("nccl:barrier", "world", 0)});
  const JobDump job = read({{"host7_rank_2_pid91", text}, {"host7_rank_0_pid4", text}});
  EXPECT_EQ(job.ranks.at(0).rank, 0);
  EXPECT_EQ(job.ranks.at(1).rank, 2);
  EXPECT_EQ(job.find(1), nullptr);
  const JobDump numbers = read({{"h9_1.pkl", text}, {"h9_2.pkl", text}});
  EXPECT_EQ(numbers.ranks.at(1).rank, 2);
}

TEST(FlightRecorder, ARankThatNobodyKnowsIsAnError) {
  const std::string text =
      dump_text({group("world", "[0, 1, 2]")}, {entry("nccl:barrier", "world", 0)});
  try {
    (void)read({{"dump_a", text}, {"dump_b", text}});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics().front().code, "D014");
  }
}

// The same groups, one file written as JSON and one as pickle: one dump.
TEST(FlightRecorder, TheSameDumpTwiceCountsOnce) {
  const std::string text =
      dump_text({group("world", "[0, 1]")}, {entry("nccl:barrier", "world", 0)});
  const JobDump job = read({{"rank_0.json", text}, {"rank_0.pkl", text}, {"rank_1.json", text}});
  ASSERT_EQ(job.ranks.size(), 2U);
  EXPECT_EQ(job.ranks[0].calls.size(), 1U);
}

TEST(FlightRecorder, TwoBackendsOfARankAreMergedByTime) {
  const std::string nccl =
      dump_text({group("world", "[0, 1]")}, {entry("nccl:barrier", "world", 0)});
  const std::string gloo = dump_text({group("cpu", "[0, 1]")}, {entry("gloo:barrier", "cpu", 0)});
  const JobDump job = read({{"nccl_rank_0", nccl}, {"gloo_rank_0", gloo}});
  ASSERT_EQ(job.ranks.size(), 1U);
  EXPECT_EQ(job.ranks[0].calls.size(), 2U);
  EXPECT_EQ(job.ranks[0].files.size(), 2U);
}

// gloo writes all its groups under one key without a name.
TEST(FlightRecorder, MembersOfANamelessGroupAreThoseOfTheDefaultGroupIfItIsTheOnlyOne) {
  const std::string nameless = R"("": {"name": "", "desc": "", "ranks": "[0, 1]"})";
  const JobDump one = read({{"rank_0", dump_text({nameless}, {entry("gloo:barrier", "0", 0)})}});
  EXPECT_EQ(one.groups[one.ranks[0].calls[0].group].ranks.size(), 2U);
  const JobDump two = read({{"rank_0", dump_text({nameless}, {entry("gloo:barrier", "8", 0)})}});
  EXPECT_TRUE(two.groups[two.ranks[0].calls[0].group].ranks.empty());
}

// Also the largest number, which has no successor.
TEST(FlightRecorder, ARankBeyondAllJobsIsAnError) {
  for (const std::string ranks : {"[0, 2000000000]", "[0, 2147483647]"}) {
    const std::string text =
        dump_text({group("world", ranks)}, {entry("nccl:barrier", "world", 0)});
    EXPECT_THROW((void)read({{"rank_0", text}}), InputError) << ranks;
  }
  const std::string text = dump_text({}, {entry("nccl:barrier", "world", 0)});
  EXPECT_THROW((void)read({{"rank_2147483647", text}}), InputError);
}

TEST(FlightRecorder, OtherJsonIsNoDump) {
  EXPECT_THROW((void)read({{"config.json", R"({"hidden_size": 4096})"}}), InputError);
  EXPECT_THROW((void)read({{"list.json", "[1, 2]"}}), InputError);
}

}  // namespace
}  // namespace shiplap::dump
