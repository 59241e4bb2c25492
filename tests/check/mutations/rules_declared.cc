// Rules that a tensor's declaration enters: the plan is the same, and the truth is another.
#include <algorithm>
#include <utility>

#include "rules_internal.h"

namespace shiplap::mutations {

using plan::Tensor;

namespace {

bool is_first_of_all(const Site& site) {
  return &site.program == &site.plan.programs.front() && &site.block == &site.program.body &&
         site.index == 0;
}

// Each tensor in turn is declared otherwise.
template <class Changed>
Edits redeclare(const Site& site, const Changed& changed) {
  if (!is_first_of_all(site)) return {};
  Edits edits;
  for (std::size_t k = 0; k < site.plan.tensors.size(); ++k) {
    auto tensors = site.plan.tensors;
    if (!changed(tensors[k])) continue;
    edits.push_back({.count = 0, .redeclared = std::move(tensors)});
  }
  return edits;
}

Edits masks_nothing(const Site& site) {
  return redeclare(site, [](Tensor& tensor) {
    if (tensor.mask.empty()) return false;
    tensor.mask.pop_back();
    return true;
  });
}

Edits masks_the_other_way(const Site& site) {
  return redeclare(site, [](Tensor& tensor) {
    if (tensor.mask.empty()) return false;
    std::swap(tensor.mask.front().left, tensor.mask.front().right);
    return true;
  });
}

Edits gradients_at_other_scale(const Site& site) {
  return redeclare(site, [](Tensor& tensor) {
    if (tensor.kind != "WeightGrad") return false;
    tensor.scale = plan::Ratio(tensor.scale.numerator(), 3 * tensor.scale.denominator());
    return true;
  });
}

Edits one_more_activation(const Site& site) {
  return redeclare(site, [](Tensor& tensor) {
    if (tensor.kind != "Activation" || tensor.instances == 0) return false;
    ++tensor.instances;
    return true;
  });
}

// A dimension of sums has one coordinate more, in all tensors that name it.
Edits one_more_contribution(const Site& site) {
  if (!is_first_of_all(site)) return {};
  std::vector<std::string> names;
  for (const Tensor& tensor : site.plan.tensors) {
    for (const plan::Dimension& dimension : tensor.sum) {
      if (std::ranges::find(names, dimension.name) == names.end()) names.push_back(dimension.name);
    }
  }
  Edits edits;
  for (const std::string& name : names) {
    const auto by_list = [&](const Tensor& tensor) {  // which has an entry for each coordinate
      return std::ranges::any_of(tensor.mask, [](const plan::MaskTerm& term) {
        return term.left.list.exists() || term.right.list.exists();
      });
    };
    if (std::ranges::any_of(site.plan.tensors, by_list)) continue;
    auto tensors = site.plan.tensors;
    for (Tensor& tensor : tensors) {
      for (auto* dimensions : {&tensor.part, &tensor.sum}) {
        for (plan::Dimension& dimension : *dimensions) {
          if (dimension.name == name) ++dimension.size;
        }
      }
    }
    edits.push_back({.count = 0, .redeclared = std::move(tensors)});
  }
  return edits;
}

}  // namespace

void add_declared_rules(Rules& rules) {
  const std::vector<Extent> all = {Extent::all};
  rules.push_back({"a mask removes contributions from a sum",
                   "a mask of less",
                   {"D741", "D740", "D755", "D742", "D753"},
                   masks_nothing,
                   all});
  rules.push_back({"a mask removes contributions from a sum",
                   "a mask the other way round",
                   {"D741", "D740", "D755", "D742", "D753"},
                   masks_the_other_way,
                   all});
  rules.push_back({"gradients are updated at their scale",
                   "another scale is declared",
                   {"D745"},
                   gradients_at_other_scale,
                   all});
  rules.push_back({"a loss reads the last activation",
                   "one more activation",
                   {"D750"},
                   one_more_activation,
                   all});
  rules.push_back({"a sum is complete when all contributions are there",
                   "one more contribution",
                   {"D741", "D740", "D755", "D753", "D744", "D747", "D742"},
                   one_more_contribution,
                   all});
}

}  // namespace shiplap::mutations
