// Bindings of strategies: built-in ones, Python ones, and the results of training them.
#include "strategy.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <utility>

#include "shiplap/cli/strategy_flags.h"
#include "shiplap/report/text.h"
#include "shiplap/report/trace.h"
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/to_plan.h"
#include "shiplap/trace/summary.h"

namespace shiplap::python {
namespace {

// ---------------------------------------------------------------- the result

// The result of training a strategy. Its parts are computed on first use.
class Training {
 public:
  explicit Training(SharedRanks ranks) : ranks_(std::move(ranks)) {}

  [[nodiscard]] const SharedRanks& ranks() const { return ranks_; }
  [[nodiscard]] const strategy::Trainer& trainer() const { return ranks_->trainer; }
  [[nodiscard]] std::string title() const {
    return fmt::format("{} on {}", ranks_->name,
                       report::counted(std::ssize(trainer().models()), "rank"));
  }
  // These are called without the GIL, which the thread that computes first may need.
  const SharedPlan& plan() {
    std::call_once(plan_once_, [&] {
      plan_ =
          std::make_shared<NamedPlan>(strategy::to_plan(ranks_->trainer), title(), std::nullopt);
    });
    return plan_;
  }
  const trace::Summary& summary() {
    // Only the peaks during calls count, not the memory held in between.
    std::call_once(summary_once_, [&] {
      trace::Trace calls = ranks_->timeline().trace;
      for (trace::RankTrace& rank : calls.ranks) rank.memory.clear();
      summary_ = trace::summarize(calls);
    });
    return summary_;
  }
  const SharedTrace& trace() {
    std::call_once(trace_once_, [&] {
      trace_ = std::make_shared<NamedTrace>(
          ranks_->timeline().trace, ranks_->name,
          std::vector{cli::describe_training(trainer()) + ".",
                      fmt::format("Predicted for {}, without contention between transfers.",
                                  trainer().world().system.name)},
          plan::Mesh{.axes = decltype(plan::Mesh::axes)(trainer().world().mesh), .aliases = {}});
    });
    return trace_;
  }
  [[nodiscard]] Json to_json() {
    Json mesh = Json::object({});
    for (const plan::Axis& axis : trainer().world().mesh) mesh.set(axis.name, axis.size);
    Json all = Json::object({{"schema", "shiplap.train/1"},
                             {"name", ranks_->name},
                             {"hardware", trainer().world().system.name}});
    all.set("mesh", std::move(mesh))
        .set("layers", trainer().training().layers)
        .set("batch", trainer().training().batch)
        .set("microbatches", trainer().training().microbatches)
        .set("chunks", trainer().training().chunks)
        .set("zero_stage", trainer().training().zero_stage);
    const Json of_trace = report::trace_to_json(trace()->trace, summary());
    for (const auto& [key, value] : of_trace.as_object()) all.set(key, value);
    return all;
  }

 private:
  SharedRanks ranks_;
  std::once_flag plan_once_;
  std::once_flag summary_once_;
  std::once_flag trace_once_;
  SharedPlan plan_;
  SharedTrace trace_;
  trace::Summary summary_;
};

// A property: an error is an AttributeError too, so that hasattr() and completion work.
template <class Ask>
auto property(const Ask& ask) {
  return [ask](Training& t) {
    return rethrowing_as<InputAttributeError>([&] { return unlocked([&] { return ask(t); }); });
  };
}

template <class Ask>
auto of_summary(const Ask& ask) {
  return property([ask](Training& t) { return ask(t.summary()); });
}

std::vector<std::int64_t> peaks(const trace::Summary& summary) {
  std::vector<std::int64_t> bytes;
  for (const trace::RankSummary& rank : summary.ranks) bytes.push_back(rank.peak.count);
  return bytes;
}

void bind_training(nb::module_& m) {
  using trace::Summary;
  nb::class_<Training>(m, "Training", "The result of training a strategy in virtual time.")
      .def_prop_ro("name", [](const Training& t) { return t.ranks()->name; })
      .def_prop_ro("time", property([](Training& t) { return t.ranks()->timeline().end.value; }),
                   "The total time in seconds.")
      .def_prop_ro("step_time", of_summary([](const Summary& s) { return s.step_time().value; }),
                   "The time in seconds without loading weights.")
      .def_prop_ro(
          "bubble", of_summary([](const Summary& s) { return s.bubble; }),
          "The fraction of the ranks' time between the first forward and the last backward in "
          "which they are idle; None without a pipeline.")
      .def_prop_ro("exposed",
                   of_summary([](const Summary& s) { return s.fraction_of_step(s.all.exposed); }),
                   "The fraction of the ranks' time with exposed communication.")
      .def_prop_ro("memory", of_summary(peaks), "The peak memory of each rank, in bytes.")
      .def_prop_ro("peak_memory", of_summary([](const Summary& s) { return s.all.peak.count; }),
                   "The maximum over ranks, in bytes.")
      .def_prop_ro("plan", property([](Training& t) { return t.plan(); }),
                   "The recorded plan, to be checked, simulated and run.")
      .def_prop_ro("trace", property([](Training& t) { return t.trace(); }),
                   "The events of all ranks.")
      .def_prop_ro(
          "models",
          [](const Training& t) {
            std::vector<RankModel> all;
            for (const auto& model : t.trainer().models()) all.push_back({t.ranks(), model.get()});
            return all;
          },
          "The final Model of each rank.")
      .def(
          "to_dict", [](Training& t) { return to_python(unlocked([&] { return t.to_json(); })); },
          nb::sig("def to_dict(self) -> dict[str, Any]"), "Schema ``shiplap.train/1``.")
      .def("__str__",
           [](Training& t) { return nb::str(nb::cast(unlocked([&] { return t.trace(); }))); })
      .def("__repr__",
           [](Training& t) {
             const trace::Summary& summary =
                 unlocked([&]() -> const trace::Summary& { return t.summary(); });
             return fmt::format("<Training {} of {}: step {}, peak memory {}>", t.title(),
                                t.trainer().world().system.name, to_string(summary.step_time()),
                                to_string(summary.all.peak));
           })
      .def("_repr_html_",
           [](Training& t) { return unlocked([&] { return picture(*t.trace()); }); });
}

// ---------------------------------------------------------------- the arguments

// "dp=2,pp=4", from a string or a dict.
std::optional<std::string> mesh_text(nb::handle mesh) {
  if (mesh.is_none()) return std::nullopt;
  if (nb::isinstance<nb::str>(mesh)) return nb::cast<std::string>(mesh);
  if (!nb::isinstance<nb::dict>(mesh)) {
    throw nb::type_error("mesh: expected a dict such as {\"dp\": 2, \"pp\": 4}, or \"dp=2,pp=4\"");
  }
  std::string text;
  for (const auto& [axis, size] : nb::cast<nb::dict>(mesh)) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", nb::cast<std::string>(nb::str(axis)),
                        nb::cast<std::string>(nb::str(size)));
  }
  return text;
}

// Renames command line flags in diagnostics to Python arguments.
template <class Do>
auto naming_arguments(const Do& act) {
  try {
    return act();
  } catch (const InputError& error) {
    std::vector<Diagnostic> all = error.diagnostics();
    for (Diagnostic& d : all) {
      if (d.where.flag.starts_with("--")) d.where.flag.erase(0, 2);
      if (d.where.flag == "global-batch") d.where.flag = "batch";
      if (d.where.flag == "seq-length") d.where.flag = "block";
      if (d.where.flag == "zero-stage") d.where.flag = "zero_stage";
    }
    throw InputError(all);
  }
}

struct Wanted {
  cli::StrategyFlags flags;
  cli::StrategyDefaults defaults;
  strategy::World world;  // settings that are not flags
};

SharedRanks ranks_for(const Wanted& wanted, const strategy::StrategyInfo& entry) {
  const strategy::TrainingSize size = cli::size_for(entry, wanted.flags, wanted.defaults);
  strategy::World world = strategy::world_for(entry, size);
  world.system = wanted.world.system;
  world.eager_limit = wanted.world.eager_limit;
  strategy::Training training = strategy::training_for(entry, size);
  return std::make_shared<Ranks>(world, training, entry.name);
}

// A user's strategy divides layers and samples itself; it gets only their numbers.
SharedRanks ranks_for_own(const Wanted& wanted, std::string name) {
  const strategy::TrainingSize size = cli::size_of(wanted.flags, wanted.defaults);
  strategy::StrategyInfo entry{
      .name = name, .summary = "", .axes = {}, .shards = {}, .aliases = {}};
  for (const plan::Axis& axis : size.mesh) entry.axes.push_back(axis.name);
  if (entry.axes.empty()) entry.axes = {"dp"};
  strategy::World world = strategy::world_for(entry, size);
  world.system = wanted.world.system;
  world.eager_limit = wanted.world.eager_limit;
  const strategy::Training training{.layers = size.layers,
                                    .batch = size.batch,
                                    .microbatches = std::max(size.microbatches, 1),
                                    .chunks = std::max(size.chunks, 1),
                                    .zero_stage = size.zero_stage};
  return std::make_shared<Ranks>(world, training, std::move(name));
}

std::string name_of(nb::handle strategy) {
  const nb::object name = nb::getattr(strategy, "__name__", nb::none());
  return nb::isinstance<nb::str>(name) ? nb::cast<std::string>(name) : python_type_name(strategy);
}

std::unique_ptr<Training> train_library(const Wanted& wanted, const std::string& name) {
  const LongCall released;
  const strategy::StrategyInfo& entry = strategy::find_strategy(name);
  SharedRanks ranks = naming_arguments([&] { return ranks_for(wanted, entry); });
  ranks->trainer.run(entry.strategy);
  return std::make_unique<Training>(std::move(ranks));
}

std::unique_ptr<Training> train_own(const Wanted& wanted, nb::handle strategy) {
  if (PyCallable_Check(strategy.ptr()) == 0) {
    throw nb::type_error(fmt::format("strategy: expected a name or an `async def`, found {}",
                                     python_type_name(strategy))
                             .c_str());
  }
  SharedRanks ranks = naming_arguments([&] { return ranks_for_own(wanted, name_of(strategy)); });
  const CancellationScope scope(raise_signals);  // the GIL is held: coroutines run
  train_in_python(ranks, strategy);
  return std::make_unique<Training>(std::move(ranks));
}

struct Sizes {
  std::optional<std::int64_t> ranks, layers, batch, microbatches, chunks, zero_stage, hidden, block;
};

struct Options {
  nb::object mesh;
  std::optional<std::string> datatype;
  std::optional<int> moments;
  std::string hardware;
  std::int64_t eager = 0;
};

Wanted wanted(const Sizes& sizes, const Options& options, const workload::ModelShape& usual) {
  Wanted result;
  result.flags = {.strategy = std::nullopt,
                  .ranks = sizes.ranks,
                  .mesh = mesh_text(options.mesh),
                  .layers = sizes.layers,
                  .global_batch = sizes.batch,
                  .microbatches = sizes.microbatches,
                  .chunks = sizes.chunks,
                  .zero_stage = sizes.zero_stage,
                  .hidden = sizes.hidden,
                  .seq_length = sizes.block};
  result.defaults.shape = usual;
  if (options.datatype) result.defaults.shape.datatype = parse_datatype(*options.datatype);
  if (options.moments) result.defaults.shape.moments = *options.moments;
  const bool moments_fit =
      result.defaults.shape.moments >= 0 && result.defaults.shape.moments <= 16;
  if (!moments_fit || options.eager < 0) {
    throw InputError(Diagnostic{.code = "D003",
                                .where = {.flag = moments_fit ? "eager" : "moments"},
                                .what = "expected 0 or more, and at most 16 moments"});
  }
  result.world.system = hardware::find_system(options.hardware);
  result.world.eager_limit = {options.eager};
  return result;
}

// Defaults as on the command line: large layers to simulate, small ones to run.
workload::ModelShape usual_shape(bool for_run) {
  if (!for_run) return {};
  return {.hidden = 64, .block = 16, .datatype = DType::f32};
}

void bind_train(nb::module_& m) {
  using Number = std::optional<std::int64_t>;
  m.def(
      "train",
      [](nb::handle strategy, Number ranks, nb::object mesh, Number layers, Number batch,
         Number microbatches, Number chunks, Number zero_stage, Number hidden, Number block,
         std::optional<std::string> datatype, std::optional<int> moments, std::string hardware,
         std::int64_t eager, bool for_run) {
        const Wanted what = wanted({.ranks = ranks,
                                    .layers = layers,
                                    .batch = batch,
                                    .microbatches = microbatches,
                                    .chunks = chunks,
                                    .zero_stage = zero_stage,
                                    .hidden = hidden,
                                    .block = block},
                                   {.mesh = std::move(mesh),
                                    .datatype = std::move(datatype),
                                    .moments = moments,
                                    .hardware = std::move(hardware),
                                    .eager = eager},
                                   usual_shape(for_run));
        if (!nb::isinstance<nb::str>(strategy)) return train_own(what, strategy);
        return train_library(what, nb::cast<std::string>(strategy));
      },
      "strategy"_a, nb::kw_only(), "ranks"_a = nb::none(), "mesh"_a = nb::none(),
      "layers"_a = nb::none(), "batch"_a = nb::none(), "microbatches"_a = nb::none(),
      "chunks"_a = nb::none(), "zero_stage"_a = nb::none(), "hidden"_a = nb::none(),
      "block"_a = nb::none(), "datatype"_a = nb::none(), "moments"_a = nb::none(),
      "hardware"_a = "h100_80g_nvl8", "eager"_a = 0, "for_run"_a = false,
      nb::sig("def train(strategy: str | Callable[[Model], Coroutine[Any, Any, object]], *, "
              "ranks: int | None = None, mesh: dict[str, int] | str | None = None, "
              "layers: int | None = None, batch: int | None = None, "
              "microbatches: int | None = None, chunks: int | None = None, "
              "zero_stage: int | None = None, "
              "hidden: int | None = None, block: int | None = None, "
              "datatype: str | None = None, moments: int | None = None, "
              "hardware: str = 'h100_80g_nvl8', eager: int = 0, for_run: bool = False) "
              "-> Training"),
      R"(Trains a strategy in virtual time: a built-in one or your own.

>>> async def ddp(model):
...     weights, opt_states, activations, grad_activations, grad_weights = model.storage()
...     for l in range(model.layers):
...         weights[l], opt_states[l] = model.load_weights(l)
...     activations[0] = model.get_input_activation(model.samples(model.rank, model.ranks))
...     for l in range(model.layers):
...         activations[l + 1] = model.forward(l, activations[l], weights[l])
...     grad_activations[model.layers] = model.loss(activations[model.layers])
...     for l in reversed(range(model.layers)):
...         grad_weights[l], grad_activations[l] = model.backward(
...             l, activations[l], grad_activations[l + 1], weights[l])
...         del grad_activations[l + 1], activations[l]
...         grad_weights[l] = await model.all_reduce(grad_weights[l], l)
...         weights[l], opt_states[l] = model.update(
...             l, grad_weights[l], weights[l], opt_states[l])
...         model.set_final_weight(l, weights[l])
>>> shiplap.train(ddp, ranks=8, layers=4, batch=8)
<Training ddp on 8 ranks of h100_80g_nvl8: step 1.66 ms, peak memory 544 MiB>
>>> shiplap.train("fsdp", ranks=8, layers=4, batch=8)
<Training fsdp on 8 ranks of h100_80g_nvl8: step 1.15 ms, peak memory 216 MiB>

Arguments are the flags of ``shiplap simulate``, with the same defaults: 4 ranks, 4 layers, 4
samples per rank, weights of 4096 x 4096 in float16. ``mesh`` gives the axes and their sizes,
``{"dp": 2, "pp": 4}``; the default for your own strategy is one axis ``dp``. With ``for_run``,
layers are as small as those of ``shiplap run``, in float32, so that the plan can be run.)");
}

}  // namespace

void bind_strategy(nb::module_& m) {
  bind_values(m);
  bind_predictor(m);
  bind_communication(m);
  bind_model(m);
  bind_training(m);
  bind_train(m);
  m.def(
      "strategies",
      [] {
        nb::dict all;
        for (const strategy::StrategyInfo& entry : strategy::strategies()) {
          all[entry.name.c_str()] = entry.summary;
        }
        return all;
      },
      nb::sig("def strategies() -> dict[str, str]"), R"(The built-in strategies: name and summary.

>>> shiplap.strategies()["zero1"]
'ZeRO 1: optimizer state sharded')");
}

}  // namespace shiplap::python
