#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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

std::size_t as_size(std::int64_t number) { return static_cast<std::size_t>(number); }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

// While it lives all waits of this communicator have the same deadline.
class MessageCommunicator::OneDeadline {
 public:
  explicit OneDeadline(MessageCommunicator& communicator) : communicator_(communicator) {
    if (communicator.collective_deadline_) return;
    outermost_ = true;
    communicator.collective_deadline_ = communicator.now() + communicator.timeout().value;
    communicator.collective_begun();
  }
  OneDeadline(const OneDeadline&) = delete;
  OneDeadline& operator=(const OneDeadline&) = delete;
  ~OneDeadline() {
    if (outermost_) communicator_.collective_deadline_.reset();
  }

 private:
  MessageCommunicator& communicator_;
  bool outermost_ = false;
};

// A buffer with a part for every rank, of which each rank combines its own. The parts go through in
// segments.
struct MessageCommunicator::Reducing {
  Type type = Type::u8;
  Reduction reduction = Reduction::sum;
  const std::byte* in = nullptr;
  Pieces parts;
  std::byte* out = nullptr;  // may be the own part of `in`

  [[nodiscard]] std::size_t longest() const {
    return as_size(*std::ranges::max_element(parts.counts));
  }
  [[nodiscard]] std::size_t segment() const {
    const std::size_t width = bytes_of(type);
    const std::size_t share = std::max(kReductionWindow / parts.counts.size(), kLeastSegment);
    return std::min(longest(), share / width * width);
  }
  [[nodiscard]] std::size_t segments() const {
    return longest() == 0 ? 0 : (longest() + segment() - 1) / segment();
  }
  // Where segment s of part k begins in the buffer, and its length.
  struct Place {
    std::size_t begin = 0;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Place place(std::size_t k, std::size_t s) const {
    const std::size_t length = as_size(parts.counts[k]);
    const std::size_t begin = std::min(s * segment(), length);
    return {.begin = as_size(parts.offsets[k]) + begin,
            .bytes = std::min(begin + segment(), length) - begin};
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
void MessageCommunicator::disseminate(int tag) {
  const OneDeadline one_deadline(*this);
  for (int distance = 1; distance < size(); distance *= 2) {
    const int from = (rank() - distance + size()) % size();
    const std::byte sent{1};
    std::byte received{};
    Expected expected{
        .request = start_receive({&received, 1}, from, tag), .bytes = 1, .from = from};
    Request send = start_send({&sent, 1}, (rank() + distance) % size(), tag);
    take(expected);
    send.wait();
  }
}

void MessageCommunicator::meet() { disseminate(kCompareTag); }

void MessageCommunicator::do_barrier() { disseminate(tag()); }

// After step k each rank has the pieces of the 2^k ranks that follow it, its own included.
void MessageCommunicator::gather_small(std::span<const std::byte> in, std::byte* out,
                                       std::span<const std::int64_t> offsets, int tag) {
  const std::size_t bytes = in.size();
  const std::size_t own = as_size(rank());
  const std::size_t ranks = as_size(size());
  std::vector<std::byte> from_own_on(ranks * bytes);
  copy_bytes(from_own_on.data(), in.data(), bytes);
  for (std::size_t distance = 1; distance < ranks; distance *= 2) {
    const std::size_t length = std::min(distance, ranks - distance) * bytes;
    std::vector<Expected> receives;
    std::vector<Request> sends;
    post_receive(receives, std::span(from_own_on).subspan(distance * bytes, length),
                 static_cast<int>((own + distance) % ranks), tag);
    post_send(sends, std::span(from_own_on).first(length),
              static_cast<int>((own + ranks - distance) % ranks), tag);
    finish(receives, sends);
  }
  for (std::size_t k = 0; k < ranks; ++k) {
    const std::size_t r = (own + k) % ranks;
    copy_bytes(out + offsets[r], from_own_on.data() + k * bytes, bytes);
  }
}

std::vector<Fingerprint> MessageCommunicator::compare(const Fingerprint& own) {
  const OneDeadline one_deadline(*this);
  std::vector<Fingerprint> all(as_size(size()));
  std::vector<std::int64_t> offsets;
  for (std::size_t k = 0; k < all.size(); ++k) {
    offsets.push_back(static_cast<std::int64_t>(k * sizeof(Fingerprint)));
  }
  gather_small(std::as_bytes(std::span(&own, 1)), reinterpret_cast<std::byte*>(all.data()), offsets,
               kCompareTag);
  return all;
}

void MessageCommunicator::exchange(std::span<const std::byte> in, const Pieces& to,
                                   std::span<std::byte> out, const Pieces& from) {
  std::vector<Expected> receives;
  std::vector<Request> sends;
  receives.reserve(as_size(size()));
  sends.reserve(as_size(size()));
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() - step + size()) % size();
    const std::size_t k = as_size(peer);
    post_receive(receives, out.subspan(as_size(from.offsets[k]), as_size(from.counts[k])), peer,
                 tag());
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const std::size_t k = as_size(peer);
    post_send(sends, in.subspan(as_size(to.offsets[k]), as_size(to.counts[k])), peer, tag());
  }
  const std::size_t own = as_size(rank());
  copy_bytes(out.data() + from.offsets[own], in.data() + to.offsets[own],
             as_size(from.counts[own]));
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
  if (are_equal && in.size() * as_size(size()) <= kSmallGather) {
    return gather_small(in, out.data(), pieces.offsets, tag());
  }
  const std::vector<std::int64_t> counts(as_size(size()), std::ssize(in));
  const std::vector<std::int64_t> offsets(as_size(size()), 0);
  exchange(in, {.counts = counts, .offsets = offsets}, out, pieces);
}

void MessageCommunicator::do_broadcast(std::span<std::byte> data, int root) {
  const OneDeadline one_deadline(*this);
  const std::size_t ranks = as_size(size());
  const int position = (rank() - root + size()) % size();  // in a tree that begins at root
  std::vector<Expected> receives;
  std::vector<Request> sends;
  if (ranks == 2 || data.size() < kLargeBroadcast) {
    int reach = 1;
    while (reach < size() && (position & reach) == 0) reach *= 2;
    if (position != 0) {
      post_receive(receives, data, (rank() - reach + size()) % size(), tag());
      finish(receives, sends);
    }
    for (reach /= 2; reach > 0; reach /= 2) {
      if (position + reach < size()) post_send(sends, data, (rank() + reach) % size(), tag());
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
  const auto piece = [&](int k) {
    return data.subspan(as_size(offsets[as_size(k)]), as_size(counts[as_size(k)]));
  };
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
  const std::size_t segment = reducing.segment();
  scratch_.resize(
      std::max(scratch_.size(), segment * as_size(size()) * std::min<std::size_t>(segments, 2)));
  std::vector<std::vector<Expected>> receives(segments);
  std::vector<std::vector<Request>> sends(segments);
  const auto post = [&](std::size_t s) {
    const std::size_t bytes = reducing.place(as_size(rank()), s).bytes;
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() - step + size()) % size();
      post_receive(receives[s], {scratch_of(reducing, as_size(peer), s), bytes}, peer, tag());
    }
    for (int step = 1; step < size(); ++step) {
      const int peer = (rank() + step) % size();
      const Reducing::Place place = reducing.place(as_size(peer), s);
      post_send(sends[s], {reducing.in + place.begin, place.bytes}, peer, tag());
    }
  };
  for (std::size_t s = 0; s < segments; ++s) {
    if (s == 0) post(0);
    if (s + 1 < segments) post(s + 1);
    for (Expected& expected : receives[s]) take(expected);
    combine_segment(reducing, s);
  }
  for (std::vector<Request>& all : sends) {
    for (Request& send : all) send.wait();
  }
}

// Where segment s from rank k arrives.
std::byte* MessageCommunicator::scratch_of(const Reducing& reducing, std::size_t k, std::size_t s) {
  return scratch_.data() + (s % 2 * as_size(size()) + k) * reducing.segment();
}

void MessageCommunicator::combine_segment(const Reducing& reducing, std::size_t s) {
  const std::size_t own = as_size(rank());
  const Reducing::Place place = reducing.place(own, s);
  const std::byte* const mine = reducing.in + place.begin;
  std::byte* const out = reducing.out + s * reducing.segment();
  const std::byte* so_far = own == 0 ? mine : scratch_of(reducing, 0, s);
  for (std::size_t k = 1; k < as_size(size()); ++k) {
    // The own contribution may lie where the result goes, so nothing goes there before its turn.
    std::byte* const into = k < own ? scratch_of(reducing, 0, s) : out;
    combine(reducing.reduction, reducing.type, into, so_far,
            k == own ? mine : scratch_of(reducing, k, s), place.bytes / bytes_of(reducing.type));
    so_far = into;
  }
}

void MessageCommunicator::reduce_small(Type type, std::span<std::byte> data, Reduction reduction) {
  const std::size_t ranks = as_size(size());
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

void MessageCommunicator::do_all_reduce(Type type, std::span<std::byte> data, Reduction reduction) {
  const OneDeadline one_deadline(*this);
  const std::size_t ranks = as_size(size());
  if (data.size() * ranks <= kSmallGather) return reduce_small(type, data, reduction);
  const std::size_t width = bytes_of(type);
  const std::size_t count = data.size() / width;
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> offsets;
  for (std::size_t k = 0; k < ranks; ++k) {
    offsets.push_back(static_cast<std::int64_t>(count * k / ranks * width));
    counts.push_back(static_cast<std::int64_t>(count * (k + 1) / ranks * width) - offsets.back());
  }
  const Pieces parts{.counts = counts, .offsets = offsets};
  const std::size_t own = as_size(rank());
  reduce_parts({.type = type,
                .reduction = reduction,
                .in = data.data(),
                .parts = parts,
                .out = data.data() + offsets[own]});
  do_all_gather(data.subspan(as_size(offsets[own]), as_size(counts[own])), data, parts);
}

void MessageCommunicator::do_reduce_scatter(Type type, std::span<const std::byte> in,
                                            std::span<std::byte> out, Reduction reduction) {
  const OneDeadline one_deadline(*this);
  if (size() == 1) return copy_bytes(out.data(), in.data(), out.size());
  const std::vector<std::int64_t> counts(as_size(size()), std::ssize(out));
  std::vector<std::int64_t> offsets(as_size(size()));
  for (std::size_t k = 1; k < offsets.size(); ++k) offsets[k] = offsets[k - 1] + std::ssize(out);
  reduce_parts({.type = type,
                .reduction = reduction,
                .in = in.data(),
                .parts = {.counts = counts, .offsets = offsets},
                .out = out.data()});
}

}  // namespace shiplap::comm
