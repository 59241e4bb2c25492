#include "shiplap/base/json.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/base/json_error_internal.h"

namespace shiplap {
namespace {

constexpr std::size_t kMaxDepth = 200;
// Up to about this many members, comparing all pairs is faster than sorting.
constexpr std::size_t kFewMembers = 16;

std::optional<std::size_t> duplicate_among_few(const Json::Object& members) {
  for (std::size_t i = 1; i < members.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (members[i].first == members[j].first) return i;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> duplicate_among_many(const Json::Object& members) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int compared = members[a].first.compare(members[b].first);
    return compared != 0 ? compared < 0 : a < b;
  });
  std::optional<std::size_t> first;
  for (std::size_t i = 1; i < order.size(); ++i) {
    const bool same = members[order[i - 1]].first == members[order[i]].first;
    if (same && (!first || order[i] < *first)) first = order[i];
  }
  return first;
}

// The first member with the key of an earlier one.
std::optional<std::size_t> duplicate_key(const Json::Object& members) {
  return members.size() <= kFewMembers ? duplicate_among_few(members)
                                       : duplicate_among_many(members);
}

// Passes the text to nlohmann's lexer byte by byte and records how far the lexer has read, because
// its events have no positions.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(std::string_view text, std::size_t position, std::size_t* reached)
      : text_(text), position_(position), reached_(reached) {}
  reference operator*() const { return text_[position_]; }
  Cursor& operator++() {
    *reached_ = ++position_;
    return *this;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.position_ == b.position_; }
  friend bool operator!=(const Cursor& a, const Cursor& b) { return !(a == b); }

 private:
  std::string_view text_;
  std::size_t position_;
  std::size_t* reached_;
};

// An array or object that has been opened and not yet closed.
struct Level {
  bool is_object = false;
  std::size_t opened = 0;  // position of its bracket
  Json::Array items{};
  Json::Object members{};
  std::vector<std::size_t> key_ends{};  // positions in the text where the keys of `members` end
};

// Receives nlohmann's SAX events (it defines their names and signatures) and builds a Json.
class Reader {
 public:
  explicit Reader(JsonSource source) : source_(source) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // which the lexer skips
    if (source_.text.starts_with(kByteOrderMark)) state_.end = kByteOrderMark.size();
  }

  Json read() {
    const std::string_view text = source_.text;
    nlohmann::json::sax_parse(Cursor(text, 0, &reached_), Cursor(text, text.size(), &reached_),
                              this);
    // The lexer treats a zero byte as the end of the text, so check that it is the end.
    if (end_of_json_space(text, state_.end) != text.size()) {
      throw InputError(explain_json_error(source_, state_));
    }
    return std::move(result_);
  }

  bool null() { return add(Json(), reached_); }
  bool boolean(bool value) { return add(Json(value), reached_); }
  bool number_integer(std::int64_t value) { return add_number(Json(value)); }
  bool number_unsigned(std::uint64_t value) {
    const bool fits = std::in_range<std::int64_t>(value);
    return add_number(fits ? Json(static_cast<std::int64_t>(value))
                           : Json(static_cast<double>(value)));
  }
  bool number_float(double value, const std::string&) { return add_number(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value)), reached_); }
  bool binary(nlohmann::json::binary_t&) { throw InternalError("JSON text has no binary values"); }

  bool start_array(std::size_t) { return open(false); }
  bool start_object(std::size_t) { return open(true); }

  bool key(std::string& value) {
    levels_.back().members.emplace_back().first = std::move(value);
    levels_.back().key_ends.push_back(reached_);
    state_.last = JsonToken::key;
    state_.end = reached_;
    return true;
  }

  bool end_array() { return close(Json(std::move(levels_.back().items))); }
  bool end_object() {
    if (const auto second = duplicate_key(levels_.back().members)) throw_duplicate_key(*second);
    return close(Json::object(std::move(levels_.back().members)));
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) {
    throw InputError(explain_json_error(source_, state_));
  }

 private:
  bool add(Json value, std::size_t end) {
    state_.end = end;
    if (levels_.empty()) {
      state_.last = JsonToken::whole;
      result_ = std::move(value);
    } else if (levels_.back().is_object) {
      state_.last = JsonToken::member;
      levels_.back().members.back().second = std::move(value);
    } else {
      state_.last = JsonToken::item;
      levels_.back().items.push_back(std::move(value));
    }
    return true;
  }

  // The lexer has usually read one byte past the end of a number, so find the end here.
  bool add_number(Json value) {
    auto begin = end_of_json_space(source_.text, state_.end);
    const bool separated = state_.last == JsonToken::key || state_.last == JsonToken::item;
    if (separated) begin = end_of_json_space(source_.text, begin + 1);
    return add(std::move(value), end_of_json_number(source_.text, begin));
  }

  bool open(bool is_object) {
    throw_if_cancelled();
    const auto bracket = reached_ - 1;
    if (levels_.size() == kMaxDepth) {
      throw InputError(json_diagnostic(source_, {bracket, 1},
                                       "arrays and objects are nested more than 200 deep"));
    }
    levels_.push_back({.is_object = is_object, .opened = bracket});
    state_ = {.last = is_object ? JsonToken::open_object : JsonToken::open_array,
              .end = reached_,
              .opened = bracket};
    return true;
  }

  bool close(Json value) {
    levels_.pop_back();
    state_.opened.reset();
    if (!levels_.empty()) state_.opened = levels_.back().opened;
    return add(std::move(value), reached_);
  }

  [[noreturn]] void throw_duplicate_key(std::size_t second) const {
    const std::size_t end = levels_.back().key_ends[second];
    std::size_t begin = source_.text.rfind('"', end - 2);
    // A quote inside the key follows a backslash; the opening quote does not.
    while (source_.text[begin - 1] == '\\') begin = source_.text.rfind('"', begin - 1);
    const std::string& key = levels_.back().members[second].first;
    throw InputError(duplicate_key_error(source_, {begin, end - begin}, key));
  }

  JsonSource source_;
  std::size_t reached_ = 0;  // how far the lexer has read
  JsonParseState state_;
  std::vector<Level> levels_;
  Json result_;
};

}  // namespace

Json Json::object(std::initializer_list<Member> members) { return object(Object(members)); }

Json Json::object(Object members) {
  ensure(!duplicate_key(members), "each key of an object is given once");
  Json result;
  result.value_ = std::move(members);
  return result;
}

Json Json::array(std::initializer_list<Json> items) { return Array(items); }

bool Json::is_null() const { return std::holds_alternative<std::monostate>(value_); }
bool Json::is_bool() const { return std::holds_alternative<bool>(value_); }
bool Json::is_integer() const { return std::holds_alternative<std::int64_t>(value_); }
bool Json::is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
bool Json::is_string() const { return std::holds_alternative<std::string>(value_); }
bool Json::is_array() const { return std::holds_alternative<Array>(value_); }
bool Json::is_object() const { return std::holds_alternative<Object>(value_); }

std::string_view Json::type_name() const {
  if (is_null()) return "null";
  if (is_bool()) return "boolean";
  if (is_integer()) return "integer";
  if (is_number()) return "number";
  if (is_string()) return "string";
  return is_array() ? "array" : "object";
}

bool Json::as_bool() const {
  ensure(is_bool(), "this JSON value is a boolean");
  return std::get<bool>(value_);
}

std::int64_t Json::as_integer() const {
  ensure(is_integer(), "this JSON value is an integer");
  return std::get<std::int64_t>(value_);
}

double Json::as_number() const {
  ensure(is_number(), "this JSON value is a number");
  return is_integer() ? static_cast<double>(as_integer()) : std::get<double>(value_);
}

const std::string& Json::as_string() const {
  ensure(is_string(), "this JSON value is a string");
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  ensure(is_array(), "this JSON value is an array");
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object() const {
  ensure(is_object(), "this JSON value is an object");
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : as_object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object();
  ensure(is_object(), "a member is set in an object");
  auto& members = std::get<Object>(value_);
  const auto same = [&](const Member& member) { return member.first == key; };
  const auto found = std::find_if(members.begin(), members.end(), same);
  if (found != members.end()) {
    found->second = std::move(value);
  } else {
    members.emplace_back(std::string(key), std::move(value));
  }
  return *this;
}

Json& Json::push(Json value) {
  throw_if_cancelled();
  if (is_null()) value_ = Array();
  ensure(is_array(), "an item is pushed to an array");
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

Json parse_json(std::string_view text, std::string_view file) {
  return Reader({.text = text, .file = file}).read();
}

}  // namespace shiplap
