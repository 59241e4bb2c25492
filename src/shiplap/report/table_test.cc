#include "shiplap/report/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

using testing::HasSubstr;

TEST(Table, EscapesTitlesAndCells) {
  Table table({Column::numbers("<b>")});
  table.add({"a<script>"});
  const Html html = to_html(table);
  EXPECT_THAT(html.markup, HasSubstr("<th>&lt;b&gt;</th>"));
  EXPECT_THAT(html.markup, HasSubstr("<td>a&lt;script&gt;</td>"));
}

TEST(Table, OnlyWordsGoLeft) {
  Table table({Column::text("a"), Column::numbers("b")});
  table.add({"word", "12"});
  const Html html = to_html(table);
  EXPECT_THAT(html.markup, HasSubstr("<td class=\"words\">word</td><td>12</td>"));
}

TEST(Table, RefusesARowOfAnotherLength) {
  Table table({Column::numbers("a")});
  EXPECT_THROW(table.add({}), InternalError);
}

}  // namespace
}  // namespace shiplap::report
