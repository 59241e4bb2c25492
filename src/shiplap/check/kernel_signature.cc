// The operands of the kernels of a training step: their kinds, layers, versions and scales.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "shiplap/check/format_internal.h"
#include "shiplap/check/kernel_check_internal.h"

namespace shiplap::check {
namespace {

bool has_points(const plan::flat::Access& access) {
  return access.region.count > 0 && !access.value.zero;
}

}  // namespace

void KernelCheck::check_signature(const plan::KernelRule& rule) const {
  check_operands(rule.reads, reads_, true);
  check_operands(rule.writes, writes_, false);
  check_layers(rule);
  if (kernel_ == plan::kUpdateKernel) {
    check_update();
  } else {
    check_versions();
  }
  check_scales_read();
  for (const plan::flat::Access* write : writes_) check_scale_written(*write);
}

void KernelCheck::check_operands(std::span<const plan::Operand> operands,
                                 std::span<const plan::flat::Access* const> accesses,
                                 bool reads) const {
  for (const plan::flat::Access* access : accesses) {
    const plan::Tensor& of = tensor(*access);
    if (std::ranges::find(operands, of.kind, &plan::Operand::kind) != operands.end()) continue;
    throw_violation(
        "D754",
        fmt::format("`{}` {} `{}`, which is of kind {}", kernel_, reads ? "reads" : "writes",
                    of.name, of.kind),
        fmt::format("{} is not a kind that this kernel {}", of.kind, reads ? "reads" : "writes"),
        "state what it actually does, or use another kernel");
  }
  for (const plan::Operand& operand : operands) {
    const bool present = std::ranges::any_of(accesses, [&](const plan::flat::Access* access) {
      return tensor(*access).kind == operand.kind;
    });
    if (present || operand.optional) continue;
    throw_violation("D754",
                    fmt::format("`{}` {} no {}", kernel_, reads ? "reads" : "writes", operand.kind),
                    "this operand is required",
                    fmt::format("add a line `{}`", reads ? "reads .." : "writes .."));
  }
}

// All operands belong to one layer; those of an update to the same layers.
void KernelCheck::check_layers(const plan::KernelRule& rule) const {
  std::map<std::string_view, std::set<std::int64_t>> layers;  // by kind
  const auto collect = [&](std::span<const plan::Operand> operands,
                           std::span<const plan::flat::Access* const> accesses) {
    for (const plan::flat::Access* access : accesses) {
      const plan::Tensor& of = tensor(*access);
      if (of.instances == 0) continue;
      const auto operand = std::ranges::find(operands, of.kind, &plan::Operand::kind);
      layers[operand->kind].insert(access->value.instance - operand->layer);
    }
  };
  collect(rule.reads, reads_);
  collect(rule.writes, writes_);
  std::set<std::int64_t> all;
  for (const auto& [kind, some] : layers) all.insert(some.begin(), some.end());
  const bool update = kernel_ == plan::kUpdateKernel;
  const bool equal =
      std::ranges::all_of(layers, [&](const auto& entry) { return entry.second == all; });
  if (all.size() <= 1 || (update && equal)) return;
  std::string operands;
  for (const auto* accesses : {&reads_, &writes_}) {
    for (const plan::flat::Access* access : *accesses) {
      operands += (operands.empty() ? "" : ", ") + format_access(*access);
    }
  }
  throw_violation("D752",
                  fmt::format("`{}` mixes layers {} and {}", kernel_, *all.begin(), *all.rbegin()),
                  fmt::format("its operands are {}", operands), "use operands of one layer");
}

// A step computes with the old weights; only its end state has the new ones.
void KernelCheck::check_versions() const {
  for (const plan::flat::Access* read : reads_) {
    if (read->value.is_new) {
      throw_violation(
          "D754", fmt::format("`{}` reads `{}`", kernel_, format_access(*read)),
          "all of a step's forward and backward passes use the weights from before its update",
          "read the old version, and update later");
    }
    const plan::Tensor& of = tensor(*read);
    if (kernel_ != "loss" || of.instances == 0 || read->value.instance == of.instances - 1) {
      continue;
    }
    throw_violation(
        "D750", fmt::format("`loss` reads `{}`", format_access(*read)),
        fmt::format("the last activation is `{}[{}]`; earlier ones are no input of the loss",
                    of.name, of.instances - 1),
        "compute the loss from the last activation; receive the gradient if another rank has the "
        "layer");
  }
}

void KernelCheck::check_update() const {
  for (const plan::flat::Access* write : writes_) {
    const auto is_old = [&](const plan::flat::Access* read) {
      return read->value.tensor == write->value.tensor &&
             read->value.instance == write->value.instance && !read->value.is_new;
    };
    if (write->value.is_new && std::ranges::any_of(reads_, is_old)) continue;
    throw_violation(
        "D755",
        fmt::format("`update` writes `{}` without reading its old version", format_access(*write)),
        "an update makes the new version of what it reads",
        "read the old version, write the new one");
  }
}

void KernelCheck::check_scales_read() const {
  for (const plan::flat::Access* read : reads_) {
    const plan::Tensor& of = tensor(*read);
    const bool declared = kernel_ == plan::kUpdateKernel || of.kind == "Activation" ||
                          of.kind == plan::kWeight || of.kind == plan::kOptState;
    if (!declared || !has_points(*read) || read->value.scale == of.scale) continue;
    throw_violation(
        "D745",
        fmt::format("`{}` reads `{}` at scale {}, expected {}: {}", kernel_, format_access(*read),
                    plan::format_ratio(read->value.scale), plan::format_ratio(of.scale),
                    format_factor(read->value.scale, of.scale)),
        fmt::format("the tensor's declaration sets the scale that `{}` expects", kernel_),
        "scale it where it is reduced");
  }
}

// `forward` and `update` write the declared scale. Backward passes are linear in the gradient that
// they read, and keep its scale. A loss may write any scale.
void KernelCheck::check_scale_written(const plan::flat::Access& write) const {
  if (!has_points(write)) return;
  std::optional<plan::Ratio> due;
  std::string why = "that is the scale of its tensor";
  if (kernel_ == "forward" || kernel_ == plan::kUpdateKernel) {
    due = tensor(write).scale;
  } else if (kernel_ != "loss") {
    for (const plan::flat::Access* read : reads_) {
      if (tensor(*read).kind != "ActivationGrad" || !has_points(*read)) continue;
      if (due && *due != read->value.scale) {
        throw_violation(
            "D745",
            fmt::format("`{}` reads gradients at scale {} and {}", kernel_,
                        plan::format_ratio(*due), plan::format_ratio(read->value.scale)),
            "its output has one scale", "bring them to one scale first");
      }
      due = read->value.scale;
      why = fmt::format("a backward pass keeps the scale of the gradient `{}` that it reads",
                        format_access(*read));
    }
  }
  if (!due || write.value.scale == *due) return;
  throw_violation(
      "D745",
      fmt::format("`{}` writes `{}` at scale {}, but computes scale {}: {}", kernel_,
                  format_access(write), plan::format_ratio(write.value.scale),
                  plan::format_ratio(*due), format_factor(write.value.scale, *due)),
      why, fmt::format("state scale {}, or scale it in one place only", plan::format_ratio(*due)));
}

}  // namespace shiplap::check
