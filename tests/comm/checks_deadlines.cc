// What cannot be done ends in time, with an error that names who is missing.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "laws.h"

namespace shiplap::comm {
namespace {

// Long enough for ranks that leave a barrier together to come to the next call together.
Seconds short_time(const Communicator& comm) { return Seconds{comm.size() <= 8 ? 0.5 : 0.8}; }

void begin_together(Communicator& comm) {
  comm.barrier();
  comm.set_timeout(short_time(comm));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// This rank, the operation and the group are in the text.
void expect_deadline_text(Trial& trial, const Communicator& comm, const DeadlinePassed& error,
                          const std::string& operation) {
  const Diagnostic& diagnostic = error.diagnostic();
  trial.expect_equal(diagnostic.code, std::string("D301"), "code");
  const std::string text = error.what();
  const int own = comm.world_rank(comm.rank());
  trial.expect(contains(text, "rank " + std::to_string(own)), "this rank is not in: " + text);
  trial.expect(contains(text, operation), "the operation is not in: " + text);
  trial.expect(contains(text, comm.name()), "the group is not in: " + text);
}

void expect_dead(Trial& trial, Communicator& comm) {
  trial.expect(!comm.alive(), "it is dead");
  const std::int32_t number = 1;
  trial.expect_throws<CommunicatorDead>([&] { comm.barrier(); }, "a barrier then");
  trial.expect_throws<CommunicatorDead>([&] { comm.send(std::span(&number, 1), 0); },
                                        "a send then");
  const auto error = trial.expect_throws<CommunicatorDead>([&] { (void)comm.channel("too_late"); },
                                                           "a channel then");
  if (error) trial.expect_equal(error->diagnostic().code, std::string("D305"), "code");
}

bool is_in(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// The ranks `away` (of the world) wait on `side` until all others have failed in `call` on `comm`.
template <class Function>
void stay_away(Trial& trial, Communicator& comm, const std::vector<int>& away,
               const Function& call) {
  const std::unique_ptr<Communicator> side = trial.comm.channel("side");
  const bool here = !is_in(away, trial.comm.rank());
  begin_together(comm);
  if (here) call();
  std::int32_t token = 0;
  for (int rank = 0; rank < trial.comm.size(); ++rank) {
    if (here && is_in(away, rank)) side->send(std::span<const std::int32_t>(&token, 1), rank);
    if (!here && !is_in(away, rank)) side->receive(std::span(&token, 1), rank);
  }
}

template <class Function>
void expect_late(Trial& trial, Communicator& comm, const std::vector<int>& missing,
                 const std::string& operation, const Function& call) {
  const auto error = trial.expect_throws<DeadlinePassed>(call, operation);
  if (error) {
    trial.expect_equal(error->missing(), missing, "missing");
    expect_deadline_text(trial, comm, *error, operation);
  }
  expect_dead(trial, comm);
}

void missing_at_barrier(Trial& trial) {
  const int away = trial.comm.size() / 2;
  stay_away(trial, trial.comm, {away}, [&] {
    expect_late(trial, trial.comm, {away}, "barrier", [&] { trial.comm.barrier(); });
  });
}

void two_missing(Trial& trial) {
  const std::vector<int> away = {0, trial.comm.size() - 1};
  stay_away(trial, trial.comm, away, [&] {
    expect_late(trial, trial.comm, away, "barrier", [&] { trial.comm.barrier(); });
  });
}

void only_one_came(Trial& trial) {
  std::vector<int> away;
  for (int rank = 1; rank < trial.comm.size(); ++rank) away.push_back(rank);
  stay_away(trial, trial.comm, away, [&] {
    expect_late(trial, trial.comm, away, "barrier", [&] { trial.comm.barrier(); });
  });
}

void missing_at_all_reduce(Trial& trial) {
  stay_away(trial, trial.comm, {0}, [&] {
    const std::span<float> data = trial.keep<float>(1000);
    expect_late(trial, trial.comm, {0}, "all_reduce", [&] { trial.comm.all_reduce(data); });
  });
}

void missing_at_split(Trial& trial) {
  const int away = trial.comm.size() - 1;
  stay_away(trial, trial.comm, {away}, [&] {
    expect_late(trial, trial.comm, {away}, "split", [&] { (void)trial.comm.split(0, 0, "part"); });
  });
}

// Without comparing, who is missing need not be known; that it ends must be.
void missing_unchecked(Trial& trial) {
  trial.comm.set_checked(false);
  stay_away(trial, trial.comm, {0}, [&] {
    const std::span<float> data = trial.keep<float>(1000);
    trial.expect_throws<DeadlinePassed>([&] { trial.comm.all_reduce(data); }, "all_reduce");
    trial.expect(!trial.comm.alive(), "it is dead");
  });
}

// Numbered otherwise in the group, the missing one is named as the world knows it.
void missing_in_a_group(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::unique_ptr<Communicator> turned = comm.split(0, -comm.rank(), "turned");
  stay_away(trial, *turned, {0},
            [&] { expect_late(trial, *turned, {0}, "barrier", [&] { turned->barrier(); }); });
  trial.expect(comm.alive(), "the group it was made from lives on");
  try_all_reduce<float>(trial, comm, 1, 10, ReduceOp::sum);
}

// Who comes after the others have given up must be told so, not wait for ever.
void late_rank(Trial& trial) {
  Communicator& comm = trial.comm;
  stay_away(trial, comm, {0},
            [&] { trial.expect_throws<DeadlinePassed>([&] { comm.barrier(); }, "barrier"); });
  if (comm.rank() == 0) trial.expect_throws<Failure>([&] { comm.barrier(); }, "the late barrier");
}

// A rank that comes late, but in time, does no harm.
void late_but_in_time(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::unique_ptr<Communicator> side = comm.channel("side");
  const std::int32_t token = 1;
  std::int32_t got = 0;
  for (int late = 0; late < std::min(comm.size(), 4); ++late) {
    const int helper = (late + 1) % comm.size();
    if (comm.rank() == helper) {
      // The late one waits for one that itself waits until its short receive has failed.
      const std::unique_ptr<Communicator> alone = side->split(1, 0, "alone");
      alone->set_timeout(Seconds{0.05});
      trial.expect_throws<DeadlinePassed>([&] { alone->receive(trial.keep<std::int32_t>(1), 0); },
                                          "the short wait");
      side->send(std::span(&token, 1), late);
    } else {
      const std::unique_ptr<Communicator> rest = side->split(0, 0, "rest");
      if (comm.rank() == late) side->receive(std::span(&got, 1), helper);
    }
    comm.barrier();
  }
  trial.expect(comm.alive() && side->alive(), "all is well");
}

void receive_from_nobody(Trial& trial) {
  Communicator& comm = trial.comm;
  const int peer = comm.size() - 1;
  begin_together(comm);
  if (comm.rank() == 0) {
    const std::span<double> room = trial.keep<double>(10);
    expect_late(trial, comm, {peer}, "receive", [&] { comm.receive(room, peer, 3); });
  }
}

void wait_for_nobody(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::span<double> room = trial.keep<double>(10);
  begin_together(comm);
  Request receive = comm.ireceive(room, comm.rank(), 3);
  trial.expect(!receive.test(), "nobody has sent it");
  expect_late(trial, comm, {comm.rank()}, "receive", [&] { receive.wait(); });
}

// It ends, in one way or the other: the message may have been taken over by the transport.
void long_send_to_nobody(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::span<const double> data = trial.keep<double>(comm.size() <= 4 ? 1 << 19 : 1 << 13);
  begin_together(comm);
  if (comm.rank() != 0) return;
  const int peer = comm.size() - 1;
  try {
    comm.send(data, peer);
  } catch (const DeadlinePassed& error) {
    trial.expect_equal(error.missing(), std::vector<int>{peer}, "missing");
  }
}

// Rank 0 sends more than the last rank has room for.
void too_long(Trial& trial, std::size_t count, std::size_t room) {
  Communicator& comm = trial.comm;
  const int receiver = comm.size() - 1;
  const std::span<const std::int32_t> data = trial.keep<std::int32_t>(count);
  const std::span<std::int32_t> buffer = trial.keep<std::int32_t>(count);
  std::fill(buffer.begin(), buffer.end(), -5);
  Request send;
  if (comm.rank() == 0) send = comm.isend(data, receiver, 8);
  if (comm.rank() == receiver) {
    const auto error = trial.expect_throws<MessageTooLong>(
        [&] { comm.receive(buffer.first(room), 0, 8); }, "the receive");
    if (error) trial.expect_equal(error->diagnostic().code, std::string("D304"), "code");
    for (const std::int32_t one : buffer.subspan(room)) trial.expect_equal(one, -5, "past the end");
    expect_dead(trial, comm);
  }
  try {
    send.wait();
  } catch (const Failure&) {
    return;  // its receiver has failed, so the sender may fail too
  }
}

void message_too_long(Trial& trial) { too_long(trial, 100, 10); }
void long_message_too_long(Trial& trial) { too_long(trial, 16384, 16383); }
void message_for_no_room(Trial& trial) { too_long(trial, 1, 0); }

// A channel dies alone.
void siblings_live_on(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::unique_ptr<Communicator> doomed = comm.channel("doomed");
  const std::unique_ptr<Communicator> child = doomed->channel("child");
  doomed->set_timeout(short_time(comm));
  const std::span<double> room = trial.keep<double>(10);
  expect_late(trial, *doomed, {comm.rank()}, "receive",
              [&] { doomed->receive(room, comm.rank(), 3); });
  trial.expect(comm.alive() && child->alive(), "its parent and its child live");
  try_all_reduce<float>(trial, comm, 1, 10, ReduceOp::sum);
  try_all_reduce<float>(trial, *child, 1, 10, ReduceOp::sum);
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
  checks.push_back({"deadline/receive_from_nobody", 1, receive_from_nobody});
  checks.push_back({"deadline/wait_for_nobody", 1, wait_for_nobody});
  checks.push_back({"deadline/long_send_to_nobody", 2, long_send_to_nobody});
  checks.push_back({"too_long/message", 1, message_too_long});
  checks.push_back({"too_long/long_message", 1, long_message_too_long});
  checks.push_back({"too_long/no_room", 1, message_for_no_room});
  checks.push_back({"failure/siblings_live_on", 1, siblings_live_on});
}

}  // namespace shiplap::comm
