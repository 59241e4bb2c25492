// Benchmark of a GEMM in chunks of rows, as they would arrive from other ranks.
//
//   bench_gemm [--json] [--rounds N]
//
// Per shape: the whole GEMM in one call, which the kernel may split into blocks (`_whole_by_<rows>`
// has the block sizes; the fastest counts as the whole), and the same rows in chunks, one call
// each, with weights that are packed once, or by every call (`_unprepared`). Measurements are
// interleaved. A ratio is that of a chunked time to the whole one measured next to it: median,
// minimum and maximum. One thread. Chunks of a multiple of the whole's block size are the same
// work, so their ratio shows only the noise.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <ranges>
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
using kernels::LinearKernel;
using kernels::Packing;

struct Case {
  std::string name;
  std::int64_t rows;
  std::int64_t depth;
  std::int64_t columns;
  DType type;
  Activation activation = Activation::none;
};

// M x K x N.
const std::vector<Case> kCases = {
    {"bf16_1024x2048x4096", 1024, 2048, 4096, DType::bf16},
    {"bf16_512x4096x1024", 512, 4096, 1024, DType::bf16},
    {"bf16_1024x4096x4096", 1024, 4096, 4096, DType::bf16},
    {"bf16_1024x2048x4096_gelu", 1024, 2048, 4096, DType::bf16, Activation::gelu_tanh},
    {"f32_512x2048x1024", 512, 2048, 1024, DType::f32},
    {"f16_512x2048x1024", 512, 2048, 1024, DType::f16}};

constexpr std::int64_t kChunks[] = {16, 32, 64, 128, 256, 512};
constexpr double kAllowed = 1.05;

std::vector<std::byte> random_numbers(Random& random, DType type, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * bytes_of(type)));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(2 * random.unit() - 1);
    if (type == DType::f32) reinterpret_cast<float*>(bytes.data())[i] = value;
    if (type == DType::bf16)
      reinterpret_cast<kernels::Bf16*>(bytes.data())[i] = kernels::to_bf16(value);
    if (type == DType::f16)
      reinterpret_cast<kernels::F16*>(bytes.data())[i] = kernels::to_f16(value);
  }
  return bytes;
}

struct Matrices {
  explicit Matrices(const Case& which) {
    Random random(1);
    a = random_numbers(random, which.type, which.rows * which.depth);
    weights = random_numbers(random, which.type, which.depth * which.columns);
    bias = random_numbers(random, DType::f32, which.columns);
    c = random_numbers(random, which.type, which.rows * which.columns);
    before = c;
  }
  std::vector<std::byte> a;
  std::vector<std::byte> weights;
  std::vector<std::byte> bias;
  std::vector<std::byte> c;
  std::vector<std::byte> before;
};

// A kernel for a case. Several kernels share the matrices.
class Subject {
 public:
  Subject(const Case& which, Matrices& matrices, Packing packing, std::int64_t typical_rows)
      : case_(which),
        matrices_(matrices),
        typical_rows_(typical_rows),
        kernel_({.n = which.columns,
                 .k = which.depth,
                 .type = which.type,
                 .packing = packing,
                 .typical_rows = typical_rows}) {
    kernel_.prepare({.data = matrices_.weights.data(), .type = which.type});
  }

  [[nodiscard]] std::string_view backend_name() const { return kernel_.backend_name(); }
  [[nodiscard]] std::int64_t typical_rows() const { return typical_rows_; }

  double seconds_in_chunks_of(std::int64_t rows) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t first = 0; first < case_.rows; first += rows) {
      multiply(first, std::min(rows, case_.rows - first));
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  void multiply(std::int64_t first, std::int64_t count) {
    const auto size = bytes_of(case_.type);
    const std::int64_t at = first * case_.columns * size;
    kernels::Epilogue epilogue;
    if (case_.activation != Activation::none) {
      epilogue = {.bias = {.data = matrices_.bias.data()},
                  .activation = case_.activation,
                  .pre_activation = {.data = matrices_.before.data() + at, .type = case_.type}};
    }
    kernel_.multiply({.data = matrices_.a.data() + first * case_.depth * size,
                      .type = case_.type,
                      .rows = count},
                     {.data = matrices_.c.data() + at, .type = case_.type}, epilogue);
  }

  Case case_;
  Matrices& matrices_;
  std::int64_t typical_rows_;
  LinearKernel kernel_;
};

// The times of one variant of the GEMM, and of the whole one measured next to each.
struct Times {
  std::vector<double> own;
  std::vector<double> whole;
};

Spread in_milliseconds(const Times& times) {
  const Spread s = spread(times.own);
  return {s.median * 1e3, s.min * 1e3, s.max * 1e3};
}

Spread ratio(const Times& times) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.own.size(); ++i) {
    ratios.push_back(times.own[i] / times.whole[i]);
  }
  return spread(ratios);
}

// One way to compute the GEMM.
struct Variant {
  std::string name;
  Subject* subject = nullptr;
  std::int64_t rows = 0;  // per call
  Times times;
};

// Each variant is measured right after the whole GEMM.
void measure(std::vector<Variant>& variants, const Variant& whole, int rounds) {
  for (Variant& variant : variants) variant.subject->seconds_in_chunks_of(variant.rows);
  for (int round = 0; round < rounds; ++round) {
    for (Variant& variant : variants) {
      variant.times.whole.push_back(whole.subject->seconds_in_chunks_of(whole.rows));
      variant.times.own.push_back(variant.subject->seconds_in_chunks_of(variant.rows));
    }
  }
}

std::vector<Variant> chunks_of(const Case& which, Subject& subject, const std::string& prefix) {
  std::vector<Variant> variants;
  for (const std::int64_t rows : kChunks) {
    if (rows >= which.rows) continue;
    variants.push_back({prefix + "chunked_over_whole_" + std::to_string(rows), &subject, rows, {}});
  }
  return variants;
}

// The fastest of several variants that compute the whole in one call. None may run right after
// itself, or it would be the only one with its weights in the cache.
Variant whole_of(Json& json, const Case& which, std::span<Subject> subjects, int rounds) {
  std::vector<Variant> variants;
  for (Subject& subject : subjects) {
    subject.seconds_in_chunks_of(which.rows);
    variants.push_back(
        {"whole_by_" + std::to_string(subject.typical_rows()) + "_ms", &subject, which.rows, {}});
  }
  for (int round = 0; round < rounds; ++round) {
    for (Variant& variant : variants)
      variant.times.own.push_back(variant.subject->seconds_in_chunks_of(variant.rows));
  }
  for (const Variant& variant : variants)
    put(json, which.name + "_" + variant.name, in_milliseconds(variant.times));
  return *std::ranges::min_element(
      variants, {}, [](const Variant& variant) { return spread(variant.times.own).median; });
}

// The smallest chunk, counted from the largest down, whose overhead is allowed.
Json smallest_cheap(const std::vector<Variant>& variants) {
  Json smallest;
  for (const Variant& variant : variants | std::views::reverse) {
    if (ratio(variant.times).median > kAllowed) break;
    smallest = Json(variant.rows);
  }
  return smallest;
}

// From the whole GEMMs measured next to the variants: the times that selected it are biased.
Spread speed(const Case& which, const std::vector<Variant>& variants) {
  const double operations = 2e-9 * static_cast<double>(which.rows * which.depth * which.columns);
  std::vector<double> speeds;
  for (const Variant& variant : variants) {
    for (const double seconds : variant.times.whole) speeds.push_back(operations / seconds);
  }
  return spread(speeds);
}

void measure_case(Json& json, const Case& which, int rounds) {
  Matrices matrices(which);
  std::vector<Subject> wholes;
  for (const std::int64_t rows : {std::int64_t{128}, std::int64_t{256}, which.rows}) {
    wholes.emplace_back(which, matrices, Packing::once, rows);
  }
  const Variant whole = whole_of(json, which, wholes, rounds);
  json.set(which.name + "_by", std::string(whole.subject->backend_name()));
  json.set(which.name + "_whole_blocks", whole.subject->typical_rows());
  Subject unprepared(which, matrices, Packing::every_call, kernels::LinearShape{}.typical_rows);
  Subject unprepared_whole(which, matrices, Packing::every_call, which.rows);
  std::vector<Variant> chunks = chunks_of(which, *whole.subject, "");
  std::vector<Variant> others = chunks_of(which, unprepared, "unprepared_");
  others.push_back({"unprepared_over_whole", &unprepared_whole, which.rows, {}});
  measure(chunks, whole, rounds);
  measure(others, whole, rounds);
  put(json, which.name + "_whole_gflops", speed(which, chunks));
  json.set(which.name + "_smallest_chunk_within_1.05", smallest_cheap(chunks));
  chunks.insert(chunks.end(), others.begin(), others.end());
  for (const Variant& variant : chunks)
    put(json, which.name + "_" + variant.name, ratio(variant.times));
}

void measure_all(Json& json, int rounds) {
  json.set("gemm_backend", std::string(kernels::gemm_backend_name()));
  double load = 0;
  if (getloadavg(&load, 1) == 1) json.set("load_before", load);
  for (const Case& which : kCases) measure_case(json, which, rounds);
  if (getloadavg(&load, 1) == 1) json.set("load_after", load);
}

struct Options {
  bool json = false;
  int rounds = 9;
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
    } else {
      throw std::runtime_error("usage: bench_gemm [--json] [--rounds N]");
    }
  }
  return options;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) try {
  const shiplap::Options options =
      shiplap::parse_options(std::span(argv, static_cast<std::size_t>(argc)));
  shiplap::Json result = shiplap::Json::object({{"schema", "shiplap.bench.gemm/1"}});
  shiplap::measure_all(result, options.rounds);
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
