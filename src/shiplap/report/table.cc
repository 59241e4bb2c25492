#include "shiplap/report/table.h"

#include <algorithm>

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

constexpr std::size_t kMaxPrinted = 100;  // the style sheet hides the others on paper
constexpr std::size_t kColumnGap = 2;
// Text columns are truncated to the first before columns are dropped, and to the second afterwards.
constexpr std::size_t kMinTextWidth = 16;
constexpr std::size_t kMinFinalTextWidth = 8;

std::string padded(std::string_view cell, std::size_t width, Column::Holds holds) {
  const std::string text = truncated(cell, width);
  const std::string blanks(width - display_width(text), ' ');
  return holds == Column::Holds::numbers ? blanks + text : text + blanks;
}

std::string opening(const char* element, const Column& column) {
  const bool is_text = column.holds == Column::Holds::text;
  return std::string("<") + element + (is_text ? " class=\"words\">" : ">");
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
    if (widest > 0 || !columns_[k].hide_if_empty) result.shown.push_back(k);
    result.widths.push_back(std::max(widest, display_width(columns_[k].title)));
  }
  const auto total = [&] {
    std::size_t sum = 0;
    for (const std::size_t k : result.shown) sum += result.widths[k] + kColumnGap;
    return sum - kColumnGap;
  };
  // Truncates text columns, but not below `least`.
  const auto truncate_text = [&](std::size_t least) {
    while (total() > width) {
      const auto longest = std::ranges::max_element(result.shown, {}, [&](std::size_t k) {
        return columns_[k].holds == Column::Holds::text ? result.widths[k] : 0;
      });
      std::size_t& longest_width = result.widths[*longest];
      if (columns_[*longest].holds != Column::Holds::text || longest_width <= least) return;
      longest_width = std::max(least, longest_width - std::min(longest_width, total() - width));
    }
  };
  const auto drop_columns = [&](int max_priority) {
    while (total() > width && result.shown.size() > 1) {
      const auto least =
          std::ranges::min_element(result.shown.begin() + 1, result.shown.end(), {},
                                   [&](std::size_t k) { return columns_[k].priority; });
      if (columns_[*least].priority > max_priority) return;
      result.shown.erase(least);
    }
  };
  truncate_text(std::max(kMinTextWidth, width / 3));
  drop_columns(1);
  truncate_text(std::max(kMinTextWidth, width / 4));
  drop_columns(4);
  truncate_text(kMinFinalTextWidth);
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

std::string Table::text(const TextStyle& style) const {
  const Layout found = layout(static_cast<std::size_t>(style.width));
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(column.title);
  std::string text = styled(line(found, titles), kBold, style.colour) + "\n";
  for (const auto& row : rows_) text += line(found, row) + "\n";
  return text;
}

Html to_html(const Table& table) {
  std::vector<std::string> openings;
  for (const Column& column : table.columns_) openings.push_back(opening("td", column));
  // It scrolls, so it must be focusable by keyboard.
  std::string out = "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"table\">";
  const bool is_long = table.rows_.size() > kMaxPrinted;
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
