#include "shiplap/dispatch/mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "shiplap/base/argument_error.h"
#include "shiplap/base/error.h"

namespace shiplap::dispatch {
namespace {

std::uint32_t checked_tokens(std::uint32_t tokens, std::string_view name) {
  if (tokens > 0) return tokens;
  throw_argument_error("mask", fmt::format("a {} of 0 tokens", name),
                       fmt::format("give at least 1, such as `{}:4096`", name));
}

[[noreturn]] void throw_unknown_mask(std::string_view text) {
  throw_argument_error("mask", fmt::format("unknown mask `{}`", text),
                       "use causal, window:N, prefix:N or full");
}

// 1 + 2 + .. + count.
double triangle(double count) { return count * (count + 1) / 2; }

}  // namespace

Mask Mask::window(std::uint32_t tokens) { return {Kind::window, checked_tokens(tokens, "window")}; }
Mask Mask::prefix(std::uint32_t tokens) { return {Kind::prefix, checked_tokens(tokens, "prefix")}; }

KeyRange Mask::keys_of(const Segment& item, std::uint64_t document_length) const {
  if (item.length == 0) return {};
  const std::uint64_t before = std::uint64_t{tokens_} - 1;  // of a window
  switch (kind_) {
    case Kind::causal:
      return {.begin = 0, .end = item.end()};
    case Kind::window:
      return {.begin = item.begin - std::min<std::uint64_t>(item.begin, before), .end = item.end()};
    case Kind::prefix:
      return {.begin = 0,
              .end = std::max(item.end(), std::min<std::uint64_t>(tokens_, document_length))};
    case Kind::full:
      return {.begin = 0, .end = document_length};
  }
  throw InternalError("unknown mask");
}

// With q queries and k keys, the queries are the last of the keys: query i has i + 1 + (k - q) keys
// up to its own. Exceptions are `full`, and items inside of a prefix: there every query has all
// keys, and their place does not matter.
double Mask::pairs(const Item& item) const {
  const auto q = static_cast<double>(item.queries);
  const auto k = static_cast<double>(item.keys);
  const auto n = static_cast<double>(tokens_);
  const double causal_pairs = q * k - triangle(q - 1);
  // Queries with fewer than N keys up to their own, and what they lack.
  const double short_queries = std::clamp(n - 1 - (k - q), 0.0, q);
  const double lacking = short_queries * (n - (k - q)) - triangle(short_queries);
  switch (kind_) {
    case Kind::causal:
      return causal_pairs;
    case Kind::window:
      return q * n - lacking;
    case Kind::prefix:
      return k <= n ? q * k : causal_pairs + lacking;
    case Kind::full:
      return q * k;
  }
  throw InternalError("unknown mask");
}

Mask parse_mask(std::string_view text) {
  if (text == "causal") return Mask::causal();
  if (text == "full") return Mask::full();
  const bool is_window = text.starts_with("window:");
  if (!is_window && !text.starts_with("prefix:")) throw_unknown_mask(text);
  const std::string_view number = text.substr(7);
  std::uint32_t tokens = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), tokens);
  if (error != std::errc() || end != number.data() + number.size()) throw_unknown_mask(text);
  return is_window ? Mask::window(tokens) : Mask::prefix(tokens);
}

std::string to_string(const Mask& mask) {
  switch (mask.kind()) {
    case Mask::Kind::causal:
      return "causal";
    case Mask::Kind::window:
      return fmt::format("window:{}", mask.tokens());
    case Mask::Kind::prefix:
      return fmt::format("prefix:{}", mask.tokens());
    case Mask::Kind::full:
      return "full";
  }
  throw InternalError("unknown mask");
}

}  // namespace shiplap::dispatch
