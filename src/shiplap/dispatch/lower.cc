#include "shiplap/dispatch/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/plan/text.h"

// The program is the same for all ranks and all dispatches: it is written here as text, with lists
// and tables of one entry, which are then replaced by the real ones.

namespace shiplap::dispatch {
namespace {

constexpr std::string_view kHead = R"(shiplap-plan 1
mesh cp={ranks}
)";

constexpr std::string_view kMoves = R"(
tensor Q Query tok {tokens}
tensor KV KeyValue key {tokens}
table q_there
  message 0 0 0 1 0
table kv_there
  message 0 0 0 1 0
program all on all
  buffer q rows home_rows[cp] row_bytes {q_bytes} bf16
  buffer kv rows home_rows[cp] row_bytes {kv_bytes} bf16
  buffer back rows home_rows[cp] row_bytes {q_bytes} bf16
  buffer q_ rows q_rows[cp] row_bytes {q_bytes} bf16
  buffer kv_ rows kv_rows[cp] row_bytes {kv_bytes} bf16
  repeat i homes[cp+1]-homes[cp]
    let t = homes[cp]+i
    given q[hrow[t] +hn[t]] = Q tok h0[t] +hn[t]
    given kv[hrow[t] +hn[t]] = KV key h0[t] +hn[t]
    goal back[hrow[t] +hn[t]] = Q tok h0[t] +hn[t]
  end
  repeat i items[cp+1]-items[cp]
    let t = items[cp]+i
    goal q_[qrow[t] +qn[t]] = Q tok q0[t] +qn[t]
    goal kv_[krow[t] +kn[t]] = KV key k0[t] +kn[t]
  end
  exchange q to q_ by q_there over cp
  exchange kv to kv_ by kv_there over cp
  exchange q_ to back by q_there reversed over cp
)";

constexpr std::string_view kStep = R"(
tensor Q Query tok {tokens}
tensor KV KeyValue key {tokens}
tensor O AttentionOutput tok {tokens} sum key {tokens} mask key<=tok and doc[key]=doc[tok]
tensor dO AttentionGrad tok {tokens}
tensor dQ QueryGrad tok {tokens} sum key {tokens} mask key<=tok and doc[key]=doc[tok]
tensor dKV KeyValueGrad key {tokens} sum tok {tokens} mask key<=tok and doc[key]=doc[tok]
table q_there
  message 0 0 0 1 0
table kv_there
  message 0 0 0 1 0
program all on all
  buffer q rows home_rows[cp] row_bytes {q_bytes} bf16
  buffer kv rows home_rows[cp] row_bytes {kv_bytes} bf16
  buffer o rows home_rows[cp] row_bytes {q_bytes} bf16
  buffer do rows home_rows[cp] row_bytes {q_bytes} bf16
  buffer dq rows home_rows[cp] row_bytes {q_bytes} bf16
  buffer dkv rows home_rows[cp] row_bytes {kv_bytes} f32
  buffer q_ rows q_rows[cp] row_bytes {q_bytes} bf16
  buffer kv_ rows kv_rows[cp] row_bytes {kv_bytes} bf16
  buffer o_ rows q_rows[cp] row_bytes {q_bytes} bf16
  buffer do_ rows q_rows[cp] row_bytes {q_bytes} bf16
  buffer dq_ rows q_rows[cp] row_bytes {q_bytes} bf16
  buffer dkv_ rows kv_rows[cp] row_bytes {kv_bytes} f32
  repeat i homes[cp+1]-homes[cp]
    let t = homes[cp]+i
    given q[hrow[t] +hn[t]] = Q tok h0[t] +hn[t]
    given kv[hrow[t] +hn[t]] = KV key h0[t] +hn[t]
    goal o[hrow[t] +hn[t]] = O tok h0[t] +hn[t]
    goal dq[hrow[t] +hn[t]] = dQ tok h0[t] +hn[t]
    goal dkv[hrow[t] +hn[t]] = dKV key h0[t] +hn[t]
  end
  exchange q to q_ by q_there over cp
  exchange kv to kv_ by kv_there over cp
  repeat i items[cp+1]-items[cp]
    let t = items[cp]+i
    compute attention
      reads  q_[qrow[t] +qn[t]] = Q tok q0[t] +qn[t]
      reads  kv_[krow[t] +kn[t]] = KV key k0[t] +kn[t]
      writes o_[qrow[t] +qn[t]] = O tok q0[t] +qn[t] sum key k0[t] +kn[t]
  end
  exchange o_ to o by q_there reversed over cp
  repeat i homes[cp+1]-homes[cp]
    let t = homes[cp]+i
    compute other label the rest of the network, forward and backward
      reads  o[hrow[t] +hn[t]] = O tok h0[t] +hn[t]
      writes do[hrow[t] +hn[t]] = dO tok h0[t] +hn[t]
    compute zero
      writes dkv[hrow[t] +hn[t]] = dKV key h0[t] +hn[t] sum none
  end
  exchange do to do_ by q_there over cp
  repeat i items[cp+1]-items[cp]
    let t = items[cp]+i
    compute attention_backward
      reads  q_[qrow[t] +qn[t]] = Q tok q0[t] +qn[t]
      reads  kv_[krow[t] +kn[t]] = KV key k0[t] +kn[t]
      reads  do_[qrow[t] +qn[t]] = dO tok q0[t] +qn[t]
      writes dq_[qrow[t] +qn[t]] = dQ tok q0[t] +qn[t] sum key k0[t] +kn[t]
      writes dkv_[krow[t] +kn[t]] = dKV key k0[t] +kn[t] sum tok q0[t] +qn[t]
  end
  exchange dq_ to dq by q_there reversed over cp
  exchange dkv_ to dkv by kv_there reversed over cp add
)";

std::string replaced(std::string text, const std::map<std::string, std::int64_t>& numbers) {
  for (const auto& [name, number] : numbers) {
    const std::string wanted = "{" + name + "}";
    for (auto place = text.find(wanted); place != std::string::npos; place = text.find(wanted)) {
      text.replace(place, wanted.size(), std::to_string(number));
    }
  }
  return text;
}

plan::ExchangeTable table_of(std::string name, const Metadata& metadata) {
  std::vector<plan::TableRow> sends;
  std::vector<plan::TableRow> receives;
  for (int from = 0; from < metadata.world_size(); ++from) {
    for (std::uint32_t i = 0; i < metadata.num_seqs(from); ++i) {
      const Metadata::Row row = metadata.row(from, i);
      if (row.length == 0) continue;
      for (const Copy& copy : row.copies) {
        if (copy.rank < 0) continue;
        sends.push_back({.rank = from, .peer = copy.rank, .first = row.begin, .count = row.length});
        receives.push_back(
            {.rank = copy.rank, .peer = from, .first = copy.offset, .count = row.length});
      }
    }
  }
  return {std::move(name), std::move(sends), std::move(receives)};
}

// The lists of the program, by name. Tokens of all documents are counted one after another.
class Lists {
 public:
  explicit Lists(const Routing& routing) {
    for (const Segment& segment : routing.home.all()) {
      std::uint64_t& end = bases_[segment.document];
      end = std::max(end, segment.end());
    }
    std::uint64_t base = 0;
    for (auto& [document, length] : bases_) base += std::exchange(length, base);
    tokens_ = base;
    add_home(routing.home);
    add_items(routing.attention);
  }

  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  void add_documents() {
    auto& doc = lists_["doc"];
    std::int64_t number = -1;
    auto next = bases_.begin();
    for (std::uint64_t token = 0; token < tokens_; ++token) {
      while (next != bases_.end() && next->second <= token) {
        ++next;
        ++number;
      }
      doc.push_back(number);
    }
  }
  [[nodiscard]] const std::map<std::string, std::vector<std::int64_t>>& all() const {
    return lists_;
  }

 private:
  void add(const char* list, std::uint64_t number) {
    lists_[list].push_back(static_cast<std::int64_t>(number));
  }

  void add_home(const Layout& home) {
    add("homes", 0);
    for (int rank = 0; rank < home.world_size(); ++rank) {
      std::uint64_t row = 0;
      for (const Segment& segment : home.of(rank)) {
        if (segment.length == 0) continue;
        add("h0", bases_[segment.document] + segment.begin);
        add("hn", segment.length);
        add("hrow", row);
        row += segment.length;
      }
      add("homes", lists_["h0"].size());
      add("home_rows", std::max<std::uint64_t>(row, 1));
    }
  }

  void add_items(const Layout& attention) {
    add("items", 0);
    for (int rank = 0; rank < attention.world_size(); ++rank) {
      std::uint64_t q_row = 0;
      std::uint64_t kv_row = 0;
      for (const Segment& item : attention.of(rank)) {
        if (item.length == 0) continue;
        add("q0", bases_[item.document] + item.begin);
        add("qn", item.length);
        add("qrow", q_row);
        add("k0", bases_[item.document]);
        add("kn", item.end());
        add("krow", kv_row);
        q_row += item.length;
        kv_row += item.end();
      }
      add("items", lists_["q0"].size());
      add("q_rows", std::max<std::uint64_t>(q_row, 1));
      add("kv_rows", std::max<std::uint64_t>(kv_row, 1));
    }
  }

  std::map<std::int32_t, std::uint64_t> bases_;  // of each document
  std::uint64_t tokens_ = 0;
  std::map<std::string, std::vector<std::int64_t>> lists_;
};

}  // namespace

plan::Plan lower(const Routing& routing, const QkvDispatch& dispatch, const LowerOptions& options) {
  if (std::vector<Diagnostic> found = validate(routing); !found.empty()) {
    throw InputError(std::move(found));
  }
  Lists lists(routing);
  if (lists.tokens() == 0) {
    throw InputError(Diagnostic{.code = "D400", .what = "a dispatch without tokens has no plan"});
  }
  const bool attends = lists.tokens() <= kMostAttendedTokens;
  if (attends) lists.add_documents();
  std::string text(kHead);
  for (const auto& [name, ignored] : lists.all()) text += "list " + name + " = 0\n";
  text += attends ? kStep : kMoves;
  plan::Plan plan = plan::parse_plan(
      replaced(std::move(text), {{"ranks", routing.home.world_size()},
                                 {"tokens", static_cast<std::int64_t>(lists.tokens())},
                                 {"q_bytes", options.q_row_bytes},
                                 {"kv_bytes", options.kv_row_bytes}}),
      "dispatch");
  for (plan::List& list : plan.lists) list.values = lists.all().at(list.name);
  plan.tables.at(0) = table_of("q_there", dispatch.q.forward);
  plan.tables.at(1) = table_of("kv_there", dispatch.kv.forward);
  return plan;
}

}  // namespace shiplap::dispatch
