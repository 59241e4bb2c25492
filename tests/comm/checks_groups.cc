// Groups: members, order and names.
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "check.h"
#include "reference.h"

namespace shiplap::comm {
namespace {

using GroupPtr = std::unique_ptr<Communicator>;

// The group has these ranks of the world, in this order, and they can communicate.
void expect_members(CheckContext& ctx, Communicator& group, const std::vector<int>& members) {
  ctx.expect_equal(group.size(), static_cast<int>(members.size()), "size of the group");
  if (group.size() != static_cast<int>(members.size())) return;
  for (int rank = 0; rank < group.size(); ++rank) {
    ctx.expect_equal(group.world_rank(rank), members[rank], "world_rank");
  }
  ctx.expect_equal(group.world_rank(group.rank()), ctx.comm.world_rank(ctx.comm.rank()),
                   "the local world_rank");
  std::vector<std::int32_t> gathered(members.size(), -1);
  const std::int32_t local = ctx.comm.rank();
  group.all_gather(std::span(&local, 1), std::span(gathered));
  ctx.expect_equal(std::vector<int>(gathered.begin(), gathered.end()), members, "members");
}

std::vector<int> every(int first, int step, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += step) ranks.push_back(rank);
  return ranks;
}

void the_whole(CheckContext& ctx) {
  expect_members(ctx, ctx.comm, every(0, 1, ctx.comm.size()));
  ctx.expect(ctx.comm.alive(), "a new communicator is alive");
}

void by_parity(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const GroupPtr part = comm.split(comm.rank() % 2, comm.rank(), "parity");
  expect_members(ctx, *part, every(comm.rank() % 2, 2, comm.size()));
}

void reversed(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const GroupPtr reversed_order = comm.split(7, comm.size() - comm.rank(), "reversed_order");
  std::vector<int> members = every(0, 1, comm.size());
  std::reverse(members.begin(), members.end());
  expect_members(ctx, *reversed_order, members);
}

void negative_keys(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const GroupPtr reversed_order = comm.split(0, -comm.rank(), "reversed_order");
  std::vector<int> members = every(0, 1, comm.size());
  std::reverse(members.begin(), members.end());
  expect_members(ctx, *reversed_order, members);
}

void equal_keys(CheckContext& ctx) {
  const GroupPtr same = ctx.comm.split(2'000'000'000, 5, "same");
  expect_members(ctx, *same, every(0, 1, ctx.comm.size()));
}

// The last two come first: ordered by key, then by rank.
void some_keys_equal(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const GroupPtr part = comm.split(0, comm.rank() >= comm.size() - 2 ? 0 : 1, "part");
  std::vector<int> members = {comm.size() - 2, comm.size() - 1};
  for (int rank = 0; rank < comm.size() - 2; ++rank) members.push_back(rank);
  expect_members(ctx, *part, members);
}

void single_ranks(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const GroupPtr alone = comm.split(comm.rank(), 0, "alone");
  expect_members(ctx, *alone, {comm.rank()});
  try_all_reduce<float>(ctx, *alone, 1, 9, ReduceOp::sum);
  alone->barrier();
}

void channel(CheckContext& ctx) {
  const GroupPtr again = ctx.comm.channel("again");
  ctx.expect_equal(again->rank(), ctx.comm.rank(), "rank");
  expect_members(ctx, *again, every(0, 1, ctx.comm.size()));
}

void names(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  ctx.expect_equal(comm.name(), std::string("world/groups/names"), "name of a channel");
  const GroupPtr part = comm.split(comm.rank() % 2, 0, "dp");
  ctx.expect_equal(part->name(), comm.name() + "/dp", "name of a part");
  const GroupPtr line = part->channel("side");
  ctx.expect_equal(line->name(), comm.name() + "/dp/side", "name of a part of a part");
}

void settings_are_inherited(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  comm.set_timeout(Seconds{17});
  const GroupPtr part = comm.split(comm.rank() % 2, 0, "part");
  ctx.expect_equal(part->timeout().value, 17.0, "timeout of a part");
  part->set_timeout(Seconds{19});
  ctx.expect_equal(comm.timeout().value, 17.0, "timeout of the whole");
  ctx.expect(part->checked(), "checked is inherited");
  comm.set_checked(false);
  ctx.expect(!comm.channel("line")->checked(), "unchecked is inherited");
}

void nested(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const GroupPtr parity = comm.split(comm.rank() % 2, -comm.rank(), "parity");
  const GroupPtr pair = parity->split(parity->rank() / 2, -parity->rank(), "pair");
  // Within a parity, ranks are reversed, split into pairs, and reversed again.
  const std::vector<int> same = every(comm.rank() % 2, 2, comm.size());
  const int position = static_cast<int>(same.size()) - 1 - comm.rank() / 2;
  std::vector<int> members;
  for (int k = position / 2 * 2 + 1; k >= position / 2 * 2; --k) {
    if (k < static_cast<int>(same.size())) {
      members.push_back(same[same.size() - 1 - static_cast<std::size_t>(k)]);
    }
  }
  expect_members(ctx, *pair, members);
}

void parent_may_be_destroyed_first(CheckContext& ctx) {
  GroupPtr parent = ctx.comm.channel("parent");
  const GroupPtr child = parent->channel("child");
  parent.reset();
  expect_members(ctx, *child, every(0, 1, ctx.comm.size()));
}

void many_groups(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const int rounds = comm.size() <= 8 ? 60 : 10;
  for (int k = 0; k < rounds; ++k) {
    const GroupPtr part = comm.split(comm.rank() % (k % 4 + 1), 0, "part");
    std::int64_t one = 1;
    part->all_reduce(std::span(&one, 1));
    ctx.expect_equal(one, part->size(), "number of ranks");
  }
}

// ---- meshes

void line(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<int> sizes = {comm.size()};
  const std::vector<int> axis = {0};
  const GroupPtr whole = comm.split_along(sizes, axis, "whole");
  expect_members(ctx, *whole, every(0, 1, comm.size()));
  const GroupPtr alone = comm.split_along(sizes, {}, "alone");
  expect_members(ctx, *alone, {comm.rank()});
}

void two_axes(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  if (comm.size() % 2 != 0) return;
  const int columns = comm.size() / 2;
  const std::vector<int> sizes = {2, columns};
  const std::vector<int> first = {0};
  const std::vector<int> second = {1};
  const GroupPtr along_first = comm.split_along(sizes, first, "first");
  const int column = comm.rank() % columns;
  expect_members(ctx, *along_first, {column, column + columns});
  const GroupPtr along_second = comm.split_along(sizes, second, "second");
  const int begin = comm.rank() / columns * columns;
  std::vector<int> row(columns);
  std::iota(row.begin(), row.end(), begin);
  expect_members(ctx, *along_second, row);
}

void both_axes(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  if (comm.size() % 2 != 0) return;
  const std::vector<int> sizes = {comm.size() / 2, 2};
  const std::vector<int> both = {1, 0};  // the order of `along` does not matter
  const GroupPtr whole = comm.split_along(sizes, both, "both");
  expect_members(ctx, *whole, every(0, 1, comm.size()));
}

// Positions in a mesh whose last axis varies fastest.
void three_axes(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  if (comm.size() % 4 != 0) return;
  const int depth = comm.size() / 4;
  const std::vector<int> sizes = {2, 2, depth};
  const auto rank_at = [&](int i, int j, int k) { return (i * 2 + j) * depth + k; };
  const int i = comm.rank() / (2 * depth);
  const int j = comm.rank() / depth % 2;
  const int k = comm.rank() % depth;
  const std::vector<int> middle = {1};
  const GroupPtr along_middle = comm.split_along(sizes, middle, "middle");
  expect_members(ctx, *along_middle, {rank_at(i, 0, k), rank_at(i, 1, k)});
  const std::vector<int> outer = {0, 2};
  const GroupPtr along_outer = comm.split_along(sizes, outer, "outer");
  std::vector<int> members;
  for (int other = 0; other < 2; ++other) {
    for (int z = 0; z < depth; ++z) members.push_back(rank_at(other, j, z));
  }
  expect_members(ctx, *along_outer, members);
  const std::vector<int> first = {0};
  const GroupPtr along_first = comm.split_along(sizes, first, "first");
  expect_members(ctx, *along_first, {rank_at(0, j, k), rank_at(1, j, k)});
}

void axes_of_one(CheckContext& ctx) {
  Communicator& comm = ctx.comm;
  const std::vector<int> sizes = {1, comm.size(), 1};
  const std::vector<int> ends = {0, 2};
  expect_members(ctx, *comm.split_along(sizes, ends, "ends"), {comm.rank()});
  const std::vector<int> middle = {1};
  expect_members(ctx, *comm.split_along(sizes, middle, "middle"), every(0, 1, comm.size()));
}

}  // namespace

void add_group_checks(std::vector<Check>& checks) {
  checks.push_back({"groups/the_whole", 1, the_whole});
  checks.push_back({"groups/by_parity", 1, by_parity});
  checks.push_back({"groups/reversed", 1, reversed});
  checks.push_back({"groups/negative_keys", 1, negative_keys});
  checks.push_back({"groups/equal_keys", 1, equal_keys});
  checks.push_back({"groups/some_keys_equal", 2, some_keys_equal});
  checks.push_back({"groups/single_ranks", 1, single_ranks});
  checks.push_back({"groups/channel", 1, channel});
  checks.push_back({"groups/names", 1, names});
  checks.push_back({"groups/settings_are_inherited", 1, settings_are_inherited});
  checks.push_back({"groups/nested", 2, nested});
  checks.push_back({"groups/parent_may_be_destroyed_first", 1, parent_may_be_destroyed_first});
  checks.push_back({"groups/many", 1, many_groups});
  checks.push_back({"mesh/line", 1, line});
  checks.push_back({"mesh/two_axes", 2, two_axes});
  checks.push_back({"mesh/both_axes", 2, both_axes});
  checks.push_back({"mesh/three_axes", 4, three_axes});
  checks.push_back({"mesh/axes_of_one", 1, axes_of_one});
}

}  // namespace shiplap::comm
