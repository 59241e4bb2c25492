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

// How long to ask MPI without letting others have the core.
constexpr int kSpins = 5000;
// How often the clock is looked at while doing so.
constexpr int kSpinsPerLook = 16;
// What a rank sent before it was lost may still be on its way when that is known.
constexpr double kInFlight = 0.1;
constexpr double kSettleWithin = 0.05;
// What takes no longer is not told to others as a wait.
constexpr double kSoon = 50e-6;
// Up to here one more message costs more than copying what is in it, there and here.
constexpr std::size_t kPackBelow = std::size_t{16} * 1024;
// Open MPI over TCP sends up to 64 KiB, with its own words, at once and in order. What is longer
// asks first, and then takes turns with all others that have their answer: eight messages of
// 256 KiB were seen to end together.
constexpr std::size_t kEagerLimit = std::size_t{60} * 1024;

void give_way() {
  if (!library::is_simulated()) sched_yield();
}

int checked_length(std::string_view operation, std::size_t bytes) {
  if (bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return static_cast<int>(bytes);
  }
  throw InputError(
      Diagnostic{.code = "D300",
                 .where = {.operation = std::string(operation)},
                 .what = fmt::format("a message of {} is too long for MPI",
                                     to_string(Bytes{static_cast<std::int64_t>(bytes)})),
                 .help = "send it in parts of less than 2 GiB"});
}

}  // namespace

// ---- one message

class MpiRequest final : public Request::State {
 public:
  struct About {
    enum class Kind { send, receive, duplicate };
    Kind kind = Kind::send;
    int peer = 0;  // in the group; -1: all of it
    int tag = 0;
    std::int64_t length = 0;
  };
  MpiRequest(MpiCommunicator& communicator, const About& about)
      : communicator_(communicator),
        about_(about),
        bytes_(about.length),
        awaiting_(communicator.detector(),
                  about.peer < 0 ? about.peer : communicator.world_rank(about.peer)) {}
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
  // True if complete; throws what MPI reports.
  bool poll();
  [[noreturn]] void fail_too_long() const {
    communicator_.fail_too_long(communicator_.world_rank(about_.peer), about_.length);
  }
  // Looks after the rest of the job while waiting.
  void poll_process(double time) const;
  [[nodiscard]] std::string operation() const;
  // Asks once at least, and does not throw.
  bool settles_before(double time);

  MpiCommunicator& communicator_;
  About about_;
  std::int64_t bytes_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::byte* target_ = nullptr;  // of a receive that looks first
  FailureDetector::Awaiting awaiting_;
  bool unmatched_ = false;
  bool too_long_ = false;
  bool failed_ = false;
};

std::string MpiRequest::operation() const {
  return communicator_.operation(about_.kind == About::Kind::send ? "send to" : "receive from",
                                 about_.peer, about_.tag);
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
  if (about_.kind == About::Kind::receive) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    bytes_ = count;
    // A simulator tells it only here.
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
  awaiting_.set(waits && about_.peer >= 0);
  const double time = Process::now();
  poll_process(time);
  communicator_.check_failed(time - kInFlight);
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
    if (spins % kSpinsPerLook != 0 && spins < kSpins) continue;
    const double time = Process::now();
    awaiting_.set(about_.peer >= 0 && time > begin + kSoon);
    poll_process(time);
    if (time > begin + kInFlight) communicator_.check_failed(time - kInFlight);
    if (time > deadline) return time_out();
    if (spins >= kSpins) give_way();
  }
}

void MpiRequest::time_out() {
  if (is_complete()) return;
  communicator_.check_alive();
  if (poll()) return;
  awaiting_.set(about_.peer >= 0);
  const MissingRanks missing = communicator_.find_missing(operation(), about_.peer);
  if (poll()) return;  // it came in the last moment
  communicator_.check_failed(Process::now());
  communicator_.fail_late(operation(), missing.ranks, missing.about, missing.culprit);
}

bool MpiRequest::settles_before(double time) {
  do {
    int done = 0;
    if (MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0) return true;
    give_way();
  } while (Process::now() < time);
  return false;
}

MpiRequest::~MpiRequest() {
  if (unmatched_) communicator_.unmatched_.at({about_.peer, about_.tag}).remove(this);
  if (request_ == MPI_REQUEST_NULL || about_.kind == About::Kind::duplicate) return;
  if (about_.kind == About::Kind::receive) MPI_Cancel(&request_);
  const double now = Process::now();
  double until = now + communicator_.timeout().value;
  if (!communicator_.alive() || std::uncaught_exceptions() > 0) {
    // All that is under way shares one moment.
    double& shared = communicator_.settle_until_;
    if (shared == 0) shared = now + kSettleWithin;
    until = shared;
  }
  if (settles_before(until)) return;
  // It is left to MPI, with its buffer.
  communicator_.die("a message was given up before it was complete");
  if (!library::is_simulated()) MPI_Request_free(&request_);
}

// ---- the communicator

MpiCommunicator::MpiCommunicator(Process& process, Members members, Place place, std::string name)
    : MonitoredCommunicator(process.detector(), std::move(members), std::move(name)),
      process_(process),
      place_(std::move(place)) {
  MPI_Comm_set_errhandler(place_.handle, MPI_ERRORS_RETURN);
}

MpiCommunicator::~MpiCommunicator() {
  detector().end_group(members().group);
  // The calls under way in a dead one may still use it.
  if (alive() && !detector().any_failed()) MPI_Comm_free(&place_.handle);
}

void MpiCommunicator::check(int status, const std::string& operation) {
  if (status == MPI_SUCCESS) return;
  if (const auto failed = process_.wait_for_failed(members().world_ranks)) throw_failed(*failed);
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  text.resize(length);
  fail_rank(-1, fmt::format("MPI says of {}: {}", operation, text));
}

void MpiCommunicator::match() {
  for (auto lane = unmatched_.begin(); lane != unmatched_.end();) {
    std::list<MpiRequest*>& waiting = lane->second;
    const auto [peer, tag] = lane->first;
    int there = 1;
    while (!waiting.empty() && there != 0) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Improbe(handle_rank(peer), tag, place_.handle, &there, &message, &status),
            "receive");
      if (there == 0) break;
      MpiRequest& first = *waiting.front();
      waiting.pop_front();
      first.unmatched_ = false;
      int length = 0;
      MPI_Get_count(&status, MPI_BYTE, &length);
      first.too_long_ = length > first.about_.length;
      if (first.too_long_) continue;
      first.failed_ = true;  // until it is under way
      check(MPI_Imrecv(first.target_, length, MPI_BYTE, &message, &first.request_), "receive");
      first.failed_ = false;
    }
    lane = waiting.empty() ? unmatched_.erase(lane) : std::next(lane);
  }
}

Request MpiCommunicator::start_send(std::span<const std::byte> data, int to, int tag) {
  auto state =
      std::make_unique<MpiRequest>(*this, MpiRequest::About{.kind = MpiRequest::About::Kind::send,
                                                            .peer = to,
                                                            .tag = tag,
                                                            .length = std::ssize(data)});
  const int length = checked_length("send", data.size());
  check(MPI_Isend(data.data(), length, MPI_BYTE, handle_rank(to), tag, place_.handle,
                  &state->request_),
        "send");
  return Request(std::move(state));
}

Request MpiCommunicator::start_receive(std::span<std::byte> data, int from, int tag) {
  auto state = std::make_unique<MpiRequest>(
      *this, MpiRequest::About{.kind = MpiRequest::About::Kind::receive,
                               .peer = from,
                               .tag = tag,
                               .length = std::ssize(data)});
  const int length = checked_length("receive", data.size());
  const bool looks_first = checked() || unmatched_.contains({from, tag});
  if (looks_first && library::can_look_first() && tag <= kLargestTag) {
    state->target_ = data.data();
    state->unmatched_ = true;
    unmatched_[{from, tag}].push_back(state.get());
    return Request(std::move(state));
  }
  check(MPI_Irecv(data.data(), length, MPI_BYTE, handle_rank(from), tag, place_.handle,
                  &state->request_),
        "receive");
  return Request(std::move(state));
}

MPI_Comm MpiCommunicator::duplicate() {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MpiRequest request(*this, {.kind = MpiRequest::About::Kind::duplicate, .peer = -1});
  try {
    check(library::start_duplicate(place_.handle, copy.get(), &request.request_), "split");
    request.wait();
  } catch (const Failure&) {
    [[maybe_unused]] const MPI_Comm* const kept = copy.release();  // MPI may still write there
    throw;
  }
  return *copy;
}

// MPI's own split has no deadline. So the ranks tell each other their colours, and all parts share
// one copy of this communicator: they have no ranks in common.
std::unique_ptr<Communicator> MpiCommunicator::do_split(int colour, int key,
                                                        const std::string& name) {
  const std::vector<int> part = choose_part(colour, key);
  Place place{.handle = together([&] { return duplicate(); })};
  for (const int rank : part) {
    place.ranks.push_back(handle_rank(rank));
    place.processes.push_back(place_.processes[rank]);
  }
  return std::make_unique<MpiCommunicator>(process_, members_of(part, colour), std::move(place),
                                           name);
}

std::unique_ptr<MpiCommunicator> MpiCommunicator::open_world(Seconds timeout) {
  set_timeout(timeout);
  begin({.kind = Fingerprint::Kind::split});
  judge(compare(current()));
  Place place{.handle = together([&] { return duplicate(); }),
              .ranks = place_.ranks,
              .processes = meet_neighbours()};
  Members world = members();
  world.group = next_group(0);
  return std::make_unique<MpiCommunicator>(process_, std::move(world), std::move(place), "world");
}

std::vector<std::int64_t> MpiCommunicator::meet_neighbours() {
  std::vector<std::int64_t> processes(size());
  if (library::is_simulated()) return processes;
  const memory::Card own = memory::own_card();
  std::vector<memory::Card> cards(processes.size());
  gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(cards)));
  bool all_can = own.machine != 0;
  for (std::size_t k = 0; k < cards.size() && all_can; ++k) {
    if (cards[k].machine != own.machine || cards[k].process == own.process) continue;
    all_can = memory::can_read(cards[k]);
    processes[k] = cards[k].process;
  }
  // Both ends of a pair must go the same way, so on a machine all can or none does.
  struct Verdict {
    std::uint64_t machine = 0;
    std::uint64_t can = 0;
  };
  const Verdict verdict{.machine = own.machine, .can = all_can ? 1U : 0U};
  std::vector<Verdict> verdicts(processes.size());
  gather(std::as_bytes(std::span(&verdict, 1)), std::as_writable_bytes(std::span(verdicts)));
  const bool refused = std::ranges::any_of(
      verdicts, [&](const Verdict& one) { return one.machine == own.machine && one.can == 0; });
  if (refused) std::ranges::fill(processes, 0);
  return processes;
}

std::size_t MpiCommunicator::eager_limit(int peer) const {
  return shares_memory_with(peer) ? Communicator::eager_limit(peer) : kEagerLimit;
}

std::size_t MpiCommunicator::pack_below(int peer) const {
  return shares_memory_with(peer) ? 0 : kPackBelow;
}

void MpiCommunicator::read_memory(int peer, std::span<const RemotePart> from,
                                  std::span<const std::span<std::byte>> to) {
  reading_.resize(to.size());
  for (std::size_t k = 0; k < to.size(); ++k) {
    reading_[k] = {.address = from[k].address, .to = to[k]};
  }
  const int error = memory::read(place_.processes[peer], reading_);
  if (error == 0) return;
  if (const auto failed = process_.wait_for_failed(members().world_ranks)) {
    throw_failed(*failed);
  }
  fail_rank(world_rank(peer), fmt::format("its memory cannot be read any more: {}",
                                          std::generic_category().message(error)));
}

// ---- the plugin

namespace {

// A simulator cannot bear that a process has ended to which others still send. So after a failure
// all wait for each other.
struct Lingering {
  Process& process;
  ~Lingering() {
    if (library::is_simulated() && process.has_failed()) process.say_goodbye();
  }
};

// All ranks of the job, from which every run makes its world.
MpiCommunicator& base_of(Process& process) {
  static MpiCommunicator* const base = [&] {
    MpiCommunicator::Members members{.own = process.detector().rank(), .group = 1};
    MpiCommunicator::Place place{.handle = process.base()};
    for (int rank = 0; rank < process.detector().size(); ++rank) {
      members.world_ranks.push_back(rank);
      place.ranks.push_back(rank);
      place.processes.push_back(0);
    }
    return new MpiCommunicator(process, std::move(members), std::move(place), "the job");
  }();
  return *base;
}

void run(const MpiOptions& options, const std::function<void(Communicator&)>& work) {
  Process& process = Process::instance(options.connect_within);
  process.begin_run();
  const Lingering lingering{process};
  bool ended = false;
  abort_peers_on_exception(process.detector(), [&] {
    const auto world = base_of(process).open_world(options.timeout);
    world->set_timeout(options.timeout);
    world->set_checked(options.checked);
    work(*world);
    if (!world->alive()) return;  // the others find out in the same way as this one
    world->close();
    ended = true;
  });
  if (ended) process.set_failed(false);
}

}  // namespace

}  // namespace shiplap::comm

extern "C" const shiplap::comm::MpiPlugin shiplap_mpi_plugin{
    .version = shiplap::comm::kMpiPluginVersion, .run = shiplap::comm::run};
