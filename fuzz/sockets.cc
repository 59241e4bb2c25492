// Feeds arbitrary bytes to a connection of a rank: the decoders of the handshake, and, after the
// handshake, the stream of frames.
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/sockets/endpoint_internal.h"
#include "shiplap/comm/sockets/protocol_internal.h"

namespace shiplap::comm {
namespace {

constexpr std::size_t kMaxInput = std::size_t{128} * 1024;  // fits in the socket buffer
constexpr int kRounds = 1000;

// What is accepted must round-trip.
template <std::size_t kBytes, class Decode>
void check(std::span<const std::byte> bytes, const Decode& decode) {
  if (bytes.size() < kBytes) return;
  const auto found = decode(bytes.first<kBytes>());
  if (!found) return;
  const auto again = decode(encode(*found));
  ensure(again && encode(*again) == encode(*found), "a message round-trips");
}

void check_parts(std::span<const std::byte> bytes) {
  check<Hello::kBytes>(bytes, [](auto part) { return decode_hello(part); });
  check<Header::kBytes>(bytes, [](auto part) { return decode_header(part); });
  check<StoreMessage::kBytes>(bytes, [](auto part) { return decode_store_message(part); });
  check<kControlBytes>(bytes, [](auto part) { return decode_control(part); });
}

// A receive with its own allocation, so that AddressSanitizer detects overflows.
struct Receive {
  std::vector<std::byte> room;
  std::shared_ptr<PendingReceive> receiving;
};

// The last bytes choose where the others are split, and which receive is posted between two pieces:
// a program posts receives while messages arrive.
std::vector<std::unique_ptr<Receive>> send_in_pieces(const Socket& theirs,
                                                     std::span<const std::byte> bytes,
                                                     Endpoint& endpoint)
    SHIPLAP_REQUIRES(endpoint.mutex()) {
  constexpr std::size_t kCuts = 12;
  constexpr std::array<std::size_t, 4> kRooms{16, 100, 4096, 200'000};
  std::vector<std::unique_ptr<Receive>> receives;
  const auto send = [&](std::span<const std::byte> piece) SHIPLAP_REQUIRES(endpoint.mutex()) {
    for (int k = 0; k < kRounds && !piece.empty(); ++k) {
      const Socket::IoResult moved = theirs.send(piece);
      if (moved.error != 0) return;  // it has closed the connection
      piece = piece.subspan(moved.bytes);
      if (moved.would_block) endpoint.progress();
    }
    ensure(piece.empty(), "all bytes are read");
  };
  const auto cuts = bytes.last(std::min(kCuts, bytes.size() / 8));
  for (const std::byte cut : cuts) {
    const auto number = std::to_integer<std::size_t>(cut);
    const auto piece = bytes.first(std::min(bytes.size(), 16 * (number / 16 + 1)));
    send(piece);
    bytes = bytes.subspan(piece.size());
    for (int k = 0; k < 4; ++k) endpoint.progress();
    auto one = std::make_unique<Receive>();
    one->room.resize(kRooms.at(number / 4 % 4));
    one->receiving = endpoint.start_receive(
        {.group = 1, .from = 1, .tag = static_cast<int>(number % 4)}, one->room);
    receives.push_back(std::move(one));
  }
  send(bytes);
  return receives;
}

// Rank 0 of two; rank 1 is the fuzzer. Rank 0 posts a short and a long receive, and a send.
void check_stream(std::span<const std::byte> bytes) {
  std::array<int, 2> ends{};
  ensure(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0,
         "socketpair() succeeds");
  const Socket theirs(ends[1]);
  PeerSockets joined;
  joined.sockets.resize(2);
  joined.sockets[1] = Socket(ends[0]);
  std::vector<std::byte> short_room(100);
  std::vector<std::byte> long_room(300'000);
  const std::vector<std::byte> data(100'000);
  Endpoint endpoint({.rank = 0, .size = 2}, std::move(joined));
  const MutexLock lock(endpoint.mutex());
  const auto first = endpoint.start_receive({.group = 1, .from = 1, .tag = 0}, short_room);
  const auto second = endpoint.start_receive({.group = 1, .from = 1, .tag = 1}, long_room);
  const auto third = endpoint.start_send({.group = 1, .from = 0, .tag = 0}, 1, data);
  const auto between = send_in_pieces(theirs, bytes, endpoint);
  shutdown(theirs.descriptor(), SHUT_WR);
  for (int k = 0; k < kRounds && endpoint.peer_state(1) == Endpoint::PeerState::active; ++k) {
    endpoint.answer_probes({.text = "fuzz"});
    const auto late = endpoint.start_receive({.group = 1, .from = 1, .tag = 2}, short_room);
    if (!late->is_done) endpoint.cancel(*late);
  }
  ensure(first->bytes <= short_room.size() || first->is_too_long, "the received bytes fit");
  ensure(second->bytes <= long_room.size() || second->is_too_long, "the received bytes fit");
  for (const auto& one : between) {
    if (!one->receiving->is_done) endpoint.cancel(*one->receiving);
  }
  if (!first->is_done) endpoint.cancel(*first);
  if (!second->is_done) endpoint.cancel(*second);
  endpoint.cancel(*third);
}

}  // namespace
}  // namespace shiplap::comm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  shiplap::comm::check_parts(bytes);
  if (size <= shiplap::comm::kMaxInput) shiplap::comm::check_stream(bytes);
  return 0;
}
