// Calls that cannot complete time out, with an error that names the missing ranks.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "reference.h"

namespace shiplap::comm {
namespace {

// Long enough for ranks that leave a barrier together to reach the next call together.
Seconds short_time(const Communicator& comm) { return Seconds{comm.size() <= 8 ? 0.5 : 0.8}; }

void begin_together(Communicator& comm) {
  comm.barrier();
  comm.set_timeout(short_time(comm));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The text contains this rank, the operation and the group.
void expect_timeout_text(CheckContext& ctx, const Communicator& comm, const TimeoutError& error,
                         const std::string& operation) {
  const Diagnostic& diagnostic = error.diagnostic();
  ctx.expect_equal(diagnostic.code, std::string("D301"), "code");
  const std::string text = error.what();
  const int local = comm.world_rank(comm.rank());
  ctx.expect(contains(text, "rank " + std::to_string(local)), "this rank is not in: " + text);
  ctx.expect(contains(text, operation), "the operation is not in: " + text);
  ctx.expect(contains(text, comm.name()), "the group is not in: " + text);
}

void expect_dead(CheckContext& ctx, Communicator& comm) {
  ctx.expect(!comm.alive(), "dead");
  const std::int32_t number = 1;
  ctx.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, "a barrier afterwards");
  ctx.expect_throws<CommunicatorDead>([&] { comm.send(std::span(&number, 1), 0); },
                                      "a send afterwards");
  const auto error = ctx.expect_throws<CommunicatorDead>([&] { (void)comm.channel("too_late"); },
                                                         "a channel afterwards");
  if (error) ctx.expect_equal(error->diagnostic().code, std::string("D305"), "code");
}

bool is_in(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// The ranks `away` (of the world) wait on `side` until all others have failed in `call` on `comm`.
template <class Function>
void stay_away(CheckContext& ctx, Communicator& comm, const std::vector<int>& away,
               const Function& call) {
  const std::unique_ptr<Communicator> side = ctx.comm.channel("side");
  const bool here = !is_in(away, ctx.comm.rank());
  begin_together(comm);
  if (here) call();
  std::int32_t token = 0;
  for (int rank = 0; rank < ctx.comm.size(); ++rank) {
    if (here && is_in(away, rank)) side->send(std::span<const std::int32_t>(&token, 1), rank);
    if (!here && !is_in(away, rank)) side->receive(std::span(&token, 1), rank);
  }
}

template <class Function>
void expect_timeout(CheckContext& ctx, Communicator& comm, const std::vector<int>& missing,
                    const std::string& operation, const Function& call) {
  const auto error = ctx.expect_throws<TimeoutError>(call, operation);
  if (error) {
    ctx.expect_equal(error->missing(), missing, "missing");
    expect_timeout_text(ctx, comm, *error, operation);
  }
  expect_dead(ctx, comm);
}

void missing_at_barrier(CheckContext& ctx) {
  const int away = ctx.comm.size() / 2;
  stay_away(ctx, ctx.comm, {away},
            [&] { expect_timeout(ctx, ctx.comm, {away}, "barrier", [&] { ctx.comm.barrier(); }); });
}

void two_missing(CheckContext& ctx) {
  const std::vector<int> away = {0, ctx.comm.size() - 1};
  stay_away(ctx, ctx.comm, away,
            [&] { expect_timeout(ctx, ctx.comm, away, "barrier", [&] { ctx.comm.barrier(); }); });
}

void only_one_came(CheckContext& ctx) {
  std::vector<int> away;
  for (int rank = 1; rank < ctx.comm.size(); ++rank) away.push_back(rank);
  stay_away(ctx, ctx.comm, away,
            [&] { expect_timeout(ctx, ctx.comm, away, "barrier", [&] { ctx.comm.barrier(); }); });
}

void missing_at_all_reduce(CheckContext& ctx) {
  stay_away(ctx, ctx.comm, {0}, [&] {
    const std::span<float> data = ctx.leaked_buffer<float>(1000);
    expect_timeout(ctx, ctx.comm, {0}, "all_reduce", [&] { ctx.comm.all_reduce(data); });
  });
}

void missing_at_split(CheckContext& ctx) {
  const int away = ctx.comm.size() - 1;
  stay_away(ctx, ctx.comm, {away}, [&] {
    expect_timeout(ctx, ctx.comm, {away}, "split", [&] { (void)ctx.comm.split(0, 0, "part"); });
  });
}

// In unchecked mode the missing ranks need not be known, but the call must time out.
void missing_unchecked(CheckContext& ctx) {
  ctx.comm.set_checked(false);
  stay_away(ctx, ctx.comm, {0}, [&] {
    const std::span<float> data = ctx.leaked_buffer<float>(1000);
    ctx.expect_throws<TimeoutError>([&] { ctx.comm.all_reduce(data); }, "all_reduce");
    ctx.expect(!ctx.comm.alive(), "dead");
  });
}

// With another order in the group, the missing rank is reported as a rank of the world.
void missing_in_a_group(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::unique_ptr<Communicator> reversed = comm.split(0, -comm.rank(), "reversed");
  stay_away(ctx, *reversed, {0},
            [&] { expect_timeout(ctx, *reversed, {0}, "barrier", [&] { reversed->barrier(); }); });
  ctx.expect(comm.alive(), "the parent group is alive");
  try_all_reduce<float>(ctx, comm, 1, 10, ReduceOp::sum);
}

// A rank that arrives after the others have timed out must fail, not hang.
void late_rank(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  stay_away(ctx, comm, {0},
            [&] { ctx.expect_throws<TimeoutError>([&] { comm.barrier(); }, "barrier"); });
  if (comm.rank() == 0) ctx.expect_throws<Failure>([&] { comm.barrier(); }, "the late barrier");
}

// A rank that arrives before the timeout does no harm.
void late_but_in_time(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::unique_ptr<Communicator> side = comm.channel("side");
  const std::int32_t token = 1;
  std::int32_t got = 0;
  for (int late = 0; late < std::min(comm.size(), 4); ++late) {
    const int helper = (late + 1) % comm.size();
    if (comm.rank() == helper) {
      // The late rank waits for a rank whose short receive must time out first.
      const std::unique_ptr<Communicator> alone = side->split(1, 0, "alone");
      alone->set_timeout(Seconds{0.05});
      ctx.expect_throws<TimeoutError>(
          [&] { alone->receive(ctx.leaked_buffer<std::int32_t>(1), 0); }, "the short wait");
      side->send(std::span(&token, 1), late);
    } else {
      const std::unique_ptr<Communicator> rest = side->split(0, 0, "rest");
      if (comm.rank() == late) side->receive(std::span(&got, 1), helper);
    }
    comm.barrier();
  }
  ctx.expect(comm.alive() && side->alive(), "alive");
}

void receive_without_send(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const int peer = comm.size() - 1;
  begin_together(comm);
  if (comm.rank() == 0) {
    const std::span<double> room = ctx.leaked_buffer<double>(10);
    expect_timeout(ctx, comm, {peer}, "receive", [&] { comm.receive(room, peer, 3); });
  }
}

void wait_without_send(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::span<double> room = ctx.leaked_buffer<double>(10);
  begin_together(comm);
  Request receive = comm.ireceive(room, comm.rank(), 3);
  ctx.expect(!receive.test(), "not sent");
  expect_timeout(ctx, comm, {comm.rank()}, "receive", [&] { receive.wait(); });
}

// It completes or times out: the transport may have buffered the message.
void long_send_without_receive(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::span<const double> data =
      ctx.leaked_buffer<double>(comm.size() <= 4 ? 1 << 19 : 1 << 13);
  begin_together(comm);
  if (comm.rank() != 0) return;
  const int peer = comm.size() - 1;
  try {
    comm.send(data, peer);
  } catch (const TimeoutError& error) {
    ctx.expect_equal(error.missing(), std::vector<int>{peer}, "missing");
  }
}

// Rank 0 sends more than the receive buffer of the last rank holds.
void too_long(CheckContext& ctx, std::size_t count, std::size_t room) {
  Communicator& comm = ctx.comm;
  const int receiver = comm.size() - 1;
  const std::span<const std::int32_t> data = ctx.leaked_buffer<std::int32_t>(count);
  const std::span<std::int32_t> buffer = ctx.leaked_buffer<std::int32_t>(count);
  std::fill(buffer.begin(), buffer.end(), -5);
  Request send;
  if (comm.rank() == 0) send = comm.isend(data, receiver, 8);
  if (comm.rank() == receiver) {
    const auto error = ctx.expect_throws<MessageTooLong>(
        [&] { comm.receive(buffer.first(room), 0, 8); }, "the receive");
    if (error) ctx.expect_equal(error->diagnostic().code, std::string("D304"), "code");
    for (const std::int32_t one : buffer.subspan(room)) ctx.expect_equal(one, -5, "past the end");
    expect_dead(ctx, comm);
  }
  try {
    send.wait();
  } catch (const Failure&) {
    return;  // its receiver has failed, so the sender may fail too
  }
}

void message_too_long(CheckContext& ctx) { too_long(ctx, 100, 10); }
void long_message_too_long(CheckContext& ctx) { too_long(ctx, 16384, 16383); }
void message_for_no_room(CheckContext& ctx) { too_long(ctx, 1, 0); }

// The failure of a channel does not affect others.
void siblings_stay_alive(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::unique_ptr<Communicator> doomed = comm.channel("doomed");
  const std::unique_ptr<Communicator> child = doomed->channel("child");
  doomed->set_timeout(short_time(comm));
  const std::span<double> room = ctx.leaked_buffer<double>(10);
  expect_timeout(ctx, *doomed, {comm.rank()}, "receive",
                 [&] { doomed->receive(room, comm.rank(), 3); });
  ctx.expect(comm.alive() && child->alive(), "its parent and its child are alive");
  try_all_reduce<float>(ctx, comm, 1, 10, ReduceOp::sum);
  try_all_reduce<float>(ctx, *child, 1, 10, ReduceOp::sum);
}

}  // namespace

void add_deadline_checks(std::vector<Check>& checks) {
  checks.push_back({"deadline/missing_at_barrier", 2, missing_at_barrier});
  checks.push_back({"deadline/two_missing", 3, two_missing});
  checks.push_back({"deadline/only_one_came", 2, only_one_came});
  checks.push_back({"deadline/missing_at_all_reduce", 2, missing_at_all_reduce});
  checks.push_back({"deadline/missing_at_split", 2, missing_at_split});
  checks.push_back({"deadline/missing_unchecked", 2, missing_unchecked});
  checks.push_back({"deadline/missing_in_a_group", 3, missing_in_a_group});
  checks.push_back({"deadline/late_rank", 2, late_rank});
  checks.push_back({"deadline/late_but_in_time", 2, late_but_in_time});
  checks.push_back({"deadline/receive_without_send", 1, receive_without_send});
  checks.push_back({"deadline/wait_without_send", 1, wait_without_send});
  checks.push_back({"deadline/long_send_without_receive", 2, long_send_without_receive});
  checks.push_back({"too_long/message", 1, message_too_long});
  checks.push_back({"too_long/long_message", 1, long_message_too_long});
  checks.push_back({"too_long/no_room", 1, message_for_no_room});
  checks.push_back({"failure/siblings_stay_alive", 1, siblings_stay_alive});
}

}  // namespace shiplap::comm
