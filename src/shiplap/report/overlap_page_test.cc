#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/report/overlap.h"

namespace shiplap::report {
namespace {

using overlap::Method;
using overlap::Type;
using testing::HasSubstr;
using testing::Not;

overlap::Study study_of(Type type, Method method, int ranks) {
  const overlap::Choice choice{type, method};
  const overlap::Problem problem{
      .m = std::int64_t{ranks} * 8, .n = 64, .k = 64, .ranks = ranks, .chunks = 2};
  return {.choice = choice,
          .problem = problem,
          .predicted = predict(choice, problem, hardware::find_system("h100_80g_nvl8"))};
}

// As if it had happened as it was predicted, but later.
void add_measurement(overlap::Study& study, double difference = 0) {
  const auto spread = [](Seconds time) {
    return overlap::Spread{.median = time, .min = {time.value * 0.9}, .max = {time.value * 1.2}};
  };
  const overlap::Times times = study.drawn().times;
  overlap::Measurement measured{.gemm = spread(times.gemm),
                                .communication = spread(times.communication),
                                .serial = spread(times.serial),
                                .overlapped = spread(times.overlapped),
                                .difference = difference,
                                .tolerance = 1,
                                .gemm_backend = "hand",
                                .trace = study.drawn().trace,
                                .backend = "threads",
                                .rounds = 3,
                                .cores = 1};
  study.calibrated =
      predict(study.choice, study.problem,
              calibrated_system(study.choice, study.problem,
                                {.gemm = times.gemm, .communication = times.communication}));
  study.measured = std::move(measured);
}

std::string html_of(const overlap::Study& study) {
  return to_html(overlap_page(study, "the command"));
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(OverlapReport, HasLanesOfEveryRankTwice) {
  const std::string html = html_of(study_of(Type::all_gather, Method::ring_exchange, 4));
  EXPECT_EQ(count(html, "class=\"boxes time"), 2);  // overlapped and serial
  for (const char* const name : {">0</text>", ">3</text>"}) EXPECT_THAT(html, HasSubstr(name));
  EXPECT_THAT(html, HasSubstr(">2.1</text>"));
  EXPECT_THAT(html, HasSubstr("rank 1: multiply chunk 0.1, rows 4 to 7\n"));
  EXPECT_THAT(html, HasSubstr("rank 0: send chunk 0.0, rows 0 to 3\n"));
  EXPECT_THAT(html, HasSubstr("the command"));
  EXPECT_THAT(html, Not(HasSubstr("src=\"http")));
}

TEST(OverlapReport, GivesSumsAStripWhereThereAreAny) {
  EXPECT_THAT(html_of(study_of(Type::reduce_scatter, Method::ring_exchange, 2)),
              HasSubstr("summation (+)"));
  EXPECT_THAT(html_of(study_of(Type::all_gather, Method::ring_exchange, 2)),
              Not(HasSubstr("summation (+)")));
  EXPECT_THAT(html_of(study_of(Type::reduce_scatter, Method::pipeline, 2)),
              HasSubstr("reduce_scatter chunk 1 of every rank"));
}

TEST(OverlapReport, PutsWhatWasMeasuredUnderWhatWasPredicted) {
  overlap::Study study = study_of(Type::all_gather, Method::ring_exchange, 2);
  add_measurement(study);
  const std::string html = html_of(study);
  EXPECT_EQ(count(html, "class=\"boxes time"), 4);  // and for the machine, in its own scale
  EXPECT_LT(html.find("Predicted from the measured G and C"), html.find("Measured: "));
  EXPECT_THAT(html, HasSubstr("2 ranks share 1 core:"));
  EXPECT_THAT(html, HasSubstr("GEMM backend: hand"));
}

TEST(OverlapReport, DrawsSomeOfManyRanksAndSaysSo) {
  const std::string html = html_of(study_of(Type::all_gather, Method::ring_exchange, 20));
  EXPECT_THAT(html, HasSubstr("The first 16 of 20 ranks are drawn."));
}

TEST(OverlapReport, OfOneRankIsAPicture) {
  const std::string html = html_of(study_of(Type::reduce_scatter, Method::ring_exchange, 1));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr(" hidden, ")));
}

TEST(OverlapReport, SaysIfTheResultIsWrong) {
  overlap::Study study = study_of(Type::all_gather, Method::ring_exchange, 2);
  add_measurement(study, 0.5);
  EXPECT_THAT(html_of(study), Not(HasSubstr("The result is wrong")));
  add_measurement(study, 2);
  EXPECT_THAT(html_of(study), HasSubstr("The result is wrong"));
}

}  // namespace
}  // namespace shiplap::report
