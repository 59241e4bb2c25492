// Runs a strategy to completion: one coroutine per rank.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shiplap/strategy/model.h"
#include "shiplap/trace/trace.h"

namespace shiplap::strategy {

using Strategy = std::function<Task(Model&)>;

// A world and the models of its ranks. After run() the models have the results.
class Trainer {
 public:
  Trainer(const World& world, const Training& training);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer() = default;

  // REQUIRES: called once. Throws InputError with rank and call: the errors of Model; D616 a
  // collective mismatch; D617 a deadlock, with the ranks that hang and those they wait for; D623 a
  // communication that was started and never awaited; D619 a final weight that is missing,
  // incomplete or not updated.
  void run(const Strategy& strategy);

  [[nodiscard]] Dist& dist() { return dist_; }
  [[nodiscard]] const Dist& dist() const { return dist_; }
  [[nodiscard]] const World& world() const { return dist_.world(); }
  [[nodiscard]] const Training& training() const { return training_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Model>>& models() const { return models_; }
  [[nodiscard]] Model& model(int rank) { return *models_[rank]; }
  // From the replay of the recordings.
  [[nodiscard]] Seconds time() const { return dist_.timeline().end; }
  [[nodiscard]] const trace::Trace& trace() const { return dist_.timeline().trace; }

 private:
  void report_failure();
  [[nodiscard]] bool in_wait_cycle(const Model& model) const;
  void report_deadlock();
  void report_unwaited() const;
  void check_final_weights() const;

  Training training_;
  Dist dist_;
  std::vector<std::unique_ptr<Model>> models_;
};

}  // namespace shiplap::strategy
