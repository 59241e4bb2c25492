#include "shiplap/dispatch/dense.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/base/id.h"
#include "shiplap/dispatch/findings_internal.h"
#include "shiplap/dispatch/received_pieces_internal.h"
#include "shiplap/dispatch/traffic.h"

namespace shiplap::dispatch {
namespace {

std::size_t copies_of(int max_cp) { return at(std::max(max_cp, 1)); }

// ---- types

template <class To>
std::vector<To> converted(const std::vector<std::int64_t>& from, std::string_view field,
                          std::vector<Diagnostic>& found) {
  std::vector<To> to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (!std::in_range<To>(from[i])) {
      found.push_back({.code = "D410",
                       .where = {.operation = fmt::format("{}, entry {}", field, i)},
                       .what = fmt::format("{} does not fit {}int{}", from[i],
                                           std::is_signed_v<To> ? "" : "u", 8 * sizeof(To)),
                       .why = "integer overflow would send tokens to a wrong place"});
      return to;
    }
    to[i] = static_cast<To>(from[i]);
  }
  return to;
}

template <class To>
std::optional<std::vector<To>> converted(const std::optional<std::vector<std::int64_t>>& from,
                                         std::string_view field, std::vector<Diagnostic>& found) {
  if (!from) return std::nullopt;
  return converted<To>(*from, field, found);
}

DenseMetadata widened(const NormalizedMetadata& narrow) {
  const auto wide = [](const auto& from) {
    return std::vector<std::int64_t>(from.begin(), from.end());
  };
  DenseMetadata dense{.world_size = narrow.world_size,
                      .max_seqs = narrow.max_seqs,
                      .max_cp = narrow.max_cp,
                      .arrival = narrow.arrival,
                      .dst_rank = wide(narrow.dst_rank),
                      .dst_offset = wide(narrow.dst_offset),
                      .seq_len = wide(narrow.seq_len),
                      .num_recv_tokens = wide(narrow.num_recv_tokens),
                      .seq_recv_mask = narrow.seq_recv_mask,
                      .num_seqs = narrow.num_seqs};
  if (narrow.recv_seq_lens) dense.recv_seq_lens = wide(*narrow.recv_seq_lens);
  if (narrow.num_total_recv_tokens)
    dense.num_total_recv_tokens = wide(*narrow.num_total_recv_tokens);
  return dense;
}

// ---- from sparse

// Lengths of the pieces that each rank receives, by offset; pieces summed into one place count
// once.
std::vector<std::vector<std::int64_t>> received_lengths(const Metadata& metadata) {
  const ReceivedPieces arrivals(metadata);
  std::vector<std::vector<std::int64_t>> lengths(at(metadata.world_size()));
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    const ReceivedPiece* last = nullptr;
    for (const ReceivedPiece& piece : arrivals.on(rank)) {
      const bool again = metadata.arrival() == ArrivalMode::summed && last != nullptr &&
                         last->offset == piece.offset && last->length == piece.length;
      if (!again) lengths[rank].push_back(piece.length);
      last = &piece;
    }
  }
  return lengths;
}

// At least `width` columns.
std::vector<std::int64_t> padded(const std::vector<std::vector<std::int64_t>>& rows,
                                 std::size_t width) {
  for (const auto& row : rows) width = std::max(width, row.size());
  std::vector<std::int64_t> all(rows.size() * width);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::ranges::copy(rows[r], all.begin() + static_cast<std::ptrdiff_t>(r * width));
  }
  return all;
}

// The number of elements of all tensors. The last term is an upper bound for `recv_seq_lens`.
std::int64_t dense_elements(const Metadata& metadata) {
  const std::int64_t world = metadata.world_size();
  const std::int64_t rows = world * metadata.max_seqs();
  const auto copies = static_cast<std::int64_t>(copies_of(metadata.max_cp()));
  std::vector<std::int64_t> received(at(world));
  for (const Flow& flow : flows(metadata)) received[flow.to] += flow.pieces;
  return rows * (1 + copies * (metadata.max_cp() > 0 ? 3 : 2)) + world * (world + 3) +
         world * std::max<std::int64_t>(metadata.max_seqs(),
                                        received.empty() ? 0 : std::ranges::max(received));
}

void check_size(const Metadata& metadata, std::int64_t max_elements) {
  const std::int64_t world = metadata.world_size();
  const std::int64_t elements = dense_elements(metadata);
  if (elements <= max_elements) return;
  throw InputError(Diagnostic{
      .code = "D411",
      .what = fmt::format("padded tensors too large: {} elements ({}), over the limit of {}",
                          with_separators(elements), to_string(Bytes{8 * elements}),
                          with_separators(max_elements)),
      .why = fmt::format("{} ranks, {} rows on the longest one; the sparse form takes {}", world,
                         metadata.max_seqs(), to_string(metadata.bytes())),
      .help = "use the sparse form, or fewer ranks"});
}

// ---- checks

class DenseCheck {
 public:
  explicit DenseCheck(const DenseMetadata& dense) : dense_(dense) {}

  std::vector<Diagnostic> run() {
    shapes();
    if (!found_.empty()) return found_.take("tensors");
    for (int rank = 0; rank < dense_.world_size; ++rank) rows(rank);
    if (found_.empty()) counts();
    return found_.take("tensors");
  }

 private:
  void add(std::string_view code, Where where, std::string what, std::string help = "") {
    found_.add({.code = std::string(code),
                .where = std::move(where),
                .what = std::move(what),
                .help = std::move(help)});
  }

  void shape(std::string_view field, std::size_t found, std::size_t expected) {
    if (found == expected) return;
    add("D401", {.operation = std::string(field)},
        fmt::format("shape mismatch: {} has {} elements, expected {}", field, found, expected),
        fmt::format("world_size {}, {} rows, {}", dense_.world_size, dense_.max_seqs,
                    dense_.max_cp == 0 ? std::string("two dimensions")
                                       : fmt::format("{} copies", dense_.max_cp)));
  }

  void shapes() {
    const bool too_large = dense_.max_seqs > kMaxDenseElements ||
                           dense_.max_cp > kMaxDenseElements ||
                           dense_.max_seqs * std::max(dense_.max_cp, 1) > kMaxDenseElements;
    if (dense_.world_size < 1 || dense_.max_seqs < 0 || dense_.max_cp < 0 || too_large) {
      add("D401", {},
          fmt::format("invalid shape: {} ranks with {} rows", dense_.world_size, dense_.max_seqs));
      return;
    }
    const std::size_t world = at(dense_.world_size);
    const std::size_t rows = world * at(dense_.max_seqs);
    shape("dst_rank", dense_.dst_rank.size(), rows * copies_of(dense_.max_cp));
    shape("dst_offset", dense_.dst_offset.size(), rows * copies_of(dense_.max_cp));
    shape("seq_len", dense_.seq_len.size(), rows);
    if (!dense_.num_recv_tokens.empty()) {
      shape("num_recv_tokens", dense_.num_recv_tokens.size(), world * (world + 1));
    }
    if (dense_.seq_recv_mask) {
      shape("seq_recv_mask", dense_.seq_recv_mask->size(), rows * copies_of(dense_.max_cp));
    }
    if (dense_.num_seqs) shape("num_seqs", dense_.num_seqs->size(), world);
    if (dense_.num_total_recv_tokens) {
      shape("num_total_recv_tokens", dense_.num_total_recv_tokens->size(), world);
    }
    if (dense_.recv_seq_lens && dense_.recv_seq_lens->size() % world != 0) {
      shape("recv_seq_lens", dense_.recv_seq_lens->size(),
            world * (dense_.recv_seq_lens->size() / world + 1));
    }
    if (!dense_.num_seqs || !found_.empty()) return;
    for (std::size_t rank = 0; rank < world; ++rank) {
      const std::int64_t seqs = (*dense_.num_seqs)[rank];
      if (seqs < 0 || seqs > dense_.max_seqs) {
        add("D401", {.rank = static_cast<std::int64_t>(rank), .operation = "num_seqs"},
            fmt::format("{} sequences do not fit {} rows", seqs, dense_.max_seqs));
      }
    }
  }

  void rows(int rank) {
    const std::int64_t real = dense_.num_seqs ? (*dense_.num_seqs)[rank] : dense_.max_seqs;
    std::int64_t tokens = 0;
    for (std::int64_t i = 0; i < dense_.max_seqs; ++i) {
      throw_if_cancelled();
      row(rank, i, i < real);
      tokens += std::clamp<std::int64_t>(dense_.seq_len[at(rank) * at(dense_.max_seqs) + at(i)], 0,
                                         std::int64_t{1} << 32);
    }
    if (!std::in_range<std::uint32_t>(tokens)) {
      add("D410", {.rank = rank, .operation = "seq_len"},
          fmt::format("{} tokens of one rank do not fit 32 bits", tokens));
    }
  }

  void row(int rank, std::int64_t i, bool real) {
    const std::size_t index = at(rank) * at(dense_.max_seqs) + at(i);
    const auto where = [&](std::string_view field) {
      return Where{.rank = rank, .operation = fmt::format("{}, sequence {}", field, i)};
    };
    const std::int64_t length = dense_.seq_len[index];
    if (!std::in_range<std::uint32_t>(length)) {
      add("D410", where("seq_len"), fmt::format("invalid length {}", length));
      return;
    }
    bool goes = false;
    for (std::size_t c = 0; c < copies_of(dense_.max_cp); ++c) {
      const std::size_t entry = index * copies_of(dense_.max_cp) + c;
      goes = copy(entry, length, where) || goes;
    }
    if (!real && goes) {
      add("D402", where("num_seqs"), "a padding row has a destination");
    } else if (length > 0 && !(goes && real)) {
      add("D402", where("dst_rank"), fmt::format("{} tokens have no destination rank", length),
          "-1 is padding, and padding has length 0");
    }
  }

  template <class WhereOf>
  bool copy(std::size_t entry, std::int64_t length, const WhereOf& where) {
    const std::int64_t to = dense_.dst_rank[entry];
    if (to < -1 || to >= dense_.world_size) {
      add("D403", where("dst_rank"), fmt::format("rank {} does not exist", to),
          fmt::format("ranks go from 0 to {}; -1 is padding", dense_.world_size - 1));
      return true;
    }
    const std::int64_t offset = dense_.dst_offset[entry];
    if (to >= 0 &&
        (!std::in_range<std::uint32_t>(offset) || !std::in_range<std::uint32_t>(offset + length))) {
      add("D410", where("dst_offset"), fmt::format("invalid offset {}", offset));
    }
    if (dense_.seq_recv_mask && ((*dense_.seq_recv_mask)[entry] != 0) != (to >= 0)) {
      add("D402", where("seq_recv_mask"),
          to >= 0 ? "a copy with a destination is masked out" : "a copy of rank -1 is active");
    }
    return to >= 0;
  }

  // The receive counts must match what is sent.
  void counts() {
    if (!dense_.num_recv_tokens.empty()) compare_counts();
    totals();
    lengths();
  }

  // O(ranks^2) memory, as num_recv_tokens itself.
  void compare_counts() {
    const std::size_t columns = at(dense_.world_size) + 1;
    std::vector<std::int64_t> sent(at(dense_.world_size) * columns);
    for (std::size_t entry = 0; entry < dense_.dst_rank.size(); ++entry) {
      if (dense_.dst_rank[entry] < 0) continue;
      const std::size_t row = entry / copies_of(dense_.max_cp);
      const std::size_t from = row / at(dense_.max_seqs);
      sent[at(dense_.dst_rank[entry]) * columns + from] += dense_.seq_len[row];
      sent[at(dense_.dst_rank[entry]) * columns + columns - 1] += dense_.seq_len[row];
    }
    for (std::size_t entry = 0; entry < sent.size(); ++entry) {
      const std::int64_t found = dense_.num_recv_tokens[entry];
      if (found == sent[entry]) continue;
      const bool total = entry % columns == columns - 1;
      add("D406",
          {.rank = static_cast<std::int64_t>(entry / columns),
           .operation = fmt::format("num_recv_tokens, column {}", entry % columns)},
          total ? fmt::format("the total is {}, but {} tokens are sent there", found, sent[entry])
                : fmt::format("{} tokens are expected from rank {}, which sends {}", found,
                              entry % columns, sent[entry]));
    }
  }

  void totals() {
    if (!dense_.num_total_recv_tokens) return;
    std::vector<std::int64_t> sent(at(dense_.world_size));
    for (std::size_t entry = 0; entry < dense_.dst_rank.size(); ++entry) {
      if (dense_.dst_rank[entry] < 0) continue;
      sent[dense_.dst_rank[entry]] += dense_.seq_len[entry / copies_of(dense_.max_cp)];
    }
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      const std::int64_t found = (*dense_.num_total_recv_tokens)[rank];
      if (found == sent[rank]) continue;
      add("D406", {.rank = static_cast<std::int64_t>(rank), .operation = "num_total_recv_tokens"},
          fmt::format("the total is {}, but {} tokens are sent there", found, sent[rank]));
    }
  }

  void lengths() {
    if (!dense_.recv_seq_lens || !found_.empty()) return;
    const std::size_t width = dense_.recv_seq_lens->size() / at(dense_.world_size);
    DenseMetadata plain = dense_;
    plain.recv_seq_lens.reset();
    const auto expected = received_lengths(to_sparse(plain));
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      const auto begin = dense_.recv_seq_lens->begin() + static_cast<std::ptrdiff_t>(rank * width);
      std::vector<std::int64_t> found(begin, begin + static_cast<std::ptrdiff_t>(width));
      std::vector<std::int64_t> wanted = expected[rank];
      wanted.resize(std::max(wanted.size(), width));
      found.resize(wanted.size());
      if (found == wanted) continue;
      add("D406", {.rank = static_cast<std::int64_t>(rank), .operation = "recv_seq_lens"},
          "mismatch with the lengths of the pieces that arrive, by offset");
    }
  }

  const DenseMetadata& dense_;
  Findings found_;
};

// The number of rows without padding. Without num_seqs, up to the last row with a destination.
std::int64_t real_rows(const DenseMetadata& dense, int rank) {
  if (dense.num_seqs) return (*dense.num_seqs)[rank];
  const std::size_t cp = copies_of(dense.max_cp);
  for (std::int64_t i = dense.max_seqs; i > 0; --i) {
    const std::size_t row = at(rank) * at(dense.max_seqs) + at(i - 1);
    for (std::size_t c = 0; c < cp; ++c) {
      if (dense.dst_rank[row * cp + c] >= 0) return i;
    }
  }
  return 0;
}

}  // namespace

template <class RankType, class TokenType, class CountType>
auto BasicDenseMetadata<RankType, TokenType, CountType>::get_slice(int rank) const -> Slice {
  if (rank < 0 || rank >= world_size) {
    throw InputError(Diagnostic{
        .code = "D400", .what = fmt::format("rank {} does not exist among {}", rank, world_size)});
  }
  const std::size_t rows = num_seqs ? at((*num_seqs)[rank]) : at(max_seqs);
  const std::size_t cp = copies_of(max_cp);
  const auto cut = [&](const auto& tensor, std::size_t width, std::size_t count) {
    const auto begin = tensor.begin() + static_cast<std::ptrdiff_t>(at(rank) * width);
    return std::decay_t<decltype(tensor)>(begin, begin + static_cast<std::ptrdiff_t>(count));
  };
  const std::size_t columns = at(world_size) + 1;
  Slice slice{.rank = rank,
              .world_size = world_size,
              .max_cp = max_cp,
              .arrival = arrival,
              .num_seqs = static_cast<std::int64_t>(rows),
              .dst_rank = cut(dst_rank, at(max_seqs) * cp, rows * cp),
              .dst_offset = cut(dst_offset, at(max_seqs) * cp, rows * cp),
              .seq_len = cut(seq_len, at(max_seqs), rows),
              .num_recv_tokens = num_recv_tokens.empty() ? std::vector<CountType>()
                                                         : cut(num_recv_tokens, columns, columns)};
  if (seq_recv_mask) slice.seq_recv_mask = cut(*seq_recv_mask, at(max_seqs) * cp, rows * cp);
  if (recv_seq_lens) {
    const std::size_t width = recv_seq_lens->size() / at(world_size);
    slice.recv_seq_lens = cut(*recv_seq_lens, width, width);
  }
  if (!slice.num_recv_tokens.empty()) slice.num_total_recv_tokens = slice.num_recv_tokens.back();
  return slice;
}

template struct BasicDenseMetadata<std::int64_t, std::int64_t, std::int64_t>;
template struct BasicDenseMetadata<std::int32_t, std::uint32_t, std::uint64_t>;

NormalizedMetadata normalize_dtype(const DenseMetadata& dense) {
  std::vector<Diagnostic> found;
  NormalizedMetadata normalized{
      .world_size = dense.world_size,
      .max_seqs = dense.max_seqs,
      .max_cp = dense.max_cp,
      .arrival = dense.arrival,
      .dst_rank = converted<std::int32_t>(dense.dst_rank, "dst_rank", found),
      .dst_offset = converted<std::uint32_t>(dense.dst_offset, "dst_offset", found),
      .seq_len = converted<std::uint32_t>(dense.seq_len, "seq_len", found),
      .num_recv_tokens = converted<std::uint64_t>(dense.num_recv_tokens, "num_recv_tokens", found),
      .seq_recv_mask = dense.seq_recv_mask,
      .recv_seq_lens = converted<std::uint32_t>(dense.recv_seq_lens, "recv_seq_lens", found),
      .num_seqs = dense.num_seqs,
      .num_total_recv_tokens =
          converted<std::uint64_t>(dense.num_total_recv_tokens, "num_total_recv_tokens", found)};
  if (!found.empty()) throw InputError(std::move(found));
  return normalized;
}

DenseMetadata to_dense(const Metadata& metadata, std::int64_t max_elements) {
  check_size(metadata, max_elements);
  const std::size_t world = at(metadata.world_size());
  const std::size_t seqs = metadata.max_seqs();
  const std::size_t cp = copies_of(metadata.max_cp());
  DenseMetadata dense{.world_size = metadata.world_size(),
                      .max_seqs = static_cast<std::int64_t>(seqs),
                      .max_cp = metadata.max_cp(),
                      .arrival = metadata.arrival(),
                      .dst_rank = std::vector<std::int64_t>(world * seqs * cp, -1),
                      .dst_offset = std::vector<std::int64_t>(world * seqs * cp),
                      .seq_len = std::vector<std::int64_t>(world * seqs),
                      .num_recv_tokens = std::vector<std::int64_t>(world * (world + 1))};
  dense.num_seqs.emplace(world);
  dense.num_total_recv_tokens.emplace(world);
  for (std::size_t rank = 0; rank < world; ++rank) {
    const int r = static_cast<int>(rank);
    (*dense.num_seqs)[rank] = metadata.num_seqs(r);
    for (std::uint32_t i = 0; i < metadata.num_seqs(r); ++i) {
      throw_if_cancelled();
      const Metadata::Row row = metadata.row(r, i);
      dense.seq_len[rank * seqs + i] = row.length;
      for (std::size_t c = 0; c < row.copies.size(); ++c) {
        dense.dst_rank[(rank * seqs + i) * cp + c] = row.copies[c].rank;
        dense.dst_offset[(rank * seqs + i) * cp + c] = row.copies[c].offset;
      }
    }
    const auto total = static_cast<std::int64_t>(metadata.num_total_recv_tokens(r));
    (*dense.num_total_recv_tokens)[rank] = total;
    dense.num_recv_tokens[rank * (world + 1) + world] = total;
  }
  for (const Flow& flow : flows(metadata)) {
    dense.num_recv_tokens[at(flow.to) * (world + 1) + at(flow.from)] =
        static_cast<std::int64_t>(flow.tokens);
  }
  dense.recv_seq_lens = padded(received_lengths(metadata), seqs);
  if (metadata.max_cp() > 0) {
    dense.seq_recv_mask.emplace(dense.dst_rank.size());
    std::ranges::transform(dense.dst_rank, dense.seq_recv_mask->begin(),
                           [](std::int64_t rank) { return static_cast<std::uint8_t>(rank >= 0); });
  }
  return dense;
}

std::vector<Diagnostic> validate(const DenseMetadata& dense) { return DenseCheck(dense).run(); }

Metadata to_sparse(const DenseMetadata& dense) {
  if (std::vector<Diagnostic> found = validate(dense); !found.empty()) {
    throw InputError(std::move(found));
  }
  Metadata::Builder builder(
      {.world_size = dense.world_size, .max_cp = dense.max_cp, .arrival = dense.arrival});
  const std::size_t cp = copies_of(dense.max_cp);
  std::vector<Copy> copies(cp);
  for (int rank = 0; rank < dense.world_size; ++rank) {
    const std::int64_t rows = real_rows(dense, rank);
    for (std::int64_t i = 0; i < rows; ++i) {
      throw_if_cancelled();
      const std::size_t row = at(rank) * at(dense.max_seqs) + at(i);
      for (std::size_t c = 0; c < cp; ++c) {
        const std::int64_t to = dense.dst_rank[row * cp + c];
        copies[c] = {
            .rank = static_cast<std::int32_t>(to),
            .offset = to < 0 ? 0 : static_cast<std::uint32_t>(dense.dst_offset[row * cp + c])};
      }
      builder.add_row(static_cast<std::uint32_t>(dense.seq_len[row]), copies);
    }
    builder.end_rank();
  }
  return builder.take();
}

Metadata::Metadata(const DenseMetadata& dense) : Metadata(to_sparse(dense)) {}
Metadata::Metadata(const NormalizedMetadata& dense) : Metadata(to_sparse(widened(dense))) {}

}  // namespace shiplap::dispatch
