#include "shiplap/run/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
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
#include "shiplap/run/overlapped_product.h"

namespace shiplap::run {
namespace {

using overlap::Calibration;
using overlap::Method;
using overlap::Problem;
using overlap::Type;

constexpr std::int64_t kLooks = 128;   // rows that are multiplied at a time
constexpr std::int64_t kFewRows = 16;  // of which the weights take most of the time
constexpr int kFewest = 5;             // times that a median is taken of
constexpr int kMost = 101;
constexpr int kChunks = 4;              // of what is overlapped
constexpr double kLargestShare = 2;     // of a collective: more is noise
constexpr double kLongMessage = 20e-3;  // seconds: what the speed of the link is measured with
constexpr double kLongProduct = 50e-3;  // seconds: larger ones are not measured
constexpr std::int64_t kQuick = 16384;  // bytes that a link takes at once if it does that at all
constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
// How many things are measured, each for as long: what they may take is shared by them.
constexpr double kThings = 32;
// For which a link is left alone, so that it takes at once what it can.
constexpr std::chrono::milliseconds kRest{2};
constexpr std::size_t kCaches = std::size_t{1} << 26;  // bytes, after which nothing is left in them

constexpr std::byte kFill{0x3c};  // a number of such bytes is about 0.01

class Multiplier {
 public:
  struct Size {
    std::int64_t columns = 0;
    std::int64_t depth = 0;
  };
  Multiplier(DType type, const Size& size)
      : number_(gemm_dtype(type)),
        width_(bytes_of(type)),
        size_(size),
        x_(static_cast<std::size_t>(kLooks * size.depth * width_), kFill),
        y_(static_cast<std::size_t>(kLooks * size.columns * width_)),
        linear_({.columns = size.columns,
                 .depth = size.depth,
                 .type = number_,
                 .typical_rows = kLooks}) {
    std::vector<std::byte> w(weight_bytes(), kFill);
    linear_.prepare({.data = w.data(), .type = number_, .is_transposed = true});
  }
  void multiply(std::int64_t rows) {
    for (; rows > 0; rows -= kLooks) {
      linear_.multiply({.data = x_.data(), .type = number_, .rows = std::min(rows, kLooks)},
                       {.data = y_.data(), .type = number_});
    }
  }
  [[nodiscard]] std::int64_t weight_bytes() const { return size_.columns * size_.depth * width_; }

 private:
  DType number_;
  std::int64_t width_;
  Size size_;
  std::vector<std::byte> x_;
  std::vector<std::byte> y_;
  kernels::LinearKernel linear_;
};

// How an act is measured.
struct Terms {
  int times = 1;                 // in a row, of which one is told
  std::function<void()> before;  // not measured
  bool takes_least = false;      // and not the median
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
    for (const DType type : {DType::bf16, DType::f32}) product(type);
    sums();
    if (world_.size() > 1) {
      messages();
      for (Calibration::Product& each : made_.products) scatter(each);
      steps();
      processor();
    }
    return agreed();
  }

 private:
  // Of the slowest rank. All ranks get the same.
  double timed(const std::function<void()>& act, const Terms& terms = {}) {
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point begin) {
      return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    const auto first = Clock::now();
    if (terms.before) terms.before();
    world_.barrier();
    const auto begin = Clock::now();
    for (int k = 0; k < terms.times; ++k) act();
    std::array<double, 2> took{since(begin), since(first)};
    world_.all_reduce(std::span<double>(took), ReduceOp::max);
    spent_ += took[1];
    return took[0] / terms.times;
  }
  double usual(const std::function<void()>& act, const Terms& terms = {}) {
    timed(act, terms);
    std::vector<double> all;
    const double end = spent_ + budget_;
    while (std::ssize(all) < kFewest || (std::ssize(all) < kMost && spent_ < end)) {
      all.push_back(timed(act, terms));
    }
    return terms.takes_least ? std::ranges::min(all) : median(std::move(all));
  }
  [[nodiscard]] static double median(std::vector<double> all) {
    const auto middle = all.begin() + std::ssize(all) / 2;
    std::ranges::nth_element(all, middle);
    return *middle;
  }

  // Two acts by turns: the machine may be faster at one time than at another, both of them then.
  struct Pair {
    double ratio = 0;   // of the first to the second, usually
    double second = 0;  // what that takes, usually
  };
  Pair in_turn(const std::function<void()>& first, const std::function<void()>& second,
               const Terms& terms) {
    timed(first, terms);
    timed(second, terms);
    std::vector<double> ratios;
    std::vector<double> times;
    const double end = spent_ + 2 * budget_;
    while (std::ssize(times) < kFewest || (std::ssize(times) < kMost && spent_ < end)) {
      const double took = timed(first, terms);
      times.push_back(timed(second, terms));
      ratios.push_back(took / times.back());
    }
    return {.ratio = median(std::move(ratios)), .second = median(std::move(times))};
  }

  // ---- what a rank does alone, while all do

  void product(DType type) {
    std::vector<FitPoint> points;
    double first = 0;
    for (const std::int64_t size : {64, 512, 2048}) {
      if (!points.empty() && points.back().total * 16 > kLongProduct) break;
      Multiplier multiplier(type, {.columns = size, .depth = size});
      const auto bytes = static_cast<double>(multiplier.weight_bytes());
      const Terms terms{.times = size <= 64 ? 16 : 1, .before = {}};
      const auto few = [&] { multiplier.multiply(kFewRows); };
      const Pair pair = in_turn(few, [&] { multiplier.multiply(kLooks); }, terms);
      const auto point = [&](std::int64_t rows, double total) {
        const auto flop = 2.0 * static_cast<double>(rows * size * size);
        points.push_back({.parts = {1, bytes, flop}, .total = total});
      };
      point(kFewRows, pair.ratio * pair.second);
      point(kLooks, pair.second);
      const double cold = usual(few, {.before = [&] { forget(); }});
      first = std::max(0.0, cold - pair.ratio * pair.second) / bytes;
    }
    auto [call, byte, flop] = fitted(points);
    // One size alone does not tell them apart.
    if (call + byte + flop <= 0) flop = points.back().total / points.back().parts[2];
    made_.products.push_back({.type = type,
                              .call = {call},
                              .seconds_per_weight_byte = byte,
                              .seconds_per_flop = flop,
                              .first_seconds_per_weight_byte = first});
  }
  // Fills the caches with something else.
  void forget() {
    caches_.resize(kCaches);
    std::memset(caches_.data(), ++forgotten_ % 256, caches_.size());
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
    // A link has one speed: whatever disturbs a long message only adds to its time.
    return usual([&] { exchange(bytes, messages); },
                 {.times = times, .before = rest, .takes_least = bytes >= kQuick});
  }

  // A core that slept would be slow at first.
  static void rest() {
    const auto end = std::chrono::steady_clock::now() + kRest;
    while (std::chrono::steady_clock::now() < end) {
    }
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
    std::optional<Sent> middle;  // the first that no burst explains
    while (now < kLongMessage && bytes < kMostBytes) {
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
    double seconds = 0;  // for the bytes alone
  };
  // What is missing of the time of a message was faster than the rest.
  void burst(double quick_byte, const Sent& sent) {
    const double saved = made_.seconds_per_byte - quick_byte;
    const double missing = sent.bytes * made_.seconds_per_byte - sent.seconds;
    if (saved <= 0 || missing <= 0) return;
    made_.burst_bytes = std::min(missing / saved, sent.bytes);
    made_.burst_seconds_per_byte = saved;
  }

  // A buffer that takes about half as long as a long message.
  void scatter(Calibration::Product& product) {
    const int ranks = world_.size();
    constexpr std::int64_t kColumns = 1024;
    const double row =
        static_cast<double>(kColumns * bytes_of(product.type)) * made_.seconds_per_byte;
    const auto rows = static_cast<std::int64_t>(kLongMessage / 2 / std::max(row, 1e-9));
    const Problem problem{.rows = ranks * std::clamp<std::int64_t>(rows, 16, 2048),
                          .columns = kColumns,
                          .depth = ranks,
                          .type = product.type,
                          .ranks = ranks};
    OverlappedProduct summed = ready({Type::reduce_scatter, Method::none}, problem, world_);
    const double took = usual([&] { summed.run(Work::communication); });
    const auto bytes = static_cast<double>(problem.rows * kColumns * bytes_of(product.type));
    const double sent = bytes / ranks * (ranks - 1) * made_.seconds_per_byte;
    product.scatter_seconds_per_byte = std::max(0.0, (took - sent) / bytes);
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
    const double whole = took(Method::ring_exchange, 1);
    const double more = took(Method::ring_exchange, kPieces) - whole;
    made_.piece = {std::max(0.0, more / ((kPieces - 1) * others) - call)};
    // Each rank multiplies its own rows, and others when they are there.
    const double arrival = std::max(call, made_.message.value + made_.latency.value);
    made_.step = {std::max(0.0, whole - arrival - others * (made_.piece.value + call))};
    made_.collective = {std::max(
        0.0, took(Method::none, 1) - made_.step.value - call - others * made_.message.value)};
  }

  // A product that takes twice as long as what it sends, in chunks, and what it takes more.
  void processor() {
    const Beside ring = beside({Type::all_gather, Method::ring_exchange});
    made_.processor_seconds_per_byte = std::max(0.0, ring.more / (2 * ring.bytes));
    const Beside pipeline = beside({Type::reduce_scatter, Method::pipeline});
    const double sent = pipeline.bytes * made_.seconds_per_byte;
    // Nothing hides the last of the collectives.
    if (sent > 0) {
      made_.collective_share = std::clamp(pipeline.more / sent - 1.0 / kChunks, 0.0, kLargestShare);
    }
  }
  struct Beside {
    double bytes = 0;  // that a rank sends
    double more = 0;   // seconds, beside the product and what its pieces take
  };
  Beside beside(const overlap::Choice& choice) {
    const int ranks = world_.size();
    const bool gathers = choice.type == Type::all_gather;
    constexpr std::int64_t kWide = 1024;  // numbers of a row that travels
    Problem problem{.rows = kLooks * kChunks * ranks, .ranks = ranks, .chunks = kChunks};
    Beside made{.bytes = static_cast<double>(kLooks * kChunks * (ranks - 1) * kWide * 2)};
    const std::int64_t own = other_size(problem.rows * kWide, 2 * made.bytes);
    problem.columns = gathers ? ranks * own : kWide;
    problem.depth = gathers ? kWide : ranks * own;
    Multiplier multiplier(problem.type,
                          {.columns = gathers ? own : kWide, .depth = gathers ? kWide : own});
    OverlappedProduct overlapped = ready(choice, problem, world_);
    // In turn, for the machine may be faster now than a second ago.
    std::vector<double> apart;
    for (int k = -1; k < 3 * kFewest; ++k) {
      const double alone = timed([&] { multiplier.multiply(problem.rows); });
      const double both = timed([&] { overlapped.run(); });
      if (k >= 0) apart.push_back(both - alone);
    }
    made.more =
        median(std::move(apart)) - made_.step.value - kChunks * (ranks - 1) * made_.piece.value;
    return made;
  }
  // How many columns of weights, each with so many multiplications, take as long as these bytes.
  [[nodiscard]] std::int64_t other_size(std::int64_t multiplications, double bytes) const {
    const Calibration::Product& product = made_.products.front();
    const double column = static_cast<double>(multiplications) * 2 *
                          (product.seconds_per_flop + product.seconds_per_weight_byte / kLooks);
    constexpr std::int64_t kLeast = 16;
    if (column <= 0) return kLeast;  // too little was measured to know
    const auto columns = static_cast<std::int64_t>(bytes * made_.seconds_per_byte / column);
    return std::clamp<std::int64_t>(columns / 16 * 16, kLeast, 4096);
  }

  [[nodiscard]] static OverlappedProduct ready(const overlap::Choice& choice,
                                               const Problem& problem, comm::Communicator& world) {
    const bool needs_thread = choice.method == Method::pipeline;
    OverlappedProduct product(choice, problem, world,
                              {.progress = needs_thread ? Progress::threads : Progress::polled});
    for (const char* const name : {"x", "w"}) {
      const std::span<std::byte> buffer = product.buffer(name);
      std::memset(buffer.data(), static_cast<int>(kFill), buffer.size());
    }
    product.prepare();
    return product;
  }

  // What rank 0 has: processors may differ in how they round.
  [[nodiscard]] Calibration agreed() {
    std::string text = to_text(to_json(made_));
    auto size = static_cast<std::int64_t>(text.size());
    world_.broadcast(std::span(&size, 1), 0);
    text.resize(size);
    world_.broadcast(std::as_writable_bytes(std::span(text)), 0);
    return overlap::calibration_from(parse_json(text, "calibration"), "calibration");
  }

  comm::Communicator& world_;
  double budget_;     // seconds for one thing
  double spent_ = 0;  // in all
  Calibration made_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  std::vector<std::byte> caches_;
  int forgotten_ = 0;
};

}  // namespace

Calibration calibrate(comm::Communicator& world, const CalibrateOptions& options) {
  return Calibrator(world, options).run();
}

}  // namespace shiplap::run
