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

constexpr std::size_t kLongestMessage = std::size_t{1} << 30;
// Above this a broadcast is cheaper as a scatter and a gather than down a tree.
constexpr std::size_t kLargeBroadcast = std::size_t{256} * 1024;
// Up to so many bytes from all ranks together, few messages matter more than few bytes.
constexpr std::size_t kSmallGather = std::size_t{32} * 1024;
// How much of a reduction is under way at a time, from all ranks together.
constexpr std::size_t kReductionWindow = std::size_t{4} * 1024 * 1024;
constexpr std::size_t kLeastSegment = std::size_t{64} * 1024;

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

namespace {

template <class T>
void kept_for_ever(std::vector<T> buffer) {
  static std::mutex mutex;
  static auto* const kept = new std::list<std::vector<T>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(buffer));
}

}  // namespace

MessageCommunicator::~MessageCommunicator() {
  // What could not be cancelled when it died may still arrive.
  if (alive()) return;
  kept_for_ever(std::move(scratch_));
  kept_for_ever(std::move(small_));
  kept_for_ever(std::move(exchange_.own_parts));
  kept_for_ever(std::move(exchange_.their_parts));
  kept_for_ever(std::move(exchange_.signals));
  kept_for_ever(std::move(exchange_.stamp));
}

MessageCommunicator::OneDeadline::OneDeadline(MessageCommunicator& communicator)
    : communicator_(communicator) {
  if (communicator.collective_deadline_) return;
  outermost_ = true;
  communicator.collective_deadline_ = communicator.now() + communicator.timeout().value;
  communicator.collective_begun();
}

// A buffer with a part for every rank, of which each rank combines its own. The parts are as equal
// as they can be, and go through in segments.
struct MessageCommunicator::Reducing {
  DType type = DType::u8;
  ReduceOp reduction = ReduceOp::sum;
  std::span<const std::byte> in;
  std::byte* out = nullptr;  // may be the own part of `in`
  std::size_t ranks = 1;

  struct Place {
    std::size_t begin = 0;  // in the buffer
    std::size_t bytes = 0;
  };
  [[nodiscard]] Place part(std::size_t k) const {
    const std::size_t width = bytes_of(type);
    const std::size_t count = in.size() / width;
    const std::size_t begin = count * k / ranks * width;
    return {.begin = begin, .bytes = count * (k + 1) / ranks * width - begin};
  }
  [[nodiscard]] std::size_t segment() const {
    const std::size_t width = bytes_of(type);
    return std::max(kReductionWindow / ranks, kLeastSegment) / width * width;
  }
  // The last part is the longest.
  [[nodiscard]] std::size_t segments() const {
    return (part(ranks - 1).bytes + segment() - 1) / segment();
  }
  [[nodiscard]] Place place(std::size_t k, std::size_t s) const {
    const Place whole = part(k);
    const std::size_t begin = std::min(s * segment(), whole.bytes);
    return {.begin = whole.begin + begin,
            .bytes = std::min(begin + segment(), whole.bytes) - begin};
  }
};

// ---- pieces

void MessageCommunicator::post_send(std::vector<Request>& sends, std::span<const std::byte> data,
                                    int to, int tag) {
  for (std::size_t at = 0; at < data.size(); at += kLongestMessage) {
    const std::size_t bytes = std::min(kLongestMessage, data.size() - at);
    sends.push_back(start_send(data.subspan(at, bytes), to, tag));
  }
}

void MessageCommunicator::post_receive(std::vector<Expected>& receives, std::span<std::byte> data,
                                       int from, int tag) {
  for (std::size_t at = 0; at < data.size(); at += kLongestMessage) {
    const std::size_t bytes = std::min(kLongestMessage, data.size() - at);
    receives.push_back({.request = start_receive(data.subspan(at, bytes), from, tag),
                        .bytes = static_cast<std::int64_t>(bytes),
                        .from = from});
  }
}

void MessageCommunicator::take(Expected& expected) {
  const std::int64_t bytes = expected.request.wait();
  if (bytes == expected.bytes) return;
  const int from = world_rank(expected.from);
  fail_mismatch(fmt::format("in `{}`, {}, rank {} sent {} bytes where rank {} expected {}", name(),
                            describe(current()), from, bytes, world_rank(rank()), expected.bytes),
                {from});
}

void MessageCommunicator::finish(std::vector<Expected>& receives, std::vector<Request>& sends) {
  for (Expected& expected : receives) take(expected);
  for (Request& send : sends) send.wait();
}

// ---- collectives

// After step k each rank has heard, directly or not, of the 2^k ranks before it.
void MessageCommunicator::do_barrier() {
  const OneDeadline one_deadline(*this);
  small_.assign(2, std::byte{1});
  for (int distance = 1; distance < size(); distance *= 2) {
    const int from = before(distance);
    Expected expected{.request = start_receive(std::span(small_).first(1), from, tag()),
                      .bytes = 1,
                      .from = from};
    Request send = start_send(std::span(small_).last(1), after(distance), tag());
    take(expected);
    send.wait();
  }
}

// After step k each rank has the pieces of the 2^k ranks that follow it, its own included.
void MessageCommunicator::gather_small(std::span<const std::byte> in, std::byte* out,
                                       std::span<const std::int64_t> offsets, int tag) {
  const std::size_t bytes = in.size();
  const std::size_t own = at(rank());
  const std::size_t ranks = at(size());
  small_.resize(ranks * bytes);
  copy_bytes(small_.data(), in.data(), bytes);
  for (std::size_t distance = 1; distance < ranks; distance *= 2) {
    const std::size_t length = std::min(distance, ranks - distance) * bytes;
    std::vector<Expected> receives;
    std::vector<Request> sends;
    post_receive(receives, std::span(small_).subspan(distance * bytes, length),
                 after(static_cast<int>(distance)), tag);
    post_send(sends, std::span(small_).first(length), before(static_cast<int>(distance)), tag);
    finish(receives, sends);
  }
  for (std::size_t k = 0; k < ranks; ++k) {
    const std::size_t r = (own + k) % ranks;
    copy_bytes(out + offsets[r], small_.data() + k * bytes, bytes);
  }
}

void MessageCommunicator::gather(std::span<const std::byte> in, std::span<std::byte> out) {
  const OneDeadline one_deadline(*this);
  std::vector<std::int64_t> offsets;
  for (int k = 0; k < size(); ++k) offsets.push_back(k * std::ssize(in));
  gather_small(in, out.data(), offsets, kCompareTag);
}

std::vector<Fingerprint> MessageCommunicator::compare(const Fingerprint& own) {
  std::vector<Fingerprint> all(at(size()));
  gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

void MessageCommunicator::exchange(std::span<const std::byte> in, const Pieces& to,
                                   std::span<std::byte> out, const Pieces& from) {
  std::vector<Expected> receives;
  std::vector<Request> sends;
  receives.reserve(at(size()));
  sends.reserve(at(size()));
  for (int step = 1; step < size(); ++step) {
    const int peer = before(step);
    const std::size_t k = at(peer);
    post_receive(receives, out.subspan(at(from.offsets[k]), at(from.counts[k])), peer, tag());
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = after(step);
    const std::size_t k = at(peer);
    post_send(sends, in.subspan(at(to.offsets[k]), at(to.counts[k])), peer, tag());
  }
  const std::size_t own = at(rank());
  copy_bytes(out.data() + from.offsets[own], in.data() + to.offsets[own], at(from.counts[own]));
  finish(receives, sends);
}

void MessageCommunicator::do_all_to_all(std::span<const std::byte> in, const Pieces& to,
                                        std::span<std::byte> out, const Pieces& from) {
  const OneDeadline one_deadline(*this);
  exchange(in, to, out, from);
}

void MessageCommunicator::do_all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                                        const Pieces& pieces) {
  const OneDeadline one_deadline(*this);
  // Decided by what all ranks agree on: where the pieces go is each one's own matter.
  const bool are_equal = std::ranges::all_of(
      pieces.counts, [&](std::int64_t count) { return count == pieces.counts[0]; });
  if (are_equal && in.size() * at(size()) <= kSmallGather) {
    return gather_small(in, out.data(), pieces.offsets, tag());
  }
  const std::vector<std::int64_t> counts(at(size()), std::ssize(in));
  const std::vector<std::int64_t> offsets(at(size()), 0);
  exchange(in, {.counts = counts, .offsets = offsets}, out, pieces);
}

void MessageCommunicator::do_broadcast(std::span<std::byte> data, int root) {
  const OneDeadline one_deadline(*this);
  const std::size_t ranks = at(size());
  const int position = (rank() - root + size()) % size();  // in a tree that begins at root
  std::vector<Expected> receives;
  std::vector<Request> sends;
  if (ranks == 2 || data.size() < kLargeBroadcast) {
    int reach = 1;
    while (reach < size() && (position & reach) == 0) reach *= 2;
    if (position != 0) {
      post_receive(receives, data, before(reach), tag());
      finish(receives, sends);
    }
    for (reach /= 2; reach > 0; reach /= 2) {
      if (position + reach < size()) post_send(sends, data, after(reach), tag());
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
    finish(receives, sends);
  }
  do_all_gather(piece(rank()), data, {.counts = counts, .offsets = offsets});
}

// ---- reductions

// Two segments are under way: while one is combined the next one arrives. (Sending the results of
// one while the next arrives was slower between two ranks that share a memory.)
void MessageCommunicator::reduce_parts(const Reducing& reducing) {
  const std::size_t segments = reducing.segments();
  const std::size_t room =
      segments > 1 ? 2 * reducing.segment() : reducing.part(reducing.ranks - 1).bytes;
  scratch_.resize(std::max(scratch_.size(), room * reducing.ranks));
  std::array<std::vector<Expected>, 2> receives;
  std::array<std::vector<Request>, 2> sends;
  const auto post = [&](std::size_t s) {
    for (Request& send : sends[s % 2]) send.wait();
    receives[s % 2].clear();
    sends[s % 2].clear();
    const std::size_t bytes = reducing.place(at(rank()), s).bytes;
    for (int step = 1; step < size(); ++step) {
      const int peer = before(step);
      post_receive(receives[s % 2], {scratch_of(reducing, at(peer), s), bytes}, peer, tag());
    }
    for (int step = 1; step < size(); ++step) {
      const int peer = after(step);
      const Reducing::Place place = reducing.place(at(peer), s);
      post_send(sends[s % 2], reducing.in.subspan(place.begin, place.bytes), peer, tag());
    }
  };
  for (std::size_t s = 0; s < segments; ++s) {
    if (s == 0) post(0);
    if (s + 1 < segments) post(s + 1);
    for (Expected& expected : receives[s % 2]) take(expected);
    combine_segment(reducing, s);
  }
  for (std::vector<Request>& all : sends) {
    for (Request& send : all) send.wait();
  }
}

// Where segment s from rank k arrives.
std::byte* MessageCommunicator::scratch_of(const Reducing& reducing, std::size_t k, std::size_t s) {
  const std::size_t room = std::min(reducing.segment(), reducing.part(reducing.ranks - 1).bytes);
  return scratch_.data() + (s % 2 * reducing.ranks + k) * room;
}

void MessageCommunicator::combine_segment(const Reducing& reducing, std::size_t s) {
  const std::size_t own = at(rank());
  const Reducing::Place place = reducing.place(own, s);
  const std::byte* const mine = reducing.in.data() + place.begin;
  std::byte* const out = reducing.out + s * reducing.segment();
  const std::byte* so_far = own == 0 ? mine : scratch_of(reducing, 0, s);
  for (std::size_t k = 1; k < at(size()); ++k) {
    // The own contribution may lie where the result goes, so nothing goes there before its turn.
    std::byte* const into = k < own ? scratch_of(reducing, 0, s) : out;
    combine(reducing.reduction, reducing.type, into, so_far,
            k == own ? mine : scratch_of(reducing, k, s), place.bytes / bytes_of(reducing.type));
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
  const OneDeadline one_deadline(*this);
  const std::size_t ranks = at(size());
  if (data.size() * ranks <= kSmallGather) return reduce_small(type, data, reduction);
  Reducing reducing{.type = type, .reduction = reduction, .in = data, .ranks = ranks};
  const Reducing::Place own = reducing.part(at(rank()));
  reducing.out = data.data() + own.begin;
  reduce_parts(reducing);
  std::vector<Expected> receives;
  std::vector<Request> sends;
  for (int step = 1; step < size(); ++step) {
    const int peer = before(step);
    const Reducing::Place theirs = reducing.part(at(peer));
    post_receive(receives, data.subspan(theirs.begin, theirs.bytes), peer, tag());
  }
  for (int step = 1; step < size(); ++step) {
    post_send(sends, data.subspan(own.begin, own.bytes), after(step), tag());
  }
  finish(receives, sends);
}

void MessageCommunicator::do_reduce_scatter(DType type, std::span<const std::byte> in,
                                            std::span<std::byte> out, ReduceOp reduction) {
  const OneDeadline one_deadline(*this);
  if (size() == 1) return copy_bytes(out.data(), in.data(), out.size());
  reduce_parts(
      {.type = type, .reduction = reduction, .in = in, .out = out.data(), .ranks = at(size())});
}

}  // namespace shiplap::comm
