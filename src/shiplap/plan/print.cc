// Writes the text form.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/plan/phrase_writer_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

constexpr std::size_t kWidth = 100;

class PlanWriter {
 public:
  explicit PlanWriter(const Plan& plan) : plan_(plan), write_(plan) {}

  std::string text() && {
    line("shiplap-plan 1");
    mesh();
    if (!plan_.declares_values) line("values undeclared");
    for (const Source& source : plan_.sources) describe(source);
    for (const List& list : plan_.lists) numbers(list);
    for (const Tensor& tensor : plan_.tensors) {
      out() += "tensor " + tensor.name;
      write_.tensor(tensor);
      out() += '\n';
    }
    for (const ExchangeTable& table : plan_.tables) messages(table);
    for (const Program& program : plan_.programs) describe(program);
    for (const Selector& spare : plan_.spares) {
      out() += "spare on ";
      write_.selector(spare);
      out() += '\n';
    }
    return std::move(write_.out);
  }

 private:
  std::string& out() { return write_.out; }
  void line(std::string_view text) {
    out() += text;
    out() += '\n';
  }
  void indent() { out().append(2 * depth_, ' '); }

  void mesh() {
    line("mesh " + format_axes(plan_.mesh.axes, " "));
    for (const Alias& alias : plan_.mesh.aliases) {
      out() += "alias " + alias.name + " =";
      for (const AxisId axis : alias.axes) out() += " " + plan_.mesh.name(axis);
      out() += '\n';
    }
  }

  void describe(const Source& source) {
    out() += "source " + source.name + " ";
    write_.quoted(source.file);
    if (!source.function.empty()) {
      out() += " in ";
      write_.quoted(source.function);
    }
    out() += '\n';
  }

  void numbers(const List& list) {
    std::size_t begin = out().size();
    out() += "list " + list.name + " =";
    for (const std::int64_t value : list.values) {
      if (out().size() - begin > kWidth - 8) {
        out() += '\n';
        begin = out().size();
        out() += "   ";
      }
      out() += ' ';
      write_.number(value);
    }
    out() += '\n';
  }

  void row(std::string_view word, const TableRow& row) {
    out() += word;
    for (const std::int64_t value :
         {std::int64_t{row.rank}, std::int64_t{row.peer}, row.first, row.count}) {
      out() += ' ';
      write_.number(value);
    }
  }

  // Writes one line for both ends of a message. If the ends of two ranks disagree, each end has its
  // own lines.
  void messages(const ExchangeTable& table) {
    line("table " + table.name);
    std::vector<TableRow> receives(table.receives().begin(), table.receives().end());
    const auto from_to = [](const TableRow& a, const TableRow& b) {
      return std::pair(a.peer, a.rank) < std::pair(b.peer, b.rank);
    };
    std::ranges::stable_sort(receives, from_to);
    const auto sends = table.sends();
    auto receive = receives.begin();
    for (auto send = sends.begin(); send != sends.end() || receive != receives.end();) {
      const std::pair pair = send == sends.end() ? std::pair(receive->peer, receive->rank)
                             : receive == receives.end()
                                 ? std::pair(send->rank, send->peer)
                                 : std::min(std::pair(send->rank, send->peer),
                                            std::pair(receive->peer, receive->rank));
      const auto send_end = std::find_if(
          send, sends.end(), [&](const TableRow& r) { return std::pair(r.rank, r.peer) != pair; });
      const auto receive_end = std::find_if(receive, receives.end(), [&](const TableRow& r) {
        return std::pair(r.peer, r.rank) != pair;
      });
      pair_of_ranks({send, send_end}, {receive, receive_end});
      send = send_end;
      receive = receive_end;
    }
  }

  void pair_of_ranks(std::span<const TableRow> sends, std::span<const TableRow> receives) {
    const bool agree = std::ranges::equal(sends, receives, {}, &TableRow::count, &TableRow::count);
    for (std::size_t k = 0; agree && k < sends.size(); ++k) {
      row("  message", sends[k]);
      out() += ' ';
      write_.number(receives[k].first);
      out() += '\n';
    }
    if (agree) return;
    for (const TableRow& send : sends) {
      row("  send", send);
      out() += '\n';
    }
    for (const TableRow& receive : receives) {
      row("  receive", receive);
      out() += '\n';
    }
  }

  void describe(const Program& program) {
    write_.program = &program;
    out() += "program " + program.name + " on ";
    write_.selector(program.on);
    out() += '\n';
    for (const Buffer& buffer : program.buffers) describe(buffer);
    if (!program.streams.empty()) {
      out() += "  streams ";
      out() += fmt::format("{}\n", fmt::join(program.streams, ", "));
    }
    block(program.body);
  }

  void describe(const Buffer& buffer) {
    out() += "  buffer " + buffer.name + " rows ";
    write_.expression(buffer.rows);
    out() += " row_bytes ";
    write_.expression(buffer.row_bytes);
    out() += ' ';
    out() += name(buffer.type);
    out() += buffer.memory == Memory::host ? " host\n" : "\n";
  }

  void block(const std::vector<Statement>& body) {
    ++depth_;
    const std::size_t bound = write_.locals.size();
    for (const Statement& statement : body) {
      throw_if_cancelled();
      indent();
      std::visit([this](const auto& node) { describe(node); }, statement.node);
    }
    write_.locals.resize(bound);
    --depth_;
  }

  void block_with_end(const std::vector<Statement>& body) {
    block(body);
    indent();
    line("end");
  }

  void describe(const Repeat& repeat) {
    out() += "repeat " + repeat.variable + " ";
    write_.expression(repeat.count);
    out() += '\n';
    write_.locals.push_back(repeat.variable);
    block_with_end(repeat.body);
    write_.locals.pop_back();
  }

  void describe(const When& when) {
    out() += "when ";
    write_.condition(when.condition);
    out() += '\n';
    block_with_end(when.body);
  }

  void describe(const Let& let) {
    out() += "let " + let.variable + " = ";
    write_.expression(let.value);
    out() += '\n';
    write_.locals.push_back(let.variable);
  }

  void describe(const Fact& fact) {
    constexpr std::array<std::string_view, 3> kWords = {"given ", "goal ", "keep "};
    out() += kWords[static_cast<std::size_t>(fact.kind)];
    region_is(fact.region, fact.value);
  }

  void region_is(const Region& region, const Value& value) {
    write_.region(region);
    if (plan_.declares_values) {
      out() += " = ";
      write_.value(value);
    }
    out() += '\n';
  }

  void describe(const Operation& operation) {
    if (!operation.name.name.empty()) {
      write_.reference(operation.name);
      out() += ": ";
    }
    if (operation.stream.value > 0) {
      out() += "@" + write_.program->streams[operation.stream.index() - 1] + " ";
    }
    out() += keyword(operation.action);
    std::visit([this](const auto& action) { operands(action); }, operation.action);
    trailing(operation);
    out() += '\n';
    if (const auto* compute = std::get_if<Compute>(&operation.action)) accesses(*compute);
    if (const auto* batch = std::get_if<Batch>(&operation.action)) block_with_end(batch->body);
  }

  void trailing(const Operation& operation) {
    for (std::size_t k = 0; k < operation.after.size(); ++k) {
      out() += k == 0 ? " after " : ", ";
      write_.reference(operation.after[k]);
    }
    if (operation.async) out() += " async";
    if (operation.joined) out() += " joined";
    if (operation.work) {
      out() += " work ";
      write_.work(*operation.work);
    }
    if (operation.at.source.exists()) {
      out() += " at ";
      write_.source_line(operation.at);
    }
    if (operation.label.empty()) return;
    out() += " label ";
    write_.label(operation.label);
  }

  void accesses(const Compute& compute) {
    constexpr std::array<std::string_view, 3> kWords = {"reads  ", "writes ", "adds   "};
    ++depth_;
    for (const Access& access : compute.accesses) {
      indent();
      out() += kWords[static_cast<std::size_t>(access.kind)];
      region_is(access.region, access.value);
    }
    --depth_;
  }

  void region(std::string_view before, const Region& region) {
    out() += before;
    write_.region(region);
  }

  void operands(const Compute& compute) { out() += " " + compute.kernel; }
  void operands(const Batch&) {}
  void operands(const Allocate& allocate) { region(" ", allocate.rows); }
  void operands(const Free& free) { region(" ", free.rows); }

  void operands(const Copy& copy) {
    region(" ", copy.from);
    region(" to ", copy.to);
    if (copy.add) out() += " add";
  }

  void tag_and_channel(const Expr& tag, const std::string& channel) {
    if (tag != Expr(0)) {
      out() += " tag ";
      write_.expression(tag);
    }
    if (!channel.empty()) out() += " channel " + channel;
  }

  void operands(const Send& send) {
    region(" ", send.from);
    out() += " to ";
    write_.peer(send.peer);
    tag_and_channel(send.tag, send.channel);
  }

  void operands(const Receive& receive) {
    region(" ", receive.to);
    out() += " from ";
    write_.peer(receive.peer);
    if (receive.add) out() += " add";
    tag_and_channel(receive.tag, receive.channel);
  }

  void operands(const Collective& collective) {
    if (collective.kind != CollectiveKind::barrier) {
      region(" ", collective.from);
      if (collective.to != collective.from) region(" to ", collective.to);
    }
    out() += " over ";
    write_.group(collective.over);
    if (collective.split.exists()) out() += " split " + plan_.lists[collective.split].name;
    if (collective.op != ReduceOp::sum) {
      out() += " operator ";
      out() += name(collective.op);
    }
    if (collective.scale != Ratio()) {
      out() += " scale ";
      write_.ratio(collective.scale);
    }
    if (collective.root != Expr(0)) {
      out() += " root ";
      write_.expression(collective.root);
    }
  }

  void operands(const Exchange& exchange) {
    region(" ", exchange.from);
    region(" to ", exchange.to);
    out() += " by " + plan_.tables[exchange.table].name;
    if (exchange.reversed) out() += " reversed";
    out() += " over ";
    write_.group(exchange.over);
    if (exchange.add) out() += " add";
  }

  const Plan& plan_;
  PhraseWriter write_;
  std::size_t depth_ = 0;
};

}  // namespace

std::string to_text(const Plan& plan) { return PlanWriter(plan).text(); }

}  // namespace shiplap::plan
