// Diagnostics and the exceptions that carry them.
#include <exception>
#include <initializer_list>

#include "bind.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::python {
namespace {

// They live as long as the interpreter does.
struct Exceptions {
  PyObject* input_error = nullptr;
  PyObject* missing_part = nullptr;
  PyObject* failure = nullptr;
  PyObject* deadline_passed = nullptr;
  PyObject* rank_failed = nullptr;
  PyObject* mismatch = nullptr;
  PyObject* metadata_differs = nullptr;
  PyObject* internal_error = nullptr;
};
Exceptions exceptions;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): as PyExc_*

PyObject* define(nb::module_& m, const char* name, std::initializer_list<PyObject*> bases,
                 const char* doc) {
  nb::list list;
  for (PyObject* base : bases) list.append(nb::borrow(base));
  const nb::object type = nb::module_::import_("builtins").attr("type");
  nb::dict members;
  members["__doc__"] = doc;
  members["__module__"] = "shiplap";
  nb::object made = type(name, nb::tuple(list), members);
  m.attr(name) = made;
  return made.release().ptr();
}

void raise(PyObject* type, const std::string& what, const std::vector<Diagnostic>& diagnostics) {
  try {
    const nb::object error = nb::handle(type)(what);
    error.attr("diagnostics") = nb::cast(diagnostics);
    PyErr_SetObject(type, error.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

std::string without_newline(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string in_words(const std::vector<Diagnostic>& diagnostics) {
  return without_newline(render(diagnostics));
}

void raise(PyObject* type, const std::vector<Diagnostic>& diagnostics) {
  raise(type, in_words(diagnostics), diagnostics);
}

// Of the exceptions that are ours, the most special first.
void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const MissingPart& e) {
    raise(exceptions.missing_part, e.diagnostics());
  } catch (const InputError& e) {
    raise(exceptions.input_error, e.diagnostics());
  } catch (const comm::DeadlinePassed& e) {
    raise(exceptions.deadline_passed, {e.diagnostic()});
  } catch (const comm::RankFailed& e) {
    raise(exceptions.rank_failed, {e.diagnostic()});
  } catch (const comm::Mismatch& e) {
    raise(exceptions.mismatch, {e.diagnostic()});
  } catch (const comm::Failure& e) {
    raise(exceptions.failure, {e.diagnostic()});
  } catch (const run::MetadataDiffers& e) {
    raise(exceptions.metadata_differs, {e.diagnostic()});
  } catch (const InternalError& e) {
    raise(exceptions.internal_error, std::string("this is a bug of Shiplap: ") + e.what(), {});
  }
}

const char* severity_word(Severity severity) {
  switch (severity) {
    case Severity::note:
      return "note";
    case Severity::warning:
      return "warning";
    case Severity::error:
      break;
  }
  return "error";
}

void bind_diagnostic(nb::module_& m) {
  nb::class_<Diagnostic>(m, "Diagnostic",
                         "What is wrong, where, why, and the smallest change that mends it. "
                         "``shiplap.explain(d.code)`` has a page about it.")
      .def_prop_ro(
          "code", [](const Diagnostic& d) { return d.code; }, "``D720``")
      .def_prop_ro(
          "severity", [](const Diagnostic& d) { return severity_word(d.severity); },
          "``error``, ``warning`` or ``note``")
      .def_prop_ro(
          "what", [](const Diagnostic& d) { return d.what; }, "One line.")
      .def_prop_ro(
          "why", [](const Diagnostic& d) { return d.why; }, "The rule behind it.")
      .def_prop_ro(
          "help", [](const Diagnostic& d) { return d.help; }, "The smallest change.")
      .def_prop_ro("file", [](const Diagnostic& d) { return d.where.file; })
      .def_prop_ro(
          "line", [](const Diagnostic& d) { return d.where.line; }, "From 1; 0: unknown.")
      .def_prop_ro("column", [](const Diagnostic& d) { return d.where.column; })
      .def_prop_ro("rank", [](const Diagnostic& d) { return d.where.rank; })
      .def_prop_ro("operation", [](const Diagnostic& d) { return d.where.operation; })
      .def("to_dict", [](const Diagnostic& d) { return to_python(to_json(d)); })
      .def("__str__", [](const Diagnostic& d) { return without_newline(render(d)); })
      .def("__repr__",
           [](const Diagnostic& d) {
             return "<" + std::string(severity_word(d.severity)) + "[" + d.code + "]: " + d.what +
                    ">";
           })
      .def("__eq__", [](const Diagnostic& a, const Diagnostic& b) { return a == b; })
      .def("__eq__", [](const Diagnostic&, nb::handle) { return false; });
}

}  // namespace

void bind_errors(nb::module_& m) {
  bind_diagnostic(m);
  const auto add = [&](const char* name, std::initializer_list<PyObject*> bases, const char* doc) {
    return define(m, name, bases, doc);
  };
  PyObject* const error = add("Error", {PyExc_Exception},
                              "What Shiplap raises. ``diagnostics`` has each thing that is wrong.");
  nb::handle(error).attr("diagnostics") = nb::tuple();
  exceptions.input_error =
      add("InputError", {error, PyExc_ValueError}, "A file or an argument that cannot be used.");
  exceptions.missing_part =
      add("MissingPart", {exceptions.input_error}, "Something that this machine lacks is needed.");
  exceptions.failure = add("Failure", {error, PyExc_RuntimeError}, "Communication failed.");
  exceptions.deadline_passed = add("DeadlinePassed", {exceptions.failure}, "D301: in time.");
  exceptions.rank_failed = add("RankFailed", {exceptions.failure}, "D302: a rank died or left.");
  exceptions.mismatch =
      add("Mismatch", {exceptions.failure}, "D303: ranks do not agree on what they do.");
  exceptions.metadata_differs =
      add("MetadataDiffers", {error, PyExc_ValueError}, "D420: ranks hold different tables.");
  exceptions.internal_error = add("InternalError", {error, PyExc_RuntimeError}, "A bug of ours.");
  nb::register_exception_translator(translate);
}

}  // namespace shiplap::python
