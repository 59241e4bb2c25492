#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shiplap/base/suggest.h"
#include "shiplap/plan/body_internal.h"

namespace shiplap::plan {
namespace {

constexpr std::array kOperators = {ReduceOp::sum, ReduceOp::max, ReduceOp::min, ReduceOp::product};

// The syntax of an action.
std::string_view operand_form(std::string_view action) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kForms = {{
      {"compute", "compute KERNEL"},
      {"copy", "copy REGION to REGION [add]"},
      {"send", "send REGION to PEER [tag N] [channel NAME]"},
      {"receive", "receive REGION from PEER [add] [tag N] [channel NAME]"},
      {"exchange", "exchange REGION to REGION by TABLE [reversed] over GROUP [add]"},
      {"allocate", "allocate REGION"},
      {"free", "free REGION"},
      {"batch", "batch"},
      {"barrier", "barrier over GROUP"},
  }};
  for (const auto& [word, form] : kForms) {
    if (word == action) return form;
  }
  return "";
}

std::string collective_form(std::string_view action) {
  std::string form = fmt::format("{} REGION [to REGION] over GROUP", action);
  for (const CollectiveKind kind : kCollectives) {
    if (name(kind) != action) continue;
    if (has_pieces(kind)) form += " [split LIST]";
    if (reduces(kind)) form += " [operator O] [scale A/B]";
    if (has_root(kind)) form += " [root N]";
  }
  return form;
}

}  // namespace

const std::vector<std::string>& action_words() {
  static const std::vector<std::string> kWords = {
      "compute",    "copy",           "send",       "receive",   "all_reduce",
      "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
      "barrier",    "exchange",       "allocate",   "free",      "batch"};
  return kWords;
}

const std::vector<std::string>& section_words() {
  static const std::vector<std::string> kWords = {"alias",  "values", "source",  "list",
                                                  "tensor", "table",  "program", "spare"};
  return kWords;
}

Operation OperationReader::operation() {
  opened_block_ = false;
  waits_for_.clear();
  Operation operation;
  const Token& second = lexer_.peek_second();
  if (lexer_.peek().kind == TokenKind::name && (second.is(":") || second.is("["))) {
    operation.name = phrases_.reference();
    phrases_.symbol(":", "after the name of an operation");
  }
  if (lexer_.take_if("@")) operation.stream = stream();
  operation.action = action();
  trailing(operation);
  return operation;
}

StreamId OperationReader::stream() {
  const Token& token = lexer_.peek();
  const bool unknown = token.kind == TokenKind::name && !symbols_.streams.contains(token.text);
  if (unknown && nearest(token.text, names_in(symbols_.streams)).empty()) {
    lexer_.fail(token,
                {.code = "D102",
                 .what = fmt::format("unknown stream `{}`", token.text),
                 .why = "every program has `main`; it declares others before its first statement",
                 .help = fmt::format("write `streams {}` below its buffers", token.text)});
  }
  return StreamId(phrases_.known(symbols_.streams, "stream"));
}

Operation OperationReader::member() {
  opened_block_ = false;
  const Token first = lexer_.peek();
  if (lexer_.peek_second().is(":") || lexer_.peek_second().is("[") || first.is("@")) {
    lexer_.fail(first, {.code = "D111",
                        .what = "a member of a batch has no name and no stream of its own",
                        .help = "give them to the batch: `x: @net batch`"});
  }
  if (first.is("given") || first.is("goal") || first.is("keep") || first.is("buffer") ||
      first.is("streams") || first.is("compute")) {
    throw_not_in_batch(first);
  }
  Operation operation{.stream = StreamId(), .action = action()};
  if (!communicates(operation.action)) throw_not_in_batch(first);
  if (lexer_.take_if("at")) operation.at = phrases_.source_line();
  if (!lexer_.at_line_end()) throw_unexpected_token(keyword(operation.action));
  return operation;
}

void OperationReader::throw_not_in_batch(const Token& first) {
  lexer_.fail(first,
              {.code = "D111",
               .what = fmt::format("`{}` cannot be in a batch", first.text),
               .why = "a batch holds sends, receives, collectives and exchanges, which start "
                      "together",
               .help = "close the batch with `end` before this line"});
}

Access OperationReader::access() {
  Access access;
  const Token word = lexer_.take();
  access.kind = word.is("reads")    ? Access::Kind::reads
                : word.is("writes") ? Access::Kind::writes
                                    : Access::Kind::adds;
  access.region = phrases_.region();
  if (lexer_.peek().is("=")) phrases_.require_declared_values(lexer_.peek());
  if (!declares_values_) return access;
  phrases_.symbol("=", "and a value");
  access.value = phrases_.value();
  return access;
}

Action OperationReader::action() {
  const Token word = lexer_.peek();
  if (lexer_.take_if("compute")) {
    if (lexer_.peek().kind != TokenKind::name) {
      lexer_.expected("the name of a kernel", "write `compute forward`");
    }
    return Compute{.kernel = phrases_.any_name("the name of a kernel")};
  }
  if (lexer_.take_if("copy")) return copy();
  if (lexer_.take_if("send")) return send_or_receive(true);
  if (lexer_.take_if("receive")) return send_or_receive(false);
  if (lexer_.take_if("exchange")) return exchange();
  if (lexer_.take_if("allocate")) return Allocate{phrases_.region()};
  if (lexer_.take_if("free")) return Free{phrases_.region()};
  if (lexer_.take_if("batch")) {
    opened_block_ = true;
    return Batch{};
  }
  for (const CollectiveKind kind : kCollectives) {
    if (lexer_.take_if(name(kind))) return collective(kind);
  }
  if (word.kind != TokenKind::name) lexer_.expected("an action (compute, send, all_reduce, ..)");
  opened_block_ = nearest(word.text, action_words()) == "batch";
  lexer_.fail(word, {.code = "D101",
                     .what = fmt::format("unknown action `{}`", word.text),
                     .help = suggest(word.text, action_words())});
}

std::string OperationReader::channel() {
  if (!lexer_.take_if("channel")) return {};
  std::string name = phrases_.any_name("the name of a channel");
  if (name == "main") name.clear();
  return name;
}

Action OperationReader::send_or_receive(bool sends) {
  Region region = phrases_.region();
  const std::string_view preposition = sends ? "to" : "from";
  if (!lexer_.take_if(preposition)) {
    lexer_.expected(fmt::format("`{}` and a peer", preposition),
                    sends ? "write `send x to pp+1`" : "write `receive x from pp-1`");
  }
  Peer peer = phrases_.peer();
  const bool add = !sends && lexer_.take_if("add");
  Expr tag;
  if (lexer_.take_if("tag")) tag = phrases_.expression();
  std::string on = channel();
  if (sends) return Send{std::move(region), std::move(peer), std::move(tag), std::move(on)};
  return Receive{std::move(region), std::move(peer), std::move(tag), std::move(on), add};
}

Copy OperationReader::copy() {
  Copy copy{.from = phrases_.region_or_rows()};
  if (!lexer_.take_if("to")) lexer_.expected("`to` and a region", "write `copy x to y`");
  copy.to = phrases_.region_or_rows();
  copy.add = lexer_.take_if("add");
  return copy;
}

Region OperationReader::target(const Region& from) {
  return lexer_.take_if("to") ? phrases_.region() : from;
}

Action OperationReader::collective(CollectiveKind kind) {
  Collective collective{.kind = kind};
  if (kind != CollectiveKind::barrier) {
    collective.from = phrases_.region();
    collective.to = target(collective.from);
  }
  if (!lexer_.take_if("over")) {
    const Token& found = lexer_.peek();
    const bool early = found.is("after") || found.is("async") || found.is("split") ||
                       found.is("operator") || found.is("scale") || found.is("root");
    lexer_.expected("`over` and a group",
                    fmt::format("write `{}{} over dp`{}", name(kind),
                                kind == CollectiveKind::barrier ? "" : " x",
                                early ? fmt::format(", then `{}`", found.text) : ""));
  }
  collective.over = phrases_.group();
  if (has_pieces(kind) && lexer_.take_if("split")) collective.split = phrases_.list();
  if (reduces(kind) && lexer_.take_if("operator")) collective.op = reduction();
  if (reduces(kind) && lexer_.take_if("scale")) collective.scale = phrases_.ratio();
  if (has_root(kind) && lexer_.take_if("root")) collective.root = phrases_.expression();
  return collective;
}

ReduceOp OperationReader::reduction() {
  for (const ReduceOp op : kOperators) {
    if (lexer_.take_if(name(op))) return op;
  }
  lexer_.fail(lexer_.peek(),
              {.code = "D102",
               .what = fmt::format("unknown reduce operator {}", describe(lexer_.peek())),
               .help = "there are: sum, max, min, product"});
}

Action OperationReader::exchange() {
  Exchange exchange{.from = phrases_.region()};
  if (!lexer_.take_if("to")) lexer_.expected("`to` and a region");
  exchange.to = phrases_.region();
  if (!lexer_.take_if("by")) lexer_.expected("`by` and a table");
  exchange.table = TableId(phrases_.known(symbols_.tables, "table"));
  exchange.reversed = lexer_.take_if("reversed");
  if (!lexer_.take_if("over")) lexer_.expected("`over` and a group");
  exchange.over = phrases_.group();
  exchange.add = lexer_.take_if("add");
  return exchange;
}

void OperationReader::trailing(Operation& operation) {
  if (lexer_.take_if("after")) {
    do {
      waits_for_.push_back(lexer_.peek());
      operation.after.push_back(phrases_.reference());
    } while (lexer_.take_if(","));
  }
  Token token = lexer_.peek();
  operation.async = lexer_.take_if("async");
  if (const auto mistake = flag_mistake(operation)) lexer_.fail(token, *mistake);
  token = lexer_.peek();
  operation.joined = lexer_.take_if("joined");
  if (const auto mistake = flag_mistake(operation)) lexer_.fail(token, *mistake);
  if (lexer_.take_if("work")) operation.work = phrases_.work();
  if (lexer_.take_if("at")) operation.at = phrases_.source_line();
  if (lexer_.take_if("label")) operation.label = phrases_.label();
  if (!lexer_.at_line_end()) throw_unexpected_token(keyword(operation.action));
}

// Throws D106: the next token is not an attribute of an operation, or is in the wrong order.
void OperationReader::throw_unexpected_token(std::string_view action) {
  static const std::vector<std::string> kWords = {
      "to",  "from",    "by",   "reversed", "over",  "split",  "operator", "scale", "root", "add",
      "tag", "channel", "wrap", "after",    "async", "joined", "work",     "at",    "label"};
  const Token token = lexer_.peek();
  std::string form(operand_form(action));
  if (form.empty()) form = collective_form(action);
  const bool is_word = std::ranges::find(kWords, token.text) != kWords.end();
  const std::string near = is_word ? "" : nearest(token.text, kWords);
  lexer_.fail(token, {.code = "D106",
                      .what = fmt::format("{} {}", describe(token),
                                          is_word ? "is not allowed here" : "is unexpected"),
                      .why = fmt::format("the order is `{}`,\n"
                                         "then `after`, `async`, `joined`, `work`, `at`, `label`",
                                         form),
                      .help = near.empty() ? "" : fmt::format("did you mean `{}`?", near)});
}

}  // namespace shiplap::plan
