// Writes phrases in the syntax of the text form; the inverse of PhraseParser.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Appends to `out`. REQUIRES: the caller keeps `locals` equal to the names in scope.
class PhraseWriter {
 public:
  explicit PhraseWriter(const Plan& plan) : plan_(plan) {}

  std::string out;
  std::vector<std::string_view> locals;
  const Program* program = nullptr;

  void number(std::int64_t value);
  void expression(const Expr& expr);
  void condition(const Condition& condition);
  void region(const Region& region);
  void value(const Value& value);
  void peer(const Peer& peer);
  void group(const Group& group);
  void reference(const Reference& reference);
  void selector(const Selector& selector);
  void ratio(const Ratio& ratio);
  void work(const Work& work);
  void source_line(SourceLine at);
  void quoted(std::string_view text);
  void label(std::string_view text);
  // The declaration of a tensor after its name: "[2] WeightGrad shard 4 sum sample 8".
  void tensor(const Tensor& tensor);
  void mask(const Tensor& tensor);

 private:
  struct Piece {
    std::string text;
    int binding = 0;  // operator precedence
    std::optional<std::int64_t> number;
  };
  [[nodiscard]] static Piece literal(std::int64_t number);
  [[nodiscard]] Piece leaf(const Expr::Node& node) const;
  [[nodiscard]] static Piece combined(Expr::Op op, Piece left, const Piece& right);
  void amount(const Expr& expr);
  void list_slice(ListId list, const Expr& begin, const Expr& count);
  void expressions(const std::vector<Expr>& list);
  void runs(const Value& value, const Tensor& tensor, bool in_sum);
  void run_coordinates(const Run& run);
  void mask_side(const Tensor& tensor, const MaskSide& side);

  const Plan& plan_;
};

}  // namespace shiplap::plan
