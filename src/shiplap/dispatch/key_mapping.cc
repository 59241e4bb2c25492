#include "shiplap/dispatch/key_mapping.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/dispatch/findings_internal.h"

namespace shiplap::dispatch {
namespace {

using Shard = KeyMapping::Shard;

std::size_t as_size(std::int32_t value) { return static_cast<std::size_t>(value); }

// Keys that a query shard needs: those of one key shard.
struct NeededKeys {
  Shard from;
  std::uint32_t length = 0;
  std::uint64_t begin = 0;  // in the sequence
  [[nodiscard]] std::uint64_t end() const { return begin + length; }
};

class KeyMapper {
 public:
  explicit KeyMapper(const KeyMapping& mapping) : mapping_(mapping) {
    for (Diagnostic& one : validate(mapping.queries)) found_.add(std::move(one));
    if (found_.empty()) check_shapes();
    if (!found_.empty()) return;
    collect();
    for (std::size_t rank = 0; rank < needs_.size(); ++rank) {
      for (std::size_t seq = 0; seq < needs_[rank].size(); ++seq) check_keys(rank, seq);
    }
  }

  [[nodiscard]] std::vector<Diagnostic> findings() { return found_.take("kv_to_q_mapping"); }

  // REQUIRES: there are no findings.
  [[nodiscard]] MetadataPair tables() const {
    const Placement placement = place();
    Metadata::Builder forward(
        {.world_size = static_cast<int>(ranks()), .max_cp = static_cast<int>(max_copies())});
    std::vector<Copy> copies;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      for (std::size_t seq = 0; seq < lengths(rank).size(); ++seq) {
        copies.clear();
        for (const Shard& query : mapping_.kv_to_q_mapping[rank][seq]) {
          if (query.rank < 0) continue;
          const std::vector<NeededKeys>& keys = needs_[query.rank][query.seq];
          const std::uint64_t within = mapping_.kv_context_size[rank][seq] - keys.front().begin;
          copies.push_back({.rank = mapping_.queries.dst_rank[query.rank][query.seq],
                            .offset = placement.offset[query.rank][query.seq] +
                                      static_cast<std::uint32_t>(within)});
        }
        forward.add_row(lengths(rank)[seq], copies);
      }
      forward.end_rank();
    }
    return {.forward = forward.take(), .reverse = reverse(placement)};
  }

  [[nodiscard]] AttentionLayout attention(const Mask& mask) const {
    const Placement placement = place();
    std::vector<std::vector<AttentionLayout::Item>> by_rank(ranks());
    for (std::size_t to = 0; to < ranks(); ++to) {
      for (const Shard& query : placement.queries_on[to]) {
        std::uint32_t keys = 0;
        for (const NeededKeys& one : needs_[query.rank][query.seq]) keys += one.length;
        by_rank[to].push_back(
            {.q_length = lengths(as_size(query.rank))[query.seq], .kv_length = keys});
      }
    }
    return AttentionLayout(by_rank, {.mask = mask});
  }

 private:
  // Where the keys of each query shard begin, and the query shards of each rank in their order.
  struct Placement {
    std::vector<std::vector<std::uint32_t>> offset;
    std::vector<std::vector<Shard>> queries_on;
  };

  [[nodiscard]] std::size_t ranks() const { return mapping_.queries.seq_lens.size(); }
  [[nodiscard]] const std::vector<std::uint32_t>& lengths(std::size_t rank) const {
    return mapping_.queries.seq_lens[rank];
  }

  void add(std::string_view code, std::size_t rank, std::string field, std::string what) {
    found_.add({.code = std::string(code),
                .where = {.rank = static_cast<std::int64_t>(rank), .operation = std::move(field)},
                .what = std::move(what)});
  }

  void check_shapes() {
    const auto shape = [&](const char* field, const auto& tensor) {
      if (tensor.size() != ranks()) {
        found_.add({.code = "D401",
                    .where = {.operation = field},
                    .what = fmt::format("shape mismatch: {} ranks, and seq_lens has {}",
                                        tensor.size(), ranks())});
        return;
      }
      for (std::size_t rank = 0; rank < ranks(); ++rank) {
        if (tensor[rank].size() == lengths(rank).size()) continue;
        add("D401", rank, field,
            fmt::format("shape mismatch: {} shards, and seq_lens has {}", tensor[rank].size(),
                        lengths(rank).size()));
      }
    };
    shape("kv_context_size", mapping_.kv_context_size);
    shape("kv_to_q_mapping", mapping_.kv_to_q_mapping);
  }

  [[nodiscard]] bool exists(const Shard& query) const {
    return as_size(query.rank) < ranks() && query.seq >= 0 &&
           as_size(query.seq) < lengths(as_size(query.rank)).size() &&
           mapping_.queries.dst_rank[query.rank][query.seq] >= 0;
  }

  void collect() {
    for (std::size_t rank = 0; rank < ranks(); ++rank) needs_.emplace_back(lengths(rank).size());
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      for (std::size_t seq = 0; seq < lengths(rank).size(); ++seq) {
        for (const Shard& query : mapping_.kv_to_q_mapping[rank][seq]) {
          if (query.rank == -1) continue;
          if (!exists(query)) {
            add("D403", rank, fmt::format("kv_to_q_mapping, sequence {}", seq),
                fmt::format("sequence {} of rank {} has no queries", query.seq, query.rank));
            continue;
          }
          needs_[query.rank][query.seq].push_back(
              {.from = {static_cast<std::int32_t>(rank), static_cast<std::int32_t>(seq)},
               .length = lengths(rank)[seq],
               .begin = mapping_.kv_context_size[rank][seq]});
        }
      }
    }
    for (auto& rank : needs_) {
      for (auto& keys : rank) std::ranges::stable_sort(keys, {}, &NeededKeys::begin);
    }
  }

  void check_keys(std::size_t rank, std::size_t seq) {
    const std::vector<NeededKeys>& keys = needs_[rank][seq];
    for (std::size_t k = 1; k < keys.size(); ++k) {
      if (keys[k].begin == keys[k - 1].end()) continue;
      const bool overlap = keys[k].begin < keys[k - 1].end();
      add(overlap ? "D405" : "D408", as_size(keys[k].from.rank),
          fmt::format("kv_context_size, sequence {}", keys[k].from.seq),
          fmt::format("the keys of sequence {} of rank {} {} token {}", seq, rank,
                      overlap ? "overlap at" : "have a gap before", keys[k].begin));
    }
  }

  [[nodiscard]] std::size_t max_copies() const {
    std::size_t most = 1;
    for (const auto& rank : mapping_.kv_to_q_mapping) {
      for (const auto& queries : rank) most = std::max(most, queries.size());
    }
    return most;
  }

  [[nodiscard]] Placement place() const {
    Placement placement{.queries_on = std::vector<std::vector<Shard>>(ranks())};
    std::vector<std::uint64_t> used(ranks());
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      placement.offset.emplace_back(lengths(rank).size());
      for (std::size_t seq = 0; seq < lengths(rank).size(); ++seq) {
        const std::int32_t to = mapping_.queries.dst_rank[rank][seq];
        if (to < 0) continue;
        placement.offset[rank][seq] = static_cast<std::uint32_t>(used[to]);
        placement.queries_on[to].push_back(
            {static_cast<std::int32_t>(rank), static_cast<std::int32_t>(seq)});
        for (const NeededKeys& one : needs_[rank][seq]) used[to] += one.length;
        if (used[to] <= std::numeric_limits<std::uint32_t>::max()) continue;
        throw InputError(
            Diagnostic{.code = "D410",
                       .where = {.rank = to},
                       .what = fmt::format("{} tokens of keys do not fit 32 bits", used[to])});
      }
    }
    return placement;
  }

  [[nodiscard]] Metadata reverse(const Placement& placement) const {
    std::vector<std::vector<std::uint32_t>> begins;  // of the shards at home
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      begins.emplace_back();
      std::uint32_t begin = 0;
      for (const std::uint32_t length : lengths(rank)) {
        begins.back().push_back(begin);
        begin += length;
      }
    }
    Metadata::Builder builder(
        {.world_size = static_cast<int>(ranks()), .arrival = ArrivalMode::summed});
    for (const std::vector<Shard>& queries : placement.queries_on) {
      for (const Shard& query : queries) {
        for (const NeededKeys& one : needs_[query.rank][query.seq]) {
          const Copy home{.rank = one.from.rank, .offset = begins[one.from.rank][one.from.seq]};
          builder.add_row(one.length, {&home, 1});
        }
      }
      builder.end_rank();
    }
    return builder.take();
  }

  const KeyMapping& mapping_;
  Findings found_;
  std::vector<std::vector<std::vector<NeededKeys>>> needs_;  // by query shard, in order
};

KeyMapper sound_mapper(const KeyMapping& mapping) {
  KeyMapper mapper(mapping);
  if (std::vector<Diagnostic> found = mapper.findings(); !found.empty()) {
    throw InputError(std::move(found));
  }
  return mapper;
}

}  // namespace

MetadataPair compute_metadata_kv(const KeyMapping& mapping) {
  return sound_mapper(mapping).tables();
}

AttentionLayout compute_attention_layout(const KeyMapping& mapping, const Mask& mask) {
  return sound_mapper(mapping).attention(mask);
}

std::vector<Diagnostic> validate(const KeyMapping& mapping) {
  return KeyMapper(mapping).findings();
}

}  // namespace shiplap::dispatch
