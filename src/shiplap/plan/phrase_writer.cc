#include <fmt/format.h>

#include <array>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/plan/phrase_writer_internal.h"

namespace shiplap::plan {
namespace {

// Operator precedence.
constexpr int kSum = 1;
constexpr int kProduct = 2;
constexpr int kNegation = 3;
constexpr int kPrimary = 4;

std::string parenthesised(std::string text, int binding, int needed) {
  if (binding >= needed) return text;
  return "(" + std::move(text) + ")";
}

std::string_view sign(Expr::Op op) {
  switch (op) {
    case Expr::Op::add:
      return "+";
    case Expr::Op::subtract:
      return "-";
    case Expr::Op::multiply:
      return "*";
    case Expr::Op::divide:
      return " div ";
    case Expr::Op::modulo:
      return " mod ";
    default:
      throw InternalError("not an operation of two numbers");
  }
}

std::string_view sign(Comparator comparator) {
  constexpr std::array<std::string_view, 6> kSigns = {"=", "!=", "<", "<=", ">", ">="};
  return kSigns[static_cast<std::size_t>(comparator)];
}

}  // namespace

void PhraseWriter::number(std::int64_t value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

PhraseWriter::Piece PhraseWriter::literal(std::int64_t number) {
  return {fmt::format_int(number).str(), number < 0 ? kNegation : kPrimary, number};
}

PhraseWriter::Piece PhraseWriter::leaf(const Expr::Node& node) const {
  const auto id = static_cast<std::int32_t>(node.operand());
  switch (node.op()) {
    case Expr::Op::literal:
      return literal(node.operand());
    case Expr::Op::axis:
      return {plan_.mesh.name(AxisId(id)), kPrimary, std::nullopt};
    case Expr::Op::rank:
      return {"rank", kPrimary, std::nullopt};
    case Expr::Op::local:
      ensure(LocalId(id).index() < locals.size(), "a loop or `let` name is bound around its use");
      return {std::string(locals[LocalId(id).index()]), kPrimary, std::nullopt};
    default:
      throw InternalError("not a leaf of an expression");
  }
}

PhraseWriter::Piece PhraseWriter::combined(Expr::Op op, Piece left, const Piece& right) {
  // Constants are folded, so two literals here are the parts of a number of more than 56 bits.
  if (left.number && right.number) {
    const auto number = Expr::combine(op, *left.number, *right.number).constant();
    if (number) return literal(*number);
  }
  const bool is_sum = op == Expr::Op::add || op == Expr::Op::subtract;
  left.text = parenthesised(std::move(left.text), left.binding, is_sum ? kSum : kProduct);
  left.text += sign(op);
  // Parenthesize the right operand if it could be read as a sign or as the beginning of a count.
  const int needed = is_sum && right.binding != kNegation ? kProduct : kPrimary;
  left.text += parenthesised(right.text, right.binding, needed);
  return {std::move(left.text), is_sum ? kSum : kProduct, std::nullopt};
}

void PhraseWriter::expression(const Expr& expr) {
  if (const auto constant = expr.constant()) return number(*constant);
  std::vector<Piece> stack;
  for (const Expr::Node& node : expr.code()) {
    if (node.op() < Expr::Op::element) {
      stack.push_back(leaf(node));
      continue;
    }
    Piece& top = stack.back();
    if (node.op() == Expr::Op::element) {
      top = {plan_.lists[node.operand()].name + "[" + top.text + "]", kPrimary, std::nullopt};
    } else if (node.op() == Expr::Op::negate) {
      top = {"-" + parenthesised(std::move(top.text), top.binding, kPrimary), kNegation,
             std::nullopt};
    } else {
      const Piece right = std::move(top);
      stack.pop_back();
      stack.back() = combined(node.op(), std::move(stack.back()), right);
    }
  }
  out += stack.back().text;
}

void PhraseWriter::expressions(const std::vector<Expr>& list) {
  for (std::size_t k = 0; k < list.size(); ++k) {
    if (k > 0) out += ", ";
    expression(list[k]);
  }
}

void PhraseWriter::condition(const Condition& condition) {
  for (std::size_t k = 0; k < condition.size(); ++k) {
    if (k > 0) out += " and ";
    expression(condition[k].left);
    out += sign(condition[k].comparator);
    expression(condition[k].right);
  }
}

void PhraseWriter::list_slice(ListId list, const Expr& begin, const Expr& count) {
  out += "from " + plan_.lists[list].name + "[";
  expression(begin);
  out += " +";
  expression(count);
  out += "]";
}

void PhraseWriter::region(const Region& region) {
  out += program->buffers[region.buffer].name;
  switch (region.kind) {
    case Region::Kind::whole:
      return;
    case Region::Kind::rows:
      out += '[';
      expression(region.begin);
      out += " +";
      expression(region.count);
      break;
    case Region::Kind::cut:
      out += '[';
      expression(region.begin);
      out += " of " + plan_.lists[region.list].name;
      break;
    case Region::Kind::listed:
      out += '[';
      list_slice(region.list, region.begin, region.count);
      break;
  }
  out += ']';
}

void PhraseWriter::run_coordinates(const Run& run) {
  if (run.list.exists()) return list_slice(run.list, run.begin, run.count);
  expression(run.begin);
  out += " +";
  expression(run.count);
  if (run.stride != Expr(1)) {
    out += " by ";
    expression(run.stride);
  }
}

void PhraseWriter::runs(const Value& value, const Tensor& tensor, bool in_sum) {
  DimensionId last;
  for (const Run& run : value.runs) {
    if (tensor.in_sum(run.dimension) != in_sum) continue;
    if (run.dimension == last) {
      out += " | ";
    } else {
      out += ' ';
      out += tensor.dimension(run.dimension).name;
      out += ' ';
    }
    run_coordinates(run);
    last = run.dimension;
  }
}

void PhraseWriter::value(const Value& value) {
  const Tensor& tensor = plan_.tensors[value.tensor];
  if (value.is_new) out += "new ";
  out += tensor.name;
  if (value.indexed) {
    out += '[';
    expression(value.index);
    out += ']';
  }
  runs(value, tensor, false);
  if (value.sum == Sum::none) out += " sum none";
  if (value.sum == Sum::some) {
    out += " sum";
    runs(value, tensor, true);
  }
  if (value.scale != Ratio()) {
    out += " scale ";
    ratio(value.scale);
  }
}

void PhraseWriter::peer(const Peer& peer) {
  if (!peer.axis.exists()) {
    out += "rank ";
    return expression(peer.where);
  }
  out += plan_.mesh.name(peer.axis);
  const std::size_t shift = out.size();
  expression(peer.where);
  if (out[shift] != '-') out.insert(shift, 1, '+');
  if (peer.wrap) out += " wrap";
}

void PhraseWriter::group(const Group& group) {
  if (group.axes.empty()) out += "ranks";
  if (group.axes.size() > 1) out += '(';
  for (std::size_t k = 0; k < group.axes.size(); ++k) {
    if (k > 0) out += ", ";
    out += plan_.mesh.name(group.axes[k]);
  }
  if (group.axes.size() > 1) out += ')';
  if (group.axes.empty() || !group.positions.empty()) {
    out += '{';
    expressions(group.positions);
    out += '}';
  }
  if (!group.channel.empty()) out += "/" + group.channel;
}

void PhraseWriter::reference(const Reference& reference) {
  out += reference.name;
  if (reference.indices.empty()) return;
  out += '[';
  expressions(reference.indices);
  out += ']';
}

void PhraseWriter::selector(const Selector& selector) {
  if (selector.terms.empty()) out += "all";
  for (std::size_t k = 0; k < selector.terms.size(); ++k) {
    const SelectorTerm& term = selector.terms[k];
    if (k > 0) out += ' ';
    out += term.axis.exists() ? plan_.mesh.name(term.axis) : "rank";
    for (std::size_t i = 0; i < term.positions.size(); ++i) {
      out += i == 0 ? '=' : '|';
      number(term.positions[i].first);
      if (term.positions[i].last == term.positions[i].first) continue;
      out += "..";
      number(term.positions[i].last);
    }
  }
}

void PhraseWriter::ratio(const Ratio& ratio) {
  number(ratio.numerator());
  if (ratio.denominator() == 1) return;
  out += '/';
  number(ratio.denominator());
}

// Writes 4000000000 as 4e9: amounts of flop are large and round.
void PhraseWriter::amount(const Expr& expr) {
  if (!expr.is_literal() || expr.literal() < 1'000'000) return expression(expr);
  std::int64_t mantissa = expr.literal();
  int zeros = 0;
  for (; mantissa % 10 == 0; mantissa /= 10) ++zeros;
  if (zeros < 6) return expression(expr);
  number(mantissa);
  out += fmt::format("e{}", zeros);
}

void PhraseWriter::work(const Work& work) {
  if (work.kernel_class.empty()) {
    out += fmt::format("{} seconds", work.seconds);
    if (work.times == Expr(1)) return;
    out += " times ";
    return expression(work.times);
  }
  out += work.kernel_class;
  const auto part = [this](const Expr& expr, std::string_view unit) {
    if (expr == Expr(0)) return;
    out += ' ';
    amount(expr);
    out += unit;
  };
  part(work.flop, " flop");
  part(work.bytes, " bytes");
  if (work.type) {
    out += ' ';
    out += name(*work.type);
  }
}

void PhraseWriter::label(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  const bool plain = !text.empty() && text.find_first_of("\n;#") == text.npos && text[0] != '"' &&
                     !is_blank(text.front()) && !is_blank(text.back());
  if (plain) {
    out += text;
    return;
  }
  quoted(text);
}

void PhraseWriter::source_line(SourceLine at) {
  out += plan_.sources[at.source].name;
  out += ':';
  number(at.line);
}

void PhraseWriter::quoted(std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  out += '"';
}

void PhraseWriter::tensor(const Tensor& tensor) {
  if (tensor.instances > 0) out += fmt::format("[{}]", tensor.instances);
  out += " " + tensor.kind;
  for (const Dimension& dimension : tensor.part)
    out += fmt::format(" {} {}", dimension.name, dimension.size);
  if (!tensor.sum.empty()) out += " sum";
  for (const Dimension& dimension : tensor.sum)
    out += fmt::format(" {} {}", dimension.name, dimension.size);
  if (tensor.scale != Ratio()) {
    out += " scale ";
    ratio(tensor.scale);
  }
  if (tensor.mask.empty()) return;
  out += " mask ";
  mask(tensor);
}

void PhraseWriter::mask(const Tensor& tensor) {
  for (std::size_t k = 0; k < tensor.mask.size(); ++k) {
    if (k > 0) out += " and ";
    mask_side(tensor, tensor.mask[k].left);
    out += sign(tensor.mask[k].comparator);
    mask_side(tensor, tensor.mask[k].right);
  }
}

void PhraseWriter::mask_side(const Tensor& tensor, const MaskSide& side) {
  const std::string& name = tensor.dimension(side.dimension).name;
  if (side.list.exists()) {
    out += plan_.lists[side.list].name + "[" + name + "]";
  } else {
    out += name;
  }
}

}  // namespace shiplap::plan
