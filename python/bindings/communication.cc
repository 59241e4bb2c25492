#include "communication.h"

#include <fmt/format.h>
#include <nanobind/typing.h>

#include <utility>

namespace shiplap::python {

using strategy::AnyValue;
using strategy::Arrival;
using strategy::Pending;
using trace::Kind;

namespace {

Pending<AnyValue> start(strategy::Model& model, const Communication::Call& call) {
  if (call.kind == Kind::send) {
    return model.start_send_any(call.peer, call.value, {.tag = call.tag, .channel = call.channel});
  }
  if (call.kind == Kind::recv) {
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

// In C++ the compiler warns of a call that is not awaited. Here it is remembered, and told when
// training is over. NOLINTNEXTLINE(bugprone-exception-escape): only memory could run out
Communication::~Communication() {
  const bool lost = stage_ == Stage::asked || stage_ == Stage::started;
  if (!lost || !rank_.ranks->training || rank_.ranks->forgotten) return;
  rank_.ranks->forgotten = Diagnostic{
      .code = "D623",
      .where = placed({.rank = rank_.model->rank(), .operation = describe()}, line_),
      .what = fmt::format("this {} is never awaited", trace::name(call_.kind)),
      .why = stage_ == Stage::asked ? "what is not awaited does not begin"
                                    : "only who waits knows that it is complete",
      .help = stage_ == Stage::asked
                  ? fmt::format("write `await model.{}(..)`",
                                call_.kind == Kind::recv ? "receive" : trace::name(call_.kind))
                  : "`await` what the start_ call returned, before the end"};
}

std::string Communication::describe() const {
  const std::string_view name = call_.kind == Kind::recv ? "receive" : trace::name(call_.kind);
  if (call_.kind == Kind::send) return fmt::format("send to rank {}", call_.peer);
  if (call_.kind == Kind::recv) return fmt::format("receive from rank {}", call_.peer);
  return fmt::format("{}(layer {})", name, call_.layer);
}

void Communication::begin_wait() {
  if (stage_ == Stage::asked || stage_ == Stage::started) {
    stage_ = Stage::waiting;
    return;
  }
  throw InputError(Diagnostic{.code = "D623",
                              .what = "nothing is under way here",
                              .why = "a communication is started once and waited for once",
                              .help = "start it again before you wait again"});
}

nb::object Communication::result() {
  if (stage_ != Stage::arrived) {
    throw InputError(Diagnostic{.code = "D623",
                                .what = fmt::format("{} has not been awaited", describe()),
                                .why = "only who awaits it knows what it gives",
                                .help = "write `await`, not `next(..)`"});
  }
  stage_ = Stage::spent;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (call_.kind == Kind::send) return nb::none();
  return to_python(std::move(value_));
}

Arrival<AnyValue> Communication::ask() {
  strategy::Model& model = *rank_.model;
  if (call_.kind == Kind::send)
    return model.send_any(call_.peer, call_.value, {.tag = call_.tag, .channel = call_.channel});
  if (call_.kind == Kind::recv)
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
                            "What a strategy awaits, once: ``await model.all_reduce(..)``, or "
                            "later, what ``model.start_all_reduce(..)`` gave.")
      .def_prop_ro("under_way", &Communication::under_way,
                   "Whether it was started and nobody has awaited it yet.")
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
