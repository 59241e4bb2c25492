// Which ranks need not be looked at: those that differ from another only in the coordinates of what
// they hold, each moving evenly with the rank's position.
#include <algorithm>
#include <numeric>
#include <variant>

#include "shiplap/check/job_internal.h"

namespace shiplap::check {
namespace {

using plan::Expr;

constexpr std::size_t kMaxAxes = 6;  // 64 corners

// How an expression depends on the position on an axis.
enum class Way : std::uint8_t { not_at_all, evenly, somehow };
using Ways = std::vector<Way>;  // by axis

class Analysis {
 public:
  explicit Analysis(const plan::Plan& plan) : plan_(plan), fixed_(plan.mesh.axes.size()) {
    for (const plan::Program& program : plan.programs) {
      select(program.on);
      for (const plan::Buffer& buffer : program.buffers) {
        decides(buffer.rows);
        decides(buffer.row_bytes);
      }
      block(program.body);
    }
    for (const plan::Selector& spare : plan.spares) select(spare);
  }

  // Axes whose positions tell ranks apart.
  [[nodiscard]] const std::vector<bool>& fixed() const { return fixed_; }

 private:
  [[nodiscard]] Ways none() const { return Ways(fixed_.size(), Way::not_at_all); }

  [[nodiscard]] Ways ways(const Expr& expr) const {
    if (expr.is_literal()) return none();
    std::vector<Ways> stack;
    for (const Expr::Node& node : expr.code()) {
      switch (node.op()) {
        case Expr::Op::negate:
          break;
        case Expr::Op::literal:
          stack.push_back(none());
          break;
        case Expr::Op::axis: {
          Ways ways = none();
          const plan::AxisId id(static_cast<std::int32_t>(node.operand()));
          for (const plan::AxisId axis : plan_.mesh.axes_of(id)) ways[axis.index()] = Way::evenly;
          stack.push_back(std::move(ways));
          break;
        }
        case Expr::Op::rank:
          stack.emplace_back(fixed_.size(), Way::evenly);
          break;
        case Expr::Op::local:
          stack.push_back(locals_[node.operand()]);
          break;
        case Expr::Op::element:
          unevenly(stack.back());
          break;
        case Expr::Op::end:
          return stack.back();
        default:
          combine(node.op(), stack);
      }
    }
    return stack.back();
  }

  static void unevenly(Ways& ways) {
    for (Way& way : ways) way = way == Way::not_at_all ? way : Way::somehow;
  }

  static void combine(Expr::Op op, std::vector<Ways>& stack) {
    Ways right = std::move(stack.back());
    stack.pop_back();
    Ways& left = stack.back();
    const bool adds = op == Expr::Op::add || op == Expr::Op::subtract;
    const auto still = [](const Ways& ways) {
      return std::ranges::all_of(ways, [](Way way) { return way == Way::not_at_all; });
    };
    const bool even = adds || (op == Expr::Op::multiply && (still(left) || still(right)));
    for (std::size_t k = 0; k < left.size(); ++k) left[k] = std::max(left[k], right[k]);
    if (!even) unevenly(left);
  }

  void decides(const Expr& expr) { at_most(expr, Way::not_at_all); }
  void at_most(const Expr& expr, Way most) {
    const Ways found = ways(expr);
    for (std::size_t k = 0; k < found.size(); ++k) fixed_[k] = fixed_[k] || found[k] > most;
  }
  void everything() { fixed_.assign(fixed_.size(), true); }
  void fix(plan::AxisId id) {
    for (const plan::AxisId axis : plan_.mesh.axes_of(id)) fixed_[axis.index()] = true;
  }

  void select(const plan::Selector& selector) {
    for (const plan::SelectorTerm& term : selector.terms) {
      if (!term.axis.exists()) everything();
      if (term.axis.exists()) fix(term.axis);
    }
  }

  void block(const std::vector<plan::Statement>& body) {
    const std::size_t bound = locals_.size();
    for (const plan::Statement& statement : body) {
      std::visit([this](const auto& node) { look(node); }, statement.node);
    }
    locals_.resize(bound);
  }

  void look(const plan::Repeat& repeat) {
    decides(repeat.count);
    locals_.push_back(none());
    block(repeat.body);
    locals_.pop_back();
  }
  void look(const plan::When& when) {
    for (const plan::Comparison& comparison : when.condition) {
      decides(comparison.left);
      decides(comparison.right);
    }
    block(when.body);
  }
  // Somebody evaluates it on every rank, whether it is used or not; what is not affine may have no
  // value on a rank that is not looked at (`100 div (dp-2)`).
  void look(const plan::Let& let) {
    at_most(let.value, Way::evenly);
    locals_.push_back(ways(let.value));
  }
  void look(const plan::Fact& fact) {
    look(fact.region);
    look(fact.value);
  }
  void look(const plan::Operation& operation) {
    for (const Expr& index : operation.name.indices) decides(index);
    for (const plan::Reference& after : operation.after) {
      for (const Expr& index : after.indices) decides(index);
    }
    std::visit([this](const auto& action) { look(action); }, operation.action);
    if (!operation.work) return;
    for (const Expr* amount :
         {&operation.work->flop, &operation.work->bytes, &operation.work->times}) {
      at_most(*amount, Way::evenly);
    }
  }

  void look(const plan::Region& region) {
    decides(region.begin);
    decides(region.count);
  }
  void look(const plan::Value& value) {
    decides(value.index);
    for (const plan::Run& run : value.runs) {
      at_most(run.begin, run.list.exists() ? Way::not_at_all : Way::evenly);
      decides(run.count);
      decides(run.stride);
    }
  }
  void look(const plan::Compute& compute) {
    for (const plan::Access& access : compute.accesses) {
      look(access.region);
      look(access.value);
    }
  }
  void look(const plan::Copy& copy) {
    look(copy.from);
    look(copy.to);
  }
  void look(const plan::Peer& peer) {
    if (peer.axis.exists()) fix(peer.axis);
    at_most(peer.where, peer.axis.exists() ? Way::not_at_all : Way::evenly);
  }
  void look(const plan::Send& send) {
    look(send.from);
    look(send.peer);
    decides(send.tag);
  }
  void look(const plan::Receive& receive) {
    look(receive.to);
    look(receive.peer);
    decides(receive.tag);
  }
  void look(const plan::Group& group) {
    if (group.positions.empty()) return;
    if (group.axes.empty()) everything();
    for (const plan::AxisId axis : group.axes) fix(axis);
    for (const Expr& position : group.positions) decides(position);
  }
  void look(const plan::Collective& collective) {
    if (collective.kind != CollectiveKind::barrier) {
      look(collective.from);
      look(collective.to);
    }
    look(collective.over);
    decides(collective.root);
  }
  void look(const plan::Exchange&) { everything(); }  // its table tells ranks apart
  void look(const plan::Allocate& allocate) { look(allocate.rows); }
  void look(const plan::Free& free) { look(free.rows); }
  void look(const plan::Batch& batch) { block(batch.body); }

  const plan::Plan& plan_;
  std::vector<bool> fixed_;
  std::vector<Ways> locals_;
};

bool same(const plan::flat::Region& a, const plan::flat::Region& b) {
  return a.buffer == b.buffer && a.begin == b.begin && a.count == b.count && a.listed == b.listed;
}

// Another rank must do the same operations, move its peers with its own number, and call on the
// same groups or on their translations. Throws Asymmetric.
class Comparison {
 public:
  Comparison(const plan::RankProgram& here, const plan::RankProgram& there)
      : here_(here), there_(there), shift_(there.rank.value - here.rank.value) {}

  void compare() const {
    demand(here_.operations.size() == there_.operations.size() &&
           here_.runs.size() == there_.runs.size() &&
           here_.accesses.size() == there_.accesses.size() &&
           here_.dependencies == there_.dependencies &&
           here_.groups.size() == there_.groups.size() &&
           here_.given.size() == there_.given.size() && here_.goal.size() == there_.goal.size());
    for (std::size_t k = 0; k < here_.operations.size(); ++k) {
      const plan::flat::Operation& a = here_.operations[k];
      const plan::flat::Operation& b = there_.operations[k];
      demand(a.source == b.source && a.group == b.group && a.root == b.root && a.tag == b.tag &&
             same(a.from, b.from) && same(a.to, b.to));
      demand(!a.peer.exists() || b.peer.value == a.peer.value + shift_);
      // In place, whose piece of the region it is differs along the group.
      const auto* collective = std::get_if<plan::Collective>(&a.source->action);
      const bool in_place =
          collective != nullptr && has_pieces(collective->kind) && same(a.from, a.to);
      demand(!in_place || !(here_.groups[a.group] == there_.groups[b.group]));
    }
    for (std::size_t k = 0; k < here_.accesses.size(); ++k) {
      demand(same(here_.accesses[k].region, there_.accesses[k].region));
    }
  }

  // By how much the ranks of a group move.
  [[nodiscard]] std::int64_t group_shift(std::size_t k) const {
    const plan::flat::Group& a = here_.groups[k];
    const plan::flat::Group& b = there_.groups[k];
    demand(a.channel == b.channel && a.ranks.size() == b.ranks.size());
    const std::int64_t shift = b.ranks[0].value - a.ranks[0].value;
    if (shift == 0) demand(a.ranks == b.ranks);
    for (std::int64_t m = 0; m < a.ranks.size() && shift != 0; ++m) {
      demand(b.ranks[m].value == a.ranks[m].value + shift);
    }
    return shift;
  }

 private:
  static void demand(bool holds) {
    if (!holds) throw Asymmetric();
  }
  const plan::RankProgram& here_;
  const plan::RankProgram& there_;
  std::int64_t shift_;
};

}  // namespace

Symmetry find_symmetry(const plan::Plan& plan) {
  const Analysis analysis(plan);
  Symmetry result;
  for (std::size_t k = 0; k < plan.mesh.axes.size(); ++k) {
    if (analysis.fixed()[k] || plan.mesh.axes[k].size == 1) continue;
    result.axes.emplace_back(k);
    result.sizes.push_back(plan.mesh.axes[k].size);
    result.strides.push_back(plan.mesh.stride(plan::AxisId(k)));
  }
  return result;
}

// Its neighbour along each axis, all corners, and the rank itself, which is one of them.
std::int64_t expansions_of(const Symmetry& symmetry) {
  const std::size_t axes = std::min(symmetry.axes.size(), kMaxAxes);
  return static_cast<std::int64_t>(axes + (std::size_t{1} << axes));
}

// Along each axis, the first step says by how much runs and groups move. As all expressions that
// depend on positions are affine, what they and their parts can become lies between what they are
// at the corners: so all corners are expanded, where an expression without a value or a run that
// leaves its dimension would show.
std::vector<SlopeId> slopes_of(const plan::RankProgram& program, const Symmetry& symmetry,
                               Slopes& slopes) {
  const std::size_t axes = symmetry.axes.size();
  if (axes == 0) return {};
  if (axes > kMaxAxes) throw Asymmetric();
  using Positions = std::vector<std::int64_t>;
  std::vector<Positions> of_runs(program.runs.size(), Positions(axes));
  std::vector<Positions> of_groups(program.groups.size(), Positions(axes));
  plan::RankProgram there;
  const auto visit = [&](const Positions& positions, const auto& run, const auto& group) {
    const std::int64_t shift = std::inner_product(positions.begin(), positions.end(),
                                                  symmetry.strides.begin(), std::int64_t{0});
    const Rank rank(static_cast<std::int32_t>(program.rank.value + shift));
    there = plan::expand(*program.plan, rank, program.program, {}, std::move(there));
    const Comparison comparison(program, there);
    comparison.compare();
    for (std::size_t k = 0; k < of_runs.size(); ++k) {
      run(of_runs[k], there.runs[k].begin - program.runs[k].begin);
    }
    for (std::size_t k = 0; k < of_groups.size(); ++k) {
      group(of_groups[k], comparison.group_shift(k));
    }
  };
  for (std::size_t axis = 0; axis < axes; ++axis) {
    Positions positions(axes);
    positions[axis] = 1;
    const auto learn = [&](Positions& slope, std::int64_t moved) { slope[axis] = moved; };
    const auto learn_group = [&](Positions& slope, std::int64_t moved) {
      if (moved != 0 && moved != symmetry.strides[axis]) throw Asymmetric();
      slope[axis] = moved;
    };
    visit(positions, learn, learn_group);
  }
  for (std::size_t corner = 1; corner < std::size_t{1} << axes; ++corner) {
    Positions positions(axes);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if ((corner >> axis & 1U) != 0) positions[axis] = symmetry.sizes[axis] - 1;
    }
    const auto hold = [&](const Positions& slope, std::int64_t moved) {
      const std::int64_t due =
          std::inner_product(positions.begin(), positions.end(), slope.begin(), std::int64_t{0});
      if (moved != due) throw Asymmetric();
    };
    visit(positions, hold, hold);
  }
  std::vector<SlopeId> result;
  result.reserve(of_runs.size());
  for (Positions& slope : of_runs) result.push_back(slopes.find(std::move(slope)));
  return result;
}

}  // namespace shiplap::check
