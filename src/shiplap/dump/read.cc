#include "shiplap/dump/read.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/dump/flight_recorder.h"
#include "shiplap/dump/job_reader_internal.h"
#include "shiplap/dump/nccl_ras.h"

namespace shiplap::dump {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFiles = 1'000'000;
constexpr std::size_t kMaxNotes = 5;

// A file that is read whole into memory that is reused.
class FileReader {
 public:
  // Throws InputError D004.
  void read(const std::string& name) {
    const int file = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(name, errno);
    struct stat status{};
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(file);
      fail(name, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
    }
    written_ns_ = status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec;
    bytes_.resize(static_cast<std::size_t>(status.st_size));
    std::size_t done = 0;
    while (done < bytes_.size()) {
      const ssize_t count = ::read(file, bytes_.data() + done, bytes_.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        const int error = errno;
        ::close(file);
        fail(name, error);
      }
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    bytes_.resize(done);
    ::close(file);
  }
  [[nodiscard]] std::string_view bytes() const { return bytes_; }
  [[nodiscard]] std::int64_t written_ns() const { return written_ns_; }

 private:
  [[noreturn]] static void fail(const std::string& name, int error) {
    throw InputError({.code = "D004",
                      .where = {.file = name},
                      .what = fmt::format("cannot read `{}`: {}", name, std::strerror(error))});
  }

  std::string bytes_;
  std::int64_t written_ns_ = 0;
};

struct NamedFile {
  std::string name;
  bool by_user = false;  // named on the command line, not found in a folder
};

std::vector<NamedFile> list_files(const std::vector<std::string>& paths) {
  std::vector<NamedFile> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back({path, true});
      continue;
    }
    std::vector<NamedFile> inside;
    for (auto it = fs::recursive_directory_iterator(
             path, fs::directory_options::skip_permission_denied, error);
         it != fs::recursive_directory_iterator() && inside.size() < kMaxFiles;
         it.increment(error)) {
      if (error) break;
      if (it->is_regular_file(error)) inside.push_back({it->path().string(), false});
    }
    std::ranges::sort(inside, {}, &NamedFile::name);
    std::ranges::move(inside, std::back_inserter(files));
  }
  return files;
}

bool looks_like_dump(std::string_view bytes) {
  if (bytes.starts_with('\x80')) return true;
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != bytes.npos && bytes[first] == '{' &&
         (bytes.find("\"pg_config\"") != bytes.npos || bytes.find("\"entries\"") != bytes.npos);
}

bool is_without_communicators(const RasReport& report) {
  return report.groups.empty() && report.communicators.empty();
}

// By the time of the file. JSON says when it was taken, and copying may have changed the times of
// files, so the JSON among the reports are put into the order of what they say.
void sort_by_time(std::vector<RasReport>& reports) {
  std::ranges::stable_sort(reports, {}, [](const RasReport& report) {
    return std::tie(report.written_ns, report.file);
  });
  std::vector<RasReport> timed;
  for (RasReport& report : reports) {
    if (!report.time.empty()) timed.push_back(report);
  }
  std::ranges::stable_sort(timed, {}, &RasReport::time);
  auto next = timed.begin();
  for (RasReport& report : reports) {
    if (!report.time.empty()) report = std::move(*next++);
  }
}

class FilesReader {
 public:
  // A file that the user named must be a dump, a text of ncclras, or hold stacks.
  void add(const DumpFile& file, bool by_user) {
    const bool is_ras = is_nccl_ras(file.bytes);
    const bool is_dump = !is_ras && (looks_like_dump(file.bytes) || by_user);
    if (!is_ras && add_stacks(file)) return;
    if (!is_ras && !is_dump) return leave_out(file.name, "");
    try {
      if (is_ras) return add_ras(file);
      reader_.add(file);
      ++dumps_;
    } catch (const InputError& error) {
      const Diagnostic& diagnostic = error.diagnostics().front();
      if (by_user || diagnostic.code == "D013") throw;
      leave_out(file.name, diagnostic.what);
    }
  }

  // `place` is for the message if there is no dump.
  JobDump finish(const std::string& place) {
    if (dumps_ == 0 && ras_.empty()) {
      throw InputError({.code = "D012",
                        .where = {.file = place},
                        .what = "there is no flight recorder dump and no text of ncclras" +
                                (notes_.empty() ? "" : "; " + notes_.front()),
                        .help = "dumps are named nccl_trace_rank_0, .. ; see docs/postmortem.md"});
    }
    JobDump job = std::move(reader_).finish();
    leave_out_empty_reports();
    sort_by_time(ras_);
    job.ras = std::move(ras_);
    job.notes = std::move(notes_);
    if (const std::int64_t more = left_out_ - std::ssize(job.notes); more > 0) {
      job.notes.push_back(fmt::format("{} more file{} left out", more, more == 1 ? "" : "s"));
    }
    return job;
  }

 private:
  bool add_stacks(const DumpFile& file) {
    if (file.bytes.starts_with('\x80') || file.bytes.starts_with('{')) return false;
    if (file.bytes.find("Thread ") == file.bytes.npos) return false;
    const std::vector<ProcessStack> stacks = parse_stacks(file.bytes);
    for (const ProcessStack& stack : stacks) {
      std::int32_t rank = stack.rank >= 0 ? stack.rank : file.rank;
      if (rank < 0) rank = rank_in_name(file.name);
      if (rank >= 0) reader_.add_stack(rank, stack.frames);
    }
    return !stacks.empty();
  }

  // The same text twice would look like a job that hangs.
  void add_ras(const DumpFile& file) {
    RasSource source{.name = file.name,
                     .path = fs::path(file.name).lexically_normal().string(),
                     .size = file.bytes.size(),
                     .hash = std::hash<std::string_view>{}(file.bytes)};
    for (const RasSource& other : ras_sources_) {
      if (!other.path.empty() && other.path == source.path) {
        return leave_out(file.name, "it is named twice");
      }
      if (other.size == source.size && other.hash == source.hash) {
        return leave_out(file.name,
                         fmt::format("its bytes are those of {}. If it is not a copy, write the "
                                     "time into each text: (date; ncclras -v) > ras.txt",
                                     other.name));
      }
    }
    for (RasReport& report : read_nccl_ras(file.bytes, file.name)) {
      report.written_ns = file.written_ns;
      add_report(std::move(report));
    }
    ras_sources_.push_back(std::move(source));
  }

  // JSON with an equal time is a copy of the same answer.
  void add_report(RasReport report) {
    const bool is_copy = !report.time.empty() && std::ranges::any_of(ras_, [&](const auto& other) {
      return other.time == report.time;
    });
    if (is_copy) return leave_out(report.file, "it has the same time as another text of ncclras");
    ras_.push_back(std::move(report));
  }

  // The last report counts, so one that says nothing must not take its place.
  void leave_out_empty_reports() {
    if (std::ranges::all_of(ras_, is_without_communicators)) return;
    std::erase_if(ras_, [&](const RasReport& report) {
      if (!is_without_communicators(report)) return false;
      leave_out(report.file, "a text of ncclras without communicators");
      return true;
    });
  }

  void leave_out(const std::string& name, const std::string& why) {
    ++left_out_;
    if (notes_.size() >= kMaxNotes || why.empty()) return;
    notes_.push_back(fmt::format("left out {}: {}", name, why));
  }

  // A file with reports.
  struct RasSource {
    std::string name;
    std::string path;
    std::size_t size = 0;
    std::size_t hash = 0;  // of its bytes
  };

  JobReader reader_;
  std::vector<RasReport> ras_;
  std::vector<RasSource> ras_sources_;
  std::vector<std::string> notes_;
  std::int64_t left_out_ = 0;
  std::int64_t dumps_ = 0;
};

}  // namespace

JobDump read_job(const std::vector<std::string>& paths, const ProgressCallback& progress) {
  const std::vector<NamedFile> files = list_files(paths);
  FilesReader reader;
  FileReader file;
  for (std::size_t k = 0; k < files.size(); ++k) {
    if (progress) {
      progress({.what = "reading dumps",
                .done = static_cast<std::int64_t>(k),
                .total = std::ssize(files)});
    }
    file.read(files[k].name);
    reader.add({.name = files[k].name, .bytes = file.bytes(), .written_ns = file.written_ns()},
               files[k].by_user);
  }
  return reader.finish(paths.empty() ? "" : paths.front());
}

JobDump read_job(const std::vector<DumpFile>& files) {
  FilesReader reader;
  for (const DumpFile& file : files) reader.add(file, true);
  return reader.finish("");
}

}  // namespace shiplap::dump
