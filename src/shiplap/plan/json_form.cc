// Writes the JSON form: statements are objects, phrases are strings in the syntax of the text.
#include <string>
#include <utility>

#include "shiplap/plan/phrase_writer_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const Plan& plan) : plan_(plan), write_(plan) {}

  Json plan() {
    Json result = Json::object({{"schema", "shiplap.plan/1"}});
    result.set("mesh", array(plan_.mesh.axes, [](const Axis& axis) {
                 return Json::object({{"axis", axis.name}, {"size", axis.size}});
               }));
    result.set("aliases", array(plan_.mesh.aliases, [this](const Alias& alias) {
                 return Json::object(
                     {{"name", alias.name}, {"axes", array(alias.axes, [this](AxisId axis) {
                                               return Json(plan_.mesh.name(axis));
                                             })}});
               }));
    if (!plan_.declares_values) result.set("values", "undeclared");
    if (!plan_.sources.empty()) result.set("sources", array(plan_.sources, source));
    result.set(
        "lists", array(plan_.lists, [](const List& list) {
          return Json::object({{"name", list.name},
                               {"values", Json::Array(list.values.begin(), list.values.end())}});
        }));
    result.set("tensors", array(plan_.tensors, [this](const Tensor& t) { return tensor(t); }));
    result.set("tables", array(plan_.tables, [](const ExchangeTable& t) { return table(t); }));
    result.set("programs", array(plan_.programs, [this](const Program& p) { return program(p); }));
    result.set("spares", array(plan_.spares, [this](const Selector& s) {
                 return phrase([&] { write_.selector(s); });
               }));
    return result;
  }

 private:
  template <class Range, class Make>
  static Json array(const Range& range, const Make& make) {
    Json::Array items;
    items.reserve(range.size());
    for (const auto& item : range) items.push_back(make(item));
    return items;
  }

  template <class Write>
  Json phrase(const Write& write) {
    write_.out.clear();
    write();
    return std::move(write_.out);
  }

  Json number(const Expr& expr) {
    if (expr.is_literal()) return expr.literal();
    return phrase([&] { write_.expression(expr); });
  }
  Json region(const Region& region) {
    return phrase([&] { write_.region(region); });
  }
  Json value(const Value& value) {
    return phrase([&] { write_.value(value); });
  }
  Json group(const Group& group) {
    return phrase([&] { write_.group(group); });
  }
  Json peer(const Peer& peer) {
    return phrase([&] { write_.peer(peer); });
  }
  Json ratio(const Ratio& ratio) {
    return phrase([&] { write_.ratio(ratio); });
  }

  static Json source(const Source& source) {
    Json result = Json::object({{"name", source.name}, {"file", source.file}});
    if (!source.function.empty()) result.set("function", source.function);
    return result;
  }

  static Json dimension(const Dimension& d) {
    return Json::object({{"dimension", d.name}, {"size", d.size}});
  }

  Json tensor(const Tensor& tensor) {
    Json result = Json::object({{"name", tensor.name}, {"kind", tensor.kind}});
    if (tensor.instances > 0) result.set("instances", tensor.instances);
    if (!tensor.part.empty()) result.set("part", array(tensor.part, dimension));
    if (!tensor.sum.empty()) result.set("sum", array(tensor.sum, dimension));
    if (tensor.scale != Ratio()) result.set("scale", ratio(tensor.scale));
    if (!tensor.mask.empty()) result.set("mask", phrase([&] { write_.mask(tensor); }));
    return result;
  }

  static Json row(const TableRow& row) {
    return Json::array({std::int64_t{row.rank}, std::int64_t{row.peer}, row.first, row.count});
  }

  static Json table(const ExchangeTable& table) {
    return Json::object({{"name", table.name},
                         {"sends", array(table.sends(), row)},
                         {"receives", array(table.receives(), row)}});
  }

  Json buffer(const Buffer& buffer) {
    Json result = Json::object({{"name", buffer.name},
                                {"rows", number(buffer.rows)},
                                {"row_bytes", number(buffer.row_bytes)},
                                {"type", name(buffer.type)}});
    if (buffer.memory == Memory::host) result.set("memory", "host");
    return result;
  }

  Json program(const Program& program) {
    write_.program = &program;
    Json result = Json::object({{"name", program.name}});
    result.set("on", phrase([&] { write_.selector(program.on); }));
    result.set("buffers", array(program.buffers, [this](const Buffer& b) { return buffer(b); }));
    result.set("streams", Json::Array(program.streams.begin(), program.streams.end()));
    result.set("body", body(program.body));
    return result;
  }

  Json body(const std::vector<Statement>& statements) {
    const std::size_t bound = write_.locals.size();
    Json result = array(statements, [this](const Statement& statement) {
      return std::visit([this](const auto& node) { return describe(node); }, statement.node);
    });
    write_.locals.resize(bound);
    return result;
  }

  Json describe(const Repeat& repeat) {
    Json result = Json::object({{"repeat", repeat.variable}, {"count", number(repeat.count)}});
    write_.locals.push_back(repeat.variable);
    result.set("body", body(repeat.body));
    write_.locals.pop_back();
    return result;
  }

  Json describe(const When& when) {
    Json result = Json::object({{"when", phrase([&] { write_.condition(when.condition); })}});
    result.set("body", body(when.body));
    return result;
  }

  Json describe(const Let& let) {
    Json result = Json::object({{"let", let.variable}, {"value", number(let.value)}});
    write_.locals.push_back(let.variable);
    return result;
  }

  // A region and its value: {"reads": "x", "value": "A[0]"}.
  Json region_is(std::string_view key, const Region& where, const Value& held) {
    Json result = Json::object();
    result.set(key, region(where));
    if (plan_.declares_values) result.set("value", value(held));
    return result;
  }

  Json describe(const Fact& fact) {
    constexpr std::array<std::string_view, 3> kWords = {"given", "goal", "keep"};
    return region_is(kWords[static_cast<std::size_t>(fact.kind)], fact.region, fact.value);
  }

  Json describe(const Operation& operation) {
    Json result = Json::object({{"do", keyword(operation.action)}});
    if (!operation.name.name.empty()) {
      result.set("name", phrase([&] { write_.reference(operation.name); }));
    }
    if (operation.stream.value > 0) {
      result.set("stream", write_.program->streams[operation.stream.index() - 1]);
    }
    std::visit([&](const auto& action) { operands(action, result); }, operation.action);
    if (!operation.after.empty()) {
      result.set("after", array(operation.after, [this](const Reference& reference) {
                   return phrase([&] { write_.reference(reference); });
                 }));
    }
    if (operation.async) result.set("async", true);
    if (operation.joined) result.set("joined", true);
    if (operation.work) result.set("work", phrase([&] { write_.work(*operation.work); }));
    if (operation.at.source.exists()) {
      result.set("at", phrase([&] { write_.source_line(operation.at); }));
    }
    if (!operation.label.empty()) result.set("label", operation.label);
    return result;
  }

  Json access(const Access& access) {
    constexpr std::array<std::string_view, 3> kWords = {"reads", "writes", "adds"};
    return region_is(kWords[static_cast<std::size_t>(access.kind)], access.region, access.value);
  }

  void operands(const Compute& compute, Json& result) {
    result.set("kernel", compute.kernel);
    result.set("accesses", array(compute.accesses, [this](const Access& a) { return access(a); }));
  }

  void operands(const Copy& copy, Json& result) {
    result.set("from", region(copy.from));
    result.set("to", region(copy.to));
    if (copy.add) result.set("add", true);
  }

  void tag_and_channel(const Expr& tag, const std::string& channel, Json& result) {
    if (tag != Expr(0)) result.set("tag", number(tag));
    if (!channel.empty()) result.set("channel", channel);
  }

  void operands(const Send& send, Json& result) {
    result.set("from", region(send.from));
    result.set("peer", peer(send.peer));
    tag_and_channel(send.tag, send.channel, result);
  }

  void operands(const Receive& receive, Json& result) {
    result.set("to", region(receive.to));
    result.set("peer", peer(receive.peer));
    if (receive.add) result.set("add", true);
    tag_and_channel(receive.tag, receive.channel, result);
  }

  void operands(const Collective& collective, Json& result) {
    if (collective.kind != CollectiveKind::barrier) {
      result.set("from", region(collective.from));
      if (collective.to != collective.from) result.set("to", region(collective.to));
    }
    result.set("over", group(collective.over));
    if (collective.split.exists()) result.set("split", plan_.lists[collective.split].name);
    if (collective.op != ReduceOp::sum) result.set("operator", name(collective.op));
    if (collective.scale != Ratio()) result.set("scale", ratio(collective.scale));
    if (collective.root != Expr(0)) result.set("root", number(collective.root));
  }

  void operands(const Exchange& exchange, Json& result) {
    result.set("from", region(exchange.from));
    result.set("to", region(exchange.to));
    result.set("table", plan_.tables[exchange.table].name);
    if (exchange.reversed) result.set("reversed", true);
    result.set("over", group(exchange.over));
    if (exchange.add) result.set("add", true);
  }

  void operands(const Allocate& allocate, Json& result) {
    result.set("rows", region(allocate.rows));
  }
  void operands(const Free& free, Json& result) { result.set("rows", region(free.rows)); }
  void operands(const Batch& batch, Json& result) { result.set("body", body(batch.body)); }

  const Plan& plan_;
  PhraseWriter write_;
};

}  // namespace

Json to_json(const Plan& plan) { return JsonWriter(plan).plan(); }

}  // namespace shiplap::plan
