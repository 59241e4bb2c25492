#include "shiplap/report/table.h"

#include <algorithm>

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

constexpr std::size_t kMostPrinted = 100;  // the style sheet hides the others on paper
constexpr std::size_t kColumnGap = 2;
constexpr std::size_t kShortest = 16;  // no column of words is cut further while others can go,
constexpr std::size_t kNarrowest = 8;  // and then no further than this

std::string padded(std::string_view cell, std::size_t width, Column::Holds holds) {
  const std::string text = cut_to(cell, width);
  const std::string blanks(width - display_width(text), ' ');
  return holds == Column::Holds::numbers ? blanks + text : text + blanks;
}

std::string opening(const char* element, const Column& column) {
  const bool words = column.holds == Column::Holds::words;
  return std::string("<") + element + (words ? " class=\"words\">" : ">");
}

std::string header(const std::vector<Column>& columns) {
  std::string out = "<thead><tr>";
  for (const Column& column : columns)
    out += opening("th", column) + escaped(column.title) + "</th>";
  return out + "</tr></thead>\n";
}

}  // namespace

void Table::add(std::vector<Cell> cells) {
  ensure(cells.size() == columns_.size(), "a row has a cell for every column");
  rows_.push_back(std::move(cells));
}

Table::Layout Table::layout(std::size_t width) const {
  Layout result;
  for (std::size_t k = 0; k < columns_.size(); ++k) {
    std::size_t widest = 0;
    for (const auto& row : rows_) widest = std::max(widest, display_width(printable(row[k].text)));
    if (widest > 0 || !columns_[k].if_any) result.shown.push_back(k);
    result.widths.push_back(std::max(widest, display_width(columns_[k].title)));
  }
  const auto total = [&] {
    std::size_t sum = 0;
    for (const std::size_t k : result.shown) sum += result.widths[k] + kColumnGap;
    return sum - kColumnGap;
  };
  // Cuts words no further than to `least`.
  const auto cut_words = [&](std::size_t least) {
    while (total() > width) {
      const auto longest = std::ranges::max_element(result.shown, {}, [&](std::size_t k) {
        return columns_[k].holds == Column::Holds::words ? result.widths[k] : 0;
      });
      std::size_t& longest_width = result.widths[*longest];
      if (columns_[*longest].holds != Column::Holds::words || longest_width <= least) return;
      longest_width = std::max(least, longest_width - std::min(longest_width, total() - width));
    }
  };
  const auto drop_columns = [&](int most_worth) {
    while (total() > width && result.shown.size() > 1) {
      const auto least = std::ranges::min_element(result.shown, {},
                                                  [&](std::size_t k) { return columns_[k].worth; });
      if (columns_[*least].worth > most_worth) return;
      result.shown.erase(least);
    }
  };
  cut_words(std::max(kShortest, width / 3));
  drop_columns(1);
  cut_words(std::max(kShortest, width / 4));
  drop_columns(4);
  cut_words(kNarrowest);
  return result;
}

std::string Table::line(const Layout& layout, const std::vector<Cell>& cells) const {
  std::string text;
  for (const std::size_t k : layout.shown) {
    if (!text.empty()) text += std::string(kColumnGap, ' ');
    text += padded(printable(cells[k].text), layout.widths[k], columns_[k].holds);
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string Table::text(const TextLook& look) const {
  const Layout found = layout(static_cast<std::size_t>(look.width));
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(column.title);
  std::string text = painted(line(found, titles), kBold, look.colour) + "\n";
  for (const auto& row : rows_) text += line(found, row) + "\n";
  return text;
}

Html to_html(const Table& table) {
  std::vector<std::string> openings;
  for (const Column& column : table.columns_) openings.push_back(opening("td", column));
  // It can be scrolled, so the keyboard must be able to reach it.
  std::string out = "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"table\">";
  const bool is_long = table.rows_.size() > kMostPrinted;
  out +=
      (is_long ? "<table class=\"long\">\n" : "<table>\n") + header(table.columns_) + "<tbody>\n";
  for (const std::vector<Cell>& row : table.rows_) {
    out += "<tr>";
    for (std::size_t k = 0; k < row.size(); ++k)
      out += openings[k] + escaped(row[k].text) + "</td>";
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  if (is_long) out += "<p class=\"paper\">Only the first 100 rows are printed.</p>\n";
  return {out};
}

}  // namespace shiplap::report
