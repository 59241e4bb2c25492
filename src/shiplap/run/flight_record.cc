#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/run/flight_record_internal.h"

namespace shiplap::run {
namespace {

using plan::flat::Operation;
using plan::flat::Region;

// The names of torch.
std::string_view torch_name(DType type) {
  switch (type) {
    case DType::f64:
      return "Double";
    case DType::f32:
      return "Float";
    case DType::f16:
      return "Half";
    case DType::bf16:
      return "BFloat16";
    case DType::fp8_e4m3:
      return "Float8_e4m3fn";
    case DType::fp8_e5m2:
      return "Float8_e5m2";
    case DType::i64:
      return "Long";
    case DType::i32:
      return "Int";
    case DType::i16:
      return "Short";
    case DType::i8:
      return "Char";
    case DType::u8:
      return "Byte";
  }
  return "";
}

std::string_view torch_name(CollectiveKind kind) {
  if (kind == CollectiveKind::all_gather) return "_all_gather_base";
  if (kind == CollectiveKind::reduce_scatter) return "_reduce_scatter_base";
  return name(kind);
}

// A group of ranks as the recorder knows it.
struct RecordedGroup {
  std::string name;
  std::string description;
  std::string ranks;  // "[0, 2]"
};

class Recording {
 public:
  explicit Recording(const RecordedStep& step)
      : step_(step),
        counts_(count_calls(step.program)),
        // Timings are of a monotonic clock.
        clock_offset_ns_(wall_clock_ns() -
                         static_cast<std::int64_t>(1e9 * CompletionTracker::now())) {}

  std::string text() {
    Json entries = Json::array();
    for (std::size_t k = 0; k < step_.program.operations.size(); ++k) {
      const Operation& op = step_.program.operations[k];
      if (!is_call(op)) continue;
      const RecordedGroup& group = group_of(op);
      // Numbers are by program order, which all ranks share, not by the order of the start.
      const std::int64_t number = ++numbers_[group.name];
      if (step_.tracker.has_started(static_cast<std::int32_t>(k))) {
        entries.push(entry(k, group, step_.number * counts_.at(group.name) + number));
      }
    }
    Json groups = Json::object({});
    for (const auto& [key, group] : groups_) {
      groups.set(group.name,
                 Json::object(
                     {{"name", group.name}, {"desc", group.description}, {"ranks", group.ranks}}));
    }
    return to_text(Json::object({{"version", "2.10"},
                                 {"pg_config", std::move(groups)},
                                 {"entries", std::move(entries)}})) +
           "\n";
  }

 private:
  static std::int64_t wall_clock_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  [[nodiscard]] std::int64_t wall_clock_ns(double seconds) const {
    return seconds == 0 ? 0 : clock_offset_ns_ + static_cast<std::int64_t>(1e9 * seconds);
  }

  [[nodiscard]] static bool is_call(const Operation& op) {
    return op.group.exists() || message_channel(op) != nullptr;
  }
  [[nodiscard]] bool is_message(const Operation& op) const { return !op.group.exists(); }

  [[nodiscard]] std::vector<std::int64_t> all_ranks() const {
    std::vector<std::int64_t> ranks;
    for (std::int64_t rank = 0; rank < step_.program.plan->mesh.ranks(); ++rank) {
      ranks.push_back(rank);
    }
    return ranks;
  }

  // Groups with the same ranks and channel have the same name on all their ranks.
  RecordedGroup group_named(std::string description, const std::vector<std::int64_t>& ranks) const {
    return {.name = fmt::format("{} {}", description, fmt::join(ranks, ",")),
            .description = std::move(description),
            .ranks = fmt::format("[{}]", fmt::join(ranks, ", "))};
  }
  // The group of a collective; of a message, all ranks on its channel.
  const RecordedGroup& group_of(const Operation& op) {
    const std::pair key{op.group.value, message_channel(op) ? *message_channel(op) : ""};
    const auto known = groups_.find(key);
    if (known != groups_.end()) return known->second;
    return groups_.emplace(key, made_group(op)).first->second;
  }
  [[nodiscard]] RecordedGroup made_group(const Operation& op) const {
    const auto with_channel = [](const std::string& text, const std::string& channel) {
      return channel.empty() ? text : text + "/" + channel;
    };
    if (const std::string* const channel = message_channel(op)) {
      return group_named(with_channel("messages", *channel), all_ranks());
    }
    const plan::flat::Group& group = step_.program.groups[op.group];
    std::vector<std::int64_t> ranks;
    for (std::int64_t k = 0; k < group.ranks.size(); ++k) ranks.push_back(group.ranks[k].value);
    return group_named(with_channel(axes_of(op), group.channel), ranks);
  }
  [[nodiscard]] std::string axes_of(const Operation& op) const {
    const auto* const collective = std::get_if<plan::Collective>(&op.source->action);
    const plan::Group& over =
        collective != nullptr ? collective->over : std::get<plan::Exchange>(op.source->action).over;
    std::vector<std::string> names;
    for (const plan::AxisId axis : over.axes) names.push_back(step_.program.plan->mesh.name(axis));
    return names.empty() ? "group" : fmt::format("{}", fmt::join(names, "_"));
  }

  Json entry(std::size_t k, const RecordedGroup& group, std::int64_t number) const {
    const Operation& op = step_.program.operations[k];
    const Timing& timing = step_.timings[k];
    const bool complete = step_.tracker.is_complete(static_cast<std::int32_t>(k));
    const bool begun = timing.begin > 0;  // not only posted to the thread of its group
    const double timeout = step_.timeout.value;
    const bool message = is_message(op);
    Json json = Json::object({
        {"record_id", static_cast<std::int64_t>(k)},
        {"process_group", Json::array()},
        {"collective_seq_id", message ? std::int64_t{0} : number},
        {"p2p_seq_id", message ? number : std::int64_t{0}},
        {"op_id", number},
        {"profiling_name", "shiplap:" + call_name(op)},
        {"state", complete ? "completed"
                  : begun  ? "started"
                           : "scheduled"},
        {"time_created_ns", wall_clock_ns(timing.begin)},
        {"time_discovered_started_ns", wall_clock_ns(timing.begin)},
        {"time_discovered_completed_ns", complete ? wall_clock_ns(timing.end) : std::int64_t{0}},
        {"timeout_ms", static_cast<std::int64_t>(1e3 * step_.timeout.value)},
        {"is_p2p", message},
        // As with NCCL: done, or timed out.
        {"retired", complete || (begun && CompletionTracker::now() - timing.begin >= timeout)},
    });
    json.set("process_group", Json::array().push(group.name).push(group.description));
    add_region(json, "input", op.from.buffer.exists() ? op.from : op.to);
    add_region(json, "output", op.to.buffer.exists() ? op.to : op.from);
    const Where where = step_.program.where(op);
    json.set("frames", Json::array().push(Json::object(
                           {{"name", where.operation},
                            {"filename", where.file.empty() ? step_.plan_file : where.file},
                            {"line", std::int64_t{where.line}}})));
    return json;
  }
  [[nodiscard]] std::string call_name(const Operation& op) const {
    const plan::Action& action = op.source->action;
    const std::int32_t rank = step_.program.rank.value;
    if (std::holds_alternative<plan::Send>(action)) {
      return fmt::format("send {}->{}", rank, op.peer.value);
    }
    if (std::holds_alternative<plan::Receive>(action)) {
      return fmt::format("recv {}<-{}", rank, op.peer.value);
    }
    if (const auto* const collective = std::get_if<plan::Collective>(&action)) {
      return std::string(torch_name(collective->kind));
    }
    return "all_to_all";
  }
  void add_region(Json& json, const std::string& side, const Region& region) const {
    Json sizes = Json::array();
    Json types = Json::array();
    if (region.buffer.exists()) {
      const DType type =
          step_.program.plan->programs[step_.program.program].buffers[region.buffer].type;
      sizes.push(Json::array().push(step_.program.bytes_of(region) / bytes_of(type)));
      types.push(torch_name(type));
    }
    json.set(side + "_sizes", std::move(sizes)).set(side + "_dtypes", std::move(types));
  }

  // Calls of a step in each group, so that the numbers of later steps go on.
  std::map<std::string, std::int64_t> count_calls(const plan::RankProgram& program) {
    std::map<std::string, std::int64_t> counts;
    for (const Operation& op : program.operations) {
      if (is_call(op)) ++counts[group_of(op).name];
    }
    return counts;
  }

  const RecordedStep& step_;
  std::map<std::pair<std::int32_t, std::string>, RecordedGroup> groups_;
  std::map<std::string, std::int64_t> counts_;   // by name of the group
  std::map<std::string, std::int64_t> numbers_;  // likewise
  std::int64_t clock_offset_ns_;
};

}  // namespace

std::string flight_record(const RecordedStep& step) { return Recording(step).text(); }

}  // namespace shiplap::run
