#include "shiplap/dispatch/compute.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"
#include "shiplap/dispatch/findings_internal.h"
#include "shiplap/dispatch/router_internal.h"

namespace shiplap::dispatch {
namespace {

Diagnostic about_sequence(std::string_view code, std::size_t rank, std::size_t sequence,
                          std::string what) {
  return {.code = std::string(code),
          .where = {.rank = static_cast<std::int64_t>(rank),
                    .operation = fmt::format("dst_rank, sequence {}", sequence)},
          .what = std::move(what)};
}

// Makes each sequence a document, so that the general algorithm applies. Padding has no document:
// it becomes a row without destination.
struct PaddedRouting {
  Routing routing;
  std::vector<std::vector<bool>> padding;  // by rank and sequence
};

PaddedRouting to_padded_routing(const SequenceDispatch& dispatch) {
  const std::size_t ranks = dispatch.seq_lens.size();
  std::vector<std::vector<Segment>> home(ranks);
  std::vector<std::vector<Segment>> attention(ranks);
  std::vector<std::vector<bool>> padding(ranks);
  std::int32_t document = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t s = 0; s < dispatch.seq_lens[rank].size(); ++s) {
      const std::int32_t to = dispatch.dst_rank[rank][s];
      padding[rank].push_back(to < 0);
      if (to < 0) continue;
      const Segment whole{.document = document++, .length = dispatch.seq_lens[rank][s]};
      home[rank].push_back(whole);
      attention[to].push_back(whole);
    }
  }
  return {.routing = {.home = Layout(home), .attention = Layout(attention)},
          .padding = std::move(padding)};
}

// Inserts rows without destination where the padding was.
Metadata with_padding(const Metadata& metadata, const std::vector<std::vector<bool>>& padding) {
  Metadata::Builder builder({.world_size = metadata.world_size()});
  const Copy nowhere;
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    std::uint32_t next = 0;
    for (const bool is_padding : padding[rank]) {
      if (is_padding) {
        builder.add_row(0, {&nowhere, 1});
      } else {
        const Metadata::Row row = metadata.row(rank, next++);
        builder.add_row(row.length, row.copies);
      }
    }
    builder.end_rank();
  }
  return builder.take();
}

}  // namespace

MetadataPair compute_metadata(const Routing& routing) { return Router(routing).queries(); }

MetadataPair compute_metadata_kv(const Routing& routing) { return Router(routing).keys(); }

AttentionLayout compute_attention_layout(const Routing& routing) {
  return Router(routing).attention();
}

QkvDispatch compute_qkv_dispatch(const Routing& routing) {
  const Router router(routing);
  return {.q = router.queries(), .kv = router.keys(), .attention = router.attention()};
}

// ---- whole sequences

std::vector<Diagnostic> validate(const SequenceDispatch& dispatch) {
  Findings found;
  const std::size_t ranks = dispatch.seq_lens.size();
  if (ranks == 0 || dispatch.dst_rank.size() != ranks) {
    found.add({.code = "D401",
               .what = fmt::format("shape mismatch: seq_lens has {} ranks and dst_rank {}", ranks,
                                   dispatch.dst_rank.size())});
    return found.take("dispatch");
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::vector<std::uint32_t>& lengths = dispatch.seq_lens[rank];
    const std::vector<std::int32_t>& to = dispatch.dst_rank[rank];
    if (lengths.size() != to.size()) {
      found.add({.code = "D401",
                 .where = {.rank = static_cast<std::int64_t>(rank)},
                 .what = fmt::format("shape mismatch: {} lengths and {} destinations",
                                     lengths.size(), to.size())});
      continue;
    }
    for (std::size_t s = 0; s < to.size(); ++s) {
      if (to[s] == -1 && lengths[s] > 0) {
        found.add(about_sequence("D402", rank, s,
                                 fmt::format("{} tokens have no destination rank", lengths[s])));
      } else if (to[s] < -1 || to[s] >= static_cast<std::int64_t>(ranks)) {
        found.add(about_sequence("D403", rank, s, fmt::format("rank {} does not exist", to[s])));
      }
    }
  }
  return found.take("dispatch");
}

MetadataPair compute_metadata(const SequenceDispatch& dispatch) {
  if (std::vector<Diagnostic> found = validate(dispatch); !found.empty()) {
    throw InputError(std::move(found));
  }
  const PaddedRouting laid = to_padded_routing(dispatch);
  MetadataPair pair = compute_metadata(laid.routing);
  const auto has_padding = [](const std::vector<bool>& rank) {
    return std::ranges::find(rank, true) != rank.end();
  };
  if (std::ranges::any_of(laid.padding, has_padding)) {
    pair.forward = with_padding(pair.forward, laid.padding);
  }
  return pair;
}

// ---- attention layout

AttentionLayout::AttentionLayout(const std::vector<std::vector<Item>>& by_rank) {
  std::size_t numbers = by_rank.size();
  for (const std::vector<Item>& items : by_rank) numbers += items.size();
  cu_q_.reserve(numbers);
  cu_kv_.reserve(numbers);
  first_.reserve(by_rank.size() + 1);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    std::uint64_t q = 0;
    std::uint64_t kv = 0;
    std::uint32_t longest_q = 0;
    std::uint32_t longest_kv = 0;
    cu_q_.push_back(0);
    cu_kv_.push_back(0);
    for (const Item& item : by_rank[rank]) {
      q += item.q_length;
      kv += item.kv_length;
      if (std::max(q, kv) > std::numeric_limits<std::uint32_t>::max()) {
        throw InputError(Diagnostic{.code = "D410",
                                    .where = {.rank = static_cast<std::int64_t>(rank)},
                                    .what = fmt::format("{} tokens of the attention layout do "
                                                        "not fit 32 bits",
                                                        std::max(q, kv))});
      }
      cu_q_.push_back(static_cast<std::uint32_t>(q));
      cu_kv_.push_back(static_cast<std::uint32_t>(kv));
      longest_q = std::max(longest_q, item.q_length);
      longest_kv = std::max(longest_kv, item.kv_length);
    }
    first_.push_back(static_cast<std::uint32_t>(cu_q_.size()));
    longest_q_.push_back(longest_q);
    longest_kv_.push_back(longest_kv);
  }
}

int AttentionLayout::num_local_seqs(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return static_cast<int>(first_[r + 1] - first_[r]) - 1;
}

std::span<const std::uint32_t> AttentionLayout::cu_seqlens_q(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return std::span(cu_q_).subspan(first_[r], first_[r + 1] - first_[r]);
}

std::span<const std::uint32_t> AttentionLayout::cu_seqlens_kv(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return std::span(cu_kv_).subspan(first_[r], first_[r + 1] - first_[r]);
}

std::uint32_t AttentionLayout::max_seqlen_q(int rank) const { return longest_q_[rank]; }

std::uint32_t AttentionLayout::max_seqlen_kv(int rank) const { return longest_kv_[rank]; }

Bytes AttentionLayout::bytes() const {
  const std::size_t numbers = first_.capacity() + cu_q_.capacity() + cu_kv_.capacity() +
                              longest_q_.capacity() + longest_kv_.capacity();
  return {static_cast<std::int64_t>(sizeof(AttentionLayout) + numbers * sizeof(std::uint32_t))};
}

double causal_pairs(const AttentionLayout& layout, int rank) {
  const std::span<const std::uint32_t> q = layout.cu_seqlens_q(rank);
  const std::span<const std::uint32_t> kv = layout.cu_seqlens_kv(rank);
  double pairs = 0;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    const double queries = q[i + 1] - q[i];
    const double keys = kv[i + 1] - kv[i];
    pairs += queries * keys - queries * (queries - 1) / 2;
  }
  return pairs;
}

// ---- random dispatches

Routing random_routing(const RandomDispatch& random) {
  if (random.max_cp_degree < 1) {
    throw InputError(Diagnostic{.code = "D400",
                                .what = fmt::format("invalid CP degree {}", random.max_cp_degree),
                                .help = "1 keeps every document whole"});
  }
  const auto lengths = gen_seq_lens({.world_size = random.world_size,
                                     .num_seqs = random.num_seqs,
                                     .total_len = random.total_seq_len},
                                    random.seed);
  std::vector<std::vector<Segment>> home(lengths.size());
  std::vector<std::uint32_t> all;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    for (const std::uint32_t length : lengths[rank]) {
      home[rank].push_back({.document = static_cast<std::int32_t>(all.size()), .length = length});
      all.push_back(length);
    }
  }
  Random degrees = Random(random.seed).split(~std::uint64_t{0});
  std::vector<int> cp_degree(all.size());
  for (int& degree : cp_degree) {
    degree = static_cast<int>(degrees.between(1, std::int64_t{random.max_cp_degree} + 1));
  }
  return {.home = Layout(home),
          .attention =
              assign_randomly(cut_documents(all, cp_degree), random.world_size, degrees.next())};
}

QkvDispatch create_qkv_dispatch(const RandomDispatch& random) {
  return compute_qkv_dispatch(random_routing(random));
}

}  // namespace shiplap::dispatch
