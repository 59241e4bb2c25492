#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/body_internal.h"

namespace shiplap::plan {
namespace {

constexpr std::size_t kMostDiagnostics = 20;
constexpr int kDeepestBlock = 64;

bool begins_section(const Token& token) {
  return token.is("program") || token.is("spare") || token.is("table") || token.is("tensor") ||
         token.is("list") || token.is("alias") || token.is("mesh") ||
         token.kind == TokenKind::text_end;
}

bool is_access(const Token& token) {
  return token.is("reads") || token.is("writes") || token.is("adds");
}

// All that a line of a program can begin with, or that can follow a program.
const std::vector<std::string>& first_words() {
  static const std::vector<std::string> kWords = [] {
    std::vector<std::string> words = action_words();
    for (const char* word :
         {"repeat", "when", "let", "end", "given", "goal", "keep", "reads", "writes", "adds",
          "buffer", "streams", "program", "spare", "table", "tensor", "list", "alias"}) {
      words.emplace_back(word);
    }
    return words;
  }();
  return kWords;
}

bool is_action(const Token& token) {
  return std::ranges::find(action_words(), token.text) != action_words().end();
}

// What other languages call it.
std::string_view translated(std::string_view word) {
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

// The first word that `word` must mean, or nothing.
std::string_view meant(std::string_view word) {
  const std::vector<std::string>& words = first_words();
  if (std::ranges::find(words, word) != words.end()) return "";
  if (const std::string_view ours = translated(word); !ours.empty()) return ours;
  const auto found = std::ranges::find(words, nearest(word, words));
  return found == words.end() ? std::string_view() : std::string_view(*found);
}

class BodyReader {
 public:
  BodyReader(const BodyContext& context, Program& program)
      : lexer_(context.lexer),
        phrases_(context.phrases),
        names_(context.names),
        report_(context.report),
        operations_(lexer_, phrases_, names_),
        program_(program) {}

  void read() {
    declarations();
    block(program_.body, Inside::program, lexer_.peek());
    for (auto& [diagnostic, name] : operation_names_.undeclared()) {
      diagnostic.where = lexer_.where(name);
      report_.add(std::move(diagnostic));
    }
    if (!said_not_closed_) {
      for (Diagnostic& clash : clashes_) report_.add(std::move(clash));
    }
    names_.unbind_to(0);
  }

 private:
  enum class Inside { program, block, batch };

  // `b:` and `list[1]:` are names of operations, whatever the word.
  [[nodiscard]] bool at_name() const {
    return lexer_.peek_second().is(":") || lexer_.peek_second().is("[");
  }

  [[nodiscard]] bool at_program_end() const { return begins_section(lexer_.peek()) && !at_name(); }

  // To the next statement. If its first word is misspelt, that is reported, and it is read as what
  // it must mean: so one slip is one error.
  void next_statement() {
    lexer_.skip_blank_lines();
    const Token& word = lexer_.peek();
    if (word.kind != TokenKind::name || at_name()) return;
    if (names_.streams.contains(word.text) && is_action(lexer_.peek_second()))
      return stream_as_word();
    const std::string_view better = meant(word.text);
    if (better.empty()) return;
    report_.add({.code = "D101",
                 .where = lexer_.where(word),
                 .what = fmt::format("no statement begins with `{}`", word.text),
                 .help = fmt::format("did you mean `{}`?", better)});
    lexer_.read_as(better);
  }

  void stream_as_word() {
    const Token word = lexer_.take();
    report_.add({.code = "D101",
                 .where = lexer_.where(word),
                 .what = fmt::format("no statement begins with `{}`", word.text),
                 .help = fmt::format("a stream is written `@{}`", word.text)});
  }

  void declarations() {
    for (next_statement(); !at_program_end(); next_statement()) {
      const Token& token = lexer_.peek();
      const bool is_buffer = token.is("buffer") && !at_name();
      const bool is_streams = token.is("streams") && !at_name();
      if (!is_buffer && !is_streams) return;
      report_.guarded_line(lexer_, [&] { is_buffer ? buffer() : streams(); });
    }
  }

  void buffer() {
    lexer_.take();
    const Token token = lexer_.peek();
    Buffer buffer{.name = phrases_.any_name("a name for the buffer")};
    if (names_.buffers.contains(buffer.name)) taken(token, "a buffer of this program already");
    if (is_reserved(buffer.name)) {
      names_.broken.emplace(buffer.name, 0);
      taken(token, "a word of the format");
    }
    report_.guarded_line(lexer_, [&] { shape(buffer); });  // known by its name even if that fails
    names_.buffers.emplace(buffer.name, static_cast<std::int32_t>(program_.buffers.size()));
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

  [[noreturn]] void taken(const Token& token, std::string_view as) {
    lexer_.fail(token, {.code = "D103",
                        .what = fmt::format("`{}` is {}", token.text, as),
                        .help = "take another name"});
  }

  void streams() {
    lexer_.take();
    do {
      const Token token = lexer_.peek();
      std::string name = phrases_.any_name("a name for the stream");
      if (names_.streams.contains(name)) taken(token, "a stream of this program already");
      names_.streams.emplace(name, static_cast<std::int32_t>(names_.streams.size()));
      program_.streams.push_back(std::move(name));
      lexer_.take_if(",");
    } while (!lexer_.at_line_end());
  }

  // Reads up to and with `end`, or to the end of the program. `opened` is the word that opened it.
  void block(std::vector<Statement>& body, Inside inside, const Token& opened) {
    const std::size_t bound = names_.bound();
    for (next_statement();; next_statement()) {
      if (at_program_end()) {
        if (inside != Inside::program) not_closed(opened);
        break;
      }
      const bool is_end = lexer_.peek().is("end") && !at_name();
      if (is_end && inside != Inside::program) {
        last_end_ = lexer_.peek().line;
        close(opened, lexer_.take());
        break;
      }
      report_.guarded_line(lexer_, [&] { statement(body, inside); });
    }
    names_.unbind_to(bound, last_end_);
  }

  void close(const Token& opened, const Token& end) {
    const int indent = lexer_.indent(end);
    if (indent >= 0 && lexer_.indent(opened) >= 0 && indent != lexer_.indent(opened) && !askew_) {
      askew_ = {opened, end};
    }
    report_.guarded_line(lexer_, [this] { end_of_line(); });
  }

  // Nothing if no `end` is.
  [[nodiscard]] std::string describe_askew() const {
    if (!askew_) return {};
    return fmt::format("`end` in line {} closes `{}` in line {}, and is not indented like it",
                       askew_->second.line, askew_->first.text, askew_->first.line);
  }

  void not_closed(const Token& opened) {
    if (std::exchange(said_not_closed_, true)) return;
    report_.add({.code = "D105",
                 .where = lexer_.where(opened),
                 .what = "this block is not closed before the program ends",
                 .why = askew_ ? describe_askew() : "",
                 .help = askew_ ? "is there an `end` missing before that one?"
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
    if (!named && (word.is("buffer") || word.is("streams"))) return too_late(word);
    if (!named && is_access(word)) return access_of_nothing(word);
    if (!named && (word.is("given") || word.is("goal") || word.is("keep"))) {
      return fact(body, origin);
    }
    if (!named) refuse_misplaced(word);
    operation(body, origin);
  }

  void refuse_misplaced(const Token& word) {
    if (word.is("end")) {
      lexer_.fail(
          word, {.code = "D105",
                 .what = "there is no open block that this `end` could close",
                 .why = askew_ ? describe_askew()
                               : "`end` closes `repeat`, `when` and `batch`; nothing else has one",
                 .help = askew_ ? "is a `repeat`, `when` or `batch` missing before that one?"
                                : "remove it"});
    }
    if (word.is("else")) {
      lexer_.fail(word, {.code = "D101",
                         .what = "there is no `else`",
                         .help = "close the block, and write a second `when` with the opposite "
                                 "condition"});
    }
  }

  // The two are reported once and then read all the same, for the sake of what follows.
  void too_late(const Token& word) {
    if (!std::exchange(said_too_late_, true)) {
      report_.add({.code = "D111",
                   .where = lexer_.where(word),
                   .what = fmt::format("`{}` comes too late", word.text),
                   .why = "buffers and streams are declared before the first statement",
                   .help = "move it up; or is a line `program` missing before it?"});
    }
    const Token name = lexer_.peek_second();
    if (names_.buffers.contains(name.text) || names_.streams.contains(name.text)) {
      return lexer_.skip_line();
    }
    word.is("buffer") ? buffer() : streams();
  }

  void access_of_nothing(const Token& word) {
    report_.add({.code = "D111",
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
      names_.broken.emplace(name, 0);
      taken(token, "a word of the format");
    }
    if (names_.locals.contains(name)) hides_local(token);
    if (const std::string_view as = names_.taken_as(name); !as.empty()) {
      taken(token, fmt::format("{} already", as));
    }
    return name;
  }

  // Kept back until it is known whether an `end` is missing: then that is the reason.
  [[noreturn]] void hides_local(const Token& token) {
    clashes_.push_back(
        {.code = "D103",
         .where = lexer_.where(token),
         .what = fmt::format("`{}` is a name of `repeat` or `let` already", token.text),
         .why = "such a name holds to the end of its block, and none hides another",
         .help = "take another name"});
    throw ParseFailure();
  }

  void nested(std::vector<Statement>& body, Inside inside, const Token& word) {
    if (++depth_ > kDeepestBlock) {
      report_.stop({.code = "D114",
                    .where = lexer_.where(word),
                    .what = fmt::format("blocks are nested more than {} deep", kDeepestBlock)});
    }
    block(body, inside == Inside::program ? Inside::block : inside, word);
    --depth_;
  }

  void repeat(std::vector<Statement>& body, Inside inside, Origin origin) {
    const Token word = lexer_.take();
    Repeat repeat{.origin = origin};
    const std::size_t bound = names_.bound();
    report_.guarded_line(lexer_, [&] {
      repeat.variable = variable("a name to count with");
      repeat.count = phrases_.expression();
      end_of_line();
    });
    if (!repeat.variable.empty()) names_.bind(repeat.variable);
    nested(repeat.body, inside, word);
    names_.unbind_to(bound, last_end_);
    body.push_back({std::move(repeat)});
  }

  void when(std::vector<Statement>& body, Inside inside, Origin origin) {
    const Token word = lexer_.take();
    When when{.origin = origin};
    report_.guarded_line(lexer_, [&] {
      when.condition = phrases_.condition();
      end_of_line();
    });
    nested(when.body, inside, word);
    body.push_back({std::move(when)});
  }

  void let(std::vector<Statement>& body, Origin origin) {
    lexer_.take();
    Let let{.variable = variable("a name"), .origin = origin};
    report_.guarded_line(lexer_, [&] {
      phrases_.symbol("=", "and an expression");
      let.value = phrases_.expression();
      end_of_line();
    });
    names_.bind(let.variable);  // also if that failed, so that its uses are not reported too
    body.push_back({std::move(let)});
  }

  void fact(std::vector<Statement>& body, Origin origin) {
    const Token word = lexer_.take();
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
           .why = "it says: the old version at the start of a step, the new one at its end",
           .help = "say `given`, or `goal`, or both"});
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
    if (named) operation_names_.declare(first.text);  // also if the rest of the line makes no sense
    Operation operation;
    report_.guarded_line(lexer_, [&] { operation = operations_.operation(); });
    if (operations_.opened_block() && !std::holds_alternative<Batch>(operation.action)) {
      operation.action = Batch{};  // the line failed further on; its block is there all the same
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
      report_.guarded_line(lexer_, [&] {
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
    const bool is_sound = report_.guarded([&] { operation = operations_.member(); });
    lexer_.skip_line();
    if (!is_sound) {  // what belonged to it goes with it
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
  Phrases& phrases_;
  Names& names_;
  Report& report_;
  OperationReader operations_;
  OperationNames operation_names_;
  Program& program_;
  int depth_ = 0;
  std::int32_t last_end_ = 0;  // the line of the last `end`
  bool said_not_closed_ = false;
  bool said_too_late_ = false;
  std::vector<Diagnostic> clashes_;
  std::optional<std::pair<Token, Token>>
      askew_;  // the first block whose `end` is not below its start
};

}  // namespace

void Report::add(Diagnostic diagnostic) {
  // A name that is missing may be used in many places.
  const bool said = std::ranges::any_of(diagnostics_, [&](const Diagnostic& earlier) {
    return diagnostic.code == "D102" && earlier.code == "D102" && earlier.what == diagnostic.what;
  });
  if (said || diagnostic.code.empty()) return;
  diagnostics_.push_back(std::move(diagnostic));
  if (diagnostics_.size() >= kMostDiagnostics) throw_if_any();
}

void Report::throw_if_any() {
  if (!any()) return;
  // In the order of the text; what has no line comes last.
  std::ranges::stable_sort(diagnostics_, {}, [](const Diagnostic& diagnostic) {
    return static_cast<unsigned>(diagnostic.where.line - 1);
  });
  throw InputError(std::move(diagnostics_));
}

void Report::stop(Diagnostic diagnostic) {
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
    if (result.size() == kMostDiagnostics) break;
    result.emplace_back(
        Diagnostic{.code = "D205",
                   .what = fmt::format("no operation of this program is called `{}`", name.text),
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
