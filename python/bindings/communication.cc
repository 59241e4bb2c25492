#include "communication.h"

#include <fmt/format.h>
#include <nanobind/typing.h>

#include <utility>

namespace shiplap::python {

using strategy::AnyValue;
using strategy::Awaitable;
using strategy::Pending;
using trace::EventKind;

namespace {

Pending<AnyValue> start(strategy::Model& model, const Communication::Call& call) {
  if (call.kind == EventKind::send) {
    return model.start_send_any(call.peer, call.value, {.tag = call.tag, .channel = call.channel});
  }
  if (call.kind == EventKind::recv) {
    return model.start_receive<AnyValue>(call.peer, {.tag = call.tag, .channel = call.channel});
  }
  return model.start_collective(call.kind, call.value, call.layer,
                                {.axes = call.over, .stream = call.stream});
}

}  // namespace

Communication::Communication(RankModel rank, Call call, When starts)
    : rank_(std::move(rank)), call_(std::move(call)), line_(calling_line()) {
  if (starts == When::awaited) return;
  pending_ = start(*rank_.model, call_);
  stage_ = Stage::started;
}

// In C++ the compiler warns about a call that is not awaited. Here it is recorded, and reported at
// the end of training. NOLINTNEXTLINE(bugprone-exception-escape): only if out of memory
Communication::~Communication() {
  const bool lost = stage_ == Stage::asked || stage_ == Stage::started;
  if (!lost || !rank_.ranks->training || rank_.ranks->unawaited) return;
  rank_.ranks->unawaited = Diagnostic{
      .code = "D623",
      .where = with_line({.rank = rank_.model->rank(), .operation = describe()}, line_),
      .what = fmt::format("this {} is never awaited", trace::name(call_.kind)),
      .why = stage_ == Stage::asked ? "a call that is not awaited does not start"
                                    : "a started call must be awaited to be known complete",
      .help = stage_ == Stage::asked
                  ? fmt::format("write `await model.{}(..)`",
                                call_.kind == EventKind::recv ? "receive" : trace::name(call_.kind))
                  : "`await` the result of the start_ call before the end"};
}

std::string Communication::describe() const {
  const std::string_view name = call_.kind == EventKind::recv ? "receive" : trace::name(call_.kind);
  if (call_.kind == EventKind::send) return fmt::format("send to rank {}", call_.peer);
  if (call_.kind == EventKind::recv) return fmt::format("receive from rank {}", call_.peer);
  return fmt::format("{}(layer {})", name, call_.layer);
}

void Communication::begin_wait() {
  if (stage_ == Stage::asked || stage_ == Stage::started) {
    stage_ = Stage::waiting;
    return;
  }
  throw InputError(Diagnostic{.code = "D623",
                              .what = "nothing is in flight here",
                              .why = "a communication is started once and awaited once",
                              .help = "start it again before you await it again"});
}

nb::object Communication::result() {
  if (stage_ != Stage::arrived) {
    throw InputError(Diagnostic{.code = "D623",
                                .what = fmt::format("{} has not been awaited", describe()),
                                .why = "its result is available only after `await`",
                                .help = "write `await`, not `next(..)`"});
  }
  stage_ = Stage::spent;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (call_.kind == EventKind::send) return nb::none();
  return to_python(std::move(value_));
}

Awaitable<AnyValue> Communication::ask() {
  strategy::Model& model = *rank_.model;
  if (call_.kind == EventKind::send)
    return model.send_any(call_.peer, call_.value, {.tag = call_.tag, .channel = call_.channel});
  if (call_.kind == EventKind::recv)
    return model.receive<AnyValue>(call_.peer, {.tag = call_.tag, .channel = call_.channel});
  return model.collective(call_.kind, call_.value, call_.layer, {.axes = call_.over});
}

void Communication::arrived(AnyValue value) {
  value_ = std::move(value);
  stage_ = Stage::arrived;
}

void Communication::failed(std::exception_ptr error) {
  error_ = std::move(error);
  stage_ = Stage::arrived;
}

void bind_communication(nb::module_& m) {
  m.attr("T") = nb::type_var("T");
  m.attr("V") = nb::type_var("V", m.attr("Weight"), m.attr("OptState"), m.attr("Activation"),
                             m.attr("ActivationGrad"), m.attr("WeightGrad"));
  nb::class_<Communication>(m, "Communication", nb::is_generic(),
                            nb::sig("class Communication(Generic[T])"),
                            "An awaitable, to be awaited once: ``await model.all_reduce(..)``, or "
                            "later the result of ``model.start_all_reduce(..)``.")
      .def_prop_ro("in_flight", &Communication::in_flight,
                   "Whether it was started and has not been awaited yet.")
      .def(
          "__await__",
          [](nb::object self) {
            nb::cast<Communication&>(self).begin_wait();
            return self;
          },
          nb::sig("def __await__(self) -> Generator[Any, Any, T]"))
      .def(
          "__next__",
          [](nb::object self) {
            auto& communication = nb::cast<Communication&>(self);
            if (communication.sleeps()) return self;
            const nb::object result = communication.result();
            PyErr_SetObject(PyExc_StopIteration, result.ptr());
            nb::raise_python_error();
          },
          nb::sig("def __next__(self) -> Any"))
      .def(
          "__iter__", [](nb::object self) { return self; },
          nb::sig("def __iter__(self) -> Iterator[Any]"))
      .def("__repr__", [](const Communication& c) { return "<" + c.describe() + ">"; });
}

}  // namespace shiplap::python
