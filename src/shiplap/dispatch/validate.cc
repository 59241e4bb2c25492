#include "shiplap/dispatch/validate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "shiplap/base/id.h"
#include "shiplap/dispatch/arrivals_internal.h"
#include "shiplap/dispatch/causality_internal.h"
#include "shiplap/dispatch/findings_internal.h"

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
      : metadata_(metadata), options_(options), found_(options.most_of_a_kind) {}

  std::vector<Diagnostic> run() {
    if (!options_.buffer_tokens.empty() &&
        options_.buffer_tokens.size() != at(metadata_.world_size())) {
      found_.add({.code = "D401",
                  .where = {.operation = options_.table},
                  .what = fmt::format("there are {} ranks and the sizes of {} buffers",
                                      metadata_.world_size(), options_.buffer_tokens.size())});
      return found_.take(options_.table);
    }
    for (int rank = 0; rank < metadata_.world_size(); ++rank) {
      for (std::uint32_t i = 0; i < metadata_.num_seqs(rank); ++i) row(rank, i);
    }
    if (metadata_.arrival() == Arrival::placed) {
      const Arrivals arrivals(metadata_);
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
    return {.rank = rank, .operation = place_in(options_.table, field, row)};
  }

  void row(int rank, std::uint32_t i) {
    const Metadata::Row row = metadata_.row(rank, i);
    bool goes = false;
    for (const Copy& copy : row.copies) {
      if (copy.rank == -1) continue;
      goes = true;
      if (copy.rank < -1 || copy.rank >= metadata_.world_size()) {
        add("D403", where(rank, "dst_rank", i), fmt::format("there is no rank {}", copy.rank),
            fmt::format("ranks go from 0 to {}; -1 is padding", metadata_.world_size() - 1));
        continue;
      }
      bounds(rank, i, row.length, copy);
    }
    meets_itself(rank, i, row);
    if (row.length > 0 && !goes) {
      add("D402", where(rank, "dst_rank", i), fmt::format("{} tokens go nowhere", row.length),
          "-1 is padding, and padding has length 0");
    }
  }

  void bounds(int rank, std::uint32_t i, std::uint32_t length, const Copy& copy) {
    const std::uint64_t end = std::uint64_t{copy.offset} + length;
    if (end > std::numeric_limits<std::uint32_t>::max()) {
      add("D410", where(rank, "dst_offset", i), fmt::format("it ends at token {}", end));
      return;
    }
    if (options_.buffer_tokens.empty()) return;
    const std::uint64_t room = options_.buffer_tokens[copy.rank];
    if (end <= room) return;
    add("D404", where(rank, "dst_offset", i),
        fmt::format("{} tokens at {} do not fit the {} tokens of rank {}", length, copy.offset,
                    room, copy.rank));
  }

  void overlaps(int rank, std::span<const Piece> pieces) {
    const Piece* last = nullptr;  // the one that reaches furthest
    for (const Piece& piece : pieces) {
      if (last != nullptr && piece.offset < last->end()) {
        add("D405", where(piece.from, "dst_offset", piece.row),
            fmt::format("tokens {} to {} of rank {} are also where sequence {} of rank {} goes",
                        piece.offset, std::min(last->end(), piece.end()), rank, last->row,
                        last->from),
            "one of the two would be lost");
      }
      if (last == nullptr || piece.end() > last->end()) last = &piece;
    }
  }

  // What is summed may meet, but not with itself.
  void meets_itself(int rank, std::uint32_t i, const Metadata::Row& row) {
    if (metadata_.arrival() == Arrival::placed || real_copies(row) < 2) return;
    sorted_.assign(row.copies.begin(), row.copies.end());
    std::ranges::sort(sorted_, {},
                      [](const Copy& copy) { return std::pair(copy.rank, copy.offset); });
    for (std::size_t k = 1; k < sorted_.size(); ++k) {
      if (sorted_[k].rank < 0 || sorted_[k].rank != sorted_[k - 1].rank ||
          sorted_[k].offset - sorted_[k - 1].offset >= row.length) {
        continue;
      }
      add("D405", where(rank, "dst_offset", i),
          fmt::format("two copies meet at token {} of rank {}", sorted_[k].offset,
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
      : pair_(pair), options_(options), found_(options.most_of_a_kind) {}

  std::vector<Diagnostic> run(Arrival wanted) {
    const int world = pair_.forward.world_size();
    if (pair_.reverse.world_size() != world) {
      found_.add({.code = "D401",
                  .where = {.operation = options_.table},
                  .what = fmt::format("there are {} ranks on the way there and {} on the way back",
                                      world, pair_.reverse.world_size())});
      return found_.take(options_.table);
    }
    arrivals(wanted);
    if (wanted == Arrival::summed) {
      sums();
    } else {
      single_copies();
    }
    alone();
    if (!found_.empty()) return found_.take(options_.table);
    too_many();
    if (!found_.empty()) return found_.take(options_.table);
    const Arrivals there(pair_.forward);
    for (int rank = 0; rank < world; ++rank) identity(rank, there.on(rank));
    const Arrivals back(pair_.reverse);
    for (int rank = 0; rank < world; ++rank) coverage(rank, back.on(rank));
    return found_.take(options_.table);
  }

 private:
  [[nodiscard]] std::string forward() const { return options_.table + "_forward"; }
  [[nodiscard]] std::string reverse() const { return options_.table + "_reverse"; }

  // On the way there nothing is summed, and of queries nothing on the way back.
  void arrivals(Arrival wanted) {
    const auto refuse = [&](const std::string& table) {
      found_.add({.code = "D412",
                  .where = {.operation = table + " arrival"},
                  .what = "what arrives is summed, where every token has a place of its own",
                  .help = "arrival is `placed` in this table"});
    };
    if (pair_.forward.arrival() == Arrival::summed) refuse(forward());
    if (wanted == Arrival::placed && pair_.reverse.arrival() == Arrival::summed) refuse(reverse());
  }

  // Each table by itself. What goes home must fit what was there.
  void alone() {
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

  // Gradients of several copies that are not added up are lost.
  void sums() {
    if (pair_.reverse.arrival() == Arrival::summed) return;
    for (int rank = 0; rank < pair_.forward.world_size(); ++rank) {
      for (std::uint32_t i = 0; i < pair_.forward.num_seqs(rank); ++i) {
        const Metadata::Row row = pair_.forward.row(rank, i);
        const auto real = real_copies(row);
        if (row.length == 0 || real < 2) continue;
        found_.add({.code = "D412",
                    .where = {.rank = rank, .operation = place_in(reverse(), "arrival", i)},
                    .what = fmt::format("gradients of {} copies are placed, not summed", real),
                    .why = "each would overwrite the one before",
                    .help = "the table of the way back has arrival `summed`"});
      }
    }
  }

  // What is summed lies one after another before it is.
  void too_many() {
    for (int rank = 0; rank < pair_.reverse.world_size(); ++rank) {
      const std::uint64_t tokens = pair_.reverse.num_total_recv_tokens(rank);
      if (tokens <= std::numeric_limits<std::uint32_t>::max()) continue;
      found_.add({.code = "D410",
                  .where = {.rank = rank, .operation = reverse() + " num_total_recv_tokens"},
                  .what = fmt::format("{} tokens that arrive do not fit 32 bits", tokens)});
    }
  }

  // A query that went to two places would come back twice.
  void single_copies() {
    for (int rank = 0; rank < pair_.forward.world_size(); ++rank) {
      for (std::uint32_t i = 0; i < pair_.forward.num_seqs(rank); ++i) {
        const Metadata::Row row = pair_.forward.row(rank, i);
        if (row.length == 0 || real_copies(row) < 2) continue;
        found_.add({.code = "D407",
                    .where = {.rank = rank, .operation = place_in(forward(), "dst_rank", i)},
                    .what = fmt::format("a query goes to {} places", real_copies(row)),
                    .why = "it would come back more than once"});
      }
    }
  }

  // Walks what arrived on a rank and the rows that send it back, in step.
  void identity(int rank, std::span<const Piece> pieces) {
    std::uint64_t reached = 0;
    std::uint32_t back = 0;
    for (const Piece& piece : pieces) {
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

  // The row on the way back that has `token`, at `from` or later.
  [[nodiscard]] std::uint32_t row_at(int rank, std::uint32_t from, std::uint64_t token) const {
    while (from < pair_.reverse.num_seqs(rank)) {
      const Metadata::Row row = pair_.reverse.row(rank, from);
      if (token < std::uint64_t{row.begin} + row.length) break;
      ++from;
    }
    return from;
  }

  void compare(int rank, std::uint32_t back, const Piece& piece, std::uint64_t token) {
    const Metadata::Row row = pair_.reverse.row(rank, back);
    const std::uint64_t home = piece.begin + (token - piece.offset);
    const auto copy = std::ranges::find_if(row.copies, is_real);
    if (real_copies(row) > 1) {
      found_.add({.code = "D407",
                  .where = {.rank = rank, .operation = place_in(reverse(), "dst_rank", back)},
                  .what = "a row goes back to more than one place",
                  .why = "what was sent once comes back once"});
      return;
    }
    const std::uint64_t target = copy->offset + (token - row.begin);
    if (copy->rank == piece.from && target == home) return;
    found_.add({.code = "D407",
                .where = {.rank = rank, .operation = place_in(reverse(), "dst_rank", back)},
                .what = fmt::format("token {} came from rank {}, token {}, and goes back to rank "
                                    "{}, token {}",
                                    token, piece.from, home, copy->rank, target),
                .why = "there and back must lead to where it began"});
  }

  void hole(int rank, std::uint64_t begin, std::uint64_t end) {
    found_.add({.code = "D408",
                .where = {.rank = rank, .operation = forward() + " dst_offset"},
                .what = fmt::format("nothing arrives at tokens {} to {}", begin, end),
                .why = "the way back sends every token of this buffer, first to last"});
  }

  void too_short(int rank, std::uint64_t token) {
    found_.add({.code = "D408",
                .where = {.rank = rank, .operation = reverse() + " seq_len"},
                .what = fmt::format("no row sends token {} back", token)});
  }

  // Does every token at home get something back?
  void coverage(int rank, std::span<const Piece> pieces) {
    std::uint64_t reached = 0;
    const auto missing = [&](std::uint64_t end) {
      found_.add({.code = "D408",
                  .where = {.rank = rank, .operation = reverse() + " dst_offset"},
                  .what = fmt::format("nothing comes back to tokens {} to {}", reached, end)});
    };
    for (const Piece& piece : pieces) {
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
           fmt::format("there are {} ranks for queries, {} for keys, {} in the attention "
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
            dispatch.attention.cu_seqlens_kv(rank).back(), "are in the attention layout");
  }
}

}  // namespace

std::vector<Diagnostic> validate(const Metadata& metadata, const ValidateOptions& options) {
  return TableCheck(metadata, options).run();
}

std::vector<Diagnostic> validate_queries(const MetadataPair& pair, const ValidateOptions& options) {
  return PairCheck(pair, options).run(Arrival::placed);
}

std::vector<Diagnostic> validate_keys(const MetadataPair& pair, const ValidateOptions& options) {
  return PairCheck(pair, options).run(Arrival::summed);
}

std::vector<Diagnostic> validate(const QkvDispatch& dispatch, const ValidateOptions& options) {
  Findings found(options.most_of_a_kind);
  ValidateOptions own = options;
  own.table = "q";
  found.add_all(validate_queries(dispatch.q, own));
  own.table = "kv";
  own.buffer_tokens = options.kv_buffer_tokens;
  found.add_all(validate_keys(dispatch.kv, own));
  compare_sizes(dispatch, found);
  if (found.empty()) check_causality(dispatch, found);
  return found.take(options.table);
}

}  // namespace shiplap::dispatch
