#include <fmt/format.h>
#include <sched.h>

#include <exception>
#include <limits>

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

void give_way() {
  if (!library::is_simulated()) sched_yield();
}

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
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
                 .help = "send it in parts of at most 2 GiB"});
}

}  // namespace

// ---- one message

class MpiRequest : public Request::State {
 public:
  struct About {
    bool sends = false;
    int peer = 0;  // in the group
    int tag = 0;
    std::int64_t length = 0;
  };
  MpiRequest(MpiCommunicator& communicator, const About& about)
      : communicator_(communicator), about_(about), bytes_(about.length) {}
  ~MpiRequest() override;
  bool test() override;
  void wait() override;
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

 private:
  friend class MpiCommunicator;

  [[nodiscard]] bool is_complete() const {
    return request_ == MPI_REQUEST_NULL && !unmatched_ && !too_long_;
  }
  // True if complete; throws what MPI reports.
  bool poll();
  // Looks after the rest of the job while waiting.
  void serve(double time) const;
  [[nodiscard]] std::string operation() const;
  // For at most so long, without throwing.
  bool settles_within(double seconds);

  MpiCommunicator& communicator_;
  About about_;
  std::int64_t bytes_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::byte* target_ = nullptr;  // of a receive that looks first
  bool unmatched_ = false;
  bool too_long_ = false;
};

std::string MpiRequest::operation() const {
  if (communicator_.closing_) return "the end of the work";
  if (communicator_.in_collective()) return describe(communicator_.current());
  return fmt::format("{} rank {} (tag {})", about_.sends ? "send to" : "receive from",
                     communicator_.world_rank(about_.peer), about_.tag);
}

bool MpiRequest::poll() {
  communicator_.match();
  if (unmatched_) return false;
  if (too_long_) {
    communicator_.fail_too_long(communicator_.world_rank(about_.peer), about_.length);
  }
  int done = 0;
  MPI_Status status;
  const int result = MPI_Test(&request_, &done, &status);
  if (result != MPI_SUCCESS) {
    request_ = MPI_REQUEST_NULL;
    int kind = 0;
    MPI_Error_class(result, &kind);
    if (kind == MPI_ERR_TRUNCATE) {
      communicator_.fail_too_long(communicator_.world_rank(about_.peer), about_.length);
    }
    communicator_.check(result, operation());
  }
  if (done == 0) return false;
  if (!about_.sends) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    bytes_ = count;
    // A simulator tells it only here.
    if (library::is_simulated() && status.MPI_ERROR == MPI_ERR_TRUNCATE) {
      communicator_.fail_too_long(communicator_.world_rank(about_.peer), about_.length);
    }
  }
  return true;
}

void MpiRequest::serve(double time) const {
  Process& process = communicator_.process_;
  if (process.due(time)) process.serve(communicator_.doing(operation()));
}

bool MpiRequest::test() {
  if (is_complete() || poll()) return true;
  const double time = Process::now();
  serve(time);
  communicator_.check_lost(time - kInFlight);
  return false;
}

void MpiRequest::wait() {
  if (is_complete() || poll()) return;
  const double begin = Process::now();
  const double deadline = communicator_.deadline();
  for (int spins = 1;; ++spins) {
    if (poll()) return;
    if (spins % kSpinsPerLook != 0 && spins < kSpins) continue;
    const double time = Process::now();
    serve(time);
    if (time > begin + kInFlight) communicator_.check_lost(time - kInFlight);
    if (time > deadline) communicator_.late(operation(), about_.peer);
    if (spins >= kSpins) give_way();
  }
}

bool MpiRequest::settles_within(double seconds) {
  const double end = Process::now() + seconds;
  do {
    int done = 0;
    if (MPI_Test(&request_, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0) return true;
    give_way();
  } while (Process::now() < end);
  return false;
}

MpiRequest::~MpiRequest() {
  if (unmatched_) communicator_.unmatched_.at({about_.peer, about_.tag}).remove(this);
  if (request_ == MPI_REQUEST_NULL) return;
  const bool in_trouble = !communicator_.alive() || std::uncaught_exceptions() > 0;
  if (!about_.sends) MPI_Cancel(&request_);
  // What cannot be cancelled is left to MPI, with its buffer.
  const bool settled = settles_within(in_trouble ? 0.05 : communicator_.timeout().value);
  if (!settled && !library::is_simulated()) MPI_Request_free(&request_);
}

// ---- the communicator

MpiCommunicator::MpiCommunicator(Process& process, MPI_Comm handle, std::uint64_t group,
                                 std::string name)
    : MessageCommunicator([&] {
        Identity identity{.name = std::move(name)};
        MPI_Comm_rank(handle, &identity.rank);
        MPI_Comm_size(handle, &identity.size);
        return identity;
      }()),
      process_(process),
      handle_(handle),
      group_(group) {
  MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN);
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  for (int rank = 0; rank < size(); ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  world_ranks_.resize(ranks.size());
  MPI_Group here = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(handle_, &here);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(here, size(), ranks.data(), world, world_ranks_.data());
  MPI_Group_free(&here);
  MPI_Group_free(&world);
}

MpiCommunicator::~MpiCommunicator() {
  // The calls under way in a dead one may still use it.
  if (alive() && !process_.anybody_lost()) MPI_Comm_free(&handle_);
}

void MpiCommunicator::collective_begun() { process_.set_arrived(group_, begun()); }

Process::Doing MpiCommunicator::doing(const std::string& operation) const {
  return {.text = fmt::format("{} of `{}`", operation, name()),
          .group = in_collective() ? group_ : 0};
}

void MpiCommunicator::check_lost(double time) {
  if (!process_.anybody_lost()) return;
  const auto lost = process_.lost_among(world_ranks_);
  if (lost && lost->since <= time) fail_rank(lost->rank, lost->reason);
}

void MpiCommunicator::check(int status, const std::string& operation) {
  if (status == MPI_SUCCESS) return;
  if (const auto lost = process_.wait_for_lost(world_ranks_)) fail_rank(lost->rank, lost->reason);
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  fail_rank(-1, fmt::format("MPI says of {}: {}", operation, text));
}

void MpiCommunicator::late(const std::string& operation, int peer) {
  const int awaited = world_rank(peer);
  const Process::RollCall roll =
      in_collective()
          ? process_.call_roll(group_, begun(), world_ranks_, doing(operation))
          : process_.call_roll(group_, begun() + 1, std::span(&awaited, 1), doing(operation));
  check_lost(Process::now());
  fail_late(operation, in_collective() ? roll.missing : std::vector<int>{awaited}, roll.about);
}

void MpiCommunicator::match() {
  for (auto lane = unmatched_.begin(); lane != unmatched_.end();) {
    std::list<MpiRequest*>& waiting = lane->second;
    const auto [peer, tag] = lane->first;
    int there = 1;
    while (!waiting.empty() && there != 0) {
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      check(MPI_Improbe(peer, tag, handle_, &there, &message, &status), "receive");
      if (there == 0) break;
      MpiRequest& first = *waiting.front();
      waiting.pop_front();
      first.unmatched_ = false;
      int length = 0;
      MPI_Get_count(&status, MPI_BYTE, &length);
      first.too_long_ = length > first.about_.length;
      if (first.too_long_) continue;
      check(MPI_Imrecv(first.target_, length, MPI_BYTE, &message, &first.request_), "receive");
    }
    lane = waiting.empty() ? unmatched_.erase(lane) : std::next(lane);
  }
}

Request MpiCommunicator::start_send(std::span<const std::byte> data, int to, int tag) {
  auto state = std::make_unique<MpiRequest>(
      *this, MpiRequest::About{.sends = true, .peer = to, .tag = tag, .length = std::ssize(data)});
  const int length = checked_length("send", data.size());
  check(MPI_Isend(data.data(), length, MPI_BYTE, to, tag, handle_, &state->request_), "send");
  return Request(std::move(state));
}

Request MpiCommunicator::start_receive(std::span<std::byte> data, int from, int tag) {
  auto state = std::make_unique<MpiRequest>(
      *this,
      MpiRequest::About{.sends = false, .peer = from, .tag = tag, .length = std::ssize(data)});
  const int length = checked_length("receive", data.size());
  if (checked() && library::can_look_first() && tag <= kLargestTag) {
    state->target_ = data.data();
    state->unmatched_ = true;
    unmatched_[{from, tag}].push_back(state.get());
    return Request(std::move(state));
  }
  check(MPI_Irecv(data.data(), length, MPI_BYTE, from, tag, handle_, &state->request_), "receive");
  return Request(std::move(state));
}

std::unique_ptr<Communicator> MpiCommunicator::do_split(int colour, int key,
                                                        const std::string& name) {
  // MPI's own call has no deadline, so nobody begins it before all are there.
  if (size() > 1) meet();
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(handle_, colour, key, &part), "split");
  const std::uint64_t group = mixed(mixed(group_, static_cast<std::uint64_t>(collectives())),
                                    static_cast<std::uint64_t>(colour));
  return std::make_unique<MpiCommunicator>(process_, part, group, name);
}

void MpiCommunicator::do_leave(const std::string& reason) {
  process_.leave(process_.rank(), reason);
}

void MpiCommunicator::close() {
  closing_ = true;
  if (size() > 1) meet();
}

// ---- the plugin

namespace {

// A simulator cannot bear that a process has ended to which others still send. So after a failure
// all wait for each other.
struct Lingering {
  Process& process;
  ~Lingering() {
    if (library::is_simulated() && process.has_failed()) process.say_farewell();
  }
};

void run(const MpiOptions& options, const std::function<void(Communicator&)>& work) {
  Process& process = Process::instance();
  process.set_failed(true);  // until the end is reached, also by exit()
  MPI_Comm handle = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &handle);
  MpiCommunicator world(process, handle, process.next_world(), "world");
  world.set_timeout(options.timeout);
  world.set_checked(options.checked);
  const Lingering lingering{process};
  try {
    work(world);
    if (!world.alive()) return;
    world.close();
  } catch (const RankFailed& error) {
    process.leave(error.rank(), error.diagnostic().why);
    throw;
  } catch (const std::exception& error) {
    process.leave(process.rank(), error.what());
    throw;
  } catch (...) {
    process.leave(process.rank(), "an exception of no known type");
    throw;
  }
  process.set_failed(false);
}

}  // namespace

}  // namespace shiplap::comm

extern "C" const shiplap::comm::MpiPlugin shiplap_mpi_plugin{
    .version = shiplap::comm::kMpiPluginVersion, .run = shiplap::comm::run};
