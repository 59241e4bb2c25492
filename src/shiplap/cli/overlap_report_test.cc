#include "shiplap/cli/overlap_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shiplap::cli {
namespace {

using overlap::Method;
using overlap::Type;
using testing::HasSubstr;
using testing::Not;

OverlapView view_of(Type type, Method method, int ranks) {
  const overlap::Choice choice{type, method};
  const overlap::Problem problem{
      .rows = std::int64_t{ranks} * 8, .columns = 64, .depth = 64, .ranks = ranks, .chunks = 2};
  return {.choice = choice,
          .problem = problem,
          .predicted = predict_overlap(choice, problem, hardware::find_system("h100_80g_nvl8"))};
}

// As if it had happened as it was predicted, but later.
void add_measurement(OverlapView& view, double difference = 0) {
  const auto spread = [](Seconds time) {
    return run::Spread{.median = time, .least = {time.value * 0.9}, .most = {time.value * 1.2}};
  };
  const OverlapTimes times = view.drawn().times;
  OverlapMeasurement measured{.trial = {.product = spread(times.product),
                                        .communication = spread(times.communication),
                                        .serial = spread(times.serial),
                                        .overlapped = spread(times.overlapped),
                                        .difference = difference,
                                        .tolerance = 1,
                                        .multiplied_by = "hand",
                                        .trace = view.drawn().trace},
                              .backend = "threads",
                              .rounds = 3,
                              .cores = 1};
  view.calibrated =
      predict_overlap(view.choice, view.problem,
                      calibrated(view.choice, view.problem,
                                 {.product = times.product, .communication = times.communication}));
  view.measured = std::move(measured);
}

std::string html_of(const OverlapView& view) { return to_html(overlap_page(view, "the command")); }

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(OverlapReport, HasLanesOfEveryRankTwice) {
  const std::string html = html_of(view_of(Type::all_gather, Method::ring_exchange, 4));
  EXPECT_EQ(count(html, "class=\"boxes time"), 2);  // overlapped, and one after the other
  for (const char* const name : {">0</text>", ">3</text>"}) EXPECT_THAT(html, HasSubstr(name));
  EXPECT_THAT(html, HasSubstr(">2.1</text>"));
  EXPECT_THAT(html, HasSubstr("rank 1: multiply chunk 0.1, rows 4 to 7\n"));
  EXPECT_THAT(html, HasSubstr("rank 0: send chunk 0.0, rows 0 to 3\n"));
  EXPECT_THAT(html, HasSubstr("the command"));
  EXPECT_THAT(html, Not(HasSubstr("src=\"http")));
}

TEST(OverlapReport, GivesSumsAStripWhereThereAreAny) {
  EXPECT_THAT(html_of(view_of(Type::reduce_scatter, Method::ring_exchange, 2)),
              HasSubstr("adding up (+)"));
  EXPECT_THAT(html_of(view_of(Type::all_gather, Method::ring_exchange, 2)),
              Not(HasSubstr("adding up (+)")));
  EXPECT_THAT(html_of(view_of(Type::reduce_scatter, Method::pipeline, 2)),
              HasSubstr("reduce_scatter chunk 1 of every rank"));
}

TEST(OverlapReport, PutsWhatWasMeasuredUnderWhatWasPredicted) {
  OverlapView view = view_of(Type::all_gather, Method::ring_exchange, 2);
  add_measurement(view);
  const std::string html = html_of(view);
  EXPECT_EQ(count(html, "class=\"boxes time"), 4);  // and for the machine, in its own scale
  EXPECT_LT(html.find("Predicted from the measured G and C"), html.find("Measured: "));
  EXPECT_THAT(html, HasSubstr("2 ranks share 1 core here"));
  EXPECT_THAT(html, HasSubstr("products by hand"));
}

TEST(OverlapReport, DrawsSomeOfManyRanksAndSaysSo) {
  const std::string html = html_of(view_of(Type::all_gather, Method::ring_exchange, 20));
  EXPECT_THAT(html, HasSubstr("Of 20 ranks the first 16 are drawn."));
}

TEST(OverlapReport, OfOneRankIsAPicture) {
  const std::string html = html_of(view_of(Type::reduce_scatter, Method::ring_exchange, 1));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr(" hidden, ")));
}

TEST(OverlapReport, SaysIfTheResultIsWrong) {
  OverlapView view = view_of(Type::all_gather, Method::ring_exchange, 2);
  add_measurement(view, 0.5);
  EXPECT_THAT(html_of(view), Not(HasSubstr("The result is wrong")));
  add_measurement(view, 2);
  EXPECT_THAT(html_of(view), HasSubstr("The result is wrong"));
}

}  // namespace
}  // namespace shiplap::cli
