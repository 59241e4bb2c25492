#include "shiplap/postmortem/postmortem.h"

namespace shiplap::postmortem {

std::string_view name(FaultClass fault) {
  switch (fault) {
    case FaultClass::absent:
      return "absent";
    case FaultClass::cpu_stuck:
      return "cpu_stuck";
    case FaultClass::divergence:
      return "divergence";
    case FaultClass::device_stuck:
      return "device_stuck";
    case FaultClass::order_across_groups:
      return "order_across_groups";
    case FaultClass::message_cycle:
      return "message_cycle";
    case FaultClass::slow:
      return "slow";
  }
  return "";
}

std::string_view name(Divergence divergence) {
  switch (divergence) {
    case Divergence::none:
      return "none";
    case Divergence::operation:
      return "operation";
    case Divergence::size:
      return "size";
    case Divergence::dtype:
      return "dtype";
    case Divergence::group:
      return "group";
    case Divergence::skipped:
      return "skipped";
    case Divergence::extra:
      return "extra";
    case Divergence::order:
      return "order";
    case Divergence::peer:
      return "peer";
    case Divergence::splits:
      return "splits";
    case Divergence::membership:
      return "membership";
  }
  return "";
}

std::string_view name(HangStatus status) {
  switch (status) {
    case HangStatus::hung:
      return "hung";
    case HangStatus::slow:
      return "slow";
    case HangStatus::undecided:
      return "undecided";
    case HangStatus::finished:
      return "finished";
  }
  return "";
}

std::string_view name(Position::State state) {
  switch (state) {
    case Position::State::no_dump:
      return "no dump";
    case Position::State::waits:
      return "waits";
    case Position::State::free:
      return "not waiting";
  }
  return "";
}

std::string_view name(PlannedPosition::Relation relation) {
  switch (relation) {
    case PlannedPosition::Relation::follows:
      return "follows";
    case PlannedPosition::Relation::skips:
      return "skips";
    case PlannedPosition::Relation::adds:
      return "adds";
    case PlannedPosition::Relation::changes:
      return "changes";
  }
  return "";
}

}  // namespace shiplap::postmortem
