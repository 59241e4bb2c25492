#include "shiplap/run/dispatch_trial.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "shiplap/dispatch/traffic.h"
#include "shiplap/run/dispatcher.h"

namespace shiplap::run {
namespace {

using kernels::Bf16;

template <class Integer>
std::size_t at(Integer value) {
  return static_cast<std::size_t>(value);
}

Bytes between_ranks(const dispatch::Metadata& metadata, std::int64_t row_bytes) {
  const auto flows = dispatch::flows(metadata);
  return dispatch::bytes_at(dispatch::summarize(flows, 1).between_ranks, row_bytes);
}

class Trial {
 public:
  Trial(comm::Communicator& communicator, const dispatch::QkvDispatch& dispatch,
        const TrialOptions& options)
      : communicator_(communicator),
        dispatch_(dispatch),
        options_(options),
        dispatcher_(communicator),
        plan_(dispatcher_.plan(dispatch)) {}

  TrialResult run() {
    const auto row = at(options_.q_row_bytes);
    std::vector<std::byte> q(plan_->q_forward.send_tokens() * row);
    for (std::size_t k = 0; k < q.size(); ++k) q[k] = pattern(k);
    std::vector<std::byte> q_there(plan_->q_forward.receive_tokens() * row);
    std::vector<std::byte> q_back(q.size());
    time("Q there", dispatch_.q.forward, options_.q_row_bytes,
         [&] { dispatcher_.exchange(plan_->q_forward, q, q_there, options_.q_row_bytes); });
    time("Q back", dispatch_.q.reverse, options_.q_row_bytes,
         [&] { dispatcher_.exchange(plan_->q_reverse, q_there, q_back, options_.q_row_bytes); });
    for (std::size_t k = 0; k < q.size(); ++k) result_.wrong_bytes += q[k] == q_back[k] ? 0 : 1;
    keys();
    std::array<std::int64_t, 2> wrong{result_.wrong_bytes, result_.wrong_sums};
    communicator_.all_reduce(std::span<std::int64_t>(wrong));
    result_.wrong_bytes = wrong[0];
    result_.wrong_sums = wrong[1];
    return std::move(result_);
  }

 private:
  // Every gradient is 1, so each key gets the number of its copies, which bf16 holds exactly up to
  // 256 of them.
  void keys() {
    const auto row = at(options_.kv_row_bytes);
    const std::size_t width = row / sizeof(Bf16);
    std::vector<std::byte> kv(plan_->kv_forward.send_tokens() * row, std::byte{1});
    std::vector<std::byte> there(plan_->kv_forward.receive_tokens() * row);
    time("KV there", dispatch_.kv.forward, options_.kv_row_bytes,
         [&] { dispatcher_.exchange(plan_->kv_forward, kv, there, options_.kv_row_bytes); });
    const std::vector<Bf16> ones(plan_->kv_reverse.send_tokens() * width, kernels::to_bf16(1));
    std::vector<Bf16> sums(plan_->kv_reverse.receive_tokens() * width);
    time("KV gradients back", dispatch_.kv.reverse, options_.kv_row_bytes, [&] {
      dispatcher_.exchange_sum<Bf16>(plan_->kv_reverse, ones, sums,
                                     static_cast<std::int64_t>(width));
    });
    const int rank = communicator_.rank();
    for (std::uint32_t i = 0; i < dispatch_.kv.forward.num_seqs(rank); ++i) {
      const dispatch::Metadata::Row one = dispatch_.kv.forward.row(rank, i);
      const auto copies = std::ranges::count_if(
          one.copies, [](const dispatch::Copy& copy) { return copy.rank >= 0; });
      const Bf16 expected = kernels::to_bf16(static_cast<float>(copies));
      for (std::size_t k = one.begin * width; k < (one.begin + one.length) * width; ++k) {
        result_.wrong_sums += sums[k] == expected ? 0 : 1;
      }
    }
  }

  [[nodiscard]] std::byte pattern(std::size_t k) const {
    return static_cast<std::byte>((k * 2654435761U >> 13) + at(communicator_.rank()));
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
    communicator_.all_reduce(std::span(seconds), comm::Reduction::max);
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
  TrialResult result_;
};

}  // namespace

TrialResult try_dispatch(comm::Communicator& communicator, const dispatch::QkvDispatch& dispatch,
                         const TrialOptions& options) {
  return Trial(communicator, dispatch, options).run();
}

}  // namespace shiplap::run
