#include "shiplap/run/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/run/fit_internal.h"
#include "shiplap/run/number_internal.h"
#include "shiplap/run/overlapped_product.h"

namespace shiplap::run {
namespace {

using overlap::Calibration;
using overlap::Method;
using overlap::Problem;
using overlap::Type;
using plan::ElementType;

constexpr std::int64_t kLooks = 128;  // rows that are multiplied at a time
constexpr int kFewest = 5;            // times that a median is taken of
constexpr int kMost = 101;
constexpr double kLongMessage = 20e-3;  // seconds: what the speed of the link is measured with
constexpr double kLongProduct = 50e-3;  // seconds: larger ones are not measured
constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
// How many things are measured, each for as long: what they may take is shared by them.
constexpr double kThings = 24;

// A product of zeros, which take as long as other numbers.
class Multiplier {
 public:
  struct Size {
    std::int64_t columns = 0;
    std::int64_t depth = 0;
  };
  Multiplier(ElementType type, const Size& size)
      : number_(number_of(type)),
        width_(plan::bytes_of(type)),
        size_(size),
        x_(static_cast<std::size_t>(kLooks * size.depth * width_)),
        y_(static_cast<std::size_t>(kLooks * size.columns * width_)),
        linear_({.columns = size.columns,
                 .depth = size.depth,
                 .type = number_,
                 .typical_rows = kLooks}) {
    std::vector<std::byte> w(static_cast<std::size_t>(weight_bytes()));
    linear_.prepare({.data = w.data(), .is_transposed = true});
  }
  void multiply(std::int64_t rows) {
    for (; rows > 0; rows -= kLooks) {
      linear_.multiply({.data = x_.data(), .count = std::min(rows, kLooks)},
                       {.data = y_.data(), .type = number_});
    }
  }
  [[nodiscard]] std::int64_t weight_bytes() const { return size_.columns * size_.depth * width_; }

 private:
  kernels::Number number_;
  std::int64_t width_;
  Size size_;
  std::vector<std::byte> x_;
  std::vector<std::byte> y_;
  kernels::LinearKernel linear_;
};

class Calibrator {
 public:
  Calibrator(comm::Communicator& world, const CalibrateOptions& options)
      : world_(world), budget_(options.seconds / kThings) {
    made_.machine =
        options.machine.empty() ? fmt::format("{} ranks", world.size()) : options.machine;
    made_.ranks = world.size();
  }

  Calibration run() {
    for (const ElementType type : {ElementType::bf16, ElementType::f32}) product(type);
    sums();
    if (world_.size() > 1) {
      messages();
      collective();
      steps();
      processor();
    }
    return agreed();
  }

 private:
  // Of `times` in a row, each; of the slowest rank. All ranks get the same.
  double timed(const std::function<void()>& act, int times) {
    world_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < times; ++k) act();
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    world_.all_reduce(std::span(&took, 1), comm::Reduction::max);
    return took / times;
  }
  double usual(const std::function<void()>& act, int times = 1) {
    timed(act, times);
    std::vector<double> all;
    double spent = 0;
    while (std::ssize(all) < kFewest || (std::ssize(all) < kMost && spent < budget_)) {
      all.push_back(timed(act, times));
      spent += all.back() * times;
    }
    std::ranges::nth_element(all, all.begin() + std::ssize(all) / 2);
    return all[all.size() / 2];
  }

  // ---- what a rank does alone, while all do

  void product(ElementType type) {
    std::vector<FitPoint> points;
    for (const std::int64_t size : {64, 512, 2048}) {
      if (!points.empty() && points.back().total * 16 > kLongProduct) break;
      Multiplier multiplier(type, {.columns = size, .depth = size});
      for (const std::int64_t rows : {16, 128}) {
        const int times = size <= 64 ? 16 : 1;
        points.push_back({.parts = {1, static_cast<double>(multiplier.weight_bytes()),
                                    2.0 * static_cast<double>(rows * size * size)},
                          .total = usual([&] { multiplier.multiply(rows); }, times)});
      }
    }
    const auto [call, byte, flop] = fitted(points);
    made_.products.push_back(
        {.type = type, .call = {call}, .seconds_per_weight_byte = byte, .seconds_per_flop = flop});
  }

  // On one rank, a sum is a product that is cast twice.
  void sums() {
    const auto alone = world_.split(world_.rank(), 0, "alone");
    const Problem problem{.rows = 256, .columns = 1024, .depth = 16, .ranks = 1};
    OverlappedProduct plain = ready({Type::all_gather, Method::none}, problem, *alone);
    OverlappedProduct summed =
        ready({Type::reduce_scatter, Method::ring_exchange}, problem, *alone);
    const double apart = usual([&] { summed.run(); }) - usual([&] { plain.run(); });
    const double bytes = 2 * 256.0 * 1024 * (2 + 4);
    made_.sum_seconds_per_byte = std::max(0.0, apart / bytes);
  }

  // ---- what they do together

  // Messages to the next rank and from the one before, all under way at once.
  void exchange(std::int64_t bytes, int messages) {
    const int ranks = world_.size();
    const auto size = static_cast<std::size_t>(bytes);
    const auto place = [&](int k) { return static_cast<std::size_t>(k) * size; };
    std::vector<comm::Request> under_way;
    for (int k = 0; k < messages; ++k) {
      under_way.push_back(world_.ireceive(std::span(in_).subspan(place(k), size),
                                          (world_.rank() + ranks - 1) % ranks));
    }
    for (int k = 0; k < messages; ++k) {
      under_way.push_back(world_.isend(std::span<const std::byte>(out_).subspan(place(k), size),
                                       (world_.rank() + 1) % ranks));
    }
    for (comm::Request& each : under_way) each.wait();
  }
  double exchanged(std::int64_t bytes, int messages = 1, int times = 1) {
    const auto needed = static_cast<std::size_t>(bytes * messages);
    if (in_.size() < needed) in_.resize(needed);
    if (out_.size() < needed) out_.resize(needed);
    return usual([&] { exchange(bytes, messages); }, times);
  }

  void messages() {
    constexpr int kMany = 16;
    constexpr std::int64_t kSmall = 256;
    const double one = exchanged(kSmall, 1, kMany);
    const double many = exchanged(kSmall, kMany);
    made_.message = {std::clamp((many - one) / (kMany - 1), 0.0, one)};
    made_.latency = {one - made_.message.value};
    std::int64_t bytes = kSmall;
    double before = one;
    double now = one;
    while (now < kLongMessage && bytes < kMostBytes) {
      before = now;
      bytes *= 4;
      now = exchanged(bytes);
    }
    made_.seconds_per_byte = std::max(0.0, (now - before) / (0.75 * static_cast<double>(bytes)));
  }

  void collective() {
    std::vector<float> all(static_cast<std::size_t>(world_.size()));
    const float own = 0;
    const double took = usual([&] { world_.all_gather(std::span(&own, 1), std::span(all)); }, 16);
    made_.collective = {std::max(0.0, took - (world_.size() - 1) * made_.message.value)};
  }

  // Of next to nothing: what is left are the step and its pieces.
  void steps() {
    constexpr int kPieces = 8;
    const int others = world_.size() - 1;
    Problem problem{.rows = std::int64_t{16} * kPieces * world_.size(),
                    .columns = std::int64_t{16} * world_.size(),
                    .depth = 16,
                    .ranks = world_.size()};
    const auto took = [&](Method method, int chunks) {
      problem.chunks = chunks;
      OverlappedProduct product = ready({Type::all_gather, method}, problem, world_);
      return usual([&] { product.run(); });
    };
    const double call = made_.products.front().call.value;
    made_.step = {std::max(0.0, took(Method::none, 1) - call - made_.collective.value)};
    const double more = took(Method::ring_exchange, kPieces) - took(Method::ring_exchange, 1);
    made_.piece = {std::max(0.0, more / ((kPieces - 1) * others) - call)};
  }

  // What messages take from a product beside which they travel, if they take half as long.
  void processor() {
    constexpr int kChunks = 4;
    const int ranks = world_.size();
    Problem problem{.rows = kLooks * kChunks * ranks,
                    .columns = 0,
                    .depth = 1024,
                    .ranks = ranks,
                    .chunks = kChunks};
    const double bytes = static_cast<double>(kLooks * kChunks * (ranks - 1) * problem.depth * 2);
    const Calibration::Product& product = made_.products.front();
    const double column = static_cast<double>(problem.depth) *
                          (static_cast<double>(problem.rows) * 2 * product.seconds_per_flop +
                           kChunks * ranks * 2 * product.seconds_per_weight_byte);
    const auto columns = static_cast<std::int64_t>(2 * bytes * made_.seconds_per_byte / column);
    problem.columns = ranks * std::clamp<std::int64_t>(columns / 16 * 16, 16, 4096);
    Multiplier multiplier(problem.type,
                          {.columns = problem.columns / ranks, .depth = problem.depth});
    OverlappedProduct overlapped =
        ready({Type::all_gather, Method::ring_exchange}, problem, world_);
    // In turn, for the machine may be faster now than a second ago.
    std::vector<double> apart;
    for (int k = -1; k < kFewest; ++k) {
      const double alone = timed([&] { multiplier.multiply(problem.rows); }, 1);
      const double both = timed([&] { overlapped.run(); }, 1);
      if (k >= 0) apart.push_back(both - alone);
    }
    std::ranges::nth_element(apart, apart.begin() + kFewest / 2);
    const double left =
        apart[kFewest / 2] - made_.step.value - kChunks * (ranks - 1) * made_.piece.value;
    made_.processor_seconds_per_byte = std::max(0.0, left / (2 * bytes));
  }

  [[nodiscard]] static OverlappedProduct ready(const overlap::Choice& choice,
                                               const Problem& problem, comm::Communicator& world) {
    OverlappedProduct product(choice, problem, world, {.progress = Progress::polled});
    product.prepare();
    return product;
  }

  // What rank 0 has: processors may differ in how they round.
  [[nodiscard]] Calibration agreed() {
    std::string text = to_text(to_json(made_));
    auto size = static_cast<std::int64_t>(text.size());
    world_.broadcast(std::span(&size, 1), 0);
    text.resize(static_cast<std::size_t>(size));
    world_.broadcast(std::as_writable_bytes(std::span(text)), 0);
    return overlap::calibration_from(parse_json(text, "calibration"), "calibration");
  }

  comm::Communicator& world_;
  double budget_;
  Calibration made_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

}  // namespace

Calibration calibrate(comm::Communicator& world, const CalibrateOptions& options) {
  return Calibrator(world, options).run();
}

}  // namespace shiplap::run
