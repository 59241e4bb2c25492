// A training batch: documents that span ranks, empty placeholders, a CP degree per document, a
// planner of our own, lengths that change from step to step, and bugs that are found before they
// cost anything.
//
// Started by hand the ranks are threads; under `mpirun -n 4` or `tools/ranks -n 4` processes. Rank
// 0 prints, and the output is always that of advanced_scenarios.txt.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/comm/ranks.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/layout.h"
#include "shiplap/dispatch/simulate.h"
#include "shiplap/dispatch/traffic.h"
#include "shiplap/dispatch/validate.h"
#include "shiplap/run/dispatcher.h"

namespace {

using namespace shiplap::dispatch;
using shiplap::comm::Communicator;
using shiplap::dispatch::Layout;
using shiplap::run::Dispatcher;
using shiplap::run::DispatchPlan;
using shiplap::run::WorkspaceSize;
using Lengths = std::vector<std::uint32_t>;

constexpr int kRanks = 4;
constexpr std::int64_t kWidth = 4;  // floats of a row of keys
constexpr std::int64_t kRowBytes = kWidth * static_cast<std::int64_t>(sizeof(float));
constexpr std::size_t kPackBelow = 4096;

template <class Integer>
std::size_t at(Integer value) {
  return static_cast<std::size_t>(value);
}

// ---- a planner

// One item for every 16 tokens of a document, at most `most`.
std::vector<int> degrees(const Lengths& lengths, int most) {
  std::vector<int> degree;
  for (const std::uint32_t length : lengths) {
    degree.push_back(std::clamp(static_cast<int>((length + 15) / 16), 1, most));
  }
  return degree;
}

// Pairs of a query and a key that it sees.
std::uint64_t pairs_of(const Segment& item) {
  return std::uint64_t{item.length} * item.begin +
         std::uint64_t{item.length} * (std::uint64_t{item.length} + 1) / 2;
}

// The largest item first, each to the rank that has the least to do so far.
Layout assign_by_work(std::vector<Segment> items) {
  std::ranges::stable_sort(items, std::greater<>(), pairs_of);
  std::vector<std::vector<Segment>> by_rank(kRanks);
  std::vector<std::uint64_t> work(kRanks);
  for (const Segment& item : items) {
    const auto least = std::ranges::min_element(work) - work.begin();
    by_rank[at(least)].push_back(item);
    work[at(least)] += pairs_of(item);
  }
  return Layout(by_rank);
}

Routing route(const Lengths& lengths, int most) {
  return {.home = pack_documents(lengths, kRanks),
          .attention = assign_by_work(cut_documents(lengths, degrees(lengths, most)))};
}

// ---- scenario 1: a batch

const Lengths kBatch{37, 0, 5, 120, 3, 0, 64, 11};

void print(const char* name, const Layout& layout) {
  std::printf("  %s\n", name);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    std::printf("    rank %d:", rank);
    for (const Segment& segment : layout.of(rank)) {
      std::printf(" %d[%u,%u)", segment.document, segment.begin, segment.begin + segment.length);
    }
    std::printf("\n");
  }
}

void show_batch() {
  const Routing routing = route(kBatch, 4);
  std::printf("scenario 1: eight documents on %d ranks, two of them empty\n", kRanks);
  print("at home, document[begin,end)", routing.home);
  print("at attention", routing.attention);
  const QkvDispatch dispatch = compute_qkv_dispatch(routing);
  std::printf("  findings: %zu\n", validate(dispatch).size());
  for (int rank = 0; rank < kRanks; ++rank) {
    std::uint64_t work = 0;
    for (const Segment& item : routing.attention.of(rank)) work += pairs_of(item);
    std::printf("  rank %d: %u queries, %u keys, %llu pairs\n", rank,
                dispatch.attention.cu_seqlens_q(rank).back(),
                dispatch.attention.cu_seqlens_kv(rank).back(),
                static_cast<unsigned long long>(work));
  }
}

// ---- scenario 2: what travels

void print_bytes(const char* name, const Metadata& table, std::int64_t row_bytes) {
  std::vector<std::int64_t> bytes(at(kRanks) * kRanks);
  for (const Flow& flow : flows(table)) {
    bytes[at(flow.from) * kRanks + at(flow.to)] = bytes_at(flow.tokens, row_bytes).count;
  }
  std::printf("  %s, bytes from a rank (row) to a rank (column)\n", name);
  for (std::size_t from = 0; from < kRanks; ++from) {
    std::printf("   ");
    for (std::size_t to = 0; to < kRanks; ++to) {
      std::printf(" %7lld", static_cast<long long>(bytes[from * kRanks + to]));
    }
    std::printf("\n");
  }
}

void show_traffic() {
  std::printf("scenario 2: bytes of the same batch, rows of 512 bytes of Q and 256 of K and V\n");
  const QkvDispatch dispatch = compute_qkv_dispatch(route(kBatch, 4));
  print_bytes("q_forward", dispatch.q.forward, 512);
  print_bytes("kv_forward", dispatch.kv.forward, 256);
  std::printf("  the CP degree, and what it costs\n");
  std::printf("    at most  items  keys held  keys sent  pairs on the busiest rank\n");
  for (const int most : {1, 2, 4, 8}) {
    const Routing routing = route(kBatch, most);
    const TrafficSummary kv = summarize(flows(compute_metadata_kv(routing).forward), kRanks);
    std::uint64_t busiest = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::uint64_t work = 0;
      for (const Segment& item : routing.attention.of(rank)) work += pairs_of(item);
      busiest = std::max(busiest, work);
    }
    std::printf("    %7d  %5zu  %9llu  %9llu  %25llu\n", most, routing.attention.all().size(),
                static_cast<unsigned long long>(kv.tokens),
                static_cast<unsigned long long>(kv.between_ranks),
                static_cast<unsigned long long>(busiest));
  }
}

// ---- scenario 3: other lengths in every step

// Counts what is asked of it.
class Counting : public std::pmr::memory_resource {
 public:
  [[nodiscard]] int count() const { return count_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    ++count_;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  int count_ = 0;
};

Lengths lengths_of_step(std::uint64_t step) {
  const auto total = static_cast<std::uint32_t>(200 + 60 * (step % 3));
  return gen_seq_lens({.num_seqs = 6, .total_len = total}, 100 + step).front();
}

// What any of the steps needs on this rank.
WorkspaceSize hints_of(const QkvDispatch& dispatch, int rank) {
  WorkspaceSize all;
  for (const Metadata* const table :
       {&dispatch.q.forward, &dispatch.q.reverse, &dispatch.kv.forward, &dispatch.kv.reverse}) {
    const shiplap::run::WorkspaceOptions options{.row_bytes = kRowBytes, .pack_below = kPackBelow};
    all = elementwise_max(all, shiplap::run::workspace_size(*table, rank, options));
  }
  return all;
}

Buffers<float> buffers(const Metadata& sent_by) {
  Buffers<float> all(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    all[at(rank)].resize(sent_by.num_send_tokens(rank) * at(kWidth));
  }
  return all;
}

// One step on all ranks; the number of gradients that are not what the referee says.
std::size_t step(const Communicator& world, Dispatcher& dispatcher, const QkvDispatch& dispatch,
                 const DispatchPlan& plan) {
  Buffers<float> gradients = buffers(dispatch.kv.reverse);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (std::size_t i = 0; i < gradients[rank].size(); ++i) {
      gradients[rank][i] = static_cast<float>((7 * rank + 3 * i) % 17) - 8;
    }
  }
  Buffers<float> expected = buffers(dispatch.kv.forward);
  sum_simulate(gradients, expected, dispatch.kv.reverse, kWidth);
  std::vector<float> found(plan.kv_reverse.receive_tokens() * at(kWidth));
  dispatcher.exchange_sum<float>(plan.kv_reverse, gradients[at(world.rank())], found, kWidth);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] != expected[at(world.rank())][i]) ++wrong;
  }
  return wrong;
}

void show_steps(Communicator& world) {
  std::vector<QkvDispatch> batches;
  WorkspaceSize all;
  for (std::uint64_t s = 0; s < 4; ++s) {
    batches.push_back(compute_qkv_dispatch(route(lengths_of_step(s), 4)));
    all = elementwise_max(all, hints_of(batches.back(), world.rank()));
  }
  Counting memory;
  Dispatcher dispatcher(world, {.memory = &memory, .pack_below = kPackBelow, .on_stage = {}});
  dispatcher.reserve(all);
  if (world.rank() == 0) {
    std::printf("scenario 3: other lengths in every step\n");
    std::printf("  rank 0 reserves %lld bytes, with %d allocations\n",
                static_cast<long long>(all.total().count), memory.count());
  }
  for (std::size_t s = 0; s < batches.size(); ++s) {
    const auto plan = dispatcher.plan(batches[s]);
    const int before = memory.count();
    const std::size_t wrong = step(world, dispatcher, batches[s], *plan);
    if (world.rank() != 0) continue;
    std::printf("  step %zu: %u tokens at home, %u keys, %d allocations, %zu wrong sums\n", s,
                plan->kv_forward.send_tokens(), plan->kv_forward.receive_tokens(),
                memory.count() - before, wrong);
  }
}

// ---- scenario 4: a planted bug

// The same table with one offset changed.
Metadata with_offset(const Metadata& table, int rank, std::uint32_t row, std::uint32_t offset) {
  Metadata::Builder builder(
      {.world_size = table.world_size(), .max_cp = table.max_cp(), .arrival = table.arrival()});
  for (int r = 0; r < table.world_size(); ++r) {
    for (std::uint32_t i = 0; i < table.num_seqs(r); ++i) {
      const Metadata::Row old = table.row(r, i);
      std::vector<Copy> copies(old.copies.begin(), old.copies.end());
      if (r == rank && i == row) copies.front().offset = offset;
      builder.add_row(old.length, copies);
    }
    builder.end_rank();
  }
  return builder.take();
}

// The referee with tokens that say where they come from, in two bytes: the rank, from 1, so that 0
// is nobody, and the token.
Buffers<std::byte> delivered(const Metadata& table, const Metadata& back) {
  Buffers<std::byte> home(kRanks);
  Buffers<std::byte> there(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::uint32_t t = 0; t < table.num_send_tokens(rank); ++t) {
      home[at(rank)].push_back(static_cast<std::byte>(rank + 1));
      home[at(rank)].push_back(static_cast<std::byte>(t));
    }
    there[at(rank)].resize(2 * std::size_t{back.num_send_tokens(rank)});
  }
  orchestrate_simulate(home, there, table, 2);
  return there;
}

void print_token(const char* name, std::span<const std::byte> token) {
  std::printf(", %s token %d of rank %d", name, std::to_integer<int>(token[1]),
              std::to_integer<int>(token[0]) - 1);
}

void show_first_difference(const QkvDispatch& right, const QkvDispatch& wrong) {
  const Buffers<std::byte> expected = delivered(right.q.forward, right.q.reverse);
  const Buffers<std::byte> found = delivered(wrong.q.forward, right.q.reverse);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const auto differs = std::ranges::mismatch(expected[rank], found[rank]).in1;
    if (differs == expected[rank].end()) continue;
    const auto token = at(differs - expected[rank].begin()) / 2;
    std::printf("  the referee: the first wrong token is %zu of rank %zu", token, rank);
    print_token("which holds", std::span(found[rank]).subspan(2 * token, 2));
    print_token("not", std::span(expected[rank]).subspan(2 * token, 2));
    std::printf("\n");
    return;
  }
}

void show_bug() {
  std::printf("scenario 4: an offset that is one too low\n");
  const QkvDispatch right = compute_qkv_dispatch(route(kBatch, 4));
  QkvDispatch wrong = right;
  const std::uint32_t offset = right.q.forward.row(1, 0).copies[0].offset;
  wrong.q.forward = with_offset(right.q.forward, 1, 0, offset - 1);
  std::printf("%s", render(validate(wrong)).c_str());
  show_first_difference(right, wrong);
  std::printf("gradients that are placed, not summed\n");
  wrong = right;
  Metadata::Builder placed({.world_size = kRanks, .max_cp = 0, .arrival = ArrivalMode::placed});
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::uint32_t i = 0; i < right.kv.reverse.num_seqs(rank); ++i) {
      const Metadata::Row row = right.kv.reverse.row(rank, i);
      placed.add_row(row.length, row.copies);
    }
    placed.end_rank();
  }
  wrong.kv.reverse = placed.take();
  std::printf("%s", render(validate(wrong, {.max_per_code = 1})).c_str());
}

// ---- scenario 5: a rank with another opinion

void show_disagreement(Communicator& world) {
  const auto apart = world.channel("apart");
  Dispatcher dispatcher(*apart);
  const int most = world.rank() == 2 ? 3 : 4;
  std::string said = "nothing";
  try {
    (void)dispatcher.plan(compute_qkv_dispatch(route(kBatch, most)));
  } catch (const shiplap::run::MetadataMismatch& differs) {
    said = render(differs.diagnostic());
  }
  if (world.rank() == 0) std::printf("scenario 5: rank 2 uses another CP degree\n%s", said.c_str());
}

void work(Communicator& world) {
  if (world.rank() == 0) {
    show_batch();
    show_traffic();
  }
  show_steps(world);
  if (world.rank() == 0) show_bug();
  show_disagreement(world);
}

}  // namespace

int main() {
  try {
    shiplap::comm::run_ranks({.threads = kRanks}, work);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
