#include "shiplap/report/trace_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>
#include <string>

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
  EXPECT_EQ(trace_page(example(2, 1e-3), {.name = "1F1B"}).title,
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
  EXPECT_THAT(html_of(example(64, 0)), Not(HasSubstr("as rank 0")));
  const std::string html = html_of(example(65, 0));
  EXPECT_THAT(html, HasSubstr("ranks 1-64 as rank 0"));
  EXPECT_THAT(html, HasSubstr(">0 +64</text>"));
}

TEST(TraceReport, DrawsSomeOfTooManyRanksAndSaysSo) {
  const std::string html = html_of(example(200, 1e-5));
  EXPECT_THAT(html, HasSubstr("64 of 200 different rows are drawn."));
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
