// Rules about order and meetings: races, counting, deadlock, collectives, messages, exchanges.
#include <algorithm>
#include <utility>

#include "rules_internal.h"

namespace shiplap::mutations {

using plan::Collective;
using plan::Exchange;
using plan::Expr;
using plan::Operation;
using plan::Receive;
using plan::Region;
using plan::Send;

namespace {

Edits with_operation(Operation operation) { return {{.with = {{std::move(operation)}}}}; }

template <class Action, class Changed>
Edits change(const Site& site, const Changed& changed) {
  const auto* action = action_at<Action>(site);
  if (action == nullptr) return {};
  Action other = *action;
  if (!changed(other)) return {};
  Operation operation = *operation_at(site);
  operation.action = std::move(other);
  return with_operation(std::move(operation));
}

bool can_be_async(const plan::Action& action) {
  return !std::holds_alternative<plan::Compute>(action) &&
         !std::holds_alternative<plan::Allocate>(action) &&
         !std::holds_alternative<plan::Free>(action);
}

// ---- order

Edits drops_after(const Site& site) {
  const Operation* operation = operation_at(site);
  if (operation == nullptr) return {};
  Edits edits;
  for (std::size_t k = 0; k < operation->after.size(); ++k) {
    Operation other = *operation;
    other.after.erase(other.after.begin() + static_cast<std::ptrdiff_t>(k));
    edits.push_back({.with = {{std::move(other)}}});
  }
  return edits;
}

Edits does_not_wait(const Site& site) {
  const Operation* operation = operation_at(site);
  // Members of a batch have no stream of their own.
  if (operation == nullptr || operation->async || !can_be_async(operation->action) ||
      !operation->stream.exists()) {
    return {};
  }
  Operation other = *operation;
  other.async = true;
  return with_operation(std::move(other));
}

Edits on_other_stream(const Site& site) {
  const Operation* operation = operation_at(site);
  if (operation == nullptr || !operation->stream.exists() || site.program.streams.empty()) {
    return {};
  }
  const auto streams = static_cast<std::int32_t>(site.program.streams.size()) + 1;
  Operation other = *operation;
  other.stream = plan::StreamId((operation->stream.value + 1) % streams);
  other.joined = false;
  return with_operation(std::move(other));
}

bool communicates(const Operation& operation) {
  return can_be_async(operation.action) && !std::holds_alternative<plan::Copy>(operation.action);
}

// With the next one that communicates on the same stream.
Edits swaps_communication(const Site& site) {
  const Operation* first = operation_at(site);
  if (first == nullptr || !communicates(*first)) return {};
  for (std::size_t k = site.index + 1; k < site.block.size(); ++k) {
    const auto* second = std::get_if<Operation>(&site.block[k].node);
    if (second == nullptr) return {};
    if (!communicates(*second) || second->stream != first->stream) continue;
    Edit edit{.with = Statements(site.block.begin() + static_cast<std::ptrdiff_t>(site.index),
                                 site.block.begin() + static_cast<std::ptrdiff_t>(k) + 1),
              .count = k + 1 - site.index};
    std::swap(std::get<Operation>(edit.with.front().node).action,
              std::get<Operation>(edit.with.back().node).action);
    return {edit};
  }
  return {};
}

// ---- meetings

Edits skips(const Site& site) {
  const Operation* operation = operation_at(site);
  if (operation == nullptr || !communicates(*operation) || !operation->stream.exists()) return {};
  Operation other = *operation;
  other.async = false;
  other.action = plan::Compute{.kernel = "other"};
  return with_operation(std::move(other));
}

Edits calls_again(const Site& site) {
  const auto* call = action_at<Collective>(site);
  if (call == nullptr || call->from != call->to) return {};
  Operation once = *operation_at(site);
  Operation again = once;
  again.name = {};
  again.async = false;
  return {{.with = {{std::move(once)}, {std::move(again)}}}};
}

Edits other_kind(const Site& site) {
  return change<Collective>(site, [](Collective& call) {
    if (call.kind == CollectiveKind::barrier) return false;
    const bool same_size = call.kind == CollectiveKind::all_reduce ||
                           call.kind == CollectiveKind::broadcast ||
                           call.kind == CollectiveKind::reduce;
    Collective other{
        .kind = CollectiveKind::broadcast, .from = call.from, .to = call.to, .over = call.over};
    if (!same_size) {
      other.kind = call.kind == CollectiveKind::all_gather ? CollectiveKind::all_to_all
                                                           : CollectiveKind::all_gather;
    } else if (call.kind == CollectiveKind::broadcast) {
      other.kind = CollectiveKind::all_reduce;
    }
    call = other;
    return true;
  });
}

bool shorten(Region& region) {
  if (region.kind != Region::Kind::rows || !region.count.is_literal() ||
      region.count.literal() < 2) {
    return false;
  }
  region.count = region.count.literal() - 1;
  return true;
}

Edits fewer_rows(const Site& site) {
  return change<Collective>(
      site, [](Collective& call) { return shorten(call.from) && shorten(call.to); });
}

Edits fewer_rows_sent(const Site& site) {
  Edits edits = change<Send>(site, [](Send& send) { return shorten(send.from); });
  if (!edits.empty()) return edits;
  return change<Receive>(site, [](Receive& receive) { return shorten(receive.to); });
}

DType another(DType type) {
  switch (bytes_of(type)) {
    case 8:
      return type == DType::f64 ? DType::i64 : DType::f64;
    case 4:
      return type == DType::f32 ? DType::i32 : DType::f32;
    case 2:
      return type == DType::bf16 ? DType::f16 : DType::bf16;
    default:
      return type == DType::u8 ? DType::i8 : DType::u8;
  }
}

// In a buffer of its own, of the same size and another type.
Edits other_type(const Site& site) {
  const auto retyped = [&](const std::vector<Region*>& regions, Edits edits) {
    for (Edit& edit : edits) {
      for (Region* region : regions) {
        edit.buffers.push_back(site.program.buffers[region->buffer]);
        edit.buffers.back().name = "retyped" + std::to_string(edit.buffers.size());
        edit.buffers.back().type = another(edit.buffers.back().type);
      }
    }
    return edits;
  };
  const std::size_t next = site.program.buffers.size();
  if (const auto* call = action_at<Collective>(site)) {
    if (call->kind == CollectiveKind::barrier) return {};
    Collective old = *call;
    return retyped({&old.from, &old.to}, change<Collective>(site, [&](Collective& other) {
                     const bool in_place = other.from.buffer == other.to.buffer;
                     other.from.buffer = plan::BufferId(next);
                     other.to.buffer = plan::BufferId(in_place ? next : next + 1);
                     return true;
                   }));
  }
  if (const auto* receive = action_at<Receive>(site)) {
    Receive old = *receive;
    return retyped({&old.to}, change<Receive>(site, [&](Receive& other) {
                     other.to.buffer = plan::BufferId(next);
                     return true;
                   }));
  }
  return {};
}

Edits other_operator_of_one(const Site& site) {
  return change<Collective>(site, [](Collective& call) {
    if (!reduces(call.kind)) return false;
    call.op = ReduceOp::max;
    return true;
  });
}

Edits other_scale_of_one(const Site& site) {
  return change<Collective>(site, [](Collective& call) {
    if (!reduces(call.kind)) return false;
    call.scale = plan::Ratio(call.scale.numerator(), 3 * call.scale.denominator());
    return true;
  });
}

Edits other_root(const Site& site) {
  return change<Collective>(site, [](Collective& call) {
    if (!has_root(call.kind)) return false;
    call.root = call.root == Expr(0) ? Expr(1) : Expr(0);
    return true;
  });
}

Edits other_channel(const Site& site) {
  Edits edits = change<Collective>(site, [](Collective& call) {
    call.over.channel = "elsewhere";
    return true;
  });
  if (edits.empty()) {
    edits = change<Exchange>(site, [](Exchange& exchange) {
      exchange.over.channel = "elsewhere";
      return true;
    });
  }
  return edits;
}

Edits other_channel_of_message(const Site& site) {
  Edits edits = change<Send>(site, [](Send& send) {
    send.channel = "elsewhere";
    return true;
  });
  if (!edits.empty()) return edits;
  return change<Receive>(site, [](Receive& receive) {
    receive.channel = "elsewhere";
    return true;
  });
}

Edits other_tag(const Site& site) {
  Edits edits = change<Send>(site, [](Send& send) {
    send.tag = send.tag + 1000;
    return true;
  });
  if (!edits.empty()) return edits;
  return change<Receive>(site, [](Receive& receive) {
    receive.tag = receive.tag + 1000;
    return true;
  });
}

Edits other_peer_of_send(const Site& site) {
  const std::int64_t ranks = site.plan.mesh.ranks();
  return change<Send>(site, [&](Send& send) {
    if (send.peer.axis.exists() || ranks < 3) return false;
    send.peer.where = mod(send.peer.where + 1, ranks);
    return true;
  });
}

Edits other_direction(const Site& site) {
  return change<Exchange>(site, [](Exchange& exchange) {
    exchange.reversed = !exchange.reversed;
    return true;
  });
}

Edits other_table(const Site& site) {
  const std::size_t tables = site.plan.tables.size();
  return change<Exchange>(site, [&](Exchange& exchange) {
    if (tables < 2) return false;
    exchange.table = plan::TableId((exchange.table.index() + 1) % tables);
    return true;
  });
}

Edits other_split(const Site& site) {
  return change<Collective>(site, [&](Collective& call) {
    if (!call.split.exists()) return false;
    call.split = plan::ListId();
    return true;
  });
}

Edits leaves_out_member(const Site& site) {
  return change<Collective>(site, [&](Collective& call) {
    if (call.over.positions.size() < 2) return false;
    const auto& last = call.over.positions.back();
    // Not itself: that would have no meaning.
    const auto& on = site.program.on.terms;
    if (on.size() == 1 && !on.front().axis.exists() &&
        Expr(on.front().positions.front().first) == last) {
      call.over.positions.erase(call.over.positions.begin());
    } else {
      call.over.positions.pop_back();
    }
    return true;
  });
}

}  // namespace

void add_order_rules(Rules& rules) {
  const std::vector<std::string> races = {"D730", "D731", "D722", "D720",
                                          "D721", "D723", "D733", "D732"};
  rules.push_back({"no races", "an `after` is left out", races, drops_after});
  rules.push_back(
      {"no races", "nobody waits for the end of a communication", races, does_not_wait});
  rules.push_back({"no races", "an operation on another stream", races, on_other_stream});
  rules.push_back({"no wait cycle",
                   "two communications in the other order",
                   {"D720", "D721", "D723", "D719", "D708", "D714", "D703", "D704", "D730",
                    "D731", "D732", "D735", "D733", "D744", "D741", "D742", "D740", "D716",
                    "D743", "D705", "D706", "D722", "D709", "D710", "D745", "D747", "D748"},
                   swaps_communication});
}

void add_matching_rules(Rules& rules) {
  const std::vector<Extent> some = {Extent::one, Extent::corner};
  const auto add = [&](const char* rule, const char* name, std::vector<std::string> codes,
                       std::vector<Edit> (*edits)(const Site&)) {
    rules.push_back({rule, name, std::move(codes), edits, some});
  };
  add("every member makes the same number of calls", "a call, or one end of a message, is left out",
      {"D701", "D711", "D712", "D713", "D709", "D702", "D708", "D717", "D732"}, skips);
  add("every member makes the same number of calls", "a call too many",
      {"D702", "D701", "D703", "D704", "D706", "D707", "D705", "D710", "D709", "D708", "D742"},
      calls_again);
  add("calls agree on kind", "another kind", {"D703", "D704", "D731", "D740"}, other_kind);
  add("calls agree on size", "fewer rows", {"D704", "D710"}, fewer_rows);
  add("calls and messages agree on element type", "another element type", {"D705", "D716", "D732"},
      other_type);
  add("calls agree on operator", "another operator", {"D706", "D746", "D735"},
      other_operator_of_one);
  add("calls agree on scale", "another scale", {"D706", "D745", "D735"}, other_scale_of_one);
  add("calls agree on root", "another root", {"D707"}, other_root);
  add("calls agree on split", "without its split", {"D710", "D704"}, other_split);
  add("calls agree on exchange table and direction", "the other direction",
      {"D710", "D717", "D718"}, other_direction);
  add("calls agree on exchange table and direction", "another table", {"D710", "D717", "D718"},
      other_table);
  add("members agree on the group", "another channel", {"D709", "D701", "D702", "D708"},
      other_channel);
  add("members agree on the group", "a member less", {"D709", "D701", "D702"}, leaves_out_member);
  add("every send has a receive and vice versa", "another channel",
      {"D715", "D711", "D712", "D713"}, other_channel_of_message);
  add("every send has a receive and vice versa", "another tag", {"D715", "D711", "D712", "D713"},
      other_tag);
  add("every send has a receive and vice versa", "another receiver",
      {"D713", "D711", "D712", "D714", "D715", "D716"}, other_peer_of_send);
  add("the ends of a message agree on size", "fewer rows", {"D716", "D714"}, fewer_rows_sent);
}

}  // namespace shiplap::mutations
