// The text of ncclras is written for people, so it says as little as possible: a communicator is
// listed only if its ranks differ, and of its ranks only the few that are unlike the others. JSON
// has all ranks. Both become the same states: groups of ranks of which RAS says the same, where
// not all are the same.
//
//   Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
//       #  in group  per comm  per node  per comm  in group
//       0         1         4         8        32        32   RUNNING  MISMATCH
//   ..
//   #0-0 (27a079b828ff1a75) MISMATCH              (communicator 0 of group 0)
//     Communicator ranks have different AllReduce operation counts
//     31 ranks have launched up to operation 6650
//     Rank 2 has launched up to operation 6649 -- GPU 2 managed by process 74 on node 10.0.0.1
//
// Versions differ in a few lines. Before 2.26 one counter counts operations of all kinds, ranks
// without data have a number but no process, and NOCOMM is UNKNOWN.
#include "shiplap/dump/nccl_ras.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/dump/document.h"

namespace shiplap::dump {
namespace {

constexpr std::string_view kCommunicators = "Communicators...";
constexpr std::string_view kSummary = "Job summary";
constexpr std::string_view kGroups = "#  in group";
constexpr std::string_view kWarnings = "Warnings";
// Of ranks, processes and GPUs: a text with more is damaged, and sums of counts must not overflow.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 20;

std::string_view without_blanks(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r\n");
  if (first == line.npos) return "";
  return line.substr(first, line.find_last_not_of(" \t\r\n") - first + 1);
}

// Whether a line begins with a heading, after blanks.
bool has_line(std::string_view text, std::string_view heading) {
  for (std::size_t at = text.find(heading); at != text.npos; at = text.find(heading, at + 1)) {
    const std::size_t before = text.substr(0, at).find_last_not_of(" \t\r");
    if (before == text.npos || text[before] == '\n') return true;
  }
  return false;
}

// Removes a number from the front of a text.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// A line that begins with a pattern, in which % stands for a number.
struct Match {
  std::array<std::int64_t, 2> numbers{};
  std::string_view rest;
};

std::optional<Match> match(std::string_view line, std::string_view pattern) {
  Match found;
  std::size_t count = 0;
  for (const char c : pattern) {
    if (c == '%') {
      const std::optional<std::int64_t> number = take_number(line);
      if (!number || count == found.numbers.size()) return {};
      found.numbers[count++] = *number;
    } else {
      if (line.empty() || line.front() != c) return {};
      line.remove_prefix(1);
    }
  }
  found.rest = line;
  return found;
}

// The hash of a communicator as in texts: 16 digits.
std::string padded_hash(std::string_view hash) {
  if (hash.starts_with("0x")) hash.remove_prefix(2);
  return fmt::format("{:0>16}", hash);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    if (end > 0) words.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

std::optional<std::int64_t> number_of(std::string_view word) {
  const std::optional<std::int64_t> number = take_number(word);
  return word.empty() ? number : std::nullopt;
}

std::int64_t count_of(std::string_view word) {
  return std::min(kMaxCount, number_of(word).value_or(0));
}

// The headings that every output has once, in this order; 0: another line.
int part_of(std::string_view line) {
  const bool is_version = line.starts_with("NCCL version ");
  if (is_version && line.find(" compiled with ") != line.npos) return 1;
  if (line.starts_with(kSummary)) return 2;
  return line.starts_with(kCommunicators) ? 3 : 0;
}

// Divides a file before each heading that belongs to the next output.
std::vector<std::string_view> split_outputs(std::string_view text) {
  std::vector<std::string_view> outputs;
  std::size_t first = 0;
  int last_part = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const int part = part_of(without_blanks(text.substr(at, end - at)));
    if (part > 0 && part <= last_part) {
      outputs.push_back(text.substr(first, at - first));
      first = at;
    }
    if (part > 0) last_part = part;
    at = end;
  }
  outputs.push_back(text.substr(first));
  return outputs;
}

// " -- GPU 3 managed by process 1483 on node 10.0.0.4"
RasProcess parse_process(std::string_view text) {
  constexpr std::string_view kGpu = " -- GPU ";
  constexpr std::string_view kProcess = " managed by process ";
  const std::size_t middle = text.find(kProcess);
  if (!text.starts_with(kGpu) || middle == text.npos) return {};
  const std::optional<Match> found = match(text.substr(middle), " managed by process % on node ");
  if (!found) return {};
  return {.node = std::string(found->rest),
          .pid = found->numbers[0],
          .gpu = std::string(text.substr(kGpu.size(), middle - kGpu.size()))};
}

class RasTextReader {
 public:
  RasReport read(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      // The last line may lack its last digits.
      if (end == text.npos) break;
      add(without_blanks(text.substr(0, end)));
      text.remove_prefix(end + 1);
    }
    report_.truncated = !text.empty() || !complete_;
    return std::move(report_);
  }

 private:
  // What the lines that follow are about.
  enum class Section : std::uint8_t { none, summary, groups, silent, dead, communicator };

  void add(std::string_view line) {
    if (line.empty()) {
      if (section_ != Section::communicator) section_ = Section::none;
      return;
    }
    if (read_heading(line)) return;
    switch (section_) {
      case Section::none:
        return;
      case Section::summary:
        return read_summary(line);
      case Section::groups:
        return read_group(line);
      case Section::silent:
      case Section::dead:
        return read_processes(line);
      case Section::communicator:
        return read_state(line);
    }
  }

  bool read_heading(std::string_view line) {
    if (const auto version = match(line, "NCCL version ")) {
      report_.version = version->rest.substr(0, version->rest.find(' '));
    } else if (line.starts_with("(total) ")) {
      section_ = Section::summary;
    } else if (line.starts_with(kGroups)) {
      section_ = Section::groups;
    } else if (line == "INCOMPLETE") {
      section_ = Section::silent;
    } else if (line == "DEAD") {
      section_ = Section::dead;
    } else if (line == kWarnings) {
      section_ = Section::none;
      complete_ = true;
    } else if (const auto communicator = match(line, "#%-% (")) {
      open_communicator(line.substr(0, line.find(' ')), *communicator);
    } else {
      return false;
    }
    return true;
  }

  // "4  8  1  32  32", or "4  32  32" if nodes differ: the last number is that of the GPUs.
  void read_summary(std::string_view line) {
    const std::vector<std::string_view> words = words_of(line);
    if (words.size() != 5 && words.size() != 3) return;
    report_.gpus = count_of(words.back());
    section_ = Section::none;
  }

  void read_group(std::string_view line) {
    const std::vector<std::string_view> words = words_of(line);
    const bool is_row = words.size() == 8 && number_of(words[0]) == std::ssize(report_.groups);
    if (!is_row) return;
    report_.groups.push_back({.communicators = count_of(words[1]),
                              .size = count_of(words[4]),
                              .status = std::string(words[6]),
                              .errors = std::string(words[7])});
  }

  void read_processes(std::string_view line) {
    const bool is_dead = section_ == Section::dead;
    if (const auto missing = match(line, "Missing communicator data from % job process")) {
      report_.silent_count = std::min(kMaxCount, missing->numbers[0]);
    } else if (const auto dead = match(line, "% job process")) {
      report_.dead_count = std::min(kMaxCount, dead->numbers[0]);
    } else if (const auto process = match(line, "Process % on node ")) {
      const std::size_t end = process->rest.find(" managing GPU");
      if (end == line.npos) return;
      std::string_view gpus = process->rest.substr(end + 13);
      gpus.remove_prefix(std::min(gpus.find(' ') + 1, gpus.size()));  // "s "
      (is_dead ? report_.dead : report_.silent)
          .push_back({.node = std::string(process->rest.substr(0, end)),
                      .pid = process->numbers[0],
                      .gpu = std::string(gpus)});
    }
  }

  // "#0-1 (27a079b828ff1a75) MISMATCH": there may be several sections of a communicator.
  void open_communicator(std::string_view name, const Match& found) {
    section_ = Section::communicator;
    state_ = nullptr;
    operation_.clear();
    moment_.clear();
    const std::size_t close = found.rest.find(')');
    const std::string hash = padded_hash(found.rest.substr(0, close));
    std::vector<RasCommunicator>& all = report_.communicators;
    const auto [known, is_new] = known_.try_emplace({std::string(name), hash}, all.size());
    communicator_ = known->second;
    if (!is_new) return;
    const auto group = static_cast<std::size_t>(found.numbers[0]);
    all.push_back({.name = std::string(name),
                   .hash = hash,
                   .size = group < report_.groups.size() ? report_.groups[group].size : 0,
                   .states = {},
                   .members = {}});
  }

  RasCommunicator& communicator() { return report_.communicators[communicator_]; }

  void open_state(RasState::Kind kind, std::string_view what, std::int64_t operations,
                  std::int64_t count) {
    communicator().states.push_back({.kind = kind,
                                     .what = std::string(what),
                                     .operations = operations,
                                     .count = std::min(kMaxCount, count),
                                     .members = {}});
    state_ = &communicator().states.back();
  }

  void add_member(std::int64_t rank, std::string_view process) {
    if (state_ == nullptr || rank > INT32_MAX || std::ssize(state_->members) >= state_->count) {
      return;
    }
    const RasMember member{.rank = static_cast<std::int32_t>(rank),
                           .process = parse_process(process)};
    state_->members.push_back(member);
    communicator().members.push_back(member);
  }

  // "1,5,7"
  void add_members(std::string_view list) {
    while (const std::optional<std::int64_t> rank = take_number(list)) {
      add_member(*rank, "");
      list.remove_prefix(std::min<std::size_t>(1, list.size()));
    }
  }

  void read_state(std::string_view line) {
    using Kind = RasState::Kind;
    constexpr std::string_view kDifferent = "Communicator ranks have different ";
    constexpr std::string_view kCounts = " operation counts";
    if (line.starts_with(kDifferent)) {
      const std::string_view what = line.substr(kDifferent.size());
      state_ = nullptr;
      operation_ = what.ends_with(kCounts) ? what.substr(0, what.size() - kCounts.size()) : "";
      if (operation_ == "collective") operation_.clear();
    } else if (line.starts_with("Initialization error")) {
      moment_ = " during initialization";
    } else if (line.starts_with("Asynchronous error")) {
      moment_.clear();
    } else if (const auto missing = match(line, "Missing communicator data from % rank")) {
      open_state(Kind::missing, "", 0, missing->numbers[0]);
    } else if (const auto launched = match(line, "% ranks have launched up to operation %")) {
      open_state(Kind::operations, operation_, launched->numbers[1], launched->numbers[0]);
    } else if (const auto none = match(line, "% ranks have not launched any operations")) {
      open_state(Kind::operations, operation_, 0, none->numbers[0]);
    } else if (const auto status = match(line, "% ranks have status ")) {
      open_state(Kind::status, status->rest, 0, status->numbers[0]);
    } else if (const auto errors = match(line, "% ranks reported ")) {
      open_state(Kind::error, std::string(errors->rest) + moment_, 0, errors->numbers[0]);
    } else {
      read_rank(line);
    }
  }

  // A rank of the state that is open, or one that is alone in its state.
  void read_rank(std::string_view line) {
    using Kind = RasState::Kind;
    if (const auto ranks = match(line, "The missing ranks: ")) return add_members(ranks->rest);
    if (const auto rank = match(line, "The missing rank: ")) return add_members(rank->rest);
    if (const auto ranks = match(line, "The unknown ranks: ")) return add_members(ranks->rest);
    const auto found = match(line, "Rank %");
    if (!found) return;
    const std::size_t end = std::min(found->rest.find(" -- "), found->rest.size());
    const std::string_view says = found->rest.substr(0, end);
    if (const auto launched = match(says, " has launched up to operation %")) {
      open_state(Kind::operations, operation_, launched->numbers[0], 1);
    } else if (says == " has not launched any operations") {
      open_state(Kind::operations, operation_, 0, 1);
    } else if (const auto status = match(says, " has status ")) {
      open_state(Kind::status, status->rest, 0, 1);
    } else if (const auto error = match(says, " reported ")) {
      open_state(Kind::error, std::string(error->rest) + moment_, 0, 1);
    } else if (!says.empty()) {
      return;
    }
    add_member(found->numbers[0], found->rest.substr(end));
  }

  RasReport report_;
  Section section_ = Section::none;
  std::map<std::pair<std::string, std::string>, std::size_t> known_;  // by name and hash
  std::size_t communicator_ = 0;
  RasState* state_ = nullptr;  // of the open communicator
  std::string operation_;
  std::string moment_;  // of errors
  bool complete_ = false;
};

// --------------------------------------------------------------------------- JSON

std::string error_name(std::int64_t code) {
  switch (code) {
    case 1:
      return "Unhandled CUDA error";
    case 2:
      return "System error";
    case 3:
      return "Internal error";
    case 4:
      return "Invalid argument";
    case 5:
      return "Invalid usage";
    case 6:
      return "Remote process error";
    default:
      return fmt::format("error {}", code);
  }
}

constexpr std::int64_t kInProgress = 7;
bool is_error(std::int64_t code) { return code != 0 && code != kInProgress; }

RasMember parse_member(const Node& rank) {
  const std::int64_t number = rank.find("rank").integer_or(-1);
  const bool is_rank = number >= 0 && number <= INT32_MAX;
  RasMember member{.rank = is_rank ? static_cast<std::int32_t>(number) : -1,
                   .process = {.node = std::string(rank.find("host").text()),
                               .pid = rank.find("pid").integer_or(-1),
                               .gpu = {}}};
  const std::int64_t cuda = rank.find("cuda_dev").integer_or(-1);
  const std::int64_t nvml = rank.find("nvml_dev").integer_or(cuda);
  member.process.gpu =
      cuda == nvml ? fmt::format("{}", cuda) : fmt::format("{} (NVML {})", cuda, nvml);
  if (member.process.node == "unknown") member.process.pid = -1;
  return member;
}

std::string_view status_of(const Node& status) {
  if (status.find("abort_flag").boolean_or(false)) return "ABORT";
  const bool finalizes = status.find("finalize_called").boolean_or(false) ||
                         status.find("destroy_flag").boolean_or(false);
  if (finalizes) return "FINALIZE";
  return status.find("init_state").integer_or(0) == 0 ? "RUNNING" : "INIT";
}

class RasJsonReader {
 public:
  RasReport read(const Document& document) {
    const Node& root = document.root;
    report_.version = root.find("nccl_version").text();
    report_.time = root.find("timestamp").text();
    report_.truncated = document.truncated;
    const auto items = root.find("communicators").items();
    for (std::size_t k = 0; k < items.size(); ++k) {
      read_communicator(items[k], document.truncated && k + 1 == items.size());
    }
    std::ranges::stable_sort(report_.communicators, std::ranges::greater{}, &RasCommunicator::size);
    find_gpus();
    return std::move(report_);
  }

 private:
  using States = std::map<std::pair<std::string, std::int64_t>, RasState>;

  static void add(States& states, RasState::Kind kind, std::string what, std::int64_t operations,
                  const RasMember& member) {
    RasState& state = states[{what, operations}];
    state.kind = kind;
    state.what = std::move(what);
    state.operations = operations;
    ++state.count;
    state.members.push_back(member);
  }

  // The last rank of a file that ends early may lack members.
  static std::span<const Node> ranks_of(const Node& list, bool ends_early) {
    const std::span<const Node> ranks = list.items();
    return ends_early && !ranks.empty() ? ranks.first(ranks.size() - 1) : ranks;
  }

  void read_communicator(const Node& node, bool ends_early) {
    RasCommunicator communicator{
        .hash = padded_hash(node.find("hash").text()),
        .size = std::clamp(node.find("size").integer_or(0), std::int64_t{0}, kMaxCount),
        .states = {},
        .members = {}};
    States statuses;
    States errors;
    States missing;
    std::map<std::string, States> operations;
    const Node lost = node.find("missing_ranks");
    for (const Node& rank : ranks_of(node.find("ranks"), ends_early && lost.items().empty())) {
      const RasMember member = parse_member(rank);
      communicator.members.push_back(member);
      const Node status = rank.find("status");
      add(statuses, RasState::Kind::status, std::string(status_of(status)), 0, member);
      const std::int64_t init = status.find("init_state").integer_or(0);
      const std::int64_t error = status.find("async_error").integer_or(0);
      if (is_error(init)) {
        add(errors, RasState::Kind::error, error_name(init) + " during initialization", 0, member);
      } else if (is_error(error)) {
        add(errors, RasState::Kind::error, error_name(error), 0, member);
      }
      const Node counts = rank.find("collective_counts");
      for (std::size_t k = 0; k + 1 < counts.items().size(); k += 2) {
        const std::string what(counts.items()[k].text());
        const std::int64_t count = std::max<std::int64_t>(0, counts.items()[k + 1].integer_or(0));
        add(operations[what], RasState::Kind::operations, what, count, member);
        communicator.launched = launched_sum(communicator.launched, count);
      }
    }
    for (const Node& rank : ranks_of(lost, ends_early)) {
      read_missing(rank, communicator, statuses, missing);
    }
    keep(missing, communicator, 1);
    keep(errors, communicator, 1);
    keep(statuses, communicator, 2);
    for (auto& [what, states] : operations) keep(states, communicator, 2);
    report_.communicators.push_back(std::move(communicator));
  }

  static std::int64_t launched_sum(std::int64_t sum, std::int64_t count) {
    const auto total = static_cast<std::uint64_t>(std::max<std::int64_t>(sum, 0)) +
                       static_cast<std::uint64_t>(count);
    return static_cast<std::int64_t>(total & INT64_MAX);
  }

  void read_missing(const Node& rank, RasCommunicator& communicator, States& statuses,
                    States& missing) {
    const RasMember member = parse_member(rank);
    communicator.members.push_back(member);
    const Node status = rank.find("status");
    const bool is_dead = status.find("considered_dead").boolean_or(false);
    if (!is_dead && !status.find("unresponsive").boolean_or(false)) {
      return add(statuses, RasState::Kind::status, "NOCOMM", 0, member);
    }
    add(missing, RasState::Kind::missing, "", 0, member);
    std::vector<RasProcess>& list = is_dead ? report_.dead : report_.silent;
    if (!missing_.emplace(member.process.node, member.process.pid).second) return;
    list.push_back(member.process);
    ++(is_dead ? report_.dead_count : report_.silent_count);
  }

  // The states, if there are at least `min` different ones; the most frequent first, as in a text.
  static void keep(States& states, RasCommunicator& communicator, std::size_t min) {
    if (states.size() < min) return;
    std::vector<RasState> sorted;
    for (auto& [key, state] : states) sorted.push_back(std::move(state));
    std::ranges::stable_sort(sorted, std::ranges::greater{}, [](const RasState& state) {
      return std::pair(state.count, state.operations);
    });
    std::ranges::move(sorted, std::back_inserter(communicator.states));
  }

  // JSON has no summary: the GPUs are those of all communicators together. Missing ranks may all
  // be on an unknown host, and a communicator has one GPU for each rank.
  void find_gpus() {
    std::vector<RasProcess> all;
    for (const RasCommunicator& communicator : report_.communicators) {
      for (const RasMember& member : communicator.members) all.push_back(member.process);
    }
    std::ranges::sort(all);
    const auto repeated = std::ranges::unique(all);
    report_.gpus = std::ssize(all) - std::ssize(repeated);
    for (const RasCommunicator& communicator : report_.communicators) {
      report_.gpus = std::max(report_.gpus, communicator.size);
    }
  }

  RasReport report_;
  std::set<std::pair<std::string, std::int64_t>> missing_;  // processes
};

}  // namespace

bool is_nccl_ras(std::string_view bytes) {
  if (bytes.starts_with('\x80')) return false;
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == bytes.npos) return false;
  constexpr std::size_t kHead = 1'000;
  if (bytes[first] == '{') {
    return bytes.substr(first, kHead).find("\"communicators_count\"") != bytes.npos;
  }
  return has_line(bytes, kCommunicators) && (has_line(bytes, kSummary) || has_line(bytes, kGroups));
}

std::vector<RasReport> read_nccl_ras(std::string_view bytes, std::string_view file) {
  std::vector<RasReport> reports;
  if (bytes[bytes.find_first_not_of(" \t\r\n")] == '{') {
    Document document;
    document.expected = "an output of `ncclras -f json`";
    parse_document(bytes, file, document);
    reports.push_back(RasJsonReader().read(document));
  } else {
    for (const std::string_view text : split_outputs(bytes)) {
      reports.push_back(RasTextReader().read(text));
    }
  }
  for (RasReport& report : reports) report.file = file;
  return reports;
}

}  // namespace shiplap::dump
