// The awaitable of a communication call of a Python strategy. It is awaited exactly once.
#pragma once

#include <exception>
#include <string>

#include "strategy.h"

namespace shiplap::python {

// `model.all_reduce(..)` starts when it is awaited, `model.start_all_reduce(..)` at once.
class Communication {
 public:
  struct Call {
    trace::EventKind kind = trace::EventKind::all_reduce;
    strategy::AnyValue value;
    int layer = -1;       // of a collective
    std::string over;     // of a collective
    std::string stream;   // of a collective that is started
    int peer = -1;        // of a message
    int tag = 0;          // of a message
    std::string channel;  // of a message
  };
  enum class When { awaited, now };

  // Throws InputError if it starts now and the model rejects it.
  Communication(RankModel rank, Call call, When starts);
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;
  ~Communication();

  [[nodiscard]] const strategy::Model& model() const { return *rank_.model; }
  [[nodiscard]] bool in_flight() const { return stage_ == Stage::started; }
  [[nodiscard]] std::string describe() const;

  // ---- for Python: `__await__` calls begin_wait(), then `__next__` is called twice.

  // Throws InputError D623 if it was already awaited.
  void begin_wait();
  // Whether it has not completed; then the coroutine is suspended.
  [[nodiscard]] bool sleeps() const { return stage_ == Stage::waiting; }
  // Returns its value. Throws InputError if it failed.
  [[nodiscard]] nb::object result();

  // ---- for the task that drives the coroutine

  // Whether the task must wait for take(); otherwise for ask().
  [[nodiscard]] bool started() const { return pending_.in_flight(); }
  [[nodiscard]] strategy::Awaitable<strategy::AnyValue> ask();
  [[nodiscard]] strategy::Pending<strategy::AnyValue> take() { return std::move(pending_); }
  void arrived(strategy::AnyValue value);
  void failed(std::exception_ptr error);

 private:
  enum class Stage { asked, started, waiting, arrived, spent };

  RankModel rank_;
  Call call_;
  Line line_;
  Stage stage_ = Stage::asked;
  strategy::Pending<strategy::AnyValue> pending_;
  strategy::AnyValue value_;
  std::exception_ptr error_;
};

}  // namespace shiplap::python
