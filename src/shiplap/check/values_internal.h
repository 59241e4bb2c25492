// What the buffers hold, followed operation by operation in an order that the plan allows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shiplap/check/job_internal.h"
#include "shiplap/check/rows_internal.h"
#include "shiplap/plan/execution.h"

namespace shiplap::check {

// One cause can show on every rank; nobody needs them all.
inline constexpr std::size_t kMostTroubles = 20'000;

class Values : public plan::Observer {
 public:
  Values(Job& job, std::vector<Trouble>& troubles);

  void perform(Place place) override;
  void post(Place send) override;
  void deliver(Place send, Place receive) override;
  void call(plan::Match call) override { meet(job_.groups[call.with], call.n); }
  // To be called before the execution: what messages carried is kept.
  void keep_messages() { keep_ = true; }
  [[nodiscard]] const Pieces& carried(const MessageQueue& queue, std::size_t n) const {
    return posts_[static_cast<std::size_t>(queue.first) + n];
  }
  // The goals, at the end; then rows that are allocated and not freed.
  void finish();

  // Rows that should hold something: who put it there, and who took it away before it was read.
  struct Watch {
    std::int32_t script = 0;
    Zone zone;
    Piece wanted;  // from `first_row` of the zone on
    std::int32_t first_row = 0;
    std::int32_t until = -1;  // the operation that reads it; what happens later does not count
    bool closed = false;
    std::int32_t made_by = -2;  // -1: it was given; -2: nobody
    std::int32_t lost_by = -1;
  };
  void watch(std::vector<Watch> watches);
  [[nodiscard]] const std::vector<Watch>& watches() const { return watches_; }

  [[nodiscard]] std::int64_t statements() const { return statements_; }
  [[nodiscard]] std::int64_t unions() const { return unions_; }

 private:
  struct Cell {
    ContentId content;
    Nature nature = Nature::nothing;
    std::int32_t writer = -1;
    std::int32_t offset = 0;
    std::int32_t rows = 0;  // of the whole content
    void skip(std::int32_t count) { offset += count; }
  };
  using Buffer = Rows<Cell>;
  // Who acts, for troubles.
  struct Actor {
    std::int32_t script = 0;
    std::int32_t op = -1;
  };

  struct DeadRows {
    std::int32_t buffer = 0;
    std::int32_t begin = 0;
    std::int32_t end = 0;
    friend bool operator==(const DeadRows&, const DeadRows&) = default;
  };

  void start(std::size_t script);
  void received(Actor actor, const Pieces& pieces);
  // A call in which all members have arrived.
  void meet(const CallGroup& group, std::int64_t n);
  // In order, those that touch joined.
  [[nodiscard]] std::vector<DeadRows> dead_rows(std::size_t script) const;
  // Reports the first rows that are alive at the end of the step and were not at its start.
  void find_leak(std::size_t script);
  Buffer& buffer(std::int32_t script, std::int32_t id) { return memories_[script][id]; }
  void get(std::int32_t script, const Zone& zone, Pieces& out);
  void put(Actor actor, const Zone& zone, std::span<const Piece> pieces);
  // Unites with what is there.
  void add(Actor actor, const Zone& zone, const Pieces& pieces);
  void add_by_list(Actor actor, const Zone& zone, const Pieces& pieces);
  void expect(Actor actor, const Claim& claim);
  // Tells of rows that can be neither read nor written.
  void demand_alive(Actor actor, const Zone& zone, const Pieces& held);
  void compute(Actor actor, const Op& op);
  void copy(Actor actor, const Op& op);
  [[nodiscard]] Pieces united(const Pieces& a, const Pieces& b, Actor actor, Place other,
                              const Zone& zone);
  void meet_exchange(const CallGroup& group, std::int64_t n);
  [[nodiscard]] Actor actor_of(const CallGroup& group, std::size_t slot, std::int64_t n) const;
  [[nodiscard]] Pieces input(const CallGroup& group, const Member& member, std::int64_t n);
  [[nodiscard]] Pieces reduced(const CallGroup& group, std::int64_t n);
  [[nodiscard]] Pieces at_once(const std::vector<Pieces>& inputs);
  void blame(const CallGroup& group, std::int64_t n, std::size_t k);
  void scatter(const CallGroup& group, std::int64_t n, const Pieces& all);
  // Of a call in place: what was read is not there any more.
  void spoil(const CallGroup& group, std::int64_t n);
  void gather(const CallGroup& group, std::int64_t n);
  void turn(const CallGroup& group, std::int64_t n);
  // A piece for every member, as what one script holds.
  void deal(const CallGroup& group, std::int64_t n, const std::vector<Pieces>& parts);
  void look_after(Actor actor, const Zone& zone);
  void report(Trouble trouble) {
    if (troubles_.size() < kMostTroubles) troubles_.push_back(std::move(trouble));
  }
  [[nodiscard]] Actor actor_at(Place place) const {
    return {job_.script_of[place.rank], place.operation};
  }
  [[nodiscard]] Pieces& posted(Place send) {
    const plan::Match match = job_.op(send).match;
    return posts_[job_.queues()[match.with].first + match.n];
  }
  [[nodiscard]] Place place(Actor actor) const {
    return {job_.scripts[actor.script].rank, actor.op};
  }

  Job& job_;
  std::vector<Trouble>& troubles_;
  std::vector<std::vector<Buffer>> memories_;         // by script and buffer
  std::vector<std::vector<DeadRows>> dead_at_start_;  // by script
  std::vector<Pieces> posts_;                         // by message
  bool keep_ = false;
  std::vector<Watch> watches_;
  std::int64_t statements_ = 0;
  std::int64_t unions_ = 0;
  Pieces held_;
  Pieces one_;
  Pieces two_;
  std::vector<Buffer::Range> made_;
};

}  // namespace shiplap::check
