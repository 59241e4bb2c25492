// One rank of bench_overlap --choice: what choose() chooses for many shapes, beside other ways.
//
//   bench_choice_worker SECONDS FIRST LAST
//
// Calibrates, then tries the shapes from FIRST up to LAST, each for about so many seconds, in
// rounds of all ways. Each rank keeps to a core of its own. Rank 0 prints one JSON object, with all
// times in milliseconds.
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

#include "cores.h"
#include "shiplap/base/json.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/run/calibrate.h"
#include "shiplap/run/overlapped_product.h"

namespace shiplap {
namespace {

using overlap::Candidate;
using overlap::Choice;
using overlap::Cut;
using overlap::Method;
using overlap::Problem;
using overlap::Type;
using run::OverlappedProduct;

constexpr int kFewestRounds = 7;
constexpr int kMostRounds = 61;

struct Shape {
  Type type = Type::all_gather;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
  DType element = DType::bf16;
};

// From what is over before anything could be hidden to what is worth a lot.
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

std::string name_of(const Candidate& way) {
  if (way.choice.method == Method::none) return "none";
  const std::string method = way.choice.method == Method::pipeline ? "pipeline" : "ring";
  return method + " " + std::to_string(way.chunks) + (way.cut == Cut::tapered ? " tapered" : "");
}

std::vector<Candidate> others(Type type) {
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

// Of the slowest rank, after the link was idle for a while: it always takes the same bytes at once.
// A core that slept would be slow at first.
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

// Collectives beside a product need a thread; all else is faster without.
OverlappedProduct made(comm::Communicator& world, const Candidate& way, Problem problem) {
  problem.chunks = way.chunks;
  problem.cut = way.cut;
  const bool needs_thread = way.choice.method == Method::pipeline;
  OverlappedProduct product(
      way.choice, problem, world,
      {.progress = needs_thread ? run::Progress::threads : run::Progress::polled});
  for (const char* const buffer : {"x", "w"}) {
    std::ranges::fill(product.buffer(buffer), std::byte{0x3c});  // 0.01 in f32 and bf16
  }
  product.prepare();
  return product;
}

// One of the ways to be tried, with its times.
struct Trial {
  std::string name;
  OverlappedProduct product;
  std::vector<double> times;
};

// All in turn, each round beginning with another, until the time is up.
void measure(comm::Communicator& world, std::vector<Trial>& trials, double seconds) {
  for (Trial& each : trials) timed(world, [&] { each.product.run(); });
  double spent = 0;
  for (int round = 0; round < kMostRounds && (round < kFewestRounds || spent < 1e3 * seconds);
       ++round) {
    for (std::size_t k = 0; k < trials.size(); ++k) {
      Trial& each = trials[(k + static_cast<std::size_t>(round)) % trials.size()];
      each.times.push_back(timed(world, [&] { each.product.run(); }));
      spent += each.times.back();
    }
  }
}

Json numbers(const std::vector<double>& all) {
  Json json = Json::array();
  for (const double each : all) json.push(each);
  return json;
}

Json tried(comm::Communicator& world, const Shape& shape, const overlap::Calibration& here,
           double seconds) {
  const Problem problem{.rows = shape.rows,
                        .columns = shape.columns,
                        .depth = shape.depth,
                        .type = shape.element,
                        .ranks = world.size()};
  const overlap::Machine machine = overlap::machine_of(here, shape.type, problem);
  const overlap::Chosen chosen = overlap::choose(shape.type, problem, machine);
  const Candidate choice{chosen.choice, chosen.problem.chunks, chosen.problem.cut};
  std::vector<Trial> trials;
  const auto add = [&](const std::string& name, const Candidate& way) {
    trials.push_back({name, made(world, way, problem), {}});
  };
  add("serial", {.choice = {.type = shape.type}});
  add("auto", choice);
  Json estimates =
      Json::object({{"serial", 1e3 * chosen.serial.value}, {"auto", 1e3 * chosen.time.value}});
  for (const Candidate& way : others(shape.type)) {
    if (way.chunks > 1 && shape.rows < std::int64_t{16} * way.chunks * world.size()) continue;
    Problem cut = problem;
    cut.chunks = way.chunks;
    cut.cut = way.cut;
    estimates.set(name_of(way), 1e3 * overlap::estimate(way.choice, cut, machine).value);
    add(name_of(way), way);
  }
  measure(world, trials, seconds);
  Json times = Json::object({});
  for (const Trial& each : trials) times.set(each.name, numbers(each.times));
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

// The communication of a ring of 4 chunks alone, where bytes are nearly all that counts: of codes
// and of bf16, in turn.
Json coded_communication(comm::Communicator& world, Type type) {
  constexpr int kRounds = 9;
  const overlap::Form codes{.scaling = overlap::Scaling::blocks};
  Problem plain{.rows = 1024, .columns = 2048, .depth = 2048, .ranks = world.size()};
  Problem coded = plain;
  coded.x = coded.w = codes;
  if (type == Type::reduce_scatter) coded.sums = codes;
  const Candidate ring{{type, Method::ring_exchange}, 4};
  OverlappedProduct of_plain = made(world, ring, plain);
  OverlappedProduct of_coded = made(world, ring, coded);
  std::array<std::vector<double>, 2> times;
  for (int round = -1; round < kRounds; ++round) {
    const double bf16 = timed(world, [&] { of_plain.run(run::Work::communication); });
    const double fp8 = timed(world, [&] { of_coded.run(run::Work::communication); });
    if (round < 0) continue;
    times[0].push_back(bf16);
    times[1].push_back(fp8);
  }
  return Json::object({{"type", std::string(overlap::name(type))},
                       {"bf16_ms", numbers(times[0])},
                       {"mxfp8_ms", numbers(times[1])}});
}

Json all_of(comm::Communicator& world, double seconds, std::size_t first, std::size_t last) {
  const overlap::Calibration here = run::calibrate(world);
  Json list = Json::array();
  const std::vector<Shape> all = shapes();
  for (std::size_t k = first; k < std::min(last, all.size()); ++k) {
    list.push(tried(world, all[k], here, seconds));
  }
  Json coded = Json::array();
  if (first == 0) {
    for (const Type type : {Type::all_gather, Type::reduce_scatter}) {
      coded.push(coded_communication(world, type));
    }
  }
  return Json::object(
      {{"calibration", to_json(here)}, {"shapes", list}, {"coded_communication", coded}});
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
    shiplap::keep_to_core(world.rank());
    const shiplap::Json result =
        shiplap::all_of(world, std::strtod(argv[1], nullptr), number(2), number(3));
    if (world.rank() == 0) std::printf("%s\n", to_text(result).c_str());
  });
  return 0;
}
