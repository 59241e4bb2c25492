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

TEST(Fragment, IsAPartOfAPageWithoutScript) {
  Page page = example("<x>&");
  page.panels.front().by_hand = "point at it";
  const std::string part = to_fragment(page);
  EXPECT_THAT(to_html(page), HasSubstr("point at it"));
  for (const char* whole :
       {"<html", "<body", "<script", "<footer", ":root", "<x>", "point at it"}) {
    EXPECT_THAT(part, Not(HasSubstr(whole)));
  }
  EXPECT_THAT(part, HasSubstr("<h3>&lt;x&gt;&amp;</h3>"));
}

TEST(Fragment, LeavesOutWhatStartsFolded) {
  EXPECT_THAT(to_html(example("a")), HasSubstr("<details>"));
  EXPECT_THAT(to_fragment(example("a")), Not(HasSubstr("<details>")));
  EXPECT_THAT(to_fragment(example("a")), HasSubstr("<section>"));
}

// The colours occur three times: light, dark by preference, and by the theme of the host.
TEST(Fragment, IsLightOrDarkAsItsHostIs) {
  const std::string part = to_fragment(example("a"));
  const std::size_t light = part.find("body[data-jp-theme-light=\"true\"] .shiplap");
  const std::size_t dark = part.find("body[data-jp-theme-light=\"false\"] .shiplap");
  ASSERT_LT(light, dark);
  ASSERT_LT(dark, part.size());
  EXPECT_THAT(part.substr(light, dark - light), HasSubstr("--page: #ffffff"));
  EXPECT_THAT(part.substr(dark), HasSubstr("--page: #14171b"));
}

}  // namespace
}  // namespace shiplap::report
