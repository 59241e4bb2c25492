// Every single thing that can be changed in a plan, and a random choice among them.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random_plan.h"
#include "shiplap/base/random.h"

namespace shiplap::plan {
namespace {

class Changes {
 public:
  explicit Changes(Plan& plan) : plan_(plan) {
    for (Axis& axis : plan.mesh.axes) {
      name(axis.name);
      edit([&axis] { ++axis.size; });
    }
    for (Alias& alias : plan.mesh.aliases) {
      name(alias.name);
      edit([&alias] { alias.axes.push_back(alias.axes.front()); });
    }
    for (Source& source : plan.sources) {
      name(source.name);
      name(source.file);
      name(source.function);
    }
    for (List& list : plan.lists) {
      name(list.name);
      edit([&list] { list.values.push_back(7); });
      for (std::int64_t& value : list.values) edit([&value] { value ^= 1; });
    }
    for (Tensor& tensor : plan.tensors) visit(tensor);
    for (ExchangeTable& table : plan.tables) visit(table);
    for (Program& program : plan.programs) visit(program);
    for (Selector& spare : plan.spares) visit(spare);
    edit([&plan] { plan.spares.emplace_back(); });
  }

  std::vector<std::function<void()>> edits;

 private:
  template <class Edit>
  void edit(Edit e) {
    edits.emplace_back(std::move(e));
  }
  void name(std::string& text) {
    edit([&text] { text += "x"; });
  }
  void flag(bool& value) {
    edit([&value] { value = !value; });
  }
  void expr(Expr& value) {
    edit([&value] { value = value + Expr::rank(); });
    edit([&value] { value = value == Expr(3) ? Expr(4) : Expr(3); });
  }
  void ratio(Ratio& value) {
    edit([&value] { value = value == Ratio(1, 7) ? Ratio(7, 1) : Ratio(1, 7); });
  }
  template <class Enum>
  void turn(Enum& value, int kinds) {
    edit([&value, kinds] { value = static_cast<Enum>((static_cast<int>(value) + 1) % kinds); });
  }

  void visit(Tensor& tensor) {
    name(tensor.name);
    name(tensor.kind);
    edit([&tensor] { ++tensor.instances; });
    for (Dimension& dimension : tensor.part) edit([&dimension] { ++dimension.size; });
    for (Dimension& dimension : tensor.sum) name(dimension.name);
    ratio(tensor.scale);
    for (MaskTerm& term : tensor.mask) {
      edit([&term] {
        const bool equal = term.comparator == Comparator::equal;
        term.comparator = equal ? Comparator::less_equal : Comparator::equal;
      });
    }
  }

  void visit(ExchangeTable& table) {
    name(table.name);
    for (std::size_t k = 0; k < table.sends().size(); ++k) change_row(table, k, true);
    for (std::size_t k = 0; k < table.receives().size(); ++k) change_row(table, k, false);
  }

  void change_row(ExchangeTable& table, std::size_t k, bool send) {
    for (const bool first : {true, false}) {
      edit([&table, k, send, first] {
        std::vector<TableRow> sends(table.sends().begin(), table.sends().end());
        std::vector<TableRow> receives(table.receives().begin(), table.receives().end());
        TableRow& row = send ? sends[k] : receives[k];
        first ? row.first ^= 1 : ++row.count;
        table = ExchangeTable(table.name, std::move(sends), std::move(receives));
      });
    }
  }

  void visit(Selector& selector) {
    for (SelectorTerm& term : selector.terms) {
      edit([&term] { ++term.positions.back().last; });
      edit([&term] { term.positions.push_back({0, 0}); });
    }
  }

  void visit(Program& program) {
    name(program.name);
    visit(program.on);
    for (Buffer& buffer : program.buffers) {
      name(buffer.name);
      expr(buffer.rows);
      expr(buffer.row_bytes);
      turn(buffer.type, 11);
      turn(buffer.memory, 2);
    }
    for (std::string& stream : program.streams) name(stream);
    edit([&program] { program.streams.emplace_back("another"); });
    streams_ = static_cast<int>(program.streams.size()) + 1;
    visit(program.body);
  }

  void visit(std::vector<Statement>& body) {
    edit([&body] { body.push_back({Operation{.action = Compute{.kernel = "another"}}}); });
    if (!body.empty()) edit([&body] { body.pop_back(); });
    for (Statement& statement : body) {
      std::visit([this](auto& node) { visit(node); }, statement.node);
    }
  }

  void visit(Let& let) { expr(let.value); }
  void visit(Repeat& repeat) {
    name(repeat.variable);
    expr(repeat.count);
    visit(repeat.body);
  }
  void visit(When& when) {
    for (Comparison& comparison : when.condition) {
      expr(comparison.left);
      turn(comparison.comparator, 6);
      expr(comparison.right);
    }
    visit(when.body);
  }
  void visit(Fact& fact) {
    turn(fact.kind, 3);
    visit(fact.region);
    visit(fact.value);
  }

  void visit(Region& region) {
    edit([&region] {
      region = region.kind == Region::Kind::rows
                   ? Region{.buffer = region.buffer}
                   : Region{.buffer = region.buffer, .kind = Region::Kind::rows};
    });
    if (region.kind == Region::Kind::whole) return;
    expr(region.begin);
    if (region.kind != Region::Kind::cut) expr(region.count);
  }

  void visit(Value& value) {
    if (!value.tensor.exists()) return;
    if (plan_.tensors[value.tensor].has_versions()) flag(value.is_new);
    if (value.indexed) expr(value.index);
    if (value.sum != Sum::none) ratio(value.scale);
    for (Run& run : value.runs) {
      expr(run.begin);
      expr(run.count);
      if (!run.list.exists()) expr(run.stride);
    }
    if (value.sum != Sum::some) {
      edit([&value] {
        value.sum = value.sum == Sum::none ? Sum::complete : Sum::none;
        value.scale = Ratio();
      });
    }
  }

  void visit(Peer& peer) {
    expr(peer.where);
    if (peer.axis.exists()) flag(peer.wrap);
  }

  void visit(Group& group) {
    name(group.channel);
    for (Expr& position : group.positions) expr(position);
    edit([&group] { group.positions.emplace_back(1); });
    if (!group.axes.empty()) edit([&group] { group.axes.push_back(group.axes.front()); });
  }

  void visit(Reference& reference) {
    for (Expr& index : reference.indices) expr(index);
    edit([&reference] { reference.indices.emplace_back(1); });
    name(reference.name);
  }

  void visit(Operation& operation) {
    if (!operation.name.name.empty()) visit(operation.name);
    if (operation.stream.exists()) {
      edit([&operation, streams = streams_] {
        operation.stream = StreamId((operation.stream.value + 1) % streams);
      });
      if (streams_ == 1) edits.pop_back();
      flag(operation.async);
      flag(operation.joined);
      name(operation.label);
    }
    if (operation.at.source.exists()) edit([&operation] { ++operation.at.line; });
    for (Reference& reference : operation.after) visit(reference);
    if (operation.work) visit(*operation.work);
    std::visit([this](auto& action) { visit(action); }, operation.action);
  }

  void visit(Work& work) {
    if (work.kernel_class.empty()) {
      edit([&work] { work.seconds = work.seconds == 2 ? 3 : 2; });
      expr(work.times);
      return;
    }
    name(work.kernel_class);
    expr(work.flop);
    expr(work.bytes);
    edit([&work] {
      work.type = work.type == DType::f32 ? std::nullopt : std::optional(DType::f32);
    });
  }

  void visit(Compute& compute) {
    name(compute.kernel);
    for (Access& access : compute.accesses) {
      turn(access.kind, 3);
      visit(access.region);
      visit(access.value);
    }
  }
  void visit(Copy& copy) {
    visit(copy.from);
    visit(copy.to);
    flag(copy.add);
  }
  void visit(Send& send) {
    visit(send.from);
    visit(send.peer);
    expr(send.tag);
    name(send.channel);
  }
  void visit(Receive& receive) {
    visit(receive.to);
    visit(receive.peer);
    expr(receive.tag);
    name(receive.channel);
    flag(receive.add);
  }
  void visit(Collective& collective) {
    visit(collective.over);
    if (collective.kind == CollectiveKind::barrier) return;
    // Another kind may not take the same operands.
    edit([&collective] {
      collective = {
          .kind = static_cast<CollectiveKind>((static_cast<int>(collective.kind) + 1) % 6),
          .from = collective.from,
          .to = collective.to,
          .over = collective.over};
    });
    visit(collective.from);
    visit(collective.to);
    if (reduces(collective.kind)) {
      turn(collective.op, 4);
      ratio(collective.scale);
    }
    if (has_root(collective.kind)) expr(collective.root);
    if (plan_.lists.empty() || !has_pieces(collective.kind)) return;
    edit([&collective] {
      collective.split = collective.split.exists() ? ListId() : ListId(std::int32_t{0});
    });
  }
  void visit(Exchange& exchange) {
    visit(exchange.from);
    visit(exchange.to);
    flag(exchange.reversed);
    flag(exchange.add);
    visit(exchange.over);
  }
  void visit(Allocate& allocate) { visit(allocate.rows); }
  void visit(Free& free) { visit(free.rows); }
  void visit(Batch& batch) { visit(batch.body); }

  Plan& plan_;
  int streams_ = 1;
};

}  // namespace

bool change_something(Plan& plan, std::uint64_t seed) {
  Changes changes(plan);
  if (changes.edits.empty()) return false;
  Random random(seed);
  random.pick(changes.edits)();
  return true;
}

}  // namespace shiplap::plan
