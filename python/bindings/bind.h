// Declarations shared by the bindings. Each file binds one module of the library, under the same
// names; features that only Python has (arrays, display in notebooks, await) are implemented here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/diagnostic.h"
#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/base/units.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace shiplap::python {

// In the order in which module.cc calls them.
void bind_errors(nb::module_& m);
void bind_plan(nb::module_& m);
void bind_trace(nb::module_& m);
void bind_check(nb::module_& m);
void bind_postmortem(nb::module_& m);
void bind_simulate(nb::module_& m);
void bind_strategy(nb::module_& m);
void bind_dispatch(nb::module_& m);
void bind_jax(nb::module_& m);
void bind_overlap(nb::module_& m);

// Raises KeyboardInterrupt, or what the handler of another signal raises, if a signal has arrived.
// Python runs handlers on its main thread only.
void raise_signals();

// Releases the GIL during its lifetime. A signal ends the call.
class LongCall {
 private:
  nb::gil_scoped_release released_;
  CancellationScope scope_{raise_signals};
};
using Released = nb::call_guard<LongCall>;
template <class Ask>
decltype(auto) unlocked(const Ask& ask) {
  const LongCall released;
  return ask();
}

// For `__eq__`, with nb::is_operator(), so that another type can decide. Every type with `__eq__`
// has a `__hash__` of what equal values have in common, or none.
template <class T>
bool equal(const T& a, const T& b) {
  return a == b;
}

// Converts to Python's types: dict, list, str, int, float, bool, None.
[[nodiscard]] nb::object to_python(const Json& json);
// The inverse. Throws InputError D003 for a value that JSON cannot represent.
[[nodiscard]] Json from_python(nb::handle value, int depth = 0);

// An InputError that is also a Python exception: a rank out of range (IndexError), a key under
// which nothing is stored (KeyError), a property without a value (AttributeError), an argument of
// the wrong type (TypeError).
class InputIndexError : public InputError {
  using InputError::InputError;
};
class InputKeyError : public InputError {
  using InputError::InputError;
};
class InputAttributeError : public InputError {
  using InputError::InputError;
};
class InputTypeError : public InputError {
  using InputError::InputError;
};

// Throws InputTypeError D003 for an argument.
[[noreturn]] inline void throw_type_error(std::string argument, std::string what,
                                          std::string help = "") {
  throw InputTypeError(Diagnostic{.code = "D003",
                                  .where = {.flag = std::move(argument)},
                                  .what = std::move(what),
                                  .help = std::move(help)});
}
// Calls `ask`, and rethrows its InputError as another class.
template <class As, class Ask>
decltype(auto) rethrowing_as(const Ask& ask) {
  try {
    return ask();
  } catch (const InputError& error) {
    throw As(error.diagnostics());
  }
}

// The Python exception for an InputError.
[[nodiscard]] nb::object as_exception(const InputError& error);
// The diagnostics of a Python InputError; nullopt for another exception.
[[nodiscard]] std::optional<std::vector<Diagnostic>> diagnostics_of(nb::handle error);
// Replaces the diagnostics and the message of a Python InputError.
void set_diagnostics(nb::handle error, const std::vector<Diagnostic>& diagnostics);

// Diagnostics of the command line in terms of Python arguments: `--seq-length 8` is `block=8`.
[[nodiscard]] std::vector<Diagnostic> with_argument_names(std::vector<Diagnostic> diagnostics);
template <class Do>
auto naming_arguments(const Do& act) {
  try {
    return act();
  } catch (const InputError& error) {
    throw InputError(with_argument_names(error.diagnostics()));
  }
}

// Throws InputError D003: the argument is negative.
[[noreturn]] void throw_negative(const char* argument);

// Accepts a str or anything with __fspath__.
[[nodiscard]] std::string path_text(nb::handle path);
// Throws InputError D001, D002.
[[nodiscard]] std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& content);

}  // namespace shiplap::python
