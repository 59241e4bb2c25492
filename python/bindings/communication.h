// A communication that a strategy of Python asks for, and awaits once.
#pragma once

#include <exception>
#include <string>

#include "strategy.h"

namespace shiplap::python {

// What `model.all_reduce(..)` asks for is asked of the model when it is awaited; what
// `model.start_all_reduce(..)` asks for, at once.
class Communication {
 public:
  struct Call {
    trace::Kind kind = trace::Kind::all_reduce;
    strategy::AnyValue value;
    int layer = -1;       // of a collective
    std::string over;     // of a collective
    std::string stream;   // of a collective that is started
    int peer = -1;        // of a message
    int tag = 0;          // of a message
    std::string channel;  // of a message
  };
  enum class When { awaited, now };

  // Throws InputError if it starts now and the model refuses it.
  Communication(RankModel rank, Call call, When starts);
  Communication(const Communication&) = delete;
  Communication& operator=(const Communication&) = delete;
  ~Communication();

  [[nodiscard]] const strategy::Model& model() const { return *rank_.model; }
  [[nodiscard]] bool under_way() const { return stage_ == Stage::started; }
  [[nodiscard]] std::string describe() const;

  // ---- as Python sees it: `__await__` begins to wait, then `__next__` is asked twice.

  // Throws InputError D623 if it was awaited before.
  void begin_wait();
  // Whether it still has to be waited for; then the coroutine sleeps.
  [[nodiscard]] bool sleeps() const { return stage_ == Stage::waiting; }
  // What it gives. Throws InputError if that is an error.
  [[nodiscard]] nb::object result();

  // ---- as the task that drives the coroutine sees it

  // Which of the two it has to wait for.
  [[nodiscard]] bool started() const { return pending_.under_way(); }
  [[nodiscard]] strategy::Arrival<strategy::AnyValue> ask();
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
