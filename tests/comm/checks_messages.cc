// Point to point: messages arrive complete, in order, and at the matching receive.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "reference.h"

namespace shiplap::comm {
namespace {

constexpr std::uint64_t kSeed = 1001;

int next_of(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }
int previous_of(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }

// Ranks in pairs 0-1, 2-3, ...; -1 for the last of an odd number.
int partner_of(const Communicator& comm) {
  const int partner = comm.rank() ^ 1;
  return partner < comm.size() ? partner : -1;
}

template <class T>
void ping_pong(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const int partner = partner_of(comm);
  if (partner < 0) return;
  for (const std::size_t count : Counts{1, 2, 7, 1000, 8191}) {
    std::vector<T> data = data_of<T>(kSeed + count, comm.rank() & ~1, count);
    if (comm.rank() < partner) {
      comm.send(view(data), partner, 3);
      std::vector<T> back(count);
      ctx.expect_equal(comm.receive(std::span(back), partner, 4), count, "elements back");
      ctx.expect_same_bits(view(back), view(data), "the data back");
    } else {
      std::vector<T> got(count);
      ctx.expect_equal(comm.receive(std::span(got), partner, 3), count, "elements");
      ctx.expect_same_bits(view(got), view(data), "the data");
      comm.send(view(got), partner, 4);
    }
  }
}

template <class T>
void to_itself(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  for (const std::size_t count : Counts{0, 1, 33, 10000}) {
    const std::vector<T> data = data_of<T>(kSeed, comm.rank(), count);
    std::vector<T> got(count);
    Request receive = comm.ireceive(std::span(got), comm.rank(), 9);
    Request send = comm.isend(view(data), comm.rank(), 9);
    const auto bytes = static_cast<std::int64_t>(count * sizeof(T));
    ctx.expect_equal(receive.wait(), bytes, "bytes received");
    ctx.expect_equal(send.wait(), bytes, "bytes sent");
    ctx.expect_same_bits(view(got), view(data), "the data");
  }
}

void to_itself_sent_first(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<float> data = data_of<float>(kSeed, comm.rank(), 10000);
  std::vector<float> got(data.size());
  Request send = comm.isend(view(data), comm.rank());
  Request receive = comm.ireceive(std::span(got), comm.rank());
  send.wait();
  receive.wait();
  ctx.expect_same_bits(view(got), view(data), "the data");
}

void plain_bytes(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<std::byte> data(5, std::byte{0xfe});
  std::vector<std::byte> got(5);
  Request receive = comm.ireceive(std::span(got), previous_of(comm));
  comm.send(std::span<const std::byte>(data), next_of(comm));
  receive.wait();
  ctx.expect(got == data, "bytes arrive as they are");
}

void empty(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<double> room(3, 5.0);
  Request receive = comm.ireceive(std::span(room), previous_of(comm), 1);
  Request none = comm.ireceive(std::span<double>(), previous_of(comm), 2);
  comm.send(std::span<const double>(), next_of(comm), 1);
  comm.send(std::span<const double>(), next_of(comm), 2);
  ctx.expect_equal(receive.wait(), 0, "bytes of nothing");
  ctx.expect_equal(none.wait(), 0, "bytes of nothing into nothing");
  ctx.expect(room == std::vector<double>(3, 5.0), "the buffer is untouched");
}

void shorter_than_room(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<std::int32_t> room(100, -1);
  const std::vector<std::int32_t> data = {4, 5, 6};
  Request send = comm.isend(view(data), next_of(comm));
  ctx.expect_equal(comm.receive(std::span(room), previous_of(comm)), std::size_t{3}, "elements");
  send.wait();
  std::vector<std::int32_t> expected(100, -1);
  std::copy(data.begin(), data.end(), expected.begin());
  ctx.expect(room == expected, "only the beginning of the buffer is written");
}

// Sizes below and above the eager limit.
std::size_t mixed_count(int index) {
  return index % 3 == 0 ? 9000 : static_cast<std::size_t>(index);
}

void order_is_kept(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  constexpr int kMessages = 20;
  std::vector<std::vector<std::int32_t>> data;
  std::vector<Request> sends;
  for (int k = 0; k < kMessages; ++k) data.emplace_back(mixed_count(k), k);
  for (const auto& message : data) sends.push_back(comm.isend(view(message), next_of(comm), 2));
  for (int k = 0; k < kMessages; ++k) {
    std::vector<std::int32_t> got(9000);
    const std::size_t count = comm.receive(std::span(got), previous_of(comm), 2);
    ctx.expect_equal(count, mixed_count(k), "elements of message " + std::to_string(k));
    if (count > 0) ctx.expect_equal(got[0], k, "which message");
  }
  for (Request& send : sends) send.wait();
}

void order_of_receives_is_kept(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<std::int64_t> got(8, -1);
  std::vector<Request> receives;
  for (std::int64_t& one : got) {
    receives.push_back(comm.ireceive(std::span(&one, 1), previous_of(comm)));
  }
  for (std::int64_t k = 0; k < 8; ++k)
    comm.send(std::span<const std::int64_t>(&k, 1), next_of(comm));
  for (std::size_t k = receives.size(); k-- > 0;) receives[k].wait();
  for (std::size_t k = 0; k < got.size(); ++k) {
    ctx.expect_equal(got[k], static_cast<std::int64_t>(k), "what receive k got");
  }
}

void tags_are_kept_apart(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<int> tags = {0, 1, 77, Communicator::kMaxTag};
  std::vector<std::vector<std::int32_t>> data;
  std::vector<Request> sends;
  for (const int tag : tags) data.emplace_back(5000, tag);
  for (std::size_t k = 0; k < tags.size(); ++k) {
    sends.push_back(comm.isend(view(data[k]), next_of(comm), tags[k]));
  }
  for (std::size_t k = tags.size(); k-- > 0;) {
    std::vector<std::int32_t> got(5000);
    comm.receive(std::span(got), previous_of(comm), tags[k]);
    ctx.expect_same_bits(view(got), view(data[k]), "tag " + std::to_string(tags[k]));
  }
  for (Request& send : sends) send.wait();
}

struct TestMessage {
  int tag = 0;
  std::vector<std::int32_t> data;
  Request request;
};

// The messages of `from` to `to`; the same on both ends.
std::vector<TestMessage> messages_between(const CheckContext& ctx, int from, int to) {
  const bool many = ctx.comm.size() > 8;
  Random random = ctx.random(static_cast<std::uint64_t>(from * ctx.comm.size() + to));
  std::vector<TestMessage> result(many ? 2 : 6);
  for (TestMessage& message : result) {
    message.tag = static_cast<int>(random.between(0, 3));
    message.data.resize(random.between(0, many ? 50 : 9000));
    for (auto& element : message.data)
      element = static_cast<std::int32_t>(random.between(0, 1 << 30));
  }
  return result;
}

void many_between_all_pairs(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<std::vector<TestMessage>> outgoing;
  std::vector<std::vector<TestMessage>> expected;
  std::vector<std::vector<TestMessage>> incoming;
  for (int peer = 0; peer < comm.size(); ++peer) {
    outgoing.push_back(messages_between(ctx, comm.rank(), peer));
    expected.push_back(messages_between(ctx, peer, comm.rank()));
    incoming.push_back(messages_between(ctx, peer, comm.rank()));
  }
  // Half of the receives are posted before the sends, half after.
  const auto post = [&](int parity) {
    for (int peer = comm.size() - 1; peer >= 0; --peer) {
      if ((peer + comm.rank()) % 2 != parity) continue;
      for (TestMessage& message : incoming[peer]) {
        std::fill(message.data.begin(), message.data.end(), -1);
        message.request = comm.ireceive(std::span(message.data), peer, message.tag);
      }
    }
  };
  post(0);
  for (int peer = 0; peer < comm.size(); ++peer) {
    for (TestMessage& message : outgoing[peer]) {
      message.request = comm.isend(view(message.data), peer, message.tag);
    }
  }
  post(1);
  for (std::size_t peer = 0; peer < incoming.size(); ++peer) {
    for (std::size_t k = 0; k < incoming[peer].size(); ++k) {
      incoming[peer][k].request.wait();
      ctx.expect_same_bits(view(incoming[peer][k].data), view(expected[peer][k].data),
                           "from " + std::to_string(peer));
    }
  }
  for (auto& to_peer : outgoing) {
    for (TestMessage& message : to_peer) message.request.wait();
  }
}

// The reply is sent only after the request has arrived, so it cannot arrive before that.
void test_turns_true(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::vector<double> answer(4000);
  Request receive = comm.ireceive(std::span(answer), next_of(comm), 1);
  const std::vector<double> reply = data_of<double>(kSeed, comm.rank(), answer.size());
  for (int k = 0; k < 100; ++k) ctx.expect(!receive.test(), "no reply yet");
  const std::int32_t question = 1;
  std::int32_t asked = 0;
  Request ask = comm.isend(std::span(&question, 1), next_of(comm), 0);
  comm.receive(std::span(&asked, 1), previous_of(comm), 0);
  Request answered = comm.isend(view(reply), previous_of(comm), 1);
  while (!receive.test()) std::this_thread::yield();
  while (!answered.test()) std::this_thread::yield();
  while (!ask.test()) std::this_thread::yield();
  ctx.expect(receive.test(), "still complete");
  ctx.expect_equal(receive.wait(), std::ssize(answer) * 8, "bytes");
  ctx.expect_same_bits(view(answer), view(data_of<double>(kSeed, next_of(comm), answer.size())),
                       "the answer");
}

void ring(CheckContext& ctx, std::size_t bytes) {
  Communicator& comm = ctx.comm;
  std::vector<std::int32_t> data(bytes / 4, comm.rank());
  for (int step = 1; step <= 3; ++step) {
    std::vector<std::int32_t> got(data.size(), -1);
    Request send = comm.isend(view(data), next_of(comm));
    Request receive = comm.ireceive(std::span(got), previous_of(comm));
    send.wait();
    receive.wait();
    const int origin = (comm.rank() + 3 * comm.size() - step) % comm.size();
    ctx.expect_same_bits(view(got), view(std::vector<std::int32_t>(data.size(), origin)),
                         "step " + std::to_string(step));
    data = got;
  }
}

void one_mebibyte_ring(CheckContext& ctx) { ring(ctx, ctx.comm.size() <= 8 ? 1 << 20 : 1 << 15); }
void four_mebibyte_ring(CheckContext& ctx) {
  if (ctx.comm.size() <= 4) ring(ctx, 4 << 20);
}

void empty_request(CheckContext& ctx) {
  Request none;
  ctx.expect(none.test(), "an empty request is complete");
  ctx.expect_equal(none.wait(), 0, "bytes of nothing");
}

void requests_can_be_moved(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  std::int64_t got = -1;
  const std::int64_t own = comm.rank();
  Request receive = comm.ireceive(std::span(&got, 1), previous_of(comm));
  Request moved = std::move(receive);
  comm.send(std::span(&own, 1), next_of(comm));
  ctx.expect_equal(moved.wait(), 8, "bytes");
  ctx.expect_equal(got, previous_of(comm), "the data");
}

// A cancelled receive must not match a message that is sent later.
void cancelled_receive(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::span<std::int32_t> unused = ctx.leaked_buffer<std::int32_t>(100);
  std::fill(unused.begin(), unused.end(), -7);
  {
    const Request cancelled = comm.ireceive(unused, previous_of(comm), 5);
  }
  comm.barrier();
  const std::vector<std::int32_t> data(100, comm.rank());
  Request send = comm.isend(view(data), next_of(comm), 5);
  std::vector<std::int32_t> got(100);
  comm.receive(std::span(got), previous_of(comm), 5);
  send.wait();
  ctx.expect_equal(got[99], previous_of(comm), "the second receive has it");
  ctx.expect_equal(unused[0], -7, "the first buffer");
  comm.barrier();
}

void channels_keep_messages_apart(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::unique_ptr<Communicator> other = comm.channel("other");
  const std::vector<std::int32_t> first(6000, 1);
  const std::vector<std::int32_t> second(6000, 2);
  Request send_first = comm.isend(view(first), next_of(comm), 4);
  Request send_second = other->isend(view(second), next_of(comm), 4);
  std::vector<std::int32_t> got(6000);
  other->receive(std::span(got), previous_of(comm), 4);
  ctx.expect_same_bits(view(got), view(second), "on the other channel");
  comm.receive(std::span(got), previous_of(comm), 4);
  ctx.expect_same_bits(view(got), view(first), "on the first channel");
  send_first.wait();
  send_second.wait();
}

// Messages between the same two ranks, in groups with different orders.
void groups_keep_messages_apart(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::unique_ptr<Communicator> reversed = comm.split(0, -comm.rank(), "reversed");
  const std::int32_t plain = comm.rank();
  const std::int32_t marked = 1000 + comm.rank();
  std::int32_t from_plain = -1;
  std::int32_t from_marked = -1;
  Request one = reversed->ireceive(std::span(&from_marked, 1), next_of(*reversed), 4);
  Request two = comm.ireceive(std::span(&from_plain, 1), previous_of(comm), 4);
  comm.send(std::span(&plain, 1), next_of(comm), 4);
  reversed->send(std::span(&marked, 1), previous_of(*reversed), 4);
  one.wait();
  two.wait();
  ctx.expect_equal(from_plain, previous_of(comm), "in the order of ranks");
  ctx.expect_equal(from_marked, 1000 + previous_of(comm), "in the reversed group");
}

}  // namespace

void add_message_checks(std::vector<Check>& checks) {
  for_each_type([&]<class T>(T, const char* type) {
    checks.push_back({std::string("messages/to_itself_") + type, 1, to_itself<T>});
    checks.push_back({std::string("messages/ping_pong_") + type, 2, ping_pong<T>});
  });
  checks.push_back({"messages/to_itself_sent_first", 1, to_itself_sent_first});
  checks.push_back({"messages/plain_bytes", 1, plain_bytes});
  checks.push_back({"messages/empty", 1, empty});
  checks.push_back({"messages/empty_request", 1, empty_request});
  checks.push_back({"messages/requests_can_be_moved", 1, requests_can_be_moved});
  checks.push_back({"messages/shorter_than_room", 1, shorter_than_room});
  checks.push_back({"messages/order_is_kept", 1, order_is_kept});
  checks.push_back({"messages/order_of_receives_is_kept", 1, order_of_receives_is_kept});
  checks.push_back({"messages/tags_are_kept_apart", 1, tags_are_kept_apart});
  checks.push_back({"messages/many_between_all_pairs", 1, many_between_all_pairs});
  checks.push_back({"messages/test_turns_true", 1, test_turns_true});
  checks.push_back({"messages/one_mebibyte_ring", 2, one_mebibyte_ring});
  checks.push_back({"messages/four_mebibyte_ring", 2, four_mebibyte_ring});
  checks.push_back({"messages/cancelled_receive", 1, cancelled_receive});
  checks.push_back({"messages/channels_keep_messages_apart", 1, channels_keep_messages_apart});
  checks.push_back({"messages/groups_keep_messages_apart", 2, groups_keep_messages_apart});
}

}  // namespace shiplap::comm
