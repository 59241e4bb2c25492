#include "shiplap/trace/event.h"

#include "shiplap/base/error.h"

namespace shiplap::trace {

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::load_weights:
      return "load_weights";
    case Kind::forward:
      return "forward";
    case Kind::backward:
      return "backward";
    case Kind::backward_input:
      return "backward_input";
    case Kind::backward_weight:
      return "backward_weight";
    case Kind::loss:
      return "loss";
    case Kind::update:
      return "update";
    case Kind::compute:
      return "compute";
    case Kind::copy:
      return "copy";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::broadcast:
      return "broadcast";
    case Kind::reduce:
      return "reduce";
    case Kind::barrier:
      return "barrier";
    case Kind::exchange:
      return "exchange";
    case Kind::send:
      return "send";
    case Kind::recv:
      return "recv";
  }
  throw InternalError("unknown kind of event");
}

bool is_communication(Kind kind) { return kind >= Kind::all_reduce; }

// Collectives have one order in both enumerations (event_test).
Kind kind_of(CollectiveKind collective) {
  return static_cast<Kind>(static_cast<int>(Kind::all_reduce) + static_cast<int>(collective));
}

Kind kind_of_kernel(std::string_view kernel) {
  for (const Kind kind : {Kind::load_weights, Kind::forward, Kind::backward, Kind::backward_input,
                          Kind::backward_weight, Kind::loss, Kind::update}) {
    if (name(kind) == kernel) return kind;
  }
  return Kind::compute;
}

CollectiveKind collective_of(Kind kind) {
  ensure(kind >= Kind::all_reduce && kind <= Kind::barrier, "this is the kind of a collective");
  return static_cast<CollectiveKind>(static_cast<int>(kind) - static_cast<int>(Kind::all_reduce));
}

}  // namespace shiplap::trace
