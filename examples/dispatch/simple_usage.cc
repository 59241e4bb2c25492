// Four ranks exchange queries, keys and values as a dispatch says, and get back what they must.
//
// Started by hand the ranks are threads; under `mpirun -n 4` or `tools/ranks -n 4` processes. Rank
// 0 prints, and the output is always that of simple_usage.txt.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include "shiplap/comm/ranks.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/validate.h"
#include "shiplap/run/dispatcher.h"

namespace {

using shiplap::comm::Communicator;
using shiplap::dispatch::Copy;
using shiplap::dispatch::Metadata;
using shiplap::dispatch::QkvDispatch;
using shiplap::run::Dispatcher;
using shiplap::run::DispatchPlan;
using Tokens = std::vector<float>;

constexpr shiplap::dispatch::RandomDispatch kBatch{
    .world_size = 4, .total_seq_len = 16, .num_seqs = 2, .max_cp_degree = 3, .seed = 7};
constexpr std::int64_t kWidth = 2;  // floats in a row, so that a row has 8 bytes
constexpr std::int64_t kRowBytes = kWidth * static_cast<std::int64_t>(sizeof(float));

// Token t of rank r is called 100 r + t, in all its floats.
Tokens numbered(int rank, std::uint32_t count) {
  Tokens tokens;
  for (std::uint32_t t = 0; t < count; ++t) {
    tokens.insert(tokens.end(), kWidth, static_cast<float>(100 * rank + static_cast<int>(t)));
  }
  return tokens;
}

Tokens room_for(std::uint32_t count) { return Tokens(count * std::size_t{kWidth}); }

void print(const char* name, const Tokens& tokens) {
  std::printf("  %s:", name);
  for (std::size_t t = 0; t < tokens.size(); t += kWidth) {
    std::printf(" %.0f", static_cast<double>(tokens[t]));
  }
  std::printf("\n");
}

void print_rows(const char* name, const Metadata& table, int rank) {
  std::printf("  %s, rows of rank %d:\n", name, rank);
  for (std::uint32_t i = 0; i < table.num_seqs(rank); ++i) {
    const Metadata::Row row = table.row(rank, i);
    std::printf("    tokens %u to %u go to", row.begin, row.begin + row.length);
    for (const Copy& copy : row.copies) std::printf(" rank %d at %u;", copy.rank, copy.offset);
    std::printf("\n");
  }
}

// Numbers that are not as expected, over all ranks.
float differences(Communicator& world, const Tokens& found, const Tokens& expected) {
  Tokens count(1);
  for (std::size_t i = 0; i < std::max(found.size(), expected.size()); ++i) {
    const bool both = i < found.size() && i < expected.size();
    if (!both || found[i] != expected[i]) count[0] += 1;
  }
  world.all_reduce(std::span(count));
  return count[0];
}

void queries(Communicator& world, Dispatcher& dispatcher, const DispatchPlan& plan) {
  const Tokens home = numbered(world.rank(), plan.q_forward.send_tokens());
  Tokens there = room_for(plan.q_forward.receive_tokens());
  dispatcher.exchange(plan.q_forward, std::as_bytes(std::span(home)),
                      std::as_writable_bytes(std::span(there)), kRowBytes);
  Tokens back = room_for(plan.q_reverse.receive_tokens());
  dispatcher.exchange(plan.q_reverse, std::as_bytes(std::span(there)),
                      std::as_writable_bytes(std::span(back)), kRowBytes);
  const float wrong = differences(world, back, home);
  if (world.rank() != 0) return;
  std::printf("step 3: queries, there and back\n");
  print("rank 0 sent", home);
  print("rank 0 attends to", there);
  print("rank 0 got back", back);
  std::printf("  wrong on any rank: %.0f\n", static_cast<double>(wrong));
}

// How often each token at home was copied, which the table knows.
Tokens copies_of(const Metadata& table, int rank) {
  Tokens counts;
  for (std::uint32_t i = 0; i < table.num_seqs(rank); ++i) {
    const Metadata::Row row = table.row(rank, i);
    counts.insert(counts.end(), row.length * std::size_t{kWidth},
                  static_cast<float>(row.copies.size()));
  }
  return counts;
}

void keys(Communicator& world, Dispatcher& dispatcher, const DispatchPlan& plan,
          const Metadata& table) {
  const Tokens home = numbered(world.rank(), plan.kv_forward.send_tokens());
  Tokens there = room_for(plan.kv_forward.receive_tokens());
  dispatcher.exchange(plan.kv_forward, std::as_bytes(std::span(home)),
                      std::as_writable_bytes(std::span(there)), kRowBytes);
  // Every copy has a gradient of 1, so the sum at home counts the copies.
  const Tokens gradients(there.size(), 1.0F);
  Tokens sums = room_for(plan.kv_reverse.receive_tokens());
  dispatcher.exchange_sum<float>(plan.kv_reverse, gradients, sums, kWidth);
  const float wrong = differences(world, sums, copies_of(table, world.rank()));
  if (world.rank() != 0) return;
  std::printf("step 4: keys there, gradients back\n");
  print("rank 0 sent", home);
  print("rank 0 holds", there);
  print("gradients summed on rank 0", sums);
  std::printf("  wrong on any rank: %.0f\n", static_cast<double>(wrong));
}

void work(Communicator& world) {
  // Every rank makes the same dispatch from the same seed. Nothing is sent for that.
  const QkvDispatch dispatch = create_qkv_dispatch(kBatch);
  if (world.rank() == 0) {
    std::printf("step 1: a dispatch for %d ranks\n", dispatch.world_size());
    print_rows("q_forward", dispatch.q.forward, 0);
    print_rows("kv_forward", dispatch.kv.forward, 0);
    std::printf("  rank 0 attends to %d items, %u queries, %u keys\n",
                dispatch.attention.num_local_seqs(0), dispatch.attention.cu_seqlens_q(0).back(),
                dispatch.attention.cu_seqlens_kv(0).back());
    std::printf("step 2: validate\n  findings: %zu\n", validate(dispatch).size());
  }
  Dispatcher dispatcher(world);
  const auto plan = dispatcher.plan(dispatch);
  queries(world, dispatcher, *plan);
  keys(world, dispatcher, *plan, dispatch.kv.forward);
}

}  // namespace

int main() {
  try {
    shiplap::comm::run_ranks({.threads = kBatch.world_size}, work);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
