// Tracks what the buffers of all ranks hold, as an observer of the plan's execution.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "shiplap/check/call_memo_internal.h"
#include "shiplap/check/interval_map_internal.h"
#include "shiplap/check/job_internal.h"
#include "shiplap/plan/execution.h"

namespace shiplap::check {

// One cause can show on every rank; more violations than this add no information.
inline constexpr std::size_t kMaxViolations = 20'000;

class ValueTracker : public plan::ExecutionObserver {
 public:
  ValueTracker(Job& job, std::vector<Violation>& violations);

  void perform(OperationId place) override;
  void post(OperationId send) override;
  void deliver(OperationId send, OperationId receive) override;
  void call(plan::Match call) override { run_call(job_.groups[call.with], call.n); }
  // Keeps what messages carried. REQUIRES: the execution has not started.
  void keep_messages() { keep_ = true; }
  [[nodiscard]] const Pieces& carried(const MessageQueue& queue, std::size_t n) const {
    return posts_[static_cast<std::size_t>(queue.first) + n];
  }
  // Checks the goals, then leaks. REQUIRES: the execution is complete.
  void finish();

  // Rows that should hold a content: which operation wrote it, and which overwrote it before the
  // read.
  struct Watch {
    std::int32_t script = 0;
    RowRange row_range;
    Piece wanted;  // from row `first_row` of `row_range`
    std::int32_t first_row = 0;
    std::int32_t until = -1;  // the operation that reads it; later ones do not count
    bool closed = false;
    std::int32_t made_by = -2;  // -1: it was given; -2: none
    std::int32_t lost_by = -1;
  };
  void watch(std::vector<Watch> watches);
  [[nodiscard]] const std::vector<Watch>& watches() const { return watches_; }

  [[nodiscard]] std::int64_t statements() const { return statements_; }
  [[nodiscard]] std::int64_t unions() const { return unions_; }

 private:
  struct RowValue {
    ContentId content;
    RowState state = RowState::uninitialized;
    std::int32_t writer = -1;
    std::int32_t offset = 0;
    std::int32_t rows = 0;  // of the whole content
    void skip(std::int32_t count) { offset += count; }
  };
  using Buffer = IntervalMap<RowValue>;
  // The current operation, for violations.
  struct Actor {
    std::int32_t script = 0;
    std::int32_t op = -1;
  };

  struct UnallocatedRows {
    std::int32_t buffer = 0;
    std::int32_t begin = 0;
    std::int32_t end = 0;
    friend bool operator==(const UnallocatedRows&, const UnallocatedRows&) = default;
  };

  void start(std::size_t script);
  void store_output(Actor actor, const Pieces& pieces);
  // Executes call n of a group. REQUIRES: all members have arrived.
  void run_call(const CallGroup& group, std::int64_t n);
  // In order; adjacent ranges are merged.
  [[nodiscard]] std::vector<UnallocatedRows> unallocated_rows(std::size_t script) const;
  // Reports the first rows that are allocated at the end of the step and were not at its start.
  void find_leak(std::size_t script);
  Buffer& buffer(std::int32_t script, std::int32_t id) { return memories_[script][id]; }
  void get(std::int32_t script, const RowRange& row_range, Pieces& out);
  void put(Actor actor, const RowRange& row_range, std::span<const Piece> pieces);
  // Adds to what the rows hold.
  void add(Actor actor, const RowRange& row_range, const Pieces& pieces);
  void add_by_list(Actor actor, const RowRange& row_range, const Pieces& pieces);
  void expect(Actor actor, const Assertion& assertion);
  // Reports rows that are not allocated.
  void check_allocated(Actor actor, const RowRange& row_range, const Pieces& held);
  void compute(Actor actor, const ScriptOp& op);
  void copy(Actor actor, const ScriptOp& op);
  [[nodiscard]] Pieces united(const Pieces& a, const Pieces& b, Actor actor, OperationId other,
                              const RowRange& row_range);
  void run_exchange(const CallGroup& group, std::int64_t n);
  [[nodiscard]] Actor actor_of(const CallGroup& group, std::size_t slot, std::int64_t n) const;
  [[nodiscard]] Pieces input(const CallGroup& group, const Member& member, std::int64_t n);
  [[nodiscard]] Pieces reduced(const CallGroup& group, std::int64_t n);
  [[nodiscard]] Pieces unite_all(const std::vector<Pieces>& inputs);
  void attribute_conflict(const CallGroup& group, std::int64_t n, std::size_t k);
  void run_reduce_scatter(const CallGroup& group, std::int64_t n, const Pieces& all);
  // Marks the inputs of a call in place as undefined.
  void clobber_inputs(const CallGroup& group, std::int64_t n);
  void run_all_gather(const CallGroup& group, std::int64_t n);
  void run_all_to_all(const CallGroup& group, std::int64_t n);
  // The outputs, by slot.
  [[nodiscard]] std::vector<Pieces> all_to_all(const CallGroup& group, std::int64_t n);
  // Groups have one shape if their members have the same slots and positions.
  [[nodiscard]] std::int64_t shape_of(const CallGroup& group);
  // The outputs by slot, if member k gets parts[k]; members that one script represents get one
  // affine content.
  [[nodiscard]] std::vector<Pieces> fitted(const CallGroup& group,
                                           const std::vector<Pieces>& parts);
  // Stores outputs[slot] on the scripts, in the order of the members.
  void store_outputs(const CallGroup& group, std::int64_t n, const std::vector<Pieces>& outputs);
  // The axes of symmetry along which these members differ.
  [[nodiscard]] std::vector<std::size_t> axes_along(const CallGroup& group,
                                                    std::span<const std::size_t> members) const;
  // The contents that are parts[m] on each of the members, which fill a grid of the axes.
  [[nodiscard]] Pieces fit_family(const CallGroup& group, const std::vector<Pieces>& parts,
                                  std::span<const std::size_t> members,
                                  std::span<const std::size_t> along);
  // The axis, if one script represents all members and they are its positions in order.
  [[nodiscard]] std::optional<std::size_t> only_axis(const CallGroup& group) const;
  // The contents that are family[k] at position k of an axis.
  [[nodiscard]] Pieces fit_pieces(std::span<const Pieces> family, std::size_t axis);
  void update_watches(Actor actor, const RowRange& row_range);
  void report(Violation violation) {
    if (violations_.size() < kMaxViolations) violations_.push_back(std::move(violation));
  }
  [[nodiscard]] Actor actor_at(OperationId place) const {
    return {job_.script_of[place.rank], place.operation};
  }
  [[nodiscard]] Pieces& posted(OperationId send) {
    const plan::Match match = job_.op(send).match;
    return posts_[job_.queues()[match.with].first + match.n];
  }
  [[nodiscard]] OperationId place(Actor actor) const {
    return {job_.scripts[actor.script].rank, actor.op};
  }

  Job& job_;
  std::vector<Violation>& violations_;
  std::vector<std::vector<Buffer>> memories_;                       // by script and buffer
  std::vector<std::vector<UnallocatedRows>> unallocated_at_start_;  // by script
  std::vector<Pieces> posts_;                                       // by message
  bool keep_ = false;
  std::vector<Watch> watches_;
  std::int64_t statements_ = 0;
  std::int64_t unions_ = 0;
  Pieces held_;
  Pieces one_;
  Pieces two_;
  std::vector<Buffer::Range> made_;
  CallMemo memo_;
  std::map<std::vector<std::int64_t>, std::int64_t> shapes_;  // by slots and positions
  std::vector<std::int64_t> shapes_of_groups_;                // -1: not known yet
};

}  // namespace shiplap::check
