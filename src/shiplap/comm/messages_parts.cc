#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/comm/messages_internal.h"

// all_to_all_parts. Parts for a rank on another host are sent as messages, one each. A rank on the
// same host gets a list of addresses, reads the memory of this process (process_vm_readv,
// docs/decisions/011), and sends a signal when it is done: one copy per part, where a message needs
// two.
//
// A rank that fails meanwhile may free the parts while a peer reads them. So each list ends with
// the address of a stamp, which is cleared before the parts are freed. A peer checks it after
// reading.

namespace shiplap::comm {
namespace {

template <class Parts>
auto parts_of(const Parts& parts, int rank) {
  const std::size_t first = parts.first[rank];
  return parts.parts.subspan(first, parts.first[at(rank) + 1] - first);
}

// The list of parts for one rank, including the stamp at its end.
template <class List>
auto list_for(List& lists, std::span<const std::size_t> first, int rank) {
  const std::size_t parts = first[at(rank) + 1] - first[rank];
  return std::span(lists).subspan(first[rank] + at(rank), parts + 1);
}

// Long parts are split: many short messages share a link more fairly than few long ones.
constexpr std::size_t kMessageBytes = std::size_t{256} * 1024;

template <class Bytes, class Act>
void for_each_message(Bytes part, const Act& act) {
  for (std::size_t at = 0; at < part.size(); at += kMessageBytes) {
    act(part.subspan(at, std::min(kMessageBytes, part.size() - at)));
  }
}

template <class List>
bool has_bytes(const List& parts) {
  return std::ranges::any_of(parts, [](const auto& part) { return !part.empty(); });
}

}  // namespace

void MessageCommunicator::read_memory(int /*peer*/, std::span<const RemotePart> /*from*/,
                                      std::span<const std::span<std::byte>> /*to*/) {
  throw InternalError("this transport cannot read the memory of other ranks");
}

void MessageCommunicator::Exchange::clear() {
  std::atomic_ref(stamp[0]).store(0);  // before the caller frees the parts
  receives.clear();
  sends.clear();
  lists.clear();
}

void MessageCommunicator::list_parts(const Outgoing& to) {
  const auto stamp = static_cast<std::uint64_t>(current().sequence) + 1;
  std::atomic_ref(exchange_.stamp[0]).store(stamp);
  exchange_.local_parts.resize(to.parts.size() + at(size()));
  for (int peer = 0; peer < size(); ++peer) {
    const std::span<RemotePart> list = list_for(exchange_.local_parts, to.first, peer);
    std::ranges::transform(parts_of(to, peer), list.begin(), [](std::span<const std::byte> part) {
      return RemotePart{.address = reinterpret_cast<std::uint64_t>(part.data()),
                        .bytes = part.size()};
    });
    list.back() = {.address = reinterpret_cast<std::uint64_t>(exchange_.stamp.data()),
                   .bytes = stamp};
  }
}

void MessageCommunicator::post_parts(const Outgoing& to, const Incoming& from) {
  list_parts(to);
  exchange_.lists.resize(at(size()));
  exchange_.signals.resize(2 * at(size()));
  exchange_.remote_parts.resize(from.parts.size() + at(size()));
  post_both([&] { post_incoming(to, from); }, [&] { post_outgoing(to); });
}

void MessageCommunicator::post_incoming(const Outgoing& to, const Incoming& from) {
  for (int step = 1; step < size(); ++step) {
    const int peer = rank_before(step);
    const auto parts = parts_of(from, peer);
    if (!shares_memory_with(peer)) {
      for (const std::span<std::byte> part : parts) {
        for_each_message(part, [&](std::span<std::byte> message) {
          post_receive(exchange_.receives, message, peer, tag());
        });
      }
      continue;
    }
    // The peer sends its list before the signal that it has read the local parts.
    if (has_bytes(parts)) {
      const std::span<RemotePart> list = list_for(exchange_.remote_parts, from.first, peer);
      exchange_.lists[peer] = start_receive(std::as_writable_bytes(list), peer, tag());
    }
    if (has_bytes(parts_of(to, peer))) {
      post_receive(exchange_.receives, std::span(exchange_.signals).subspan(2 * at(peer), 1), peer,
                   tag());
    }
  }
}

void MessageCommunicator::post_outgoing(const Outgoing& to) {
  for (int step = 1; step < size(); ++step) {
    const int peer = rank_after(step);
    const auto parts = parts_of(to, peer);
    if (!shares_memory_with(peer)) {
      for (const std::span<const std::byte> part : parts) {
        for_each_message(part, [&](std::span<const std::byte> message) {
          post_send(exchange_.sends, message, peer, tag());
        });
      }
    } else if (has_bytes(parts)) {
      const std::span<RemotePart> list = list_for(exchange_.local_parts, to.first, peer);
      exchange_.sends.push_back(start_send(std::as_bytes(list), peer, tag()));
    }
  }
}

void MessageCommunicator::check_stamp(int peer, const RemotePart& expected) {
  std::uint64_t stamp = 0;
  const std::span<std::byte> into = std::as_writable_bytes(std::span(&stamp, 1));
  const RemotePart address{.address = expected.address, .bytes = sizeof stamp};
  read_memory(peer, {&address, 1}, {&into, 1});
  if (stamp != expected.bytes) {
    fail_rank(world_rank(peer), "it failed while its memory was read");
  }
}

void MessageCommunicator::read_parts(int peer, const Incoming& from, Request& list) {
  const auto parts = parts_of(from, peer);
  const std::span<RemotePart> theirs = list_for(exchange_.remote_parts, from.first, peer);
  const std::int64_t bytes = list.wait();
  const bool fits = bytes == std::ssize(std::as_bytes(theirs)) &&
                    std::ranges::equal(theirs.first(parts.size()), parts, {}, &RemotePart::bytes,
                                       &std::span<std::byte>::size);
  if (!fits) {
    fail_mismatch(
        fmt::format("mismatch in `{}`, {}: the parts that rank {} sends are not those that rank "
                    "{} expects",
                    name(), describe(current()), world_rank(peer), world_rank(rank())),
        {world_rank(peer)});
  }
  read_memory(peer, theirs.first(parts.size()), parts);
  check_stamp(peer, theirs.back());
  post_send(exchange_.sends, std::span(exchange_.signals).subspan(2 * at(peer) + 1, 1), peer,
            tag());
}

void MessageCommunicator::do_all_to_all_parts(const Outgoing& to, const Incoming& from) {
  const CollectiveDeadline shared_deadline(*this);
  // Also after an exception, nothing stays in flight.
  struct Clearing {
    Exchange& exchange;
    ~Clearing() { exchange.clear(); }
  } const clearing{exchange_};
  post_parts(to, from);
  const auto local = parts_of(to, rank());
  const auto room = parts_of(from, rank());
  for (std::size_t k = 0; k < local.size(); ++k) {
    if (!local[k].empty()) std::memmove(room[k].data(), local[k].data(), local[k].size());
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = rank_before(step);
    if (shares_memory_with(peer) && has_bytes(parts_of(from, peer))) {
      read_parts(peer, from, exchange_.lists[peer]);
    }
  }
  wait_all(exchange_.receives, exchange_.sends);
}

}  // namespace shiplap::comm
