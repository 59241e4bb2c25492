#include "shiplap/report/table.h"

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

constexpr std::size_t kMostPrinted = 100;  // the style sheet hides the others on paper

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

Html to_html(const Table& table) {
  std::vector<std::string> openings;
  for (const Column& column : table.columns) openings.push_back(opening("td", column));
  // It can be scrolled, so the keyboard must be able to reach it.
  std::string out = "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"table\">";
  const bool is_long = table.rows.size() > kMostPrinted;
  out += (is_long ? "<table class=\"long\">\n" : "<table>\n") + header(table.columns) + "<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) {
    ensure(row.size() == table.columns.size(), "a row has a cell for every column");
    out += "<tr>";
    for (std::size_t k = 0; k < row.size(); ++k) out += openings[k] + escaped(row[k]) + "</td>";
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  if (is_long) out += "<p class=\"paper\">Only the first 100 rows are printed.</p>\n";
  return {out};
}

}  // namespace shiplap::report
