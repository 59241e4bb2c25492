// The summary expands one rank of each class; here every rank is expanded and counted directly.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "random_plan.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/summary.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

struct Totals {
  std::int64_t operations = 0;
  std::int64_t payload = 0;
  std::int64_t sent = 0;
  std::int64_t busiest = 0;
  friend bool operator==(const Totals&, const Totals&) = default;
};
using Traffic = std::map<std::pair<std::string, std::string>, Totals>;

std::string joined(const Mesh& mesh, const std::vector<AxisId>& axes) {
  std::string names;
  for (const AxisId axis : axes) names += (names.empty() ? "" : " ") + mesh.name(axis);
  return names.empty() ? "listed ranks" : names;
}

// The axes on which two ranks differ.
std::string apart(const Mesh& mesh, Rank a, Rank b) {
  std::vector<AxisId> axes;
  for (std::size_t k = 0; k < mesh.axes.size(); ++k) {
    if (mesh.positions(a)[k] != mesh.positions(b)[k]) axes.emplace_back(k);
  }
  return axes.empty() ? "self" : joined(mesh, axes);
}

// The traffic of one operation of one rank: axes, kind, bytes.
struct Moved {
  std::string axes;
  std::string kind;
  std::int64_t payload = 0;
  std::int64_t sent = 0;
};

std::int64_t row_bytes(const RankProgram& rank, const flat::Region& region) {
  return rank.buffers[region.buffer].row_bytes;
}

std::optional<Moved> moved(const RankProgram& rank, const flat::Operation& op) {
  const Mesh& mesh = rank.plan->mesh;
  const Action& action = op.source->action;
  if (const auto* send = std::get_if<Send>(&action)) {
    const std::int64_t bytes = op.from.count * row_bytes(rank, op.from);
    return Moved{
        send->peer.axis.exists() ? mesh.name(send->peer.axis) : apart(mesh, rank.rank, op.peer),
        "send", bytes, op.peer == rank.rank ? 0 : bytes};
  }
  if (const auto* exchange = std::get_if<Exchange>(&action)) {
    const ExchangeTable& table = rank.plan->tables[exchange->table];
    std::int64_t rows = 0;
    for (const TableRow& row : exchange->reversed ? table.receives() : table.sends()) {
      if (row.rank == rank.rank.value && row.peer != row.rank) rows += row.count;
    }
    return Moved{joined(mesh, exchange->over.axes), "exchange",
                 op.from.count * row_bytes(rank, op.from), rows * row_bytes(rank, op.from)};
  }
  if (const auto* collective = std::get_if<Collective>(&action)) {
    std::int64_t bytes = 0;
    for (const flat::Region& region : {op.from, op.to}) {
      if (region.buffer.exists()) bytes = std::max(bytes, region.count * row_bytes(rank, region));
    }
    const std::int64_t ranks = rank.groups[op.group].ranks.size();
    const std::int64_t times = collective->kind == CollectiveKind::all_reduce ? 2 : 1;
    return Moved{joined(mesh, collective->over.axes), std::string(name(collective->kind)), bytes,
                 times * (ranks - 1) * bytes / ranks};
  }
  return std::nullopt;
}

Traffic by_hand(const Plan& plan) {
  Traffic traffic;
  for (std::int32_t r = 0; r < plan.mesh.ranks(); ++r) {
    const RankProgram rank = expand(plan, Rank(r));
    std::map<std::pair<std::string, std::string>, std::int64_t> sent;
    for (const flat::Operation& op : rank.operations) {
      const auto one = moved(rank, op);
      if (!one) continue;
      Totals& totals = traffic[{one->axes, one->kind}];
      ++totals.operations;
      totals.payload += one->payload;
      totals.sent += one->sent;
      sent[{one->axes, one->kind}] += one->sent;
    }
    for (const auto& [key, bytes] : sent) {
      traffic[key].busiest = std::max(traffic[key].busiest, bytes);
    }
  }
  return traffic;
}

Traffic summarized(const Summary& summary) {
  Traffic traffic;
  for (const TrafficSummary& line : summary.traffic) {
    traffic[{line.axes, line.kind}] = {line.operations, line.payload.count, line.sent.count,
                                       line.sent_per_rank.max};
  }
  return traffic;
}

// Live bytes, row by row: a row that is allocated somewhere lives only from there to its `free`.
std::int64_t peak_by_rows(const RankProgram& rank) {
  std::set<std::pair<BufferId, std::int64_t>> alive;
  std::set<std::pair<BufferId, std::int64_t>> later;
  const auto each = [](const flat::Region& region, const auto& visit) {
    for (std::int64_t k = 0; k < region.count; ++k)
      visit(std::pair(region.buffer, region.begin + k));
  };
  for (const flat::Operation& op : rank.operations) {
    if (!std::holds_alternative<Allocate>(op.source->action)) continue;
    each(op.from, [&](const auto& row) { later.insert(row); });
  }
  std::int64_t bytes = 0;
  for (std::size_t b = 0; b < rank.buffers.size(); ++b) {
    for (std::int64_t row = 0; row < rank.buffers[b].rows; ++row) {
      if (!later.contains({BufferId(b), row})) bytes += rank.buffers[b].row_bytes;
    }
  }
  std::int64_t peak = bytes;
  for (const flat::Operation& op : rank.operations) {
    const bool allocates = std::holds_alternative<Allocate>(op.source->action);
    if (!allocates && !std::holds_alternative<Free>(op.source->action)) continue;
    each(op.from, [&](const auto& row) {
      bytes += (allocates ? 1 : -1) * rank.buffers[row.first].row_bytes;
    });
    peak = std::max(peak, bytes);
  }
  return peak;
}

void expect_counted_right(const Plan& plan, const std::string& which) {
  const Summary summary = summarize(plan);
  ASSERT_TRUE(summary.complete()) << which;
  ASSERT_EQ(summarized(summary), by_hand(plan)) << which << "\n" << to_text(plan);
  const std::vector<ProgramId> program_of = assign_programs(plan).program_of;
  for (const ProgramSummary& program : summary.programs) {
    std::int64_t ranks = 0;
    std::int64_t most = 0;
    std::int64_t peak = 0;
    for (std::size_t r = 0; r < program_of.size(); ++r) {
      if (program_of[r] != program.program) continue;
      const RankProgram rank = expand(plan, Rank(r));
      ++ranks;
      most = std::max(most, std::ssize(rank.operations));
      peak = std::max(peak, peak_by_rows(rank));
    }
    EXPECT_EQ(program.ranks, ranks) << which;
    EXPECT_EQ(program.operations.max, most) << which;
    EXPECT_EQ(program.peak_bytes.max, peak) << which;
  }
}

TEST(Summary, CountsTheExamplesAsAllTheirRanksDo) {
  for (const auto& entry : std::filesystem::directory_iterator("examples/plans")) {
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    expect_counted_right(parse_text(text, entry.path().string()), entry.path().string());
  }
}

// A random plan may wait for a later operation or exceed a buffer; such plans are skipped.
bool can_be_expanded(const Plan& plan) {
  try {
    for (std::int32_t r = 0; r < plan.mesh.ranks(); ++r) (void)expand(plan, Rank(r));
    return true;
  } catch (const InputError&) {
    return false;
  }
}

TEST(Summary, CountsRandomPlansAsAllTheirRanksDo) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    const std::string which = "seed " + std::to_string(seed);
    const Plan plan = parse_text(random_sound_text(seed), which);
    if (!can_be_expanded(plan)) continue;
    ++tried;
    expect_counted_right(plan, which);
  }
  EXPECT_GT(tried, 300);
}

TEST(Summary, SaysHowManyRanksItCountedWhenThereAreTooManyKinds) {
  const Plan plan = parse_text(
      "shiplap-plan 1\nmesh dp=64\nprogram all on all\n"
      "  buffer x rows dp+1 row_bytes 4 f32\n  all_reduce x over dp\n",
      "many kinds");
  EXPECT_TRUE(summarize(plan).complete());
  const Summary some = summarize(plan, 1000);
  EXPECT_FALSE(some.complete());
  EXPECT_GT(some.ranks_counted, 0);
  EXPECT_LT(some.ranks_counted, 64);
}

TEST(Summary, ExpandsRanksThatAreAlikeOnlyOnce) {
  const Plan plan = parse_text(
      "shiplap-plan 1\nmesh dp=1024 pp=4\nprogram all on all\n"
      "  buffer x rows 4 row_bytes 4 f32\n"
      "  when pp<3\n    send x[dp mod 4 +1] to pp+1\n  end\n"
      "  when pp>0\n    receive x[dp mod 4 +1] from pp-1\n  end\n",
      "alike");
  const Summary summary = summarize(plan);
  EXPECT_EQ(summary.programs[0].classes, 4);
  ASSERT_EQ(summary.traffic.size(), 1U);
  EXPECT_EQ(summary.traffic[0].sent, Bytes{12288}) << "3 stages x 1024 ranks x 4 bytes";
}

}  // namespace
}  // namespace shiplap::plan
