#include "tamper.h"

#include <algorithm>
#include <memory>

#include "shiplap/base/random.h"
#include "shiplap/comm/sockets/protocol_internal.h"

namespace shiplap::simulation {
namespace {

using comm::Header;
using FrameKind = Header::Kind;

class ByzantineSender {
 public:
  ByzantineSender(std::uint64_t seed, std::size_t hello_bytes)
      : random_(seed), handshake_bytes_left_(hello_bytes) {
    often_ = random_.between(2, 15);
    begins_after_ = random_.between(0, 12);
  }

  std::vector<std::byte> operator()(std::span<const std::byte> data) {
    out_.clear();
    const std::size_t hello = std::min(handshake_bytes_left_, data.size());
    handshake_bytes_left_ -= hello;
    put(data.first(hello));
    held_.insert(held_.end(), data.begin() + static_cast<std::ptrdiff_t>(hello), data.end());
    while (take()) {
    }
    return out_;
  }

 private:
  void put(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }

  // Takes one message of the program, if it is complete.
  bool take() {
    if (held_.size() < Header::kBytes) return false;
    const auto bytes = std::span<const std::byte>(held_);
    const auto header = comm::decode_header(bytes.first<Header::kBytes>());
    if (!header) {  // impossible: the program sends valid headers
      put(bytes);
      held_.clear();
      return false;
    }
    const bool has_body = header->kind == FrameKind::eager || header->kind == FrameKind::frame ||
                          header->kind == FrameKind::control;
    const std::size_t length = Header::kBytes + (has_body ? header->bytes : 0);
    if (held_.size() < length) return false;
    const std::vector<std::byte> message(held_.begin(),
                                         held_.begin() + static_cast<std::ptrdiff_t>(length));
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(length));
    ++messages_;
    if (messages_ <= begins_after_ || random_.between(0, often_) != 0) {
      put(message);
    } else {
      tamper(*header, message);
    }
    if (header->id != 0) last_id_ = header->id;
    return true;
  }

  void tamper(Header header, const std::vector<std::byte>& message) {
    const auto body = std::span<const std::byte>(message).subspan(Header::kBytes);
    if (header.kind == FrameKind::frame && random_.between(0, 2) == 0) {
      return split(header, body);
    }
    switch (random_.between(0, 8)) {
      case 0:
        return;
      case 1:
        put(message);
        return put(message);
      case 2: {
        std::vector<std::byte> wrong = message;
        const auto at = random_.between(0, std::ssize(wrong));
        wrong[at] ^= static_cast<std::byte>(1 << random_.between(0, 8));
        return put(wrong);
      }
      case 3:
        header.id = random_.between(0, 2) == 0 ? last_id_ : last_id_ + 1;
        break;
      case 4:
        header.bytes = static_cast<std::uint64_t>(random_.between(0, 200'000));
        break;
      case 5:
        header.tag += static_cast<int>(random_.between(-1, 2));
        break;
      case 6: {
        put(message);
        const Header forged = forge(header);
        put(comm::encode(forged));
        const bool has_body = forged.kind == FrameKind::eager || forged.kind == FrameKind::frame;
        return put(std::vector<std::byte>(has_body ? forged.bytes : 0, std::byte{0x5a}));
      }
      default: {  // the same RTS again, larger
        put(message);
        if (header.kind != FrameKind::rts) return;
        header.bytes *= 2;
        break;
      }
    }
    put(comm::encode(header));
    put(body);
  }

  // Splits a frame in two, with a forged message of the same id between them.
  void split(Header header, std::span<const std::byte> body) {
    const auto part = static_cast<std::size_t>(random_.between(0, std::ssize(body) + 1));
    header.bytes = part;
    put(comm::encode(header));
    put(body.first(part));
    Header forged = forge(header);
    forged.kind = random_.between(0, 2) == 0 ? FrameKind::rts : FrameKind::cancel;
    forged.id = header.id;
    forged.bytes = static_cast<std::uint64_t>(random_.between(1, 40'000));
    forged.tag = static_cast<int>(random_.between(1, 4));
    put(comm::encode(forged));
    header.bytes = body.size() - part;
    put(comm::encode(header));
    put(body.subspan(part));
  }

  Header forge(const Header& like) {
    const auto kind = static_cast<FrameKind>(random_.between(1, 7));
    return {.kind = kind,
            .tag = like.tag,
            .group = like.group,
            .bytes = static_cast<std::uint64_t>(
                random_.between(0, kind == FrameKind::eager ? 60'000 : 300'000)),
            .id = last_id_ + static_cast<std::uint64_t>(random_.between(0, 3))};
  }

  Random random_;
  std::size_t handshake_bytes_left_;
  std::int64_t often_ = 1;
  std::int64_t begins_after_ = 0;
  std::int64_t messages_ = 0;
  std::uint64_t last_id_ = 1;
  std::vector<std::byte> held_;
  std::vector<std::byte> out_;
};

}  // namespace

Tamper make_tamper(std::uint64_t seed, std::size_t hello_bytes) {
  return [sender = std::make_shared<ByzantineSender>(seed, hello_bytes)](
             std::span<const std::byte> data) { return (*sender)(data); };
}

}  // namespace shiplap::simulation
