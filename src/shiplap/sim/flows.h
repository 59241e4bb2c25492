// Transfers that share links: a fluid model with max-min fair rates.
//
//   Flows flows({50e9, 50e9});                          // bytes per second of each link
//   flows.start(0, {{.link = 0}}, {.bytes = 1e9, .rate = 40e9});
//   const Flows::End end = flows.end_next();            // after 0.025 s
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "shiplap/sim/event_queue.h"

namespace shiplap::sim {

struct LinkUse {
  std::int32_t link = 0;
  double share = 1;  // bytes that cross the link for each byte of the flow
};

struct FlowSize {
  double latency = 0;  // seconds until the first byte moves
  double bytes = 0;
  double rate = 0;  // bytes per second if no link is full; 0: takes no time
};

class Flows {
 public:
  struct End {
    double time = 0;
    std::int32_t flow = -1;
  };

  explicit Flows(std::vector<double> capacities);

  // Returns an id, which is used again after the flow has ended. REQUIRES: time is not before that
  // of any event so far; no link twice.
  std::int32_t start(double time, std::span<const LinkUse> uses, const FlowSize& size);
  // The time of the next event inside, a flow that begins to move bytes or ends; infinity: none.
  [[nodiscard]] double next_event();
  // Handles the next event. Returns the flow that ended, if one did. REQUIRES: there is one.
  End advance();
  // Handles events up to the next end. REQUIRES: a flow is under way.
  End end_next();
  // Bytes per second at this time. REQUIRES: no event is before it.
  [[nodiscard]] double rate(std::int32_t flow, double time) const;

 private:
  enum class State : std::uint8_t {
    ended,
    alone,   // none of its links can be full: it has its own rate as soon as it moves
    waits,   // its latency has not passed, and its event is the end of it
    shares,  // it moves at Flow::rate
  };
  struct Use {
    std::int32_t link = 0;
    std::int32_t position = 0;  // in Link::users
    double share = 1;
  };
  struct Flow {
    std::vector<Use> uses;
    double max_rate = 0;
    double moves_at = 0;  // when its latency has passed
    double left = 0;      // bytes at `since`
    double since = 0;     // when the rate changed last
    double rate = 0;
    std::uint32_t version = 0;  // of its event: older ones are void
    State state = State::ended;
    bool marked = false;
  };
  struct User {
    std::int32_t flow = 0;
    std::int32_t use = 0;
  };
  struct Link {
    double capacity = 0;
    double demand = 0;  // of all users at their own rates, also of those whose latency lasts
    std::vector<User> users;
    // Scratch of share():
    double left = 0;
    double weight = 0;      // of its users without a rate yet
    std::int32_t open = 0;  // how many those are
    bool marked = false;
  };

  [[nodiscard]] static bool is_contended(const Link& link);
  [[nodiscard]] bool is_contended(const Flow& flow) const;
  void join(std::int32_t id);
  void leave(std::int32_t id);
  // Collects the flows whose rates depend on `id`, over links that its demand can fill. Those that
  // were alone so far no longer are.
  void collect(std::int32_t id, double time);
  void mark(std::int32_t id, double time);
  // Shares the links of the collected flows that move.
  void share(double time);
  // The largest rate that all flows which are not fixed can have.
  [[nodiscard]] double fair_level() const;
  void fix(std::int32_t id, double rate, double time);
  void schedule(std::int32_t id, double time, double delay);
  void drop_void_events();

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<std::int32_t> free_;
  EventQueue events_;
  std::vector<std::int32_t> found_;    // flows, by collect()
  std::vector<std::int32_t> touched_;  // links of them
  std::vector<std::int32_t> open_;     // flows without a rate yet, in share()
};

}  // namespace shiplap::sim
