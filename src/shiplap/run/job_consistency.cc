#include "shiplap/run/job_consistency.h"

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

using SettingHashes = std::map<std::string, std::int64_t>;  // by name

std::vector<SettingHashes> gather_hashes(comm::Communicator& world,
                                         const std::vector<JobSetting>& settings) {
  Packer packer;
  packer.put(std::ssize(settings));
  for (const JobSetting& setting : settings) {
    packer.put(setting.name);
    packer.put(hash_of(setting.value));
  }
  std::vector<SettingHashes> by_rank;
  for (std::vector<std::byte>& bytes : gather_bytes(world, packer.take())) {
    Unpacker from(std::move(bytes));
    SettingHashes& hashes = by_rank.emplace_back();
    for (std::int64_t k = from.number(); k > 0; --k) {
      std::string name = from.text();
      hashes[std::move(name)] = from.number();
    }
  }
  return by_rank;
}

// The ranks whose value differs from that of the majority.
struct SettingDifference {
  std::string name;
  std::size_t majority = 0;   // the first rank with the most frequent value
  std::vector<int> outliers;  // ranks with another value
};

std::optional<SettingDifference> difference_in(const std::string& name,
                                               const std::vector<SettingHashes>& by_rank) {
  const auto hash = [&](std::size_t rank) {
    const auto found = by_rank[rank].find(name);
    return found == by_rank[rank].end() ? std::nullopt : std::optional(found->second);
  };
  std::map<std::optional<std::int64_t>, std::size_t> votes;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) ++votes[hash(rank)];
  if (votes.size() == 1) return std::nullopt;
  SettingDifference difference{.name = name};
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (votes[hash(rank)] > votes[hash(difference.majority)]) difference.majority = rank;
  }
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (hash(rank) != hash(difference.majority))
      difference.outliers.push_back(static_cast<int>(rank));
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

std::string quoted(std::string_view line) {
  const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
  line.remove_prefix(begin);
  if (line.empty()) return "nothing";
  const bool is_long = line.size() > kMaxShown;
  return fmt::format("`{}{}`", line.substr(0, kMaxShown), is_long ? ".." : "");
}

// "line 3: `repeat 8`, where others have `repeat 4`"
std::string describe_difference(std::string_view outlier, std::string_view majority) {
  const std::vector<std::string_view> here = lines_of(outlier);
  const std::vector<std::string_view> there = lines_of(majority);
  const auto [a, b] = std::ranges::mismatch(here, there);
  const auto line = a - here.begin() + 1;
  const std::string where =
      here.size() > 1 || there.size() > 1 ? fmt::format("line {}: ", line) : "";
  return fmt::format("{}{}, where others have {}", where, quoted(a == here.end() ? "" : *a),
                     quoted(b == there.end() ? "" : *b));
}

// Only two ranks send their values: the first outlier, and one of the majority.
[[noreturn]] void throw_mismatch(comm::Communicator& world, const std::vector<JobSetting>& settings,
                                 const SettingDifference& difference, std::size_t more) {
  const auto outlier = static_cast<std::size_t>(difference.outliers.front());
  const auto local = static_cast<std::size_t>(world.rank());
  Packer packer;
  if (local == outlier || local == difference.majority) {
    const auto setting = std::ranges::find(settings, difference.name, &JobSetting::name);
    packer.put(setting == settings.end() ? "" : setting->value);
  }
  std::vector<std::vector<std::byte>> values = gather_bytes(world, packer.take());
  const std::string here = Unpacker(std::move(values[outlier])).text();
  const std::string there = Unpacker(std::move(values[difference.majority])).text();
  std::vector<int> named;
  for (const int rank : difference.outliers) {
    if (named.size() < kMaxNamed) named.push_back(world.world_rank(rank));
  }
  const bool several = difference.outliers.size() > 1;
  const std::string rest =
      difference.outliers.size() > named.size()
          ? fmt::format(" and {} more", difference.outliers.size() - named.size())
          : "";
  throw InputError(Diagnostic{
      .code = "D644",
      .where = {.rank = named.front()},
      .what = fmt::format("rank{} {}{} of this job differ{} from the others in {}{}",
                          several ? "s" : "", fmt::join(named, ", "), rest, several ? "" : "s",
                          difference.name, more > 0 ? fmt::format(" (and in {} more)", more) : ""),
      .why = fmt::format("rank {} has {}", named.front(), describe_difference(here, there)),
      .help = "start all ranks with the same files, flags and version"});
}

}  // namespace

JobSetting plan_setting(const plan::Plan& plan) {
  return {.name = "the plan", .value = plan::to_text(plan)};
}

std::string fingerprint(const plan::Plan& plan) {
  return fmt::format("{:016x}", static_cast<std::uint64_t>(hash_of(plan::to_text(plan))));
}

void check_job_consistency(comm::Communicator& world, std::vector<JobSetting> settings) {
  settings.insert(settings.begin(),
                  {.name = "the version of Shiplap", .value = std::string(version())});
  const std::vector<SettingHashes> by_rank = gather_hashes(world, settings);
  SettingHashes names;  // of all ranks
  for (const SettingHashes& hashes : by_rank) names.insert(hashes.begin(), hashes.end());
  std::vector<SettingDifference> differences;
  const auto compare = [&](const std::string& name) {
    if (auto found = difference_in(name, by_rank)) differences.push_back(std::move(*found));
    names.erase(name);
  };
  // The same order on all ranks.
  compare("the version of Shiplap");
  compare("the plan");
  while (!names.empty()) compare(std::string(names.begin()->first));
  if (differences.empty()) return;
  throw_mismatch(world, settings, differences.front(), differences.size() - 1);
}

}  // namespace shiplap::run
