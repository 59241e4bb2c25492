// One rank of bench_overlap --choice: the choice of choose() for many shapes, compared with others.
//
//   bench_choice_worker SECONDS FIRST LAST
//
// Calibrates, then measures the shapes from FIRST up to LAST, each for about SECONDS, in rounds of
// all candidates. Each rank is pinned to a core. Rank 0 prints one JSON object, with all times in
// milliseconds.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pin_to_core.h"
#include "shiplap/base/json.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/run/calibrate.h"
#include "shiplap/run/overlapped_gemm.h"

namespace shiplap {
namespace {

using overlap::Candidate;
using overlap::Choice;
using overlap::Cut;
using overlap::Method;
using overlap::Problem;
using overlap::Type;
using run::OverlappedGemm;

constexpr int kMinRounds = 7;
constexpr int kMaxRounds = 61;

struct Shape {
  Type type = Type::all_gather;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  DType element = DType::bf16;
};

// From shapes that are too small for any overlap to those with a large gain.
std::vector<Shape> shapes() {
  using enum Type;
  const DType f32 = DType::f32;
  return {{all_gather, 16, 64, 64},
          {reduce_scatter, 16, 64, 64},
          {all_gather, 16, 512, 512, f32},
          {reduce_scatter, 32, 1024, 256},
          {all_gather, 64, 128, 1024},
          {all_gather, 64, 2048, 2048},
          {reduce_scatter, 64, 2048, 2048},
          {all_gather, 128, 256, 256},
          {reduce_scatter, 128, 256, 256, f32},
          {all_gather, 128, 4096, 1024},
          {reduce_scatter, 128, 1024, 4096},
          {all_gather, 256, 1024, 1024},
          {reduce_scatter, 256, 1024, 1024},
          {all_gather, 256, 4096, 512, f32},
          {reduce_scatter, 256, 512, 4096, f32},
          {all_gather, 512, 512, 2048},
          {all_gather, 512, 2048, 512},
          {reduce_scatter, 512, 2048, 2048},
          {all_gather, 512, 8192, 1024},
          {reduce_scatter, 512, 1024, 8192},
          {all_gather, 1000, 3000, 1111},
          {reduce_scatter, 1000, 1111, 3000},
          {all_gather, 1024, 4096, 2048},
          {reduce_scatter, 1024, 2048, 4096},
          {all_gather, 1024, 2048, 1024, f32},
          {reduce_scatter, 1024, 1024, 2048, f32},
          {all_gather, 2048, 4096, 1024},
          {reduce_scatter, 2048, 1024, 4096},
          {all_gather, 2048, 512, 512},
          {all_gather, 2048, 4096, 4096}};
}

std::string name_of(const Candidate& candidate) {
  if (candidate.choice.method == Method::none) return "none";
  const std::string method = candidate.choice.method == Method::pipeline ? "pipeline" : "ring";
  return method + " " + std::to_string(candidate.chunks) +
         (candidate.cut == Cut::tapered ? " tapered" : "");
}

std::vector<Candidate> other_candidates(Type type) {
  const Choice ring{type, Method::ring_exchange};
  std::vector<Candidate> all{{ring, 1}, {ring, 2}, {ring, 4}, {ring, 8}, {ring, 4, Cut::tapered}};
  if (type != Type::reduce_scatter) return all;
  const Choice pipeline{type, Method::pipeline};
  all.push_back({pipeline, 2});
  all.push_back({pipeline, 4});
  return all;
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Milliseconds of the slowest rank. Waits until the link is idle, so that its buffers are empty; a
// busy wait, since a core that slept would be slow at first.
double timed(comm::Communicator& world, const std::function<void()>& act) {
  constexpr double kRest = 2;
  for (const double end = now_ms() + kRest; now_ms() < end;) {
  }
  world.barrier();
  const double begin = now_ms();
  act();
  double took = now_ms() - begin;
  world.all_reduce(std::span(&took, 1), ReduceOp::max);
  return took;
}

// Overlapped collectives need a thread; all others are faster without one.
OverlappedGemm make_gemm(comm::Communicator& world, const Candidate& candidate, Problem problem) {
  problem.chunks = candidate.chunks;
  problem.cut = candidate.cut;
  const bool needs_thread = candidate.choice.method == Method::pipeline;
  OverlappedGemm gemm(candidate.choice, problem, world,
                      {.progress = needs_thread ? run::Progress::threads : run::Progress::polled});
  for (const char* const buffer : {"x", "w"}) {
    std::ranges::fill(gemm.buffer(buffer), std::byte{0x3c});  // 0.01 in f32 and bf16
  }
  gemm.prepare();
  return gemm;
}

// A candidate and its times.
struct Measurement {
  std::string name;
  OverlappedGemm gemm;
  std::vector<double> times;
};

// All in turn, each round beginning with another one, until the time is up.
void measure(comm::Communicator& world, std::vector<Measurement>& measurements, double seconds) {
  for (Measurement& each : measurements) timed(world, [&] { each.gemm.run(); });
  double spent = 0;
  for (int round = 0; round < kMaxRounds && (round < kMinRounds || spent < 1e3 * seconds);
       ++round) {
    for (std::size_t k = 0; k < measurements.size(); ++k) {
      Measurement& each = measurements[(k + static_cast<std::size_t>(round)) % measurements.size()];
      each.times.push_back(timed(world, [&] { each.gemm.run(); }));
      spent += each.times.back();
    }
  }
}

Json numbers(const std::vector<double>& all) {
  Json json = Json::array();
  for (const double each : all) json.push(each);
  return json;
}

Json measure_shape(comm::Communicator& world, const Shape& shape,
                   const overlap::Calibration& calibration, double seconds) {
  const Problem problem{.m = shape.rows,
                        .n = shape.columns,
                        .k = shape.depth,
                        .type = shape.element,
                        .ranks = world.size()};
  const overlap::Machine machine = overlap::machine_of(calibration, shape.type, problem);
  const overlap::Chosen chosen = overlap::choose(shape.type, problem, machine);
  const Candidate choice{chosen.choice, chosen.problem.chunks, chosen.problem.cut};
  std::vector<Measurement> measurements;
  const auto add = [&](const std::string& name, const Candidate& candidate) {
    measurements.push_back({name, make_gemm(world, candidate, problem), {}});
  };
  add("serial", {.choice = {.type = shape.type}});
  add("auto", choice);
  Json estimates =
      Json::object({{"serial", 1e3 * chosen.serial.value}, {"auto", 1e3 * chosen.time.value}});
  for (const Candidate& candidate : other_candidates(shape.type)) {
    if (candidate.chunks > 1 && shape.rows < std::int64_t{16} * candidate.chunks * world.size())
      continue;
    Problem cut = problem;
    cut.chunks = candidate.chunks;
    cut.cut = candidate.cut;
    estimates.set(name_of(candidate),
                  1e3 * overlap::estimate(candidate.choice, cut, machine).value);
    add(name_of(candidate), candidate);
  }
  measure(world, measurements, seconds);
  Json times = Json::object({});
  for (const Measurement& each : measurements) times.set(each.name, numbers(each.times));
  return Json::object({{"type", std::string(overlap::name(shape.type))},
                       {"rows", shape.rows},
                       {"columns", shape.columns},
                       {"depth", shape.depth},
                       {"element_type", std::string(shiplap::name(shape.element))},
                       {"chosen", name_of(choice)},
                       {"why", chosen.why},
                       {"estimates_ms", estimates},
                       {"times_ms", times}});
}

// Communication only of a ring of 4 chunks, which is limited by bandwidth: quantized and bf16,
// alternately.
Json quantized_communication(comm::Communicator& world, Type type) {
  constexpr int kRounds = 9;
  const overlap::QuantFormat format{.scaling = overlap::Scaling::blocks};
  Problem plain{.m = 1024, .n = 2048, .k = 2048, .ranks = world.size()};
  Problem quantized = plain;
  quantized.x = quantized.w = format;
  if (type == Type::reduce_scatter) quantized.sums = format;
  const Candidate ring{{type, Method::ring_exchange}, 4};
  OverlappedGemm plain_gemm = make_gemm(world, ring, plain);
  OverlappedGemm quantized_gemm = make_gemm(world, ring, quantized);
  std::array<std::vector<double>, 2> times;
  for (int round = -1; round < kRounds; ++round) {
    const double bf16 = timed(world, [&] { plain_gemm.run(run::GemmMode::comm_only); });
    const double fp8 = timed(world, [&] { quantized_gemm.run(run::GemmMode::comm_only); });
    if (round < 0) continue;
    times[0].push_back(bf16);
    times[1].push_back(fp8);
  }
  return Json::object({{"type", std::string(overlap::name(type))},
                       {"bf16_ms", numbers(times[0])},
                       {"mxfp8_ms", numbers(times[1])}});
}

Json measure_all(comm::Communicator& world, double seconds, std::size_t first, std::size_t last) {
  const overlap::Calibration calibration = run::calibrate(world);
  Json list = Json::array();
  const std::vector<Shape> all = shapes();
  for (std::size_t k = first; k < std::min(last, all.size()); ++k) {
    list.push(measure_shape(world, all[k], calibration, seconds));
  }
  Json quantized = Json::array();
  if (first == 0) {
    for (const Type type : {Type::all_gather, Type::reduce_scatter}) {
      quantized.push(quantized_communication(world, type));
    }
  }
  return Json::object({{"calibration", to_json(calibration)},
                       {"shapes", list},
                       {"quantized_communication", quantized}});
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_choice_worker SECONDS FIRST LAST\n");
    return 2;
  }
  const auto number = [&](int k) {
    return static_cast<std::size_t>(std::strtoull(argv[k], nullptr, 10));
  };
  shiplap::comm::run_on_mpi({}, [&](shiplap::comm::Communicator& world) {
    shiplap::pin_to_core(world.rank());
    const shiplap::Json result =
        shiplap::measure_all(world, std::strtod(argv[1], nullptr), number(2), number(3));
    if (world.rank() == 0) std::printf("%s\n", to_text(result).c_str());
  });
  return 0;
}
