// One rank's part of an exchange as arrays of indices, for programs that move rows with a gather,
// an all_to_all and a scatter rather than piece by piece:
//
//   sent     = input[send_rows]                            cut by send_counts, one part per rank
//   arrived  = all_to_all(sent)                            cut by recv_counts
//   placed:    output[recv_rows] = arrived
//   summed:    for every level: output[rows of it] += arrived[arrivals of it]
//
// What goes from one rank to another travels in the order of the sender's rows, then of their
// copies, so both ends know it from the table alone.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/dispatch/metadata.h"

namespace shiplap::dispatch {

struct ExchangeIndices {
  int rank = 0;
  Arrival arrival = Arrival::placed;
  std::int64_t send_tokens = 0;           // rows of the input
  std::int64_t receive_tokens = 0;        // of the output: up to the last one that gets anything
  std::vector<std::int64_t> send_rows;    // by receiving rank
  std::vector<std::int64_t> send_counts;  // by rank
  std::vector<std::int64_t> recv_counts;  // by rank
  std::vector<std::int64_t> recv_rows;    // where each arrival goes, by sending rank

  // Only where arrivals are summed. The k-th level has the k-th arrival of each place, in order of
  // place: no place is there twice, so however a level is added, the bits are the same, and level
  // after level they are those of sum_simulate.
  std::vector<std::int64_t> level_ends;      // of the levels, in the next two
  std::vector<std::int64_t> level_rows;      // places
  std::vector<std::int64_t> level_arrivals;  // which arrival: an index of `arrived`
  friend bool operator==(const ExchangeIndices&, const ExchangeIndices&) = default;
};

// Reads the copies of the whole table once, and writes what concerns this rank. Throws InputError
// D400 if the table has no such rank, D403 or D410 for a place that cannot be, and D405 if two
// pieces that are not summed meet on this rank.
[[nodiscard]] ExchangeIndices exchange_indices(const Metadata& metadata, int rank);

}  // namespace shiplap::dispatch
