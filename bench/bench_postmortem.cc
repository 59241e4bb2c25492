// Benchmark of postmortem: how often the culprit of a hung job is named first, how long it takes,
// and what torchfrtrace says of the same jobs.
//
//   bench_postmortem [--json] [--jobs N] [--seed S] [--no-torch] [--failures]
//   bench_postmortem --score FOLDER [--failures]      only the jobs of a folder
//
// The jobs are those of data/hung_jobs: generated ones (generate.py, with python3) and real ones.
// --failures lists the jobs whose culprit is not first. SHIPLAP_TORCH_PYTHON names a Python with
// torch, for torchfrtrace.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/dump/read.h"
#include "shiplap/postmortem/postmortem.h"

namespace shiplap::postmortem {
namespace {

namespace fs = std::filesystem;
using Ranks = std::set<std::int32_t>;

struct Arguments {
  bool json = false;
  bool torch = true;
  bool failures = false;
  int jobs = 1000;
  int seed = 1;
  std::string score;
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string text_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

Ranks ranks_of(const Json& list) {
  Ranks ranks;
  for (const Json& rank : list.as_array())
    ranks.insert(static_cast<std::int32_t>(rank.as_integer()));
  return ranks;
}

// One fault of a job: the ranks to blame, and others that an expert would accept.
struct Fault {
  std::vector<Ranks> acceptable;
  std::string fault_class;
  std::string line;
};

struct Answer {
  bool hang = true;
  std::string kind;
  std::vector<Fault> faults;
};

Answer read_answer(const fs::path& file) {
  const Json json = parse_json(text_of(file), file.string());
  Answer answer{.hang = json.find("hang")->as_bool(), .kind = json.find("kind")->as_string()};
  for (const Json& one : json.find("faults")->as_array()) {
    Fault fault{.fault_class = one.find("class")->as_string()};
    fault.acceptable.push_back(ranks_of(*one.find("culprits")));
    if (const Json* more = one.find("acceptable"); more != nullptr && more->is_array()) {
      for (const Json& ranks : more->as_array()) {
        if (ranks.is_array()) fault.acceptable.push_back(ranks_of(ranks));
      }
    }
    if (const Json* line = one.find("line"); line != nullptr && line->is_string()) {
      fault.line = line->as_string();
    }
    answer.faults.push_back(std::move(fault));
  }
  return answer;
}

bool names_fault(const Suspect& suspect, const Fault& fault) {
  return std::ranges::any_of(fault.acceptable, [&](const Ranks& ranks) {
    return !ranks.empty() &&
           std::ranges::includes(ranks, Ranks(suspect.ranks.begin(), suspect.ranks.end()));
  });
}

std::string line_of(const CallSite& site) {
  if (site.frame.file.empty()) return "";
  return fmt::format("{}:{}", fs::path(site.frame.file).filename().string(), site.frame.line);
}

struct Score {
  int jobs = 0;
  int first = 0;
  int among_three = 0;
  int class_right = 0;  // of those with the culprit first
  int with_line = 0;
  int line_right = 0;
  int blamed = 0;  // healthy jobs in which somebody is called a culprit
  int proved = 0;  // hung jobs whose hang is proved
  int healthy = 0;
  int slow = 0;  // jobs with a slow rank
  int slow_named = 0;
  int called_slow = 0;                                 // though it is not
  std::map<std::string, std::pair<int, int>> by_kind;  // right, all
  double seconds = 0;
};

void show(const std::string& job, const Answer& answer, const Postmortem& result) {
  fmt::print(stderr, "{} ({})", job, answer.kind);
  for (const Fault& fault : answer.faults) {
    fmt::print(stderr, " expected {}:", fault.fault_class);
    for (const Ranks& ranks : fault.acceptable) {
      fmt::print(stderr, " [");
      for (const std::int32_t rank : ranks) fmt::print(stderr, "{} ", rank);
      fmt::print(stderr, "]");
    }
  }
  fmt::print(stderr, "\n");
  for (std::size_t k = 0; k < result.suspects.size() && k < 3; ++k) {
    const Suspect& suspect = result.suspects[k];
    fmt::print(stderr, "    {:.2f} {} {}: {}\n", suspect.confidence, name(suspect.fault),
               name(suspect.divergence), suspect.what);
  }
}

// A checkout has no file times, and they are evidence.
void restore_times(const fs::path& job) {
  const Json json = parse_json(text_of(job / "answer.json"), "answer.json");
  const Json* written = json.find("dumped_at_ns");
  if (written == nullptr || !written->is_object()) return;
  for (const auto& [name, time] : written->as_object()) {
    const fs::path file = job / "dumps" / name;
    if (!fs::exists(file) || !time.is_integer()) continue;
    const struct timespec stamp{.tv_sec = time.as_integer() / 1'000'000'000,
                                .tv_nsec = time.as_integer() % 1'000'000'000};
    const std::array<struct timespec, 2> stamps{stamp, stamp};
    ::utimensat(AT_FDCWD, file.c_str(), stamps.data(), 0);
  }
}

void score_job(const fs::path& job, bool failures, Score& score) {
  const Answer answer = read_answer(job / "answer.json");
  restore_times(job);
  const auto begin = std::chrono::steady_clock::now();
  Postmortem result;
  try {
    std::vector<std::string> folders{(job / "dumps").string()};
    if (fs::exists(job / "stacks")) folders.push_back((job / "stacks").string());
    result = diagnose(dump::read_job(folders), {});
  } catch (const InputError& error) {
    fmt::print(stderr, "{}: {}\n", job.string(), error.what());
  }
  score.seconds += seconds_since(begin);
  if (!answer.hang) {
    ++score.healthy;
    score.slow += answer.kind == "slow_rank" ? 1 : 0;
    const bool calls_slow = result.status == HangStatus::slow;
    const bool named = calls_slow && names_fault(result.suspects.front(), answer.faults.front());
    score.called_slow += calls_slow && !named ? 1 : 0;
    score.slow_named += named ? 1 : 0;
    auto& [right, all] = score.by_kind[answer.kind];
    ++all;
    if (result.found_culprit()) {
      ++score.blamed;
      if (failures) show(job.string(), answer, result);
    } else {
      ++right;
    }
    return;
  }
  ++score.jobs;
  bool first = false;
  bool among_three = false;
  const Fault* named = nullptr;
  for (std::size_t k = 0; k < result.suspects.size() && k < 3; ++k) {
    for (const Fault& fault : answer.faults) {
      if (!names_fault(result.suspects[k], fault)) continue;
      among_three = true;
      if (k == 0 && named == nullptr) named = &fault;
      first |= k == 0;
    }
  }
  score.first += first ? 1 : 0;
  score.among_three += among_three ? 1 : 0;
  score.proved += result.status == HangStatus::hung ? 1 : 0;
  auto& [right, all] = score.by_kind[answer.kind];
  ++all;
  if (first) {
    ++right;
    if (named->fault_class == name(result.suspects.front().fault)) ++score.class_right;
    if (!named->line.empty() && !line_of(result.suspects.front().at).empty()) {
      ++score.with_line;
      const Suspect& suspect = result.suspects.front();
      if (line_of(suspect.at) == named->line || line_of(suspect.expected) == named->line) {
        ++score.line_right;
      }
    }
  } else if (failures) {
    show(job.string(), answer, result);
  }
}

Score score_folder(const fs::path& folder, bool failures) {
  std::vector<fs::path> jobs;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / "answer.json")) jobs.push_back(entry.path());
  }
  std::ranges::sort(jobs);
  Score score;
  for (const fs::path& job : jobs) score_job(job, failures, score);
  return score;
}

void print(const std::string& title, const Score& score) {
  fmt::print(
      "{}: {} hung jobs, culprit first {}, among three {}, class {}, line {} of {}, hang proved "
      "{}; {} healthy, blamed {}; {:.2f} s\n",
      title, score.jobs, score.first, score.among_three, score.class_right, score.line_right,
      score.with_line, score.proved, score.healthy, score.blamed, score.seconds);
  for (const auto& [kind, counts] : score.by_kind) {
    if (counts.first < counts.second) {
      fmt::print("  {}: {} of {}\n", kind, counts.first, counts.second);
    }
  }
}

bool succeeds(const std::string& command) {
  return std::system(command.c_str()) == 0;  // NOLINT: the commands are ours
}

fs::path generator() { return fs::path(SHIPLAP_SOURCE) / "data/hung_jobs"; }

void generate(const fs::path& out, const std::string& arguments) {
  const std::string command =
      fmt::format("python3 {} --out {} {} > {}.log 2>&1", (generator() / "generate.py").string(),
                  out.string(), arguments, out.string());
  if (!succeeds(command)) throw std::runtime_error("generate.py failed: " + command);
}

double ratio(int part, int all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

// Seconds to read and diagnose, and the bytes read.
struct Timing {
  double read = 0;
  double diagnose = 0;
  double only_bytes = 0;
  double bytes = 0;
};

Timing time_job(const fs::path& folder) {
  fs::path dumps;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / "dumps")) dumps = entry.path() / "dumps";
  }
  Timing timing;
  for (int round = 0; round < 2; ++round) {  // the second with the files in memory
    timing.bytes = 0;
    auto begin = std::chrono::steady_clock::now();
    std::string buffer;
    for (const fs::directory_entry& entry : fs::directory_iterator(dumps)) {
      buffer.resize(entry.file_size());
      const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      timing.bytes += static_cast<double>(::read(file, buffer.data(), buffer.size()));
      ::close(file);
    }
    timing.only_bytes = seconds_since(begin);
    begin = std::chrono::steady_clock::now();
    const dump::JobDump job = dump::read_job({dumps.string()});
    timing.read = seconds_since(begin);
    begin = std::chrono::steady_clock::now();
    const Postmortem result = diagnose(job, {});
    timing.diagnose = seconds_since(begin);
  }
  return timing;
}

double peak_gib() {
  struct rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

int run(const Arguments& arguments) {
  if (!arguments.score.empty()) {
    print(arguments.score, score_folder(arguments.score, arguments.failures));
    return 0;
  }
  const fs::path scratch =
      fs::temp_directory_path() / fmt::format("shiplap_postmortem_{}", getpid());
  fs::create_directories(scratch);
  Json result;
  const auto scored = [&](const std::string& name, const std::string& options) {
    generate(scratch / name, fmt::format("--seed {} {}", arguments.seed, options));
    Score score = score_folder(scratch / name, arguments.failures);
    if (!arguments.json) print(name, score);
    fs::remove_all(scratch / name);
    return score;
  };
  const int jobs = arguments.jobs;
  const Score single = scored("single", fmt::format("--jobs {} --faults 1", jobs));
  const Score twice = scored("double", fmt::format("--jobs {} --faults 2", jobs / 2));
  const Score missing =
      scored("missing", fmt::format("--jobs {} --faults 1 --missing 0.1", jobs / 2));
  const Score last = scored("last_50", fmt::format("--jobs {} --faults 1 --last 50", jobs / 2));
  const Score healthy = scored("healthy", fmt::format("--jobs {} --faults 0", jobs / 2));
  const Score slow =
      scored("slow", fmt::format("--jobs {} --kind slow_rank --timing", std::max(jobs / 10, 10)));
  const Score timed =
      scored("timed", fmt::format("--jobs {} --kind healthy --timing", std::max(jobs / 10, 10)));
  result.set("slow_jobs", slow.slow);
  result.set("slow_named", slow.slow_named);
  result.set("called_slow", slow.called_slow + timed.called_slow);
  result.set("jobs", single.jobs);
  result.set("culprit_first_single", ratio(single.first, single.jobs));
  result.set("class_right_single", ratio(single.class_right, single.first));
  result.set("line_right_single", ratio(single.line_right, single.with_line));
  result.set("culprit_first_double", ratio(twice.first, twice.jobs));
  result.set("culprit_top3_missing", ratio(missing.among_three, missing.jobs));
  result.set("culprit_first_missing", ratio(missing.first, missing.jobs));
  result.set("culprit_first_last_50", ratio(last.first, last.jobs));
  result.set("healthy_jobs", healthy.healthy);
  result.set("innocents_blamed", healthy.blamed + single.blamed + twice.blamed + missing.blamed);
  int real_jobs = 0;
  int real_jobs_right = 0;
  for (const char* const folder : {"real", "mpi"}) {
    const Score real = score_folder(generator() / folder, arguments.failures);
    if (!arguments.json) print(folder, real);
    real_jobs += real.jobs + real.healthy;
    real_jobs_right += real.first + real.healthy - real.blamed;
  }
  result.set("real_jobs", real_jobs);
  result.set("real_jobs_right", real_jobs_right);
  for (const char* const scale : {"256x2000", "1024x2000"}) {
    generate(scratch / scale, fmt::format("--scale {}", scale));
    const Timing timing = time_job(scratch / scale);
    fs::remove_all(scratch / scale);
    result.set(fmt::format("s_{}", scale), timing.read + timing.diagnose);
    result.set(fmt::format("s_diagnose_{}", scale), timing.diagnose);
    result.set(fmt::format("MB_{}", scale), timing.bytes * 1e-6);
    result.set("parse_MB_per_s", timing.bytes * 1e-6 / timing.read);
    result.set("parse_over_reading", timing.read / timing.only_bytes);
  }
  result.set("peak_GiB", peak_gib());
  if (arguments.torch) {
    const char* python = std::getenv("SHIPLAP_TORCH_PYTHON");  // NOLINT(concurrency-mt-unsafe)
    const fs::path found = scratch / "frtrace.json";
    const std::string command =
        fmt::format("{} {} --json {} {} > {}.log 2>&1",
                    python != nullptr ? python : SHIPLAP_SOURCE "/.deps/python/bin/python",
                    (generator() / "frtrace.py").string(), found.string(),
                    (generator() / "real").string(), found.string());
    if (succeeds(command)) {
      const Json torch = parse_json(text_of(found), found.string());
      const Json* const table = torch.find("table");
      const Json* const all = table == nullptr ? nullptr : table->find("all");
      const Json* const right = all == nullptr ? nullptr : all->find("right");
      if (right != nullptr) result.set("frtrace_right", *right);
    }
  }
  fs::remove_all(scratch);
  fmt::print("{}\n", to_text(result));
  return 0;
}

Arguments parse(int count, char** words) {
  Arguments arguments;
  for (int k = 1; k < count; ++k) {
    const std::string word = words[k];
    const auto value = [&] { return k + 1 < count ? std::string(words[++k]) : std::string(); };
    if (word == "--json") arguments.json = true;
    if (word == "--no-torch") arguments.torch = false;
    if (word == "--failures") arguments.failures = true;
    if (word == "--jobs") arguments.jobs = std::stoi(value());
    if (word == "--seed") arguments.seed = std::stoi(value());
    if (word == "--score") arguments.score = value();
  }
  return arguments;
}

}  // namespace
}  // namespace shiplap::postmortem

int main(int count, char** words) try {
  return shiplap::postmortem::run(shiplap::postmortem::parse(count, words));
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
