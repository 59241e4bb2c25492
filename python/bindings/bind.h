// What the files of the bindings share. Each binds one module of the library, under the names that
// it has there; what only Python needs (arrays, pictures in notebooks, awaiting) is made here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

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
void bind_simulate(nb::module_& m);
void bind_strategy(nb::module_& m);
void bind_dispatch(nb::module_& m);
void bind_jax(nb::module_& m);
void bind_overlap(nb::module_& m);

// Lets other threads of Python run while C++ works.
using Released = nb::call_guard<nb::gil_scoped_release>;

// As Python's own values: dict, list, str, int, float, bool, None.
[[nodiscard]] nb::object to_python(const Json& json);
// The other way. Throws InputError D003 for what JSON cannot hold.
[[nodiscard]] Json from_python(nb::handle value, int depth = 0);

// The exception that Python sees for one of ours.
[[nodiscard]] nb::object as_exception(const InputError& error);
// What an InputError of Python carries; nothing if it is another exception.
[[nodiscard]] std::optional<std::vector<Diagnostic>> diagnostics_of(nb::handle error);
// Such an error tells more then.
void change_diagnostics(nb::handle error, const std::vector<Diagnostic>& diagnostics);

// Throws InputError D003.
[[noreturn]] void refuse_below_zero(const char* argument);

// What a path is to Python: str, or anything with __fspath__.
[[nodiscard]] std::string path_text(nb::handle path);
// Throws InputError D001, D002.
[[nodiscard]] std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& content);

}  // namespace shiplap::python
