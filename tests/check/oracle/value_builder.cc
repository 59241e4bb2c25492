#include "value_builder.h"

namespace shiplap::oracle {

ValueBuilder::ValueBuilder(int ranks, Random& source, Fault chosen) : random(source), lie(chosen) {
  plan.ranks.resize(ranks);
  pieces = random.chance(0.3);
  layouts = random.chance(0.4);
}

std::vector<int> range(int begin, int count) {
  std::vector<int> all;
  for (int k = 0; k < count; ++k) all.push_back(begin + k);
  return all;
}

BufferRows ValueBuilder::rows(int rank, int count) {
  at(rank).buffers.push_back(count);
  return {.buffer = static_cast<int>(at(rank).buffers.size()) - 1, .begin = 0, .count = count};
}

BufferRows ValueBuilder::slice(BufferRows of, int begin, int count) {
  of.begin += begin;
  of.count = count;
  return of;
}

void ValueBuilder::fact(int rank, const std::string& kind, const BufferRows& place,
                        const StatedValue& value) {
  at(rank).facts.push_back({kind, place, value});
}

void ValueBuilder::compute(int rank, const std::string& kernel, std::vector<Assertion> assertions) {
  at(rank).steps.push_back(
      {.action = "compute", .kernel = kernel, .assertions = std::move(assertions)});
}

void ValueBuilder::copy(int rank, const BufferRows& from, const BufferRows& to, bool add) {
  at(rank).steps.push_back({.action = "copy", .from = from, .to = to, .add = add});
}

void ValueBuilder::collective(const std::string& action, const std::vector<BufferRows>& from,
                              const std::vector<BufferRows>& to, const std::string& words,
                              int denominator) {
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto k = static_cast<std::size_t>(rank);
    at(rank).steps.push_back({.action = action,
                              .from = from[k],
                              .to = to.empty() ? BufferRows{} : to[k],
                              .words = "over r" + words,
                              .denominator = denominator});
  }
}

void ValueBuilder::message(int from, const BufferRows& what, int to, const BufferRows& where,
                           bool add) {
  at(from).steps.push_back(
      {.action = "send", .from = what, .words = "to rank " + std::to_string(to)});
  at(to).steps.push_back(
      {.action = "receive", .to = where, .words = "from rank " + std::to_string(from), .add = add});
}

void ValueBuilder::all_reduce(const std::vector<BufferRows>& places, int denominator) {
  const int way = upto(0, 3);
  if (way == 1 && ranks() > 1) {
    collective("reduce", places, {}, "", denominator);
    return collective("broadcast", places, {});
  }
  if (way == 2 && ranks() > 1 && denominator == 1) {
    for (int rank = 1; rank < ranks(); ++rank) {
      message(rank, places[rank], 0, places[0], true);
    }
    return collective("broadcast", places, {});
  }
  if (way == 3 && ranks() > 1 && denominator == 1) {
    const std::string name = "t" + std::to_string(plan.tables.size());
    std::string table = "table " + name + "\n";
    for (int from = 0; from < ranks(); ++from) {
      for (int to = 0; to < ranks(); ++to) {
        if (from == to) continue;
        table += "  message " + std::to_string(from) + " " + std::to_string(to) + " 0 " +
                 std::to_string(places[0].count) + " 0\n";
      }
    }
    plan.tables.push_back(table);
    for (int rank = 0; rank < ranks(); ++rank) {
      const BufferRows& from = places[rank];
      const BufferRows to = rows(rank, from.count);
      copy(rank, from, to);
      at(rank).steps.push_back({.action = "exchange",
                                .from = to,
                                .to = from,
                                .words = "by " + name + " over r",
                                .add = true});
    }
    return;
  }
  collective("all_reduce", places, {}, "", denominator);
}

}  // namespace shiplap::oracle
