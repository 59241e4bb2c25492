#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/check/script_internal.h"
#include "shiplap/check/statement_internal.h"

namespace shiplap::check {
namespace {

std::int32_t to_int32(std::int64_t number) {
  if (number > std::numeric_limits<std::int32_t>::max() - 1) {
    throw InputError(Diagnostic{.code = "D632",
                                .what = fmt::format("{} rows are too many to check", number),
                                .why = "rows of a buffer are counted up to 2^31",
                                .help = "use fewer, larger rows"});
  }
  return static_cast<std::int32_t>(number);
}

}  // namespace

class ScriptBuilder::RankBuilder {
 public:
  RankBuilder(ScriptBuilder& all, const plan::RankProgram& program, std::span<const SlopeId> slopes,
              const plan::LinkedProgram& linked)
      : all_(all), program_(program), slopes_(slopes), linked_(linked) {
    all.ops_.clear();
    all.assertions_.clear();
    all.pieces_.clear();
    all.listed_.clear();
  }

  Script build() {
    script_.rank = program_.rank.value;
    script_.program = program_.program;
    for (const plan::flat::Buffer& buffer : program_.buffers) {
      script_.rows.push_back(to_int32(buffer.rows));
      script_.row_bytes.push_back(buffer.row_bytes);
    }
    for (const std::int64_t row : program_.listed_rows) all_.listed_.push_back(to_int32(row));
    script_.absent = static_cast<std::int32_t>(program_.absent.size());
    script_.steps = &linked_.template_of(program_.rank.index());
    for (const plan::flat::Operation& op : program_.operations) {
      throw_if_cancelled();
      add(op);
    }
    for (const plan::flat::Fact& fact : program_.given) {
      script_.given.push_back(assertion(fact.region, fact.value, plan::Access::Kind::writes));
    }
    for (const plan::flat::Fact& fact : program_.goal) {
      script_.goal.push_back(assertion(fact.region, fact.value, plan::Access::Kind::reads));
    }
    Arena& arena = all_.arena_;
    script_.ops = arena.keep<ScriptOp>(all_.ops_);
    script_.assertions = arena.keep<Assertion>(all_.assertions_);
    script_.pieces = arena.keep<Piece>(all_.pieces_);
    script_.listed = arena.keep<std::int32_t>(all_.listed_);
    return std::move(script_);
  }

 private:
  static RowRange row_range(const plan::flat::Region& region) {
    if (!region.buffer.exists()) return {};
    return {.buffer = region.buffer.value,
            .listed = region.listed,
            .begin = to_int32(region.begin),
            .count = to_int32(region.count)};
  }

  Assertion assertion(const plan::flat::Region& region, const plan::flat::Value& value,
                      plan::Access::Kind kind) {
    Assertion assertion{.row_range = row_range(region),
                        .kind = kind,
                        .pieces = static_cast<std::int32_t>(all_.pieces_.size())};
    if (value.tensor.exists()) {
      all_.statements_.evaluate({program_, value, slopes_}, region.count, all_.pieces_);
    }
    assertion.count = static_cast<std::int32_t>(all_.pieces_.size()) - assertion.pieces;
    return assertion;
  }

  void add(const plan::flat::Operation& flat) {
    const auto index = static_cast<std::int32_t>(all_.ops_.size());
    const plan::OperationId place{program_.rank.value, index};
    ScriptOp op{.source = flat.source,
                .from = row_range(flat.from),
                .to = row_range(flat.to),
                .match = linked_.match(place),
                .root = static_cast<std::int32_t>(flat.root),
                .action = linked_.step(place).action};
    std::visit([&](const auto& action) { read(action, flat, op); }, flat.source->action);
    all_.ops_.push_back(op);
  }

  void read(const plan::Compute&, const plan::flat::Operation& flat, ScriptOp& op) {
    op.assertions = static_cast<std::int32_t>(all_.assertions_.size());
    for (const plan::flat::Access& access : program_.accesses_of(flat)) {
      all_.assertions_.push_back(assertion(access.region, access.value, access.kind));
    }
    op.assertion_count = static_cast<std::int32_t>(all_.assertions_.size()) - op.assertions;
  }
  void read(const plan::Copy& copy, const plan::flat::Operation&, ScriptOp& op) {
    op.add = copy.add;
  }
  void read(const plan::Send&, const plan::flat::Operation& flat, ScriptOp& op) {
    op.root = flat.peer.value;
  }
  void read(const plan::Receive& receive, const plan::flat::Operation& flat, ScriptOp& op) {
    op.root = flat.peer.value;
    op.add = receive.add;
  }
  void read(const plan::Collective& collective, const plan::flat::Operation& flat, ScriptOp& op) {
    op.leaves_output = slopes_.empty() && leaves_output(collective.kind, flat,
                                                        op);  // with symmetry it differs by rank
    op.clobbers_input = !op.leaves_output && clobbers_input(collective.kind, flat, op);
    const bool gathers = collective.kind == CollectiveKind::all_gather;
    const bool scatters = collective.kind == CollectiveKind::reduce_scatter;
    if (!(gathers || scatters) || op.from != op.to) return;
    // In place: one region is this rank's piece of the other.
    const plan::RankSet& ranks = program_.groups[flat.group].ranks;
    const std::int64_t me = ranks.find(program_.rank);
    RowRange piece = op.from;
    piece.count = static_cast<std::int32_t>(op.from.count / ranks.size());
    piece.begin += static_cast<std::int32_t>(me * piece.count);
    if (collective.split.exists()) {
      const std::vector<std::int64_t>& cuts = program_.plan->lists[collective.split].values;
      if (std::ssize(cuts) != ranks.size() + 1) return;
      const std::int64_t begin = std::clamp<std::int64_t>(cuts[me], 0, op.from.count);
      const std::int64_t end =
          std::clamp<std::int64_t>(cuts[static_cast<std::size_t>(me) + 1], begin, op.from.count);
      piece.begin = op.from.begin + static_cast<std::int32_t>(begin);
      piece.count = static_cast<std::int32_t>(end - begin);
    }
    (gathers ? op.from : op.to) = piece;
  }
  [[nodiscard]] bool is_root(const plan::flat::Operation& flat) const {
    return program_.groups[flat.group].ranks.find(program_.rank) == flat.root;
  }
  // The root of a broadcast in place writes nothing, nor do the non-root ranks of a reduce. In
  // place the latter depends on the library: gloo writes partial sums there (pytorch issue 76527).
  [[nodiscard]] bool leaves_output(CollectiveKind kind, const plan::flat::Operation& flat,
                                   const ScriptOp& op) const {
    if (kind == CollectiveKind::broadcast) return is_root(flat) && op.from == op.to;
    if (kind != CollectiveKind::reduce || is_root(flat)) return false;
    return op.from != op.to || !includes(all_.rules_, Rules::gloo);
  }
  [[nodiscard]] bool clobbers_input(CollectiveKind kind, const plan::flat::Operation& flat,
                                    const ScriptOp& op) const {
    if (kind == CollectiveKind::reduce) return !is_root(flat) && op.from == op.to;
    return kind == CollectiveKind::reduce_scatter && op.from.buffer == op.to.buffer &&
           op.from.begin <= op.to.begin && op.to.end() <= op.from.end();
  }
  void read(const plan::Exchange& exchange, const plan::flat::Operation&, ScriptOp& op) {
    op.add = exchange.add;
  }
  static void read(const plan::Allocate&, const plan::flat::Operation&, ScriptOp&) {}
  static void read(const plan::Free&, const plan::flat::Operation&, ScriptOp&) {}
  static void read(const plan::Batch&, const plan::flat::Operation&, ScriptOp&) {}

  ScriptBuilder& all_;
  const plan::RankProgram& program_;
  std::span<const SlopeId> slopes_;
  const plan::LinkedProgram& linked_;
  Script script_;
};

Script ScriptBuilder::make(const plan::RankProgram& program, std::span<const SlopeId> slopes,
                           const plan::LinkedProgram& linked) {
  return RankBuilder(*this, program, slopes, linked).build();
}

}  // namespace shiplap::check
