// Validation of exchange tables.
//
// Three levels, each relying on the one before: single tables, pairs (forward and reverse), and the
// whole dispatch with its causal mask (causality.cc).
//
// Overlaps are found by a sweep over the received pieces in order of offset. The round trip is
// verified by walking the received pieces of a rank and the rows of its reverse table in step, as
// in a merge: every maximal run that is contiguous in both is compared once, so the cost is
// proportional to the pieces, not the tokens. Pair checks run only if both tables are valid.
#include "shiplap/dispatch/validate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/id.h"
#include "shiplap/dispatch/causality_internal.h"
#include "shiplap/dispatch/findings_internal.h"
#include "shiplap/dispatch/received_pieces_internal.h"

namespace shiplap::dispatch {
namespace {

bool is_real(const Copy& copy) { return copy.rank >= 0; }
std::ptrdiff_t real_copies(const Metadata::Row& row) {
  return std::ranges::count_if(row.copies, is_real);
}

// ---- one table

class TableCheck {
 public:
  TableCheck(const Metadata& metadata, const ValidateOptions& options)
      : metadata_(metadata), options_(options), found_(options.max_per_code) {}

  std::vector<Diagnostic> run() {
    if (!options_.buffer_tokens.empty() &&
        options_.buffer_tokens.size() != at(metadata_.world_size())) {
      found_.add({.code = "D401",
                  .where = {.operation = options_.table},
                  .what = fmt::format("shape mismatch: {} ranks and {} buffer sizes",
                                      metadata_.world_size(), options_.buffer_tokens.size())});
      return found_.take(options_.table);
    }
    for (int rank = 0; rank < metadata_.world_size(); ++rank) {
      for (std::uint32_t i = 0; i < metadata_.num_seqs(rank); ++i) {
        throw_if_cancelled();
        row(rank, i);
      }
    }
    if (metadata_.arrival() == ArrivalMode::placed) {
      const ReceivedPieces arrivals(metadata_);
      for (int rank = 0; rank < metadata_.world_size(); ++rank) overlaps(rank, arrivals.on(rank));
    }
    return found_.take(options_.table);
  }

 private:
  void add(std::string_view code, const Where& where, std::string what, std::string why = "") {
    found_.add({.code = std::string(code),
                .where = where,
                .what = std::move(what),
                .why = std::move(why)});
  }
  [[nodiscard]] Where where(int rank, std::string_view field, std::uint32_t row) const {
    return {.rank = rank, .operation = row_location(options_.table, field, row)};
  }

  void row(int rank, std::uint32_t i) {
    const Metadata::Row row = metadata_.row(rank, i);
    bool goes = false;
    for (const Copy& copy : row.copies) {
      if (copy.rank == -1) continue;
      goes = true;
      if (copy.rank < -1 || copy.rank >= metadata_.world_size()) {
        add("D403", where(rank, "dst_rank", i), fmt::format("rank {} does not exist", copy.rank),
            fmt::format("ranks go from 0 to {}; -1 is padding", metadata_.world_size() - 1));
        continue;
      }
      bounds(rank, i, row.length, copy);
    }
    self_overlap(rank, i, row);
    if (row.length > 0 && !goes) {
      add("D402", where(rank, "dst_rank", i),
          fmt::format("{} tokens have no destination rank", row.length),
          "-1 is padding, and padding has length 0");
    }
  }

  void bounds(int rank, std::uint32_t i, std::uint32_t length, const Copy& copy) {
    const std::uint64_t end = std::uint64_t{copy.offset} + length;
    if (end > std::numeric_limits<std::uint32_t>::max()) {
      add("D410", where(rank, "dst_offset", i),
          fmt::format("end offset {} does not fit 32 bits", end));
      return;
    }
    if (options_.buffer_tokens.empty()) return;
    const std::uint64_t room = options_.buffer_tokens[copy.rank];
    if (end <= room) return;
    add("D404", where(rank, "dst_offset", i),
        fmt::format("out of bounds: {} tokens at {} do not fit the {} tokens of rank {}", length,
                    copy.offset, room, copy.rank));
  }

  void overlaps(int rank, std::span<const ReceivedPiece> pieces) {
    const ReceivedPiece* last = nullptr;  // the one that reaches furthest
    for (const ReceivedPiece& piece : pieces) {
      throw_if_cancelled();
      if (last != nullptr && piece.offset < last->end()) {
        add("D405", where(piece.from, "dst_offset", piece.row),
            fmt::format("tokens {} to {} of rank {} overlap with sequence {} of rank {}",
                        piece.offset, std::min(last->end(), piece.end()), rank, last->row,
                        last->from),
            "one would overwrite the other");
      }
      if (last == nullptr || piece.end() > last->end()) last = &piece;
    }
  }

  // Summed rows may overlap with each other, but copies of one row may not.
  void self_overlap(int rank, std::uint32_t i, const Metadata::Row& row) {
    if (metadata_.arrival() == ArrivalMode::placed || real_copies(row) < 2) return;
    sorted_.assign(row.copies.begin(), row.copies.end());
    std::ranges::sort(sorted_, {},
                      [](const Copy& copy) { return std::pair(copy.rank, copy.offset); });
    for (std::size_t k = 1; k < sorted_.size(); ++k) {
      if (sorted_[k].rank < 0 || sorted_[k].rank != sorted_[k - 1].rank ||
          sorted_[k].offset - sorted_[k - 1].offset >= row.length) {
        continue;
      }
      add("D405", where(rank, "dst_offset", i),
          fmt::format("two copies overlap at token {} of rank {}", sorted_[k].offset,
                      sorted_[k].rank));
      return;
    }
  }

  const Metadata& metadata_;
  const ValidateOptions& options_;
  Findings found_;
  std::vector<Copy> sorted_;
};

// ---- two tables

class PairCheck {
 public:
  PairCheck(const MetadataPair& pair, const ValidateOptions& options)
      : pair_(pair), options_(options), found_(options.max_per_code) {}

  std::vector<Diagnostic> run(ArrivalMode wanted) {
    const int world = pair_.forward.world_size();
    if (pair_.reverse.world_size() != world) {
      found_.add({.code = "D401",
                  .where = {.operation = options_.table},
                  .what = fmt::format("rank count mismatch: {} forward and {} reverse", world,
                                      pair_.reverse.world_size())});
      return found_.take(options_.table);
    }
    arrivals(wanted);
    if (wanted == ArrivalMode::summed) {
      sums();
    } else {
      single_copies();
    }
    single_tables();
    if (!found_.empty()) return found_.take(options_.table);
    too_many();
    if (!found_.empty()) return found_.take(options_.table);
    const ReceivedPieces there(pair_.forward);
    for (int rank = 0; rank < world; ++rank) identity(rank, there.on(rank));
    const ReceivedPieces back(pair_.reverse);
    for (int rank = 0; rank < world; ++rank) coverage(rank, back.on(rank));
    return found_.take(options_.table);
  }

 private:
  [[nodiscard]] std::string forward() const { return options_.table + "_forward"; }
  [[nodiscard]] std::string reverse() const { return options_.table + "_reverse"; }

  // Only the reverse table of keys and values is summed.
  void arrivals(ArrivalMode wanted) {
    const auto report_summed = [&](const std::string& table) {
      found_.add({.code = "D412",
                  .where = {.operation = table + " arrival"},
                  .what = "received tokens are summed; every token must have its own destination",
                  .help = "set arrival to `placed` in this table"});
    };
    if (pair_.forward.arrival() == ArrivalMode::summed) report_summed(forward());
    if (wanted == ArrivalMode::placed && pair_.reverse.arrival() == ArrivalMode::summed)
      report_summed(reverse());
  }

  // Each table by itself. The reverse table must fit the buffers at home.
  void single_tables() {
    ValidateOptions options = options_;
    options.table = forward();
    found_.add_all(validate(pair_.forward, options));
    options.table = reverse();
    options.buffer_tokens.clear();
    for (int rank = 0; rank < pair_.forward.world_size(); ++rank) {
      options.buffer_tokens.push_back(pair_.forward.num_send_tokens(rank));
    }
    found_.add_all(validate(pair_.reverse, options));
  }

  // Gradients of several copies would be lost if they were not summed.
  void sums() {
    if (pair_.reverse.arrival() == ArrivalMode::summed) return;
    for (int rank = 0; rank < pair_.forward.world_size(); ++rank) {
      for (std::uint32_t i = 0; i < pair_.forward.num_seqs(rank); ++i) {
        throw_if_cancelled();
        const Metadata::Row row = pair_.forward.row(rank, i);
        const auto real = real_copies(row);
        if (row.length == 0 || real < 2) continue;
        found_.add({.code = "D412",
                    .where = {.rank = rank, .operation = row_location(reverse(), "arrival", i)},
                    .what = fmt::format("gradients of {} copies are placed, not summed", real),
                    .why = "each would overwrite the one before",
                    .help = "set arrival to `summed` in the reverse table"});
      }
    }
  }

  // Summed tokens are staged contiguously, with 32-bit offsets.
  void too_many() {
    for (int rank = 0; rank < pair_.reverse.world_size(); ++rank) {
      const std::uint64_t tokens = pair_.reverse.num_total_recv_tokens(rank);
      if (tokens <= std::numeric_limits<std::uint32_t>::max()) continue;
      found_.add({.code = "D410",
                  .where = {.rank = rank, .operation = reverse() + " num_total_recv_tokens"},
                  .what = fmt::format("{} tokens that arrive do not fit 32 bits", tokens)});
    }
  }

  // A query with two destinations would return twice.
  void single_copies() {
    for (int rank = 0; rank < pair_.forward.world_size(); ++rank) {
      for (std::uint32_t i = 0; i < pair_.forward.num_seqs(rank); ++i) {
        throw_if_cancelled();
        const Metadata::Row row = pair_.forward.row(rank, i);
        if (row.length == 0 || real_copies(row) < 2) continue;
        found_.add({.code = "D407",
                    .where = {.rank = rank, .operation = row_location(forward(), "dst_rank", i)},
                    .what = fmt::format("a query has {} destinations", real_copies(row)),
                    .why = "it would return more than once"});
      }
    }
  }

  // Walks the received pieces of a rank and the rows of its reverse table in step.
  void identity(int rank, std::span<const ReceivedPiece> pieces) {
    std::uint64_t reached = 0;
    std::uint32_t back = 0;
    for (const ReceivedPiece& piece : pieces) {
      throw_if_cancelled();
      if (piece.offset > reached) return hole(rank, reached, piece.offset);
      for (std::uint64_t token = piece.offset; token < piece.end();) {
        back = row_at(rank, back, token);
        if (back == pair_.reverse.num_seqs(rank)) return too_short(rank, token);
        const Metadata::Row row = pair_.reverse.row(rank, back);
        compare(rank, back, piece, token);
        token = std::min(piece.end(), std::uint64_t{row.begin} + row.length);
      }
      reached = piece.end();
    }
    if (reached < pair_.reverse.num_send_tokens(rank)) {
      hole(rank, reached, pair_.reverse.num_send_tokens(rank));
    }
  }

  // Returns the reverse row that holds `token`, at `from` or later.
  [[nodiscard]] std::uint32_t row_at(int rank, std::uint32_t from, std::uint64_t token) const {
    while (from < pair_.reverse.num_seqs(rank)) {
      const Metadata::Row row = pair_.reverse.row(rank, from);
      if (token < std::uint64_t{row.begin} + row.length) break;
      ++from;
    }
    return from;
  }

  void compare(int rank, std::uint32_t back, const ReceivedPiece& piece, std::uint64_t token) {
    const Metadata::Row row = pair_.reverse.row(rank, back);
    const std::uint64_t home = piece.begin + (token - piece.offset);
    const auto copy = std::ranges::find_if(row.copies, is_real);
    if (real_copies(row) > 1) {
      found_.add({.code = "D407",
                  .where = {.rank = rank, .operation = row_location(reverse(), "dst_rank", back)},
                  .what = "a row returns to more than one destination",
                  .why = "every token returns exactly once"});
      return;
    }
    const std::uint64_t target = copy->offset + (token - row.begin);
    if (copy->rank == piece.from && target == home) return;
    found_.add(
        {.code = "D407",
         .where = {.rank = rank, .operation = row_location(reverse(), "dst_rank", back)},
         .what = fmt::format("round-trip mismatch: token {} came from rank {}, token {}, and "
                             "returns to rank {}, token {}",
                             token, piece.from, home, copy->rank, target),
         .why = "the reverse table must invert the forward table"});
  }

  void hole(int rank, std::uint64_t begin, std::uint64_t end) {
    found_.add({.code = "D408",
                .where = {.rank = rank, .operation = forward() + " dst_offset"},
                .what = fmt::format("nothing arrives at tokens {} to {}", begin, end),
                .why = "the reverse table sends every token of this buffer, first to last"});
  }

  void too_short(int rank, std::uint64_t token) {
    found_.add({.code = "D408",
                .where = {.rank = rank, .operation = reverse() + " seq_len"},
                .what = fmt::format("no row returns token {}", token)});
  }

  // Every token at home must receive something.
  void coverage(int rank, std::span<const ReceivedPiece> pieces) {
    std::uint64_t reached = 0;
    const auto missing = [&](std::uint64_t end) {
      found_.add({.code = "D408",
                  .where = {.rank = rank, .operation = reverse() + " dst_offset"},
                  .what = fmt::format("nothing returns to tokens {} to {}", reached, end)});
    };
    for (const ReceivedPiece& piece : pieces) {
      throw_if_cancelled();
      if (piece.offset > reached) missing(piece.offset);
      reached = std::max(reached, piece.end());
    }
    if (reached < pair_.forward.num_send_tokens(rank)) {
      missing(pair_.forward.num_send_tokens(rank));
    }
  }

  const MetadataPair& pair_;
  const ValidateOptions& options_;
  Findings found_;
};

// ---- all of it

void compare_sizes(const QkvDispatch& dispatch, Findings& found) {
  const auto differ = [&](std::optional<std::int64_t> rank, std::string what) {
    found.add({.code = "D401",
               .where = {.rank = rank, .operation = "attention"},
               .what = std::move(what)});
  };
  const int world = dispatch.world_size();
  if (dispatch.kv.forward.world_size() != world || dispatch.attention.world_size() != world) {
    differ({},
           fmt::format("rank count mismatch: {} for queries, {} for keys, {} in the attention "
                       "layout",
                       world, dispatch.kv.forward.world_size(), dispatch.attention.world_size()));
    return;
  }
  for (int rank = 0; rank < world; ++rank) {
    const auto compare = [&](std::uint64_t a, std::string_view what, std::uint64_t b,
                             std::string_view other) {
      if (a != b) differ(rank, fmt::format("{} {}, but {} {}", a, what, b, other));
    };
    const MetadataPair& q = dispatch.q;
    const MetadataPair& kv = dispatch.kv;
    compare(q.forward.num_send_tokens(rank), "tokens have queries at home",
            kv.forward.num_send_tokens(rank), "have keys");
    compare(q.forward.num_total_recv_tokens(rank), "queries arrive",
            dispatch.attention.cu_seqlens_q(rank).back(), "are in the attention layout");
    compare(kv.forward.num_total_recv_tokens(rank), "keys arrive",
            dispatch.attention.num_kv_tokens(rank), "are in the attention layout");
  }
}

}  // namespace

std::vector<Diagnostic> validate(const Metadata& metadata, const ValidateOptions& options) {
  return TableCheck(metadata, options).run();
}

std::vector<Diagnostic> validate_queries(const MetadataPair& pair, const ValidateOptions& options) {
  return PairCheck(pair, options).run(ArrivalMode::placed);
}

std::vector<Diagnostic> validate_keys(const MetadataPair& pair, const ValidateOptions& options) {
  return PairCheck(pair, options).run(ArrivalMode::summed);
}

std::vector<Diagnostic> validate(const QkvDispatch& dispatch, const ValidateOptions& options) {
  Findings found(options.max_per_code);
  ValidateOptions pair_options = options;
  pair_options.table = "q";
  found.add_all(validate_queries(dispatch.q, pair_options));
  pair_options.table = "kv";
  pair_options.buffer_tokens = options.kv_buffer_tokens;
  found.add_all(validate_keys(dispatch.kv, pair_options));
  compare_sizes(dispatch, found);
  if (found.empty()) check_causality(dispatch, found);
  return found.take(options.table);
}

}  // namespace shiplap::dispatch
