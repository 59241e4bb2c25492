#include "shiplap/report/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "shiplap/report/table.h"
#include "shiplap/report/truncation.h"

namespace shiplap::report {
namespace {

Table example() {
  Table table({Column::text("name", 9), Column::numbers("bytes", 9), Column::text("remark", 1),
               Column::numbers("tag", 9).hidden_if_empty()});
  table.add({"a", "8", "short", ""});
  table.add({"longer", "1,024", "a remark that goes on for some time", ""});
  return table;
}

std::size_t widest(const std::string& text) {
  std::size_t width = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) width = std::max(width, display_width(line));
  return width;
}

TEST(TextTable, AlignsAndLeavesOutEmptyColumns) {
  EXPECT_EQ(example().text({.width = 100}),
            "name    bytes  remark\n"
            "a           8  short\n"
            "longer  1,024  a remark that goes on for some time\n");
}

TEST(TextTable, CutsWordsThenDropsColumns) {
  EXPECT_EQ(example().text({.width = 40}),
            "name    bytes  remark\n"
            "a           8  short\n"
            "longer  1,024  a remark that goes on fo…\n");
  EXPECT_EQ(example().text({.width = 20}),
            "name    bytes\n"
            "a           8\n"
            "longer  1,024\n");
}

TEST(TextTable, NeverDropsTheNamesOfTheRows) {
  Table table(
      {Column::text("ranks", 1), Column::numbers("computes", 3), Column::numbers("idle", 2)});
  table.add({"0, 1, 4, 5, 8, 9, 12, 13", "32.5 %", "9.3 %"});
  EXPECT_EQ(table.text({.width = 30}),
            "ranks             computes\n"
            "0, 1, 4, 5, 8, …    32.5 %\n");
  EXPECT_THAT(table.text({.width = 20}), testing::StartsWith("ranks\n0, 1, 4"));
}

TEST(TextTable, IsNeverTooWide) {
  for (int width = 20; width <= 100; ++width) {
    EXPECT_LE(widest(example().text({.width = width})), static_cast<std::size_t>(width));
  }
}

TEST(TextTable, ShowsNothingThatATerminalObeys) {
  EXPECT_EQ(printable("a\033[31mb\xC2\x9B"
                      "c\n"),
            "a?[31mb?c?");
  EXPECT_EQ(printable("größer…"), "größer…");
}

TEST(CutTo, CountsCharacters) {
  EXPECT_EQ(truncated("größer", 6), "größer");
  EXPECT_EQ(truncated("größer", 5), "größ…");
  EXPECT_EQ(display_width(truncated("größer", 5)), 5U);
}

TEST(ByteColumn, OneUnitServesAll) {
  const ByteColumn column({8192, 65536, 0});
  EXPECT_EQ(column.unit(), "KiB");
  EXPECT_EQ(column.cell(8192), "8");
  EXPECT_EQ(column.cell(0), "0");
}

TEST(ByteColumn, SmallOnesAreNotHidden) {
  const ByteColumn near({std::int64_t{4} << 30, std::int64_t{8} << 20});
  EXPECT_EQ(near.unit(), "MiB");
  EXPECT_EQ(near.cell(std::int64_t{4} << 30), "4,096");
  const ByteColumn far({std::int64_t{1} << 50, 8});
  EXPECT_EQ(far.cell(8).substr(0, 1), "<");
}

TEST(ByteColumn, NothingIsZeroBytes) { EXPECT_EQ(ByteColumn({}).cell(0), "0"); }

TEST(Truncation, OneLineMoreIsShownRatherThanAnnounced) {
  const Truncation truncation{.limit = 3};
  EXPECT_EQ(truncation.shown(4), 4U);
  EXPECT_EQ(truncation.shown(5), 3U);
  EXPECT_EQ(truncation.rest(5), "and 2 more; --limit 0 shows all\n");
  EXPECT_EQ(truncation.rest(4), "");
  EXPECT_EQ(Truncation{}.shown(1000), 1000U);
}

TEST(Counted, KnowsThePlural) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(131072, "rank"), "131,072 ranks");
}

}  // namespace
}  // namespace shiplap::report
