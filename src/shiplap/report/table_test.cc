#include "shiplap/report/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

using testing::HasSubstr;

TEST(Table, EscapesTitlesAndCells) {
  const Html html = to_html(Table{.columns = {{.title = "<b>"}}, .rows = {{"a<script>"}}});
  EXPECT_THAT(html.markup, HasSubstr("<th>&lt;b&gt;</th>"));
  EXPECT_THAT(html.markup, HasSubstr("<td>a&lt;script&gt;</td>"));
}

TEST(Table, OnlyWordsGoLeft) {
  const Html html =
      to_html(Table{.columns = {{.title = "a", .holds = Column::Holds::words}, {.title = "b"}},
                    .rows = {{"word", "12"}}});
  EXPECT_THAT(html.markup, HasSubstr("<td class=\"words\">word</td><td>12</td>"));
}

TEST(Table, RefusesARowOfAnotherLength) {
  EXPECT_THROW(static_cast<void>(to_html(Table{.columns = {{.title = "a"}}, .rows = {{}}})),
               InternalError);
}

}  // namespace
}  // namespace shiplap::report
