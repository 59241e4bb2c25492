// Groups: who is in them, in which order, and what they are called.
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "laws.h"

namespace shiplap::comm {
namespace {

using Group = std::unique_ptr<Communicator>;

// The group consists of these ranks of the world, in this order; they can talk to each other.
void expect_members(Trial& trial, Communicator& group, const std::vector<int>& members) {
  trial.expect_equal(group.size(), static_cast<int>(members.size()), "size of the group");
  if (group.size() != static_cast<int>(members.size())) return;
  for (int rank = 0; rank < group.size(); ++rank) {
    trial.expect_equal(group.world_rank(rank), members[rank], "world_rank");
  }
  trial.expect_equal(group.world_rank(group.rank()), trial.comm.world_rank(trial.comm.rank()),
                     "the own world_rank");
  std::vector<std::int32_t> met(members.size(), -1);
  const std::int32_t own = trial.comm.rank();
  group.all_gather(std::span(&own, 1), std::span(met));
  trial.expect_equal(std::vector<int>(met.begin(), met.end()), members, "who met");
}

std::vector<int> every(int first, int step, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += step) ranks.push_back(rank);
  return ranks;
}

void the_whole(Trial& trial) {
  expect_members(trial, trial.comm, every(0, 1, trial.comm.size()));
  trial.expect(trial.comm.alive(), "a fresh one is alive");
}

void by_parity(Trial& trial) {
  Communicator& comm = trial.comm;
  const Group part = comm.split(comm.rank() % 2, comm.rank(), "parity");
  expect_members(trial, *part, every(comm.rank() % 2, 2, comm.size()));
}

void reversed(Trial& trial) {
  Communicator& comm = trial.comm;
  const Group turned = comm.split(7, comm.size() - comm.rank(), "turned");
  std::vector<int> members = every(0, 1, comm.size());
  std::reverse(members.begin(), members.end());
  expect_members(trial, *turned, members);
}

void negative_keys(Trial& trial) {
  Communicator& comm = trial.comm;
  const Group turned = comm.split(0, -comm.rank(), "turned");
  std::vector<int> members = every(0, 1, comm.size());
  std::reverse(members.begin(), members.end());
  expect_members(trial, *turned, members);
}

void equal_keys(Trial& trial) {
  const Group same = trial.comm.split(2'000'000'000, 5, "same");
  expect_members(trial, *same, every(0, 1, trial.comm.size()));
}

// The last two come first: what has the smaller key, and among equals the smaller rank.
void some_keys_equal(Trial& trial) {
  Communicator& comm = trial.comm;
  const Group part = comm.split(0, comm.rank() >= comm.size() - 2 ? 0 : 1, "part");
  std::vector<int> members = {comm.size() - 2, comm.size() - 1};
  for (int rank = 0; rank < comm.size() - 2; ++rank) members.push_back(rank);
  expect_members(trial, *part, members);
}

void everybody_alone(Trial& trial) {
  Communicator& comm = trial.comm;
  const Group alone = comm.split(comm.rank(), 0, "alone");
  expect_members(trial, *alone, {comm.rank()});
  try_all_reduce<float>(trial, *alone, 1, 9, ReduceOp::sum);
  alone->barrier();
}

void channel(Trial& trial) {
  const Group again = trial.comm.channel("again");
  trial.expect_equal(again->rank(), trial.comm.rank(), "rank");
  expect_members(trial, *again, every(0, 1, trial.comm.size()));
}

void names(Trial& trial) {
  Communicator& comm = trial.comm;
  trial.expect_equal(comm.name(), std::string("world/groups/names"), "name of a channel");
  const Group part = comm.split(comm.rank() % 2, 0, "dp");
  trial.expect_equal(part->name(), comm.name() + "/dp", "name of a part");
  const Group line = part->channel("side");
  trial.expect_equal(line->name(), comm.name() + "/dp/side", "name of a part of a part");
}

void settings_are_inherited(Trial& trial) {
  Communicator& comm = trial.comm;
  comm.set_timeout(Seconds{17});
  const Group part = comm.split(comm.rank() % 2, 0, "part");
  trial.expect_equal(part->timeout().value, 17.0, "timeout of a part");
  part->set_timeout(Seconds{19});
  trial.expect_equal(comm.timeout().value, 17.0, "timeout of the whole");
  trial.expect(part->checked(), "checked is inherited");
  comm.set_checked(false);
  trial.expect(!comm.channel("line")->checked(), "unchecked is inherited");
}

void nested(Trial& trial) {
  Communicator& comm = trial.comm;
  const Group parity = comm.split(comm.rank() % 2, -comm.rank(), "parity");
  const Group pair = parity->split(parity->rank() / 2, -parity->rank(), "pair");
  // Within a parity ranks are turned around, cut into pairs, and turned back.
  const std::vector<int> same = every(comm.rank() % 2, 2, comm.size());
  const int place = static_cast<int>(same.size()) - 1 - comm.rank() / 2;
  std::vector<int> members;
  for (int k = place / 2 * 2 + 1; k >= place / 2 * 2; --k) {
    if (k < static_cast<int>(same.size())) {
      members.push_back(same[same.size() - 1 - static_cast<std::size_t>(k)]);
    }
  }
  expect_members(trial, *pair, members);
}

void parents_may_go_first(Trial& trial) {
  Group parent = trial.comm.channel("parent");
  const Group child = parent->channel("child");
  parent.reset();
  expect_members(trial, *child, every(0, 1, trial.comm.size()));
}

void many_groups(Trial& trial) {
  Communicator& comm = trial.comm;
  const int rounds = comm.size() <= 8 ? 60 : 10;
  for (int k = 0; k < rounds; ++k) {
    const Group part = comm.split(comm.rank() % (k % 4 + 1), 0, "part");
    std::int64_t one = 1;
    part->all_reduce(std::span(&one, 1));
    trial.expect_equal(one, part->size(), "how many have met");
  }
}

// ---- meshes

void line(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::vector<int> sizes = {comm.size()};
  const std::vector<int> axis = {0};
  const Group whole = comm.split_along(sizes, axis, "whole");
  expect_members(trial, *whole, every(0, 1, comm.size()));
  const Group alone = comm.split_along(sizes, {}, "alone");
  expect_members(trial, *alone, {comm.rank()});
}

void two_axes(Trial& trial) {
  Communicator& comm = trial.comm;
  if (comm.size() % 2 != 0) return;
  const int columns = comm.size() / 2;
  const std::vector<int> sizes = {2, columns};
  const std::vector<int> first = {0};
  const std::vector<int> second = {1};
  const Group along_first = comm.split_along(sizes, first, "first");
  const int column = comm.rank() % columns;
  expect_members(trial, *along_first, {column, column + columns});
  const Group along_second = comm.split_along(sizes, second, "second");
  const int begin = comm.rank() / columns * columns;
  std::vector<int> row(columns);
  std::iota(row.begin(), row.end(), begin);
  expect_members(trial, *along_second, row);
}

void both_axes(Trial& trial) {
  Communicator& comm = trial.comm;
  if (comm.size() % 2 != 0) return;
  const std::vector<int> sizes = {comm.size() / 2, 2};
  const std::vector<int> both = {1, 0};  // the order in which they are named does not matter
  const Group whole = comm.split_along(sizes, both, "both");
  expect_members(trial, *whole, every(0, 1, comm.size()));
}

// Positions in a mesh of a x 2 x c, the last axis varying fastest, written out.
void three_axes(Trial& trial) {
  Communicator& comm = trial.comm;
  if (comm.size() % 4 != 0) return;
  const int depth = comm.size() / 4;
  const std::vector<int> sizes = {2, 2, depth};
  const auto rank_at = [&](int i, int j, int k) { return (i * 2 + j) * depth + k; };
  const int i = comm.rank() / (2 * depth);
  const int j = comm.rank() / depth % 2;
  const int k = comm.rank() % depth;
  const std::vector<int> middle = {1};
  const Group along_middle = comm.split_along(sizes, middle, "middle");
  expect_members(trial, *along_middle, {rank_at(i, 0, k), rank_at(i, 1, k)});
  const std::vector<int> outer = {0, 2};
  const Group along_outer = comm.split_along(sizes, outer, "outer");
  std::vector<int> members;
  for (int other = 0; other < 2; ++other) {
    for (int z = 0; z < depth; ++z) members.push_back(rank_at(other, j, z));
  }
  expect_members(trial, *along_outer, members);
  const std::vector<int> first = {0};
  const Group along_first = comm.split_along(sizes, first, "first");
  expect_members(trial, *along_first, {rank_at(0, j, k), rank_at(1, j, k)});
}

void axes_of_one(Trial& trial) {
  Communicator& comm = trial.comm;
  const std::vector<int> sizes = {1, comm.size(), 1};
  const std::vector<int> ends = {0, 2};
  expect_members(trial, *comm.split_along(sizes, ends, "ends"), {comm.rank()});
  const std::vector<int> middle = {1};
  expect_members(trial, *comm.split_along(sizes, middle, "middle"), every(0, 1, comm.size()));
}

}  // namespace

void add_group_checks(std::vector<Check>& checks) {
  checks.push_back({"groups/the_whole", 1, the_whole});
  checks.push_back({"groups/by_parity", 1, by_parity});
  checks.push_back({"groups/reversed", 1, reversed});
  checks.push_back({"groups/negative_keys", 1, negative_keys});
  checks.push_back({"groups/equal_keys", 1, equal_keys});
  checks.push_back({"groups/some_keys_equal", 2, some_keys_equal});
  checks.push_back({"groups/everybody_alone", 1, everybody_alone});
  checks.push_back({"groups/channel", 1, channel});
  checks.push_back({"groups/names", 1, names});
  checks.push_back({"groups/settings_are_inherited", 1, settings_are_inherited});
  checks.push_back({"groups/nested", 2, nested});
  checks.push_back({"groups/parents_may_go_first", 1, parents_may_go_first});
  checks.push_back({"groups/many", 1, many_groups});
  checks.push_back({"mesh/line", 1, line});
  checks.push_back({"mesh/two_axes", 2, two_axes});
  checks.push_back({"mesh/both_axes", 2, both_axes});
  checks.push_back({"mesh/three_axes", 4, three_axes});
  checks.push_back({"mesh/axes_of_one", 1, axes_of_one});
}

}  // namespace shiplap::comm
