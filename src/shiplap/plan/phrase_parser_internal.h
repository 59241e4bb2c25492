// The parser of phrases, the parts of statements: expressions, regions, values, peers, groups. The
// text form and the JSON form share it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/plan/lexer_internal.h"
#include "shiplap/plan/plan.h"
#include "shiplap/plan/symbol_table_internal.h"

namespace shiplap::plan {

// Parses phrases at the current token of `lexer`. All functions throw ParseFailure.
class PhraseParser {
 public:
  PhraseParser(Lexer& lexer, const Plan& plan, const SymbolTable& symbols)
      : lexer_(lexer), plan_(plan), symbols_(symbols) {}

  Expr expression() { return sum(Plus::adds); }
  Condition condition();
  Region region();
  // Also accepts `x[from rows[0 +4]]`, for `copy`.
  Region region_or_rows();
  Value value();
  Peer peer();
  Group group();
  Reference reference();
  Selector selector();
  Ratio ratio();
  Work work();
  // The rest of the line, or a quoted string.
  SourceLine source_line();
  std::string label();
  // A text in quotation marks; `what` it is.
  std::string quoted(std::string_view what);
  // Throws D111 if the plan declares no values. `word` begins the statement about one.
  void require_declared_values(const Token& word) const;
  [[nodiscard]] const Tensor& tensor(TensorId id) const { return plan_.tensors[id]; }
  DType element_type();
  ListId list();
  // Comparisons between dimensions of `tensor`.
  std::vector<MaskTerm> mask(const Tensor& tensor);

  // Any name, also a reserved one; `what` is for the message: "a name for the stream".
  std::string any_name(std::string_view what);
  // An integer, with a sign if `lowest` is negative. Throws D104 if it is out of bounds.
  std::int64_t integer(std::string_view what, std::int64_t lowest, std::int64_t highest);
  void symbol(std::string_view text, std::string_view context);
  // Returns the id of a name. Throws D102, with a suggestion, if it is unknown. `what`: "buffer".
  std::int32_t known(const NameMap& map, std::string_view what);

 private:
  // Throws D101 if the text, which begins with `first`, is not UTF-8.
  void check_utf8(const Token& first, const std::string& text) const;
  // Limits the recursion depth: counts one level while it is in scope.
  class NestingGuard {
   public:
    NestingGuard(PhraseParser& phrases, const Token& token);
    NestingGuard(const NestingGuard&) = delete;
    NestingGuard& operator=(const NestingGuard&) = delete;
    ~NestingGuard() { --phrases_.depth_; }

   private:
    PhraseParser& phrases_;
  };

  // Whether ` +4` continues a sum or begins a count.
  enum class Plus { adds, counts };

  Expr sum(Plus plus);
  Expr product(Plus plus);
  Expr combined(const Token& sign, Expr::Op op, const Expr& left, const Expr& right);
  Expr factor(Plus plus);
  Expr primary();
  Expr named();
  Expr number();
  // Throws a ParseFailure without a diagnostic if the declaration of `token` was invalid.
  void throw_if_broken(const Token& token) const;
  [[noreturn]] void throw_not_integer(const Token& token);
  // `begin +count`; `what` is the unit: "row".
  std::pair<Expr, Expr> span(std::string_view what);
  // REQUIRES: the next token is the plus of a count.
  Expr count();
  // Throws D107: a count is expected here, after the expression that began with `first`.
  [[noreturn]] void throw_missing_count(const Token& first, std::string_view what);
  void run_set(Value& value, DimensionId dimension);
  void part_and_sum(Value& value, const Tensor& tensor);
  void one_dimension(Value& value, const Tensor& tensor, bool in_sum);
  void listed_run(Value& value, DimensionId dimension);
  std::vector<Expr> expressions(std::string_view close);
  Comparator comparator();
  MaskSide mask_side(const Tensor& tensor);
  PositionRange position_range(std::int64_t size);
  SelectorTerm selector_term();

  Lexer& lexer_;
  const Plan& plan_;
  const SymbolTable& symbols_;
  int depth_ = 0;
};

[[nodiscard]] std::optional<DimensionId> find_dimension(const Tensor& tensor,
                                                        std::string_view name);

}  // namespace shiplap::plan
