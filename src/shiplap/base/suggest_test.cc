#include "shiplap/base/suggest.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <utility>

namespace shiplap {
namespace {

using Strings = std::vector<std::string>;

constexpr std::string_view kLetters = "abc";

Strings all_strings(std::size_t longest) {
  Strings result{""};
  for (std::size_t begin = 0; begin < result.size(); ++begin) {
    if (result[begin].size() == longest) break;
    for (const char c : kLetters) result.push_back(result[begin] + c);
  }
  return result;
}

// Every string that is one edit away.
Strings one_edit(const std::string& s) {
  Strings result;
  for (std::size_t i = 0; i <= s.size(); ++i) {
    for (const char c : kLetters) result.push_back(s.substr(0, i) + c + s.substr(i));
    if (i == s.size()) continue;
    result.push_back(s.substr(0, i) + s.substr(i + 1));
    for (const char c : kLetters) result.push_back(s.substr(0, i) + c + s.substr(i + 1));
    if (i + 1 < s.size()) {
      result.push_back(s);
      std::swap(result.back()[i], result.back()[i + 1]);
    }
  }
  return result;
}

// The second witness really edits: breadth first, from one string to all others. No shortest way
// needs a string longer than its two ends, because it can delete before it inserts.
std::map<std::string, int> distances_from(const std::string& start, std::size_t longest) {
  std::map<std::string, int> distance{{start, 0}};
  std::deque<std::string> todo{start};
  while (!todo.empty()) {
    const std::string s = todo.front();
    todo.pop_front();
    for (const std::string& next : one_edit(s)) {
      if (next.size() > longest + 1 || distance.contains(next)) continue;
      distance[next] = distance[s] + 1;
      todo.push_back(next);
    }
  }
  return distance;
}

TEST(EditDistance, AgreesWithEditingForAllShortStrings) {
  const Strings strings = all_strings(4);
  for (const std::string& a : strings) {
    const auto distance = distances_from(a, 4);
    for (const std::string& b : strings) {
      ASSERT_EQ(edit_distance(a, b), distance.at(b)) << a << " to " << b;
    }
  }
}

TEST(EditDistance, IsAMetric) {
  const Strings strings = all_strings(3);
  for (const std::string& a : strings) {
    for (const std::string& b : strings) {
      ASSERT_EQ(edit_distance(a, b) == 0, a == b);
      ASSERT_EQ(edit_distance(a, b), edit_distance(b, a));
      for (const std::string& c : strings) {
        ASSERT_LE(edit_distance(a, c), edit_distance(a, b) + edit_distance(b, c));
      }
    }
  }
}

TEST(EditDistance, CountsASwapOnceEvenIfLettersComeInBetween) {
  EXPECT_EQ(edit_distance("ca", "abc"), 2);  // swap, then insert
  EXPECT_EQ(edit_distance("rnak", "rank"), 1);
  EXPECT_EQ(edit_distance("\xC3\xA9", "e"), 2);  // bytes, not characters
}

TEST(Nearest, FindsWhatWasMeant) {
  const Strings names{"predict", "search", "simulate", "w", "tp", "ranks"};
  EXPECT_EQ(nearest("simulat", names), "simulate");
  EXPECT_EQ(nearest("perdict", names), "predict");
  EXPECT_EQ(nearest("RANKS", names), "ranks");
  EXPECT_EQ(nearest("ww", names), "w");
  EXPECT_EQ(nearest("tpp", names), "tp");
}

TEST(Nearest, FindsNothingWhereTooMuchIsWrong) {
  EXPECT_EQ(nearest("x", Strings{"w"}), "");
  EXPECT_EQ(nearest("xy", Strings{"wz"}), "");
  EXPECT_EQ(nearest("predict", Strings{"search", "show"}), "");
  EXPECT_EQ(nearest("", Strings{"a", "b"}), "");
  EXPECT_EQ(nearest("a", Strings{}), "");
}

TEST(Nearest, AllowsAThirdOfTheLettersAndNoMore) {
  EXPECT_EQ(nearest("abxdef", Strings{"abcdef"}), "abcdef");
  EXPECT_EQ(nearest("abxdex", Strings{"abcdef"}), "abcdef");
  EXPECT_EQ(nearest("xbxdex", Strings{"abcdef"}), "");
  EXPECT_EQ(nearest("abxex", Strings{"abcde"}), "");  // two of five
}

TEST(Nearest, TakesTheFirstOfEquallyNearOnes) {
  EXPECT_EQ(nearest("rank", Strings{"ranks", "rants", "ran"}), "ranks");
  EXPECT_EQ(nearest("rank", Strings{"ran", "rants", "ranks"}), "ran");
  EXPECT_EQ(nearest("ranks", Strings{"rants", "Ranks"}), "Ranks");
}

TEST(Suggest, AsksWhetherTheNearestWasMeant) {
  EXPECT_EQ(suggest("ww", Strings{"v", "w"}), "did you mean `w`?");
}

TEST(Suggest, ListsWhatThereIs) {
  EXPECT_EQ(suggest("q", Strings{"alpha", "beta", "gamma"}), "there are: alpha, beta, gamma");
  EXPECT_EQ(suggest("q", Strings{"alpha"}), "there is only: alpha");
  EXPECT_EQ(suggest("q", Strings{}), "there are none");
}

TEST(Suggest, ListsADozenAndCountsTheRest) {
  Strings names;
  std::string list;
  for (int i = 10; i < 22; ++i) {
    names.push_back("name" + std::to_string(i));
    list += (list.empty() ? "" : ", ") + names.back();
  }
  EXPECT_EQ(suggest("q", names), "there are: " + list);
  for (int i = 0; i < 30; ++i) names.push_back("more" + std::to_string(i));
  EXPECT_EQ(suggest("q", names), "there are: " + list + " and 30 more");
}

}  // namespace
}  // namespace shiplap
