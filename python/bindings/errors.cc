// Diagnostics and the exceptions that carry them.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <exception>
#include <regex>
#include <tuple>
#include <typeinfo>

#include "bind.h"
#include "shiplap/base/argument_error.h"
#include "shiplap/base/catalogue.h"
#include "shiplap/base/error.h"
#include "shiplap/base/files.h"
#include "shiplap/base/version.h"
#include "shiplap/comm/failure.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::python {
namespace {

// Of a class of shiplap/_errors.py.
nb::object made(const char* type, const std::string& what,
                const std::vector<Diagnostic>& diagnostics) {
  nb::object error = nb::module_::import_("shiplap._errors").attr(type)(what);
  error.attr("diagnostics") = nb::cast(diagnostics);
  return error;
}

void raise(const char* type, const std::string& what, const std::vector<Diagnostic>& diagnostics) {
  try {
    const nb::object error = made(type, what, diagnostics);
    PyErr_SetObject(error.type().ptr(), error.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

std::string without_newline(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string to_message(const std::vector<Diagnostic>& diagnostics) {
  return without_newline(render(diagnostics));
}

// Replaces C++ keywords in messages by Python's: co_await by await.
std::string with_python_keywords(std::string text) {
  constexpr std::string_view kWord = "co_await";
  for (std::size_t at = text.find(kWord); at != std::string::npos; at = text.find(kWord, at)) {
    text.replace(at, kWord.size(), "await");
  }
  return text;
}

std::vector<Diagnostic> with_python_keywords(std::vector<Diagnostic> diagnostics) {
  for (Diagnostic& d : diagnostics) {
    d.why = with_python_keywords(std::move(d.why));
    d.help = with_python_keywords(std::move(d.help));
  }
  return diagnostics;
}

void raise(const char* type, const std::vector<Diagnostic>& diagnostics) {
  const std::vector<Diagnostic> translated = with_python_keywords(diagnostics);
  raise(type, to_message(translated), translated);
}

void raise_file_error(const FileError& error) {
  try {
    const nb::object made =
        nb::module_::import_("shiplap._errors")
            .attr("file_error")(to_message(error.diagnostics()), error.error_number(),
                                error.diagnostics().front().where.file);
    made.attr("diagnostics") = nb::cast(error.diagnostics());
    PyErr_SetObject(made.type().ptr(), made.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

// Translates our exceptions, the most derived first.
void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const MissingDependency& e) {
    raise("MissingDependency", e.diagnostics());
  } catch (const FileError& e) {
    raise_file_error(e);
  } catch (const InputIndexError& e) {
    raise("InputIndexError", e.diagnostics());
  } catch (const InputKeyError& e) {
    raise("InputKeyError", e.diagnostics());
  } catch (const InputAttributeError& e) {
    raise("InputAttributeError", e.diagnostics());
  } catch (const InputTypeError& e) {
    raise("InputTypeError", e.diagnostics());
  } catch (const InputError& e) {
    raise("InputError", e.diagnostics());
  } catch (const comm::TimeoutError& e) {
    raise("CommTimeoutError", {e.diagnostic()});
  } catch (const comm::RankFailed& e) {
    raise("RankFailed", {e.diagnostic()});
  } catch (const comm::Mismatch& e) {
    raise("Mismatch", {e.diagnostic()});
  } catch (const comm::Failure& e) {
    raise("Failure", {e.diagnostic()});
  } catch (const run::MetadataMismatch& e) {
    raise("MetadataMismatch", {e.diagnostic()});
  } catch (const std::bad_cast&) {
    raise("InputTypeError",
          {Diagnostic{.code = "D003",
                      .what = "type mismatch: a value has an unexpected type, or is too large"}});
  } catch (const InternalError& e) {
    raise(
        "InternalError",
        {Diagnostic{.code = "D015", .what = std::string("this is a bug in Shiplap: ") + e.what()}});
  }
}

// For pickle: exceptions are sent between processes.
using DiagnosticState = std::tuple<std::string, int, std::vector<std::string>, std::vector<int>,
                                   std::optional<std::int64_t>>;

DiagnosticState state_of(const Diagnostic& d) {
  return {d.code, static_cast<int>(d.severity),
          std::vector{d.what, d.why, d.help, d.where.file, d.where.excerpt, d.where.flag,
                      d.where.operation},
          std::vector{d.where.line, d.where.column, d.where.length}, d.where.rank};
}

Diagnostic diagnostic_of(const DiagnosticState& state) {
  const auto& [code, severity, texts, numbers, rank] = state;
  return {.code = code,
          .severity = static_cast<Severity>(severity),
          .where = {.file = texts.at(3),
                    .line = numbers.at(0),
                    .column = numbers.at(1),
                    .length = numbers.at(2),
                    .excerpt = texts.at(4),
                    .flag = texts.at(5),
                    .rank = rank,
                    .operation = texts.at(6)},
          .what = texts.at(0),
          .why = texts.at(1),
          .help = texts.at(2)};
}

nb::object hash_key(const Diagnostic& d) { return nb::str(render(d).c_str()); }

void bind_diagnostic(nb::module_& m) {
  nb::class_<Diagnostic>(m, "Diagnostic",
                         "An error or warning: what, where, why, and the smallest fix. "
                         "``shiplap.explain(d.code)`` returns its documentation.")
      .def_ro("code", &Diagnostic::code, "``D720``")
      .def_prop_ro(
          "severity", [](const Diagnostic& d) { return name(d.severity); },
          "``error``, ``warning`` or ``note``")
      .def_ro("what", &Diagnostic::what, "One line.")
      .def_ro("why", &Diagnostic::why, "The violated rule.")
      .def_ro("help", &Diagnostic::help, "The smallest fix.")
      .def_prop_ro("file", [](const Diagnostic& d) { return d.where.file; })
      .def_prop_ro(
          "line", [](const Diagnostic& d) { return d.where.line; }, "From 1; 0: unknown.")
      .def_prop_ro("column", [](const Diagnostic& d) { return d.where.column; })
      .def_prop_ro("rank", [](const Diagnostic& d) { return d.where.rank; })
      .def_prop_ro("operation", [](const Diagnostic& d) { return d.where.operation; })
      .def(
          "to_dict", [](const Diagnostic& d) { return to_python(to_json(d)); },
          nb::sig("def to_dict(self) -> dict[str, Any]"))
      .def("__str__", [](const Diagnostic& d) { return without_newline(render(d)); })
      .def("__repr__",
           [](const Diagnostic& d) {
             return "<" + std::string(name(d.severity)) + "[" + d.code + "]: " + d.what + ">";
           })
      .def("__eq__", &equal<Diagnostic>, nb::is_operator())
      .def("__hash__", [](const Diagnostic& value) { return nb::hash(hash_key(value)); })
      .def("__getstate__", &state_of)
      .def("__setstate__", [](Diagnostic& d, const DiagnosticState& state) {
        new (&d) Diagnostic(diagnostic_of(state));
      });
}

}  // namespace

nb::object as_exception(const InputError& error) {
  const std::vector<Diagnostic> translated = with_python_keywords(error.diagnostics());
  return made("InputError", to_message(translated), translated);
}

std::optional<std::vector<Diagnostic>> diagnostics_of(nb::handle error) {
  const nb::object input_error = nb::module_::import_("shiplap._errors").attr("InputError");
  if (PyErr_GivenExceptionMatches(error.ptr(), input_error.ptr()) == 0) return std::nullopt;
  std::vector<Diagnostic> found;
  if (!nb::try_cast(error.attr("diagnostics"), found)) return std::nullopt;
  return found;
}

void set_diagnostics(nb::handle error, const std::vector<Diagnostic>& diagnostics) {
  error.attr("args") = nb::make_tuple(to_message(diagnostics));
  error.attr("diagnostics") = nb::cast(diagnostics);
}

void raise_signals() {
  const nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) nb::raise_python_error();
}

namespace {

// The Python argument of a flag without its dashes.
std::string argument_name(std::string flag) {
  if (flag == "global-batch") return "batch";
  if (flag == "seq-length") return "block";
  if (flag == "eager-limit") return "eager";
  std::ranges::replace(flag, '-', '_');
  return flag;
}

std::string with_argument_names(const std::string& text) {
  // A command stays as it is, and so do other words with dashes, such as names of files.
  static const std::regex kFlag("`shiplap [^`]*`|(^|[ `(,])--([a-z][a-z-]*)( (?=[0-9]))?");
  std::string result;
  auto rest = text.cbegin();
  for (std::sregex_iterator it(text.begin(), text.end(), kFlag), end; it != end; ++it) {
    const std::smatch& found = *it;
    if (!found[2].matched) continue;
    result.append(rest, found[1].second);
    result += argument_name(found[2]) + (found[3].matched ? "=" : "");
    rest = found[0].second;
  }
  return result.append(rest, text.cend());
}

}  // namespace

std::vector<Diagnostic> with_argument_names(std::vector<Diagnostic> diagnostics) {
  for (Diagnostic& d : diagnostics) {
    for (std::string* text : {&d.where.flag, &d.what, &d.why, &d.help}) {
      *text = with_argument_names(*text);
    }
  }
  return diagnostics;
}

void throw_negative(const char* argument) { throw_argument_error(argument, "expected 0 or more"); }

void bind_errors(nb::module_& m) {
  bind_diagnostic(m);
  m.def(
      "_diagnostic",
      [](const std::string& code, const std::string& what, const std::string& why,
         const std::string& help, std::optional<std::int64_t> rank, const std::string& operation) {
        return Diagnostic{.code = code,
                          .where = {.rank = rank, .operation = operation},
                          .what = what,
                          .why = why,
                          .help = help};
      },
      "code"_a, "what"_a, nb::kw_only(), "why"_a = "", "help"_a = "", "rank"_a = nb::none(),
      "operation"_a = "", "For exceptions that Python raises.");
  nb::register_exception_translator(translate);
  m.attr("version") = std::string(version());
  m.def(
      "_explain", [](const std::string& code) { return find_pages({code}).front()->page; },
      "code"_a, "Returns the documentation of a diagnostic.");
}

}  // namespace shiplap::python
