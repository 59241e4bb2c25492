#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "shiplap/postmortem/call_site_internal.h"

namespace shiplap::postmortem {
namespace {

constexpr std::size_t kMaxRanks = 8;

// Frames that never are the cause.
bool is_library(const dump::Frame& frame) {
  static constexpr std::array<std::string_view, 7> kParts{
      "/torch/",       "/lib/python3",   "<frozen",      "<string>",
      "/threading.py", "/contextlib.py", "/functools.py"};
  // py-spy shows files without their folders.
  static constexpr std::array<std::string_view, 8> kFiles{
      "distributed_c10d.py", "c10d_logger.py", "device_mesh.py", "_functional_collectives.py",
      "threading.py",        "contextlib.py",  "functools.py",   "_tensor.py"};
  if (frame.file.empty() || frame.file == "??" || frame.line <= 0) return true;
  if (std::ranges::find(kFiles, frame.file) != kFiles.end()) return true;
  const bool is_package = frame.file.find("/site-packages/") != frame.file.npos ||
                          frame.file.find("/dist-packages/") != frame.file.npos;
  if (is_package) {
    return frame.file.find("/site-packages/torch/") != frame.file.npos ||
           frame.file.find("/dist-packages/torch/") != frame.file.npos;
  }
  return std::ranges::any_of(
      kParts, [&](std::string_view part) { return frame.file.find(part) != frame.file.npos; });
}

std::string format_sizes(const dump::Sizes& sizes, const std::vector<std::string>& types) {
  std::string text;
  for (std::size_t k = 0; k < sizes.size() && k < 2; ++k) {
    if (!text.empty()) text += ", ";
    if (k < types.size()) text += types[k] + " ";
    text += fmt::format("[{}]", fmt::join(sizes[k], ", "));
  }
  if (sizes.size() > 2) text += fmt::format(", .. ({} tensors)", sizes.size());
  return text;
}

}  // namespace

dump::Frame user_frame(const dump::JobDump& job, dump::StackId stack) {
  if (!stack.exists()) return {};
  const std::vector<dump::FrameId>& frames = job.stacks[stack];
  for (const dump::FrameId id : frames) {
    if (!is_library(job.frames[id])) return job.frames[id];
  }
  return frames.empty() ? dump::Frame{} : job.frames[frames.front()];
}

std::string format_ranks(std::span<const std::int32_t> ranks) {
  if (ranks.size() > kMaxRanks) {
    // Whole ranges are short.
    const bool is_range = ranks.back() - ranks.front() + 1 == std::ssize(ranks);
    if (is_range) return fmt::format("{} to {}", ranks.front(), ranks.back());
    return fmt::format("{}, .. {} ({} ranks)", fmt::join(ranks.first(kMaxRanks - 2), ", "),
                       ranks.back(), ranks.size());
  }
  if (ranks.size() < 2) return ranks.empty() ? "none" : fmt::format("{}", ranks.front());
  return fmt::format("{} and {}", fmt::join(ranks.first(ranks.size() - 1), ", "), ranks.back());
}

std::string format_group(const dump::JobDump& job, dump::GroupId id) {
  const dump::Group& group = job.groups[id];
  std::string name = group.description.empty() || group.description == "undefined"
                         ? fmt::format("group {}", group.name)
                         : group.description;
  if (group.ranks.empty()) return name;
  return fmt::format("{} {{{}}}", name, format_ranks(group.ranks));
}

std::string frame_text(const dump::Frame& frame) {
  const std::string place = to_string(frame);
  return place.empty() || frame.function.empty() ? place : place + " in " + frame.function;
}

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
  return ranks.empty() ? "" : format_ranks(ranks);
}

CallSite call_site(const Progress& progress, std::int32_t rank, std::int32_t unit_index) {
  const Unit& unit = progress.units(rank)[at(unit_index)];
  const dump::Call& call = progress.call(rank, unit);
  const dump::Signature& signature = progress.job().signatures[call.signature];
  CallSite site{.rank = rank,
                .operation = signature.operation,
                .group = format_group(progress.job(), unit.group),
                .sequence = unit.sequence,
                .arguments = format_sizes(signature.input_sizes, signature.input_types),
                .frame = user_frame(progress.job(), call.stack)};
  if (signature.input_sizes.empty()) {
    site.arguments = format_sizes(signature.output_sizes, signature.output_types);
  } else if (is_all_to_all(signature.operation) && !signature.output_sizes.empty()) {
    site.arguments += " to " + format_sizes(signature.output_sizes, {});
  }
  if (call.peer >= 0) {
    site.operation +=
        fmt::format(" {} rank {}", call.kind == dump::CallKind::send ? "to" : "from", call.peer);
  }
  if (unit.last > unit.first + 1) {
    site.operation += fmt::format(" (first of a batch of {})", unit.last - unit.first);
  }
  return site;
}

std::string to_string(const dump::Frame& frame) {
  if (frame.file.empty()) return "";
  return fmt::format("{}:{}", frame.file.substr(frame.file.rfind('/') + 1), frame.line);
}

std::string to_string(const CallSite& site) {
  if (!site.exists()) return "";
  std::string text = site.operation;
  if (!site.arguments.empty()) text += " of " + site.arguments;
  text += fmt::format(" (call {} on {})", site.sequence, site.group);
  const std::string frame = to_string(site.frame);
  if (!frame.empty()) text += " at " + frame;
  return text;
}

}  // namespace shiplap::postmortem
