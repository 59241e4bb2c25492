// Messages of one rank: starting, completing and timing them out.
//
// Order. A plan's sends and receives are matched in program order per (peer, channel, tag).
// Receives are therefore posted as soon as they may start, in program order, and a transport
// delivers messages between two ranks in order up to Communicator::eager_limit bytes. Longer
// messages could overtake each other, so they are split into chunks of that size, each a message of
// its own with the same tag.
//
// Length mismatch. Chunks are completed in order. A chunk that is shorter than expected, before the
// last one, was the end of a message that is shorter than this one (D303); the receive must not
// wait for chunks that never arrive.
//
// Receives that add go to a staging buffer and are added when they are complete.
//
// Progress. There is no callback from the transport: whoever owns an InFlightMessages polls it. A
// ChannelWorker spins for kSpinRounds, then sleeps kPollInterval between polls (a message that is
// posted wakes it at once). Timeouts are checked only after spinning.
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

std::vector<std::byte>* StagingBuffers::acquire(std::size_t bytes) {
  std::vector<std::byte>* buffer = nullptr;
  if (free_.empty()) {
    buffer = &all_.emplace_back();
  } else {
    buffer = free_.back();
    free_.pop_back();
  }
  buffer->resize(bytes);
  return buffer;
}

Message start_message(const MessageContext& context, std::int32_t index) {
  const plan::flat::Operation& op = context.memory.program().operations[index];
  comm::Communicator& channel = *context.communicators.channels.at(*message_channel(op));
  const int peer = op.peer.value;
  const int tag = context.communicators.tag(op.tag);
  Message message{.index = index, .op = &op, .last_progress = CompletionTracker::now()};
  std::span<std::byte> rest = context.memory.rows(is_send(op) ? op.from : op.to);
  if (is_added(op)) {
    message.staging_buffer = context.staging.acquire(rest.size());
    rest = std::span(*message.staging_buffer);
  }
  message.chunk_bytes = channel.eager_limit(peer);
  do {  // at least one chunk: empty messages are sent too
    const auto chunk = rest.first(std::min(rest.size(), message.chunk_bytes));
    message.chunks.push_back(is_send(op)
                                 ? channel.isend(std::span<const std::byte>(chunk), peer, tag)
                                 : channel.ireceive(chunk, peer, tag));
    rest = rest.subspan(chunk.size());
  } while (!rest.empty());
  return message;
}

namespace {

[[noreturn]] void throw_length_mismatch(const MessageContext& context, const Message& message) {
  const plan::RankProgram& program = context.memory.program();
  const plan::flat::Operation& op = *message.op;
  throw comm::Mismatch(
      Diagnostic{
          .code = "D303",
          .where = {.rank = program.rank.value},
          .what = fmt::format("rank {} sends {} bytes to rank {}, which expects {}", op.peer.value,
                              message.received_bytes, program.rank.value, program.bytes_of(op.to))},
      {op.peer.value});
}

// Waits for the next chunk. Throws D303 if it shows that the sender's message is shorter.
void complete_chunk(const MessageContext& context, Message& message) {
  message.received_bytes += message.chunks[message.completed_chunks].wait();
  message.last_progress = CompletionTracker::now();
  if (++message.completed_chunks == message.chunks.size() || is_send(*message.op)) return;
  const auto expected = static_cast<std::int64_t>(message.completed_chunks * message.chunk_bytes);
  if (message.received_bytes != expected) throw_length_mismatch(context, message);
}

}  // namespace

void finish_message(const MessageContext& context, Message& message) {
  const plan::flat::Operation& op = *message.op;
  while (message.completed_chunks < message.chunks.size()) complete_chunk(context, message);
  if (is_send(op)) return;
  if (message.received_bytes != context.memory.program().bytes_of(op.to))
    throw_length_mismatch(context, message);
  if (message.staging_buffer == nullptr) return;
  add(context.memory.type(op.to.buffer), context.memory.rows(op.to), *message.staging_buffer);
  context.staging.release(std::exchange(message.staging_buffer, nullptr));
}

// ---- messages in flight

void InFlightMessages::start(std::int32_t op) {
  callbacks_.on_start(op);
  with_location(context_.memory.program(), op,
                [&] { messages_.push_back(start_message(context_, op)); });
}

std::int64_t InFlightMessages::poll() {
  std::int64_t completed = 0;
  const auto ended = [&](Message& message) {
    bool is_complete = false;
    with_location(context_.memory.program(), message.index, [&] {
      while (message.completed_chunks < message.chunks.size() &&
             message.chunks[message.completed_chunks].test(tracker_.is_idle())) {
        complete_chunk(context_, message);
      }
      is_complete = message.completed_chunks == message.chunks.size();
      if (is_complete) finish_message(context_, message);
    });
    if (!is_complete) return false;
    callbacks_.on_complete(message.index);
    ++completed;
    return true;
  };
  messages_.remove_if(ended);
  return completed;
}

void InFlightMessages::check_timeout() {
  Message& message = messages_.front();
  const comm::Communicator& channel =
      *context_.communicators.channels.at(*message_channel(*message.op));
  const double since = std::max(message.last_progress, tracker_.idle_since().value);
  if (CompletionTracker::now() - since < channel.timeout().value) return;
  with_location(context_.memory.program(), message.index,
                [&] { message.chunks[message.completed_chunks].time_out(); });
}

// ---- progress loop of a channel

void ChannelWorker::post(std::int32_t op) {
  const std::lock_guard lock(mutex_);
  posted_.push_back(op);
  changed_.notify_all();
}

void ChannelWorker::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::vector<std::int32_t> ChannelWorker::take_posted(int idle_rounds) {
  std::unique_lock lock(mutex_);
  const auto is_woken = [&] { return !posted_.empty() || tracker_.is_cancelled(); };
  if (in_flight_.empty()) {
    changed_.wait(lock, is_woken);
  } else if (idle_rounds > kSpinRounds) {
    changed_.wait_for(lock, kPollInterval, is_woken);
  }
  if (tracker_.is_cancelled()) throw Cancelled{};
  return std::exchange(posted_, {});
}

void ChannelWorker::run(std::int64_t count) {
  int idle_rounds = 0;
  for (std::int64_t done = 0; done < count;) {
    const std::vector<std::int32_t> posted = take_posted(idle_rounds);
    for (const std::int32_t op : posted) in_flight_.start(op);
    const std::int64_t completed = in_flight_.poll();
    done += completed;
    idle_rounds = posted.empty() && completed == 0 ? idle_rounds + 1 : 0;
    if (idle_rounds <= kSpinRounds) {
      std::this_thread::yield();
    } else if (!in_flight_.empty()) {
      in_flight_.check_timeout();
    }
  }
}

}  // namespace shiplap::run
