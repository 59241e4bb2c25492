// Reads arbitrary bytes as the files of a job, and diagnoses it. The bytes choose the reader: a
// pickle begins with 0x80, JSON with a brace; stacks and texts of ncclras have headings.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/dump/read.h"
#include "shiplap/postmortem/postmortem.h"
#include "shiplap/report/postmortem.h"

// A few bytes can describe a large job, whose answer takes seconds to print with sanitizers.
constexpr std::int32_t kMaxWorld = 2'000;

// The first byte says where the bytes are divided into the files of two ranks.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  (void)shiplap::dump::parse_stacks(bytes);
  const std::size_t split = data[0] == 0 ? bytes.size() : bytes.size() * data[0] / 255;
  std::vector<shiplap::dump::DumpFile> files{{.name = "rank_0", .bytes = bytes.substr(0, split)}};
  if (split < bytes.size()) files.push_back({.name = "rank_1", .bytes = bytes.substr(split)});
  try {
    const shiplap::dump::JobDump job = shiplap::dump::read_job(files);
    if (job.world > kMaxWorld) return 0;
    const shiplap::postmortem::Postmortem found = shiplap::postmortem::diagnose(job, {});
    (void)shiplap::report::postmortem_text(found, {});
    (void)to_text(shiplap::report::postmortem_json(found));
    (void)shiplap::report::to_html(shiplap::report::postmortem_page(found, ""));
  } catch (const shiplap::InputError&) {
    return 0;
  }
  return 0;
}
