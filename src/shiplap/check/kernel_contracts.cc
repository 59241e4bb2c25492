#include <fmt/format.h>

#include <algorithm>

#include "shiplap/check/kernel_check_internal.h"
#include "shiplap/check/kernel_contracts_internal.h"
#include "shiplap/trace/event.h"
#include "shiplap/trace/summary.h"

namespace shiplap::check {
namespace {

using plan::Access;

int find_dimension(const plan::Tensor& tensor, const std::string& name) {
  for (std::size_t k = 0; k < tensor.dimensions(); ++k) {
    if (tensor.dimension(plan::DimensionId(k)).name == name) return static_cast<int>(k);
  }
  return -1;
}

bool is_read(const Access& access) { return access.kind == Access::Kind::reads; }

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
  const plan::Tensor& source = plan_.tensors[from];
  const plan::Tensor& target = plan_.tensors[to];
  for (std::size_t k = 0; k < source.dimensions(); ++k) {
    map.place.push_back(find_dimension(target, source.dimension(plan::DimensionId(k)).name));
  }
  map.same_mask = same_mask(source, target, map.place);
  return map;
}

std::optional<ContractViolation> KernelContracts::check(const plan::RankProgram& program,
                                                        std::span<const SlopeId> slopes,
                                                        const plan::flat::Operation& op) {
  if (fast_path_holds(program, slopes, op)) return std::nullopt;
  try {
    KernelCheck(*this, program, slopes, op).check();
  } catch (const ContractViolationError& error) {
    return error.violation();
  }
  return std::nullopt;
}

bool KernelContracts::is_assumed(const plan::flat::Operation& op) {
  return static_info(op).assumed;
}

bool KernelContracts::assumes(const plan::Compute& compute) const {
  const bool is_linear = plan::is_linear(compute.kernel);
  const bool has_rule = plan::find_kernel_rule(compute.kernel) != nullptr;
  if ((is_linear || has_rule) && names_layers(compute, is_linear)) return true;
  if (is_linear) return names_versions(compute);
  // A part of a pass keeps one scale, as the passes do; another kernel may scale.
  const trace::EventKind kind = trace::kind_of_kernel(compute.kernel);
  const bool is_pass = trace::is_forward(kind) || trace::is_backward(kind);
  const auto is_scaled = [&](const Access& access) {
    return access.value.scale !=
           (is_pass ? compute.accesses.front().value.scale : tensor_of(access).scale);
  };
  const auto makes_new = [&](const Access& access) {
    return !is_read(access) && access.value.is_new;
  };
  const bool opaque = !has_rule && (compute.kernel == plan::kOpaqueKernel ||
                                    std::ranges::none_of(compute.accesses, is_read) ||
                                    std::ranges::any_of(compute.accesses, is_scaled) ||
                                    std::ranges::any_of(compute.accesses, makes_new));
  return std::ranges::any_of(compute.accesses, [&](const Access& write) {
    return !is_read(write) && (opaque || has_unread_dimension(compute, write));
  });
}

bool KernelContracts::has_unread_dimension(const plan::Compute& compute,
                                           const Access& write) const {
  const plan::Tensor& out = tensor_of(write);
  for (std::size_t k = 0; k < out.dimensions(); ++k) {
    const std::string& name = out.dimension(plan::DimensionId(k)).name;
    const auto has = [&](const Access& access) {
      return is_read(access) && find_dimension(tensor_of(access), name) >= 0;
    };
    if (std::ranges::none_of(compute.accesses, has)) return true;
  }
  return false;
}

// A value without a layer does not determine the layer of the output, and tensors with different
// numbers of layers do not correspond one to one (activations have one more than weights).
bool KernelContracts::names_layers(const plan::Compute& compute, bool is_linear) const {
  return std::ranges::any_of(compute.accesses, [&](const Access& write) {
    const std::int64_t written = tensor_of(write).instances;
    if (is_read(write) || written == 0) return false;
    return std::ranges::any_of(compute.accesses, [&](const Access& read) {
      const std::int64_t count = tensor_of(read).instances;
      return is_read(read) && (is_linear ? count != written : count == 0);
    });
  });
}

bool KernelContracts::names_versions(const plan::Compute& compute) const {
  return std::ranges::any_of(compute.accesses, [&](const Access& write) {
    return !is_read(write) && tensor_of(write).has_versions() &&
           std::ranges::any_of(compute.accesses, [&](const Access& read) {
             return is_read(read) && !tensor_of(read).has_versions();
           });
  });
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
    for (const Box& points : with_sums ? boxes_of(access->value, to) : Boxes{box(*access)}) {
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

Boxes KernelCheck::boxes_of(const plan::flat::Value& value, plan::TensorId to) const {
  const plan::Tensor& from = tensor(value.tensor);
  const std::vector<int>& place = contracts_.map(value.tensor, to).place;
  const auto part = static_cast<int>(tensor(to).part.size());
  Boxes all{box({.region = {.count = 1}, .value = value})};
  const std::span<const plan::flat::Run> runs = program_.runs_of(value);
  for (std::size_t k = 0; k < from.part.size(); ++k) {
    if (place[k] >= 0 && place[k] < part) continue;
    if (!has_duplicates(value, k, all.front()[k].set)) continue;
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

bool KernelCheck::has_duplicates(const plan::flat::Value& value, std::size_t dimension,
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

std::string KernelCheck::format_access(const plan::flat::Access& access) const {
  return name_of(tensor(access), access.value);
}

std::string KernelCheck::format_points(const plan::Tensor& tensor, const Box& box) const {
  std::string text;
  for (std::size_t k = 0; k < box.size(); ++k) {
    const plan::Dimension& dimension = tensor.dimension(plan::DimensionId(k));
    if (k < tensor.part.size() && box[k].set.covers(dimension.size)) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", dimension.name, to_string(box[k].set));
  }
  return text.empty() ? "all" : text;
}

void throw_violation(std::string code, std::string what, std::string why, std::string help) {
  throw ContractViolationError({std::move(code), std::move(what), std::move(why), std::move(help)});
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
