// HappensBefore against a search through all orders that the streams and `after` of a rank allow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shiplap/check/happens_before_internal.h"

namespace shiplap::check {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

const plan::Operation kSync;
const plan::Operation kAsync{.async = true};

// Builds a program operation by operation, as a plan would list them.
class Builder {
 public:
  explicit Builder(std::size_t streams) : last_(streams, -1) { steps_.heads = last_; }

  struct Line {
    std::int32_t stream = 0;
    bool async = false;
    std::vector<std::int32_t> after;
    ActionKind action = ActionKind::copy;
  };
  std::int32_t add(const Line& line) {
    const auto index = static_cast<std::int32_t>(ops_.size());
    std::int32_t& last = last_[line.stream];
    steps_.steps.push_back({.source = line.async ? &kAsync : &kSync,
                            .predecessor = last,
                            .after_first = static_cast<std::int32_t>(steps_.after.size()),
                            .after_count = static_cast<std::int32_t>(line.after.size()),
                            .stream = line.stream,
                            .action = line.action});
    last = index;
    steps_.after.insert(steps_.after.end(), line.after.begin(), line.after.end());
    ops_.push_back({.action = line.action});
    return index;
  }
  std::int32_t add_member(std::int32_t batch) {
    const auto index = static_cast<std::int32_t>(ops_.size());
    steps_.steps.push_back({.source = &kSync,
                            .predecessor = batch,
                            .stream = steps_[batch].stream,
                            .action = ActionKind::copy,
                            .member = true});
    ops_.push_back({.action = ActionKind::copy});
    return index;
  }
  ScriptOp& operator[](std::int32_t k) { return ops_[k]; }
  Script& script() {
    script_.ops = ops_;
    script_.steps = &steps_;
    return script_;
  }

 private:
  Script script_;
  plan::RankTemplate steps_;
  std::vector<ScriptOp> ops_;
  std::vector<std::int32_t> last_;  // by stream
};

// Every state that the operations can be in, found by trying everything: 0 waits, 1 has started, 2
// is complete.
class Search {
 public:
  explicit Search(const Script& script)
      : steps_(*script.steps),
        count_(script.ops.size()),
        complete_(count_, std::vector<bool>(count_, true)),
        started_(count_, std::vector<bool>(count_, true)) {
    std::vector<State> open{State(count_, 0)};
    seen_.insert(open.back());
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      for (std::size_t k = 0; k < count_; ++k) {
        State next = state;
        if (!move(next, k) || !seen_.insert(next).second) continue;
        open.push_back(std::move(next));
      }
    }
    State done(count_, 2);
    EXPECT_TRUE(seen_.contains(done)) << "no rank can deadlock by itself";
  }

  // Whether one is complete, or has started, whenever the other starts.
  [[nodiscard]] bool complete_before(std::size_t a, std::size_t b) const { return complete_[b][a]; }
  [[nodiscard]] bool started_before(std::size_t a, std::size_t b) const { return started_[b][a]; }

 private:
  using State = std::vector<char>;

  bool move(State& state, std::size_t k) {
    const plan::Step& op = steps_.steps[k];
    if (state[k] == 2) return false;
    if (state[k] == 1) {  // whatever it waits for, it may have come
      for (std::size_t m = 0; m < count_; ++m) {
        if (is_member(m, k) && state[m] != 2) return false;
      }
      state[k] = 2;
      return true;
    }
    if (op.member || !may_start(state, op)) return false;
    std::vector<std::size_t> starting{k};
    for (std::size_t m = 0; m < count_; ++m) {
      if (is_member(m, k)) starting.push_back(m);
    }
    for (const std::size_t one : starting) state[one] = 1;
    for (const std::size_t one : starting) {
      for (std::size_t other = 0; other < count_; ++other) {
        if (state[other] != 2) complete_[one][other] = false;
        if (state[other] == 0) started_[one][other] = false;
      }
    }
    return true;
  }
  [[nodiscard]] bool is_member(std::size_t member, std::size_t batch) const {
    return steps_.steps[member].member && steps_.steps[member].predecessor == std::int32_t(batch);
  }
  [[nodiscard]] bool may_start(const State& state, const plan::Step& op) const {
    const auto at = [&](std::int32_t k) { return state[k]; };
    if (op.predecessor >= 0 && at(op.predecessor) < (steps_[op.predecessor].source->async ? 1 : 2))
      return false;
    return std::ranges::all_of(steps_.after_of(op), [&](std::int32_t k) { return at(k) == 2; });
  }

  const plan::RankTemplate& steps_;
  std::size_t count_;
  std::vector<std::vector<bool>> complete_;
  std::vector<std::vector<bool>> started_;
  std::set<State> seen_;
};

void expect_agreement(const Script& script, const std::string& name) {
  const HappensBefore order(*script.steps);
  const Search search(script);
  const auto count = static_cast<std::int32_t>(script.ops.size());
  for (std::int32_t b = 0; b < count; ++b) {
    for (std::int32_t a = 0; a < b; ++a) {
      const auto x = static_cast<std::size_t>(a);
      const auto y = static_cast<std::size_t>(b);
      ASSERT_EQ(order.complete_before(a, b), search.complete_before(x, y))
          << name << ": " << a << " complete before " << b;
      ASSERT_EQ(order.started_before(a, b), search.started_before(x, y))
          << name << ": " << a << " started before " << b;
    }
  }
}

// Streams, async and after of `count` operations, from the digits of a number.
Builder numbered(std::int32_t count, unsigned number) {
  Builder builder(2);
  const auto bit = [&] {
    const bool set = (number & 1U) != 0;
    number >>= 1U;
    return set;
  };
  for (std::int32_t k = 0; k < count; ++k) {
    Builder::Line line;
    line.stream = bit() ? 1 : 0;
    line.async = bit();
    for (std::int32_t earlier = 0; earlier < k; ++earlier) {
      if (bit()) line.after.push_back(earlier);
    }
    builder.add(line);
  }
  return builder;
}

TEST(HappensBefore, OfAllSmallProgramsIsThatOfTheSearch) {
  for (std::int32_t count = 1; count <= 4; ++count) {
    const unsigned bits = static_cast<unsigned>(2 * count + count * (count - 1) / 2);
    for (unsigned number = 0; number < 1U << bits; ++number) {
      Builder builder = numbered(count, number);
      expect_agreement(builder.script(), "program " + std::to_string(number));
      if (testing::Test::HasFailure()) return;
    }
  }
}

// With batches, and sometimes with row accesses.
Builder random_program(std::mt19937& random) {
  const std::size_t streams = 1 + random() % 3;
  Builder builder(streams);
  std::vector<std::int32_t> named;
  while (std::ssize(builder.script().ops) < 7) {
    Builder::Line line{.stream = static_cast<std::int16_t>(random() % streams),
                       .async = random() % 3 == 0};
    for (const std::int32_t earlier : named) {
      if (random() % 4 == 0) line.after.push_back(earlier);
    }
    if (random() % 4 == 0) line.action = ActionKind::batch;
    named.push_back(builder.add(line));
    if (line.action != ActionKind::batch) continue;
    for (auto members = random() % 3; members > 0; --members) builder.add_member(named.back());
  }
  return builder;
}

TEST(HappensBefore, OfRandomProgramsIsThatOfTheSearch) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    Builder builder = random_program(random);
    expect_agreement(builder.script(), "seed " + std::to_string(seed));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(HappensBefore, OfMembersIsThatOfTheirBatch) {
  Builder builder(1);
  const std::int32_t batch = builder.add({.action = ActionKind::batch});
  const std::int32_t one = builder.add_member(batch);
  const std::int32_t two = builder.add_member(batch);
  const std::int32_t next = builder.add({});
  const HappensBefore order(*builder.script().steps);
  EXPECT_FALSE(order.complete_before(one, two));
  EXPECT_TRUE(order.started_before(one, two));
  EXPECT_TRUE(order.complete_before(one, next));
  EXPECT_TRUE(order.complete_before(batch, next));
}

bool touches(const RowRange& row_range, std::int32_t row) {
  return row_range.exists() && row_range.begin <= row && row < row_range.end();
}

// Whether two unordered operations access a row, one of them writing.
bool race_exists(const Script& script, const Search& search) {
  for (std::size_t b = 0; b < script.ops.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (search.complete_before(a, b)) continue;
      for (std::int32_t row = 0; row < script.rows.front(); ++row) {
        const ScriptOp& x = script.ops[a];
        const ScriptOp& y = script.ops[b];
        const bool both = (touches(x.from, row) || touches(x.to, row)) &&
                          (touches(y.from, row) || touches(y.to, row));
        if (both && (touches(x.to, row) || touches(y.to, row))) return true;
      }
    }
  }
  return false;
}

// Readers that another operation waited for are dropped; no race may be missed by that.
TEST(Races, AreFoundExactlyWhereTheSearchHasOne) {
  int racing = 0;
  constexpr unsigned kPrograms = 1500;
  for (unsigned seed = 0; seed < kPrograms; ++seed) {
    std::mt19937 random(seed);
    Builder builder = random_program(random);
    Script& script = builder.script();
    script.rows = {4};
    script.row_bytes = {8};
    for (ScriptOp& op : script.ops) {
      const auto row_range = [&] {
        const auto begin = static_cast<std::int32_t>(random() % 4);
        const auto count = static_cast<std::int32_t>(random() % static_cast<unsigned>(5 - begin));
        return RowRange{.buffer = 0, .begin = begin, .count = count};
      };
      if (op.action == ActionKind::batch) continue;
      if (random() % 2 == 0) op.from = row_range();
      if (random() % 5 == 0) op.to = row_range();
    }
    std::vector<Violation> violations;
    find_races(script, violations);
    const bool expected = race_exists(script, Search(script));
    ASSERT_EQ(!violations.empty(), expected) << "seed " << seed;
    racing += expected ? 1 : 0;
  }
  // Both answers are frequent, or this would prove little.
  EXPECT_GT(racing, 200);
  EXPECT_LT(racing, 1300);
}

TEST(Races, OfListedRowsAreCheckedRowByRow) {
  Builder builder(2);
  const std::int32_t one = builder.add({.stream = 0});
  const std::int32_t two = builder.add({.stream = 1});
  builder.script().rows = {4};
  builder.script().row_bytes = {8};
  const std::vector<std::int32_t> listed{3, 0, 2, 1};
  builder.script().listed = listed;
  builder[one].to = {.buffer = 0, .listed = 0, .begin = 0, .count = 2};  // rows 3 and 0
  builder[two].from = {.buffer = 0, .begin = 1, .count = 2};
  std::vector<Violation> violations;
  EXPECT_EQ(find_races(builder.script(), violations), 2);
  EXPECT_THAT(violations, IsEmpty());
  builder[one].to.listed = 1;  // rows 0 and 2
  find_races(builder.script(), violations);
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations.front().symptom, Symptom::race_read);
  EXPECT_EQ(violations.front().first_row, 2);
  EXPECT_EQ(violations.front().place.operation, two);
  EXPECT_EQ(violations.front().other.operation, one);
}

}  // namespace
}  // namespace shiplap::check
