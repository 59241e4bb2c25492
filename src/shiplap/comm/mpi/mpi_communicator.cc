// Messages over MPI with timeouts.
//
// A blocking MPI call has no timeout, cannot be left, and need not return when a rank dies. So all
// messages are started with MPI_Isend and MPI_Irecv and polled with MPI_Test; while a rank polls,
// it also drives the failure detector. MPI_Comm_split would block too: ranks exchange their colours
// by messages, and all parts of a split share one duplicate of the parent (MPI_Comm_idup, polled),
// which is possible because they have no ranks in common.
//
// MPI cannot cancel a send. A request that is destroyed before it is complete waits for a while and
// is then left to MPI, with its buffer (docs/decisions/009, 010).
//
// On one host, parts are read from the memory of the peer (messages_parts.cc, docs/decisions/011).
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <system_error>

#include "shiplap/base/error.h"
#include "shiplap/comm/mpi/library_internal.h"
#include "shiplap/comm/mpi/mpi_communicator_internal.h"
#include "shiplap/comm/mpi/plugin_internal.h"

namespace shiplap::comm {
namespace {

// Polls before the core is yielded.
constexpr int kSpins = 5000;
// Polls between two reads of the clock.
constexpr int kSpinsPerClockRead = 16;
constexpr double kDrainWithin = 0.05;
// Shorter waits are not reported to the failure detector.
constexpr double kReportWaitAfter = 50e-6;
// Below this, one more message costs more than copying its data on both sides.
constexpr std::size_t kPackBelow = std::size_t{16} * 1024;
// Open MPI over TCP sends up to 64 KiB, including its header, eagerly and in order. Longer messages
// use a rendezvous and then share the link: eight messages of 256 KiB were seen to end together.
constexpr std::size_t kEagerLimit = std::size_t{60} * 1024;

void yield_core() {
  if (!library::is_simulated()) sched_yield();
}

int checked_length(std::string_view operation, std::size_t bytes) {
  if (bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return static_cast<int>(bytes);
  }
  throw InputError(
      Diagnostic{.code = "D300",
                 .where = {.operation = std::string(operation)},
                 .what = fmt::format("a message of {} is too long: MPI is limited to 2 GiB",
                                     to_string(Bytes{static_cast<std::int64_t>(bytes)})),
                 .help = "send it in parts of less than 2 GiB"});
}

}  // namespace

// ---- requests

class MpiRequest final : public Request::State {
 public:
  struct Info {
    enum class Kind { send, receive, duplicate };
    Kind kind = Kind::send;
    int peer = 0;  // rank of the group; -1: all of them
    int tag = 0;
    std::int64_t length = 0;
  };
  MpiRequest(MpiCommunicator& communicator, const Info& info)
      : communicator_(communicator),
        info_(info),
        bytes_(info.length),
        awaiting_(communicator.detector(),
                  info.peer < 0 ? info.peer : communicator.world_rank(info.peer)) {}
  ~MpiRequest() override;
  bool test(bool waits) override;
  void wait() override;
  void time_out() override;
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

 private:
  friend class MpiCommunicator;

  [[nodiscard]] bool is_complete() const {
    return request_ == MPI_REQUEST_NULL && !unmatched_ && !too_long_ && !failed_;
  }
  // Returns true if complete. Throws errors of MPI.
  bool poll();
  [[noreturn]] void fail_too_long() const {
    communicator_.fail_too_long(communicator_.world_rank(info_.peer), info_.length);
  }
  // Drives the failure detector while waiting.
  void poll_process(double time) const;
  [[nodiscard]] std::string operation() const;
  // Polls at least once. Does not throw.
  bool completes_before(double time);

  MpiCommunicator& communicator_;
  Info info_;
  std::int64_t bytes_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::byte* target_ = nullptr;  // of an unmatched receive
  FailureDetector::Awaiting awaiting_;
  bool unmatched_ = false;
  bool too_long_ = false;
  bool failed_ = false;
};

std::string MpiRequest::operation() const {
  return communicator_.operation(info_.kind == Info::Kind::send ? "send to" : "receive from",
                                 info_.peer, info_.tag);
}

bool MpiRequest::poll() {
  communicator_.match();
  if (unmatched_) return false;
  if (too_long_) {
    fail_too_long();
  }
  int done = 0;
  MPI_Status status;
  const int result = MPI_Test(&request_, &done, &status);
  if (result != MPI_SUCCESS) {
    request_ = MPI_REQUEST_NULL;
    failed_ = true;
    int kind = 0;
    MPI_Error_class(result, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      fail_too_long();
    }
    communicator_.check(result, operation());
  }
  if (done == 0) return false;
  awaiting_.set(false);
  if (info_.kind == Info::Kind::receive) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    bytes_ = count;
    // SMPI reports this only here.
    if (library::is_simulated() && status.MPI_ERROR == MPI_ERR_TRUNCATE) {
      fail_too_long();
    }
  }
  return true;
}

void MpiRequest::poll_process(double time) const {
  Process& process = communicator_.process_;
  if (process.due(time)) process.poll(communicator_.wait_state(operation()));
}

bool MpiRequest::test(bool waits) {
  if (is_complete()) return true;
  communicator_.check_alive();
  if (poll()) return true;
  awaiting_.set(waits && info_.peer >= 0);
  const double time = Process::now();
  poll_process(time);
  communicator_.throw_if_rank_failed(time - kFailureGracePeriod);
  return false;
}

void MpiRequest::wait() {
  if (is_complete()) return;
  communicator_.check_alive();
  if (poll()) return;
  const double begin = Process::now();
  const double deadline = communicator_.deadline();
  for (int spins = 1;; spins = std::min(spins + 1, kSpins)) {
    if (poll()) return;
    if (spins % kSpinsPerClockRead != 0 && spins < kSpins) continue;
    const double time = Process::now();
    awaiting_.set(info_.peer >= 0 && time > begin + kReportWaitAfter);
    poll_process(time);
    if (time > begin + kFailureGracePeriod)
      communicator_.throw_if_rank_failed(time - kFailureGracePeriod);
    if (time > deadline) return time_out();
    if (spins >= kSpins) yield_core();
  }
}

void MpiRequest::time_out() {
  if (is_complete()) return;
  communicator_.check_alive();
  if (poll()) return;
  awaiting_.set(info_.peer >= 0);
  const MissingRanks missing = communicator_.find_missing(operation(), info_.peer);
  if (poll()) return;  // it arrived in the meantime
  communicator_.throw_if_rank_failed(Process::now());
  communicator_.fail_operation_timeout(operation(), missing.ranks, missing.about, missing.culprit);
}

bool MpiRequest::completes_before(double time) {
  do {
    int done = 0;
    if (MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0) return true;
    yield_core();
  } while (Process::now() < time);
  return false;
}

MpiRequest::~MpiRequest() {
  if (unmatched_) communicator_.unmatched_.at({info_.peer, info_.tag}).remove(this);
  if (request_ == MPI_REQUEST_NULL || info_.kind == Info::Kind::duplicate) return;
  if (info_.kind == Info::Kind::receive) MPI_Cancel(&request_);
  const double now = Process::now();
  double until = now + communicator_.timeout().value;
  if (!communicator_.alive() || std::uncaught_exceptions() > 0) {
    // One time limit for all messages in flight.
    double& shared = communicator_.drain_until_;
    if (shared == 0) shared = now + kDrainWithin;
    until = shared;
  }
  if (completes_before(until)) return;
  // MPI keeps the message and its buffer.
  communicator_.mark_dead("a message was cancelled before it was complete");
  if (!library::is_simulated()) MPI_Request_free(&request_);
}

// ---- the communicator

MpiCommunicator::MpiCommunicator(Process& process, Members members, MpiGroup group,
                                 std::string name)
    : MonitoredCommunicator(process.detector(), std::move(members), std::move(name)),
      process_(process),
      group_(std::move(group)) {
  MPI_Comm_set_errhandler(group_.handle, MPI_ERRORS_RETURN);
}

MpiCommunicator::~MpiCommunicator() {
  detector().end_group(members().group);
  // Calls in flight on a dead communicator may still use it.
  if (alive() && !detector().any_failed()) MPI_Comm_free(&group_.handle);
}

void MpiCommunicator::check(int status, const std::string& operation) {
  if (status == MPI_SUCCESS) return;
  if (const auto failed = process_.wait_for_failed(members().world_ranks)) throw_failed(*failed);
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  text.resize(length);
  fail_rank(-1, fmt::format("MPI error in {}: {}", operation, text));
}

void MpiCommunicator::match() {
  for (auto entry = unmatched_.begin(); entry != unmatched_.end();) {
    std::list<MpiRequest*>& waiting = entry->second;
    const auto [peer, tag] = entry->first;
    int there = 1;
    while (!waiting.empty() && there != 0) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Improbe(handle_rank(peer), tag, group_.handle, &there, &message, &status),
            "receive");
      if (there == 0) break;
      MpiRequest& first = *waiting.front();
      waiting.pop_front();
      first.unmatched_ = false;
      int length = 0;
      MPI_Get_count(&status, MPI_BYTE, &length);
      first.too_long_ = length > first.info_.length;
      if (first.too_long_) continue;
      first.failed_ = true;  // until MPI_Imrecv succeeds
      check(MPI_Imrecv(first.target_, length, MPI_BYTE, &message, &first.request_), "receive");
      first.failed_ = false;
    }
    entry = waiting.empty() ? unmatched_.erase(entry) : std::next(entry);
  }
}

Request MpiCommunicator::start_send(std::span<const std::byte> data, int to, int tag) {
  auto state =
      std::make_unique<MpiRequest>(*this, MpiRequest::Info{.kind = MpiRequest::Info::Kind::send,
                                                           .peer = to,
                                                           .tag = tag,
                                                           .length = std::ssize(data)});
  const int length = checked_length("send", data.size());
  check(MPI_Isend(data.data(), length, MPI_BYTE, handle_rank(to), tag, group_.handle,
                  &state->request_),
        "send");
  return Request(std::move(state));
}

Request MpiCommunicator::start_receive(std::span<std::byte> data, int from, int tag) {
  auto state =
      std::make_unique<MpiRequest>(*this, MpiRequest::Info{.kind = MpiRequest::Info::Kind::receive,
                                                           .peer = from,
                                                           .tag = tag,
                                                           .length = std::ssize(data)});
  const int length = checked_length("receive", data.size());
  const bool probes_first = checked() || unmatched_.contains({from, tag});
  if (probes_first && library::supports_mprobe() && tag <= kMaxTag) {
    state->target_ = data.data();
    state->unmatched_ = true;
    unmatched_[{from, tag}].push_back(state.get());
    return Request(std::move(state));
  }
  check(MPI_Irecv(data.data(), length, MPI_BYTE, handle_rank(from), tag, group_.handle,
                  &state->request_),
        "receive");
  return Request(std::move(state));
}

MPI_Comm MpiCommunicator::duplicate() {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MpiRequest request(*this, {.kind = MpiRequest::Info::Kind::duplicate, .peer = -1});
  try {
    check(library::start_duplicate(group_.handle, copy.get(), &request.request_), "split");
    request.wait();
  } catch (const Failure&) {
    [[maybe_unused]] const MPI_Comm* const kept = copy.release();  // MPI may still write there
    throw;
  }
  return *copy;
}

std::unique_ptr<Communicator> MpiCommunicator::do_split(int colour, int key,
                                                        const std::string& name) {
  const std::vector<int> ranks = exchange_colours(colour, key);
  MpiGroup group{.handle = with_one_deadline([&] { return duplicate(); })};
  for (const int rank : ranks) {
    group.ranks.push_back(handle_rank(rank));
    group.processes.push_back(group_.processes[rank]);
  }
  return std::make_unique<MpiCommunicator>(process_, members_of(ranks, colour), std::move(group),
                                           name);
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::open_world(Seconds timeout) {
  set_timeout(timeout);
  begin_collective({.kind = Fingerprint::Kind::split});
  check_agreement(gather_fingerprints(current()));
  MpiGroup group{.handle = with_one_deadline([&] { return duplicate(); }),
                 .ranks = group_.ranks,
                 .processes = find_readable_peers()};
  Members world = members();
  world.group = next_group(0);
  return std::make_unique<MpiCommunicator>(process_, std::move(world), std::move(group), "world");
}

std::vector<std::int64_t> MpiCommunicator::find_readable_peers() {
  std::vector<std::int64_t> processes(size());
  if (library::is_simulated()) return processes;
  const memory::MemoryProbe local = memory::make_probe();
  std::vector<memory::MemoryProbe> probes(processes.size());
  all_gather_control(std::as_bytes(std::span(&local, 1)),
                     std::as_writable_bytes(std::span(probes)));
  bool all_can = local.host != 0;
  for (std::size_t k = 0; k < probes.size() && all_can; ++k) {
    if (probes[k].host != local.host || probes[k].process == local.process) continue;
    all_can = memory::can_read(probes[k]);
    processes[k] = probes[k].process;
  }
  // Both ends of a pair must use the same protocol: on a host all ranks can, or none does.
  struct Support {
    std::uint64_t host = 0;
    std::uint64_t can = 0;
  };
  const Support support{.host = local.host, .can = all_can ? 1U : 0U};
  std::vector<Support> all_support(processes.size());
  all_gather_control(std::as_bytes(std::span(&support, 1)),
                     std::as_writable_bytes(std::span(all_support)));
  const bool is_disabled = std::ranges::any_of(
      all_support, [&](const Support& one) { return one.host == local.host && one.can == 0; });
  if (is_disabled) std::ranges::fill(processes, 0);
  return processes;
}

std::size_t MpiCommunicator::eager_limit(int peer) const {
  return shares_memory_with(peer) ? Communicator::eager_limit(peer) : kEagerLimit;
}

bool MpiCommunicator::replies_when_posted() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && !shares_memory_with(peer)) return true;
  }
  return false;
}

std::size_t MpiCommunicator::pack_below(int peer) const {
  return shares_memory_with(peer) ? 0 : kPackBelow;
}

void MpiCommunicator::read_memory(int peer, std::span<const RemotePart> from,
                                  std::span<const std::span<std::byte>> to) {
  reads_.resize(to.size());
  for (std::size_t k = 0; k < to.size(); ++k) {
    reads_[k] = {.address = from[k].address, .to = to[k]};
  }
  const int error = memory::read(group_.processes[peer], reads_);
  if (error == 0) return;
  if (const auto failed = process_.wait_for_failed(members().world_ranks)) {
    throw_failed(*failed);
  }
  fail_rank(world_rank(peer), fmt::format("its memory can no longer be read: {}",
                                          std::generic_category().message(error)));
}

// ---- the plugin

namespace {

// SMPI does not allow a process to exit while others send to it. So after a failure all ranks wait
// for each other.
struct ExitBarrier {
  Process& process;
  ~ExitBarrier() {
    if (library::is_simulated() && process.has_failed()) process.exchange_goodbyes();
  }
};

// All ranks of the job. The world communicator of every run is made from it.
MpiCommunicator& job_communicator(Process& process) {
  static MpiCommunicator* const base = [&] {
    MpiCommunicator::Members members{.rank = process.detector().rank(), .group = 1};
    MpiCommunicator::MpiGroup group{.handle = process.base()};
    for (int rank = 0; rank < process.detector().size(); ++rank) {
      members.world_ranks.push_back(rank);
      group.ranks.push_back(rank);
      group.processes.push_back(0);
    }
    return new MpiCommunicator(process, std::move(members), std::move(group), "the job");
  }();
  return *base;
}

void run(const MpiOptions& options, const std::function<void(Communicator&)>& work) {
  Process& process = Process::instance(options.connect_timeout);
  process.begin_run();
  const ExitBarrier exit_barrier{process};
  bool ended = false;
  abort_peers_on_exception(process.detector(), [&] {
    const auto world = job_communicator(process).open_world(options.timeout);
    world->set_timeout(options.timeout);
    world->set_checked(options.checked);
    work(*world);
    if (!world->alive()) return;  // the others get the same failure
    world->close();
    ended = true;
  });
  if (ended) process.set_failed(false);
}

}  // namespace

}  // namespace shiplap::comm

extern "C" const shiplap::comm::MpiPlugin shiplap_mpi_plugin{
    .version = shiplap::comm::kMpiPluginVersion, .run = shiplap::comm::run};
