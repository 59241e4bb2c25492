// What the parts of a dispatch's report share: the numbers behind it, which ranks are drawn, and
// what lies on them. dispatch_report_numbers.cc finds them, dispatch_report_tables.cc lists them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/cli/dispatch_report.h"
#include "shiplap/dispatch/traffic.h"
#include "shiplap/report/page.h"

namespace shiplap::cli::dispatch_page {

using dispatch::Flow;
using dispatch::Segment;

inline std::int64_t whole(std::uint64_t number) { return static_cast<std::int64_t>(number); }
inline std::string number(std::uint64_t value) { return with_separators(whole(value)); }

// Queries, or keys with values.
struct Exchange {
  std::vector<Flow> flows;
  dispatch::TrafficSummary summary;
  std::int64_t row_bytes = 0;

  [[nodiscard]] Bytes bytes(std::uint64_t tokens) const {
    return dispatch::bytes_at(tokens, row_bytes);
  }
  [[nodiscard]] Bytes between_ranks() const { return bytes(summary.between_ranks); }
  [[nodiscard]] Bytes between_nodes() const { return bytes(summary.between_nodes); }
};

// Where the pieces of a document are. Ranks in order, each once.
struct Places {
  std::uint64_t tokens = 0;
  int items = 0;
  std::set<int> home;
  std::set<int> attention;
};

// Everything that the page says in more than one place.
struct Numbers {
  int ranks = 0;
  int ranks_per_node = 1;
  std::uint64_t tokens = 0;
  std::int64_t items = 0;
  int most_items = 0;  // of one document
  Exchange q;
  Exchange kv;
  std::vector<double> pairs;  // by rank
  double mean_pairs = 0;
  int busiest = 0;  // the rank with the most pairs
  std::map<std::int32_t, Places> documents;

  [[nodiscard]] Bytes between_ranks() const { return q.between_ranks() + kv.between_ranks(); }
  [[nodiscard]] Bytes between_nodes() const { return q.between_nodes() + kv.between_nodes(); }
  [[nodiscard]] bool has_nodes() const { return ranks > ranks_per_node; }
  [[nodiscard]] double crossing() const {
    if (between_ranks().count == 0) return 0;
    return static_cast<double>(between_nodes().count) / static_cast<double>(between_ranks().count);
  }
  [[nodiscard]] double imbalance() const {
    return mean_pairs == 0 ? 1 : pairs[busiest] / mean_pairs;
  }
  [[nodiscard]] double trips() const {  // of a token's keys to other ranks
    return tokens == 0
               ? 0
               : static_cast<double>(kv.summary.between_ranks) / static_cast<double>(tokens);
  }
};

[[nodiscard]] Numbers numbers_of(const DispatchReport& about);

// Ranks of which lanes are drawn, in order.
struct Drawn {
  std::vector<int> ranks;
  std::string limit;  // what is left out, if anything
};

[[nodiscard]] Drawn drawn_ranks(const Numbers& about);

// One segment or item, with all that is told about it.
struct Range {
  Segment segment;
  std::uint32_t offset = 0;  // among the tokens of its rank
  std::uint32_t keys = 0;    // only at attention
  std::uint32_t keys_offset = 0;
};

// In the order of the buffers, without empty ones.
[[nodiscard]] std::vector<Range> ranges_at_home(const DispatchReport& about, int rank);
[[nodiscard]] std::vector<Range> ranges_at_attention(const DispatchReport& about, int rank);

[[nodiscard]] report::Panel measured_panel(const DispatchReport& about);
[[nodiscard]] report::Panel ranks_panel(const DispatchReport& about, const Numbers& known);
[[nodiscard]] report::Panel ranges_table_panel(const DispatchReport& about, const Drawn& drawn);
[[nodiscard]] report::Panel pairs_panel(const Numbers& known);

}  // namespace shiplap::cli::dispatch_page
