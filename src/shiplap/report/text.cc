#include "shiplap/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace shiplap::report {
namespace {

constexpr std::array<std::string_view, 6> kByteUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

double in_unit(std::int64_t bytes, std::size_t unit) {
  return static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << (10 * unit));
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

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

std::string truncated(std::string_view text, std::size_t width) {
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

// The largest unit in which the largest value is at least 1, unless the smallest would round to 0.
ByteColumn::ByteColumn(std::vector<std::int64_t> values) {
  std::erase(values, 0);
  if (values.empty()) return;
  const auto [smallest, largest] = std::ranges::minmax(values);
  while (unit_ + 1 < kByteUnits.size() && in_unit(largest, unit_ + 1) >= 1) ++unit_;
  while (unit_ > 0 && in_unit(smallest, unit_) < 0.01 && in_unit(largest, unit_ - 1) < 1e5) --unit_;
  const std::size_t unit = unit_;
  const bool whole = std::ranges::all_of(
      values, [unit](std::int64_t value) { return value % (std::int64_t{1} << (10 * unit)) == 0; });
  if (!whole) decimals_ = in_unit(largest, unit_) < 100 ? 2 : 1;
}

std::string_view ByteColumn::unit() const { return kByteUnits[unit_]; }

std::string ByteColumn::cell(std::int64_t bytes) const {
  const double value = in_unit(bytes, unit_);
  const double least = decimals_ == 2 ? 0.01 : decimals_ == 1 ? 0.1 : 1;
  if (bytes > 0 && value < least / 2) return fmt::format("<{:.{}f}", least, decimals_);
  std::string text = fmt::format("{:.{}f}", value, decimals_);
  const std::size_t point = std::min(text.find('.'), text.size());
  for (std::size_t at = point; at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

}  // namespace shiplap::report
