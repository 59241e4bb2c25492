#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/links_internal.h"
#include "shiplap/run/packing_internal.h"

namespace shiplap::run {
namespace {

struct Group {
  std::string channel;
  std::vector<std::int64_t> ranks;
  friend auto operator<=>(const Group&, const Group&) = default;
};

// What a rank tells the others.
struct Card {
  std::vector<Diagnostic> problems;
  std::vector<Group> groups;
  std::set<std::string> channels;
  std::set<std::int64_t> far_tags;
};

Card card_of(const plan::RankProgram& program, const std::vector<Diagnostic>& problems) {
  Card card{.problems = problems};
  if (!problems.empty()) return card;
  for (const plan::flat::Group& group : program.groups) {
    Group& made = card.groups.emplace_back(Group{.channel = group.channel});
    for (std::int64_t k = 0; k < group.ranks.size(); ++k) {
      made.ranks.push_back(group.ranks[k].value);
    }
  }
  for (const plan::flat::Operation& op : program.operations) {
    const std::string* const channel = message_channel(op);
    if (channel == nullptr) continue;
    card.channels.insert(*channel);
    if (op.tag < 0 || op.tag >= kNearTags) card.far_tags.insert(op.tag);
  }
  return card;
}

std::vector<std::byte> pack(const Card& card) {
  Packer packer;
  packer.put(std::ssize(card.problems));
  for (const Diagnostic& problem : card.problems) {
    packer.put(problem.code);
    packer.put(problem.what);
    packer.put(problem.why);
    packer.put(problem.help);
    packer.put(problem.where.operation);
    packer.put(std::int64_t{problem.where.line});
    packer.put(problem.where.rank.value_or(-1));
  }
  packer.put(std::ssize(card.groups));
  for (const Group& group : card.groups) {
    packer.put(group.channel);
    packer.put(std::ssize(group.ranks));
    for (const std::int64_t rank : group.ranks) packer.put(rank);
  }
  packer.put(static_cast<std::int64_t>(card.channels.size()));
  for (const std::string& channel : card.channels) packer.put(channel);
  packer.put(static_cast<std::int64_t>(card.far_tags.size()));
  for (const std::int64_t tag : card.far_tags) packer.put(tag);
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

Card unpack_card(std::vector<std::byte> bytes) {
  Unpacker from(std::move(bytes));
  Card card;
  for (std::int64_t k = from.number(); k > 0; --k) card.problems.push_back(unpack_problem(from));
  for (std::int64_t k = from.number(); k > 0; --k) {
    Group& group = card.groups.emplace_back(Group{.channel = from.text()});
    for (std::int64_t r = from.number(); r > 0; --r) group.ranks.push_back(from.number());
  }
  for (std::int64_t k = from.number(); k > 0; --k) card.channels.insert(from.text());
  for (std::int64_t k = from.number(); k > 0; --k) card.far_tags.insert(from.number());
  return card;
}

// All that any rank named, the same on all ranks.
Card united(const std::vector<Card>& cards) {
  Card all;
  std::set<Group> groups;
  for (const Card& card : cards) {
    if (all.problems.empty()) all.problems = card.problems;
    groups.insert(card.groups.begin(), card.groups.end());
    all.channels.insert(card.channels.begin(), card.channels.end());
    all.far_tags.insert(card.far_tags.begin(), card.far_tags.end());
  }
  all.groups.assign(groups.begin(), groups.end());
  return all;
}

// Groups without a common rank are made in one round. Each goes into the first round that has room.
std::vector<std::vector<const Group*>> rounds_of(const std::vector<Group>& groups) {
  std::vector<std::vector<const Group*>> rounds;
  std::vector<std::set<std::int64_t>> taken;
  for (const Group& group : groups) {
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

std::string name_of(const Group& group) {
  return fmt::format(
      "{}{}{}",
      fmt::join(std::span(group.ranks).first(std::min<std::size_t>(4, group.ranks.size())), ","),
      group.ranks.size() > 4 ? ",.." : "", group.channel.empty() ? "" : "/" + group.channel);
}

// The one of this round in which the rank is, if any.
std::unique_ptr<comm::Communicator> make_round(comm::Communicator& world,
                                               const std::vector<const Group*>& round,
                                               const Group** own) {
  int colour = static_cast<int>(round.size());  // of those that are in none
  std::ptrdiff_t key = world.rank();
  for (std::size_t k = 0; k < round.size(); ++k) {
    const std::vector<std::int64_t>& ranks = round[k]->ranks;
    const auto place = std::ranges::find(ranks, world.rank());
    if (place == ranks.end()) continue;
    colour = static_cast<int>(k);
    key = place - ranks.begin();
    *own = round[k];
  }
  return world.split(colour, static_cast<int>(key), *own == nullptr ? "none" : name_of(**own));
}

void make_groups(comm::Communicator& world, const std::vector<Group>& own,
                 const std::vector<Group>& all, Links& links) {
  links.groups.resize(own.size());
  for (const std::vector<const Group*>& round : rounds_of(all)) {
    const Group* mine = nullptr;
    auto made = make_round(world, round, &mine);
    const auto named = mine == nullptr ? own.end() : std::ranges::find(own, *mine);
    if (named == own.end()) {
      links.others.push_back(std::move(made));
    } else {
      links.groups[named - own.begin()] = std::move(made);
    }
  }
}

void check_tags(const Card& all, int rank) {
  if (std::ssize(all.far_tags) <= comm::Communicator::kLargestTag + 1 - kNearTags) return;
  throw InputError(Diagnostic{
      .code = "D642",
      .where = {.rank = rank},
      .what = fmt::format("the messages of this plan have {} different tags below 0 or from {} on",
                          all.far_tags.size(), kNearTags),
      .why = fmt::format("run can tell {} of them apart",
                         comm::Communicator::kLargestTag + 1 - kNearTags),
      .help = "let tags begin at 0"});
}

}  // namespace

const std::string* message_channel(const plan::flat::Operation& op) {
  if (const auto* const send = std::get_if<plan::Send>(&op.source->action)) return &send->channel;
  if (const auto* const receive = std::get_if<plan::Receive>(&op.source->action)) {
    return &receive->channel;
  }
  return nullptr;
}

Links connect(comm::Communicator& world, const plan::RankProgram& program,
              const std::vector<Diagnostic>& problems) {
  const Card own = card_of(program, problems);
  std::vector<Card> cards;
  for (std::vector<std::byte>& bytes : gather_bytes(world, pack(own))) {
    cards.push_back(unpack_card(std::move(bytes)));
  }
  const Card all = united(cards);
  if (!own.problems.empty()) throw InputError(own.problems);
  if (!all.problems.empty()) throw InputError(all.problems);
  check_tags(all, world.rank());
  Links links;
  make_groups(world, own.groups, all.groups, links);
  for (const std::string& channel : all.channels) {
    links.channels[channel] = world.channel(channel.empty() ? "messages" : channel);
  }
  int next = static_cast<int>(kNearTags);
  for (const std::int64_t tag : all.far_tags) links.far_tags[tag] = next++;
  return links;
}

}  // namespace shiplap::run
