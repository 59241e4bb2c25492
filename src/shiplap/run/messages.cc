#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "shiplap/run/arithmetic_internal.h"
#include "shiplap/run/location_internal.h"
#include "shiplap/run/messages_internal.h"

namespace shiplap::run {
namespace {

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
  const plan::flat::Operation& op = context.memory.program().operations[index];
  comm::Communicator& channel = *context.links.channels.at(*message_channel(op));
  const int peer = op.peer.value;
  const int tag = context.links.tag(op.tag);
  Message message{.index = index, .op = &op, .since = Board::now()};
  std::span<std::byte> rest = context.memory.rows(is_send(op) ? op.from : op.to);
  if (is_added(op)) {
    message.parcel = context.parcels.take(rest.size());
    rest = std::span(*message.parcel);
  }
  message.part_bytes = channel.eager_limit(peer);
  do {  // an empty message is one too
    const auto part = rest.first(std::min(rest.size(), message.part_bytes));
    message.parts.push_back(is_send(op) ? channel.isend(std::span<const std::byte>(part), peer, tag)
                                        : channel.ireceive(part, peer, tag));
    rest = rest.subspan(part.size());
  } while (!rest.empty());
  return message;
}

namespace {

[[noreturn]] void refuse_length(const MessageContext& context, const Message& message) {
  const plan::RankProgram& program = context.memory.program();
  const plan::flat::Operation& op = *message.op;
  throw comm::Mismatch(
      Diagnostic{
          .code = "D303",
          .where = {.rank = program.rank.value},
          .what = fmt::format("rank {} sends {} bytes to rank {}, which expects {}", op.peer.value,
                              message.arrived, program.rank.value, program.bytes_of(op.to))},
      {op.peer.value});
}

// The next part, which is complete or is waited for. One that is short was the last of a message
// that is shorter than this one.
void take_part(const MessageContext& context, Message& message) {
  message.arrived += message.parts[message.complete].wait();
  message.since = Board::now();
  if (++message.complete == message.parts.size() || is_send(*message.op)) return;
  const auto expected = static_cast<std::int64_t>(message.complete * message.part_bytes);
  if (message.arrived != expected) refuse_length(context, message);
}

}  // namespace

void finish_message(const MessageContext& context, Message& message) {
  const plan::flat::Operation& op = *message.op;
  while (message.complete < message.parts.size()) take_part(context, message);
  if (is_send(op)) return;
  if (message.arrived != context.memory.program().bytes_of(op.to)) refuse_length(context, message);
  if (message.parcel == nullptr) return;
  add(context.memory.type(op.to.buffer), context.memory.rows(op.to), *message.parcel);
  context.parcels.give_back(std::exchange(message.parcel, nullptr));
}

// ---- under way

void UnderWay::start(std::int32_t op) {
  hooks_.begun(op);
  located(context_.memory.program(), op, [&] { messages_.push_back(start_message(context_, op)); });
}

std::int64_t UnderWay::look() {
  std::int64_t completed = 0;
  const auto ended = [&](Message& message) {
    bool is_complete = false;
    located(context_.memory.program(), message.index, [&] {
      while (message.complete < message.parts.size() &&
             message.parts[message.complete].test(board_.is_idle())) {
        take_part(context_, message);
      }
      is_complete = message.complete == message.parts.size();
      if (is_complete) finish_message(context_, message);
    });
    if (!is_complete) return false;
    hooks_.ended(message.index);
    ++completed;
    return true;
  };
  messages_.remove_if(ended);
  return completed;
}

void UnderWay::check_deadline() {
  Message& message = messages_.front();
  const comm::Communicator& channel = *context_.links.channels.at(*message_channel(*message.op));
  const double since = std::max(message.since, board_.idle_since().value);
  if (Board::now() - since < channel.timeout().value) return;
  located(context_.memory.program(), message.index,
          [&] { message.parts[message.complete].time_out(); });
}

// ---- a lane

void MessageLane::post(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  posts_.push_back(op);
  changed_.notify_all();
}

void MessageLane::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::vector<std::int32_t> MessageLane::posted(int idle_rounds) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] { return !posts_.empty() || board_.is_stopped(); };
  if (under_way_.empty()) {
    changed_.wait(lock, is_there);
  } else if (idle_rounds > kEagerRounds) {
    changed_.wait_for(lock, kPause, is_there);
  }
  if (board_.is_stopped()) throw Stopped{};
  return std::exchange(posts_, {});
}

void MessageLane::run(std::int64_t count) {
  int idle_rounds = 0;
  for (std::int64_t done = 0; done < count;) {
    const std::vector<std::int32_t> posts = posted(idle_rounds);
    for (const std::int32_t op : posts) under_way_.start(op);
    const std::int64_t completed = under_way_.look();
    done += completed;
    idle_rounds = posts.empty() && completed == 0 ? idle_rounds + 1 : 0;
    if (idle_rounds <= kEagerRounds) {
      std::this_thread::yield();
    } else if (!under_way_.empty()) {
      under_way_.check_deadline();
    }
  }
}

}  // namespace shiplap::run
