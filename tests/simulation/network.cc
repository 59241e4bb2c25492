#include "network.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace shiplap::simulation {
namespace {

Network* g_network = nullptr;
constexpr std::size_t kPipeBytes = std::size_t{256} * 1024;
constexpr double kLatency = 50e-6;

}  // namespace

Network* current_network() { return g_network; }
void set_current_network(Network* network) { g_network = network; }

double Network::delay() {
  Random& random = scheduler_.random();
  const std::int64_t kind = random.between(0, 200);
  if (kind == 0) return static_cast<double>(random.between(1, 20)) * 1e-3;  // retransmitted
  return kLatency + static_cast<double>(random.between(0, 200)) * 1e-6;
}

int Network::add(Descriptor descriptor) {
  descriptor.process = scheduler_.process();
  if (exhausted_.contains(descriptor.process)) return -EMFILE;
  descriptors_.emplace(next_, std::move(descriptor));
  return next_++;
}

int Network::open_socket() { return add({.kind = DescriptorKind::socket}); }
int Network::open_epoll() { return add({.kind = DescriptorKind::epoll}); }
int Network::open_event() { return add({.kind = DescriptorKind::event}); }

int Network::bind(int descriptor, int port) {
  for (const auto& [number, one] : descriptors_) {
    if (port != 0 && one.kind == DescriptorKind::listener && one.port == port) return -EADDRINUSE;
  }
  at(descriptor).port = port == 0 ? next_port_++ : port;
  return 0;
}

int Network::listen(int descriptor) {
  at(descriptor).kind = DescriptorKind::listener;
  return 0;
}

int Network::connect(int descriptor, int port) {
  Descriptor& one = at(descriptor);
  const auto found = std::ranges::find_if(descriptors_, [&](const auto& each) {
    return each.second.kind == DescriptorKind::listener && each.second.port == port;
  });
  if (scheduler_.is_dead(one.process)) return -ECONNREFUSED;
  if (found == descriptors_.end()) return -ECONNREFUSED;
  Descriptor& listener = found->second;
  one.kind = DescriptorKind::connection;
  one.connection = std::make_shared<Connection>();
  one.connection->processes = {one.process, listener.process};
  one.connection->ports = {next_port_++, port};
  one.port = one.connection->ports[0];
  const bool is_cut = dropped_.contains({one.process, listener.process}) ||
                      dropped_.contains({listener.process, one.process});
  one.connects_at = is_cut ? kNever : scheduler_.now() + 2 * delay();
  scheduler_.schedule_wakeup(one.connects_at);
  if (const auto hostile = tampers_.find(one.process); hostile != tampers_.end()) {
    one.tamper = hostile->second(true, port);
  }
  if (!is_cut) listener.pending.push_back({one.connection, one.connects_at});
  return -EINPROGRESS;
}

int Network::error_of(int descriptor) { return std::exchange(at(descriptor).error, 0); }

int Network::accept(int descriptor) {
  Descriptor& listener = at(descriptor);
  if (listener.pending.empty() || listener.pending.front().arrives > scheduler_.now()) {
    return -EAGAIN;
  }
  if (exhausted_.contains(scheduler_.process())) return -EMFILE;
  Descriptor one{.kind = DescriptorKind::connection, .port = listener.port};
  one.connection = listener.pending.front().connection;
  one.end = 1;
  if (const auto hostile = tampers_.find(listener.process); hostile != tampers_.end()) {
    one.tamper = hostile->second(false, listener.port);
  }
  listener.pending.pop_front();
  return add(std::move(one));
}

std::int64_t Network::send(int descriptor, std::span<const std::byte> data) {
  Descriptor& one = at(descriptor);
  if (one.kind != DescriptorKind::connection) return -ENOTCONN;
  if (scheduler_.is_dead(one.process)) return -EPIPE;
  Connection& connection = *one.connection;
  const auto local = static_cast<std::size_t>(one.end);
  Pipe& pipe = connection.pipes[local];
  if (pipe.is_reset) return -ECONNRESET;
  // A close of the peer is visible once it has arrived.
  if (connection.pipes[1 - local].ends_at <= scheduler_.now()) return -EPIPE;
  if (one.connects_at > scheduler_.now()) return -EAGAIN;
  std::size_t count = std::min(data.size(), kPipeBytes - std::min(kPipeBytes, pipe.bytes));
  Random& random = scheduler_.random();
  if (count > 1 && random.between(0, 4) == 0) {  // a short write
    count = static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(count)));
  }
  if (count == 0) return data.empty() ? 0 : -EAGAIN;
  std::vector<std::byte> bytes(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(count));
  if (one.tamper) bytes = one.tamper(bytes);
  pipe.last_arrival = std::max(pipe.last_arrival, scheduler_.now() + delay());
  if (dropped_.contains({one.process, connection.processes[1 - local]})) pipe.last_arrival = kNever;
  scheduler_.schedule_wakeup(pipe.last_arrival);
  pipe.bytes += bytes.size();
  if (!bytes.empty()) pipe.segments.push_back({pipe.last_arrival, std::move(bytes)});
  return static_cast<std::int64_t>(count);
}

std::int64_t Network::receive(int descriptor, std::span<std::byte> data) {
  Descriptor& one = at(descriptor);
  if (one.kind != DescriptorKind::connection) return -ENOTCONN;
  if (scheduler_.is_dead(one.process)) return 0;
  Pipe& pipe = one.connection->pipes[1 - one.end];
  std::size_t most = data.size();
  Random& random = scheduler_.random();
  if (most > 1 && random.between(0, 4) == 0) {
    most = static_cast<std::size_t>(random.between(1, static_cast<std::int64_t>(most)));
  }
  std::size_t count = 0;
  while (count < most && !pipe.segments.empty() &&
         pipe.segments.front().arrives <= scheduler_.now()) {
    Pipe::Segment& segment = pipe.segments.front();
    const std::size_t part = std::min(most - count, segment.bytes.size() - segment.taken);
    std::memcpy(data.data() + count, segment.bytes.data() + segment.taken, part);
    segment.taken += part;
    count += part;
    if (segment.taken == segment.bytes.size()) pipe.segments.pop_front();
  }
  pipe.bytes -= count;
  if (count > 0) return static_cast<std::int64_t>(count);
  if (pipe.is_reset) return -ECONNRESET;
  if (pipe.segments.empty() && pipe.ends_at <= scheduler_.now()) {
    return pipe.ends_by_reset ? -ECONNRESET : 0;
  }
  return -EAGAIN;
}

void Network::shut(Descriptor& one) {
  if (one.kind == DescriptorKind::listener) {
    for (const Descriptor::Pending& pending : one.pending) {
      for (Pipe& pipe : pending.connection->pipes) pipe.is_reset = true;
    }
  }
  if (one.kind != DescriptorKind::connection) return;
  Connection& connection = *one.connection;
  const auto local = static_cast<std::size_t>(one.end);
  const bool is_cut = dropped_.contains({one.process, connection.processes[1 - local]});
  if (is_cut) return;
  Pipe& out = connection.pipes[local];
  out.ends_at = std::max(out.last_arrival, scheduler_.now() + delay());
  scheduler_.schedule_wakeup(out.ends_at);
  // Closing a socket with unread data resets the connection, as TCP does.
  if (connection.pipes[1 - local].bytes > 0) out.ends_by_reset = true;
}

int Network::close(int descriptor) {
  const auto found = descriptors_.find(descriptor);
  if (found == descriptors_.end()) return -EBADF;
  shut(found->second);
  for (auto& [number, one] : descriptors_) one.watched.erase(descriptor);
  descriptors_.erase(found);
  return 0;
}

void Network::close_all(int process) {
  for (auto& [number, one] : descriptors_) {
    if (one.process == process) shut(one);
    if (one.process == process && one.kind == DescriptorKind::listener)
      one.kind = DescriptorKind::socket;
  }
}

void Network::reset(int a, int b) {
  for (auto& [number, one] : descriptors_) {
    if (one.kind != DescriptorKind::connection) continue;
    const auto [x, y] = std::pair(one.connection->processes[0], one.connection->processes[1]);
    if (std::minmax(x, y) != std::minmax(a, b)) continue;
    for (Pipe& pipe : one.connection->pipes) pipe.is_reset = true;
  }
}

int Network::port_of(int descriptor) const { return at(descriptor).port; }

int Network::peer_port_of(int descriptor) const {
  const Descriptor& one = at(descriptor);
  return one.kind == DescriptorKind::connection ? one.connection->ports[1 - one.end] : -1;
}

void Network::watch(int epoll, int descriptor, std::uint32_t events, std::uint32_t data) {
  at(epoll).watched[descriptor] = {events, data};
}

const std::map<int, Network::Watched>& Network::watched(int epoll) const {
  return at(epoll).watched;
}

bool Network::is_broken(int descriptor) const {
  const auto found = descriptors_.find(descriptor);
  if (found == descriptors_.end()) return true;
  const Descriptor& one = found->second;
  return one.kind == DescriptorKind::connection &&
         (incoming(one).is_reset || scheduler_.is_dead(one.process));
}

bool Network::can_read(int descriptor) const {
  const auto found = descriptors_.find(descriptor);
  if (found == descriptors_.end()) return true;
  const Descriptor& one = found->second;
  const double now = scheduler_.now();
  switch (one.kind) {
    case DescriptorKind::listener:
      return !one.pending.empty() && one.pending.front().arrives <= now;
    case DescriptorKind::event:
      return one.signaled;
    case DescriptorKind::connection: {
      const Pipe& pipe = incoming(one);
      if (pipe.is_reset || scheduler_.is_dead(one.process)) return true;
      if (!pipe.segments.empty()) return pipe.segments.front().arrives <= now;
      return pipe.ends_at <= now;
    }
    default:
      return false;
  }
}

bool Network::can_write(int descriptor) const {
  const auto found = descriptors_.find(descriptor);
  if (found == descriptors_.end()) return true;
  const Descriptor& one = found->second;
  if (one.kind != DescriptorKind::connection) return false;
  const Pipe& pipe = one.connection->pipes[one.end];
  if (pipe.is_reset || scheduler_.is_dead(one.process)) return true;
  return one.connects_at <= scheduler_.now() && pipe.bytes < kPipeBytes;
}

std::vector<int> Network::listening_ports() const {
  std::vector<int> ports;
  for (const auto& [number, one] : descriptors_) {
    if (one.kind == DescriptorKind::listener) ports.push_back(one.port);
  }
  return ports;
}

}  // namespace shiplap::simulation
