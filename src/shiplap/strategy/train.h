// Runs a strategy: one coroutine per rank, to its end.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shiplap/strategy/model.h"
#include "shiplap/trace/trace.h"

namespace shiplap::strategy {

using Strategy = std::function<Task(Model&)>;

// A world and its ranks, before and after. What they did can be asked of the models.
class Trainer {
 public:
  Trainer(const World& world, const Training& training);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer() = default;

  // Once. Throws InputError with rank and call: what a Model refuses; D616 ranks that meet in
  // different collectives; D617 ranks that wait for ever, and for whom; D623 a communication
  // that was started and never waited for; D619 a final weight that is
  // missing, incomplete or not updated.
  void run(const Strategy& strategy);

  [[nodiscard]] Dist& dist() { return dist_; }
  [[nodiscard]] const Dist& dist() const { return dist_; }
  [[nodiscard]] const World& world() const { return dist_.world(); }
  [[nodiscard]] const Training& training() const { return training_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Model>>& models() const { return models_; }
  [[nodiscard]] Model& model(int rank) { return *models_[rank]; }
  // From the replay of what the ranks recorded.
  [[nodiscard]] Seconds time() const { return dist_.timeline().end; }
  [[nodiscard]] const trace::Trace& trace() const { return dist_.timeline().trace; }

 private:
  void report_failure();
  [[nodiscard]] bool in_circle(const Model& model) const;
  void report_deadlock();
  void report_unwaited() const;
  void check_final_weights() const;

  Training training_;
  Dist dist_;
  std::vector<std::unique_ptr<Model>> models_;
};

}  // namespace shiplap::strategy
