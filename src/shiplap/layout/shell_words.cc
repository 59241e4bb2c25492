// Words of a command line or a script as a shell splits them: quotes, `\`, comments, redirections,
// here documents, variables that the text itself assigns, also arrays and `$((..))`. Commands are
// not run, so `$(..)` stays unknown.
//
// `if`, `case`, loops and `[ .. ] && ..` decide which lines count. A condition is evaluated with
// what the text assigns; what it does not say counts as unset, as in `${TP:-8}`. If a condition is
// still unknown, its branches are read one after the other, with a warning, so that the last
// assignment counts; but variables that the branches of an unknown `case` assign are unknown, as
// there are usually many. A loop over `$#` parses arguments that are not there: it is left out.
//
// People also paste lines without their `\`, layouts of stages without their quotes (so inside a
// word `|` and `(` are letters), and sentences. If the blocks do not match, they were
// words: the text is read again without them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "shiplap/layout/shell_internal.h"

namespace shiplap::layout {
namespace {

constexpr std::size_t kMaxCharacters = std::size_t{1} << 20;
constexpr int kMaxNestedTexts = 8;
constexpr std::size_t kMaxBlocks = 100;

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

template <std::size_t n>
bool is_one_of(std::string_view text, const std::array<std::string_view, n>& choices) {
  return std::ranges::find(choices, text) != choices.end();
}

// The length of the `NAME=` that a word begins with; 0: there is none.
std::size_t assignment_length(std::string_view word) {
  std::size_t length = 0;
  while (length < word.size() && is_name_letter(word[length])) ++length;
  if (length == 0 || std::isdigit(static_cast<unsigned char>(word[0])) != 0) return 0;
  if (word.substr(length).starts_with("+=")) return length + 2;
  return word.substr(length).starts_with('=') ? length + 1 : 0;
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// A piece of a word that is not known, as it is spelled, between marks and without blanks: words
// are split and joined before anybody asks for it.
constexpr char kUnknownBegin = '\x02';
constexpr char kUnknownEnd = '\x03';
constexpr char kUnknownBlank = '\x1f';

std::string marked(std::string_view spelled) {
  std::string text(1, kUnknownBegin);
  for (const char c : spelled) text += is_space(c) ? kUnknownBlank : c;
  return text + kUnknownEnd;
}
bool has_unknown(std::string_view text) {
  return text.find(kUnknownBegin) != std::string_view::npos;
}
// The word without marks.
Word unmarked(Word word) {
  if (!has_unknown(word.text)) return word;
  const std::string text = std::exchange(word.text, {});
  bool inside = false;
  bool found = false;
  for (const char c : text) {
    if (c == kUnknownBegin) {
      inside = true;
    } else if (c == kUnknownEnd) {
      inside = false;
      found = true;
    } else {
      const char letter = c == kUnknownBlank ? ' ' : c;
      word.text += letter;
      if (inside && !found) word.unknown += letter;
    }
  }
  return word;
}

// `-c`, `-lc`: the next word is a script.
bool is_script_option(std::string_view word) {
  return word.size() >= 2 && word[0] == '-' && word.back() == 'c' &&
         std::ranges::all_of(word.substr(1), [](char c) { return c >= 'a' && c <= 'z'; });
}
bool is_shell(std::string_view word) {
  return word == "sh" || word == "bash" || word == "zsh" || word.ends_with("/sh") ||
         word.ends_with("/bash") || word.ends_with("/zsh");
}

class ShellReader {
 public:
  ShellReader(std::string_view text, Findings& findings, bool blocks)
      : text_(text), findings_(findings), has_blocks_(blocks) {}

  ShellText read() {
    read_all();
    ShellText text;
    text.words = std::move(words_);
    for (const auto& [name, value] : variables_) {
      if (std::ranges::any_of(value, [](const Word& w) {
            return w.text.starts_with("--") || w.text.find(" --") != std::string::npos;
          })) {
        text.flag_variables.push_back(name);
      }
    }
    return text;
  }
  void add_variables(Settings& settings) const {
    for (const auto& [name, value] : variables_) {
      if (value.size() == 1)
        settings.set(name, {.values = {unmarked(value[0]).text}, .unknown = ""});
    }
  }
  // Were all blocks closed?
  [[nodiscard]] bool balanced() const { return balanced_ && blocks_.empty(); }
  // Unknown conditions whose branches assign.
  struct Assumed {
    std::string condition;
    bool many = false;  // branches
  };
  [[nodiscard]] const std::vector<Assumed>& assumed() const { return assumed_; }

 private:
  using Words = std::vector<Word>;

  struct Block {
    enum class Kind : std::uint8_t { choice, pattern, loop };
    Kind kind = Kind::choice;
    std::size_t begin = 0;      // of the condition
    bool in_condition = false;  // before `then` or `do`, or before the `in` of a case
    bool at_pattern = false;    // of a case
    bool active = false;
    bool taken = false;    // a branch before was certainly the right one
    bool unknown = false;  // the condition of a branch
    bool many = false;     // has several branches
    bool assigns = false;  // in a branch of an unknown condition
    std::string text;      // the first unknown condition
    Words condition;       // or what a case compares
  };

  void read_all() {
    while (!failed_ && skip_space()) read_word();
  }

  [[nodiscard]] bool at(std::string_view piece) const {
    return text_.substr(position_).starts_with(piece);
  }
  [[nodiscard]] bool done() const { return position_ >= text_.size(); }

  // The length of a `\` at the end of a line, with blanks that were pasted after it; 0: none is
  // here.
  [[nodiscard]] std::size_t continuation() const {
    if (!at("\\")) return 0;
    std::size_t end = position_ + 1;
    while (end < text_.size() && (text_[end] == ' ' || text_[end] == '\t' || text_[end] == '\r')) {
      ++end;
    }
    return end < text_.size() && text_[end] == '\n' ? end + 1 - position_ : 0;
  }

  // False at the end.
  bool skip_space() {
    while (!done()) {
      const char c = text_[position_];
      if (const std::size_t length = continuation(); length > 0) {
        position_ += length;
      } else if (c == '#' && !at("#SBATCH")) {
        position_ = std::min(text_.find('\n', position_), text_.size());
      } else if (is_space(c)) {
        ++position_;
        if (c == '\n') end_line();
      } else {
        return true;
      }
    }
    return false;
  }

  void end_line() {
    first_ = true;
    command_ = false;
    declaring_ = false;
    skips_command_ = false;
    if (here_document_.empty()) return;
    // Until the line that is the delimiter. What has flags is a script; the rest is data.
    const std::string delimiter = std::exchange(here_document_, {});
    std::size_t end = position_;
    while (end < text_.size()) {
      const std::size_t line_end = std::min(text_.find('\n', end), text_.size());
      if (without_blanks(text_.substr(end, line_end - end)) == delimiter) break;
      end = std::min(line_end + 1, text_.size());
    }
    if (text_.substr(position_, end - position_).find("--") == std::string_view::npos) {
      position_ = end;
    }
  }

  void fail(std::size_t where, std::string what, std::string help) {
    if (failed_) return;
    failed_ = true;
    findings_.cannot_read(diagnostic_at(text_, where, std::move(what), std::move(help)));
  }

  void read_word() {
    if (!blocks_.empty() && blocks_.back().at_pattern) {
      read_pattern();
      return;
    }
    if (at(";;")) {
      position_ += 2;
      end_branch();
      return;
    }
    if (skip_redirection()) return;
    if (first_ && at("((")) {
      read_arithmetic_command();
      return;
    }
    const std::size_t begin = position_;
    const std::size_t assigned =
        first_ || assigning_ || declaring_ ? assignment_length(text_.substr(begin)) : 0;
    if (assigned > 0 && !in_condition()) {
      position_ += assigned;
      assign(text_.substr(begin, assigned));
      return;
    }
    Words words = expanded_word();
    for (Word& word : words) add(std::move(word));
  }

  // `2>&1`, `> log`, `<<EOF`; not inside a word.
  bool skip_redirection() {
    std::size_t k = position_;
    if (at("&>")) ++k;
    while (k < text_.size() && std::isdigit(static_cast<unsigned char>(text_[k])) != 0) ++k;
    if (k >= text_.size() || (text_[k] != '<' && text_[k] != '>') || in_condition()) return false;
    const std::size_t arrows = std::min(text_.find_first_not_of("<>", k), text_.size()) - k;
    const bool document = text_.substr(k, arrows) == "<<";
    position_ = k + arrows;
    if (document && at("-")) ++position_;
    while (!done() && (text_[position_] == ' ' || text_[position_] == '\t')) ++position_;
    if (at(">(") || at("<(")) ++position_;
    if (at("(")) {  // a process
      position_ = std::min(closing('(', ')', position_) + 1, text_.size());
      return true;
    }
    if (at("&")) ++position_;
    for (Word& word : expanded_word()) {
      if (word.text.ends_with(';')) {
        word.text.pop_back();
        first_ = true;
        command_ = true;
      }
      if (document) here_document_ = word.text;
    }
    return true;
  }

  // `((..))`: a command that is true or false.
  void read_arithmetic_command() {
    const std::size_t begin = position_;
    const std::size_t end = closing('(', ')', begin);
    if (failed_) return;
    position_ = std::min(end + 1, text_.size());
    if (end < begin + 3) return;
    const Word word = arithmetic(text_.substr(begin + 2, end - begin - 3));
    const std::optional<std::int64_t> value = parse_integer(word.text);
    const bool known = !has_unknown(word.text) && value;
    add({.text = !known ? "((" : *value != 0 ? "true" : "false", .unknown = known ? "" : "(("});
  }

  // ---- Blocks

  [[nodiscard]] bool in_condition() const {
    return !blocks_.empty() && blocks_.back().in_condition;
  }
  // The block whose branch is not the right one; null if all lines count.
  [[nodiscard]] const Block* skipping() const {
    const auto found = std::ranges::find_if(
        blocks_, [](const Block& b) { return !b.in_condition && !b.active && !b.at_pattern; });
    return found == blocks_.end() ? nullptr : &*found;
  }

  // True if it is a word that begins, divides or ends a block.
  bool add_keyword(std::string_view word) {
    if (!has_blocks_) return false;
    using Kind = Block::Kind;
    if (word == "if") return begin_block(Kind::choice);
    if (word == "while" || word == "until" || word == "for" || word == "select") {
      return begin_block(Kind::loop);
    }
    if (word == "case") return begin_block(Kind::pattern);
    if (word == "then") return begin_branch(Kind::choice);
    if (word == "do") return begin_branch(Kind::loop);
    if (word == "elif") return other_branch(true);
    if (word == "else") return other_branch(false);
    if (word == "fi") return end_block(Kind::choice);
    if (word == "done") return end_block(Kind::loop);
    if (word == "esac") return end_block(Kind::pattern);
    return word == "{" || word == "}" || word == "!" || word == "time";
  }

  bool begin_block(Block::Kind kind) {
    if (blocks_.size() >= kMaxBlocks) {
      balanced_ = false;
      return false;
    }
    blocks_.push_back({.kind = kind, .begin = position_, .in_condition = true});
    return true;
  }

  bool begin_branch(Block::Kind kind) {
    if (blocks_.empty() || blocks_.back().kind != kind || !blocks_.back().in_condition) {
      balanced_ = false;
      return false;
    }
    Block& block = blocks_.back();
    block.in_condition = false;
    const std::size_t length = position_ - std::min(block.begin, position_);
    std::string_view text = without_blanks(text_.substr(position_ - length, length));
    text = without_blanks(text.substr(0, text.size() - std::min<std::size_t>(text.size(), 4)));
    if (text.ends_with(';')) text.remove_suffix(1);
    keep_program(block);
    if (kind == Block::Kind::loop) {
      block.active = text.find("$#") == std::string_view::npos;
      return true;
    }
    const std::optional<bool> value = evaluate_test(block.condition);
    block.active = !block.taken && value.value_or(true);
    if (block.taken) return true;
    block.taken = value == true;
    if (!value && !block.unknown) {
      block.unknown = true;
      block.text = text.substr(0, text.find('\n'));
    }
    return true;
  }

  // The program may be in a condition: `if ! torchrun pretrain_gpt.py ..; then`.
  void keep_program(Block& block) {
    if (std::ranges::none_of(block.condition,
                             [](const Word& word) { return word.text.ends_with(".py"); }) ||
        skipping() != nullptr) {
      return;
    }
    block.condition.front().first = block.condition.front().command = true;
    words_.insert(words_.end(), block.condition.begin(), block.condition.end());
  }

  bool other_branch(bool has_condition) {
    if (blocks_.empty() || blocks_.back().kind != Block::Kind::choice ||
        blocks_.back().in_condition) {
      balanced_ = false;
      return false;
    }
    Block& block = blocks_.back();
    block.many = true;
    block.active = !has_condition && !block.taken;
    block.in_condition = has_condition;
    block.condition.clear();
    block.begin = position_;
    return true;
  }

  bool end_block(Block::Kind kind) {
    if (blocks_.empty() || blocks_.back().kind != kind || blocks_.back().in_condition) {
      balanced_ = false;
      return false;
    }
    const Block block = std::move(blocks_.back());
    blocks_.pop_back();
    if (block.assigns) assumed_.push_back({block.text.substr(0, 60), block.many});
    return true;
  }

  // `pattern | pattern)` or `esac`.
  void read_pattern() {
    Block& block = blocks_.back();
    if (at("esac") && (position_ + 4 >= text_.size() || !is_name_letter(text_[position_ + 4]))) {
      position_ += 4;
      block.at_pattern = false;
      (void)end_block(Block::Kind::pattern);
      return;
    }
    const std::size_t end = text_.find(')', position_);
    if (end == std::string_view::npos) {
      balanced_ = false;
      position_ = text_.size();
      return;
    }
    std::string_view patterns = text_.substr(position_, end - position_);
    position_ = end + 1;
    block.at_pattern = false;
    block.active = false;
    first_ = true;
    while (!block.taken && !block.unknown) {
      const std::size_t bar = std::min(patterns.find('|'), patterns.size());
      std::string pattern(without_blanks(patterns.substr(0, bar)));
      std::erase_if(pattern, [](char c) { return c == '"' || c == '\'' || c == '('; });
      if (matches(block.text, pattern)) block.active = block.taken = true;
      if (bar == patterns.size()) break;
      patterns.remove_prefix(bar + 1);
    }
  }

  void end_branch() {
    first_ = true;
    if (blocks_.empty() || blocks_.back().kind != Block::Kind::pattern) return;
    blocks_.back().at_pattern = true;
    blocks_.back().active = false;
  }

  void add_to_condition(Word word) {
    Block& block = blocks_.back();
    if (block.kind != Block::Kind::pattern) {
      block.condition.push_back(std::move(word));
    } else if (word.text == "in") {
      block.in_condition = false;
      block.at_pattern = true;
    } else {
      block.unknown = block.unknown || !word.unknown.empty();
      block.text = word.text;
    }
  }

  // ---- Words

  void add(Word marked_word) {
    Word word = unmarked(std::move(marked_word));
    const bool known = word.unknown.empty();
    const bool ends = known && word.text.size() > 1 && word.text.ends_with(';');
    if (ends) word.text.pop_back();
    if (known && !ends && is_operator(word.text)) {
      add_operator(std::move(word));
      return;
    }
    if (known && (first_ || in_condition()) && add_word_of_block(word.text)) return;
    if (in_condition()) {
      add_to_condition(std::move(word));
      return;
    }
    if (skipping() == nullptr && !skips_command_ && !add_prefix(word)) add_plain(std::move(word));
    first_ = ends;
    command_ = ends;
    assigning_ = false;
    if (ends) skips_command_ = declaring_ = false;
  }

  static bool is_operator(std::string_view word) {
    return is_one_of(word,
                     std::array<std::string_view, 8>{"|", "||", "|&", "&&", ";", "&", "(", ")"});
  }

  bool add_word_of_block(std::string_view word) {
    // In a condition, only what ends it.
    if (in_condition() && word != "then" && word != "do") return false;
    if (!add_keyword(word)) return false;
    first_ = true;
    command_ = true;
    return true;
  }

  // `export`, whose assignments follow.
  bool add_prefix(const Word& word) {
    if (declaring_ && word.text.starts_with('-')) return true;
    if (!first_ || !word.unknown.empty() ||
        !is_one_of(word.text, std::array<std::string_view, 6>{"export", "env", "local", "readonly",
                                                              "declare", "typeset"})) {
      return false;
    }
    declaring_ = true;
    return true;
  }

  void add_plain(Word word) {
    word.first = first_;
    word.command = command_ || words_.empty();
    if (first_) command_begin_ = words_.size();
    const std::string text = word.text;
    if (is_nested_script(text)) {
      read_nested(text);
      return;
    }
    words_.push_back(std::move(word));
    if (words_.size() > command_begin_ + 1 && words_[command_begin_].text == "#SBATCH") {
      assign_of_scheduler();
    }
  }

  // What Slurm makes of `#SBATCH --nodes=4` or `-N 4`, whose last word is the last one so far.
  void assign_of_scheduler() {
    std::string_view value = words_.back().text;
    std::string_view name = words_[words_.size() - 2].text;
    if (const std::size_t equals = value.find('='); equals != std::string_view::npos) {
      name = value.substr(0, equals);
      value = value.substr(equals + 1);
    }
    constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kVariables = {{
        {"--nodes", "SLURM_NNODES"},
        {"--nodes", "SLURM_JOB_NUM_NODES"},
        {"-N", "SLURM_NNODES"},
        {"-N", "SLURM_JOB_NUM_NODES"},
        {"--ntasks", "SLURM_NTASKS"},
        {"-n", "SLURM_NTASKS"},
        {"--ntasks-per-node", "SLURM_NTASKS_PER_NODE"},
        {"--gpus-per-node", "SLURM_GPUS_PER_NODE"},
    }};
    if (!parse_integer(value)) return;
    for (const auto& [flag, variable] : kVariables) {
      if (name == flag) variables_[std::string(variable)] = {{.text = std::string(value)}};
    }
  }

  // After `bash -c` or `eval`.
  [[nodiscard]] bool is_nested_script(std::string_view text) const {
    if (first_ || words_.size() <= command_begin_ || text.find(' ') == std::string_view::npos) {
      return false;
    }
    const auto begin = words_.begin() + static_cast<std::ptrdiff_t>(command_begin_);
    if (words_.back().text == "eval") return true;
    return is_script_option(words_.back().text) &&
           std::any_of(begin, words_.end(), [](const Word& w) { return is_shell(w.text); });
  }

  void read_nested(const std::string& script) {
    if (depth_ >= kMaxNestedTexts || !append_characters(script.size())) return;
    const std::string_view text = std::exchange(text_, nested_.emplace_back(script));
    const std::size_t position = std::exchange(position_, 0);
    ++depth_;
    first_ = true;
    command_ = true;
    read_all();
    --depth_;
    text_ = text;
    position_ = position;
  }

  void add_operator(Word word) {
    if (in_condition()) {
      if (word.text != ";") add_to_condition(std::move(word));
      return;
    }
    const std::size_t begin = std::min(command_begin_, words_.size());
    const std::span<const Word> last(words_.begin() + static_cast<std::ptrdiff_t>(begin),
                                     words_.end());
    const bool chain = word.text == "&&" || word.text == "||";
    const bool is_test =
        chain && !last.empty() && skipping() == nullptr &&
        is_one_of(last.front().text, std::array<std::string_view, 3>{"[", "[[", "test"});
    if (is_test && last.front().text == "[[" && last.back().text != "]]") {
      words_.push_back(std::move(word));
      return;
    }
    if (is_test) {
      const std::optional<bool> value = evaluate_test(last);
      if (value && *value != (word.text == "&&")) skips_command_ = true;
      words_.resize(begin);
    } else if (!chain) {
      skips_command_ = false;
    }
    first_ = true;
    command_ = true;
    declaring_ = false;
  }

  // ---- Variables

  // `NAME=value`, `NAME+=value`, `NAME=(value ..)`; the position is that of the value.
  void assign(std::string_view left) {
    const bool more = left.ends_with("+=");
    const std::string name(left.substr(0, left.size() - (more ? 2 : 1)));
    Words value;
    bool ends = false;
    if (at("(")) {
      value = array();
      if (at(";") && !at(";;")) {
        ++position_;
        ends = true;
      }
    } else if (!done() && !is_space(text_[position_]) && !at(";;")) {
      value = {one_word()};
      if (!value[0].text.empty() && value[0].text.back() == ';') {
        value[0].text.pop_back();
        ends = true;
      }
    }
    const bool skips = skips_command_;
    assigning_ = true;
    first_ = ends;
    command_ = ends;
    if (ends) declaring_ = skips_command_ = false;
    if (const Block* const block = skipping(); block != nullptr || skips) {
      leave_unset(name, block);
      return;
    }
    for (Block& block : blocks_) {
      block.assigns = block.assigns || (block.unknown && block.kind == Block::Kind::choice);
    }
    Words& variable = variables_[name];
    if (!more) variable.clear();
    variable.insert(variable.end(), value.begin(), value.end());
  }

  void leave_unset(const std::string& name, const Block* block) {
    if (block != nullptr && block->kind == Block::Kind::loop) return;
    if (block != nullptr && block->kind == Block::Kind::pattern && block->unknown) {
      variables_[name] = {{.text = marked("$" + name)}};
      return;
    }
    unset_.insert(name);
  }

  Words array() {
    const std::size_t begin = position_++;
    const bool first = first_;  // a line of an array is no command
    Words all;
    while (skip_space()) {
      if (at(")")) {
        ++position_;
        first_ = first;
        return all;
      }
      in_array_ = true;
      Words words = expanded_word();
      in_array_ = false;
      all.insert(all.end(), words.begin(), words.end());
      if (failed_) return all;
    }
    fail(begin, "this `(` is not closed", "add a `)`");
    return all;
  }

  // A word whose variables keep their spaces, as in an assignment.
  Word one_word() { return joined(expanded_word()); }

  static Word joined(const Words& words) {
    Word all;
    for (const Word& word : words) {
      if (!all.text.empty()) all.text += ' ';
      all.text += word.text;
    }
    return all;
  }

  // A variable without quotes may be several words, or none.
  Words expanded_word() {
    Words words;
    Word word;
    bool begun = false;  // `word` is one, even if it is empty
    while (!done() && !failed_) {
      const char c = text_[position_];
      if (is_space(c) || (in_array_ && c == ')') || continuation() > 0) break;
      if (c == ';' && !in_array_) {
        if (at(";;")) break;
        begun = true;
        append(word, text_.substr(position_++, 1));
        break;
      }
      if (c == '\'') {
        begun = true;
        single_quoted(word);
      } else if (c == '"') {
        double_quoted(word, words, begun);
      } else if (c == '$' || c == '`') {
        expand(word, words, begun);
      } else {
        begun = true;
        if (c == '\\' && position_ + 1 < text_.size()) ++position_;
        append(word, text_.substr(position_++, 1));
      }
    }
    if (begun) words.push_back(std::move(word));
    return words;
  }

  void single_quoted(Word& word) {
    const std::size_t begin = position_;
    const std::size_t end = text_.find('\'', begin + 1);
    if (end == std::string_view::npos) {
      fail(begin, "this quote is not closed", "add a `'`");
      return;
    }
    append(word, text_.substr(begin + 1, end - begin - 1));
    position_ = end + 1;
  }

  // "${ARGS[@]}" is as many words as the array has; what is before it belongs to the first one.
  void double_quoted(Word& word, Words& words, bool& begun) {
    const std::size_t begin = position_++;
    bool is_word = true;
    while (!done() && !failed_) {
      const char c = text_[position_];
      if (c == '"') {
        ++position_;
        begun = begun || is_word;
        return;
      }
      if (c == '$' || c == '`') {
        const bool alone = position_ == begin + 1;
        const Words value = variable();
        if (is_array_ && value.empty() && alone && at("\"")) is_word = false;
        for (std::size_t k = 0; k < value.size(); ++k) {
          if (k > 0 && is_array_) {
            words.push_back(std::exchange(word, {}));
          } else if (k > 0) {
            append(word, " ");
          }
          append(word, value[k].text);
        }
        continue;
      }
      if (const std::size_t length = continuation(); length > 0) {
        position_ += length;
        continue;
      }
      // Only these are special here.
      if (c == '\\' && position_ + 1 < text_.size() &&
          std::string_view("\\\"$`").find(text_[position_ + 1]) != std::string_view::npos) {
        ++position_;
      }
      append(word, text_.substr(position_++, 1));
    }
    fail(begin, "this quote is not closed", "add a `\"`");
  }

  // A variable without quotes: its words follow those that are there.
  void expand(Word& word, Words& words, bool& begun) {
    for (const Word& value : variable()) {
      std::string_view rest = value.text;
      bool split = false;
      while (!rest.empty()) {
        const std::size_t length =
            static_cast<std::size_t>(std::ranges::find_if(rest, is_space) - rest.begin());
        if (length == 0) {
          split = true;
          rest.remove_prefix(1);
          continue;
        }
        if (begun && (split || (is_array_ && !word.text.empty()))) {
          words.push_back(std::move(word));
          word = {};
        }
        begun = true;
        append(word, rest.substr(0, length));
        rest.remove_prefix(length);
        split = false;
        if (failed_) return;
      }
    }
  }

  // The value of `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-value}` or `$((..))`; the position is
  // that of `$`.
  Words variable() {
    const std::size_t begin = position_;
    is_array_ = false;
    std::string_view name;
    std::string_view rest;  // after the name
    if (at("$((")) {
      const std::size_t end = closing('(', ')', begin + 1);
      position_ = std::min(end + 1, text_.size());
      if (failed_ || end < begin + 4) return {};
      return {arithmetic(text_.substr(begin + 3, end - begin - 4))};
    }
    if (at("${")) {
      const std::size_t end = closing('{', '}', begin + 1);
      const std::string_view inside = text_.substr(begin + 2, end - begin - 2);
      std::size_t length = 0;
      while (length < inside.size() && is_name_letter(inside[length])) ++length;
      name = inside.substr(0, length);
      rest = inside.substr(length);
      is_array_ = rest == "[@]" || rest == "[*]";
      position_ = std::min(end + 1, text_.size());
    } else if (at("$(")) {
      position_ = std::min(closing('(', ')', begin + 1) + 1, text_.size());
    } else if (at("`")) {
      position_ = std::min(text_.find('`', begin + 1), text_.size() - 1) + 1;
    } else if (at("$@") || at("$*")) {
      position_ += 2;
      is_array_ = true;
      return {};
    } else {
      ++position_;
      while (!done() && is_name_letter(text_[position_])) ++position_;
      name = text_.substr(begin + 1, position_ - begin - 1);
      if (name.empty()) return {{.text = "$"}};
    }
    if (failed_) return {};
    const std::string spelled(text_.substr(begin, position_ - begin));
    return value_of(name, rest, spelled);
  }

  Words value_of(std::string_view name, std::string_view rest, const std::string& spelled) {
    Words unknown = {{.text = marked(spelled)}};
    const auto found = variables_.find(name);
    const bool assigned = !name.empty() && found != variables_.end();
    if (rest.empty() || is_array_) {
      if (assigned) return found->second;
      if (!name.empty() && unset_.contains(name)) return {};
      is_array_ = false;
      return unknown;
    }
    const Word value = assigned ? joined(found->second) : Word{};
    const bool has_value = !has_unknown(value.text) && !value.text.empty();
    if (rest[0] == ':') rest.remove_prefix(1);
    if (name.empty() || rest.empty() || std::string_view("-=+?").find(rest[0]) == rest.npos) {
      return unknown;
    }
    if (rest[0] == '+') return has_value ? Words{nested_value(rest.substr(1))} : Words{};
    if (has_value) return found->second;
    if (rest[0] == '?') return unknown;
    return {nested_value(rest.substr(1))};
  }

  // The text of a default: quotes and variables in it count, spaces stay.
  Word nested_value(std::string_view text) {
    if (depth_ >= kMaxNestedTexts) return {.text = marked(text)};
    const std::string_view outer = std::exchange(text_, text);
    const std::size_t position = std::exchange(position_, 0);
    const bool in_array = std::exchange(in_array_, false);
    ++depth_;
    Word all;
    while (!done() && !failed_) {
      if (is_space(text_[position_]) || at(";;")) {
        append(all, text_.substr(position_++, 1));
      } else if (const std::size_t length = continuation(); length > 0) {
        position_ += length;
      } else {
        append(all, one_word().text);
      }
    }
    --depth_;
    text_ = outer;
    position_ = position;
    in_array_ = in_array;
    is_array_ = false;
    return all;
  }

  Word arithmetic(std::string_view text) {
    const Word expression = nested_value(text);
    const auto lookup = [&](std::string_view name) -> std::optional<std::int64_t> {
      const auto found = variables_.find(name);
      if (found == variables_.end() || found->second.size() != 1) return {};
      return parse_integer(found->second[0].text);
    };
    if (!has_unknown(expression.text)) {
      if (const auto value = evaluate_arithmetic(expression.text, lookup)) {
        return {.text = fmt::format("{}", *value)};
      }
    }
    return {.text = marked(fmt::format("$(({}))", text))};
  }

  // Where the bracket at `begin` is closed.
  std::size_t closing(char open, char close, std::size_t begin) {
    int depth = 0;
    for (std::size_t k = begin; k < text_.size(); ++k) {
      if (text_[k] == open) ++depth;
      if (text_[k] == close && --depth == 0) return k;
    }
    const bool dollar = begin > 0 && text_[begin - 1] == '$';
    fail(dollar ? begin - 1 : begin,
         fmt::format("this `{}{}` is not closed", dollar ? "$" : "", open),
         fmt::format("add a `{}`", close));
    return text_.size();
  }

  bool append_characters(std::size_t count) {
    characters_ += count;
    if (characters_ <= kMaxCharacters) return true;
    fail(position_ == 0 ? 0 : std::min(position_, text_.size()) - 1,
         "the text is longer than 2^20 characters", "pass only the command");
    return false;
  }
  void append(Word& word, std::string_view text) {
    if (append_characters(text.size())) word.text += text;
  }

  std::string_view text_;
  Findings& findings_;
  bool has_blocks_;
  std::size_t position_ = 0;
  std::size_t characters_ = 0;
  int depth_ = 0;               // of texts inside texts
  bool first_ = true;           // the next word is the first of a command or a line
  bool command_ = true;         // of a command, whatever it is
  bool assigning_ = false;      // only assignments are before it
  bool declaring_ = false;      // `export` is before it
  bool skips_command_ = false;  // `[ .. ] &&` was false
  bool in_array_ = false;
  bool is_array_ = false;  // the last variable was all items of an array
  bool failed_ = false;
  bool balanced_ = true;
  std::string here_document_;  // its delimiter, if it begins on the next line
  std::vector<Block> blocks_;
  std::vector<Assumed> assumed_;
  std::map<std::string, Words, std::less<>> variables_;
  std::set<std::string, std::less<>> unset_;  // assigned only where the text is not followed
  std::deque<std::string> nested_;
  std::size_t command_begin_ = 0;
  Words words_;
};

}  // namespace

ShellText shell_words(std::string_view text, Findings& findings, Settings& variables) {
  for (const bool blocks : {true, false}) {
    Findings found;
    ShellReader reader(text, found, blocks);
    ShellText words = reader.read();
    if (blocks && !reader.balanced()) continue;
    reader.add_variables(variables);
    findings.add(found);
    for (const auto& [condition, many] : reader.assumed()) {
      findings.assume("", fmt::format("whether `{}` is true is not known", condition),
                      many ? "its branches are all read, and the last assignment counts"
                           : "its branch is read");
    }
    return words;
  }
  return {};
}

}  // namespace shiplap::layout
