// Benchmark of grouped GEMMs against a loop of GEMMs.
//
//   bench_grouped [--json] [--rounds N] [--case NAME]
//
// 64 groups have random ragged sizes: some are empty, a few are large. Measurements of all variants
// are interleaved, and a ratio is that of two times measured next to each other: median, minimum
// and maximum. One thread. The loop has a prepared LinearKernel for each group, which has seen
// these sizes before, with the typical number of rows for which it was fastest.
//
//   CASE_grouped_over_loop              one LinearKernel with groups over it
//   CASE_grouped_over_loop_fresh_sizes  both with numbers of rows that neither has seen
//   CASE_grouped_fresh_over_loop        of these, its first call over the loop's second
//   CASE_packing_grouped_over_loop      both pack the weights, as after an optimizer step: grouped
//                                       in each call (Packing::every_call), the loop all at once
//   CASE_packing_grouped_over_one       the same over one LinearKernel, prepared for each group
//   CASE_preparing_grouped_over_one     grouped packs all first (Packing::once), over the same
//
// Keys without CASE_ are those of the main case.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "figures.h"
#include "shiplap/base/json.h"
#include "shiplap/base/random.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/f16.h"
#include "shiplap/kernels/linear.h"

namespace shiplap {
namespace {

using kernels::Activation;
using kernels::GroupRows;
using kernels::LinearKernel;
using kernels::Packing;

constexpr std::int64_t kGroups = 64;

struct Case {
  std::string name;
  std::int64_t tokens;
  std::int64_t depth;
  std::int64_t columns;
  DType type = DType::bf16;
  DType out = DType::bf16;
  Activation activation = Activation::none;
};

constexpr std::string_view kMain = "bf16_2048x1024x1024";

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::int64_t size : {256, 512, 1024, 2048}) {
    for (const std::int64_t tokens : {512, 2048, 8192}) {
      const std::string sizes = std::to_string(size) + "x" + std::to_string(size);
      cases.push_back({"bf16_" + std::to_string(tokens) + "x" + sizes, tokens, size, size});
    }
  }
  cases.push_back({"bf16_2048x2048x512", 2048, 2048, 512});
  cases.push_back({"bf16_2048x512x2048_bias_gelu", 2048, 512, 2048, DType::bf16, DType::bf16,
                   Activation::gelu_tanh});
  cases.push_back({"bf16_to_f32_2048x1024x1024", 2048, 1024, 1024, DType::bf16, DType::f32});
  cases.push_back({"f32_2048x512x512", 2048, 512, 512, DType::f32, DType::f32});
  cases.push_back({"f16_2048x512x512", 2048, 512, 512, DType::f16, DType::f16});
  return cases;
}

std::vector<std::byte> random_numbers(Random& random, DType type, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * bytes_of(type)));
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random.next() >> 40U) * 0x1p-23F - 1;
    if (type == DType::f32) reinterpret_cast<float*>(bytes.data())[i] = value;
    if (type == DType::bf16)
      reinterpret_cast<kernels::Bf16*>(bytes.data())[i] = kernels::to_bf16(value);
    if (type == DType::f16)
      reinterpret_cast<kernels::F16*>(bytes.data())[i] = kernels::to_f16(value);
  }
  return bytes;
}

// An eighth of the groups is empty; the sizes of the others have a tail like 1 / x.
std::vector<GroupRows> ragged_runs(std::int64_t tokens, std::uint64_t seed) {
  Random random(seed);
  std::vector<double> ends;
  double sum = 0;
  for (std::int64_t i = 0; i < kGroups; ++i) {
    const double share = 1 / (0.05 + random.unit());
    if (!random.chance(0.125)) sum += share;
    ends.push_back(sum);
  }
  std::vector<GroupRows> runs;
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < kGroups; ++i) {
    const double end = ends[i] / sum * static_cast<double>(tokens);
    const auto rounded = static_cast<std::int64_t>(std::llround(end));
    runs.push_back({.group = i, .rows = rounded - before});
    before = rounded;
  }
  return runs;
}

// The operands of all variants.
struct Matrices {
  explicit Matrices(const Case& which) : shape(which) {
    Random random(1);
    a = random_numbers(random, which.type, which.tokens * which.depth);
    weights = random_numbers(random, which.type, kGroups * which.depth * which.columns);
    bias = random_numbers(random, DType::f32, kGroups * which.columns);
    c = random_numbers(random, which.out, which.tokens * which.columns);
    before = c;
  }

  [[nodiscard]] kernels::MatrixView weights_of(std::int64_t group) {
    const auto size = bytes_of(shape.type);
    return {.data = weights.data() + group * shape.depth * shape.columns * size,
            .type = shape.type};
  }
  [[nodiscard]] kernels::MatrixView rows(std::int64_t first, std::int64_t count) {
    const auto size = bytes_of(shape.type);
    return {.data = a.data() + first * shape.depth * size, .type = shape.type, .rows = count};
  }
  [[nodiscard]] kernels::MatrixView result(std::vector<std::byte>& of, std::int64_t first) const {
    const auto size = bytes_of(shape.out);
    return {.data = of.data() + first * shape.columns * size, .type = shape.out};
  }

  Case shape;
  std::vector<std::byte> a;
  std::vector<std::byte> weights;
  std::vector<std::byte> bias;
  std::vector<std::byte> c;
  std::vector<std::byte> before;
};

using Runs = std::span<const GroupRows>;

// A way to multiply all groups.
class Variant {
 public:
  virtual ~Variant() = default;
  virtual void prepare() = 0;
  virtual void multiply(Runs runs) = 0;

  double seconds(Runs runs) {
    const auto begin = std::chrono::steady_clock::now();
    multiply(runs);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  double seconds_with_packing(Runs runs) {
    const auto begin = std::chrono::steady_clock::now();
    prepare();
    multiply(runs);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

class Grouped final : public Variant {
 public:
  Grouped(Matrices& matrices, Packing packing)
      : m_(matrices),
        kernel_({.groups = kGroups,
                 .n = m_.shape.columns,
                 .k = m_.shape.depth,
                 .type = m_.shape.type,
                 .packing = packing,
                 .typical_rows = 64}) {
    for (std::int64_t i = 0; i < kGroups; ++i) weights_.push_back(m_.weights_of(i));
  }
  [[nodiscard]] std::string_view backend_name() const { return kernel_.backend_name(); }
  void prepare() override { kernel_.prepare(weights_); }
  void multiply(Runs runs) override {
    kernels::Epilogue epilogue;
    if (m_.shape.activation != Activation::none) {
      epilogue = {.bias = {.data = m_.bias.data()},
                  .activation = m_.shape.activation,
                  .pre_activation = m_.result(m_.before, 0)};
    }
    kernel_.multiply(m_.rows(0, m_.shape.tokens), m_.result(m_.c, 0), epilogue, runs);
  }

 private:
  Matrices& m_;
  LinearKernel kernel_;
  std::vector<kernels::MatrixView> weights_;
};

LinearKernel linear_kernel(const Case& which, std::int64_t typical_rows) {
  return LinearKernel(
      {.n = which.columns, .k = which.depth, .type = which.type, .typical_rows = typical_rows});
}

void multiply_one(Matrices& m, LinearKernel& kernel, const GroupRows& run, std::int64_t first) {
  kernels::Epilogue epilogue;
  if (m.shape.activation != Activation::none) {
    epilogue = {.bias = {.data = m.bias.data() + run.group * m.shape.columns * 4},
                .activation = m.shape.activation,
                .pre_activation = m.result(m.before, first)};
  }
  kernel.multiply(m.rows(first, run.rows), m.result(m.c, first), epilogue);
}

// A kernel for each group.
class Loop final : public Variant {
 public:
  Loop(Matrices& matrices, std::int64_t typical_rows) : m_(matrices) {
    for (std::int64_t i = 0; i < kGroups; ++i) {
      kernels_.push_back(linear_kernel(m_.shape, typical_rows));
    }
  }
  void prepare() override {
    for (std::int64_t i = 0; i < kGroups; ++i) {
      kernels_[i].prepare(m_.weights_of(i));
    }
  }
  void multiply(Runs runs) override {
    std::int64_t first = 0;
    for (const GroupRows& run : runs) {
      if (run.rows == 0) continue;
      multiply_one(m_, kernels_[run.group], run, first);
      first += run.rows;
    }
  }

 private:
  Matrices& m_;
  std::vector<LinearKernel> kernels_;
};

// One kernel, prepared again for each group.
class One final : public Variant {
 public:
  One(Matrices& matrices, std::int64_t typical_rows)
      : m_(matrices), kernel_(linear_kernel(matrices.shape, typical_rows)) {}
  void prepare() override {}
  void multiply(Runs runs) override {
    std::int64_t first = 0;
    for (const GroupRows& run : runs) {
      if (run.rows == 0) continue;
      kernel_.prepare(m_.weights_of(run.group));
      multiply_one(m_, kernel_, run, first);
      first += run.rows;
    }
  }

 private:
  Matrices& m_;
  LinearKernel kernel_;
};

// The typical number of rows for which the loop is fastest.
std::int64_t fastest_typical_rows(Matrices& matrices, Runs runs) {
  std::int64_t best = 0;
  double least = HUGE_VAL;
  for (const std::int64_t rows : {32, 64, 256}) {
    Loop loop(matrices, rows);
    loop.prepare();
    loop.multiply(runs);
    for (int i = 0; i < 3; ++i) {
      const double seconds = loop.seconds(runs);
      if (seconds < least) best = rows;
      least = std::min(least, seconds);
    }
  }
  return best;
}

using Timed = std::function<double(int round)>;

struct Times {
  std::vector<double> left;
  std::vector<double> right;
  [[nodiscard]] Spread ratio() const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < left.size(); ++i) ratios.push_back(left[i] / right[i]);
    return spread(ratios);
  }
};

Times take_turns(int rounds, const Timed& left, const Timed& right) {
  Times times;
  for (int round = 0; round < rounds; ++round) {
    times.right.push_back(right(round));
    times.left.push_back(left(round));
  }
  return times;
}

// Stores a ratio; that of the main case also without the name of the case.
void put_ratio(Json& json, const Case& which, const std::string& name, const Spread& ratio) {
  put(json, which.name + "_" + name, ratio);
  if (which.name == kMain) put(json, name, ratio);
}

void measure_seen(Json& json, const Case& which, Variant& grouped, Variant& loop, int rounds) {
  const std::vector<GroupRows> runs = ragged_runs(which.tokens, 1);
  for (int i = 0; i < 2; ++i) {
    loop.multiply(runs);
    grouped.multiply(runs);
  }
  const Times times = take_turns(
      rounds, [&](int) { return grouped.seconds(runs); }, [&](int) { return loop.seconds(runs); });
  put_ratio(json, which, "grouped_over_loop", times.ratio());
  put(json, which.name + "_grouped_ms", spread(times.left), 1e3);
  put(json, which.name + "_loop_ms", spread(times.right), 1e3);
  const auto operations = static_cast<double>(2 * which.tokens * which.depth * which.columns);
  json.set(which.name + "_grouped_gflops", operations / spread(times.left).median * 1e-9);
  json.set(which.name + "_loop_gflops", operations / spread(times.right).median * 1e-9);
}

void measure_fresh(Json& json, const Case& which, Variant& grouped, Variant& loop, int rounds) {
  Times first;
  Times second;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<GroupRows> runs =
        ragged_runs(which.tokens, 100 + static_cast<std::uint64_t>(round));
    first.right.push_back(loop.seconds(runs));
    first.left.push_back(grouped.seconds(runs));
    second.right.push_back(loop.seconds(runs));
  }
  second.left = first.left;
  put_ratio(json, which, "grouped_over_loop_fresh_sizes", first.ratio());
  put_ratio(json, which, "grouped_fresh_over_loop", second.ratio());
}

void measure_packing(Json& json, Matrices& matrices, Variant& grouped, Variant& loop, Variant& one,
                     int rounds) {
  const Case& which = matrices.shape;
  const std::vector<GroupRows> runs = ragged_runs(which.tokens, 1);
  Grouped packing(matrices, Packing::every_call);
  packing.prepare();
  packing.multiply(runs);
  one.multiply(runs);
  const Timed on_the_way = [&](int) { return packing.seconds(runs); };
  const Timed before = [&](int) { return grouped.seconds_with_packing(runs); };
  const Timed by_loop = [&](int) { return loop.seconds_with_packing(runs); };
  const Timed by_one = [&](int) { return one.seconds(runs); };
  put_ratio(json, which, "packing_grouped_over_loop",
            take_turns(rounds, on_the_way, by_loop).ratio());
  put_ratio(json, which, "packing_grouped_over_one",
            take_turns(rounds, on_the_way, by_one).ratio());
  put_ratio(json, which, "preparing_grouped_over_one", take_turns(rounds, before, by_one).ratio());
}

void measure_case(Json& json, const Case& which, int rounds) {
  Matrices matrices(which);
  const std::int64_t typical = fastest_typical_rows(matrices, ragged_runs(which.tokens, 1));
  Loop loop(matrices, typical);
  Grouped grouped(matrices, Packing::once);
  One one(matrices, typical);
  loop.prepare();
  grouped.prepare();
  json.set(which.name + "_by", std::string(grouped.backend_name()));
  json.set(which.name + "_loop_typical_rows", typical);
  measure_seen(json, which, grouped, loop, rounds);
  measure_fresh(json, which, grouped, loop, rounds);
  measure_packing(json, matrices, grouped, loop, one, std::min(rounds, 5));
}

struct Options {
  bool json = false;
  int rounds = 9;
  std::string only;
};

Options parse_options(std::span<char*> arguments) {
  Options options;
  for (std::size_t k = 1; k < arguments.size(); ++k) {
    const std::string_view word = arguments[k];
    const std::string value = k + 1 < arguments.size() ? arguments[k + 1] : "";
    const bool number = !value.empty() && value.find_first_not_of("0123456789") == value.npos;
    if (word == "--json") {
      options.json = true;
    } else if (word == "--rounds" && number && std::stoi(value) > 0) {
      options.rounds = std::stoi(value);
      ++k;
    } else if (word == "--case" && !value.empty()) {
      options.only = value;
      ++k;
    } else {
      throw std::runtime_error("usage: bench_grouped [--json] [--rounds N] [--case NAME]");
    }
  }
  return options;
}

void measure_all(Json& json, const Options& options) {
  json.set("gemm_backend", std::string(kernels::gemm_backend_name()));
  double load = 0;
  if (getloadavg(&load, 1) == 1) json.set("load_before", load);
  for (const Case& which : all_cases()) {
    if (options.only.empty() || options.only == which.name) {
      measure_case(json, which, options.rounds);
    }
  }
  if (getloadavg(&load, 1) == 1) json.set("load_after", load);
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) try {
  const shiplap::Options options =
      shiplap::parse_options(std::span(argv, static_cast<std::size_t>(argc)));
  shiplap::Json result = shiplap::Json::object({{"schema", "shiplap.bench.grouped/1"}});
  shiplap::measure_all(result, options);
  if (options.json) {
    std::printf("%s\n", shiplap::to_text(result).c_str());
  } else {
    for (const auto& [key, value] : result.as_object()) {
      std::printf("%-60s %s\n", key.c_str(), shiplap::to_text(value).c_str());
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
