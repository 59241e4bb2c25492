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
                   escaped(number.value.text));
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

enum class Script { none, runs };

std::string section(const Panel& panel, Script script) {
  const std::string title = "<h2>" + escaped(panel.title) + "</h2>";
  const bool more = script == Script::runs && !panel.by_hand.empty();
  const std::string note = more ? panel.note + " " + panel.by_hand : panel.note;
  const std::string content = paragraph(note).markup + panel.body.markup;
  if (panel.starts == Panel::Starts::open) {
    return fmt::format("<section>\n{}\n{}</section>\n", title, content);
  }
  return fmt::format("<section>\n<details><summary>{}</summary>\n{}</details></section>\n", title,
                     content);
}

std::string above_panels(const Page& page) {
  return list("numbers", page.numbers) + list("more", page.more) + assumptions(page.assumed);
}

// The text between the next braces after `at`.
std::string_view declarations(std::string_view style, std::size_t at) {
  const std::size_t begin = style.find('{', at) + 1;
  return style.substr(begin, style.find('}', begin) - begin);
}

// The light and dark colours of the style, for host pages that declare their theme.
std::string colours_of_host() {
  const std::string_view style = embedded_file("style");
  const std::size_t light = style.find(":root");
  const std::size_t dark = style.find(":root", light + 1);
  ensure(dark != std::string_view::npos, "the style begins with its colours, light and dark");
  return fmt::format(
      "body[data-jp-theme-light=\"true\"] .shiplap, body.vscode-light .shiplap {{{}}}\n"
      "body[data-jp-theme-light=\"false\"] .shiplap, body.vscode-dark .shiplap {{{}}}\n",
      declarations(style, light), declarations(style, dark));
}

// Rewrites rules for the whole page as rules for the element that contains the style.
std::string scoped_style() {
  std::string style = std::string(embedded_file("style")) + ramp_style();
  for (const std::string_view whole : {":root", "html {", "\nbody {"}) {
    const std::string scope = whole.starts_with(':') ? ":scope" : "\n:scope {";
    for (std::size_t at = style.find(whole); at != std::string::npos; at = style.find(whole, at)) {
      style.replace(at, whole.size(), scope);
    }
  }
  return fmt::format("<style>\n@scope {{\n{}:scope {{ padding: 12px 16px; }}\n}}\n{}</style>\n",
                     style, colours_of_host());
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
                    above_panels(page);
  for (const Panel& panel : page.panels) out += section(panel, Script::runs);
  out += footer(page) + "</main>\n<div id=\"tip\" role=\"status\" hidden></div>\n<script>\n";
  return out + std::string(embedded_file("script")) + "</script>\n</body>\n</html>\n";
}

std::string to_fragment(const Page& page) {
  std::string out = fmt::format("<div class=\"shiplap\">\n{}<h3>{}</h3>\n{}", scoped_style(),
                                escaped(page.title), above_panels(page));
  for (const Panel& panel : page.panels) {
    if (panel.starts == Panel::Starts::open) out += section(panel, Script::none);
  }
  return out + "</div>\n";
}

Html side_by_side(const std::vector<Html>& parts) {
  std::string out = "<div class=\"beside\">\n";
  for (const Html& part : parts) out += "<div>" + part.markup + "</div>\n";
  return {out + "</div>\n"};
}

}  // namespace shiplap::report
