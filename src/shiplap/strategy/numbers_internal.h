// Visits every number of a recorded program, in a fixed order.
#pragma once

#include <cstdint>
#include <variant>

#include "shiplap/base/error.h"
#include "shiplap/plan/plan.h"

namespace shiplap::strategy {

// Calls visit(Expr&) for each number and visit_peer(Peer&) for each peer. `Program` may be const.
template <class Visit, class VisitPeer>
class NumberVisitor {
 public:
  NumberVisitor(const Visit& visit, const VisitPeer& visit_peer)
      : visit_(visit), visit_peer_(visit_peer) {}

  template <class Program>
  void program(Program& program) const {
    for (auto& buffer : program.buffers) {
      visit_(buffer.rows);
      visit_(buffer.row_bytes);
    }
    for (auto& statement : program.body) {
      if (auto* fact = std::get_if<plan::Fact>(&statement.node)) {
        region(fact->region);
        value(fact->value);
      } else if (auto* op = std::get_if<plan::Operation>(&statement.node)) {
        operation(*op);
      } else {
        throw InternalError("a recorded program has facts and operations only");
      }
    }
  }

 private:
  template <class Region>
  void region(Region& region) const {
    visit_(region.begin);
    visit_(region.count);
  }
  template <class Value>
  void value(Value& value) const {
    visit_(value.index);
    for (auto& run : value.runs) {
      visit_(run.begin);
      visit_(run.count);
      visit_(run.stride);
    }
  }
  template <class Reference>
  void reference(Reference& reference) const {
    for (auto& index : reference.indices) visit_(index);
  }
  template <class Operation>
  void operation(Operation& operation) const {
    reference(operation.name);
    for (auto& other : operation.after) reference(other);
    if (operation.work) {
      visit_(operation.work->flop);
      visit_(operation.work->bytes);
    }
    if (auto* compute = std::get_if<plan::Compute>(&operation.action)) {
      for (auto& access : compute->accesses) {
        region(access.region);
        value(access.value);
      }
    } else if (auto* send = std::get_if<plan::Send>(&operation.action)) {
      region(send->from);
      visit_peer_(send->peer);
      visit_(send->tag);
    } else if (auto* receive = std::get_if<plan::Receive>(&operation.action)) {
      region(receive->to);
      visit_peer_(receive->peer);
      visit_(receive->tag);
    } else if (auto* collective = std::get_if<plan::Collective>(&operation.action)) {
      region(collective->from);
      region(collective->to);
    } else if (auto* allocate = std::get_if<plan::Allocate>(&operation.action)) {
      region(allocate->rows);
    } else if (auto* free = std::get_if<plan::Free>(&operation.action)) {
      region(free->rows);
    } else {
      throw InternalError("a recorded program has no such action");
    }
  }

  const Visit& visit_;
  const VisitPeer& visit_peer_;
};

}  // namespace shiplap::strategy
