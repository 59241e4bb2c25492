// Parses the body of a program: buffers, streams, then statements.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/plan/lexer_internal.h"
#include "shiplap/plan/phrase_parser_internal.h"
#include "shiplap/plan/plan.h"
#include "shiplap/plan/symbol_table_internal.h"

namespace shiplap::plan {

// Collects diagnostics, so that one run of the parser reports more than one error.
class DiagnosticCollector {
 public:
  // Runs `read`. On a ParseFailure adds its diagnostic and returns false.
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

  // The same for the rest of a line, which is skipped on failure.
  template <class Read>
  void guarded_line(Lexer& lexer, const Read& read) {
    if (!guarded(read)) lexer.skip_line();
  }

  // Drops duplicates. Throws InputError when the maximum number of diagnostics is reached.
  void add(Diagnostic diagnostic);
  // For fatal errors: throws InputError with all diagnostics so far and this one.
  [[noreturn]] void stop(Diagnostic diagnostic);
  [[nodiscard]] bool any() const { return !diagnostics_.empty(); }
  void throw_if_any();

 private:
  std::vector<Diagnostic> diagnostics_;
};

struct BodyContext {
  Lexer& lexer;
  PhraseParser& phrases;
  const Plan& plan;
  SymbolTable& symbols;
  DiagnosticCollector& errors;
};

// Whether the next line can only be part of a program: `buffer x ..`, `b: compute ..`.
[[nodiscard]] bool at_inside_of_program(const Lexer& lexer);

// Reads from the line after `program` to the first line that is not part of a program.
void read_body(const BodyContext& context, Program& program);

// Parses an operation up to the end of its line: name, stream, action, operands, attributes.
class OperationReader {
 public:
  OperationReader(Lexer& lexer, PhraseParser& phrases, const SymbolTable& symbols,
                  bool declares_values)
      : lexer_(lexer), phrases_(phrases), symbols_(symbols), declares_values_(declares_values) {}

  // "f[l]: @net all_gather x to full over dp after g[l-1] async". The body of a batch and the
  // accesses of a compute are left to the caller. A member of a batch has operands and `at` only.
  Operation operation();
  Operation member();
  Access access();
  // Whether the last operation, valid or not, was a batch and so opened a block.
  [[nodiscard]] bool opened_block() const { return opened_block_; }
  // The names after `after` in the last operation.
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
  [[noreturn]] void throw_unexpected_token(std::string_view action);
  [[noreturn]] void throw_not_in_batch(const Token& first);
  std::string channel();

  Lexer& lexer_;
  PhraseParser& phrases_;
  const SymbolTable& symbols_;
  const bool declares_values_;
  bool opened_block_ = false;
  std::vector<Token> waits_for_;
};

// The keywords of actions.
[[nodiscard]] const std::vector<std::string>& action_words();
// The keywords outside programs, without `mesh`.
[[nodiscard]] const std::vector<std::string>& section_words();

// The declared names of operations of one program, and the names that `after` refers to.
class OperationNames {
 public:
  void declare(std::string_view name) { declared_.emplace(name, 0); }
  void refer(const Token& name);
  // Returns one diagnostic (D205) for each undeclared name, with its first use.
  [[nodiscard]] std::vector<std::pair<Diagnostic, Token>> undeclared() const;

 private:
  NameMap declared_;
  std::vector<Token> referred_;
  NameMap referred_once_;
};

}  // namespace shiplap::plan
