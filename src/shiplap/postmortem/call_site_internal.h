// Calls and groups in words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shiplap/postmortem/postmortem.h"
#include "shiplap/postmortem/progress_internal.h"

namespace shiplap::postmortem {

// The first frame that belongs to the user: not to torch or to Python's own modules.
[[nodiscard]] dump::Frame user_frame(const dump::JobDump& job, dump::StackId stack);

[[nodiscard]] CallSite call_site(const Progress& progress, std::int32_t rank, std::int32_t unit);

// "mesh_tp {4, 5, 6, 7}".
[[nodiscard]] std::string format_group(const dump::JobDump& job, dump::GroupId group);

// "1, 2 and 5"; long lists are cut.
[[nodiscard]] std::string format_ranks(std::span<const std::int32_t> ranks);

// "all_reduce of f32 [4096] (call 12 on mesh_tp {4, 5}) at train.py:88"
[[nodiscard]] std::string to_string(const CallSite& site);
// "train.py:88", or "".
[[nodiscard]] std::string to_string(const dump::Frame& frame);

}  // namespace shiplap::postmortem
