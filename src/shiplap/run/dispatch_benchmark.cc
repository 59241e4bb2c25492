#include "shiplap/run/dispatch_benchmark.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/dispatch/traffic.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::run {
namespace {

using kernels::Bf16;

Bytes between_ranks(const dispatch::Metadata& metadata, std::int64_t row_bytes) {
  const auto flows = dispatch::flows(metadata);
  return dispatch::bytes_at(dispatch::summarize(flows, 1).between_ranks, row_bytes);
}

class DispatchBenchmark {
 public:
  DispatchBenchmark(comm::Communicator& communicator, const dispatch::QkvDispatch& dispatch,
                    const DispatchBenchmarkOptions& options)
      : communicator_(communicator),
        dispatch_(dispatch),
        options_(options),
        dispatcher_(communicator),
        plan_(dispatcher_.plan(dispatch)) {
    if (options.steps >= 1 && options.q_row_bytes >= 1 && options.kv_row_bytes >= 2 &&
        options.kv_row_bytes % 2 == 0) {
      return;
    }
    throw InputError(Diagnostic{
        .code = "D400",
        .what = "invalid benchmark options: at least 1 step, Q rows of 1 byte and KV rows of 2",
        .why = "gradients are bf16, so the size of KV rows must be even"});
  }

  dispatch::BenchmarkResult run() {
    const auto row = at(options_.q_row_bytes);
    std::vector<std::byte> q(plan_->q_forward.send_tokens() * row);
    fill(q, row);
    std::vector<std::byte> q_received(plan_->q_forward.receive_tokens() * row);
    std::vector<std::byte> q_returned(q.size());
    time("Q forward", dispatch_.q.forward, options_.q_row_bytes,
         [&] { dispatcher_.exchange(plan_->q_forward, q, q_received, options_.q_row_bytes); });
    time("Q reverse", dispatch_.q.reverse, options_.q_row_bytes, [&] {
      dispatcher_.exchange(plan_->q_reverse, q_received, q_returned, options_.q_row_bytes);
    });
    compare(dispatch_.q.forward, q_received, row);
    for (std::size_t k = 0; k < q.size(); ++k) result_.wrong_bytes += q[k] == q_returned[k] ? 0 : 1;
    run_kv();
    std::array<std::int64_t, 2> wrong{result_.wrong_bytes, result_.wrong_sums};
    communicator_.all_reduce(std::span<std::int64_t>(wrong));
    result_.wrong_bytes = wrong[0];
    result_.wrong_sums = wrong[1];
    return std::move(result_);
  }

 private:
  // Gradients encode rank and token as small integers, so that their sums are exact in bf16 up to
  // 32 copies.
  void run_kv() {
    const auto row = at(options_.kv_row_bytes);
    const std::size_t width = row / sizeof(Bf16);
    std::vector<std::byte> kv(plan_->kv_forward.send_tokens() * row);
    fill(kv, row);
    std::vector<std::byte> received(plan_->kv_forward.receive_tokens() * row);
    time("KV forward", dispatch_.kv.forward, options_.kv_row_bytes,
         [&] { dispatcher_.exchange(plan_->kv_forward, kv, received, options_.kv_row_bytes); });
    compare(dispatch_.kv.forward, received, row);
    std::vector<Bf16> gradients(plan_->kv_reverse.send_tokens() * width);
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      gradients[k] = kernels::to_bf16(gradient(communicator_.rank(), k / width));
    }
    std::vector<Bf16> sums(plan_->kv_reverse.receive_tokens() * width);
    time("KV grad reverse", dispatch_.kv.reverse, options_.kv_row_bytes, [&] {
      dispatcher_.exchange_sum<Bf16>(plan_->kv_reverse, gradients, sums,
                                     static_cast<std::int64_t>(width));
    });
    compare_sums(sums, width);
  }

  void compare_sums(std::span<const Bf16> sums, std::size_t width) {
    const int rank = communicator_.rank();
    for (std::uint32_t i = 0; i < dispatch_.kv.forward.num_seqs(rank); ++i) {
      const dispatch::Metadata::Row row = dispatch_.kv.forward.row(rank, i);
      for (std::size_t t = 0; t < row.length; ++t) {
        float expected = 0;
        for (const dispatch::Copy& copy : row.copies) {
          if (copy.rank >= 0) expected += gradient(copy.rank, copy.offset + t);
        }
        for (std::size_t k = 0; k < width; ++k) {
          const bool is_equal = sums[(row.begin + t) * width + k] == kernels::to_bf16(expected);
          result_.wrong_sums += is_equal ? 0 : 1;
        }
      }
    }
  }

  static float gradient(int rank, std::size_t token) {
    return static_cast<float>((at(rank) * 3 + token) % 8);
  }

  // The expected byte of a token.
  static std::byte pattern(int rank, std::size_t token, std::size_t i) {
    return static_cast<std::byte>(((at(rank) * 131 + token) * 2654435761U >> 13) + i);
  }
  void fill(std::span<std::byte> home, std::size_t row) const {
    for (std::size_t k = 0; k < home.size(); ++k) {
      home[k] = pattern(communicator_.rank(), k / row, k % row);
    }
  }
  // Compares the received tokens with the table.
  void compare(const dispatch::Metadata& table, std::span<const std::byte> received,
               std::size_t row) {
    for (int from = 0; from < table.world_size(); ++from) {
      for (std::uint32_t i = 0; i < table.num_seqs(from); ++i) {
        const dispatch::Metadata::Row one = table.row(from, i);
        for (const dispatch::Copy& copy : one.copies) {
          if (copy.rank == communicator_.rank())
            compare(one, copy.offset * row, from, received, row);
        }
      }
    }
  }
  void compare(const dispatch::Metadata::Row& one, std::size_t begin, int from,
               std::span<const std::byte> received, std::size_t row) {
    for (std::size_t k = 0; k < one.length * row; ++k) {
      const bool is_equal = received[begin + k] == pattern(from, one.begin + k / row, k % row);
      result_.wrong_bytes += is_equal ? 0 : 1;
    }
  }

  template <class Act>
  void time(std::string name, const dispatch::Metadata& table, std::int64_t row_bytes,
            const Act& act) {
    act();  // warm-up
    std::vector<double> seconds;
    for (int step = 0; step < options_.steps; ++step) {
      communicator_.barrier();
      const auto begin = std::chrono::steady_clock::now();
      act();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      seconds.push_back(taken.count());
    }
    communicator_.all_reduce(std::span(seconds), ReduceOp::max);
    std::ranges::sort(seconds);
    result_.exchanges.push_back({.name = std::move(name),
                                 .bytes = between_ranks(table, row_bytes),
                                 .median = {seconds[seconds.size() / 2]},
                                 .min = {seconds.front()},
                                 .max = {seconds.back()}});
  }

  comm::Communicator& communicator_;
  const dispatch::QkvDispatch& dispatch_;
  const DispatchBenchmarkOptions& options_;
  Dispatcher dispatcher_;
  std::shared_ptr<const DispatchPlan> plan_;
  dispatch::BenchmarkResult result_;
};

}  // namespace

dispatch::BenchmarkResult benchmark_dispatch(comm::Communicator& communicator,
                                             const dispatch::QkvDispatch& dispatch,
                                             const DispatchBenchmarkOptions& options) {
  return DispatchBenchmark(communicator, dispatch, options).run();
}

}  // namespace shiplap::run
