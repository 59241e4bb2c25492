// Sends and receives of a plan. A lane of its own has many of them under way at a time.
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
#include "shiplap/run/board_internal.h"
#include "shiplap/run/links_internal.h"
#include "shiplap/run/memory_internal.h"

namespace shiplap::run {

// Where messages arrive that are to be added. Kept from step to step.
class Parcels {
 public:
  std::vector<std::byte>* take(std::size_t bytes);
  void give_back(std::vector<std::byte>* parcel) { free_.push_back(parcel); }

 private:
  std::list<std::vector<std::byte>> all_;
  std::vector<std::vector<std::byte>*> free_;
};

struct MessageContext {
  const RankMemory& memory;
  const Links& links;
  Parcels& parcels;
};

// One message. Where long ones would take turns on their way (Communicator::eager_limit) it goes
// in parts, so that what starts first arrives first.
struct Message {
  std::int32_t index = 0;
  const plan::flat::Operation* op = nullptr;
  std::vector<std::byte>* parcel = nullptr;  // if it is to be added
  double since = 0;                          // it started, or a part of it was complete
  std::vector<comm::Request> parts;
  std::size_t part_bytes = 0;  // of each but the last
  std::size_t complete = 0;    // of the parts
  std::int64_t arrived = 0;    // bytes of those
};

[[nodiscard]] Message start_message(const MessageContext& context, std::int32_t index);
// Waits for it, looks at its length, and adds what is to be added.
void finish_message(const MessageContext& context, Message& message);

// Messages that have started and are not complete, in order of start. For one thread.
class UnderWay {
 public:
  // Who is told which message begins and which is complete.
  struct Hooks {
    std::function<void(std::int32_t)> begun;
    std::function<void(std::int32_t)> ended;
  };
  UnderWay(const MessageContext& context, const Board& board, Hooks hooks)
      : context_(context), board_(board), hooks_(std::move(hooks)) {}

  [[nodiscard]] bool empty() const { return messages_.empty(); }
  void start(std::int32_t op);
  // Returns how many are complete now that were not before.
  std::int64_t look();
  // A test has no deadline of its own. The first message is late when it, and everything else on
  // this rank, has waited for so long: it is given up, unless it comes in the last moment.
  void check_deadline();

 private:
  MessageContext context_;
  const Board& board_;
  Hooks hooks_;
  std::list<Message> messages_;
};

// How often to ask again at once while nothing happens, and how long to sleep between questions
// afterwards.
inline constexpr int kEagerRounds = 100;
inline constexpr std::chrono::microseconds kPause{50};

// The messages of one channel that are asynchronous, or come from several streams. Streams post
// them when they start; one thread has them all under way and sees which are complete.
class MessageLane {
 public:
  MessageLane(const MessageContext& context, Board& board, UnderWay::Hooks hooks)
      : board_(board), under_way_(context, board, std::move(hooks)) {}

  void post(std::int32_t op);
  // Wakes the thread, which looks whether the board has stopped.
  void wake();
  // Until `count` messages are complete. Throws Stopped when the board is.
  void run(std::int64_t count);

 private:
  [[nodiscard]] std::vector<std::int32_t> posted(int idle_rounds);

  Board& board_;
  UnderWay under_way_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int32_t> posts_;
};

}  // namespace shiplap::run
