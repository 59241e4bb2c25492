// Reads and writes user files.
//
// Writing is atomic: a crash or a full disk must not destroy the previous file. The text is written
// to a temporary file in the same directory, synced, and renamed over the target (rename(2) is
// atomic within a file system). The mode of the previous file is kept, and a symbolic link keeps
// pointing to the same file. Devices and pipes cannot be replaced, and some directories are not
// writable; such files are written in place.
//
// Errors are reported with a remedy: a similar name in the same directory, the missing directory,
// the mkdir command. check_writable() finds most of them before a long computation.
#include "shiplap/base/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "shiplap/base/suggest.h"

namespace shiplap {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxNamesTried = 10'000;

// The message of the operating system, starting in lower case.
std::string reason(int error) {
  std::string text = std::generic_category().message(error);
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z') {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  return text;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (names.size() == kMaxNamesTried) break;
    names.push_back(it->path().filename().string());
  }
  std::ranges::sort(names);  // directory order differs between systems
  return names;
}

// Some editors write an invisible byte order mark.
std::string without_byte_order_mark(std::string text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
  return text;
}

// For a missing file: a similar name in the same directory, or the missing directory.
std::string missing_file_help(const fs::path& path) {
  const fs::path folder = path.parent_path();
  std::error_code ignored;
  if (!folder.empty() && !fs::exists(folder, ignored)) {
    return fmt::format("no such directory: `{}`", folder.string());
  }
  const std::string near =
      nearest(path.filename().string(), names_in(folder.empty() ? fs::path(".") : folder));
  if (near.empty()) return "paths are relative to the current directory";
  return fmt::format("did you mean `{}`?", (folder / near).string());
}

std::string directory_help(const fs::path& path, std::string_view ending) {
  for (const std::string& name : names_in(path)) {
    if (name.ends_with(ending)) {
      return fmt::format("name a file inside it, for instance `{}`", (path / name).string());
    }
  }
  return "name a file inside it";
}

[[noreturn]] void throw_cannot_read(const std::string& file, int error,
                                    std::string_view ending = ".plan") {
  std::string help;
  if (error == ENOENT || error == ENOTDIR) help = missing_file_help(file);
  if (error == EISDIR) help = directory_help(file, ending);
  throw FileError({.code = "D004",
                   .where = {.file = file},
                   .what = "cannot read the file: " + reason(error),
                   .help = std::move(help)},
                  error);
}

// A stream throws if reading fails, but reports no error if it is closed.
std::string read_all(std::istream& stream, const std::string& file) {
  errno = 0;
  try {
    std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    if (!stream.bad()) return text;
  } catch (const std::ios_base::failure&) {  // NOLINT(bugprone-empty-catch): reported below
  }
  throw_cannot_read(file, errno != 0 ? errno : EIO);
}

[[noreturn]] void throw_cannot_write(const std::string& file, std::string_view flag, int error) {
  std::string help;
  const fs::path folder = fs::path(file).parent_path();
  if (error == ENOENT && !folder.empty()) {
    help = fmt::format("create the directory: `mkdir -p {}`", folder.string());
  }
  if (error == ENOSPC || error == EDQUOT) help = "the disk is full; the previous file is unchanged";
  throw FileError({.code = "D005",
                   .where = {.file = file, .flag = std::string(flag)},
                   .what = "cannot write the file: " + reason(error),
                   .help = std::move(help)},
                  error);
}

// ---- writing: functions return errno, or 0 on success

// A file open for writing.
class Output {
 public:
  Output(const fs::path& file, int flags) : descriptor_(open(file.c_str(), flags, 0666)) {}
  ~Output() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  [[nodiscard]] int write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = ::write(descriptor_, text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      text.remove_prefix(count);
    }
    return 0;
  }
  // Copies the permissions of another file, if it exists.
  void copy_mode(const fs::path& file) const {
    struct stat known{};
    if (stat(file.c_str(), &known) == 0) (void)fchmod(descriptor_, known.st_mode & 07777U);
  }
  // Some file systems report a full disk only here. Some files do not support fsync (EINVAL).
  [[nodiscard]] int close() {
    const int unsynced = fsync(descriptor_) == 0 || errno == EINVAL ? 0 : errno;
    const bool is_closed = ::close(std::exchange(descriptor_, -1)) == 0;
    return unsynced != 0 || is_closed ? unsynced : errno;
  }

 private:
  int descriptor_;
};

// The target of a symbolic link, or the file itself.
fs::path resolve_symlink(const fs::path& file) {
  std::error_code error;
  const fs::path target = fs::canonical(file, error);
  return error ? file : target;
}

fs::path temporary_path(const fs::path& file) {
  static std::atomic<int> next = 0;
  return file.parent_path() / fmt::format(".shiplap-{}-{}.part", getpid(), next++);
}

// For devices, pipes, and files in directories that are not writable.
int write_in_place(const fs::path& file, std::string_view text) {
  Output output(file, O_WRONLY | O_TRUNC | O_CREAT | O_CLOEXEC);
  if (!output.is_open()) return errno;
  const int error = output.write(text);
  const int closing = output.close();
  return error != 0 ? error : closing;
}

bool is_replaceable(const fs::path& file) {
  std::error_code ignored;
  const fs::file_status status = fs::status(file, ignored);
  return !fs::exists(status) || fs::is_regular_file(status);
}

int write_atomically(const std::string& name, std::string_view text) {
  const fs::path file = resolve_symlink(name);
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) return EISDIR;
  if (!is_replaceable(file)) return write_in_place(file, text);
  if (fs::exists(file, ignored) && access(file.c_str(), W_OK) != 0) return errno;
  const fs::path part = temporary_path(file);
  Output output(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
  if (!output.is_open()) {
    const int error = errno;
    return error == ENOENT || !fs::exists(file, ignored) ? error : write_in_place(file, text);
  }
  output.copy_mode(file);
  int error = output.write(text);
  const int closing = output.close();
  if (error == 0) error = closing;
  if (error == 0 && rename(part.c_str(), file.c_str()) != 0) error = errno;
  if (error != 0) (void)unlink(part.c_str());
  return error;
}

// The error that writing would give, as far as it can be determined without writing.
int find_write_error(const std::string& name) {
  const fs::path file = resolve_symlink(name);
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) return EISDIR;
  if (fs::exists(file, ignored)) return access(file.c_str(), W_OK) == 0 ? 0 : errno;
  const fs::path part = temporary_path(file);
  const Output output(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
  if (!output.is_open()) return errno;
  (void)unlink(part.c_str());
  return 0;
}

std::string line_of(std::string_view text, int line) {
  for (; line > 1; --line) {
    const std::size_t end = text.find('\n');
    if (end == text.npos) return "";
    text.remove_prefix(end + 1);
  }
  return std::string(text.substr(0, text.find('\n')));
}

constexpr std::uintmax_t kMaxExcerptFile = std::uintmax_t{16} << 20;  // bytes

// A line of a file that a plan names as its source; empty if it cannot be read.
std::string line_of_file(const std::string& file, int line) {
  std::error_code error;
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) > kMaxExcerptFile) return "";
  std::ifstream in(file, std::ios::binary);
  std::string text;
  for (int k = 0; k < line; ++k) {
    if (!std::getline(in, text)) return "";
  }
  return text;
}

}  // namespace

std::string SourceText::short_name() const {
  const std::string name = fs::path(file).filename().string();
  return name.empty() ? file : name;
}

bool is_plan_text(std::string_view text) {
  if (text.substr(0, 200).find("\"shiplap.plan/") != text.npos) return true;
  constexpr std::string_view kHeader = "shiplap-plan";
  for (std::size_t at = text.find(kHeader); at != text.npos; at = text.find(kHeader, at + 1)) {
    const std::size_t before = text.substr(0, at).find_last_not_of(" \t");
    if (before == text.npos || text[before] == '\n') return true;
  }
  return false;
}

SourceText read_text(const std::string& file, std::istream& in, std::string_view ending) {
  if (file == "-") {
    const std::string name = "standard input";
    return {.file = name, .text = without_byte_order_mark(read_all(in, name))};
  }
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) throw_cannot_read(file, EISDIR, ending);
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw_cannot_read(file, errno != 0 ? errno : EIO);
  return {.file = file, .text = without_byte_order_mark(read_all(stream, file))};
}

void write_text(const std::string& file, std::string_view text, std::string_view flag) {
  if (const int error = write_atomically(file, text)) throw_cannot_write(file, flag, error);
}

void check_writable(const std::optional<std::string>& file, std::string_view flag) {
  if (!file || *file == "-") return;
  if (const int error = find_write_error(*file)) throw_cannot_write(*file, flag, error);
}

Diagnostic add_source_location(Diagnostic diagnostic, const SourceText& source) {
  Where& where = diagnostic.where;
  if (where.file.empty() && where.flag.empty()) where.file = source.file;
  if (where.line < 1 || !where.excerpt.empty()) return diagnostic;
  const bool here = where.file.empty() || where.file == source.file;
  where.excerpt = here ? line_of(source.text, where.line) : line_of_file(where.file, where.line);
  return diagnostic;
}

}  // namespace shiplap
