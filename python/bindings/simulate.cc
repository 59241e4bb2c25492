// Bindings of shiplap::sim and shiplap::run.
#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <optional>
#include <utility>

#include "bind.h"
#include "plan.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/cost/placement.h"
#include "shiplap/hardware/system.h"
#include "shiplap/report/trace.h"
#include "shiplap/run/training_run.h"
#include "shiplap/sim/memory.h"
#include "shiplap/sim/replay.h"
#include "shiplap/trace/summary.h"
#include "trace.h"

namespace shiplap::python {
namespace {

// Whether a plan fits into the memory of the device.
struct MemoryFit {
  std::optional<Diagnostic> problem;
};

struct Simulation {
  SharedPlan plan;
  std::string hardware;
  SharedTrace trace;
  trace::Summary summary;
  std::vector<Diagnostic> warnings;
  std::vector<Diagnostic> problems;
  std::optional<Diagnostic> memory;  // it does not fit

  // All of them.
  [[nodiscard]] std::vector<Diagnostic> all_problems() const {
    std::vector<Diagnostic> all = problems;
    if (memory) all.push_back(*memory);
    return all;
  }
};

Simulation simulate(const SharedPlan& plan, const std::string& hardware, std::int64_t eager) {
  if (eager < 0) throw_negative("eager");
  const hardware::System system = hardware::find_system(hardware);
  sim::Replay replay = with_source_locations(
      *plan, [&] { return sim::replay(plan->plan, {.system = system, .eager_limit = {eager}}); });
  if (plan->source) {
    for (Diagnostic& problem : replay.problems) {
      problem = add_source_location(std::move(problem), *plan->source);
    }
  }
  Simulation result{.plan = plan,
                    .hardware = system.name,
                    .trace = nullptr,
                    .summary = trace::summarize(replay.trace),
                    .warnings = {},
                    .problems = std::move(replay.problems)};
  if (std::optional<Diagnostic> warning = cost::tensor_parallel_warning(plan->plan.mesh, system)) {
    if (plan->source) warning->where.file = plan->source->file;
    result.warnings.push_back(*std::move(warning));
  }
  result.memory = sim::check_memory(result.summary, system);
  result.trace = std::make_shared<NamedTrace>(
      std::move(replay.trace), plan->name,
      std::vector{
          fmt::format("Predicted for {}, without contention between transfers.", system.name)},
      plan->plan.mesh);
  return result;
}

Json to_json(const Simulation& simulation) {
  Json all = Json::object({{"schema", "shiplap.simulate/1"},
                           {"name", simulation.plan->name},
                           {"hardware", simulation.hardware}});
  const Json of_trace = report::trace_to_json(simulation.trace->trace, simulation.summary);
  for (const auto& [key, value] : of_trace.as_object()) all.set(key, value);
  all.set("warnings", shiplap::to_json(simulation.warnings));
  return all.set("problems", shiplap::to_json(simulation.all_problems()));
}

struct Run {
  SharedPlan plan;
  run::TrainingRun result;
  SharedTrace trace;
};

Run run_plan(const SharedPlan& plan, std::int64_t steps, std::int64_t seed) {
  if (steps < 1) {
    throw InputError(
        Diagnostic{.code = "D003", .where = {.flag = "steps"}, .what = "expected 1 or more"});
  }
  if (seed < 0) throw_negative("seed");
  Run run{.plan = plan, .result = {}, .trace = nullptr};
  with_source_locations(*plan, [&] {
    const run::TrainingRunOptions how{
        .training = run::training_for(plan->plan, static_cast<std::uint64_t>(seed)),
        .steps = steps,
        .traces = true};
    comm::run_ranks({.threads = static_cast<int>(plan->plan.mesh.ranks())},
                    [&](comm::Communicator& world) {
                      run::TrainingRun mine = run::run_training(world, plan->plan, how);
                      if (world.rank() == 0) run.result = std::move(mine);
                    });
  });
  run.trace = std::make_shared<NamedTrace>(
      std::move(run.result.trace), plan->name,
      std::vector<std::string>{
          "Measured on threads; waiting for other ranks counts as communication."},
      plan->plan.mesh);
  return run;
}

void bind_run(nb::module_& m) {
  nb::class_<Run>(m, "Run", "The result of executing a training plan.")
      .def_prop_ro(
          "loss", [](const Run& r) { return r.result.losses; }, "The loss after each step.")
      .def_prop_ro(
          "step_s",
          [](const Run& r) {
            std::vector<double> times;
            for (const Seconds time : r.result.times) times.push_back(time.value);
            return times;
          },
          "Seconds of each step, on the slowest rank.")
      .def_prop_ro(
          "unequal_weights", [](const Run& r) { return r.result.unequal; },
          "The number of weight elements that differ between two ranks.")
      .def_prop_ro(
          "good", [](const Run& r) { return r.result.good(); },
          "Whether all losses are finite and the weights agree between ranks.")
      .def_ro("plan", &Run::plan)
      .def_ro("trace", &Run::trace, "The trace of the last step.")
      .def(
          "to_dict",
          [](const Run& r) {
            Json losses = Json::array();
            Json times = Json::array();
            for (const double loss : r.result.losses) losses.push(loss);
            for (const Seconds time : r.result.times) times.push(time.value);
            Json json = Json::object({{"schema", "shiplap.run/1"},
                                      {"name", r.plan->name},
                                      {"backend", "threads"},
                                      {"ranks", r.plan->plan.mesh.ranks()}});
            json.set("loss", std::move(losses)).set("step_s", std::move(times));
            return to_python(json.set("unequal_weights", r.result.unequal));
          },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.run/1``.")
      .def("__repr__",
           [](const Run& r) {
             return fmt::format("<Run {}: {} steps, loss {:.6f} to {:.6f}>", r.plan->name,
                                r.result.losses.size(), r.result.losses.front(),
                                r.result.losses.back());
           })
      .def("_repr_html_", [](const Run& r) { return picture(*r.trace); }, Released());
  m.def("run", &run_plan, "plan"_a, nb::kw_only(), "steps"_a = 5, "seed"_a = 1, Released(),
        "Executes a Plan; see ``shiplap.run``.");
}

}  // namespace

void bind_simulate(nb::module_& m) {
  nb::class_<MemoryFit>(m, "MemoryFit",
                        "Whether a plan fits into the memory of the device. It is true if it fits; "
                        "otherwise its text says why not.")
      .def_prop_ro(
          "problem", [](const MemoryFit& f) { return f.problem; }, "D635, or None.")
      .def("__bool__", [](const MemoryFit& f) { return !f.problem; })
      .def("__str__", [](const MemoryFit& f) { return f.problem ? f.problem->what : "fits"; })
      .def("__repr__", [](const MemoryFit& f) {
        return fmt::format("<MemoryFit: {}>", f.problem ? f.problem->what : "fits");
      });
  nb::class_<Simulation>(m, "Simulation",
                         "The result of simulating a plan. It is true if the plan can be executed "
                         "and fits into the memory of the device.")
      .def_prop_ro(
          "time", [](const Simulation& s) { return s.summary.total().value; },
          "The total time in seconds.")
      .def_prop_ro(
          "step_time", [](const Simulation& s) { return s.summary.step_time().value; },
          "The time in seconds without loading weights.")
      .def_prop_ro(
          "bubble", [](const Simulation& s) { return s.summary.bubble; },
          "The fraction of the ranks' time between the first forward and the last backward in "
          "which they are idle; None without a pipeline.")
      .def_prop_ro(
          "peak_memory", [](const Simulation& s) { return s.summary.all.peak.count; },
          "The maximum over ranks, in bytes.")
      .def_prop_ro(
          "exposed",
          [](const Simulation& s) { return s.summary.fraction_of_step(s.summary.all.exposed); },
          "The fraction of the ranks' time with exposed communication.")
      .def_prop_ro(
          "warnings", [](const Simulation& s) { return s.warnings; },
          "D634: tensor-parallel groups that span nodes.")
      .def_prop_ro(
          "problems", [](const Simulation& s) { return s.all_problems(); },
          "Why the plan cannot be executed: a deadlock, mismatched operations, out of memory.")
      .def_prop_ro(
          "fits", [](const Simulation& s) { return MemoryFit{s.memory}; },
          "Whether it fits into the memory of the device, and if not, why.")
      .def_ro("plan", &Simulation::plan)
      .def_ro("trace", &Simulation::trace)
      .def_ro("hardware", &Simulation::hardware)
      .def(
          "to_dict",
          [](const Simulation& s) { return to_python(unlocked([&] { return to_json(s); })); },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.simulate/1``.")
      .def("__bool__", [](const Simulation& s) { return s.problems.empty() && !s.memory; })
      .def("__str__", [](const Simulation& s) { return nb::str(nb::cast(s.trace)); })
      .def("__repr__",
           [](const Simulation& s) {
             if (!s.problems.empty()) {
               return fmt::format("<Simulation {}: cannot be executed, {}>", s.plan->name,
                                  s.problems.front().what);
             }
             return fmt::format("<Simulation {} on {}: step {}, peak memory {}{}>", s.plan->name,
                                s.hardware, to_string(s.summary.step_time()),
                                to_string(s.summary.all.peak), s.memory ? ", out of memory" : "");
           })
      .def("_repr_html_", [](const Simulation& s) { return picture(*s.trace); }, Released());
  m.def("simulate", &simulate, "plan"_a, nb::kw_only(), "hardware"_a = "h100_80g_nvl8",
        "eager"_a = 0, Released(), "Simulates a Plan; see ``shiplap.simulate``.");
  m.def("known_systems", &hardware::known_systems, "The built-in machine descriptions.");
  bind_run(m);
}

}  // namespace shiplap::python
