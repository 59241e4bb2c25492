// What rows hold: found untested by mutations of value_tracker.cc, script.cc and statement.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gaps.h"

namespace shiplap::check {
namespace {

using testing::ElementsAre;

// ---- masks

TEST(Masks, BetweenDimensionsOfThePartLeaveSomeCellsNothing) {
  const auto plan = [](const std::string& mask, const std::string& cell, const std::string& sum) {
    return "mesh dp=1\nlist l = 1 0\ntensor O Output a 2 b 2 sum key 2 mask " + mask + R"(
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = O )" +
           cell + sum + "\n  goal x = O " + cell + "\n  compute other\n";
  };
  const std::string none = " sum none";
  const std::string all = " sum key 0 +2";
  EXPECT_EQ(check_summary(plan("a<=b", "a 1 +1 b 0 +1", none)), "");
  EXPECT_EQ(check_summary(plan("a<=b", "a 1 +1 b 0 +1", all)), "");
  EXPECT_EQ(check_summary(plan("a<=b", "a 0 +1 b 0 +1", none)), "D741@0:-1");
  EXPECT_EQ(check_summary(plan("a<=b", "a 0 +1 b 1 +1", none)), "D741@0:-1");
  EXPECT_EQ(check_summary(plan("a=b", "a 0 +1 b 1 +1", none)), "");
  EXPECT_EQ(check_summary(plan("a=b", "a 1 +1 b 1 +1", none)), "D741@0:-1");
  EXPECT_EQ(check_summary(plan("l[a]=b", "a 1 +1 b 1 +1", none)), "");
  EXPECT_EQ(check_summary(plan("l[a]=b and key<=a", "a 1 +1 b 1 +1", none)), "");
  EXPECT_EQ(check_summary(plan("l[a]=b and key<=a", "a 0 +1 b 1 +1", " sum key 0 +1")), "");
}

// A contribution that the mask excludes does not count, so zero contains it.
TEST(Masks, LeaveWhatTheirComparisonsSay) {
  const std::vector<int> list{2, 0, 1};
  const auto zero_is = [](const std::string& mask, int tok, int key) {
    const std::string cell = "O tok " + std::to_string(tok) + " +1 sum ";
    return check_summary(
               "mesh dp=1\nlist l = 2 0 1\ntensor O Output tok 3 sum key 3 mask " + mask +
               "\nprogram all on all\n  buffer x rows 1 row_bytes 8 f32\n  given x = " + cell +
               "none\n  goal x = " + cell + "key " + std::to_string(key) + " +1\n  compute other\n")
        .empty();
  };
  for (int tok = 0; tok < 3; ++tok) {
    for (int key = 0; key < 3; ++key) {
      const int listed_tok = list[tok];
      const int listed_key = list[key];
      EXPECT_EQ(zero_is("key<=tok", tok, key), key > tok);
      EXPECT_EQ(zero_is("tok<=key", tok, key), tok > key);
      EXPECT_EQ(zero_is("key=tok", tok, key), key != tok);
      EXPECT_EQ(zero_is("tok=l[key]", tok, key), tok != listed_key);
      EXPECT_EQ(zero_is("l[key]<=tok", tok, key), listed_key > tok);
      EXPECT_EQ(zero_is("tok<=l[key]", tok, key), tok > listed_key);
      EXPECT_EQ(zero_is("l[tok]<=key", tok, key), listed_tok > key);
      EXPECT_EQ(zero_is("key<=tok and l[tok]<=key", tok, key), key > tok || listed_tok > key);
    }
  }
}

TEST(Masks, BetweenDimensionsOfTheSumLeaveSomePairs) {
  const auto plan = [](const std::string& mask, const std::string& first,
                       const std::string& second) {
    return "mesh dp=2\ntensor O Output sum a 2 b 2 mask " + mask + R"(
program all on all
  buffer x rows 1 row_bytes 8 f32
  when dp=0
    given x = O sum )" +
           first + "\n  end\n  when dp=1\n    given x = O sum " + second +
           "\n  end\n  goal x = O\n  all_reduce x over dp\n";
  };
  EXPECT_EQ(check_summary(plan("a<=b", "a 0 +1 b 0 +2", "a 1 +1 b 1 +1")), "");
  EXPECT_EQ(check_summary(plan("a<=b", "a 0 +1 b 0 +2", "a 1 +1 b 0 +2")), "");
  EXPECT_EQ(check_summary(plan("a=b", "a 0 +1 b 0 +1", "a 1 +1 b 1 +1")), "");
  EXPECT_EQ(check_summary(plan("a<=b", "a 0 +1 b 0 +1", "a 1 +1 b 1 +1")), "D741@0:-1/1");
}

// The unmasked part is stated coordinate by coordinate; the sum is one box.
TEST(Masks, ThatTakeNothingAwayChangeNothing) {
  expect_sound(R"(mesh dp=2
list zero = 0 0
tensor O Output sum a 2 b 2 mask zero[a]<=b
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = O sum a dp +1
  goal x = O
  all_reduce x over dp
)");
}

// ---- walking along pieces

// The four rows in the middle are no rectangle of cells, and their content is unknown.
TEST(Unknown, IsAddedToFromBothSides) {
  for (const std::string part : {"a 2 b 3", "a 3 b 2"}) {
    for (const std::string unknown : {"x", "y"}) {
      const std::string plan = "mesh dp=1\ntensor G Grad " + part + R"( sum sample 1
program all on all
  buffer x rows 6 row_bytes 8 f32
  buffer y rows 6 row_bytes 8 f32
  given x = G
  given y = G sum none
  goal x[0 +1] = G a 0 +1 b 0 +1
  all_reduce )" + unknown + R"([1 +4] over dp operator max
  copy y to x add
  compute other
    reads x[5 +1] = G )" + (part == "a 2 b 3" ? "a 1 +1 b 2 +1" : "a 2 +1 b 1 +1") +
                               "\n";
      EXPECT_EQ(check_summary(plan), "") << plan;
    }
  }
}

TEST(Pieces, AreAddedToPiecesOfOtherLengths) {
  const auto plan = [](const std::string& last) {
    return R"(mesh dp=1
tensor G Grad tok 6 sum sample 2
program all on all
  buffer x rows 6 row_bytes 8 f32
  buffer y rows 6 row_bytes 8 f32
  given x[0 +1] = G tok 0 +1 sum sample 0 +1
  given x[1 +1] = G tok 1 +1 sum sample 0 +1
  given x[2 +4] = G tok 2 +4 sum sample 0 +1
  given y[0 +4] = G tok 0 +4 sum sample 1 +1
  given y[4 +2] = G tok )" +
           last + R"( sum sample 1 +1
  goal x = G
  copy y to x add
)";
  };
  EXPECT_EQ(check_summary(plan("4 +2")), "");
  EXPECT_EQ(check_summary(plan("3 +2")).substr(0, 8), "D743@0:0");
}

TEST(Rows, OfOneCellAreToldApart) {
  const auto plan = [](const std::string& first, const std::string& second) {
    return R"(mesh dp=1
tensor Q Query
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  given x = Q
  goal y = Q
  copy x[)" +
           first + " +1] to y[0 +1]\n  copy x[" + second + " +1] to y[1 +1]\n";
  };
  EXPECT_EQ(check_summary(plan("0", "1")), "");
  EXPECT_EQ(check_summary(plan("1", "0")), "D744@0:-1");
  EXPECT_EQ(check_summary(plan("0", "0")), "D744@0:-1");
}

TEST(Rows, OfMillionsOfCellsAreTheSameOnlyIfTheyAreWrittenSo) {
  const auto plan = [](const std::string& goal) {
    return R"(mesh dp=1
tensor Q Query tok 4000000
program all on all
  buffer x rows 1 row_bytes 8 f32
  given x = Q tok 0 +1500000 by 2
  goal x = Q tok )" +
           goal + "\n  compute other\n";
  };
  EXPECT_EQ(check_summary(plan("0 +750000 by 2 | 1500000 +750000 by 2")), "");
  EXPECT_EQ(check_summary(plan("1 +1500000 by 2")), "D744@0:-1");
}

TEST(Rows, OfOneCoordinateTwiceAreTwoRows) {
  const auto plan = [](const std::string& goal) {
    return R"(mesh dp=1
tensor Q Query tok 3
program all on all
  buffer x rows 3 row_bytes 8 f32
  given x = Q tok 1 +1 | 1 +1 | 2 +1
  goal x = Q tok )" +
           goal + "\n  compute other\n";
  };
  EXPECT_EQ(check_summary(plan("1 +1 | 1 +2")), "");
  EXPECT_EQ(check_summary(plan("0 +3")), "D744@0:-1");
}

// Two cells in a row, and three rows: a row is no part of a coordinate, nor a whole one.
TEST(Rows, ThatAreGatheredMustFollowEachOther) {
  const auto plan = [](const std::string& order, const std::string& given) {
    return "mesh dp=3\nlist order = " + order + R"(
tensor V Query a 2 b 6
program all on all
  buffer x rows 3 row_bytes 8 f32
  buffer y rows 3 row_bytes 8 f32
  given x = V b )" +
           given + R"(
  goal y = V b 0 +3
  all_gather x[order[dp] +1] to y over dp
)";
  };
  EXPECT_EQ(check_summary(plan("0 1 2", "0 +3")), "");
  EXPECT_EQ(check_summary(plan("0 2 1", "0 +3")).substr(0, 4), "D744");
  EXPECT_EQ(check_summary(plan("0 1 1", "0 +3")).substr(0, 4), "D744");
  EXPECT_EQ(check_summary(plan("0 1 2", "3*(dp div 2) +3")).substr(0, 4), "D744");
}

TEST(Statements, ThatFailInSeveralRowsAreToldOnce) {
  EXPECT_EQ(check_summary(R"(mesh dp=1
tensor Q Query tok 3
program all on all
  buffer x rows 3 row_bytes 8 f32
  given x[0 +1] = Q tok 1 +1
  given x[1 +1] = Q tok 1 +1
  given x[2 +1] = Q tok 1 +1
  compute other
    reads x = Q
)"),
            "D744@0:0");
}

// ---- listed rows

TEST(Lists, NameTheRowsThatACopyPacksAndUnpacks) {
  const auto plan = [](const std::string& from, const std::string& to, const std::string& goal) {
    return R"(mesh dp=1
list order = 4 2 5
list back = 0 1 2 3 5 1 2
tensor Q Query tok 3
tensor K Key pos 4
program all on all
  buffer x rows 6 row_bytes 8 f32
  buffer y rows 6 row_bytes 8 f32
  given x[0 +3] = Q
  given x[3 +3] = K pos 0 +3
  given y[0 +2] = Q tok 0 +2
  given y[2 +4] = K
  goal y = )" +
           goal + "\n  copy x" + from + " to y" + to + "\n";
  };
  const auto rows = [&](const std::string& from, const std::string& to) {
    std::string result;  // what each row of y then is
    for (int row = 0; row < 6; ++row) {
      for (const std::string cell :
           {"Q tok 0", "Q tok 1", "Q tok 2", "K pos 0", "K pos 1", "K pos 2", "K pos 3"}) {
        std::string text = plan(from, to, cell + " +1");
        text.replace(text.find("goal y"), 6, "goal y[" + std::to_string(row) + " +1]");
        if (check_summary(text).empty()) result += cell.substr(0, 1) + cell.substr(6) + " ";
      }
    }
    return result;
  };
  EXPECT_EQ(rows("[0 +0]", "[0 +0]"), "Q0 Q1 K0 K1 K2 K3 ");
  EXPECT_EQ(rows("[from order[0 +3]]", "[0 +3]"), "K1 Q2 K2 K1 K2 K3 ");
  EXPECT_EQ(rows("[0 +3]", "[from order[0 +3]]"), "Q0 Q1 Q1 K1 Q0 Q2 ");
  EXPECT_EQ(rows("[2 +2]", "[from order[1 +2]]"), "Q0 Q1 Q2 K1 K2 K0 ");
  EXPECT_EQ(rows("[from order[0 +3]]", "[from back[4 +3]]"), "Q0 Q2 K2 K1 K2 K1 ");
}

TEST(Lists, PutSumsWhereOthersAreAdded) {
  expect_sound(R"(mesh dp=1
list order = 1 0
tensor G Grad tok 2 sum sample 2
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  given x = G tok 1 +1 | 0 +1 sum sample 0 +1
  goal y = G
  copy x to y[from order[0 +2]]
  compute other
    adds y = G sum sample 1 +1
)");
}

// ---- reductions

TEST(Reductions, OfSeveralThingsKeepThemApart) {
  const auto plan = [](const std::string& scale, const std::string& goal) {
    return R"(mesh dp=3
tensor G Grad tok 2 sum sample 3
tensor H Grad pos 4 sum sample 3
program all on all
  buffer x rows 6 row_bytes 8 f32
  given x[0 +2] = G sum sample dp +1
  given x[2 +4] = H sum sample dp +1
  goal x[0 +2] = G)" +
           goal + "\n  goal x[2 +4] = H" + goal + "\n  all_reduce x over dp" + scale + "\n";
  };
  expect_sound(plan("", ""));
  expect_sound(plan(" scale 1/2", " scale 1/2"));
  EXPECT_EQ(check_summary(plan("", " scale 1/2")).substr(0, 4), "D745");
  EXPECT_EQ(check_summary(plan(" scale 1/2", "")).substr(0, 4), "D745");
}

TEST(Reductions, DealOutSeveralThings) {
  const std::string plan = R"(mesh dp=2
tensor G Grad tok 1 sum sample 2
tensor H Grad pos 3 sum sample 2
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 2 row_bytes 8 f32
  given x[0 +1] = G sum sample dp +1
  given x[1 +3] = H sum sample dp +1
  when dp=0
    goal y[0 +1] = G
    goal y[1 +1] = H pos 0 +1
  end
  when dp=1
    goal y = H pos 1 +2
  end
  reduce_scatter x to y over dp
)";
  EXPECT_EQ(check_summary(plan), "");
}

TEST(Reductions, DealOutThingsAsLongAsThePieces) {
  expect_sound(R"(mesh dp=2
tensor G Grad tok 2 sum sample 2
tensor H Grad pos 2 sum sample 2
program all on all
  buffer x rows 4 row_bytes 8 f32
  buffer y rows 4 row_bytes 8 f32
  given x[0 +2] = G sum sample dp +1
  given x[2 +2] = H sum sample dp +1
  given y[2 +2] = G
  goal y[2 +2] = G
  when dp=0
    goal y[0 +2] = G
  end
  when dp=1
    goal y[0 +2] = H
  end
  reduce_scatter x to y[0 +2] over dp
)");
}

// No two of the five boxes make a box.
TEST(Reductions, OfBoxesThatNoTwoOfWhichJoinAreWhole) {
  const auto plan = [](const std::string& last) {
    return R"(mesh dp=5
tensor G Grad sum a 3 b 3
program all on all
  buffer x rows 1 row_bytes 8 f32
  goal x = G
  when dp=0
    given x = G sum a 0 +1 b 0 +2
  end
  when dp=1
    given x = G sum a 0 +2 b 2 +1
  end
  when dp=2
    given x = G sum a 2 +1 b 1 +2
  end
  when dp=3
    given x = G sum a 1 +2 b 0 +1
  end
  when dp=4
    given x = G sum )" +
           last + "\n  end\n  all_reduce x over dp\n";
  };
  expect_sound(plan("a 1 +1 b 1 +1"));
  EXPECT_EQ(check_summary(plan("none")).substr(0, 4), "D741");
}

TEST(Reductions, ThatCountTwiceNameTheFirstTwoWhoBringIt) {
  const auto plan = [](const std::vector<std::string>& samples) {
    std::string text = "mesh dp=" + std::to_string(samples.size()) +
                       "\ntensor G Grad sum sample 9\nprogram all on all\n"
                       "  buffer x rows 1 row_bytes 8 f32\n";
    for (std::size_t k = 0; k < samples.size(); ++k) {
      text += "  when dp=" + std::to_string(k) + "\n    given x = G sum sample " + samples[k] +
              "\n  end\n";
    }
    return text + "  all_reduce x over dp\n  compute other\n    writes x = G\n  goal x = G\n";
  };
  EXPECT_EQ(check_summary(plan({"0 +1", "1 +1", "1 +1"})), "D742@1:0");
  EXPECT_EQ(check_summary(plan({"0 +1", "0 +1", "0 +1"})), "D742@0:0");
  EXPECT_EQ(check_summary(plan({"0 +1", "1 +1", "2 +1", "1 +2"})), "D742@1:0");
  EXPECT_EQ(check_summary(plan({"0 +1", "0 +1", "1 +1", "1 +1"})), "D742@0:0");
  EXPECT_THAT(first(plan({"0 +1", "1 +1", "2 +1", "1 +2"})).witness,
              ElementsAre(OperationId{1, 0}, OperationId{3, 0}));
}

// ---- uneven pieces

TEST(Splits, CutWhatIsGatheredScatteredAndTurned) {
  const auto plan = [](const std::string& body) {
    return R"(mesh dp=2
list cut = 0 1 5
list late = 1 2 6
list long = 0 1 2 5
list back = 0 5 1
list short = 0 5
tensor Q Query tok 5
tensor T Turned head 2 tok 5
tensor G Grad tok 5 sum sample 2
program all on all
  buffer x rows 5 row_bytes 8 f32
  buffer y rows 8 row_bytes 8 f32
)" + body;
  };
  const std::string part = "tok cut[dp] +1+3*dp";
  const std::string gather =
      "  given x[0 +1+3*dp] = Q " + part + "\n  goal y[0 +5] = Q\n  all_gather ";
  EXPECT_EQ(check_summary(plan(gather + "x[0 +1+3*dp] to y[0 +5] over dp split cut\n")), "");
  EXPECT_EQ(
      check_summary(plan(gather + "x[0 +4-3*dp] to y[0 +5] over dp split cut\n")).substr(0, 4),
      "D704");
  for (const std::string list : {"late", "long", "back", "short"}) {
    EXPECT_EQ(check_summary(plan(gather + "x[0 +1+3*dp] to y[0 +5] over dp split " + list + "\n"))
                  .substr(0, 4),
              "D704");
  }
  EXPECT_EQ(
      check_summary(
          plan("  given x = Q\n  goal y[0 +5] = Q\n  all_gather x to y[0 +5] over dp split cut\n"))
          .substr(0, 4),
      "D704");
  const std::string place =
      "  given x[cut[dp] +1+3*dp] = Q " + part + "\n  goal x = Q\n  all_gather ";
  EXPECT_EQ(check_summary(plan(place + "x over dp split cut\n")), "");
  EXPECT_EQ(check_summary(plan(place + "x[cut[dp] +1+3*dp] to x over dp split cut\n")), "");
  EXPECT_EQ(check_summary(plan(place + "x[dp +1+3*dp] to x over dp split cut\n")), "");
  EXPECT_EQ(
      check_summary(
          plan(
              "  given x = Q\n  goal x = Q\n  all_gather x[1-dp +1+3*dp] to x over dp split cut\n"))
          .substr(0, 4),
      "D731");
  EXPECT_EQ(check_summary(plan(place + "x over dp split short\n")).substr(0, 4), "D704");
  const std::string scatter = "  given x = G sum sample dp +1\n";
  EXPECT_EQ(check_summary(plan(scatter + "  goal y[0 +1+3*dp] = G " + part +
                               "\n  reduce_scatter x to y[0 +1+3*dp] over dp split cut\n")),
            "");
  EXPECT_EQ(check_summary(plan(scatter + "  goal x[cut[dp] +1+3*dp] = G " + part +
                               "\n  reduce_scatter x over dp split cut\n")),
            "");
  EXPECT_EQ(check_summary(plan(scatter + "  goal x[cut[dp] +1+3*dp] = G " + part +
                               "\n  reduce_scatter x to x[cut[dp] +1+3*dp] over dp split cut\n")),
            "");
  EXPECT_EQ(check_summary(plan(scatter + "  goal y[0 +1+3*dp] = G " + part +
                               "\n  reduce_scatter x[0 +4] to y[0 +1+3*dp] over dp split cut\n"))
                .substr(0, 4),
            "D704");
  EXPECT_EQ(
      check_summary(plan("  given x = T head dp +1 tok 0 +5\n  goal y[0 +2+6*dp] = T head 0 +2 " +
                         part + "\n  all_to_all x to y[0 +2+6*dp] over dp split cut\n")),
      "");
}

// An operation that writes its own piece of a region writes no other rows.
TEST(Splits, CutWhatAnInPlaceCallTouches) {
  const auto plan = [](const std::string& rows) {
    return R"(mesh dp=2
list cut = 0 1 3
tensor Q Query tok 3
tensor K Key
program all on all
  buffer x rows 3 row_bytes 8 f32
  buffer y rows 3 row_bytes 8 f32
  streams s
  given x[cut[dp] +1+dp] = Q tok cut[dp] +1+dp
  goal x = Q
  @s copy x[)" +
           rows + R"( +1] to y[0 +1]
  all_gather x over dp split cut
)";
  };
  EXPECT_EQ(check_summary(plan("0")), "D730@0:1/1");
}

// A reduction in place may write all that it reads.
TEST(Races, WithAReductionInPlaceAreOnAllItsRows) {
  EXPECT_EQ(check_summary(R"(mesh dp=2
program all on all
  buffer x rows 2 row_bytes 8 f32
  buffer y rows 1 row_bytes 8 f32
  streams s
  @s copy x[1 +1] to y
  reduce_scatter x over dp operator max
)"),
            "D730@0:1/1");
}

TEST(Races, AreToldOfTheNextWriteAlone) {
  EXPECT_EQ(check_summary(R"(mesh dp=1
program all on all
  buffer x rows 4 row_bytes 8 f32
  streams s, t
  @s copy x[0 +1] to x[1 +1]
  @t copy x[0 +1] to x[2 +1]
  copy x[3 +1] to x[0 +1]
  copy x[3 +1] to x[0 +1]
)"),
            "D730@0:2/1");
}

// ---- exchanges

TEST(Exchanges, AddWhatSeveralRanksSend) {
  const auto plan = [](const std::string& add) {
    return R"(mesh ep=3
table home
  message 0 0 0 1 1
  message 1 0 0 1 1
  message 2 0 0 1 1
program all on all
)" + std::string("  buffer x rows 1 row_bytes 8 f32\n  buffer y rows 2 row_bytes 8 f32\n") +
           "  given x = G sum sample ep +1\n  given y = G sum none\n  when ep=0\n"
           "    goal y[1 +1] = G tok 1 +1\n  end\n  exchange x to y by home over ep" +
           add + "\n";
  };
  const std::string tensor = "tensor G Grad tok 2 sum sample 3\n";
  const auto with = [&](const std::string& add) {
    std::string text = plan(add);
    text.insert(text.find("table"), tensor);
    text.replace(text.find("given x = G sum"), 15, "given x = G tok 1 +1 sum");
    return text;
  };
  EXPECT_EQ(check_summary(with(" add")), "");
  EXPECT_EQ(check_summary(with("")).substr(0, 8), "D731@0:0");
}

}  // namespace
}  // namespace shiplap::check
