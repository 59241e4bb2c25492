#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "shiplap/comm/sockets/endpoint_internal.h"

// What goes out. Messages are written from where they lie; long ones in frames, so that control
// messages and short ones need not wait for them to end.

namespace shiplap::comm {
namespace {

// How many frames go with one call of the kernel.
constexpr std::size_t kFramesAtOnce = 8;

}  // namespace

std::shared_ptr<Sending> Endpoint::start_send(const MatchKey& lane, int to,
                                              std::span<const std::byte> data) {
  auto sending = std::make_shared<Sending>(Sending{.lane = lane, .to = to, .data = data});
  if (to == detector_.rank()) {
    send_to_itself(sending);
    return sending;
  }
  Wire& one = wire(to);
  if (!one.socket.is_open() || one.is_broken) return sending;
  Header header{.tag = lane.tag, .group = lane.group, .bytes = data.size()};
  if (data.size() <= Header::kMostEager) {
    one.outgoing.push_back({.head = encode(header), .body = data, .sending = sending});
  } else {
    header.kind = Header::Kind::rts;
    header.id = sending->id = next_id_++;
    one.offered.emplace(sending->id, sending);
    one.outgoing.push_back({.head = encode(header)});
  }
  write(one);
  return sending;
}

void Endpoint::post(Wire& wire, const Header& header, std::vector<std::byte> body) {
  if (!wire.socket.is_open() || wire.is_broken) return;
  OutgoingFrame& frame = wire.outgoing.emplace_back(OutgoingFrame{.head = encode(header)});
  frame.kept = std::move(body);
  frame.body = frame.kept;
  write(wire);
}

bool Endpoint::prepare(Wire& wire) {
  if (!wire.outgoing.empty()) return true;
  if (wire.granted.empty()) return false;
  const std::shared_ptr<Sending>& sending = wire.granted.front();
  const auto body = sending->data.subspan(
      sending->written, std::min(Header::kMostFrame, sending->data.size() - sending->written));
  wire.outgoing.push_back({.head = encode(Header{.kind = Header::Kind::frame,
                                                 .tag = sending->lane.tag,
                                                 .group = sending->lane.group,
                                                 .bytes = body.size(),
                                                 .id = sending->id}),
                           .body = body,
                           .sending = sending});
  return true;
}

void Endpoint::write(Wire& wire) {
  wire.waits_to_write = wire.waits_to_write && !wire.is_broken;
  bool would_wait = false;
  while (!would_wait && !wire.is_broken && prepare(wire)) {
    std::array<iovec, 2 * kFramesAtOnce> pieces{};
    std::size_t count = 0;
    std::size_t bytes = 0;
    const auto add = [&](std::span<const std::byte> piece) {
      if (piece.empty()) return;
      // The kernel only reads there, which its interface does not say.
      // NOLINTNEXTLINE(bugprone-bitwise-pointer-cast)
      pieces.at(count++) = {.iov_base = std::bit_cast<void*>(piece.data()),
                            .iov_len = piece.size()};
      bytes += piece.size();
    };
    for (std::size_t k = 0; k < std::min(kFramesAtOnce, wire.outgoing.size()); ++k) {
      const OutgoingFrame& frame = wire.outgoing[k];
      const std::size_t of_head = std::min(frame.sent, Header::kBytes);
      add(std::span(frame.head).subspan(of_head));
      add(frame.body.subspan(frame.sent - of_head));
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(wire.socket.descriptor(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      would_wait = errno == EAGAIN || errno == EWOULDBLOCK;
      if (!would_wait && errno != EINTR) wire.is_broken = true;
      continue;
    }
    written(wire, static_cast<std::size_t>(sent));
    would_wait = static_cast<std::size_t>(sent) < bytes;
  }
  if (wire.is_broken) {
    wire.outgoing.clear();
    wire.granted.clear();
    wire.offered.clear();
  }
  if (wire.waits_to_write != would_wait) {
    wire.waits_to_write = would_wait;
    watch(wire);
  }
}

void Endpoint::watch(Wire& wire) {
  epoll_event event{.events = EPOLLIN | (wire.waits_to_write ? EPOLLOUT : 0U),
                    .data = {.u32 = static_cast<std::uint32_t>(wire.rank)}};
  (void)epoll_ctl(events_.descriptor(), EPOLL_CTL_MOD, wire.socket.descriptor(), &event);
}

void Endpoint::written(Wire& wire, std::size_t bytes) {
  while (bytes > 0) {
    OutgoingFrame& frame = wire.outgoing.front();
    const std::size_t length = Header::kBytes + frame.body.size();
    const std::size_t part = std::min(bytes, length - frame.sent);
    frame.sent += part;
    bytes -= part;
    if (frame.sent < length) return;
    if (Sending* const sending = frame.sending.get()) {
      sending->written += frame.body.size();
      sending->is_done = sending->written == sending->data.size();
      if (sending->id != 0 && sending->is_done) wire.granted.pop_front();
    }
    wire.outgoing.pop_front();
  }
}

void Endpoint::send_to_itself(const std::shared_ptr<Sending>& sending) {
  Queue& queue = lanes_[sending->lane];
  auto arrival = std::make_shared<UnexpectedMessage>();
  arrival->bytes = sending->data.size();
  if (queue.receives.empty() && arrival->bytes <= Header::kMostEager) {
    arrival->is_whole = true;
    arrival->data.assign(sending->data.begin(), sending->data.end());
    sending->is_done = true;
  } else {
    arrival->own = sending;
  }
  if (queue.receives.empty()) {
    queue.arrivals.push_back(std::move(arrival));
    return;
  }
  const std::shared_ptr<Receiving> receiving = std::move(queue.receives.front());
  queue.receives.pop_front();
  if (queue.empty()) lanes_.erase(sending->lane);
  receiving->is_waiting = false;
  meet(receiving, *arrival);
}

void Endpoint::cancel(Sending& sending) {
  if (sending.is_done || sending.is_refused) return;
  if (sending.to == detector_.rank()) {
    const auto lane = lanes_.find(sending.lane);
    if (lane == lanes_.end()) return;
    std::erase_if(lane->second.arrivals,
                  [&](const auto& arrival) { return arrival->own.get() == &sending; });
    if (lane->second.empty()) lanes_.erase(lane);
    return;
  }
  Wire& one = wire(sending.to);
  const auto frame = std::ranges::find_if(
      one.outgoing, [&](const OutgoingFrame& each) { return each.sending.get() == &sending; });
  if (frame != one.outgoing.end()) {
    // What has been announced must follow, but the memory may be gone by then.
    frame->kept.assign(frame->body.begin(), frame->body.end());
    frame->body = frame->kept;
    frame->sending = nullptr;
  }
  if (sending.id == 0) return;  // so it arrives all the same
  one.offered.erase(sending.id);
  std::erase_if(one.granted, [&](const auto& each) { return each.get() == &sending; });
  post(one, {.kind = Header::Kind::withdraw,
             .tag = sending.lane.tag,
             .group = sending.lane.group,
             .id = sending.id});
}

}  // namespace shiplap::comm
