#include "shiplap/report/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "shiplap/base/random.h"

namespace shiplap::report {
namespace {

using testing::HasSubstr;
using testing::Not;
using trace::Event;
using trace::EventKind;
using trace::RankTrace;

Event event(EventKind kind, double time, double duration) {
  return {.kind = kind, .layer = 0, .time = {time}, .duration = {duration}};
}

Lanes lanes_of(const RankTrace& rank, double end) {
  return {.rows = {{.name = "0", .rank = &rank}}, .window = {.begin = {0}, .end = {end}}};
}

RankTrace random_rank(std::uint64_t seed) {
  Random random(seed);
  RankTrace rank;
  for (int i = 0; i < 200; ++i) {
    const EventKind kind = random.chance() ? EventKind::forward : EventKind::all_gather;
    rank.events.push_back(event(kind, random.unit() * 90, random.unit() * 0.4));
  }
  return rank;
}

TEST(LaneBoxes, CountEveryEventOnce) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const RankTrace rank = random_rank(seed);
    for (const std::int64_t most : {1, 10, 1000}) {
      Lanes lanes = lanes_of(rank, 100);
      lanes.max_boxes = most;
      std::int64_t events = 0;
      for (const Strip strip : {Strip::computation, Strip::communication}) {
        const LaneBoxes made = boxes(lanes, strip);
        for (const LaneBox& box : made.rows.front()) events += box.events;
      }
      EXPECT_EQ(events, 200) << "seed " << seed;
    }
  }
}

TEST(LaneBoxes, ThatOverlapShareTheHeight) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const RankTrace rank = random_rank(seed);
    const auto made = boxes(lanes_of(rank, 100), Strip::computation).rows.front();
    for (std::size_t i = 0; i < made.size(); ++i) {
      for (std::size_t j = i + 1; j < made.size(); ++j) {
        const bool apart = made[i].span.end <= made[j].span.begin;
        ASSERT_TRUE(apart || made[i].slot != made[j].slot) << "seed " << seed;
        ASSERT_TRUE(apart || made[i].slots == made[j].slots) << "seed " << seed;
      }
      ASSERT_LT(made[i].slot, made[i].slots) << "seed " << seed;
    }
  }
}

TEST(LaneBoxes, OnlyNarrowOnesAreDrawnTogether) {
  RankTrace rank{.events = {event(EventKind::forward, 0, 1)}};
  for (int i = 0; i < 30; ++i) rank.events.push_back(event(EventKind::forward, 1 + i * 1e-5, 1e-5));
  Lanes lanes = lanes_of(rank, 2);
  lanes.max_boxes = 5;
  const LaneBoxes made = boxes(lanes, Strip::computation);
  EXPECT_EQ(made.rows.front().size(), 2U);
  EXPECT_EQ(made.merged, 30);
  EXPECT_EQ(made.rows.front().front().events, 1);
}

TEST(LaneBoxes, LeaveOutWhatTakesNoTime) {
  const RankTrace rank{.events = {event(EventKind::loss, 1, 0)}};
  EXPECT_TRUE(boxes(lanes_of(rank, 2), Strip::computation).rows.front().empty());
}

TEST(Lanes, TellTheFactsOfABox) {
  RankTrace rank{.events = {event(EventKind::send, 1e-3, 2e-3)}};
  rank.events[0].peer = 3;
  rank.events[0].bytes = {1 << 20};
  rank.events[0].samples = IndexSet::range(4, 2);
  const Html html = to_html(lanes_of(rank, 4e-3));
  EXPECT_THAT(html.markup, HasSubstr("rank 0: send, layer 0, samples 4-5\nstarts at 1.00 ms, takes "
                                     "2.00 ms\n1.00 MiB to rank 3"));
}

TEST(Lanes, OutlineWhatIsExposed) {
  RankTrace rank{.events = {event(EventKind::forward, 0, 2), event(EventKind::all_gather, 0, 2)}};
  EXPECT_THAT(to_html(lanes_of(rank, 2)).markup, Not(HasSubstr("\"outline\"")));
  rank.events[1].duration = {3};
  EXPECT_THAT(to_html(lanes_of(rank, 3)).markup, HasSubstr("\"outline\""));
}

TEST(Lanes, DrawArrowsOnlyIfThereAreFew) {
  RankTrace rank{.events = {event(EventKind::send, 0, 1), event(EventKind::recv, 0, 1)}};
  rank.events[0].match = rank.events[1].match = 7;
  Lanes lanes = lanes_of(rank, 2);
  EXPECT_THAT(to_html(lanes).markup, HasSubstr("class=\"arrow"));
  lanes.max_arrows = 0;
  EXPECT_THAT(to_html(lanes).markup, Not(HasSubstr("class=\"arrow")));
}

TEST(LaneBoxes, OfMessagesGoApartIfAsked) {
  const RankTrace rank{.events = {event(EventKind::recv, 0, 2), event(EventKind::recv, 1, 2),
                                  event(EventKind::send, 0, 3),
                                  event(EventKind::all_gather, 5, 1)}};
  Lanes lanes = lanes_of(rank, 6);
  lanes.directions = Lanes::Directions::separate;
  const auto made = boxes(lanes, Strip::communication).rows.front();
  ASSERT_EQ(made.size(), 4U);
  for (const LaneBox& box : made) {
    const double top = static_cast<double>(box.slot) / box.slots;
    const double bottom = static_cast<double>(box.slot + 1) / box.slots;
    EXPECT_EQ(box.event->kind == EventKind::recv, top >= 0.5);
    EXPECT_EQ(box.event->kind == EventKind::send, bottom <= 0.5);
  }
}

TEST(Lanes, TakeWordsInsteadOfLayersAndSamples) {
  RankTrace rank{.events = {event(EventKind::compute, 0, 2), event(EventKind::send, 0, 2)}};
  Lanes lanes = lanes_of(rank, 2);
  lanes.label_event = [](const Event& about) {
    return EventLabel{.label = "2.1",
                      .tooltip = about.kind == EventKind::send ? "sends it" : "multiplies it",
                      .style = EventLabel::Style::hue,
                      .hue = 3,
                      .group = 17};
  };
  lanes.hues = 4;
  const std::string markup = to_html(lanes).markup;
  EXPECT_THAT(markup, HasSubstr("rank 0: multiplies it\nstarts at"));
  EXPECT_THAT(markup, HasSubstr("rank 0: sends it\nstarts at"));
  EXPECT_THAT(markup, HasSubstr("class=\"m r63\""));
  EXPECT_THAT(markup, HasSubstr("data-d=\"17\">2.1</text>"));
  EXPECT_THAT(markup, Not(HasSubstr("layer")));
}

TEST(LaneBoxes, ThatStandAsideHaveAStripOfTheirOwn) {
  const RankTrace rank{
      .events = {event(EventKind::compute, 0, 2), event(EventKind::compute, 1, 2)}};
  Lanes lanes = lanes_of(rank, 3);
  EXPECT_EQ(boxes(lanes, Strip::computation).rows.front().front().slots, 2);
  lanes.label_event = [](const Event& about) {
    return EventLabel{
        .label = "+",
        .tooltip = "",
        .style = about.time > Seconds{0} ? EventLabel::Style::secondary : EventLabel::Style::plain};
  };
  const LaneBoxes made = boxes(lanes, Strip::computation);
  for (const LaneBox& box : made.rows.front()) {
    EXPECT_EQ(box.slots, 1);
    EXPECT_EQ(box.is_secondary, box.span.begin > Seconds{0});
  }
  EXPECT_THAT(to_html(lanes).markup, HasSubstr("class=\"m update\""));
}

TEST(Lanes, LetNobodyWaitAfterTheEnd) {
  const RankTrace rank{.events = {event(EventKind::compute, 0, 2)}};
  Lanes lanes = lanes_of(rank, 4);
  EXPECT_THAT(to_html(lanes).markup, HasSubstr("class=\"waits\""));
  lanes.end = {2};
  EXPECT_THAT(to_html(lanes).markup, Not(HasSubstr("class=\"waits\"")));
}

TEST(Lanes, LeaveTheMemoryOutIfAsked) {
  RankTrace rank{.events = {event(EventKind::compute, 0, 2)},
                 .memory = {{.time = {0}, .bytes = {5}}}};
  Lanes lanes = lanes_of(rank, 2);
  EXPECT_THAT(to_html(lanes).markup, HasSubstr("class=\"alive\""));
  lanes.memory = Lanes::Memory::left_out;
  EXPECT_THAT(to_html(lanes).markup, Not(HasSubstr("class=\"alive\"")));
  EXPECT_THAT(to_html(lanes).markup, Not(HasSubstr(">peak<")));
}

TEST(Lanes, OfNothingAreAPicture) {
  const RankTrace rank;
  EXPECT_THAT(to_html(lanes_of(rank, 0)).markup, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace shiplap::report
