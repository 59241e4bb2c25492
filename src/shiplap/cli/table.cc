#include "shiplap/cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/cli/context.h"

namespace shiplap::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kShortest = 16;  // no column of words is cut further while others can go,
constexpr std::size_t kNarrowest = 8;  // and then no further than this
constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

double in_unit(std::int64_t bytes, std::size_t unit) {
  return static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << (10 * unit));
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string padded(const std::string& cell, std::size_t width, Align align) {
  const std::string text = cut_to(cell, width);
  const std::string blanks(width - display_width(text), ' ');
  return align == Align::right ? blanks + text : text + blanks;
}

}  // namespace

std::string TimeColumn::title(std::string_view what) const {
  return fmt::format("{}, {}", what, is_short_ ? "us" : "ms");
}

std::string TimeColumn::cell(Seconds time) const {
  return fmt::format("{:.3f}", (is_short_ ? 1e6 : 1e3) * time.value);
}

std::string printable(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool c1 =
        c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;
    result += c < 0x20 || c == 0x7F || c1 ? '?' : text[i];
  }
  return result;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return !continues(c); }));
}

std::string cut_to(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string(text);
  std::size_t end = 0;
  for (std::size_t shown = 0; end < text.size(); ++end) {
    if (!continues(text[end]) && ++shown == width) break;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  const std::size_t room = width > indent + 20 ? width - indent : 20;
  std::string result;
  std::size_t used = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    const std::size_t length = display_width(word);
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (used > 0 && used + 1 + length > room) {
      result += '\n' + std::string(indent, ' ');
      used = 0;
    } else if (used > 0) {
      result += ' ';
      ++used;
    }
    result += word;
    used += length;
  }
  return result;
}

std::string counted(std::int64_t number, std::string_view thing) {
  return fmt::format("{} {}{}", with_separators(number), thing, number == 1 ? "" : "s");
}

void Table::add(std::vector<std::string> cells) {
  ensure(cells.size() == columns_.size(), "a row has a cell for every column");
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

Table::Layout Table::layout(std::size_t width) const {
  Layout result;
  for (std::size_t k = 0; k < columns_.size(); ++k) {
    std::size_t widest = 0;
    for (const auto& row : rows_) widest = std::max(widest, display_width(row[k]));
    if (widest > 0 || !columns_[k].optional) result.shown.push_back(k);
    result.widths.push_back(std::max(widest, display_width(columns_[k].title)));
  }
  const auto total = [&] {
    std::size_t sum = 0;
    for (const std::size_t k : result.shown) sum += result.widths[k] + kGap;
    return sum - kGap;
  };
  // Cuts words no further than to `least`.
  const auto cut_words = [&](std::size_t least) {
    while (total() > width) {
      const auto longest = std::ranges::max_element(result.shown, {}, [&](std::size_t k) {
        return columns_[k].align == Align::left ? result.widths[k] : 0;
      });
      std::size_t& longest_width = result.widths[*longest];
      if (columns_[*longest].align != Align::left || longest_width <= least) return;
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

std::string Table::line(const Layout& layout, const std::vector<std::string>& cells) const {
  std::string text;
  for (const std::size_t k : layout.shown) {
    if (!text.empty()) text += std::string(kGap, ' ');
    text += padded(cells[k], layout.widths[k], columns_[k].align);
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string Table::text(int width, Colour colour) const {
  const Layout found = layout(static_cast<std::size_t>(width));
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string text = painted(line(found, titles), kBold, colour) + "\n";
  for (const auto& row : rows_) text += line(found, row) + "\n";
  return text;
}

// The largest unit of which the largest value has one, unless that hides the smallest.
ByteColumn::ByteColumn(std::vector<std::int64_t> values) {
  std::erase(values, 0);
  if (values.empty()) return;
  const auto [smallest, largest] = std::ranges::minmax(values);
  while (unit_ + 1 < kUnits.size() && in_unit(largest, unit_ + 1) >= 1) ++unit_;
  while (unit_ > 0 && in_unit(smallest, unit_) < 0.01 && in_unit(largest, unit_ - 1) < 1e5) --unit_;
  const std::size_t unit = unit_;
  const bool whole = std::ranges::all_of(
      values, [unit](std::int64_t value) { return value % (std::int64_t{1} << (10 * unit)) == 0; });
  if (!whole) decimals_ = in_unit(largest, unit_) < 100 ? 2 : 1;
}

std::string_view ByteColumn::unit() const { return kUnits[unit_]; }

std::string ByteColumn::cell(std::int64_t bytes) const {
  const double value = in_unit(bytes, unit_);
  const double least = decimals_ == 2 ? 0.01 : decimals_ == 1 ? 0.1 : 1;
  if (bytes > 0 && value < least / 2) return fmt::format("<{:.{}f}", least, decimals_);
  std::string text = fmt::format("{:.{}f}", value, decimals_);
  const std::size_t point = std::min(text.find('.'), text.size());
  for (std::size_t at = point; at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

}  // namespace shiplap::cli
