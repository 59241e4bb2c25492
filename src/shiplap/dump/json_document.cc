// A reader of JSON into a Document. base/json.h is the reader for files of ours: it keeps the order
// and the position of everything for its messages, and stops at the first error. Dumps are hundreds
// of megabytes that torch wrote, some of them cut off, so this reader is fast (strings without
// escapes are views) and keeps what comes before the end.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <exception>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/dump/document.h"

namespace shiplap::dump {
namespace {

// The text ended within a value.
struct EndOfText : std::exception {};

class JsonMachine {
 public:
  JsonMachine(std::string_view text, std::string_view file, Document& document)
      : text_(text), file_(file), document_(document), memory_(document.memory) {}

  void run() {
    try {
      while (step()) {
      }
    } catch (const EndOfText&) {
      document_.truncated = true;
      while (!levels_.empty()) close();
    }
    document_.root = result_;
  }

 private:
  // An open list or dictionary. Its items are on the stack from `first` on.
  struct Level {
    std::size_t first = 0;
    bool is_dictionary = false;
  };

  [[noreturn]] void fail(std::string_view what) const {
    throw InputError({.code = "D012",
                      .where = {.file = std::string(file_)},
                      .what = fmt::format("not {}: {}, at byte {}", document_.expected, what, at_),
                      .help = "the file is damaged, or not JSON"});
  }

  char peek() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    if (at_ == text_.size()) throw EndOfText{};
    return text_[at_];
  }
  static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

  void expect(std::string_view word) {
    if (text_.size() - at_ < word.size()) throw EndOfText{};
    if (text_.substr(at_, word.size()) != word) fail("unknown word");
    at_ += word.size();
  }

  // Reads one value or bracket and what separates it from the next. Returns false after the root.
  bool step() {
    const char c = peek();
    if (c == '}' || c == ']') {
      if (levels_.empty() || levels_.back().is_dictionary != (c == '}')) fail("stray bracket");
      ++at_;
      close();
      return after_value();
    }
    if (c == '{' || c == '[') {
      ++at_;
      levels_.push_back({.first = stack_.size(), .is_dictionary = c == '{'});
      return true;
    }
    push(value(c));
    return after_value();
  }

  bool after_value() {
    if (levels_.empty()) return false;
    const Level& level = levels_.back();
    const bool is_key = level.is_dictionary && (stack_.size() - level.first) % 2 == 1;
    const char next = peek();
    if (is_key && !stack_.back().is_string()) fail("a key is not a string");
    if (next == (is_key ? ':' : ',')) {
      ++at_;
    } else if (is_key || (next != '}' && next != ']')) {
      fail(is_key ? "expected `:`" : "expected `,`");
    }
    return true;
  }

  void push(Node value) {
    if (levels_.empty()) {
      result_ = value;
    } else {
      stack_.push_back(value);
    }
  }

  void close() {
    const Level level = levels_.back();
    levels_.pop_back();
    std::size_t end = stack_.size();
    if (level.is_dictionary && (end - level.first) % 2 == 1) --end;  // a key without a value
    Container* items = memory_.container();
    memory_.append(*items, std::span(stack_).subspan(level.first, end - level.first));
    stack_.resize(level.first);
    push(level.is_dictionary ? Node::dictionary(items) : Node::list(items));
  }

  Node value(char first) {
    switch (first) {
      case '"':
        return Node::string(string());
      case 't':
        expect("true");
        return Node::boolean(true);
      case 'f':
        expect("false");
        return Node::boolean(false);
      case 'n':
        expect("null");
        return {};
      default:
        return number();
    }
  }

  Node number() {
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    std::int64_t integer = 0;
    const auto [last, error] = std::from_chars(begin, end, integer);
    const bool is_real = last != end && (*last == '.' || *last == 'e' || *last == 'E');
    if (error == std::errc{} && !is_real) {
      at_ = static_cast<std::size_t>(last - text_.data());
      return Node::integer(integer);
    }
    double real = 0;
    const auto [real_last, real_error] = std::from_chars(begin, end, real);
    if (real_error == std::errc::invalid_argument) fail("expected a value");
    at_ = static_cast<std::size_t>(real_last - text_.data());
    return Node::real(std::isfinite(real) ? real : 0);
  }

  // The view of a string without escapes; else a copy.
  std::string_view string() {
    const std::size_t begin = ++at_;
    const std::size_t end = text_.find_first_of("\"\\", begin);
    if (end == text_.npos) throw EndOfText{};
    at_ = end;
    if (text_[end] == '"') {
      ++at_;
      return text_.substr(begin, end - begin);
    }
    std::string copy(text_.substr(begin, end - begin));
    while (true) {
      if (at_ == text_.size()) throw EndOfText{};
      const char c = text_[at_++];
      if (c == '"') return memory_.keep(copy);
      copy += c == '\\' ? escaped() : c;
    }
  }

  // Characters beyond ASCII become `?`: they occur in names of files only.
  char escaped() {
    if (at_ == text_.size()) throw EndOfText{};
    const char c = text_[at_++];
    switch (c) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'b':
        return '\b';
      case 'f':
        return '\f';
      case 'u': {
        if (text_.size() - at_ < 4) throw EndOfText{};
        unsigned code = 0;
        std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
        at_ += 4;
        return code < 0x80 ? static_cast<char>(code) : '?';
      }
      default:
        return c;
    }
  }

  std::string_view text_;
  std::string_view file_;
  Document& document_;
  DocumentBuilder& memory_;
  std::size_t at_ = 0;
  std::vector<Node> stack_;
  std::vector<Level> levels_;
  Node result_;
};

}  // namespace

void parse_json_document(std::string_view bytes, std::string_view file, Document& document) {
  JsonMachine(bytes, file, document).run();
}

}  // namespace shiplap::dump
