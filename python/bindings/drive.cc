// How coroutines of Python run on the engine: each is driven by a task of C++. When it awaits a
// communication, the task waits for that, and goes on when it is there.
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

// What ends a task whose coroutine raised. The exception itself is kept elsewhere: a task lives as
// long as the ranks do, and the exception's traceback may hold those.
struct Raised : std::exception {};

struct Coroutine {
  nb::object object;
  nb::object awaited;  // the communication on which it sleeps
};

// All coroutines of one training. Lives only while they run.
struct Cast {
  explicit Cast(Ranks& all) : ranks(all) {}
  Cast(const Cast&) = delete;
  Cast& operator=(const Cast&) = delete;
  ~Cast() { close(); }

  void close();
  // The first exception is the one that is told. Once there is one, frames go whose ranks had no
  // chance to await what they started.
  void keep(nb::object raised) {
    ranks.training = false;
    error = std::move(raised);
  }

  Ranks& ranks;
  std::vector<Coroutine> coroutines;
  nb::object error;
};

// What a coroutine raises while it is closed cannot be told to anybody else.
void Cast::close() {
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
  if (nb::isinstance<Communication>(found)) return "what another rank asked for";
  return fmt::format("something foreign ({})", kind_in_words(found));
}

Diagnostic foreign(const Model& model, const std::string& what) {
  return {.code = "D627",
          .where = {.rank = model.rank(), .operation = "after " + model.last_call()},
          .what = "a strategy awaits " + what,
          .why = "time is virtual here, and passes only in the calls of a model",
          .help = "await what `model.all_reduce(..)`, `model.receive(..)` and the like give"};
}

// How far a coroutine got.
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

// Until it awaits a communication of its model. Null: it has ended.
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

// ---------------------------------------------------------------- what it raises

// Who awaits a timer of asyncio where none runs never gets as far as to await it.
nb::object said_plainly(nb::object raised, const Model& model) {
  const bool asyncio = PyErr_GivenExceptionMatches(raised.ptr(), PyExc_RuntimeError) != 0 &&
                       nb::cast<std::string>(nb::str(raised)) == "no running event loop";
  if (!asyncio) return raised;
  nb::object error = as_exception(InputError(foreign(model, "something of asyncio")));
  error.attr("__cause__") = raised;
  error.attr("__traceback__") = raised.attr("__traceback__");
  return error;
}

// An error of ours says on which rank it is, after which call, and in which line of the strategy.
nb::object located(nb::object raised, const Model& model) {
  nb::object error = said_plainly(std::move(raised), model);
  std::optional<std::vector<Diagnostic>> diagnostics = diagnostics_of(error);
  if (!diagnostics || diagnostics->empty()) return error;
  const Line line = raising_line(error);
  for (Diagnostic& d : *diagnostics) {
    if (!d.where.rank) {
      d.where.rank = model.rank();
      d.where.operation = "after " + model.last_call();
    }
    d.where = placed(std::move(d.where), line);
  }
  change_diagnostics(error, *diagnostics);
  return error;
}

Communication* next_await(const Model& model, Cast& cast) {
  Coroutine& own = cast.coroutines[model.rank()];
  own.awaited.reset();
  if (cast.error.is_valid()) throw Raised{};  // nobody goes on once somebody has failed
  try {
    return advance(model, own);
  } catch (const nb::python_error& raised) {
    cast.keep(located(nb::borrow(raised.value()), model));
  }
  throw Raised{};
}

// ---------------------------------------------------------------- a rank

Task drive(Model& model, Cast& cast) {
  while (Communication* const awaited = next_await(model, cast)) {
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
                 .what = fmt::format("`{}` is no coroutine: calling it gives {}", rank.ranks->name,
                                     kind_in_words(made)),
                 .why = "every rank runs as a coroutine, which sleeps while it waits for others",
                 .help = "write `async def`, and no `yield` in it"});
}

// What the trainer found, told where the rank that it is about sleeps: so the traceback has the
// line of the strategy.
nb::object told_where_it_sleeps(const InputError& error, Cast& cast) {
  nb::object told = as_exception(error);
  const std::optional<std::int64_t> rank = error.diagnostics().front().where.rank;
  if (!rank) return told;
  Coroutine& sleeper = cast.coroutines[*rank];
  if (!sleeper.awaited.is_valid()) return told;
  try {
    (void)sleeper.object.attr("throw")(told);
  } catch (const nb::python_error& raised) {
    // A strategy may raise something else in its turn; what the trainer found is still the cause.
    if (!raised.value().is(told)) return told;
  }
  return located(std::move(told), *cast.ranks.trainer.models()[*rank]);
}

// What went wrong, if anything did.
nb::object run(Cast& cast) {
  cast.ranks.training = true;
  try {
    cast.ranks.trainer.run([&](Model& model) { return drive(model, cast); });
  } catch (const Raised&) {
    return cast.error;
  } catch (const InputError& error) {
    return told_where_it_sleeps(error, cast);
  }
  return {};
}

// What was forgotten is mostly the cause of what went wrong after it.
nb::object told_first(const Diagnostic& forgotten, nb::object error) {
  if (!error.is_valid()) return as_exception(InputError(forgotten));
  const std::optional<std::vector<Diagnostic>> known = diagnostics_of(error);
  if (!known || known->empty()) return error;
  nb::object told = as_exception(InputError(forgotten));
  const bool the_same = known->front().code == forgotten.code;
  if (!the_same) told.attr("__cause__") = error;
  return told;
}

[[noreturn]] void raise(nb::handle error) {
  PyErr_SetObject(error.type().ptr(), error.ptr());
  nb::raise_python_error();
}

}  // namespace

// ---------------------------------------------------------------- lines of Python

namespace {

// Of a notebook, the name is a number that changes with every run.
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

// The last line that is somebody's own: what waits inside of asyncio was called from there.
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

Where placed(Where where, const Line& line) {
  if (line.file.empty() || !where.file.empty()) return where;
  where.file = line.file;
  where.line = line.number;
  return where;
}

void train_in_python(const SharedRanks& ranks, nb::handle strategy) {
  Cast cast(*ranks);
  for (const auto& model : ranks->trainer.models()) {
    const RankModel rank{.ranks = ranks, .model = model.get()};
    cast.coroutines.push_back({.object = coroutine_of(strategy, rank), .awaited = {}});
  }
  nb::object error = run(cast);
  cast.error.reset();
  cast.close();
  if (ranks->forgotten) error = told_first(*ranks->forgotten, std::move(error));
  if (error.is_valid()) raise(error);
}

}  // namespace shiplap::python
