#include "shiplap/trace/json.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/base/json.h"

namespace shiplap::trace {
namespace {

// Writes text directly: a tree of JSON values for millions of events would need too much memory.
class JsonText {
 public:
  explicit JsonText(std::string& out) : out_(out) {}

  JsonText& operator<<(std::string_view text) {
    out_ += text;
    return *this;
  }
  JsonText& operator<<(std::int64_t number) { return digits(number); }
  JsonText& operator<<(double number) { return digits(number); }

 private:
  template <class Number>
  JsonText& digits(Number number) {
    std::array<char, 32> buffer{};
    const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
    out_.append(buffer.data(), end);
    return *this;
  }

  std::string& out_;
};

void write(JsonText& out, const Event& event) {
  out << "[\"" << name(event.kind) << "\"";
  for (const std::int64_t number :
       {std::int64_t{event.layer}, std::int64_t{event.stream}, std::int64_t{event.operation},
        std::int64_t{event.peer}, event.match}) {
    out << "," << number;
  }
  out << "," << event.time.value << "," << event.duration.value << "," << event.bytes.count << ","
      << event.memory.count << ",[";
  std::string_view between;
  for (const IndexSet::Run& run : event.samples.runs()) {
    out << between << "[" << std::int64_t{run.begin} << "," << std::int64_t{run.count} << ","
        << std::int64_t{run.stride} << "]";
    between = ",";
  }
  out << "]]";
}

void write(JsonText& out, const RankTrace& rank) {
  out << "{\"events\":[";
  std::string_view between = "\n";
  for (const Event& event : rank.events) {
    throw_if_cancelled();
    out << between;
    write(out, event);
    between = ",\n";
  }
  out << "],\"memory\":[";
  between = "";
  for (const MemoryPoint& point : rank.memory) {
    out << between << "[" << point.time.value << "," << point.bytes.count << "]";
    between = ",";
  }
  out << "]}";
}

}  // namespace

std::string to_json(const Trace& trace) {
  ensure(trace.representatives.empty(), "a trace that is written is not folded");
  std::string result;
  JsonText out(result);
  Json streams = Json::array();
  for (const std::string& stream : trace.streams) streams.push(stream);
  out << "{\"schema\":\"shiplap.trace/1\",\"streams\":" << to_text(streams, Layout::compact);
  if (trace.clock_uncertainty > Seconds{0}) {
    out << ",\"clock_uncertainty_s\":" << trace.clock_uncertainty.value;
  }
  out << ",\"columns\":[\"kind\",\"layer\",\"stream\",\"operation\",\"peer\",\"match\",\"time_s\","
         "\"duration_s\",\"bytes\",\"memory\",\"samples\"],\"ranks\":[";
  std::string_view between = "\n";
  for (const RankTrace& rank : trace.ranks) {
    out << between;
    write(out, rank);
    between = ",\n";
  }
  out << "]}\n";
  return result;
}

}  // namespace shiplap::trace
