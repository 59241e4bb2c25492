#include "shiplap/base/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

Json parse(std::string_view text) { return parse_json(text, "test.json"); }
std::string compact(const Json& value) { return to_text(value, Layout::compact); }
std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, KnowsItsKind) {
  EXPECT_EQ(Json().type_name(), "null");
  EXPECT_EQ(Json(nullptr).type_name(), "null");
  EXPECT_EQ(Json(true).type_name(), "boolean");
  EXPECT_EQ(Json(1).type_name(), "integer");
  EXPECT_EQ(Json(1.0).type_name(), "number");
  EXPECT_EQ(Json("x").type_name(), "string");
  EXPECT_EQ(Json::array().type_name(), "array");
  EXPECT_EQ(Json::object().type_name(), "object");
}

TEST(Json, GivesBackWhatItWasMadeOf) {
  EXPECT_EQ(Json(true).as_bool(), true);
  EXPECT_EQ(Json(kMin).as_integer(), kMin);
  EXPECT_EQ(Json(2.5).as_number(), 2.5);
  EXPECT_EQ(Json(2).as_number(), 2.0);
  EXPECT_EQ(Json(std::string_view("ab")).as_string(), "ab");
  EXPECT_EQ(Json::array({1, "x"}).as_array(), (Json::Array{1, "x"}));
  EXPECT_EQ(Json::object({{"a", 1}, {"b", "x"}}).as_object(), (Json::Object{{"a", 1}, {"b", "x"}}));
}

TEST(Json, IsNothingThatItIsNot) {
  EXPECT_THROW((void)Json(1).as_bool(), InternalError);
  EXPECT_THROW((void)Json(1.0).as_integer(), InternalError);
  EXPECT_THROW((void)Json("1").as_number(), InternalError);
  EXPECT_THROW((void)Json().as_string(), InternalError);
  EXPECT_THROW((void)Json::object().as_array(), InternalError);
  EXPECT_THROW((void)Json::array().as_object(), InternalError);
  EXPECT_THROW(Json(1).set("a", 2), InternalError);
  EXPECT_THROW(Json("a").push(2), InternalError);
}

TEST(Json, MembersAreFoundSetAndReplacedInPlace) {
  Json value;
  value.set("b", 1).set("a", 2).set("b", 3);
  EXPECT_EQ(compact(value), R"({"b":3,"a":2})");
  ASSERT_NE(value.find("a"), nullptr);
  EXPECT_EQ(value.find("a")->as_integer(), 2);
  EXPECT_EQ(value.find("c"), nullptr);
  EXPECT_EQ(Json(1).find("a"), nullptr);
  EXPECT_EQ(compact(Json().push(1).push("x")), R"([1,"x"])");
}

TEST(Json, AnObjectHasEachKeyOnce) {
  EXPECT_THROW(Json::object({{"a", 1}, {"a", 2}}), InternalError);
  Json::Object members;
  for (int i = 0; i < 100; ++i) members.emplace_back(std::to_string(i), i);
  EXPECT_EQ(Json::object(members).as_object(), members);
  members.emplace_back("57", 0);
  EXPECT_THROW(Json::object(members), InternalError);
}

TEST(Json, EqualityIsThatOfTheText) {
  const Json::Array values{nullptr,
                           true,
                           false,
                           0,
                           1,
                           1.0,
                           -1,
                           "1",
                           "",
                           Json::array(),
                           Json::array({1}),
                           Json::array({1.0}),
                           Json::object(),
                           Json::object({{"a", 1}, {"b", 2}}),
                           Json::object({{"b", 2}, {"a", 1}}),
                           Json::object({{"a", 1}})};
  for (const Json& a : values) {
    for (const Json& b : values) EXPECT_EQ(a == b, compact(a) == compact(b)) << compact(a);
  }
}

TEST(ParseJson, ReadsEveryKindOfValue) {
  EXPECT_EQ(parse(" { \"a\" : [ null , true , false , -1 , 2.5 , 1e3 , \"x\" , { } , [ ] ] } \n"),
            Json::object({{"a", Json::array({nullptr, true, false, -1, 2.5, 1000.0, "x",
                                             Json::object(), Json::array()})}}));
  EXPECT_EQ(parse("\xEF\xBB\xBF[1]"), Json::array({1}));
}

TEST(ParseJson, ReadsEscapes) {
  EXPECT_EQ(parse(R"("\" \\ \/ \b \f \n \r \t \u0041 \u00e9 \u20AC \ud83d\ude00")").as_string(),
            "\" \\ / \b \f \n \r \t A é € 😀");
  EXPECT_EQ(parse(R"("\u0000")").as_string(), std::string(1, '\0'));
}

TEST(ParseJson, IntegersBeyond64BitsBecomeDoubles) {
  EXPECT_EQ(parse("9223372036854775807"), Json(kMax));
  EXPECT_EQ(parse("-9223372036854775808"), Json(kMin));
  EXPECT_EQ(parse("9223372036854775808"), Json(0x1p63));
  EXPECT_EQ(parse("18446744073709551615"), Json(0x1p64));
  EXPECT_EQ(parse("-9223372036854775809"), Json(-0x1p63));
  EXPECT_EQ(parse("100000000000000000000"), Json(1e20));
  EXPECT_TRUE(std::signbit(parse("-0.0").as_number()));
}

TEST(ParseJson, NestingEndsAt200) {
  EXPECT_EQ(compact(parse(nested(200))), nested(200));
  EXPECT_THROW(parse(nested(201)), InputError);
  EXPECT_THROW(parse(std::string(1'000'000, '[')), InputError);
}

TEST(ParseJson, ManyKeysAreReadInReasonableTime) {
  constexpr int kKeys = 200'000;
  std::string text = "{";
  for (int i = 0; i < kKeys; ++i) text += "\"key" + std::to_string(i) + "\": 0,\n";
  // Comparing each with each would take minutes, and the test would be ended.
  EXPECT_EQ(parse(text + "\"last\": 0}").as_object().size(), kKeys + 1u);
  try {
    (void)parse(text + "\"key7\": 0,\n\"key3\": 0,\n\"key9\": 0}");
    FAIL() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_EQ(error.diagnostics()[0].what, "duplicate key `key7`");
    EXPECT_EQ(error.diagnostics()[0].where.line, kKeys + 1);
  }
}

// --- An independent validator: is it JSON, and where does it stop being JSON? ---

// A recursive-descent validator after the grammar of RFC 8259, for texts over a few letters. Where
// it fails is where a person would point: at the token that does not fit, or behind the last one if
// the text ends too early.
class JsonValidator {
 public:
  explicit JsonValidator(std::string_view text) : text_(text) {}

  bool accepts() { return value() && (space(), at_ == text_.size() || fail(at_)); }
  std::size_t failed_at() const { return failed_; }

 private:
  void space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool fail(std::size_t where) {
    failed_ = where;
    if (where >= text_.size()) {
      while (failed_ > 0 && (failed_ >= text_.size() + 1 || text_[failed_ - 1] == ' ')) --failed_;
    }
    return false;
  }
  bool take(char c) {
    space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool value() {
    if (take('[')) return sequence(']', [this] { return value(); });
    if (take('{')) return sequence('}', [this] { return member(); });
    if (at_ < text_.size() && text_[at_] == '"') return string();
    return take('1') ? (digits(), true) : fail(at_);
  }
  void digits() {
    while (at_ < text_.size() && text_[at_] == '1') ++at_;
  }
  bool string() {
    const std::size_t close = text_.find('"', at_ + 1);
    if (close == text_.npos) {
      failed_ = at_;
      return false;
    }
    at_ = close + 1;
    return true;
  }
  bool member() {
    space();
    if (at_ >= text_.size() || text_[at_] != '"') return fail(at_);
    return string() && (take(':') || fail(at_)) && value();
  }
  template <class Part>
  bool sequence(char close, Part part) {
    if (take(close)) return true;
    do {
      if (!part()) return false;
    } while (take(','));
    return take(close) || fail(at_);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t failed_ = 0;
};

void compare_with_recogniser(const std::string& text) {
  JsonValidator validator(text);
  const bool accepts = validator.accepts();
  try {
    (void)parse(text);
    ASSERT_TRUE(accepts) << text;
  } catch (const InputError& error) {
    ASSERT_FALSE(accepts) << error.what();
    const Diagnostic& d = error.diagnostics().at(0);
    ASSERT_EQ(d.code, "D010");
    ASSERT_EQ(d.where.line, 1);
    ASSERT_EQ(static_cast<std::size_t>(d.where.column), validator.failed_at() + 1) << error.what();
  }
}

TEST(ParseJson, AgreesWithTheGrammarOnAllShortTexts) {
  constexpr std::string_view kLetters = "[]{},:\"1 ";
  std::vector<std::string> texts{""};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    compare_with_recogniser(text);
    if (HasFatalFailure()) return;
    if (text.size() == 5) continue;
    for (const char c : kLetters) texts.push_back(text + c);
  }
}

// Numbers by hand: a digit or more, without a leading zero, then perhaps a fraction and an
// exponent.
bool is_number(std::string_view s) {
  const auto skip_digits = [&] {
    const auto end = std::min(s.find_first_not_of("0123456789"), s.size());
    s.remove_prefix(end);
    return end > 0;
  };
  if (s.starts_with('-')) s.remove_prefix(1);
  if (s.starts_with('0')) {
    s.remove_prefix(1);
  } else if (!skip_digits()) {
    return false;
  }
  if (s.starts_with('.')) {
    s.remove_prefix(1);
    if (!skip_digits()) return false;
  }
  if (s.starts_with('e')) {
    s.remove_prefix(1);
    if (s.starts_with('+') || s.starts_with('-')) s.remove_prefix(1);
    if (!skip_digits()) return false;
  }
  return s.empty();
}

TEST(ParseJson, AgreesWithTheGrammarOnAllShortNumbers) {
  std::vector<std::string> texts{""};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    bool read = true;
    try {
      const double value = parse(text).as_number();
      ASSERT_EQ(value, std::strtod(text.c_str(), nullptr)) << text;
    } catch (const InputError&) {
      read = false;
    }
    const bool finite = std::isfinite(std::strtod(text.c_str(), nullptr));
    ASSERT_EQ(read, is_number(text) && finite) << text;
    if (text.size() == 5) continue;
    for (const char c : std::string_view("09-+.e")) texts.push_back(text + c);
  }
}

// --- Writing ---

TEST(ToText, EscapesWhatMustBeEscaped) {
  EXPECT_EQ(compact("\" \\ / \b \f \n \r \t \x01 \x1F \x7F é 😀"),
            "\"\\\" \\\\ / \\b \\f \\n \\r \\t \\u0001 \\u001f \x7F é 😀\"");
  EXPECT_EQ(compact(Json::object({{"a\n", 1}})), R"({"a\n":1})");
}

TEST(ToText, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(compact("a\xFF\xC3(\xED\xA0\x80"), "\"a\uFFFD\uFFFD(\uFFFD\uFFFD\uFFFD\"");
}

TEST(ToText, WritesDoublesSoThatTheyReadBackAsDoubles) {
  EXPECT_EQ(compact(1.0), "1.0");
  EXPECT_EQ(compact(-0.0), "-0.0");
  EXPECT_EQ(compact(0.1), "0.1");
  EXPECT_EQ(compact(1e300), "1e+300");
  EXPECT_EQ(compact(123456789.0), "123456789.0");
  EXPECT_EQ(compact(5e-324), "5e-324");
  EXPECT_EQ(compact(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(compact(std::nan("")), "null");
}

TEST(ToText, DoublesReadBackExactly) {
  Random random(29);
  for (int i = 0; i < 50000; ++i) {
    const auto value = std::bit_cast<double>(random.next());
    if (!std::isfinite(value)) continue;
    const Json back = parse(compact(value));
    ASSERT_FALSE(back.is_integer()) << compact(value);
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back.as_number()), std::bit_cast<std::uint64_t>(value))
        << compact(value);
  }
}

TEST(ToText, IndentsByTwo) {
  const Json value = Json::object({{"a", 1},
                                   {"b", Json::array({1, 2.5, "x", nullptr})},
                                   {"c", Json::array({Json::object({{"d", true}}), Json::array()})},
                                   {"e", Json::object()},
                                   {"f", Json::array({Json::array({1, 2}), Json::array({3})})}});
  EXPECT_EQ(to_text(value), R"({
  "a": 1,
  "b": [1, 2.5, "x", null],
  "c": [
    {"d": true},
    []
  ],
  "e": {},
  "f": [
    [1, 2],
    [3]
  ]
})");
}

std::size_t widest_line(const std::string& text) {
  std::size_t widest = 0;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const auto end = std::min(text.find('\n', begin), text.size());
    widest = std::max(widest, end - begin);
    begin = end + 1;
  }
  return widest;
}

TEST(ToText, WhatHoldsOnlyScalarsStaysOnOneLineWhileItFits) {
  // `  "k": ["xxx"],` takes 12 columns besides the letters.
  const auto text = [](std::size_t letters) {
    return to_text(Json::object({{"k", Json::array({std::string(letters, 'x')})}, {"l", 1}}));
  };
  EXPECT_EQ(widest_line(text(88)), 100u);
  EXPECT_NE(text(88).find("[\"xx"), std::string::npos);
  EXPECT_EQ(text(89).find("[\"xx"), std::string::npos);
  EXPECT_NE(text(89).find("[\n    \"xx"), std::string::npos);
}

Json random_json(Random& random, int depth) {
  switch (random.between(0, depth > 0 ? 7 : 5)) {
    case 0:
      return nullptr;
    case 1:
      return random.chance();
    case 2:
      return static_cast<std::int64_t>(random.next());
    case 3:
      return random.unit() * 1e6;
    case 4: {
      const std::vector<std::string> parts{"a", "\"", "\\", "\n", "é", "😀", std::string(1, '\0'),
                                           "/"};
      std::string text;
      for (auto i = random.between(0, 30); i > 0; --i) text += random.pick(parts);
      return text;
    }
    case 5: {
      Json array = Json::array();
      for (auto i = random.between(0, 6); i > 0; --i) array.push(random_json(random, depth - 1));
      return array;
    }
    default: {
      Json object = Json::object();
      for (auto i = random.between(0, 6); i > 0; --i) {
        object.set("k" + std::to_string(random.between(0, 100)), random_json(random, depth - 1));
      }
      return object;
    }
  }
}

std::string without_space_outside_strings(std::string_view text) {
  std::string result;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside || (c != ' ' && c != '\n')) result += c;
    if (inside && c == '\\') {
      result += text[++i];
    } else if (c == '"') {
      inside = !inside;
    }
  }
  return result;
}

TEST(ToText, ReadsBackToAnEqualValue) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    const Json value = random_json(random, 4);
    EXPECT_EQ(parse(compact(value)), value) << "seed " << seed;
    EXPECT_EQ(parse(to_text(value)), value) << "seed " << seed;
    EXPECT_EQ(without_space_outside_strings(to_text(value)), compact(value)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace shiplap
