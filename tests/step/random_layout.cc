#include "random_layout.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"
#include "shiplap/step/step.h"

namespace shiplap::step {
namespace {

using layout::ContextMethod;
using layout::Layout;
using layout::PipelineSchedule;
using layout::Recompute;
using layout::Sharding;
using workload::Model;

Model with_layers(const char* name, std::size_t count) {
  Model model = workload::find_model(name).model;
  std::vector<std::int32_t> kept;
  // Of each kind at least one, if there is room.
  std::set<std::int32_t> seen;
  for (const std::int32_t kind : model.layers) {
    if (seen.insert(kind).second) kept.push_back(kind);
  }
  while (kept.size() < count) kept.push_back(model.layers.back());
  std::ranges::sort(kept);
  model.layers = std::move(kept);
  return model;
}

// Further predicted tokens, as of DeepSeek-V3.
Model with_modules(Model model, int modules) {
  for (int k = 0; k < modules; ++k) {
    workload::Layer module{.name = "mtp", .parts = {}};
    for (const char* name : {"mtp.embedding_norm", "mtp.hidden_norm"}) {
      module.parts.push_back(model.head.parts.front());
      module.parts.back().name = name;
    }
    module.parts.push_back({.name = "mtp.projection", .in = 2 * model.hidden, .out = model.hidden});
    const workload::Layer& last = model.kinds[model.layers.back()];
    std::ranges::copy(last.parts, std::back_inserter(module.parts));
    std::ranges::copy(model.head.parts, std::back_inserter(module.parts));
    module.parts[module.parts.size() - 2].tied = true;
    model.mtp.push_back(std::move(module));
  }
  return model;
}

std::int64_t power_of_two(Random& random, std::int64_t highest) {
  std::int64_t value = 1;
  while (value < highest && random.chance()) value *= 2;
  return value;
}

Layout any_layout(const Model& model, Random& random) {
  Layout layout;
  layout.tensor = power_of_two(random, 4);
  layout.sequence_parallel = layout.tensor > 1 && random.chance(0.7);
  layout.context = power_of_two(random, 4);
  layout.context_method = random.pick(std::vector<ContextMethod>{
      ContextMethod::all_gather, ContextMethod::ring, ContextMethod::ulysses});
  layout.pipeline = power_of_two(random, 4);
  if (layout.pipeline > 1) {
    layout.schedule = random.pick(std::vector<PipelineSchedule>{
        PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved,
        PipelineSchedule::zero_bubble, PipelineSchedule::dual_pipe_v});
    if (layout.schedule == PipelineSchedule::interleaved ||
        layout.schedule == PipelineSchedule::dual_pipe_v) {
      layout.chunks = 2;
    }
  }
  layout.data = power_of_two(random, 8);
  layout.sharding = random.pick(std::vector<Sharding>{Sharding::none, Sharding::optimizer,
                                                      Sharding::gradients, Sharding::weights});
  if (layout.sharding != Sharding::none && random.chance(0.3)) {
    layout.replicas = power_of_two(random, layout.data);
  }
  layout.expert = power_of_two(random, 8);
  layout.expert_tensor = power_of_two(random, 2);
  layout.pipeline_fastest = random.chance(0.1);
  layout.global_batch = layout.data * layout.pipeline * random.between(1, 3);
  layout.seq_length = 1024;
  layout.recompute =
      random.pick(std::vector<Recompute>{Recompute::none, Recompute::selective, Recompute::full});
  const auto layers = static_cast<std::int64_t>(model.layers.size());
  const std::int64_t stages = layout.pipeline * layout.chunks;
  if (layers >= stages && stages > 1 && (layers % stages != 0 || random.chance(0.3))) {
    // Uneven: the rest goes to any stages.
    layout.stages.assign(stages, {.layers = 1});
    for (std::int64_t k = stages; k < layers; ++k) {
      ++layout.stages[random.between(0, stages)].layers;
    }
    layout.stages.front().embedding = true;
    layout.stages.back().head = true;
    layout.stages.back().mtp = std::ssize(model.mtp);
  }
  return layout;
}

bool is_legal(const Layout& layout, const Model& model) {
  for (const Diagnostic& found : layout::check_layout(layout, model)) {
    if (found.severity == Severity::error) return false;
  }
  return true;
}

// ---- changes of the text

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Changes one of the lines that match, in another way than to itself.
template <class Change>
std::string change_line(const std::string& text, const std::string& pattern, Random& random,
                        const Change& change) {
  std::vector<std::string> lines = lines_of(text);
  const std::regex wanted(pattern);
  std::vector<std::size_t> places;
  for (std::size_t k = 0; k < lines.size(); ++k) {
    if (std::regex_search(lines[k], wanted)) places.push_back(k);
  }
  random.shuffle(places);
  for (const std::size_t k : places) {
    const std::string before = lines[k];
    const std::optional<std::string> after = change(before);
    if (!after || *after == before) continue;
    lines[k] = *after;
    return joined(lines);
  }
  return "";
}

// Nothing is done, but what waits for it still can.
std::string removed(const std::string& line) {
  static const std::regex kCall(
      "(all_reduce|reduce_scatter|all_gather|all_to_all) .*?( after .*)?$");
  return std::regex_replace(line, kCall, "compute other$2 work 0 seconds",
                            std::regex_constants::format_default);
}

// A call whose result is read: recomputation also sums what nobody reads.
std::string remove_read_call(const std::string& text, const std::string& pattern, Random& random) {
  std::vector<std::string> lines = lines_of(text);
  const std::regex wanted(pattern);
  const std::regex call(
      "(?:all_reduce|reduce_scatter) ([a-z]+[0-9]*)(?:\\[.*?\\])?(?: to ([a-z]+[0-9]*))?");
  std::vector<std::size_t> places;
  for (std::size_t k = 0; k < lines.size(); ++k) {
    std::smatch found;
    if (!std::regex_search(lines[k], wanted) || !std::regex_search(lines[k], found, call)) {
      continue;
    }
    const std::string target = found[2].matched ? found[2] : found[1];
    const std::regex use("(reads|writes|adds) " + target + "\\b");
    for (std::size_t next = k + 1; next < lines.size(); ++next) {
      std::smatch access;
      if (std::regex_search(lines[next], access, call)) {
        const std::string other = access[2].matched ? access[2] : access[1];
        if (other == target) break;
      }
      if (!std::regex_search(lines[next], access, use)) continue;
      if (access[1] == "reads") places.push_back(k);
      break;
    }
  }
  if (places.empty()) return "";
  std::string& line = lines[random.pick(places)];
  line = removed(line);
  return joined(lines);
}

std::string remove_call(const std::string& text, const std::string& pattern, Random& random) {
  return change_line(text, pattern, random,
                     [](const std::string& line) { return std::optional(removed(line)); });
}

// The axes of the mesh with more than one rank.
std::vector<std::string> axes_of(const std::string& text) {
  std::vector<std::string> axes;
  const std::vector<std::string> lines = lines_of(text);
  const auto mesh =
      std::ranges::find_if(lines, [](const std::string& l) { return l.starts_with("mesh "); });
  const std::regex axis("([a-z]+[0-9]*)=([0-9]+)");
  for (std::sregex_iterator it(mesh->begin(), mesh->end(), axis); it != std::sregex_iterator();
       ++it) {
    if ((*it)[2] != "1") axes.push_back((*it)[1]);
  }
  return axes;
}

// The axes of an axis or alias.
std::string axes_in(const std::string& text, const std::string& name) {
  for (const std::string& line : lines_of(text)) {
    const std::string head = "alias " + name + " = ";
    if (line.starts_with(head)) return line.substr(head.size());
  }
  return name;
}

// Another group, of another set of axes.
std::string regroup(const std::string& text, const std::string& pattern, Random& random) {
  const std::vector<std::string> axes = axes_of(text);
  return change_line(text, pattern, random, [&](const std::string& line) {
    static const std::regex kOver("over (\\([^)]*\\)|[a-z]+[0-9]*)");
    std::smatch found;
    if (!std::regex_search(line, found, kOver)) return std::optional<std::string>();
    std::vector<std::string> others;
    for (const std::string& axis : axes) {
      static const std::regex kName("[a-z]+[0-9]*");
      const std::string group = found[1];
      std::string in;
      for (std::sregex_iterator it(group.begin(), group.end(), kName); it != std::sregex_iterator();
           ++it) {
        in += axes_in(text, it->str()) + " ";
      }
      if (in.find(axis) == std::string::npos) others.push_back(axis);
    }
    if (others.empty()) return std::optional<std::string>();
    return std::optional(found.prefix().str() + "over " + random.pick(others) +
                         found.suffix().str());
  });
}

const std::string kGradients = "(all_reduce|reduce_scatter) [gst]+_.*/gradients";

// Of the gradients of weights.
std::vector<StepMutation> gradient_mutations() {
  return {
      {.name = "gradients reduced over other ranks",
       .change = [](const std::string& text,
                    Random& random) { return regroup(text, kGradients, random); },
       .codes = {"D701", "D702", "D704", "D741", "D742", "D743"}},
      {.name = "gradients not reduced",
       .change = [](const std::string& text,
                    Random& random) { return remove_call(text, kGradients, random); },
       // D743: without its reduce-scatter, the buffer still has the shard of the layer before, and
       // the next microbatch is added to that.
       .codes = {"D732", "D741", "D742", "D743"}},
      {.name = "another scale",
       .change =
           [](const std::string& text, Random& random) {
             return change_line(
                 text, "(all_reduce|reduce_scatter|writes) .* scale 1/", random,
                 [&](const std::string& line) {
                   const std::size_t at = line.find("scale 1/") + 8;
                   const std::size_t end =
                       std::min(line.find_first_not_of("0123456789", at), line.size());
                   const std::int64_t factor = std::stoll(line.substr(at, end - at));
                   return std::optional(line.substr(0, at) + std::to_string(factor * 2) +
                                        line.substr(end));
                 });
           },
       .codes = {"D745"}},
      {.name = "no scale",
       .change =
           [](const std::string& text, Random& random) {
             return change_line(text, "(all_reduce|reduce_scatter) .* scale 1/([2-9]|1[0-9])",
                                random, [&](const std::string& line) {
                                  return std::optional(
                                      std::regex_replace(line, std::regex(" scale 1/[0-9]+"), ""));
                                });
           },
       .codes = {"D745"}},
  };
}

// ---- changes of the lists of a pipeline

constexpr std::int64_t kBackward = 1;
constexpr std::int64_t kBackwardWeight = 2;
constexpr std::int64_t kNothing = 9;

struct PipelineLists {
  std::vector<std::int64_t> turn;
  std::vector<std::int64_t> chunk;  // empty: one
  std::vector<std::int64_t> microbatch;
  std::int64_t of_rank = 0;  // entries
  // Of the first stage, whose backward sends nothing.
  [[nodiscard]] bool is_first(std::int64_t at) const {
    return at < of_rank && (chunk.empty() || chunk[at] == 0);
  }
};

std::vector<std::int64_t> list_of(const std::string& text, const std::string& name) {
  std::vector<std::int64_t> values;
  const std::string head = "list " + name + " = ";
  for (const std::string& line : lines_of(text)) {
    if (!line.starts_with(head)) continue;
    std::istringstream words(line.substr(head.size()));
    for (std::int64_t value = 0; words >> value;) values.push_back(value);
  }
  return values;
}

std::string with_list(const std::string& text, const std::string& name,
                      const std::vector<std::int64_t>& values) {
  const std::string head = "list " + name + " = ";
  std::vector<std::string> lines = lines_of(text);
  for (std::string& line : lines) {
    if (!line.starts_with(head)) continue;
    line = head;
    for (const std::int64_t value : values) line += std::to_string(value) + " ";
  }
  return joined(lines);
}

// `change` gets the lists, and two entries of one rank and chunk that `fit`.
template <class Fit, class Change>
std::string change_turns(const std::string& text, Random& random, const Fit& fit,
                         const Change& change) {
  PipelineLists lists{.turn = list_of(text, "turn"),
                      .chunk = list_of(text, "chunk"),
                      .microbatch = list_of(text, "microbatch")};
  std::smatch ranks;
  if (!std::regex_search(text, ranks, std::regex("pp=([0-9]+)")) || lists.turn.empty()) return "";
  lists.of_rank = std::ssize(lists.turn) / std::stoll(ranks[1]);
  std::vector<std::pair<std::int64_t, std::int64_t>> places;
  for (std::int64_t a = 0; a < std::ssize(lists.turn); ++a) {
    for (std::int64_t b = a + 1; b < (a / lists.of_rank + 1) * lists.of_rank; ++b) {
      const bool same_chunk = lists.chunk.empty() || lists.chunk[a] == lists.chunk[b];
      if (same_chunk && fit(lists, a, b)) places.emplace_back(a, b);
    }
  }
  if (places.empty()) return "";
  const auto [a, b] = random.pick(places);
  change(lists, a, b);
  return with_list(with_list(text, "turn", lists.turn), "microbatch", lists.microbatch);
}

// Of schedules that split backwards.
std::vector<StepMutation> half_mutations() {
  return {
      {.name = "gradients of weights of a microbatch left out",
       .change =
           [](const std::string& text, Random& random) {
             return change_turns(
                 text, random,
                 [](const PipelineLists& lists, std::int64_t a, std::int64_t b) {
                   return lists.turn[a] == kBackwardWeight && lists.turn[b] == kBackwardWeight;
                 },
                 [](PipelineLists& lists, std::int64_t a, std::int64_t) {
                   lists.turn[a] = kNothing;
                 });
           },
       .codes = {"D741", "D742"}},
      {.name = "gradients of weights before those of inputs",
       .change =
           [](const std::string& text, Random& random) {
             return change_turns(
                 text, random,
                 [](const PipelineLists& lists, std::int64_t a, std::int64_t b) {
                   return lists.is_first(a) && lists.turn[a] == kBackward &&
                          lists.turn[b] == kBackwardWeight &&
                          lists.microbatch[a] == lists.microbatch[b];
                 },
                 [](PipelineLists& lists, std::int64_t a, std::int64_t b) {
                   std::swap(lists.turn[a], lists.turn[b]);
                 });
           },
       .codes = {"D730", "D731", "D732", "D733", "D734"}},
  };
}

// Layers have one row of `x`. They gather and dispatch for outputs that nobody reads again, and for
// inputs that the backward pass gathers again.
bool recomputes_layers(const std::string& text) {
  return text.find("x[2 +1]") != std::string::npos;
}

// Of parts of them, and of activations.
std::vector<StepMutation> other_mutations() {
  return {
      {.name = "norms not reduced over tensor ranks",
       .change = [](const std::string& text,
                    Random& random) { return remove_call(text, "over tp/norms", random); },
       .codes = {"D720", "D730", "D741"}},
      {.name = "tied embedding not reduced over the stages",
       .change = [](const std::string& text,
                    Random& random) { return remove_call(text, "/embedding", random); },
       .codes = {"D701"}},
      {.name = "partial sums of a layer not reduced",
       .change =
           [](const std::string& text, Random& random) {
             return remove_read_call(text, "(all_reduce|reduce_scatter) (part|st|x[dy]|dkv) ",
                                     random);
           },
       .codes = {"D720", "D730", "D732", "D735", "D740", "D744"}},
      {.name = "tokens not gathered",
       .change =
           [](const std::string& text, Random& random) {
             // The last stage gathers what the head reads twice in a row: once is enough.
             if (recomputes_layers(text)) return std::string();
             return remove_call(text, "(all_gather|all_to_all) (?!xf)[a-z]+[0-9]*(\\[.*\\])? to ",
                                random);
           },
       .codes = {"D730", "D732", "D735", "D744"}},
      {.name = "dispatched over other ranks",
       .change =
           [](const std::string& text, Random& random) {
             if (recomputes_layers(text)) return std::string();
             return regroup(text, "all_to_all .* over ep/experts", random);
           },
       .codes = {"D701", "D702", "D704", "D730", "D735", "D744"}},
      {.name = "words of another use",
       .change =
           [](const std::string& text, Random& random) {
             return change_line(
                 text, "adds .* use [^ ]+ \\+1", random, [](const std::string& line) {
                   const std::string to = line.ends_with(" use 0 +1") ? " use 1 +1" : " use 0 +1";
                   return std::optional(
                       std::regex_replace(line, std::regex(" use [^ ]+ \\+1"), to));
                 });
           },
       .codes = {"D741", "D742"}},
      {.name = "gradients reduced twice",
       .change =
           [](const std::string& text, Random& random) {
             return change_line(
                 text, "all_reduce [gs]+_.* over .*/(gradients|norms|embedding)", random,
                 [&](const std::string& line) {
                   const std::size_t at = line.find("all_reduce");
                   const std::size_t end = std::min(line.find(" after "), line.size());
                   std::string once = line.substr(at, end - at);
                   once = std::regex_replace(once, std::regex(" scale 1/[0-9]+"), "");
                   const std::string after = line.substr(end);
                   std::string second = line.substr(0, end);
                   return std::optional("@net " + once + after + "\n" + second);
                 });
           },
       .codes = {"D701", "D742"}},
  };
}

}  // namespace

std::vector<Model> small_models() {
  return {with_layers("gpt2", 8),
          with_layers("llama3.2-1b", 8),
          with_layers("qwen3-8b", 8),
          with_layers("mixtral-8x7b", 8),
          with_layers("gpt-oss-20b", 8),
          with_layers("deepseek-v2-lite", 9),
          with_layers("gemma2-9b", 8),
          with_layers("deepseek-v3", 8),
          with_modules(with_layers("llama3.2-1b", 8), 1),
          with_modules(with_layers("deepseek-v2-lite", 9), 2)};
}

Layout random_layout(const Model& model, Random& random, std::int64_t max_ranks) {
  for (;;) {
    const Layout layout = any_layout(model, random);
    if (layout.ranks() > max_ranks || !is_legal(layout, model)) continue;
    try {
      static_cast<void>(step_text(model, layout));
    } catch (const InputError& error) {
      if (error.diagnostics().front().code == "D645") continue;
      throw;
    }
    return layout;
  }
}

std::optional<plan::Plan> changed_plan(const std::string& text) {
  if (text.empty()) return std::nullopt;
  try {
    return plan::parse_text(text, "step.plan");
  } catch (const InputError&) {
    return std::nullopt;
  }
}

const std::vector<StepMutation>& step_mutations() {
  static const std::vector<StepMutation> kMutations = [] {
    std::vector<StepMutation> all = gradient_mutations();
    std::ranges::move(half_mutations(), std::back_inserter(all));
    std::ranges::move(other_mutations(), std::back_inserter(all));
    return all;
  }();
  return kMutations;
}

}  // namespace shiplap::step
