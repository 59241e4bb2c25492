#include "shiplap/run/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "shiplap/base/error.h"

namespace shiplap::run {
namespace {

std::uint64_t hash_of(const dispatch::AttentionLayout& layout) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::uint64_t number) { hash = (hash ^ number) * 0x100000001b3; };
  add(static_cast<std::uint64_t>(layout.mask().kind()));
  add(layout.mask().tokens());
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    add(layout.cu_seqlens_q(rank).size());
    for (const std::uint32_t end : layout.cu_seqlens_q(rank)) add(end);
    for (int i = 0; i < layout.num_local_seqs(rank); ++i) {
      add(layout.keys(rank, i).begin);
      add(layout.keys(rank, i).end);
    }
  }
  return hash;
}

// The most frequent hash; the first if tied.
std::int64_t majority(std::span<const std::int64_t> by_rank) {
  std::map<std::int64_t, std::size_t> votes;
  for (const std::int64_t hash : by_rank) ++votes[hash];
  return *std::ranges::max_element(by_rank, {}, [&](std::int64_t hash) { return votes[hash]; });
}

}  // namespace

std::vector<TableField> table_fields(const dispatch::QkvDispatch& dispatch) {
  std::vector<TableField> fields;
  const auto add = [&](std::string_view table, const dispatch::Metadata& metadata) {
    const auto hashes = metadata.hashes();
    for (std::size_t k = 0; k < hashes.size(); ++k) {
      fields.push_back({.name = fmt::format("{} {}", table, dispatch::Metadata::kHashedFields[k]),
                        .hash = static_cast<std::int64_t>(hashes[k])});
    }
  };
  add("q_forward", dispatch.q.forward);
  add("q_reverse", dispatch.q.reverse);
  add("kv_forward", dispatch.kv.forward);
  add("kv_reverse", dispatch.kv.reverse);
  fields.push_back(
      {.name = "attention layout", .hash = static_cast<std::int64_t>(hash_of(dispatch.attention))});
  return fields;
}

std::optional<Diagnostic> metadata_mismatch(std::span<const TableField> fields,
                                            std::span<const std::int64_t> hashes,
                                            std::span<const int> world_ranks) {
  ensure(hashes.size() == fields.size() * world_ranks.size(), "every rank has every field");
  std::vector<std::string> found;
  int first = std::numeric_limits<int>::max();
  std::vector<std::int64_t> by_rank(world_ranks.size());
  for (std::size_t k = 0; k < fields.size(); ++k) {
    for (std::size_t r = 0; r < by_rank.size(); ++r) by_rank[r] = hashes[r * fields.size() + k];
    const std::int64_t expected = majority(by_rank);
    for (std::size_t r = 0; r < by_rank.size(); ++r) {
      if (by_rank[r] == expected) continue;
      first = std::min(first, world_ranks[r]);
      found.push_back(fmt::format("rank {} in {}", world_ranks[r], fields[k].name));
    }
  }
  if (found.empty()) return std::nullopt;
  constexpr std::size_t kMaxListed = 6;
  const std::size_t more = found.size() > kMaxListed ? found.size() - kMaxListed : 0;
  found.resize(found.size() - more);
  return Diagnostic{
      .code = "D420",
      .where = {.rank = first},
      .what = fmt::format("metadata mismatch between ranks: {}{}", fmt::join(found, ", "),
                          more > 0 ? fmt::format(" and {} more", more) : ""),
      .why = "a rank would hang waiting for tokens that no rank sends",
      .help = "compute the dispatch from the same lengths and the same seed on all ranks"};
}

}  // namespace shiplap::run
