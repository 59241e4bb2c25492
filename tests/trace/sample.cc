// Writes a sample trace: as a report if the file ends in .html, for Perfetto if it ends in
// .pftrace, otherwise as JSON.
//
//   trace_sample 1f1b RANKS MICROBATCHES FILE...
//   trace_sample sharded RANKS LAYERS FILE...
//   trace_sample random SEED 0 FILE...
#include <exception>
#include <fstream>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "sample_traces.h"
#include "shiplap/report/trace_page.h"
#include "shiplap/trace/json.h"
#include "shiplap/trace/perfetto.h"

namespace {

using namespace shiplap;

trace::Trace trace_of(const std::string& kind, int first, int second) {
  if (kind == "1f1b") {
    return trace::one_forward_one_backward(
        {.ranks = first, .microbatches = second, .layers_per_rank = first > 16 ? 1 : 2});
  }
  if (kind == "sharded") return trace::sharded_weights({.ranks = first, .layers = second});
  return trace::random_trace(static_cast<std::uint64_t>(first));
}

std::string content(const trace::Trace& sample, const std::string& name, const std::string& file) {
  if (file.ends_with(".pftrace")) return trace::to_perfetto(sample, {.title = name});
  if (!file.ends_with(".html")) return trace::to_json(sample);
  const report::TraceReportText text{
      .name = name,
      .assumed =
          {"Times and sizes are invented: a forward pass of a layer takes 2.1 ms, a backward "
           "pass twice that, a transfer 0.35 ms."},
      .command = "trace_sample " + name};
  return to_html(report::trace_page(sample, text));
}

void write(std::span<const std::string> words) {
  const trace::Trace sample = trace_of(words[0], std::stoi(words[1]), std::stoi(words[2]));
  const std::string name = words[0] == "1f1b" ? "1F1B" : words[0];
  for (const std::string& file : words.subspan(3)) {
    std::ofstream(file, std::ios::binary) << content(sample, name, file);
  }
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count < 5) throw std::invalid_argument("KIND NUMBER NUMBER FILE...");
    const std::vector<std::string> all{words + 1, words + count};
    write(all);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "trace_sample: " << error.what() << "\n";
    return 1;
  }
}
