// How ranks that have nothing but a network learn each other's addresses: they leave them where all
// can look. Any store of keys and values will do, such as JAX's coordinator or a store of torch.
// Values are short texts of printable characters.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/units.h"

namespace shiplap::comm {

// Which rank of how many.
struct Seat {
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
  // Waits until somebody has put it; nothing if that takes longer than `within`.
  [[nodiscard]] virtual std::optional<std::string> get(const std::string& key, Seconds within) = 0;
};

// A store of our own. Rank 0 serves it at `address`, HOST:PORT, and nowhere else, from a thread
// that ends with the object, when all other ranks have ended theirs or `within` has passed. The
// others try to reach it for that long.
//
// Who does not know the secret can neither read nor write there.
//
// Throws InputError D308 if the address is none or cannot be listened to, D307 if what answers is
// not rank 0 of such a job, does not know its secret, or if a second rank has the same number,
// DeadlinePassed D301 if nothing answers, RankFailed D302 if rank 0 has gone.
class Meeting : public Rendezvous {
 public:
  // This rank needs it no longer. Rank 0 goes on to serve it for those who do.
  virtual void end_later() = 0;
  // The own address on the way to rank 0, without a port: one that the other ranks can reach too.
  [[nodiscard]] virtual std::string own_host() const = 0;
};
[[nodiscard]] std::unique_ptr<Meeting> meet_at(const std::string& address, const Seat& seat,
                                               Seconds within, const std::string& secret = "");

// No store at all: every rank knows where each listens, HOST:PORT by rank, and listens there.
// Throws InputError D308 if one of them is no such address.
[[nodiscard]] std::unique_ptr<Rendezvous> meet_by_list(const std::vector<std::string>& addresses);

}  // namespace shiplap::comm
