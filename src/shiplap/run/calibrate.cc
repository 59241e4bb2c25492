// Measures the constants of the overlap cost model on this machine.
//
// Every time is the maximum over the ranks (a barrier before, an all-reduce after) and the median
// of several samples, or for long messages the minimum. GEMMs of few and of many rows are sampled
// alternately. The constants follow from differences and fits:
// - GEMM: call, weight bytes and flops by least squares over several sizes (fit.cc); the cost of
//   cold weights from a run with evicted caches.
// - Messages: latency and per-message overhead from one message against many; bandwidth from the
//   longest; a burst if short messages are faster than the bandwidth.
// - Overheads of a step and of a chunk, from GEMMs of next to no work.
// - Interference: the slowdown of a GEMM while bytes are sent, per byte.
//
// The result of rank 0 is broadcast, so that all ranks choose alike.
#include "shiplap/run/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/run/fit_internal.h"
#include "shiplap/run/gemm_dtype_internal.h"
#include "shiplap/run/overlapped_gemm.h"
#include "shiplap/run/rank_timer_internal.h"

namespace shiplap::run {
namespace {

using overlap::Calibration;
using overlap::Method;
using overlap::Problem;
using overlap::Type;

constexpr std::int64_t kTileRows = 128;  // rows per GEMM call
constexpr std::int64_t kFewRows = 16;    // so few that reading the weights dominates
constexpr int kChunks = 4;               // per overlapped GEMM
constexpr int kOverlapSamples = 15;
constexpr double kMaxShare = 2;         // upper bound of collective_share; more is noise
constexpr double kLongMessage = 20e-3;  // seconds: message length for measuring bandwidth
constexpr double kLongProduct = 50e-3;  // seconds: larger GEMMs are not measured
constexpr std::int64_t kQuick = 16384;  // bytes: size of the first burst, if the link has one
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 26;
// The number of measurements; they share the time budget equally.
constexpr double kMeasurements = 32;
constexpr std::size_t kCaches = std::size_t{1} << 26;  // bytes that evict all caches

constexpr std::byte kFill{0x3c};  // a float of such bytes is about 0.01

class Multiplier {
 public:
  struct Size {
    std::int64_t n = 0;
    std::int64_t k = 0;
  };
  Multiplier(DType type, const Size& size)
      : number_(gemm_dtype(type)),
        width_(bytes_of(type)),
        size_(size),
        x_(static_cast<std::size_t>(kTileRows * size.k * width_), kFill),
        y_(static_cast<std::size_t>(kTileRows * size.n * width_)),
        linear_({.n = size.n, .k = size.k, .type = number_, .typical_rows = kTileRows}) {
    std::vector<std::byte> w(weight_bytes(), kFill);
    linear_.prepare({.data = w.data(), .type = number_, .is_transposed = true});
  }
  void multiply(std::int64_t rows) {
    for (; rows > 0; rows -= kTileRows) {
      linear_.multiply({.data = x_.data(), .type = number_, .rows = std::min(rows, kTileRows)},
                       {.data = y_.data(), .type = number_});
    }
  }
  [[nodiscard]] std::int64_t weight_bytes() const { return size_.n * size_.k * width_; }

 private:
  DType number_;
  std::int64_t width_;
  Size size_;
  std::vector<std::byte> x_;
  std::vector<std::byte> y_;
  kernels::LinearKernel linear_;
};

class Calibrator {
 public:
  Calibrator(comm::Communicator& world, const CalibrateOptions& options)
      : world_(world), timer_(world, options.seconds / kMeasurements) {
    made_.machine =
        options.machine.empty() ? fmt::format("{} ranks", world.size()) : options.machine;
    made_.ranks = world.size();
  }

  Calibration run() {
    for (const DType type : {DType::bf16, DType::f32}) product(type);
    sums();
    if (world_.size() > 1) {
      messages();
      for (Calibration::GemmCost& each : made_.gemms) scatter(each);
      steps();
      processor();
    }
    return broadcast_result();
  }

 private:
  // ---- local computation, on all ranks at once

  void product(DType type) {
    std::vector<FitPoint> points;
    double first = 0;
    for (const std::int64_t size : {64, 512, 2048}) {
      if (!points.empty() && points.back().total * 16 > kLongProduct) break;
      Multiplier multiplier(type, {.n = size, .k = size});
      const auto bytes = static_cast<double>(multiplier.weight_bytes());
      const TimingOptions timing{.times = size <= 64 ? 16 : 1, .before = {}};
      const auto few = [&] { multiplier.multiply(kFewRows); };
      const RankTimer::Pair pair =
          timer_.measure_interleaved(few, [&] { multiplier.multiply(kTileRows); }, timing);
      const auto point = [&](std::int64_t rows, double total) {
        const auto flop = 2.0 * static_cast<double>(rows * size * size);
        points.push_back({.parts = {1, bytes, flop}, .total = total});
      };
      point(kFewRows, pair.ratio * pair.second);
      point(kTileRows, pair.second);
      const double cold = timer_.measure(few, {.before = [&] { flush_caches(); }});
      first = std::max(0.0, cold - pair.ratio * pair.second) / bytes;
    }
    auto [call, byte, flop] = fit_costs(points);
    // A single size cannot separate the three terms.
    if (call + byte + flop <= 0) flop = points.back().total / points.back().parts[2];
    made_.gemms.push_back({.type = type,
                           .call = {call},
                           .seconds_per_weight_byte = byte,
                           .seconds_per_flop = flop,
                           .first_seconds_per_weight_byte = first});
  }
  // Evicts all caches.
  void flush_caches() {
    caches_.resize(kCaches);
    std::memset(caches_.data(), ++flushes_ % 256, caches_.size());
  }

  // On one rank, a sum is a product that is cast twice.
  void sums() {
    const auto alone = world_.split(world_.rank(), 0, "alone");
    const Problem problem{.m = 256, .n = 1024, .k = 16, .ranks = 1};
    OverlappedGemm plain = ready({Type::all_gather, Method::none}, problem, *alone);
    OverlappedGemm summed = ready({Type::reduce_scatter, Method::ring_exchange}, problem, *alone);
    const double apart =
        timer_.measure([&] { summed.run(); }) - timer_.measure([&] { plain.run(); });
    const double bytes = 2 * 256.0 * 1024 * (2 + 4);
    made_.sum_seconds_per_byte = std::max(0.0, apart / bytes);
  }

  // ---- communication

  // Messages to the next rank and from the previous one, all in flight at once.
  void exchange(std::int64_t bytes, int messages) {
    const int ranks = world_.size();
    const auto size = static_cast<std::size_t>(bytes);
    const auto place = [&](int k) { return static_cast<std::size_t>(k) * size; };
    std::vector<comm::Request> requests;
    for (int k = 0; k < messages; ++k) {
      requests.push_back(world_.ireceive(std::span(in_).subspan(place(k), size),
                                         (world_.rank() + ranks - 1) % ranks));
    }
    for (int k = 0; k < messages; ++k) {
      requests.push_back(world_.isend(std::span<const std::byte>(out_).subspan(place(k), size),
                                      (world_.rank() + 1) % ranks));
    }
    for (comm::Request& each : requests) each.wait();
  }
  double exchanged(std::int64_t bytes, int messages = 1, int times = 1) {
    const auto needed = static_cast<std::size_t>(bytes * messages);
    if (in_.size() < needed) in_.resize(needed);
    if (out_.size() < needed) out_.resize(needed);
    // Noise only adds to the time of a long message, so take the minimum.
    return timer_.measure([&] { exchange(bytes, messages); },
                          {.times = times, .before = RankTimer::idle, .uses_min = bytes >= kQuick});
  }

  void messages() {
    constexpr int kMany = 16;
    constexpr std::int64_t kSmall = 256;
    const double one = exchanged(kSmall, 1, kMany);
    const double many = exchanged(kSmall, kMany);
    made_.message = {std::clamp((many - one) / (kMany - 1), 0.0, one)};
    made_.latency = {one - made_.message.value};
    const double quick = exchanged(kQuick);
    std::int64_t bytes = kQuick;
    double before = quick;
    double now = quick;
    std::optional<Sent> middle;  // the first message longer than a burst
    while (now < kLongMessage && bytes < kMaxBytes) {
      before = now;
      bytes *= 4;
      now = exchanged(bytes);
      if (!middle && now > kLongMessage / 16) middle = {static_cast<double>(bytes), now - one};
    }
    made_.seconds_per_byte = std::max(0.0, (now - before) / (0.75 * static_cast<double>(bytes)));
    if (middle) burst(std::max(0.0, (quick - one) / (kQuick - kSmall)), *middle);
  }
  struct Sent {
    double bytes = 0;
    double seconds = 0;  // without latency
  };
  // The time a message saves against the steady bandwidth is attributed to a burst.
  void burst(double quick_byte, const Sent& sent) {
    const double saved = made_.seconds_per_byte - quick_byte;
    const double missing = sent.bytes * made_.seconds_per_byte - sent.seconds;
    if (saved <= 0 || missing <= 0) return;
    made_.burst_bytes = std::min(missing / saved, sent.bytes);
    made_.burst_seconds_per_byte = saved;
  }

  // Uses a buffer that takes about half as long as a long message.
  void scatter(Calibration::GemmCost& product) {
    const int ranks = world_.size();
    constexpr std::int64_t kColumns = 1024;
    const double row =
        static_cast<double>(kColumns * bytes_of(product.type)) * made_.seconds_per_byte;
    const auto rows = static_cast<std::int64_t>(kLongMessage / 2 / std::max(row, 1e-9));
    const Problem problem{.m = ranks * std::clamp<std::int64_t>(rows, 16, 2048),
                          .n = kColumns,
                          .k = ranks,
                          .type = product.type,
                          .ranks = ranks};
    OverlappedGemm summed = ready({Type::reduce_scatter, Method::none}, problem, world_);
    const double took = timer_.measure([&] { summed.run(GemmMode::comm_only); });
    const auto bytes = static_cast<double>(problem.m * kColumns * bytes_of(product.type));
    const double sent = bytes / ranks * (ranks - 1) * made_.seconds_per_byte;
    product.scatter_seconds_per_byte = std::max(0.0, (took - sent) / bytes);
  }

  // Tiny GEMMs: only the overhead of the step and its chunks remains.
  void steps() {
    constexpr int kPieces = 8;
    constexpr std::int64_t kRows = 16;  // of a tile
    const int others = world_.size() - 1;
    Problem problem{.m = kRows * kPieces * world_.size(),
                    .n = std::int64_t{16} * world_.size(),
                    .k = 16,
                    .ranks = world_.size()};
    const auto took = [&](const overlap::Choice& choice, int chunks) {
      problem.chunks = chunks;
      OverlappedGemm product = ready(choice, problem, world_);
      return timer_.measure([&] { product.run(); });
    };
    const double call = made_.gemms.front().call.value;
    const overlap::Choice split{.type = Type::all_gather, .method = Method::ring_exchange};
    const overlap::Choice atomic{split.type, split.method, true};
    const double whole = took(split, 1);
    const auto tile = [&](const overlap::Choice& choice, double calls) {
      const double more = (took(choice, kPieces) - whole) / ((kPieces - 1) * others);
      return std::max(0.0, more - calls * call);
    };
    const double split_tile = tile(split, 1);
    // Tiles that are multiplied together share a call.
    const double together = static_cast<double>(overlap::joined_rows(problem.m)) / kRows;
    made_.tile_overhead = {std::min(split_tile, tile(atomic, 1 / together))};
    made_.launch = {split_tile - made_.tile_overhead.value};
    // Each rank multiplies its local rows first, and the others when they arrive.
    const double arrival = std::max(call, made_.message.value + made_.latency.value);
    made_.step = {std::max(0.0, whole - arrival - others * (split_tile + call))};
    made_.collective = {std::max(0.0, took({Type::all_gather, Method::none}, 1) - made_.step.value -
                                          call - others * made_.message.value)};
  }

  // Overlaps a chunked GEMM with communication of half its duration, and measures the slowdown.
  void processor() {
    const OverlapCost ring = measure_overlap({Type::all_gather, Method::ring_exchange});
    made_.processor_seconds_per_byte = std::max(0.0, ring.more / (2 * ring.bytes));
    const OverlapCost pipeline = measure_overlap({Type::reduce_scatter, Method::pipeline});
    const double sent = pipeline.bytes * made_.seconds_per_byte;
    // The last collective is not overlapped.
    if (sent > 0) {
      made_.collective_share = std::clamp(pipeline.more / sent - 1.0 / kChunks, 0.0, kMaxShare);
    }
  }
  struct OverlapCost {
    double bytes = 0;  // that a rank sends
    double more = 0;   // seconds beyond the GEMM and its chunk overhead
  };
  OverlapCost measure_overlap(const overlap::Choice& choice) {
    const int ranks = world_.size();
    const bool gathers = choice.type == Type::all_gather;
    constexpr std::int64_t kWide = 1024;  // elements of a communicated row
    Problem problem{.m = kTileRows * kChunks * ranks, .ranks = ranks, .chunks = kChunks};
    OverlapCost made{.bytes = static_cast<double>(kTileRows * kChunks * (ranks - 1) * kWide * 2)};
    const std::int64_t own = matching_size(problem.m * kWide, 2 * made.bytes);
    problem.n = gathers ? ranks * own : kWide;
    problem.k = gathers ? kWide : ranks * own;
    Multiplier multiplier(problem.type, {.n = gathers ? own : kWide, .k = gathers ? kWide : own});
    OverlappedGemm overlapped = ready(choice, problem, world_);
    // Alternately, so that changes of clock frequency affect both alike.
    std::vector<double> apart;
    for (int k = -1; k < kOverlapSamples; ++k) {
      const double alone = timer_.timed([&] { multiplier.multiply(problem.m); });
      const double both = timer_.timed([&] { overlapped.run(); });
      if (k >= 0) apart.push_back(both - alone);
    }
    made.more = median(std::move(apart)) - made_.step.value -
                kChunks * (ranks - 1) * (made_.tile_overhead + made_.launch).value;
    return made;
  }
  // The number of weight columns whose GEMM takes as long as sending `bytes`.
  [[nodiscard]] std::int64_t matching_size(std::int64_t multiplications, double bytes) const {
    const Calibration::GemmCost& product = made_.gemms.front();
    const double column = static_cast<double>(multiplications) * 2 *
                          (product.seconds_per_flop + product.seconds_per_weight_byte / kTileRows);
    constexpr std::int64_t kMin = 16;
    if (column <= 0) return kMin;  // not measurable
    const auto columns = static_cast<std::int64_t>(bytes * made_.seconds_per_byte / column);
    return std::clamp<std::int64_t>(columns / 16 * 16, kMin, 4096);
  }

  [[nodiscard]] static OverlappedGemm ready(const overlap::Choice& choice, const Problem& problem,
                                            comm::Communicator& world) {
    const bool needs_thread = choice.method == Method::pipeline;
    OverlappedGemm product(choice, problem, world,
                           {.progress = needs_thread ? Progress::threads : Progress::polled});
    for (const char* const name : {"x", "w"}) {
      const std::span<std::byte> buffer = product.buffer(name);
      std::memset(buffer.data(), static_cast<int>(kFill), buffer.size());
    }
    product.prepare();
    return product;
  }

  // Broadcasts the result of rank 0: processors may round differently.
  [[nodiscard]] Calibration broadcast_result() {
    std::string text = to_text(to_json(made_));
    auto size = static_cast<std::int64_t>(text.size());
    world_.broadcast(std::span(&size, 1), 0);
    text.resize(size);
    world_.broadcast(std::as_writable_bytes(std::span(text)), 0);
    return overlap::calibration_from(parse_json(text, "calibration"), "calibration");
  }

  comm::Communicator& world_;
  RankTimer timer_;
  Calibration made_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  std::vector<std::byte> caches_;
  int flushes_ = 0;
};

}  // namespace

Calibration calibrate(comm::Communicator& world, const CalibrateOptions& options) {
  return Calibrator(world, options).run();
}

}  // namespace shiplap::run
