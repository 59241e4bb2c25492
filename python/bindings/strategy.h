// What the bindings of strategies share: a world of ranks as Python holds it, and values that pass
// between the two languages.
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

// A line of somebody's Python. It keeps no object of Python alive.
struct Line {
  std::string file;  // "": unknown
  int number = 0;
};
// The one that called us.
[[nodiscard]] Line calling_line();
// The one that raised.
[[nodiscard]] Line raising_line(nb::handle error);
// Says where in a strategy it is.
[[nodiscard]] Where placed(Where where, const Line& line);

// A world and its ranks, alive as long as Python holds any part of it. Nothing in here refers to an
// object of Python, so it can be in no circle.
struct Ranks {
  strategy::Trainer trainer;
  std::string name;       // of the strategy
  bool training = false;  // a strategy of Python is under way
  // The first call whose result nobody awaited.
  std::optional<Diagnostic> forgotten;

  // Threads may ask at once. REQUIRES: no strategy is under way.
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

// Samples or shards: a range, or anything that gives whole numbers from 0 up. Throws InputError
// D003 for others.
[[nodiscard]] IndexSet index_set(nb::handle numbers);
// As Python has them: a set that cannot be changed.
[[nodiscard]] nb::object frozen_set(const IndexSet& set);
// As a range, if it is one run; else as a set.
[[nodiscard]] nb::object range_or_set(const IndexSet& set);

// "float16". Throws InputError D003 if nothing is called so.
[[nodiscard]] DType datatype_named(const std::string& name);

// One of the five kinds of values. Raises TypeError for what is none.
[[nodiscard]] strategy::AnyValue any_value(nb::handle value);
[[nodiscard]] nb::object to_python(strategy::AnyValue&& value);
// The name of its type.
[[nodiscard]] std::string kind_in_words(nb::handle value);

// Runs a strategy that is written in Python: makes its coroutines, drives them to their end, and
// closes them, whatever happens. Raises what the strategy raised, with its traceback.
void train_in_python(const SharedRanks& ranks, nb::handle strategy);

}  // namespace shiplap::python
