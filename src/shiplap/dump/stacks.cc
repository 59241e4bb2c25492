// Where the processes were: texts of py-spy, of Python's faulthandler, and of torch's debug server,
// which has those of all ranks under headlines.
//
//   === Rank 3: http://host:25999 ===        (debug server)
//   Thread 4711 (idle): "MainThread"          (py-spy)
//       wait (threading.py:320)
//   Thread 0x00007f (most recent call first): (faulthandler)
//     File "/job/train.py", line 88 in main
//
// The thread of interest is the one that runs the script: it ends in `<module>`.
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>

#include "shiplap/dump/read.h"

namespace shiplap::dump {
namespace {

std::string_view trimmed(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  if (first == line.npos) return "";
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

std::int32_t number_at(std::string_view text) {
  std::int32_t number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// `wait (threading.py:320)`
std::optional<Frame> parse_pyspy_frame(std::string_view line) {
  const std::size_t open = line.rfind(" (");
  const std::size_t colon = line.rfind(':');
  if (open == line.npos || colon == line.npos || colon < open || !line.ends_with(')')) return {};
  const std::int32_t number = number_at(line.substr(colon + 1));
  if (number < 0) return {};
  return Frame{std::string(line.substr(0, open)),
               std::string(line.substr(open + 2, colon - open - 2)), number};
}

// `File "/job/train.py", line 88 in main`
std::optional<Frame> parse_faulthandler_frame(std::string_view line) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  const std::size_t end = line.find(kLine);
  if (!line.starts_with(kFile) || end == line.npos) return {};
  const std::string_view rest = line.substr(end + kLine.size());
  const std::size_t in = rest.find(" in ");
  return Frame{std::string(in == rest.npos ? "" : rest.substr(in + 4)),
               std::string(line.substr(kFile.size(), end - kFile.size())), number_at(rest)};
}

class StackParser {
 public:
  std::vector<ProcessStack> parse(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      add(trimmed(text.substr(0, end)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    end_thread();
    end_process();
    return std::move(found_);
  }

 private:
  void add(std::string_view line) {
    constexpr std::string_view kRank = "=== Rank ";
    if (line.starts_with(kRank)) {
      end_thread();
      end_process();
      rank_ = number_at(line.substr(kRank.size()));
    } else if (line.starts_with("Thread ") || line.starts_with("Current thread ")) {
      end_thread();
    } else if (std::optional<Frame> frame = parse_faulthandler_frame(line)) {
      thread_.push_back(std::move(*frame));
    } else if (std::optional<Frame> pyspy = parse_pyspy_frame(line)) {
      thread_.push_back(std::move(*pyspy));
    }
  }

  void end_thread() {
    const bool runs_script = !thread_.empty() && thread_.back().function == "<module>";
    if (!thread_.empty() && (main_.empty() || runs_script)) main_ = std::move(thread_);
    thread_.clear();
  }
  void end_process() {
    if (!main_.empty()) found_.push_back({.rank = rank_, .frames = std::move(main_)});
    main_.clear();
    rank_ = -1;
  }

  std::vector<ProcessStack> found_;
  std::vector<Frame> thread_;
  std::vector<Frame> main_;
  std::int32_t rank_ = -1;
};

}  // namespace

std::vector<ProcessStack> parse_stacks(std::string_view text) { return StackParser().parse(text); }

}  // namespace shiplap::dump
