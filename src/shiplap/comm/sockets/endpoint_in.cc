#include <fmt/format.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "shiplap/base/error.h"
#include "shiplap/comm/sockets/endpoint_internal.h"

// What comes in: straight to where it belongs if that is known, and to a place of ours until it is.

namespace shiplap::comm {
namespace {

// So many calls of the kernel for one rank before the others have their turn.
constexpr int kReadsAtOnce = 16;

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

// ---- bytes

void Endpoint::read(Wire& wire) {
  for (int k = 0; k < kReadsAtOnce && wire.socket.is_open(); ++k) {
    if (!read_once(wire)) return;
  }
}

std::span<std::byte> Endpoint::place_of(Wire& wire) {
  if (wire.receiving != nullptr && !wire.receiving->is_given_up) {
    return wire.receiving->target.subspan(wire.offset, wire.left);
  }
  if (wire.arrival != nullptr) return std::span(wire.arrival->data).last(wire.left);
  if (wire.header.kind == Header::Kind::control) return std::span(wire.control).last(wire.left);
  return std::span(discard_buffer_).first(std::min(wire.left, discard_buffer_.size()));
}

bool Endpoint::read_once(Wire& wire) {
  if (wire.begin == wire.end) wire.begin = wire.end = 0;
  const std::span<std::byte> place = wire.left > 0 ? place_of(wire) : std::span<std::byte>();
  // A place for waste is shorter than what is left, and then nothing else can follow.
  const bool is_all = place.size() == wire.left;
  const auto rest = std::span(wire.buffer).subspan(wire.end);
  std::array<iovec, 2> pieces{{{.iov_base = place.data(), .iov_len = place.size()},
                               {.iov_base = rest.data(), .iov_len = is_all ? rest.size() : 0}}};
  const std::size_t asked = pieces[0].iov_len + pieces[1].iov_len;
  const ssize_t count = readv(wire.socket.descriptor(), pieces.data(), 2);
  if (count < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno == EINTR) return true;
    lose_wire(wire,
              fmt::format("its connection broke: {}", std::generic_category().message(errno)));
    return false;
  }
  if (count == 0) {
    lose_wire(wire, "its process died: its connection was closed");
    return false;
  }
  const auto bytes = static_cast<std::size_t>(count);
  const std::size_t placed = std::min(bytes, place.size());
  if (placed > 0) took(wire, placed);
  wire.end += bytes - placed;
  digest(wire);
  return bytes == asked;
}

void Endpoint::took(Wire& wire, std::size_t bytes) {
  wire.left -= bytes;
  wire.offset += bytes;
  if (wire.left == 0) finish(wire);
}

void Endpoint::digest(Wire& wire) {
  while (wire.socket.is_open() && wire.begin < wire.end) {
    const auto come =
        std::span<const std::byte>(wire.buffer).subspan(wire.begin, wire.end - wire.begin);
    if (wire.left > 0) {
      const std::span<std::byte> place = place_of(wire);
      const std::size_t bytes = std::min(come.size(), place.size());
      copy_bytes(place, come.first(bytes));
      wire.begin += bytes;
      took(wire, bytes);
      continue;
    }
    if (come.size() < Header::kBytes) break;
    const auto header = decode_header(come.first<Header::kBytes>());
    if (!header) return lose_wire(wire, "it sent what is no message of Shiplap");
    wire.begin += Header::kBytes;
    wire.header = *header;
    begin(wire);
  }
  if (wire.begin > 0) {
    std::memmove(wire.buffer.data(), wire.buffer.data() + wire.begin, wire.end - wire.begin);
    wire.end -= wire.begin;
    wire.begin = 0;
  }
}

void Endpoint::lose_wire(Wire& wire, const std::string& reason) {
  wire.socket.close();
  wire.outgoing.clear();
  wire.granted.clear();
  wire.offered.clear();
  wire.accepted.clear();
  wire.receiving = nullptr;
  wire.arrival = nullptr;
  wire.left = 0;
  if (wire.is_ended) return;
  detector_.set_dead(wire.rank, reason);
}

// ---- messages

void Endpoint::begin(Wire& wire) {
  const Header& header = wire.header;
  wire.receiving = nullptr;
  wire.arrival = nullptr;
  wire.offset = 0;
  wire.left = 0;
  switch (header.kind) {
    case Header::Kind::eager:
      return begin_eager(wire);
    case Header::Kind::rts:
      return begin_rts(wire);
    case Header::Kind::frame:
      return begin_frame(wire);
    case Header::Kind::control:
      wire.control.resize(kControlBytes);
      wire.left = kControlBytes;
      return;
    case Header::Kind::cts:
    case Header::Kind::refuse: {
      const auto found = wire.offered.find(header.id);
      if (found == wire.offered.end()) return;  // it was withdrawn
      if (header.kind == Header::Kind::cts) {
        wire.granted.push_back(found->second);
      } else {
        found->second->is_refused = true;
        found->second->room = header.bytes;
      }
      wire.offered.erase(found);
      return write(wire);
    }
    case Header::Kind::withdraw:
      return withdrawn(wire);
  }
}

bool Endpoint::match(Receiving& receiving, std::size_t bytes) {
  receiving.bytes = bytes;
  receiving.is_too_long = bytes > receiving.target.size();
  receiving.is_done = receiving.is_too_long;
  return !receiving.is_too_long;
}

// Takes the receive that has waited longest for a message in this lane, if there is one.
std::shared_ptr<Receiving> Endpoint::first_receive(const MatchKey& lane) {
  const auto found = lanes_.find(lane);
  if (found == lanes_.end() || found->second.receives.empty()) return nullptr;
  std::shared_ptr<Receiving> receiving = std::move(found->second.receives.front());
  found->second.receives.pop_front();
  if (found->second.empty()) lanes_.erase(found);
  receiving->is_waiting = false;
  return receiving;
}

std::shared_ptr<Endpoint::UnexpectedMessage> Endpoint::add_unexpected(Wire& wire,
                                                                      std::size_t kept) {
  constexpr std::size_t kBesides = 2048;  // a lane of its own has queues of its own
  const std::size_t bytes = kept + kBesides;
  if (wire.unexpected + bytes > kMaxUnexpected) {
    lose_wire(wire, "it sent more than 512 MiB of messages that nobody asked for");
    return nullptr;
  }
  auto arrival = std::make_shared<UnexpectedMessage>();
  arrival->bytes = wire.header.bytes;
  arrival->unexpected = Unexpected(wire.unexpected, bytes);
  lanes_[lane_of(wire)].arrivals.push_back(arrival);
  return arrival;
}

void Endpoint::begin_eager(Wire& wire) {
  const MatchKey lane = lane_of(wire);
  wire.left = wire.header.bytes;
  if (auto receiving = first_receive(lane)) {
    if (match(*receiving, wire.left)) wire.receiving = std::move(receiving);
  } else if (!detector_.is_group_ended(lane.group)) {
    wire.arrival = add_unexpected(wire, wire.left);
    if (wire.arrival == nullptr) return;
    wire.arrival->data.resize(wire.left);
  }
  if (wire.left == 0) finish(wire);
}

void Endpoint::begin_rts(Wire& wire) {
  if (wire.header.id <= wire.last_rts) {
    return lose_wire(wire, "it offered two messages under one number");
  }
  wire.last_rts = wire.header.id;
  const MatchKey lane = lane_of(wire);
  if (const auto receiving = first_receive(lane)) {
    send_cts(wire, wire.header.id, wire.header.bytes, receiving);
  } else if (!detector_.is_group_ended(lane.group)) {
    const auto arrival = add_unexpected(wire, 0);
    if (arrival == nullptr) return;
    arrival->id = wire.header.id;
    arrival->is_rts = true;
  }
}

void Endpoint::send_cts(Wire& wire, std::uint64_t id, std::size_t bytes,
                        const std::shared_ptr<Receiving>& receiving) {
  Header answer{.kind = Header::Kind::cts, .id = id};
  if (match(*receiving, bytes)) {
    const bool is_new = wire.accepted.emplace(id, Accepted{.receiving = receiving}).second;
    ensure(is_new, "a message is accepted once");
  } else {
    answer.kind = Header::Kind::refuse;
    answer.bytes = receiving->target.size();
  }
  post(wire, answer);
}

void Endpoint::begin_frame(Wire& wire) {
  const auto found = wire.accepted.find(wire.header.id);
  if (found == wire.accepted.end() ||
      wire.header.bytes > found->second.receiving->bytes - found->second.received) {
    return lose_wire(wire, "it sent more of a message than was asked for");
  }
  wire.receiving = found->second.receiving;
  wire.offset = found->second.received;
  wire.left = wire.header.bytes;
}

// As if it had never been sent: a receive that has met it waits again, before those that came
// later.
void Endpoint::withdrawn(Wire& wire) {
  const MatchKey lane = lane_of(wire);
  if (const auto found = wire.accepted.find(wire.header.id); found != wire.accepted.end()) {
    const std::shared_ptr<Receiving> receiving = std::move(found->second.receiving);
    wire.accepted.erase(found);
    if (!receiving->is_given_up) wait_for_message(receiving, Place::first);
    return;
  }
  const auto found = lanes_.find(lane);
  if (found == lanes_.end()) return;
  std::erase_if(found->second.arrivals, [&](const auto& arrival) {
    return arrival->is_rts && arrival->id == wire.header.id;
  });
  if (found->second.empty()) lanes_.erase(found);
}

// All that followed a header has come.
void Endpoint::finish(Wire& wire) {
  if (wire.header.kind == Header::Kind::control) return hear(wire);
  if (wire.arrival != nullptr) {
    const std::shared_ptr<UnexpectedMessage> arrival = std::move(wire.arrival);
    arrival->is_whole = true;
    if (arrival->receiving != nullptr) meet(arrival->receiving, *arrival);
    return;
  }
  if (wire.receiving == nullptr) return;
  const std::shared_ptr<Receiving> receiving = std::move(wire.receiving);
  receiving->is_done = wire.offset == receiving->bytes;
  if (wire.header.kind != Header::Kind::frame) return;
  const auto found = wire.accepted.find(wire.header.id);
  found->second.received = wire.offset;
  if (receiving->is_done) wire.accepted.erase(found);
}

// A probe waits for a thread that can say what this rank does.
void Endpoint::hear(Wire& wire) {
  const auto message =
      decode_control(std::span<const std::byte>(wire.control).first<kControlBytes>());
  if (!message) return lose_wire(wire, "it sent a notice that makes no sense");
  if (message->kind == ControlMessage::Kind::probe) {
    probes_.emplace_back(*message, wire.rank);
  } else if (message->kind == ControlMessage::Kind::goodbye) {
    wire.is_ended = true;
    wire.has_failed = message->waits != 0;
    if (!wire.has_failed) detector_.set_ended(wire.rank);
  } else {
    (void)detector_.handle(*message, wire.rank);  // only probes are replied to
  }
}

// ---- receives

std::shared_ptr<Receiving> Endpoint::start_receive(const MatchKey& lane,
                                                   std::span<std::byte> target) {
  auto receiving = std::make_shared<Receiving>(Receiving{.lane = lane, .target = target});
  wait_for_message(receiving, Place::last);
  return receiving;
}

void Endpoint::wait_for_message(const std::shared_ptr<Receiving>& receiving, Place place) {
  Queue& queue = lanes_[receiving->lane];
  if (queue.arrivals.empty()) {
    receiving->is_waiting = true;
    queue.receives.insert(place == Place::first ? queue.receives.begin() : queue.receives.end(),
                          receiving);
    return;
  }
  const std::shared_ptr<UnexpectedMessage> arrival = std::move(queue.arrivals.front());
  queue.arrivals.pop_front();
  if (queue.empty()) lanes_.erase(receiving->lane);
  meet(receiving, *arrival);
}

void Endpoint::meet(const std::shared_ptr<Receiving>& receiving, UnexpectedMessage& arrival) {
  if (arrival.is_rts) {
    return send_cts(wire(receiving->lane.from), arrival.id, arrival.bytes, receiving);
  }
  if (arrival.own == nullptr && !arrival.is_whole) {
    arrival.receiving = receiving;
    return;
  }
  if (receiving->is_given_up) return;
  const bool fits = match(*receiving, arrival.bytes);
  if (Sending* const own = arrival.own.get()) {
    if (fits) copy_bytes(receiving->target, own->data);
    own->is_done = fits;
    own->is_refused = !fits;
    own->room = receiving->target.size();
  } else if (fits) {
    copy_bytes(receiving->target, arrival.data);
  }
  receiving->is_done = true;
}

void Endpoint::cancel(Receiving& receiving) {
  receiving.is_given_up = true;
  if (!receiving.is_waiting) return;
  const auto lane = lanes_.find(receiving.lane);
  if (lane == lanes_.end()) return;  // its group has ended
  std::erase_if(lane->second.receives, [&](const auto& each) { return each.get() == &receiving; });
  if (lane->second.empty()) lanes_.erase(lane);
}

}  // namespace shiplap::comm
