// The times of a linked. When everything that an operation waits for has happened, it starts; when
// it has started, or is complete, that happens to others. Times follow from this alone, so it does
// not matter in which order operations are looked at, and no queue is sorted by time.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/progress.h"
#include "shiplap/base/units.h"
#include "shiplap/cost/price.h"
#include "shiplap/hardware/system.h"
#include "shiplap/sim/fit_internal.h"
#include "shiplap/sim/linked_internal.h"

namespace shiplap::sim {

class Clock {
 public:
  // `linked` and `system` must outlive it. Sends of up to `eager` bytes do not wait for their
  // receive.
  Clock(LinkedProgram& linked, const hardware::System& system, Bytes eager);
  // Writes times and durations of what becomes complete into the events of the linked.
  void run(const ProgressCallback& progress);

  enum class State : std::uint8_t { waiting, started, complete };
  [[nodiscard]] State state(Place place) const { return state_[linked_.index(place)]; }
  // When it started.
  [[nodiscard]] Seconds start(Place place) const { return {time_[linked_.index(place)]}; }
  [[nodiscard]] bool all_complete() const { return complete_ == std::ssize(state_); }
  [[nodiscard]] Seconds end() const { return {end_}; }
  [[nodiscard]] const std::vector<Misfit>& misfits() const { return misfits_; }

 private:
  struct Gathering {
    std::int32_t started = 0;
    double time = 0;  // when the last of them started
  };

  void begin(Place place);
  void begin_message(Place place, const Step& step);
  void begin_meeting(Place place);
  void gather(plan::Match match, double time);
  [[nodiscard]] double duration_of(const Step& step, std::int32_t group) const;
  void finish(Place place, double time, double duration);
  void finish_member(Place batch, double time);
  void release(std::int32_t rank, std::int32_t first, std::int32_t last, double time);

  LinkedProgram& linked_;
  const hardware::System& system_;
  const Bytes eager_;
  std::vector<cost::Reach> reaches_;   // by group
  std::vector<double> time_;           // when it can start, as far as known; of a batch that has
                                       // started: when it can be complete
  std::vector<std::int32_t> missing_;  // for how many things it waits
  std::vector<State> state_;
  std::vector<Gathering> gatherings_;  // by call
  std::vector<Place> ready_;
  std::vector<Misfit> misfits_;
  std::int64_t complete_ = 0;
  double end_ = 0;
};

}  // namespace shiplap::sim
