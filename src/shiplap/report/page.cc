#include "shiplap/report/page.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/report/ramp.h"
#include "shiplap_embedded_report.h"

namespace shiplap::report {
namespace {

std::string_view embedded_file(std::string_view name) {
  for (const embedded::File& file : embedded::report_files()) {
    if (file.name == name) return file.content;
  }
  throw InternalError("a page has its style and its script");
}

std::string head(std::string_view title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}</title>\n<style>\n{}{}</style>\n</head>\n",
      escaped(title), embedded_file("style"), ramp_style());
}

std::string list(std::string_view css_class, const std::vector<KeyNumber>& numbers) {
  if (numbers.empty()) return "";
  std::string out = fmt::format("<dl class=\"{}\">\n", css_class);
  for (const KeyNumber& number : numbers) {
    fmt::format_to(std::back_inserter(out), "<div><dt>{}</dt><dd>{}</dd>", escaped(number.label),
                   escaped(number.value));
    if (!number.note.empty()) out += "<dd class=\"note\">" + escaped(number.note) + "</dd>";
    out += "</div>\n";
  }
  return out + "</dl>\n";
}

std::string assumptions(const std::vector<std::string>& assumed) {
  if (assumed.empty()) return "";
  std::string out = "<p class=\"assumed\"><b>Assumed:</b>";
  for (const std::string& sentence : assumed) out += ' ' + escaped(sentence);
  return out + "</p>\n";
}

std::string section(const Panel& panel) {
  const std::string title = "<h2>" + escaped(panel.title) + "</h2>";
  const std::string content = paragraph(panel.note).markup + panel.body.markup;
  if (panel.starts == Panel::Starts::open) {
    return fmt::format("<section>\n{}\n{}</section>\n", title, content);
  }
  return fmt::format("<section>\n<details><summary>{}</summary>\n{}</details></section>\n", title,
                     content);
}

std::string content(const Page& page) {
  std::string out =
      list("numbers", page.numbers) + list("more", page.more) + assumptions(page.assumed);
  for (const Panel& panel : page.panels) out += section(panel);
  return out;
}

// Rules for the whole page become rules for the element with the style.
std::string scoped_style() {
  std::string style = std::string(embedded_file("style")) + ramp_style();
  for (const std::string_view whole : {":root", "html {", "\nbody {"}) {
    const std::string scope = whole.starts_with(':') ? ":scope" : "\n:scope {";
    for (std::size_t at = style.find(whole); at != std::string::npos; at = style.find(whole, at)) {
      style.replace(at, whole.size(), scope);
    }
  }
  return fmt::format("<style>\n@scope {{\n{}}}\n</style>\n", style);
}

std::string footer(const Page& page) {
  std::string out = "<footer>\n";
  if (!page.command.empty()) {
    out += "<p>Made by</p>\n<pre tabindex=\"0\">" + escaped(page.command) + "</pre>\n";
  }
  if (!page.version.empty()) out += "<p>Shiplap " + escaped(page.version) + "</p>\n";
  return out + "</footer>\n";
}

}  // namespace

std::string to_html(const Page& page) {
  std::string out = head(page.title) + "<body>\n<main>\n<h1>" + escaped(page.title) + "</h1>\n" +
                    content(page) + footer(page) +
                    "</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script>\n";
  return out + std::string(embedded_file("script")) + "</script>\n</body>\n</html>\n";
}

std::string to_fragment(const Page& page) {
  return fmt::format("<div class=\"shiplap\">\n{}<h3>{}</h3>\n{}</div>\n", scoped_style(),
                     escaped(page.title), content(page));
}

Html side_by_side(const std::vector<Html>& parts) {
  std::string out = "<div class=\"beside\">\n";
  for (const Html& part : parts) out += "<div>" + part.markup + "</div>\n";
  return {out + "</div>\n"};
}

}  // namespace shiplap::report
