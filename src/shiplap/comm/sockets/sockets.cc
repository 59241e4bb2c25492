#include "shiplap/comm/sockets/sockets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/comm/environment_internal.h"
#include "shiplap/comm/sockets/socket_communicator_internal.h"

namespace shiplap::comm {
namespace {

std::unique_ptr<SocketCommunicator> make_world(const std::shared_ptr<Endpoint>& endpoint,
                                               const SocketOptions& options) {
  const FailureDetector& detector = endpoint->detector();
  const std::span<const int> ranks = detector.all_ranks();
  MonitoredCommunicator::Members all{
      .world_ranks = {ranks.begin(), ranks.end()}, .rank = detector.rank(), .group = 1};
  auto world = std::make_unique<SocketCommunicator>(endpoint, std::move(all), "world");
  world->set_timeout(options.timeout);
  world->set_checked(options.checked);
  return world;
}

int number_from(const char* variable) {
  const char* const value = std::getenv(variable);
  const std::string_view text = value == nullptr ? "" : value;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || number < 0) {
    throw InputError(Diagnostic{
        .code = "D300",
        .what = value == nullptr
                    ? fmt::format("SHIPLAP_SOCKETS is set, but {} is missing", variable)
                    : fmt::format("{} is `{}`, where a number was expected", variable, text),
        .help =
            "every process of the job needs SHIPLAP_SOCKETS, SHIPLAP_RANK and SHIPLAP_WORLD_SIZE"});
  }
  return number;
}

std::vector<std::string> split_addresses(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Peers cannot connect to a wildcard address, and a rank should not listen on more than one.
void check_not_wildcard(const std::string& address, const char* variable) {
  const std::string host = parse_address(address, variable, Port::optional).host;
  if (host != "0.0.0.0" && host != "::" && host != "*" && host != "0") return;
  throw InputError(
      Diagnostic{.code = "D308",
                 .what = fmt::format("{} is `{}`, a wildcard address", variable, address),
                 .help = "give the address by which the other ranks reach this host"});
}

// The store outlives the endpoint: rank 0 must serve it as long as other ranks connect.
struct JoinedJob {
  std::unique_ptr<TcpStore> store;
  std::shared_ptr<Endpoint> endpoint;
};

JoinedJob join_job(const SocketJob& job, SocketOptions options) {
  options.secret = job.secret;
  const std::vector<std::string> addresses = split_addresses(job.where);
  for (const std::string& one : addresses) check_not_wildcard(one, "SHIPLAP_SOCKETS");
  if (!job.address.empty()) check_not_wildcard(job.address, "SHIPLAP_ADDRESS");
  if (addresses.size() == 1 && job.self.size > 1) {
    const double begin = seconds_now();
    auto store = connect_store(job.where, job.self, options.connect_timeout, job.secret);
    // Rank 0 may have started late: the time spent on connecting to its store counts.
    const Seconds left{options.connect_timeout.value - (seconds_now() - begin)};
    options.connect_timeout = std::max(left, Seconds{1});
    options.address = job.address.empty() ? store->local_host() : job.address;
    auto endpoint = std::make_shared<Endpoint>(job.self, join(job.self, *store, options));
    store->shut_down();
    return {std::move(store), std::move(endpoint)};
  }
  if (std::ssize(addresses) != job.self.size) {
    throw InputError(Diagnostic{.code = "D308",
                                .what = fmt::format("SHIPLAP_SOCKETS has {} addresses for {} ranks",
                                                    addresses.size(), job.self.size),
                                .help = "give that of rank 0 alone, or that of every rank"});
  }
  const auto list = make_static_rendezvous(addresses);
  const std::string& local = addresses[job.self.rank];
  options.address = job.address.empty() ? local : job.address;
  return {nullptr, std::make_shared<Endpoint>(job.self, join(job.self, *list, options))};
}

}  // namespace

std::unique_ptr<Communicator> connect(const RankInfo& self, Rendezvous& rendezvous,
                                      const SocketOptions& options) {
  PeerSockets peers = join(self, rendezvous, options);
  return make_world(std::make_shared<Endpoint>(self, std::move(peers)), options);
}

std::optional<SocketJob> socket_job() {
  const char* const where = std::getenv("SHIPLAP_SOCKETS");
  if (where == nullptr) return std::nullopt;
  const char* const address = std::getenv("SHIPLAP_ADDRESS");
  const char* const secret = std::getenv("SHIPLAP_SECRET");
  SocketJob job{.where = where,
                .self = {.rank = number_from("SHIPLAP_RANK"),
                         .size = number_from(set_variable("SHIPLAP_WORLD_SIZE", "SHIPLAP_SIZE"))},
                .address = address == nullptr ? "" : address,
                .secret = secret == nullptr ? "" : secret};
  if (job.self.rank >= job.self.size) {
    throw InputError(Diagnostic{.code = "D300",
                                .what = fmt::format("SHIPLAP_RANK is {} and SHIPLAP_WORLD_SIZE {}",
                                                    job.self.rank, job.self.size),
                                .help = "ranks count from 0"});
  }
  return job;
}

void run_on_sockets(const SocketJob& job, const SocketOptions& options,
                    const std::function<void(Communicator&)>& work) {
  const JoinedJob joined = join_job(job, options);
  const std::shared_ptr<Endpoint>& endpoint = joined.endpoint;
  abort_peers_on_exception(endpoint->detector(), [&] {
    const auto world = make_world(endpoint, options);
    work(*world);
    if (world->alive()) world->close();  // otherwise the others get the same failure
  });
}

}  // namespace shiplap::comm
