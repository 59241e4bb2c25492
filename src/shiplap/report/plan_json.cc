#include <algorithm>
#include <string>
#include <utility>

#include "shiplap/report/plan.h"
#include "shiplap/report/plan_format.h"

namespace shiplap::report {
namespace {

using plan::Plan;
using plan::RankProgram;

constexpr std::int64_t kMaxRanksListed = 1024;

template <class List, class Each>
Json array_of(const List& list, const Each& each) {
  Json::Array items;
  for (const auto& item : list) items.push_back(each(item));
  return items;
}

Json integer(std::int64_t value) { return value; }

Json to_json(const plan::Ratio& ratio) {
  return Json::array({ratio.numerator(), ratio.denominator()});
}

Json rank_or_null(Rank rank) { return rank.exists() ? Json(rank.value) : Json(); }

// ---- the plan

Json to_json(const plan::MinMax& spread) {
  return Json::object(
      {{"min", spread.min}, {"max", spread.max}, {"max_rank", rank_or_null(spread.max_rank)}});
}

Json to_json(const plan::Mesh& mesh) {
  return Json::object(
      {{"axes", array_of(mesh.axes,
                         [](const plan::Axis& axis) {
                           return Json::object({{"name", axis.name}, {"size", axis.size}});
                         })},
       {"aliases", array_of(mesh.aliases, [&](const plan::Alias& alias) {
          return Json::object(
              {{"name", alias.name},
               {"axes", array_of(alias.axes, [&](plan::AxisId axis) { return mesh.name(axis); })}});
        })}});
}

Json streams_to_json(const plan::Program& program) {
  Json streams = Json::array({"main"});
  for (const std::string& stream : program.streams) streams.push(stream);
  return streams;
}

Json program_to_json(const plan::ProgramSummary& found, const Plan& plan) {
  const plan::Program& program = plan.programs[found.program];
  return Json::object(
      {{"name", program.name},
       {"on", format_selector(program.on, plan.mesh)},
       {"ranks", found.ranks},
       {"first_rank", rank_or_null(found.first)},
       {"rank_classes", found.classes},
       {"operations", to_json(found.operations)},
       {"peak_bytes", to_json(found.peak_bytes)},
       {"buffers",
        array_of(program.buffers, [](const plan::Buffer& buffer) { return buffer.name; })},
       {"streams", streams_to_json(program)}});
}

Json to_json(const plan::TrafficSummary& traffic) {
  return Json::object({{"axes", traffic.axes},
                       {"kind", traffic.kind},
                       {"operations", traffic.operations},
                       {"payload_bytes", traffic.payload.count},
                       {"sent_bytes", traffic.sent.count},
                       {"sent_bytes_per_rank", to_json(traffic.sent_per_rank)}});
}

Json to_json(const std::vector<plan::Dimension>& dimensions) {
  return array_of(dimensions, [](const plan::Dimension& dimension) {
    return Json::object({{"name", dimension.name}, {"size", dimension.size}});
  });
}

Json tensor_to_json(const plan::Tensor& tensor, const Plan& plan) {
  const std::string clipped = format_mask(tensor, plan);
  return Json::object({{"name", tensor.name},
                       {"kind", tensor.kind},
                       {"instances", std::max<std::int64_t>(tensor.instances, 1)},
                       {"indexed", tensor.instances > 0},
                       {"part", to_json(tensor.part)},
                       {"sum", to_json(tensor.sum)},
                       {"scale", to_json(tensor.scale)},
                       {"mask", clipped.empty() ? Json() : Json(clipped)}});
}

Json to_json(const plan::ExchangeTable& table) {
  std::int64_t rows = 0;
  for (const plan::TableRow& row : table.sends()) rows += row.count;
  return Json::object(
      {{"name", table.name}, {"messages", std::ssize(table.sends())}, {"rows", rows}});
}

// ---- a rank

Json region_to_json(const plan::flat::Region& region, const RankProgram& rank) {
  if (!region.buffer.exists()) return {};
  const plan::Program& program = rank.plan->programs[rank.program];
  Json result = Json::object({{"buffer", program.buffers[region.buffer].name}});
  if (region.listed < 0) return result.set("begin", region.begin).set("count", region.count);
  const auto rows = std::span(rank.listed_rows).subspan(region.listed, region.count);
  return result.set("rows", array_of(rows, integer));
}

Json value_to_json(const plan::flat::Value& value, const RankProgram& rank) {
  const plan::Tensor& tensor = rank.plan->tensors[value.tensor];
  return Json::object({{"tensor", tensor.name},
                       {"instance", value.instance},
                       {"new", value.is_new},
                       {"zero", value.zero},
                       {"scale", to_json(value.scale)},
                       {"runs", array_of(rank.runs_of(value), [&](const plan::flat::Run& run) {
                          return Json::object({{"dimension", tensor.dimension(run.dimension).name},
                                               {"begin", run.begin},
                                               {"count", run.count},
                                               {"stride", run.stride}});
                        })}});
}

Json facts_to_json(const std::vector<plan::flat::Fact>& facts, const RankProgram& rank) {
  return array_of(facts, [&](const plan::flat::Fact& fact) {
    return Json::object({{"region", region_to_json(fact.region, rank)},
                         {"value", value_to_json(fact.value, rank)},
                         {"line", fact.origin.line}});
  });
}

Json group_to_json(const plan::flat::Group& group) {
  const plan::RankSet& set = group.ranks;
  Json ranks = Json::array();
  if (set.size() <= kMaxRanksListed) {
    for (std::int64_t k = 0; k < set.size(); ++k) ranks.push(set[k].value);
  } else {
    ranks = Json::object(
        {{"first", set[0].value}, {"last", set[set.size() - 1].value}, {"size", set.size()}});
  }
  const std::string& channel = group.channel;
  return Json::object({{"ranks", ranks}, {"channel", channel.empty() ? "main" : channel}});
}

Json indices_to_json(plan::flat::Slice slice, const RankProgram& rank) {
  return array_of(std::span(rank.numbers).subspan(slice.first, slice.count), integer);
}

std::string channel_name(const std::string& channel) { return channel.empty() ? "main" : channel; }

// Adds the fields that are specific to the kind of action.
class ActionWriter {
 public:
  ActionWriter(const RankProgram& rank, const plan::flat::Operation& op, Json& json)
      : rank_(rank), op_(op), json_(json) {}

  void operator()(const plan::Compute& action) {
    json_.set("kernel", action.kernel);
    json_.set("accesses", array_of(rank_.accesses_of(op_), [&](const plan::flat::Access& access) {
                return access_to_json(access);
              }));
  }
  void operator()(const plan::Copy& action) {
    from().to();
    json_.set("add", action.add);
  }
  void operator()(const plan::Send& action) {
    from();
    json_.set("peer", op_.peer.value).set("tag", op_.tag);
    json_.set("channel", channel_name(action.channel));
  }
  void operator()(const plan::Receive& action) {
    to();
    json_.set("peer", op_.peer.value).set("tag", op_.tag);
    json_.set("channel", channel_name(action.channel)).set("add", action.add);
  }
  void operator()(const plan::Collective& action) {
    from().to().group();
    json_.set("operator", name(action.op)).set("scale", to_json(action.scale));
    json_.set("root", op_.root);
    json_.set("split", action.split.exists()
                           ? array_of(rank_.plan->lists[action.split].values, integer)
                           : Json());
  }
  void operator()(const plan::Exchange& action) {
    from().to().group();
    json_.set("table", rank_.plan->tables[action.table].name);
    json_.set("reversed", action.reversed).set("add", action.add);
  }
  void operator()(const plan::Allocate&) { json_.set("rows", region_to_json(op_.from, rank_)); }
  void operator()(const plan::Free&) { json_.set("rows", region_to_json(op_.from, rank_)); }
  void operator()(const plan::Batch&) {}

 private:
  ActionWriter& from() {
    json_.set("from", region_to_json(op_.from, rank_));
    return *this;
  }
  ActionWriter& to() {
    json_.set("to", region_to_json(op_.to, rank_));
    return *this;
  }
  void group() { json_.set("group", group_to_json(rank_.groups[op_.group])); }

  Json access_to_json(const plan::flat::Access& access) {
    const bool reads = access.kind == plan::Access::Kind::reads;
    const bool adds = access.kind == plan::Access::Kind::adds;
    return Json::object(
        {{"kind", reads  ? "reads"
                  : adds ? "adds"
                         : "writes"},
         {"region", region_to_json(access.region, rank_)},
         {"value", access.value.tensor.exists() ? value_to_json(access.value, rank_) : Json()}});
  }

  const RankProgram& rank_;
  const plan::flat::Operation& op_;
  Json& json_;
};

Json name_to_json(const plan::flat::Operation& op, const RankProgram& rank) {
  if (op.source->name.name.empty()) return {};
  return Json::object(
      {{"name", op.source->name.name}, {"indices", indices_to_json(op.name, rank)}});
}

Json stream_to_json(const plan::flat::Operation& op, const RankProgram& rank) {
  if (!op.stream.exists()) return {};
  if (op.stream.value == 0) return "main";
  return rank.plan->programs[rank.program].streams[op.stream.index() - 1];
}

Json work_to_json(const plan::flat::Operation& op) {
  if (!op.source->work) return {};
  const plan::Work& source = *op.source->work;
  return Json::object(
      {{"kernel_class", source.kernel_class.empty() ? Json() : Json(source.kernel_class)},
       {"flop", op.work.flop},
       {"bytes", op.work.bytes},
       {"seconds", op.work.seconds},
       {"type", source.type ? Json(name(*source.type)) : Json()}});
}

Json operation_to_json(const RankProgram& rank, std::size_t index) {
  const plan::flat::Operation& op = rank.operations[index];
  const plan::Operation& source = *op.source;
  Json json = Json::object({{"index", static_cast<std::int64_t>(index)},
                            {"name", name_to_json(op, rank)},
                            {"stream", stream_to_json(op, rank)},
                            {"batch", op.batch >= 0 ? Json(op.batch) : Json()},
                            {"action", plan::keyword(source.action)}});
  std::visit(ActionWriter(rank, op, json), source.action);
  json.set("async", source.async).set("joined", source.joined);
  json.set("after", array_of(rank.after(op), [](std::int32_t k) { return Json(k); }));
  json.set("work", work_to_json(op));
  if (source.at.source.exists()) {
    const plan::Source& made_from = rank.plan->sources[source.at.source];
    json.set("at", Json::object({{"file", made_from.file},
                                 {"line", source.at.line},
                                 {"function", made_from.function}}));
  }
  json.set("label", source.label.empty() ? Json() : Json(source.label));
  return json.set("line", source.origin.line);
}

Json ends_to_json(std::span<const plan::TableRow> rows) {
  return array_of(rows, [](const plan::TableRow& row) {
    return Json::object({{"peer", row.peer}, {"first", row.first}, {"count", row.count}});
  });
}

Json tables_to_json(const RankProgram& rank) {
  return array_of(rank.plan->tables, [&](const plan::ExchangeTable& table) {
    return Json::object({{"name", table.name},
                         {"sends", ends_to_json(table.sends_of(rank.rank.value))},
                         {"receives", ends_to_json(table.receives_of(rank.rank.value))}});
  });
}

Json buffers_to_json(const RankProgram& rank) {
  Json buffers = Json::array();
  for (std::size_t k = 0; k < rank.buffers.size(); ++k) {
    const plan::Buffer& source = rank.plan->programs[rank.program].buffers[k];
    buffers.push(
        Json::object({{"name", source.name},
                      {"rows", rank.buffers[k].rows},
                      {"row_bytes", rank.buffers[k].row_bytes},
                      {"type", shiplap::name(source.type)},
                      {"memory", source.memory == plan::Memory::device ? "device" : "host"}}));
  }
  return buffers;
}

Json absent_to_json(const RankProgram& rank) {
  return array_of(rank.absent, [&](const plan::flat::AbsentReference& absent) {
    return Json::object({{"operation", absent.operation},
                         {"name", absent.reference->name},
                         {"indices", indices_to_json(absent.indices, rank)}});
  });
}

}  // namespace

Json plan_to_json(const Plan& plan, const plan::Summary& summary, const std::string& file) {
  return Json::object(
      {{"schema", "shiplap.show/1"},
       {"file", file},
       {"ranks", summary.ranks},
       {"spares", summary.spares},
       {"ranks_counted", summary.ranks_counted},
       {"complete", summary.complete()},
       {"mesh", to_json(plan.mesh)},
       {"programs", array_of(summary.programs,
                             [&](const plan::ProgramSummary& program) {
                               return program_to_json(program, plan);
                             })},
       {"spare_on",
        array_of(plan.spares,
                 [&](const plan::Selector& on) { return format_selector(on, plan.mesh); })},
       {"traffic", array_of(summary.traffic,
                            [](const plan::TrafficSummary& traffic) { return to_json(traffic); })},
       {"tensors",
        array_of(plan.tensors,
                 [&](const plan::Tensor& tensor) { return tensor_to_json(tensor, plan); })},
       {"tables",
        array_of(plan.tables, [](const plan::ExchangeTable& table) { return to_json(table); })},
       {"lists", array_of(plan.lists, [](const plan::List& list) {
          return Json::object({{"name", list.name}, {"entries", std::ssize(list.values)}});
        })}});
}

Json rank_to_json(const RankProgram& rank, const std::string& file) {
  const plan::Mesh& mesh = rank.plan->mesh;
  const std::vector<std::int64_t> positions = mesh.positions(rank.rank);
  Json position = Json::object();
  for (std::size_t k = 0; k < positions.size(); ++k) {
    position.set(mesh.name(plan::AxisId(k)), positions[k]);
  }
  Json result = Json::object({{"schema", "shiplap.show_rank/1"},
                              {"file", file},
                              {"rank", rank.rank.value},
                              {"ranks", mesh.ranks()},
                              {"position", position}});
  // A spare has the same keys with empty values.
  const plan::Program* program =
      rank.program.exists() ? &rank.plan->programs[rank.program] : nullptr;
  result.set("program", program != nullptr ? Json(program->name) : Json());
  result.set("peak_bytes", plan::peak_bytes(rank));
  result.set("streams", program != nullptr ? streams_to_json(*program) : Json::array());
  result.set("buffers", buffers_to_json(rank));
  result.set("given", facts_to_json(rank.given, rank));
  result.set("goal", facts_to_json(rank.goal, rank));
  Json::Array operations;
  for (std::size_t k = 0; k < rank.operations.size(); ++k) {
    operations.push_back(operation_to_json(rank, k));
  }
  result.set("operations", std::move(operations));
  return result.set("absent", absent_to_json(rank)).set("tables", tables_to_json(rank));
}

}  // namespace shiplap::report
