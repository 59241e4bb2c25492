// Executes a dispatch: packs small pieces, sends large ones without copying, and sums the gradients
// of copies.
//
//   Dispatcher dispatcher(world);
//   const auto plan = dispatcher.plan(dispatch);        // all ranks together; reused every step
//   dispatcher.exchange(plan->q_forward, q, q_remote, row_bytes);
//   dispatcher.exchange(plan->kv_forward, kv, kv_remote, row_bytes);
//   ...
//   dispatcher.exchange_sum<float>(plan->kv_reverse, d_kv_remote, d_kv, width);
//
// After the first step, or reserve(), it does not allocate unless a step needs more than any
// before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "shiplap/comm/communicator.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/kernels/bf16.h"
#include "shiplap/run/exchange_plan.h"

namespace shiplap::run {

// A rank is out of memory (D421). Other ranks get comm::RankFailed.
class OutOfMemory : public comm::Failure {
 public:
  using comm::Failure::Failure;
};

// The ranks hold different tables (D420). Nothing was sent; the communicator stays usable.
class MetadataMismatch : public std::runtime_error {
 public:
  explicit MetadataMismatch(Diagnostic diagnostic);
  [[nodiscard]] const Diagnostic& diagnostic() const { return diagnostic_; }

 private:
  Diagnostic diagnostic_;
};

// The exchanges of one rank. Immutable.
struct DispatchPlan {
  ExchangePlan q_forward;
  ExchangePlan q_reverse;
  ExchangePlan kv_forward;
  ExchangePlan kv_reverse;
  dispatch::AttentionLayout attention;
};

class Dispatcher {
 public:
  enum class Stage : std::uint8_t { pack, exchange, unpack };
  struct Options {
    std::pmr::memory_resource* memory = std::pmr::get_default_resource();
    // Pieces shorter than this are packed; by default the transport decides. REQUIRES: equal on all
    // ranks.
    std::optional<std::size_t> pack_below;
    // Whether plan() validates the tables first, on every rank. Validation costs several times as
    // much as computing them (docs/performance.md); disable it if they were validated elsewhere.
    // Then a rank that finds an error while planning aborts, and the other ranks get RankFailed.
    bool validates = true;
    // Called when a stage begins, for measurement and fault injection.
    std::function<void(Stage)> on_stage;
  };
  // REQUIRES: the communicator outlives this.
  explicit Dispatcher(comm::Communicator& communicator) : Dispatcher(communicator, Options()) {}
  Dispatcher(comm::Communicator& communicator, Options options);

  // Collective. Compares the hashes of the tables, field by field. Throws MetadataMismatch on all
  // ranks if any differs, InputError on all ranks if dispatch::validate finds violations. The
  // communicator stays usable.
  [[nodiscard]] std::shared_ptr<const DispatchPlan> plan(const dispatch::QkvDispatch& dispatch);

  void reserve(const WorkspaceSize& size);

  // Collective, each rank with its plan of the same table. REQUIRES: `in` and `out` do not overlap
  // and have plan.send_tokens() and plan.receive_tokens() rows. Tokens in `out` that receive
  // nothing are unchanged. Throws InputError D400, D412 (a table that sums), comm::Failure,
  // OutOfMemory.
  void exchange(const ExchangePlan& plan, std::span<const std::byte> in, std::span<std::byte> out,
                std::int64_t row_bytes);

  // The same for ArrivalMode::summed: rows of `width` elements, accumulated in float, ordered by
  // rank, then row, so results are bitwise reproducible. Tokens that receive nothing become zero. T
  // is float or Bf16, rounded once at the end.
  template <class T>
  void exchange_sum(const ExchangePlan& plan, std::span<const T> in, std::span<T> out,
                    std::int64_t width);

 private:
  template <class T>
  using Vector = std::pmr::vector<T>;
  // A cache line, aligned for any element type.
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  class ScratchBuffer {
   public:
    explicit ScratchBuffer(std::pmr::memory_resource* memory) : lines_(memory) {}
    void grow_to(Bytes bytes) {
      const auto lines = (static_cast<std::size_t>(bytes.count) + sizeof(Line) - 1) / sizeof(Line);
      if (lines_.size() < lines) lines_.resize(lines);
    }
    [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

   private:
    Vector<Line> lines_;
  };
  // The send and receive parts of one exchange.
  struct TransferList {
    explicit TransferList(std::pmr::memory_resource* memory)
        : first_to(memory), first_from(memory), to(memory), from(memory) {}
    Vector<std::size_t> first_to;
    Vector<std::size_t> first_from;
    Vector<std::span<const std::byte>> to;
    Vector<std::span<std::byte>> from;
  };

  void check(const ExchangePlan& plan, std::size_t in_bytes, std::size_t out_bytes,
             std::int64_t row_bytes) const;
  void reserve_for(const ExchangePlan& plan, std::int64_t row_bytes);
  void begin(Stage stage) const {
    if (options_.on_stage) options_.on_stage(stage);
  }
  // 0 for the local rank: local copies are never packed.
  [[nodiscard]] std::size_t pack_below(int peer) const;
  // The buffers of one exchange. Packed pieces arrive in received_, from `received_from` on.
  struct Move {
    std::span<const std::byte> in;
    std::span<std::byte> out;
    std::int64_t row_bytes = 0;
    std::size_t received_from = 0;
  };
  void move(const ExchangePlan& plan, const Move& move);
  void pack_for(int peer, const ExchangePlan& plan, const Move& move);
  void expect_from(int peer, const ExchangePlan& plan, const Move& move);
  void unpack(const ExchangePlan& plan, const Move& move);
  [[noreturn]] void throw_out_of_memory(Bytes needed);

  comm::Communicator& communicator_;
  Options options_;
  TransferList transfers_;
  ScratchBuffer packed_;    // small pieces to send
  ScratchBuffer received_;  // received tokens to sum, and packed pieces
  std::size_t packed_used_ = 0;
  std::size_t received_used_ = 0;
};

}  // namespace shiplap::run
