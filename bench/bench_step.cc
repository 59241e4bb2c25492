// Benchmark of the plans of training steps: the parameters of the known models, soundness of random
// layouts, single changes that are found, and the time to plan and to check large steps.
//
//   bench_step [--json] [--layouts N] [--changes N]
//
// --changes are of each kind. Times are the median of three; checks do not include parsing.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "figures.h"
#include "published.h"
#include "shiplap/base/json.h"
#include "shiplap/check/check.h"
#include "shiplap/plan/text.h"
#include "shiplap/step/step.h"
#include "step/random_layout.h"

namespace shiplap {
namespace {

using layout::Layout;
using layout::Sharding;

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_of_three(const std::function<void()>& work) {
  return spread({seconds_of(work), seconds_of(work), seconds_of(work)}).median;
}

// data/models/parameters.csv has what transformers builds.
void count_models(Json& json) {
  std::map<std::string, std::int64_t> published;
  for (const CsvRow& row : read_csv(SHIPLAP_SOURCE "/data/models/parameters.csv")) {
    if (row.at("part") == "total") published[row.at("model")] = std::stoll(row.at("count"));
  }
  std::int64_t exact = 0;
  for (const std::string& name : workload::known_models()) {
    const auto found = published.find(name);
    exact +=
        found != published.end() && found->second == workload::find_model(name).model.parameters();
  }
  json.set("models_exact", exact);
  json.set("models", static_cast<std::int64_t>(workload::known_models().size()));
}

void count_layouts(Json& json, std::int64_t layouts) {
  Random random(1);
  const std::vector<workload::Model> models = step::small_models();
  std::int64_t sound = 0;
  for (std::int64_t k = 0; k < layouts; ++k) {
    const workload::Model& model = models[k % models.size()];
    const Layout layout = step::random_layout(model, random);
    sound += check::check(step::step_plan(model, layout), {}).sound() ? 1 : 0;
  }
  json.set("layouts", layouts);
  json.set("layouts_sound", sound);
}

struct Found {
  std::int64_t all = 0;
  std::int64_t found = 0;
  std::int64_t right = 0;  // with a code of the kind
};

Found found_of(const step::StepMutation& mutation, std::uint64_t seed, std::int64_t changes) {
  Random random(seed);
  const std::vector<workload::Model> models = step::small_models();
  Found result;
  while (result.all < changes) {
    const workload::Model& model = random.pick(models);
    const Layout layout = step::random_layout(model, random, 16);
    const std::string changed = mutation.change(step::step_text(model, layout), random);
    const std::optional<plan::Plan> plan = step::changed_plan(changed);
    if (!plan) continue;
    ++result.all;
    const check::Report report = check::check(*plan, {});
    if (report.sound()) continue;
    ++result.found;
    const Diagnostic& first = report.findings.front().diagnostic;
    if (std::ranges::find(mutation.codes, first.code) != mutation.codes.end()) {
      ++result.right;
    } else {
      std::fprintf(stderr, "%s of %s: %s\n", mutation.name.c_str(), model.name.c_str(),
                   render(first).c_str());
    }
  }
  return result;
}

// On all cores, a kind on each.
void count_mutations(Json& json, std::int64_t changes) {
  const std::vector<step::StepMutation>& kinds = step::step_mutations();
  std::vector<Found> found(kinds.size());
  std::atomic<std::size_t> next = 0;
  {
    std::vector<std::jthread> workers;
    for (unsigned k = 0; k < std::thread::hardware_concurrency(); ++k) {
      workers.emplace_back([&] {
        for (std::size_t kind = next++; kind < kinds.size(); kind = next++) {
          found[kind] = found_of(kinds[kind], kind, changes);
        }
      });
    }
  }
  Found all;
  Json by_kind = Json::object({});
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    all.all += found[kind].all;
    all.found += found[kind].found;
    all.right += found[kind].right;
    by_kind.set(kinds[kind].name, found[kind].found);
  }
  json.set("mutations", all.all);
  json.set("mutations_found", all.found);
  json.set("mutations_right_code", all.right);
  json.set("mutations_by_kind", by_kind);
}

// Llama 3 405B as in its report (arXiv:2407.21783, table 4), and larger.
Layout llama_405b(std::int64_t context, std::int64_t ranks) {
  Layout layout;
  layout.tensor = 8;
  layout.sequence_parallel = true;
  layout.pipeline = 16;
  layout.context = context;
  layout.context_method = layout::ContextMethod::all_gather;
  layout.data = ranks / (layout.tensor * layout.pipeline * context);
  layout.sharding = Sharding::optimizer;
  layout.seq_length = context > 1 ? 131072 : 8192;
  layout.global_batch = 16 * layout.data;
  // One layer less on the first and the last stage.
  layout.stages.assign(16, {.layers = 8});
  layout.stages.front() = {.embedding = true, .layers = 7};
  layout.stages.back() = {.layers = 7, .head = true};
  return layout;
}

// DeepSeek-V3 (arXiv:2412.19437, section 3.2): 16-way pipeline, 64-way experts, ZeRO-1.
Layout deepseek_v3() {
  Layout layout;
  layout.pipeline = 16;
  layout.data = 128;
  layout.expert = 64;
  layout.sharding = Sharding::optimizer;
  layout.seq_length = 4096;
  layout.global_batch = 64 * layout.data;
  layout.stages.assign(16, {.layers = 4});
  layout.stages.front() = {.embedding = true, .layers = 3};
  layout.stages.back() = {.layers = 2, .head = true};
  return layout;
}

// With its module for a further token, and half of its DualPipe, which runs two directions.
Layout deepseek_v3_dualpipev() {
  Layout layout = deepseek_v3();
  layout.schedule = layout::PipelineSchedule::dual_pipe_v;
  layout.chunks = 2;
  layout.stages.assign(32, {.layers = 2});
  layout.stages.front() = {.embedding = true, .layers = 1};
  layout.stages[30].layers = 1;
  layout.stages.back() = {.layers = 1, .mtp = 1, .head = true};
  return layout;
}

void measure(Json& json, const std::string& name, const char* model_name, const Layout& layout) {
  const workload::Model model = workload::find_model(model_name).model;
  std::string text;
  json.set("plan_" + name + "_s", median_of_three([&] { text = step::step_text(model, layout); }));
  json.set("plan_" + name + "_bytes", static_cast<std::int64_t>(text.size()));
  const plan::Plan plan = plan::parse_text(text, "step.plan");
  bool sound = true;
  json.set("check_" + name + "_s",
           median_of_three([&] { sound = sound && check::check(plan, {}).sound(); }));
  json.set("sound_" + name, sound);
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) try {
  using namespace shiplap;
  bool as_json = false;
  std::int64_t layouts = 10'000;
  std::int64_t changes = 1'000;
  for (int k = 1; k < argc; ++k) {
    const std::string_view argument = argv[k];
    if (argument == "--json") {
      as_json = true;
    } else if (argument == "--layouts" && k + 1 < argc) {
      layouts = std::stoll(argv[++k]);
    } else if (argument == "--changes" && k + 1 < argc) {
      changes = std::stoll(argv[++k]);
    } else {
      std::fprintf(stderr, "usage: bench_step [--json] [--layouts N] [--changes N]\n");
      return 2;
    }
  }
  Json json = Json::object({});
  count_models(json);
  measure(json, "405b_16384", "llama3.1-405b", llama_405b(1, 16'384));
  measure(json, "405b_16384_cp16", "llama3.1-405b", llama_405b(16, 16'384));
  measure(json, "131072", "llama3.1-405b", llama_405b(1, 131'072));
  measure(json, "deepseek_v3_2048", "deepseek-v3", deepseek_v3());
  measure(json, "deepseek_v3_dualpipev_2048", "deepseek-v3", deepseek_v3_dualpipev());
  count_layouts(json, layouts);
  count_mutations(json, changes);
  if (as_json) {
    std::printf("%s\n", to_text(json).c_str());
  } else {
    for (const auto& [key, value] : json.as_object()) {
      std::printf("%-28s %s\n", key.c_str(), to_text(value).c_str());
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
