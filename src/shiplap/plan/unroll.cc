// Unrolling: the inverse of expansion, as far as there is one.
//
// A RankProgram is written as a program of its own: every flat number becomes a literal expression,
// every peer a rank, every group a list of ranks. Expanding the result gives the same RankProgram,
// so findings of check, which name operations by rank and index, apply to both plans. Two things
// need care: rows that a list names are searched in that list, because a plan has no literal lists
// of rows in a region; and runs of a value that are whole are left out again, where leaving them
// out means the same, so that plans stay short and unrolling is idempotent.
#include "shiplap/plan/unroll.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/plan/expand.h"

namespace shiplap::plan {
namespace {

// Writes one rank's expansion as a program.
class Unroller {
 public:
  explicit Unroller(const RankProgram& flat)
      : plan_(*flat.plan), source_(plan_.programs[flat.program]), flat_(flat) {}

  Program program() const {
    const std::int64_t rank = flat_.rank.value;
    Program result{.name = "r" + std::to_string(rank),
                   .on = {.terms = {{.axis = {}, .positions = {{.first = rank, .last = rank}}}},
                          .origin = source_.on.origin},
                   .streams = source_.streams};
    for (std::size_t k = 0; k < flat_.buffers.size(); ++k) {
      Buffer buffer = source_.buffers[k];
      buffer.rows = flat_.buffers[k].rows;
      buffer.row_bytes = flat_.buffers[k].row_bytes;
      result.buffers.push_back(std::move(buffer));
    }
    for (const flat::Fact& fact : flat_.given) result.body.push_back(of(Fact::Kind::given, fact));
    for (const flat::Fact& fact : flat_.goal) result.body.push_back(of(Fact::Kind::goal, fact));
    for (const flat::Operation& flat : flat_.operations) {
      block_of(flat, result.body).push_back({operation(flat)});
    }
    return result;
  }

 private:
  // The block that the operation belongs to. Members directly follow their batch.
  static std::vector<Statement>& block_of(const flat::Operation& flat,
                                          std::vector<Statement>& body) {
    if (flat.batch < 0) return body;
    return std::get<Batch>(std::get<Operation>(body.back().node).action).body;
  }

  Statement of(Fact::Kind kind, const flat::Fact& fact) const {
    return {Fact{.kind = kind,
                 .origin = fact.origin,
                 .region = region(fact.region, {}),
                 .value = value(fact.value)}};
  }

  Operation operation(const flat::Operation& flat) const {
    const Operation& from = *flat.source;
    Operation result{.name = name(flat),
                     .stream = from.stream,
                     .async = from.async,
                     .joined = from.joined,
                     .origin = from.origin,
                     .at = from.at,
                     .label = from.label};
    result.action =
        std::visit([&](const auto& a) -> Action { return action(a, flat); }, from.action);
    for (const std::int32_t before : flat_.after(flat)) {
      result.after.push_back(name(flat_.operations[before]));
    }
    if (from.work) result.work = work(*from.work, flat.work);
    return result;
  }

  Reference name(const flat::Operation& flat) const {
    Reference result{.name = flat.source->name.name};
    const auto indices = std::span(flat_.numbers).subspan(flat.name.first, flat.name.count);
    result.indices.assign(indices.begin(), indices.end());
    return result;
  }

  static Work work(Work result, const flat::Work& flat) {
    result.flop = static_cast<std::int64_t>(flat.flop);
    result.bytes = static_cast<std::int64_t>(flat.bytes);
    result.seconds = flat.seconds;
    result.times = 1;
    return result;
  }

  // `list` is the list that names the rows, if there is one.
  Region region(const flat::Region& flat, ListId list) const {
    Region result{.buffer = flat.buffer,
                  .kind = Region::Kind::rows,
                  .begin = flat.begin,
                  .count = flat.count};
    if (flat.listed < 0) return result;
    const std::vector<std::int64_t>& entries = plan_.lists[list].values;
    const auto rows = std::span(flat_.listed_rows).subspan(flat.listed, flat.count);
    const auto found = std::ranges::search(entries, rows);
    ensure(std::ssize(found) == flat.count, "listed rows are in their list");
    result.list = list;
    result.kind = Region::Kind::listed;
    result.begin = found.begin() - entries.begin();
    return result;
  }

  Value value(const flat::Value& flat) const {
    if (!plan_.declares_values) return {};
    const Tensor& tensor = plan_.tensors[flat.tensor];
    Value result{.tensor = flat.tensor,
                 .is_new = flat.is_new,
                 .indexed = tensor.instances > 0,
                 .sum = flat.zero ? Sum::none : Sum::complete,
                 .index = flat.instance,
                 .scale = flat.scale};
    const auto runs = flat_.runs_of(flat);
    const auto sum = std::ranges::find_if(
        runs, [&](const flat::Run& run) { return tensor.in_sum(run.dimension); });
    append(result.runs, tensor, {runs.begin(), sum});
    const std::size_t part = result.runs.size();
    append(result.runs, tensor, {sum, runs.end()});
    if (result.runs.size() > part) result.sum = Sum::some;
    return result;
  }

  // Leaves out trailing runs that are whole: whole is the default.
  static void append(std::vector<Run>& to, const Tensor& tensor, std::span<const flat::Run> runs) {
    auto end = runs.end();
    while (end != runs.begin()) {
      const flat::Run& last = *(end - 1);
      const bool whole = last.begin == 0 && last.stride == 1 &&
                         last.count == tensor.dimension(last.dimension).size;
      const bool only = std::ranges::count(runs, last.dimension, &flat::Run::dimension) == 1;
      const bool in_order = end == runs.end() || last.dimension < end->dimension;
      if (!whole || !only || !in_order) break;
      --end;
    }
    for (const flat::Run& run : std::span(runs.begin(), end)) {
      to.push_back({.dimension = run.dimension,
                    .begin = run.begin,
                    .count = run.count,
                    .stride = run.stride});
    }
  }

  static Peer peer(const flat::Operation& flat) { return {.axis = {}, .where = flat.peer.value}; }

  Group group(const flat::Operation& flat) const {
    const flat::Group& from = flat_.groups[flat.group];
    Group result{.channel = from.channel};
    for (std::int64_t k = 0; k < from.ranks.size(); ++k) {
      result.positions.emplace_back(from.ranks[k].value);
    }
    return result;
  }

  Action action(Compute compute, const flat::Operation& flat) const {
    const auto accesses = flat_.accesses_of(flat);
    for (std::size_t k = 0; k < accesses.size(); ++k) {
      compute.accesses[k].region = region(accesses[k].region, {});
      compute.accesses[k].value = value(accesses[k].value);
    }
    return compute;
  }
  Action action(const Copy& copy, const flat::Operation& flat) const {
    return Copy{.from = region(flat.from, copy.from.list),
                .to = region(flat.to, copy.to.list),
                .add = copy.add};
  }
  Action action(const Send& send, const flat::Operation& flat) const {
    return Send{.from = region(flat.from, {}),
                .peer = peer(flat),
                .tag = flat.tag,
                .channel = send.channel};
  }
  Action action(const Receive& receive, const flat::Operation& flat) const {
    return Receive{.to = region(flat.to, {}),
                   .peer = peer(flat),
                   .tag = flat.tag,
                   .channel = receive.channel,
                   .add = receive.add};
  }
  Action action(Collective collective, const flat::Operation& flat) const {
    if (collective.kind != CollectiveKind::barrier) {
      collective.from = region(flat.from, {});
      collective.to = region(flat.to, {});
    }
    collective.over = group(flat);
    collective.root = flat.root;
    return collective;
  }
  Action action(Exchange exchange, const flat::Operation& flat) const {
    exchange.from = region(flat.from, {});
    exchange.to = region(flat.to, {});
    exchange.over = group(flat);
    return exchange;
  }
  Action action(const Allocate&, const flat::Operation& flat) const {
    return Allocate{region(flat.from, {})};
  }
  Action action(const Free&, const flat::Operation& flat) const {
    return Free{region(flat.from, {})};
  }
  Action action(const Batch&, const flat::Operation&) const { return Batch{}; }

  const Plan& plan_;
  const Program& source_;
  const RankProgram& flat_;
};

}  // namespace

Plan unrolled(const Plan& plan) {
  Plan result{.mesh = plan.mesh,
              .declares_values = plan.declares_values,
              .sources = plan.sources,
              .lists = plan.lists,
              .tensors = plan.tensors,
              .tables = plan.tables,
              .spares = plan.spares};
  for (std::int64_t r = 0; r < plan.mesh.ranks(); ++r) {
    const RankProgram flat = expand(plan, Rank(static_cast<std::int32_t>(r)));
    if (flat.program.exists()) result.programs.push_back(Unroller(flat).program());
  }
  return result;
}

}  // namespace shiplap::plan
