// A tree of plain data that was read from a pickle or from JSON: what a flight recorder dumps.
//
//   const Document document = parse_document(bytes);   // a pickle begins with 0x80
//   for (const Node& entry : document.root.items()) ..
//
// Strings are views of the parsed bytes where possible, so the bytes must outlive the document. A
// file that ends early (the job was killed while it wrote) gives the data before its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <vector>

namespace shiplap::dump {

struct Container;

// One value. Containers are shared: a pickle may refer to one value many times.
class Node {
 public:
  enum class Type : std::uint8_t { null, boolean, integer, real, string, list, dictionary };

  constexpr Node() = default;
  static Node boolean(bool value) {
    Node node(Type::boolean);
    node.as_integer = value ? 1 : 0;
    return node;
  }
  static Node integer(std::int64_t value) {
    Node node(Type::integer);
    node.as_integer = value;
    return node;
  }
  static Node real(double value) {
    Node node(Type::real);
    node.as_real = value;
    return node;
  }
  static Node string(std::string_view value) {
    Node node(Type::string);
    node.size_ = static_cast<std::uint32_t>(value.size());
    node.as_string = value.data();
    return node;
  }
  static Node list(Container* items) {
    Node node(Type::list);
    node.as_container = items;
    return node;
  }
  static Node dictionary(Container* items) {
    Node node(Type::dictionary);
    node.as_container = items;
    return node;
  }

  [[nodiscard]] Type type() const { return type_; }
  [[nodiscard]] bool is_string() const { return type_ == Type::string; }
  [[nodiscard]] bool is_integer() const { return type_ == Type::integer; }
  [[nodiscard]] bool is_list() const { return type_ == Type::list; }
  [[nodiscard]] bool is_dictionary() const { return type_ == Type::dictionary; }

  // Returns `otherwise` if the value has another type. JSON dumps have numbers as strings.
  [[nodiscard]] std::int64_t integer_or(std::int64_t otherwise) const {
    return type_ == Type::integer ? as_integer : converted_or(otherwise);
  }
  [[nodiscard]] double real_or(double otherwise) const;
  [[nodiscard]] bool boolean_or(bool otherwise) const {
    return type_ == Type::boolean || type_ == Type::integer ? as_integer != 0 : otherwise;
  }
  // Returns "" if the value is not a string.
  [[nodiscard]] std::string_view text() const {
    return type_ == Type::string ? std::string_view(as_string, size_) : std::string_view();
  }
  // The items of a list; the keys and values of a dictionary, alternating; else nothing.
  [[nodiscard]] inline std::span<const Node> items() const;
  // Returns the value of a key, or null. Of equal keys the last counts.
  [[nodiscard]] Node find(std::string_view key) const;
  // Identifies a list or dictionary that occurs several times.
  [[nodiscard]] const void* identity() const { return as_container; }
  // REQUIRES: it is a list or a dictionary.
  [[nodiscard]] Container& container() const { return *as_container; }

 private:
  explicit Node(Type type) : type_(type) {}
  [[nodiscard]] std::int64_t converted_or(std::int64_t otherwise) const;

  Type type_ = Type::null;
  std::uint32_t size_ = 0;  // of a string
  union {
    std::int64_t as_integer = 0;
    double as_real;
    const char* as_string;
    Container* as_container;
  };
};

struct Container {
  Node* data = nullptr;
  std::uint32_t size = 0;
  std::uint32_t capacity = 0;
};

std::span<const Node> Node::items() const {
  if (type_ != Type::list && type_ != Type::dictionary) return {};
  return {as_container->data, as_container->size};
}

// Owns the nodes of a tree. Memory is kept for the next tree: files of a job are alike, and memory
// that is fresh from the system costs more than parsing into it.
class DocumentBuilder {
 public:
  [[nodiscard]] Container* container() { return new (allocate(sizeof(Container))) Container(); }
  void append(Container& container, std::span<const Node> items);
  // A copy that lives as long as the document.
  [[nodiscard]] std::string_view keep(std::string_view text);
  // Ends the life of everything that it gave out.
  void clear();

 private:
  static constexpr std::size_t kAlignment = 16;

  [[nodiscard]] void* allocate(std::size_t bytes) {
    bytes = (bytes + kAlignment - 1) & ~(kAlignment - 1);
    if (bytes > free_.size()) return allocate_in_next_block(bytes);
    std::byte* memory = free_.data();
    free_ = free_.subspan(bytes);
    return memory;
  }
  void* allocate_in_next_block(std::size_t bytes);

  struct Block {
    std::unique_ptr<std::byte[]> memory;  // NOLINT(modernize-avoid-c-arrays): not initialized
    std::size_t size = 0;
  };
  std::vector<Block> blocks_;
  std::size_t used_ = 0;       // blocks
  std::span<std::byte> free_;  // of the last one used
};

struct Document {
  std::string_view expected = "a flight recorder dump";  // for messages
  Node root;
  bool truncated = false;  // the bytes ended early
  DocumentBuilder memory;
  std::vector<Node> stack;  // of the parser
  std::vector<Node> memo;
};

// Throws InputError D012 if the bytes are neither, or if a pickle would import or call something.
// Overwrites `document`.
void parse_document(std::string_view bytes, std::string_view file, Document& document);

// The same for one of the two syntaxes.
// REQUIRES: `document` is empty.
void parse_pickle(std::string_view bytes, std::string_view file, Document& document);
void parse_json_document(std::string_view bytes, std::string_view file, Document& document);

}  // namespace shiplap::dump
