// One rank's part of an exchange as index arrays, for programs that move rows with a gather, an
// all_to_all and a scatter instead of piece by piece:
//
//   sent     = input[send_rows]                            cut by send_counts, one part per rank
//   arrived  = all_to_all(sent)                            cut by recv_counts
//   placed:    output[recv_rows] = arrived
//   summed:    for every level: output[rows of it] += arrived[arrivals of it]
//
// Between two ranks, tokens are ordered by the sender's rows, then by their copies. Both ends
// derive this order from the table alone.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

struct ExchangeIndices {
  int rank = 0;
  ArrivalMode arrival = ArrivalMode::placed;
  std::int64_t send_tokens = 0;           // rows of the input
  std::int64_t receive_tokens = 0;        // rows of the output, up to the last that receives
  std::vector<std::int64_t> send_rows;    // by receiving rank
  std::vector<std::int64_t> send_counts;  // by rank
  std::vector<std::int64_t> recv_counts;  // by rank
  std::vector<std::int64_t> recv_rows;    // destination of each received row, by sending rank

  // Only for ArrivalMode::summed. Level k has the k-th arrival of each destination row, ordered by
  // row. No row occurs twice in a level, so the order of additions within a level does not matter,
  // and adding level after level gives the same bits as sum_simulate.
  std::vector<std::int64_t> level_ends;      // ends of the levels in the next two arrays
  std::vector<std::int64_t> level_rows;      // destination rows
  std::vector<std::int64_t> level_arrivals;  // index into `arrived`
  friend bool operator==(const ExchangeIndices&, const ExchangeIndices&) = default;
};

// Reads all copies of the table once. Throws InputError D400 if the rank does not exist, D403 or
// D410 for an invalid destination, and D405 if two pieces overlap on this rank without being
// summed.
[[nodiscard]] ExchangeIndices exchange_indices(const Metadata& metadata, int rank);

}  // namespace shiplap::dispatch
