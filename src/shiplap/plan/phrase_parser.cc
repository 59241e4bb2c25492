#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "shiplap/base/json.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/phrase_parser_internal.h"

namespace shiplap::plan {
namespace {

constexpr int kMaxExpressionDepth = 100;
// Each operator copies its left operand, so parsing is quadratic in the length; this bounds it.
constexpr std::size_t kMaxExpressionSize = 1000;

// Whether JSON can represent the text: true for valid UTF-8.
bool survives_json(const std::string& text) {
  const bool is_ascii = std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
  return is_ascii || parse_json(shiplap::to_text(Json(text)), "label").as_string() == text;
}

std::vector<std::string> dimension_names(const Tensor& tensor, bool in_sum) {
  std::vector<std::string> names;
  for (const Dimension& dimension : in_sum ? tensor.sum : tensor.part) {
    names.push_back(dimension.name);
  }
  return names;
}

// Names of other programs: of PyTorch ("bfloat16", "half") and of Megatron ("fp16").
std::optional<DType> parse_type_alias(std::string_view text) {
  if (text == "half") return DType::f16;
  if (text == "float") return DType::f32;
  if (text == "double") return DType::f64;
  for (const DType type : kDTypes) {
    if (bytes_of(type) > 1 && text == long_name(type)) return type;
    const std::string_view known = name(type);  // "f16"
    if (known.starts_with('f') && text.starts_with("fp") && text.substr(2) == known.substr(1)) {
      return type;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<DimensionId> find_dimension(const Tensor& tensor, std::string_view name) {
  for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
    if (tensor.dimension(DimensionId(k)).name == name) return DimensionId(k);
  }
  return std::nullopt;
}

// ---- names

std::string PhraseParser::any_name(std::string_view what) {
  if (lexer_.peek().kind != TokenKind::name) lexer_.expected(what);
  return std::string(lexer_.take().text);
}

void PhraseParser::symbol(std::string_view text, std::string_view context) {
  if (!lexer_.take_if(text)) lexer_.expected(fmt::format("`{}` {}", text, context));
}

std::int32_t PhraseParser::known(const NameMap& map, std::string_view what) {
  const Token& token = lexer_.peek();
  if (token.kind != TokenKind::name) {
    lexer_.expected(fmt::format("the name of {} {}", what == "axis" ? "an" : "a", what));
  }
  const std::int32_t id = lookup(map, token.text);
  if (id < 0) {
    throw_if_broken(token);
    lexer_.fail(token, {.code = "D102",
                        .what = fmt::format("unknown {} `{}`", what, token.text),
                        .help = suggest(token.text, names_in(map))});
  }
  lexer_.take();
  return id;
}

void PhraseParser::throw_if_broken(const Token& token) const {
  if (symbols_.broken.contains(token.text)) throw ParseFailure();
}

ListId PhraseParser::list() { return ListId(known(symbols_.lists, "list")); }

DType PhraseParser::element_type() {
  const Token& token = lexer_.peek();
  std::vector<std::string> names;
  for (const DType type : kDTypes) {
    if (lexer_.take_if(name(type))) return type;
    names.emplace_back(name(type));
  }
  if (token.kind != TokenKind::name) lexer_.expected("an element type (bf16, f32, ..)");
  const std::optional<DType> meant = parse_type_alias(token.text);
  lexer_.fail(token, {.code = "D102",
                      .what = fmt::format("unknown element type `{}`", token.text),
                      .help = meant ? fmt::format("did you mean `{}`?", name(*meant))
                                    : suggest(token.text, names)});
}

std::vector<Expr> PhraseParser::expressions(std::string_view close) {
  std::vector<Expr> result;
  do {
    result.push_back(expression());
  } while (lexer_.take_if(","));
  symbol(close, "or `,`");
  return result;
}

Reference PhraseParser::reference() {
  Reference reference{.name = any_name("the name of an operation")};
  if (lexer_.take_if("[")) reference.indices = expressions("]");
  return reference;
}

// ---- numbers: expressions, counts, comparisons, ratios

Expr PhraseParser::sum(Plus plus) {
  Expr left = product(plus);
  for (;;) {
    const Token token = lexer_.peek();
    if (plus == Plus::counts && token.begins_count()) return left;
    if (!token.is("+") && !token.is("-")) return left;
    const Expr::Op op = token.is("+") ? Expr::Op::add : Expr::Op::subtract;
    lexer_.take();
    left = combined(token, op, left, product(plus));
  }
}

Expr PhraseParser::combined(const Token& sign, Expr::Op op, const Expr& left, const Expr& right) {
  if (left.code().size() + right.code().size() > kMaxExpressionSize) {
    lexer_.fail(sign,
                {.code = "D114",
                 .what = fmt::format("this expression has more than {} parts", kMaxExpressionSize),
                 .help = "name a part of it with `let`"});
  }
  return Expr::combine(op, left, right);
}

Expr PhraseParser::product(Plus plus) {
  Expr left = factor(plus);
  for (;;) {
    const Token token = lexer_.peek();
    Expr::Op op = Expr::Op::multiply;
    if (token.is("div")) {
      op = Expr::Op::divide;
    } else if (token.is("mod")) {
      op = Expr::Op::modulo;
    } else if (!token.is("*")) {
      return left;
    }
    lexer_.take();
    left = combined(token, op, left, factor(plus));
  }
}

Expr PhraseParser::factor(Plus plus) {
  if (!lexer_.peek().is("-")) return primary();
  const Token minus = lexer_.take();
  // -2^63 is valid, 2^63 is not.
  if (lexer_.peek().kind == TokenKind::integer && lexer_.peek().integer == std::uint64_t{1} << 63) {
    lexer_.take();
    return {std::numeric_limits<std::int64_t>::min()};
  }
  const NestingGuard guard(*this, minus);
  return -factor(plus);
}

PhraseParser::NestingGuard::NestingGuard(PhraseParser& phrases, const Token& token)
    : phrases_(phrases) {
  if (phrases_.depth_ >= kMaxExpressionDepth) {
    phrases_.lexer_.fail(token, {.code = "D114",
                                 .what = fmt::format("this expression is nested more than {} deep",
                                                     kMaxExpressionDepth),
                                 .help = "name a part of it with `let`"});
  }
  ++phrases_.depth_;
}

Expr PhraseParser::primary() {
  const Token& token = lexer_.peek();
  if (token.kind == TokenKind::integer) return number();
  if (token.kind == TokenKind::name) return named();
  if (token.kind == TokenKind::decimal) throw_not_integer(token);
  if (!token.is("(")) lexer_.expected("a number or a name");
  const NestingGuard guard(*this, token);
  lexer_.take();
  Expr inner = expression();
  symbol(")", "to close the parenthesis");
  return inner;
}

Expr PhraseParser::number() {
  const Token token = lexer_.take();
  if (token.integer > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw_not_integer(token);
  }
  return {static_cast<std::int64_t>(token.integer)};
}

void PhraseParser::throw_not_integer(const Token& token) {
  const bool is_whole =
      token.text.find('.') == token.text.npos && token.text.find('-') == token.text.npos;
  lexer_.fail(token, {.code = "D104",
                      .what = is_whole ? fmt::format("`{}` does not fit in 64 bits", token.text)
                                       : fmt::format("`{}` is not a whole number", token.text),
                      .why = is_whole ? fmt::format("the largest number is {}",
                                                    std::numeric_limits<std::int64_t>::max())
                                      : ""});
}

Expr PhraseParser::named() {
  const Token token = lexer_.take();
  if (token.text == "rank") return Expr::rank();
  if (const auto id = lookup(symbols_.axes, token.text); id >= 0) return Expr::axis(AxisId(id));
  if (const auto id = lookup(symbols_.locals, token.text); id >= 0) return Expr::local(LocalId(id));
  if (const auto id = lookup(symbols_.lists, token.text); id >= 0) {
    symbol("[", "after the name of a list");
    const NestingGuard guard(*this, token);
    const Expr index = expression();
    symbol("]", "to close the index");
    return Expr::element(ListId(id), index);
  }
  throw_if_broken(token);
  std::string why;
  if (symbols_.buffers.contains(token.text)) why = "it is a buffer; expected a number";
  if (symbols_.tensors.contains(token.text)) why = "it is a tensor; expected a number";
  if (const auto line = lookup(symbols_.ended, token.text); line > 0) {
    why = fmt::format("its scope ended with its block, in line {}", line);
  }
  lexer_.fail(token, {.code = "D102",
                      .what = fmt::format("`{}` is not a number here", token.text),
                      .why = why,
                      .help = suggest(token.text, symbols_.in_expressions())});
}

std::pair<Expr, Expr> PhraseParser::span(std::string_view what) {
  const Token first = lexer_.peek();
  Expr begin = sum(Plus::counts);
  if (!lexer_.peek().begins_count()) throw_missing_count(first, what);
  return {std::move(begin), count()};
}

Expr PhraseParser::count() {
  lexer_.take();
  Expr count = sum(Plus::counts);
  if (!lexer_.peek().begins_count()) return count;
  lexer_.fail(
      lexer_.peek(),
      {.code = "D107",
       .what = "a second count",
       .why = "a plus with a blank before it and none after it begins a count; any other adds",
       .help = "remove the blank before the plus that is to add"});
}

void PhraseParser::throw_missing_count(const Token& first, std::string_view what) {
  const std::string_view begin = lexer_.text_since(first);
  // `p + 1` and `p+ 1` are ambiguous: suggest both readings.
  const std::size_t plus = begin.rfind('+');
  std::string help = fmt::format("write `{0} +1` for one {1} from {0} on", begin, what);
  if (plus != begin.npos && begin.find_first_of("()[]") == begin.npos) {
    std::string_view left = begin.substr(0, plus);
    std::string_view right = begin.substr(plus + 1);
    left = left.substr(0, left.find_last_not_of(" \t") + 1);
    right = right.substr(std::min(right.find_first_not_of(" \t"), right.size()));
    help = fmt::format(
        "write `{0} +{1}` to begin at {0} and count {1}, or `{0}+{1} +1` for one {2} from "
        "{0}+{1} on",
        left, right, what);
  }
  lexer_.fail(
      lexer_.peek(),
      {.code = "D107",
       .what = fmt::format("expected a count after `{}`, found {}", begin, describe(lexer_.peek())),
       .why = "a plus with a blank before it and none after it begins a count; any other adds",
       .help = std::move(help)});
}

std::int64_t PhraseParser::integer(std::string_view what, std::int64_t lowest,
                                   std::int64_t highest) {
  const bool negative =
      (lowest < 0 || lexer_.peek_second().kind == TokenKind::integer) && lexer_.take_if("-");
  const Token token = lexer_.peek();
  if (token.kind == TokenKind::decimal) throw_not_integer(token);
  if (token.kind != TokenKind::integer) lexer_.expected(what);
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  const auto limit = static_cast<std::uint64_t>(kHighest) + (negative ? 1 : 0);
  if (token.integer > limit) throw_not_integer(token);
  const auto value = static_cast<std::int64_t>(negative ? 0 - token.integer : token.integer);
  if (value < lowest || value > highest) {
    const std::string bounds = highest == kHighest
                                   ? fmt::format("is at least {}", lowest)
                                   : fmt::format("is from {} to {}", lowest, highest);
    lexer_.fail(token, {.code = "D104", .what = fmt::format("{} {}, not {}", what, bounds, value)});
  }
  lexer_.take();
  return value;
}

Ratio PhraseParser::ratio() {
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t numerator = integer("the numerator of a scale", 1, kHighest);
  if (!lexer_.take_if("/")) return {numerator, 1};
  return {numerator, integer("the denominator of a scale", 1, kHighest)};
}

Comparator PhraseParser::comparator() {
  constexpr std::array<std::pair<std::string_view, Comparator>, 6> kComparators = {{
      {"=", Comparator::equal},
      {"!=", Comparator::not_equal},
      {"<", Comparator::less},
      {"<=", Comparator::less_equal},
      {">", Comparator::greater},
      {">=", Comparator::greater_equal},
  }};
  for (const auto& [text, comparator] : kComparators) {
    if (lexer_.take_if(text)) return comparator;
  }
  lexer_.expected("a comparison (= != < <= > >=)",
                  lexer_.peek().is("==") ? "one `=` is enough" : "");
}

Condition PhraseParser::condition() {
  Condition condition;
  do {
    Expr left = expression();
    const Comparator how = comparator();
    condition.push_back({std::move(left), how, expression()});
  } while (lexer_.take_if("and"));
  if (lexer_.peek().is("or")) {
    lexer_.expected("`and` or the end of the line",
                    "there is no `or`: write a second `when` block with the other condition; if "
                    "both can hold, exclude the first there (`a!=1 and b=2`)");
  }
  return condition;
}

// ---- regions, peers, groups

Region PhraseParser::region() {
  const Token first = lexer_.peek();
  Region region = region_or_rows();
  if (region.kind == Region::Kind::listed) {
    lexer_.fail(first, {.code = "D111",
                        .what = "rows from a list are only supported in `copy`",
                        .help = "pack them with a `copy` first"});
  }
  return region;
}

Region PhraseParser::region_or_rows() {
  Region region{.buffer = BufferId(known(symbols_.buffers, "buffer"))};
  if (!lexer_.take_if("[")) return region;
  if (lexer_.take_if("from")) {
    region.kind = Region::Kind::listed;
    region.list = list();
    symbol("[", "after the name of a list");
    std::tie(region.begin, region.count) = span("entry");
    symbol("]", "to close the entries");
  } else {
    const Token first = lexer_.peek();
    region.begin = sum(Plus::counts);
    if (lexer_.take_if("of")) {
      region.kind = Region::Kind::cut;
      region.list = list();
    } else {
      region.kind = Region::Kind::rows;
      if (!lexer_.peek().begins_count()) throw_missing_count(first, "row");
      region.count = count();
    }
  }
  symbol("]", "to close the rows");
  return region;
}

Peer PhraseParser::peer() {
  Peer peer;
  if (lexer_.take_if("rank")) {
    peer.where = expression();
    return peer;
  }
  peer.axis = AxisId(known(symbols_.axes, "axis"));
  const Token& sign = lexer_.peek();
  if (!sign.is("+") && !sign.is("-")) {
    lexer_.expected(
        fmt::format("a shift along `{}`", plan_.mesh.name(peer.axis)),
        fmt::format("a peer is `{0}+1`, `{0}-1 wrap` or `rank 5`", plan_.mesh.name(peer.axis)));
  }
  lexer_.take_if("+");
  peer.where = expression();
  peer.wrap = lexer_.take_if("wrap");
  return peer;
}

Group PhraseParser::group() {
  Group group;
  if (lexer_.take_if("ranks")) {
    symbol("{", "after `ranks`");
    group.positions = expressions("}");
  } else {
    if (lexer_.take_if("(")) {
      do {
        group.axes.emplace_back(known(symbols_.axes, "axis"));
      } while (lexer_.take_if(","));
      symbol(")", "or `,`");
    } else {
      group.axes.emplace_back(known(symbols_.axes, "axis"));
    }
    if (lexer_.take_if("{")) group.positions = expressions("}");
  }
  if (lexer_.take_if("/")) {
    group.channel = any_name("the name of a channel");
    if (group.channel == "main") group.channel.clear();
  }
  return group;
}

PositionRange PhraseParser::position_range(std::int64_t size) {
  PositionRange range;
  range.first = integer("a position", 0, size - 1);
  range.last = range.first;
  if (lexer_.take_if("..")) range.last = integer("a position", range.first, size - 1);
  return range;
}

SelectorTerm PhraseParser::selector_term() {
  SelectorTerm term;
  if (!lexer_.take_if("rank")) term.axis = AxisId(known(symbols_.axes, "axis"));
  symbol("=", "and positions");
  const std::int64_t size = term.axis.exists() ? plan_.mesh.size(term.axis) : plan_.mesh.ranks();
  do {
    term.positions.push_back(position_range(size));
  } while (lexer_.take_if("|"));
  return term;
}

Selector PhraseParser::selector() {
  Selector selector;
  selector.origin = Origin{lexer_.peek().line};
  if (lexer_.take_if("all")) return selector;
  do {
    selector.terms.push_back(selector_term());
  } while (!lexer_.at_line_end());
  return selector;
}

// ---- values

void PhraseParser::listed_run(Value& value, DimensionId dimension) {
  Run run{.dimension = dimension, .list = list()};
  symbol("[", "after the name of a list");
  std::tie(run.begin, run.count) = span("entry");
  symbol("]", "to close the entries");
  value.runs.push_back(std::move(run));
}

void PhraseParser::run_set(Value& value, DimensionId dimension) {
  if (lexer_.take_if("from")) return listed_run(value, dimension);
  do {
    Run run{.dimension = dimension};
    std::tie(run.begin, run.count) = span("coordinate");
    if (lexer_.take_if("by")) run.stride = sum(Plus::counts);
    value.runs.push_back(std::move(run));
  } while (lexer_.take_if("|"));
}

void PhraseParser::one_dimension(Value& value, const Tensor& tensor, bool in_sum) {
  const Token& token = lexer_.peek();
  const auto dimension = find_dimension(tensor, token.text);
  if (!dimension || tensor.in_sum(*dimension) != in_sum) {
    const std::string why = dimension ? fmt::format("`{}` is a dimension of its {}", token.text,
                                                    in_sum ? "part" : "sum")
                                      : "";
    lexer_.fail(
        token, {.code = "D102",
                .what = fmt::format("the {} of `{}` has no dimension `{}`", in_sum ? "sum" : "part",
                                    tensor.name, token.text),
                .why = why,
                .help = dimension ? "a value names its part, then `sum`, then what is summed"
                                  : suggest(token.text, dimension_names(tensor, in_sum))});
  }
  const bool again =
      std::ranges::any_of(value.runs, [&](const Run& run) { return run.dimension == *dimension; });
  if (again) {
    lexer_.fail(token, {.code = "D103",
                        .what = fmt::format("dimension `{}` is given twice", token.text),
                        .help = "join its coordinates by `|`"});
  }
  lexer_.take();
  run_set(value, *dimension);
}

void PhraseParser::part_and_sum(Value& value, const Tensor& tensor) {
  const auto at_dimension = [this] {
    const Token& token = lexer_.peek();
    return token.kind == TokenKind::name && !token.is("sum") && !token.is("scale");
  };
  while (at_dimension()) one_dimension(value, tensor, false);
  if (!lexer_.take_if("sum")) return;
  if (lexer_.take_if("none")) {
    value.sum = Sum::none;
    return;
  }
  value.sum = Sum::some;
  if (!at_dimension()) lexer_.expected("a dimension, or `none`, after `sum`");
  while (at_dimension()) one_dimension(value, tensor, true);
}

Value PhraseParser::value() {
  Value value;
  const Token first = lexer_.peek();
  value.is_new = lexer_.take_if("new");
  const Token named = lexer_.peek();
  value.tensor = TensorId(known(symbols_.tensors, "tensor"));
  const Tensor& tensor = plan_.tensors[value.tensor];
  if (symbols_.broken.contains(tensor.name)) throw ParseFailure();
  if (value.is_new && !tensor.has_versions()) {
    lexer_.fail(first, {.code = "D112",
                        .what = fmt::format("`{}` is of kind {}, which has no new version",
                                            tensor.name, tensor.kind),
                        .why = "only Weight and OptState are updated by a step",
                        .help = "leave out `new`"});
  }
  value.indexed = lexer_.take_if("[");
  if (value.indexed) {
    value.index = expression();
    symbol("]", "to close the index");
  }
  if (value.indexed != (tensor.instances > 0)) {
    lexer_.fail(named,
                {.code = "D112",
                 .what = value.indexed
                             ? fmt::format("`{}` is a single tensor, without an index", tensor.name)
                             : fmt::format("`{}` has {} instances, and the index is missing",
                                           tensor.name, tensor.instances),
                 .help = value.indexed ? fmt::format("write `{}`", tensor.name)
                                       : fmt::format("write `{}[0]`", tensor.name)});
  }
  part_and_sum(value, tensor);
  if (lexer_.peek().is("scale")) {
    if (value.sum == Sum::none) {
      lexer_.fail(
          lexer_.peek(),
          {.code = "D106", .what = "nothing may follow `sum none`", .why = "zero has no scale"});
    }
    lexer_.take();
    value.scale = ratio();
  }
  return value;
}

MaskSide PhraseParser::mask_side(const Tensor& tensor) {
  MaskSide side;
  if (lexer_.peek_second().is("[")) {
    side.list = list();
    lexer_.take();
  }
  const Token& token = lexer_.peek();
  const auto dimension = find_dimension(tensor, token.text);
  if (token.kind != TokenKind::name) lexer_.expected("a dimension");
  if (!dimension) {
    std::vector<std::string> names = dimension_names(tensor, false);
    for (std::string& name : dimension_names(tensor, true)) names.push_back(std::move(name));
    lexer_.fail(token, {.code = "D102",
                        .what = fmt::format("`{}` has no dimension `{}`", tensor.name, token.text),
                        .help = suggest(token.text, names)});
  }
  lexer_.take();
  side.dimension = *dimension;
  if (side.list.exists()) symbol("]", "to close the index");
  return side;
}

std::vector<MaskTerm> PhraseParser::mask(const Tensor& tensor) {
  std::vector<MaskTerm> terms;
  do {
    MaskTerm term{.left = mask_side(tensor)};
    const Token token = lexer_.peek();
    term.comparator = comparator();
    if (term.comparator != Comparator::equal && term.comparator != Comparator::less_equal) {
      lexer_.fail(token,
                  {.code = "D101",
                   .what = fmt::format("a mask compares with `<=` or `=`, not `{}`", token.text),
                   .help = token.is(">=") ? "swap the two sides and write `<=`" : ""});
    }
    term.right = mask_side(tensor);
    terms.push_back(term);
  } while (lexer_.take_if("and"));
  return terms;
}

// ---- work, source and label

SourceLine PhraseParser::source_line() {
  SourceLine result{.source = SourceId(known(symbols_.sources, "source"))};
  symbol(":", "and a line number");
  result.line = static_cast<std::int32_t>(
      integer("a line number", 1, std::numeric_limits<std::int32_t>::max()));
  return result;
}

void PhraseParser::check_utf8(const Token& first, const std::string& text) const {
  if (survives_json(text)) return;
  lexer_.fail(first, {.code = "D101",
                      .what = "this text is not UTF-8",
                      .why = "it could not be written in the JSON form"});
}

std::string PhraseParser::quoted(std::string_view what) {
  const Token first = lexer_.peek();
  if (!first.is("\"")) lexer_.expected(what);
  std::string text = lexer_.take_quoted();
  check_utf8(first, text);
  return text;
}

std::string PhraseParser::label() {
  if (lexer_.at_line_end()) lexer_.expected("a text after `label`");
  const Token first = lexer_.peek();
  if (first.is("\"")) return quoted("a label");
  std::string label(lexer_.take_rest_of_line());
  check_utf8(first, label);
  return label;
}

void PhraseParser::require_declared_values(const Token& word) const {
  if (plan_.declares_values) return;
  lexer_.fail(word, {.code = "D111",
                     .what = fmt::format("{} is a statement about values", describe(word)),
                     .why = "the plan says `values undeclared`",
                     .help = "remove it, or `values undeclared`"});
}

Work PhraseParser::work() {
  Work work;
  const Token token = lexer_.peek();
  if (token.kind == TokenKind::integer || token.kind == TokenKind::decimal) {
    lexer_.take();
    work.seconds = token.decimal;
    if (!std::isfinite(work.seconds)) {
      lexer_.fail(token, {.code = "D104", .what = fmt::format("`{}` is too large", token.text)});
    }
    if (!lexer_.take_if("seconds")) {
      lexer_.expected("`seconds`", "write `work gemm 4e9 flop`, or `work 0.001 seconds`");
    }
    if (lexer_.take_if("times")) work.times = expression();
    return work;
  }
  work.kernel_class = any_name("a kernel class or seconds");
  const auto at_source = [this] {  // `at` may also be a name in an expression
    const Token& second = lexer_.peek_second();
    return lexer_.peek().is("at") && second.kind == TokenKind::name &&
           !is_unit_of_work(second.text);
  };
  const auto at_number = [&] {
    return !lexer_.at_line_end() && !at_source() && !lexer_.peek().is("label") &&
           (lexer_.peek().kind != TokenKind::name ||
            lexer_.peek_second().kind != TokenKind::line_end);
  };
  const auto at_type = [this] {  // a type comes last; before a unit, `f32` is the name of a number
    const Token& second = lexer_.peek_second();
    return (second.kind >= TokenKind::line_end || second.is("at") || second.is("label")) &&
           std::ranges::any_of(kDTypes,
                               [this](DType type) { return lexer_.peek().is(name(type)); });
  };
  bool has_bytes = false;
  for (bool has_flop = false; at_number() && !at_type() && !has_bytes; has_flop = true) {
    Expr amount = expression();
    if (!has_flop && lexer_.take_if("flop")) {
      work.flop = std::move(amount);
    } else if (lexer_.take_if("bytes")) {
      work.bytes = std::move(amount);
      has_bytes = true;
    } else {
      lexer_.expected("`flop` or `bytes`", "write `work gemm 4e9 flop 1e6 bytes bf16`");
    }
  }
  if (at_type()) work.type = element_type();
  return work;
}

}  // namespace shiplap::plan
