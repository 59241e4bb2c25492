// All that can be found out about one overlapped product, measured here or predicted: what `shiplap
// overlap` and shiplap.overlap() answer.
#pragma once

#include <optional>
#include <string>

#include "shiplap/comm/communicator.h"
#include "shiplap/overlap/query.h"
#include "shiplap/overlap/study.h"

namespace shiplap::run {

// Throws InputError D003 if so many threads are too many for one process.
void check_threads(int ranks);
// Throws InputError D003 if another number of ranks was started.
void check_ranks(const comm::Communicator& world, int ranks);

// All that a query asks for: chosen, compared, measured, predicted. What is measured is measured on
// threads, or on the ranks of the job of which this process is one; nothing on those but rank 0.
// `job` is the same on all of them, or else D644. Throws comm::Failure, InputError D003, D601,
// D602, D632, D8xx.
[[nodiscard]] std::optional<overlap::Study> study_overlap(const overlap::Query& query,
                                                          const std::string& job);

}  // namespace shiplap::run
