#include "families.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "families_internal.h"
#include "shiplap/base/error.h"
#include "shiplap/base/random.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/lower.h"
#include "shiplap/hardware/system.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/plan/text.h"
#include "shiplap/strategy/library.h"
#include "shiplap/strategy/to_plan.h"

namespace shiplap::mutations {
namespace {

std::string contents(const std::filesystem::path& file) {
  std::ifstream in(file);
  ensure(in.good(), "the plans of the tests are there");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Longer names first, so that $tokens is not $t.
std::string filled(std::string text, const Substitutions& substitutions) {
  std::vector<std::pair<std::string, std::string>> sorted(substitutions.begin(),
                                                          substitutions.end());
  std::ranges::sort(sorted, {}, [](const auto& word) { return -std::ssize(word.first); });
  for (const auto& [name, value] : sorted) {
    const std::string key = "$" + name;
    for (auto at = text.find(key); at != std::string::npos; at = text.find(key, at)) {
      text.replace(at, key.size(), value);
      at += value.size();
    }
  }
  return text;
}

std::vector<Sound> interleaved(const std::vector<Sound>& all) {
  std::map<std::string, std::vector<const Sound*>> families;
  for (const Sound& sound : all) families[sound.family].push_back(&sound);
  std::vector<Sound> result;
  Random random(1);
  for (auto& [family, plans] : families) random.shuffle(plans);
  for (std::size_t k = 0; result.size() < all.size(); ++k) {
    for (const auto& [family, plans] : families) {
      if (k < plans.size()) result.push_back(*plans[k]);
    }
  }
  return result;
}

}  // namespace

Sound from_text(const std::string& family, const Substitutions& substitutions) {
  const std::filesystem::path file =
      std::filesystem::path(SHIPLAP_CHECK_PLANS) / (family + ".plan");
  Sound sound{.family = family, .name = family};
  for (const auto& [name, value] : substitutions) {
    if (value.size() < 8 && !value.empty()) sound.name += " " + name + "=" + value;
  }
  sound.plan = plan::parse_text(filled(contents(file), substitutions), sound.name);
  return sound;
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += std::to_string(number) + " ";
  return text;
}

void add_strategies(std::vector<Sound>& all) {
  const hardware::System system = hardware::find_system("h100_80g_nvl8");
  for (const strategy::StrategyInfo& entry : strategy::strategies()) {
    for (const int ranks : {1, 2, 3, 4, 6, 8}) {
      for (const auto& [layers, samples] : {std::pair(1, 1), {2, 2}, {4, 1}, {6, 2}, {8, 4}}) {
        if (entry.axes.empty() != (ranks == 1)) continue;
        try {
          const strategy::TrainingSize size{
              .ranks = ranks, .layers = layers, .batch = ranks * samples};
          strategy::World world = strategy::world_for(entry, size);
          world.system = system;
          strategy::Training training = strategy::training_for(entry, size);
          strategy::Trainer trainer(world, training);
          trainer.run(entry.strategy);
          all.push_back({.family = entry.name,
                         .name = entry.name + " ranks=" + std::to_string(ranks) + " layers=" +
                                 std::to_string(layers) + " samples=" + std::to_string(samples),
                         .plan = strategy::to_plan(trainer)});
        } catch (const InputError&) {
          continue;  // numbers that do not divide
        }
      }
    }
  }
}

void add_dispatches(std::vector<Sound>& all) {
  for (int seed = 0; seed < 60; ++seed) {
    const dispatch::RandomDispatch random{.world_size = 2 + seed % 4,
                                          .total_seq_len = static_cast<std::uint32_t>(6 + seed % 7),
                                          .num_seqs = 1 + seed % 3,
                                          .max_cp_degree = 1 + seed % 4,
                                          .seed = static_cast<std::uint64_t>(seed)};
    const dispatch::Routing routing = dispatch::random_routing(random);
    all.push_back({.family = "dispatch",
                   .name = "dispatch seed=" + std::to_string(seed),
                   .plan = dispatch::lower(routing, dispatch::compute_qkv_dispatch(routing))});
  }
}

void add_overlaps(std::vector<Sound>& all) {
  for (const overlap::SupportedChoice& legal : overlap::supported_choices()) {
    for (const int ranks : {2, 3, 4}) {
      for (const int chunks : {1, 2, 3}) {
        for (const std::int64_t rows : {8, 12, 13}) {
          const overlap::Problem problem{
              .m = rows, .n = 8, .k = 8, .ranks = ranks, .chunks = chunks};
          const std::string family = "overlap " + to_string(legal.choice);
          all.push_back({.family = family,
                         .name = family + " ranks=" + std::to_string(ranks) + " chunks=" +
                                 std::to_string(chunks) + " rows=" + std::to_string(rows),
                         .plan = overlap::make_plan(legal.choice, problem)});
        }
      }
    }
  }
}

void add_examples(std::vector<Sound>& all) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(SHIPLAP_EXAMPLE_PLANS)) {
    files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const auto& file : files) {
    // It deadlocks on purpose.
    if (file.extension() != ".plan" || file.stem() == "pytorch_172668") continue;
    const std::string name = "example " + file.stem().string();
    all.push_back(
        {.family = "example", .name = name, .plan = plan::parse_plan(contents(file), name)});
  }
}

std::vector<Sound> sound_plans() {
  std::vector<Sound> all;
  add_texts(all);
  add_experts(all);
  add_strategies(all);
  add_dispatches(all);
  add_overlaps(all);
  add_examples(all);
  return interleaved(all);
}

}  // namespace shiplap::mutations
