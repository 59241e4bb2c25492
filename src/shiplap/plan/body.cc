// Reads the body of a program from text: a recursive-descent parser with error recovery by line.
//
// All errors of a file are reported, not just the first (panic mode: a line that fails is skipped
// to its end). Declarations are entered even if they are invalid, and names that failed are marked
// as broken, so that no error is reported as a consequence of another.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/body_internal.h"

namespace shiplap::plan {
namespace {

constexpr std::size_t kMaxDiagnostics = 20;
constexpr int kMaxBlockDepth = 64;

bool begins_section(const Token& token) {
  return token.is("mesh") || token.kind == TokenKind::text_end ||
         std::ranges::any_of(section_words(),
                             [&](const std::string& word) { return token.is(word); });
}

bool is_access(const Token& token) {
  return token.is("reads") || token.is("writes") || token.is("adds");
}

// All keywords that can begin a line of a program, or follow a program.
const std::vector<std::string>& first_words() {
  static const std::vector<std::string> kWords = [] {
    std::vector<std::string> words = action_words();
    for (const char* word : {"repeat", "when", "let", "end", "given", "goal", "keep", "reads",
                             "writes", "adds", "buffer", "streams"}) {
      words.emplace_back(word);
    }
    words.insert(words.end(), section_words().begin(), section_words().end());
    return words;
  }();
  return kWords;
}

bool is_action(const Token& token) {
  return std::ranges::find(action_words(), token.text) != action_words().end();
}

// The keyword for a word of other languages, or "".
std::string_view keyword_synonym(std::string_view word) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kWords = {{
      {"if", "when"},
      {"for", "repeat"},
      {"loop", "repeat"},
      {"recv", "receive"},
      {"alloc", "allocate"},
      {"read", "reads"},
      {"write", "writes"},
      {"stream", "streams"},
  }};
  for (const auto& [theirs, ours] : kWords) {
    if (word == theirs) return ours;
  }
  return "";
}

// The keyword that a misspelt first word must mean, or "".
std::string_view intended_keyword(std::string_view word) {
  const std::vector<std::string>& words = first_words();
  if (std::ranges::find(words, word) != words.end()) return "";
  if (const std::string_view ours = keyword_synonym(word); !ours.empty()) return ours;
  const auto found = std::ranges::find(words, nearest(word, words));
  return found == words.end() ? std::string_view() : std::string_view(*found);
}

class BodyReader {
 public:
  BodyReader(const BodyContext& context, Program& program)
      : lexer_(context.lexer),
        phrases_(context.phrases),
        symbols_(context.symbols),
        errors_(context.errors),
        operations_(lexer_, phrases_, symbols_, context.plan.declares_values),
        program_(program) {}

  void read() {
    declarations();
    block(program_.body, Inside::program, lexer_.peek());
    for (auto& [diagnostic, name] : operation_names_.undeclared()) {
      diagnostic.where = lexer_.where(name);
      errors_.add(std::move(diagnostic));
    }
    if (!reported_unclosed_) {
      for (Diagnostic& conflict : conflicts_) errors_.add(std::move(conflict));
    }
    symbols_.unbind_to(0);
  }

 private:
  enum class Inside { program, block, batch };

  // `b:` and `list[1]:` are names of operations, even if they are keywords.
  [[nodiscard]] bool at_name() const {
    return lexer_.peek_second().is(":") || lexer_.peek_second().is("[");
  }

  [[nodiscard]] bool at_program_end() const { return begins_section(lexer_.peek()) && !at_name(); }

  // Advances to the next statement. A misspelt keyword is reported and then read as the intended
  // one, so that one typo is one error.
  void next_statement() {
    throw_if_cancelled();
    lexer_.skip_blank_lines();
    const Token& word = lexer_.peek();
    if (word.kind != TokenKind::name || at_name()) return;
    if (symbols_.streams.contains(word.text) && is_action(lexer_.peek_second()))
      return stream_as_word();
    const std::string_view better = intended_keyword(word.text);
    if (better.empty()) return;
    errors_.add({.code = "D101",
                 .where = lexer_.where(word),
                 .what = fmt::format("unknown statement `{}`", word.text),
                 .help = fmt::format("did you mean `{}`?", better)});
    lexer_.read_as(better);
  }

  void stream_as_word() {
    const Token word = lexer_.take();
    errors_.add({.code = "D101",
                 .where = lexer_.where(word),
                 .what = fmt::format("unknown statement `{}`", word.text),
                 .help = fmt::format("a stream is written `@{}`", word.text)});
  }

  void declarations() {
    for (next_statement(); !at_program_end(); next_statement()) {
      const Token& token = lexer_.peek();
      const bool is_buffer = token.is("buffer") && !at_name();
      const bool is_streams = token.is("streams") && !at_name();
      if (!is_buffer && !is_streams) return;
      errors_.guarded_line(lexer_, [&] { is_buffer ? buffer() : streams(); });
    }
  }

  void buffer() {
    lexer_.take();
    const Token token = lexer_.peek();
    Buffer buffer{.name = phrases_.any_name("a name for the buffer")};
    if (symbols_.buffers.contains(buffer.name))
      name_taken(token, "a buffer of this program already");
    if (is_reserved(buffer.name)) {
      symbols_.broken.emplace(buffer.name, 0);
      name_taken(token, "a reserved word");
    }
    errors_.guarded_line(lexer_, [&] { shape(buffer); });  // declared even if that fails
    symbols_.buffers.emplace(buffer.name, static_cast<std::int32_t>(program_.buffers.size()));
    program_.buffers.push_back(std::move(buffer));
  }

  void shape(Buffer& buffer) {
    buffer.origin = Origin{lexer_.peek().line};
    if (!lexer_.take_if("rows")) lexer_.expected("`rows`", buffer_form());
    buffer.rows = phrases_.expression();
    if (!lexer_.take_if("row_bytes")) lexer_.expected("`row_bytes`", buffer_form());
    buffer.row_bytes = phrases_.expression();
    buffer.type = phrases_.element_type();
    if (lexer_.take_if("host")) {
      buffer.memory = Memory::host;
    } else {
      lexer_.take_if("device");
    }
    if (!lexer_.at_line_end()) lexer_.expected("`device`, `host` or the end of the line");
  }

  static std::string buffer_form() { return "write `buffer x rows 8 row_bytes 512 bf16`"; }

  [[noreturn]] void name_taken(const Token& token, std::string_view as) {
    lexer_.fail(token, {.code = "D103",
                        .what = fmt::format("`{}` is {}", token.text, as),
                        .help = "take another name"});
  }

  void streams() {
    lexer_.take();
    do {
      const Token token = lexer_.peek();
      std::string name = phrases_.any_name("a name for the stream");
      if (symbols_.streams.contains(name)) name_taken(token, "a stream of this program already");
      symbols_.streams.emplace(name, static_cast<std::int32_t>(symbols_.streams.size()));
      program_.streams.push_back(std::move(name));
      lexer_.take_if(",");
    } while (!lexer_.at_line_end());
  }

  // Reads up to and including `end`, or to the end of the program. `opened` is the opening keyword.
  void block(std::vector<Statement>& body, Inside inside, const Token& opened) {
    const std::size_t bound = symbols_.bound();
    for (next_statement();; next_statement()) {
      if (at_program_end()) {
        if (inside != Inside::program) unclosed_block(opened);
        break;
      }
      const bool is_end = lexer_.peek().is("end") && !at_name();
      if (is_end && inside != Inside::program) {
        last_end_ = lexer_.peek().line;
        close(opened, lexer_.take());
        break;
      }
      errors_.guarded_line(lexer_, [&] { statement(body, inside); });
    }
    symbols_.unbind_to(bound, last_end_);
  }

  void close(const Token& opened, const Token& end) {
    const int indent = lexer_.indent(end);
    if (indent >= 0 && lexer_.indent(opened) >= 0 && indent != lexer_.indent(opened) &&
        !misindented_) {
      misindented_ = {opened, end};
    }
    errors_.guarded_line(lexer_, [this] { end_of_line(); });
  }

  // Returns "" if every `end` is indented like its block.
  [[nodiscard]] std::string describe_misindented() const {
    if (!misindented_) return {};
    return fmt::format("`end` in line {} closes `{}` in line {}, and is not indented like it",
                       misindented_->second.line, misindented_->first.text,
                       misindented_->first.line);
  }

  void unclosed_block(const Token& opened) {
    if (std::exchange(reported_unclosed_, true)) return;
    errors_.add({.code = "D105",
                 .where = lexer_.where(opened),
                 .what = "this block is not closed before the program ends",
                 .why = misindented_ ? describe_misindented() : "",
                 .help = misindented_ ? "is there an `end` missing before that one?"
                                      : "write `end` where it stops"});
  }

  void end_of_line() {
    if (!lexer_.at_line_end()) lexer_.expected("the end of the line");
  }

  void statement(std::vector<Statement>& body, Inside inside) {
    const Token word = lexer_.peek();
    const bool named = at_name();
    const Origin origin{word.line};
    if (!named && word.is("repeat")) return repeat(body, inside, origin);
    if (!named && word.is("when")) return when(body, inside, origin);
    if (!named && word.is("let")) return let(body, origin);
    if (inside == Inside::batch) return member(body, origin);
    if (!named && (word.is("buffer") || word.is("streams"))) return late_declaration(word);
    if (!named && is_access(word)) return orphan_access(word);
    if (!named && (word.is("given") || word.is("goal") || word.is("keep"))) {
      return fact(body, origin);
    }
    if (!named) reject_misplaced(word);
    operation(body, origin);
  }

  void reject_misplaced(const Token& word) {
    if (word.is("end")) {
      lexer_.fail(
          word,
          {.code = "D105",
           .what = "there is no open block that this `end` could close",
           .why = misindented_ ? describe_misindented()
                               : "`end` closes `repeat`, `when` and `batch`; nothing else has one",
           .help = misindented_ ? "is a `repeat`, `when` or `batch` missing before that one?"
                                : "remove it"});
    }
    if (word.is("else")) {
      lexer_.fail(word, {.code = "D101",
                         .what = "there is no `else`",
                         .help = "close the block, and write a second `when` with the opposite "
                                 "condition"});
    }
  }

  // Reported once, and still declared, so that later uses are not errors too.
  void late_declaration(const Token& word) {
    if (!std::exchange(reported_late_, true)) {
      errors_.add({.code = "D111",
                   .where = lexer_.where(word),
                   .what = fmt::format("`{}` is declared too late", word.text),
                   .why = "buffers and streams are declared before the first statement",
                   .help = "move it up; or is a line `program` missing before it?"});
    }
    const Token name = lexer_.peek_second();
    if (symbols_.buffers.contains(name.text) || symbols_.streams.contains(name.text)) {
      return lexer_.skip_line();
    }
    word.is("buffer") ? buffer() : streams();
  }

  void orphan_access(const Token& word) {
    errors_.add({.code = "D111",
                 .where = lexer_.where(word),
                 .what = fmt::format("`{}` belongs to no `compute`", word.text),
                 .why = "what a computation touches follows it directly; the regions of all other "
                        "actions are in their own line"});
    Compute nothing;
    accesses(nothing);
  }

  std::string variable(std::string_view what) {
    const Token token = lexer_.peek();
    std::string name = phrases_.any_name(what);
    if (is_reserved(name)) {
      symbols_.broken.emplace(name, 0);
      name_taken(token, "a reserved word");
    }
    if (symbols_.locals.contains(name)) shadows_local(token);
    if (const std::string_view as = symbols_.taken_as(name); !as.empty()) {
      name_taken(token, fmt::format("{} already", as));
    }
    return name;
  }

  // Deferred until the end of the program: a missing `end` would be the actual cause.
  [[noreturn]] void shadows_local(const Token& token) {
    conflicts_.push_back(
        {.code = "D103",
         .where = lexer_.where(token),
         .what = fmt::format("`{}` is a name of `repeat` or `let` already", token.text),
         .why = "its scope is the rest of its block, and shadowing is not allowed",
         .help = "take another name"});
    throw ParseFailure();
  }

  void nested(std::vector<Statement>& body, Inside inside, const Token& word) {
    if (++depth_ > kMaxBlockDepth) {
      errors_.stop({.code = "D114",
                    .where = lexer_.where(word),
                    .what = fmt::format("blocks are nested more than {} deep", kMaxBlockDepth)});
    }
    block(body, inside == Inside::program ? Inside::block : inside, word);
    --depth_;
  }

  void repeat(std::vector<Statement>& body, Inside inside, Origin origin) {
    const Token word = lexer_.take();
    Repeat repeat{.origin = origin};
    const std::size_t bound = symbols_.bound();
    errors_.guarded_line(lexer_, [&] {
      repeat.variable = variable("a name to count with");
      repeat.count = phrases_.expression();
      end_of_line();
    });
    if (!repeat.variable.empty()) symbols_.bind(repeat.variable);
    nested(repeat.body, inside, word);
    symbols_.unbind_to(bound, last_end_);
    body.push_back({std::move(repeat)});
  }

  void when(std::vector<Statement>& body, Inside inside, Origin origin) {
    const Token word = lexer_.take();
    When when{.origin = origin};
    errors_.guarded_line(lexer_, [&] {
      when.condition = phrases_.condition();
      end_of_line();
    });
    nested(when.body, inside, word);
    body.push_back({std::move(when)});
  }

  void let(std::vector<Statement>& body, Origin origin) {
    lexer_.take();
    Let let{.variable = variable("a name"), .origin = origin};
    errors_.guarded_line(lexer_, [&] {
      phrases_.symbol("=", "and an expression");
      let.value = phrases_.expression();
      end_of_line();
    });
    symbols_.bind(let.variable);  // also on failure, so that its uses are not reported too
    body.push_back({std::move(let)});
  }

  void fact(std::vector<Statement>& body, Origin origin) {
    const Token word = lexer_.take();
    phrases_.require_declared_values(word);
    Fact fact{.origin = origin};
    fact.kind = word.is("given")  ? Fact::Kind::given
                : word.is("goal") ? Fact::Kind::goal
                                  : Fact::Kind::keep;
    fact.region = phrases_.region();
    phrases_.symbol("=", "and a value");
    const Token value = lexer_.peek();
    fact.value = phrases_.value();
    if (fact.kind == Fact::Kind::keep && !program_tensor(fact.value).has_versions()) {
      lexer_.fail(
          value,
          {.code = "D112",
           .what = fmt::format("`keep` is for Weight and OptState; `{}` is of kind {}",
                               program_tensor(fact.value).name, program_tensor(fact.value).kind),
           .why = "it means: the old version at the start of a step, the new one at its end",
           .help = "use `given`, or `goal`, or both"});
    }
    if (fact.kind == Fact::Kind::keep && fact.value.is_new) {
      lexer_.fail(value, {.code = "D112",
                          .what = "`keep` names the version at the start of the step",
                          .help = "leave out `new`"});
    }
    end_of_line();
    body.push_back({std::move(fact)});
  }

  void operation(std::vector<Statement>& body, Origin origin) {
    const Token first = lexer_.peek();
    const bool named = at_name();
    if (named) operation_names_.declare(first.text);  // also if the rest of the line fails
    Operation operation;
    errors_.guarded_line(lexer_, [&] { operation = operations_.operation(); });
    if (operations_.opened_block() && !std::holds_alternative<Batch>(operation.action)) {
      operation.action = Batch{};  // the rest of the line failed, but its block follows
    }
    operation.origin = origin;
    for (const Token& name : operations_.waits_for()) operation_names_.refer(name);
    if (auto* compute = std::get_if<Compute>(&operation.action)) accesses(*compute);
    if (auto* batch = std::get_if<Batch>(&operation.action))
      nested(batch->body, Inside::batch, first);
    body.push_back({std::move(operation)});
  }

  void accesses(Compute& compute) {
    for (next_statement(); is_access(lexer_.peek()) && !at_name(); next_statement()) {
      errors_.guarded_line(lexer_, [&] {
        const Origin origin{lexer_.peek().line};
        compute.accesses.push_back(operations_.access());
        compute.accesses.back().origin = origin;
        end_of_line();
      });
    }
  }

  void member(std::vector<Statement>& body, Origin origin) {
    const Token first = lexer_.peek();
    Operation operation;
    const bool valid = errors_.guarded([&] { operation = operations_.member(); });
    lexer_.skip_line();
    if (!valid) {  // skip its accesses and its block
      Compute nothing;
      accesses(nothing);
      std::vector<Statement> ignored;
      if (operations_.opened_block()) nested(ignored, Inside::batch, first);
    }
    operation.origin = origin;
    body.push_back({std::move(operation)});
  }

  [[nodiscard]] const Tensor& program_tensor(const Value& value) const {
    return phrases_.tensor(value.tensor);
  }

  Lexer& lexer_;
  PhraseParser& phrases_;
  SymbolTable& symbols_;
  DiagnosticCollector& errors_;
  OperationReader operations_;
  OperationNames operation_names_;
  Program& program_;
  int depth_ = 0;
  std::int32_t last_end_ = 0;  // the line of the last `end`
  bool reported_unclosed_ = false;
  bool reported_late_ = false;
  std::vector<Diagnostic> conflicts_;
  std::optional<std::pair<Token, Token>>
      misindented_;  // the first block whose `end` is indented differently
};

}  // namespace

void DiagnosticCollector::add(Diagnostic diagnostic) {
  // An unknown name may be used many times; report it once.
  const bool duplicate = std::ranges::any_of(diagnostics_, [&](const Diagnostic& earlier) {
    return diagnostic.code == "D102" && earlier.code == "D102" && earlier.what == diagnostic.what;
  });
  if (duplicate || diagnostic.code.empty()) return;
  diagnostics_.push_back(std::move(diagnostic));
  if (diagnostics_.size() >= kMaxDiagnostics) throw_if_any();
}

void DiagnosticCollector::throw_if_any() {
  if (!any()) return;
  // In the order of the text; diagnostics without a line come last.
  std::ranges::stable_sort(diagnostics_, {}, [](const Diagnostic& diagnostic) {
    return static_cast<unsigned>(diagnostic.where.line - 1);
  });
  throw InputError(std::move(diagnostics_));
}

void DiagnosticCollector::stop(Diagnostic diagnostic) {
  diagnostics_.push_back(std::move(diagnostic));
  throw InputError(std::move(diagnostics_));
}

void OperationNames::refer(const Token& name) {
  if (referred_once_.emplace(name.text, 0).second) referred_.push_back(name);
}

std::vector<std::pair<Diagnostic, Token>> OperationNames::undeclared() const {
  std::vector<std::pair<Diagnostic, Token>> result;
  for (const Token& name : referred_) {
    if (declared_.contains(name.text)) continue;
    if (result.size() == kMaxDiagnostics) break;
    result.emplace_back(
        Diagnostic{.code = "D205",
                   .what = fmt::format("unknown operation `{}` in this program", name.text),
                   .help = suggest(name.text, names_in(declared_))},
        name);
  }
  return result;
}

bool at_inside_of_program(const Lexer& lexer) {
  const Token& word = lexer.peek();
  const bool named = word.kind == TokenKind::name && lexer.peek_second().is(":");
  const bool known = std::ranges::find(first_words(), word.text) != first_words().end();
  return named || word.is("@") || (known && !begins_section(word));
}

void read_body(const BodyContext& context, Program& program) {
  BodyReader(context, program).read();
}

}  // namespace shiplap::plan
