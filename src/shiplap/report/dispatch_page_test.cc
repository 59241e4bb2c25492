#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <regex>

#include "shiplap/base/error.h"
#include "shiplap/base/version.h"
#include "shiplap/dispatch/traffic.h"
#include "shiplap/report/dispatch.h"

namespace shiplap::report {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Made {
  dispatch::Routing routing;
  dispatch::QkvDispatch dispatch;

  [[nodiscard]] DispatchView report() const {
    return {.dispatch = dispatch,
            .routing = &routing,
            .sizes = {.q_row_bytes = 8192, .kv_row_bytes = 2048, .ranks_per_node = 4}};
  }
};

Made made(const dispatch::Routing& routing) {
  return {.routing = routing, .dispatch = dispatch::compute_qkv_dispatch(routing)};
}

std::string dispatch_report(const DispatchView& view) {
  return to_html(dispatch_page(view, "shiplap dispatch --name '<a&b>'"));
}

std::string report_of(const Made& all) { return dispatch_report(all.report()); }

Made random(int ranks) {
  return made(dispatch::random_routing(
      {.world_size = ranks, .total_seq_len = 4096, .num_seqs = 4, .max_cp_degree = 4, .seed = 7}));
}

std::int64_t without_separators(std::string text) {
  std::erase(text, ',');
  return std::stoll(text);
}

// The bytes in all titles that `pattern` matches; its first group is the number.
std::int64_t sum_of(const std::string& html, const std::string& pattern) {
  const std::regex titles(pattern);
  std::int64_t sum = 0;
  for (std::sregex_iterator it(html.begin(), html.end(), titles), end; it != end; ++it) {
    sum += without_separators((*it)[1]);
  }
  return sum;
}

std::int64_t bytes_between_ranks(const dispatch::Metadata& metadata, std::int64_t row_bytes) {
  const auto summary = dispatch::summarize(dispatch::flows(metadata), 4);
  return dispatch::bytes_at(summary.between_ranks, row_bytes).count;
}

TEST(DispatchReport, MatricesSumToTheTraffic) {
  for (const int ranks : {2, 8, 30, 64, 100}) {
    const Made all = random(ranks);
    const std::string html = dispatch_report(all.report());
    const std::int64_t expected = bytes_between_ranks(all.dispatch.q.forward, 8192) +
                                  bytes_between_ranks(all.dispatch.kv.forward, 2048);
    EXPECT_EQ(sum_of(html, R"(ranks? [0-9-]+ to ranks? [0-9-]+: [^(<]*\(([0-9,]+) bytes)"),
              expected);
    EXPECT_EQ(sum_of(html, R"(ranks? [0-9-]+ sent: [^(<]*\(([0-9,]+) bytes)"), expected);
    EXPECT_EQ(sum_of(html, R"(ranks? [0-9-]+ received: [^(<]*\(([0-9,]+) bytes)"), expected);
  }
}

TEST(DispatchReport, GivesTheSameBytesForTheSameDispatch) {
  EXPECT_EQ(report_of(random(8)), report_of(random(8)));
}

TEST(DispatchReport, TitleIsTheFinding) {
  // Two halves of one document on two ranks attend where they are, so the keys of the first half
  // travel once: half a time per token.
  const dispatch::Layout halves({{{0, 0, 8}}, {{0, 8, 8}}});
  const Made all = made({.home = halves, .attention = halves});
  DispatchView about = all.report();
  EXPECT_THAT(dispatch_report(about), HasSubstr("<h1>2 ranks, 1 document, CP up to 2: each "
                                                "token&#39;s keys travel 0.5 times; all within one "
                                                "node</h1>"));
  about.sizes.ranks_per_node = 1;
  EXPECT_THAT(dispatch_report(about),
              HasSubstr("travel 0.5 times; 100\u00A0% of the bytes cross nodes"));
}

TEST(DispatchReport, CountsCausalPairs) {
  // Of 16 tokens, the first 8 see 1 to 8 keys, the others 9 to 16: 36 and 100 pairs; the mean
  // is 68.
  const dispatch::Layout halves({{{0, 0, 8}}, {{0, 8, 8}}});
  const std::string html = report_of(made({.home = halves, .attention = halves}));
  EXPECT_THAT(html, HasSubstr("<td>36</td><td>0.53</td>"));
  EXPECT_THAT(html, HasSubstr("<td>100</td><td>1.47</td>"));
  EXPECT_THAT(html, HasSubstr("<dd>1.47</dd>"));
}

TEST(DispatchReport, TellsEveryRange) {
  const dispatch::Layout home({{{5, 0, 8}, {3, 0, 2}}, {{5, 8, 8}}});
  const dispatch::Layout attention({{{5, 8, 8}}, {{3, 0, 2}, {5, 0, 8}}});
  const std::string html = report_of(made({.home = home, .attention = attention}));
  EXPECT_THAT(html, HasSubstr("document 5, tokens 8 to 15 of 16\nat home on rank 1, offset 0\n"
                              "attends on ranks 0, 1"));
  EXPECT_THAT(html, HasSubstr("document 5, tokens 0 to 7 of 16\n8 queries on rank 1, offset 2\n"
                              "need 8 keys, offset 2\nat home on ranks 0, 1"));
  EXPECT_THAT(html, HasSubstr("<h2>Range by range</h2>"));
}

TEST(DispatchReport, SaysWhatItLeavesOut) {
  EXPECT_THAT(report_of(random(64)), Not(HasSubstr("are drawn:")));
  const std::string html = report_of(random(65));
  EXPECT_THAT(html, HasSubstr("of 65 ranks are drawn"));
  EXPECT_THAT(html, HasSubstr("Folded: each row and column is 2 ranks"));
}

TEST(DispatchReport, EscapesTheCommand) {
  const std::string html = report_of(random(2));
  EXPECT_THAT(html, Not(HasSubstr("<a&b>")));
  EXPECT_THAT(html, HasSubstr("&#39;&lt;a&amp;b&gt;&#39;"));
  EXPECT_THAT(html, HasSubstr("Shiplap " + std::string(version())));
}

TEST(DispatchReport, TellsMeasurementsOnlyIfThereAreAny) {
  const Made all = random(2);
  DispatchView about = all.report();
  EXPECT_THAT(dispatch_report(about), Not(HasSubstr("Measured")));
  about.backend = "threads";
  const dispatch::BenchmarkResult benchmark{
      .exchanges = {{.name = "Q forward", .bytes = {1'000'000'000}, .median = {0.5}}}};
  about.benchmark = &benchmark;
  const std::string html = dispatch_report(about);
  EXPECT_THAT(html, HasSubstr("<h2>Measured on threads</h2>"));
  EXPECT_THAT(html, HasSubstr("<td>500 ms</td><td>954 MiB</td><td>2.00 GB/s</td>"));
}

TEST(DispatchReport, OfEmptyDocumentsIsAReport) {
  const dispatch::Layout nothing({{{0, 0, 0}}, {}});
  const std::string html = report_of(made({.home = nothing, .attention = nothing}));
  EXPECT_THAT(html, HasSubstr("no token leaves its rank"));
}

TEST(DispatchReport, RefusesANodeWithoutRanks) {
  const Made all = random(2);
  DispatchView about = all.report();
  about.sizes.ranks_per_node = 0;
  EXPECT_THROW(static_cast<void>(dispatch_report(about)), InputError);
  about.sizes.ranks_per_node = 1;
  about.sizes.kv_row_bytes = 0;
  EXPECT_THROW(static_cast<void>(dispatch_report(about)), InternalError);
}

TEST(DispatchReport, Of4096RanksIsSmallAndQuick) {
  const Made all = random(4096);
  const std::clock_t start = std::clock();  // of this process: a busy machine does not matter
  const std::string html = dispatch_report(all.report());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(html.size(), 3'000'000U);
  EXPECT_LT(seconds, 1);
}

}  // namespace
}  // namespace shiplap::report
