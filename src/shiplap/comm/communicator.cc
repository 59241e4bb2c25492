#include "shiplap/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "shiplap/base/error.h"

namespace shiplap::comm {
namespace {

using CallKind = Fingerprint::Kind;

std::string_view name(CallKind kind) {
  switch (kind) {
    case CallKind::barrier:
      return "barrier";
    case CallKind::broadcast:
      return "broadcast";
    case CallKind::all_reduce:
      return "all_reduce";
    case CallKind::all_gather:
      return "all_gather";
    case CallKind::all_gather_v:
      return "all_gather_v";
    case CallKind::reduce_scatter:
      return "reduce_scatter";
    case CallKind::all_to_all:
      return "all_to_all";
    case CallKind::all_to_all_v:
      return "all_to_all_v";
    case CallKind::all_to_all_parts:
      return "all_to_all_parts";
    case CallKind::split:
      return "split";
    case CallKind::end:
      return "the end of the program,";
  }
  return "an unknown collective";  // from another process
}

[[noreturn]] void throw_bad_argument(std::string_view operation, std::string what) {
  throw InputError(Diagnostic{
      .code = "D300", .where = {.operation = std::string(operation)}, .what = std::move(what)});
}

std::int64_t elements(DType type, std::size_t bytes) {
  return static_cast<std::int64_t>(bytes / bytes_of(type));
}

// Pieces in bytes, with offsets.
class BytePieces {
 public:
  BytePieces(std::size_t ranks, std::int64_t bytes) : counts_(ranks, bytes), offsets_(ranks) {
    for (std::size_t k = 1; k < ranks; ++k) offsets_[k] = offsets_[k - 1] + bytes;
  }

  // Throws D300 unless the pieces are inside a buffer of `available` bytes.
  BytePieces(std::string_view operation, const Pieces& pieces, DType type, int size,
             std::size_t available) {
    if (std::ssize(pieces.counts) != size ||
        (!pieces.offsets.empty() && std::ssize(pieces.offsets) != size)) {
      throw_bad_argument(operation, fmt::format("{} counts and {} offsets for {} ranks",
                                                pieces.counts.size(), pieces.offsets.size(), size));
    }
    const auto width = bytes_of(type);
    const std::int64_t room = elements(type, available);
    std::int64_t packed = 0;
    for (std::size_t k = 0; k < pieces.counts.size(); ++k) {
      const std::int64_t count = pieces.counts[k];
      const std::int64_t offset = pieces.offsets.empty() ? packed : pieces.offsets[k];
      if (count < 0 || offset < 0 || count > room || offset > room - count) {
        throw_bad_argument(
            operation, fmt::format("piece {} has {} elements from {}, outside a buffer of {}", k,
                                   count, offset, room));
      }
      counts_.push_back(count * width);
      offsets_.push_back(offset * width);
      packed += count;
    }
  }

  void set(std::size_t rank, std::int64_t bytes) { counts_[rank] = bytes; }

  [[nodiscard]] Pieces pieces() const { return {.counts = counts_, .offsets = offsets_}; }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> offsets_;
};

void check_parts(std::span<const std::size_t> first, std::size_t parts, int size) {
  if (std::ssize(first) != size + 1 || first.front() != 0 || first.back() != parts ||
      !std::ranges::is_sorted(first)) {
    throw_bad_argument("all_to_all_parts",
                       fmt::format("{} parts are not divided among {} ranks", parts, size));
  }
}

// Hash of the lengths of all parts for a rank, on which both ends of a pair must agree.
template <class Parts>
std::int64_t hash_lengths(const Parts& parts, std::size_t rank) {
  std::uint64_t hash = 0;
  for (std::size_t k = parts.first[rank]; k < parts.first[rank + 1]; ++k) {
    hash = (hash ^ (parts.parts[k].size() + 1)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return static_cast<std::int64_t>(hash >> 1);
}

template <class Parts>
BytePieces lengths(const Parts& parts, int size) {
  BytePieces pieces(static_cast<std::size_t>(size), 0);
  for (int rank = 0; rank < size; ++rank) {
    const auto k = static_cast<std::size_t>(rank);
    pieces.set(k, hash_lengths(parts, k));
  }
  return pieces;
}

std::uint64_t hash_of(std::span<const std::int64_t> counts) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, a number at a time
  for (const std::int64_t count : counts) {
    hash = (hash ^ static_cast<std::uint64_t>(count)) * 0x100000001b3;
  }
  return hash;
}

// The call of most ranks.
Fingerprint majority(const std::vector<Fingerprint>& all) {
  const Fingerprint* best = &all.front();
  std::ptrdiff_t max_votes = 0;
  for (const Fingerprint& one : all) {
    if (&one != &all.front() && one == *best) continue;
    const auto votes = std::ranges::count(all, one);
    if (votes > max_votes) {
      best = &one;
      max_votes = votes;
    }
  }
  return *best;
}

std::string format_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMaxNamed = 12;
  const auto named = std::span(ranks).first(std::min(kMaxNamed, ranks.size()));
  std::string text =
      fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(named, ", "));
  if (ranks.size() > kMaxNamed) text += fmt::format(" and {} more", ranks.size() - kMaxNamed);
  return text;
}

}  // namespace

std::string describe(const Fingerprint& fingerprint) {
  std::string text = fmt::format("{} number {}", name(fingerprint.kind), fingerprint.sequence);
  const bool has_data =
      fingerprint.kind != CallKind::barrier && fingerprint.kind != CallKind::split &&
      fingerprint.kind != CallKind::all_to_all_parts && fingerprint.kind != CallKind::end;
  if (!has_data) return text;
  text += fmt::format(" ({}", name(fingerprint.type));
  if (fingerprint.kind != CallKind::all_to_all_v) text += fmt::format(" x {}", fingerprint.count);
  if (fingerprint.kind == CallKind::all_gather_v) {
    text += fmt::format(" in all, pieces {:04x}", fingerprint.pieces & 0xffff);
  }
  if (fingerprint.kind == CallKind::all_reduce || fingerprint.kind == CallKind::reduce_scatter) {
    text += fmt::format(", {}", name(fingerprint.reduction));
  }
  if (fingerprint.kind == CallKind::broadcast) text += fmt::format(", from {}", fingerprint.root);
  return text + ")";
}

// ---- failures

void Communicator::mark_dead(const std::string& reason) {
  if (std::exchange(dead_, true)) return;
  death_reason_ = reason;
}

void Communicator::fail_dead(const std::string& reason) {
  mark_dead(reason);
  throw_dead(reason);
}

void Communicator::throw_dead(const std::string& reason) const {
  throw CommunicatorDead(Diagnostic{.code = "D305",
                                    .where = {.rank = world_rank(rank_)},
                                    .what = fmt::format("communicator `{}` is dead", name_),
                                    .why = reason});
}

// The transports decide that a call has timed out (the wait of their requests, and the barrier of
// the threads); run::InFlightMessages::check_timeout decides it for the messages of a plan.
void Communicator::fail_operation_timeout(const std::string& operation, std::vector<int> missing,
                                          const std::string& about, std::optional<int> culprit) {
  const std::string what = fmt::format("{} in `{}`, a group of {}, timed out after {}", operation,
                                       name_, size_, to_string(timeout_));
  std::string why;
  if (!missing.empty()) {
    why = fmt::format("missing: {}{}{}", format_ranks(missing), about.empty() ? "" : "; ", about);
  }
  mark_dead(
      fmt::format("{} on rank {}{}{}", what, world_rank(rank_), why.empty() ? "" : "; ", why));
  throw TimeoutError(Diagnostic{.code = "D301",
                                .where = {.rank = world_rank(rank_), .operation = operation},
                                .what = what,
                                .why = std::move(why)},
                     std::move(missing), culprit);
}

void Communicator::fail_rank(int rank, const std::string& reason) {
  const std::string what =
      rank < 0 ? fmt::format("a rank of `{}` failed", name_) : fmt::format("rank {} failed", rank);
  mark_dead(what);
  throw RankFailed(
      Diagnostic{.code = "D302", .where = {.rank = world_rank(rank_)}, .what = what, .why = reason},
      rank);
}

void Communicator::fail_aborted(int rank, int culprit, const std::string& reason) {
  if (culprit != kNobody) fail_rank(culprit, reason);
  const std::string what = fmt::format("rank {} timed out", rank);
  mark_dead(what);
  throw TimeoutError(
      Diagnostic{.code = "D301", .where = {.rank = world_rank(rank_)}, .what = what, .why = reason},
      {});
}

void Communicator::fail_mismatch(const std::string& what, std::vector<int> outliers) {
  mark_dead(what);
  throw Mismatch(Diagnostic{.code = "D303", .where = {.rank = world_rank(rank_)}, .what = what},
                 std::move(outliers));
}

void Communicator::fail_too_long(int from, std::int64_t room) {
  const std::string what = fmt::format(
      "a message from rank {} is too long for the receive buffer of {} bytes", from, room);
  mark_dead(what);
  throw MessageTooLong(
      Diagnostic{.code = "D304", .where = {.rank = world_rank(rank_)}, .what = what});
}

void Communicator::check_agreement(const std::vector<Fingerprint>& all) {
  const Fingerprint expected = majority(all);
  std::vector<int> outliers;
  Fingerprint example;
  for (int rank = 0; rank < size_; ++rank) {
    const Fingerprint& one = all[rank];
    if (one == expected) continue;
    if (outliers.empty()) example = one;
    outliers.push_back(world_rank(rank));
  }
  if (outliers.empty()) return;
  const std::string what =
      fmt::format("mismatch in `{}`: {} called {}, the others {}", name_, format_ranks(outliers),
                  describe(example), describe(expected));
  fail_mismatch(what, std::move(outliers));
}

// ---- argument checks

void Communicator::check_alive() const {
  if (dead_) throw_dead(death_reason_);
}

void Communicator::check_peer(std::string_view operation, int peer, int tag) const {
  check_alive();
  if (peer < 0 || peer >= size_) {
    throw_bad_argument(
        operation, fmt::format("rank {} is not in `{}`, which has {} ranks", peer, name_, size_));
  }
  if (tag < 0 || tag > kMaxTag) {
    throw_bad_argument(operation, fmt::format("tag {} is not between 0 and {}", tag, kMaxTag));
  }
}

void Communicator::set_timeout(Seconds timeout) {
  if (!(timeout.value > 0))
    throw_bad_argument("set_timeout", fmt::format("{} s is not a valid timeout", timeout.value));
  constexpr Seconds kMaxTimeout{1e8};  // three years; larger values overflow some clocks
  timeout_ = std::min(timeout, kMaxTimeout);
}

void Communicator::begin_collective(Fingerprint fingerprint) {
  check_alive();
  fingerprint.sequence = collectives_++;
  current_ = fingerprint;
  if (checked_ && size_ > 1) check_agreement(gather_fingerprints(fingerprint));
}

void Communicator::check_counts(const Pieces& to, const Pieces& from) {
  if (!checked_ || size_ == 1) return;
  const auto ranks = static_cast<std::size_t>(size_);
  const BytePieces one_each(ranks, sizeof(std::int64_t));
  std::vector<std::int64_t> sent(ranks);
  do_all_to_all(std::as_bytes(to.counts), one_each.pieces(),
                std::as_writable_bytes(std::span(sent)), one_each.pieces());
  // All ranks must throw, not only those that would receive too much or too little.
  Fingerprint result = current_;
  result.root = -1;
  for (std::size_t k = 0; k < ranks && result.root < 0; ++k) {
    if (sent[k] == from.counts[k]) continue;
    result.root = static_cast<std::int32_t>(k);
    result.count = sent[k];
    result.pieces = static_cast<std::uint64_t>(from.counts[k]);
  }
  const std::vector<Fingerprint> results = gather_fingerprints(result);
  for (int rank = 0; rank < size_; ++rank) {
    const Fingerprint& one = results[rank];
    if (one.root < 0) continue;
    const int sender = world_rank(one.root);
    const int receiver = world_rank(rank);
    const bool counts = current_.kind != CallKind::all_to_all_parts;
    fail_mismatch(
        counts ? fmt::format(
                     "mismatch in `{}`, {}: rank {} sends {} bytes to rank {}, which expects {}",
                     name_, describe(current_), sender, one.count, receiver, one.pieces)
               : fmt::format("mismatch in `{}`, {}: rank {} sends other parts than rank {} expects",
                             name_, describe(current_), sender, receiver),
        {sender, receiver});
  }
}

// ---- collectives

void Communicator::barrier() {
  begin_collective({.kind = CallKind::barrier});
  if (size_ > 1) do_barrier();
}

void Communicator::checked_broadcast(DType type, std::span<std::byte> data, int root) {
  if (root < 0 || root >= size_) {
    throw_bad_argument(
        "broadcast", fmt::format("root {} is not in `{}`, which has {} ranks", root, name_, size_));
  }
  begin_collective({.kind = CallKind::broadcast,
                    .type = type,
                    .root = root,
                    .count = elements(type, data.size())});
  if (size_ > 1) do_broadcast(data, root);
}

void Communicator::checked_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction) {
  begin_collective({.kind = CallKind::all_reduce,
                    .type = type,
                    .reduction = reduction,
                    .count = elements(type, data.size())});
  if (size_ > 1) do_all_reduce(type, data, reduction);
}

void Communicator::checked_all_gather(DType type, std::span<const std::byte> in,
                                      std::span<std::byte> out) {
  const auto ranks = static_cast<std::size_t>(size_);
  if (out.size() != in.size() * ranks) {
    throw_bad_argument("all_gather",
                       fmt::format("{} elements from each of {} ranks do not make {}",
                                   elements(type, in.size()), size_, elements(type, out.size())));
  }
  begin_collective(
      {.kind = CallKind::all_gather, .type = type, .count = elements(type, in.size())});
  do_all_gather(in, out, BytePieces(ranks, std::ssize(in)).pieces());
}

void Communicator::checked_all_gather_v(DType type, std::span<const std::byte> in,
                                        std::span<std::byte> out, const Pieces& pieces) {
  const BytePieces bytes("all_gather_v", pieces, type, size_, out.size());
  const std::int64_t local = pieces.counts[rank_];
  if (elements(type, in.size()) != local) {
    throw_bad_argument("all_gather_v",
                       fmt::format("the local piece has {} elements, but its count is {}",
                                   elements(type, in.size()), local));
  }
  begin_collective(
      {.kind = CallKind::all_gather_v,
       .type = type,
       .count = std::accumulate(pieces.counts.begin(), pieces.counts.end(), std::int64_t{0}),
       .pieces = hash_of(pieces.counts)});
  do_all_gather(in, out, bytes.pieces());
}

void Communicator::checked_reduce_scatter(DType type, std::span<const std::byte> in,
                                          std::span<std::byte> out, ReduceOp reduction) {
  if (in.size() != out.size() * static_cast<std::size_t>(size_)) {
    throw_bad_argument("reduce_scatter",
                       fmt::format("{} elements are not {} pieces of {}", elements(type, in.size()),
                                   size_, elements(type, out.size())));
  }
  begin_collective({.kind = CallKind::reduce_scatter,
                    .type = type,
                    .reduction = reduction,
                    .count = elements(type, out.size())});
  do_reduce_scatter(type, in, out, reduction);
}

void Communicator::checked_all_to_all(DType type, std::span<const std::byte> in,
                                      std::span<std::byte> out) {
  const auto ranks = static_cast<std::size_t>(size_);
  if (in.size() != out.size() || in.size() % (ranks * bytes_of(type)) != 0) {
    throw_bad_argument("all_to_all",
                       fmt::format("{} elements in and {} out are not {} equal pieces each",
                                   elements(type, in.size()), elements(type, out.size()), size_));
  }
  begin_collective(
      {.kind = CallKind::all_to_all, .type = type, .count = elements(type, in.size() / ranks)});
  const BytePieces bytes(ranks, static_cast<std::int64_t>(in.size() / ranks));
  do_all_to_all(in, bytes.pieces(), out, bytes.pieces());
}

void Communicator::checked_all_to_all_v(DType type, std::span<const std::byte> in, const Pieces& to,
                                        std::span<std::byte> out, const Pieces& from) {
  const BytePieces to_bytes("all_to_all_v", to, type, size_, in.size());
  const BytePieces from_bytes("all_to_all_v", from, type, size_, out.size());
  const auto local = static_cast<std::size_t>(rank_);
  if (to.counts[local] != from.counts[local]) {
    throw_bad_argument("all_to_all_v",
                       fmt::format("rank {} sends {} elements to itself and expects {}", rank_,
                                   to.counts[local], from.counts[local]));
  }
  begin_collective({.kind = CallKind::all_to_all_v, .type = type});
  check_counts(to_bytes.pieces(), from_bytes.pieces());
  do_all_to_all(in, to_bytes.pieces(), out, from_bytes.pieces());
}

void Communicator::all_to_all_parts(const Outgoing& to, const Incoming& from) {
  check_parts(to.first, to.parts.size(), size_);
  check_parts(from.first, from.parts.size(), size_);
  const auto local = static_cast<std::size_t>(rank_);
  const auto sent = to.parts.subspan(to.first[local], to.first[local + 1] - to.first[local]);
  const auto got = from.parts.subspan(from.first[local], from.first[local + 1] - from.first[local]);
  if (!std::ranges::equal(sent, got, {}, &std::span<const std::byte>::size,
                          &std::span<std::byte>::size)) {
    throw_bad_argument(
        "all_to_all_parts",
        fmt::format("the parts that rank {} sends to itself do not match those it expects", rank_));
  }
  begin_collective({.kind = CallKind::all_to_all_parts});
  if (checked_) check_counts(lengths(to, size_).pieces(), lengths(from, size_).pieces());
  do_all_to_all_parts(to, from);
}

std::size_t Communicator::eager_limit(int /*peer*/) const {
  return std::numeric_limits<std::size_t>::max();
}

std::size_t Communicator::pack_below(int /*peer*/) const { return 0; }

// ---- groups

void Communicator::abort(const std::string& reason, std::optional<int> culprit) {
  try {
    if (!dead_) mark_dead(fmt::format("rank {} aborted: {}", world_rank(rank_), reason));
  } catch (const std::bad_alloc&) {  // abort even if there is no memory for the reason
    dead_ = true;
  }
  do_abort(culprit.value_or(world_rank(rank_)), reason);
}

std::unique_ptr<Communicator> Communicator::split(int colour, int key, const std::string& name) {
  if (colour < 0) throw_bad_argument("split", fmt::format("colour {} is negative", colour));
  begin_collective({.kind = CallKind::split});
  std::unique_ptr<Communicator> part = do_split(colour, key, name_ + "/" + name);
  part->set_timeout(timeout_);
  part->set_checked(checked_);
  return part;
}

std::unique_ptr<Communicator> Communicator::split_along(std::span<const int> sizes,
                                                        std::span<const int> along,
                                                        const std::string& name) {
  std::int64_t product = 1;
  for (const int size : sizes) {
    if (size < 1) throw_bad_argument("split_along", fmt::format("an axis of size {}", size));
    product = std::min<std::int64_t>(product * size, std::int64_t{1} << 32);
  }
  if (product != size_) {
    throw_bad_argument(
        "split_along",
        fmt::format("a mesh of {} ranks does not cover `{}`, which has {}", product, name_, size_));
  }
  for (const int axis : along) {
    if (axis < 0 || axis >= std::ssize(sizes)) {
      throw_bad_argument("split_along",
                         fmt::format("axis {} of a mesh with {}", axis, sizes.size()));
    }
  }
  // The colour is the rank with its positions along the chosen axes set to zero.
  int colour = rank_;
  int stride = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    const int position = rank_ / stride % sizes[axis];
    if (std::ranges::find(along, static_cast<int>(axis)) != along.end()) {
      colour -= position * stride;
    }
    stride *= sizes[axis];
  }
  return split(colour, rank_, name);
}

std::unique_ptr<Communicator> Communicator::channel(const std::string& name) {
  return split(0, rank_, name);
}

}  // namespace shiplap::comm
