// Bindings of strategies: built-in ones, Python ones, and the results of training them.
#include "strategy.h"

#include <fmt/format.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <utility>

#include "shiplap/base/argument_error.h"
#include "shiplap/cli/strategy_flags.h"
#include "shiplap/report/text.h"
#include "shiplap/report/timed_plan.h"
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
                      report::prediction_note(trainer().world().system.name)},
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

void bind_training(nb::module_& m) {
  nb::class_<Training>(m, "_Training", "What shiplap.Training computes when it is first used.")
      .def_prop_ro("name", [](const Training& t) { return t.ranks()->name; })
      .def_prop_ro("title", &Training::title)
      .def_prop_ro("plan", property([](Training& t) { return t.plan(); }))
      .def_prop_ro("trace", property([](Training& t) { return t.trace(); }))
      .def_prop_ro("models",
                   [](const Training& t) {
                     std::vector<RankModel> all;
                     for (const auto& model : t.trainer().models()) {
                       all.push_back({t.ranks(), model.get()});
                     }
                     return all;
                   })
      .def(
          "to_dict", [](Training& t) { return to_python(unlocked([&] { return t.to_json(); })); },
          nb::sig("def to_dict(self) -> dict[str, Any]"));
}

// ---------------------------------------------------------------- the arguments

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
  entry.zero_stages = true;  // it reads the stage from its model
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

// Defaults as on the command line: large layers to simulate, small ones to run.
workload::ModelShape usual_shape(bool for_run) {
  if (!for_run) return {};
  return {.hidden = 64, .block = 16, .datatype = DType::f32};
}

// The arguments of shiplap.train, which has checked their types.
Wanted wanted(const nb::dict& given) {
  const auto number = [&](const char* name) {
    return nb::cast<std::optional<std::int64_t>>(given[name]);
  };
  Wanted result;
  result.flags = {.strategy = std::nullopt,
                  .ranks = number("ranks"),
                  .mesh = nb::cast<std::optional<std::string>>(given["mesh"]),
                  .layers = number("layers"),
                  .global_batch = number("batch"),
                  .microbatches = number("microbatches"),
                  .chunks = number("chunks"),
                  .zero_stage = number("zero_stage"),
                  .hidden = number("hidden"),
                  .seq_length = number("block")};
  workload::ModelShape& shape = result.defaults.shape;
  shape = usual_shape(nb::cast<bool>(given["for_run"]));
  if (const nb::handle datatype = given["datatype"]; !datatype.is_none()) {
    shape.datatype = parse_datatype(nb::cast<std::string>(datatype));
  }
  const std::int64_t moments = number("moments").value_or(shape.moments);
  const std::int64_t eager = number("eager").value_or(0);
  const bool moments_fit = moments >= 0 && moments <= 16;
  if (!moments_fit || eager < 0) {
    throw_argument_error(moments_fit ? "eager" : "moments",
                         "expected 0 or more, and at most 16 moments");
  }
  shape.moments = static_cast<int>(moments);
  result.world.system = hardware::find_system(nb::cast<std::string>(given["hardware"]));
  result.world.eager_limit = {eager};
  return result;
}

}  // namespace

void bind_strategy(nb::module_& m) {
  bind_values(m);
  bind_predictor(m);
  bind_communication(m);
  bind_model(m);
  bind_training(m);
  m.def(
      "_train",
      [](nb::handle strategy, const nb::dict& given) {
        const Wanted what = wanted(given);
        if (!nb::isinstance<nb::str>(strategy)) return train_own(what, strategy);
        return train_library(what, nb::cast<std::string>(strategy));
      },
      "strategy"_a, "given"_a,
      nb::sig("def _train(strategy: object, given: dict[str, Any]) -> _Training"));
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
