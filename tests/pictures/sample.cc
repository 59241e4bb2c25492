// Writes a sample report, for a browser to open.
//
//   pictures_sample RANKS FILE             4 documents per rank, random
//   pictures_sample RANKS FILE LENGTHS     documents as in a file of lengths, CP 4, assigned at
//   random
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/layout.h"
#include "shiplap/report/dispatch.h"

namespace {

using namespace shiplap;

constexpr std::uint64_t kSeed = 1;

dispatch::Routing routing_of(int ranks, const std::string& lengths_file) {
  std::ifstream in(lengths_file);
  const std::vector<std::uint32_t> lengths{std::istream_iterator<std::uint32_t>(in), {}};
  const std::vector<int> degrees(lengths.size(), 4);
  const std::vector<dispatch::Segment> items = dispatch::cut_documents(lengths, degrees);
  return {.home = dispatch::pack_documents(lengths, ranks),
          .attention = dispatch::assign_randomly(items, ranks, kSeed)};
}

void write(const std::vector<std::string>& words) {
  const int ranks = std::stoi(words.at(0));
  const dispatch::Routing routing = words.size() > 2
                                        ? routing_of(ranks, words[2])
                                        : dispatch::random_routing({.world_size = ranks,
                                                                    .total_seq_len = 65'536,
                                                                    .num_seqs = 4,
                                                                    .max_cp_degree = 4,
                                                                    .seed = kSeed});
  const dispatch::QkvDispatch made = dispatch::compute_qkv_dispatch(routing);
  report::DispatchView about{
      .dispatch = made,
      .routing = &routing,
      .sizes = {
          .q_row_bytes = 16'384, .kv_row_bytes = 4096, .ranks_per_node = ranks <= 16 ? 4 : 8}};
  std::string command = "pictures_sample";
  for (const std::string& word : words) command += ' ' + word;
  const dispatch::BenchmarkResult benchmark{
      .exchanges = {{.name = "Q forward", .bytes = {1'234'567'890}, .median = {0.0123}},
                    {.name = "KV forward", .bytes = {456'789'012}, .median = {0.0045}}}};
  if (ranks <= 8) {
    about.backend = "nothing: these numbers are invented";
    about.benchmark = &benchmark;
  }
  std::ofstream(words.at(1)) << to_html(report::dispatch_page(about, command));
}

}  // namespace

int main(int count, char** words) {
  try {
    write({words + 1, words + count});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "pictures_sample: " << error.what() << "\n";
    return 1;
  }
}
