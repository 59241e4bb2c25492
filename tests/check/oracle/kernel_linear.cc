// `add`, `cast` and `scale`: what they write is the sum of what they read.
//
// Dimensions are matched by name. A dimension of the part of what is read may be one of the part of
// what is written (the same coordinate), one of its sum (that coordinate is that contribution), or
// missing there: then it is summed over, and must be there whole, like a dimension of a sum that
// ends here. What is summed over so is one number with one coefficient, and keeps it.
//
// Where the rules of the format leave a choice:
// - A sum cannot be taken apart: a dimension of a sum that is read is no dimension of the part of
//   what is written.
// - A dimension of the part of what is written that a read does not have takes a slice of it, or
//   repeats it; the coefficient is the same for all coordinates.
// - Nothing is masked away: a contribution that the mask of what is written does not leave is too
//   much if it was read.
// - One region that names a cell twice has it once, as these kernels work element by element. In a
//   dimension that is summed over, what is there twice counts twice.
// - The numbers of one instance are not those of another, in whatever tensor, and old weights are
// not
//   new ones. Several instances may be done at once, each for itself; what is read is in something.
// - Contributions of two tensors are not to one sum; one tensor may be added to the one written.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include "kernels.h"

namespace shiplap::oracle {
namespace {

using plan::flat::Access;

class Linear {
 public:
  Linear(const Execution& run, const Access& write, Rules& rules)
      : run_(run), write_(write), out_(run.tensor(write.value)), rules_(rules) {}

  void execute() {
    std::set<std::pair<const plan::Tensor*, std::int64_t>> others;
    for (const ReadTensor& read : run_.reads) {
      if (is_nothing(read) || !is_for(run_, read, write_)) continue;
      check_operand(read);
      if (read.tensor != &out_) others.insert({read.tensor, read.instance});
    }
    rules_.require("linear: one tensor besides the one written", others.size() <= 1);
    std::optional<Rational> constant;  // of `scale`
    if (run_.kernel != "scale") constant = Rational(1, 1);
    for (const auto& [part, claimed] : stated_cells(run_, write_)) {
      const Coefficients computed = cell(part);
      const bool same_set = std::ranges::equal(
          computed, claimed, [](const auto& a, const auto& b) { return a.first == b.first; });
      rules_.require("linear: states the contributions that were added", same_set);
      for (const auto& [contribution, coefficient] : computed) {
        const Rational factor = claimed.at(contribution) / coefficient;
        if (!constant) constant = factor;
        rules_.require("linear: states the coefficient of the sum", factor == *constant);
      }
    }
  }

 private:
  void check_operand(const ReadTensor& read) {
    const plan::Tensor& tensor = *read.tensor;
    rules_.require("linear: the same version", !tensor.has_versions() || !out_.has_versions() ||
                                                   read.is_new == write_.value.is_new);
    for (const plan::Dimension& dimension : tensor.sum) {
      const int there = find_dimension(out_, dimension.name);
      rules_.require("linear: no sum is taken apart",
                     there < 0 || there >= static_cast<int>(out_.part.size()));
    }
    for (const plan::Dimension& dimension : out_.sum) {
      rules_.require("linear: every dimension of the sum was read",
                     find_dimension(tensor, dimension.name) >= 0);
    }
  }

  Coefficients cell(const Coordinates& part) {
    std::vector<Coordinates> sums;
    for (const plan::Dimension& dimension : out_.sum) sums.push_back(whole(dimension));
    Coefficients all;
    for (const Coordinates& contribution : product(sums)) {
      Rational total;
      int addends = 0;
      for (const ReadTensor& read : run_.reads) {
        if (!is_for(run_, read, write_)) continue;
        const Rational more = taken(read, part, contribution);
        if (!more.is_zero()) ++addends;
        total = total + more;
      }
      rules_.require("linear: adds a contribution once", addends <= 1);
      if (!total.is_zero()) all[contribution] = total;
    }
    return all;
  }

  // The coefficient that one tensor has for a contribution.
  Rational taken(const ReadTensor& read, const Coordinates& part, const Coordinates& contribution) {
    const plan::Tensor& tensor = *read.tensor;
    std::vector<Coordinates> sets;
    std::vector<bool> counted;
    for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
      const plan::Dimension& dimension = tensor.dimension(plan::DimensionId(k));
      const int there = find_dimension(out_, dimension.name);
      const auto parts = static_cast<int>(part.size());
      if (there < 0) {
        sets.push_back(whole(dimension));
      } else if (there < parts) {
        sets.push_back({part[there]});
      } else {
        sets.push_back({contribution[there - parts]});
      }
      counted.push_back(there < 0 || there >= parts);
    }
    std::optional<Rational> one;
    for (const Coordinates& all : product(sets)) {
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(tensor.part.size());
      const Coordinates cell(all.begin(), middle);
      const Coordinates sum(middle, all.end());
      if (!mask_leaves(*run_.program->plan, tensor, cell, sum)) continue;
      const Rational here = coefficient(read, cell, sum, counted);
      rules_.require("linear: what is summed over is whole", !one || here == *one);
      one = here;
    }
    return one.value_or(Rational());
  }

  Rational coefficient(const ReadTensor& read, const Coordinates& cell, const Coordinates& sum,
                       const std::vector<bool>& counted) {
    Rational total;
    std::int64_t times = 0;
    for (std::size_t k = 0; k < read.values.size(); ++k) {
      const auto found = read.cells_of_region[k].find(cell);
      if (found == read.cells_of_region[k].end()) continue;
      const auto entry = found->second.find(sum);
      if (entry == found->second.end()) continue;
      const std::int64_t here = repeats(run_, *read.values[k], cell, counted);
      total = total + entry->second * Rational(here, 1);
      times += here;
    }
    rules_.require("linear: adds a contribution once", times <= 1);
    return total;
  }

  const Execution& run_;
  const Access& write_;
  const plan::Tensor& out_;
  Rules& rules_;
};

}  // namespace

bool is_nothing(const ReadTensor& read) {
  return std::ranges::all_of(read.cells, [](const auto& one) { return one.second.empty(); });
}

bool is_for(const Execution& run, const ReadTensor& read, const Access& write) {
  const std::int64_t here = run.tensor(write.value).instances;
  const std::int64_t there = read.tensor->instances;
  if (here == 0 || there == 0) return true;
  // The longer list begins earlier or ends later, by as many as it is longer.
  const std::int64_t first = here > there ? read.instance : read.instance - (there - here);
  return first <= write.value.instance && write.value.instance <= first + std::abs(here - there);
}

void execute_linear(const Execution& run, const Access& write, Rules& rules) {
  Linear(run, write, rules).execute();
}

}  // namespace shiplap::oracle
