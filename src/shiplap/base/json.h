// A JSON value: read, built, compared, written. Objects keep the order in which they were built, so
// that the same input gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shiplap {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // keys in order of insertion, each once

  Json() = default;  // null
  // Implicit, because a value of C++ is meant wherever its JSON is.
  // NOLINTBEGIN(google-explicit-constructor)
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  // NOLINTEND(google-explicit-constructor)

  // Both promise that no key is given twice.
  static Json object(std::initializer_list<Member> members = {});
  static Json object(Object members);
  static Json array(std::initializer_list<Json> items = {});

  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_bool() const;
  [[nodiscard]] bool is_integer() const;
  [[nodiscard]] bool is_number() const;  // an integer or a double
  [[nodiscard]] bool is_string() const;
  [[nodiscard]] bool is_array() const;
  [[nodiscard]] bool is_object() const;
  [[nodiscard]] std::string_view type_name() const;  // "null", "boolean", "integer", "number", ...

  // Each promises that the value is of that kind; ask first.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_integer() const;
  [[nodiscard]] double as_number() const;
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const Array& as_array() const;
  [[nodiscard]] const Object& as_object() const;

  // Null if this is no object or has no such member.
  [[nodiscard]] const Json* find(std::string_view key) const;

  // Sets or replaces a member; makes an object of a null. Returns itself, so that calls can be
  // chained.
  Json& set(std::string_view key, Json value);
  // Adds to an array; makes one of a null.
  Json& push(Json value);

  // Equal values are written alike: the order of members counts, and 1 is not 1.0.
  friend bool operator==(const Json&, const Json&);

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

// Reads one JSON text. Throws InputError D010 with line and column; `file` is what to call the
// input. Integers beyond 64 bits become doubles; nesting beyond 200 levels and a key given twice
// are refused.
[[nodiscard]] Json parse_json(std::string_view text, std::string_view file);

enum class Layout { compact, indented };

// Doubles are written with the fewest digits that read back to the same value; infinities and NaN,
// which JSON lacks, as null. Bytes in a string that are not UTF-8 become U+FFFD. Indented text has
// one member or item per line, except for short arrays of scalars. There is no newline at the end.
[[nodiscard]] std::string to_text(const Json& value, Layout layout = Layout::indented);

}  // namespace shiplap
