#include "shiplap/dispatch/compute.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "shiplap/base/cancellation.h"
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

// The destinations of a sequence, in either form.
std::span<const std::int32_t> destinations_of(const SequenceDispatch& dispatch, std::size_t rank,
                                              std::size_t sequence) {
  return std::span(dispatch.dst_rank[rank]).subspan(sequence, 1);
}
std::span<const std::int32_t> destinations_of(const CopyDispatch& dispatch, std::size_t rank,
                                              std::size_t sequence) {
  return dispatch.dst_rank[rank][sequence];
}

int max_cp_of(const SequenceDispatch&) { return 0; }
int max_cp_of(const CopyDispatch& dispatch) {
  std::size_t most = 1;
  for (const auto& rank : dispatch.dst_rank) {
    for (const auto& copies : rank) most = std::max(most, copies.size());
  }
  return static_cast<int>(most);
}

std::uint32_t as_offset(std::uint64_t tokens, std::int32_t rank) {
  if (tokens <= std::numeric_limits<std::uint32_t>::max())
    return static_cast<std::uint32_t>(tokens);
  throw InputError(Diagnostic{.code = "D410",
                              .where = {.rank = rank},
                              .what = fmt::format("{} tokens do not fit 32 bits", tokens)});
}

template <class Sequences>
std::vector<Diagnostic> findings_of(const Sequences& dispatch) {
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
    if (lengths.size() != dispatch.dst_rank[rank].size()) {
      found.add({.code = "D401",
                 .where = {.rank = static_cast<std::int64_t>(rank)},
                 .what = fmt::format("shape mismatch: {} lengths and {} destinations",
                                     lengths.size(), dispatch.dst_rank[rank].size())});
      continue;
    }
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      throw_if_cancelled();
      bool goes = false;
      for (const std::int32_t to : destinations_of(dispatch, rank, s)) {
        goes = goes || to != -1;
        if (to >= -1 && to < static_cast<std::int64_t>(ranks)) continue;
        found.add(about_sequence("D403", rank, s, fmt::format("rank {} does not exist", to)));
      }
      if (!goes && lengths[s] > 0) {
        found.add(about_sequence("D402", rank, s,
                                 fmt::format("{} tokens have no destination rank", lengths[s])));
      }
    }
  }
  return found.take("dispatch");
}

// Received sequences are ordered by sending rank, then sequence, then copy: a running count per
// receiver gives all offsets, and the rows that return.
template <class Sequences>
MetadataPair pair_of(const Sequences& dispatch, ArrivalMode reverse_arrival) {
  if (std::vector<Diagnostic> found = findings_of(dispatch); !found.empty()) {
    throw InputError(std::move(found));
  }
  struct Return {
    std::uint32_t length = 0;
    Copy home;
  };
  const std::size_t ranks = dispatch.seq_lens.size();
  std::vector<std::vector<Return>> returns(ranks);
  std::vector<std::uint64_t> received(ranks);
  Metadata::Builder forward({.world_size = static_cast<int>(ranks), .max_cp = max_cp_of(dispatch)});
  std::vector<Copy> copies;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::uint64_t begin = 0;
    for (std::size_t s = 0; s < dispatch.seq_lens[rank].size(); ++s) {
      throw_if_cancelled();
      const std::uint32_t length = dispatch.seq_lens[rank][s];
      const auto home = static_cast<std::int32_t>(rank);
      copies.clear();
      for (const std::int32_t to : destinations_of(dispatch, rank, s)) {
        copies.emplace_back();
        if (to < 0) continue;
        copies.back() = {.rank = to, .offset = as_offset(received[to], to)};
        received[to] += length;
        (void)as_offset(received[to], to);
        returns[to].push_back(
            {.length = length, .home = {.rank = home, .offset = as_offset(begin, home)}});
      }
      forward.add_row(length, copies);
      begin += length;
    }
    forward.end_rank();
  }
  Metadata::Builder reverse({.world_size = static_cast<int>(ranks), .arrival = reverse_arrival});
  for (const std::vector<Return>& rank : returns) {
    for (const Return& row : rank) reverse.add_row(row.length, {&row.home, 1});
    reverse.end_rank();
  }
  return {.forward = forward.take(), .reverse = reverse.take()};
}

}  // namespace

MetadataPair compute_metadata(const Routing& routing) { return Router(routing).queries(); }

MetadataPair compute_metadata_kv(const Routing& routing, const DispatchOptions& options) {
  return KeyRouter(Router(routing), options).tables();
}

AttentionLayout compute_attention_layout(const Routing& routing, const DispatchOptions& options) {
  return KeyRouter(Router(routing), options).attention();
}

QkvDispatch compute_qkv_dispatch(const Routing& routing, const DispatchOptions& options) {
  const Router router(routing);
  const KeyRouter keys(router, options);
  return {.q = router.queries(), .kv = keys.tables(), .attention = keys.attention()};
}

// ---- whole sequences

std::vector<Diagnostic> validate(const SequenceDispatch& dispatch) { return findings_of(dispatch); }
std::vector<Diagnostic> validate(const CopyDispatch& dispatch) { return findings_of(dispatch); }

MetadataPair compute_metadata(const SequenceDispatch& dispatch) {
  return pair_of(dispatch, ArrivalMode::placed);
}

MetadataPair compute_metadata(const CopyDispatch& dispatch) {
  return pair_of(dispatch, ArrivalMode::summed);
}

// ---- attention layout

AttentionLayout::AttentionLayout(const std::vector<std::vector<Item>>& by_rank,
                                 const DispatchOptions& options)
    : mask_(options.mask), shares_keys_(options.shares_keys) {
  std::size_t numbers = by_rank.size();
  for (const std::vector<Item>& items : by_rank) numbers += items.size();
  cu_q_.reserve(numbers);
  cu_kv_.reserve(numbers);
  if (shares_keys_) kv_length_.reserve(numbers);
  first_.reserve(by_rank.size() + 1);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    std::uint64_t q = 0;
    std::uint64_t kv = 0;
    std::uint32_t longest_q = 0;
    std::uint32_t longest_kv = 0;
    for (const Item& item : by_rank[rank]) {
      throw_if_cancelled();
      cu_q_.push_back(static_cast<std::uint32_t>(q));
      cu_kv_.push_back(shares_keys_ ? item.kv_begin : static_cast<std::uint32_t>(kv));
      if (shares_keys_) kv_length_.push_back(item.kv_length);
      q += item.q_length;
      kv = shares_keys_ ? std::max(kv, std::uint64_t{item.kv_begin} + item.kv_length)
                        : kv + item.kv_length;
      if (std::max(q, kv) > std::numeric_limits<std::uint32_t>::max()) {
        throw InputError(Diagnostic{.code = "D410",
                                    .where = {.rank = static_cast<std::int64_t>(rank)},
                                    .what = fmt::format("{} tokens of the attention layout do "
                                                        "not fit 32 bits",
                                                        std::max(q, kv))});
      }
      longest_q = std::max(longest_q, item.q_length);
      longest_kv = std::max(longest_kv, item.kv_length);
    }
    cu_q_.push_back(static_cast<std::uint32_t>(q));
    cu_kv_.push_back(static_cast<std::uint32_t>(kv));
    if (shares_keys_) kv_length_.push_back(0);
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
  if (shares_keys_) {
    throw InputError(Diagnostic{
        .code = "D416",
        .what = "items of this attention layout share keys: they have no cumulative lengths",
        .help = "use the begin and the length of the keys of each item"});
  }
  const auto r = static_cast<std::size_t>(rank);
  return std::span(cu_kv_).subspan(first_[r], first_[r + 1] - first_[r]);
}

KeyRange AttentionLayout::keys(int rank, int item) const {
  const std::size_t i = std::size_t{first_[rank]} + static_cast<std::size_t>(item);
  const std::uint64_t begin = cu_kv_[i];
  return {.begin = begin, .end = shares_keys_ ? begin + kv_length_[i] : cu_kv_[i + 1]};
}

std::uint32_t AttentionLayout::num_kv_tokens(int rank) const {
  return cu_kv_[first_[static_cast<std::size_t>(rank) + 1] - std::size_t{1}];
}

std::uint32_t AttentionLayout::max_seqlen_q(int rank) const { return longest_q_[rank]; }

std::uint32_t AttentionLayout::max_seqlen_kv(int rank) const { return longest_kv_[rank]; }

Bytes AttentionLayout::bytes() const {
  const std::size_t numbers = first_.capacity() + cu_q_.capacity() + cu_kv_.capacity() +
                              kv_length_.capacity() + longest_q_.capacity() +
                              longest_kv_.capacity();
  return {static_cast<std::int64_t>(sizeof(AttentionLayout) + numbers * sizeof(std::uint32_t))};
}

double attention_pairs(const AttentionLayout& layout, int rank) {
  const std::span<const std::uint32_t> q = layout.cu_seqlens_q(rank);
  double pairs = 0;
  for (int i = 0; i < layout.num_local_seqs(rank); ++i) {
    const auto item = static_cast<std::size_t>(i);
    pairs += layout.mask().pairs(
        {.queries = q[item + 1] - q[item], .keys = layout.keys(rank, i).length()});
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

QkvDispatch create_qkv_dispatch(const RandomDispatch& random, const DispatchOptions& options) {
  return compute_qkv_dispatch(random_routing(random), options);
}

}  // namespace shiplap::dispatch
