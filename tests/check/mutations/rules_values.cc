// Rules about statements: what is read must hold, a kernel states what follows from what it reads.
#include <algorithm>
#include <utility>

#include "rules_internal.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Compute;
using plan::Fact;
using plan::Operation;
using plan::Region;
using plan::Value;

namespace {

// ---- what is read must hold

// A read or a goal states another value than the one that is there.
Edits states_other(const Site& site, Change* change) {
  Edits edits;
  if (const auto* fact = std::get_if<Fact>(&site.statement().node)) {
    if (fact->kind != Fact::Kind::goal) return {};
    for (Value& value : change(site.plan, fact->value)) {
      Fact other = *fact;
      other.value = std::move(value);
      edits.push_back({.with = {{std::move(other)}}});
    }
    return edits;
  }
  const Compute* compute = compute_at(site);
  if (compute == nullptr) return {};
  for (std::size_t k = 0; k < compute->accesses.size(); ++k) {
    if (compute->accesses[k].kind != Access::Kind::reads) continue;
    for (Value& value : change(site.plan, compute->accesses[k].value)) {
      Compute other = *compute;
      other.accesses[k].value = std::move(value);
      edits.push_back({.with = instead_of(*operation_at(site), {std::move(other)})});
    }
  }
  return edits;
}

template <Change* change>
Edits read_states(const Site& site) {
  return states_other(site, change);
}

// ---- a kernel states what follows from what it reads

// What it reads is turned into another value before it, and back after it: so that the statements
// hold, and only the kernel can object.
Edits reads_other(const Site& site, Change* change) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || compute->kernel == "other") return {};
  Edits edits;
  for (std::size_t k = 0; k < compute->accesses.size(); ++k) {
    const Access& access = compute->accesses[k];
    if (access.kind != Access::Kind::reads) continue;
    for (const Value& value : change(site.plan, access.value)) {
      // What is updated in place has its new value afterwards.
      const auto in_place = std::ranges::any_of(compute->accesses, [&](const Access& other) {
        return other.kind != Access::Kind::reads && other.region == access.region;
      });
      if (!in_place && !is_only_access(*compute, k)) continue;
      Compute other = *compute;
      other.accesses[k].value = value;
      std::vector<plan::Action> actions{convert("other", access.region, access.value, value),
                                        std::move(other)};
      if (!in_place) actions.emplace_back(convert("other", access.region, value, access.value));
      edits.push_back({.with = instead_of(*operation_at(site), actions)});
    }
  }
  return edits;
}

// What it adds goes by way of a buffer of its own, so that it can be turned back.
std::optional<Edit> adds_other(const Site& site, std::size_t k, const Value& value) {
  Compute compute = *compute_at(site);
  const Access access = compute.accesses[k];
  const auto between = scratch(site, access.region);
  if (!between) return std::nullopt;
  compute.accesses[k] = writes(between->region, value);
  return Edit{.with = instead_of(
                  *operation_at(site),
                  {std::move(compute), convert("other", between->region, value, access.value),
                   plan::Copy{.from = between->region, .to = access.region, .add = true}}),
              .buffers = {between->buffer}};
}

// The same of what it writes.
Edits writes_other(const Site& site, Change* change) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || compute->kernel == "other") return {};
  Edits edits;
  for (std::size_t k = 0; k < compute->accesses.size(); ++k) {
    const Access& access = compute->accesses[k];
    if (access.kind == Access::Kind::reads) continue;
    for (const Value& value : change(site.plan, access.value)) {
      if (access.kind == Access::Kind::adds) {
        if (auto edit = adds_other(site, k, value)) edits.push_back(std::move(*edit));
        continue;
      }
      Compute other = *compute;
      other.accesses[k].value = value;
      edits.push_back({.with = instead_of(*operation_at(site),
                                          {std::move(other),
                                           convert("other", access.region, value, access.value)})});
    }
  }
  return edits;
}

template <Change* change>
Edits kernel_reads(const Site& site) {
  return reads_other(site, change);
}

template <Change* change>
Edits kernel_writes(const Site& site) {
  return writes_other(site, change);
}

// All coordinates but the last of the dimension that varies slowest, and its rows.
std::optional<Access> narrowed(const Site& site, const Access& access) {
  Access less = access;
  const plan::Tensor& tensor = tensor_of(site, access.value);
  if (tensor.part.empty() || !access.region.count.is_literal() ||
      access.region.kind != Region::Kind::rows) {
    return std::nullopt;
  }
  std::int64_t size = tensor.part.front().size;
  const bool stated =
      !access.value.runs.empty() && !tensor.in_sum(access.value.runs.front().dimension);
  if (stated) {
    const plan::Run& run = access.value.runs.front();
    if (run.list.exists() || !run.count.is_literal() ||
        std::ranges::count(access.value.runs, run.dimension, &plan::Run::dimension) != 1) {
      return std::nullopt;
    }
    size = run.count.literal();
    less.value.runs.front().count = size - 1;
  } else {
    less.value.runs.insert(less.value.runs.begin(),
                           {.dimension = plan::DimensionId(std::size_t{0}), .count = size - 1});
  }
  const std::int64_t rows = access.region.count.literal();
  if (size < 2 || rows % size != 0) return std::nullopt;
  less.region.count = rows / size * (size - 1);
  return less;
}

template <class Changed>
Edits change_read(const Site& site, const Changed& changed) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || compute->kernel == "other") return {};
  Edits edits;
  for (std::size_t k = 0; k < compute->accesses.size(); ++k) {
    if (compute->accesses[k].kind != Access::Kind::reads) continue;
    Compute other = *compute;
    if (!changed(other.accesses, k)) continue;
    edits.push_back({.with = instead_of(*operation_at(site), {std::move(other)})});
  }
  return edits;
}

Edits reads_less(const Site& site) {
  return change_read(site, [&](std::vector<Access>& accesses, std::size_t k) {
    const auto less = narrowed(site, accesses[k]);
    if (less) accesses[k] = *less;
    return less.has_value();
  });
}

Edits reads_twice(const Site& site) {
  return change_read(site, [&](std::vector<Access>& accesses, std::size_t k) {
    accesses.push_back(accesses[k]);
    return true;
  });
}

bool is_step_kernel(const std::string& kernel) {
  static const std::vector<std::string> kAll{
      "forward", "loss", "backward", "backward_input", "backward_weight", "update"};
  return std::ranges::find(kAll, kernel) != kAll.end();
}

Edits leaves_out_operand(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || !is_step_kernel(compute->kernel)) return {};
  return change_read(site, [&](std::vector<Access>& accesses, std::size_t k) {
    accesses.erase(accesses.begin() + static_cast<std::ptrdiff_t>(k));
    return true;
  });
}

// A kernel of a training step takes a tensor of another kind for one of its operands.
Edits takes_other_kind(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || !is_step_kernel(compute->kernel)) return {};
  Edits edits;
  for (std::size_t k = 0; k < compute->accesses.size(); ++k) {
    const Access& access = compute->accesses[k];
    if (access.kind != Access::Kind::reads || !is_only_access(*compute, k)) continue;
    plan::Tensor tensor = tensor_of(site, access.value);
    tensor.name = "Another";
    tensor.kind = "Another";
    Value value = access.value;
    value.tensor = plan::TensorId(site.plan.tensors.size());
    value.is_new = false;
    Compute other = *compute;
    other.accesses[k].value = value;
    edits.push_back(
        {.with = instead_of(*operation_at(site),
                            {convert("other", access.region, access.value, value), std::move(other),
                             convert("other", access.region, value, access.value)}),
         .tensors = {std::move(tensor)}});
  }
  return edits;
}

// Two computations of one kernel in a row of statements state each other's contributions.
Edits swapped_claims(const Site& site) {
  const Compute* first = compute_at(site);
  if (first == nullptr || first->kernel == "other") return {};
  Edits edits;
  for (std::size_t next = site.index + 1; next < std::min(site.index + 12, site.block.size());
       ++next) {
    const auto* operation = std::get_if<Operation>(&site.block[next].node);
    const auto* second = operation == nullptr ? nullptr : std::get_if<Compute>(&operation->action);
    if (second == nullptr || second->kernel != first->kernel ||
        second->accesses.size() != first->accesses.size()) {
      continue;
    }
    for (std::size_t k = 0; k < first->accesses.size(); ++k) {
      const Access& a = first->accesses[k];
      const Access& b = second->accesses[k];
      // Into one sum: so it is right in the end.
      if (a.kind != Access::Kind::adds || b.kind != Access::Kind::adds || a.region != b.region ||
          a.value == b.value) {
        continue;
      }
      Edit edit{.with = Statements(site.block.begin() + static_cast<std::ptrdiff_t>(site.index),
                                   site.block.begin() + static_cast<std::ptrdiff_t>(next) + 1),
                .count = next + 1 - site.index};
      const auto value = [&](plan::Statement& statement) -> Value& {
        return std::get<Compute>(std::get<Operation>(statement.node).action).accesses[k].value;
      };
      std::swap(value(edit.with.front()), value(edit.with.back()));
      edits.push_back(std::move(edit));
    }
  }
  return edits;
}

}  // namespace

void add_statement_rules(Rules& rules) {
  const std::string rule = "every read finds its declared value";
  rules.push_back({rule,
                   "a read of another instance",
                   {"D744", "D752", "D755", "D750", "D747", "D748", "D741", "D742", "D756"},
                   read_states<with_other_instance>});
  rules.push_back({rule,
                   "a read of other coordinates",
                   {"D744", "D755", "D747", "D749", "D756", "D748", "D741", "D742", "D740"},
                   read_states<with_other_part>});
  rules.push_back({rule,
                   "a read of fewer contributions",
                   {"D742", "D755", "D740", "D741", "D748", "D735"},
                   read_states<with_fewer_contributions>});
  rules.push_back({rule,
                   "a read of more contributions",
                   {"D741", "D740", "D755", "D753", "D742"},
                   read_states<with_more_contributions>});
  rules.push_back({rule,
                   "a read of other contributions",
                   {"D741", "D742", "D755", "D753", "D740", "D744"},
                   read_states<with_other_contributions>});
  rules.push_back({rule,
                   "a read of zero, which is not there",
                   {"D742", "D740", "D755", "D735"},
                   read_states<with_no_contributions>});
  rules.push_back(
      {rule, "a read at another scale", {"D745", "D740"}, read_states<with_other_scale>});
  rules.push_back({rule,
                   "a read of the other version",
                   {"D748", "D749", "D754", "D744", "D755", "D735", "D747"},
                   read_states<with_other_version>});
}

void add_kernel_rules(Rules& rules) {
  rules.push_back({"all operands belong to one layer",
                   "a kernel reads another instance",
                   {"D752", "D750", "D755", "D742"},
                   kernel_reads<with_other_instance>});
  rules.push_back({"all operands belong to one layer",
                   "a kernel writes another instance",
                   {"D752", "D750", "D755"},
                   kernel_writes<with_other_instance>});
  rules.push_back({"operands agree with the output on shared dimensions",
                   "a kernel reads other coordinates",
                   {"D755", "D742", "D740"},
                   kernel_reads<with_other_part>});
  rules.push_back({"operands agree with the output on shared dimensions",
                   "a kernel writes other coordinates",
                   {"D755"},
                   kernel_writes<with_other_part>});
  rules.push_back({"only complete sums are read",
                   "a kernel reads fewer contributions",
                   {"D740", "D755"},
                   kernel_reads<with_fewer_contributions>});
  rules.push_back({"only complete sums are read",
                   "a kernel reads zero",
                   {"D740", "D755"},
                   kernel_reads<with_no_contributions>});
  rules.push_back({"the output declares exactly what is computed",
                   "a kernel states fewer contributions",
                   {"D755", "D740"},
                   kernel_writes<with_fewer_contributions>});
  rules.push_back({"the output declares exactly what is computed",
                   "a kernel states more contributions",
                   {"D755"},
                   kernel_writes<with_more_contributions>});
  rules.push_back({"the output declares exactly what is computed",
                   "a kernel states other contributions",
                   {"D755"},
                   kernel_writes<with_other_contributions>});
  rules.push_back({"the output declares exactly what is computed",
                   "a kernel states zero",
                   {"D755"},
                   kernel_writes<with_no_contributions>});
  rules.push_back({"the output declares exactly what is computed",
                   "two additions state each other's contributions",
                   {"D755"},
                   swapped_claims});
  rules.push_back({"a kernel keeps scales",
                   "a kernel reads at another scale",
                   {"D745", "D740"},
                   kernel_reads<with_other_scale>});
  rules.push_back({"a kernel keeps scales",
                   "a kernel writes at another scale",
                   {"D745"},
                   kernel_writes<with_other_scale>});
  rules.push_back({"passes read old weights, `update` writes new ones",
                   "a kernel reads the other version",
                   {"D754", "D755", "D752"},
                   kernel_reads<with_other_version>});
  rules.push_back({"passes read old weights, `update` writes new ones",
                   "a kernel writes the other version",
                   {"D754", "D755"},
                   kernel_writes<with_other_version>});
  rules.push_back({"a contracted dimension is read whole",
                   "a kernel reads less",
                   {"D755", "D740"},
                   reads_less});
  rules.push_back({"a contracted dimension is read once",
                   "a kernel reads something twice",
                   {"D742", "D755", "D740"},
                   reads_twice});
  rules.push_back({"kernels of a training step have the required operands",
                   "an operand is missing",
                   {"D754", "D755"},
                   leaves_out_operand});
  rules.push_back({"kernels of a training step have the required operands",
                   "an operand is of another kind",
                   {"D754"},
                   takes_other_kind});
}

}  // namespace shiplap::mutations
