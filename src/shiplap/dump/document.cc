#include "shiplap/dump/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>

#include "shiplap/base/error.h"

namespace shiplap::dump {

std::int64_t Node::converted_or(std::int64_t otherwise) const {
  switch (type_) {
    case Type::boolean:
    case Type::integer:
      return as_integer;
    case Type::real:
      return as_real > -9.2e18 && as_real < 9.2e18 ? static_cast<std::int64_t>(as_real) : otherwise;
    case Type::string: {
      std::int64_t value = 0;
      const char* end = as_string + size_;
      const auto [last, error] = std::from_chars(as_string, end, value);
      return error == std::errc{} && last == end ? value : otherwise;
    }
    default:
      return otherwise;
  }
}

double Node::real_or(double otherwise) const {
  if (type_ == Type::real) return as_real;
  return type_ == Type::integer ? static_cast<double>(as_integer) : otherwise;
}

Node Node::find(std::string_view key) const {
  if (type_ != Type::dictionary) return {};
  const std::span<const Node> all = items();
  for (std::size_t k = all.size() & ~std::size_t{1}; k >= 2; k -= 2) {
    if (all[k - 2].text() == key && all[k - 2].is_string()) return all[k - 1];
  }
  return {};
}

void DocumentBuilder::append(Container& container, std::span<const Node> items) {
  const std::size_t size = container.size + items.size();
  if (size > container.capacity) {
    const std::size_t capacity = std::max<std::size_t>(size, 2 * std::size_t{container.capacity});
    auto* data = static_cast<Node*>(allocate(capacity * sizeof(Node)));
    std::uninitialized_copy_n(container.data, container.size, data);
    container.data = data;
    container.capacity = static_cast<std::uint32_t>(capacity);
  }
  std::uninitialized_copy(items.begin(), items.end(), container.data + container.size);
  container.size = static_cast<std::uint32_t>(size);
}

std::string_view DocumentBuilder::keep(std::string_view text) {
  if (text.empty()) return "";
  auto* copy = static_cast<char*>(allocate(text.size()));
  std::memcpy(copy, text.data(), text.size());
  return {copy, text.size()};
}

void DocumentBuilder::clear() {
  used_ = 0;
  free_ = {};
}

// A block that is too small is left out, until the memory is cleared.
void* DocumentBuilder::allocate_in_next_block(std::size_t bytes) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  while (used_ < blocks_.size() && blocks_[used_].size < bytes) ++used_;
  if (used_ == blocks_.size()) {
    const std::size_t size = std::max(kBlock, bytes);
    blocks_.push_back({std::make_unique_for_overwrite<std::byte[]>(size), size});  // NOLINT
  }
  const Block& block = blocks_[used_++];
  free_ = std::span(block.memory.get(), block.size).subspan(bytes);
  return block.memory.get();
}

void parse_document(std::string_view bytes, std::string_view file, Document& document) {
  document.root = {};
  document.truncated = false;
  document.memory.clear();
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  const bool is_json = first != bytes.npos && (bytes[first] == '{' || bytes[first] == '[');
  if (is_json) return parse_json_document(bytes, file, document);
  if (!bytes.empty() && bytes.front() == '\x80') return parse_pickle(bytes, file, document);
  throw InputError({.code = "D012",
                    .where = {.file = std::string(file)},
                    .what = bytes.empty() ? "the file is empty"
                                          : "expected a flight recorder dump: a pickle or JSON",
                    .help = "name the files that torch wrote, their folder, or all of the "
                            "output of ncclras"});
}

}  // namespace shiplap::dump
