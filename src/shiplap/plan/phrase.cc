#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "shiplap/base/json.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/phrase_internal.h"

namespace shiplap::plan {
namespace {

// What is UTF-8 does.
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

}  // namespace

std::optional<DimensionId> find_dimension(const Tensor& tensor, std::string_view name) {
  for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
    if (tensor.dimension(DimensionId(k)).name == name) return DimensionId(k);
  }
  return std::nullopt;
}

// ---- names

std::string Phrases::any_name(std::string_view what) {
  if (lexer_.peek().kind != TokenKind::name) lexer_.expected(what);
  return std::string(lexer_.take().text);
}

void Phrases::symbol(std::string_view text, std::string_view context) {
  if (!lexer_.take_if(text)) lexer_.expected(fmt::format("`{}` {}", text, context));
}

std::int32_t Phrases::known(const NameMap& map, std::string_view what) {
  const Token& token = lexer_.peek();
  if (token.kind != TokenKind::name) {
    lexer_.expected(fmt::format("the name of {} {}", what == "axis" ? "an" : "a", what));
  }
  const std::int32_t id = lookup(map, token.text);
  if (id < 0) {
    refuse_if_broken(token);
    lexer_.fail(token, {.code = "D102",
                        .what = fmt::format("no {} is called `{}`", what, token.text),
                        .help = suggest(token.text, names_in(map))});
  }
  lexer_.take();
  return id;
}

void Phrases::refuse_if_broken(const Token& token) const {
  if (names_.broken.contains(token.text)) throw ParseFailure();
}

ListId Phrases::list() { return ListId(known(names_.lists, "list")); }

DType Phrases::element_type() {
  const Token& token = lexer_.peek();
  std::vector<std::string> names;
  for (const DType type : kDTypes) {
    if (lexer_.take_if(name(type))) return type;
    names.emplace_back(name(type));
  }
  if (token.kind != TokenKind::name) lexer_.expected("an element type (bf16, f32, ..)");
  lexer_.fail(token, {.code = "D102",
                      .what = fmt::format("no element type is called `{}`", token.text),
                      .help = suggest(token.text, names)});
}

std::vector<Expr> Phrases::expressions(std::string_view close) {
  std::vector<Expr> result;
  do {
    result.push_back(expression());
  } while (lexer_.take_if(","));
  symbol(close, "or `,`");
  return result;
}

Reference Phrases::reference() {
  Reference reference{.name = any_name("the name of an operation")};
  if (lexer_.take_if("[")) reference.indices = expressions("]");
  return reference;
}

// ---- where

Region Phrases::region() {
  const Token first = lexer_.peek();
  Region region = region_or_rows();
  if (region.kind == Region::Kind::listed) {
    lexer_.fail(first, {.code = "D111",
                        .what = "rows from a list stand only in `copy`",
                        .help = "pack them with a `copy` first"});
  }
  return region;
}

Region Phrases::region_or_rows() {
  Region region{.buffer = BufferId(known(names_.buffers, "buffer"))};
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
      if (!lexer_.peek().begins_count()) no_count(first, "row");
      region.count = count();
    }
  }
  symbol("]", "to close the rows");
  return region;
}

Peer Phrases::peer() {
  Peer peer;
  if (lexer_.take_if("rank")) {
    peer.where = expression();
    return peer;
  }
  peer.axis = AxisId(known(names_.axes, "axis"));
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

Group Phrases::group() {
  Group group;
  if (lexer_.take_if("ranks")) {
    symbol("{", "after `ranks`");
    group.positions = expressions("}");
  } else {
    if (lexer_.take_if("(")) {
      do {
        group.axes.emplace_back(known(names_.axes, "axis"));
      } while (lexer_.take_if(","));
      symbol(")", "or `,`");
    } else {
      group.axes.emplace_back(known(names_.axes, "axis"));
    }
    if (lexer_.take_if("{")) group.positions = expressions("}");
  }
  if (lexer_.take_if("/")) {
    group.channel = any_name("the name of a channel");
    if (group.channel == "main") group.channel.clear();
  }
  return group;
}

PositionRange Phrases::position_range(std::int64_t size) {
  PositionRange range;
  range.first = integer("a position", 0, size - 1);
  range.last = range.first;
  if (lexer_.take_if("..")) range.last = integer("a position", range.first, size - 1);
  return range;
}

SelectorTerm Phrases::selector_term() {
  SelectorTerm term;
  if (!lexer_.take_if("rank")) term.axis = AxisId(known(names_.axes, "axis"));
  symbol("=", "and positions");
  const std::int64_t size = term.axis.exists() ? plan_.mesh.size(term.axis) : plan_.mesh.ranks();
  do {
    term.positions.push_back(position_range(size));
  } while (lexer_.take_if("|"));
  return term;
}

Selector Phrases::selector() {
  Selector selector;
  selector.origin = Origin{lexer_.peek().line};
  if (lexer_.take_if("all")) return selector;
  do {
    selector.terms.push_back(selector_term());
  } while (!lexer_.at_line_end());
  return selector;
}

// ---- values

void Phrases::listed_run(Value& value, DimensionId dimension) {
  Run run{.dimension = dimension, .list = list()};
  symbol("[", "after the name of a list");
  std::tie(run.begin, run.count) = span("entry");
  symbol("]", "to close the entries");
  value.runs.push_back(std::move(run));
}

void Phrases::run_set(Value& value, DimensionId dimension) {
  if (lexer_.take_if("from")) return listed_run(value, dimension);
  do {
    Run run{.dimension = dimension};
    std::tie(run.begin, run.count) = span("coordinate");
    if (lexer_.take_if("by")) run.stride = sum(Plus::counts);
    value.runs.push_back(std::move(run));
  } while (lexer_.take_if("|"));
}

void Phrases::one_dimension(Value& value, const Tensor& tensor, bool in_sum) {
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

void Phrases::part_and_sum(Value& value, const Tensor& tensor) {
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

Value Phrases::value() {
  Value value;
  const Token first = lexer_.peek();
  value.is_new = lexer_.take_if("new");
  const Token named = lexer_.peek();
  value.tensor = TensorId(known(names_.tensors, "tensor"));
  const Tensor& tensor = plan_.tensors[value.tensor];
  if (names_.broken.contains(tensor.name)) throw ParseFailure();
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
                             : fmt::format("`{}` has {} instances, and this does not say which",
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

MaskSide Phrases::mask_side(const Tensor& tensor) {
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

std::vector<MaskTerm> Phrases::mask(const Tensor& tensor) {
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

// ---- work and label

std::string Phrases::label() {
  if (lexer_.at_line_end()) lexer_.expected("a text after `label`");
  const Token first = lexer_.peek();
  std::string label =
      first.is("\"") ? lexer_.take_quoted() : std::string(lexer_.take_rest_of_line());
  if (!survives_json(label)) {
    lexer_.fail(first, {.code = "D101",
                        .what = "this label is not UTF-8",
                        .why = "it could not be written in the JSON form"});
  }
  return label;
}

Work Phrases::work() {
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
  const auto at_number = [this] {
    return !lexer_.at_line_end() && !lexer_.peek().is("label") &&
           (lexer_.peek().kind != TokenKind::name ||
            lexer_.peek_second().kind != TokenKind::line_end);
  };
  const auto at_type = [this] {  // a type comes last; before a unit, `f32` is the name of a number
    const Token& second = lexer_.peek_second();
    return (second.kind >= TokenKind::line_end || second.is("label")) &&
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
