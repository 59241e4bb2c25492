#include "shiplap/trace/perfetto.h"

#include <gtest/gtest.h>

#include "shiplap/trace/proto_writer_internal.h"
#include "shiplap/trace/text.h"

// tests/trace/perfetto_test.py reads whole files with Perfetto's own classes; here are cases that
// they do not cover.
namespace shiplap::trace {
namespace {

Trace example() {
  return {.ranks = {{.events = {{.kind = EventKind::forward,
                                 .layer = 3,
                                 .time = {1e-6},
                                 .duration = {2e-6},
                                 .samples = IndexSet::range(0, 2)},
                                {.kind = EventKind::forward,
                                 .layer = 3,
                                 .time = {3e-6},
                                 .duration = {2e-6},
                                 .samples = IndexSet::range(0, 2)}},
                     .memory = {{.time = {0}, .bytes = {7}}}}}};
}

TEST(ProtoWriter, WritesTheExamplesOfTheFormat) {
  // From the page on encoding: field 1 with 150, and field 2 with "testing".
  EXPECT_EQ(ProtoWriter().number(1, 150).take(), "\x08\x96\x01");
  EXPECT_EQ(ProtoWriter().text(2, "testing").take(), "\x12\x07testing");
  EXPECT_EQ(ProtoWriter().number(1, -1).take(), "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_EQ(ProtoWriter().fixed64(1, 258).take(), std::string("\x09\x02\x01\0\0\0\0\0\0", 9));
}

TEST(Perfetto, GivesTheSameBytesForTheSameTrace) {
  EXPECT_EQ(to_perfetto(example(), {.title = "a"}), to_perfetto(example(), {.title = "a"}));
}

TEST(Perfetto, WritesANameOnce) {
  const std::string bytes = to_perfetto(example());
  const std::size_t first = bytes.find("forward L3 s0-1");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(bytes.find("forward L3 s0-1", first + 1), std::string::npos);
}

TEST(Perfetto, OfNoRanksIsAFile) { EXPECT_FALSE(to_perfetto(Trace{}).empty()); }

TEST(Label, TellsWhatOfWhichLayerAndSamples) {
  EXPECT_EQ(label({.kind = EventKind::send, .layer = 2, .peer = 3, .samples = IndexSet(4)}),
            "send L2 s4 to 3");
  EXPECT_EQ(label({.kind = EventKind::recv, .peer = 1}), "recv from 1");
  EXPECT_EQ(label({.kind = EventKind::loss}), "loss");
}

}  // namespace
}  // namespace shiplap::trace
