#include "shiplap/overlap/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/cost/price.h"

namespace shiplap::overlap {
namespace {

// What is not faster by this share than one after the other is not worth it: no model is better.
constexpr double kWorth = 0.95;
// Of ways that are about as fast, the one with the fewest pieces: what they cost is known least.
constexpr double kAlike = 1.005;
constexpr std::array kChunks{1, 2, 3, 4, 6, 8, 12, 16};
constexpr std::int64_t kLeastRows = 16;  // of a chunk, but for the only one
constexpr double kLooks = 128;           // rows that a product takes at a time, at most

// A problem as the rank sees it that has most of everything.
struct Share {
  Share(Type type, const Problem& problem)
      : gathers(type == Type::all_gather),
        ranks(problem.ranks),
        rows(static_cast<double>(problem.rows)),
        inner(cut(problem.depth, !gathers)),
        wide(cut(problem.columns, gathers)),
        row_bytes(gathers ? static_cast<double>(
                                overlap::row_bytes(problem.x, problem.type, problem.depth) +
                                (problem.groups > 0 ? kGroupBytes : 0))
                          : static_cast<double>(
                                overlap::row_bytes(problem.sums, problem.type, problem.columns))),
        is_coded(!gathers && !is_plain(problem.sums)) {}

  bool gathers;
  double ranks;
  double rows;
  double inner;
  double wide;
  double row_bytes;  // of what travels
  bool is_coded;     // whether those are parts of sums with scales

 private:
  [[nodiscard]] double cut(std::int64_t count, bool is_cut) const {
    return is_cut ? std::ceil(static_cast<double>(count) / ranks) : static_cast<double>(count);
  }
};

double type_bytes(const Form& form, const Problem& problem) {
  return static_cast<double>(bytes_of(is_plain(form) ? problem.type : form.type));
}

// The rows of the chunks of the rank that has most.
std::vector<double> chunk_rows(const Choice& choice, const Problem& problem) {
  const std::int64_t own = (problem.rows + problem.ranks - 1) / problem.ranks;
  const std::vector<std::int64_t> cuts = chunks_of(own, choice, problem);
  std::vector<double> rows;
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    rows.push_back(static_cast<double>(cuts[k + 1] - cuts[k]));
  }
  return rows;
}

// Follows what the rank does and what its link carries, piece by piece.
class Course {
 public:
  Course(const Choice& choice, const Problem& problem, const Machine& machine)
      : choice_(choice),
        machine_(machine),
        share_(choice.type, problem),
        ranks_(problem.ranks),
        rows_(chunk_rows(choice, problem)),
        burst_(machine.burst.value) {}

  [[nodiscard]] double time() {
    const double outside = machine_.step.value + machine_.first.value;
    if (choice_.type == Type::none) return outside + tile(share_.rows);
    switch (choice_.method) {
      case Method::none:
        one_by_one();
        break;
      case Method::bulk:
        throw InternalError("a bulk transfer has nothing to do with its product");
      case Method::pipeline:
        pipeline();
        break;
      case Method::ring_exchange:
        share_.gathers ? ring() : direct();
        break;
    }
    return outside + now_;
  }

  // What is sent, and nothing else.
  [[nodiscard]] double communication() {
    if (choice_.type == Type::none || ranks_ == 1) return 0;
    return collective(share_.rows);
  }

 private:
  [[nodiscard]] double tile(double rows) const { return machine_.tile(rows).value; }
  [[nodiscard]] double add(double rows) const { return machine_.add(rows).value; }
  [[nodiscard]] double cast(double rows) const { return machine_.cast(rows).value; }
  [[nodiscard]] double busy(double rows) {
    return without_burst(machine_.message(rows * share_.row_bytes).value);
  }
  [[nodiscard]] double collective(CollectiveKind kind, double rows) {
    if (ranks_ == 1) return 0;
    return without_burst(machine_.collective(kind, rows * share_.row_bytes).value);
  }
  [[nodiscard]] double without_burst(double took) {
    const double won = std::min(took * machine_.burst_share, burst_);
    burst_ -= won;
    return took - won;
  }
  // The one that does it in one go. Codes cannot be added on the way.
  [[nodiscard]] double collective(double rows) {
    using enum CollectiveKind;
    const bool sums_everywhere = choice_.type == Type::all_reduce;
    if (share_.gathers) return collective(all_gather, rows);
    if (!share_.is_coded) return collective(sums_everywhere ? all_reduce : reduce_scatter, rows);
    return collective(all_to_all, rows) + (sums_everywhere ? collective(all_gather, rows) : 0);
  }
  // Of parts from all ranks, for so many rows.
  [[nodiscard]] double sum_of_parts(double rows) const {
    return 2 * cast(rows) + (ranks_ - 1) * add(rows);
  }
  // A tile of its own launch whose rows, and as many others, go over the link meanwhile.
  [[nodiscard]] double tile_beside(double rows) const {
    return tile(rows) + machine_.piece.value + (choice_.atomic ? 0 : machine_.launch.value) +
           2 * rows * share_.row_bytes * machine_.processor_seconds_per_byte;
  }

  void one_by_one() {
    now_ = tile(share_.rows) + collective(share_.rows);
    if (!share_.is_coded) return;
    now_ += sum_of_parts(std::ceil(share_.rows / ranks_));
    if (choice_.type == Type::all_reduce) now_ += cast(share_.rows);
  }

  // A chunk is sent on as soon as it is there.
  void ring() {
    double own = 0;
    for (const double rows : rows_) own += rows;
    now_ = tile(own) + machine_.launch.value;
    std::vector<double> there(rows_.size(), 0);
    for (int s = 1; s < ranks_; ++s) {
      for (std::size_t u = 0; u < rows_.size(); ++u) {
        link_ = std::max(link_, there[u]) + busy(rows_[u]);
        there[u] = link_ + machine_.latency.value;
        now_ = std::max(now_, there[u]) + tile_beside(rows_[u]);
      }
    }
  }

  // Each part leaves when it is multiplied; the owner adds up what has arrived.
  void direct() {
    const std::size_t chunks = rows_.size();
    std::vector<double> there;  // of parts, in the order in which they leave
    for (int d = 1; d < ranks_; ++d) {
      for (const double rows : rows_) {
        now_ += tile_beside(rows);
        link_ = std::max(link_, now_) + busy(rows);
        there.push_back(link_ + machine_.latency.value);
      }
    }
    std::vector<double> own;  // when its own part is multiplied
    for (const double rows : rows_) {
      now_ += tile(rows) + machine_.piece.value + (choice_.atomic ? 0 : machine_.launch.value);
      own.push_back(now_);
    }
    double sums = machine_.adds_beside ? 0 : now_;
    for (std::size_t k = 0; k < there.size(); ++k) {
      sums = std::max(sums, there[k]) + (k < chunks ? cast(rows_[k]) : add(rows_[k % chunks]));
    }
    for (std::size_t u = 0; u < chunks; ++u) {
      sums = std::max(sums, own[u]) + (ranks_ == 1 ? 1 : 0) * cast(rows_[u]) +
             (ranks_ == 1 ? 0 : 1) * add(rows_[u]) + cast(rows_[u]);
      if (choice_.type != Type::all_reduce) continue;
      for (int d = 1; d < ranks_; ++d) link_ = std::max(link_, sums) + busy(rows_[u]);
    }
    now_ = std::max(now_, sums);
    if (choice_.type != Type::all_reduce || ranks_ == 1) return;
    decode(link_ + machine_.latency.value, rows_.back());
  }
  // Coded sums of all rows become numbers, the last of them when they have arrived.
  void decode(double arrived, double last) {
    if (!share_.is_coded) {
      now_ = std::max(now_, arrived);
      return;
    }
    const double all = cast(share_.rows);
    now_ = std::max(now_ + (machine_.adds_beside ? 0 : all), arrived + cast(last));
  }

  // Chunk i of all ranks, then the collective for it.
  void pipeline() {
    if (share_.is_coded) return coded_pipeline();
    const bool scatters = choice_.type == Type::reduce_scatter;
    const int repeats = scatters ? 1 : ranks_;
    for (int k = 0; k < repeats; ++k) {
      for (const double rows : rows_) {
        const double all = scatters ? ranks_ * rows : rows;
        now_ += (scatters ? ranks_ : 1) * tile_beside(rows);
        beside(collective(all));
      }
    }
    now_ = std::max(now_, link_);
  }

  // A collective begins, and delays the tiles that follow.
  void beside(double took) {
    link_ = std::max(link_, now_) + took;
    now_ += machine_.collective_share * took;
  }

  // The same where parts are turned, added up and, for all_reduce, gathered one chunk later.
  void coded_pipeline() {
    const bool goes_on = choice_.type == Type::all_reduce;
    double sums = 0;
    double work = 0;    // of all sums
    double before = 0;  // rows of the chunk before this, on all ranks
    double ready = 0;   // when its sums are
    const auto gather = [&] {
      if (!goes_on || before == 0) return;
      link_ = std::max(link_, ready) + collective(CollectiveKind::all_gather, before);
    };
    for (const double rows : rows_) {
      now_ += ranks_ * tile_beside(rows);
      beside(collective(CollectiveKind::all_to_all, ranks_ * rows));
      sums = std::max(sums, link_) + sum_of_parts(rows);
      work += sum_of_parts(rows);
      gather();
      before = ranks_ * rows;
      ready = sums;
    }
    gather();
    now_ = std::max(now_ + (machine_.adds_beside ? 0 : work), sums);
    if (goes_on) decode(link_, before);
  }

  Choice choice_;
  const Machine& machine_;
  Share share_;
  int ranks_;
  std::vector<double> rows_;
  double now_ = 0;   // on the rank
  double link_ = 0;  // until which its link is busy
  double burst_;     // that is left to be won
};

std::vector<Candidate> candidates_for(Type type, const Problem& problem) {
  std::vector<Candidate> made{{.choice = {.type = type}}};
  const std::int64_t own = (problem.rows + problem.ranks - 1) / problem.ranks;
  for (const Legal& legal : legal_choices()) {
    const Method method = legal.choice.method;
    if (legal.choice.type != type || method == Method::none || method == Method::bulk) continue;
    for (const int chunks : kChunks) {
      if (chunks > 1 && own < chunks * kLeastRows) break;
      for (const Cut cut : {Cut::even, Cut::tapered}) {
        if (chunks == 1 && cut == Cut::tapered) continue;
        made.push_back({.choice = legal.choice, .chunks = chunks, .cut = cut});
      }
    }
  }
  return made;
}

// Of candidates, the fastest first.
Candidate simplest_of_the_best(const std::vector<Candidate>& candidates) {
  Candidate best = candidates.front();
  for (const Candidate& each : candidates) {
    if (each.time.value > kAlike * candidates.front().time.value) break;
    if (each.chunks < best.chunks) best = each;
  }
  return best;
}

std::string reason(const Chosen& chosen, const Machine& machine) {
  const Candidate& best = chosen.candidates.front();
  const Candidate mine{chosen.choice, chosen.problem.chunks, chosen.problem.cut, chosen.time};
  if (chosen.problem.ranks == 1) return "one after the other: there is one rank, nothing is sent";
  if (chosen.choice.type == Type::none) return "the product alone: nothing is sent";
  const std::string parts = fmt::format("product {}, communication {}", to_string(chosen.product),
                                        to_string(chosen.communication));
  if (chosen.overlaps()) {
    return fmt::format("{}: {} instead of {} one after the other on {} ({})", to_string(mine),
                       to_string(chosen.time), to_string(chosen.serial), machine.name, parts);
  }
  if (best.choice.method == Method::none) {
    return fmt::format(
        "one after the other: every way to overlap costs more than it hides on {} ({})",
        machine.name, parts);
  }
  return fmt::format(
      "one after the other, {}: {} would gain {:.1f} %, too little to be sure of on {} ({})",
      to_string(chosen.serial), to_string(best), 100 * (1 - best.time / chosen.serial),
      machine.name, parts);
}

}  // namespace

std::string to_string(const Candidate& candidate) {
  if (candidate.choice.method == Method::none) return "one after the other";
  return fmt::format("{}{} in {}{} chunk{}", name(candidate.choice.method),
                     candidate.choice.atomic ? " atomic" : "", candidate.chunks,
                     candidate.cut == Cut::tapered ? " tapered" : "",
                     candidate.chunks == 1 ? "" : "s");
}

Machine machine_of(const hardware::System& system, Type type, const Problem& problem) {
  const Share share(type, problem);
  const bool has_codes = !is_plain(problem.x) && !is_plain(problem.w);
  const DType datatype = has_codes ? problem.x.type : problem.type;
  const double x = type_bytes(problem.x, problem);
  const double w = type_bytes(problem.w, problem) * std::max(1, problem.groups);
  const double y = static_cast<double>(bytes_of(problem.type));
  const double part = type_bytes(problem.sums, problem);
  const cost::Reach reach{.ranks = problem.ranks, .lowest = 0, .highest = problem.ranks - 1};
  const auto bytes = [](double count) { return Bytes{std::llround(count)}; };
  Machine made;
  made.name = system.name;
  made.tile = [=](double rows) {
    return cost::compute_time(
        system, {.kernel_class = "gemm",
                 .flop = 2 * rows * share.inner * share.wide,
                 .bytes = rows * (x * share.inner + y * share.wide) + w * share.inner * share.wide,
                 .type = datatype});
  };
  made.message = [=](double count) {
    return cost::message_time(system, bytes(count), Rank(0), Rank(problem.ranks - 1));
  };
  // Into f32, or from there, and added to what is there.
  const auto sum = [=](double rows, double flop, double sum_bytes) {
    return cost::compute_time(system, {.kernel_class = "vector",
                                       .flop = rows * share.wide * flop,
                                       .bytes = rows * share.wide * sum_bytes,
                                       .type = DType::f32});
  };
  const auto add = [=](double rows) { return sum(rows, 1, part + 8); };
  made.cast = [=](double rows) { return sum(rows, 0, part + 4); };
  made.adds_beside = true;
  made.add = add;
  made.collective = [=](CollectiveKind kind, double count) {
    return cost::collective_time(system, kind, bytes(count), reach);
  };
  return made;
}

Machine machine_of(const Calibration& calibration, Type type, const Problem& problem) {
  // Codes of FP8 are multiplied as bf16.
  const bool has_codes = !is_plain(problem.x) || !is_plain(problem.w);
  const DType wanted = has_codes ? DType::bf16 : problem.type;
  const auto product = std::ranges::find(calibration.products, wanted, &Calibration::Product::type);
  if (product == calibration.products.end()) {
    throw InputError(
        Diagnostic{.code = "D815",
                   .what = fmt::format("products of {} were not measured", shiplap::name(wanted)),
                   .why = calibration.machine,
                   .help = "bf16 and f32 are; for other types choose by a described machine"});
  }
  const Share share(type, problem);
  const Calibration::Product each = *product;
  const double weights = static_cast<double>(bytes_of(wanted)) * share.inner * share.wide;
  const double part = type_bytes(problem.sums, problem);
  const double ranks = problem.ranks;
  Machine made;
  made.name = calibration.machine;
  if (calibration.ranks != problem.ranks) {
    made.name += fmt::format(" (there are {} now)", problem.ranks);
  }
  made.tile = [=](double rows) {
    const double calls = std::max(1.0, std::ceil(rows / kLooks));
    return Seconds{calls * (each.call.value + weights * each.seconds_per_weight_byte) +
                   2 * rows * share.inner * share.wide * each.seconds_per_flop};
  };
  made.message = [=](double bytes) {
    return Seconds{calibration.message.value + bytes * calibration.seconds_per_byte};
  };
  made.latency = calibration.latency;
  if (calibration.seconds_per_byte > 0) {
    made.burst_share = calibration.burst_seconds_per_byte / calibration.seconds_per_byte;
    made.burst = {calibration.burst_bytes * calibration.burst_seconds_per_byte};
  }
  const auto sum = [=](double rows, double sum_bytes) {
    return Seconds{rows * share.wide * sum_bytes * calibration.sum_seconds_per_byte};
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
  made.piece = calibration.piece;
  return made;
}

Seconds estimate(const Choice& choice, const Problem& problem, const Machine& machine) {
  demand_legal(choice);
  ensure(problem.ranks >= 1 && problem.chunks >= 1, "a problem that makes sense");
  return {Course(choice, problem, machine).time()};
}

Chosen choose(Type type, const Problem& problem, const Machine& machine) {
  Chosen chosen{.choice = {.type = type}, .problem = problem, .candidates = {}};
  chosen.problem.chunks = 1;
  chosen.problem.cut = Cut::even;
  static_cast<void>(plan_text({.type = type}, chosen.problem));  // what makes no sense is refused
  for (Candidate each : candidates_for(type, problem)) {
    Problem cut = problem;
    cut.chunks = each.chunks;
    cut.cut = each.cut;
    each.time = estimate(each.choice, cut, machine);
    if (each.choice.method == Method::none) chosen.serial = each.time;
    chosen.candidates.push_back(each);
  }
  std::ranges::stable_sort(chosen.candidates, {}, &Candidate::time);
  chosen.product = estimate({}, chosen.problem, machine);
  chosen.communication = {Course(chosen.choice, chosen.problem, machine).communication()};
  chosen.time = chosen.serial;
  const Candidate best = simplest_of_the_best(chosen.candidates);
  // Nor is it worth it if it wins less than is spent on it: that is known least.
  const Seconds least = machine.step + machine.piece;
  if (problem.ranks > 1 && best.time.value < kWorth * chosen.serial.value &&
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
