// What one rank does in one exchange of tokens, worked out once from the table of all ranks and
// then used step after step, with rows of any width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::run {

class ExchangePlan {
 public:
  // Throws InputError D400 if the table has no such rank, D403 or D410 for a place that cannot be,
  // and D405 if two pieces that are not summed meet on this rank. So a plan never writes outside a
  // buffer; whether the table is sound as a whole is for dispatch::validate to say.
  ExchangePlan(const dispatch::Metadata& metadata, int rank);

  // Tokens that travel together. Neighbouring rows that stay neighbours are one piece.
  struct Piece {
    std::uint32_t begin = 0;  // in the buffer of this end
    std::uint32_t length = 0;
  };
  // Where tokens that are summed come from: the k-th token that arrives, or one of the own buffer.
  struct Source {
    std::uint32_t begin = 0;
    bool is_own = false;
  };
  // Tokens at home that get the sum of some sources, in this order.
  struct Sum {
    std::uint32_t begin = 0;
    std::uint32_t length = 0;
    std::uint32_t first_source = 0;
    std::uint32_t end_source = 0;
  };

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return static_cast<int>(first_send_.size()) - 1; }
  [[nodiscard]] dispatch::Arrival arrival() const { return arrival_; }
  // How long the two buffers are.
  [[nodiscard]] std::uint32_t send_tokens() const { return send_tokens_; }
  [[nodiscard]] std::uint32_t receive_tokens() const { return receive_tokens_; }
  // How many tokens come from other ranks.
  [[nodiscard]] std::uint64_t arriving_tokens() const { return arriving_tokens_; }

  // In the order in which both ends count them. Where arrivals are summed, what stays on the rank
  // is not among them, and the others arrive one after another, to be summed from there.
  [[nodiscard]] std::span<const Piece> sends_to(int peer) const {
    return part(sends_, first_send_, peer);
  }
  [[nodiscard]] std::span<const Piece> receives_from(int peer) const {
    return part(receives_, first_receive_, peer);
  }
  // Only where arrivals are summed: by place.
  [[nodiscard]] std::span<const Sum> sums() const { return sums_; }
  [[nodiscard]] std::span<const Source> sources() const { return sources_; }

  [[nodiscard]] Bytes bytes() const;

 private:
  static std::span<const Piece> part(const std::vector<Piece>& pieces,
                                     const std::vector<std::size_t>& first, int peer) {
    const auto p = static_cast<std::size_t>(peer);
    return std::span(pieces).subspan(first[p], first[p + 1] - first[p]);
  }
  void add_sums();
  void stage_arrivals();

  int rank_ = 0;
  dispatch::Arrival arrival_ = dispatch::Arrival::placed;
  std::uint32_t send_tokens_ = 0;
  std::uint32_t receive_tokens_ = 0;
  std::uint64_t arriving_tokens_ = 0;
  std::vector<std::size_t> first_send_;  // by peer, and the end
  std::vector<std::size_t> first_receive_;
  std::vector<Piece> sends_;
  std::vector<Piece> receives_;
  std::vector<Sum> sums_;
  std::vector<Source> sources_;
};

// What an exchange needs beside its two buffers.
struct Hints {
  Bytes send;             // to pack small pieces into
  Bytes receive;          // where packed ones arrive, and what is to be summed
  std::size_t parts = 0;  // of memory that travel
  [[nodiscard]] Bytes total() const { return send + receive; }
  friend bool operator==(const Hints&, const Hints&) = default;
};
// The larger of the two in everything: room for either.
[[nodiscard]] Hints larger(const Hints& a, const Hints& b);

// No communicator and no dispatcher is needed. Pieces shorter than `pack_below` are packed, which
// is never too little room for transports that pack less.
struct HintOptions {
  std::int64_t row_bytes = 1;
  std::size_t pack_below = std::size_t{16} * 1024;
};
[[nodiscard]] Hints hints(const ExchangePlan& plan, const HintOptions& options);
[[nodiscard]] Hints hints(const dispatch::Metadata& metadata, int rank, const HintOptions& options);

}  // namespace shiplap::run
