// Bugs in what is computed: microbatches, samples, layers, and ranks that do nothing.
#include <algorithm>

#include "mutations_internal.h"

namespace shiplap::mutations {

using plan::Access;
using plan::Compute;
using plan::Operation;
using plan::Region;
using plan::Value;

namespace {

std::vector<Line> kernels(const Draft& draft, std::string_view kernel) {
  std::vector<Line> found = draft.all_lines();
  std::erase_if(found, [&](const Line& line) { return !is_kernel(*line.operation, kernel); });
  return found;
}

const Access* access_of_kind(const Draft& draft, const Operation& operation, Access::Kind kind,
                             std::string_view tensor_kind) {
  for (const Access* access : accesses(operation, kind)) {
    if (tensor_of(draft, access->value).kind == tensor_kind) return access;
  }
  return nullptr;
}

// An operation that adds gradients: backward itself, or the `add` that follows it.
struct Adding {
  Mark backward = 0;
  Mark add = 0;  // 0: backward adds
};

std::vector<Adding> additions(const Draft& draft) {
  std::vector<Adding> found;
  for (const Line& line : kernels(draft, "backward")) {
    if (access_of_kind(draft, *line.operation, Access::Kind::adds, "WeightGrad") != nullptr) {
      found.push_back({.backward = line.mark});
      continue;
    }
    const Access* written =
        access_of_kind(draft, *line.operation, Access::Kind::writes, "WeightGrad");
    if (written == nullptr) continue;
    for (const Line& other : draft.lines(line.rank)) {
      if (other.index <= line.index || !is_kernel(*other.operation, "add")) continue;
      const auto reads = accesses(*other.operation, Access::Kind::reads);
      if (!reads.empty() && same_rows(reads.front()->region, written->region)) {
        found.push_back({.backward = line.mark, .add = other.mark});
        break;
      }
    }
  }
  return found;
}

}  // namespace

std::optional<Outcome> swap_forward_and_backward(Draft& draft, Planter& planter) {
  const auto candidates = kernels(draft, "forward");
  return planter.any_of(candidates, [&](const Line& forward) -> std::optional<Outcome> {
    const Access* x = access_of_kind(draft, *forward.operation, Access::Kind::reads, "Activation");
    if (x == nullptr) return std::nullopt;
    for (const Line& line : draft.lines(forward.rank)) {
      if (line.index <= forward.index || !is_kernel(*line.operation, "backward")) continue;
      if (line.operation->stream != forward.operation->stream) continue;
      const Access* same =
          access_of_kind(draft, *line.operation, Access::Kind::reads, "Activation");
      const Access* d =
          access_of_kind(draft, *line.operation, Access::Kind::reads, "ActivationGrad");
      if (same == nullptr || d == nullptr || !(same->value == x->value)) continue;
      const Codes codes = codes_of_early_read(draft, forward.mark, d->region);
      if (codes == Codes{"D744"}) return std::nullopt;
      std::swap(forward.operation->action, line.operation->action);
      if (!races(draft, forward.rank).empty()) {
        std::swap(forward.operation->action, line.operation->action);
        return std::nullopt;
      }
      return Outcome{.codes = {"D732", "D733"}, .marks = {forward.mark}};
    }
    return std::nullopt;
  });
}

std::optional<Outcome> omit_microbatch(Draft& draft, Planter& planter) {
  return planter.any_of(additions(draft), [&](const Adding& adding) -> std::optional<Outcome> {
    const Operation& backward = *draft.line(adding.backward).operation;
    const Access* d = access_of_kind(draft, backward, Access::Kind::writes, "ActivationGrad");
    if (d != nullptr && read_later(draft, adding.backward, d->region)) return std::nullopt;
    const Access* g = access_of_kind(
        draft, backward, adding.add == 0 ? Access::Kind::adds : Access::Kind::writes, "WeightGrad");
    Outcome outcome = found_by({"D753", "D741"}, readers_after(draft, g->value, {adding.backward}));
    if (outcome.marks.empty()) return std::nullopt;
    draft.erase(adding.backward);
    if (adding.add != 0) draft.erase(adding.add);
    return outcome;
  });
}

std::optional<Outcome> repeat_microbatch(Draft& draft, Planter& planter) {
  return planter.any_of(additions(draft), [&](const Adding& adding) -> std::optional<Outcome> {
    const Mark mark = adding.add != 0 ? adding.add : adding.backward;
    const Mark again = draft.insert_before(mark, *draft.line(mark).operation);
    return Outcome{.codes = {"D742", "D753"}, .marks = {again, mark}};
  });
}

namespace {

// Copies coordinates in `sample` from one value to another of the same form.
bool take_samples(const Draft& draft, Value& to, const Value& from) {
  if (to.tensor != from.tensor || to.runs.size() != from.runs.size()) return false;
  const plan::Tensor& tensor = tensor_of(draft, to);
  for (std::size_t k = 0; k < to.runs.size(); ++k) {
    if (tensor.dimension(to.runs[k].dimension).name == "sample") to.runs[k] = from.runs[k];
  }
  return true;
}

bool take_all_samples(Draft& draft, std::int32_t to, std::int32_t from) {
  auto& body = draft.program(to).body;
  const auto& other = draft.program(from).body;
  if (body.size() != other.size()) return false;
  for (std::size_t k = 0; k < body.size(); ++k) {
    if (body[k].node.index() != other[k].node.index()) return false;
    if (auto* fact = std::get_if<plan::Fact>(&body[k].node)) {
      if (!take_samples(draft, fact->value, std::get<plan::Fact>(other[k].node).value))
        return false;
      continue;
    }
    auto* own = std::get_if<Compute>(&std::get<Operation>(body[k].node).action);
    const auto* theirs = std::get_if<Compute>(&std::get<Operation>(other[k].node).action);
    if (own == nullptr && theirs == nullptr) continue;
    if (own == nullptr || theirs == nullptr || own->accesses.size() != theirs->accesses.size()) {
      return false;
    }
    for (std::size_t j = 0; j < own->accesses.size(); ++j) {
      if (!take_samples(draft, own->accesses[j].value, theirs->accesses[j].value)) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<Outcome> same_samples_on_two(Draft& draft, Planter& planter) {
  const auto& axes = draft.plan.mesh.axes;
  if (axes.size() != 1 || axes.front().name != "dp" || draft.ranks() < 2) return std::nullopt;
  Outcome outcome{.codes = {"D742"}};
  for (const Call& call : collectives(draft)) {
    const auto& first = collective(draft, call.members.front());
    if (!reduces(first.kind)) continue;
    const Value* value = content(draft, call.members.front(), first.from);
    if (value == nullptr || !is_gradient(draft, *value)) continue;
    outcome.marks.insert(outcome.marks.end(), call.members.begin(), call.members.end());
  }
  if (outcome.marks.empty()) return std::nullopt;
  const auto to = static_cast<std::int32_t>(planter.random.between(0, draft.ranks()));
  const std::int32_t from = (to + 1) % draft.ranks();
  if (!take_all_samples(draft, to, from)) return std::nullopt;
  return outcome;
}

std::optional<Outcome> drop_layer(Draft& draft, Planter& planter) {
  const auto candidates = kernels(draft, "forward");
  return planter.any_of(candidates, [&](const Line& chosen) -> std::optional<Outcome> {
    const Line line = chosen;
    const Access* y = access_of_kind(draft, *line.operation, Access::Kind::writes, "Activation");
    if (y == nullptr || rows_before(draft, line.mark, y->region) == Rows::written) {
      return std::nullopt;
    }
    Outcome outcome{.codes = {"D750", "D732"}};
    // Of all microbatches: one of them would be a microbatch that is missing.
    const Value layer = y->value;
    std::vector<Mark> gone;
    for (const Line& other : kernels(draft, "forward")) {
      const Access* same =
          access_of_kind(draft, *other.operation, Access::Kind::writes, "Activation");
      if (other.rank != line.rank || same == nullptr || !same_tensor(same->value, layer)) continue;
      for (const Line& user : draft.lines(line.rank)) {
        const auto all = touches(draft, user.mark);
        const bool reads = std::ranges::any_of(all, [&](const Touch& touch) {
          return touch.reads && overlap(draft, touch.region, same->region);
        });
        if (reads && user.index > other.index) outcome.marks.push_back(user.mark);
      }
      for (const Mark reader : readers(draft, layer).marks) {
        if (draft.line(reader).rank == line.rank) outcome.marks.push_back(reader);
      }
      gone.push_back(other.mark);
    }
    if (outcome.marks.empty()) return std::nullopt;
    for (const Mark mark : gone) draft.erase(mark);
    return outcome;
  });
}

namespace {

bool has_layers(std::string_view kind) {
  return kind == "Activation" || kind == "ActivationGrad" || kind == "Weight" ||
         kind == "WeightGrad" || kind == "OptState";
}

// False if there is no layer before it.
bool shift_layer(const Draft& draft, Value& value) {
  if (!value.indexed || !has_layers(tensor_of(draft, value).kind)) return true;
  if (value.index.literal() == 0) return false;
  value.index = value.index.literal() - 1;
  return true;
}

}  // namespace

// The second stage takes itself for the first: it has the first one's weights.
std::optional<Outcome> layer_on_two_stages(Draft& draft, Planter& planter) {
  const auto& axes = draft.plan.mesh.axes;
  if (axes.size() != 1 || axes.front().name != "pp" || draft.ranks() < 2) return std::nullopt;
  const auto rank = static_cast<std::int32_t>(planter.random.between(1, draft.ranks()));
  Outcome outcome{.codes = {"D752", "D744", "D750"}};
  for (const Line& line : draft.lines(rank)) {
    const bool is_loss = is_kernel(*line.operation, "loss");  // of the last stage: not of the last
    if (is_loss || is_kernel(*line.operation, "forward")) outcome.marks.push_back(line.mark);
  }
  if (outcome.marks.empty()) return std::nullopt;
  bool shifted = true;
  for (plan::Statement& statement : draft.program(rank).body) {
    if (auto* fact = std::get_if<plan::Fact>(&statement.node)) {
      shifted = shift_layer(draft, fact->value) && shifted;
    } else if (auto* compute = std::get_if<Compute>(&std::get<Operation>(statement.node).action)) {
      for (Access& access : compute->accesses)
        shifted = shift_layer(draft, access.value) && shifted;
    }
  }
  if (!shifted) return std::nullopt;
  return outcome;
}

std::optional<Outcome> swap_layers(Draft& draft, Planter& planter) {
  const auto candidates = kernels(draft, "forward");
  return planter.any_of(candidates, [&](const Line& first) -> std::optional<Outcome> {
    const auto weight = [&](const Line& line) -> Access* {
      auto& all = std::get<Compute>(line.operation->action).accesses;
      const auto found = std::ranges::find_if(all, [&](const Access& access) {
        return access.kind == Access::Kind::reads &&
               tensor_of(draft, access.value).kind == plan::kWeight;
      });
      return found == all.end() ? nullptr : &*found;
    };
    for (const Line& second : kernels(draft, "forward")) {
      if (second.rank != first.rank || second.index <= first.index) continue;
      Access* a = weight(first);
      Access* b = weight(second);
      if (a == nullptr || b == nullptr || same_tensor(a->value, b->value) ||
          overlap(draft, a->region, b->region)) {
        continue;
      }
      // Both must be there for both.
      const Value* early = content(draft, first.mark, b->region);
      const Value* late = content(draft, second.mark, a->region);
      if (early == nullptr || late == nullptr || !same_tensor(*early, b->value) ||
          !same_tensor(*late, a->value) ||
          rows_before(draft, second.mark, a->region) != Rows::written ||
          rows_before(draft, first.mark, b->region) != Rows::written) {
        continue;
      }
      std::swap(a->region, b->region);
      std::swap(a->value, b->value);
      if (!races(draft, first.rank).empty()) {
        std::swap(a->region, b->region);
        std::swap(a->value, b->value);
        continue;
      }
      return Outcome{.codes = {"D752"}, .marks = {first.mark, second.mark}};
    }
    return std::nullopt;
  });
}

std::optional<Outcome> backward_in_forward_order(Draft& draft, Planter& planter) {
  const auto candidates = kernels(draft, "backward");
  return planter.any_of(candidates, [&](const Line& first) -> std::optional<Outcome> {
    const Access* made =
        access_of_kind(draft, *first.operation, Access::Kind::writes, "ActivationGrad");
    if (made == nullptr) return std::nullopt;
    for (const Line& second : draft.lines(first.rank)) {
      if (second.index <= first.index || !is_kernel(*second.operation, "backward")) continue;
      if (second.operation->stream != first.operation->stream) continue;
      const Access* read =
          access_of_kind(draft, *second.operation, Access::Kind::reads, "ActivationGrad");
      if (read == nullptr || !(read->value == made->value)) continue;
      Codes codes = codes_of_early_read(draft, first.mark, read->region);
      std::swap(first.operation->action, second.operation->action);
      // Waits for weights that are gathered stay where they were.
      if (!races(draft, first.rank).empty()) {
        std::swap(first.operation->action, second.operation->action);
        return std::nullopt;
      }
      codes.emplace_back("D752");
      return Outcome{.codes = codes, .marks = {first.mark, second.mark}};
    }
    return std::nullopt;
  });
}

std::optional<Outcome> empty_rank_or_plan(Draft& draft, Planter& planter) {
  const bool everything = planter.random.chance(0.3);
  const auto rank = static_cast<std::int32_t>(planter.random.between(0, draft.ranks()));
  Outcome outcome{.codes = {"D700"}};
  for (std::int32_t r = 0; r < draft.ranks(); ++r) {
    if (draft.program_of(r) < 0 || (!everything && r != rank)) continue;
    draft.program(r).body.clear();
    outcome.ranks.push_back(r);
  }
  if (outcome.ranks.empty()) return std::nullopt;
  if (everything) outcome.places.push_back({});
  draft.refresh();
  return outcome;
}

}  // namespace shiplap::mutations
