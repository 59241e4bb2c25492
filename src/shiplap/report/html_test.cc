#include "shiplap/report/html.h"

#include <gtest/gtest.h>

namespace shiplap::report {
namespace {

TEST(Escaped, LeavesNoCharacterWithAMeaning) {
  EXPECT_EQ(escaped(R"(<a href="x">'&amp;'</a>)"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;amp;&#39;&lt;/a&gt;");
}

TEST(Escaped, KeepsEveryOtherByte) { EXPECT_EQ(escaped("a b\n\tµs → 12 %"), "a b\n\tµs → 12 %"); }

TEST(Escaped, ReplacesWhatHtmlForbids) {
  for (int code = 0; code < 0x20; ++code) {
    const char c = static_cast<char>(code);
    if (c == '\n' || c == '\t') continue;
    EXPECT_EQ(escaped(std::string(1, c)), "\xEF\xBF\xBD") << code;
  }
}

TEST(Paragraph, OfNothingIsNothing) { EXPECT_EQ(paragraph(""), Html{}); }

}  // namespace
}  // namespace shiplap::report
