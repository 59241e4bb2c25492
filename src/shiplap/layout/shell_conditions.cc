// `$((..))` by recursive descent, and the tests `[ .. ]` of a shell. Both know only values that the
// text assigns. In a test, another variable counts as unset; `$1` and `$(..)` are unknown, but in
// `-z` and `-n`, whose use is a default.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <utility>

#include "shiplap/layout/shell_internal.h"

namespace shiplap::layout {
namespace {

constexpr int kMaxExpressionDepth = 50;

class Arithmetic {
 public:
  Arithmetic(std::string_view text, const VariableLookup& lookup) : text_(text), lookup_(lookup) {}

  std::optional<std::int64_t> evaluate() {
    const std::int64_t value = choice();
    skip_space();
    return failed_ || position_ < text_.size() ? std::nullopt : std::optional(value);
  }

 private:
  // From the loosest to the tightest. The longer of two operators that begin alike comes first.
  static constexpr std::string_view kOperators[][4] = {
      {"||"}, {"&&"}, {"==", "!="}, {"<=", ">=", "<", ">"}, {"+", "-"}, {"*", "/", "%"}};
  static constexpr std::size_t kLevels = std::size(kOperators);

  void skip_space() {
    while (position_ < text_.size() &&
           std::isspace(static_cast<unsigned char>(text_[position_])) != 0) {
      ++position_;
    }
  }
  bool take(std::string_view piece) {
    skip_space();
    if (piece.empty() || !text_.substr(position_).starts_with(piece)) return false;
    position_ += piece.size();
    return true;
  }
  std::int64_t fail() {
    failed_ = true;
    return 0;
  }

  std::int64_t choice() {
    if (++depth_ > kMaxExpressionDepth) return fail();
    const std::int64_t condition = binary(0);
    std::int64_t value = condition;
    if (!failed_ && take("?")) {
      const std::int64_t yes = choice();
      if (!take(":")) return fail();
      const std::int64_t no = choice();
      value = condition != 0 ? yes : no;
    }
    --depth_;
    return value;
  }

  std::int64_t binary(std::size_t level) {
    if (level == kLevels) return unary();
    std::int64_t value = binary(level + 1);
    while (!failed_) {
      const auto* const found =
          std::ranges::find_if(kOperators[level], [&](std::string_view o) { return take(o); });
      if (found == std::end(kOperators[level])) return value;
      value = apply(*found, value, binary(level + 1));
    }
    return value;
  }

  std::int64_t apply(std::string_view op, std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    if (op == "||") return a != 0 || b != 0 ? 1 : 0;
    if (op == "&&") return a != 0 && b != 0 ? 1 : 0;
    if (op == "==") return a == b ? 1 : 0;
    if (op == "!=") return a != b ? 1 : 0;
    if (op == "<=") return a <= b ? 1 : 0;
    if (op == ">=") return a >= b ? 1 : 0;
    if (op == "<") return a < b ? 1 : 0;
    if (op == ">") return a > b ? 1 : 0;
    if (op == "+") return __builtin_add_overflow(a, b, &result) ? fail() : result;
    if (op == "-") return __builtin_sub_overflow(a, b, &result) ? fail() : result;
    if (op == "*") return __builtin_mul_overflow(a, b, &result) ? fail() : result;
    if (b == 0) return fail();
    if (b == -1) return op == "/" ? apply("-", 0, a) : 0;
    return op == "/" ? a / b : a % b;
  }

  std::int64_t unary() {
    if (++depth_ > kMaxExpressionDepth) return fail();
    std::int64_t value = 0;
    if (take("!")) {
      value = unary() == 0 ? 1 : 0;
    } else if (take("-")) {
      value = apply("-", 0, unary());
    } else if (take("(")) {
      value = choice();
      if (!take(")")) return fail();
    } else {
      value = operand();
    }
    --depth_;
    return value;
  }

  std::int64_t operand() {
    skip_space();
    const std::size_t begin = position_;
    while (position_ < text_.size() && is_name_letter(text_[position_])) ++position_;
    const std::string_view word = text_.substr(begin, position_ - begin);
    if (word.empty()) return fail();
    if (const auto number = parse_integer(word)) return *number;
    const std::optional<std::int64_t> value = lookup_(word);
    return value ? *value : fail();
  }

  std::string_view text_;
  const VariableLookup& lookup_;
  std::size_t position_ = 0;
  int depth_ = 0;
  bool failed_ = false;
};

bool is_either(const Word& word, std::string_view one, std::string_view other) {
  return word.unknown.empty() && (word.text == one || word.text == other);
}

// `[ -z X ] && [ N -gt M ]`.
class ShellTest {
 public:
  explicit ShellTest(std::span<const Word> words) : words_(words) {}

  std::optional<bool> evaluate() {
    std::optional<bool> result = conjunction();
    while (position_ < words_.size() && is_either(words_[position_], "||", "-o")) {
      ++position_;
      result = any(result, conjunction());
    }
    return result;
  }

 private:
  static std::optional<bool> any(std::optional<bool> a, std::optional<bool> b) {
    if (a == true || b == true) return true;
    return a == false && b == false ? std::optional(false) : std::nullopt;
  }

  std::optional<bool> conjunction() {
    std::optional<bool> result = one();
    while (position_ < words_.size() && is_either(words_[position_], "&&", "-a")) {
      ++position_;
      const std::optional<bool> next = one();
      if (result == false || next == false) {
        result = false;
      } else if (!next) {
        result = std::nullopt;
      }
    }
    return result;
  }

  [[nodiscard]] bool ends_at(std::size_t k) const {
    return k >= words_.size() || is_either(words_[k], "||", "-o") ||
           is_either(words_[k], "&&", "-a");
  }

  std::optional<bool> one() {
    bool negated = false;
    bool bracketed = false;
    std::vector<Word> words;
    for (; !ends_at(position_); ++position_) {
      const Word& word = words_[position_];
      const bool known = word.unknown.empty();
      if (known && words.empty() && word.text == "!") {
        negated = !negated;
      } else if (known && (word.text == "[" || word.text == "[[" || word.text == "test" ||
                           word.text == "]" || word.text == "]]")) {
        bracketed = true;
      } else {
        words.push_back(word);
      }
    }
    const std::optional<bool> value = of(words, bracketed);
    return value && negated ? std::optional(!*value) : value;
  }

  static std::optional<bool> of(const std::vector<Word>& words, bool bracketed) {
    // A variable that the text does not assign is empty.
    const auto empty = [](const Word& word) { return !word.unknown.empty() || word.text.empty(); };
    if (words.empty()) return bracketed ? std::optional(false) : std::nullopt;
    const std::string& first = words[0].text;
    if (words.size() == 1) {
      if (first == "-z") return true;
      if (first == "true" || first == "false") {
        return bracketed ? true : first == "true";
      }
      return bracketed ? std::optional(!empty(words[0])) : std::nullopt;
    }
    if (words.size() == 2) {
      if (first == "-z") return empty(words[1]);
      if (first == "-n") return !empty(words[1]);
      return {};
    }
    if (words.size() != 3 || !bracketed) return {};
    return compare(words[0], words[1].text, words[2]);
  }

  // `$NAME` and `${NAME}` that the text does not assign are empty.
  static std::optional<std::string> text_of(const Word& word) {
    if (word.unknown.empty()) return word.text;
    std::string_view name = word.unknown;
    if (word.text != name || !name.starts_with('$')) return {};
    name.remove_prefix(1);
    if (name.starts_with('{') && name.ends_with('}')) name = name.substr(1, name.size() - 2);
    const bool variable = !name.empty() && std::ranges::all_of(name, is_name_letter) &&
                          std::isdigit(static_cast<unsigned char>(name[0])) == 0;
    return variable ? std::optional<std::string>("") : std::nullopt;
  }

  static std::optional<bool> compare(const Word& left, std::string_view op, const Word& right) {
    const bool same = op == "=" || op == "==";
    if (same || op == "!=") {
      for (const auto& [a, b] : {std::pair(&left, &right), std::pair(&right, &left)}) {
        // Against an empty text, `$1` is not given.
        if (!a->unknown.empty() && b->unknown.empty() && b->text.empty()) return same;
      }
      const std::optional<std::string> value = text_of(left);
      const std::optional<std::string> other = text_of(right);
      if (!value || !other) return {};
      return matches(*value, *other) == same;
    }
    const std::optional<std::int64_t> a = parse_integer(left.text);
    const std::optional<std::int64_t> b = parse_integer(right.text);
    if (!a || !b) return {};
    if (op == "-eq") return *a == *b;
    if (op == "-ne") return *a != *b;
    if (op == "-gt") return *a > *b;
    if (op == "-ge") return *a >= *b;
    if (op == "-lt") return *a < *b;
    if (op == "-le") return *a <= *b;
    return {};
  }

  std::span<const Word> words_;
  std::size_t position_ = 0;
};

}  // namespace

std::optional<std::int64_t> evaluate_arithmetic(std::string_view text,
                                                const VariableLookup& lookup) {
  return Arithmetic(text, lookup).evaluate();
}

std::optional<bool> evaluate_test(std::span<const Word> words) {
  return ShellTest(words).evaluate();
}

// Two positions: that after the last `*`, and the character with which it is tried again.
bool matches(std::string_view text, std::string_view pattern) {
  std::size_t t = 0;
  std::size_t p = 0;
  std::size_t star = std::string_view::npos;
  std::size_t again = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      again = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++again;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace shiplap::layout
