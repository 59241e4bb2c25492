// All kernels but the linear ones: a generalised contraction, the rule of an einsum.
//
// Contribution s of cell p is computed if of every tensor that was read all cells are there whose
// coordinates agree with (p, s) in the dimensions that both name, for all coordinates of the
// dimensions that what is written has not. What is computed must be what is stated, no more and no
// less.
//
// Where the rules of the format leave a choice:
// - A dimension of the sum of what is written that a tensor read has only in its own sum was read
//   complete; so it is complete in what is written.
// - A contribution that was read twice (one region names it twice, or two regions overlap) counts
//   twice. This concerns the dimensions of the sum of what is written and those that it does not
//   have; elsewhere a cell that is there twice is the same cell.
#include <algorithm>
#include <optional>

#include "kernels.h"

namespace shiplap::oracle {
namespace {

using plan::flat::Access;

class Contraction {
 public:
  Contraction(const Execution& run, const Access& write, Rules& rules)
      : run_(run), write_(write), out_(run.tensor(write.value)), rules_(rules) {}

  void execute() {
    for (const ReadTensor& read : run_.reads) check_once(read);
    check_shapes();
    const auto cells = stated_cells(run_, write_);
    for (const auto& [part, claimed] : cells) {
      const std::set<Coordinates> computed = cell(part);
      const auto is_less = [&](const auto& entry) { return !computed.contains(entry.first); };
      rules_.require("contraction: states no more than was computed",
                     std::ranges::none_of(claimed, is_less));
      rules_.require("contraction: states no less than was computed",
                     claimed.size() == computed.size());
    }
    check_scale(cells);
  }

 private:
  // The dimensions of a tensor's part that are summed up here, in a sum or for good.
  [[nodiscard]] std::vector<bool> summed(const plan::Tensor& tensor) const {
    std::vector<bool> all;
    for (const plan::Dimension& dimension : tensor.part) {
      const int there = find_dimension(out_, dimension.name);
      all.push_back(there < 0 || there >= static_cast<int>(out_.part.size()));
    }
    return all;
  }

  void check_once(const ReadTensor& read) {
    const std::vector<bool> counted = summed(*read.tensor);
    if (std::ranges::find(counted, true) == counted.end()) return;
    for (const auto& [part, sum] : read.cells) {
      std::int64_t times = 0;
      for (std::size_t k = 0; k < read.values.size(); ++k) {
        if (!read.cells_of_region[k].contains(part)) continue;
        times += repeats(run_, *read.values[k], part, counted);
      }
      rules_.require("contraction: reads a contribution once", times == 1);
    }
  }

  // Tensors that are summed over one dimension have the same coordinates of it.
  void check_shapes() {
    for (const plan::Dimension& dimension : out_.sum) {
      std::optional<std::set<std::int64_t>> first;
      for (const ReadTensor& read : run_.reads) {
        const int there = find_dimension(*read.tensor, dimension.name);
        if (there < 0 || there >= static_cast<int>(read.tensor->part.size())) continue;
        std::set<std::int64_t> here;
        for (const plan::flat::Value* value : read.values) {  // an empty region has a shape, too
          const Coordinates at = coordinates(*run_.program, *value, plan::DimensionId(there));
          here.insert(at.begin(), at.end());
        }
        if (first) rules_.require("contraction: operands of one shape", here == *first);
        first = std::move(here);
      }
    }
  }

  std::set<Coordinates> cell(const Coordinates& part) {
    std::vector<Coordinates> sums;
    for (std::size_t k = 0; k < out_.sum.size(); ++k) {
      const bool read = std::ranges::any_of(run_.reads, [&](const ReadTensor& it) {
        return find_dimension(*it.tensor, out_.sum[k].name) >= 0;
      });
      const plan::DimensionId id(out_.part.size() + k);
      // Zero is stated of everything; but a kernel that reads nothing may state anything.
      const bool all = read || (write_.value.zero && !run_.reads.empty());
      sums.push_back(all ? whole(out_.sum[k]) : coordinates(*run_.program, write_.value, id));
    }
    std::set<Coordinates> computed;
    for (const Coordinates& contribution : product(sums)) {
      if (!mask_leaves(*run_.program->plan, out_, part, contribution)) continue;
      const bool all = std::ranges::all_of(
          run_.reads, [&](const ReadTensor& read) { return is_there(read, part, contribution); });
      if (all) computed.insert(contribution);
    }
    return computed;
  }

  [[nodiscard]] bool is_there(const ReadTensor& read, const Coordinates& part,
                              const Coordinates& contribution) const {
    std::vector<Coordinates> sets;
    for (const plan::Dimension& dimension : read.tensor->part) {
      const int there = find_dimension(out_, dimension.name);
      const auto parts = static_cast<int>(part.size());
      if (there < 0) {
        sets.push_back(whole(dimension));
      } else if (there < parts) {
        sets.push_back({part[there]});
      } else {
        sets.push_back({contribution[there - parts]});
      }
    }
    return std::ranges::all_of(product(sets),
                               [&](const Coordinates& cell) { return read.cells.contains(cell); });
  }

  // Forward and update leave the declared scale; a backward pass is linear in the gradient that it
  // reads. A loss, and a kernel that nobody knows, may leave any one scale: a statement has but
  // one.
  void check_scale(const std::map<Coordinates, Coefficients>& cells) {
    std::optional<Rational> due;
    if (run_.kernel == "forward" || run_.kernel == "update") due = Rational(out_.scale);
    const bool backward = run_.kernel == "backward" || run_.kernel == "backward_input" ||
                          run_.kernel == "backward_weight";
    if (backward) due = gradient_scale();
    if (!due) return;
    for (const auto& [part, sum] : cells) {
      for (const auto& [contribution, coefficient] : sum) {
        rules_.require("scale: states the one computed", coefficient == *due);
      }
    }
  }

  std::optional<Rational> gradient_scale() {
    std::optional<Rational> one;
    for (const ReadTensor& read : run_.reads) {
      if (read.tensor->kind != "ActivationGrad") continue;
      for (const auto& [part, sum] : read.cells) {
        for (const auto& [contribution, coefficient] : sum) {
          rules_.require("scale: gradients of one scale", !one || coefficient == *one);
          one = coefficient;
        }
      }
    }
    return one;
  }

  const Execution& run_;
  const Access& write_;
  const plan::Tensor& out_;
  Rules& rules_;
};

}  // namespace

void execute_contraction(const Execution& run, const Access& write, Rules& rules) {
  Contraction(run, write, rules).execute();
}

}  // namespace shiplap::oracle
