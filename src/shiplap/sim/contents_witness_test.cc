// An independent implementation of the labels of events: while a random plan is generated, in an
// order in which it can run, its data is moved row by row.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/sim/replay.h"
#include "shiplap/sim/testing_internal.h"

namespace shiplap::sim {
namespace {

constexpr int kRows = 6;
constexpr int kRanks = 3;

struct Shown {
  int layer = -1;
  std::set<int> samples;
};

struct Row {
  int when = 0;  // 0: never written
  Shown shown;
};

struct Rows {
  int begin = 0;
  int count = 0;
  [[nodiscard]] std::string text() const {
    return "x[" + std::to_string(begin) + " +" + std::to_string(count) + "]";
  }
};

class Moving {
 public:
  explicit Moving(std::uint64_t seed)
      : random_(seed), memory_(kRanks), lines_(kRanks), expected_(kRanks) {
    for (auto& rows : memory_) rows.resize(kRows);
    for (int k = 0; k < 40; ++k) happen();
  }

  [[nodiscard]] std::string text() const {
    std::string out =
        "mesh r=3\ntensor A[9] Activation sample 20\n"
        "tensor D[9] ActivationGrad sample 20\nlist back = 5 4 3 2 1 0\n";
    for (std::size_t r = 0; r < kRanks; ++r) {
      out += "program p" + std::to_string(r) + " on r=" + std::to_string(r) +
             "\n  buffer x rows 6 row_bytes 8 bf16\n" + lines_[r];
    }
    return out;
  }
  [[nodiscard]] const std::vector<std::vector<Shown>>& expected() const { return expected_; }

 private:
  using Rank = std::size_t;

  int number(int begin, int end) { return static_cast<int>(random_.between(begin, end)); }
  Rank any_rank() { return static_cast<Rank>(number(0, kRanks)); }
  Rows any_rows(int count) { return {number(0, kRows - count + 1), count}; }

  Row& at(Rank rank, int row) { return memory_[rank][row]; }

  void line(Rank rank, const std::string& text, const Shown& shown) {
    lines_[rank] += "  " + text + "\n";
    expected_[rank].push_back(shown);
  }

  Shown look(Rank rank, Rows rows) {
    Shown shown;
    int latest = 0;
    for (int k = rows.begin; k < rows.begin + rows.count; ++k) {
      const Row& row = at(rank, k);
      if (row.when == 0) continue;
      shown.samples.insert(row.shown.samples.begin(), row.shown.samples.end());
      if (row.when < latest) continue;
      latest = row.when;
      shown.layer = row.shown.layer;
    }
    return shown;
  }

  void fill(Rank rank, Rows rows, const Row& row) {
    for (int k = rows.begin; k < rows.begin + rows.count; ++k) at(rank, k) = row;
  }

  void happen() {
    switch (number(0, 7)) {
      case 0:
      case 1:
        return write();
      case 2:
        return copy();
      case 3:
        return pack();
      case 4:
        return send();
      case 5:
        return gather();
      default:
        return broadcast();
    }
  }

  void write() {
    const Rank rank = any_rank();
    const Rows rows = any_rows(number(1, 4));
    const bool gradient = random_.chance();
    const int instance = number(0, 9);
    const int sample = number(0, 20 - rows.count);
    line(rank,
         "compute other\n    writes " + rows.text() + " = " + (gradient ? "D[" : "A[") +
             std::to_string(instance) + "] sample " + std::to_string(sample) + " +" +
             std::to_string(rows.count),
         {.layer = instance});
    Row row{.when = ++writes_, .shown = {.layer = gradient ? instance - 1 : instance}};
    for (int k = 0; k < rows.count; ++k) row.shown.samples.insert(sample + k);
    fill(rank, rows, row);
  }

  // Moves rows `from` of a rank, in this order, to rows `to`.
  void move(Rank rank, const std::vector<int>& from, const std::vector<int>& to) {
    std::vector<Row> moved;
    for (const int row : from) moved.push_back(at(rank, row));
    for (std::size_t k = 0; k < moved.size(); ++k) {
      if (moved[k].when > 0) moved[k].when = ++writes_;
      at(rank, to[k]) = moved[k];
    }
  }
  static std::vector<int> listed(Rows rows) {
    std::vector<int> result;
    for (int k = 0; k < rows.count; ++k) result.push_back(rows.begin + k);
    return result;
  }

  void copy() {
    const Rank rank = any_rank();
    const Rows from = any_rows(number(1, 5));
    const Rows to = any_rows(from.count);
    line(rank, "copy " + from.text() + " to " + to.text(), look(rank, from));
    if (from.begin != to.begin) move(rank, listed(from), listed(to));
  }

  // The list counts backwards.
  void pack() {
    const Rank rank = any_rank();
    const Rows from = any_rows(number(1, 5));
    const Rows to = any_rows(from.count);
    const std::string list = "x[from back[" + std::to_string(kRows - from.begin - from.count) +
                             " +" + std::to_string(from.count) + "]]";
    line(rank, "copy " + list + " to " + to.text(), look(rank, from));
    std::vector<int> rows = listed(from);
    std::ranges::reverse(rows);
    move(rank, rows, listed(to));
  }

  void send() {
    const Rank from = any_rank();
    const Rank to = (from + static_cast<Rank>(number(1, kRanks))) % kRanks;
    const Rows out = any_rows(number(1, 4));
    const Rows in = any_rows(out.count);
    const Shown shown = look(from, out);
    line(from, "send " + out.text() + " to rank " + std::to_string(to), shown);
    line(to, "receive " + in.text() + " from rank " + std::to_string(from), shown);
    fill(to, in, {.when = ++writes_, .shown = shown});
  }

  // Received rows are labelled like those that the rank contributed last.
  void gather() {
    const Rows from = any_rows(number(1, 4));
    const Rows to = any_rows(number(1, 7));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      line(rank, "all_gather " + from.text() + " to " + to.text() + " over r", look(rank, from));
      if (from.count == to.count) {
        if (from.begin != to.begin) move(rank, listed(from), listed(to));
        continue;
      }
      Row latest;
      for (const int row : listed(from)) {
        if (at(rank, row).when > 0 && at(rank, row).when >= latest.when) latest = at(rank, row);
      }
      if (latest.when > 0) latest.when = ++writes_;
      fill(rank, to, latest);
    }
  }

  void broadcast() {
    const Rank root = any_rank();
    const Rows rows = any_rows(number(1, 4));
    const Shown shown = look(root, rows);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      line(rank, "broadcast " + rows.text() + " over r root " + std::to_string(root), shown);
      if (rank != root) fill(rank, rows, {.when = ++writes_, .shown = shown});
    }
  }

  Random random_;
  std::vector<std::vector<Row>> memory_;
  std::vector<std::string> lines_;
  std::vector<std::vector<Shown>> expected_;
  int writes_ = 0;
};

TEST(Contents, AgreeWithMovingTheRows) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Moving moving(seed);
    const Replay r = replayed(moving.text());
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const std::vector<Shown>& expected = moving.expected()[rank];
      ASSERT_EQ(r.trace.ranks[rank].events.size(), expected.size());
      for (std::size_t k = 0; k < expected.size(); ++k) {
        const trace::Event& event = r.trace.ranks[rank].events[k];
        const std::set<int>& samples = expected[k].samples;
        EXPECT_EQ(event.layer, expected[k].layer) << "rank " << rank << ", event " << k;
        EXPECT_EQ(event.samples,
                  IndexSet(std::vector<std::int32_t>(samples.begin(), samples.end())))
            << "rank " << rank << ", event " << k;
      }
    }
    if (testing::Test::HasFailure()) {
      FAIL() << moving.text();
    }
  }
}

}  // namespace
}  // namespace shiplap::sim
