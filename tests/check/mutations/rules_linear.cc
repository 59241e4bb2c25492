// Rules about `add`, `cast`, `scale` and `zero`. One of them is put before a read and states to
// leave what is read there, so that all else goes on as before.
#include <algorithm>
#include <utility>

#include "rules_internal.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Compute;
using plan::Tensor;
using plan::TensorId;
using plan::Value;

namespace {

// Calls `put` with every read whose rows can be replaced, and puts the actions before it.
template <class Put>
Edits before_reads(const Site& site, const Put& put) {
  const Compute* compute = compute_at(site);
  if (compute == nullptr) return {};
  Edits edits;
  for (const Access& access : compute->accesses) {
    if (access.kind != Access::Kind::reads || access.value.sum == plan::Sum::none) continue;
    put(access, [&](std::vector<plan::Action> actions, Edit edit) {
      actions.emplace_back(*compute);
      edit.with = instead_of(*operation_at(site), actions);
      edits.push_back(std::move(edit));
    });
  }
  return edits;
}

// The kernel makes what is read of another value.
Edits made_of(const Site& site, const std::string& kernel, Change* change) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    for (const Value& value : change(site.plan, access.value)) {
      add({convert("other", access.region, access.value, value),
           convert(kernel, access.region, value, access.value)},
          {});
    }
  });
}

template <Change* change>
Edits cast_of(const Site& site) {
  return made_of(site, "cast", change);
}

template <Change* change>
Edits add_of(const Site& site) {
  return made_of(site, "add", change);
}

template <Change* change>
Edits scale_of(const Site& site) {
  return made_of(site, "scale", change);
}

Edits added_twice(const Site& site) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    for (const char* kernel : {"add", "cast", "scale"}) {
      Compute twice = convert(kernel, access.region, access.value, access.value);
      twice.accesses.insert(twice.accesses.begin(), twice.accesses.front());
      add({std::move(twice)}, {});
    }
  });
}

// ---- with a second region

// What is read is the sum of itself and something that does not belong to it.
Edits added_to(const Site& site, Change* change) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    const auto second = scratch(site, access.region);
    if (!second) return;
    for (const Value& value : change(site.plan, access.value)) {
      Compute sum = convert("add", access.region, access.value, access.value);
      sum.accesses.insert(sum.accesses.begin(), reads(second->region, value));
      Compute writing{.kernel = "other", .accesses = {writes(second->region, value)}};
      add({std::move(writing), std::move(sum)}, {.buffers = {second->buffer}});
    }
  });
}

template <Change* change>
Edits sum_with(const Site& site) {
  return added_to(site, change);
}

// Of two other tensors.
Edits sum_of_two_tensors(const Site& site) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    const auto second = scratch(site, access.region);
    const auto less = with_fewer_contributions(site.plan, access.value);
    if (!second || less.empty()) return;
    Tensor one = tensor_of(site, access.value);
    Tensor two = one;
    one.name = "One";
    two.name = "Two";
    Value rest = less.front();  // the contribution that `less` lacks
    plan::Run& run = rest.runs.back();
    if (!run.begin.is_literal() || !run.count.is_literal() || run.begin.literal() != 1 ||
        access.value.sum != plan::Sum::complete || less.size() != 1) {
      return;
    }
    run.begin = 0;
    run.count = 1;
    Value first = less.front();
    first.tensor = TensorId(site.plan.tensors.size());
    rest.tensor = TensorId(site.plan.tensors.size() + 1);
    Compute sum = convert("add", access.region, first, access.value);
    sum.accesses.insert(sum.accesses.begin(), reads(second->region, rest));
    Compute writing{.kernel = "other", .accesses = {writes(second->region, rest)}};
    add({convert("other", access.region, access.value, first), std::move(writing), std::move(sum)},
        {.tensors = {one, two}, .buffers = {second->buffer}});
  });
}

// ---- by way of another tensor

// Another value becomes what is read by way of a tensor that has no instances and no versions.
Edits through_another(const Site& site, Change* change) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    for (const Value& value : change(site.plan, access.value)) {
      Tensor between = tensor_of(site, access.value);
      between.name = "Between";
      between.kind = "Between";
      between.instances = 0;
      Value there = access.value;
      there.tensor = TensorId(site.plan.tensors.size());
      there.indexed = false;
      there.index = 0;
      there.is_new = false;
      add({convert("other", access.region, access.value, value),
           convert("cast", access.region, value, there),
           convert("cast", access.region, there, access.value)},
          {.tensors = {between}});
    }
  });
}

template <Change* change>
Edits laundered(const Site& site) {
  return through_another(site, change);
}

// A sum becomes a tensor that is none, although contributions are missing.
Edits partial_sum_as_whole(const Site& site) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    for (const Value& value : with_fewer_contributions(site.plan, access.value)) {
      Tensor plain = tensor_of(site, access.value);
      plain.name = "Plain";
      plain.kind = "Plain";
      plain.sum.clear();
      plain.mask.clear();
      Value there = access.value;
      there.tensor = TensorId(site.plan.tensors.size());
      there.sum = plan::Sum::complete;
      there.is_new = false;
      std::erase_if(there.runs, [&](const plan::Run& run) {
        return tensor_of(site, access.value).in_sum(run.dimension);
      });
      add({convert("other", access.region, access.value, value),
           convert("cast", access.region, value, there),
           convert("other", access.region, there, access.value)},
          {.tensors = {plain}});
    }
  });
}

// A dimension of the sum that nothing read has.
Edits invents_dimension(const Site& site) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    Tensor wider = tensor_of(site, access.value);
    wider.name = "Wider";
    wider.kind = "Wider";
    wider.sum.push_back({.name = "invented", .size = 2});
    Value there = access.value;
    there.tensor = TensorId(site.plan.tensors.size());
    there.is_new = false;
    for (const char* kernel : {"cast", "add", "scale"}) {
      add({convert(kernel, access.region, access.value, there),
           convert("other", access.region, there, access.value)},
          {.tensors = {wider}});
    }
  });
}

Edits zero_states_something(const Site& site) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    add({Compute{.kernel = "zero", .accesses = {writes(access.region, access.value)}}}, {});
  });
}

Edits zero_in_between(const Site& site) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    for (const Value& value : with_no_contributions(site.plan, access.value)) {
      add({Compute{.kernel = "zero", .accesses = {writes(access.region, value)}}}, {});
    }
  });
}

// It takes what it reads at one scale for another.
Edits scale_of_two(const Site& site) {
  return before_reads(site, [&](const Access& access, const auto& add) {
    const auto second = scratch(site, access.region);
    for (const Value& less : with_fewer_contributions(site.plan, access.value)) {
      if (!second || access.value.sum != plan::Sum::complete) return;
      Value rest = less;
      plan::Run& run = rest.runs.back();
      if (run.begin != plan::Expr(1)) continue;
      run.begin = 0;
      run.count = 1;
      rest = with_other_scale(site.plan, rest).front();
      Compute sum = convert("scale", access.region, less, access.value);
      sum.accesses.insert(sum.accesses.begin(), reads(second->region, rest));
      Compute writing{.kernel = "other", .accesses = {writes(second->region, rest)}};
      add({convert("other", access.region, access.value, less), std::move(writing), std::move(sum)},
          {.buffers = {second->buffer}});
    }
  });
}

}  // namespace

void add_linear_rules(Rules& rules) {
  const std::string instance = "`add`, `cast`, `scale`: same layer (instance)";
  rules.push_back(
      {instance, "cast of another instance", {"D752", "D755"}, cast_of<with_other_instance>});
  rules.push_back(
      {instance, "add of another instance", {"D752", "D755"}, add_of<with_other_instance>});
  rules.push_back(
      {instance, "scale of another instance", {"D752", "D755"}, scale_of<with_other_instance>});
  rules.push_back(
      {instance, "add with another instance", {"D752", "D755"}, sum_with<with_other_instance>});
  rules.push_back({instance,
                   "cast of another instance by way of a tensor without",
                   {"D752", "D755", "assumed cast"},
                   laundered<with_other_instance>});
  const std::string version = "`add`, `cast`, `scale`: same version";
  rules.push_back({version, "cast of the other version", {"D755"}, cast_of<with_other_version>});
  rules.push_back({version, "add with the other version", {"D755"}, sum_with<with_other_version>});
  rules.push_back({version,
                   "cast of the other version by way of a tensor without",
                   {"D755", "assumed cast"},
                   laundered<with_other_version>});
  const std::string each = "`add`, `cast`, `scale`: every contribution exactly once";
  rules.push_back({each, "one reads something twice", {"D742"}, added_twice});
  rules.push_back(
      {each, "add of what is there already", {"D742"}, sum_with<with_fewer_contributions>});
  rules.push_back(
      {each, "cast of fewer contributions", {"D755", "D740"}, cast_of<with_fewer_contributions>});
  rules.push_back(
      {each, "add of more contributions", {"D755", "D742"}, add_of<with_more_contributions>});
  rules.push_back(
      {each, "scale of other contributions", {"D755", "D740"}, scale_of<with_other_contributions>});
  rules.push_back({each, "cast of other coordinates", {"D755", "D740"}, cast_of<with_other_part>});
  rules.push_back({each, "cast of zero", {"D755", "D740"}, cast_of<with_no_contributions>});
  rules.push_back({each, "add of two other tensors", {"D755"}, sum_of_two_tensors});
  rules.push_back({each, "a dimension of the sum that was not read", {"D755"}, invents_dimension});
  rules.push_back({"`add`, `cast`, `scale`: a dimension not in the output is read whole",
                   "cast of a part of a sum to a tensor without",
                   {"D740"},
                   partial_sum_as_whole});
  const std::string scale = "only `scale` changes a scale, by one factor for all operands";
  rules.push_back({scale, "cast of another scale", {"D745"}, cast_of<with_other_scale>});
  rules.push_back({scale, "add of another scale", {"D745"}, add_of<with_other_scale>});
  rules.push_back({scale, "scale of two scales", {"D745"}, scale_of_two});
  rules.push_back(
      {"`zero` writes an empty sum", "zero states something", {"D755"}, zero_states_something});
  rules.push_back({"`zero` writes an empty sum",
                   "zero before a read",
                   {"D741", "D740", "D735", "D748", "D742", "D755", "D744"},
                   zero_in_between});
}

}  // namespace shiplap::mutations
