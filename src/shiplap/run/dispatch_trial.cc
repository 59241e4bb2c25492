#include "shiplap/run/dispatch_trial.h"

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

class DispatchTrial {
 public:
  DispatchTrial(comm::Communicator& communicator, const dispatch::QkvDispatch& dispatch,
                const TrialOptions& options)
      : communicator_(communicator),
        dispatch_(dispatch),
        options_(options),
        dispatcher_(communicator),
        plan_(dispatcher_.plan(dispatch)) {
    if (options.steps >= 1 && options.q_row_bytes >= 1 && options.kv_row_bytes >= 2 &&
        options.kv_row_bytes % 2 == 0) {
      return;
    }
    throw InputError(Diagnostic{.code = "D400",
                                .what = "a trial has a step, and rows of at least 1 and 2 bytes",
                                .why = "gradients are bf16, so their rows have an even number"});
  }

  dispatch::Trial run() {
    const auto row = at(options_.q_row_bytes);
    std::vector<std::byte> q(plan_->q_forward.send_tokens() * row);
    fill(q, row);
    std::vector<std::byte> q_there(plan_->q_forward.receive_tokens() * row);
    std::vector<std::byte> q_back(q.size());
    time("Q there", dispatch_.q.forward, options_.q_row_bytes,
         [&] { dispatcher_.exchange(plan_->q_forward, q, q_there, options_.q_row_bytes); });
    time("Q back", dispatch_.q.reverse, options_.q_row_bytes,
         [&] { dispatcher_.exchange(plan_->q_reverse, q_there, q_back, options_.q_row_bytes); });
    compare(dispatch_.q.forward, q_there, row);
    for (std::size_t k = 0; k < q.size(); ++k) result_.wrong_bytes += q[k] == q_back[k] ? 0 : 1;
    keys();
    std::array<std::int64_t, 2> wrong{result_.wrong_bytes, result_.wrong_sums};
    communicator_.all_reduce(std::span<std::int64_t>(wrong));
    result_.wrong_bytes = wrong[0];
    result_.wrong_sums = wrong[1];
    return std::move(result_);
  }

 private:
  // A gradient tells on which rank and at which token it arose: small whole numbers, so that their
  // sums are exact in bf16 up to 32 copies.
  void keys() {
    const auto row = at(options_.kv_row_bytes);
    const std::size_t width = row / sizeof(Bf16);
    std::vector<std::byte> kv(plan_->kv_forward.send_tokens() * row);
    fill(kv, row);
    std::vector<std::byte> there(plan_->kv_forward.receive_tokens() * row);
    time("KV there", dispatch_.kv.forward, options_.kv_row_bytes,
         [&] { dispatcher_.exchange(plan_->kv_forward, kv, there, options_.kv_row_bytes); });
    compare(dispatch_.kv.forward, there, row);
    std::vector<Bf16> gradients(plan_->kv_reverse.send_tokens() * width);
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      gradients[k] = kernels::to_bf16(gradient(communicator_.rank(), k / width));
    }
    std::vector<Bf16> sums(plan_->kv_reverse.receive_tokens() * width);
    time("KV gradients back", dispatch_.kv.reverse, options_.kv_row_bytes, [&] {
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
          const bool right = sums[(row.begin + t) * width + k] == kernels::to_bf16(expected);
          result_.wrong_sums += right ? 0 : 1;
        }
      }
    }
  }

  static float gradient(int rank, std::size_t token) {
    return static_cast<float>((at(rank) * 3 + token) % 8);
  }

  // What a byte of a token at home is.
  static std::byte pattern(int rank, std::size_t token, std::size_t i) {
    return static_cast<std::byte>(((at(rank) * 131 + token) * 2654435761U >> 13) + i);
  }
  void fill(std::span<std::byte> home, std::size_t row) const {
    for (std::size_t k = 0; k < home.size(); ++k) {
      home[k] = pattern(communicator_.rank(), k / row, k % row);
    }
  }
  // What arrived, with what the table says should have.
  void compare(const dispatch::Metadata& table, std::span<const std::byte> there, std::size_t row) {
    for (int from = 0; from < table.world_size(); ++from) {
      for (std::uint32_t i = 0; i < table.num_seqs(from); ++i) {
        const dispatch::Metadata::Row one = table.row(from, i);
        for (const dispatch::Copy& copy : one.copies) {
          if (copy.rank == communicator_.rank()) compare(one, copy.offset * row, from, there, row);
        }
      }
    }
  }
  void compare(const dispatch::Metadata::Row& one, std::size_t begin, int from,
               std::span<const std::byte> there, std::size_t row) {
    for (std::size_t k = 0; k < one.length * row; ++k) {
      const bool right = there[begin + k] == pattern(from, one.begin + k / row, k % row);
      result_.wrong_bytes += right ? 0 : 1;
    }
  }

  template <class Act>
  void time(std::string name, const dispatch::Metadata& table, std::int64_t row_bytes,
            const Act& act) {
    act();  // once for the memory
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
                                 .least = {seconds.front()},
                                 .most = {seconds.back()}});
  }

  comm::Communicator& communicator_;
  const dispatch::QkvDispatch& dispatch_;
  const TrialOptions& options_;
  Dispatcher dispatcher_;
  std::shared_ptr<const DispatchPlan> plan_;
  dispatch::Trial result_;
};

}  // namespace

dispatch::Trial try_dispatch(comm::Communicator& communicator,
                             const dispatch::QkvDispatch& dispatch, const TrialOptions& options) {
  return DispatchTrial(communicator, dispatch, options).run();
}

}  // namespace shiplap::run
