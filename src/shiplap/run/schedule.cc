#include <set>

#include "shiplap/run/communicator_set_internal.h"
#include "shiplap/run/schedule_internal.h"

namespace shiplap::run {
namespace {

// How a group or channel is used on this rank.
struct ThreadUse {
  std::set<std::int32_t> streams;
  bool overlaps = false;  // asynchronous, or a member of a batch
  [[nodiscard]] bool needs_thread() const { return overlaps || streams.size() > 1; }
};

void add_use(const plan::RankProgram& program, const plan::flat::Operation& op, ThreadUse& use) {
  const bool is_member = op.batch >= 0;
  const plan::flat::Operation& outer = is_member ? program.operations[op.batch] : op;
  use.streams.insert(outer.stream.value);
  use.overlaps = use.overlaps || is_member || op.source->async;
}

}  // namespace

Schedule schedule(const plan::RankProgram& program) {
  IdVector<plan::flat::GroupId, ThreadUse> groups(program.groups.size());
  std::map<std::string, ThreadUse> channels;
  for (const plan::flat::Operation& op : program.operations) {
    if (op.group.exists()) add_use(program, op, groups[op.group]);
    if (const auto* channel = message_channel(op)) add_use(program, op, channels[*channel]);
  }
  Schedule made;
  made.streams.resize(1);
  made.groups.resize(groups.size());
  made.is_posted.resize(program.operations.size());
  for (std::size_t k = 0; k < program.operations.size(); ++k) {
    const plan::flat::Operation& op = program.operations[k];
    const auto index = static_cast<std::int32_t>(k);
    if (op.stream.exists()) {
      if (made.streams.size() <= op.stream.index()) made.streams.resize(op.stream.index() + 1);
      made.streams[op.stream.index()].push_back(index);
    }
    if (op.group.exists() && groups[op.group].needs_thread()) {
      made.groups[op.group].push_back(index);
      made.is_posted[k] = true;
    }
    if (const auto* channel = message_channel(op); channel && channels[*channel].needs_thread()) {
      ++made.channels[*channel];
      made.is_posted[k] = true;
    }
  }
  return made;
}

}  // namespace shiplap::run
