// Messages between threads, eager up to ThreadOptions::eager_limit and rendezvous above. The second
// of send and receive copies straight from buffer to buffer, without the mutex.
#include <fmt/format.h>

#include <cstring>

#include "shiplap/comm/threads/world_internal.h"

namespace shiplap::comm {

class ThreadRequest : public Request::State {
 public:
  enum class End { send, receive };
  ThreadRequest(ThreadCommunicator& communicator, std::shared_ptr<Transfer> transfer, End end,
                const ThreadMatchKey& key)
      : communicator_(communicator), transfer_(std::move(transfer)), end_(end), key_(key) {}
  ~ThreadRequest() override;
  bool test(bool waits) override;
  void wait() override;
  void time_out() override;
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

 private:
  [[nodiscard]] bool complete() const SHIPLAP_REQUIRES(communicator_.world_->mutex) {
    return end_ == End::send ? transfer_->sent : transfer_->received;
  }
  // REQUIRES: complete. An eager send does not know the length of its receive.
  void check_length() SHIPLAP_REQUIRES(communicator_.world_->mutex) {
    bytes_ = std::ssize(transfer_->source);
    const bool knows = end_ == End::receive || transfer_->eager.empty();
    if (knows && transfer_->too_long) {
      communicator_.fail_too_long(transfer_->sender, std::ssize(transfer_->target));
    }
  }
  [[noreturn]] void fail_message_timeout() const {
    const bool sends = end_ == End::send;
    const int peer = sends ? key_.to : key_.from;
    communicator_.fail_operation_timeout(
        fmt::format("{} rank {} (tag {})", sends ? "send to" : "receive from", peer, key_.tag),
        {peer});
  }

  ThreadCommunicator& communicator_;
  std::shared_ptr<Transfer> transfer_ SHIPLAP_GUARDED_BY(communicator_.world_->mutex);
  End end_;
  ThreadMatchKey key_;
  std::int64_t bytes_ = 0;
};

bool ThreadRequest::test(bool /*waits*/) {
  const MutexLock lock(communicator_.world_->mutex);
  if (!complete()) {
    communicator_.check_alive();
    communicator_.check_aborted();
    return false;
  }
  check_length();
  return true;
}

void ThreadRequest::wait() {
  const MutexLock lock(communicator_.world_->mutex);
  if (!complete()) communicator_.check_alive();
  const auto end = communicator_.timeout_end();
  while (!complete()) {
    if (!communicator_.sleep_until(end) && !complete()) fail_message_timeout();
  }
  check_length();
}

void ThreadRequest::time_out() {
  const MutexLock lock(communicator_.world_->mutex);
  if (!complete()) {
    communicator_.check_alive();
    communicator_.check_aborted();
    fail_message_timeout();
  }
  check_length();
}

ThreadRequest::~ThreadRequest() {
  ThreadWorld& world = *communicator_.world_;
  const MutexLock lock(world.mutex);
  if (complete()) return;
  if (!transfer_->claimed) {
    // It has not matched: remove it from its queue.
    ThreadMatchQueue& queue = world.match_queues[key_];
    (end_ == End::send ? queue.sends : queue.receives).remove(transfer_);
    if (queue.empty()) world.match_queues.erase(key_);
    return;
  }
  // The other end is copying.
  while (!complete()) communicator_.wakeup().wait(world.mutex);
}

void ThreadCommunicator::complete(Transfer& transfer) {
  const bool fits = transfer.source.size() <= transfer.target.size();
  if (fits && !transfer.source.empty()) {
    std::memcpy(transfer.target.data(), transfer.source.data(), transfer.source.size());
  }
  const MutexLock lock(world_->mutex);
  transfer.too_long = !fits;
  transfer.sent = true;
  transfer.received = true;
  world_->wake[transfer.sender].notify_all();
  world_->wake[transfer.receiver].notify_all();
}

Request ThreadCommunicator::start_send(std::span<const std::byte> data, int to, int tag) {
  const ThreadMatchKey key{.group = group_->id, .from = self(), .to = world_rank(to), .tag = tag};
  std::shared_ptr<Transfer> transfer;
  bool matched = false;
  {
    const MutexLock lock(world_->mutex);
    check_aborted();
    ThreadMatchQueue& queue = world_->match_queues[key];
    matched = !queue.receives.empty();
    if (matched) {
      transfer = std::move(queue.receives.front());
      queue.receives.pop_front();
      if (queue.empty()) world_->match_queues.erase(key);
      transfer->claimed = true;
    } else {
      transfer = std::make_shared<Transfer>();
      queue.sends.push_back(transfer);
    }
    transfer->source = data;
    transfer->sender = key.from;
    transfer->receiver = key.to;
    if (!matched && data.size() <= world_->eager_limit) {
      transfer->eager.assign(data.begin(), data.end());
      transfer->source = transfer->eager;
      transfer->sent = true;
    }
  }
  if (matched) complete(*transfer);
  return Request(
      std::make_unique<ThreadRequest>(*this, std::move(transfer), ThreadRequest::End::send, key));
}

Request ThreadCommunicator::start_receive(std::span<std::byte> data, int from, int tag) {
  const ThreadMatchKey key{.group = group_->id, .from = world_rank(from), .to = self(), .tag = tag};
  std::shared_ptr<Transfer> transfer;
  bool matched = false;
  {
    const MutexLock lock(world_->mutex);
    ThreadMatchQueue& queue = world_->match_queues[key];
    matched = !queue.sends.empty();
    if (matched) {
      transfer = std::move(queue.sends.front());
      queue.sends.pop_front();
      if (queue.empty()) world_->match_queues.erase(key);
      transfer->claimed = true;
    } else {
      check_aborted();
      transfer = std::make_shared<Transfer>();
      queue.receives.push_back(transfer);
    }
    transfer->target = data;
    transfer->sender = key.from;
    transfer->receiver = key.to;
  }
  if (matched) complete(*transfer);
  return Request(std::make_unique<ThreadRequest>(*this, std::move(transfer),
                                                 ThreadRequest::End::receive, key));
}

}  // namespace shiplap::comm
