#include "shiplap/trace/spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::trace {
namespace {

constexpr int kMoments = 12;  // 0 .. 11

Span span(std::int64_t begin, std::int64_t end) {
  return {.begin = {static_cast<double>(begin)}, .end = {static_cast<double>(end)}};
}

// The reference: a flag for every integer time.
std::vector<bool> moments(const std::vector<Span>& spans) {
  std::vector<bool> covered(kMoments);
  for (int t = 0; t < kMoments; ++t) {
    for (const Span& each : spans) {
      if (each.begin.value <= t && t < each.end.value) covered[t] = true;
    }
  }
  return covered;
}

std::vector<Span> random_spans(Random& random) {
  std::vector<Span> spans;
  const std::int64_t count = random.between(0, 6);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = random.between(0, kMoments);
    spans.push_back(span(begin, random.between(begin, kMoments + 1)));
  }
  return spans;
}

bool is_canonical(const Spans& spans) {
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].end <= spans[i].begin) return false;
    if (i > 0 && spans[i].begin <= spans[i - 1].end) return false;
  }
  return true;
}

double count(const std::vector<bool>& flags) {
  return static_cast<double>(std::ranges::count(flags, true));
}

TEST(Spans, AgreeWithFlagsForEveryMoment) {
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Random random(seed);
    const std::vector<Span> a = random_spans(random);
    const std::vector<Span> b = random_spans(random);
    const std::vector<bool> in_a = moments(a);
    const std::vector<bool> in_b = moments(b);
    std::vector<bool> difference(kMoments);
    for (std::size_t t = 0; t < kMoments; ++t) difference[t] = in_a[t] && !in_b[t];

    ASSERT_TRUE(is_canonical(united(a))) << "seed " << seed;
    ASSERT_EQ(moments(united(a)), in_a) << "seed " << seed;
    ASSERT_EQ(length(united(a)).value, count(in_a)) << "seed " << seed;
    const Spans left = without(united(a), united(b));
    ASSERT_TRUE(is_canonical(left)) << "seed " << seed;
    ASSERT_EQ(moments(left), difference) << "seed " << seed;
    ASSERT_EQ(length(left).value, count(difference)) << "seed " << seed;
  }
}

TEST(Spans, ThatTouchAreOne) { EXPECT_EQ(united({span(3, 5), span(1, 3)}), Spans{span(1, 5)}); }

TEST(Spans, AreCutAtTheWindow) {
  EXPECT_EQ(within({span(0, 2), span(3, 5), span(6, 9)}, span(1, 7)),
            (Spans{span(1, 2), span(3, 5), span(6, 7)}));
}

}  // namespace
}  // namespace shiplap::trace
