// One rank of bench_overlap: a product with its communication hidden, beside its parts, in turn.
//
//   bench_overlap_worker OP ROWS COLUMNS DEPTH ROUNDS WAY...
//
// OP is ag or rs; sizes are those of the whole product, in bf16. A way is a number of chunks, with
// `t` behind it if they are tapered and `p` if progress is polled: 8tp. Each rank keeps to a core
// of its own, as ranks of a training run do. Rank 0 prints one JSON object.
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

#include "cores.h"
#include "shiplap/base/json.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/kernels/linear.h"
#include "shiplap/run/overlapped_product.h"

namespace shiplap {
namespace {

using overlap::Method;
using overlap::Type;
using run::OverlappedProduct;
using run::Work;

// A way to overlap.
struct Way {
  std::string name;
  int chunks = 1;
  overlap::Cut cut = overlap::Cut::even;
  run::Progress progress = run::Progress::threads;
};

struct Setting {
  Type type = Type::all_gather;
  overlap::Problem problem;
  int rounds = 9;
  std::vector<Way> ways;
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Of the slowest rank.
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

std::unique_ptr<OverlappedProduct> made(comm::Communicator& world, const Setting& setting,
                                        Method method, const Way& way = {}) {
  overlap::Problem problem = setting.problem;
  problem.chunks = way.chunks;
  problem.cut = way.cut;
  auto product =
      std::make_unique<OverlappedProduct>(overlap::Choice{setting.type, method}, problem, world,
                                          run::ExecuteOptions{.progress = way.progress});
  fill(product->buffer("x"));
  fill(product->buffer("w"));
  product->prepare();
  return product;
}

// All rows of X on this rank, as one product or in chunks.
class Alone {
 public:
  Alone(const OverlappedProduct& product, const Setting& setting)
      : x_(product.buffer("x")),
        rows_(setting.problem.rows),
        depth_(std::ssize(x_) / rows_ / 2),
        columns_(std::ssize(product.buffer("w")) / 2 / depth_),
        y_(static_cast<std::size_t>(rows_ * columns_)),
        linear_({.columns = columns_, .depth = depth_, .type = DType::bf16, .typical_rows = 256}) {
    linear_.prepare(
        {.data = product.buffer("w").data(), .type = DType::bf16, .is_transposed = true});
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

// The speed of a shared machine can change threefold from one second to the next. So the product
// alone is timed before and after everything else, and the communication before every overlap: what
// stands between two that differ is void.
Json measure(comm::Communicator& world, const Setting& setting) {
  const auto serial = made(world, setting, Method::none);
  Alone alone(*serial, setting);
  std::vector<std::unique_ptr<OverlappedProduct>> overlapped;
  for (const Way& way : setting.ways) {
    overlapped.push_back(made(world, setting, Method::ring_exchange, way));
  }
  const auto communication = [&] {
    return timed(world, [&] { overlapped.front()->run(Work::communication); });
  };
  Json rounds = Json::array();
  double before = 0;
  const auto note = [&](int round, const std::string& what, double took) {
    const double after = timed(world, [&] { alone.multiply(1); });
    if (round >= 0) {
      rounds.push(Json::object(
          {{"round", round}, {"what", what}, {"ms", took}, {"before", before}, {"after", after}}));
    }
    before = after;
  };
  for (int round = -1; round < setting.rounds; ++round) {
    before = timed(world, [&] { alone.multiply(1); });
    note(round, "C", communication());
    note(round, "serial", timed(world, [&] { serial->run(); }));
    for (std::size_t k = 0; k < overlapped.size(); ++k) {
      const Way& way = setting.ways[k];
      const double moved = communication();
      note(round, "C", moved);
      note(round, "T_" + way.name, timed(world, [&] { overlapped[k]->run(); }));
      if (way.name.find_first_not_of("0123456789") != std::string::npos) continue;
      // The same chunks alone, after an idle wait as long as the communication: a core that slept
      // is slow at first.
      world.barrier();
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(moved));
      note(round, "chunked_" + way.name,
           timed(world, [&] { alone.multiply(std::int64_t{world.size()} * way.chunks); }));
    }
  }
  return Json::object({{"columns", setting.problem.columns}, {"rounds", rounds}});
}

Setting setting_of(int argc, char** argv) {
  const auto number = [&](int k) { return std::strtoll(argv[k], nullptr, 10); };
  Setting setting;
  setting.type = std::string_view(argv[1]) == "rs" ? Type::reduce_scatter : Type::all_gather;
  setting.problem = {.rows = number(2), .columns = number(3), .depth = number(4)};
  setting.rounds = static_cast<int>(number(5));
  for (int k = 6; k < argc; ++k) {
    const std::string_view word = argv[k];
    const auto has = [&](char letter) { return word.find(letter) != std::string_view::npos; };
    setting.ways.push_back({.name = std::string(word),
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
    std::fprintf(stderr, "usage: bench_overlap_worker OP ROWS COLUMNS DEPTH ROUNDS WAY...\n");
    return 2;
  }
  shiplap::comm::run_on_mpi({}, [&](shiplap::comm::Communicator& world) {
    shiplap::Setting setting = shiplap::setting_of(argc, argv);
    setting.problem.ranks = world.size();
    shiplap::keep_to_core(world.rank());
    const shiplap::Json result = shiplap::measure(world, setting);
    if (world.rank() == 0) std::printf("%s\n", to_text(result).c_str());
  });
  return 0;
}
