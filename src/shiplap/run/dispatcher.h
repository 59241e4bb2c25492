// Moves tokens between ranks as a dispatch says: packs small pieces, sends large ones from where
// they lie, and sums the gradients of copies.
//
//   Dispatcher dispatcher(world);
//   const auto plan = dispatcher.plan(dispatch);        // all ranks together; reused every step
//   dispatcher.exchange(plan->q_forward, q, q_there, row_bytes);
//   dispatcher.exchange(plan->kv_forward, kv, kv_there, row_bytes);
//   ...
//   dispatcher.exchange_sum<float>(plan->kv_reverse, d_kv_there, d_kv, width);
//
// After the first step, or reserve(), it allocates nothing, unless a step needs more than any
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

// A rank could not get the memory it needs (D421). The others hear of it as comm::RankFailed.
class OutOfMemory : public comm::Failure {
 public:
  using comm::Failure::Failure;
};

// The ranks do not hold the same tables (D420). Nothing was sent, and nothing is dead.
class MetadataDiffers : public std::runtime_error {
 public:
  explicit MetadataDiffers(Diagnostic diagnostic);
  [[nodiscard]] const Diagnostic& diagnostic() const { return diagnostic_; }

 private:
  Diagnostic diagnostic_;
};

// One rank's part of a dispatch. Immutable.
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
    // Pieces shorter than this are packed; without it the transport decides. The same on all ranks.
    std::optional<std::size_t> pack_below;
    // Whether plan() proves the tables sound first, on every rank. That costs several times what
    // making them does (docs/performance.md); whoever has validated them elsewhere may leave it
    // out. Then a rank that finds something wrong while planning leaves, and the others hear of it.
    bool validates = true;
    // Called when a stage begins: to measure, or to fail on purpose.
    std::function<void(Stage)> on_stage;
  };
  // The communicator must live longer.
  explicit Dispatcher(comm::Communicator& communicator) : Dispatcher(communicator, Options()) {}
  Dispatcher(comm::Communicator& communicator, Options options);

  // All ranks together. Compares the tables of all, field by field (by a hash): throws
  // MetadataDiffers on all ranks if any differs, InputError on all ranks if dispatch::validate
  // finds them unsound. The communicator stays alive: another dispatch can be tried.
  [[nodiscard]] std::shared_ptr<const DispatchPlan> plan(const dispatch::QkvDispatch& dispatch);

  void reserve(const Hints& hints);

  // All ranks together, each with its plan of the same table. `in` and `out` are buffers of
  // plan.send_tokens() and plan.receive_tokens() rows and do not overlap. Tokens that nothing
  // arrives at stay as they are. Throws InputError D400, D412 (a table that sums), comm::Failure,
  // OutOfMemory.
  void exchange(const ExchangePlan& plan, std::span<const std::byte> in, std::span<std::byte> out,
                std::int64_t row_bytes);

  // The same where arrivals are summed: rows of `width` numbers, added as floats in the order of
  // ranks, then rows, so the bits are the same every time. Tokens that nothing arrives at become
  // zero. T is float or Bf16, which is rounded once, at the end.
  template <class T>
  void exchange_sum(const ExchangePlan& plan, std::span<const T> in, std::span<T> out,
                    std::int64_t width);

 private:
  template <class T>
  using Vector = std::pmr::vector<T>;
  // Memory in lines of the cache, so that numbers of any type can lie in it.
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  class Room {
   public:
    explicit Room(std::pmr::memory_resource* memory) : lines_(memory) {}
    void grow_to(Bytes bytes) {
      const auto lines = (static_cast<std::size_t>(bytes.count) + sizeof(Line) - 1) / sizeof(Line);
      if (lines_.size() < lines) lines_.resize(lines);
    }
    [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

   private:
    Vector<Line> lines_;
  };
  // The two ends of the parts that travel in one exchange.
  struct Travel {
    explicit Travel(std::pmr::memory_resource* memory)
        : first_to(memory), first_from(memory), to(memory), from(memory) {}
    Vector<std::size_t> first_to;
    Vector<std::size_t> first_from;
    Vector<std::span<const std::byte>> to;
    Vector<std::span<std::byte>> from;
  };

  void check(const ExchangePlan& plan, std::size_t in_bytes, std::size_t out_bytes,
             std::int64_t row_bytes) const;
  void make_room(const ExchangePlan& plan, std::int64_t row_bytes);
  void begin(Stage stage) const {
    if (options_.on_stage) options_.on_stage(stage);
  }
  // What stays on this rank is never packed.
  [[nodiscard]] std::size_t pack_below(int peer) const;
  // Where packed pieces arrive: in received_, from `received_from` on.
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
  [[noreturn]] void fail_memory(Bytes needed);

  comm::Communicator& communicator_;
  Options options_;
  Travel travel_;
  Room packed_;    // small pieces on their way
  Room received_;  // what is to be summed, and packed pieces that arrived
  std::size_t packed_used_ = 0;
  std::size_t received_used_ = 0;
};

}  // namespace shiplap::run
