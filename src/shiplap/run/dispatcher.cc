#include "shiplap/run/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/dispatch/validate.h"
#include "shiplap/run/agreement.h"
#include "shiplap/run/rounding_internal.h"

namespace shiplap::run {
namespace {

using Piece = ExchangePlan::Piece;

// ---- agreement of all ranks

// Compares one combined hash per rank: the common case costs one number each.
bool all_equal(comm::Communicator& communicator, std::span<const std::int64_t> hashes) {
  std::uint64_t combined = 0;
  for (const std::int64_t hash : hashes) {
    combined = (combined ^ static_cast<std::uint64_t>(hash)) * 0x9e3779b97f4a7c15;
    combined ^= combined >> 29;
  }
  const auto local = static_cast<std::int64_t>(combined);
  std::vector<std::int64_t> all(at(communicator.size()));
  communicator.all_gather(std::span(&local, 1), std::span(all));
  return std::ranges::all_of(all, [&](std::int64_t one) { return one == local; });
}

void check_agreement(comm::Communicator& communicator, const dispatch::QkvDispatch& dispatch) {
  const std::vector<TableField> fields = table_fields(dispatch);
  std::vector<std::int64_t> local;
  for (const TableField& field : fields) local.push_back(field.hash);
  if (all_equal(communicator, local)) return;
  std::vector<std::int64_t> all(local.size() * at(communicator.size()));
  communicator.all_gather(std::span<const std::int64_t>(local), std::span(all));
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    ranks.push_back(communicator.world_rank(rank));
  }
  if (std::optional<Diagnostic> found = metadata_mismatch(fields, all, ranks)) {
    throw MetadataMismatch(std::move(*found));
  }
}

// ---- reduction

constexpr std::size_t kBlock = 2048;  // numbers that are summed at a time

// out[i] = sources[0][i] + sources[1][i] + .., for a block.
template <class T>
class BlockSummer {
 public:
  BlockSummer(const ExchangePlan& plan, std::span<const T> local, std::span<const T> arrived,
              std::size_t width)
      : plan_(plan), local_(local), arrived_(arrived), width_(width) {}

  void run(const ExchangePlan::Sum& sum, std::span<T> out) {
    const std::size_t begin = sum.begin * width_;
    const std::size_t count = sum.length * width_;
    for (std::size_t done = 0; done < count; done += kBlock) {
      const std::size_t length = std::min(kBlock, count - done);
      block(sum, done, std::span(block_).first(length));
      for (std::size_t i = 0; i < length; ++i) store(block_[i], out[begin + done + i]);
    }
  }

 private:
  void block(const ExchangePlan::Sum& sum, std::size_t done, std::span<float> to) const {
    std::ranges::fill(to, 0.0F);
    for (std::uint32_t s = sum.first_source; s < sum.end_source; ++s) {
      const ExchangePlan::Source& source = plan_.sources()[s];
      const std::span<const T> from = source.is_local ? local_ : arrived_;
      const T* const numbers = from.data() + source.begin * width_ + done;
      if (s == sum.first_source) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] = widen(numbers[i]);
      } else {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += widen(numbers[i]);
      }
    }
  }

  const ExchangePlan& plan_;
  std::span<const T> local_;
  std::span<const T> arrived_;
  std::size_t width_;
  std::array<float, kBlock> block_{};
};

}  // namespace

Dispatcher::Dispatcher(comm::Communicator& communicator, Options options)
    : communicator_(communicator),
      options_(std::move(options)),
      transfers_(options_.memory),
      packed_(options_.memory),
      received_(options_.memory) {}

MetadataMismatch::MetadataMismatch(Diagnostic diagnostic)
    : std::runtime_error(render(diagnostic)), diagnostic_(std::move(diagnostic)) {}

// After check_agreement() all ranks have the same tables, so all throw the same.
std::shared_ptr<const DispatchPlan> Dispatcher::plan(const dispatch::QkvDispatch& dispatch) {
  check_agreement(communicator_, dispatch);
  if (options_.validates) {
    std::vector<Diagnostic> found = dispatch::validate(dispatch);
    if (!found.empty()) throw InputError(std::move(found));
  }
  if (dispatch.world_size() != communicator_.size()) {
    throw InputError(Diagnostic{
        .code = "D400",
        .what = fmt::format("rank count mismatch: the dispatch has {} ranks and `{}` has {}",
                            dispatch.world_size(), communicator_.name(), communicator_.size())});
  }
  const int rank = communicator_.rank();
  try {
    return std::make_shared<const DispatchPlan>(
        DispatchPlan{.q_forward = ExchangePlan(dispatch.q.forward, rank),
                     .q_reverse = ExchangePlan(dispatch.q.reverse, rank),
                     .kv_forward = ExchangePlan(dispatch.kv.forward, rank),
                     .kv_reverse = ExchangePlan(dispatch.kv.reverse, rank),
                     .attention = dispatch.attention});
  } catch (const std::exception& error) {
    // Unvalidated tables or out of memory: other ranks must not wait for this one.
    communicator_.abort(error.what());
    throw;
  }
}

// ---- workspace

void Dispatcher::throw_out_of_memory(Bytes needed) {
  const std::string what = fmt::format(
      "out of memory: a dispatch needs {} of workspace besides its "
      "buffers",
      to_string(needed));
  communicator_.abort(what);
  throw OutOfMemory(
      Diagnostic{.code = "D421",
                 .where = {.rank = communicator_.world_rank(communicator_.rank())},
                 .what = what,
                 .help = "call reserve() at the start, or dispatch fewer tokens at once"});
}

void Dispatcher::reserve(const WorkspaceSize& size) {
  const auto grow = [](auto& vector, std::size_t count) {
    if (vector.capacity() < count) vector.reserve(count);
  };
  try {
    grow(transfers_.first_to, at(communicator_.size()) + 1);
    grow(transfers_.first_from, at(communicator_.size()) + 1);
    grow(transfers_.to, size.parts);
    grow(transfers_.from, size.parts);
    packed_.grow_to(size.send);
    received_.grow_to(size.receive);
  } catch (const std::bad_alloc&) {
    throw_out_of_memory(size.total());
  } catch (const std::length_error&) {
    throw_out_of_memory(size.total());
  }
}

std::size_t Dispatcher::pack_below(int peer) const {
  if (peer == communicator_.rank()) return 0;
  return options_.pack_below ? *options_.pack_below : communicator_.pack_below(peer);
}

void Dispatcher::reserve_for(const ExchangePlan& plan, std::int64_t row_bytes) {
  std::size_t below = 0;
  for (int peer = 0; peer < communicator_.size(); ++peer) {
    below = std::max(below, pack_below(peer));
  }
  reserve(workspace_size(plan, {.row_bytes = row_bytes, .pack_below = below}));
}

void Dispatcher::check(const ExchangePlan& plan, std::size_t in_bytes, std::size_t out_bytes,
                       std::int64_t row_bytes) const {
  const auto reject = [&](std::string what) {
    throw InputError(Diagnostic{.code = "D400",
                                .where = {.rank = communicator_.world_rank(communicator_.rank())},
                                .what = std::move(what)});
  };
  if (plan.rank() != communicator_.rank() || plan.world_size() != communicator_.size()) {
    reject(fmt::format("rank mismatch: a plan for rank {} of {} on rank {} of {}", plan.rank(),
                       plan.world_size(), communicator_.rank(), communicator_.size()));
  }
  constexpr std::int64_t kMaxRowBytes = std::int64_t{1} << 30;  // times 2^32 tokens fits 64 bits
  if (row_bytes < 1 || row_bytes > kMaxRowBytes) {
    reject(fmt::format("invalid row size: {} bytes", row_bytes));
  }
  const auto expect = [&](std::string_view name, std::size_t bytes, std::uint32_t tokens) {
    const Bytes wanted = dispatch::bytes_at(tokens, row_bytes);
    if (static_cast<std::int64_t>(bytes) == wanted.count) return;
    reject(fmt::format("size mismatch: the {} buffer has {} bytes; {} tokens of {} bytes need {}",
                       name, bytes, tokens, row_bytes, wanted.count));
  };
  expect("send", in_bytes, plan.send_tokens());
  expect("receive", out_bytes, plan.receive_tokens());
}

// ---- moving

namespace {

// How the pieces between two ranks are sent: short ones packed into one message, if several.
class Packing {
 public:
  Packing(std::span<const Piece> pieces, std::int64_t row_bytes, std::size_t below)
      : row_bytes_(static_cast<std::size_t>(row_bytes)), below_(below) {
    std::size_t small = 0;
    for (const Piece& piece : pieces) small += is_short(piece) ? 1 : 0;
    packs_ = small > 1;
  }
  [[nodiscard]] bool packs() const { return packs_; }
  [[nodiscard]] bool packs(const Piece& piece) const { return packs_ && is_short(piece); }
  [[nodiscard]] std::size_t bytes(const Piece& piece) const { return piece.length * row_bytes_; }
  template <class T>
  [[nodiscard]] std::span<T> part(std::span<T> buffer, const Piece& piece) const {
    return buffer.subspan(piece.begin * row_bytes_, bytes(piece));
  }

 private:
  [[nodiscard]] bool is_short(const Piece& piece) const { return bytes(piece) < below_; }

  std::size_t row_bytes_;
  std::size_t below_;
  bool packs_ = false;
};

}  // namespace

void Dispatcher::pack_for(int peer, const ExchangePlan& plan, const Move& move) {
  const std::span<const Piece> pieces = plan.sends_to(peer);
  const Packing packing(pieces, move.row_bytes, pack_below(peer));
  const std::size_t begin = packed_used_;
  if (packing.packs()) {
    for (const Piece& piece : pieces) {
      if (!packing.packs(piece)) continue;
      const std::span<const std::byte> part = packing.part(move.in, piece);
      std::memcpy(packed_.bytes().data() + packed_used_, part.data(), part.size());
      packed_used_ += part.size();
    }
    transfers_.to.push_back(packed_.bytes().subspan(begin, packed_used_ - begin));
  }
  for (const Piece& piece : pieces) {
    if (!packing.packs(piece)) transfers_.to.push_back(packing.part(move.in, piece));
  }
}

void Dispatcher::expect_from(int peer, const ExchangePlan& plan, const Move& move) {
  const std::span<const Piece> pieces = plan.receives_from(peer);
  const Packing packing(pieces, move.row_bytes, pack_below(peer));
  if (packing.packs()) {
    const std::size_t begin = received_used_;
    for (const Piece& piece : pieces) {
      if (packing.packs(piece)) received_used_ += packing.bytes(piece);
    }
    transfers_.from.push_back(received_.bytes().subspan(begin, received_used_ - begin));
  }
  for (const Piece& piece : pieces) {
    if (!packing.packs(piece)) transfers_.from.push_back(packing.part(move.out, piece));
  }
}

void Dispatcher::unpack(const ExchangePlan& plan, const Move& move) {
  received_used_ = move.received_from;
  for (int peer = 0; peer < communicator_.size(); ++peer) {
    const std::span<const Piece> pieces = plan.receives_from(peer);
    const Packing packing(pieces, move.row_bytes, pack_below(peer));
    for (const Piece& piece : pieces) {
      if (!packing.packs(piece)) continue;
      const std::span<std::byte> part = packing.part(move.out, piece);
      std::memcpy(part.data(), received_.bytes().data() + received_used_, part.size());
      received_used_ += part.size();
    }
  }
}

void Dispatcher::move(const ExchangePlan& plan, const Move& move) {
  packed_used_ = 0;
  received_used_ = move.received_from;
  transfers_.first_to.assign(1, 0);
  transfers_.first_from.assign(1, 0);
  transfers_.to.clear();
  transfers_.from.clear();
  begin(Stage::pack);
  for (int peer = 0; peer < communicator_.size(); ++peer) {
    pack_for(peer, plan, move);
    expect_from(peer, plan, move);
    transfers_.first_to.push_back(transfers_.to.size());
    transfers_.first_from.push_back(transfers_.from.size());
  }
  begin(Stage::exchange);
  communicator_.all_to_all_parts({.first = transfers_.first_to, .parts = transfers_.to},
                                 {.first = transfers_.first_from, .parts = transfers_.from});
  begin(Stage::unpack);
  unpack(plan, move);
}

void Dispatcher::exchange(const ExchangePlan& plan, std::span<const std::byte> in,
                          std::span<std::byte> out, std::int64_t row_bytes) {
  check(plan, in.size(), out.size(), row_bytes);
  if (plan.arrival() != dispatch::ArrivalMode::placed) {
    throw InputError(
        Diagnostic{.code = "D412",
                   .what = "unsupported: this table sums received tokens; bytes cannot be summed",
                   .help = "use exchange_sum"});
  }
  reserve_for(plan, row_bytes);
  move(plan, {.in = in, .out = out, .row_bytes = row_bytes});
}

template <class T>
void Dispatcher::exchange_sum(const ExchangePlan& plan, std::span<const T> in, std::span<T> out,
                              std::int64_t width) {
  const std::int64_t row_bytes = std::clamp<std::int64_t>(width, -1, std::int64_t{1} << 40) *
                                 static_cast<std::int64_t>(sizeof(T));
  check(plan, in.size_bytes(), out.size_bytes(), row_bytes);
  if (plan.arrival() != dispatch::ArrivalMode::summed) {
    return exchange(plan, std::as_bytes(in), std::as_writable_bytes(out), row_bytes);
  }
  reserve_for(plan, row_bytes);
  const auto staged =
      static_cast<std::size_t>(dispatch::bytes_at(plan.arriving_tokens(), row_bytes).count);
  move(plan, {.in = std::as_bytes(in),
              .out = received_.bytes().first(staged),
              .row_bytes = row_bytes,
              .received_from = staged});
  const std::span<const T> arrived(reinterpret_cast<const T*>(received_.bytes().data()),
                                   staged / sizeof(T));
  BlockSummer<T> summer(plan, in, arrived, static_cast<std::size_t>(width));
  for (const ExchangePlan::Sum& sum : plan.sums()) summer.run(sum, out);
}

template void Dispatcher::exchange_sum<float>(const ExchangePlan&, std::span<const float>,
                                              std::span<float>, std::int64_t);
template void Dispatcher::exchange_sum<kernels::Bf16>(const ExchangePlan&,
                                                      std::span<const kernels::Bf16>,
                                                      std::span<kernels::Bf16>, std::int64_t);

}  // namespace shiplap::run
