// Value numbering (Cocke and Schwartz 1970): every operation gets a hash of its identity and of the
// numbers in the rows that it reads, and writes it into its output rows. Two plans compute the same
// if they have the same multiset of numbers on every rank. Program order is a valid order, since
// operations wait only for earlier ones.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/check/data_flow_internal.h"
#include "shiplap/check/id_table_internal.h"
#include "shiplap/check/interval_map_internal.h"
#include "shiplap/plan/expand.h"

namespace shiplap::check {
namespace {

constexpr std::int64_t kMaxRanks = 4096;

std::uint64_t hash_text(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = hash_combine(hash, c);
  return hash;
}

class DataFlow {
 public:
  explicit DataFlow(const plan::RankProgram& program) : program_(program) {
    for (std::size_t k = 0; k < program.buffers.size(); ++k) {
      buffers_.emplace_back(static_cast<std::int32_t>(program.buffers[k].rows), Number{k + 1, 0});
    }
    for (const plan::flat::Operation& op : program.operations) {
      throw_if_cancelled();
      number(op);
    }
    for (std::size_t k = 0; k < buffers_.size(); ++k) {
      numbers_.push_back(hash_combine(
          k, static_cast<std::int64_t>(
                 found({.buffer = plan::BufferId(k), .count = program.buffers[k].rows}, 0))));
    }
    std::ranges::sort(numbers_);
  }

  [[nodiscard]] const std::vector<std::uint64_t>& numbers() const { return numbers_; }

 private:
  // Row `row` of what the operation with a number wrote.
  struct Number {
    std::uint64_t writer = 0;
    std::int64_t row = 0;
    void skip(std::int32_t rows) { row += rows; }
  };

  template <class Visit>
  void for_each_run(const plan::flat::Region& region, const Visit& visit) const {
    if (!region.buffer.exists() || region.count == 0) return;
    if (region.listed < 0) {
      return visit(static_cast<std::int32_t>(region.begin),
                   static_cast<std::int32_t>(region.begin + region.count));
    }
    for (std::int64_t k = 0; k < region.count; ++k) {
      const auto row = static_cast<std::int32_t>(program_.listed_rows[region.listed + k]);
      visit(row, row + 1);
    }
  }

  // Hashes what the rows of a region hold. Ranges that continue each other count as one.
  [[nodiscard]] std::uint64_t found(const plan::flat::Region& region, std::uint64_t hash) const {
    Number next;
    std::int64_t rows = 0;
    const auto close = [&] {
      if (rows == 0) return;
      hash =
          hash_combine(hash_combine(hash, static_cast<std::int64_t>(next.writer)), next.row - rows);
      hash = hash_combine(hash, rows);
    };
    for_each_run(region, [&](std::int32_t begin, std::int32_t end) {
      buffers_[region.buffer.index()].for_each(
          begin, end, [&](const IntervalMap<Number>::Range& range) {
            const std::int32_t first = std::max(begin, range.begin);
            const std::int32_t count = std::min(end, range.end) - first;
            Number here = range.value;
            here.skip(first - range.begin);
            if (rows == 0 || here.writer != next.writer || here.row != next.row) {
              close();
              rows = 0;
              next = here;
            }
            rows += count;
            next.skip(count);
          });
    });
    close();
    return hash;
  }

  void write(const plan::flat::Region& region, std::uint64_t writer) {
    std::int64_t row = 0;
    for_each_run(region, [&](std::int32_t begin, std::int32_t end) {
      const IntervalMap<Number>::Range range{begin, end, {writer, row}};
      buffers_[region.buffer.index()].put(begin, end, std::span(&range, 1));
      row += end - begin;
    });
  }

  [[nodiscard]] std::uint64_t place(std::uint64_t hash, const plan::flat::Region& region) const {
    if (!region.buffer.exists()) return hash_combine(hash, -1);
    hash = hash_combine(hash, region.buffer.value);
    for_each_run(region, [&](std::int32_t begin, std::int32_t end) {
      hash = hash_combine(hash_combine(hash, begin), end);
    });
    return hash;
  }

  void number(const plan::flat::Operation& op) {
    const plan::Action& action = op.source->action;
    if (std::holds_alternative<plan::Batch>(action)) return;
    std::uint64_t id = hash_text(1, plan::keyword(action));
    if (const auto* compute = std::get_if<plan::Compute>(&action)) {
      id = hash_text(id, compute->kernel);
    }
    id = hash_combine(hash_combine(hash_combine(id, op.peer.value), op.tag), op.root);
    if (op.group.exists()) {
      const plan::flat::Group& group = program_.groups[op.group];
      id = hash_text(hash_combine(hash_combine(id, group.ranks.size()), group.ranks[0].value),
                     group.channel);
    }
    id = place(place(id, op.from), op.to);
    const std::span<const plan::flat::Access> accesses = program_.accesses_of(op);
    for (const plan::flat::Access& access : accesses) {
      id = place(hash_combine(id, static_cast<std::int64_t>(access.kind)), access.region);
    }
    id = hash_combine(id, seen_[id]++);  // repeated operations differ
    std::uint64_t all = found(op.from, id);
    if (adds(action)) all = found(op.to, all);
    for (const plan::flat::Access& access : accesses) {
      if (access.kind != plan::Access::Kind::writes) all = found(access.region, all);
    }
    numbers_.push_back(all);
    const bool lives = std::holds_alternative<plan::Allocate>(action) ||
                       std::holds_alternative<plan::Free>(action);
    write(lives ? op.from : op.to, hash_combine(all, -1));
    std::int64_t nth = 0;
    for (const plan::flat::Access& access : accesses) {
      if (access.kind != plan::Access::Kind::reads) write(access.region, hash_combine(all, nth++));
    }
  }

  static bool adds(const plan::Action& action) {
    if (const auto* copy = std::get_if<plan::Copy>(&action)) return copy->add;
    if (const auto* receive = std::get_if<plan::Receive>(&action)) return receive->add;
    if (const auto* exchange = std::get_if<plan::Exchange>(&action)) return exchange->add;
    return false;
  }

  const plan::RankProgram& program_;
  std::vector<IntervalMap<Number>> buffers_;
  std::vector<std::uint64_t> numbers_;  // of operations, and of what the buffers hold at the end
  std::unordered_map<std::uint64_t, std::int64_t> seen_;
};

}  // namespace

bool same_data_flow(const plan::Plan& a, const plan::Plan& b) {
  if (a.mesh.ranks() != b.mesh.ranks() || a.mesh.ranks() > kMaxRanks) return false;
  plan::RankProgram x;
  plan::RankProgram y;
  for (std::int32_t rank = 0; rank < a.mesh.ranks(); ++rank) {
    x = plan::expand(a, Rank(rank));
    y = plan::expand(b, Rank(rank));
    if (DataFlow(x).numbers() != DataFlow(y).numbers()) return false;
  }
  return true;
}

}  // namespace shiplap::check
