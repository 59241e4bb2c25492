// What it costs to multiply in chunks of rows, as they would arrive from other ranks.
//
//   bench_gemm [--json] [--rounds N]
//
// Per shape: the whole product in one call, which the kernel may cut into blocks of its own
// (`_whole_by_<rows>` has the choices; the fastest counts as the whole), and the same rows in
// chunks, a call each, with weights that were packed once, or are by every call (`_unprepared`).
// All take turns. A ratio is that of a chunked time to the whole one measured next to it; medians,
// with the least and the most beside them. One thread. Chunks of as many rows as the blocks of the
// whole, or a multiple, are the same work, so that their ratio shows only the noise.
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

// Rows x depth x columns.
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

// A kernel for a case. Several share the matrices.
class Subject {
 public:
  Subject(const Case& which, Matrices& matrices, Packing packing, std::int64_t typical_rows)
      : case_(which),
        matrices_(matrices),
        typical_rows_(typical_rows),
        kernel_({.columns = which.columns,
                 .depth = which.depth,
                 .type = which.type,
                 .packing = packing,
                 .typical_rows = typical_rows}) {
    kernel_.prepare({.data = matrices_.weights.data(), .type = which.type});
  }

  [[nodiscard]] std::string_view by() const { return kernel_.by(); }
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
                  .before_activation = {.data = matrices_.before.data() + at, .type = case_.type}};
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

// Of one way to compute the product: how long it took, and the whole one next to it.
struct Times {
  std::vector<double> own;
  std::vector<double> whole;
};

Spread in_milliseconds(const Times& times) {
  const Spread s = spread(times.own);
  return {s.median * 1e3, s.least * 1e3, s.most * 1e3};
}

Spread ratio(const Times& times) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.own.size(); ++i) {
    ratios.push_back(times.own[i] / times.whole[i]);
  }
  return spread(ratios);
}

// One way to compute the product.
struct Way {
  std::string name;
  Subject* subject = nullptr;
  std::int64_t rows = 0;  // per call
  Times times;
};

// Each is measured right after the whole one.
void measure(std::vector<Way>& ways, const Way& whole, int rounds) {
  for (Way& way : ways) way.subject->seconds_in_chunks_of(way.rows);
  for (int round = 0; round < rounds; ++round) {
    for (Way& way : ways) {
      way.times.whole.push_back(whole.subject->seconds_in_chunks_of(whole.rows));
      way.times.own.push_back(way.subject->seconds_in_chunks_of(way.rows));
    }
  }
}

std::vector<Way> chunks_of(const Case& which, Subject& subject, const std::string& prefix) {
  std::vector<Way> ways;
  for (const std::int64_t rows : kChunks) {
    if (rows >= which.rows) continue;
    ways.push_back({prefix + "chunked_over_whole_" + std::to_string(rows), &subject, rows, {}});
  }
  return ways;
}

// The fastest of several ways to compute the whole in one call. None may run right after itself,
// or it alone would find its weights in the cache.
Way whole_of(Json& json, const Case& which, std::span<Subject> subjects, int rounds) {
  std::vector<Way> ways;
  for (Subject& subject : subjects) {
    subject.seconds_in_chunks_of(which.rows);
    ways.push_back(
        {"whole_by_" + std::to_string(subject.typical_rows()) + "_ms", &subject, which.rows, {}});
  }
  for (int round = 0; round < rounds; ++round) {
    for (Way& way : ways) way.times.own.push_back(way.subject->seconds_in_chunks_of(way.rows));
  }
  for (const Way& way : ways) put(json, which.name + "_" + way.name, in_milliseconds(way.times));
  return *std::ranges::min_element(ways, {},
                                   [](const Way& way) { return spread(way.times.own).median; });
}

// From the largest down, as long as they are cheap enough.
Json smallest_cheap(const std::vector<Way>& ways) {
  Json smallest;
  for (const Way& way : ways | std::views::reverse) {
    if (ratio(way.times).median > kAllowed) break;
    smallest = Json(way.rows);
  }
  return smallest;
}

// Of the whole ones next to others: those by which it was chosen are the lucky ones.
Spread speed(const Case& which, const std::vector<Way>& ways) {
  const double operations = 2e-9 * static_cast<double>(which.rows * which.depth * which.columns);
  std::vector<double> speeds;
  for (const Way& way : ways) {
    for (const double seconds : way.times.whole) speeds.push_back(operations / seconds);
  }
  return spread(speeds);
}

void measure_case(Json& json, const Case& which, int rounds) {
  Matrices matrices(which);
  std::vector<Subject> wholes;
  for (const std::int64_t rows : {std::int64_t{128}, std::int64_t{256}, which.rows}) {
    wholes.emplace_back(which, matrices, Packing::once, rows);
  }
  const Way whole = whole_of(json, which, wholes, rounds);
  json.set(which.name + "_by", std::string(whole.subject->by()));
  json.set(which.name + "_whole_blocks", whole.subject->typical_rows());
  Subject unprepared(which, matrices, Packing::every_call, kernels::LinearShape{}.typical_rows);
  Subject unprepared_whole(which, matrices, Packing::every_call, which.rows);
  std::vector<Way> chunks = chunks_of(which, *whole.subject, "");
  std::vector<Way> others = chunks_of(which, unprepared, "unprepared_");
  others.push_back({"unprepared_over_whole", &unprepared_whole, which.rows, {}});
  measure(chunks, whole, rounds);
  measure(others, whole, rounds);
  put(json, which.name + "_whole_gflops", speed(which, chunks));
  json.set(which.name + "_smallest_chunk_within_1.05", smallest_cheap(chunks));
  chunks.insert(chunks.end(), others.begin(), others.end());
  for (const Way& way : chunks) put(json, which.name + "_" + way.name, ratio(way.times));
}

void measure_all(Json& json, int rounds) {
  json.set("products_by", std::string(kernels::products_by()));
  double load = 0;
  if (getloadavg(&load, 1) == 1) json.set("load_before", load);
  for (const Case& which : kCases) measure_case(json, which, rounds);
  if (getloadavg(&load, 1) == 1) json.set("load_after", load);
}

struct Options {
  bool json = false;
  int rounds = 9;
};

Options options_of(std::span<char*> words) {
  Options options;
  for (std::size_t k = 1; k < words.size(); ++k) {
    const std::string_view word = words[k];
    const std::string value = k + 1 < words.size() ? words[k + 1] : "";
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
      shiplap::options_of(std::span(argv, static_cast<std::size_t>(argc)));
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
