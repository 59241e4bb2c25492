// The sends, receives and sums of one rank in one token exchange. Computed once from the table of
// all ranks and reused every step, with rows of any width.
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
  // Throws InputError D400 if the rank does not exist, D403 or D410 for an invalid destination, and
  // D405 if two pieces overlap on this rank without being summed. So a plan never writes out of
  // bounds; dispatch::validate checks the table as a whole.
  ExchangePlan(const dispatch::Metadata& metadata, int rank);

  // Consecutive tokens. Rows that are adjacent at both ends are one piece.
  struct Piece {
    std::uint32_t begin = 0;  // in the buffer of this end
    std::uint32_t length = 0;
  };
  // Source of summed tokens: the received tokens from `begin` on, or those of the local buffer.
  struct Source {
    std::uint32_t begin = 0;
    bool is_local = false;
  };
  // Tokens that get the sum of some sources, in this order.
  struct Sum {
    std::uint32_t begin = 0;
    std::uint32_t length = 0;
    std::uint32_t first_source = 0;
    std::uint32_t end_source = 0;
  };

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world_size() const { return static_cast<int>(first_send_.size()) - 1; }
  [[nodiscard]] dispatch::ArrivalMode arrival() const { return arrival_; }
  // Sizes of the two buffers.
  [[nodiscard]] std::uint32_t send_tokens() const { return send_tokens_; }
  [[nodiscard]] std::uint32_t receive_tokens() const { return receive_tokens_; }
  // Tokens from other ranks.
  [[nodiscard]] std::uint64_t arriving_tokens() const { return arriving_tokens_; }

  // In the same order on both ends. With ArrivalMode::summed, local tokens are excluded, and
  // received tokens are staged contiguously before they are summed.
  [[nodiscard]] std::span<const Piece> sends_to(int peer) const {
    return part(sends_, first_send_, peer);
  }
  [[nodiscard]] std::span<const Piece> receives_from(int peer) const {
    return part(receives_, first_receive_, peer);
  }
  // Only for ArrivalMode::summed, by offset.
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
  dispatch::ArrivalMode arrival_ = dispatch::ArrivalMode::placed;
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

// The workspace that an exchange needs besides its two buffers.
struct WorkspaceSize {
  Bytes send;             // for packing small pieces
  Bytes receive;          // for packed pieces, and for received tokens to sum
  std::size_t parts = 0;  // number of memory parts to transfer
  [[nodiscard]] Bytes total() const { return send + receive; }
  friend bool operator==(const WorkspaceSize&, const WorkspaceSize&) = default;
};
// Returns a size that suffices for either.
[[nodiscard]] WorkspaceSize elementwise_max(const WorkspaceSize& a, const WorkspaceSize& b);

// Needs neither communicator nor dispatcher. Pieces shorter than `pack_below` are packed; the
// result also suffices for transports that pack less.
struct WorkspaceOptions {
  std::int64_t row_bytes = 1;
  std::size_t pack_below = std::size_t{16} * 1024;
};
[[nodiscard]] WorkspaceSize workspace_size(const ExchangePlan& plan,
                                           const WorkspaceOptions& options);
[[nodiscard]] WorkspaceSize workspace_size(const dispatch::Metadata& metadata, int rank,
                                           const WorkspaceOptions& options);

}  // namespace shiplap::run
