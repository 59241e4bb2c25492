// Random plans of messages that share links, simulated by us and by SimGrid. Prints the largest
// relative difference between the times at which a stream ends; exit code 1 if it is above 1e-6, or
// if links are hardly shared.
//
// SimGrid's actors do what the streams of the plan do, with rendezvous messages. Latencies are all
// equal, because SimGrid's model of TCP prefers flows with short ones.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/plan/text.h"
#include "shiplap/sim/replay.h"
#include "shiplap/sim/shared_links_internal.h"

namespace shiplap::sim {
namespace {

namespace s4u = simgrid::s4u;

constexpr int kPlans = 60;
constexpr double kMaxError = 1e-6;

struct Action {
  int peer = -1;  // -1: computes
  bool sends = false;
  std::int64_t bytes = 0;
  int tag = 0;
  double seconds = 0;
};
using Stream = std::vector<Action>;

struct Job {
  hardware::System system;
  std::vector<std::vector<Stream>> ranks;  // by rank and stream
};

constexpr int kStreams = 3;

Job random_job(Random& random) {
  Job job{.system = hardware::zero_cost_system(), .ranks = {}};
  const std::int64_t devices = random.between(1, 5);
  hardware::Network near{.bandwidth = {1e9 * static_cast<double>(random.between(5, 20))},
                         .size = devices,
                         .latency = {1e-6}};
  hardware::Network far = near;
  far.bandwidth = {1e9 * static_cast<double>(random.between(1, 5))};
  far.size = 1 << 20;
  const std::int64_t nodes = random.between(1, 4);
  far.leaf = {.nodes = nodes,
              .oversubscription = static_cast<double>(random.between(1, nodes + 1))};
  job.system.networks = {near, far};
  job.system.node = {.devices = devices, .adapters = random.between(1, devices + 1)};
  job.ranks.resize(random.between(2, 17), std::vector<Stream>(kStreams));
  const auto ranks = static_cast<std::int64_t>(job.ranks.size());
  for (int tag = 0; tag < 80; ++tag) {
    const std::int64_t from = random.between(0, ranks);
    const std::int64_t to = (from + random.between(1, ranks)) % ranks;
    const std::int64_t bytes = random.between(1, 10'000'000);
    Stream& sender = job.ranks[from][random.between(0, kStreams)];
    Stream& receiver = job.ranks[to][random.between(0, kStreams)];
    sender.push_back({.seconds = 1e-3 * random.unit()});
    sender.push_back({.peer = static_cast<int>(to), .sends = true, .bytes = bytes, .tag = tag});
    receiver.push_back({.peer = static_cast<int>(from), .bytes = bytes, .tag = tag});
  }
  return job;
}

plan::Plan plan_of(const Job& job) {
  std::string text = fmt::format("shiplap-plan 1\nmesh r={}\n", job.ranks.size());
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    text += fmt::format(
        "program p{0} on r={0}\n  buffer x rows 10000000 row_bytes 1 u8\n  streams s1, s2\n", rank);
    for (int stream = 0; stream < kStreams; ++stream) {
      const std::string on = stream == 0 ? "" : fmt::format("@s{} ", stream);
      for (const Action& action : job.ranks[rank][stream]) {
        if (action.peer < 0) {
          text += fmt::format("  {}compute k work {:.17g} seconds\n", on, action.seconds);
        } else {
          text += fmt::format("  {}{} x[0 +{}] {} rank {} tag {}\n", on,
                              action.sends ? "send" : "receive", action.bytes,
                              action.sends ? "to" : "from", action.peer, action.tag);
        }
      }
    }
  }
  return plan::parse_text(text, "random.plan");
}

// By rank and stream: when its last operation is complete.
using Ends = std::vector<std::vector<double>>;

Ends our_ends(const Job& job) {
  const Replay replay = sim::replay(plan_of(job), {.system = job.system, .shares_links = true});
  Ends ends(job.ranks.size(), std::vector<double>(kStreams));
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    for (const trace::Event& event : replay.trace.ranks[rank].events) {
      const std::string& name = replay.trace.streams[event.stream];
      double& end = ends[rank][name == "main" ? 0 : name.back() - '0'];
      end = std::max(end, event.end().value);
    }
  }
  return ends;
}

// One platform has the hosts and links of all jobs; those of different jobs are not connected.
class Platform {
 public:
  Platform() : zone_(s4u::create_full_zone("all")) {}

  void add(int number, const Job& job, Ends& ends) {
    const MachineLinks machine(job.system, std::ssize(job.ranks));
    std::vector<s4u::Host*> hosts;
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      hosts.push_back(zone_->create_host(fmt::format("h{}.{}", number, rank), 1e9));
      hosts.back()->seal();
    }
    std::map<std::int32_t, s4u::Link*> links;
    std::set<std::pair<std::size_t, int>> routes;
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      for (int stream = 0; stream < kStreams; ++stream) {
        start(number, hosts[rank], job.ranks[rank][stream], &ends[rank][stream]);
        for (const Action& action : job.ranks[rank][stream]) {
          if (!action.sends || !routes.insert({rank, action.peer}).second) continue;
          connect(number, machine, links, {rank, at(action.peer)}, hosts);
        }
      }
    }
  }
  void seal() { zone_->seal(); }

 private:
  void connect(int number, const MachineLinks& machine, std::map<std::int32_t, s4u::Link*>& links,
               std::pair<std::size_t, std::size_t> ends, const std::vector<s4u::Host*>& hosts) {
    const Transfer transfer = machine.message({1000}, Rank(ends.first), Rank(ends.second));
    std::vector<s4u::LinkInRoute> route;
    for (const LinkUse& use : transfer.uses) {
      s4u::Link*& link = links[use.link];
      if (link == nullptr) {
        link = zone_->create_link(fmt::format("l{}.{}", number, use.link),
                                  machine.capacities()[use.link]);
        link->set_latency(0)->seal();
      }
      route.emplace_back(link);
    }
    // It limits each message to its own rate, and no two of them together.
    s4u::Link* alone = zone_->create_link(fmt::format("d{}.{}.{}", number, ends.first, ends.second),
                                          transfer.size.rate);
    alone->set_sharing_policy(s4u::Link::SharingPolicy::FATPIPE)
        ->set_latency(transfer.size.latency)
        ->seal();
    route.emplace_back(alone);
    zone_->add_route(hosts[ends.first]->get_netpoint(), hosts[ends.second]->get_netpoint(), nullptr,
                     nullptr, route, false);
  }

  // The actor sets `end` when the stream has ended.
  static void start(int number, s4u::Host* host, const Stream& stream, double* end) {
    s4u::Actor::create("stream", host, [number, stream, end] {
      for (const Action& action : stream) {
        s4u::Mailbox* box = s4u::Mailbox::by_name(fmt::format("m{}.{}", number, action.tag));
        if (action.peer < 0) {
          s4u::this_actor::sleep_for(action.seconds);
        } else if (action.sends) {
          box->put(box, static_cast<std::uint64_t>(action.bytes));
        } else {
          static_cast<void>(box->get<s4u::Mailbox>());
        }
      }
      *end = s4u::Engine::get_clock();
    });
  }

  s4u::NetZone* zone_;
};

int run(int argc, char** argv) {
  s4u::Engine engine(&argc, argv);
  // Max-min fair rates without corrections for TCP. Lazy updates, the default, leave some rates as
  // they were, and ends of messages up to 15 % wrong.
  for (const char* option : {"network/model:CM02", "network/crosstraffic:0",
                             "network/bandwidth-factor:1", "network/latency-factor:1",
                             "network/weight-S:0", "network/TCP-gamma:0", "network/optim:Full"}) {
    s4u::Engine::set_config(option);
  }
  Random random(1);
  std::vector<Job> jobs;
  for (int k = 0; k < kPlans; ++k) jobs.push_back(random_job(random));
  std::vector<Ends> theirs;
  for (const Job& job : jobs) theirs.emplace_back(job.ranks.size(), std::vector<double>(kStreams));
  Platform platform;
  for (int k = 0; k < kPlans; ++k) platform.add(k, jobs[k], theirs[k]);
  platform.seal();
  engine.run();
  double worst = 0;
  double sharing = 0;  // how much longer plans take because links are shared
  for (int k = 0; k < kPlans; ++k) {
    const Ends ours = our_ends(jobs[k]);
    for (std::size_t rank = 0; rank < ours.size(); ++rank) {
      for (int stream = 0; stream < kStreams; ++stream) {
        const double a = ours[rank][stream];
        const double b = theirs[k][rank][stream];
        if (b > 0) worst = std::max(worst, std::abs(a / b - 1));
      }
    }
    const double shared =
        sim::replay(plan_of(jobs[k]), {.system = jobs[k].system, .shares_links = true}).end.value;
    const double alone = sim::replay(plan_of(jobs[k]), {.system = jobs[k].system}).end.value;
    sharing += shared / alone - 1;
  }
  fmt::print("{{\"plans\": {}, \"mean_slowdown\": {:.3g}, \"simgrid_worst_error\": {:.3g}}}\n",
             kPlans, sharing / kPlans, worst);
  return worst <= kMaxError && sharing / kPlans > 0.05 ? 0 : 1;
}

}  // namespace
}  // namespace shiplap::sim

int main(int argc, char** argv) {
  try {
    return shiplap::sim::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "links_simgrid: %s\n", error.what());
    return 1;
  }
}
