// Creating the communicators of a plan.
//
// Creating a communicator (split) is collective, so all ranks must create the same ones in the same
// order, although each knows only the groups of its own program. Every rank packs what it needs
// into a CommunicatorRequest, the requests are all-gathered, and their union, sorted, is the same
// on all ranks. Groups that share no rank are created in one round, by one split with a color per
// group (first-fit, as in greedy graph coloring).
//
// The same all-gather carries the problems that each rank found in its program. Either all ranks
// proceed or all throw: a rank that threw alone would leave the others hanging in their first
// collective.
//
// Tags of a plan are 64-bit; transports have fewer. Small tags are used as they are, all others are
// numbered in the upper half of the transport's range, in the same order on all ranks (D642 if
// there are too many).
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/communicator_set_internal.h"
#include "shiplap/run/packing_internal.h"

namespace shiplap::run {
namespace {

struct GroupKey {
  std::string channel;
  std::vector<std::int64_t> ranks;
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

// The communicators and tags that a rank needs, and the problems it found.
struct CommunicatorRequest {
  std::vector<Diagnostic> problems;
  std::vector<GroupKey> groups;
  std::set<std::string> channels;
  std::set<std::int64_t> remapped_tags;
};

CommunicatorRequest request_of(const plan::RankProgram& program,
                               const std::vector<Diagnostic>& problems) {
  CommunicatorRequest request{.problems = problems};
  if (!problems.empty()) return request;
  for (const plan::flat::Group& group : program.groups) {
    GroupKey& made = request.groups.emplace_back(GroupKey{.channel = group.channel});
    for (std::int64_t k = 0; k < group.ranks.size(); ++k) {
      made.ranks.push_back(group.ranks[k].value);
    }
  }
  for (const plan::flat::Operation& op : program.operations) {
    const std::string* const channel = message_channel(op);
    if (channel == nullptr) continue;
    request.channels.insert(*channel);
    if (op.tag < 0 || op.tag >= kDirectTags) request.remapped_tags.insert(op.tag);
  }
  return request;
}

std::vector<std::byte> pack(const CommunicatorRequest& request) {
  Packer packer;
  packer.put(std::ssize(request.problems));
  for (const Diagnostic& problem : request.problems) {
    packer.put(problem.code);
    packer.put(problem.what);
    packer.put(problem.why);
    packer.put(problem.help);
    packer.put(problem.where.operation);
    packer.put(std::int64_t{problem.where.line});
    packer.put(problem.where.rank.value_or(-1));
  }
  packer.put(std::ssize(request.groups));
  for (const GroupKey& group : request.groups) {
    packer.put(group.channel);
    packer.put(std::ssize(group.ranks));
    for (const std::int64_t rank : group.ranks) packer.put(rank);
  }
  packer.put(static_cast<std::int64_t>(request.channels.size()));
  for (const std::string& channel : request.channels) packer.put(channel);
  packer.put(static_cast<std::int64_t>(request.remapped_tags.size()));
  for (const std::int64_t tag : request.remapped_tags) packer.put(tag);
  return packer.take();
}

Diagnostic unpack_problem(Unpacker& from) {
  Diagnostic problem;
  problem.code = from.text();
  problem.what = from.text();
  problem.why = from.text();
  problem.help = from.text();
  problem.where.operation = from.text();
  problem.where.line = static_cast<int>(from.number());
  if (const std::int64_t rank = from.number(); rank >= 0) problem.where.rank = rank;
  return problem;
}

CommunicatorRequest unpack_request(std::vector<std::byte> bytes) {
  Unpacker from(std::move(bytes));
  CommunicatorRequest request;
  for (std::int64_t k = from.number(); k > 0; --k) request.problems.push_back(unpack_problem(from));
  for (std::int64_t k = from.number(); k > 0; --k) {
    GroupKey& group = request.groups.emplace_back(GroupKey{.channel = from.text()});
    for (std::int64_t r = from.number(); r > 0; --r) group.ranks.push_back(from.number());
  }
  for (std::int64_t k = from.number(); k > 0; --k) request.channels.insert(from.text());
  for (std::int64_t k = from.number(); k > 0; --k) request.remapped_tags.insert(from.number());
  return request;
}

// The union of all requests. The same on all ranks.
CommunicatorRequest merge(const std::vector<CommunicatorRequest>& requests) {
  CommunicatorRequest all;
  std::set<GroupKey> groups;
  for (const CommunicatorRequest& request : requests) {
    if (all.problems.empty()) all.problems = request.problems;
    groups.insert(request.groups.begin(), request.groups.end());
    all.channels.insert(request.channels.begin(), request.channels.end());
    all.remapped_tags.insert(request.remapped_tags.begin(), request.remapped_tags.end());
  }
  all.groups.assign(groups.begin(), groups.end());
  return all;
}

// Groups that share no rank are created in one round. Each goes into the first round that fits.
std::vector<std::vector<const GroupKey*>> rounds_of(const std::vector<GroupKey>& groups) {
  std::vector<std::vector<const GroupKey*>> rounds;
  std::vector<std::set<std::int64_t>> taken;
  for (const GroupKey& group : groups) {
    std::size_t round = 0;
    while (round < rounds.size() &&
           std::ranges::any_of(
               group.ranks, [&](std::int64_t rank) { return taken[round].contains(rank); })) {
      ++round;
    }
    if (round == rounds.size()) {
      rounds.emplace_back();
      taken.emplace_back();
    }
    rounds[round].push_back(&group);
    taken[round].insert(group.ranks.begin(), group.ranks.end());
  }
  return rounds;
}

std::string name_of(const GroupKey& group) {
  return fmt::format(
      "{}{}{}",
      fmt::join(std::span(group.ranks).first(std::min<std::size_t>(4, group.ranks.size())), ","),
      group.ranks.size() > 4 ? ",.." : "", group.channel.empty() ? "" : "/" + group.channel);
}

// Returns the communicator of this rank in the round; *local is its group, if it is in one.
std::unique_ptr<comm::Communicator> create_round(comm::Communicator& world,
                                                 const std::vector<const GroupKey*>& round,
                                                 const GroupKey** local) {
  int color = static_cast<int>(round.size());  // of ranks without a group
  std::ptrdiff_t key = world.rank();
  for (std::size_t k = 0; k < round.size(); ++k) {
    const std::vector<std::int64_t>& ranks = round[k]->ranks;
    const auto position = std::ranges::find(ranks, world.rank());
    if (position == ranks.end()) continue;
    color = static_cast<int>(k);
    key = position - ranks.begin();
    *local = round[k];
  }
  return world.split(color, static_cast<int>(key), *local == nullptr ? "none" : name_of(**local));
}

void create_groups(comm::Communicator& world, const std::vector<GroupKey>& local,
                   const std::vector<GroupKey>& all, CommunicatorSet& communicators) {
  communicators.groups.resize(local.size());
  for (const std::vector<const GroupKey*>& round : rounds_of(all)) {
    const GroupKey* mine = nullptr;
    auto made = create_round(world, round, &mine);
    const auto named = mine == nullptr ? local.end() : std::ranges::find(local, *mine);
    if (named == local.end()) {
      communicators.others.push_back(std::move(made));
    } else {
      communicators.groups[named - local.begin()] = std::move(made);
    }
  }
}

void check_tags(const CommunicatorRequest& all, int rank) {
  if (std::ssize(all.remapped_tags) <= comm::Communicator::kMaxTag + 1 - kDirectTags) return;
  throw InputError(Diagnostic{
      .code = "D642",
      .where = {.rank = rank},
      .what = fmt::format("too many message tags: {} different tags are negative or at least {}",
                          all.remapped_tags.size(), kDirectTags),
      .why = fmt::format("run supports {} of them", comm::Communicator::kMaxTag + 1 - kDirectTags),
      .help = "number tags from 0"});
}

}  // namespace

const std::string* message_channel(const plan::flat::Operation& op) {
  if (const auto* const send = std::get_if<plan::Send>(&op.source->action)) return &send->channel;
  if (const auto* const receive = std::get_if<plan::Receive>(&op.source->action)) {
    return &receive->channel;
  }
  return nullptr;
}

CommunicatorSet create_communicators(comm::Communicator& world, const plan::RankProgram& program,
                                     const std::vector<Diagnostic>& problems) {
  const CommunicatorRequest local = request_of(program, problems);
  std::vector<CommunicatorRequest> requests;
  for (std::vector<std::byte>& bytes : gather_bytes(world, pack(local))) {
    requests.push_back(unpack_request(std::move(bytes)));
  }
  const CommunicatorRequest all = merge(requests);
  if (!local.problems.empty()) throw InputError(local.problems);
  if (!all.problems.empty()) throw InputError(all.problems);
  check_tags(all, world.rank());
  CommunicatorSet communicators;
  create_groups(world, local.groups, all.groups, communicators);
  for (const std::string& channel : all.channels) {
    communicators.channels[channel] = world.channel(channel.empty() ? "messages" : channel);
  }
  int next = static_cast<int>(kDirectTags);
  for (const std::int64_t tag : all.remapped_tags) communicators.remapped_tags[tag] = next++;
  return communicators;
}

}  // namespace shiplap::run
