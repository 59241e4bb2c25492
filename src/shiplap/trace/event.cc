#include "shiplap/trace/event.h"

#include "shiplap/base/error.h"

namespace shiplap::trace {

std::string_view name(EventKind kind) {
  switch (kind) {
    case EventKind::load_weights:
      return "load_weights";
    case EventKind::forward:
      return "forward";
    case EventKind::backward:
      return "backward";
    case EventKind::backward_input:
      return "backward_input";
    case EventKind::backward_weight:
      return "backward_weight";
    case EventKind::loss:
      return "loss";
    case EventKind::update:
      return "update";
    case EventKind::compute:
      return "compute";
    case EventKind::copy:
      return "copy";
    case EventKind::all_reduce:
      return "all_reduce";
    case EventKind::all_gather:
      return "all_gather";
    case EventKind::reduce_scatter:
      return "reduce_scatter";
    case EventKind::all_to_all:
      return "all_to_all";
    case EventKind::broadcast:
      return "broadcast";
    case EventKind::reduce:
      return "reduce";
    case EventKind::barrier:
      return "barrier";
    case EventKind::exchange:
      return "exchange";
    case EventKind::send:
      return "send";
    case EventKind::recv:
      return "recv";
  }
  throw InternalError("unknown kind of event");
}

bool is_communication(EventKind kind) { return kind >= EventKind::all_reduce; }

EventKind kind_of(CollectiveKind collective) {
  switch (collective) {
    case CollectiveKind::all_reduce:
      return EventKind::all_reduce;
    case CollectiveKind::all_gather:
      return EventKind::all_gather;
    case CollectiveKind::reduce_scatter:
      return EventKind::reduce_scatter;
    case CollectiveKind::all_to_all:
      return EventKind::all_to_all;
    case CollectiveKind::broadcast:
      return EventKind::broadcast;
    case CollectiveKind::reduce:
      return EventKind::reduce;
    case CollectiveKind::barrier:
      return EventKind::barrier;
  }
  throw InternalError("unknown collective");
}

EventKind kind_of_kernel(std::string_view kernel) {
  for (const EventKind kind :
       {EventKind::load_weights, EventKind::forward, EventKind::backward, EventKind::backward_input,
        EventKind::backward_weight, EventKind::loss, EventKind::update}) {
    if (name(kind) == kernel) return kind;
  }
  if (kernel.starts_with("forward_")) return EventKind::forward;
  if (kernel.starts_with("backward_")) return EventKind::backward;
  return EventKind::compute;
}

CollectiveKind collective_of(EventKind kind) {
  for (const CollectiveKind collective : kCollectives) {
    if (kind_of(collective) == kind) return collective;
  }
  throw InternalError("this is not the kind of a collective");
}

}  // namespace shiplap::trace
