// From documents to calls.
//
// The format has grown for years, and no two backends fill it in alike, so this reader takes what
// it finds. What must be known to read a dump rightly:
//
//   - `process_group` of an entry is (name, description); `pg_config` has the ranks of each name,
//   as
//     a string "[0, 1]". gloo writes all its groups under the name "", so that only the last is
//     left.
//   - A name is not unique: ranks of different groups may use the same. A group is its name with
//     its ranks.
//   - The dump does not say which rank wrote it. A process lists the groups that it is a member of,
//     so it is in all of them; on a mesh this leaves one rank. Messages name it: "send 1->2".
//   - Ranks in names of messages are ranks in the group.
//   - The calls of a batch (`coalesced`) share a number and stay "scheduled"; the entry
//     that ends the batch has its state.
//   - gloo reports no completion: its calls are "scheduled" and retired. With nccl, retired and not
//     completed means timed out.
#include "shiplap/dump/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/dump/document.h"
#include "shiplap/dump/job_reader_internal.h"

namespace shiplap::dump {

// The members of an entry that are read.
enum class Field : std::uint8_t {
  none,
  frames,
  record_id,
  process_group,
  collective_seq_id,
  p2p_seq_id,
  seq_id,  // before version 2.0, for both
  profiling_name,
  time_created_ns,
  time_discovered_started_ns,
  time_discovered_completed_ns,
  input_sizes,
  input_dtypes,
  output_sizes,
  output_dtypes,
  state,
  retired,
  duration_ms,
  timeout_ms,
  is_p2p,
};

namespace {

constexpr std::array<std::pair<std::string_view, Field>, 19> kFields{{
    {"frames", Field::frames},
    {"record_id", Field::record_id},
    {"process_group", Field::process_group},
    {"collective_seq_id", Field::collective_seq_id},
    {"p2p_seq_id", Field::p2p_seq_id},
    {"seq_id", Field::seq_id},
    {"profiling_name", Field::profiling_name},
    {"time_created_ns", Field::time_created_ns},
    {"time_discovered_started_ns", Field::time_discovered_started_ns},
    {"time_discovered_completed_ns", Field::time_discovered_completed_ns},
    {"input_sizes", Field::input_sizes},
    {"input_dtypes", Field::input_dtypes},
    {"output_sizes", Field::output_sizes},
    {"output_dtypes", Field::output_dtypes},
    {"state", Field::state},
    {"retired", Field::retired},
    {"duration_ms", Field::duration_ms},
    {"timeout_ms", Field::timeout_ms},
    {"is_p2p", Field::is_p2p},
}};

Field field_named(std::string_view key) {
  const auto* found =
      std::ranges::find(kFields, key, [](const auto& field) { return field.first; });
  return found == kFields.end() ? Field::none : found->second;
}

// "[0, 1]", or a list.
std::vector<std::int32_t> parse_ranks(const Node& node) {
  std::vector<std::int32_t> ranks;
  for (const Node& item : node.items())
    ranks.push_back(static_cast<std::int32_t>(item.integer_or(-1)));
  std::string_view text = node.text();
  while (!text.empty()) {
    const std::size_t first = text.find_first_of("0123456789");
    if (first == text.npos) break;
    std::int32_t rank = -1;
    const auto [last, error] =
        std::from_chars(text.data() + first, text.data() + text.size(), rank);
    if (error == std::errc{}) ranks.push_back(rank);
    text.remove_prefix(static_cast<std::size_t>(last - text.data()));
  }
  std::erase_if(ranks, [](std::int32_t rank) { return rank < 0; });
  return ranks;
}

// "nccl:send 1->2".
struct ProfilingName {
  std::string_view library;
  std::string_view operation;
  CallKind kind = CallKind::collective;
  std::int32_t local = -1;  // of messages: the ranks in the group; -1: any source
  std::int32_t peer = -1;
};

std::int32_t leading_number(std::string_view text) {
  std::int32_t number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

ProfilingName parse_name(std::string_view text) {
  ProfilingName name;
  if (const std::size_t colon = text.rfind(':'); colon != text.npos) {
    name.library = text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  const std::size_t blank = text.find(' ');
  name.operation = text.substr(0, blank);
  const std::string_view ends = blank == text.npos ? "" : text.substr(blank + 1);
  if (name.operation.starts_with("send")) name.kind = CallKind::send;
  if (name.operation.starts_with("recv")) name.kind = CallKind::receive;
  if (name.operation == "coalesced" || name.operation.ends_with("_coalesced_end")) {
    name.kind = CallKind::batch;
  }
  const std::size_t arrow = ends.find(name.kind == CallKind::send ? "->" : "<-");
  if (name.kind == CallKind::collective || name.kind == CallKind::batch || arrow == ends.npos) {
    return name;
  }
  name.local = leading_number(ends);
  name.peer = leading_number(ends.substr(arrow + 2));
  return name;
}

[[noreturn]] void reject(const DumpFile& file, std::string_view why) {
  throw InputError({.code = "D012",
                    .where = {.file = file.name},
                    .what = fmt::format("not a flight recorder dump: {}", why)});
}

}  // namespace

// Reads one document. A pickle can share values, so a small file can describe a large tree: what is
// visited is counted, and limited by the size of the file.
class JobReader::Impl::DocumentReader {
 public:
  DocumentReader(Impl& impl, FileDump& file, std::size_t bytes)
      : impl_(impl), file_(file), dump_(file.dump), budget_(4 * bytes + 100'000) {}

  void read(const Document& document) {
    const Node& root = document.root;
    dump_.files = {file_.file.name};
    dump_.version = root.find("version").text();
    dump_.truncated = document.truncated;
    dump_.written_ns = file_.file.written_ns;
    const Node entries = root.find("entries");
    read_groups(root.find("pg_config"), entries);
    dump_.calls.reserve(entries.items().size());
    for (const Node& entry : entries.items()) {
      if (entry.is_dictionary()) read_call(entry);
    }
    if (dump_.truncated && !dump_.calls.empty()) dump_.calls.pop_back();  // may lack members
    if (!std::ranges::is_sorted(dump_.calls, {}, &Call::record)) {
      std::ranges::stable_sort(dump_.calls, {}, &Call::record);
    }
    dump_.evicted = !dump_.calls.empty() && dump_.calls.front().record > 0;
    find_candidates(root.find("nccl_comm_state"));
  }

 private:
  void visit(std::size_t nodes) {
    if (nodes > budget_) reject(file_.file, "its values are shared too often");
    budget_ -= nodes;
  }

  void read_groups(const Node& config, const Node& entries) {
    const std::span<const Node> items = config.items();
    visit(items.size());
    for (std::size_t k = 0; k + 1 < items.size(); k += 2) {
      const Node& group = items[k + 1];
      const Node named = group.find("name");
      std::string_view name = named.is_string() ? named.text() : items[k].text();
      std::vector<std::int32_t> ranks = parse_ranks(group.find("ranks"));
      if (name.empty()) {
        // The members of the last group; of which group, is known if there is but the default one.
        if (only_group(entries) != "0") continue;
        name = "0";
      }
      dump_.groups.push_back(impl_.group_of(name, group.find("desc").text(), ranks));
    }
  }

  // The name of the group of all entries, if there is one.
  std::optional<std::string_view> only_group(const Node& entries) {
    std::optional<std::string_view> only;
    visit(entries.items().size());
    for (const Node& entry : entries.items()) {
      const Node pair = entry.find("process_group");
      const std::string_view name = pair.items().empty() ? pair.text() : pair.items()[0].text();
      if (only && *only != name) return std::nullopt;
      only = name;
    }
    return only;
  }

  GroupId find_group(std::string_view name, std::string_view description) {
    for (const GroupId id : dump_.groups) {
      if (impl_.job_.groups[id].name == name) return id;
    }
    const GroupId made = impl_.group_of(name, description, {});
    dump_.groups.push_back(made);
    return made;
  }

  GroupId group_of(const Node& pair) {
    const std::span<const Node> items = pair.items();
    const std::string_view name = items.empty() ? pair.text() : items[0].text();
    const std::string_view description = items.size() < 2 ? "" : items[1].text();
    for (const auto& [known, id] : known_groups_) {
      if (known == std::pair(name, description)) return id;
    }
    const GroupId id = find_group(name, description);
    known_groups_.emplace_back(std::pair(name, description), id);
    return id;
  }

  // Entries have the same members in the same order, so the position predicts the field.
  Field field_at(std::size_t position, std::string_view key) {
    if (position < predicted_.size()) {
      const auto& [name, field] = predicted_[position];
      if (name.size() == key.size() &&
          (name.data() == key.data() || std::memcmp(name.data(), key.data(), key.size()) == 0)) {
        return field;
      }
    }
    const Field field = field_named(key);
    if (position == predicted_.size() && position < 64) predicted_.emplace_back(key, field);
    return field;
  }

  // The members of an entry by field; those that are missing are null.
  using Fields = std::array<Node, kFields.size() + 1>;
  static const Node& value_of(const Fields& fields, Field field) {
    return fields[static_cast<std::size_t>(field)];
  }

  static std::int64_t nanoseconds(double ms) {
    return ms > 0 && ms < 1e12 ? static_cast<std::int64_t>(1e6 * ms) : 0;
  }

  void read_call(const Node& entry) {
    Fields fields;
    const std::span<const Node> items = entry.items();
    visit(1 + items.size());
    for (std::size_t k = 0; k + 1 < items.size(); k += 2) {
      fields[static_cast<std::size_t>(field_at(k / 2, items[k].text()))] = items[k + 1];
    }
    const auto integer = [&](Field field, std::int64_t otherwise) {
      return value_of(fields, field).integer_or(otherwise);
    };
    const ProfilingName name = parse_name(value_of(fields, Field::profiling_name).text());
    const std::string_view state = value_of(fields, Field::state).text();
    const std::int64_t message = integer(Field::p2p_seq_id, -1);
    const std::int64_t collective = integer(Field::collective_seq_id, integer(Field::seq_id, -1));
    Call call{.record = integer(Field::record_id, std::ssize(dump_.calls)),
              .created_ns = integer(Field::time_created_ns, 0),
              .started_ns = integer(Field::time_discovered_started_ns, 0),
              .completed_ns = integer(Field::time_discovered_completed_ns, 0),
              .duration_ns = nanoseconds(value_of(fields, Field::duration_ms).real_or(0)),
              .timeout_ms = integer(Field::timeout_ms, 0),
              .group = group_of(value_of(fields, Field::process_group)),
              .signature = signature_of(name.operation, fields),
              .stack = read_stack(value_of(fields, Field::frames)),
              .kind = name.kind,
              .state = state == "completed" ? CallState::completed
                       : state == "started" ? CallState::started
                                            : CallState::scheduled,
              .is_p2p = value_of(fields, Field::is_p2p).boolean_or(false) ||
                        name.kind == CallKind::send || name.kind == CallKind::receive,
              .retired = value_of(fields, Field::retired).boolean_or(false)};
    call.sequence = call.is_p2p && message >= 0 ? message : collective;
    if (call.is_p2p && message >= 0) call.collectives = collective;
    if (name.local >= 0 || name.peer >= 0) find_ends(name, call);
    if (dump_.library.empty()) dump_.library = name.library;
    dump_.calls.push_back(call);
  }

  // The ranks of a message: they narrow down which rank wrote the file.
  void find_ends(const ProfilingName& name, Call& call) {
    const std::vector<std::int32_t>& ranks = impl_.job_.groups[call.group].ranks;
    const auto global = [&](std::int32_t rank) {
      if (rank < 0) return -1;
      if (ranks.empty()) return rank;
      return rank < std::ssize(ranks) ? ranks[at(rank)] : -1;
    };
    call.peer = global(name.peer);
    const std::int32_t local = global(name.local);
    if (local >= 0 && !ranks.empty()) named_.insert(local);
  }

  StackId read_stack(const Node& frames) {
    if (!frames.is_list()) return {};
    const std::span<const Node> items = frames.items();
    visit(items.size());
    stack_.clear();
    for (const Node& frame : items) {
      auto [known, is_new] = frame_of_node_.try_emplace(frame.identity());
      if (is_new) {
        known->second = impl_.frame_of(frame.find("name").text(), frame.find("filename").text(),
                                       frame.find("line").integer_or(0));
      }
      stack_.push_back(known->second);
    }
    return impl_.stack_of_ids(stack_);
  }

  void add_to_key(const Node& list) {
    const std::span<const Node> items = list.items();
    visit(1 + items.size());
    key_.add(static_cast<std::int64_t>(items.size()));
    for (const Node& item : items) {
      if (item.is_list()) {
        add_to_key_numbers(item);
      } else {
        key_.add(item.text());
      }
    }
  }
  void add_to_key_numbers(const Node& list) {
    const std::span<const Node> items = list.items();
    visit(1 + items.size());
    key_.add(static_cast<std::int64_t>(items.size()));
    for (const Node& item : items) key_.add(item.integer_or(0));
  }

  static Sizes sizes_of(const Node& list) {
    Sizes sizes;
    for (const Node& tensor : list.items()) {
      std::vector<std::int64_t>& dimensions = sizes.emplace_back();
      for (const Node& item : tensor.items()) dimensions.push_back(item.integer_or(0));
    }
    return sizes;
  }
  static std::vector<std::string> texts_of(const Node& list) {
    std::vector<std::string> texts;
    for (const Node& item : list.items()) texts.emplace_back(item.text());
    return texts;
  }

  SignatureId signature_of(std::string_view operation, const Fields& fields) {
    key_.clear();
    key_.add(operation);
    const Node& input_sizes = value_of(fields, Field::input_sizes);
    const Node& output_sizes = value_of(fields, Field::output_sizes);
    const Node& input_types = value_of(fields, Field::input_dtypes);
    const Node& output_types = value_of(fields, Field::output_dtypes);
    for (const Node* list : {&input_sizes, &output_sizes, &input_types, &output_types}) {
      add_to_key(*list);
    }
    return impl_.signature_ids_(key_.view(), [&] {
      return Signature{.operation = std::string(operation),
                       .input_sizes = sizes_of(input_sizes),
                       .output_sizes = sizes_of(output_sizes),
                       .input_types = texts_of(input_types),
                       .output_types = texts_of(output_types)};
    });
  }

  void find_candidates(const Node& communicators) {
    std::vector<std::int32_t>& candidates = file_.candidates;
    if (file_.file.rank >= 0) {
      candidates = {file_.file.rank};
      return;
    }
    if (named_.size() == 1) {
      candidates = {*named_.begin()};
      return;
    }
    bool is_first = true;
    for (const GroupId id : dump_.groups) {
      std::vector<std::int32_t> ranks = impl_.job_.groups[id].ranks;
      if (ranks.empty()) continue;
      std::ranges::sort(ranks);
      if (is_first) {
        candidates = ranks;
        is_first = false;
        continue;
      }
      std::erase_if(candidates,
                    [&](std::int32_t rank) { return !std::ranges::binary_search(ranks, rank); });
    }
    narrow_by_communicators(communicators);
  }

  // The rank in the communicator of all ranks is the rank.
  void narrow_by_communicators(const Node& communicators) {
    const std::span<const Node> items = communicators.items();
    visit(items.size());
    for (std::size_t k = 0; k + 1 < items.size() && file_.candidates.size() > 1; k += 2) {
      const std::int64_t size = items[k + 1].find("nranks").integer_or(-1);
      const std::int64_t rank = items[k + 1].find("rank").integer_or(-1);
      std::int64_t largest = 0;
      for (const GroupId id : dump_.groups) {
        largest = std::max<std::int64_t>(largest, std::ssize(impl_.job_.groups[id].ranks));
      }
      if (size == largest && rank >= 0) file_.candidates = {static_cast<std::int32_t>(rank)};
    }
  }

  Impl& impl_;
  FileDump& file_;
  RankDump& dump_;
  std::size_t budget_;
  KeyBuilder key_;
  std::vector<FrameId> stack_;
  std::vector<std::pair<std::string_view, Field>> predicted_;
  std::vector<std::pair<std::pair<std::string_view, std::string_view>, GroupId>> known_groups_;
  std::unordered_map<const void*, FrameId> frame_of_node_;
  std::set<std::int32_t> named_;
};

void JobReader::Impl::add(const DumpFile& file) {
  Document& document = document_;
  parse_document(file.bytes, file.name, document);
  if (!document.root.is_dictionary()) reject(file, "its root is not a dictionary");
  const bool is_dump = document.root.find("entries").is_list() ||
                       document.root.find("pg_config").is_dictionary() ||
                       document.root.find("pg_status").is_dictionary();
  if (!is_dump) reject(file, "it has no `entries` and no `pg_config`");
  FileDump read{.file = {.name = file.name, .written_ns = file.written_ns, .rank = file.rank}};
  DocumentReader(*this, read, file.bytes.size()).read(document);
  files_.push_back(std::move(read));
}

void JobReader::Impl::add_stack(std::int32_t rank, const std::vector<Frame>& frames) {
  std::vector<FrameId> ids;
  for (const Frame& frame : frames) ids.push_back(frame_of(frame.function, frame.file, frame.line));
  stacks_of_ranks_[rank] = stack_of_ids(ids);
}

FrameId JobReader::Impl::frame_of(std::string_view function, std::string_view file,
                                  std::int64_t line) {
  key_.clear();
  key_.add(function);
  key_.add(file);
  key_.add(line);
  return frame_ids_(key_.view(), [&] {
    return Frame{std::string(function), std::string(file), static_cast<std::int32_t>(line)};
  });
}

StackId JobReader::Impl::stack_of_ids(const std::vector<FrameId>& ids) {
  key_.clear();
  for (const FrameId id : ids) key_.add(id.value);
  return stack_ids_(key_.view(), [&] { return ids; });
}

GroupId JobReader::Impl::group_of(std::string_view name, std::string_view description,
                                  const std::vector<std::int32_t>& ranks) {
  key_.clear();
  key_.add(name);
  for (const std::int32_t rank : ranks) key_.add(rank);
  const GroupId id = group_ids_(
      key_.view(), [&] { return Group{std::string(name), std::string(description), ranks}; });
  if (job_.groups[id].description.empty()) job_.groups[id].description = description;
  return id;
}

namespace {

// A process with two backends writes two files. Two of one backend are the same dump twice, perhaps
// as pickle and as JSON, which has no stacks.
void merge(RankDump& into, RankDump more) {
  if (into.library == more.library && !into.calls.empty() && !more.calls.empty()) {
    const bool has_stacks = into.calls.front().stack.exists() || !more.calls.front().stack.exists();
    if (!has_stacks) std::swap(into, more);
    return;
  }
  std::ranges::move(more.files, std::back_inserter(into.files));
  std::ranges::move(more.calls, std::back_inserter(into.calls));
  std::ranges::stable_sort(into.calls, {}, &Call::created_ns);
  for (const GroupId group : more.groups) {
    if (std::ranges::find(into.groups, group) == into.groups.end()) into.groups.push_back(group);
  }
  if (into.library.empty()) into.library = more.library;
  into.truncated |= more.truncated;
  into.evicted |= more.evicted;
}

}  // namespace

// Whether any dump lists the members of a group with this name.
bool JobReader::Impl::is_listed(std::string_view name) const {
  return std::ranges::any_of(
      job_.groups, [&](const Group& group) { return group.name == name && !group.ranks.empty(); });
}

// A file that ends early may lack the members of its groups: those of another dump, if it has one
// group with this name that the rank is a member of.
void JobReader::Impl::adopt_members(RankDump& dump) const {
  std::map<GroupId, GroupId> adopted;
  for (GroupId& own : dump.groups) {
    if (!job_.groups[own].ranks.empty()) continue;
    GroupId found;
    int count = 0;
    for (std::size_t k = 0; k < job_.groups.size(); ++k) {
      const Group& group = job_.groups[GroupId(k)];
      if (group.name != job_.groups[own].name || group.ranks.empty()) continue;
      if (std::ranges::find(group.ranks, dump.rank) == group.ranks.end()) continue;
      found = GroupId(k);
      ++count;
    }
    if (count != 1) continue;
    adopted[own] = found;
    own = found;
  }
  if (adopted.empty()) return;
  for (Call& call : dump.calls) {
    const auto group = adopted.find(call.group);
    if (group != adopted.end()) call.group = group->second;
  }
}

// A few bytes can name a rank whose job would fill the memory.
void JobReader::Impl::find_world(std::int32_t rank) {
  constexpr std::int32_t kMaxRanks = 1 << 20;
  if (rank >= kMaxRanks) {
    throw InputError(
        {.code = "D012",
         .what = fmt::format("a dump names rank {}; a job has at most {} ranks", rank, kMaxRanks),
         .help = "the file is damaged, or its name ends with a number that is no rank"});
  }
  job_.world = std::max(job_.world, rank + 1);
}

JobDump JobReader::Impl::finish() {
  assign_ranks(files_);
  std::ranges::stable_sort(files_, {}, [](const FileDump& file) { return file.dump.rank; });
  for (FileDump& file : files_) {
    if (job_.ranks.empty() || job_.ranks.back().rank != file.dump.rank) {
      job_.ranks.push_back(std::move(file.dump));
    } else {
      merge(job_.ranks.back(), std::move(file.dump));
    }
  }
  for (RankDump& dump : job_.ranks) {
    const auto stack = stacks_of_ranks_.find(dump.rank);
    if (stack != stacks_of_ranks_.end()) dump.stack = stack->second;
    find_world(dump.rank);
  }
  for (const Group& group : job_.groups) {
    for (const std::int32_t rank : group.ranks) find_world(rank);
  }
  for (Group& group : job_.groups) {
    const bool is_default = group.name == "0" || group.description == "default_pg";
    if (!is_default || !group.ranks.empty() || is_listed(group.name)) continue;
    for (std::int32_t rank = 0; rank < job_.world; ++rank) group.ranks.push_back(rank);
  }
  for (RankDump& dump : job_.ranks) adopt_members(dump);
  return std::move(job_);
}

JobReader::JobReader() : impl_(std::make_unique<Impl>()) {}
JobReader::~JobReader() = default;
void JobReader::add(const DumpFile& file) { impl_->add(file); }
void JobReader::add_stack(std::int32_t rank, const std::vector<Frame>& frames) {
  impl_->add_stack(rank, frames);
}
JobDump JobReader::finish() && { return impl_->finish(); }

const RankDump* JobDump::find(std::int32_t rank) const {
  const auto found = std::ranges::lower_bound(ranks, rank, {}, &RankDump::rank);
  return found != ranks.end() && found->rank == rank ? &*found : nullptr;
}

}  // namespace shiplap::dump
