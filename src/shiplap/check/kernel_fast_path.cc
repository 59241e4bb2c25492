// A fast path for the most common contractions: one region of each tensor, one run of coordinates
// in each dimension, and the summed dimensions stated as they are read. It needs no sets; without
// it, checking 8,192 ranks takes twice as long (docs/decisions/022-exact-contracts.md). A negative
// answer means undecided: KernelCheck decides.
#include <algorithm>

#include "shiplap/check/kernel_contracts_internal.h"

namespace shiplap::check {

using plan::Access;

const KernelContracts::StaticInfo& KernelContracts::static_info(const plan::flat::Operation& op) {
  const auto [found, is_new] = static_info_.try_emplace(op.source);
  StaticInfo& known = found->second;
  if (!is_new) return known;
  const auto& compute = std::get<plan::Compute>(op.source->action);
  known.assumed = assumes(compute);
  known.rule = plan::find_kernel_rule(compute.kernel);
  const bool contracts = !plan::is_linear(compute.kernel) && compute.kernel != plan::kOpaqueKernel;
  known.simple = contracts && keeps_kinds_and_scales(compute, known.rule);
  for (const Access& access : compute.accesses) {
    const plan::Tensor& tensor = tensor_of(access);
    const bool writes = access.kind != Access::Kind::reads;
    // `add`, `cast` and `scale` only move a version.
    if (writes && access.value.is_new && !plan::is_linear(compute.kernel)) {
      updated_.insert(access.value.tensor.value);
    }
    int layer = 0;
    if (known.rule != nullptr && known.simple) {
      const auto operands = writes ? known.rule->writes : known.rule->reads;
      layer = std::ranges::find(operands, tensor.kind, &plan::Operand::kind)->layer;
    }
    known.layers.push_back(layer);
  }
  return known;
}

// The part of a signature that does not depend on the rank. If it fails, KernelCheck reports it.
bool KernelContracts::keeps_kinds_and_scales(const plan::Compute& compute,
                                             const plan::KernelRule* rule) const {
  if (rule == nullptr) return true;
  if (rule->kernel == plan::kUpdateKernel) return false;
  plan::Ratio gradient;
  const auto scale_of = [&](const Access& access) -> const plan::Ratio& {
    return tensor_of(access).scale;
  };
  const auto kind_of = [&](const Access& access) -> const std::string& {
    return tensor_of(access).kind;
  };
  bool has_gradient = false;
  for (const Access& access : compute.accesses) {
    const bool reads = access.kind == Access::Kind::reads;
    const auto operands = reads ? rule->reads : rule->writes;
    if (std::ranges::find(operands, kind_of(access), &plan::Operand::kind) == operands.end()) {
      return false;
    }
    if (!reads) continue;
    if (access.value.is_new) return false;
    if (kind_of(access) != "ActivationGrad") {
      if (access.value.scale != scale_of(access)) return false;
      continue;
    }
    if (has_gradient && gradient != access.value.scale) return false;
    gradient = access.value.scale;
    has_gradient = true;
  }
  const auto all_there = [&](std::span<const plan::Operand> operands, bool reads) {
    return std::ranges::all_of(operands, [&](const plan::Operand& operand) {
      return operand.optional || std::ranges::any_of(compute.accesses, [&](const Access& access) {
               return (access.kind == Access::Kind::reads) == reads &&
                      kind_of(access) == operand.kind;
             });
    });
  };
  if (!all_there(rule->reads, true) || !all_there(rule->writes, false)) return false;
  return std::ranges::all_of(compute.accesses, [&](const Access& access) {
    if (access.kind == Access::Kind::reads || rule->kernel == "loss") return true;
    return access.value.scale == (has_gradient ? gradient : scale_of(access));
  });
}

// Whether there is one run for each dimension.
bool KernelContracts::one_run_each(const plan::RankProgram& program,
                                   const plan::flat::Access& access,
                                   std::span<const plan::flat::Run>& runs) const {
  runs = program.runs_of(access.value);
  const plan::Tensor& tensor = plan_.tensors[access.value.tensor];
  return access.region.count > 0 && !access.value.zero && runs.size() == tensor.dimensions();
}

bool KernelContracts::fast_path_holds(const plan::RankProgram& program,
                                      std::span<const SlopeId> slopes,
                                      const plan::flat::Operation& op) {
  const StaticInfo& known = static_info(op);
  if (!known.simple) return false;
  const std::span<const plan::flat::Access> accesses = program.accesses_of(op);
  std::int64_t layer = -1;
  bool has_layer = false;
  for (std::size_t a = 0; a < accesses.size() && known.rule != nullptr; ++a) {
    const plan::flat::Value& value = accesses[a].value;
    const plan::Tensor& tensor = plan_.tensors[value.tensor];
    if (tensor.instances == 0) continue;
    const std::int64_t here = value.instance - known.layers[a];
    if (has_layer && here != layer) return false;
    layer = here;
    has_layer = true;
    const bool loss_reads = known.rule->kernel == "loss" && accesses[a].kind == Access::Kind::reads;
    if (loss_reads && value.instance != tensor.instances - 1) return false;
  }
  const auto slope = [&](const plan::flat::Access& access, std::size_t run) {
    return slopes.empty() ? 0 : slopes[static_cast<std::size_t>(access.value.runs.first) + run];
  };
  const auto is_whole = [](const plan::flat::Run& run, const plan::Tensor& tensor) {
    return run.begin == 0 && run.stride == 1 && run.count == tensor.dimension(run.dimension).size;
  };
  bool writes = false;  // otherwise the reads are unchecked
  for (const plan::flat::Access& write : accesses) {
    if (write.kind == Access::Kind::reads) continue;
    writes = true;
    std::span<const plan::flat::Run> stated;
    if (!one_run_each(program, write, stated)) return false;
    const plan::Tensor& out = plan_.tensors[write.value.tensor];
    // The run of each dimension of the output.
    stated_run_.assign(out.dimensions(), 0);
    for (std::size_t k = 0; k < stated.size(); ++k) stated_run_[stated[k].dimension.index()] = k;
    for (std::size_t r = 0; r < accesses.size(); ++r) {
      const plan::flat::Access& read = accesses[r];
      if (read.kind != Access::Kind::reads) continue;
      for (std::size_t other = 0; other < r; ++other) {  // one region of each tensor
        const plan::flat::Value& value = accesses[other].value;
        if (accesses[other].kind == Access::Kind::reads && value.tensor == read.value.tensor) {
          return false;
        }
      }
      std::span<const plan::flat::Run> runs;
      if (!one_run_each(program, read, runs)) return false;
      const plan::Tensor& from = plan_.tensors[read.value.tensor];
      const std::vector<int>& place = map(read.value.tensor, write.value.tensor).place;
      for (std::size_t k = 0; k < runs.size(); ++k) {
        const plan::flat::Run& run = runs[k];
        const int there = place[run.dimension.index()];
        const bool whole = is_whole(run, from);
        if (from.in_sum(run.dimension)) {
          if (!whole) return false;
          if (there >= static_cast<int>(out.part.size()) &&
              !is_whole(stated[stated_run_[there]], out)) {
            return false;
          }
          continue;
        }
        if (there < 0) {
          if (!whole) return false;
          continue;
        }
        const std::size_t at = stated_run_[there];
        const bool same = run.begin == stated[at].begin && run.count == stated[at].count &&
                          run.stride == stated[at].stride && slope(read, k) == slope(write, at);
        if (same) continue;
        if (there >= static_cast<int>(out.part.size())) return false;
        const bool inside = run.stride == 1 && stated[at].stride == 1 &&
                            slope(read, k) == slope(write, at) && run.begin <= stated[at].begin &&
                            stated[at].begin + stated[at].count <= run.begin + run.count;
        if (!whole && !inside) return false;
      }
    }
  }
  return writes;
}

}  // namespace shiplap::check
