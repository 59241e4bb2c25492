// Rules about contributions on their way, memory, and what a step leaves.
#include <algorithm>
#include <utility>

#include "rules_internal.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Collective;
using plan::Compute;
using plan::Operation;

namespace {

// Keeps its name, stream and place.
plan::Action nothing() { return Compute{.kernel = "other"}; }

Edits with_actions(const Site& site, const std::vector<std::vector<plan::Action>>& all) {
  Edits edits;
  for (const auto& actions : all) {
    edits.push_back({.with = instead_of(*operation_at(site), actions)});
  }
  return edits;
}

template <class Changed>
Edits change_access(const Site& site, Access::Kind kind, const Changed& changed) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr) return {};
  std::vector<std::vector<plan::Action>> all;
  for (std::size_t k = 0; k < compute->accesses.size(); ++k) {
    const Access& access = compute->accesses[k];
    if (access.kind != kind || tensor_of(site, access.value).sum.empty()) continue;
    if (access.value.sum == plan::Sum::none) continue;
    all.push_back(changed(*compute, k));
  }
  return with_actions(site, all);
}

Edits does_not_add(const Site& site) {
  return change_access(site, Access::Kind::adds, [](Compute compute, std::size_t k) {
    compute.accesses.erase(compute.accesses.begin() + static_cast<std::ptrdiff_t>(k));
    return std::vector<plan::Action>{std::move(compute)};
  });
}

Edits adds_again(const Site& site) {
  return change_access(site, Access::Kind::adds, [](const Compute& compute, std::size_t k) {
    return std::vector<plan::Action>{compute,
                                     Compute{.kernel = "other", .accesses = {compute.accesses[k]}}};
  });
}

Edits replaces_sum(const Site& site) {
  return change_access(site, Access::Kind::adds, [](Compute compute, std::size_t k) {
    compute.accesses[k].kind = Access::Kind::writes;
    return std::vector<plan::Action>{std::move(compute)};
  });
}

Edits adds_to_what_is_there(const Site& site) {
  return change_access(site, Access::Kind::writes, [](Compute compute, std::size_t k) {
    compute.accesses[k].kind = Access::Kind::adds;
    return std::vector<plan::Action>{std::move(compute)};
  });
}

Edits moves_with_add_or_without(const Site& site) {
  const Operation* operation = operation_at(site);
  if (operation == nullptr) return {};
  plan::Action action = operation->action;
  if (auto* copy = std::get_if<plan::Copy>(&action)) {
    copy->add = !copy->add;
  } else if (auto* receive = std::get_if<plan::Receive>(&action)) {
    receive->add = !receive->add;
  } else if (auto* exchange = std::get_if<plan::Exchange>(&action)) {
    exchange->add = !exchange->add;
  } else {
    return {};
  }
  return with_actions(site, {{action}});
}

// ---- reductions, on all ranks of a program

bool is_reduction(const Site& site) {
  const auto* call = action_at<Collective>(site);
  return call != nullptr && reduces(call->kind);
}

Edits reduces_again(const Site& site) {
  const auto* call = action_at<Collective>(site);
  if (call == nullptr || call->kind != CollectiveKind::all_reduce || call->from != call->to) {
    return {};
  }
  Collective plain = *call;
  plain.scale = {};
  return with_actions(site, {{plain, *call}});
}

Edits does_not_reduce(const Site& site) {
  const auto* call = action_at<Collective>(site);
  if (call == nullptr || call->kind == CollectiveKind::barrier) return {};
  return with_actions(site, {{nothing()}});
}

Edits reduces_at_other_scale(const Site& site) {
  if (!is_reduction(site)) return {};
  Collective call = *action_at<Collective>(site);
  call.scale = plan::Ratio(call.scale.numerator(), 3 * call.scale.denominator());
  return with_actions(site, {{call}});
}

Edits reduces_by_maximum(const Site& site) {
  if (!is_reduction(site)) return {};
  Collective call = *action_at<Collective>(site);
  call.op = ReduceOp::max;
  return with_actions(site, {{call}});
}

Edits moves_instead_of_reducing(const Site& site) {
  if (!is_reduction(site)) return {};
  Collective call = *action_at<Collective>(site);
  if (call.kind != CollectiveKind::all_reduce && call.kind != CollectiveKind::reduce) return {};
  call.kind = CollectiveKind::broadcast;
  call.op = ReduceOp::sum;
  call.scale = {};
  return with_actions(site, {{call}});
}

// ---- what a step leaves

Edits does_not_update(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || compute->kernel != "update") return {};
  return with_actions(site, {{nothing()}});
}

Edits updates_less(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || compute->kernel != "update") return {};
  std::vector<std::vector<plan::Action>> all;
  for (std::size_t k = 0; k < compute->accesses.size(); ++k) {
    if (compute->accesses[k].kind != Access::Kind::writes) continue;
    Compute less = *compute;
    less.accesses.erase(less.accesses.begin() + static_cast<std::ptrdiff_t>(k));
    all.push_back({std::move(less)});
  }
  return with_actions(site, all);
}

// A kernel replaces the update, or a gradient, without reading the operands that it needs.
Edits copies_old_to_new(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || compute->kernel != "update") return {};
  std::vector<std::vector<plan::Action>> all;
  for (const char* kernel : {"cast", "add", "scale"}) {
    Compute other = *compute;
    other.kernel = kernel;
    std::erase_if(other.accesses, [&](const Access& access) {
      return access.kind == Access::Kind::reads && !tensor_of(site, access.value).has_versions();
    });
    all.push_back({std::move(other)});
  }
  return with_actions(site, all);
}

// A kernel that has no rule reads no gradient, and states the new version.
Edits renews(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr || compute->kernel != "update") return {};
  Compute other = *compute;
  other.kernel = "renew";
  std::erase_if(other.accesses, [&](const Access& access) {
    return access.kind == Access::Kind::reads && !tensor_of(site, access.value).has_versions();
  });
  return with_actions(site, {{std::move(other)}});
}

Edits begins_with_new(const Site& site) {
  const auto* fact = std::get_if<plan::Fact>(&site.statement().node);
  if (fact == nullptr || fact->kind == plan::Fact::Kind::goal ||
      !tensor_of(site, fact->value).has_versions()) {
    return {};
  }
  plan::Fact given = *fact;
  given.kind = plan::Fact::Kind::given;
  given.value.is_new = true;
  Edit edit{.with = {{given}}};
  if (fact->kind == plan::Fact::Kind::keep) {
    plan::Fact goal = given;
    goal.kind = plan::Fact::Kind::goal;
    edit.with.push_back({goal});
  }
  return {std::move(edit)};
}

// ---- memory

template <class Action>
Edits leaves_out(const Site& site) {
  if (action_at<Action>(site) == nullptr) return {};
  return with_actions(site, {{nothing()}});
}

template <class Action>
Edits does_twice(const Site& site) {
  const auto* action = action_at<Action>(site);
  if (action == nullptr) return {};
  return with_actions(site, {{*action, *action}});
}

// `free` moves up to here.
Edits frees_earlier(const Site& site) {
  Edits edits;
  if (operation_at(site) == nullptr) return {};
  for (std::size_t k = site.index + 1; k < std::min(site.index + 5, site.block.size()); ++k) {
    const auto* operation = std::get_if<Operation>(&site.block[k].node);
    if (operation == nullptr) break;
    if (!std::holds_alternative<plan::Free>(operation->action)) continue;
    Edit edit{.count = k + 1 - site.index};
    Operation moved = *operation;
    moved.after.clear();
    edit.with.push_back({std::move(moved)});
    edit.with.insert(edit.with.end(), site.block.begin() + static_cast<std::ptrdiff_t>(site.index),
                     site.block.begin() + static_cast<std::ptrdiff_t>(k));
    edits.push_back(std::move(edit));
  }
  return edits;
}

// `allocate` moves down from here.
Edits allocates_later(const Site& site) {
  if (action_at<plan::Allocate>(site) == nullptr) return {};
  Edits edits;
  for (std::size_t k = site.index + 1; k < std::min(site.index + 5, site.block.size()); ++k) {
    if (!std::holds_alternative<Operation>(site.block[k].node)) break;
    Edit edit{.with = Statements(site.block.begin() + static_cast<std::ptrdiff_t>(site.index) + 1,
                                 site.block.begin() + static_cast<std::ptrdiff_t>(k) + 1),
              .count = k + 1 - site.index};
    edit.with.push_back(site.statement());
    edits.push_back(std::move(edit));
  }
  return edits;
}

Edits allocates_before_read(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr) return {};
  std::vector<std::vector<plan::Action>> all;
  for (const Access& access : compute->accesses) {
    if (access.kind == Access::Kind::writes) continue;
    all.push_back({plan::Allocate{.rows = access.region}, *compute});
  }
  return with_actions(site, all);
}

Edits frees_before_read(const Site& site) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr) return {};
  std::vector<std::vector<plan::Action>> all;
  for (const Access& access : compute->accesses) {
    if (access.kind == Access::Kind::writes) continue;
    all.push_back({plan::Free{.rows = access.region}, *compute});
  }
  return with_actions(site, all);
}

}  // namespace

void add_flow_rules(Rules& rules) {
  const std::vector<Extent> all = {Extent::all};
  const std::string missing = "no contribution is missing";
  const std::vector<std::string> lacks = {"D741", "D740", "D753", "D732",
                                          "D754", "D755", "D743", "D748"};
  rules.push_back({missing, "a computation does not add", lacks, does_not_add});
  rules.push_back({missing, "a computation replaces what it should add to", lacks, replaces_sum});
  rules.push_back({missing,
                   "a reduction is left out",
                   {"D741", "D740", "D732", "D747", "D748", "D701", "D744", "D733", "D756", "D745",
                    "D735", "D743", "D749", "D755", "D742"},
                   does_not_reduce,
                   all});
  rules.push_back({missing,
                   "a broadcast for a reduction",
                   {"D741", "D740", "D745", "D742", "D755", "D735", "D703"},
                   moves_instead_of_reducing,
                   all});
  const std::string twice = "no contribution is counted twice";
  rules.push_back({twice, "a computation adds again", {"D742", "D753"}, adds_again});
  rules.push_back({twice,
                   "a computation adds to what it should replace",
                   {"D742", "D732", "D743", "D745", "D733"},
                   adds_to_what_is_there});
  rules.push_back({twice, "a reduction is done twice", {"D742", "D743"}, reduces_again, all});
  rules.push_back({"rows are added only where the plan declares `add`",
                   "a move with `add` for one without, or the other",
                   {"D741", "D742", "D740", "D732", "D743", "D745", "D753", "D710", "D744", "D731",
                    "D733", "D756", "D755"},
                   moves_with_add_or_without});
  rules.push_back({"a reduction applies its declared scale",
                   "another scale of a reduction",
                   {"D745", "D706", "D735"},
                   reduces_at_other_scale,
                   all});
  rules.push_back({"results of operators other than `sum` are not read",
                   "a reduction by maximum",
                   {"D746", "D706", "D735"},
                   reduces_by_maximum,
                   all});
  const std::string kept = "the step ends with the new version";
  rules.push_back({kept, "no update", {"D748", "D749", "D741", "D744"}, does_not_update});
  rules.push_back({kept, "an update of less", {"D748", "D749", "D754"}, updates_less});
  rules.push_back({kept, "the old version as the new one", {"D755"}, copies_old_to_new});
  rules.push_back(
      {kept, "it begins with the new version", {"D748", "D754", "D755", "D735"}, begins_with_new});
  rules.push_back(
      {kept, "a kernel without a rule makes it of the old one", {"D755", "assumed renew"}, renews});
}

void add_memory_rules(Rules& rules) {
  const std::string alive = "rows are used only while they are allocated";
  rules.push_back({alive, "no allocation", {"D733"}, leaves_out<plan::Allocate>});
  rules.push_back({alive, "a free earlier", {"D733", "D730", "D731"}, frees_earlier});
  rules.push_back({alive, "an allocation later", {"D733", "D730", "D731"}, allocates_later});
  rules.push_back({alive,
                   "an allocation before a read",
                   {"D733", "D732", "D730", "D731"},
                   allocates_before_read});
  rules.push_back(
      {alive, "a free before a read", {"D733", "D732", "D730", "D731"}, frees_before_read});
  rules.push_back(
      {"rows are allocated once", "an allocation twice", {"D733"}, does_twice<plan::Allocate>});
  rules.push_back({"rows are freed once", "a free twice", {"D733"}, does_twice<plan::Free>});
  rules.push_back({"a step frees the rows that it allocates",
                   "no free",
                   {"D734", "D733"},
                   leaves_out<plan::Free>});
}

}  // namespace shiplap::mutations
