#include <gtest/gtest.h>

#include "shiplap/dump/read.h"

namespace shiplap::dump {
namespace {

TEST(Stacks, OfPySpyAreThoseOfTheThreadThatRunsTheScript) {
  const auto stacks = parse_stacks(
      "Process 12: python train.py\nPython v3.11.2\n\n"
      "Thread 13 (idle): \"watchdog\"\n    wait (threading.py:320)\n"
      "Thread 12 (idle): \"MainThread\"\n    read (data.py:41)\n    main (train.py:88)\n"
      "    <module> (train.py:100)\n");
  ASSERT_EQ(stacks.size(), 1U);
  EXPECT_EQ(stacks[0].rank, -1);
  ASSERT_EQ(stacks[0].frames.size(), 3U);
  EXPECT_EQ(stacks[0].frames[0], (Frame{"read", "data.py", 41}));
}

TEST(Stacks, OfTheDebugServerHaveRanks) {
  const auto stacks = parse_stacks(
      "=== Rank 0: http://a:1 ===\nThread 0x1 (most recent call first):\n"
      "  File \"/job/train.py\", line 88 in main\n  File \"/job/train.py\", line 9 in <module>\n"
      "=== Rank 1: http://b:1 ===\nThread 0x2 (most recent call first):\n"
      "  File \"/job/data.py\", line 41 in read\n");
  ASSERT_EQ(stacks.size(), 2U);
  EXPECT_EQ(stacks[0].rank, 0);
  EXPECT_EQ(stacks[0].frames[0], (Frame{"main", "/job/train.py", 88}));
  EXPECT_EQ(stacks[1].rank, 1);
  EXPECT_EQ(stacks[1].frames[0].line, 41);
}

TEST(Stacks, OtherTextsHaveNone) {
  EXPECT_TRUE(parse_stacks("").empty());
  EXPECT_TRUE(parse_stacks("loss 0.3 (step 4)\nThread safety (maybe)\n").empty());
}

}  // namespace
}  // namespace shiplap::dump
