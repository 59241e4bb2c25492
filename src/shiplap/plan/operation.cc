#include "shiplap/plan/operation.h"

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

}  // namespace

bool communicates(const Action& action) {
  return std::holds_alternative<Send>(action) || std::holds_alternative<Receive>(action) ||
         std::holds_alternative<Collective>(action) || std::holds_alternative<Exchange>(action);
}

std::string_view keyword(const Action& action) { return std::visit(Keyword{}, action); }

}  // namespace shiplap::plan
