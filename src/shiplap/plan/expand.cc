// Expansion: a mesh-relative program becomes the flat program of one rank.
//
// Problem: a plan describes 131,072 ranks with a few programs, whose numbers are expressions of the
// position on the mesh. Interpreters need plain operations, and must not disagree on what the plan
// means. So there is one evaluator, and all interpreters read its result.
//
// Idea: a tree walk over the statements with an environment (mesh positions and the values of loop
// variables and `let` names). Resolver evaluates expressions, regions, values, peers and groups;
// OperationIndex resolves names with indices (`b[m-1]`) to operations. Loops are unrolled and
// conditions decided. An `after` may only name an operation that is listed before it: so the
// dependence graph of a rank is acyclic by construction, and no rank can deadlock alone. A name
// that does not occur on this rank is recorded as absent; one that occurs later is an error (D205).
//
// Limits: operations, iterations and array entries are counted while they are made, also for loops
// with empty bodies, so a plan of a few lines that would expand to terabytes fails in bounded time
// (D207). Errors of inner functions have no location; located() adds rank, line and operation at
// the innermost statement.
//
// Result arrays are flat and can be reused for the next rank: expanding all ranks one after the
// other allocates little.
#include "shiplap/plan/expand.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/plan/operation_index_internal.h"
#include "shiplap/plan/resolve_internal.h"

namespace shiplap::plan {
namespace {

// "b[1]: compute backward", or without a name "compute backward".
std::string described(std::string name, const Action& action) {
  if (!name.empty()) name += ": ";
  name += keyword(action);
  if (const auto* compute = std::get_if<Compute>(&action)) name += " " + compute->kernel;
  return name;
}

// Appends the loops around `operation` to `loops`, outermost first. Returns whether it is in
// `body`.
bool find_loops(const std::vector<Statement>& body, const Operation& operation,
                std::vector<const Repeat*>& loops) {
  for (const Statement& statement : body) {
    throw_if_cancelled();
    if (const auto* const repeat = std::get_if<Repeat>(&statement.node)) {
      loops.push_back(repeat);
      if (find_loops(repeat->body, operation, loops)) return true;
      loops.pop_back();
    } else if (const auto* const when = std::get_if<When>(&statement.node)) {
      if (find_loops(when->body, operation, loops)) return true;
    } else if (const auto* const other = std::get_if<Operation>(&statement.node)) {
      if (other == &operation) return true;
      const auto* const batch = std::get_if<Batch>(&other->action);
      if (batch != nullptr && find_loops(batch->body, operation, loops)) return true;
    }
  }
  return false;
}

class Expander {
 public:
  Expander(const Plan& plan, Rank rank, ProgramId program, const ExpandLimits& limits,
           RankProgram reuse)
      : program_(plan.programs[program]),
        limits_(limits),
        result_(std::move(reuse)),
        resolve_(plan, program_, rank, result_, limits.entries),
        index_(result_),
        last_(program_.streams.size() + 1) {
    result_.plan = &plan;
    result_.rank = rank;
    result_.program = program;
  }

  RankProgram expand() && {
    for (const Buffer& buffer : program_.buffers) {
      located(
          buffer.origin, [&] { return "buffer " + buffer.name; }, [&] { resolve_.buffer(buffer); });
    }
    block(program_.body);
    index_.check_order();
    result_.iterations = iterations_;
    return std::move(result_);
  }

 private:
  // Adds the location to errors of `function`: rank, line and operation.
  template <class What, class Function>
  void located(Origin origin, const What& what, const Function& function) {
    try {
      function();
    } catch (const InputError& error) {
      Diagnostic diagnostic = error.diagnostics().front();
      if (diagnostic.where.rank) throw;  // an inner statement has set it
      diagnostic.where.rank = result_.rank.value;
      if (diagnostic.where.line == 0) diagnostic.where.line = origin.line;
      diagnostic.where.operation = what();
      throw InputError(std::move(diagnostic));
    }
  }

  void block(const std::vector<Statement>& body) {
    const std::size_t bound = resolve_.bound();
    for (const Statement& statement : body) {
      throw_if_cancelled();
      std::visit([this](const auto& node) { expand(node); }, statement.node);
    }
    resolve_.unbind_to(bound);
  }

  // Counts a statement that adds no operation: in a loop it takes as long as an iteration.
  void count_in_loop() {
    if (!loop_values_.empty()) ++iterations_;
  }

  void expand(const Repeat& repeat) {
    count_in_loop();
    std::int64_t count = 0;
    located(
        repeat.origin, [&] { return "repeat " + repeat.variable; }, [&] { count = times(repeat); });
    if (count > limits_.iterations - iterations_) throw_too_large(repeat.origin, "loop iterations");
    if (repeat.body.empty()) {
      iterations_ += count;
      return;
    }
    const std::size_t bound = resolve_.bound();
    loop_values_.push_back(0);
    for (std::int64_t k = 0; k < count; ++k) {
      loop_values_.back() = k;
      if (++iterations_ > limits_.iterations) throw_too_large(repeat.origin, "loop iterations");
      resolve_.bind(k);
      block(repeat.body);
      resolve_.unbind_to(bound);
    }
    loop_values_.pop_back();
  }

  std::int64_t times(const Repeat& repeat) {
    const std::int64_t count = resolve_.number(repeat.count);
    if (count < 0) {
      throw InputError(Diagnostic{.code = "D208",
                                  .what = fmt::format("the repeat count is {}", count),
                                  .why = "a count must not be negative"});
    }
    return count;
  }

  [[noreturn]] void throw_too_large(Origin origin, std::string_view what) {
    throw InputError(Diagnostic{
        .code = "D207",
        .where = {.line = origin.line, .rank = result_.rank.value},
        .what = fmt::format("this rank has more than {} {}",
                            what == "operations" ? limits_.operations : limits_.iterations, what),
        .why = "a larger plan is assumed to be a mistake, such as an endless loop",
        .help = "look at the counts of the loops around this line"});
  }

  void expand(const When& when) {
    count_in_loop();
    bool holds_here = false;
    located(
        when.origin, [] { return std::string("when"); },
        [&] { holds_here = resolve_.condition(when.condition); });
    if (holds_here) block(when.body);
  }

  void expand(const Let& let) {
    count_in_loop();
    located(
        let.origin, [&] { return "let " + let.variable; },
        [&] { resolve_.bind(resolve_.number(let.value)); });
  }

  void expand(const Fact& fact) {
    located(
        fact.origin, [] { return std::string(); },
        [&] {
          resolve_.limit(1);
          flat::Fact flat{.region = resolve_.region(fact.region), .origin = fact.origin};
          flat.value = resolve_.value(fact.value, flat.region);
          if (fact.kind != Fact::Kind::goal) result_.given.push_back(flat);
          if (fact.kind == Fact::Kind::given) return;
          if (fact.kind == Fact::Kind::keep) flat.value.is_new = true;
          result_.goal.push_back(flat);
        });
  }

  void expand(const Operation& operation) {
    const auto limit = std::min<std::int64_t>(limits_.operations, 1 << 30);
    if (std::ssize(result_.operations) >= limit) throw_too_large(operation.origin, "operations");
    const std::size_t self = result_.operations.size();
    located(
        operation.origin, [&] { return described(operation.name.name, operation.action); },
        [&] { append(operation); });
    if (const auto* batch = std::get_if<Batch>(&operation.action)) {
      const std::int32_t outer = std::exchange(batch_, static_cast<std::int32_t>(self));
      block(batch->body);
      batch_ = outer;
    }
  }

  void append(const Operation& operation) {
    flat::Operation flat{.source = &operation,
                         .stream = batch_ >= 0 ? StreamId() : operation.stream,
                         .batch = batch_};
    if (auto mistake = flag_mistake(operation)) throw InputError(*std::move(mistake));
    resolve_.limit(1);
    flat.name = resolve_.numbers(operation.name.indices);
    if (operation.name.name.empty()) flat.loops = loop_values();
    flat.after = index_.dependencies(operation, resolve_);
    std::visit([&](const auto& action) { resolve_.action(action, flat); }, operation.action);
    if (operation.work) flat.work = resolve_.work(*operation.work);
    if (flat.stream.exists()) flat.continues_call = continues_call(operation);
    result_.operations.push_back(flat);
    if (!operation.name.name.empty()) index_.add();
  }

  // Also makes the operation the last one of its stream.
  bool continues_call(const Operation& operation) {
    const Operation* const before = std::exchange(last_[operation.stream], &operation);
    if (before == nullptr || !before->joined || !operation.joined) return false;
    return std::get<Compute>(before->action).kernel == std::get<Compute>(operation.action).kernel;
  }

  flat::Slice loop_values() {
    const flat::Slice slice{.first = static_cast<std::int32_t>(result_.numbers.size()),
                            .count = static_cast<std::int32_t>(loop_values_.size())};
    resolve_.limit(slice.count);
    result_.numbers.insert(result_.numbers.end(), loop_values_.begin(), loop_values_.end());
    return slice;
  }

  const Program& program_;
  const ExpandLimits limits_;
  RankProgram result_;
  Resolver resolve_;
  OperationIndex index_;
  std::int64_t iterations_ = 0;
  std::vector<std::int64_t> loop_values_;  // of the loops around the statement
  IdVector<StreamId, const Operation*> last_;
  std::int32_t batch_ = -1;
};

ProgramId program_of(const Plan& plan, Rank rank) {
  for (std::size_t k = 0; k < plan.programs.size(); ++k) {
    if (selects(plan.programs[k].on, plan.mesh, rank)) return ProgramId(k);
  }
  return {};
}

}  // namespace

RankProgram expand(const Plan& plan, Rank rank, ProgramId program, const ExpandLimits& limits,
                   RankProgram reuse) {
  if (rank.value < 0 || rank.value >= plan.mesh.ranks()) {
    throw InputError(
        Diagnostic{.code = "D202",
                   .what = fmt::format("there is no rank {}", rank.value),
                   .why = fmt::format("the mesh has ranks 0 to {}", plan.mesh.ranks() - 1)});
  }
  reuse.clear();
  if (program.exists()) {
    return Expander(plan, rank, program, limits, std::move(reuse)).expand();
  }
  RankProgram spare;
  spare.plan = &plan;
  spare.rank = rank;
  return spare;
}

RankProgram expand(const Plan& plan, Rank rank, const ExpandLimits& limits) {
  return expand(plan, rank, program_of(plan, rank), limits);
}

void RankProgram::clear() {
  buffers.clear();
  given.clear();
  goal.clear();
  operations.clear();
  groups.clear();
  accesses.clear();
  runs.clear();
  dependencies.clear();
  numbers.clear();
  listed_rows.clear();
  absent.clear();
  iterations = 0;
}

std::string RankProgram::describe(const flat::Operation& op) const {
  std::string text = op.source->name.name;
  for (std::int32_t k = 0; k < op.name.count; ++k) {
    text += fmt::format("{}{}", k == 0 ? "[" : ",", numbers[op.name.first + k]);
  }
  if (op.name.count > 0) text += "]";
  text = described(std::move(text), op.source->action);
  if (op.loops.count == 0) return text;
  std::vector<const Repeat*> loops;
  find_loops(plan->programs[program].body, *op.source, loops);
  ensure(std::ssize(loops) == op.loops.count, "an operation is in its program");
  for (std::int32_t k = 0; k < op.loops.count; ++k) {
    text += fmt::format("{}{}={}", k == 0 ? " [" : ",", loops[k]->variable,
                        numbers[op.loops.first + k]);
  }
  return text + "]";
}

Where RankProgram::where(const flat::Operation& op) const {
  Where where = where_of(*plan, *op.source);
  where.rank = rank.value;
  where.operation = describe(op);
  return where;
}

}  // namespace shiplap::plan
