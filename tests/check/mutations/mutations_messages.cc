// Bugs in sends and receives.
#include <algorithm>
#include <set>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Batch;
using plan::Operation;
using plan::Receive;
using plan::Send;

namespace {

Send& send_of(const Draft& draft, const Message& message) {
  return std::get<Send>(draft.line(message.send).operation->action);
}
Receive& receive_of(const Draft& draft, const Message& message) {
  return std::get<Receive>(draft.line(message.receive).operation->action);
}

// Those with its key, from it on.
std::vector<Message> same_key_from(const Draft& draft, const Message& message) {
  const Send& own = send_of(draft, message);
  std::vector<Message> found;
  for (const Message& other : messages(draft)) {
    const Send& send = send_of(draft, other);
    if (draft.line(other.send).rank == draft.line(message.send).rank && send.peer == own.peer &&
        send.tag == own.tag && send.channel == own.channel && other.n >= message.n) {
      found.push_back(other);
    }
  }
  return found;
}

}  // namespace

std::optional<Outcome> drop_send(Draft& draft, Planter& planter) {
  return planter.any_of(messages(draft), [&](const Message& message) -> std::optional<Outcome> {
    Outcome outcome{.codes = {"D711"}};
    for (const Message& other : same_key_from(draft, message)) {
      outcome.marks.push_back(other.receive);
    }
    draft.erase(message.send);
    return outcome;
  });
}

std::optional<Outcome> drop_receive(Draft& draft, Planter& planter) {
  return planter.any_of(messages(draft), [&](const Message& message) -> std::optional<Outcome> {
    Outcome outcome{.codes = {"D712"}};
    for (const Message& other : same_key_from(draft, message)) outcome.marks.push_back(other.send);
    draft.erase(message.receive);
    return outcome;
  });
}

std::optional<Outcome> other_peer(Draft& draft, Planter& planter) {
  const std::vector<Message> all = messages(draft);
  return planter.any_of(all, [&](const Message& message) -> std::optional<Outcome> {
    const std::int32_t rank = draft.line(message.send).rank;
    Send& send = send_of(draft, message);
    std::set<std::int64_t> taken = {rank, send.peer.where.literal()};
    for (const Message& other : all) {
      const Send& each = send_of(draft, other);
      if (draft.line(other.send).rank == rank && each.tag == send.tag &&
          each.channel == send.channel) {
        taken.insert(each.peer.where.literal());
      }
    }
    std::vector<std::int64_t> free;
    for (std::int32_t peer = 0; peer < draft.ranks(); ++peer) {
      if (!taken.contains(peer) && draft.program_of(peer) >= 0) free.push_back(peer);
    }
    if (free.empty()) return std::nullopt;
    send.peer.where = planter.random.pick(free);
    return Outcome{.codes = {"D713"}, .marks = {message.send}};
  });
}

std::optional<Outcome> swap_sends(Draft& draft, Planter& planter) {
  const std::vector<Message> all = messages(draft);
  return planter.any_of(all, [&](const Message& first) -> std::optional<Outcome> {
    const auto later = same_key_from(draft, first);
    if (later.size() < 2 || !can_swap(draft, first.send, later[1].send)) return std::nullopt;
    const Message& second = later[1];
    const auto& a = send_of(draft, first);
    const auto& b = send_of(draft, second);
    const auto& x = receive_of(draft, first).to;
    const auto& y = receive_of(draft, second).to;
    if (a.from.buffer != b.from.buffer || a.from.count != b.from.count ||
        overlap(draft, a.from, b.from) || overlap(draft, x, y)) {
      return std::nullopt;
    }
    swap_actions(draft, first.send, second.send);
    return Outcome{.codes = {"D714"}, .marks = {first.send, second.send}};
  });
}

std::optional<Outcome> other_tag(Draft& draft, Planter& planter) {
  return planter.any_of(messages(draft), [&](const Message& message) -> std::optional<Outcome> {
    send_of(draft, message).tag = 987'654;
    return Outcome{.codes = {"D715"}, .marks = {message.send}};
  });
}

std::optional<Outcome> other_size(Draft& draft, Planter& planter) {
  return planter.any_of(messages(draft), [&](const Message& message) -> std::optional<Outcome> {
    Send& send = send_of(draft, message);
    if (send.from.count.literal() < 1) return std::nullopt;
    send.from.count = send.from.count.literal() - 1;
    return Outcome{.codes = {"D716"}, .marks = {message.send}};
  });
}

// ---- cycles

namespace {

// Batches of one send and one receive, each sending to the next.
std::vector<Mark> cycle_of(const Draft& draft, Mark batch, const std::vector<Message>& all) {
  std::vector<Mark> cycle;
  for (Mark at = batch;;) {
    const auto* action = std::get_if<Batch>(&draft.line(at).operation->action);
    if (action == nullptr || action->body.size() != 2) return {};
    cycle.push_back(at);
    Mark next = 0;
    bool receives = false;
    for (const plan::Statement& statement : action->body) {
      const auto& member = std::get<Operation>(statement.node);
      receives = receives || std::holds_alternative<Receive>(member.action);
      const auto message = std::ranges::find(all, member.origin.line, &Message::send);
      if (message != all.end()) next = draft.line(message->receive).batch;
    }
    if (next == 0 || !receives) return {};
    if (next == batch) return cycle;
    if (std::ranges::find(cycle, next) != cycle.end()) return {};
    at = next;
  }
}

// The two members one after the other.
template <class First>
void dissolve(Draft& draft, Mark batch, Outcome& outcome) {
  std::vector<plan::Statement> members = std::get<Batch>(draft.line(batch).operation->action).body;
  if (!std::holds_alternative<First>(std::get<Operation>(members[0].node).action)) {
    std::swap(members[0], members[1]);
  }
  Operation first = *draft.line(batch).operation;
  first.action = std::get<Operation>(members[0].node).action;
  first.async = false;
  outcome.marks.push_back(draft.insert_before(batch, first));
  Operation& second = *draft.line(batch).operation;
  second.action = plan::Action(std::get<Operation>(members[1].node).action);
  outcome.marks.push_back(batch);
  draft.refresh();
}

template <class First>
std::optional<Outcome> break_batch_cycle(Draft& draft, Planter& planter, bool pair) {
  const std::vector<Message> all = messages(draft);
  std::set<Mark> batches;
  for (const Message& message : all) batches.insert(draft.line(message.send).batch);
  batches.erase(0);
  return planter.any_of(std::vector<Mark>(batches.begin(), batches.end()),
                        [&](Mark batch) -> std::optional<Outcome> {
                          const std::vector<Mark> cycle = cycle_of(draft, batch, all);
                          if (cycle.empty() || (cycle.size() == 2) != pair) return std::nullopt;
                          Outcome outcome;
                          for (const Mark each : cycle) dissolve<First>(draft, each, outcome);
                          return outcome;
                        });
}

}  // namespace

std::optional<Outcome> both_receive_first(Draft& draft, Planter& planter) {
  auto outcome = break_batch_cycle<Receive>(draft, planter, true);
  if (outcome) outcome->codes = {"D720"};
  return outcome;
}

std::optional<Outcome> both_send_first(Draft& draft, Planter& planter) {
  auto outcome = break_batch_cycle<Send>(draft, planter, true);
  if (!outcome) return outcome;
  outcome->codes = {"D721"};
  outcome->only_rendezvous = true;
  return outcome;
}

std::optional<Outcome> ring_sends_first(Draft& draft, Planter& planter) {
  auto outcome = break_batch_cycle<Send>(draft, planter, false);
  if (!outcome) return outcome;
  outcome->codes = {"D721"};
  outcome->only_rendezvous = true;
  return outcome;
}

}  // namespace shiplap::mutations
