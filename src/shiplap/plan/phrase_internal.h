// The phrases that statements are made of: expressions, regions, values, peers, groups. Read from
// text; the JSON form uses the same ones.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/plan/lexer_internal.h"
#include "shiplap/plan/names_internal.h"
#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Reads phrases from where `lexer` stands. All throw ParseFailure.
class Phrases {
 public:
  Phrases(Lexer& lexer, const Plan& plan, const Names& names)
      : lexer_(lexer), plan_(plan), names_(names) {}

  Expr expression() { return sum(Plus::adds); }
  Condition condition();
  Region region();
  // Also `x[from rows[0 +4]]`, which only `copy` takes.
  Region region_or_rows();
  Value value();
  Peer peer();
  Group group();
  Reference reference();
  Selector selector();
  Ratio ratio();
  Work work();
  // To the end of the line, or in quotes.
  std::string label();
  [[nodiscard]] const Tensor& tensor(TensorId id) const { return plan_.tensors[id]; }
  DType element_type();
  ListId list();
  // Comparisons of dimensions of `tensor`.
  std::vector<MaskTerm> mask(const Tensor& tensor);

  // Any name at all; `what` is for the message: "a name for the stream".
  std::string any_name(std::string_view what);
  // A whole number, with a sign if `lowest` is negative. D104 outside its bounds.
  std::int64_t integer(std::string_view what, std::int64_t lowest, std::int64_t highest);
  void symbol(std::string_view text, std::string_view context);
  // Looks a name up or says what there is (D102); `what`: "buffer".
  std::int32_t known(const NameMap& map, std::string_view what);

 private:
  // Bounds the recursion of a reader, for as long as it lives.
  class Deeper {
   public:
    Deeper(Phrases& phrases, const Token& token);
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --phrases_.depth_; }

   private:
    Phrases& phrases_;
  };

  // Whether ` +4` goes on with a sum or begins a count.
  enum class Plus { adds, counts };

  Expr sum(Plus plus);
  Expr product(Plus plus);
  Expr combined(const Token& sign, Expr::Op op, const Expr& left, const Expr& right);
  Expr factor(Plus plus);
  Expr primary();
  Expr named();
  Expr number();
  // Throws a failure without a diagnostic if `token` names what was declared in vain.
  void refuse_if_broken(const Token& token) const;
  [[noreturn]] void no_whole_number(const Token& token);
  // `begin +count`; `what` is counted: "row".
  std::pair<Expr, Expr> span(std::string_view what);
  // From its plus on.
  Expr count();
  // D107, when the next token should begin a count; the expression before it began with `first`.
  [[noreturn]] void no_count(const Token& first, std::string_view what);
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
  const Names& names_;
  int depth_ = 0;
};

[[nodiscard]] std::optional<DimensionId> find_dimension(const Tensor& tensor,
                                                        std::string_view name);

}  // namespace shiplap::plan
