// Parses the text form line by line: first the declarations that all programs share, then programs.
// A line that fails is reported and skipped; parsing continues with the next one.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/body_internal.h"
#include "shiplap/plan/lexer_internal.h"
#include "shiplap/plan/phrase_parser_internal.h"
#include "shiplap/plan/symbol_table_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxInstances = std::int64_t{1} << 40;

class PlanReader {
 public:
  PlanReader(std::string_view text, std::string_view file)
      : lexer_(text, file), phrases_(lexer_, plan_, symbols_) {}

  Plan read() && {
    version();
    for (lexer_.skip_blank_lines(); lexer_.peek().kind != TokenKind::text_end;
         lexer_.skip_blank_lines()) {
      errors_.guarded_line(lexer_, [this] { section(); });
    }
    finish();
    errors_.throw_if_any();
    return std::move(plan_);
  }

 private:
  void version() {
    lexer_.skip_blank_lines();
    const Token first = lexer_.peek();
    const bool is_plan = lexer_.take_if("shiplap") && lexer_.take_if("-") && lexer_.take_if("plan");
    if (!is_plan) {
      errors_.stop({.code = "D100",
                    .where = lexer_.where(first),
                    .what = first.kind == TokenKind::text_end
                                ? std::string("not a plan: there is nothing in it")
                                : fmt::format("not a plan: it begins with {}", describe(first)),
                    .help = "the first line of a plan is `shiplap-plan 1`"});
    }
    const Token number = lexer_.peek();
    if (number.kind != TokenKind::integer || number.integer != 1) {
      const bool is_number = number.kind == TokenKind::integer || number.kind == TokenKind::decimal;
      errors_.stop(
          {.code = "D100",
           .where = lexer_.where(number),
           .what = is_number ? fmt::format("unsupported version {} of the plan format", number.text)
                             : fmt::format("expected the version of the format, found {}",
                                           describe(number)),
           .why = "this program reads version 1",
           .help = "the first line of a plan is `shiplap-plan 1`"});
    }
    lexer_.take();
    errors_.guarded_line(lexer_, [this] { end_of_line(); });
  }

  void section() {
    const Token word = lexer_.peek();
    if (plan_.mesh.axes.empty()) return first_mesh();
    if (lexer_.take_if("mesh")) second_mesh(word);
    if (lexer_.take_if("alias")) return alias();
    if (lexer_.take_if("values")) return values(word);
    if (lexer_.take_if("source")) return source();
    if (lexer_.take_if("list")) return list();
    if (lexer_.take_if("tensor")) return tensor(word);
    if (lexer_.take_if("table")) return table();
    if (lexer_.take_if("program")) return program();
    if (lexer_.take_if("spare")) return spare();
    if (at_inside_of_program(lexer_)) return orphan_body(word);
    if (word.is("message")) return orphan_rows(word);
    Diagnostic unknown{
        .code = "D101",
        .where = lexer_.where(word),
        .what = fmt::format("unknown statement {} outside a program", describe(word)),
        .help = suggest(word.text, section_words())};
    const auto meant = std::ranges::find(section_words(), nearest(word.text, section_words()));
    if (meant == section_words().end()) throw ParseFailure(std::move(unknown));
    // A misspelt keyword is read as the intended one, so that one typo is one error.
    errors_.add(std::move(unknown));
    lexer_.read_as(*meant);
    section();
  }

  // Everything after it refers to the mesh, so an error here is fatal.
  void first_mesh() {
    const Token word = lexer_.peek();
    if (!lexer_.take_if("mesh")) {
      errors_.stop({.code = "D109",
                    .where = lexer_.where(word),
                    .what = fmt::format("expected `mesh`, found {}", describe(word)),
                    .why = "everything after it refers to the mesh",
                    .help = "begin with a line such as `mesh dp=4 tp=2`"});
    }
    try {
      mesh();
    } catch (ParseFailure& failure) {
      errors_.stop(std::move(failure.diagnostic));
    }
  }

  [[noreturn]] void second_mesh(const Token& word) {
    lexer_.fail(word, {.code = "D109",
                       .what = "a plan has one mesh, and this is the second",
                       .help = "name all axes in one line: `mesh dp=4 tp=2`"});
  }

  void end_of_line() {
    if (!lexer_.at_line_end()) lexer_.expected("the end of the line");
  }

  // Reads a new name. Throws D103 if it is reserved or already used.
  std::string new_name(const NameMap& map, std::string_view what) {
    const Token token = lexer_.peek();
    std::string name = phrases_.any_name(fmt::format("a name for {}", what));
    if (is_reserved(name)) {
      symbols_.broken.emplace(name, 0);
      lexer_.fail(token, {.code = "D103",
                          .what = fmt::format("`{}` is a reserved word", name),
                          .help = "take another name"});
    }
    if (map.contains(name)) {
      lexer_.fail(token, {.code = "D103",
                          .what = fmt::format("`{}` is already used", name),
                          .help = "take another name"});
    }
    return name;
  }

  std::string new_name_in_expressions(std::string_view what) {
    const Token token = lexer_.peek();
    std::string name = new_name({}, what);
    if (const std::string_view taken = symbols_.taken_as(name); !taken.empty()) {
      lexer_.fail(token, {.code = "D103",
                          .what = fmt::format("`{}` is {} already", name, taken),
                          .help = "take another name"});
    }
    return name;
  }

  void mesh() {
    do {
      std::string name = new_name_in_expressions("an axis");
      phrases_.symbol("=", "and the size of the axis");
      const Token number = lexer_.peek();
      const std::int64_t size = phrases_.integer("the size of an axis", 1, kMaxRanks);
      if (plan_.mesh.ranks() * size > kMaxRanks) {
        lexer_.fail(number, {.code = "D109",
                             .what = fmt::format("with this axis the mesh has {} ranks",
                                                 plan_.mesh.ranks() * size),
                             .why = fmt::format("a mesh has at most {}", kMaxRanks)});
      }
      symbols_.axes.emplace(name, static_cast<std::int32_t>(plan_.mesh.axes.size()));
      plan_.mesh.axes.push_back({std::move(name), size});
      lexer_.take_if(",");
    } while (!lexer_.at_line_end());
  }

  void alias() {
    Alias alias{.name = new_name_in_expressions("an alias")};
    symbols_.broken.emplace(alias.name, 0);
    phrases_.symbol("=", "and axes");
    do {
      alias.axes.push_back(axis_of(alias));
      lexer_.take_if(",");
    } while (!lexer_.at_line_end());
    symbols_.broken.erase(alias.name);
    symbols_.axes.emplace(
        alias.name, static_cast<std::int32_t>(plan_.mesh.axes.size() + plan_.mesh.aliases.size()));
    plan_.mesh.aliases.push_back(std::move(alias));
  }

  AxisId axis_of(const Alias& alias) {
    const Token token = lexer_.peek();
    const AxisId axis(phrases_.known(symbols_.axes, "axis"));
    if (plan_.mesh.is_alias(axis)) {
      lexer_.fail(token, {.code = "D109",
                          .what = fmt::format("`{}` is an alias itself", token.text),
                          .help = "name its axes instead"});
    }
    if (std::ranges::find(alias.axes, axis) != alias.axes.end()) {
      lexer_.fail(token,
                  {.code = "D109",
                   .what = fmt::format("`{}` names axis `{}` twice", alias.name, token.text)});
    }
    return axis;
  }

  // `values undeclared`. Tensors and programs depend on it.
  void values(const Token& word) {
    if (!lexer_.take_if("undeclared")) lexer_.expected("`undeclared`");
    if (!plan_.tensors.empty() || !plan_.programs.empty()) {
      lexer_.fail(word, {.code = "D111",
                         .what = "`values` is declared too late",
                         .why = "tensors and programs depend on it",
                         .help = "move it below `mesh`"});
    }
    end_of_line();
    plan_.declares_values = false;
  }

  // `source step "train.py" in "train_step"`
  void source() {
    const Token token = lexer_.peek();
    Source source{.name = new_name(symbols_.sources, "a source")};
    if (is_unit_of_work(source.name)) {  // `work gemm at flop`
      lexer_.fail(token, {.code = "D103",
                          .what = fmt::format("`{}` cannot be the name of a source", source.name),
                          .help = "take another name"});
    }
    symbols_.broken.emplace(source.name, 0);
    source.file = phrases_.quoted("the name of a file in quotation marks");
    if (lexer_.take_if("in")) {
      source.function = phrases_.quoted("the name of a function in quotation marks");
    }
    end_of_line();
    symbols_.broken.erase(source.name);
    symbols_.sources.emplace(source.name, static_cast<std::int32_t>(plan_.sources.size()));
    plan_.sources.push_back(std::move(source));
  }

  [[nodiscard]] bool at_number() const {
    const Token& token = lexer_.peek();
    return token.kind == TokenKind::integer || token.kind == TokenKind::decimal || token.is("-");
  }

  // A line that begins with a number continues the list.
  void list() {
    List list{.name = new_name_in_expressions("a list")};
    errors_.guarded_line(lexer_, [&] {
      phrases_.symbol("=", "and numbers");
      do {
        numbers(list);
      } while (at_number());
    });
    for (lexer_.skip_blank_lines(); at_number(); lexer_.skip_blank_lines()) lexer_.skip_line();
    symbols_.lists.emplace(list.name, static_cast<std::int32_t>(plan_.lists.size()));
    plan_.lists.push_back(std::move(list));
  }

  void numbers(List& list) {
    while (at_number()) {
      list.values.push_back(phrases_.integer("an entry of a list", kLowest, kHighest));
      lexer_.take_if(",");
    }
    end_of_line();
    lexer_.skip_blank_lines();
  }

  void tensor(const Token& word) {
    phrases_.require_declared_values(word);
    Tensor tensor{.name = new_name(symbols_.tensors, "a tensor")};
    symbols_.broken.emplace(tensor.name, 0);
    errors_.guarded_line(lexer_, [&] {
      describe_tensor(tensor);
      symbols_.broken.erase(tensor.name);
    });
    symbols_.tensors.emplace(tensor.name, static_cast<std::int32_t>(plan_.tensors.size()));
    plan_.tensors.push_back(std::move(tensor));
  }

  void describe_tensor(Tensor& tensor) {
    if (lexer_.take_if("[")) {
      tensor.instances = phrases_.integer("the number of instances", 1, kMaxInstances);
      phrases_.symbol("]", "to close the number of instances");
    }
    tensor.kind = phrases_.any_name("the kind of tensor (Weight, Activation, ..)");
    const auto at_dimension = [this] {
      const Token& token = lexer_.peek();
      return token.kind == TokenKind::name && !is_reserved(token.text);
    };
    while (at_dimension()) tensor.part.push_back(dimension(tensor));
    if (lexer_.take_if("sum")) {
      if (!at_dimension()) lexer_.expected("a dimension after `sum`");
      while (at_dimension()) tensor.sum.push_back(dimension(tensor));
    }
    if (lexer_.take_if("scale")) tensor.scale = phrases_.ratio();
    if (lexer_.take_if("mask")) tensor.mask = phrases_.mask(tensor);
    end_of_line();
  }

  Dimension dimension(const Tensor& tensor) {
    const Token token = lexer_.take();
    const Token number = lexer_.peek();
    const std::int64_t size =
        phrases_.integer(fmt::format("the size of dimension `{}`", token.text), 1, kMaxInstances);
    if (find_dimension(tensor, token.text)) {
      lexer_.fail(token,
                  {.code = "D103",
                   .what = fmt::format("`{}` has two dimensions `{}`", tensor.name, token.text),
                   .help = "give one of the two another name"});
    }
    const auto [known, is_new] = dimensions_.emplace(token.text, size);
    if (!is_new && known->second != size) {
      errors_.add({.code = "D110",
                   .where = lexer_.where(number),
                   .what = fmt::format("dimension `{}` has size {} here and {} above", token.text,
                                       size, known->second),
                   .why = "a dimension means the same in all tensors",
                   .help = "give one of the two another name, or the same size"});
    }
    return {.name = std::string(token.text), .size = size};
  }

  void table() {
    std::string name = new_name(symbols_.tables, "a table");
    errors_.guarded_line(lexer_, [this] { end_of_line(); });
    TableRows rows;
    for (to_next_row(); at_row(); to_next_row()) {
      errors_.guarded_line(lexer_, [&] { row(rows); });
    }
    symbols_.tables.emplace(name, static_cast<std::int32_t>(plan_.tables.size()));
    plan_.tables.emplace_back(std::move(name), std::move(rows.sends), std::move(rows.receives));
  }

  struct TableRows {
    std::vector<TableRow> sends;
    std::vector<TableRow> receives;
  };

  [[nodiscard]] bool at_row() const {
    const Token& token = lexer_.peek();
    return token.is("message") || token.is("send") || token.is("receive");
  }

  // A misspelt keyword is reported and read as the intended one.
  void to_next_row() {
    static const std::vector<std::string> kWords = [] {
      std::vector<std::string> words = {"message", "send", "receive", "mesh"};
      words.insert(words.end(), section_words().begin(), section_words().end());
      return words;
    }();
    lexer_.skip_blank_lines();
    for (; at_number(); lexer_.skip_blank_lines()) {
      errors_.guarded_line(lexer_, [this] { lexer_.expected("`message`, `send` or `receive`"); });
    }
    const Token& word = lexer_.peek();
    const bool known = std::ranges::find(kWords, word.text) != kWords.end();
    if (known || word.kind != TokenKind::name)
      return;  // fast path: a table may have millions of rows
    const auto meant = std::ranges::find(kWords, nearest(word.text, kWords));
    if (meant == kWords.end()) return;
    errors_.add({.code = "D101",
                 .where = lexer_.where(word),
                 .what = fmt::format("unknown table row `{}`", word.text),
                 .help = fmt::format("did you mean `{}`?", *meant)});
    lexer_.read_as(*meant);
  }

  void orphan_rows(const Token& word) {
    errors_.add({.code = "D101",
                 .where = lexer_.where(word),
                 .what = "`message` is outside a table",
                 .help = "write `table` and a name for it above"});
    for (; lexer_.peek().is("message"); lexer_.skip_blank_lines()) lexer_.skip_line();
  }

  void row(TableRows& rows) {
    const Token word = lexer_.take();
    TableRow row = table_row();
    if (!word.is("receive")) rows.sends.push_back(row);
    if (word.is("message")) {
      std::swap(row.rank, row.peer);
      row.first = phrases_.integer("the row it goes into", 0, kHighest);
    }
    if (!word.is("send")) rows.receives.push_back(row);
    end_of_line();
  }

  TableRow table_row() {
    TableRow row;
    row.rank = table_rank("a rank");
    row.peer = table_rank("the rank of the peer");
    row.first = phrases_.integer("the first row", 0, kHighest);
    row.count = phrases_.integer("the number of rows", 1, kHighest);
    return row;
  }

  std::int32_t table_rank(std::string_view what) {
    const Token token = lexer_.peek();
    const std::int64_t rank = phrases_.integer(what, 0, kHighest);
    if (rank >= plan_.mesh.ranks()) {
      lexer_.fail(token,
                  {.code = "D113",
                   .what = fmt::format("rank {} is not on the mesh", rank),
                   .why = fmt::format("the mesh has ranks 0 to {}", plan_.mesh.ranks() - 1)});
    }
    return static_cast<std::int32_t>(rank);
  }

  void spare() {
    if (!lexer_.take_if("on"))
      lexer_.expected("`on`", "write `spare on rank=7`, or `spare on dp=3`");
    plan_.spares.push_back(phrases_.selector());
    end_of_line();
  }

  void program() {
    Program program;
    errors_.guarded_line(lexer_, [&] {
      const Token token = lexer_.peek();
      program.name = phrases_.any_name("a name for the program");
      const auto next = static_cast<std::int32_t>(plan_.programs.size());
      if (!symbols_.programs.emplace(program.name, next).second) {
        lexer_.fail(token, {.code = "D103",
                            .what = fmt::format("there is a program `{}` already", program.name),
                            .help = "take another name"});
      }
      if (!lexer_.take_if("on")) {
        lexer_.expected("`on`", fmt::format("write `program {} on all`", program.name));
      }
      program.on = phrases_.selector();
      end_of_line();
    });
    symbols_.begin_program();
    read_body(BodyContext{lexer_, phrases_, plan_, symbols_, errors_}, program);
    plan_.programs.push_back(std::move(program));
  }

  // The `program` line is missing or invalid; its body is still parsed.
  void orphan_body(const Token& word) {
    if (!errors_.any()) {
      errors_.add({.code = "D101",
                   .where = lexer_.where(word),
                   .what = fmt::format("{} is outside a program", describe(word)),
                   .help = "write `program all on all` above it"});
    }
    Program nothing;
    symbols_.begin_program();
    read_body(BodyContext{lexer_, phrases_, plan_, symbols_, errors_}, nothing);
  }

  void finish() {
    if (errors_.any()) return;  // these errors could be consequences
    const Where end = lexer_.where(lexer_.peek());
    if (plan_.mesh.axes.empty()) {
      errors_.add({.code = "D109",
                   .where = {.file = end.file},
                   .what = "this plan has no mesh",
                   .help = "begin with a line such as `mesh dp=4 tp=2`"});
    } else if (plan_.programs.empty() && plan_.spares.empty()) {
      errors_.add({.code = "D108",
                   .where = {.file = end.file},
                   .what = "this plan has no program",
                   .why = "every rank runs exactly one program or is spare",
                   .help = "write `program all on all` and what its ranks do"});
    } else {
      for (Diagnostic& problem : assign_programs(plan_).problems) locate(std::move(problem));
    }
  }

  void locate(Diagnostic problem) {
    Where where = lexer_.where_line(problem.where.line);
    if (problem.where.line < 1) where = {.file = where.file};
    where.rank = problem.where.rank;
    problem.where = std::move(where);
    errors_.add(std::move(problem));
  }

  Lexer lexer_;
  Plan plan_;
  SymbolTable symbols_;
  PhraseParser phrases_;
  DiagnosticCollector errors_;
  std::unordered_map<std::string_view, std::int64_t> dimensions_;
};

}  // namespace

Plan parse_text(std::string_view text, std::string_view file) {
  return PlanReader(text, file).read();
}

}  // namespace shiplap::plan
