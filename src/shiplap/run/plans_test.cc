// The example plans, executed with kernels that know only mathematics: every number of every cell
// is a sum of small whole numbers, one for each contribution, so that all sums and scales are exact
// in any type and order. What a kernel reads, and what a plan promises in the end, must be exactly
// that.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

#include "shiplap/kernels/bf16.h"
#include "shiplap/run/testing_internal.h"

namespace shiplap::run {
namespace {

using Coordinates = std::vector<std::int64_t>;

// All combinations of one coordinate from each set, the last one fastest.
std::vector<Coordinates> combinations(const std::vector<Coordinates>& sets) {
  std::vector<Coordinates> all{{}};
  for (const Coordinates& set : sets) {
    std::vector<Coordinates> longer;
    for (const Coordinates& one : all) {
      for (const std::int64_t coordinate : set) {
        longer.push_back(one);
        longer.back().push_back(coordinate);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// What a region should hold.
class Expected {
 public:
  Expected(const plan::Plan& plan, const KernelAccess& access, std::int64_t version)
      : plan_(plan), access_(access), version_(version) {
    for (const plan::flat::Run& run : access.runs) {
      auto& dimensions = tensor().in_sum(run.dimension) ? sum_ : part_;
      if (dimensions.empty() || dimensions.back() != run.dimension) {
        dimensions.push_back(run.dimension);
      }
    }
    for (const plan::DimensionId id : part_) part_sets_.push_back(coordinates(access, id));
    for (const plan::DimensionId id : sum_) sum_sets_.push_back(coordinates(access, id));
  }

  // The numbers, each the sum of its contributions.
  [[nodiscard]] std::vector<double> numbers() const {
    const std::vector<Coordinates> cells = combinations(part_sets_);
    const auto width = static_cast<std::size_t>(bytes_of(access_.type));
    std::vector<double> all(access_.bytes.size() / width);
    if (access_.value->zero) return all;
    const double scale = static_cast<double>(access_.value->scale.numerator()) /
                         static_cast<double>(access_.value->scale.denominator());
    const std::vector<Coordinates> contributions = combinations(sum_sets_);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::size_t cell = i * cells.size() / all.size();
      const std::size_t place = i - (cell * all.size() + cells.size() - 1) / cells.size();
      for (const Coordinates& contribution : contributions) {
        all[i] += scale * number(cells[cell], contribution, place);
      }
    }
    return all;
  }

 private:
  [[nodiscard]] const plan::Tensor& tensor() const { return *access_.tensor; }

  [[nodiscard]] double number(const Coordinates& cell, const Coordinates& contribution,
                              std::size_t place) const {
    Coordinates by_dimension(tensor().dimensions());
    for (std::size_t k = 0; k < cell.size(); ++k) by_dimension[part_[k].index()] = cell[k];
    for (std::size_t k = 0; k < contribution.size(); ++k) {
      by_dimension[sum_[k].index()] = contribution[k];
    }
    for (const plan::MaskTerm& term : tensor().mask) {
      const std::int64_t left = side(term.left, by_dimension);
      const std::int64_t right = side(term.right, by_dimension);
      const bool holds = term.comparator == plan::Comparator::equal ? left == right : left <= right;
      if (!holds) return 0;
    }
    const bool has_versions = tensor().has_versions();
    std::uint64_t hash = std::hash<std::string>{}(tensor().name);
    const auto mix = [&](std::int64_t more) {
      hash = (hash ^ static_cast<std::uint64_t>(more)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 29;
    };
    mix(access_.instance());
    mix(has_versions ? version_ + (access_.value->is_new ? 1 : 0) : 0);
    for (const std::int64_t coordinate : by_dimension) mix(coordinate);
    mix(static_cast<std::int64_t>(place));
    return static_cast<double>(hash % 7);
  }

  [[nodiscard]] std::int64_t side(const plan::MaskSide& side, const Coordinates& at) const {
    const std::int64_t coordinate = at[side.dimension.index()];
    if (!side.list.exists()) return coordinate;
    return plan_.lists[side.list].values[coordinate];
  }

  const plan::Plan& plan_;
  const KernelAccess& access_;
  std::int64_t version_;
  std::vector<plan::DimensionId> part_;
  std::vector<plan::DimensionId> sum_;
  std::vector<Coordinates> part_sets_;
  std::vector<Coordinates> sum_sets_;
};

double number_at(const KernelAccess& access, std::size_t i) {
  switch (access.type) {
    case DType::bf16:
      return static_cast<double>(kernels::to_float(access.as<kernels::Bf16>()[i]));
    case DType::f32:
      return static_cast<double>(access.as<float>()[i]);
    default:
      throw std::runtime_error("a type that this test does not know");
  }
}

void put_number(const KernelAccess& access, std::size_t i, double value) {
  if (access.type == DType::bf16) {
    access.as<kernels::Bf16>()[i] = kernels::to_bf16(static_cast<float>(value));
  } else {
    access.as<float>()[i] = static_cast<float>(value);
  }
}

std::int64_t wrong_numbers(const plan::Plan& plan, const KernelAccess& access,
                           std::int64_t version) {
  const std::vector<double> expected = Expected(plan, access, version).numbers();
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (number_at(access, i) != expected[i]) ++wrong;
  }
  return wrong;
}

// What was found wrong on all ranks.
class Findings {
 public:
  void add(std::int64_t wrong, const std::string& where) {
    if (wrong == 0) return;
    const std::lock_guard lock(mutex_);
    found_.push_back(where);
  }
  [[nodiscard]] const std::vector<std::string>& all() const { return found_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> found_;
};

// Every kernel of the plan: checks what it reads, leaves what it states.
void check_and_write(const plan::Plan& plan, const KernelCall& call, Findings& findings) {
  for (const KernelAccess& access : call.accesses) {
    if (access.kind != plan::Access::Kind::reads) continue;
    findings.add(wrong_numbers(plan, access, call.step),
                 fmt::format("rank {}, step {}: {} reads {}", call.rank().value, call.step,
                             call.program->describe(*call.operation), access.tensor->name));
  }
  for (const KernelAccess& access : call.accesses) {
    if (access.kind == plan::Access::Kind::reads) continue;
    const std::vector<double> numbers = Expected(plan, access, call.step).numbers();
    const bool adds = access.kind == plan::Access::Kind::adds;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      put_number(access, i, numbers[i] + (adds ? number_at(access, i) : 0));
    }
  }
}

std::vector<std::string> kernel_names(const plan::Plan& plan) {
  std::vector<std::string> names;
  for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
    for (const plan::flat::Operation& op : expand(plan, Rank(rank)).operations) {
      const auto* const compute = std::get_if<plan::Compute>(&op.source->action);
      if (compute != nullptr) names.push_back(compute->kernel);
    }
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// The plan with rows so short that the shortest has 8 bytes: checking a number takes a while.
std::string shortened(const std::string& text) {
  static const std::regex row_bytes("row_bytes ([0-9]+)");
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  const std::sregex_iterator end;
  for (std::sregex_iterator it(text.begin(), text.end(), row_bytes); it != end; ++it) {
    shortest = std::min<std::int64_t>(shortest, std::stoll((*it)[1]));
  }
  std::string result;
  auto from = text.begin();
  for (std::sregex_iterator it(text.begin(), text.end(), row_bytes); it != end; ++it) {
    result.append(from, (*it)[1].first);
    result += std::to_string(std::stoll((*it)[1]) * 8 / shortest);
    from = (*it)[1].second;
  }
  return result.append(from, text.end());
}

std::string text_of(const std::string& name) {
  std::ifstream file("examples/plans/" + name + ".plan");
  std::stringstream text;
  text << file.rdbuf();
  return shortened(text.str());
}

std::vector<std::string> findings_in(const std::string& text) {
  const plan::Plan plan = plan::parse_plan(text, "test");
  Findings findings;
  KernelTable kernels;
  for (const std::string& kernel : kernel_names(plan)) {
    kernels.bind(kernel, [&](const KernelCall& call) { check_and_write(plan, call, findings); });
  }
  kernels.bind_given([&](const GivenCall& call) {
    const std::vector<double> numbers = Expected(plan, call.access, call.step).numbers();
    for (std::size_t i = 0; i < numbers.size(); ++i) put_number(call.access, i, numbers[i]);
  });
  on_ranks(plan, [&](comm::Communicator& world) {
    Executor executor(plan, world, kernels, {.poison = true, .traces = true});
    for (int step = 0; step < 3; ++step) {
      const StepResult result = executor.step();
      for (const KernelAccess& goal : executor.goals()) {
        findings.add(
            wrong_numbers(plan, goal, step),
            fmt::format("rank {}, step {}: ends with {}", world.rank(), step, goal.tensor->name));
      }
      const trace::Trace all = gather_trace(world, plan, result);
      EXPECT_EQ(std::ssize(all.ranks), world.rank() == 0 ? plan.mesh.ranks() : 0);
    }
  });
  return findings.all();
}

// So that the silence above means something.
TEST(ExamplePlan, ThatForgetsAReductionIsNoticed) {
  std::string text = text_of("ddp");
  const std::size_t reduction = text.find("all_reduce");
  text.replace(reduction, text.find("over", reduction) - reduction, "barrier ");
  const std::size_t scale = text.find("scale 1/8", reduction);
  text.erase(scale, 9);
  EXPECT_THAT(findings_in(text),
              testing::Contains(testing::HasSubstr("compute update [l=0] reads G")));
}

class ExamplePlans : public testing::TestWithParam<const char*> {};

TEST_P(ExamplePlans, MoveEveryNumberWhereItIsExpected) {
  EXPECT_THAT(findings_in(text_of(GetParam())), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, ExamplePlans,
                         testing::Values("atomic_reduce_scatter", "bidirectional", "ddp",
                                         "dispatch", "expert_parallel", "fsdp", "hierarchical",
                                         "hybrid", "interleaved_1f1b", "moe_overlap",
                                         "parameter_server", "pytorch_172668_batched",
                                         "quick_start", "ragged_collective", "ring_attention",
                                         "split_all_gather", "ulysses", "zero_bubble"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace shiplap::run
