#include <set>

#include "shiplap/run/links_internal.h"
#include "shiplap/run/schedule_internal.h"

namespace shiplap::run {
namespace {

// How a group or channel is used on this rank.
struct Use {
  std::set<std::int32_t> streams;
  bool overlaps = false;  // with its own stream, or with other members of a batch
  [[nodiscard]] bool needs_lane() const { return overlaps || streams.size() > 1; }
};

void note(const plan::RankProgram& program, const plan::flat::Operation& op, Use& use) {
  const bool is_member = op.batch >= 0;
  const plan::flat::Operation& outer = is_member ? program.operations[op.batch] : op;
  use.streams.insert(outer.stream.value);
  use.overlaps = use.overlaps || is_member || op.source->async;
}

}  // namespace

Schedule schedule(const plan::RankProgram& program) {
  IdVector<plan::flat::GroupId, Use> groups(program.groups.size());
  std::map<std::string, Use> channels;
  for (const plan::flat::Operation& op : program.operations) {
    if (op.group.exists()) note(program, op, groups[op.group]);
    if (const auto* channel = message_channel(op)) note(program, op, channels[*channel]);
  }
  Schedule made;
  made.streams.resize(1);
  made.groups.resize(groups.size());
  made.handed.resize(program.operations.size());
  for (std::size_t k = 0; k < program.operations.size(); ++k) {
    const plan::flat::Operation& op = program.operations[k];
    const auto index = static_cast<std::int32_t>(k);
    if (op.stream.exists()) {
      if (made.streams.size() <= op.stream.index()) made.streams.resize(op.stream.index() + 1);
      made.streams[op.stream.index()].push_back(index);
    }
    if (op.group.exists() && groups[op.group].needs_lane()) {
      made.groups[op.group].push_back(index);
      made.handed[k] = true;
    }
    if (const auto* channel = message_channel(op); channel && channels[*channel].needs_lane()) {
      ++made.channels[*channel];
      made.handed[k] = true;
    }
  }
  return made;
}

}  // namespace shiplap::run
