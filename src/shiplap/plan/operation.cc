#include "shiplap/plan/operation.h"

#include <fmt/format.h>

namespace shiplap::plan {

namespace {

struct Keyword {
  std::string_view operator()(const Compute&) const { return "compute"; }
  std::string_view operator()(const Copy&) const { return "copy"; }
  std::string_view operator()(const Send&) const { return "send"; }
  std::string_view operator()(const Receive&) const { return "receive"; }
  std::string_view operator()(const Collective& action) const { return name(action.kind); }
  std::string_view operator()(const Exchange&) const { return "exchange"; }
  std::string_view operator()(const Allocate&) const { return "allocate"; }
  std::string_view operator()(const Free&) const { return "free"; }
  std::string_view operator()(const Batch&) const { return "batch"; }
};

bool may_be_async(const Action& action) {
  return !std::holds_alternative<Compute>(action) && !std::holds_alternative<Allocate>(action) &&
         !std::holds_alternative<Free>(action);
}

}  // namespace

bool communicates(const Action& action) {
  return std::holds_alternative<Send>(action) || std::holds_alternative<Receive>(action) ||
         std::holds_alternative<Collective>(action) || std::holds_alternative<Exchange>(action);
}

std::string_view keyword(const Action& action) { return std::visit(Keyword{}, action); }

std::optional<Diagnostic> flag_mistake(const Operation& operation) {
  const bool computes = std::holds_alternative<Compute>(operation.action);
  if (operation.async && !may_be_async(operation.action)) {
    return Diagnostic{
        .code = "D111",
        .what = fmt::format("`{}` cannot be async", keyword(operation.action)),
        .why = "only communication and copies can overlap later operations of their stream",
        .help = computes ? "give it a stream of its own: `@name`" : "leave out `async`"};
  }
  if (operation.joined && !computes) {
    return Diagnostic{.code = "D111",
                      .what = fmt::format("`{}` cannot be joined", keyword(operation.action)),
                      .why = "`joined` makes one launch of neighbouring computations"};
  }
  return std::nullopt;
}

}  // namespace shiplap::plan
