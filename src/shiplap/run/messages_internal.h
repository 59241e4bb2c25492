// Sends and receives of a plan. A lane of its own has many of them under way at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
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

// One message under way.
struct Message {
  std::int32_t index = 0;
  const plan::flat::Operation* op = nullptr;
  std::vector<std::byte>* parcel = nullptr;  // if it is to be added
  double since = 0;
  comm::Request request;
};

[[nodiscard]] Message start_message(const MessageContext& context, std::int32_t index);
// Once its request is complete: looks at its length, and adds what is to be added.
void finish_message(const MessageContext& context, Message& message);

// The messages of one channel that are asynchronous, or come from several streams. Streams post
// them when they start; one thread has them all under way and sees which are complete.
class MessageLane {
 public:
  // Who is told which message begins and which is complete.
  struct Hooks {
    std::function<void(std::int32_t)> begun;
    std::function<void(std::int32_t)> ended;
  };
  MessageLane(const MessageContext& context, Board& board, Hooks hooks)
      : context_(context), board_(board), hooks_(std::move(hooks)) {}

  void post(std::int32_t op);
  // Wakes the thread, which looks whether the board has stopped.
  void wake();
  // Until `count` messages are complete. Throws Stopped when the board is.
  void run(std::int64_t count);

 private:
  [[nodiscard]] std::vector<std::int32_t> posted(bool nothing_under_way, int idle_rounds);
  void check_deadline(const Message& message) const;

  MessageContext context_;
  Board& board_;
  Hooks hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int32_t> posts_;
};

}  // namespace shiplap::run
