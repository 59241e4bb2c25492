#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "shiplap/run/arithmetic_internal.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/messages_internal.h"

namespace shiplap::run {
namespace {

// How often to ask again at once, and how long to sleep between questions afterwards.
constexpr int kEagerRounds = 100;
constexpr std::chrono::microseconds kPause{50};

bool is_send(const plan::flat::Operation& op) {
  return std::holds_alternative<plan::Send>(op.source->action);
}

bool is_added(const plan::flat::Operation& op) {
  const auto* const receive = std::get_if<plan::Receive>(&op.source->action);
  return receive != nullptr && receive->add;
}

}  // namespace

std::vector<std::byte>* Parcels::take(std::size_t bytes) {
  std::vector<std::byte>* parcel = nullptr;
  if (free_.empty()) {
    parcel = &all_.emplace_back();
  } else {
    parcel = free_.back();
    free_.pop_back();
  }
  parcel->resize(bytes);
  return parcel;
}

Message start_message(const MessageContext& context, std::int32_t index) {
  const plan::flat::Operation& op =
      context.memory.program().operations[static_cast<std::size_t>(index)];
  comm::Communicator& channel = *context.links.channels.at(*message_channel(op));
  const int tag = context.links.tag(op.tag);
  Message message{.index = index, .op = &op, .since = Board::now()};
  if (is_send(op)) {
    const std::span<const std::byte> bytes = context.memory.rows(op.from);
    message.request = channel.isend(bytes, op.peer.value, tag);
    return message;
  }
  std::span<std::byte> bytes = context.memory.rows(op.to);
  if (is_added(op)) {
    message.parcel = context.parcels.take(bytes.size());
    bytes = std::span(*message.parcel);
  }
  message.request = channel.ireceive(bytes, op.peer.value, tag);
  return message;
}

void finish_message(const MessageContext& context, Message& message) {
  const plan::flat::Operation& op = *message.op;
  const std::int64_t arrived = message.request.wait();
  if (is_send(op)) return;
  const plan::RankProgram& program = context.memory.program();
  if (arrived != program.bytes_of(op.to)) {
    throw comm::Mismatch(
        Diagnostic{.code = "D303",
                   .where = {.rank = program.rank.value},
                   .what = fmt::format("rank {} sends {} bytes to rank {}, which expects {}",
                                       op.peer.value, arrived, program.rank.value,
                                       program.bytes_of(op.to))},
        {op.peer.value});
  }
  if (message.parcel == nullptr) return;
  add(context.memory.type(op.to.buffer), context.memory.rows(op.to), *message.parcel);
  context.parcels.give_back(std::exchange(message.parcel, nullptr));
}

void MessageLane::post(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  posts_.push_back(op);
  changed_.notify_all();
}

void MessageLane::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::vector<std::int32_t> MessageLane::posted(bool nothing_under_way, int idle_rounds) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return !posts_.empty() || board_.is_stopped(); };
  if (nothing_under_way) {
    changed_.wait(lock, is_there);
  } else if (idle_rounds > kEagerRounds) {
    changed_.wait_for(lock, kPause, is_there);
  }
  if (board_.is_stopped()) throw Stopped{};
  return std::exchange(posts_, {});
}

// A test has no deadline of its own. A message is late when it, and everything else on this rank,
// has waited for so long.
void MessageLane::check_deadline(const Message& message) const {
  const plan::flat::Operation& op = *message.op;
  const comm::Communicator& channel = *context_.links.channels.at(*message_channel(op));
  const double since = std::max(message.since, board_.idle_since().value);
  if (Board::now() - since < channel.timeout().value) return;
  throw comm::DeadlinePassed(
      Diagnostic{.code = "D301",
                 .where = {.rank = context_.memory.program().rank.value},
                 .what = fmt::format("{} rank {} (tag {}) in `{}` did not end within {}",
                                     is_send(op) ? "send to" : "receive from", op.peer.value,
                                     op.tag, channel.name(), to_string(channel.timeout())),
                 .why = fmt::format("not there: rank {}", op.peer.value)},
      {op.peer.value});
}

void MessageLane::run(std::int64_t count) {
  std::list<Message> under_way;
  int idle_rounds = 0;
  for (std::int64_t done = 0; done < count;) {
    for (const std::int32_t op : posted(under_way.empty(), idle_rounds)) {
      hooks_.begun(op);
      located(context_.memory.program(), op,
              [&] { under_way.push_back(start_message(context_, op)); });
      idle_rounds = 0;
    }
    ++idle_rounds;
    for (auto message = under_way.begin(); message != under_way.end();) {
      bool is_complete = false;
      located(context_.memory.program(), message->index, [&] {
        is_complete = message->request.test();
        if (is_complete) finish_message(context_, *message);
      });
      if (!is_complete) {
        ++message;
        continue;
      }
      hooks_.ended(message->index);
      message = under_way.erase(message);
      idle_rounds = 0;
      ++done;
    }
    if (idle_rounds <= kEagerRounds) {
      std::this_thread::yield();
    } else if (!under_way.empty()) {
      located(context_.memory.program(), under_way.front().index,
              [&] { check_deadline(under_way.front()); });
    }
  }
}

}  // namespace shiplap::run
