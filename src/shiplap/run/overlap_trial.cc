#include "shiplap/run/overlap_trial.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/run/number_internal.h"
#include "shiplap/run/overlapped_product.h"

namespace shiplap::run {
namespace {

using overlap::Choice;
using overlap::Method;
using overlap::Problem;
using overlap::Type;
using plan::ElementType;

constexpr int kTracedSteps = 5;

template <class Number, class Convert>
std::vector<float> converted(std::span<const std::byte> bytes, const Convert& convert) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  std::vector<float> floats(numbers.size());
  std::ranges::transform(numbers, floats.begin(), convert);
  return floats;
}

std::vector<float> floats_of(std::span<const std::byte> bytes, ElementType type) {
  switch (number_of(type)) {
    case kernels::Number::f32:
      return converted<float>(bytes, [](float number) { return number; });
    case kernels::Number::bf16:
      return converted<kernels::Bf16>(bytes, [](auto number) { return kernels::to_float(number); });
    case kernels::Number::f16:
      return converted<kernels::F16>(bytes, [](auto number) { return kernels::to_float(number); });
  }
  throw InternalError("unknown number");
}

template <class Number>
void put(std::span<std::byte> bytes, std::size_t k, Number number) {
  std::memcpy(bytes.data() + k * sizeof(Number), &number, sizeof(Number));
}

// Made-up numbers between -0.5 and 0.5.
void fill(std::span<std::byte> bytes, ElementType type, std::size_t seed) {
  const std::size_t width = static_cast<std::size_t>(plan::bytes_of(type));
  for (std::size_t k = 0; k < bytes.size() / width; ++k) {
    const float number = static_cast<float>((k + seed) * 2654435761U % 1000) * 1e-3F - 0.5F;
    if (type == ElementType::f32) put(bytes, k, number);
    if (type == ElementType::bf16) put(bytes, k, kernels::to_bf16(number));
    if (type == ElementType::f16) put(bytes, k, kernels::to_f16(number));
  }
}

// How far two ways to round may lead, over the largest number.
double tolerance_of(ElementType type) {
  if (type == ElementType::f32) return 1e-4;
  return type == ElementType::f16 ? 0x1p-8 : 0x1p-5;
}

// All rows of X that a rank has, times its weights, in one call.
class Alone {
 public:
  Alone(const OverlappedProduct& product, const Problem& problem)
      : x_(product.buffer("x")),
        rows_(problem.rows),
        depth_(std::ssize(x_) / rows_ / plan::bytes_of(problem.type)),
        columns_(std::ssize(product.buffer("w")) / plan::bytes_of(problem.type) / depth_),
        type_(number_of(problem.type)),
        y_(static_cast<std::size_t>(rows_ * columns_ * plan::bytes_of(problem.type))),
        linear_({.columns = columns_, .depth = depth_, .type = type_}) {
    linear_.prepare({.data = product.buffer("w").data(), .is_transposed = true});
  }
  [[nodiscard]] std::string by() const { return std::string(linear_.by()); }
  void multiply() {
    linear_.multiply({.data = x_.data(), .count = rows_}, {.data = y_.data(), .type = type_});
  }

 private:
  std::span<std::byte> x_;
  std::int64_t rows_;
  std::int64_t depth_;
  std::int64_t columns_;
  kernels::Number type_;
  std::vector<std::byte> y_;
  kernels::LinearKernel linear_;
};

class Trial {
 public:
  Trial(comm::Communicator& world, const Choice& choice, const Problem& problem,
        const OverlapTrialOptions& options)
      : world_(world), choice_(choice), problem_(problem), options_(options) {
    ensure(options.rounds >= 1, "a trial has a round");
  }

  OverlapTrialResult run() {
    OverlappedProduct serial = made({.type = choice_.type, .method = Method::none}, false);
    OverlappedProduct overlapped = made(choice_, false);
    Alone alone(serial, problem_);
    const std::array<std::function<void()>, 4> acts{
        [&] { alone.multiply(); }, [&] { overlapped.run(Work::communication); },
        [&] { serial.run(); }, [&] { overlapped.run(); }};
    result_.multiplied_by = alone.by();
    serial.run();
    lend_sums(serial, overlapped);
    measure(acts);
    compare(serial, overlapped);
    if (options_.traces) trace(serial);
    return std::move(result_);
  }

 private:
  OverlappedProduct made(const Choice& choice, bool traces) {
    OverlappedProduct product(choice, problem_, world_,
                              {.progress = options_.progress, .traces = traces});
    const auto rank = static_cast<std::size_t>(world_.rank());
    fill(product.buffer("x"), problem_.type, 1 + 7919 * rank);
    fill(product.buffer("w"), problem_.type, 2 + 104'729 * rank);
    product.prepare();
    return product;
  }

  // Beside an unrelated product, what another made is scattered.
  void lend_sums(const OverlappedProduct& serial, const OverlappedProduct& overlapped) const {
    if (choice_.method != Method::bulk) return;
    std::ranges::copy(serial.buffer("y"), overlapped.buffer("z").begin());
  }

  // Of the slowest rank.
  Seconds timed(const std::function<void()>& act) {
    world_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    act();
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    world_.all_reduce(std::span(&took, 1), comm::Reduction::max);
    return {took};
  }

  void measure(const std::array<std::function<void()>, 4>& acts) {
    std::array<std::vector<Seconds>, 4> times;
    for (int round = -1; round < options_.rounds; ++round) {
      for (std::size_t k = 0; k < acts.size(); ++k) {
        const Seconds took = timed(acts[k]);
        if (round >= 0) times[k].push_back(took);
      }
    }
    const auto spread = [](std::vector<Seconds>& all) {
      std::ranges::sort(all);
      return Spread{.median = all[all.size() / 2], .least = all.front(), .most = all.back()};
    };
    result_.product = spread(times[0]);
    result_.communication = spread(times[1]);
    result_.serial = spread(times[2]);
    result_.overlapped = spread(times[3]);
  }

  void compare(const OverlappedProduct& serial, const OverlappedProduct& overlapped) {
    double largest = 0;
    double furthest = 0;
    const auto compare_buffer = [&](const char* name) {
      const std::vector<float> right = floats_of(serial.buffer(name), problem_.type);
      const std::vector<float> found = floats_of(overlapped.buffer(name), problem_.type);
      for (std::size_t k = 0; k < right.size(); ++k) {
        const double apart = std::abs(static_cast<double>(found[k]) - right[k]);
        largest = std::max(largest, std::abs(static_cast<double>(right[k])));
        furthest = std::isnan(apart) ? HUGE_VAL : std::max(furthest, apart);
      }
    };
    const bool scatters = choice_.type == Type::reduce_scatter;
    if (scatters) compare_buffer("out");
    if (!scatters || choice_.method == Method::bulk) compare_buffer("y");
    std::array<double, 2> all{largest, furthest};
    world_.all_reduce(std::span<double>(all), comm::Reduction::max);
    result_.difference = all[0] > 0 ? all[1] / all[0] : all[1];
    result_.tolerance = tolerance_of(problem_.type);
  }

  // Tracing costs a little time, so it is not done while it counts.
  void trace(const OverlappedProduct& serial) {
    OverlappedProduct product = made(choice_, true);
    lend_sums(serial, product);
    product.run();
    struct Traced {
      Seconds time;
      StepResult step;
    };
    std::vector<Traced> steps;
    for (int k = 0; k < kTracedSteps; ++k) {
      StepResult step;
      const Seconds time = timed([&] { step = product.run(); });
      steps.push_back({time, std::move(step)});
    }
    std::ranges::sort(steps, {}, &Traced::time);
    result_.trace = gather_trace(world_, product.plan(), steps[steps.size() / 2].step);
  }

  comm::Communicator& world_;
  Choice choice_;
  Problem problem_;
  OverlapTrialOptions options_;
  OverlapTrialResult result_;
};

}  // namespace

OverlapTrialResult try_overlap(comm::Communicator& world, const Choice& choice,
                               const Problem& problem, const OverlapTrialOptions& options) {
  return Trial(world, choice, problem, options).run();
}

double overlap_trial_bytes(const Choice& choice, const Problem& problem) {
  const auto rows = static_cast<double>(problem.rows);
  const auto columns = static_cast<double>(problem.columns);
  const auto depth = static_cast<double>(problem.depth);
  const double ranks = problem.ranks;
  const bool gathers = choice.type == Type::all_gather;
  const double x = gathers ? ranks * rows * depth : rows * depth;
  const double w = columns * depth;
  const double y = gathers ? rows * columns : ranks * rows * columns;
  // The two products and the traced one have each of them, with packed weights and what arrives;
  // the product alone has weights and a result.
  return static_cast<double>(plan::bytes_of(problem.type)) * (3 * x + 7 * w + 7 * y);
}

}  // namespace shiplap::run
