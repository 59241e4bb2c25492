// Adds the dumps of PyTorch's flight recorder to a JobDump: formats 1.x to 2.10, torch 2.3 to 2.15,
// pickle or JSON, of nccl, gloo and every other backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/dump/job.h"

namespace shiplap::dump {

// One file.
struct DumpFile {
  std::string name;
  std::string_view bytes;
  std::int64_t written_ns = 0;  // 0: unknown
  std::int32_t rank = -1;       // if the caller knows it
};

// Reads one file after the other, then assigns ranks: from the content if it determines them (the
// groups that a process is a member of, the ends of its messages), else from the file names.
class JobReader {
 public:
  JobReader();
  ~JobReader();
  JobReader(const JobReader&) = delete;
  JobReader& operator=(const JobReader&) = delete;

  // Throws InputError D012 or D013 if the file is not a dump.
  void add(const DumpFile& file);
  // The stack of a process, e.g. of py-spy; innermost frame first.
  void add_stack(std::int32_t rank, const std::vector<Frame>& frames);
  // Throws InputError D014 if the ranks of files cannot be told.
  [[nodiscard]] JobDump finish() &&;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shiplap::dump
