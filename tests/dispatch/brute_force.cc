#include "brute_force.h"

#include <algorithm>
#include <map>
#include <set>

namespace shiplap::dispatch {
namespace {

// ---- sound or not

// What arrives at each place, with the row that sent it.
struct Sender {
  Spot spot;
  std::uint32_t row = 0;
};
using Arrived = std::map<Spot, std::vector<Sender>>;

// Fills `arrived`. A place that is nonsense is a flaw, and then nothing is filled in.
std::string table_flaw(const Metadata& metadata, Arrived& arrived) {
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(rank); ++i) {
      const Metadata::Row row = metadata.row(rank, i);
      int places = 0;
      for (const Copy& copy : row.copies) {
        if (copy.rank == -1) continue;
        ++places;
        if (copy.rank < 0 || copy.rank >= metadata.world_size()) return "no such rank";
        if (std::uint64_t{copy.offset} + row.length > kMax32) return "beyond 32 bits";
      }
      if (row.length > 0 && places == 0) return "tokens go nowhere";
    }
  }
  for (int rank = 0; rank < metadata.world_size(); ++rank) {
    std::uint64_t sent = 0;
    for (std::uint32_t i = 0; i < metadata.num_seqs(rank); ++i) {
      const Metadata::Row row = metadata.row(rank, i);
      for (std::uint32_t k = 0; k < row.length; ++k, ++sent) {
        for (const Copy& copy : row.copies) {
          if (copy.rank < 0) continue;
          arrived[{copy.rank, std::uint64_t{copy.offset} + k}].push_back({{rank, sent}, i});
        }
      }
    }
  }
  for (const auto& [place, senders] : arrived) {
    if (senders.size() > 1 && metadata.arrival() == ArrivalMode::placed) return "two in one place";
    std::set<std::pair<int, std::uint32_t>> rows;
    for (const Sender& sender : senders) rows.insert({sender.spot.rank, sender.row});
    if (rows.size() < senders.size()) return "one row twice in one place";
  }
  return "";
}

// A place at home, even that of an empty row, lies in the buffer there.
bool fits_home(const MetadataPair& pair) {
  for (const auto& rank : rows_of(pair.reverse)) {
    for (const Sent& row : rank) {
      for (const Copy& copy : row.copies) {
        if (copy.rank < 0) continue;
        const std::uint64_t room = pair.forward.num_send_tokens(copy.rank);
        if (std::uint64_t{copy.offset} + row.length > room) return false;
      }
    }
  }
  return true;
}

enum class Kind { queries, keys };

std::string pair_flaw(const MetadataPair& pair, Kind kind, Arrived& there) {
  if (pair.forward.world_size() != pair.reverse.world_size()) return "ranks differ";
  Arrived back;
  if (std::string flaw = table_flaw(pair.forward, there); !flaw.empty()) return flaw;
  if (std::string flaw = table_flaw(pair.reverse, back); !flaw.empty()) return flaw;
  if (!fits_home(pair)) return "outside the buffer at home";
  const auto returned = destinations(pair.reverse);
  std::size_t tokens = 0;
  for (std::size_t rank = 0; rank < returned.size(); ++rank) {
    for (std::size_t i = 0; i < returned[rank].size(); ++i, ++tokens) {
      const auto origin = there.find({static_cast<std::int32_t>(rank), i});
      if (origin == there.end()) return "a token comes back that was not sent";
      if (origin->second.size() != 1) return "two in one place on the way there";
      if (returned[rank][i] != std::vector<Spot>{origin->second[0].spot}) return "goes elsewhere";
    }
  }
  if (tokens != there.size()) return "a token does not come back";
  for (int rank = 0; rank < pair.forward.world_size(); ++rank) {
    for (std::uint32_t i = 0; i < pair.forward.num_send_tokens(rank); ++i) {
      const auto home = back.find({rank, i});
      if (home == back.end()) return "nothing comes back";
      if (kind == Kind::queries && home->second.size() != 1) return "comes back twice";
    }
  }
  return "";
}

struct Held {
  std::vector<Spot> queries;
  std::vector<Spot> keys;
};

std::vector<Spot> cut_out(const Arrived& arrived, int rank, std::uint32_t begin,
                          std::uint32_t end) {
  std::vector<Spot> tokens;
  for (std::uint32_t i = begin; i < end; ++i) {
    tokens.push_back(arrived.at({rank, i}).front().spot);
  }
  return tokens;
}

bool begins_with(const std::vector<Spot>& all, const std::vector<Spot>& first) {
  return first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin());
}

std::string causality_flaw(const std::vector<Held>& items) {
  for (const Held& item : items) {
    if (item.queries.size() > item.keys.size()) return "fewer keys than queries";
    if (!std::equal(item.queries.rbegin(), item.queries.rend(), item.keys.rbegin())) {
      return "the last keys are not those of the queries";
    }
    if (std::set(item.keys.begin(), item.keys.end()).size() < item.keys.size()) {
      return "a key twice";
    }
  }
  for (const Held& a : items) {
    for (const Held& b : items) {
      const bool share = std::ranges::any_of(
          a.keys, [&](const Spot& key) { return std::ranges::find(b.keys, key) != b.keys.end(); });
      if (share && !begins_with(a.keys, b.keys) && !begins_with(b.keys, a.keys)) {
        return "two items disagree about a document";
      }
    }
  }
  return "";
}

}  // namespace

std::string flaw(const QkvDispatch& dispatch) {
  Arrived queries;
  Arrived keys;
  if (std::string flaw = pair_flaw(dispatch.q, Kind::queries, queries); !flaw.empty()) {
    return "queries: " + flaw;
  }
  if (std::string flaw = pair_flaw(dispatch.kv, Kind::keys, keys); !flaw.empty()) {
    return "keys: " + flaw;
  }
  const int world = dispatch.world_size();
  if (dispatch.kv.forward.world_size() != world || dispatch.attention.world_size() != world) {
    return "ranks differ";
  }
  std::vector<Held> items;
  for (int rank = 0; rank < world; ++rank) {
    const auto q = dispatch.attention.cu_seqlens_q(rank);
    const auto kv = dispatch.attention.cu_seqlens_kv(rank);
    if (dispatch.q.forward.num_send_tokens(rank) != dispatch.kv.forward.num_send_tokens(rank)) {
      return "queries and keys of different tokens";
    }
    if (q.back() != dispatch.q.reverse.num_send_tokens(rank)) return "layout of queries";
    if (kv.back() != dispatch.kv.reverse.num_send_tokens(rank)) return "layout of keys";
    for (std::size_t i = 0; i + 1 < q.size(); ++i) {
      items.push_back(
          {cut_out(queries, rank, q[i], q[i + 1]), cut_out(keys, rank, kv[i], kv[i + 1])});
    }
  }
  return causality_flaw(items);
}

// ---- changes

Open opened(const QkvDispatch& dispatch) {
  Open open{.q_forward = rows_of(dispatch.q.forward),
            .q_reverse = rows_of(dispatch.q.reverse),
            .kv_forward = rows_of(dispatch.kv.forward),
            .kv_reverse = rows_of(dispatch.kv.reverse),
            .max_cp = dispatch.kv.forward.max_cp(),
            .kv_arrival = dispatch.kv.reverse.arrival()};
  open.items.resize(at(dispatch.world_size()));
  for (int rank = 0; rank < dispatch.world_size(); ++rank) {
    const auto q = dispatch.attention.cu_seqlens_q(rank);
    const auto kv = dispatch.attention.cu_seqlens_kv(rank);
    for (std::size_t i = 0; i + 1 < q.size(); ++i) {
      open.items[rank].push_back({q[i + 1] - q[i], kv[i + 1] - kv[i]});
    }
  }
  return open;
}

QkvDispatch closed(const Open& open) {
  return {.q = {build(open.q_forward), build(open.q_reverse)},
          .kv = {build(open.kv_forward, open.max_cp), build(open.kv_reverse, 0, open.kv_arrival)},
          .attention = AttentionLayout(open.items, open.options)};
}

namespace {

void change_row(Open& open, Rows& rows, Random& random) {
  Sent* row = any_row(rows, random, [](const Sent& one) { return !one.copies.empty(); });
  if (row == nullptr) return;
  Copy& copy = row->copies[random.between(0, static_cast<std::int64_t>(row->copies.size()))];
  switch (random.between(0, 5)) {
    case 0:
      copy.rank = static_cast<std::int32_t>(random.between(-2, open.world_size() + 1));
      break;
    case 1:
      copy.offset += 1;
      break;
    case 2:
      if (copy.offset > 0) copy.offset -= 1;
      break;
    case 3:
      row->length += 1;
      break;
    default:
      if (row->length > 0) row->length -= 1;
  }
}

void change_rows(Rows& rows, Random& random) {
  auto& rank = rows[random.between(0, static_cast<std::int64_t>(rows.size()))];
  if (rank.empty()) return;
  const auto pick = [&] { return random.between(0, static_cast<std::int64_t>(rank.size())); };
  const auto one = rank.begin() + pick();
  switch (random.between(0, 3)) {
    case 0:
      rank.erase(one);
      break;
    case 1:
      rank.insert(rank.begin() + pick(), Sent(*one));
      break;
    default:
      std::swap(*one, rank[pick()]);
  }
}

void swap_copies(Rows& rows, Random& random) {
  const auto any = [](const Sent& row) { return !row.copies.empty(); };
  Sent* a = any_row(rows, random, any);
  Sent* b = any_row(rows, random, any);
  if (a != nullptr)
    std::swap(random.chance() ? a->copies.front() : a->copies.back(),
              random.chance() ? b->copies.front() : b->copies.back());
}

void change_items(Open& open, Random& random) {
  auto& rank = open.items[random.between(0, static_cast<std::int64_t>(open.items.size()))];
  if (rank.empty()) return;
  const auto pick = [&]() -> AttentionLayout::Item& {
    return rank[random.between(0, static_cast<std::int64_t>(rank.size()))];
  };
  auto& from = random.chance() ? pick().q_length : pick().kv_length;
  auto& to = random.chance() ? pick().q_length : pick().kv_length;
  if (from > 0) --from;
  if (random.chance(0.8)) ++to;
}

}  // namespace

void change_anything(Open& open, Random& random) {
  const std::vector<Rows*> tables{&open.q_forward, &open.q_reverse, &open.kv_forward,
                                  &open.kv_reverse};
  Rows& rows = *random.pick(tables);
  switch (random.between(0, 9)) {
    case 0:
      return change_items(open, random);
    case 1:
    case 2:
      return change_rows(rows, random);
    case 3:
      return swap_copies(rows, random);
    case 4:
      open.kv_arrival = ArrivalMode::placed;
      return;
    default:
      return change_row(open, rows, random);
  }
}

// ---- dispatches that no routing would give

QkvDispatch carried_out(const HandMade& made) {
  const std::size_t world = made.home_tokens.size();
  Open open;
  open.q_forward.resize(world);
  open.q_reverse.resize(world);
  open.kv_forward.resize(world);
  open.kv_reverse.resize(world);
  open.items.resize(world);
  open.options.mask = made.mask;
  for (std::size_t rank = 0; rank < world; ++rank) {
    open.q_forward[rank].resize(made.home_tokens[rank], {.length = 1});
    open.kv_forward[rank].resize(made.home_tokens[rank], {.length = 1});
  }
  const auto send = [](Rows& there, Rows& back, const Spot& home, std::int32_t rank) {
    const auto offset = static_cast<std::uint32_t>(back[rank].size());
    there[home.rank][home.offset].copies.push_back({rank, offset});
    back[rank].push_back({1, {{home.rank, static_cast<std::uint32_t>(home.offset)}}});
  };
  for (const HandMade::Item& item : made.items) {
    for (const Spot& home : item.queries) send(open.q_forward, open.q_reverse, home, item.rank);
    for (const Spot& home : item.keys) send(open.kv_forward, open.kv_reverse, home, item.rank);
    open.items[item.rank].push_back({static_cast<std::uint32_t>(item.queries.size()),
                                     static_cast<std::uint32_t>(item.keys.size())});
  }
  for (const auto& rank : open.kv_forward) {
    for (const Sent& row : rank) {
      open.max_cp = std::max(open.max_cp, static_cast<int>(row.copies.size()));
    }
  }
  return closed(open);
}

HandMade made_from(const Routing& routing, const std::string& mask) {
  HandMade made{.mask = parse_mask(mask)};
  const auto lengths = document_lengths(routing.attention);
  for (int rank = 0; rank < routing.home.world_size(); ++rank) {
    made.home_tokens.push_back(static_cast<std::uint32_t>(routing.home.tokens(rank)));
  }
  const auto homes = spots_of(words_of(routing.home));
  for (int rank = 0; rank < routing.attention.world_size(); ++rank) {
    for (const Segment& segment : routing.attention.of(rank)) {
      HandMade::Item item{.rank = rank};
      for (const Word& word : keys_of(segment, mask, lengths.at(segment.document))) {
        item.keys.push_back(homes.at(word).front());
      }
      for (std::uint32_t i = 0; i < segment.length; ++i) {
        item.queries.push_back(homes.at({segment.document, segment.begin + i}).front());
      }
      made.items.push_back(item);
    }
  }
  return made;
}

}  // namespace shiplap::dispatch
