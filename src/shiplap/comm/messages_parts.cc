#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "shiplap/base/error.h"
#include "shiplap/comm/messages_internal.h"

// Parts for a rank whose memory cannot be reached travel as messages, one each. To the others goes
// a list of where the parts lie; they read them and say when they are done. So the parts are copied
// once, however many there are, which no message between processes can do.

namespace shiplap::comm {
namespace {

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

template <class Parts>
auto parts_of(const Parts& parts, int rank) {
  const std::size_t first = parts.first[at(rank)];
  return parts.parts.subspan(first, parts.first[at(rank) + 1] - first);
}

template <class List>
bool has_bytes(const List& parts) {
  return std::ranges::any_of(parts, [](const auto& part) { return !part.empty(); });
}

}  // namespace

void MessageCommunicator::read_memory(int /*peer*/, std::span<const RemotePart> /*from*/,
                                      std::span<const std::span<std::byte>> /*to*/) {
  throw InternalError("this transport reads no memory of others");
}

void MessageCommunicator::Exchange::clear_requests() {
  receives.clear();
  sends.clear();
  lists.clear();
}

void MessageCommunicator::post_parts(const Outgoing& to, const Incoming& from) {
  exchange_.lists.resize(at(size()));
  exchange_.signals.resize(2 * at(size()));
  exchange_.own_parts.resize(to.parts.size());
  exchange_.their_parts.resize(from.parts.size());
  std::ranges::transform(
      to.parts, exchange_.own_parts.begin(), [](std::span<const std::byte> part) -> RemotePart {
        return {.address = reinterpret_cast<std::uint64_t>(part.data()), .bytes = part.size()};
      });
  for (int step = 1; step < size(); ++step) {
    const int peer = before(step);
    const auto parts = parts_of(from, peer);
    if (!shares_memory_with(peer)) {
      for (const std::span<std::byte> part : parts) {
        post_receive(exchange_.receives, part, peer, tag());
      }
    } else if (has_bytes(parts)) {
      exchange_.lists[at(peer)] = start_receive(
          std::as_writable_bytes(
              std::span(exchange_.their_parts).subspan(from.first[at(peer)], parts.size())),
          peer, tag());
    }
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = after(step);
    const auto parts = parts_of(to, peer);
    if (!shares_memory_with(peer)) {
      for (const std::span<const std::byte> part : parts) {
        post_send(exchange_.sends, part, peer, tag());
      }
    } else if (has_bytes(parts)) {
      const auto list = std::span(exchange_.own_parts).subspan(to.first[at(peer)], parts.size());
      exchange_.sends.push_back(start_send(std::as_bytes(list), peer, tag()));
      // It will say when it has read them.
      post_receive(exchange_.receives, std::span(exchange_.signals).subspan(2 * at(peer), 1), peer,
                   tag());
    }
  }
}

void MessageCommunicator::read_parts(int peer, const Incoming& from, Request& list) {
  const auto parts = parts_of(from, peer);
  const auto theirs = std::span(exchange_.their_parts).subspan(from.first[at(peer)], parts.size());
  const std::int64_t bytes = list.wait();
  const bool fits =
      bytes == std::ssize(std::as_bytes(theirs)) &&
      std::ranges::equal(theirs, parts, {}, &RemotePart::bytes, &std::span<std::byte>::size);
  if (!fits) {
    fail_mismatch(fmt::format("in `{}`, {}, the parts that rank {} sends are not those that rank "
                              "{} expects",
                              name(), describe(current()), world_rank(peer), world_rank(rank())),
                  {world_rank(peer)});
  }
  read_memory(peer, theirs, parts);
  post_send(exchange_.sends, std::span(exchange_.signals).subspan(2 * at(peer) + 1, 1), peer,
            tag());
}

void MessageCommunicator::do_all_to_all_parts(const Outgoing& to, const Incoming& from) {
  const OneDeadline one_deadline(*this);
  // However this ends, nothing of it stays under way.
  struct Clearing {
    Exchange& exchange;
    ~Clearing() { exchange.clear_requests(); }
  } const clearing{exchange_};
  post_parts(to, from);
  const auto mine = parts_of(to, rank());
  const auto room = parts_of(from, rank());
  for (std::size_t k = 0; k < mine.size(); ++k) {
    if (!mine[k].empty()) std::memmove(room[k].data(), mine[k].data(), mine[k].size());
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = before(step);
    if (shares_memory_with(peer) && has_bytes(parts_of(from, peer))) {
      read_parts(peer, from, exchange_.lists[at(peer)]);
    }
  }
  finish(exchange_.receives, exchange_.sends);
}

}  // namespace shiplap::comm
