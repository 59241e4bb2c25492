#include "shiplap/dump/nccl_ras.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/dump/read.h"

namespace shiplap::dump {
namespace {

using Kind = RasState::Kind;

// Made-up jobs, in the format of NCCL 2.26.
constexpr std::string_view kHead =
    "NCCL version 2.26.2 compiled with CUDA 12.6\n"
    "CUDA runtime version 12060, driver version 12060\n\n"
    "Job summary\n===========\n\n"
    "  Nodes  Processes         GPUs  Processes     GPUs\n"
    "(total)   per node  per process    (total)  (total)\n"
    "      2          4            1          8        8\n\n"
    "Communicators... (0.01s)\n=============\n\n"
    "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    "    #  in group  per comm  per node  per comm  in group\n";
constexpr std::string_view kRows =
    "    0         1         2         4         8         8   RUNNING  MISMATCH\n"
    "    1         4         2         1         2         8   RUNNING      OK\n";
constexpr std::string_view kErrors = "\nErrors\n======\n\n";
constexpr std::string_view kWarnings = "Warnings\n========\n\n";

std::string text_of(std::string_view errors, std::string_view warnings) {
  std::string text(kHead);
  return text.append(kRows).append(kErrors).append(errors).append(kWarnings).append(warnings);
}

RasReport read_one(std::string_view bytes, std::string_view file) {
  const std::vector<RasReport> reports = read_nccl_ras(bytes, file);
  EXPECT_EQ(reports.size(), 1U);
  return reports.back();
}

const RasState& only_state(const RasReport& report, std::size_t index = 0) {
  return report.communicators.at(0).states.at(index);
}

TEST(NcclRas, ReadsTheSummary) {
  const std::string text = text_of("", "");
  ASSERT_TRUE(is_nccl_ras(text));
  const RasReport report = read_one(text, "ras.txt");
  EXPECT_EQ(report.version, "2.26.2");
  EXPECT_EQ(report.gpus, 8);
  ASSERT_EQ(report.groups.size(), 2U);
  EXPECT_EQ(report.groups[1].communicators, 4);
  EXPECT_EQ(report.groups[1].size, 2);
  EXPECT_EQ(report.groups[0].errors, "MISMATCH");
  EXPECT_TRUE(report.communicators.empty());
  EXPECT_FALSE(report.truncated);
}

TEST(NcclRas, ReadsCountsByKind) {
  const RasReport report = read_one(
      text_of("",
              "#0-0 (27a079b828ff1a75) MISMATCH\n"
              "  Communicator ranks have different AllGather operation counts\n"
              "  6 ranks have launched up to operation 6650\n"
              "  2 ranks have launched up to operation 6649\n"
              "  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1\n"
              "  Rank 7 -- GPU 3 (NVML 5) managed by process 203 on node fe80::2\n\n"
              "  Communicator ranks have different AllReduce operation counts\n"
              "  7 ranks have launched up to operation 12\n"
              "  Rank 1 has not launched any operations -- GPU 1 managed by process 101 on node "
              "10.0.0.1\n\n"),
      "ras.txt");
  ASSERT_EQ(report.communicators.size(), 1U);
  const RasCommunicator& communicator = report.communicators[0];
  EXPECT_EQ(communicator.name, "#0-0");
  EXPECT_EQ(communicator.hash, "27a079b828ff1a75");
  EXPECT_EQ(communicator.size, 8);
  ASSERT_EQ(communicator.states.size(), 4U);
  EXPECT_EQ(communicator.states[0].count, 6);
  EXPECT_TRUE(communicator.states[0].members.empty());
  const RasState& behind = communicator.states[1];
  EXPECT_EQ(behind.what, "AllGather");
  EXPECT_EQ(behind.operations, 6649);
  ASSERT_EQ(behind.members.size(), 2U);
  EXPECT_EQ(behind.members[1], (RasMember{7, {"fe80::2", 203, "3 (NVML 5)"}}));
  EXPECT_EQ(communicator.states[3].what, "AllReduce");
  EXPECT_EQ(communicator.states[3].operations, 0);
  EXPECT_EQ(communicator.states[3].members.at(0).process.pid, 101);
}

// Before 2.26: one count for all kinds, UNKNOWN, and missing ranks without processes.
TEST(NcclRas, ReadsOldVersions) {
  const RasReport report = read_one(
      text_of(
          "INCOMPLETE\n  Missing communicator data from 2 job processes\n"
          "  Process 201 on node 10.0.0.2 managing GPUs 1,2\n"
          "  Process 203 on node 10.0.0.2 managing GPU 3\n\n"
          "#0-0 (27a079b828ff1a75) INCOMPLETE\n"
          "  Missing communicator data from 3 ranks\n"
          "  The missing ranks: 5,6,7\n\n",
          "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n"
          "#0-0 (27a079b828ff1a75) MISMATCH\n"
          "  Communicator ranks have different status\n"
          "  4 ranks have status RUNNING\n"
          "  Rank 4 has status UNKNOWN\n"
          "  Communicator ranks have different collective operation counts\n"
          "  3 ranks have launched up to operation 40\n"
          "  Rank 2 has launched up to operation 39 -- [process information not found]\n\n"),
      "ras.txt");
  ASSERT_EQ(report.silent.size(), 2U);
  EXPECT_EQ(report.silent[0], (RasProcess{"10.0.0.2", 201, "1,2"}));
  EXPECT_EQ(report.silent_count, 2);
  ASSERT_EQ(report.communicators.size(), 1U);
  EXPECT_EQ(only_state(report).kind, Kind::missing);
  ASSERT_EQ(only_state(report).members.size(), 3U);
  EXPECT_EQ(only_state(report).members[2].rank, 7);
  EXPECT_EQ(only_state(report, 2).what, "UNKNOWN");
  EXPECT_EQ(only_state(report, 4).what, "");
  EXPECT_EQ(only_state(report, 4).members.at(0).rank, 2);
  EXPECT_EQ(only_state(report, 4).members.at(0).process.pid, -1);
}

TEST(NcclRas, ReadsDeadProcessesAndErrors) {
  const RasReport report = read_one(
      text_of("DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
              "  Process 203 on node 10.0.0.2 managing GPU 3\n\n"
              "#0-0 (27a079b828ff1a75) ERROR\n"
              "  Initialization error on 1 rank\n"
              "  Rank 3 reported System error -- GPU 3 managed by process 103 on node 10.0.0.1\n"
              "  Asynchronous errors on 2 ranks\n"
              "  2 ranks reported Remote process error\n"
              "  Rank 0 -- GPU 0 managed by process 100 on node 10.0.0.1\n"
              "  Rank 1 -- GPU 1 managed by process 101 on node 10.0.0.1\n\n",
              ""),
      "ras.txt");
  EXPECT_EQ(report.dead_count, 1);
  EXPECT_EQ(report.dead.at(0).pid, 203);
  EXPECT_EQ(only_state(report).what, "System error during initialization");
  EXPECT_EQ(only_state(report, 1).what, "Remote process error");
  EXPECT_EQ(only_state(report, 1).members.size(), 2U);
}

TEST(NcclRas, NodesMayDiffer) {
  std::string text = text_of("", "");
  const std::string row = "      2          4            1          8        8\n";
  const std::string five = "(total)   per node  per process    (total)  (total)\n";
  text.replace(text.find(five), five.size() + row.size(),
               "      1          5            1\n      1          3            1\n\n"
               "  Nodes  Processes         GPUs\n(total)    (total)      (total)\n"
               "      2          8            8\n");
  EXPECT_EQ(read_one(text, "ras.txt").gpus, 8);
}

TEST(NcclRas, SurroundingTextIsLeftOut) {
  std::string text = "SERVER PROTOCOL 2\r\n[rank118]:[E603] watchdog\nRank 3 is late\n" +
                     text_of("",
                             "#0-0 (01) MISMATCH\n  Something new in 2.40\n"
                             "  Rank 3 has status RUNNING -- GPU 3 managed by process 1 on "
                             "node n\n\n[rank1]: bye\n");
  for (std::size_t at = text.find("NCCL v"); at < text.size(); ++at) {
    if (text[at] == '\n' && text[at - 1] != '\r') text.insert(at++, "\r");
  }
  text.replace(text.find("2.26.2"), 6, "3.0.0+beta");
  const RasReport report = read_one(text, "ras.txt");
  EXPECT_EQ(report.version, "3.0.0+beta");
  ASSERT_EQ(report.communicators.size(), 1U);
  EXPECT_EQ(report.communicators[0].hash, "0000000000000001");
  EXPECT_EQ(only_state(report).members.at(0).process.node, "n");
}

// Half a number is not read as a number.
TEST(NcclRas, EveryPrefixIsReadOrRejected) {
  const std::string text =
      text_of("",
              "#0-0 (27a079b828ff1a75) MISMATCH\n"
              "  Communicator ranks have different AllReduce operation counts\n"
              "  7 ranks have launched up to operation 6650\n"
              "  Rank 2 has launched up to operation 6649 -- GPU 2 managed by process 102 on "
              "node 10.0.0.1\n\n");
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::string_view prefix = std::string_view(text).substr(0, size);
    if (!is_nccl_ras(prefix)) continue;
    const RasReport report = read_one(prefix, "ras.txt");
    for (const RasCommunicator& communicator : report.communicators) {
      for (const RasState& state : communicator.states) {
        EXPECT_TRUE(state.operations == 6650 || state.operations == 6649);
      }
    }
    EXPECT_EQ(report.truncated, size < text.find(kWarnings) + 9 || prefix.back() != '\n');
  }
}

constexpr std::string_view kJson = R"({
  "nccl_version": "2.29.1",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2026-01-19 13:06:53",
  "communicators_count": 1,
  "communicators": [
    {
      "hash": "0xae94423cfbb2ef4a",
      "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
      "size": 3,
      "ranks_count": 2,
      "missing_ranks_count": 1,
      "ranks": [
        { "rank": 0, "host": "10.0.0.1", "pid": 100, "cuda_dev": 0, "nvml_dev": 4,
          "status": { "init_state": 0, "async_error": 6, "finalize_called": false,
                      "destroy_flag": false, "abort_flag": false },
          "collective_counts": { "Broadcast": 0, "Reduce": 0, "AllGather": 7, "AllReduce": 5 } },
        { "rank": 1, "host": "10.0.0.1", "pid": 101, "cuda_dev": 1, "nvml_dev": 1,
          "status": { "init_state": 7, "async_error": 0, "finalize_called": false,
                      "destroy_flag": false, "abort_flag": false },
          "collective_counts": { "Broadcast": 0, "Reduce": 0, "AllGather": 7, "AllReduce": 4 } }
      ],
      "missing_ranks": [
        { "rank": 2, "host": "10.0.0.2", "pid": 200, "cuda_dev": 0, "nvml_dev": 0,
          "status": { "unresponsive": true, "considered_dead": true } }
      ]
    }
  ],
  "ras": { "collection_time_sec": 0.000, "timeouts_count": 0 }
}
)";

TEST(NcclRas, ReadsJson) {
  ASSERT_TRUE(is_nccl_ras(kJson));
  const RasReport report = read_one(kJson, "ras.json");
  EXPECT_EQ(report.version, "2.29.1");
  EXPECT_EQ(report.time, "2026-01-19 13:06:53");
  EXPECT_EQ(report.gpus, 3);
  EXPECT_EQ(report.dead, (std::vector<RasProcess>{{"10.0.0.2", 200, "0"}}));
  EXPECT_EQ(report.dead_count, 1);
  const RasCommunicator& communicator = report.communicators.at(0);
  EXPECT_EQ(communicator.hash, "ae94423cfbb2ef4a");
  EXPECT_EQ(communicator.launched, 23);
  ASSERT_EQ(communicator.states.size(), 6U);
  EXPECT_EQ(communicator.states[0].kind, Kind::missing);
  EXPECT_EQ(communicator.states[1].what, "Remote process error");
  EXPECT_EQ(communicator.states[2].what, "INIT");
  EXPECT_EQ(communicator.states[3].what, "RUNNING");
  EXPECT_EQ(communicator.states[5].operations, 4);
  EXPECT_EQ(communicator.states[4].members.at(0).process.gpu, "0 (NVML 4)");
}

TEST(NcclRas, JsonThatEndsEarlyLosesItsLastRank) {
  const RasReport report = read_one(kJson.substr(0, kJson.find("\"pid\": 101") + 9), "ras.json");
  EXPECT_TRUE(report.truncated);
  ASSERT_EQ(report.communicators.size(), 1U);
  EXPECT_EQ(report.communicators[0].members.size(), 1U);
}

// `while :; do ncclras; sleep 5; done > log`: one report for each output.
TEST(NcclRas, OutputsInOneFileAreNotAddedUp) {
  const auto text_at = [](std::string_view operation, int count) {
    return text_of("", fmt::format("#0-0 (27a079b828ff1a75) MISMATCH\n"
                                   "  Communicator ranks have different {} operation counts\n"
                                   "  7 ranks have launched up to operation {}\n"
                                   "  Rank 2 has launched up to operation {} -- GPU 2 managed by "
                                   "process 102 on node 10.0.0.1\n\n",
                                   operation, count, count - 1));
  };
  const std::string log =
      "Thu Jan 1\n" + text_at("AllReduce", 50) + "Thu Jan 2\n" + text_at("AllReduce", 70);
  const std::vector<RasReport> reports = read_nccl_ras(log, "log");
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_EQ(reports[0].communicators.at(0).states.at(0).operations, 50);
  EXPECT_EQ(reports[1].communicators.at(0).states.at(0).operations, 70);
  for (const RasReport& report : reports) {
    EXPECT_EQ(report.file, "log");
    EXPECT_EQ(report.version, "2.26.2");
    EXPECT_EQ(report.groups.size(), 2U);
    EXPECT_EQ(only_state(report, 1).members.at(0).rank, 2);
    EXPECT_FALSE(report.truncated);
  }
  // Without the lines of the version, and the first output cut off.
  const std::size_t summary = log.find("Job summary", log.find("Thu Jan 2"));
  const std::vector<RasReport> cut =
      read_nccl_ras(log.substr(0, log.find(kWarnings)) + log.substr(summary), "log");
  ASSERT_EQ(cut.size(), 2U);
  EXPECT_TRUE(cut[0].truncated);
  EXPECT_FALSE(cut[1].truncated);
  EXPECT_EQ(only_state(cut[1]).operations, 70);
}

TEST(NcclRas, HugeCountsAreCapped) {
  constexpr std::string_view kHuge = "9223372036854775807";
  std::string text = text_of("DEAD\n  9223372036854775807 job processes are considered dead\n\n",
                             "#0-0 (27a079b828ff1a75) MISMATCH\n"
                             "  Communicator ranks have different status\n"
                             "  9223372036854775807 ranks have status RUNNING\n"
                             "  9223372036854775807 ranks have status INIT\n\n");
  text.replace(text.find("8\n\nCommunicators"), 1, kHuge);
  text.replace(text.find("8   RUNNING"), 1, kHuge);
  const RasReport report = read_one(text, "ras.txt");
  constexpr std::int64_t kMax = 1 << 20;
  EXPECT_EQ(report.gpus, kMax);
  EXPECT_EQ(report.dead_count, kMax);
  EXPECT_EQ(only_state(report).count, kMax);
  EXPECT_EQ(only_state(report, 1).count, kMax);
}

// Missing ranks of a host that NCCL does not know are not one GPU.
TEST(NcclRas, RanksOfAnUnknownHostHaveAGpuEach) {
  std::string json(kJson);
  const std::string lost =
      R"("rank": 1, "host": "unknown", "pid": -1, "cuda_dev": -1, "nvml_dev": -1,
          "status": { "unresponsive": true, "considered_dead": true } },
        { "rank": 2, "host": "unknown", "pid": -1, "cuda_dev": -1, "nvml_dev": -1)";
  const std::string known =
      R"("rank": 2, "host": "10.0.0.2", "pid": 200, "cuda_dev": 0, "nvml_dev": 0)";
  json.replace(json.find(known), known.size(), lost);
  const std::size_t second = json.find(R"(,
        { "rank": 1, "host": "10.0.0.1")");
  json.erase(second, json.find("\n      ],", second) - second);
  const RasReport report = read_one(json, "ras.json");
  ASSERT_EQ(report.communicators.at(0).members.size(), 3U);
  EXPECT_EQ(report.gpus, 3);
}

TEST(NcclRas, OtherFilesAreNotOne) {
  EXPECT_FALSE(is_nccl_ras(""));
  EXPECT_FALSE(is_nccl_ras("\n \n"));
  EXPECT_FALSE(is_nccl_ras("NCCL version 2.26.2+cuda12.6\nNCCL INFO Bootstrap\n"));
  // A training script may print the first heading, or a line with it.
  EXPECT_FALSE(is_nccl_ras("Communicators...\n"));
  EXPECT_FALSE(is_nccl_ras("Job summary\n[rank0]: Communicators... ready\n"));
  EXPECT_TRUE(is_nccl_ras("Job summary\n\n  Communicators... (0.01s)\n"));
  EXPECT_FALSE(is_nccl_ras(R"({"entries": [], "nccl_version": "2.26.2"})"));
  EXPECT_FALSE(
      is_nccl_ras("\x80\x02"
                  "Communicators..."));
}

TEST(NcclRas, IsReadBesideStacksAndDumps) {
  const std::string text = text_of("", "");
  const std::string copy = std::string(kJson) + "\n";
  const std::vector<DumpFile> files{{.name = "ras.txt", .bytes = text, .written_ns = 3},
                                    {.name = "a.json", .bytes = kJson, .written_ns = 4},
                                    {.name = "b.json", .bytes = copy, .written_ns = 5}};
  const JobDump job = read_job(files);
  ASSERT_EQ(job.ras.size(), 2U);  // the second JSON is a copy of the first
  EXPECT_EQ(job.ras[0].file, "ras.txt");
  EXPECT_EQ(job.notes.size(), 1U);
  const std::vector<DumpFile> damaged{{.name = "c.json", .bytes = "{\"communicators_count\": x}"}};
  EXPECT_THROW((void)read_job(damaged), InputError);
}

std::vector<std::string> files_of(const JobDump& job) {
  std::vector<std::string> files;
  for (const RasReport& report : job.ras) files.push_back(report.file);
  return files;
}

TEST(NcclRas, TheTimeOfTheFileOrdersTextsAndJson) {
  const std::string text = text_of("", "");
  std::string later(kJson);
  later.replace(later.find("13:06:53"), 8, "13:09:00");
  // JSON before a text; and two JSON whose files were copied in the other order.
  EXPECT_EQ(files_of(read_job(
                std::vector<DumpFile>{{.name = "b.txt", .bytes = text, .written_ns = 9},
                                      {.name = "a.json", .bytes = kJson, .written_ns = 4}})),
            (std::vector<std::string>{"a.json", "b.txt"}));
  EXPECT_EQ(files_of(read_job(
                std::vector<DumpFile>{{.name = "late.json", .bytes = later, .written_ns = 4},
                                      {.name = "b.txt", .bytes = text, .written_ns = 5},
                                      {.name = "early.json", .bytes = kJson, .written_ns = 6}})),
            (std::vector<std::string>{"early.json", "b.txt", "late.json"}));
}

TEST(NcclRas, ACopyIsLeftOut) {
  const std::string text = text_of("", "");
  const JobDump same_bytes =
      read_job(std::vector<DumpFile>{{.name = "a.txt", .bytes = text, .written_ns = 1},
                                     {.name = "b.txt", .bytes = text, .written_ns = 2}});
  EXPECT_EQ(files_of(same_bytes), std::vector<std::string>{"a.txt"});
  ASSERT_EQ(same_bytes.notes.size(), 1U);
  EXPECT_TRUE(
      same_bytes.notes[0].starts_with("left out b.txt: its bytes are those of a.txt. If it is "));
  // A log that grows between two reads.
  const std::string grown = text + "Thu Jan 1\n";
  const JobDump same_path = read_job(std::vector<DumpFile>{
      {.name = "jobs/a.txt", .bytes = text}, {.name = "jobs/./a.txt", .bytes = grown}});
  EXPECT_EQ(files_of(same_path), std::vector<std::string>{"jobs/a.txt"});
  // Two moments that are alike, with their times.
  EXPECT_EQ(read_job(std::vector<DumpFile>{{.name = "a.txt", .bytes = text},
                                           {.name = "b.txt", .bytes = grown}})
                .ras.size(),
            2U);
}

TEST(NcclRas, ATextWithoutCommunicatorsIsNotTheLast) {
  const std::string text = text_of("", "");
  const std::string_view log = "Job summary\n===\nCommunicators... (1 s)\nstep 1\n";
  const JobDump job =
      read_job(std::vector<DumpFile>{{.name = "ras.txt", .bytes = text, .written_ns = 1},
                                     {.name = "log.txt", .bytes = log, .written_ns = 2}});
  EXPECT_EQ(files_of(job), std::vector<std::string>{"ras.txt"});
  EXPECT_EQ(job.notes.at(0), "left out log.txt: a text of ncclras without communicators");
  EXPECT_EQ(read_job(std::vector<DumpFile>{{.name = "log.txt", .bytes = log}}).ras.size(), 1U);
}

TEST(NcclRas, DamagedJsonInAFolderIsLeftOut) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("damaged_ncclras_{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "bad.json") << "{\"communicators_count\": x}";
  const std::string path = (folder / "bad.json").string();
  const std::string what = "not an output of `ncclras -f json`: expected a value, at byte 24";
  for (const std::string& named : {folder.string(), path}) {
    try {
      (void)read_job(std::vector<std::string>{named});
      ADD_FAILURE() << "read " << named;
    } catch (const InputError& error) {
      EXPECT_NE(error.diagnostics().at(0).what.find(what), std::string::npos)
          << error.diagnostics().at(0).what;
    }
  }
  std::ofstream(folder / "ras.txt") << text_of("", "");
  const JobDump job = read_job(std::vector<std::string>{folder.string()});
  EXPECT_EQ(job.ras.size(), 1U);
  EXPECT_EQ(job.notes, std::vector<std::string>{fmt::format("left out {}: {}", path, what)});
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace shiplap::dump
