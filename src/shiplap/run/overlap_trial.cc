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
#include "shiplap/kernels/fp8.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/overlapped_product.h"
#include "shiplap/run/tile_product_internal.h"

namespace shiplap::run {
namespace {

using overlap::Choice;
using overlap::Measurement;
using overlap::Method;
using overlap::Problem;
using overlap::Type;

constexpr int kTracedSteps = 5;

template <class T, class Convert>
std::vector<float> converted(std::span<const std::byte> bytes, const Convert& convert) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  std::vector<float> floats(numbers.size());
  std::ranges::transform(numbers, floats.begin(), convert);
  return floats;
}

std::vector<float> floats_of(std::span<const std::byte> bytes, DType type) {
  switch (gemm_dtype(type)) {
    case DType::f32:
      return converted<float>(bytes, [](float number) { return number; });
    case DType::bf16:
      return converted<kernels::Bf16>(bytes, [](auto number) { return kernels::to_float(number); });
    default:  // f16
      return converted<kernels::F16>(bytes, [](auto number) { return kernels::to_float(number); });
  }
}

template <class T>
void put(std::byte* bytes, std::size_t k, T number) {
  std::memcpy(bytes + k * sizeof(T), &number, sizeof(T));
}

// A row, not coded.
void put_row(std::span<const float> row, DType type, std::byte* to) {
  for (std::size_t k = 0; k < row.size(); ++k) {
    if (type == DType::f32) put(to, k, row[k]);
    if (type == DType::bf16) put(to, k, kernels::to_bf16(row[k]));
    if (type == DType::f16) put(to, k, kernels::to_f16(row[k]));
  }
}

// Rows of made-up numbers between -0.5 and 0.5, as a form has them.
struct TrialRows {
  std::span<std::byte> bytes;
  std::int64_t columns = 0;
  std::int64_t row_bytes = 0;
  [[nodiscard]] std::int64_t count() const { return std::ssize(bytes) / row_bytes; }
};
void fill(const TrialRows& rows, const overlap::Form& form, DType type, std::size_t seed,
          ScaleOf scale) {
  std::vector<float> numbers(rows.count() * rows.columns);
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    numbers[k] = static_cast<float>((k + seed) * 2654435761U % 1000) * 1e-3F - 0.5F;
  }
  if (!overlap::is_plain(form)) {
    return encode({.data = numbers.data(), .rows = rows.count(), .columns = rows.columns}, form,
                  rows.bytes.data(), rows.row_bytes, scale);
  }
  const auto columns = static_cast<std::size_t>(rows.columns);
  for (std::int64_t k = 0; k < rows.count(); ++k) {
    put_row(std::span(numbers).subspan(static_cast<std::size_t>(k) * columns, columns), type,
            rows.bytes.data() + k * rows.row_bytes);
  }
}

// What a rank has of the factors.
struct Own {
  Own(const Choice& choice, const Problem& problem, std::int64_t rank)
      : gathers(choice.type == Type::all_gather),
        depth(gathers ? problem.depth : share(problem.depth, problem.ranks, rank)),
        columns(gathers ? share(problem.columns, problem.ranks, rank) : problem.columns),
        x_bytes(overlap::row_bytes(problem.x, problem.type, depth) +
                (gathers && problem.groups > 0 ? overlap::kGroupBytes : 0)),
        w_bytes(overlap::row_bytes(problem.w, problem.type, depth)) {}

  // Of what does not divide, the first ranks have one more.
  static std::int64_t share(std::int64_t count, std::int64_t ranks, std::int64_t rank) {
    return count / ranks + (rank < count % ranks ? 1 : 0);
  }

  bool gathers;
  std::int64_t depth;
  std::int64_t columns;
  std::int64_t x_bytes;  // of a row of x
  std::int64_t w_bytes;
};

// The rows of each rank, those of the first group first.
std::vector<kernels::GroupRows> runs_of(const Problem& problem) {
  std::vector<kernels::GroupRows> runs;
  if (problem.groups == 0) return runs;
  for (std::int64_t rank = 0; rank < problem.ranks; ++rank) {
    const std::int64_t rows = Own::share(problem.rows, problem.ranks, rank);
    for (std::int64_t group = 0; group < problem.groups; ++group) {
      runs.push_back({.group = group,
                      .rows = (group + 1) * rows / problem.groups - group * rows / problem.groups});
    }
  }
  return runs;
}

// Behind each row of x, the number of its group.
void put_groups(const TrialRows& x, std::span<const kernels::GroupRows> runs) {
  std::int64_t row = 0;
  for (const kernels::GroupRows& run : runs) {
    const auto group = static_cast<std::int32_t>(run.group);
    for (std::int64_t k = 0; k < run.rows; ++k) {
      put(x.bytes.data() + ++row * x.row_bytes - overlap::kGroupBytes, 0, group);
    }
  }
}

// How far two ways to round may lead, over the largest number. Sums that are coded on their way are
// coded by all methods alike, but for the part of the owner itself, which only some do; and sums
// that go to everybody may be coded to either side. Parts of made-up numbers are no larger than
// their sums.
double tolerance_of(const Choice& choice, const Problem& problem) {
  const bool is_wide = problem.type == DType::f32;
  const double plain = is_wide ? 1e-4 : (problem.type == DType::f16 ? 0x1p-8 : 0x1p-5);
  if (overlap::is_plain(problem.sums)) return plain;
  const double step = kernels::relative_step(
      problem.sums.type == DType::fp8_e5m2 ? DType::fp8_e5m2 : DType::fp8_e4m3);
  return plain + step * (choice.type == Type::all_reduce ? 3 : 1);
}

// All rows of X that a rank has, times its weights, in one call.
class Alone {
 public:
  Alone(const OverlappedProduct& product, const Problem& problem, const Own& own,
        std::span<const kernels::GroupRows> runs)
      : runs_(runs),
        type_(gemm_dtype(problem.type)),
        y_(static_cast<std::size_t>(problem.rows * own.columns * bytes_of(problem.type))),
        tiles_(problem, own.columns, own.depth, kTypicalRows),
        x_(tiles_.rows_of_x(product.buffer("x").data(), problem.rows, own.x_bytes)) {
    tiles_.prepare(product.buffer("w"));
  }
  [[nodiscard]] std::string by() const { return std::string(tiles_.by()); }
  void multiply() { tiles_.multiply(x_, {.data = y_.data(), .type = type_}, {}, runs_); }

 private:
  static constexpr std::int64_t kTypicalRows = 256;
  std::span<const kernels::GroupRows> runs_;
  DType type_;
  std::vector<std::byte> y_;
  TileProduct tiles_;
  kernels::MatrixView x_;
};

class OverlapTrial {
 public:
  OverlapTrial(comm::Communicator& world, const Choice& choice, const Problem& problem,
               const OverlapTrialOptions& options)
      : world_(world),
        choice_(choice),
        problem_(problem),
        options_(options),
        own_(choice, problem, world.rank()),
        runs_(runs_of(problem)) {
    ensure(options.rounds >= 1, "a trial has a round");
  }

  Measurement run() {
    OverlappedProduct serial = made({.type = choice_.type, .method = Method::none}, false);
    OverlappedProduct overlapped = made(choice_, false);
    Alone alone(serial, problem_, own_, runs_);
    const std::array<std::function<void()>, 4> acts{
        [&] { alone.multiply(); }, [&] { overlapped.run(terms(Work::communication)); },
        [&] { serial.run(terms()); }, [&] { overlapped.run(terms()); }};
    result_.multiplied_by = alone.by();
    serial.run(terms());
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
    const TrialRows x{
        .bytes = product.buffer("x"), .columns = own_.depth, .row_bytes = own_.x_bytes};
    fill(x, problem_.x, problem_.type, 1 + 7919 * rank, ScaleOf::each_row);
    if (own_.gathers) put_groups(x, runs_);
    fill_weights(product.buffer("w"), 2 + 104'729 * rank);
    product.prepare();
    return product;
  }
  // Each group has a scale of its own, if there is one.
  void fill_weights(std::span<std::byte> all, std::size_t seed) const {
    const auto bytes = static_cast<std::size_t>(own_.columns * own_.w_bytes);
    for (std::size_t at = 0; at < all.size(); at += bytes) {
      const TrialRows w{
          .bytes = all.subspan(at, bytes), .columns = own_.depth, .row_bytes = own_.w_bytes};
      fill(w, problem_.w, problem_.type, seed + at, ScaleOf::all_rows);
    }
  }
  // Rows that are gathered say their groups themselves.
  [[nodiscard]] ProductTerms terms(Work work = Work::all) const {
    ProductTerms terms{.work = work};
    if (!own_.gathers) terms.runs = runs_;
    return terms;
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
    world_.all_reduce(std::span(&took, 1), ReduceOp::max);
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
      return overlap::Spread{
          .median = all[all.size() / 2], .least = all.front(), .most = all.back()};
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
    // Where sums are coded, `y` has codes.
    const bool has_out = choice_.type == Type::reduce_scatter || !overlap::is_plain(problem_.sums);
    if (has_out) compare_buffer("out");
    if (!has_out || (choice_.method == Method::bulk && overlap::is_plain(problem_.sums))) {
      compare_buffer("y");
    }
    std::array<double, 2> all{largest, furthest};
    world_.all_reduce(std::span<double>(all), ReduceOp::max);
    result_.difference = all[0] > 0 ? all[1] / all[0] : all[1];
    result_.tolerance = tolerance_of(choice_, problem_);
  }

  // Tracing costs a little time, so it is not done while it counts.
  void trace(const OverlappedProduct& serial) {
    OverlappedProduct product = made(choice_, true);
    lend_sums(serial, product);
    product.run(terms());
    struct Traced {
      Seconds time;
      StepResult step;
    };
    std::vector<Traced> steps;
    for (int k = 0; k < kTracedSteps; ++k) {
      StepResult step;
      const Seconds time = timed([&] { step = product.run(terms()); });
      steps.push_back({time, std::move(step)});
    }
    std::ranges::sort(steps, {}, &Traced::time);
    result_.trace = gather_trace(world_, product.plan(), steps[steps.size() / 2].step);
  }

  comm::Communicator& world_;
  Choice choice_;
  Problem problem_;
  OverlapTrialOptions options_;
  Own own_;
  std::vector<kernels::GroupRows> runs_;
  Measurement result_;
};

}  // namespace

Measurement try_overlap(comm::Communicator& world, const Choice& choice, const Problem& problem,
                        const OverlapTrialOptions& options) {
  return OverlapTrial(world, choice, problem, options).run();
}

double overlap_trial_bytes(const Choice& choice, const Problem& problem) {
  const auto rows = static_cast<double>(problem.rows);
  const auto columns = static_cast<double>(problem.columns);
  const auto depth = static_cast<double>(problem.depth);
  const double ranks = problem.ranks;
  const bool gathers = choice.type == Type::all_gather;
  const double x = gathers ? ranks * rows * depth : rows * depth;
  const double w = columns * depth * std::max(1, problem.groups);
  const double y = gathers ? rows * columns : ranks * rows * columns;
  // The two products and the traced one have each of them, with packed weights and what arrives;
  // the product alone has weights and a result.
  return static_cast<double>(bytes_of(problem.type)) * (3 * x + 7 * w + 7 * y);
}

}  // namespace shiplap::run
