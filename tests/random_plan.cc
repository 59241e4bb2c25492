#include "random_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/random.h"

namespace shiplap::plan {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t k56Bits = std::int64_t{1} << 55;  // the first that needs more, with its sign
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

// Words of the format, where they may be names.
const std::vector<std::string>& any_names() {
  static const std::vector<std::string> kNames = {
      "a",     "b2",    "_",     "end",   "reads",   "buffer", "program", "list",   "table",
      "after", "async", "label", "work",  "channel", "to",     "from",    "repeat", "when",
      "let",   "send",  "batch", "given", "spare",   "mesh",   "tensor",  "streams"};
  return kNames;
}

const std::vector<std::string>& labels() {
  static const std::vector<std::string> kLabels = {
      "",          "plain words", " blank before", "blank after ", "semi;colon",
      "hash#mark", "\"quoted\"",  "two\nlines",    "back\\slash",  "\\n",
      "tab\t",     "é, ü, 漢",    "after b",       "\"",           "\\",
      "x \"y\" z", "\r",          "# ;\n\"\\"};
  return kLabels;
}

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  Plan plan() {
    mesh();
    plan_.declares_values = maybe(0.8);
    for (std::int64_t k = random_.between(0, 3); k > 0; --k) source();
    for (std::int64_t k = random_.between(0, 4); k > 0; --k) list();
    for (std::int64_t k = random_.between(0, 4); k > 0 && plan_.declares_values; --k) tensor();
    for (std::int64_t k = random_.between(0, 3); k > 0; --k) table();
    programs();
    return std::move(plan_);
  }

 private:
  bool maybe(double p = 0.5) { return random_.chance(p); }
  std::int64_t upto(std::int64_t n) { return random_.between(0, n); }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return std::data(list)[upto(static_cast<std::int64_t>(list.size()))];
  }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return random_.pick(from);
  }
  std::string any_name() { return pick(any_names()); }
  // Unlike any other, and no word of the format; sometimes that of an element type.
  std::string fresh(const char* stem) {
    static const std::vector<std::string> kOdd = {"f32",     "bf16",      "flop", "bytes",
                                                  "seconds", "times",     "end",  "rows",
                                                  "host",    "row_bytes", "i8",   "let"};
    for (int tries = 0; tries < 3 && maybe(0.1); ++tries) {
      const std::string& odd = pick(kOdd);
      if (std::ranges::find(used_, odd) != used_.end()) continue;
      used_.push_back(odd);
      return odd;
    }
    return stem + std::to_string(count_++);
  }

  // ---- what all programs share

  void mesh() {
    std::int64_t left = 64;
    for (std::int64_t k = random_.between(1, 5); k > 0; --k) {
      const std::int64_t size = random_.between(1, std::min<std::int64_t>(5, left + 1));
      left /= size;
      plan_.mesh.axes.push_back({fresh("axis"), size});
    }
    for (std::int64_t k = upto(3); k > 0; --k) {
      std::vector<AxisId> order;
      for (std::size_t a = 0; a < plan_.mesh.axes.size(); ++a) order.emplace_back(a);
      random_.shuffle(order);
      order.resize(random_.between(1, std::ssize(order) + 1));
      plan_.mesh.aliases.push_back({fresh("alias"), order});
    }
  }

  std::int64_t number() {
    switch (upto(6)) {
      case 0:
        return one_of({kMax, kMin, kMax - 1, kMin + 1});
      case 1:
        return one_of({kMaxLiteral, kMaxLiteral + 1, -kMaxLiteral - 1, -kMaxLiteral - 2});
      case 2:
        if (maybe(0.2)) return one_of({k56Bits, k56Bits - 1, -k56Bits, -k56Bits - 1});
        return -upto(10);
      case 3:
        return upto(9) * 1'000'000;
      default:
        return upto(100);
    }
  }

  void source() {
    plan_.sources.push_back({.name = "source" + std::to_string(count_++),
                             .file = pick(labels()),
                             .function = pick(labels())});
  }

  SourceLine source_line() {
    if (plan_.sources.empty() || maybe()) return {};
    return {SourceId(static_cast<std::size_t>(upto(std::ssize(plan_.sources)))),
            static_cast<std::int32_t>(random_.between(1, 1000))};
  }

  void list() {
    List list{.name = fresh("list")};
    for (std::int64_t k = maybe(0.2) ? 60 : upto(6); k > 0; --k) list.values.push_back(number());
    plan_.lists.push_back(std::move(list));
  }

  Ratio ratio() {
    if (maybe()) return {};
    return {maybe() ? 1 : random_.between(1, 9), maybe(0.1) ? kMax : random_.between(1, 9)};
  }

  std::vector<Dimension> dimensions(std::vector<int>& free) {
    std::vector<Dimension> result;
    for (std::int64_t k = upto(3); k > 0 && !free.empty(); --k) {
      const int d = free.back();
      free.pop_back();
      result.push_back({"dim" + std::to_string(d), 1 + 3 * d});
    }
    return result;
  }

  void tensor() {
    std::vector<int> free = {0, 1, 2, 3, 4, 5};
    random_.shuffle(free);
    Tensor tensor{.name = fresh("T"),
                  .kind = one_of<std::string>({"Weight", "OptState", "Activation", "sum"}),
                  .instances = maybe() ? 0 : random_.between(1, 9)};
    tensor.part = dimensions(free);
    tensor.sum = dimensions(free);
    tensor.scale = ratio();
    if (tensor.dimensions() > 0) {
      for (std::int64_t k = upto(3); k > 0; --k) tensor.mask.push_back(mask_term(tensor));
    }
    plan_.tensors.push_back(std::move(tensor));
  }

  MaskTerm mask_term(const Tensor& tensor) {
    return {mask_side(tensor), one_of({Comparator::equal, Comparator::less_equal}),
            mask_side(tensor)};
  }

  MaskSide mask_side(const Tensor& tensor) {
    MaskSide side{.dimension = DimensionId(static_cast<std::size_t>(
                      upto(static_cast<std::int64_t>(tensor.dimensions()))))};
    if (!plan_.lists.empty() && maybe()) side.list = any_list();
    return side;
  }

  TableRow row() {
    return {static_cast<std::int32_t>(upto(plan_.mesh.ranks())),
            static_cast<std::int32_t>(upto(plan_.mesh.ranks())), maybe(0.1) ? kMax : upto(9),
            random_.between(1, 4)};
  }

  void table() {
    std::vector<TableRow> sends;
    std::vector<TableRow> receives;
    for (std::int64_t k = upto(12); k > 0; --k) {
      const TableRow send = row();
      if (maybe(0.9)) sends.push_back(send);
      if (maybe(0.9)) receives.push_back({send.peer, send.rank, upto(9), send.count});
      if (maybe(0.2)) receives.push_back(row());
    }
    plan_.tables.emplace_back(fresh("table"), std::move(sends), std::move(receives));
  }

  // ---- programs

  // One program per position on the first axis; one position may be spare.
  void programs() {
    const std::int64_t size = plan_.mesh.axes[0].size;
    const std::int64_t spare = maybe(0.3) ? upto(size) : -1;
    if (spare < 0 && maybe(0.3)) {
      plan_.programs.push_back(program(Selector{}));
      return;
    }
    for (std::int64_t position = 0; position < size; ++position) {
      const Selector on = selector(position);
      if (position == spare) {
        plan_.spares.push_back(on);
      } else {
        plan_.programs.push_back(program(on));
      }
    }
  }

  // Just the ranks at this position of the first axis, in one of several ways to say it.
  Selector selector(std::int64_t position) {
    const std::int64_t stride = plan_.mesh.stride(AxisId(std::int32_t{0}));
    Selector selector;
    if (maybe(0.7)) {
      selector.terms.push_back({AxisId(std::int32_t{0}), {{position, position}}});
    } else {
      selector.terms.push_back({AxisId(), {{position * stride, (position + 1) * stride - 1}}});
    }
    const AxisId other = axis();
    if (maybe(0.3)) selector.terms.push_back({other, all_of(plan_.mesh.size(other))});
    return selector;
  }

  // All positions, cut into ranges here and there.
  std::vector<PositionRange> all_of(std::int64_t size) {
    std::vector<PositionRange> ranges;
    for (std::int64_t first = 0; first < size;) {
      const std::int64_t last = random_.between(first, size);
      ranges.push_back({first, last});
      first = last + 1;
    }
    return ranges;
  }

  Program program(const Selector& on) {
    Program program{.name = maybe(0.3) && plan_.programs.empty() ? "on" : fresh("program"),
                    .on = on};
    for (std::int64_t k = random_.between(1, 4); k > 0; --k) {
      program.buffers.push_back({.name = fresh("buffer"),
                                 .rows = expr(2),
                                 .row_bytes = expr(2),
                                 .type = type(),
                                 .memory = one_of({Memory::device, Memory::host})});
    }
    for (std::int64_t k = upto(3); k > 0; --k) program.streams.push_back(fresh("stream"));
    program_ = &program;
    operations_.clear();
    program.body = block(0);
    program_ = nullptr;
    return program;
  }

  DType type() { return static_cast<DType>(upto(static_cast<std::int64_t>(DType::u8) + 1)); }

  // ---- expressions

  AxisId axis() {
    return AxisId(static_cast<std::size_t>(
        upto(std::ssize(plan_.mesh.axes) + std::ssize(plan_.mesh.aliases))));
  }
  ListId any_list() { return ListId(static_cast<std::size_t>(upto(std::ssize(plan_.lists)))); }

  Expr leaf() {
    switch (upto(5)) {
      case 0:
        return Expr::axis(axis());
      case 1:
        return Expr::rank();
      case 2:
        if (locals_ == 0) return number();
        return Expr::local(LocalId(static_cast<std::int32_t>(upto(locals_))));
      default:
        return number();
    }
  }

  Expr expr(int depth = 3) {
    if (depth == 0 || maybe(0.4)) return leaf();
    switch (upto(8)) {
      case 0:
        return -expr(depth - 1);
      case 1:
        if (!plan_.lists.empty()) return Expr::element(any_list(), expr(depth - 1));
        [[fallthrough]];
      default:
        return Expr::combine(one_of({Expr::Op::add, Expr::Op::subtract, Expr::Op::multiply,
                                     Expr::Op::divide, Expr::Op::modulo}),
                             expr(depth - 1), expr(depth - 1));
    }
  }

  std::vector<Expr> exprs(std::int64_t least) {
    std::vector<Expr> list;
    for (std::int64_t k = random_.between(least, 4); k > 0; --k) list.push_back(expr(2));
    return list;
  }

  // ---- phrases

  Region region(bool in_copy = false) {
    Region region{.buffer =
                      BufferId(static_cast<std::size_t>(upto(std::ssize(program_->buffers))))};
    const bool lists = !plan_.lists.empty();
    switch (upto(4)) {
      case 0:
        return region;
      case 1:
        if (!lists) return region;
        region.kind = Region::Kind::cut;
        region.list = any_list();
        region.begin = expr();
        return region;
      case 2:
        if (!lists || !in_copy) return region;
        region.kind = Region::Kind::listed;
        region.list = any_list();
        break;
      default:
        region.kind = Region::Kind::rows;
    }
    region.begin = expr();
    region.count = expr();
    return region;
  }

  void runs(std::vector<Run>& result, DimensionId dimension) {
    if (!plan_.lists.empty() && maybe(0.2)) {
      result.push_back(
          {.dimension = dimension, .list = any_list(), .begin = expr(), .count = expr()});
      return;
    }
    for (std::int64_t k = random_.between(1, 4); k > 0; --k) {
      result.push_back({.dimension = dimension,
                        .begin = expr(),
                        .count = expr(),
                        .stride = maybe(0.7) ? Expr(1) : expr()});
    }
  }

  Value value(TensorId id, bool may_be_new) {
    const Tensor& tensor = plan_.tensors[id];
    Value value{.tensor = id,
                .is_new = may_be_new && tensor.has_versions() && maybe(),
                .indexed = tensor.instances > 0};
    if (value.indexed) value.index = expr();
    std::vector<std::size_t> part;
    for (std::size_t k = 0; k < tensor.part.size(); ++k) part.push_back(k);
    random_.shuffle(part);
    for (const std::size_t k : part) {
      if (maybe(0.7)) runs(value.runs, DimensionId(k));
    }
    const std::size_t before = value.runs.size();
    for (std::size_t k = tensor.part.size(); k < tensor.dimensions(); ++k) {
      if (maybe(0.6)) runs(value.runs, DimensionId(k));
    }
    if (value.runs.size() > before) {
      value.sum = Sum::some;
    } else if (maybe(0.3)) {
      value.sum = Sum::none;
    }
    if (value.sum != Sum::none) value.scale = ratio();
    return value;
  }

  Peer peer() {
    if (maybe(0.3)) return {.where = expr()};
    return {.axis = axis(), .wrap = maybe(), .where = expr()};
  }

  std::string channel() { return maybe() ? "" : any_name(); }

  Group group() {
    Group group{.channel = channel()};
    if (maybe(0.2)) {
      group.positions = exprs(1);
      return group;
    }
    for (std::int64_t k = random_.between(1, 4); k > 0; --k) group.axes.push_back(axis());
    if (maybe(0.3)) group.positions = exprs(1);
    return group;
  }

  Work work() {
    if (maybe(0.3)) {
      return {.seconds = one_of({0.0, 1.0, 0.1, 1e-9, 2.5e300, 5e-324, 123456789.125}),
              .times = maybe() ? Expr(1) : expr()};
    }
    Work work{.kernel_class = any_name()};
    if (maybe()) work.flop = expr();
    if (maybe()) work.bytes = expr();
    if (maybe()) work.type = type();
    return work;
  }

  // ---- statements

  std::vector<Statement> block(int depth, bool in_batch = false) {
    std::vector<Statement> body;
    const int bound = locals_;
    for (std::int64_t k = upto(depth == 0 ? 8 : 4); k > 0; --k) {
      body.push_back(statement(depth, in_batch));
    }
    locals_ = bound;
    return body;
  }

  Statement statement(int depth, bool in_batch) {
    const std::int64_t kind = upto(depth < 4 ? 10 : 7);
    if (kind == 9) {
      Repeat repeat{.variable = fresh("loop"), .count = expr()};
      ++locals_;
      repeat.body = block(depth + 1, in_batch);
      --locals_;
      return {std::move(repeat)};
    }
    if (kind == 8) {
      When when;
      for (std::int64_t k = random_.between(1, 4); k > 0; --k) {
        const auto how = static_cast<Comparator>(upto(6));
        when.condition.push_back({expr(), how, expr()});
      }
      when.body = block(depth + 1, in_batch);
      return {std::move(when)};
    }
    if (kind == 7) {
      Let let{.variable = fresh("let"), .value = expr()};
      ++locals_;
      return {std::move(let)};
    }
    if (in_batch) return {member()};
    if (kind == 6 && !plan_.tensors.empty()) return {fact()};
    return {operation(depth)};
  }

  Fact fact() {
    Fact fact{.kind = one_of({Fact::Kind::given, Fact::Kind::goal}), .region = region()};
    const TensorId id = tensor_id();
    if (plan_.tensors[id].has_versions() && maybe()) fact.kind = Fact::Kind::keep;
    fact.value = value(id, fact.kind != Fact::Kind::keep);
    return fact;
  }

  TensorId tensor_id() {
    return TensorId(static_cast<std::size_t>(upto(std::ssize(plan_.tensors))));
  }

  Operation operation(int depth) {
    Operation operation;
    if (maybe()) {
      operation.name = {any_name(), exprs(0)};
      operations_.push_back(operation.name.name);
    }
    if (maybe())
      operation.stream =
          StreamId(static_cast<std::int32_t>(upto(std::ssize(program_->streams) + 1)));
    operation.action = action(depth);
    if (!operations_.empty() && maybe(0.4)) {
      for (std::int64_t k = random_.between(1, 3); k > 0; --k) {
        operation.after.push_back({pick(operations_), exprs(0)});
      }
    }
    const bool computes = std::holds_alternative<Compute>(operation.action);
    operation.joined = computes && maybe(0.3);
    operation.async = !computes && !std::holds_alternative<Allocate>(operation.action) &&
                      !std::holds_alternative<Free>(operation.action) && maybe(0.3);
    if (maybe(0.3)) operation.work = work();
    operation.at = source_line();
    if (maybe(0.4)) operation.label = pick(labels());
    return operation;
  }

  Operation member() {
    return {.stream = StreamId(), .action = communication(), .at = source_line()};
  }

  Action action(int depth) {
    switch (upto(7)) {
      case 0:
      case 1:
        return compute();
      case 2:
        return Copy{region(true), region(true), maybe()};
      case 3:
        if (maybe()) return Allocate{region()};
        return Free{region()};
      case 4:
        if (depth < 4) return Batch{block(depth + 1, true)};
        [[fallthrough]];
      default:
        return communication();
    }
  }

  Compute compute() {
    Compute compute{.kernel = any_name()};
    if (plan_.tensors.empty() && plan_.declares_values) return compute;
    for (std::int64_t k = upto(4); k > 0; --k) {
      compute.accesses.push_back(
          {.kind = one_of({Access::Kind::reads, Access::Kind::writes, Access::Kind::adds}),
           .region = region(),
           .value = plan_.declares_values ? value(tensor_id(), true) : Value{}});
    }
    return compute;
  }

  Action communication() {
    switch (upto(5)) {
      case 0:
        return Send{region(), peer(), tag(), channel()};
      case 1:
        return Receive{region(), peer(), tag(), channel(), maybe()};
      case 2:
        if (!plan_.tables.empty()) return exchange();
        [[fallthrough]];
      default:
        return collective();
    }
  }

  Expr tag() { return maybe() ? Expr(0) : expr(); }

  Exchange exchange() {
    return {.from = region(),
            .to = region(),
            .table = TableId(static_cast<std::size_t>(upto(std::ssize(plan_.tables)))),
            .reversed = maybe(),
            .add = maybe(),
            .over = group()};
  }

  Collective collective() {
    Collective collective{.kind = static_cast<CollectiveKind>(upto(7)), .over = group()};
    if (collective.kind == CollectiveKind::barrier) return collective;
    collective.from = region();
    collective.to = maybe() ? collective.from : region();
    const CollectiveKind kind = collective.kind;
    if (has_pieces(kind) && !plan_.lists.empty() && maybe(0.2)) collective.split = any_list();
    if (reduces(kind) && maybe(0.3)) collective.op = static_cast<ReduceOp>(upto(4));
    if (reduces(kind)) collective.scale = ratio();
    if (has_root(kind) && maybe(0.3)) collective.root = expr();
    return collective;
  }

  Random random_;
  Plan plan_;
  Program* program_ = nullptr;
  std::vector<std::string> operations_;  // names in this program
  std::vector<std::string> used_;
  int locals_ = 0;
  int count_ = 0;
};

}  // namespace

Plan random_plan(std::uint64_t seed) { return Generator(seed).plan(); }

}  // namespace shiplap::plan
