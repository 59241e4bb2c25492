// The inside of a program, read from text: buffers, streams, then statements.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/plan/lexer_internal.h"
#include "shiplap/plan/names_internal.h"
#include "shiplap/plan/phrase_internal.h"
#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Gathers what is wrong, so that one reading shows more than one mistake.
class Report {
 public:
  // Runs `read`; on a ParseFailure keeps the diagnostic and returns false.
  template <class Read>
  bool guarded(const Read& read) {
    try {
      read();
      return true;
    } catch (ParseFailure& failure) {
      add(std::move(failure.diagnostic));
      return false;
    }
  }

  // The same for the rest of a line, which is left out on failure.
  template <class Read>
  void guarded_line(Lexer& lexer, const Read& read) {
    if (!guarded(read)) lexer.skip_line();
  }

  // Leaves out what was said already. Throws InputError when there are so many that more would not
  // help.
  void add(Diagnostic diagnostic);
  // For what makes the rest of the text meaningless: throws InputError with all that was added.
  [[noreturn]] void stop(Diagnostic diagnostic);
  [[nodiscard]] bool any() const { return !diagnostics_.empty(); }
  void throw_if_any();

 private:
  std::vector<Diagnostic> diagnostics_;
};

struct BodyContext {
  Lexer& lexer;
  Phrases& phrases;
  const Plan& plan;
  Names& names;
  Report& report;
};

// Whether the next line can only belong to a program: `buffer x ..`, `b: compute ..`.
[[nodiscard]] bool at_inside_of_program(const Lexer& lexer);

// From the line after `program` to the first line that belongs to no program.
void read_body(const BodyContext& context, Program& program);

// The operands of an action and what follows them, up to the end of the line; the JSON form uses it
// too. `program` is where buffers and streams are declared.
class OperationReader {
 public:
  OperationReader(Lexer& lexer, Phrases& phrases, const Names& names)
      : lexer_(lexer), phrases_(phrases), names_(names) {}

  // "f[l]: @net all_gather x to full over dp after g[l-1] async". The body of a batch and the
  // accesses of a compute are left to the caller. A batch's member has operands only.
  Operation operation();
  Operation member();
  Access access();
  // Whether the last operation, sound or not, was a batch and so opened a block.
  [[nodiscard]] bool opened_block() const { return opened_block_; }
  // The names that the last operation gave after `after`.
  [[nodiscard]] const std::vector<Token>& waits_for() const { return waits_for_; }

 private:
  Action action();
  Action send_or_receive(bool sends);
  Action collective(CollectiveKind kind);
  ReduceOp reduction();
  Action exchange();
  Copy copy();
  Region target(const Region& from);
  StreamId stream();
  void trailing(Operation& operation);
  [[noreturn]] void left_over(std::string_view action);
  [[noreturn]] void not_in_batch(const Token& first);
  std::string channel();

  Lexer& lexer_;
  Phrases& phrases_;
  const Names& names_;
  bool opened_block_ = false;
  std::vector<Token> waits_for_;
};

// The words that an action can begin with.
[[nodiscard]] const std::vector<std::string>& action_words();

// The names that operations of one program have, and those that `after` gives: they must agree.
class OperationNames {
 public:
  void declare(std::string_view name) { declared_.emplace(name, 0); }
  void refer(const Token& name);
  // One diagnostic (D205) for every name that is used and never given, at its first use.
  [[nodiscard]] std::vector<std::pair<Diagnostic, Token>> undeclared() const;

 private:
  NameMap declared_;
  std::vector<Token> referred_;
  NameMap referred_once_;
};

}  // namespace shiplap::plan
