// Sends and receives of a plan. Many of them are in flight at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/run/communicator_set_internal.h"
#include "shiplap/run/completion_tracker_internal.h"
#include "shiplap/run/memory_internal.h"

namespace shiplap::run {

// Pool of buffers for receives that add: data arrives here first. Reused across steps.
class StagingBuffers {
 public:
  std::vector<std::byte>* acquire(std::size_t bytes);
  void release(std::vector<std::byte>* buffer) { free_.push_back(buffer); }

 private:
  std::list<std::vector<std::byte>> all_;
  std::vector<std::vector<std::byte>*> free_;
};

struct MessageContext {
  const RankMemory& memory;
  const CommunicatorSet& communicators;
  StagingBuffers& staging;
};

// One message. A message above Communicator::eager_limit is split into chunks, so that messages
// arrive in the order in which they start.
struct Message {
  std::int32_t index = 0;
  const plan::flat::Operation* op = nullptr;
  std::vector<std::byte>* staging_buffer = nullptr;  // for a receive that adds
  double last_progress = 0;                          // time of the start or of the last chunk
  std::vector<comm::Request> chunks;
  std::size_t chunk_bytes = 0;       // of each chunk but the last
  std::size_t completed_chunks = 0;  // a prefix of `chunks`
  std::int64_t received_bytes = 0;   // in completed chunks
};

[[nodiscard]] Message start_message(const MessageContext& context, std::int32_t index);
// Blocks until the message is complete and adds it if the receive adds. Throws D303 on a length
// mismatch.
void finish_message(const MessageContext& context, Message& message);

// Messages that have started and are not complete, in order of start. Not thread-safe.
class InFlightMessages {
 public:
  struct Callbacks {
    std::function<void(std::int32_t)> on_start;
    std::function<void(std::int32_t)> on_complete;
  };
  InFlightMessages(const MessageContext& context, const CompletionTracker& tracker,
                   Callbacks callbacks)
      : context_(context), tracker_(tracker), callbacks_(std::move(callbacks)) {}

  [[nodiscard]] bool empty() const { return messages_.empty(); }
  void start(std::int32_t op);
  // Tests all messages. Returns the number that completed.
  std::int64_t poll();
  // REQUIRES: !empty(). Times out the oldest message if it, and everything else on this rank, have
  // made no progress for the channel's timeout. (Request::test has no timeout of its own.)
  void check_timeout();

 private:
  MessageContext context_;
  const CompletionTracker& tracker_;
  Callbacks callbacks_;
  std::list<Message> messages_;
};

// Without progress, poll this many times in a row, then sleep between polls.
inline constexpr int kSpinRounds = 100;
inline constexpr std::chrono::microseconds kPollInterval{50};

// Progress loop of a channel whose messages are asynchronous or come from several streams. Streams
// post messages when they start; the one thread that calls run() starts and completes them.
class ChannelWorker {
 public:
  ChannelWorker(const MessageContext& context, CompletionTracker& tracker,
                InFlightMessages::Callbacks callbacks)
      : tracker_(tracker), in_flight_(context, tracker, std::move(callbacks)) {}

  void post(std::int32_t op);
  // Wakes the thread, so that it sees a cancelled tracker.
  void wake();
  // Returns when `count` messages are complete. Throws Cancelled if the tracker is cancelled.
  void run(std::int64_t count);

 private:
  [[nodiscard]] std::vector<std::int32_t> take_posted(int idle_rounds);

  CompletionTracker& tracker_;
  InFlightMessages in_flight_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int32_t> posted_;
};

}  // namespace shiplap::run
