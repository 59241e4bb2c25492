// Declarations shared by the bindings of strategies: the ranks of a training, and the conversion of
// values.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bind.h"
#include "plan.h"
#include "shiplap/base/dtype.h"
#include "shiplap/base/error.h"
#include "shiplap/base/index_set.h"
#include "shiplap/strategy/train.h"
#include "trace.h"

namespace shiplap::python {

void bind_values(nb::module_& m);
void bind_predictor(nb::module_& m);
void bind_communication(nb::module_& m);
void bind_model(nb::module_& m);

// A line of the user's Python code. It keeps no Python object alive.
struct Line {
  std::string file;  // "": unknown
  int number = 0;
};
// The line that called us.
[[nodiscard]] Line calling_line();
// The line that raised.
[[nodiscard]] Line raising_line(nb::handle error);
// Adds the line of the strategy, unless a file is known.
[[nodiscard]] Where with_line(Where where, const Line& line);

// A world and its ranks, alive as long as Python references any part of it. It references no Python
// object, so it cannot be part of a reference cycle.
struct Ranks {
  strategy::Trainer trainer;
  std::string name;       // of the strategy
  bool training = false;  // a Python strategy is running
  // The first call whose result was not awaited.
  std::optional<Diagnostic> unawaited;

  // Thread-safe. REQUIRES: no strategy is running.
  const strategy::Timeline& timeline() {
    const std::lock_guard lock(timeline_mutex);
    return trainer.dist().timeline();
  }
  std::mutex timeline_mutex;

  Ranks(const strategy::World& world, const strategy::Training& how, std::string called)
      : trainer(world, how), name(std::move(called)) {}
};
using SharedRanks = std::shared_ptr<Ranks>;

// One rank's `Model`.
struct RankModel {
  SharedRanks ranks;
  strategy::Model* model;
};

// Samples or shards: a range, or any iterable of non-negative integers. Throws InputError D003 for
// anything else.
[[nodiscard]] IndexSet index_set(nb::handle numbers);
// As a frozenset.
[[nodiscard]] nb::object frozen_set(const IndexSet& set);
// As a range, if it is contiguous; otherwise as a set.
[[nodiscard]] nb::object range_or_set(const IndexSet& set);

// "float16". Throws InputError D003 if the name is unknown.
[[nodiscard]] DType parse_datatype(const std::string& name);

// One of the five types of values. Raises TypeError for anything else.
[[nodiscard]] strategy::AnyValue any_value(nb::handle value);
[[nodiscard]] nb::object to_python(strategy::AnyValue&& value);
// The name of its type.
[[nodiscard]] std::string python_type_name(nb::handle value);

// Runs a Python strategy: creates its coroutines, drives them until they end, and always closes
// them. Raises the exception of the strategy, with its traceback.
void train_in_python(const SharedRanks& ranks, nb::handle strategy);

}  // namespace shiplap::python
