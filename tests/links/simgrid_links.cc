// Random plans whose transfers share links, simulated by us and by SimGrid. Prints the largest
// relative difference between the times at which a stream ends; exit code 1 if it is above a
// limit, or if links are hardly shared.
//
//   links_simgrid messages       messages: communications of SimGrid's model CM02
//   links_simgrid collectives    messages and collectives: parallel tasks of its model L07
//
// The links and what crosses them are those of link_witness_testing_internal.h, which knows nothing
// but the hardware description. SimGrid's actors do what the streams of the plan do. Both of its
// models are max-min fair: CM02 in bytes per second, L07 in the fraction of a task per second. So
// tasks are cut into parts that are equal on the link that they load most.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <simgrid/s4u.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/plan/text.h"
#include "shiplap/sim/link_witness_testing_internal.h"
#include "shiplap/sim/random_machine_testing_internal.h"
#include "shiplap/sim/replay.h"

namespace shiplap::sim {
namespace {

namespace s4u = simgrid::s4u;

constexpr int kPlans = 100;
constexpr int kStreams = 3;
constexpr double kPart = 1e6;  // bytes of a part of a task, on the link that it loads most

enum class Mode : std::uint8_t { messages, collectives };

// A message or a collective.
struct Call {
  bool is_message = false;
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::vector<Rank> ranks;  // of a message: sender and receiver
  std::int64_t bytes = 0;
  std::int64_t parts = 1;
  WitnessTransfer transfer;
};
struct Action {
  int call = -1;  // -1: computes
  double seconds = 0;
};
using Stream = std::vector<Action>;

struct Job {
  hardware::System system;
  std::map<std::string, double> capacities;
  std::vector<Call> calls;
  std::vector<std::vector<Stream>> ranks;  // by rank and stream
};

// ---- random jobs

// Communications of CM02 cross all links of a route at the same rate, which must not be above what
// the links carry.
void widen_links(hardware::System& system) {
  for (hardware::Network& network : system.networks) {
    network.p2p.scalar = std::max(1.0, network.p2p.scalar);
    if (!network.leaf) continue;
    const auto devices =
        static_cast<double>(system.node ? system.node->devices : system.networks[0].size);
    const auto rails =
        static_cast<double>(system.node ? system.node->adapters : system.networks[0].size);
    const double ranks = static_cast<double>(cost::ranks_per_leaf(system, *network.leaf)) / devices;
    network.leaf->oversubscription =
        std::min(network.leaf->oversubscription, std::max(1.0, ranks * devices / rails));
  }
}

class RandomJob {
 public:
  RandomJob(Random& random, Mode mode) : random_(random), mode_(mode) {
    job_.system = RandomMachine(random).system();
    if (mode == Mode::messages) widen_links(job_.system);
    LinkWitness links(job_.system);
    job_.ranks.resize(random.between(2, 17), std::vector<Stream>(kStreams));
    for (int k = 0; k < (mode == Mode::messages ? 80 : 30); ++k) add_call(links);
    job_.capacities = links.capacities();
  }
  [[nodiscard]] Job job() && { return std::move(job_); }

 private:
  void add_call(LinkWitness& links) {
    Call call{.is_message = mode_ == Mode::messages || random_.chance(0.3)};
    std::vector<Rank> all;
    for (std::size_t rank = 0; rank < job_.ranks.size(); ++rank) {
      all.emplace_back(static_cast<std::int32_t>(rank));
    }
    random_.shuffle(all);
    const std::int64_t count = call.is_message ? 2 : random_.between(2, std::ssize(all) + 1);
    call.ranks.assign(all.begin(), all.begin() + count);
    call.kind = kCollectives[random_.between(0, kCollectives.size() - 1)];  // no barrier
    if (mode_ == Mode::messages) {
      call.bytes = random_.between(1, 10'000'000);
      call.transfer = transfer_of(links, call);
    } else if (!choose_size(links, call)) {
      return;
    }
    for (const Rank rank : call.ranks) {
      Stream& stream = job_.ranks[rank.index()][random_.between(0, kStreams)];
      stream.push_back({.seconds = 1e-4 * random_.unit()});
      stream.push_back({.call = static_cast<int>(job_.calls.size())});
    }
    job_.calls.push_back(call);
  }
  static WitnessTransfer transfer_of(LinkWitness& links, const Call& call) {
    if (call.is_message) return witness_message(links, {call.bytes}, call.ranks[0], call.ranks[1]);
    return witness_collective(links, call.kind, {call.bytes}, plan::RankSet(call.ranks));
  }
  // So many bytes that the call is a few parts. False: no size does that, or it is not known which
  // of several links it loads most.
  bool choose_size(LinkWitness& links, Call& call) {
    call.parts = random_.between(1, 5);
    const double wanted = kPart * static_cast<double>(call.parts);
    std::int64_t low = 0;  // too few
    std::int64_t high = 1'000'000'000;
    while (low + 1 < high) {
      call.bytes = low + (high - low) / 2;
      call.transfer = transfer_of(links, call);
      const bool enough = !call.transfer.most.empty() && call.transfer.most[0] >= wanted;
      (enough ? high : low) = call.bytes;
    }
    call.bytes = high;
    call.transfer = transfer_of(links, call);
    if (call.transfer.most.empty()) return false;
    const auto [least, most] = std::ranges::minmax(call.transfer.most);
    return most - least <= 1e-9 * most && std::abs(most / wanted - 1) < 1e-4;
  }

  Random& random_;
  Mode mode_;
  Job job_;
};

// ---- our simulation

std::string statement_of(const Call& call, int number, Rank rank) {
  if (call.is_message) {
    const bool sends = call.ranks[0] == rank;
    return fmt::format("{} x[0 +{}] {} rank {} tag {}", sends ? "send" : "receive", call.bytes,
                       sends ? "to" : "from", call.ranks[sends ? 1 : 0].value, number);
  }
  std::vector<std::int32_t> ranks;
  for (const Rank member : call.ranks) ranks.push_back(member.value);
  const auto n = std::ssize(call.ranks);
  const std::string over = fmt::format("over ranks{{{}}}/c{}", fmt::join(ranks, ", "), number);
  const std::string_view kind = name(call.kind);
  if (call.kind == CollectiveKind::all_gather) {
    return fmt::format("{} x[0 +{}] to y[0 +{}] {}", kind, call.bytes / n, call.bytes, over);
  }
  if (call.kind == CollectiveKind::reduce_scatter) {
    return fmt::format("{} x[0 +{}] to y[0 +{}] {}", kind, call.bytes, call.bytes / n, over);
  }
  if (call.kind == CollectiveKind::all_to_all) {
    return fmt::format("{} x[0 +{}] to y[0 +{}] {}", kind, call.bytes, call.bytes, over);
  }
  return fmt::format("{} x[0 +{}] {}", kind, call.bytes, over);
}

plan::Plan plan_of(const Job& job) {
  std::string text = fmt::format("shiplap-plan 1\nmesh r={}\n", job.ranks.size());
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    text += fmt::format(
        "program p{0} on r={0}\n  buffer x rows 1000000000 row_bytes 1 u8\n"
        "  buffer y rows 1000000000 row_bytes 1 u8\n  streams s1, s2\n",
        rank);
    for (int stream = 0; stream < kStreams; ++stream) {
      const std::string on = stream == 0 ? "" : fmt::format("@s{} ", stream);
      for (const Action& action : job.ranks[rank][stream]) {
        if (action.call < 0) {
          text += fmt::format("  {}compute k work {:.17g} seconds\n", on, action.seconds);
        } else {
          text += "  " + on +
                  statement_of(job.calls[action.call], action.call,
                               Rank(static_cast<std::int32_t>(rank))) +
                  "\n";
        }
      }
    }
  }
  return plan::parse_text(text, "random.plan");
}

// By rank and stream: when its last operation is complete.
using Ends = std::vector<std::vector<double>>;

Ends ends_of(const Replay& replay) {
  Ends ends(replay.trace.ranks.size(), std::vector<double>(kStreams));
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    for (const trace::Event& event : replay.trace.ranks[rank].events) {
      const std::string& name = replay.trace.streams[event.stream];
      double& end = ends[rank][name == "main" ? 0 : name.back() - '0'];
      end = std::max(end, event.end().value);
    }
  }
  return ends;
}

// ---- SimGrid's

// The hosts and links of one job, and the actors of its streams.
class Platform {
 public:
  Platform(s4u::NetZone* root, std::string name, const Job& job, Mode mode, Ends& ends)
      : zone_(s4u::create_full_zone(name)), name_(std::move(name)), job_(&job) {
    zone_->set_parent(root);
    hub_ = host("hub");
    for (const auto& [link, capacity] : job.capacities) {
      links_[link] = zone_->create_link(name_ + link, capacity)->set_latency(0)->seal();
    }
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      hosts_.push_back(host(fmt::format("rank{}", rank)));
    }
    for (std::size_t k = 0; k < job.calls.size(); ++k) {
      const auto members = static_cast<unsigned>(job.calls[k].ranks.size());
      meetings_.push_back(s4u::Barrier::create(members));
      partings_.push_back(s4u::Barrier::create(members));
      if (mode == Mode::messages) connect(job.calls[k]);
    }
    if (mode == Mode::collectives) {
      for (const auto& [link, at] : links_) spoke(link, at);
      for (std::size_t k = 0; k < job.calls.size(); ++k) {
        const Call& call = job.calls[k];
        const std::string limit = fmt::format("limit{}", k);
        spoke(limit,
              zone_->create_link(name_ + limit, call.transfer.most[0] / call.transfer.seconds)
                  ->set_latency(0)
                  ->seal());
      }
    }
    zone_->seal();
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      for (int stream = 0; stream < kStreams; ++stream) {
        start(mode, rank, job.ranks[rank][stream], &ends[rank][stream]);
      }
    }
  }

 private:
  s4u::Host* host(const std::string& what) {
    s4u::Host* const made = zone_->create_host(name_ + what, 1e9);
    made->seal();
    return made;
  }
  void route(s4u::Host* from, s4u::Host* to, const std::vector<s4u::LinkInRoute>& links) {
    zone_->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, links, false);
  }
  // A route that crosses this link only.
  void spoke(const std::string& link, s4u::Link* at) {
    spokes_[link] = host("to " + link);
    route(hub_, spokes_[link], {s4u::LinkInRoute(at)});
  }
  // A message has a host of its own, because its own rate depends on its size.
  void connect(const Call& call) {
    std::vector<s4u::LinkInRoute> links;
    for (const auto& [link, load] : call.transfer.loads) links.emplace_back(links_.at(link));
    const std::string name = fmt::format("limit{}", senders_.size());
    links.emplace_back(
        zone_->create_link(name_ + name, static_cast<double>(call.bytes) / call.transfer.seconds)
            ->set_latency(0)
            ->seal());
    senders_.push_back(host(fmt::format("sender{}", senders_.size())));
    route(senders_.back(), hosts_[call.ranks[1].index()], links);
  }

  // The actor sets `end` when the stream has ended.
  void start(Mode mode, std::size_t rank, const Stream& stream, double* end) {
    s4u::Actor::create("stream", hosts_[rank], [this, mode, rank, stream, end] {
      for (const Action& action : stream) {
        if (action.call < 0) {
          s4u::this_actor::sleep_for(action.seconds);
          continue;
        }
        const Call& call = job_->calls[action.call];
        meetings_[action.call]->wait();
        if (call.ranks[0].index() == rank) {
          s4u::this_actor::sleep_for(call.transfer.latency);
          mode == Mode::messages ? communicate(action.call) : execute(action.call);
        }
        partings_[action.call]->wait();
      }
      *end = s4u::Engine::get_clock();
    });
  }
  void communicate(int number) {
    const Call& call = job_->calls[number];
    s4u::Comm::sendto(senders_[number], hosts_[call.ranks[1].index()],
                      static_cast<std::uint64_t>(call.bytes));
  }
  void execute(int number) {
    const Call& call = job_->calls[number];
    std::vector<s4u::Host*> hosts{hub_, spokes_.at(fmt::format("limit{}", number))};
    std::vector<double> loads{0, call.transfer.most[0]};
    for (const auto& [link, load] : call.transfer.loads) {
      hosts.push_back(spokes_.at(link));
      loads.push_back(load);
    }
    std::vector<double> bytes(hosts.size() * hosts.size());  // from the hub to the others
    for (std::size_t k = 0; k < loads.size(); ++k) {
      bytes[k] = loads[k] / static_cast<double>(call.parts);
    }
    for (std::int64_t part = 0; part < call.parts; ++part) {
      s4u::this_actor::parallel_execute(hosts, std::vector<double>(hosts.size()), bytes);
    }
  }

  s4u::NetZone* zone_;
  std::string name_;
  const Job* job_;
  s4u::Host* hub_ = nullptr;
  std::map<std::string, s4u::Link*> links_;
  std::map<std::string, s4u::Host*> spokes_;
  std::vector<s4u::Host*> hosts_;
  std::vector<s4u::Host*> senders_;
  std::vector<s4u::BarrierPtr> meetings_;
  std::vector<s4u::BarrierPtr> partings_;
};

void configure(Mode mode) {
  // Max-min fair rates without corrections for TCP. Lazy updates, the default, leave some rates as
  // they were, and ends of messages up to 15 % wrong.
  std::vector<std::string> options{"network/crosstraffic:0", "surf/precision:1e-12"};
  if (mode == Mode::collectives) {
    options.emplace_back("host/model:ptask_L07");
  } else {
    for (const char* option :
         {"network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1",
          "network/weight-S:0", "network/TCP-gamma:0", "network/optim:Full"}) {
      options.emplace_back(option);
    }
  }
  for (const std::string& option : options) s4u::Engine::set_config(option);
}

int run(int argc, char** argv) {
  s4u::Engine engine(&argc, argv);
  const Mode mode =
      argc > 1 && std::string_view(argv[1]) == "collectives" ? Mode::collectives : Mode::messages;
  configure(mode);
  std::vector<Job> jobs;
  std::vector<Ends> theirs;
  std::size_t calls = 0;
  for (std::uint64_t seed = 1; seed <= kPlans; ++seed) {
    Random random(seed);
    jobs.push_back(RandomJob(random, mode).job());
    theirs.emplace_back(jobs.back().ranks.size(), std::vector<double>(kStreams));
    calls += jobs.back().calls.size();
  }
  s4u::NetZone* const root = s4u::create_full_zone("all");
  std::vector<std::unique_ptr<Platform>> platforms;
  for (int k = 0; k < kPlans; ++k) {
    platforms.push_back(
        std::make_unique<Platform>(root, fmt::format("job{} ", k), jobs[k], mode, theirs[k]));
  }
  root->seal();
  engine.run();
  double worst = 0;
  double sharing = 0;  // how much longer plans take because links are shared
  for (int k = 0; k < kPlans; ++k) {
    const plan::Plan plan = plan_of(jobs[k]);
    const Replay shared = replay(plan, {.system = jobs[k].system, .shares_links = true});
    const Ends ours = ends_of(shared);
    for (std::size_t rank = 0; rank < ours.size(); ++rank) {
      for (int stream = 0; stream < kStreams; ++stream) {
        const double a = ours[rank][stream];
        const double b = theirs[k][rank][stream];
        if (a > 0 || b > 0) worst = std::max(worst, std::abs(a - b) / std::max(a, b));
      }
    }
    sharing += shared.end / replay(plan, {.system = jobs[k].system}).end - 1;
  }
  fmt::print(
      "{{\"plans\": {}, \"transfers\": {}, \"mean_slowdown\": {:.3g}, "
      "\"simgrid_worst_error\": {:.3g}}}\n",
      kPlans, calls, sharing / kPlans, worst);
  // The sizes of collectives are whole bytes, so their parts are equal to 1e-6.
  const double limit = mode == Mode::messages ? 1e-9 : 1e-4;
  return worst <= limit && sharing / kPlans > 0.05 ? 0 : 1;
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
