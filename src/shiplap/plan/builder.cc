#include "shiplap/plan/builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"
#include "shiplap/plan/phrase_parser_internal.h"
#include "shiplap/plan/symbol_table_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

[[noreturn]] void fail(const char* code, std::string what, std::string why = "",
                       std::string help = "") {
  throw InputError(Diagnostic{
      .code = code, .what = std::move(what), .why = std::move(why), .help = std::move(help)});
}

void check_member(const Operation& operation) {
  const bool is_plain = operation.name.name.empty() && operation.after.empty() && !operation.async;
  if (communicates(operation.action) && is_plain) return;
  fail("D111", "a batch holds sends, receives, collectives and exchanges without more words",
       "they start together", "give name, `after` and `async` to the batch");
}

// For names other than those of operations, streams, programs, channels and kernels.
void check_not_reserved(const std::string& name) {
  if (!is_reserved(name)) return;
  fail("D103", fmt::format("`{}` is a reserved word", name), "", "take another name");
}

}  // namespace

// ---- values

TensorRef TensorRef::with(const Dimension& dimension, Run run) const {
  const Tensor& tensor = plan_->tensors[value_.tensor];
  const auto found = find_dimension(tensor, dimension.name);
  if (!found) {
    fail("D102", fmt::format("`{}` has no dimension `{}`", tensor.name, dimension.name));
  }
  run.dimension = *found;
  const bool in_sum = tensor.in_sum(*found);
  if (in_sum && value_.sum == Sum::none) fail("D106", "nothing may follow `sum none`");
  TensorRef result = *this;
  std::vector<Run>& runs = result.value_.runs;
  const auto place = std::ranges::find_if(
      runs, [&](const Run& other) { return !in_sum && tensor.in_sum(other.dimension); });
  const auto again = std::ranges::find(runs, *found, &Run::dimension);
  if (again != runs.end()) {
    const Run& before = *std::prev(place);
    const bool joins = before.dimension == *found && !before.list.exists() && !run.list.exists();
    if (!joins) {
      fail("D103", fmt::format("dimension `{}` is given twice", dimension.name), "",
           "give all its coordinates one after the other");
    }
  }
  runs.insert(place, std::move(run));
  if (in_sum) result.value_.sum = Sum::some;
  return result;
}

TensorRef TensorRef::operator()(const Dimension& dimension, Expr begin, Expr count,
                                Expr stride) const {
  return with(dimension, {{}, {}, std::move(begin), std::move(count), std::move(stride)});
}

TensorRef TensorRef::listed(const Dimension& dimension, ListRef coordinates, Expr begin,
                            Expr count) const {
  return with(dimension, {{}, coordinates.id, std::move(begin), std::move(count)});
}

TensorRef TensorRef::operator[](Expr index) const {
  TensorRef result = *this;
  result.value_.indexed = true;
  result.value_.index = std::move(index);
  return result;
}

TensorRef TensorRef::updated() const {
  TensorRef result = *this;
  result.value_.is_new = true;
  return result;
}

TensorRef TensorRef::zero() const {
  if (value_.sum == Sum::some) fail("D106", "`sum none` has no coordinates");
  TensorRef result = *this;
  result.value_.sum = Sum::none;
  return result;
}

TensorRef TensorRef::scaled(Ratio by) const {
  TensorRef result = *this;
  result.value_.scale = by;
  return result;
}

TensorRef::operator Value() const {
  const Tensor& tensor = plan_->tensors[value_.tensor];
  if (value_.is_new && !tensor.has_versions()) {
    fail("D112",
         fmt::format("`{}` is of kind {}, which has no new version", tensor.name, tensor.kind),
         "only Weight and OptState are updated by a step");
  }
  if (value_.indexed != (tensor.instances > 0)) {
    fail("D112", value_.indexed
                     ? fmt::format("`{}` is a single tensor, without an index", tensor.name)
                     : fmt::format("`{}` has {} instances, and the index is missing", tensor.name,
                                   tensor.instances));
  }
  if (value_.sum == Sum::none && value_.scale != Ratio()) {
    fail("D106", "nothing may follow `sum none`", "zero has no scale");
  }
  return value_;
}

// ---- shared by all programs

void Builder::claim(Names& names, const std::string& name) {
  const bool valid = is_name(name) || is_reserved(name);
  if (valid && names.insert(name).second) return;
  fail("D103", fmt::format("`{}` is {}", name, valid ? "already used" : "not a valid name"),
       valid ? "" : "a name is letters, digits and underscores, no digit first",
       "take another name");
}

// As in the text, where these declarations precede the programs, so that no local conflicts.
void Builder::claim_shared(Names& names, const std::string& name) {
  check_not_reserved(name);
  claim(names, name);
  if (plan_.programs.empty()) return;
  fail("D111", fmt::format("`{}` is declared too late", name),
       "axes, lists, tensors and tables are declared before the first program");
}

AxisRef Builder::axis(std::string name, std::int64_t size) {
  claim_shared(in_expressions_, name);
  if (size < 1 || size > kMaxRanks / plan_.mesh.ranks() || !plan_.mesh.aliases.empty()) {
    fail("D109", fmt::format("axis `{}` of size {} cannot be added to this mesh", name, size),
         fmt::format("a mesh has axes, then aliases, and 1 to {} ranks", kMaxRanks));
  }
  plan_.mesh.axes.push_back({std::move(name), size});
  return AxisRef(AxisId(plan_.mesh.axes.size() - 1));
}

AxisRef Builder::alias(std::string name, const std::vector<AxisRef>& axes) {
  claim_shared(in_expressions_, name);
  Alias alias{.name = std::move(name), .axes = {}};
  for (const AxisRef& axis : axes) {
    if (plan_.mesh.is_alias(axis.id)) {
      fail("D109", fmt::format("`{}` is an alias itself", plan_.mesh.name(axis.id)), "",
           "name its axes instead");
    }
    alias.axes.push_back(axis.id);
  }
  plan_.mesh.aliases.push_back(std::move(alias));
  return AxisRef(AxisId(plan_.mesh.axes.size() + plan_.mesh.aliases.size() - 1));
}

ListRef Builder::list(std::string name, std::vector<std::int64_t> values) {
  claim_shared(in_expressions_, name);
  plan_.lists.push_back({std::move(name), std::move(values)});
  return {ListId(plan_.lists.size() - 1)};
}

TensorRef Builder::tensor(Tensor tensor) {
  claim_shared(tensors_, tensor.name);
  plan_.tensors.push_back(std::move(tensor));
  return {plan_, TensorId(plan_.tensors.size() - 1)};
}

TableId Builder::table(ExchangeTable table) {
  claim_shared(tables_, table.name);
  plan_.tables.push_back(std::move(table));
  return TableId(plan_.tables.size() - 1);
}

// ---- programs

void Builder::program(std::string name, std::vector<SelectorTerm> on) {
  close_program();
  claim(programs_, name);
  Program& program = plan_.programs.emplace_back();
  program.name = std::move(name);
  program.on = {.terms = std::move(on), .origin = origin_};
}

void Builder::close_program() {
  if (!blocks_.empty()) fail("D105", "this block is not closed before the program ends");
  if (plan_.programs.empty()) return;
  for (const std::string& name : waited_for_) {
    if (operations_.contains(name)) continue;
    fail("D205", fmt::format("unknown operation `{}` in this program", name), "",
         suggest(name, std::vector<std::string>(operations_.begin(), operations_.end())));
  }
  current().body = std::exchange(statements_, {});
  unbind_to(0);
  buffers_.clear();
  streams_ = {"main"};
  operations_.clear();
  waited_for_.clear();
}

Program& Builder::current() {
  if (plan_.programs.empty()) fail("D101", "this is outside a program");
  return plan_.programs.back();
}

BufferRef Builder::buffer(Buffer buffer) {
  Program& program = current();
  check_not_reserved(buffer.name);
  claim(buffers_, buffer.name);
  buffer.origin = origin_;
  program.buffers.push_back(std::move(buffer));
  return {BufferId(program.buffers.size() - 1)};
}

StreamId Builder::stream(std::string name) {
  std::vector<std::string>& streams = current().streams;
  claim(streams_, name);
  streams.push_back(std::move(name));
  return StreamId(streams.size());
}

void Builder::fact(Fact::Kind kind, Region region, Value value) {
  static_cast<void>(current());
  statements_.push_back({Fact{kind, origin_, std::move(region), std::move(value)}});
}

void Builder::add(Operation operation) {
  static_cast<void>(current());
  const bool in_batch = std::ranges::any_of(blocks_, [](const Block& block) {
    return std::holds_alternative<Operation>(block.opened.node);
  });
  if (in_batch) {
    operation.stream = StreamId();  // its batch has one
    check_member(operation);
  }
  if (!operation.name.name.empty()) operations_.insert(operation.name.name);
  for (const Reference& other : operation.after) waited_for_.insert(other.name);
  operation.origin = origin_;
  if (auto* const compute = std::get_if<Compute>(&operation.action)) {
    for (Access& access : compute->accesses) access.origin = origin_;
  }
  statements_.push_back({std::move(operation)});
}

// ---- blocks

Expr Builder::bind(std::string variable) {
  check_not_reserved(variable);
  claim(in_expressions_, variable);
  locals_.push_back(std::move(variable));
  return Expr::local(LocalId(locals_.size() - 1));
}

void Builder::unbind_to(std::size_t count) {
  for (; locals_.size() > count; locals_.pop_back()) in_expressions_.erase(locals_.back());
}

Expr Builder::let(std::string variable, Expr value) {
  static_cast<void>(current());
  Expr bound = bind(variable);
  statements_.push_back({Let{std::move(variable), origin_, std::move(value)}});
  return bound;
}

void Builder::open(Statement statement) {
  static_cast<void>(current());
  blocks_.push_back({std::move(statement), std::exchange(statements_, {}), locals_.size()});
}

Expr Builder::begin_repeat(std::string variable, Expr count) {
  open({Repeat{variable, origin_, std::move(count), {}}});
  return bind(std::move(variable));
}

void Builder::begin_when(Condition condition) { open({When{origin_, std::move(condition), {}}}); }

void Builder::begin_batch(Operation operation) {
  operation.action = Batch{};
  add(std::move(operation));
  Statement batch = std::move(statements_.back());
  statements_.pop_back();
  open(std::move(batch));
}

void Builder::end() {
  if (blocks_.empty()) fail("D105", "there is no open block");
  Block block = std::move(blocks_.back());
  blocks_.pop_back();
  std::vector<Statement> body = std::exchange(statements_, std::move(block.before));
  if (auto* const repeat = std::get_if<Repeat>(&block.opened.node)) {
    repeat->body = std::move(body);
  } else if (auto* const when = std::get_if<When>(&block.opened.node)) {
    when->body = std::move(body);
  } else {
    std::get<Batch>(std::get<Operation>(block.opened.node).action).body = std::move(body);
  }
  statements_.push_back(std::move(block.opened));
  unbind_to(block.bound);
}

Plan Builder::build() && {
  close_program();
  if (plan_.mesh.axes.empty()) fail("D109", "this plan has no mesh");
  if (plan_.programs.empty() && plan_.spares.empty()) {
    fail("D108", "this plan has no program", "every rank runs exactly one program or is spare");
  }
  if (std::vector<Diagnostic> problems = assign_programs(plan_).problems; !problems.empty()) {
    throw InputError(std::move(problems));
  }
  return std::move(plan_);
}

}  // namespace shiplap::plan
