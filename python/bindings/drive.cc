// Runs Python coroutines on the engine's scheduler.
//
// A strategy is an `async def`; each rank runs one coroutine of it. A C++ task drives each
// coroutine: it resumes it until it yields a Communication of its model, co_awaits that
// communication in virtual time, stores the value in it, and resumes the coroutine, whose await
// then returns the value. Anything else that a coroutine awaits (asyncio, the communication of
// another rank) is rejected with D627, thrown into the coroutine at its await.
//
// Exceptions. The first one ends the training; tasks end with Raised, which holds no Python object,
// because a task lives as long as the ranks do and a traceback may reference those: that would be a
// reference cycle through C++ that Python's garbage collector cannot see. For the same reason no
// struct here outlives the run. An error that the trainer finds is thrown into the coroutine of the
// rank that it is about, so that the traceback shows the line of the strategy.
#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <utility>

#include "communication.h"
#include "strategy.h"

namespace shiplap::python {
namespace {

using strategy::AnyValue;
using strategy::Model;
using strategy::Pending;
using strategy::Task;

// Ends a task whose coroutine raised. The Python exception is in CoroutineSet::error.
struct Raised : std::exception {};

struct Coroutine {
  nb::object object;
  nb::object awaited;  // the communication that it is blocked on
};

// All coroutines of one training. Lives only while they run.
struct CoroutineSet {
  explicit CoroutineSet(Ranks& all) : ranks(all) {}
  CoroutineSet(const CoroutineSet&) = delete;
  CoroutineSet& operator=(const CoroutineSet&) = delete;
  ~CoroutineSet() { close(); }

  void close();
  // Stores the first exception, which is reported. Frames are destroyed after it, so calls that
  // were started and not awaited are no longer recorded as errors.
  void keep(nb::object raised) {
    ranks.training = false;
    error = std::move(raised);
  }

  Ranks& ranks;
  std::vector<Coroutine> coroutines;
  nb::object error;
};

// An exception that a coroutine raises while it is closed can only be reported as unraisable.
void CoroutineSet::close() {
  ranks.training = false;
  for (Coroutine& coroutine : coroutines) {
    try {
      coroutine.object.attr("close")();
    } catch (nb::python_error& raised) {
      raised.discard_as_unraisable("while a strategy was closed");
    }
  }
  coroutines.clear();
}

// ---------------------------------------------------------------- one step of a coroutine

std::string foreign_name(nb::handle found) {
  if (nb::isinstance<Communication>(found)) return "a communication of another rank";
  return fmt::format("an unsupported awaitable ({})", python_type_name(found));
}

Diagnostic foreign(const Model& model, const std::string& what) {
  return {.code = "D627",
          .where = {.rank = model.rank(), .operation = "after " + model.last_call()},
          .what = "a strategy awaits " + what,
          .why = "time is virtual, and advances only in the calls of a model",
          .help = "await only calls of the model, such as `model.all_reduce(..)`"};
}

// The result of resuming a coroutine.
struct Step {
  nb::object yielded;  // null: it has ended
};

Step send_none(nb::handle coroutine) {
  PyObject* result = nullptr;
  const PySendResult how = PyIter_Send(coroutine.ptr(), Py_None, &result);
  if (how == PYGEN_ERROR) nb::raise_python_error();
  nb::object held = nb::steal(result);
  if (how == PYGEN_RETURN) return {};
  return {.yielded = std::move(held)};
}

Step throw_into(nb::handle coroutine, nb::handle error) {
  try {
    return {.yielded = coroutine.attr("throw")(error)};
  } catch (const nb::python_error& raised) {
    if (raised.matches(PyExc_StopIteration)) return {};
    throw;
  }
}

// Runs a coroutine until it awaits a communication of its model. Returns null if it has ended.
Communication* advance(const Model& model, Coroutine& coroutine) {
  Step step = send_none(coroutine.object);
  while (step.yielded.is_valid()) {
    Communication* found = nullptr;
    if (nb::try_cast<Communication*>(step.yielded, found) && found != nullptr && found->sleeps() &&
        &found->model() == &model) {
      coroutine.awaited = std::move(step.yielded);
      return found;
    }
    const nb::object error = as_exception(InputError(foreign(model, foreign_name(step.yielded))));
    step = throw_into(coroutine.object, error);
  }
  return nullptr;
}

// ---------------------------------------------------------------- exceptions

// Awaiting a timer of asyncio fails before the await, since no event loop is running.
nb::object simplified(nb::object raised, const Model& model) {
  const bool asyncio = PyErr_GivenExceptionMatches(raised.ptr(), PyExc_RuntimeError) != 0 &&
                       nb::cast<std::string>(nb::str(raised)) == "no running event loop";
  if (!asyncio) return raised;
  nb::object error = as_exception(InputError(foreign(model, "an awaitable of asyncio")));
  error.attr("__cause__") = raised;
  error.attr("__traceback__") = raised.attr("__traceback__");
  return error;
}

// Adds a line to the traceback (PEP 678, Python 3.11).
void add_note(nb::handle error, const std::string& text) {
  if (nb::hasattr(error, "add_note")) error.attr("add_note")(text);
}

// Adds to an InputError its rank, the call before it, and the line of the strategy; to another
// exception a note.
nb::object located(nb::object raised, const Model& model) {
  nb::object error = simplified(std::move(raised), model);
  std::optional<std::vector<Diagnostic>> diagnostics = diagnostics_of(error);
  if (!diagnostics || diagnostics->empty()) {
    add_note(error, fmt::format("on rank {}, after {}", model.rank(), model.last_call()));
    return error;
  }
  const Line line = raising_line(error);
  for (Diagnostic& d : *diagnostics) {
    if (!d.where.rank) {
      d.where.rank = model.rank();
      d.where.operation = "after " + model.last_call();
    }
    d.where = with_line(std::move(d.where), line);
  }
  set_diagnostics(error, *diagnostics);
  return error;
}

Communication* next_await(const Model& model, CoroutineSet& set) {
  Coroutine& own = set.coroutines[model.rank()];
  own.awaited.reset();
  if (set.error.is_valid()) throw Raised{};  // no rank continues after a failure
  try {
    return advance(model, own);
  } catch (const nb::python_error& raised) {
    set.keep(located(nb::borrow(raised.value()), model));
  }
  throw Raised{};
}

// ---------------------------------------------------------------- a rank

Task drive(Model& model, CoroutineSet& set) {
  while (Communication* const awaited = next_await(model, set)) {
    try {
      if (awaited->started()) {
        Pending<AnyValue> pending = awaited->take();
        AnyValue value = co_await pending;
        awaited->arrived(std::move(value));
      } else {
        AnyValue value = co_await awaited->ask();
        awaited->arrived(std::move(value));
      }
    } catch (const InputError&) {
      awaited->failed(std::current_exception());
    }
  }
}

nb::object coroutine_of(nb::handle strategy, const RankModel& rank) {
  nb::object made = strategy(rank);
  const nb::object type = nb::module_::import_("types").attr("CoroutineType");
  if (PyObject_IsInstance(made.ptr(), type.ptr()) == 1) return made;
  throw InputError(
      Diagnostic{.code = "D003",
                 .where = {.flag = "strategy"},
                 .what = fmt::format("`{}` is not a coroutine function: it returned {}",
                                     rank.ranks->name, python_type_name(made)),
                 .why = "every rank runs as a coroutine, which is suspended while it waits",
                 .help = "write `async def`, without `yield`"});
}

// Throws an error of the trainer into the coroutine of its rank, so that the traceback has the line
// of the strategy. Returns the exception.
nb::object error_at_await(const InputError& error, CoroutineSet& set) {
  nb::object exception = as_exception(error);
  const std::optional<std::int64_t> rank = error.diagnostics().front().where.rank;
  if (!rank) return exception;
  Coroutine& blocked = set.coroutines[*rank];
  if (!blocked.awaited.is_valid()) return exception;
  try {
    (void)blocked.object.attr("throw")(exception);
  } catch (const nb::python_error& raised) {
    // The strategy may raise another exception instead; the trainer's error is still the cause.
    if (!raised.value().is(exception)) return exception;
  }
  return located(std::move(exception), *set.ranks.trainer.models()[*rank]);
}

// Runs all coroutines. Returns the exception, if there is one.
nb::object run(CoroutineSet& set) {
  set.ranks.training = true;
  try {
    set.ranks.trainer.run([&](Model& model) { return drive(model, set); });
  } catch (const Raised&) {
    return set.error;
  } catch (const InputError& error) {
    return error_at_await(error, set);
  }
  return {};
}

// A call that was not awaited is mostly the cause of later errors, so it is reported first.
nb::object unawaited_error(const Diagnostic& unawaited, nb::object error) {
  if (!error.is_valid()) return as_exception(InputError(unawaited));
  const std::optional<std::vector<Diagnostic>> known = diagnostics_of(error);
  if (!known || known->empty()) return error;
  nb::object exception = as_exception(InputError(unawaited));
  const bool the_same = known->front().code == unawaited.code;
  if (!the_same) exception.attr("__cause__") = error;
  return exception;
}

[[noreturn]] void raise(nb::handle error) {
  PyErr_SetObject(error.type().ptr(), error.ptr());
  nb::raise_python_error();
}

}  // namespace

// ---------------------------------------------------------------- lines of Python

namespace {

// Empty for a notebook, whose file name is a number that changes with every run.
std::string file_of(nb::handle code) {
  const auto path = nb::cast<std::string>(code.attr("co_filename"));
  if (path.find("ipykernel_") != std::string::npos) return "";
  return std::filesystem::path(path).filename().string();
}

}  // namespace

Line calling_line() {
  PyFrameObject* const frame = PyEval_GetFrame();
  if (frame == nullptr) return {};
  const nb::object code = nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  return {.file = file_of(code), .number = PyFrame_GetLineNumber(frame)};
}

// The innermost line of the traceback that is not inside asyncio.
Line raising_line(nb::handle error) {
  Line line;
  for (nb::object at = error.attr("__traceback__"); !at.is_none(); at = at.attr("tb_next")) {
    const nb::object code = at.attr("tb_frame").attr("f_code");
    if (nb::cast<std::string>(code.attr("co_filename")).find("/asyncio/") != std::string::npos) {
      continue;
    }
    line = {.file = file_of(code), .number = nb::cast<int>(at.attr("tb_lineno"))};
  }
  return line;
}

Where with_line(Where where, const Line& line) {
  if (line.file.empty() || !where.file.empty()) return where;
  where.file = line.file;
  where.line = line.number;
  return where;
}

void train_in_python(const SharedRanks& ranks, nb::handle strategy) {
  CoroutineSet set(*ranks);
  for (const auto& model : ranks->trainer.models()) {
    const RankModel rank{.ranks = ranks, .model = model.get()};
    set.coroutines.push_back({.object = coroutine_of(strategy, rank), .awaited = {}});
  }
  nb::object error = run(set);
  set.error.reset();
  set.close();
  if (ranks->unawaited) error = unawaited_error(*ranks->unawaited, std::move(error));
  if (error.is_valid()) raise(error);
}

}  // namespace shiplap::python
