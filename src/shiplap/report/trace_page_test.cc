#include "shiplap/report/trace_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>
#include <sstream>
#include <string>

#include "shiplap/report/text.h"
#include "shiplap/report/trace.h"

namespace shiplap::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using trace::Event;
using trace::EventKind;
using trace::Trace;

// Every rank does one forward and one backward of 1 ms, `shift` after the rank before it.
Trace example(int ranks, double shift) {
  Trace trace;
  for (int rank = 0; rank < ranks; ++rank) {
    const double begin = rank * shift;
    trace::RankTrace& made = trace.ranks.emplace_back();
    for (const EventKind kind : {EventKind::forward, EventKind::backward}) {
      Event event{.kind = kind, .rank = rank, .layer = 0, .samples = IndexSet(rank)};
      event.time = {begin + (kind == EventKind::backward ? 1e-3 : 0)};
      event.duration = {1e-3};
      made.events.push_back(event);
    }
    made.memory = {{.time = {begin}, .bytes = {3 << 20}}};
  }
  return trace;
}

std::string html_of(const Trace& trace) {
  return to_html(trace_page(trace, {.name = "a<b", .assumed = {"Nothing."}, .command = "x<y"}));
}

TEST(TraceReport, TitleIsTheFinding) {
  // Two ranks, 2 ms of work in 3 ms each.
  Trace pipeline = example(2, 1e-3);
  for (Event& event : pipeline.ranks[1].events) event.layer = 1;
  EXPECT_EQ(trace_page(pipeline, {.name = "1F1B"}).title,
            "1F1B on 2 ranks: 33.3\u00A0% bubble, peak 3.00 MiB on rank 0");
}

TEST(TraceReport, EscapesEveryText) {
  const std::string html = html_of(example(2, 0));
  EXPECT_THAT(html, HasSubstr("<h1>a&lt;b on 2 ranks"));
  EXPECT_THAT(html, HasSubstr("x&lt;y"));
  EXPECT_THAT(html, Not(HasSubstr("a<b")));
}

TEST(TraceReport, NeedsNoNetwork) {
  const std::string html = html_of(example(3, 1e-4));
  for (const char* way : {"http:", "https:", "url(", "@import", " src=", "<link", "fetch("}) {
    EXPECT_THAT(html, Not(HasSubstr(way)));
  }
}

TEST(TraceReport, GivesTheSameBytesForTheSameTrace) {
  EXPECT_EQ(html_of(example(3, 1e-4)), html_of(example(3, 1e-4)));
}

TEST(TraceReport, FoldsRanksThatAreAlikeAndSaysSo) {
  EXPECT_THAT(html_of(example(8, 0)), Not(HasSubstr("share one row")));
  const std::string html = html_of(example(9, 0));
  EXPECT_THAT(html, HasSubstr("0 and 8 more: ranks 0-8"));
  EXPECT_THAT(html, HasSubstr(">0 and 8 more</text>"));
}

plan::Mesh mesh_of_three_axes() {
  return {.axes = {{"dp", 16}, {"pp", 4}, {"tp", 2}}, .aliases = {}};
}

TEST(TraceReport, NamesClassesOfRanksByTheirMeshCoordinates) {
  const plan::Mesh mesh = mesh_of_three_axes();
  std::vector<int> first_stage;
  std::vector<int> middle;
  for (int dp = 0; dp < 16; ++dp) {
    for (const int tp : {0, 1}) first_stage.push_back(8 * dp + tp);
    for (const int pp : {1, 2}) middle.push_back(8 * dp + 2 * pp);
  }
  EXPECT_EQ(name_by_mesh(first_stage, mesh), "pp=0");
  EXPECT_EQ(name_by_mesh(middle, mesh), "pp=1, 2 tp=0");
  first_stage.back() = 2;
  EXPECT_EQ(name_by_mesh(first_stage, mesh), "");  // no grid
  EXPECT_EQ(name_by_mesh({3}, mesh), "");
  EXPECT_EQ(name_by_mesh({0, 1}, {.axes = {{"dp", 4}}, .aliases = {}}), "");
  EXPECT_EQ(name_by_mesh({0, 1}, {}), "");
}

TEST(TraceReport, RowsHaveTheNamesOfTheirClasses) {
  Trace trace = example(128, 0);
  for (int rank = 0; rank < 128; ++rank) {
    if (rank / 2 % 4 == 0) trace.ranks[rank].events[0].duration = {5e-4};
  }
  const std::string html = to_html(trace_page(trace, {.name = "a", .mesh = mesh_of_three_axes()}));
  EXPECT_THAT(html, HasSubstr(">pp=0</text>"));
  EXPECT_THAT(html, HasSubstr(">pp=1-3</text>"));
}

TEST(TraceReport, DrawsSomeOfTooManyRanksAndSaysSo) {
  const std::string html = html_of(example(200, 1e-5));
  EXPECT_THAT(html, HasSubstr("64 of 200 different rows are drawn."));
}

// 64 ranks with 2,000 events and as many changes of memory each.
TEST(TraceReport, OfANotebookHasLessThanAMegabyte) {
  Trace trace = example(64, 1e-6);
  for (trace::RankTrace& rank : trace.ranks) {
    const Seconds shift = rank.events.front().time;
    rank.events.clear();
    for (int i = 0; i < 2000; ++i) {
      Event event{.kind = i % 2 == 0 ? EventKind::forward : EventKind::send,
                  .layer = i % 7,
                  .samples = IndexSet(i / 4)};
      event.time = shift + Seconds{i * 1e-3};
      event.duration = {(i % 5 + 1) * 2e-4};
      rank.events.push_back(event);
      rank.memory.push_back({.time = event.time, .bytes = {std::int64_t{i % 11} * 1000}});
    }
  }
  const std::string html = to_fragment(trace_page(trace, {.name = "a", .limits = kNotebookLimits}));
  EXPECT_LT(html.size(), 1'000'000U);
  EXPECT_THAT(html, HasSubstr("of 64 different rows are drawn."));
  EXPECT_GT(to_fragment(trace_page(trace, {.name = "a"})).size(), 2'000'000U);
}

TEST(TraceReport, AlikeMeansTheSameTimes) {
  Trace trace = example(4, 0);
  trace.ranks[2].events[0].time += Seconds{1e-6};
  trace.ranks[3].events[0].time += Seconds{1e-15};  // which is nothing
  const auto groups = group_identical_ranks(trace);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_THAT(groups[0].ranks, ElementsAre(0, 1, 3));
  EXPECT_THAT(groups[1].ranks, ElementsAre(2));
}

// Two ranks of example(), which load for 1 ms, or 1.5 ms, before a forward at 1.5 ms.
Trace example_with_loading() {
  Trace trace = example(2, 0);
  for (int rank = 0; rank < 2; ++rank) {
    trace::RankTrace& made = trace.ranks[rank];
    for (Event& event : made.events) event.time += Seconds{rank == 0 ? 1e-3 : 1.5e-3};
    Event load{.kind = EventKind::load_weights, .rank = rank};
    load.duration = {rank == 0 ? 1e-3 : 1.5e-3};
    made.events.insert(made.events.begin(), load);
    made.memory.push_back({.time = {2.25e-3}, .bytes = {4 << 20}});
  }
  return trace;
}

TEST(TraceReport, TimesAreFromTheStartOfTheStep) {
  Trace trace = example_with_loading();
  EXPECT_EQ(format_peak_time(trace::summarize(trace)), "1.25 ms into the step");
  for (trace::RankTrace& rank : trace.ranks) rank.memory[1].time = {1e-3};
  EXPECT_EQ(format_peak_time(trace::summarize(trace)), "at the start of the step");
  for (trace::RankTrace& rank : trace.ranks) rank.memory[1].time = {5e-4};
  EXPECT_EQ(format_peak_time(trace::summarize(trace)),
            "while loading the weights, before the step");
}

TEST(TraceReport, SaysHowWellClocksAreAligned) {
  Trace trace = example(2, 1e-4);
  EXPECT_THAT(html_of(trace), Not(HasSubstr("aligned")));
  trace.clock_uncertainty = {12e-6};
  EXPECT_THAT(html_of(trace), HasSubstr("aligned to ±\u00A012.0 us."));
}

TEST(TraceReport, TheTimelineBeginsWithTheStep) {
  const std::string html = html_of(example_with_loading());
  EXPECT_THAT(html, HasSubstr("Loading the weights, 1.00 ms before the step, is not drawn."));
  EXPECT_THAT(html, HasSubstr("starts at 0 s, takes 1.00 ms"));  // the forward of rank 0
  EXPECT_THAT(html, HasSubstr("starts at 0 s, takes 500 us"));   // rank 1 still loads
  EXPECT_THAT(html, Not(HasSubstr("starts at -")));
  EXPECT_THAT(html_of(example(2, 0)), Not(HasSubstr("is not drawn")));
}

// Two classes of ranks that no mesh names.
TEST(TraceText, EveryRowKeepsItsNameAtEveryWidth) {
  Trace trace = example(64, 0);
  for (const int rank : {1, 4, 5, 9, 16, 17, 22, 31, 32, 40, 49, 57}) {
    trace.ranks[rank].events[0].duration = {5e-4};
  }
  for (const int width : {40, 60, 80, 100}) {
    const std::string text = show_trace(trace, trace::summarize(trace), {.width = width});
    std::istringstream table(text.substr(text.find("ranks")));
    std::string line;
    std::getline(table, line);
    EXPECT_THAT(line, testing::EndsWith("peak"));
    std::getline(table, line);
    EXPECT_THAT(line, testing::StartsWith("0, 2, 3"));
    EXPECT_LE(display_width(line), static_cast<std::size_t>(width));
    std::getline(table, line);
    EXPECT_THAT(line, testing::StartsWith("1, 4, 5"));
    EXPECT_LE(display_width(line), static_cast<std::size_t>(width));
  }
}

TEST(TraceReport, OfNothingIsAReport) {
  EXPECT_THAT(html_of(Trace{}), HasSubstr("on 0 ranks"));
  EXPECT_THAT(html_of(Trace{.ranks = std::vector<trace::RankTrace>(2)}), Not(HasSubstr("nan")));
}

TEST(TraceReport, Of4096RanksIsSmallAndQuick) {
  const Trace trace = example(4096, 1e-6);
  const std::clock_t start = std::clock();  // of this process: a busy machine does not matter
  const std::string html = html_of(trace);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(html.size(), 1'000'000U);
  EXPECT_LT(seconds, 2);
}

}  // namespace
}  // namespace shiplap::report
