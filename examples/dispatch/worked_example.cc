// Two documents, A of six tokens and B of two, on two ranks: every table of their dispatch, as the
// guide draws them. Output: worked_example.txt.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/dense.h"
#include "shiplap/dispatch/layout.h"

namespace {

using namespace shiplap::dispatch;
using shiplap::dispatch::Layout;
using ByRank = std::vector<std::vector<Segment>>;

constexpr std::array<char, 2> kNames{'A', 'B'};

void print_tokens(const Segment& segment) {
  for (std::uint32_t t = segment.begin; t < segment.end(); ++t) {
    std::printf(" %c%u", kNames.at(static_cast<std::size_t>(segment.document)), t);
  }
}

void print_layout(const char* name, const Layout& layout) {
  std::printf("%s\n", name);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    std::printf("  rank %d:", rank);
    for (const Segment& segment : layout.of(rank)) {
      std::printf(" [");
      print_tokens(segment);
      std::printf(" ]");
    }
    std::printf("\n");
  }
}

// The keys of an item: its document up to its end.
void print_keys(const Layout& attention) {
  std::printf("keys at attention\n");
  for (int rank = 0; rank < attention.world_size(); ++rank) {
    std::printf("  rank %d:", rank);
    for (const Segment& item : attention.of(rank)) {
      std::printf(" [");
      print_tokens({.document = item.document, .begin = 0, .length = item.begin + item.length});
      std::printf(" ]");
    }
    std::printf("\n");
  }
}

void print_table(const char* name, const Metadata& table) {
  const std::string arrival(shiplap::dispatch::name(table.arrival()));
  std::printf("%s, arrivals are %s\n", name, arrival.c_str());
  for (int rank = 0; rank < table.world_size(); ++rank) {
    for (std::uint32_t i = 0; i < table.num_seqs(rank); ++i) {
      const Metadata::Row row = table.row(rank, i);
      std::printf("  rank %d, sequence %u: tokens %u to %u ->", rank, i, row.begin,
                  row.begin + row.length);
      for (const Copy& copy : row.copies) std::printf(" (rank %d, %u)", copy.rank, copy.offset);
      std::printf("\n");
    }
  }
}

void print_tensor(const char* name, const std::vector<std::int64_t>& values) {
  std::printf("  %-15s", name);
  for (const std::int64_t value : values) std::printf(" %2lld", static_cast<long long>(value));
  std::printf("\n");
}

void show() {
  const Routing routing{.home = Layout(ByRank{{{.document = 0, .begin = 0, .length = 4}},
                                              {{.document = 0, .begin = 4, .length = 2},
                                               {.document = 1, .begin = 0, .length = 2}}}),
                        .attention = Layout(ByRank{{{.document = 0, .begin = 0, .length = 3},
                                                    {.document = 1, .begin = 0, .length = 2}},
                                                   {{.document = 0, .begin = 3, .length = 3}}})};
  const QkvDispatch dispatch = compute_qkv_dispatch(routing);
  print_layout("at home", routing.home);
  print_layout("queries at attention", routing.attention);
  print_keys(routing.attention);
  print_table("q_forward", dispatch.q.forward);
  print_table("q_reverse", dispatch.q.reverse);
  print_table("kv_forward", dispatch.kv.forward);
  print_table("kv_reverse", dispatch.kv.reverse);
  const DenseMetadata dense = to_dense(dispatch.kv.forward);
  std::printf("kv_forward as tensors: %d ranks, %lld rows, %d copies\n", dense.world_size,
              static_cast<long long>(dense.max_seqs), dense.max_cp);
  print_tensor("dst_rank", dense.dst_rank);
  print_tensor("dst_offset", dense.dst_offset);
  print_tensor("seq_len", dense.seq_len);
  print_tensor("num_recv_tokens", dense.num_recv_tokens);
}

}  // namespace

int main() {
  try {
    show();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
