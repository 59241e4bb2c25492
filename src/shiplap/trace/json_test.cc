#include "shiplap/trace/json.h"

#include <gtest/gtest.h>

#include "shiplap/base/json.h"

namespace shiplap::trace {
namespace {

TEST(TraceJson, HasEveryFieldOfAnEvent) {
  const Trace trace{.streams = {"main", "n\"et"},
                    .ranks = {{.events = {{.kind = EventKind::send,
                                           .layer = 2,
                                           .stream = 1,
                                           .operation = 7,
                                           .peer = 3,
                                           .match = 9,
                                           .time = {0.1},
                                           .duration = {1e-9},
                                           .bytes = {12},
                                           .memory = {34},
                                           .samples = IndexSet::range(1, 3, 8)}},
                               .memory = {{.time = {0.5}, .bytes = {6}}}},
                              {}}};
  const Json expected = parse_json(
      R"({"schema": "shiplap.trace/1", "streams": ["main", "n\"et"],
          "columns": ["kind", "layer", "stream", "operation", "peer", "match", "time_s",
                      "duration_s", "bytes", "memory", "samples"],
          "ranks": [{"events": [["send", 2, 1, 7, 3, 9, 0.1, 1e-9, 12, 34, [[1, 3, 8]]]],
                     "memory": [[0.5, 6]]}, {"events": [], "memory": []}]})",
      "expected");
  EXPECT_EQ(parse_json(to_json(trace), "trace"), expected);
}

TEST(TraceJson, SaysHowWellClocksAreAligned) {
  const Json json = parse_json(to_json(Trace{.clock_uncertainty = {12e-6}}), "trace");
  const Json* const uncertainty = json.find("clock_uncertainty_s");
  ASSERT_NE(uncertainty, nullptr);
  EXPECT_EQ(*uncertainty, Json(12e-6));
  EXPECT_EQ(parse_json(to_json(Trace{}), "trace").find("clock_uncertainty_s"), nullptr);
}

TEST(TraceJson, OfNothingIsJson) { EXPECT_TRUE(parse_json(to_json(Trace{}), "trace").is_object()); }

}  // namespace
}  // namespace shiplap::trace
