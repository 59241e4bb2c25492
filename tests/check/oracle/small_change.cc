#include "small_change.h"

#include <utility>

namespace shiplap::oracle {
namespace {

class Change {
 public:
  Change(SmallPlan& plan, Random& random) : plan_(plan), random_(random) {}

  void make() {
    const std::size_t rank = below(plan_.ranks.size());
    SmallRank& chosen = plan_.ranks[rank];
    if (random_.chance(0.06) && !chosen.facts.empty()) {
      return change(chosen.facts[below(chosen.facts.size())].content);
    }
    if (chosen.ops.empty()) return;
    const std::size_t k = below(chosen.ops.size());
    random_.chance(0.4) ? change_order(chosen.ops, k) : change(chosen.ops[k]);
  }

 private:
  std::size_t below(std::size_t end) {
    return static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(end)));
  }
  int step() { return random_.chance() ? 1 : -1; }

  void change_order(std::vector<SmallOp>& ops, std::size_t k) {
    const auto here = ops.begin() + static_cast<std::ptrdiff_t>(k);
    switch (below(8)) {
      case 0:
        ops.erase(here);
        return;
      case 1:
        if (k + 1 < ops.size()) std::swap(ops[k], ops[k + 1]);
        return;
      case 2: {
        SmallOp again = ops[k];
        again.id += 1000;
        ops.insert(here + 1, std::move(again));
        return;
      }
      case 3: {
        SmallOp moved = ops[k];
        ops.erase(here);
        ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(below(ops.size() + 1)),
                   std::move(moved));
        return;
      }
      case 4:
        ops[k].stream = random_.pick(std::vector<std::string>{"main", "net", "aux"});
        return;
      default:
        change_communication(ops);
    }
  }

  // Swaps two, or lets one run free.
  void change_communication(std::vector<SmallOp>& ops) {
    std::vector<std::size_t> found;
    for (std::size_t k = 0; k < ops.size(); ++k) {
      const bool message = ops[k].action == "send" || ops[k].action == "receive";
      if (message || !ops[k].group.empty() || !ops[k].members.empty()) found.push_back(k);
    }
    if (found.size() < 2) return;
    const std::size_t one = below(found.size() - 1);
    SmallOp& first = ops[found[one]];
    SmallOp& second = ops[found[one + 1]];
    if (random_.chance(0.6)) {
      std::swap(first, second);
      std::swap(first.stream, second.stream);
    } else {
      second.stream = first.stream == "net" ? "aux" : "net";
      second.after.clear();
    }
  }

  void change(SmallOp& op) {
    const bool lives = op.action == "allocate" || op.action == "free";
    if (random_.chance(0.3) && !op.after.empty()) {
      if (random_.chance(0.3)) return op.after.clear();
      op.after.erase(op.after.begin() + static_cast<std::ptrdiff_t>(below(op.after.size())));
      return;
    }
    if (random_.chance(0.2) && op.action != "compute" && !lives) {
      op.async = !op.async;
      return;
    }
    if (!op.members.empty()) return change(op.members[below(op.members.size())]);
    if (op.action == "compute") return change_compute(op);
    if (random_.chance(0.3) && op.action != "barrier") return change_region(op);
    change_operands(op);
  }

  void change_compute(SmallOp& op) {
    if (random_.chance(0.15)) {
      const std::vector<std::string> kernels{"other", "norm", "cast", "forward", "update"};
      op.kernel = random_.pick(kernels);
      return;
    }
    if (op.accesses.empty()) return;
    const std::size_t k = below(op.accesses.size());
    switch (below(5)) {
      case 0:
        op.accesses[k].region.begin += step();
        return;
      case 1:
        op.accesses[k].kind = op.accesses[k].kind == "writes" ? "adds" : "writes";
        return;
      case 2:
        op.accesses.erase(op.accesses.begin() + static_cast<std::ptrdiff_t>(k));
        return;
      default:
        change(op.accesses[k].content);
    }
  }

  void change(Content& content) {
    switch (below(4)) {
      case 0:
        content.instance += step();
        return;
      case 1:
        if (has_tok(content.tensor)) content.tok += step();
        if (content.tensor == 'W') content.is_new = !content.is_new;
        return;
      case 2:
        if (!content.sum.empty()) content.denominator = 3 - content.denominator;
        return;
      default: {
        if (!has_sum(content.tensor)) return;
        const int k = static_cast<int>(below(6));
        if (content.sum.erase(k) == 0) content.sum.insert(k);
      }
    }
  }

  void change_region(SmallOp& op) {
    SmallRegion& region = op.has_to && (!op.has_from || random_.chance()) ? op.to : op.from;
    const bool copies = op.action == "copy" || op.action == "exchange";
    const bool moves = op.action == "send" || op.action == "receive";
    if (random_.chance(0.2) && moves) {
      region.buffer = 'h';
    } else if (random_.chance() || copies) {
      region.begin += step();
    } else {
      region.count += step();
    }
  }

  void change_operands(SmallOp& op) {
    const int ranks = static_cast<int>(plan_.ranks.size());
    switch (below(7)) {
      case 0:
        op.tag = 1 - op.tag;
        return;
      case 1:
        op.peer = (op.peer + 1) % ranks;
        return;
      case 2:
        op.root = op.root == 0 ? 1 : 0;
        return;
      case 3:
        op.denominator = 3 - op.denominator;
        return;
      case 4:
        op.channel = op.channel.empty() ? "b" : "";
        return;
      case 5:
        if (op.group.size() > 1) std::swap(op.group[0], op.group[below(op.group.size())]);
        return;
      default:
        if (op.action == "receive" || op.action == "copy") op.add = !op.add;
    }
  }

  SmallPlan& plan_;
  Random& random_;
};

}  // namespace

void change_something(SmallPlan& plan, Random& random) { Change(plan, random).make(); }

}  // namespace shiplap::oracle
