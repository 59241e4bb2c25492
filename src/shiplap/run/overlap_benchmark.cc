#include "shiplap/run/overlap_benchmark.h"

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
#include "shiplap/run/overlapped_gemm.h"
#include "shiplap/run/tile_gemm_internal.h"

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

// Writes a high-precision row.
void put_row(std::span<const float> row, DType type, std::byte* to) {
  for (std::size_t k = 0; k < row.size(); ++k) {
    if (type == DType::f32) put(to, k, row[k]);
    if (type == DType::bf16) put(to, k, kernels::to_bf16(row[k]));
    if (type == DType::f16) put(to, k, kernels::to_f16(row[k]));
  }
}

// Rows of pseudo-random values in [-0.5, 0.5).
struct BenchmarkRows {
  std::span<std::byte> bytes;
  std::int64_t columns = 0;
  std::int64_t row_bytes = 0;
  [[nodiscard]] std::int64_t count() const { return std::ssize(bytes) / row_bytes; }
};
void fill(const BenchmarkRows& rows, const overlap::QuantFormat& format, DType type,
          std::size_t seed, ScaleScope scale) {
  std::vector<float> numbers(rows.count() * rows.columns);
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    numbers[k] = static_cast<float>((k + seed) * 2654435761U % 1000) * 1e-3F - 0.5F;
  }
  if (!overlap::is_high_precision(format)) {
    return quantize_rows({.data = numbers.data(), .rows = rows.count(), .columns = rows.columns},
                         format, rows.bytes.data(), rows.row_bytes, scale);
  }
  const auto columns = static_cast<std::size_t>(rows.columns);
  for (std::int64_t k = 0; k < rows.count(); ++k) {
    put_row(std::span(numbers).subspan(static_cast<std::size_t>(k) * columns, columns), type,
            rows.bytes.data() + k * rows.row_bytes);
  }
}

// The local shapes of X and W.
struct LocalShape {
  LocalShape(const Choice& choice, const Problem& problem, std::int64_t rank)
      : gathers(choice.type == Type::all_gather),
        k(gathers ? problem.k : share(problem.k, problem.ranks, rank)),
        n(gathers ? share(problem.n, problem.ranks, rank) : problem.n),
        x_bytes(overlap::row_bytes(problem.x, problem.type, k) +
                (gathers && problem.groups > 0 ? overlap::kGroupBytes : 0)),
        w_bytes(overlap::row_bytes(problem.w, problem.type, k)) {}

  // Remainders go to the lowest ranks.
  static std::int64_t share(std::int64_t count, std::int64_t ranks, std::int64_t rank) {
    return count / ranks + (rank < count % ranks ? 1 : 0);
  }

  bool gathers;
  std::int64_t k;
  std::int64_t n;
  std::int64_t x_bytes;  // of a row of x
  std::int64_t w_bytes;
};

// Returns the group runs of all ranks; the rows of a rank are sorted by group.
std::vector<kernels::GroupRows> runs_of(const Problem& problem) {
  std::vector<kernels::GroupRows> runs;
  if (problem.groups == 0) return runs;
  for (std::int64_t rank = 0; rank < problem.ranks; ++rank) {
    const std::int64_t rows = LocalShape::share(problem.m, problem.ranks, rank);
    for (std::int64_t group = 0; group < problem.groups; ++group) {
      runs.push_back({.group = group,
                      .rows = (group + 1) * rows / problem.groups - group * rows / problem.groups});
    }
  }
  return runs;
}

// Writes the group number at the end of each row of x.
void put_groups(const BenchmarkRows& x, std::span<const kernels::GroupRows> runs) {
  std::int64_t row = 0;
  for (const kernels::GroupRows& run : runs) {
    const auto group = static_cast<std::int32_t>(run.group);
    for (std::int64_t k = 0; k < run.rows; ++k) {
      put(x.bytes.data() + ++row * x.row_bytes - overlap::kGroupBytes, 0, group);
    }
  }
}

// Returns the tolerated difference between two methods, relative to the largest value. All methods
// quantize partial sums alike, except for the part of the owner, which only some quantize; and the
// sums of all_reduce are quantized again. Partial sums of these values are not larger than the
// sums.
double tolerance_of(const Choice& choice, const Problem& problem) {
  const bool is_f32 = problem.type == DType::f32;
  const double plain = is_f32 ? 1e-4 : (problem.type == DType::f16 ? 0x1p-8 : 0x1p-5);
  if (overlap::is_high_precision(problem.sums)) return plain;
  const double step = kernels::unit_roundoff(
      problem.sums.type == DType::fp8_e5m2 ? DType::fp8_e5m2 : DType::fp8_e4m3);
  return plain + step * (choice.type == Type::all_reduce ? 3 : 1);
}

// All local rows of X times the local weights, in one call.
class StandaloneGemm {
 public:
  StandaloneGemm(const OverlappedGemm& gemm, const Problem& problem, const LocalShape& local,
                 std::span<const kernels::GroupRows> runs)
      : runs_(runs),
        type_(gemm_dtype(problem.type)),
        y_(static_cast<std::size_t>(problem.m * local.n * bytes_of(problem.type))),
        tiles_(problem, local.n, local.k, kTypicalRows),
        x_(tiles_.rows_of_x(gemm.buffer("x").data(), problem.m, local.x_bytes)) {
    tiles_.prepare(gemm.buffer("w"));
  }
  [[nodiscard]] std::string backend_name() const { return std::string(tiles_.backend_name()); }
  void multiply() { tiles_.multiply(x_, {.data = y_.data(), .type = type_}, {}, runs_); }

 private:
  static constexpr std::int64_t kTypicalRows = 256;
  std::span<const kernels::GroupRows> runs_;
  DType type_;
  std::vector<std::byte> y_;
  TileGemm tiles_;
  kernels::MatrixView x_;
};

class OverlapBenchmark {
 public:
  OverlapBenchmark(comm::Communicator& world, const Choice& choice, const Problem& problem,
                   const OverlapBenchmarkOptions& options)
      : world_(world),
        choice_(choice),
        problem_(problem),
        options_(options),
        local_(choice, problem, world.rank()),
        runs_(runs_of(problem)) {
    ensure(options.rounds >= 1, "there is at least one round");
  }

  Measurement run() {
    OverlappedGemm serial = make_gemm({.type = choice_.type, .method = Method::none}, false);
    OverlappedGemm overlapped = make_gemm(choice_, false);
    StandaloneGemm standalone(serial, problem_, local_, runs_);
    const std::array<std::function<void()>, 4> variants{
        [&] { standalone.multiply(); }, [&] { overlapped.run(args(GemmMode::comm_only)); },
        [&] { serial.run(args()); }, [&] { overlapped.run(args()); }};
    result_.gemm_backend = standalone.backend_name();
    serial.run(args());
    copy_sums(serial, overlapped);
    measure(variants);
    compare(serial, overlapped);
    if (options_.traces) trace(serial);
    return std::move(result_);
  }

 private:
  OverlappedGemm make_gemm(const Choice& choice, bool traces) {
    OverlappedGemm gemm(choice, problem_, world_,
                        {.progress = options_.progress, .traces = traces});
    const auto rank = static_cast<std::size_t>(world_.rank());
    const BenchmarkRows x{
        .bytes = gemm.buffer("x"), .columns = local_.k, .row_bytes = local_.x_bytes};
    fill(x, problem_.x, problem_.type, 1 + 7919 * rank, ScaleScope::per_row);
    if (local_.gathers) put_groups(x, runs_);
    fill_weights(gemm.buffer("w"), 2 + 104'729 * rank);
    gemm.prepare();
    return gemm;
  }
  // Each group has its own scale.
  void fill_weights(std::span<std::byte> all, std::size_t seed) const {
    const auto bytes = static_cast<std::size_t>(local_.n * local_.w_bytes);
    for (std::size_t at = 0; at < all.size(); at += bytes) {
      const BenchmarkRows w{
          .bytes = all.subspan(at, bytes), .columns = local_.k, .row_bytes = local_.w_bytes};
      fill(w, problem_.w, problem_.type, seed + at, ScaleScope::per_tensor);
    }
  }
  // Gathered rows carry their group numbers.
  [[nodiscard]] GemmArgs args(GemmMode mode = GemmMode::full) const {
    GemmArgs args{.mode = mode};
    if (!local_.gathers) args.runs = runs_;
    return args;
  }

  // A bulk overlap scatters the sums of another GEMM.
  void copy_sums(const OverlappedGemm& serial, const OverlappedGemm& overlapped) const {
    if (choice_.method != Method::bulk) return;
    std::ranges::copy(serial.buffer("y"), overlapped.buffer("z").begin());
  }

  // Returns the time of the slowest rank.
  Seconds timed(const std::function<void()>& act) {
    world_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    act();
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    world_.all_reduce(std::span(&took, 1), ReduceOp::max);
    return {took};
  }

  void measure(const std::array<std::function<void()>, 4>& variants) {
    std::array<std::vector<Seconds>, 4> times;
    for (int round = -1; round < options_.rounds; ++round) {
      for (std::size_t k = 0; k < variants.size(); ++k) {
        const Seconds took = timed(variants[k]);
        if (round >= 0) times[k].push_back(took);
      }
    }
    const auto spread = [](std::vector<Seconds>& all) {
      std::ranges::sort(all);
      return overlap::Spread{.median = all[all.size() / 2], .min = all.front(), .max = all.back()};
    };
    result_.gemm = spread(times[0]);
    result_.communication = spread(times[1]);
    result_.serial = spread(times[2]);
    result_.overlapped = spread(times[3]);
  }

  void compare(const OverlappedGemm& serial, const OverlappedGemm& overlapped) {
    double largest = 0;
    double max_difference = 0;
    const auto compare_buffer = [&](const char* name) {
      const std::vector<float> right = floats_of(serial.buffer(name), problem_.type);
      const std::vector<float> found = floats_of(overlapped.buffer(name), problem_.type);
      for (std::size_t k = 0; k < right.size(); ++k) {
        const double apart = std::abs(static_cast<double>(found[k]) - right[k]);
        largest = std::max(largest, std::abs(static_cast<double>(right[k])));
        max_difference = std::isnan(apart) ? HUGE_VAL : std::max(max_difference, apart);
      }
    };
    // If sums are quantized, `y` is too.
    const bool has_out =
        choice_.type == Type::reduce_scatter || !overlap::is_high_precision(problem_.sums);
    if (has_out) compare_buffer("out");
    if (!has_out || (choice_.method == Method::bulk && overlap::is_high_precision(problem_.sums))) {
      compare_buffer("y");
    }
    std::array<double, 2> all{largest, max_difference};
    world_.all_reduce(std::span<double>(all), ReduceOp::max);
    result_.difference = all[0] > 0 ? all[1] / all[0] : all[1];
    result_.tolerance = tolerance_of(choice_, problem_);
  }

  // Traced separately, since tracing costs a little time.
  void trace(const OverlappedGemm& serial) {
    OverlappedGemm gemm = make_gemm(choice_, true);
    copy_sums(serial, gemm);
    gemm.run(args());
    struct Traced {
      Seconds time;
      StepResult step;
    };
    std::vector<Traced> steps;
    for (int k = 0; k < kTracedSteps; ++k) {
      StepResult step;
      const Seconds time = timed([&] { step = gemm.run(args()); });
      steps.push_back({time, std::move(step)});
    }
    std::ranges::sort(steps, {}, &Traced::time);
    result_.trace = gather_trace(world_, gemm.plan(), steps[steps.size() / 2].step);
  }

  comm::Communicator& world_;
  Choice choice_;
  Problem problem_;
  OverlapBenchmarkOptions options_;
  LocalShape local_;
  std::vector<kernels::GroupRows> runs_;
  Measurement result_;
};

}  // namespace

Measurement benchmark_overlap(comm::Communicator& world, const Choice& choice,
                              const Problem& problem, const OverlapBenchmarkOptions& options) {
  return OverlapBenchmark(world, choice, problem, options).run();
}

double overlap_benchmark_bytes(const Choice& choice, const Problem& problem) {
  const auto m = static_cast<double>(problem.m);
  const auto n = static_cast<double>(problem.n);
  const auto k = static_cast<double>(problem.k);
  const double ranks = problem.ranks;
  const bool gathers = choice.type == Type::all_gather;
  const double x = gathers ? ranks * m * k : m * k;
  const double w = n * k * std::max(1, problem.groups);
  const double y = gathers ? m * n : ranks * m * n;
  // The serial, the overlapped and the traced GEMM have each of them, packed weights and receive
  // buffers; the standalone GEMM has weights and a result.
  return static_cast<double>(bytes_of(problem.type)) * (3 * x + 7 * w + 7 * y);
}

}  // namespace shiplap::run
