#include "shiplap/trace/perfetto.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/trace/proto_writer_internal.h"
#include "shiplap/trace/text.h"

namespace shiplap::trace {
namespace {

// Field numbers of perfetto_trace.proto (v50), by message.
namespace field {
constexpr int kPacket = 1;  // Trace
namespace packet {          // TracePacket
constexpr int kTimestamp = 8;
constexpr int kSequence = 10;
constexpr int kTrackEvent = 11;
constexpr int kInterned = 12;
constexpr int kSequenceFlags = 13;
constexpr int kTrackDescriptor = 60;
}  // namespace packet
namespace track {  // TrackDescriptor
constexpr int kUuid = 1;
constexpr int kName = 2;
constexpr int kProcess = 3;
constexpr int kThread = 4;
constexpr int kParent = 5;
constexpr int kCounter = 8;
}  // namespace track
namespace process {  // ProcessDescriptor
constexpr int kPid = 1;
constexpr int kName = 6;
}  // namespace process
namespace thread {  // ThreadDescriptor
constexpr int kPid = 1;
constexpr int kTid = 2;
constexpr int kName = 5;
}  // namespace thread
constexpr int kCounterUnit = 3;  // CounterDescriptor
namespace event {                // TrackEvent
constexpr int kCategory = 3;
constexpr int kAnnotation = 4;
constexpr int kType = 9;
constexpr int kName = 10;
constexpr int kTrack = 11;
constexpr int kPlainName = 23;
constexpr int kCounterValue = 30;
constexpr int kFlow = 47;
constexpr int kLastOfFlow = 48;
}  // namespace event
namespace annotation {  // DebugAnnotation
constexpr int kName = 1;
constexpr int kInteger = 4;
constexpr int kString = 17;
}  // namespace annotation
namespace interned {  // InternedData
constexpr int kCategories = 1;
constexpr int kNames = 2;
constexpr int kAnnotations = 3;
constexpr int kStrings = 29;
constexpr int kNumber = 1;  // in each of them: the number and the text
constexpr int kText = 2;
}  // namespace interned
}  // namespace field

constexpr int kSliceBegin = 1;
constexpr int kSliceEnd = 2;
constexpr int kCounter = 4;
constexpr int kUnitBytes = 3;
constexpr int kStateCleared = 1;
constexpr int kNeedsState = 2;

// Interned annotation names, numbered from 1.
enum class Annotation : std::uint8_t { layer = 1, samples, bytes, memory, operation, peer };
constexpr std::pair<Annotation, std::string_view> kAnnotationNames[] = {
    {Annotation::layer, "layer"},         {Annotation::samples, "samples"},
    {Annotation::bytes, "bytes"},         {Annotation::memory, "memory"},
    {Annotation::operation, "operation"}, {Annotation::peer, "peer"}};

// Interned texts, numbered from 1 in the order of their first use.
class InternTable {
 public:
  // Returns the number, and whether it is new.
  std::pair<std::uint64_t, bool> find(const std::string& text) {
    const auto [at, is_new] = numbers_.try_emplace(text, numbers_.size() + 1);
    return {at->second, is_new};
  }

 private:
  std::unordered_map<std::string, std::uint64_t>
      numbers_;  // never iterated: its order is unspecified
};

std::uint64_t track_of(std::size_t rank, std::size_t slot) { return (rank + 1) << 20 | slot; }
constexpr std::uint64_t kTitleTrack = 1;
constexpr std::size_t kProcessSlot = 0;
constexpr std::size_t kMemorySlot = 1;
constexpr std::size_t kFirstLaneSlot = 2;
constexpr std::size_t kMaxLanes = (1 << 20) - kFirstLaneSlot;

// A slice, with its times in nanoseconds.
struct Slice {
  const Event* event = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint64_t track = 0;
};

// The begin or end of a slice, and its position in the file. At equal times slices end, then empty
// slices begin and end, then others begin; and the send of a flow precedes its receive. Readers
// sort packets by time and keep the order of the file at equal times.
struct SliceEdge {
  std::int64_t key = 0;
  std::uint32_t slice = 0;
};
enum class Phase : std::uint8_t { end, point, begin };

std::int64_t key_of(std::int64_t time, Phase phase, EventKind kind) {
  const int order = phase == Phase::end       ? 0
                    : kind == EventKind::send ? 1
                    : kind == EventKind::recv ? 3
                                              : 2;
  return time * 16 + std::int64_t{static_cast<int>(phase)} * 4 + order;
}

class PerfettoWriter {
 public:
  PerfettoWriter(const Trace& trace, const PerfettoOptions& options)
      : trace_(trace), options_(options) {
    double first = 0;
    for (const RankTrace& rank : trace.ranks) {
      for (const Event& event : rank.events) first = std::min(first, event.time.value);
    }
    origin_ = first;
  }

  std::string text() {
    head();
    for (std::size_t rank = 0; rank < trace_.ranks.size(); ++rank) describe(rank);
    slices();
    for (std::size_t rank = 0; rank < trace_.ranks.size(); ++rank) memory(rank);
    return out_.take();
  }

 private:
  void head();
  void describe(std::size_t rank);
  std::vector<std::pair<std::size_t, int>> assign_lanes(std::size_t rank);
  void thread(std::size_t rank, std::size_t lane, const std::string& name);
  void slices();
  void begin(const Slice& slice);
  void end(const Slice& slice);
  void annotate(const Event& event);
  void memory(std::size_t rank);

  [[nodiscard]] std::int64_t nanoseconds(Seconds time) const {
    return std::llround((time.value - origin_) * 1e9);
  }
  void packet(const ProtoWriter& content) { out_.message(field::kPacket, content); }
  void describe(const ProtoWriter& descriptor) {
    packet_.clear();
    packet_.number(field::packet::kSequence, 1)
        .message(field::packet::kTrackDescriptor, descriptor);
    packet(packet_);
  }
  std::uint64_t interned(InternTable& known, int of_kind, const std::string& text);
  void add_interned(int of_kind, std::uint64_t number, std::string_view text);
  void annotate(Annotation name, std::int64_t value) {
    annotation_.clear();
    annotation_.number(field::annotation::kName, static_cast<int>(name));
    annotation_.number(field::annotation::kInteger, value);
    event_.message(field::event::kAnnotation, annotation_);
  }
  // Writes the packet of event_, with the names that it newly interned.
  void event_at(std::int64_t time);

  const Trace& trace_;
  const PerfettoOptions& options_;
  double origin_ = 0;
  std::vector<Slice> slices_;
  InternTable names_;
  InternTable categories_;
  InternTable strings_;
  ProtoWriter out_;
  // Reused buffers: allocating them for every event would take most of the time.
  ProtoWriter packet_;
  ProtoWriter event_;
  ProtoWriter annotation_;
  ProtoWriter new_names_;
  ProtoWriter entry_;
};

void PerfettoWriter::add_interned(int of_kind, std::uint64_t number, std::string_view text) {
  entry_.clear();
  entry_.number(field::interned::kNumber, number).text(field::interned::kText, text);
  new_names_.message(of_kind, entry_);
}

std::uint64_t PerfettoWriter::interned(InternTable& known, int of_kind, const std::string& text) {
  const auto [number, is_new] = known.find(text);
  if (is_new) add_interned(of_kind, number, text);
  return number;
}

void PerfettoWriter::head() {
  for (const auto& [number, name] : kAnnotationNames) {
    add_interned(field::interned::kAnnotations, static_cast<std::uint64_t>(number), name);
  }
  packet_.number(field::packet::kSequence, 1)
      .number(field::packet::kSequenceFlags, kStateCleared)
      .message(field::packet::kInterned, new_names_);
  packet(packet_);
  new_names_.clear();
  if (options_.title.empty()) return;
  ProtoWriter track;
  track.number(field::track::kUuid, kTitleTrack).text(field::track::kName, "Shiplap");
  describe(track);
}

void PerfettoWriter::thread(std::size_t rank, std::size_t lane, const std::string& name) {
  const std::size_t ranks = trace_.ranks.size();
  ProtoWriter thread;
  thread.number(field::thread::kPid, static_cast<std::uint64_t>(rank + 1))
      .number(field::thread::kTid, static_cast<std::uint64_t>(1 + rank + lane * ranks))
      .text(field::thread::kName, name);
  ProtoWriter track;
  track.number(field::track::kUuid, track_of(rank, kFirstLaneSlot + lane))
      .number(field::track::kParent, track_of(rank, kProcessSlot))
      .message(field::track::kThread, thread);
  describe(track);
}

void PerfettoWriter::describe(std::size_t rank) {
  ProtoWriter process;
  process.number(field::process::kPid, static_cast<std::uint64_t>(rank + 1))
      .text(field::process::kName, "rank " + std::to_string(rank));
  ProtoWriter track;
  track.number(field::track::kUuid, track_of(rank, kProcessSlot))
      .message(field::track::kProcess, process);
  describe(track);

  const auto lanes = assign_lanes(rank);
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const auto& [stream, depth] = lanes[lane];
    const std::string more = depth == 1 ? "" : " (" + std::to_string(depth) + ")";
    thread(rank, lane, trace_.streams[stream] + more);
  }
  if (trace_.ranks[rank].memory.empty()) return;
  ProtoWriter counter;
  counter.number(field::kCounterUnit, kUnitBytes);
  track.clear();
  track.number(field::track::kUuid, track_of(rank, kMemorySlot))
      .text(field::track::kName, "memory")
      .number(field::track::kParent, track_of(rank, kProcessSlot))
      .message(field::track::kCounter, counter);
  describe(track);
}

// Slices of a thread must not overlap, so each is assigned to the first free lane of its stream
// (greedy interval partitioning). Returns, for every lane of the rank, its stream and its number in
// that stream, from 1.
std::vector<std::pair<std::size_t, int>> PerfettoWriter::assign_lanes(std::size_t rank) {
  const std::size_t first = slices_.size();
  for (const Event& event : trace_.ranks[rank].events) {
    throw_if_cancelled();
    ensure(event.stream >= 0 && static_cast<std::size_t>(event.stream) < trace_.streams.size(),
           "the stream of an event exists in its trace");
    slices_.push_back(
        {.event = &event, .begin = nanoseconds(event.time), .end = nanoseconds(event.end())});
  }
  const std::span<Slice> mine = std::span(slices_).subspan(first);
  std::ranges::sort(mine, {}, [](const Slice& slice) {
    return std::tuple(slice.begin, slice.begin < slice.end, slice.event);
  });
  std::vector<std::pair<std::size_t, int>> lanes;
  std::vector<std::int64_t> free_from(trace_.streams.size());
  for (std::size_t s = 0; s < trace_.streams.size(); ++s) lanes.emplace_back(s, 1);
  for (Slice& slice : mine) {
    const auto stream = static_cast<std::size_t>(slice.event->stream);
    int depth = 0;
    std::size_t lane = 0;
    for (; lane < lanes.size(); ++lane) {
      if (lanes[lane].first != stream) continue;
      if (free_from[lane] <= slice.begin) break;
      depth = lanes[lane].second;
    }
    if (lane == lanes.size()) {
      lanes.emplace_back(stream, depth + 1);
      free_from.push_back(0);
    }
    ensure(lane < kMaxLanes, "the number of overlapping events is limited");
    free_from[lane] = slice.end;
    slice.track = track_of(rank, kFirstLaneSlot + lane);
  }
  return lanes;
}

void PerfettoWriter::event_at(std::int64_t time) {
  packet_.clear();
  packet_.number(field::packet::kTimestamp, time)
      .number(field::packet::kSequence, 1)
      .number(field::packet::kSequenceFlags, kNeedsState)
      .message(field::packet::kTrackEvent, event_);
  if (!new_names_.empty()) packet_.message(field::packet::kInterned, new_names_);
  new_names_.clear();
  packet(packet_);
}

void PerfettoWriter::annotate(const Event& event) {
  if (event.layer >= 0) annotate(Annotation::layer, event.layer);
  if (!event.samples.empty()) {
    const std::string samples = short_text(event.samples);
    annotation_.clear();
    annotation_.number(field::annotation::kName, static_cast<int>(Annotation::samples));
    annotation_.number(field::annotation::kString,
                       interned(strings_, field::interned::kStrings, samples));
    event_.message(field::event::kAnnotation, annotation_);
  }
  if (is_communication(event.kind)) annotate(Annotation::bytes, event.bytes.count);
  annotate(Annotation::memory, event.memory.count);
  if (event.operation >= 0) annotate(Annotation::operation, event.operation);
  if (event.peer >= 0) annotate(Annotation::peer, event.peer);
}

void PerfettoWriter::begin(const Slice& slice) {
  const Event& event = *slice.event;
  event_.clear();
  event_.number(field::event::kType, kSliceBegin).number(field::event::kTrack, slice.track);
  event_.number(field::event::kName, interned(names_, field::interned::kNames, label(event)));
  event_.number(field::event::kCategory, interned(categories_, field::interned::kCategories,
                                                  std::string(category(event.kind))));
  annotate(event);
  if (event.match >= 0) {
    const int flow =
        event.kind == EventKind::recv ? field::event::kLastOfFlow : field::event::kFlow;
    event_.fixed64(flow, static_cast<std::uint64_t>(event.match) + 1);  // 0 is no flow
  }
  event_at(slice.begin);
}

void PerfettoWriter::end(const Slice& slice) {
  event_.clear();
  event_.number(field::event::kType, kSliceEnd).number(field::event::kTrack, slice.track);
  event_at(slice.end);
}

void PerfettoWriter::slices() {
  std::vector<SliceEdge> edges;
  edges.reserve(2 * slices_.size());
  std::int64_t last = 0;
  for (std::uint32_t i = 0; i < slices_.size(); ++i) {
    const Slice& slice = slices_[i];
    const EventKind kind = slice.event->kind;
    const bool is_point = slice.begin == slice.end;
    const Phase phase = is_point ? Phase::point : Phase::begin;
    edges.push_back({.key = key_of(slice.begin, phase, kind), .slice = i});
    if (!is_point) edges.push_back({.key = key_of(slice.end, Phase::end, kind), .slice = i});
    last = std::max(last, slice.end);
  }
  std::ranges::sort(edges, {},
                    [](const SliceEdge& edge) { return std::pair(edge.key, edge.slice); });
  const auto title = [&](int type, std::int64_t time) {
    if (options_.title.empty()) return;
    event_.clear();
    event_.number(field::event::kType, type).number(field::event::kTrack, kTitleTrack);
    if (type == kSliceBegin) event_.text(field::event::kPlainName, options_.title);
    event_at(time);
  };
  title(kSliceBegin, 0);
  for (const SliceEdge& edge : edges) {
    const Slice& slice = slices_[edge.slice];
    const bool is_end = edge.key % 16 < 4;
    if (!is_end) begin(slice);
    if (is_end || slice.begin == slice.end) end(slice);
  }
  title(kSliceEnd, last);
}

void PerfettoWriter::memory(std::size_t rank) {
  for (const MemoryPoint& point : trace_.ranks[rank].memory) {
    throw_if_cancelled();
    event_.clear();
    event_.number(field::event::kType, kCounter)
        .number(field::event::kTrack, track_of(rank, kMemorySlot))
        .number(field::event::kCounterValue, point.bytes.count);
    event_at(std::max<std::int64_t>(0, nanoseconds(point.time)));
  }
}

}  // namespace

std::string to_perfetto(const Trace& trace, const PerfettoOptions& options) {
  ensure(trace.representatives.empty(), "a trace that is written is not folded");
  return PerfettoWriter(trace, options).text();
}

}  // namespace shiplap::trace
