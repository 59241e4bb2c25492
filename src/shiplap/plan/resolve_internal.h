// Evaluates statements for one rank: expressions, regions, values, peers and groups become numbers.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::plan {

// Appends to the arrays of `result`. Throws InputError D2xx without a location; the caller adds it.
class Resolver {
 public:
  // Adds at most `max_entries` entries to the arrays of `result`.
  Resolver(const Plan& plan, const Program& program, Rank rank, RankProgram& result,
           std::int64_t max_entries);

  [[nodiscard]] std::size_t bound() const { return locals_.size(); }
  void bind(std::int64_t value);
  void unbind_to(std::size_t count);

  [[nodiscard]] std::int64_t number(const Expr& expr) const { return evaluate(expr, position_); }
  [[nodiscard]] bool condition(const Condition& c) const { return holds(c, position_); }
  flat::Slice numbers(std::span<const Expr> list);
  // Throws D207 if `more` entries would exceed the limit.
  void limit(std::size_t more) const;

  void buffer(const Buffer& buffer);
  flat::Region region(const Region& region);
  // A value that is stored in `region`.
  flat::Value value(const Value& value, const flat::Region& region);
  flat::Work work(const Work& work) const;

  void action(const Compute& compute, flat::Operation& flat);
  void action(const Copy& copy, flat::Operation& flat);
  void action(const Send& send, flat::Operation& flat);
  void action(const Receive& receive, flat::Operation& flat);
  void action(const Collective& collective, flat::Operation& flat);
  void action(const Exchange& exchange, flat::Operation& flat);
  void action(const Allocate& allocate, flat::Operation& flat) {
    flat.from = region(allocate.rows);
  }
  void action(const Free& free, flat::Operation& flat) { flat.from = region(free.rows); }
  void action(const Batch&, flat::Operation&) {}

 private:
  flat::Region cut(const Region& region);
  flat::Region listed(const Region& region);
  std::span<const std::int64_t> entries(ListId list, const Expr& begin, const Expr& count) const;
  flat::Region within(const Region& region, std::int64_t begin, std::int64_t count) const;
  // These return the number of coordinates that they add.
  std::int64_t run(const Run& run, const Tensor& tensor);
  std::int64_t listed_run(const Run& run, const Dimension& dimension);
  std::int64_t whole_part(const Tensor& tensor, std::span<const Run> named, std::size_t first,
                          std::size_t last);
  void fits(const Tensor& tensor, std::int64_t cells, const flat::Region& region) const;
  Rank peer(const Peer& peer) const;
  flat::GroupId group(const Group& group);
  RankSet members(const Group& group) const;
  flat::GroupId intern(flat::Group group);

  const Plan& plan_;
  const Program& program_;
  RankProgram& result_;
  std::int64_t max_entries_;
  std::vector<std::int64_t> axes_;
  std::vector<std::int64_t> locals_;
  Position position_;
  std::unordered_map<const Group*, flat::GroupId> constant_groups_;
  std::unordered_multimap<std::uint64_t, flat::GroupId> groups_;
};

}  // namespace shiplap::plan
