#include <algorithm>
#include <tuple>

#include "shiplap/dispatch/received_pieces_internal.h"

namespace shiplap::dispatch {
namespace {

template <class Act>
void for_each_piece(const Metadata& metadata, const Act& act) {
  for (int from = 0; from < metadata.world_size(); ++from) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(from); ++i) {
      const Metadata::Row row = metadata.row(from, i);
      if (row.length == 0) continue;
      for (const Copy& copy : row.copies) {
        if (copy.rank < 0 || copy.rank >= metadata.world_size()) continue;
        act(static_cast<std::size_t>(copy.rank), ReceivedPiece{.offset = copy.offset,
                                                               .length = row.length,
                                                               .from = from,
                                                               .row = i,
                                                               .begin = row.begin});
      }
    }
  }
}

}  // namespace

ReceivedPieces::ReceivedPieces(const Metadata& metadata)
    : first_(static_cast<std::size_t>(metadata.world_size()) + 1) {
  for_each_piece(metadata, [&](std::size_t to, const ReceivedPiece&) { ++first_[to + 1]; });
  for (std::size_t r = 1; r < first_.size(); ++r) first_[r] += first_[r - 1];
  pieces_.resize(first_.back());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for_each_piece(metadata,
                 [&](std::size_t to, const ReceivedPiece& piece) { pieces_[next[to]++] = piece; });
  const auto key = [](const ReceivedPiece& piece) {
    return std::tuple(piece.offset, piece.from, piece.row);
  };
  for (std::size_t r = 0; r + 1 < first_.size(); ++r) {
    std::ranges::sort(std::span(pieces_).subspan(first_[r], first_[r + 1] - first_[r]), {}, key);
  }
}

}  // namespace shiplap::dispatch
