// The order in which collectives post their messages. tests/comm tests what they compute.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/comm/messages_internal.h"

namespace shiplap::comm {
namespace {

class CompleteRequest final : public Request::State {
 public:
  explicit CompleteRequest(std::size_t bytes) : bytes_(static_cast<std::int64_t>(bytes)) {}
  bool test(bool /*waits*/) override { return true; }
  void wait() override {}
  void time_out() override {}
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

 private:
  std::int64_t bytes_;
};

// Rank 0 of two, with a network that delivers at once. Notes an r for a receive, an s for a send.
class NotingCommunicator final : public MessageCommunicator {
 public:
  explicit NotingCommunicator(bool replies)
      : MessageCommunicator({.rank = 0, .size = 2, .name = "world"}), replies_(replies) {}

  [[nodiscard]] int world_rank(int rank) const override { return rank; }
  [[nodiscard]] std::string take() { return std::exchange(noted_, {}); }

 private:
  [[nodiscard]] double now() const override { return 0; }
  [[nodiscard]] bool replies_when_posted() const override { return replies_; }
  Request start_send(std::span<const std::byte> data, int /*to*/, int /*tag*/) override {
    noted_ += 's';
    return Request(std::make_unique<CompleteRequest>(data.size()));
  }
  Request start_receive(std::span<std::byte> data, int /*from*/, int /*tag*/) override {
    noted_ += 'r';
    return Request(std::make_unique<CompleteRequest>(data.size()));
  }
  std::unique_ptr<Communicator> do_split(int /*colour*/, int /*key*/,
                                         const std::string& /*name*/) override {
    return nullptr;
  }
  void do_abort(int /*culprit*/, const std::string& /*reason*/) override {}

  bool replies_;
  std::string noted_;
};

// Of an all_gather, a reduce_scatter, an all_reduce (two exchanges), an all_to_all and one of
// parts.
std::vector<std::string> posting_orders(bool replies) {
  NotingCommunicator world(replies);
  std::vector<float> whole(1 << 16);
  std::vector<float> other(1 << 16);
  const std::span<float> half = std::span(other).first(other.size() / 2);
  std::vector<std::string> orders;
  world.all_gather(std::span<const float>(half), std::span(whole));
  orders.push_back(world.take());
  world.reduce_scatter(std::span<const float>(whole), half);
  orders.push_back(world.take());
  world.all_reduce(std::span(whole));
  orders.push_back(world.take());
  world.all_to_all(std::span<const float>(whole), std::span(other));
  orders.push_back(world.take());
  const std::vector<std::size_t> first{0, 0, 1};
  const std::vector<std::span<const std::byte>> outgoing{std::as_bytes(std::span(whole))};
  const std::vector<std::span<std::byte>> incoming{std::as_writable_bytes(std::span(other))};
  world.all_to_all_parts({.first = first, .parts = outgoing}, {.first = first, .parts = incoming});
  orders.push_back(world.take());
  return orders;
}

TEST(MessageCommunicator, PostsReceivesFirst) {
  EXPECT_EQ(posting_orders(false), (std::vector<std::string>{"rs", "rs", "rsrs", "rs", "rs"}));
}

TEST(MessageCommunicator, AnnouncesItsMessagesBeforeReceivesReply) {
  EXPECT_EQ(posting_orders(true), (std::vector<std::string>{"sr", "sr", "srsr", "sr", "sr"}));
}

}  // namespace
}  // namespace shiplap::comm
