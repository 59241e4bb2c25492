#include <algorithm>
#include <deque>
#include <map>

#include "shiplap/check/execution_internal.h"

namespace shiplap::check {
namespace {

constexpr std::int64_t kMaxLookedAt = 200'000;  // operations, for a short circle

}  // namespace

Execution::Execution(const Job& job, std::int64_t eager_up_to, Values* values, Queues queues)
    : job_(job), eager_up_to_(eager_up_to), values_(values) {
  const std::size_t count = job.scripts.size();
  states_.resize(count);
  members_.resize(count);
  awake_.resize(count);
  for (std::size_t k = 0; k < count; ++k) {
    const Script& script = job.scripts[k];
    states_[k].assign(script.ops.size(), State::waiting);
    next_.push_back(script.first);
    members_[k].assign(script.batches, 0);
    for (const Op& op : script.ops) {
      if (op.member) ++members_[k][script[op.gate].group];
    }
    left_ += std::ssize(script.ops);
    if (queues != Queues::none) queues_.emplace_back(job, script, queues);
  }
  posts_.resize(job.messages);
  arrived_.resize(job.meetings);
}

bool Execution::run() {
  for (std::size_t k = job_.scripts.size(); k-- > 0;) wake(static_cast<std::int32_t>(k));
  while (!ready_.empty()) {
    const std::int32_t script = ready_.back();
    ready_.pop_back();
    awake_[script] = false;
    poll(script);
  }
  return left_ == 0;
}

void Execution::wake(std::int32_t script) {
  if (awake_[script]) return;
  awake_[script] = true;
  ready_.push_back(script);
}

void Execution::poll(std::int32_t script) {
  std::vector<std::int32_t>& next = next_[script];
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int32_t& at : next) {
      while (at >= 0 && can_start({script, at})) {
        const Node node{script, at};
        at = op(node).next;
        start(node);
        moved = true;
      }
    }
  }
}

bool Execution::can_start(Node node) const {
  const Op& here = op(node);
  if (here.gate >= 0) {
    const Node gate{node.script, here.gate};
    const State reached = state(gate);
    if (reached == State::waiting || (reached == State::started && !op(gate).async)) return false;
  }
  const auto is_complete = [&](std::int32_t earlier) {
    return state({node.script, earlier}) == State::complete;
  };
  const Script& script = job_.scripts[node.script];
  return std::ranges::all_of(script.after_of(here), is_complete) &&
         std::ranges::all_of(queued_before(node), is_complete);
}

void Execution::start(Node node) {
  set(node, State::started);
  switch (op(node).act) {
    case Act::send:
      return start_send(node);
    case Act::receive:
      return start_receive(node);
    case Act::collective:
    case Act::exchange:
      return start_call(node);
    case Act::batch:
      return start_batch(node);
    case Act::compute:
    case Act::copy:
    case Act::allocate:
    case Act::free:
      if (values_ != nullptr) values_->act(node.script, node.op);
      return complete(node);
  }
}

void Execution::start_batch(Node node) {
  const Script& script = job_.scripts[node.script];
  const auto number = static_cast<std::size_t>(script[node.op].group);
  if (members_[node.script][number] == 0) return complete(node);
  const std::int32_t end = script.batch_end(node.op);
  for (std::int32_t k = node.op + 1; k < end; ++k) start({node.script, k});
}

Execution::Node Execution::sender(const Op& receive) const {
  const MessageKey& key = job_.keys[receive.group];
  const auto n = static_cast<std::size_t>(receive.n);
  if (n >= key.sends.size()) return {};
  return {job_.script_of[key.from], key.sends[n]};
}

Execution::Node Execution::receiver(const Op& send) const {
  const MessageKey& key = job_.keys[send.group];
  const auto n = static_cast<std::size_t>(send.n);
  if (n >= key.receives.size()) return {};
  return {job_.script_of[key.to], key.receives[n]};
}

void Execution::start_send(Node node) {
  const Op& send = op(node);
  Post& post = posts_[message(send)];
  post.sent = true;
  if (values_ != nullptr) post.data = values_->sent(node.script, node.op);
  const Script& script = job_.scripts[node.script];
  if (post.awaited) {
    const Node other = receiver(send);
    if (values_ != nullptr) values_->received(other.script, other.op, post.data);
    if (!keep_) post.data = {};
    complete(other);
    complete(node);
  } else if (script.bytes(send.from) <= eager_up_to_) {
    complete(node);
  }
}

void Execution::start_receive(Node node) {
  const Op& receive = op(node);
  Post& post = posts_[message(receive)];
  post.awaited = true;
  if (!post.sent) return;
  if (values_ != nullptr) values_->received(node.script, node.op, post.data);
  if (!keep_) post.data = {};
  complete(node);
  const Node other = sender(receive);
  if (state(other) == State::started) complete(other);
}

void Execution::start_call(Node node) {
  const Op& call = op(node);
  const CallGroup& group = job_.groups[call.group];
  std::int32_t& arrived = arrived_[group.first + call.n];
  if (++arrived < std::ssize(group.scripts)) return;
  const auto all = [&](const Member& member) { return member.slot >= 0; };
  if (!std::ranges::all_of(group.members, all)) return;
  if (values_ != nullptr) values_->meet(group, call.n);
  // The last to be woken goes on first, and that should be the first of the group.
  for (std::size_t slot = group.scripts.size(); slot-- > 0;) {
    complete({group.scripts[slot], group.calls[slot][call.n]});
  }
}

void Execution::complete(Node node) {
  set(node, State::complete);
  --left_;
  wake(node.script);
  const Op& here = op(node);
  if (!here.member) return;
  const Script& script = job_.scripts[node.script];
  const auto number = static_cast<std::size_t>(script[here.gate].group);
  std::int32_t& open = members_[node.script][number];
  if (--open == 0) complete({node.script, here.gate});
}

std::vector<Execution::Node> Execution::needs(Node node) const {
  const Op& here = op(node);
  const Script& script = job_.scripts[node.script];
  std::vector<Node> result;
  if (state(node) == State::waiting) {
    if (here.gate >= 0) {
      const Node gate{node.script, here.gate};
      const bool open = state(gate) == State::complete ||
                        (state(gate) == State::started && (op(gate).async || here.member));
      if (!open) result.push_back(gate);
    }
    for (const auto& all : {script.after_of(here), queued_before(node)}) {
      for (const std::int32_t earlier : all) {
        const Node before{node.script, earlier};
        if (state(before) != State::complete) result.push_back(before);
      }
    }
    return result;
  }
  if (here.act == Act::batch) {
    const std::int32_t end = script.batch_end(node.op);
    for (std::int32_t k = node.op + 1; k < end; ++k) {
      if (state({node.script, k}) != State::complete) result.push_back({node.script, k});
    }
  }
  if (here.act == Act::send || here.act == Act::receive) {
    const Node other = here.act == Act::send ? receiver(here) : sender(here);
    if (other.script >= 0) result.push_back(other);
  }
  if (here.act == Act::collective || here.act == Act::exchange) {
    const CallGroup& group = job_.groups[here.group];
    for (std::size_t slot = 0; slot < group.scripts.size(); ++slot) {
      if (static_cast<std::size_t>(here.n) >= group.calls[slot].size()) continue;
      const Node other{group.scripts[slot], group.calls[slot][here.n]};
      if (state(other) == State::waiting) result.push_back(other);
    }
  }
  return result;
}

std::vector<Place> Execution::stuck() const {
  std::vector<Place> result;
  for (std::size_t k = 0; k < states_.size(); ++k) {
    for (std::size_t m = 0; m < states_[k].size(); ++m) {
      const Node node{static_cast<std::int32_t>(k), static_cast<std::int32_t>(m)};
      if (state(node) != State::started || op(node).act == Act::batch) continue;
      result.push_back(place(node));
      break;
    }
  }
  return result;
}

// Breadth first, among operations at most `longest` waits away; `budget` counts those looked at.
std::vector<Execution::Node> Execution::shortest_circle(Node through, std::size_t longest,
                                                        std::int64_t& budget) const {
  struct Step {
    Node from;
    std::size_t length = 0;
  };
  std::map<Node, Step> steps{{through, {}}};
  std::deque<Node> queue{through};
  while (!queue.empty() && budget > 0) {
    const Node node = queue.front();
    queue.pop_front();
    const std::size_t length = steps.at(node).length + 1;
    if (length >= longest) break;
    for (const Node& next : needs(node)) {
      --budget;
      if (next == through) {
        std::vector<Node> path{node};
        while (path.back() != through) path.push_back(steps.at(path.back()).from);
        std::ranges::reverse(path);
        return path;
      }
      if (steps.emplace(next, Step{node, length}).second) queue.push_back(next);
    }
  }
  return {};
}

std::vector<Execution::Wait> Execution::circle() const {
  Node start;
  for (std::size_t k = 0; k < states_.size() && start.script < 0; ++k) {
    const auto open =
        std::ranges::find_if(states_[k], [](State s) { return s != State::complete; });
    if (open == states_[k].end()) continue;
    start = {static_cast<std::int32_t>(k), static_cast<std::int32_t>(open - states_[k].begin())};
  }
  // Everybody needs somebody: following needs leads into a circle.
  std::map<Node, std::size_t> seen;
  std::vector<Node> path;
  for (Node node = start; !seen.contains(node);) {
    seen[node] = path.size();
    path.push_back(node);
    const std::vector<Node> next = needs(node);
    if (next.empty()) return {};
    node = next.front();
    if (seen.contains(node)) {
      path.erase(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(seen[node]));
    }
  }
  // It need not be the shortest. Looking for that is worth some time, not any.
  std::vector<Node> best = path;
  std::int64_t budget = kMaxLookedAt;
  for (const Node& node : path) {
    std::vector<Node> other = shortest_circle(node, best.size(), budget);
    if (!other.empty()) best = std::move(other);
  }
  const auto waits = [&](const Node& node) {
    return state(node) == State::started && op(node).act != Act::batch;
  };
  const auto first = std::ranges::find_if(best, waits);
  if (first == best.end()) return {};
  std::ranges::rotate(best, first);
  std::vector<Wait> result;
  for (std::size_t k = 0; k < best.size(); ++k) {
    if (waits(best[k])) result.push_back({place(best[k]), place(best[(k + 1) % best.size()])});
  }
  // The lowest rank first, so that the answer does not depend on where the search began.
  const auto least = std::ranges::min_element(result, {}, &Wait::waiting);
  std::ranges::rotate(result, least);
  return result;
}

}  // namespace shiplap::check
