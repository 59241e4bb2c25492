// shiplap explain: prints the page of a diagnostic code such as D101.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/catalogue.h"
#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/base/suggest.h"
#include "shiplap/cli/verb.h"
#include "shiplap/report/text.h"

namespace shiplap::cli {
namespace {

struct Options {
  std::vector<std::string> codes;
  bool json = false;
};

std::vector<std::string> all_codes() {
  std::vector<std::string> codes;
  for (const CatalogueEntry& entry : catalogue()) codes.emplace_back(entry.code);
  return codes;
}

void declare(Flags& flags, Options& options) {
  flags.arguments({.name = "CODE",
                   .help = "the code in the brackets of a message; default: list all codes",
                   .example = "D101",
                   .choices = all_codes(),
                   .required = false},
                  options.codes);
  flags.toggle({.name = "--json", .help = "print JSON"}, options.json);
}

// Renders the marks `**bold**` and `code` as terminal styles.
std::string format_inline(std::string_view text, Colour colour) {
  std::string result;
  while (!text.empty()) {
    const std::string_view mark = text.starts_with("**") ? "**" : text.starts_with('`') ? "`" : "";
    const std::size_t end = mark.empty() ? text.npos : text.find(mark, mark.size());
    if (end == text.npos) {
      result += text[0];
      text.remove_prefix(1);
      continue;
    }
    const std::string_view inside = text.substr(mark.size(), end - mark.size());
    result += report::styled(inside, mark == "`" ? report::kCyan : report::kBold, colour);
    text.remove_prefix(end + mark.size());
  }
  return result;
}

// Renders a paragraph, a heading, a list item or a code block, without the last newline.
std::string format_block(const std::string& block, const Context& context) {
  const Colour colour = context.out.colour;
  if (block.starts_with("    ")) return report::styled(block, report::kDim, colour);
  if (block.starts_with('#'))
    return report::styled(block.substr(block.find_first_not_of("# ")), report::kBold, colour);
  std::string words;
  for (const char c : block) {
    const bool blank = c == '\n' || c == ' ';
    if (!blank) words += c;
    if (blank && !words.ends_with(' ')) words += ' ';
  }
  const std::size_t indent = block.starts_with("- ") ? 2 : 0;
  return format_inline(report::wrapped(words, indent, static_cast<std::size_t>(context.width())),
                       colour);
}

// Returns Markdown unchanged, unless the output is a coloured terminal.
std::string page_text(std::string_view page, const Context& context) {
  if (context.out.colour == Colour::off) return std::string(page);
  std::string text;
  std::string block;
  const auto end_block = [&] {
    if (!block.empty()) text += format_block(block, context) + "\n";
    block.clear();
  };
  while (!page.empty()) {
    const std::string line(page.substr(0, page.find('\n')));
    page.remove_prefix(std::min(line.size() + 1, page.size()));
    if (line.empty() || line.starts_with("- ")) end_block();
    if (line.empty()) text += '\n';
    if (!block.empty()) block += '\n';
    block += line;
  }
  end_block();
  return text;
}

Json to_json(const std::vector<const CatalogueEntry*>& entries) {
  Json pages = Json::array();
  for (const CatalogueEntry* entry : entries) {
    pages.push(
        Json::object({{"code", entry->code}, {"title", entry->title}, {"page", entry->page}}));
  }
  return Json::object({{"schema", "shiplap.explain/1"}, {"pages", pages}});
}

void list_all(Context& context) {
  for (const CatalogueEntry& entry : catalogue()) {
    context.out.stream << report::styled(entry.code, report::kBold, context.out.colour) << "  "
                       << entry.title << '\n';
  }
  context.err.stream << report::styled("next: ", report::kDim, context.err.colour)
                     << "shiplap explain " << catalogue().front().code << '\n';
}

ExitCode explain(const Options& options, Context& context) {
  const auto entries =
      find_pages(options.json && options.codes.empty() ? all_codes() : options.codes);
  if (options.json) {
    context.out.stream << to_text(to_json(entries)) << '\n';
    return ExitCode::yes;
  }
  if (entries.empty()) list_all(context);
  for (std::size_t k = 0; k < entries.size(); ++k) {
    const std::string page = page_text(entries[k]->page, context);
    context.out.stream << (k == 0 ? "" : "\n") << page << (page.ends_with('\n') ? "" : "\n");
  }
  return ExitCode::yes;
}

}  // namespace

Verb explain_verb() {
  return make_verb<Options>({.name = "explain",
                             .summary = "what a diagnostic means and how to fix it",
                             .examples = {{"shiplap explain D101", "what error[D101] means"},
                                          {"shiplap explain", "all codes with their titles"}}},
                            {.declare = declare, .run = explain});
}

}  // namespace shiplap::cli
