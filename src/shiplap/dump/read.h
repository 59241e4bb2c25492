// Reads the files of a hung job: dumps of flight recorders, and stacks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/progress.h"
#include "shiplap/dump/flight_recorder.h"
#include "shiplap/dump/job.h"

namespace shiplap::dump {

// Folders are read with their subfolders. Files that are neither dumps nor stacks are left out and
// noted if they lie in a folder, and are an error if the user named them. Throws InputError D004 if
// a file cannot be read, D012 if there is no dump.
[[nodiscard]] JobDump read_job(const std::vector<std::string>& paths,
                               const ProgressCallback& progress = {});

// The same for files in memory: dumps, and texts with stacks.
[[nodiscard]] JobDump read_job(const std::vector<DumpFile>& files);

// The stacks in a text of py-spy or of Python's faulthandler, by process; those of torch's debug
// server have the rank in a headline.
struct ProcessStack {
  std::int32_t rank = -1;     // -1: the text does not say
  std::vector<Frame> frames;  // of the main thread, innermost first
};
[[nodiscard]] std::vector<ProcessStack> parse_stacks(std::string_view text);

}  // namespace shiplap::dump
