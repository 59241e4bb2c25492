// Benchmark of quantization from bf16 to FP8, compared with memcpy.
//
//   bench_quantize [--json] [--rounds N]
//
// Of 2n bytes of bf16: `_over_memcpy` is the time over that of a memcpy of these 2n bytes, measured
// right before. Rounding reads 2n bytes and writes n; `_over_memcpy_moved` is the time over that of
// a memcpy of 1.5n bytes, which moves as many. Median, minimum and maximum; one thread. Tensor
// scaling with a known scale (as in delayed scaling) is `e4m3` and `e5m2`; current scaling first
// computes the maximum (`amax`, `current_`); `mx_` is MXFP8; back to bf16 is `dequantize_`.
// quantize_over_memcpy is the worst of the first and of MXFP8, for sizes beyond the L2 cache.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "figures.h"
#include "shiplap/base/json.h"
#include "shiplap/base/random.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/quantize.h"

namespace shiplap {
namespace {

using kernels::Bf16;
using kernels::ConstMatrixView;
using kernels::MatrixView;
using kernels::ScaleGranularity;

constexpr std::int64_t kColumns = 4096;

struct Size {
  std::string name;
  std::int64_t rows;
  int repeats;  // in one measurement
};

// 512 KiB, 64 MiB and 512 MiB of bf16.
const std::vector<Size> kSizes = {{"l2", 64, 128}, {"64mib", 8192, 1}, {"512mib", 65536, 1}};

class Arrays {
 public:
  explicit Arrays(std::int64_t rows)
      : rows_(rows),
        from_(static_cast<std::size_t>(rows * kColumns)),
        copy_(from_.size()),
        codes_(from_.size()),
        scales_(from_.size() / 32),
        sums_(std::size_t{16} * kColumns) {
    Random random(1);
    for (std::size_t i = 0; i < from_.size(); ++i) {
      // A few million distinct values are enough.
      from_[i] = i < (1U << 22U) ? kernels::to_bf16(static_cast<float>(2 * random.unit() - 1))
                                 : from_[i - (1U << 22U)];
    }
  }

  [[nodiscard]] ConstMatrixView wide() const {
    return {.data = from_.data(), .type = DType::bf16, .rows = rows_, .columns = kColumns};
  }
  [[nodiscard]] MatrixView codes(DType format, ScaleGranularity kind) {
    return {.data = codes_.data(),
            .type = format,
            .rows = rows_,
            .columns = kColumns,
            .scaling = kind,
            .scales = scales_.data()};
  }
  [[nodiscard]] std::size_t bytes() const { return from_.size() * sizeof(Bf16); }
  void copy(std::size_t bytes) { std::memcpy(copy_.data(), from_.data(), bytes); }
  // 16 rows of sums stay in the cache.
  void add(DType format, ScaleGranularity kind) {
    const MatrixView all = codes(format, kind);
    for (std::int64_t row = 0; row + 16 <= rows_; row += 16) {
      kernels::dequantize_add(all.slice_rows(row, 16), {.data = sums_.data()});
    }
  }
  void widen(DType format, ScaleGranularity kind) {
    kernels::dequantize(codes(format, kind), {.data = copy_.data(), .type = DType::bf16});
  }

 private:
  std::int64_t rows_;
  std::vector<Bf16> from_;
  std::vector<Bf16> copy_;
  std::vector<std::byte> codes_;
  std::vector<std::byte> scales_;
  std::vector<float> sums_;
};

double seconds(int repeats, const std::function<void()>& act) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeats;
}

struct Variant {
  std::string name;
  std::function<void()> act;
  bool counts = false;  // for the worst
};

std::vector<Variant> variants_of(Arrays& arrays) {
  std::vector<Variant> variants;
  variants.push_back({"amax", [&] {
                        if (kernels::compute_amax(arrays.wide()) == 0) std::abort();
                      }});
  for (const DType format : {DType::fp8_e4m3, DType::fp8_e5m2}) {
    const std::string name(shiplap::name(format));
    variants.push_back({name,
                        [&arrays, format] {
                          kernels::quantize(arrays.wide(), 300,
                                            arrays.codes(format, ScaleGranularity::per_row));
                        },
                        true});
    variants.push_back({"mx_" + name,
                        [&arrays, format] {
                          kernels::quantize_blocks(
                              arrays.wide(), arrays.codes(format, ScaleGranularity::per_block));
                        },
                        true});
    variants.push_back({"dequantize_mx_" + name,
                        [&arrays, format] { arrays.widen(format, ScaleGranularity::per_block); }});
    variants.push_back(
        {"add_mx_" + name, [&arrays, format] { arrays.add(format, ScaleGranularity::per_block); }});
    variants.push_back({"current_" + name, [&arrays, format] {
                          const float amax = kernels::compute_amax(arrays.wide());
                          kernels::quantize(arrays.wide(), kernels::current_scale(amax, format),
                                            arrays.codes(format, ScaleGranularity::per_row));
                        }});
    variants.push_back({"dequantize_" + name,
                        [&arrays, format] { arrays.widen(format, ScaleGranularity::per_row); }});
  }
  return variants;
}

struct Times {
  std::vector<double> own;
  std::vector<double> copies;
  std::vector<double> copies_moved;
};

Spread ratio(const std::vector<double>& own, const std::vector<double>& copies) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < own.size(); ++i) ratios.push_back(own[i] / copies[i]);
  return spread(ratios);
}

Times measure(Arrays& arrays, const Variant& variant, int rounds, int repeats) {
  Times times;
  variant.act();
  for (int round = 0; round < rounds; ++round) {
    times.copies_moved.push_back(seconds(repeats, [&] { arrays.copy(arrays.bytes() / 4 * 3); }));
    times.copies.push_back(seconds(repeats, [&] { arrays.copy(arrays.bytes()); }));
    times.own.push_back(seconds(repeats, variant.act));
  }
  return times;
}

void measure_size(Json& json, const Size& size, int rounds) {
  Arrays arrays(size.rows);
  arrays.copy(arrays.bytes());
  const double gigabytes = 1e-9 * static_cast<double>(arrays.bytes());
  std::vector<double> speeds;
  Spread worst;
  for (const Variant& variant : variants_of(arrays)) {
    const Times times = measure(arrays, variant, rounds, size.repeats);
    const std::string prefix = size.name + "_" + variant.name;
    const Spread over = ratio(times.own, times.copies);
    put(json, prefix + "_over_memcpy", over);
    json.set(prefix + "_over_memcpy_moved", ratio(times.own, times.copies_moved).median);
    json.set(prefix + "_source_gb_per_s", gigabytes / spread(times.own).median);
    for (const double copy : times.copies) speeds.push_back(gigabytes / copy);
    if (variant.counts && over.median > worst.median) worst = over;
  }
  put(json, size.name + "_memcpy_gb_per_s", spread(speeds));
  put(json, size.name + "_quantize_over_memcpy", worst);
  if (size.name == "64mib") put(json, "quantize_over_memcpy", worst);
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
      throw std::runtime_error("usage: bench_quantize [--json] [--rounds N]");
    }
  }
  return options;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) try {
  const shiplap::Options options =
      shiplap::parse_options(std::span(argv, static_cast<std::size_t>(argc)));
  shiplap::Json result = shiplap::Json::object({{"schema", "shiplap.bench.quantize/1"}});
  double load = 0;
  if (getloadavg(&load, 1) == 1) result.set("load_before", load);
  for (const shiplap::Size& size : shiplap::kSizes) {
    shiplap::measure_size(result, size, options.rounds);
  }
  if (getloadavg(&load, 1) == 1) result.set("load_after", load);
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
  return 1;
}
