// One rank of bench_overlap: an overlapped GEMM, and its GEMM and communication alone, alternately.
//
//   bench_overlap_worker OP ROWS COLUMNS DEPTH ROUNDS CONFIG...
//
// OP is ag or rs; ROWS, COLUMNS and DEPTH are M, N and K of the global GEMM, in bf16. CONFIG is a
// number of chunks, followed by `t` if they are tapered and `p` if progress is polled: 8tp. Each
// rank is pinned to a core. Rank 0 prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "pin_to_core.h"
#include "shiplap/base/json.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/run/overlapped_gemm.h"

namespace shiplap {
namespace {

using overlap::Method;
using overlap::Type;
using run::GemmMode;
using run::OverlappedGemm;

struct OverlapConfig {
  std::string name;
  int chunks = 1;
  overlap::Cut cut = overlap::Cut::even;
  run::Progress progress = run::Progress::threads;
};

struct Setting {
  Type type = Type::all_gather;
  overlap::Problem problem;
  int rounds = 9;
  std::vector<OverlapConfig> configs;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Milliseconds of the slowest rank.
double timed(comm::Communicator& world, const std::function<void()>& act) {
  world.barrier();
  const double begin = now_ms();
  act();
  double took = now_ms() - begin;
  world.all_reduce(std::span(&took, 1), ReduceOp::max);
  return took;
}

void fill(std::span<std::byte> bytes) {
  auto* const numbers = reinterpret_cast<kernels::Bf16*>(bytes.data());
  for (std::size_t k = 0; k < bytes.size() / 2; ++k) {
    numbers[k] = kernels::to_bf16(static_cast<float>(k * 2654435761U % 1000) * 1e-3F - 0.5F);
  }
}

std::unique_ptr<OverlappedGemm> make_gemm(comm::Communicator& world, const Setting& setting,
                                          Method method, const OverlapConfig& config = {}) {
  overlap::Problem problem = setting.problem;
  problem.chunks = config.chunks;
  problem.cut = config.cut;
  auto gemm =
      std::make_unique<OverlappedGemm>(overlap::Choice{setting.type, method}, problem, world,
                                       run::ExecuteOptions{.progress = config.progress});
  fill(gemm->buffer("x"));
  fill(gemm->buffer("w"));
  gemm->prepare();
  return gemm;
}

// The GEMM of all rows of X on this rank, without communication, whole or in chunks.
class GemmOnly {
 public:
  GemmOnly(const OverlappedGemm& gemm, const Setting& setting)
      : x_(gemm.buffer("x")),
        rows_(setting.problem.m),
        depth_(std::ssize(x_) / rows_ / 2),
        columns_(std::ssize(gemm.buffer("w")) / 2 / depth_),
        y_(static_cast<std::size_t>(rows_ * columns_)),
        linear_({.n = columns_, .k = depth_, .type = DType::bf16, .typical_rows = 256}) {
    linear_.prepare({.data = gemm.buffer("w").data(), .type = DType::bf16, .is_transposed = true});
  }
  void multiply(std::int64_t pieces) {
    for (std::int64_t k = 0; k < pieces; ++k) {
      const std::int64_t begin = k * rows_ / pieces;
      const std::int64_t end = (k + 1) * rows_ / pieces;
      linear_.multiply(
          {.data = x_.data() + begin * depth_ * 2, .type = DType::bf16, .rows = end - begin},
          {.data = y_.data() + begin * columns_, .type = DType::bf16});
    }
  }

 private:
  std::span<std::byte> x_;
  std::int64_t rows_;
  std::int64_t depth_;
  std::int64_t columns_;
  std::vector<kernels::Bf16> y_;
  kernels::LinearKernel linear_;
};

// The speed of a shared host can change threefold within a second. So the GEMM alone is timed
// before and after every measurement, and the communication before every overlap: a measurement
// between two that differ is invalid.
Json measure(comm::Communicator& world, const Setting& setting) {
  const auto serial = make_gemm(world, setting, Method::none);
  GemmOnly gemm_only(*serial, setting);
  std::vector<std::unique_ptr<OverlappedGemm>> overlapped;
  for (const OverlapConfig& config : setting.configs) {
    overlapped.push_back(make_gemm(world, setting, Method::ring_exchange, config));
  }
  const auto communication = [&] {
    return timed(world, [&] { overlapped.front()->run(GemmMode::comm_only); });
  };
  Json rounds = Json::array();
  double before = 0;
  const auto note = [&](int round, const std::string& what, double took) {
    const double after = timed(world, [&] { gemm_only.multiply(1); });
    if (round >= 0) {
      rounds.push(Json::object(
          {{"round", round}, {"what", what}, {"ms", took}, {"before", before}, {"after", after}}));
    }
    before = after;
  };
  for (int round = -1; round < setting.rounds; ++round) {
    before = timed(world, [&] { gemm_only.multiply(1); });
    note(round, "C", communication());
    note(round, "serial", timed(world, [&] { serial->run(); }));
    for (std::size_t k = 0; k < overlapped.size(); ++k) {
      const OverlapConfig& config = setting.configs[k];
      const double moved = communication();
      note(round, "C", moved);
      note(round, "T_" + config.name, timed(world, [&] { overlapped[k]->run(); }));
      if (config.name.find_first_not_of("0123456789") != std::string::npos) continue;
      // The same chunks alone, after an idle wait as long as the communication: a core that slept
      // is slow at first.
      world.barrier();
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(moved));
      note(round, "chunked_" + config.name,
           timed(world, [&] { gemm_only.multiply(std::int64_t{world.size()} * config.chunks); }));
    }
  }
  return Json::object({{"columns", setting.problem.n}, {"rounds", rounds}});
}

Setting parse_setting(int argc, char** argv) {
  const auto number = [&](int k) { return std::strtoll(argv[k], nullptr, 10); };
  Setting setting;
  setting.type = std::string_view(argv[1]) == "rs" ? Type::reduce_scatter : Type::all_gather;
  setting.problem = {.m = number(2), .n = number(3), .k = number(4)};
  setting.rounds = static_cast<int>(number(5));
  for (int k = 6; k < argc; ++k) {
    const std::string_view arg = argv[k];
    const auto has = [&](char letter) { return arg.find(letter) != std::string_view::npos; };
    setting.configs.push_back(
        {.name = std::string(arg),
         .chunks = static_cast<int>(number(k)),
         .cut = has('t') ? overlap::Cut::tapered : overlap::Cut::even,
         .progress = has('p') ? run::Progress::polled : run::Progress::threads});
  }
  return setting;
}

}  // namespace
}  // namespace shiplap

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: bench_overlap_worker OP ROWS COLUMNS DEPTH ROUNDS CONFIG...\n");
    return 2;
  }
  shiplap::comm::run_on_mpi({}, [&](shiplap::comm::Communicator& world) {
    shiplap::Setting setting = shiplap::parse_setting(argc, argv);
    setting.problem.ranks = world.size();
    shiplap::pin_to_core(world.rank());
    const shiplap::Json result = shiplap::measure(world, setting);
    if (world.rank() == 0) std::printf("%s\n", to_text(result).c_str());
  });
  return 0;
}
