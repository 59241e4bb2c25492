// Chooses how to overlap a GEMM with its communication.
//
// Problem: which method and how many chunks are fastest, and does overlapping pay at all? Idea: a
// cost model instead of simulated plans. Timeline walks through the operations of the busiest rank
// in order, with two clocks: when the rank is free (now_) and when its link is free (link_). A
// message starts when both its data and the link are ready, a tile when its data has arrived and
// the rank is free. This is the recurrence of a two-stage pipeline (compute, link), in closed
// form per chunk.
//
// The cost of single operations is an interface (Machine), with two implementations: a described
// machine (cost/), for which the estimate equals the replayed plan (choice_test.cc), and a measured
// one (Calibration), in an alpha-beta (latency-bandwidth) model with a burst term for an idle link.
//
// The model has errors, so overlapping must take less than kMaxTimeRatio of the serial time
// and gain more than its own overhead;
// among candidates within kTieTolerance the one with the fewest chunks wins.
#include "shiplap/overlap/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cost/cost_model.h"

namespace shiplap::overlap {
namespace {

// An overlap must take at most this fraction of the serial time: the model is not more accurate.
constexpr double kMaxTimeRatio = 0.95;
// Candidates within this factor count as equally fast; then the fewest chunks win, since the
// overhead of a chunk is the least certain cost.
constexpr double kTieTolerance = 1.005;
constexpr std::array kChunks{1, 2, 3, 4, 6, 8, 12, 16};
constexpr std::int64_t kMinChunkRows = 16;  // of a chunk, unless it is the only one
constexpr double kRowsPerCall = 128;        // max rows of one GEMM call

// The problem of the rank that has the largest share.
struct PerRankProblem {
  PerRankProblem(Type type, const Problem& problem)
      : gathers(type == Type::all_gather),
        ranks(problem.ranks),
        m(static_cast<double>(problem.m)),
        k(split(problem.k, !gathers)),
        n(split(problem.n, gathers)),
        row_bytes(
            gathers
                ? static_cast<double>(overlap::row_bytes(problem.x, problem.type, problem.k) +
                                      (problem.groups > 0 ? kGroupBytes : 0))
                : static_cast<double>(overlap::row_bytes(problem.sums, problem.type, problem.n))),
        is_quantized(!gathers && !is_high_precision(problem.sums)) {}

  bool gathers;
  double ranks;
  double m;
  double k;
  double n;
  double row_bytes;   // communicated
  bool is_quantized;  // whether quantized partial sums are communicated

 private:
  [[nodiscard]] double split(std::int64_t count, bool is_split) const {
    return is_split ? std::ceil(static_cast<double>(count) / ranks) : static_cast<double>(count);
  }
};

double type_bytes(const QuantFormat& format, const Problem& problem) {
  return static_cast<double>(bytes_of(is_high_precision(format) ? problem.type : format.type));
}

// Returns the rows of each chunk of the rank that has the most rows.
std::vector<double> chunk_rows(const Choice& choice, const Problem& problem) {
  const std::int64_t local_rows = (problem.m + problem.ranks - 1) / problem.ranks;
  const std::vector<std::int64_t> cuts = chunk_boundaries(local_rows, choice, problem);
  std::vector<double> rows;
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    rows.push_back(static_cast<double>(cuts[k + 1] - cuts[k]));
  }
  return rows;
}

// The timeline of one rank and its link, chunk by chunk.
class Timeline {
 public:
  Timeline(const Choice& choice, const Problem& problem, const Machine& machine)
      : choice_(choice),
        machine_(machine),
        local_(choice.type, problem),
        ranks_(problem.ranks),
        rows_(chunk_rows(choice, problem)),
        most_rows_(static_cast<double>(joined_rows(problem.m))),
        burst_(machine.burst.value) {}

  [[nodiscard]] double time() {
    const double outside = machine_.step.value + machine_.first.value;
    if (choice_.type == Type::none) return outside + machine_.launch.value + tile(local_.m);
    switch (choice_.method) {
      case Method::none:
        serial();
        break;
      case Method::bulk:
        throw InternalError("a bulk transfer is unrelated to its GEMM");
      case Method::pipeline:
        pipeline();
        break;
      case Method::ring_exchange:
        local_.gathers ? ring() : direct();
        break;
    }
    return outside + now_;
  }

  // Returns the time of the communication alone.
  [[nodiscard]] double communication() {
    if (choice_.type == Type::none || ranks_ == 1) return 0;
    return collective(local_.m);
  }

 private:
  [[nodiscard]] double tile(double rows) const { return machine_.tile(rows).value; }
  [[nodiscard]] double add(double rows) const { return machine_.add(rows).value; }
  [[nodiscard]] double cast(double rows) const { return machine_.cast(rows).value; }
  [[nodiscard]] double busy(double rows) {
    return without_burst(machine_.message(rows * local_.row_bytes).value);
  }
  [[nodiscard]] double collective(CollectiveKind kind, double rows) {
    if (ranks_ == 1) return 0;
    return without_burst(machine_.collective(kind, rows * local_.row_bytes).value);
  }
  [[nodiscard]] double without_burst(double took) {
    const double won = std::min(took * machine_.burst_share, burst_);
    burst_ -= won;
    return took - won;
  }
  // The collective for all rows at once. Quantized values cannot be reduced in transit, so partial
  // sums are exchanged (all_to_all) and added by their owner.
  [[nodiscard]] double collective(double rows) {
    using enum CollectiveKind;
    const bool sums_everywhere = choice_.type == Type::all_reduce;
    if (local_.gathers) return collective(all_gather, rows);
    if (!local_.is_quantized)
      return collective(sums_everywhere ? all_reduce : reduce_scatter, rows);
    return collective(all_to_all, rows) + (sums_everywhere ? collective(all_gather, rows) : 0);
  }
  // Time to add the partial sums of all ranks for `rows` rows.
  [[nodiscard]] double sum_of_partials(double rows) const {
    return 2 * cast(rows) + (ranks_ - 1) * add(rows);
  }
  // Tiles are numbered chunk by chunk, one rank after another.
  [[nodiscard]] double rows_of(std::size_t tile) const { return rows_[tile % rows_.size()]; }
  static bool always(std::size_t /*tile*/) { return true; }

  // The tiles [first, end) of one GEMM: one or, in an atomic GEMM, neighbours that are ready.
  // `is_ready(tile)` says whether a tile may begin now.
  template <class IsReady>
  [[nodiscard]] std::size_t end_of_group(std::size_t first, std::size_t tiles,
                                         const IsReady& is_ready) const {
    std::size_t end = first + 1;
    if (!choice_.atomic || !machine_.merges_tiles) return end;
    double rows = rows_of(first);
    for (; end < tiles && is_ready(end); ++end) {
      rows += rows_of(end);
      if (rows > most_rows_) break;
    }
    return end;
  }
  // Time of such a group, of which the first `sent` tiles run while their rows, and as many others,
  // are transferred.
  [[nodiscard]] double group(std::size_t first, std::size_t end, std::size_t sent) const {
    double rows = 0;
    double transferred = 0;
    for (std::size_t k = first; k < end; ++k) {
      rows += rows_of(k);
      if (k < sent) transferred += rows_of(k);
    }
    return tile(rows) + static_cast<double>(end - first) * machine_.tile_overhead.value +
           (choice_.atomic ? 0 : machine_.launch.value) +
           2 * transferred * local_.row_bytes * machine_.processor_seconds_per_byte;
  }
  // Time of a tile with as many rows as a chunk, with transfer.
  [[nodiscard]] double tile_of_chunk(std::size_t chunk) const {
    return group(chunk, chunk + 1, chunk + 1);
  }
  // The launch of the one call of an atomic GEMM.
  [[nodiscard]] double call_launch() const { return choice_.atomic ? machine_.launch.value : 0; }

  void serial() {
    now_ = machine_.launch.value + tile(local_.m) + collective(local_.m);
    if (!local_.is_quantized) return;
    now_ += sum_of_partials(std::ceil(local_.m / ranks_));
    if (choice_.type == Type::all_reduce) now_ += cast(local_.m);
  }

  // A chunk is forwarded as soon as it has arrived.
  void ring() {
    double local_rows = 0;
    for (const double rows : rows_) local_rows += rows;
    const std::size_t chunks = rows_.size();
    const std::size_t tiles = (ranks_ - 1) * chunks;
    std::vector<double> arrival(tiles);
    for (std::size_t k = 0; k < tiles; ++k) {
      const double has_chunk = k < chunks ? 0 : arrival[k - chunks];
      link_ = std::max(link_, has_chunk) + busy(rows_of(k));
      arrival[k] = link_ + machine_.latency.value;
    }
    now_ = tile(local_rows) + machine_.launch.value;
    for (std::size_t k = 0; k < tiles;) {
      now_ = std::max(now_, arrival[k]);
      const std::size_t end =
          end_of_group(k, tiles, [&](std::size_t next) { return arrival[next] <= now_; });
      now_ += group(k, end, end);
      k = end;
    }
  }

  // A partial sum is sent when its tile is done; the owner adds what has arrived.
  void direct() {
    const std::size_t chunks = rows_.size();
    const std::size_t sent = (ranks_ - 1) * chunks;
    std::vector<double> there;       // arrival times, in the order of sending
    std::vector<double> local_done;  // when the local tiles, which come last, are done
    now_ = call_launch();
    for (std::size_t k = 0; k < sent + chunks;) {
      const std::size_t end = end_of_group(k, sent + chunks, always);
      now_ += group(k, end, sent);
      for (; k < end; ++k) {
        if (k >= sent) {
          local_done.push_back(now_);
          continue;
        }
        link_ = std::max(link_, now_) + busy(rows_of(k));
        there.push_back(link_ + machine_.latency.value);
      }
    }
    double sums = machine_.adds_in_parallel ? 0 : now_;
    for (std::size_t k = 0; k < there.size(); ++k) {
      sums = std::max(sums, there[k]) + (k < chunks ? cast(rows_[k]) : add(rows_of(k)));
    }
    for (std::size_t u = 0; u < chunks; ++u) {
      sums = std::max(sums, local_done[u]) + (ranks_ == 1 ? 1 : 0) * cast(rows_[u]) +
             (ranks_ == 1 ? 0 : 1) * add(rows_[u]) + cast(rows_[u]);
      if (choice_.type != Type::all_reduce) continue;
      for (int d = 1; d < ranks_; ++d) link_ = std::max(link_, sums) + busy(rows_[u]);
    }
    now_ = std::max(now_, sums);
    if (choice_.type != Type::all_reduce || ranks_ == 1) return;
    decode(link_ + machine_.latency.value, rows_.back());
  }
  // Dequantizes the sums of all rows, the last ones when they have arrived.
  void decode(double arrived, double last) {
    if (!local_.is_quantized) {
      now_ = std::max(now_, arrived);
      return;
    }
    const double all = cast(local_.m);
    now_ = std::max(now_ + (machine_.adds_in_parallel ? 0 : all), arrived + cast(last));
  }

  // Tiles of chunk i of all ranks, then the collective for it.
  void pipeline() {
    if (local_.is_quantized) return quantized_pipeline();
    now_ = call_launch();
    if (choice_.type == Type::reduce_scatter) {
      // The tiles of chunk i of all ranks are not neighbours.
      for (std::size_t u = 0; u < rows_.size(); ++u) {
        now_ += ranks_ * tile_of_chunk(u);
        start_collective(collective(ranks_ * rows_[u]));
      }
    } else {
      const std::size_t tiles = ranks_ * rows_.size();
      for (std::size_t k = 0; k < tiles;) {
        const std::size_t end = end_of_group(k, tiles, always);
        now_ += group(k, end, end);
        for (; k < end; ++k) start_collective(collective(rows_of(k)));
      }
    }
    now_ = std::max(now_, link_);
  }

  // Starts a collective, which slows down the tiles that follow.
  void start_collective(double took) {
    link_ = std::max(link_, now_) + took;
    now_ += machine_.collective_share * took;
  }

  // The same with quantized partial sums: all_to_all, add, and for all_reduce an all_gather one
  // chunk later.
  void quantized_pipeline() {
    const bool goes_on = choice_.type == Type::all_reduce;
    double sums = 0;
    double work = 0;    // total time of sums
    double before = 0;  // rows of the previous chunk, on all ranks
    double ready = 0;   // when its sums are done
    const auto gather = [&] {
      if (!goes_on || before == 0) return;
      link_ = std::max(link_, ready) + collective(CollectiveKind::all_gather, before);
    };
    now_ = call_launch();
    for (std::size_t u = 0; u < rows_.size(); ++u) {
      const double rows = rows_[u];
      now_ += ranks_ * tile_of_chunk(u);
      start_collective(collective(CollectiveKind::all_to_all, ranks_ * rows));
      sums = std::max(sums, link_) + sum_of_partials(rows);
      work += sum_of_partials(rows);
      gather();
      before = ranks_ * rows;
      ready = sums;
    }
    gather();
    now_ = std::max(now_ + (machine_.adds_in_parallel ? 0 : work), sums);
    if (goes_on) decode(link_, before);
  }

  Choice choice_;
  const Machine& machine_;
  PerRankProblem local_;
  int ranks_;
  std::vector<double> rows_;
  double most_rows_;  // that a group of tiles may have
  double now_ = 0;    // when the rank is free
  double link_ = 0;   // when its link is free
  double burst_;      // remaining burst credit
};

std::vector<Candidate> candidates_for(Type type, const Problem& problem) {
  std::vector<Candidate> made{{.choice = {.type = type}}};
  const std::int64_t local_rows = (problem.m + problem.ranks - 1) / problem.ranks;
  for (const SupportedChoice& legal : supported_choices()) {
    const Method method = legal.choice.method;
    if (legal.choice.type != type || method == Method::none || method == Method::bulk) continue;
    for (const int chunks : kChunks) {
      if (chunks > 1 && local_rows < chunks * kMinChunkRows) break;
      for (const Cut cut : {Cut::even, Cut::tapered}) {
        if (chunks == 1 && cut == Cut::tapered) continue;
        made.push_back({.choice = legal.choice, .chunks = chunks, .cut = cut});
      }
    }
  }
  return made;
}

// REQUIRES: candidates are sorted by time.
Candidate fewest_chunks_of_fastest(const std::vector<Candidate>& candidates) {
  Candidate best = candidates.front();
  for (const Candidate& each : candidates) {
    if (each.time.value > kTieTolerance * candidates.front().time.value) break;
    if (each.chunks < best.chunks) best = each;
  }
  return best;
}

std::string reason(const Chosen& chosen, const Machine& machine) {
  const Candidate& best = chosen.candidates.front();
  const Candidate mine{chosen.choice, chosen.problem.chunks, chosen.problem.cut, chosen.time};
  if (chosen.problem.ranks == 1) return "serial: there is one rank, nothing is sent";
  if (chosen.choice.type == Type::none) return "GEMM only: nothing is sent";
  const std::string parts = fmt::format("GEMM {}, communication {}", to_string(chosen.gemm),
                                        to_string(chosen.communication));
  if (chosen.overlaps()) {
    return fmt::format("{}: {} instead of {} serial on {} ({})", to_string(mine),
                       to_string(chosen.time), to_string(chosen.serial), machine.name, parts);
  }
  if (best.choice.method == Method::none) {
    return fmt::format("serial: every overlap costs more than it hides on {} ({})", machine.name,
                       parts);
  }
  return fmt::format("serial, {}: {} would gain {:.1f} %, too little to be sure of on {} ({})",
                     to_string(chosen.serial), to_string(best),
                     100 * (1 - best.time / chosen.serial), machine.name, parts);
}

}  // namespace

std::string to_string(const Candidate& candidate) {
  if (candidate.choice.method == Method::none) return "serial";
  return fmt::format("{}{} in {}{} chunk{}", name(candidate.choice.method),
                     candidate.choice.atomic ? " atomic" : "", candidate.chunks,
                     candidate.cut == Cut::tapered ? " tapered" : "",
                     candidate.chunks == 1 ? "" : "s");
}

Machine machine_of(const hardware::System& system, Type type, const Problem& problem) {
  const PerRankProblem local(type, problem);
  const bool has_fp8 = !is_high_precision(problem.x) && !is_high_precision(problem.w);
  const DType datatype = has_fp8 ? problem.x.type : problem.type;
  const double x = type_bytes(problem.x, problem);
  const double w = type_bytes(problem.w, problem) * std::max(1, problem.groups);
  const double y = static_cast<double>(bytes_of(problem.type));
  const double part = type_bytes(problem.sums, problem);
  const cost::RankSpan reach{.ranks = problem.ranks, .lowest = 0, .highest = problem.ranks - 1};
  const auto bytes = [](double count) { return Bytes{std::llround(count)}; };
  Machine made;
  made.name = system.name;
  made.tile = [=](double rows) {
    return cost::compute_time(system,
                              {.kernel_class = "gemm",
                               .flop = 2 * rows * local.k * local.n,
                               .bytes = rows * (x * local.k + y * local.n) + w * local.k * local.n,
                               .type = datatype});
  };
  made.message = [=](double count) {
    return cost::message_time(system, bytes(count), Rank(0), Rank(problem.ranks - 1));
  };
  // Conversion from and to f32, and accumulation.
  const auto sum = [=](double rows, double flop, double sum_bytes) {
    const cost::ComputeWork work{.kernel_class = "vector",
                                 .flop = rows * local.n * flop,
                                 .bytes = rows * local.n * sum_bytes,
                                 .type = DType::f32};
    return system.launch + cost::compute_time(system, work);
  };
  const auto add = [=](double rows) { return sum(rows, 1, part + 8); };
  made.cast = [=](double rows) { return sum(rows, 0, part + 4); };
  made.adds_in_parallel = true;
  made.add = add;
  made.collective = [=](CollectiveKind kind, double count) {
    return cost::collective_time(system, kind, bytes(count), reach);
  };
  made.launch = system.launch;
  return made;
}

Machine machine_of(const Calibration& calibration, Type type, const Problem& problem) {
  // FP8 is multiplied as bf16.
  const bool has_fp8 = !is_high_precision(problem.x) || !is_high_precision(problem.w);
  const DType wanted = has_fp8 ? DType::bf16 : problem.type;
  const auto product = std::ranges::find(calibration.gemms, wanted, &Calibration::GemmCost::type);
  if (product == calibration.gemms.end()) {
    throw InputError(Diagnostic{
        .code = "D815",
        .what = fmt::format("missing calibration for GEMMs of {}", shiplap::name(wanted)),
        .why = calibration.machine,
        .help = "bf16 and f32 are calibrated; for other dtypes use --hardware"});
  }
  const PerRankProblem local(type, problem);
  const Calibration::GemmCost each = *product;
  const double weights = static_cast<double>(bytes_of(wanted)) * local.k * local.n;
  const double part = type_bytes(problem.sums, problem);
  const double ranks = problem.ranks;
  Machine made;
  made.name = calibration.machine;
  if (calibration.ranks != problem.ranks) {
    made.name += fmt::format(" (there are {} now)", problem.ranks);
  }
  made.tile = [=](double rows) {
    const double calls = std::max(1.0, std::ceil(rows / kRowsPerCall));
    return Seconds{calls * (each.call.value + weights * each.seconds_per_weight_byte) +
                   2 * rows * local.k * local.n * each.seconds_per_flop};
  };
  made.merges_tiles = true;
  made.message = [=](double bytes) {
    return Seconds{calibration.message.value + bytes * calibration.seconds_per_byte};
  };
  made.latency = calibration.latency;
  if (calibration.seconds_per_byte > 0) {
    made.burst_share = calibration.burst_seconds_per_byte / calibration.seconds_per_byte;
    made.burst = {calibration.burst_bytes * calibration.burst_seconds_per_byte};
  }
  const auto sum = [=](double rows, double sum_bytes) {
    return Seconds{rows * local.n * sum_bytes * calibration.sum_seconds_per_byte};
  };
  const auto add = [=](double rows) { return sum(rows, part + 8); };
  made.cast = [=](double rows) { return sum(rows, part + 4); };
  made.add = add;
  made.collective = [=](CollectiveKind kind, double bytes) {
    using enum CollectiveKind;
    const Seconds once{
        calibration.collective.value +
        (ranks - 1) * (calibration.message.value + bytes / ranks * calibration.seconds_per_byte)};
    if (kind == all_gather || kind == all_to_all) return once;
    const Seconds sums{bytes * each.scatter_seconds_per_byte};
    return (kind == all_reduce ? once + once : once) + sums;
  };
  made.collective_share = calibration.collective_share;
  made.processor_seconds_per_byte = calibration.processor_seconds_per_byte;
  made.first = {weights * each.first_seconds_per_weight_byte};
  made.step = calibration.step;
  made.tile_overhead = calibration.tile_overhead;
  made.launch = calibration.launch;
  return made;
}

Seconds estimate(const Choice& choice, const Problem& problem, const Machine& machine) {
  check_supported(choice);
  ensure(problem.ranks >= 1 && problem.chunks >= 1, "the problem is valid");
  return {Timeline(choice, problem, machine).time()};
}

Chosen choose(Type type, const Problem& problem, const Machine& machine) {
  Chosen chosen{.choice = {.type = type}, .problem = problem, .candidates = {}};
  chosen.problem.chunks = 1;
  chosen.problem.cut = Cut::even;
  static_cast<void>(plan_text({.type = type}, chosen.problem));  // throws if the problem is invalid
  for (Candidate each : candidates_for(type, problem)) {
    Problem cut = problem;
    cut.chunks = each.chunks;
    cut.cut = each.cut;
    each.time = estimate(each.choice, cut, machine);
    if (each.choice.method == Method::none) chosen.serial = each.time;
    chosen.candidates.push_back(each);
  }
  std::ranges::stable_sort(chosen.candidates, {}, &Candidate::time);
  chosen.gemm = estimate({}, chosen.problem, machine);
  chosen.communication = {Timeline(chosen.choice, chosen.problem, machine).communication()};
  chosen.time = chosen.serial;
  const Candidate best = fewest_chunks_of_fastest(chosen.candidates);
  // The gain must also exceed the overhead of a step and a chunk, the least certain costs.
  const Seconds least = machine.step + machine.tile_overhead;
  if (problem.ranks > 1 && best.time.value < kMaxTimeRatio * chosen.serial.value &&
      best.time + least <= chosen.serial) {
    chosen.choice = best.choice;
    chosen.problem.chunks = best.chunks;
    chosen.problem.cut = best.cut;
    chosen.time = best.time;
  }
  chosen.why = reason(chosen, machine);
  return chosen;
}

}  // namespace shiplap::overlap
