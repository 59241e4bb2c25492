#include "shiplap/report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shiplap/report/legend.h"

namespace shiplap::report {
namespace {

using testing::HasSubstr;
using testing::Not;

Page example(const std::string& text) {
  return {.title = text,
          .numbers = {{.label = text, .value = text, .note = text}},
          .more = {{.label = text, .value = text}},
          .assumed = {text},
          .panels = {{.title = text, .note = text, .body = to_html(Legend{{{.text = text}}})},
                     {.title = text, .starts = Panel::Starts::folded}},
          .command = text,
          .version = text};
}

TEST(Page, EscapesEveryText) {
  const std::string html = to_html(example("<x>&"));
  EXPECT_THAT(html, Not(HasSubstr("<x>")));
  EXPECT_THAT(html, HasSubstr("<h1>&lt;x&gt;&amp;</h1>"));
  EXPECT_THAT(html, HasSubstr("<pre tabindex=\"0\">&lt;x&gt;&amp;</pre>"));
}

TEST(Page, GivesTheSameBytesForTheSamePage) {
  EXPECT_EQ(to_html(example("a")), to_html(example("a")));
}

TEST(Page, NeedsNoNetwork) {
  const std::string html = to_html(example("a"));
  for (const char* way : {"http:", "https:", "url(", "@import", " src=", "<link", "fetch("}) {
    EXPECT_THAT(html, Not(HasSubstr(way)));
  }
}

TEST(Page, SaysWhatWasAssumedBeforeThePanels) {
  const std::string html = to_html(example("a"));
  EXPECT_LT(html.find("Assumed:"), html.find("<section>"));
  EXPECT_LT(html.find("<section>"), html.find("<footer>"));
}

TEST(Page, LeavesOutWhatIsNotThere) {
  const std::string html = to_html(Page{.title = "a"});
  for (const char* part : {"<dl", "Assumed", "<section", "Made by"}) {
    EXPECT_THAT(html, Not(HasSubstr(part)));
  }
}

}  // namespace
}  // namespace shiplap::report
