#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "shiplap/check/kernel_check_internal.h"
#include "shiplap/check/kernel_contracts_internal.h"

namespace shiplap::check {
namespace {

using plan::Access;

int find_dimension(const plan::Tensor& tensor, const std::string& name) {
  for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
    if (tensor.dimension(plan::DimensionId(k)).name == name) return static_cast<int>(k);
  }
  return -1;
}

plan::MaskSide mapped(plan::MaskSide side, const std::vector<int>& place) {
  side.dimension = plan::DimensionId(place[side.dimension.index()]);
  return side;
}

bool same_mask(const plan::Tensor& from, const plan::Tensor& to, const std::vector<int>& place) {
  if (from.mask.size() != to.mask.size()) return false;
  return std::ranges::all_of(from.mask, [&](const plan::MaskTerm& term) {
    const plan::MaskTerm there{mapped(term.left, place), term.comparator,
                               mapped(term.right, place)};
    return std::ranges::find(to.mask, there) != to.mask.end();
  });
}

}  // namespace

KernelContracts::KernelContracts(const plan::Plan& plan, Statements& statements)
    : plan_(plan), statements_(statements) {}

const DimensionMap& KernelContracts::map(plan::TensorId from, plan::TensorId to) {
  const auto [found, is_new] = maps_.try_emplace(std::uint64_t{from.index()} << 32U | to.index());
  DimensionMap& map = found->second;
  if (!is_new) return map;
  const plan::Tensor& source = plan_.tensors[from.index()];
  const plan::Tensor& target = plan_.tensors[to.index()];
  for (std::size_t k = 0; k < source.dimensions(); ++k) {
    map.place.push_back(find_dimension(target, source.dimension(plan::DimensionId(k)).name));
  }
  map.same_mask = same_mask(source, target, map.place);
  return map;
}

std::optional<BrokenContract> KernelContracts::check(const plan::RankProgram& program,
                                                     std::span<const SlopeId> slopes,
                                                     const plan::flat::Operation& op) {
  if (holds_plainly(program, slopes, op)) return std::nullopt;
  try {
    KernelCheck(*this, program, slopes, op).check();
  } catch (const ContractBroken& contract) {
    return contract.broken();
  }
  return std::nullopt;
}

bool KernelContracts::is_assumed(const plan::flat::Operation& op) {
  return static_part(op).assumed;
}

bool KernelContracts::assumes(const plan::Compute& compute) const {
  if (plan::is_linear(compute.kernel)) return names_unread(compute);
  const auto tensor = [&](const Access& access) -> const plan::Tensor& {
    return plan_.tensors[access.value.tensor.index()];
  };
  const auto reads = [](const Access& access) { return access.kind == Access::Kind::reads; };
  const auto is_scaled = [&](const Access& access) {
    return access.value.scale != tensor(access).scale;
  };
  const auto makes_new = [&](const Access& access) {
    return !reads(access) && access.value.is_new;
  };
  const bool has_rule = plan::find_kernel_rule(compute.kernel) != nullptr;
  const bool opaque = !has_rule && (compute.kernel == plan::kOpaqueKernel ||
                                    std::ranges::none_of(compute.accesses, reads) ||
                                    std::ranges::any_of(compute.accesses, is_scaled) ||
                                    std::ranges::any_of(compute.accesses, makes_new));
  return std::ranges::any_of(compute.accesses, [&](const Access& write) {
    if (reads(write)) return false;
    return opaque || std::ranges::any_of(tensor(write).sum, [&](const plan::Dimension& dimension) {
             return std::ranges::none_of(compute.accesses, [&](const Access& read) {
               return reads(read) && find_dimension(tensor(read), dimension.name) >= 0;
             });
           });
  });
}

// Of numbers without a layer or version `add`, `cast` and `scale` may say whose they are.
bool KernelContracts::names_unread(const plan::Compute& compute) const {
  const auto any = [&](bool reads, const auto& has) {
    return std::ranges::any_of(compute.accesses, [&](const Access& access) {
      return (access.kind == Access::Kind::reads) == reads &&
             has(plan_.tensors[access.value.tensor.index()]);
    });
  };
  const auto has_layers = [](const plan::Tensor& tensor) { return tensor.instances > 0; };
  const auto has_versions = [](const plan::Tensor& tensor) { return tensor.has_versions(); };
  return (any(false, has_layers) && any(true, std::not_fn(has_layers))) ||
         (any(false, has_versions) && any(true, std::not_fn(has_versions)));
}

// ---- one computation

KernelCheck::KernelCheck(KernelContracts& contracts, const plan::RankProgram& program,
                         std::span<const SlopeId> slopes, const plan::flat::Operation& op)
    : contracts_(contracts),
      program_(program),
      slopes_(slopes),
      kernel_(std::get<plan::Compute>(op.source->action).kernel) {
  for (const plan::flat::Access& access : program.accesses_of(op)) {
    if (access.kind != Access::Kind::reads) {
      writes_.push_back(&access);
      continue;
    }
    reads_.push_back(&access);
    const plan::flat::Value& value = access.value;
    const auto source = std::ranges::find_if(sources_, [&](const Source& it) {
      return it.tensor == value.tensor && it.instance == value.instance &&
             it.is_new == value.is_new;
    });
    if (source != sources_.end()) {
      source->accesses.push_back(&access);
    } else {
      sources_.push_back({value.tensor, value.instance, value.is_new, {&access}});
    }
  }
}

void KernelCheck::check() {
  if (kernel_ == plan::kOpaqueKernel) return;
  if (kernel_ == "zero") {
    for (const plan::flat::Access* write : writes_) check_zero(*write);
  } else if (plan::is_linear(kernel_)) {
    check_addends_used();
    for (const plan::flat::Access* write : writes_) check_addition(*write);
  } else {
    if (const plan::KernelRule* rule = plan::find_kernel_rule(kernel_)) check_signature(*rule);
    for (const plan::flat::Access* read : reads_) check_complete(*read);
    for (const plan::flat::Access* write : writes_) check_contraction(*write);
  }
}

KernelCheck::Fibers KernelCheck::fibers(const Source& source, plan::TensorId to, bool with_sums) {
  const std::vector<int>& place = contracts_.map(source.tensor, to).place;
  const plan::Tensor& from = tensor(source.tensor);
  const std::size_t dimensions = with_sums ? from.dimensions() : from.part.size();
  Fibers all;
  for (const plan::flat::Access* access : source.accesses) {
    if (access->region.count == 0) continue;
    for (const Box& points : with_sums ? layers_of(access->value, to) : Boxes{box(*access)}) {
      Box shared;
      Box along;
      for (std::size_t k = 0; k < dimensions; ++k) {
        (place[k] < 0 ? along : shared).push_back(points[k]);
      }
      if (empty(shared) || empty(along)) continue;
      Piecewise<Coefficient> here;
      here.emplace_back(std::move(along), Coefficient{access->value.scale, false});
      overlay(all, shared, here,
              [](Piecewise<Coefficient>& there, const Piecewise<Coefficient>& more) {
                for (const auto& [where, coefficient] : more) {
                  overlay(there, where, coefficient, combine);
                }
              });
    }
  }
  return all;
}

Box KernelCheck::whole_along(const Source& source, plan::TensorId to, bool with_sums) {
  const std::vector<int>& place = contracts_.map(source.tensor, to).place;
  const plan::Tensor& from = tensor(source.tensor);
  Box whole;
  for (std::size_t k = 0; k < (with_sums ? from.dimensions() : from.part.size()); ++k) {
    if (place[k] >= 0) continue;
    whole.push_back({IndexSet::range(0, from.dimension(plan::DimensionId(k)).size)});
  }
  return whole;
}

Boxes KernelCheck::layers_of(const plan::flat::Value& value, plan::TensorId to) const {
  const plan::Tensor& from = tensor(value.tensor);
  const std::vector<int>& place = contracts_.map(value.tensor, to).place;
  const auto part = static_cast<int>(tensor(to).part.size());
  Boxes all{box({.region = {.count = 1}, .value = value})};
  const std::span<const plan::flat::Run> runs = program_.runs_of(value);
  for (std::size_t k = 0; k < from.part.size(); ++k) {
    if (place[k] >= 0 && place[k] < part) continue;
    if (!names_twice(value, k, all.front()[k].set)) continue;
    std::vector<IndexSet> sets;
    for (const plan::flat::Run& run : runs) {
      if (run.dimension.index() != k) continue;
      sets.push_back(IndexSet::range(run.begin, run.count, run.stride));
    }
    Boxes split;
    for (const Box& one : all) {
      for (const IndexSet& set : sets) {
        split.push_back(one);
        split.back()[k].set = set;
      }
    }
    all = std::move(split);
  }
  return all;
}

bool KernelCheck::names_twice(const plan::flat::Value& value, std::size_t dimension,
                              const IndexSet& set) const {
  std::int64_t named = 0;
  for (const plan::flat::Run& run : program_.runs_of(value)) {
    if (run.dimension.index() == dimension) named += run.count;
  }
  return named != set.size();
}

Box KernelCheck::box(const plan::flat::Access& access) const {
  const plan::Tensor& of = tensor(access);
  if (access.region.count == 0) return Box(of.dimensions());
  return box_of(of, {program_, access.value, slopes_});
}

std::string KernelCheck::shown(const plan::flat::Access& access) const {
  return name_of(tensor(access), access.value);
}

std::string KernelCheck::shown(const plan::Tensor& tensor, const Box& box) const {
  std::string text;
  for (std::size_t k = 0; k < box.size(); ++k) {
    const plan::Dimension& dimension = tensor.dimension(plan::DimensionId(k));
    if (k < tensor.part.size() && box[k].set.covers(dimension.size)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", dimension.name, to_string(box[k].set));
  }
  return text.empty() ? "all" : text;
}

void fail(std::string code, std::string what, std::string why, std::string help) {
  throw ContractBroken({std::move(code), std::move(what), std::move(why), std::move(help)});
}

void narrow(BoxSide& side, const BoxSide& by, std::int64_t size) {
  if (side == by || by.set.covers(size)) return;
  if (side.set.covers(size)) {
    side = by;
    return;
  }
  if (side.slope != by.slope) throw Asymmetric();
  side.set = side.set.intersected(by.set);
}

}  // namespace shiplap::check
