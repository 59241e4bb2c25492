// Attention masks: which keys of its document a query attends to.
//
//   causal    its own key and all before it
//   window:N  its own key and the N - 1 before it (sliding-window attention)
//   prefix:N  the first N keys of the document, and those that causal has (prefix LM)
//   full      all keys of the document
//
// Under each of them the keys of consecutive queries overlap or touch, and both ends of the range
// never decrease with the position. So the keys of an item are consecutive too, and the numbers of
// its queries and keys determine which of them are paired: see pairs().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shiplap/dispatch/layout.h"

namespace shiplap::dispatch {

// Positions in a document, or offsets in a buffer.
struct KeyRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const KeyRange&, const KeyRange&) = default;

  [[nodiscard]] std::uint64_t length() const { return end - begin; }
};

class Mask {
 public:
  enum class Kind : std::uint8_t { causal, window, prefix, full };

  Mask() = default;  // causal
  [[nodiscard]] static Mask causal() { return {}; }
  [[nodiscard]] static Mask full() { return {Kind::full, 0}; }
  // Throw InputError D003 if `tokens` is 0.
  [[nodiscard]] static Mask window(std::uint32_t tokens);
  [[nodiscard]] static Mask prefix(std::uint32_t tokens);

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] std::uint32_t tokens() const { return tokens_; }  // N; else 0
  [[nodiscard]] bool is_causal() const { return kind_ == Kind::causal; }
  friend bool operator==(const Mask&, const Mask&) = default;

  // The keys that the queries of an item attend to, as positions in its document. An item without
  // queries has no keys.
  [[nodiscard]] KeyRange keys_of(const Segment& item, std::uint64_t document_length) const;
  // The number of (query, key) pairs of an item with these numbers of queries and keys.
  struct Item {
    std::uint64_t queries = 0;
    std::uint64_t keys = 0;
  };
  [[nodiscard]] double pairs(const Item& item) const;

 private:
  Mask(Kind kind, std::uint32_t tokens) : kind_(kind), tokens_(tokens) {}

  Kind kind_ = Kind::causal;
  std::uint32_t tokens_ = 0;
};

// "window:4096". Throws InputError D003 if it is not a mask.
[[nodiscard]] Mask parse_mask(std::string_view text);
[[nodiscard]] std::string to_string(const Mask& mask);

}  // namespace shiplap::dispatch
