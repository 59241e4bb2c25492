// Reads what `ncclras` prints, the client of NCCL's RAS (NCCL 2.24 and later): text, with or
// without -v, and JSON (-f json, NCCL 2.28.7 and later).
#pragma once

#include <string_view>
#include <vector>

#include "shiplap/dump/job.h"

namespace shiplap::dump {

// Whether a file has one, by its headings.
[[nodiscard]] bool is_nccl_ras(std::string_view bytes);

// Returns one report for each output, in the order of the file: a loop may append texts to it.
// Lines that are not known are left out. A text that ends early gives what comes before its end.
// Throws InputError D012 if it is JSON with an error.
//
// REQUIRES: is_nccl_ras(bytes).
[[nodiscard]] std::vector<RasReport> read_nccl_ras(std::string_view bytes, std::string_view file);

}  // namespace shiplap::dump
