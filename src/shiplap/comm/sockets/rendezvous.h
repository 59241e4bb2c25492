// How ranks that have nothing but a network learn each other's addresses: through a key-value store
// that all can reach, such as JAX's coordinator or a torch Store. Values are short printable texts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::comm {

// This rank, and the size of the world.
struct RankInfo {
  int rank = 0;
  int size = 1;
};

class Rendezvous {
 public:
  Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  virtual ~Rendezvous() = default;

  virtual void put(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists. Returns nothing if that takes longer than `within`.
  [[nodiscard]] virtual std::optional<std::string> get(const std::string& key, Seconds within) = 0;
};

// A store of our own (as torch's TCPStore): rank 0 serves it at `address`, HOST:PORT, from a
// thread, the other ranks connect to it. Rank 0's destructor waits until all others have
// disconnected, or `within` has passed. The others try to connect for that long.
//
// A process that does not know the secret can neither read nor write.
//
// Throws InputError D308 if the address is invalid or rank 0 cannot listen at it, D307 if the
// server is not rank 0 of such a job or has another secret, or if two ranks have the same number,
// TimeoutError D301 if nothing replies, RankFailed D302 if rank 0 has exited.
class TcpStore : public Rendezvous {
 public:
  // This rank no longer needs the store. Rank 0 stops accepting connections, and continues to serve
  // those it has.
  virtual void shut_down() = 0;
  // The address of this host on the route to rank 0, without a port: other ranks can reach it too.
  [[nodiscard]] virtual std::string local_host() const = 0;
};
[[nodiscard]] std::unique_ptr<TcpStore> connect_store(const std::string& address,
                                                      const RankInfo& self, Seconds within,
                                                      const std::string& secret = "");

// No store: a static list of the addresses of all ranks, HOST:PORT by rank, at which they listen.
// Throws InputError D308 if one of them is invalid.
[[nodiscard]] std::unique_ptr<Rendezvous> make_static_rendezvous(
    const std::vector<std::string>& addresses);

}  // namespace shiplap::comm
