// A JSON value that can be parsed, built, compared and written. Objects keep the insertion order,
// so that the same input gives the same bytes.
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
  // Implicit, so that a C++ value can be used wherever a Json is expected.
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

  // REQUIRES: keys are unique.
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

  // REQUIRES: the value has this type.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_integer() const;
  [[nodiscard]] double as_number() const;
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const Array& as_array() const;
  [[nodiscard]] const Object& as_object() const;

  // Returns null if this is not an object or has no such member.
  [[nodiscard]] const Json* find(std::string_view key) const;

  // Sets or replaces a member; a null becomes an object. Returns *this.
  Json& set(std::string_view key, Json value);
  // Appends to an array; a null becomes an array.
  Json& push(Json value);

  // Equal values have equal text: the order of members matters, and 1 is not 1.0.
  friend bool operator==(const Json&, const Json&);

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

// Parses one JSON text. Throws InputError D010 with line and column, also for nesting beyond 200
// levels and for duplicate keys; `file` is the name of the input in messages. Integers beyond 64
// bits become doubles.
[[nodiscard]] Json parse_json(std::string_view text, std::string_view file);

enum class Layout { compact, indented };

// Doubles are written with the fewest digits that parse to the same value; infinities and NaN,
// which JSON does not support, as null. Bytes in a string that are not UTF-8 become U+FFFD.
// Indented text has one member or item per line, except for short arrays of scalars. No newline at
// the end.
[[nodiscard]] std::string to_text(const Json& value, Layout layout = Layout::indented);

}  // namespace shiplap
