// Predicts and measures one overlapped GEMM: `shiplap overlap` and shiplap.overlap().
#pragma once

#include <optional>
#include <string>

#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/query.h"
#include "shiplap/overlap/study.h"

namespace shiplap::run {

// Throws InputError D003 if there are too many ranks for threads of one process.
void check_threads(int ranks);
// Throws InputError D003 if the job has another number of ranks.
void check_ranks(const comm::Communicator& world, int ranks);

// Chooses, compares, measures and predicts as the query asks. Measures on threads, or on the ranks
// of the job of this process; then only rank 0 gets a result. Throws comm::Failure, InputError
// D003, D601, D602, D632, D8xx, and D644 if `job` differs between ranks.
[[nodiscard]] std::optional<overlap::Study> study_overlap(const overlap::Query& query,
                                                          const std::string& job);

}  // namespace shiplap::run
