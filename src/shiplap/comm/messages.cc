// Collectives out of sends and receives.
//
//   barrier          dissemination (Hensgen, Finkel, Manber 1988): step k signals rank + 2^k
//   all_gather       Bruck et al. 1997 for pieces of equal size up to 32 KiB in all; else direct
//                    exchange
//   all_to_all       direct exchange
//   broadcast        binomial tree; large: scatter from the root and all_gather (van de Geijn)
//   reduce_scatter   direct exchange in segments, two in flight: one is combined while the next
//                    arrives
//   all_reduce       all_gather, then all ranks combine, up to 32 KiB in all; above: reduce_scatter
//                    in place, then direct exchange
//   all_to_all_parts messages_parts.cc
//
// Direct exchange posts one message between every two ranks, at growing distance, so no rank sends
// or receives more bytes than it must and no rank is a hot spot.
//
// Order of posting. Receives first, so that no message is unexpected. But where a receive replies
// to an announced message at once (between hosts), sends first: else the late one of two ranks
// replies, then announces its own message, and the other one puts all of its data in front of the
// reply to that. Of a slow link only one direction at a time was used then.
//
// Invariants:
// - Reductions combine in the order of ranks. So the result has the same bits on all ranks and on
//   every transport, and one transport can be tested against another. This excludes ring and
//   recursive-doubling reductions.
// - The algorithm is chosen by values on which all ranks agree, never by local ones.
// - All waits of a collective share one deadline. Its tag is its number modulo 4096, above the tags
//   of users, so messages of one collective do not match those of the next.
// - After a failure, scratch buffers are leaked: MPI may still write to them.
//
// Rejected (docs/decisions/009): collectives of MPI, which cannot be cancelled and have no timeout;
// sending the results of one segment while the next is reduced, which was 10 to 45 % slower between
// two ranks with shared memory.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <mutex>

#include "shiplap/base/id.h"
#include "shiplap/comm/messages_internal.h"

namespace shiplap::comm {
namespace {

constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30;
// From here on a scatter and an all_gather are faster than a tree.
constexpr std::size_t kLargeBroadcast = std::size_t{256} * 1024;
// Up to this size, of all ranks together, latency matters more than bandwidth.
constexpr std::size_t kSmallGather = std::size_t{32} * 1024;
// Bytes of a reduction in flight, of all ranks together.
constexpr std::size_t kReductionWindow = std::size_t{4} * 1024 * 1024;
constexpr std::size_t kMinSegment = std::size_t{64} * 1024;

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

template <class T>
void leak_intentionally(std::vector<T> buffer) {
  static std::mutex mutex;
  static auto* const kept = new std::list<std::vector<T>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(buffer));
}

}  // namespace

MessageCommunicator::~MessageCommunicator() {
  // Messages that could not be cancelled may still arrive.
  if (alive()) return;
  leak_intentionally(std::move(scratch_));
  leak_intentionally(std::move(small_));
  leak_intentionally(std::move(exchange_.local_parts));
  leak_intentionally(std::move(exchange_.remote_parts));
  leak_intentionally(std::move(exchange_.signals));
  leak_intentionally(std::move(exchange_.stamp));
}

MessageCommunicator::CollectiveDeadline::CollectiveDeadline(MessageCommunicator& communicator)
    : communicator_(communicator) {
  if (communicator.collective_deadline_) return;
  outermost_ = true;
  communicator.collective_deadline_ = communicator.now() + communicator.timeout().value;
  communicator.on_collective_begin();
}

// A buffer with one part per rank; each rank combines its part, in segments. The sizes of the parts
// differ by at most one element.
struct MessageCommunicator::SegmentedReduction {
  DType type = DType::u8;
  ReduceOp reduction = ReduceOp::sum;
  std::span<const std::byte> in;
  std::byte* out = nullptr;  // may be the local part of `in`
  std::size_t ranks = 1;

  struct ByteRange {
    std::size_t begin = 0;  // in the buffer
    std::size_t bytes = 0;
  };
  [[nodiscard]] ByteRange part(std::size_t k) const {
    const std::size_t width = bytes_of(type);
    const std::size_t count = in.size() / width;
    const std::size_t begin = count * k / ranks * width;
    return {.begin = begin, .bytes = count * (k + 1) / ranks * width - begin};
  }
  [[nodiscard]] std::size_t segment() const {
    const std::size_t width = bytes_of(type);
    return std::max(kReductionWindow / ranks, kMinSegment) / width * width;
  }
  // The last part is the longest.
  [[nodiscard]] std::size_t segments() const {
    return (part(ranks - 1).bytes + segment() - 1) / segment();
  }
  [[nodiscard]] ByteRange segment_of(std::size_t k, std::size_t s) const {
    const ByteRange whole = part(k);
    const std::size_t begin = std::min(s * segment(), whole.bytes);
    return {.begin = whole.begin + begin,
            .bytes = std::min(begin + segment(), whole.bytes) - begin};
  }
};

// ---- pieces

void MessageCommunicator::post_send(std::vector<Request>& sends, std::span<const std::byte> data,
                                    int to, int tag) {
  for (std::size_t at = 0; at < data.size(); at += kMaxMessageBytes) {
    const std::size_t bytes = std::min(kMaxMessageBytes, data.size() - at);
    sends.push_back(start_send(data.subspan(at, bytes), to, tag));
  }
}

void MessageCommunicator::post_receive(std::vector<ExpectedMessage>& receives,
                                       std::span<std::byte> data, int from, int tag) {
  for (std::size_t at = 0; at < data.size(); at += kMaxMessageBytes) {
    const std::size_t bytes = std::min(kMaxMessageBytes, data.size() - at);
    receives.push_back({.request = start_receive(data.subspan(at, bytes), from, tag),
                        .bytes = static_cast<std::int64_t>(bytes),
                        .from = from});
  }
}

void MessageCommunicator::wait_receive(ExpectedMessage& expected) {
  const std::int64_t bytes = expected.request.wait();
  if (bytes == expected.bytes) return;
  const int from = world_rank(expected.from);
  fail_mismatch(
      fmt::format("mismatch in `{}`, {}: rank {} sent {} bytes where rank {} expected {}", name(),
                  describe(current()), from, bytes, world_rank(rank()), expected.bytes),
      {from});
}

void MessageCommunicator::wait_all(std::vector<ExpectedMessage>& receives,
                                   std::vector<Request>& sends) {
  for (ExpectedMessage& expected : receives) wait_receive(expected);
  for (Request& send : sends) send.wait();
}

// ---- collectives

// Dissemination: after step k each rank has a signal, directly or not, of the 2^k ranks before it.
void MessageCommunicator::do_barrier() {
  const CollectiveDeadline shared_deadline(*this);
  small_.assign(2, std::byte{1});
  for (int distance = 1; distance < size(); distance *= 2) {
    const int from = rank_before(distance);
    ExpectedMessage expected{.request = start_receive(std::span(small_).first(1), from, tag()),
                             .bytes = 1,
                             .from = from};
    Request send = start_send(std::span(small_).last(1), rank_after(distance), tag());
    wait_receive(expected);
    send.wait();
  }
}

// Bruck: after step k each rank has the pieces of 2^k ranks, starting with its own.
void MessageCommunicator::bruck_all_gather(std::span<const std::byte> in, std::byte* out,
                                           std::span<const std::int64_t> offsets, int tag) {
  const std::size_t bytes = in.size();
  const std::size_t local = at(rank());
  const std::size_t ranks = at(size());
  small_.resize(ranks * bytes);
  copy_bytes(small_.data(), in.data(), bytes);
  for (std::size_t distance = 1; distance < ranks; distance *= 2) {
    const std::size_t length = std::min(distance, ranks - distance) * bytes;
    std::vector<ExpectedMessage> receives;
    std::vector<Request> sends;
    post_receive(receives, std::span(small_).subspan(distance * bytes, length),
                 rank_after(static_cast<int>(distance)), tag);
    post_send(sends, std::span(small_).first(length), rank_before(static_cast<int>(distance)), tag);
    wait_all(receives, sends);
  }
  for (std::size_t k = 0; k < ranks; ++k) {
    const std::size_t r = (local + k) % ranks;
    copy_bytes(out + offsets[r], small_.data() + k * bytes, bytes);
  }
}

void MessageCommunicator::all_gather_control(std::span<const std::byte> in,
                                             std::span<std::byte> out) {
  const CollectiveDeadline shared_deadline(*this);
  std::vector<std::int64_t> offsets;
  for (int k = 0; k < size(); ++k) offsets.push_back(k * std::ssize(in));
  bruck_all_gather(in, out.data(), offsets, kFingerprintTag);
}

std::vector<Fingerprint> MessageCommunicator::gather_fingerprints(const Fingerprint& local) {
  std::vector<Fingerprint> all(at(size()));
  all_gather_control(std::as_bytes(std::span(&local, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

void MessageCommunicator::direct_exchange(std::span<const std::byte> in, const Pieces& to,
                                          std::span<std::byte> out, const Pieces& from) {
  std::vector<ExpectedMessage> receives;
  std::vector<Request> sends;
  receives.reserve(at(size()));
  sends.reserve(at(size()));
  const auto post_receives = [&] {
    for (int step = 1; step < size(); ++step) {
      const int peer = rank_before(step);
      const std::size_t k = at(peer);
      post_receive(receives, out.subspan(at(from.offsets[k]), at(from.counts[k])), peer, tag());
    }
  };
  post_both(post_receives, [&] {
    for (int step = 1; step < size(); ++step) {
      const int peer = rank_after(step);
      const std::size_t k = at(peer);
      post_send(sends, in.subspan(at(to.offsets[k]), at(to.counts[k])), peer, tag());
    }
  });
  const std::size_t local = at(rank());
  copy_bytes(out.data() + from.offsets[local], in.data() + to.offsets[local],
             at(from.counts[local]));
  wait_all(receives, sends);
}

void MessageCommunicator::do_all_to_all(std::span<const std::byte> in, const Pieces& to,
                                        std::span<std::byte> out, const Pieces& from) {
  const CollectiveDeadline shared_deadline(*this);
  direct_exchange(in, to, out, from);
}

void MessageCommunicator::do_all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                                        const Pieces& pieces) {
  const CollectiveDeadline shared_deadline(*this);
  // The counts are the same on all ranks; the offsets need not be.
  const bool are_equal = std::ranges::all_of(
      pieces.counts, [&](std::int64_t count) { return count == pieces.counts[0]; });
  if (are_equal && in.size() * at(size()) <= kSmallGather) {
    return bruck_all_gather(in, out.data(), pieces.offsets, tag());
  }
  const std::vector<std::int64_t> counts(at(size()), std::ssize(in));
  const std::vector<std::int64_t> offsets(at(size()), 0);
  direct_exchange(in, {.counts = counts, .offsets = offsets}, out, pieces);
}

void MessageCommunicator::do_broadcast(std::span<std::byte> data, int root) {
  const CollectiveDeadline shared_deadline(*this);
  const std::size_t ranks = at(size());
  const int position = (rank() - root + size()) % size();  // relative to the root
  std::vector<ExpectedMessage> receives;
  std::vector<Request> sends;
  if (ranks == 2 || data.size() < kLargeBroadcast) {
    int reach = 1;
    while (reach < size() && (position & reach) == 0) reach *= 2;
    if (position != 0) {
      post_receive(receives, data, rank_before(reach), tag());
      wait_all(receives, sends);
    }
    for (reach /= 2; reach > 0; reach /= 2) {
      if (position + reach < size()) post_send(sends, data, rank_after(reach), tag());
    }
    for (Request& send : sends) send.wait();
    return;
  }
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> offsets;
  for (std::size_t k = 0; k < ranks; ++k) {
    offsets.push_back(static_cast<std::int64_t>(data.size() * k / ranks));
    counts.push_back(static_cast<std::int64_t>(data.size() * (k + 1) / ranks) - offsets.back());
  }
  const auto piece = [&](int k) { return data.subspan(at(offsets[k]), at(counts[k])); };
  if (rank() == root) {
    for (int k = 0; k < size(); ++k) {
      if (k != root) post_send(sends, piece(k), k, tag());
    }
    for (Request& send : sends) send.wait();
  } else {
    post_receive(receives, piece(rank()), root, tag());
    wait_all(receives, sends);
  }
  do_all_gather(piece(rank()), data, {.counts = counts, .offsets = offsets});
}

// ---- reductions

// Double buffering: one segment is combined while the next one arrives.
void MessageCommunicator::reduce_parts(const SegmentedReduction& work) {
  const std::size_t segments = work.segments();
  const std::size_t room = segments > 1 ? 2 * work.segment() : work.part(work.ranks - 1).bytes;
  scratch_.resize(std::max(scratch_.size(), room * work.ranks));
  std::array<std::vector<ExpectedMessage>, 2> receives;
  std::array<std::vector<Request>, 2> sends;
  const auto post = [&](std::size_t s) {
    for (Request& send : sends[s % 2]) send.wait();
    receives[s % 2].clear();
    sends[s % 2].clear();
    const auto post_receives = [&] {
      const std::size_t bytes = work.segment_of(at(rank()), s).bytes;
      for (int step = 1; step < size(); ++step) {
        const int peer = rank_before(step);
        post_receive(receives[s % 2], {scratch_of(work, at(peer), s), bytes}, peer, tag());
      }
    };
    post_both(post_receives, [&] {
      for (int step = 1; step < size(); ++step) {
        const int peer = rank_after(step);
        const SegmentedReduction::ByteRange place = work.segment_of(at(peer), s);
        post_send(sends[s % 2], work.in.subspan(place.begin, place.bytes), peer, tag());
      }
    });
  };
  for (std::size_t s = 0; s < segments; ++s) {
    if (s == 0) post(0);
    if (s + 1 < segments) post(s + 1);
    for (ExpectedMessage& expected : receives[s % 2]) wait_receive(expected);
    combine_segment(work, s);
  }
  for (std::vector<Request>& all : sends) {
    for (Request& send : all) send.wait();
  }
}

// Receive buffer for segment s of rank k.
std::byte* MessageCommunicator::scratch_of(const SegmentedReduction& work, std::size_t k,
                                           std::size_t s) {
  const std::size_t room = std::min(work.segment(), work.part(work.ranks - 1).bytes);
  return scratch_.data() + (s % 2 * work.ranks + k) * room;
}

void MessageCommunicator::combine_segment(const SegmentedReduction& work, std::size_t s) {
  const std::size_t local = at(rank());
  const SegmentedReduction::ByteRange place = work.segment_of(local, s);
  const std::byte* const mine = work.in.data() + place.begin;
  std::byte* const out = work.out + s * work.segment();
  const std::byte* so_far = local == 0 ? mine : scratch_of(work, 0, s);
  for (std::size_t k = 1; k < at(size()); ++k) {
    // `out` may be the local contribution: do not write it before that has been combined.
    std::byte* const into = k < local ? scratch_of(work, 0, s) : out;
    combine(work.reduction, work.type, into, so_far, k == local ? mine : scratch_of(work, k, s),
            place.bytes / bytes_of(work.type));
    so_far = into;
  }
}

void MessageCommunicator::reduce_small(DType type, std::span<std::byte> data, ReduceOp reduction) {
  const std::size_t ranks = at(size());
  scratch_.resize(std::max(scratch_.size(), ranks * data.size()));
  const std::vector<std::int64_t> counts(ranks, std::ssize(data));
  std::vector<std::int64_t> offsets(ranks);
  for (std::size_t k = 1; k < ranks; ++k) offsets[k] = offsets[k - 1] + std::ssize(data);
  do_all_gather(data, std::span(scratch_).first(ranks * data.size()),
                {.counts = counts, .offsets = offsets});
  const std::byte* so_far = scratch_.data();
  for (std::size_t k = 1; k < ranks; ++k) {
    combine(reduction, type, data.data(), so_far, scratch_.data() + k * data.size(),
            data.size() / bytes_of(type));
    so_far = data.data();
  }
}

void MessageCommunicator::do_all_reduce(DType type, std::span<std::byte> data, ReduceOp reduction) {
  const CollectiveDeadline shared_deadline(*this);
  const std::size_t ranks = at(size());
  if (data.size() * ranks <= kSmallGather) return reduce_small(type, data, reduction);
  SegmentedReduction work{.type = type, .reduction = reduction, .in = data, .ranks = ranks};
  const SegmentedReduction::ByteRange local = work.part(at(rank()));
  work.out = data.data() + local.begin;
  reduce_parts(work);
  std::vector<ExpectedMessage> receives;
  std::vector<Request> sends;
  const auto post_receives = [&] {
    for (int step = 1; step < size(); ++step) {
      const int peer = rank_before(step);
      const SegmentedReduction::ByteRange theirs = work.part(at(peer));
      post_receive(receives, data.subspan(theirs.begin, theirs.bytes), peer, tag());
    }
  };
  post_both(post_receives, [&] {
    for (int step = 1; step < size(); ++step) {
      post_send(sends, data.subspan(local.begin, local.bytes), rank_after(step), tag());
    }
  });
  wait_all(receives, sends);
}

void MessageCommunicator::do_reduce_scatter(DType type, std::span<const std::byte> in,
                                            std::span<std::byte> out, ReduceOp reduction) {
  const CollectiveDeadline shared_deadline(*this);
  if (size() == 1) return copy_bytes(out.data(), in.data(), out.size());
  reduce_parts(
      {.type = type, .reduction = reduction, .in = in, .out = out.data(), .ranks = at(size())});
}

}  // namespace shiplap::comm
