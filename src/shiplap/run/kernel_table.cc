#include "shiplap/run/kernel_table.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/suggest.h"

namespace shiplap::run {

std::vector<std::int64_t> coordinates(const KernelAccess& access, plan::DimensionId dimension) {
  std::vector<std::int64_t> all;
  for (const plan::flat::Run& run : access.runs) {
    if (run.dimension != dimension) continue;
    for (std::int64_t k = 0; k < run.count; ++k) all.push_back(run.begin + k * run.stride);
  }
  return all;
}

void KernelTable::bind(std::string name, Kernel kernel) {
  const bool is_new = kernels_.emplace(std::move(name), std::move(kernel)).second;
  ensure(is_new, "a kernel is bound once");
}

void KernelTable::bind_joined(std::string_view name, JoinedKernel kernel) {
  ensure(find(name) != nullptr && find_joined(name) == nullptr, "a joined kernel is a second form");
  joined_.emplace(name, std::move(kernel));
}

const KernelTable::Kernel* KernelTable::find(std::string_view name) const {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : &found->second;
}

const KernelTable::JoinedKernel* KernelTable::find_joined(std::string_view name) const {
  const auto found = joined_.find(name);
  return found == joined_.end() ? nullptr : &found->second;
}

std::vector<std::string> KernelTable::names() const {
  std::vector<std::string> names;
  names.reserve(kernels_.size());
  for (const auto& [name, kernel] : kernels_) names.push_back(name);
  return names;
}

std::vector<Diagnostic> unknown_kernels(const plan::RankProgram& program,
                                        const KernelTable& kernels) {
  std::vector<Diagnostic> unknown;
  std::set<std::string> reported;
  for (const plan::flat::Operation& operation : program.operations) {
    const auto* const compute = std::get_if<plan::Compute>(&operation.source->action);
    if (compute == nullptr || kernels.find(compute->kernel) != nullptr) continue;
    if (!reported.insert(compute->kernel).second) continue;
    const std::vector<std::string> names = kernels.names();
    const std::string near = nearest(compute->kernel, names);
    unknown.push_back({.code = "D640",
                       .where = program.where(operation),
                       .what = fmt::format("unknown kernel `{}`", compute->kernel),
                       .why = names.empty()
                                  ? "the kernel table is empty"
                                  : fmt::format("known kernels: {}", fmt::join(names, ", ")),
                       .help = near.empty() ? "" : fmt::format("did you mean `{}`?", near)});
  }
  return unknown;
}

}  // namespace shiplap::run
