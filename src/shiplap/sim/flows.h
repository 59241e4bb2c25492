// Transfers that share links: a fluid model with max-min fair rates.
//
//   Flows flows({50e9, 50e9});                          // bytes per second of each link
//   flows.start(0, {{.link = 0}}, {.bytes = 1e9, .rate = 40e9});
//   const Flows::End end = flows.end_next();            // after 0.025 s
#pragma once

#include <cstdint>
#include <queue>
#include <span>
#include <vector>

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
  // of any event so far.
  std::int32_t start(double time, std::span<const LinkUse> uses, const FlowSize& size);
  // The time of the next event inside, a flow that begins to move bytes or ends; infinity: none.
  [[nodiscard]] double next_event() const;
  // Handles the next event. Returns the flow that ended, if one did. REQUIRES: there is one.
  End advance();
  // Handles events up to the next end. REQUIRES: a flow is under way.
  End end_next();
  // Bytes per second now; 0 while its latency lasts.
  [[nodiscard]] double rate(std::int32_t flow) const { return flows_[flow].rate; }

 private:
  struct Use {
    std::int32_t link = 0;
    std::int32_t position = 0;  // in Link::users
    double share = 1;
  };
  struct Flow {
    std::vector<Use> uses;
    double max_rate = 0;
    double left = 0;   // bytes at `since`
    double since = 0;  // when the rate changed last
    double rate = 0;
    std::uint32_t version = 0;  // of its event: older ones are void
    bool moves = false;
    bool marked = false;
  };
  struct User {
    std::int32_t flow = 0;
    std::int32_t use = 0;
  };
  struct Link {
    double capacity = 0;
    double demand = 0;  // of all users at their own rates
    std::vector<User> users;
    // Scratch of share():
    double left = 0;
    double weight = 0;      // of its users without a rate yet
    std::int32_t open = 0;  // how many those are
    bool marked = false;
  };
  struct Event {
    double time = 0;
    std::int32_t flow = 0;
    std::uint32_t version = 0;
    friend bool operator>(const Event& a, const Event& b) {
      return a.time > b.time || (a.time == b.time && a.flow > b.flow);
    }
  };

  [[nodiscard]] static bool is_contended(const Link& link);
  void begin_moving(std::int32_t id, double time);
  void join(std::int32_t id);
  void leave(std::int32_t id);
  // Collects the flows whose rates depend on `id`, over links that its demand can fill.
  void collect(std::int32_t id);
  void mark(std::int32_t id);
  // Shares the links of the collected flows.
  void share(double time);
  // The largest rate that all flows which are not fixed can have.
  [[nodiscard]] double fair_level() const;
  void fix(std::int32_t id, double rate, double time);
  void schedule(std::int32_t id, double time);
  void drop_void_events();

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<std::int32_t> free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::int32_t> found_;    // flows, by collect()
  std::vector<std::int32_t> touched_;  // links of them
  std::vector<std::int32_t> open_;     // flows without a rate yet, in share()
};

}  // namespace shiplap::sim
