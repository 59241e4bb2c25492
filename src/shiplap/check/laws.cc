#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "shiplap/check/laws_internal.h"

namespace shiplap::check {
namespace {

using plan::Access;

std::string shown(const plan::Tensor& tensor, const plan::flat::Value& value) {
  std::string text = value.is_new ? "new " : "";
  text += tensor.name;
  if (tensor.instances > 0) text += fmt::format("[{}]", value.instance);
  return text;
}

std::vector<std::int64_t> sorted_rows(const plan::RankProgram& program,
                                      const plan::flat::Region& region) {
  std::vector<std::int64_t> rows;
  for (std::int64_t k = 0; k < region.count; ++k) {
    rows.push_back(region.listed < 0
                       ? region.begin + k
                       : program.listed_rows[static_cast<std::size_t>(region.listed + k)]);
  }
  std::ranges::sort(rows);
  return rows;
}

bool has_twice(const std::vector<std::int64_t>& sorted) {
  return std::ranges::adjacent_find(sorted) != sorted.end();
}

// Whether two regions have a row in common.
bool share(const plan::RankProgram& program, const plan::flat::Region& x,
           const plan::flat::Region& y) {
  if (x.buffer != y.buffer || x.count == 0 || y.count == 0) return false;
  if (x.listed < 0 && y.listed < 0) {
    return x.begin < y.begin + y.count && y.begin < x.begin + x.count;
  }
  std::vector<std::int64_t> both;
  std::ranges::set_intersection(sorted_rows(program, x), sorted_rows(program, y),
                                std::back_inserter(both));
  return !both.empty();
}

}  // namespace

Laws::Laws(const plan::Plan& plan, Statements& statements) : plan_(plan), statements_(statements) {}

std::int64_t Laws::look(const plan::RankProgram& program, std::span<const SlopeId> slopes,
                        std::vector<Trouble>& troubles) {
  program_ = &program;
  slopes_ = slopes;
  troubles_ = &troubles;
  std::int64_t computations = 0;
  facts();
  for (std::size_t k = 0; k < program.operations.size(); ++k) {
    op_ = static_cast<std::int32_t>(k);
    const plan::flat::Operation& op = program.operations[k];
    sizes(op);
    const auto* compute = std::get_if<plan::Compute>(&op.source->action);
    if (compute == nullptr || !once(op) || compute->kernel == plan::kBelievedKernel) continue;
    ++computations;
    const plan::KernelRule* rule = plan::find_kernel_rule(compute->kernel);
    if (rule != nullptr && !signature(op, *rule)) continue;
    if (!partial(op, compute->kernel)) continue;
    if (plan::is_linear(compute->kernel) && !linear(op, compute->kernel)) continue;
    if (compute->kernel == plan::kUpdateKernel && !update(op)) continue;
    bool holds = true;
    for (const plan::flat::Access& write : program.accesses_of(op)) {
      if (write.kind == Access::Kind::reads) continue;
      for (const plan::flat::Access& read : program.accesses_of(op)) {
        if (holds && read.kind == Access::Kind::reads) holds = dimensions(read, write);
      }
    }
  }
  return computations;
}

bool Laws::tell(std::string code, std::string what, std::string why, std::string help) {
  troubles_->push_back({.symptom = Symptom::law,
                        .place = {program_->rank.value, op_},
                        .code = std::move(code),
                        .what = std::move(what),
                        .why = std::move(why),
                        .help = std::move(help)});
  return false;
}

bool Laws::side(const plan::flat::Operation& op, std::span<const plan::Operand> operands,
                bool reads, std::vector<std::int64_t>& layers) {
  const std::string& kernel = std::get<plan::Compute>(op.source->action).kernel;
  const auto is_here = [&](const plan::flat::Access& access) {
    return (access.kind == Access::Kind::reads) == reads;
  };
  for (const plan::flat::Access& access : program_->accesses_of(op)) {
    if (!is_here(access)) continue;
    const plan::Tensor& tensor = plan_.tensors[access.value.tensor.index()];
    const auto operand = std::ranges::find(operands, tensor.kind, &plan::Operand::kind);
    if (operand == operands.end()) {
      return tell("D754",
                  fmt::format("`{}` {} `{}`, which is of kind {}", kernel,
                              reads ? "reads" : "writes", tensor.name, tensor.kind),
                  fmt::format("{} does not belong to what this kernel {}", tensor.kind,
                              reads ? "takes" : "makes"),
                  "state what it really does, or use another kernel");
    }
    if (tensor.instances > 0) layers.push_back(access.value.instance - operand->layer);
  }
  for (const plan::Operand& operand : operands) {
    const bool present =
        std::ranges::any_of(program_->accesses_of(op), [&](const plan::flat::Access& access) {
          return is_here(access) && plan_.tensors[access.value.tensor.index()].kind == operand.kind;
        });
    if (present || operand.optional) continue;
    return tell("D754",
                fmt::format("`{}` {} no {}", kernel, reads ? "reads" : "writes", operand.kind),
                "it cannot do its work without one",
                fmt::format("add a line `{}`", reads ? "reads .." : "writes .."));
  }
  return true;
}

bool Laws::signature(const plan::flat::Operation& op, const plan::KernelRule& rule) {
  std::vector<std::int64_t> layers;
  if (!side(op, rule.reads, true, layers) || !side(op, rule.writes, false, layers)) return false;
  const auto other = std::ranges::adjacent_find(layers, std::ranges::not_equal_to{});
  if (other == layers.end()) return true;
  std::string operands;
  for (const plan::flat::Access& access : program_->accesses_of(op)) {
    operands += (operands.empty() ? "" : ", ") +
                shown(plan_.tensors[access.value.tensor.index()], access.value);
  }
  return tell("D752", fmt::format("`{}` mixes layers {} and {}", rule.kernel, *other, *(other + 1)),
              fmt::format("its operands are {}", operands), "let all operands belong to one layer");
}

Laws::Found Laws::find(const plan::Tensor& in, const std::string& name) const {
  for (std::size_t k = 0; k < in.part.size(); ++k) {
    if (in.part[k].name == name) return {Side::part, plan::DimensionId(k)};
  }
  for (std::size_t k = 0; k < in.sum.size(); ++k) {
    if (in.sum[k].name == name) return {Side::sum, plan::DimensionId(in.part.size() + k)};
  }
  return {};
}

SumPart Laws::set_of(const plan::flat::Value& value, plan::DimensionId dimension) const {
  SumPart part;
  bool seen = false;
  const std::span<const plan::flat::Run> runs = program_->runs_of(value);
  for (std::size_t k = 0; k < runs.size(); ++k) {
    if (runs[k].dimension != dimension) continue;
    const SlopeId slope =
        slopes_.empty() ? 0 : slopes_[static_cast<std::size_t>(value.runs.first) + k];
    if (seen && slope != part.slope) throw Asymmetric();
    part.slope = slope;
    part.set = part.set.united(IndexSet::range(runs[k].begin, runs[k].count, runs[k].stride));
    seen = true;
  }
  return part;
}

bool Laws::dimensions(const plan::flat::Access& read, const plan::flat::Access& write) {
  const plan::Tensor& from = plan_.tensors[read.value.tensor.index()];
  const plan::Tensor& to = plan_.tensors[write.value.tensor.index()];
  for (std::size_t k = 0; k < from.part.size(); ++k) {
    const plan::Dimension& dimension = from.part[k];
    const SumPart have = set_of(read.value, plan::DimensionId(k));
    if (have.set.covers(dimension.size)) continue;
    const Found found = find(to, dimension.name);
    SumPart needed{IndexSet::range(0, dimension.size)};
    if (found.side == Side::sum && write.value.zero) continue;
    if (found.side != Side::nowhere) needed = set_of(write.value, found.dimension);
    if (have.slope != needed.slope) throw Asymmetric();
    if (have.set.includes(needed.set)) continue;
    return tell("D755",
                fmt::format("`{}` needs {} {} of `{}`, which this computation does not read",
                            shown(to, write.value), dimension.name,
                            to_string(needed.set.without(have.set)), shown(from, read.value)),
                "what is made of a dimension must have been read of it",
                "read more, or claim less");
  }
  return true;
}

bool Laws::partial(const plan::flat::Operation& op, const std::string& kernel) {
  if (plan::is_linear(kernel)) return true;
  for (const plan::flat::Access& access : program_->accesses_of(op)) {
    if (access.kind != Access::Kind::reads) continue;
    const plan::Tensor& tensor = plan_.tensors[access.value.tensor.index()];
    if (tensor.sum.empty()) continue;
    if (statements_.complete({*program_, access.value, slopes_}, access.region.count)) continue;
    return tell(
        "D740",
        fmt::format("`{}` reads a part of the sum `{}`", kernel, shown(tensor, access.value)),
        "only `zero`, `add`, `scale` and `cast` may read a sum that is not complete",
        "reduce it first");
  }
  return true;
}

bool Laws::update(const plan::flat::Operation& op) {
  for (const plan::flat::Access& access : program_->accesses_of(op)) {
    const plan::Tensor& tensor = plan_.tensors[access.value.tensor.index()];
    if (access.kind == Access::Kind::reads && access.value.scale != tensor.scale) {
      return tell("D745",
                  fmt::format("`update` reads `{}` at scale {}/{}, it is due at {}/{}",
                              shown(tensor, access.value), access.value.scale.numerator(),
                              access.value.scale.denominator(), tensor.scale.numerator(),
                              tensor.scale.denominator()),
                  "the tensor's declaration says at which scale an update must find it",
                  "scale it where it is reduced");
    }
    if (access.kind == Access::Kind::reads || !tensor.has_versions()) continue;
    const auto old = [&](const plan::flat::Access& read) {
      return read.kind == Access::Kind::reads && read.value.tensor == access.value.tensor &&
             read.value.instance == access.value.instance && !read.value.is_new;
    };
    if (access.value.is_new && std::ranges::any_of(program_->accesses_of(op), old)) continue;
    return tell("D755",
                fmt::format("`update` writes `{}` without having read what it was",
                            shown(tensor, access.value)),
                "an update makes the new version of what it reads",
                "read the old version, write the new one");
  }
  return true;
}

bool Laws::linear(const plan::flat::Operation& op, const std::string& kernel) {
  for (const plan::flat::Access& write : program_->accesses_of(op)) {
    if (write.kind == Access::Kind::reads) continue;
    const plan::Tensor& to = plan_.tensors[write.value.tensor.index()];
    if (kernel == "zero") {
      if (write.value.zero) continue;
      return tell("D755", fmt::format("`zero` claims to write `{}`", shown(to, write.value)),
                  "it leaves a sum of nothing", "write `sum none`");
    }
    if (!keeps_sums(op, write, kernel)) return false;
  }
  return true;
}

bool Laws::keeps_sums(const plan::flat::Operation& op, const plan::flat::Access& write,
                      const std::string& kernel) {
  const plan::Tensor& to = plan_.tensors[write.value.tensor.index()];
  std::vector<SumPart> had(to.sum.size());
  std::vector<bool> known(to.sum.size());
  for (const plan::flat::Access& read : program_->accesses_of(op)) {
    if (read.kind != Access::Kind::reads) continue;
    const plan::Tensor& from = plan_.tensors[read.value.tensor.index()];
    const bool rescaled = read.value.tensor == write.value.tensor && !read.value.zero &&
                          read.value.scale != write.value.scale;
    if (kernel != "scale" && rescaled) {
      return tell("D745",
                  fmt::format("`{}` changes the scale of `{}`", kernel, shown(from, read.value)),
                  "only `scale` does that", "let the kernel be `scale`");
    }
    for (std::size_t k = 0; k < from.sum.size(); ++k) {
      const Found found = find(to, from.sum[k].name);
      SumPart set;
      if (!read.value.zero) set = set_of(read.value, plan::DimensionId(from.part.size() + k));
      if (found.side == Side::sum) {
        SumPart& all = had[found.dimension.index() - to.part.size()];
        if (known[found.dimension.index() - to.part.size()] && all.slope != set.slope)
          throw Asymmetric();
        known[found.dimension.index() - to.part.size()] = true;
        all = {all.set.united(set.set), set.slope};
      } else if (found.side == Side::nowhere &&
                 !statements_.complete({*program_, read.value, slopes_}, read.region.count)) {
        return tell("D740",
                    fmt::format("`{}` makes `{}` of a part of the sum `{}`", kernel,
                                shown(to, write.value), shown(from, read.value)),
                    "what is no sum any more must have been a whole one", "reduce it first");
      }
    }
  }
  for (std::size_t k = 0; k < to.sum.size() && !write.value.zero; ++k) {
    if (!known[k]) continue;
    const SumPart claimed = set_of(write.value, plan::DimensionId(to.part.size() + k));
    if (claimed.slope != had[k].slope && !had[k].set.covers(to.sum[k].size)) throw Asymmetric();
    if (had[k].set.includes(claimed.set)) continue;
    return tell(
        "D755",
        fmt::format("`{}` claims {} {} of `{}`, which it does not read", kernel, to.sum[k].name,
                    to_string(claimed.set.without(had[k].set)), shown(to, write.value)),
        "it leaves the contributions that it reads", "read more, or claim less");
  }
  return true;
}

bool Laws::once(const plan::flat::Operation& op) {
  const auto accesses = program_->accesses_of(op);
  for (std::size_t a = 0; a < accesses.size(); ++a) {
    if (!distinct(accesses[a].value)) return false;
    if (accesses[a].kind == Access::Kind::reads) continue;
    for (std::size_t b = a + 1; b < accesses.size(); ++b) {
      const bool both_add =
          accesses[a].kind == Access::Kind::adds && accesses[b].kind == Access::Kind::adds;
      if (accesses[b].kind == Access::Kind::reads || both_add) continue;
      if (!share(*program_, accesses[a].region, accesses[b].region)) continue;
      return tell(
          "D731", "one computation writes some rows twice",
          fmt::format("`{}` and `{}` share them",
                      shown(plan_.tensors[accesses[a].value.tensor.index()], accesses[a].value),
                      shown(plan_.tensors[accesses[b].value.tensor.index()], accesses[b].value)),
          "write them once");
    }
  }
  return true;
}

bool Laws::distinct(const plan::flat::Value& value) {
  const plan::Tensor& tensor = plan_.tensors[value.tensor.index()];
  const std::span<const plan::flat::Run> runs = program_->runs_of(value);
  const auto set = [&](std::size_t k) {
    return IndexSet::range(runs[k].begin, runs[k].count, runs[k].stride);
  };
  IndexSet before;  // of a dimension with several runs
  for (std::size_t k = 1; k < runs.size(); ++k) {
    if (!tensor.in_sum(runs[k].dimension) || runs[k].dimension != runs[k - 1].dimension) continue;
    const bool second = k == 1 || runs[k].dimension != runs[k - 2].dimension;
    before = second ? set(k - 1) : before.united(set(k - 1));
    if (!before.overlaps(set(k))) continue;
    return tell("D742",
                fmt::format("`{}` names {} {} twice in one sum", shown(tensor, value),
                            tensor.dimension(runs[k].dimension).name,
                            to_string(before.intersected(set(k)))),
                "a sum has every contribution once", "name it once");
  }
  return true;
}

// What a rank is given, it is given once.
void Laws::facts() {
  op_ = -1;
  std::vector<const plan::flat::Region*> given;
  for (const plan::flat::Fact& fact : program_->given) {
    if (fact.region.count > 0) given.push_back(&fact.region);
    distinct(fact.value);
  }
  for (const plan::flat::Fact& fact : program_->goal) distinct(fact.value);
  std::ranges::sort(given, {}, [](const plan::flat::Region* region) {
    return std::pair(region->buffer.value, region->begin);
  });
  for (std::size_t k = 1; k < given.size(); ++k) {
    const plan::flat::Region& x = *given[k - 1];
    if (x.buffer != given[k]->buffer || x.begin + x.count <= given[k]->begin) continue;
    tell("D731", fmt::format("rank {} is given some rows twice", program_->rank.value),
         "they cannot hold both", "give them once");
    return;
  }
}

std::int64_t Laws::rows_due(const plan::flat::Operation& op,
                            const plan::Collective& collective) const {
  using Kind = plan::CollectiveKind;
  const plan::RankSet& ranks = program_->groups[op.group.index()].ranks;
  const std::int64_t size = ranks.size();
  const std::int64_t from = op.from.count;
  const bool in_place = op.from.buffer == op.to.buffer && op.from.begin == op.to.begin &&
                        op.from.count == op.to.count;
  if (!plan::has_pieces(collective.kind)) return from;
  if (!collective.split.exists()) {
    const bool even = from % size == 0;
    if (collective.kind == Kind::all_gather) return in_place && even ? from : from * size;
    if (!even) return -1;
    return collective.kind == Kind::all_to_all || in_place ? from : from / size;
  }
  const std::vector<std::int64_t>& cuts = plan_.lists[collective.split.index()].values;
  if (std::ssize(cuts) != size + 1 || cuts.front() != 0 || !std::ranges::is_sorted(cuts)) return -1;
  const auto me = static_cast<std::size_t>(ranks.find(program_->rank));
  const std::int64_t mine = cuts[me + 1] - cuts[me];
  if (collective.kind == Kind::all_gather) {
    return from == mine || (in_place && from == cuts.back()) ? cuts.back() : -1;
  }
  if (from != cuts.back()) return -1;
  if (collective.kind == Kind::all_to_all) return mine * size;
  return in_place ? from : mine;
}

void Laws::misshapen(std::string code, std::string what, std::string why, std::string help) {
  troubles_->push_back({.symptom = Symptom::shape,
                        .place = {program_->rank.value, op_},
                        .code = std::move(code),
                        .what = std::move(what),
                        .why = std::move(why),
                        .help = std::move(help)});
}

// Regions of one operation are the same, or apart, or one is the rank's own piece of the other.
bool Laws::apart(const plan::flat::Operation& op) {
  const plan::flat::Region& x = op.from;
  const plan::flat::Region& y = op.to;
  if (!share(*program_, x, y)) return true;
  const auto* collective = std::get_if<plan::Collective>(&op.source->action);
  if (collective == nullptr) return false;
  if (x.begin == y.begin && x.count == y.count) return true;
  const bool gathers = collective->kind == plan::CollectiveKind::all_gather;
  if (!gathers && collective->kind != plan::CollectiveKind::reduce_scatter) return false;
  const plan::flat::Region& piece = gathers ? x : y;
  const plan::flat::Region& whole = gathers ? y : x;
  const std::int64_t me = program_->groups[op.group.index()].ranks.find(program_->rank);
  std::int64_t begin = me * piece.count;
  if (collective->split.exists()) {
    begin = plan_.lists[collective->split.index()].values[static_cast<std::size_t>(me)];
  }
  return piece.begin == whole.begin + begin;
}

// Whether the regions of one operation fit each other.
void Laws::sizes(const plan::flat::Operation& op) {
  std::int64_t due = op.from.count;
  const auto* collective = std::get_if<plan::Collective>(&op.source->action);
  const bool exchange = std::holds_alternative<plan::Exchange>(op.source->action);
  if (collective != nullptr) {
    if (collective->kind == plan::CollectiveKind::barrier) return;
    due = rows_due(op, *collective);
  } else if (!exchange && !std::holds_alternative<plan::Copy>(op.source->action)) {
    return;
  }
  const std::int64_t wide = program_->buffers[op.from.buffer.index()].row_bytes;
  const std::int64_t other = program_->buffers[op.to.buffer.index()].row_bytes;
  if ((op.to.count != due && !exchange) || wide != other) {
    return misshapen("D704",
                     fmt::format("{} rows of {} bytes go to {} rows of {} bytes", op.from.count,
                                 wide, op.to.count, other),
                     "the two regions of one operation do not fit",
                     due < 0 ? "cut it into whole pieces, one for each rank of the group"
                             : fmt::format("make it {} rows of {} bytes", due, wide));
  }
  const std::vector<plan::Buffer>& buffers = plan_.programs[program_->program.index()].buffers;
  const plan::ElementType from = buffers[op.from.buffer.index()].type;
  const plan::ElementType to = buffers[op.to.buffer.index()].type;
  if (from != to) {
    return misshapen("D705", fmt::format("{} goes to {}", plan::name(from), plan::name(to)),
                     "moving does not convert", "use buffers of one type, and `compute cast`");
  }
  const bool replaces = op.to.listed >= 0 && !std::get<plan::Copy>(op.source->action).add;
  if (replaces && has_twice(sorted_rows(*program_, op.to))) {
    tell("D731", "a row is written twice by one copy", "the list names it more than once",
         "name every row once, or `add`");
  }
  if (!apart(op)) {
    tell("D731", "an operation writes rows that it reads, in another place",
         "its regions are the same, or apart, or one is the rank's own piece of the other",
         "use rows of its own for the result");
  }
}

}  // namespace shiplap::check
