#include "shiplap/run/same_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/version.h"
#include "shiplap/plan/text.h"
#include "shiplap/run/packing_internal.h"

namespace shiplap::run {
namespace {

constexpr std::size_t kMaxShown = 72;  // bytes of a value in a message
constexpr std::size_t kMaxNamed = 6;   // ranks

std::int64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return static_cast<std::int64_t>(hash);
}

using Hashes = std::map<std::string, std::int64_t>;  // by the name of a fact

std::vector<Hashes> gather_hashes(comm::Communicator& world, const std::vector<JobFact>& facts) {
  Packer packer;
  packer.put(std::ssize(facts));
  for (const JobFact& fact : facts) {
    packer.put(fact.name);
    packer.put(hash_of(fact.value));
  }
  std::vector<Hashes> by_rank;
  for (std::vector<std::byte>& bytes : gather_bytes(world, packer.take())) {
    Unpacker from(std::move(bytes));
    Hashes& hashes = by_rank.emplace_back();
    for (std::int64_t k = from.number(); k > 0; --k) {
      std::string name = from.text();
      hashes[std::move(name)] = from.number();
    }
  }
  return by_rank;
}

// Who has something else than most have.
struct Difference {
  std::string name;
  std::size_t usual = 0;    // the first rank that has what most have
  std::vector<int> others;  // ranks that have not
};

std::optional<Difference> difference_in(const std::string& name,
                                        const std::vector<Hashes>& by_rank) {
  const auto hash = [&](std::size_t rank) {
    const auto found = by_rank[rank].find(name);
    return found == by_rank[rank].end() ? std::nullopt : std::optional(found->second);
  };
  std::map<std::optional<std::int64_t>, std::size_t> votes;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) ++votes[hash(rank)];
  if (votes.size() == 1) return std::nullopt;
  Difference difference{.name = name};
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (votes[hash(rank)] > votes[hash(difference.usual)]) difference.usual = rank;
  }
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (hash(rank) != hash(difference.usual)) difference.others.push_back(static_cast<int>(rank));
  }
  return difference;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string shown(std::string_view line) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  line.remove_prefix(begin);
  if (line.empty()) return "nothing";
  const bool is_long = line.size() > kMaxShown;
  return fmt::format("`{}{}`", line.substr(0, kMaxShown), is_long ? ".." : "");
}

// "line 3: `repeat 8`, where most have `repeat 4`".
std::string compared(std::string_view odd, std::string_view usual) {
  const std::vector<std::string_view> here = lines_of(odd);
  const std::vector<std::string_view> there = lines_of(usual);
  const auto [a, b] = std::ranges::mismatch(here, there);
  const auto line = a - here.begin() + 1;
  const std::string where =
      here.size() > 1 || there.size() > 1 ? fmt::format("line {}: ", line) : "";
  return fmt::format("{}{}, where others have {}", where, shown(a == here.end() ? "" : *a),
                     shown(b == there.end() ? "" : *b));
}

// Only two ranks send theirs.
[[noreturn]] void refuse(comm::Communicator& world, const std::vector<JobFact>& facts,
                         const Difference& difference, std::size_t more) {
  const auto odd = static_cast<std::size_t>(difference.others.front());
  const auto own = static_cast<std::size_t>(world.rank());
  Packer packer;
  if (own == odd || own == difference.usual) {
    const auto fact = std::ranges::find(facts, difference.name, &JobFact::name);
    packer.put(fact == facts.end() ? "" : fact->value);
  }
  std::vector<std::vector<std::byte>> values = gather_bytes(world, packer.take());
  const std::string here = Unpacker(std::move(values[odd])).text();
  const std::string there = Unpacker(std::move(values[difference.usual])).text();
  std::vector<int> named;
  for (const int rank : difference.others) {
    if (named.size() < kMaxNamed) named.push_back(world.world_rank(rank));
  }
  const bool several = difference.others.size() > 1;
  const std::string rest =
      difference.others.size() > named.size()
          ? fmt::format(" and {} more", difference.others.size() - named.size())
          : "";
  throw InputError(Diagnostic{
      .code = "D644",
      .where = {.rank = named.front()},
      .what = fmt::format("rank{} {}{} of this job differ{} from the others in {}{}",
                          several ? "s" : "", fmt::join(named, ", "), rest, several ? "" : "s",
                          difference.name, more > 0 ? fmt::format(" (and in {} more)", more) : ""),
      .why = fmt::format("rank {} has {}", named.front(), compared(here, there)),
      .help = "start all ranks with the same files, flags and version"});
}

}  // namespace

JobFact plan_fact(const plan::Plan& plan) {
  return {.name = "the plan", .value = plan::to_text(plan)};
}

std::string fingerprint(const plan::Plan& plan) {
  return fmt::format("{:016x}", static_cast<std::uint64_t>(hash_of(plan::to_text(plan))));
}

void require_same_job(comm::Communicator& world, std::vector<JobFact> facts) {
  facts.insert(facts.begin(), {.name = "the version of Shiplap", .value = std::string(version())});
  const std::vector<Hashes> by_rank = gather_hashes(world, facts);
  Hashes names;  // of all ranks
  for (const Hashes& hashes : by_rank) names.insert(hashes.begin(), hashes.end());
  std::vector<Difference> differences;
  const auto look = [&](const std::string& name) {
    if (auto found = difference_in(name, by_rank)) differences.push_back(std::move(*found));
    names.erase(name);
  };
  // In the order of the first rank, which is the same list on all.
  look("the version of Shiplap");
  look("the plan");
  while (!names.empty()) look(std::string(names.begin()->first));
  if (differences.empty()) return;
  refuse(world, facts, differences.front(), differences.size() - 1);
}

}  // namespace shiplap::run
