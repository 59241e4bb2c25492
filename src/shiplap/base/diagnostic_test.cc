#include "shiplap/base/diagnostic.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace shiplap {
namespace {

Diagnostic example() {
  return {.code = "D101",
          .severity = Severity::error,
          .where = {.file = "step.plan",
                    .line = 12,
                    .column = 9,
                    .length = 2,
                    .excerpt = "  reads ww = W[0]",
                    .flag = "",
                    .rank = 3,
                    .operation = "b[1]: compute backward"},
          .what = "no buffer is called `ww`",
          .why = "the rule behind it",
          .help = "did you mean `w`?"};
}

Diagnostic at(int column, int length, std::string excerpt) {
  Diagnostic d;
  d.what = "x";
  d.where.line = 1;
  d.where.column = column;
  d.where.length = length;
  d.where.excerpt = std::move(excerpt);
  return d;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result(1);
  for (const char c : text) {
    if (c == '\n') {
      result.emplace_back();
    } else {
      result.back() += c;
    }
  }
  result.pop_back();  // the text ends with a newline
  return result;
}

// The excerpt and the marks, behind their gutter "1 | ".
std::string excerpt_line(const Diagnostic& d) { return lines(render(d)).at(3).substr(4); }
std::string marks_line(const Diagnostic& d) { return lines(render(d)).at(4).substr(4); }

std::string without_colour(std::string text) {
  for (auto begin = text.find("\033["); begin != text.npos; begin = text.find("\033[")) {
    text.erase(begin, text.find('m', begin) + 1 - begin);
  }
  return text;
}

std::size_t code_points(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

TEST(Render, LooksAsPromised) {
  EXPECT_EQ(render(example()),
            "error[D101]: no buffer is called `ww`\n"
            "  --> step.plan:12:9, rank 3, b[1]: compute backward\n"
            "   |\n"
            "12 |   reads ww = W[0]\n"
            "   |         ^^\n"
            "   = the rule behind it\n"
            "   help: did you mean `w`?\n");
}

TEST(Render, LeavesOutWhatIsNotKnown) {
  Diagnostic d;
  d.what = "out of luck";
  EXPECT_EQ(render(d), "error: out of luck\n");
  d.code = "D003";
  d.severity = Severity::warning;
  d.where.flag = "--ranks";
  d.help = "write `--ranks 8`";
  EXPECT_EQ(render(d),
            "warning[D003]: out of luck\n"
            " --> --ranks\n"
            "  help: write `--ranks 8`\n");
  d.where.file = "a.json";
  EXPECT_EQ(lines(render(d)).at(1), " --> a.json, --ranks");
  d.where.line = 7;
  EXPECT_EQ(lines(render(d)).at(1), " --> a.json:7, --ranks");
  d.where.file.clear();
  d.where.rank = 0;
  EXPECT_EQ(lines(render(d)).at(1), " --> line 7, --ranks, rank 0");
  d.severity = Severity::note;
  EXPECT_TRUE(render(d).starts_with("note[D003]"));
}

TEST(Render, MarksNothingWithoutAColumn) {
  Diagnostic d = at(0, 1, "some text");
  EXPECT_EQ(render(d), "error: x\n --> line 1\n  |\n1 | some text\n");
  d.where.line = 0;
  EXPECT_EQ(render(d), "error: x\n  |\n  | some text\n");
}

TEST(Render, MarksStandBelowWhatTheyMark) {
  const std::string text = "abcdefgh";
  for (int column = 1; column <= 8; ++column) {
    for (int length = 1; column + length <= 9; ++length) {
      const std::string marks = marks_line(at(column, length, text));
      EXPECT_EQ(marks, std::string(column - 1, ' ') + std::string(length, '^'));
    }
  }
}

TEST(Render, MarksTheEndOfTheLineWhenTheColumnIsPastIt) {
  EXPECT_EQ(marks_line(at(4, 1, "abc")), "   ^");
  EXPECT_EQ(marks_line(at(99, 7, "abc")), "   ^");
  EXPECT_EQ(marks_line(at(2, 99, "abc")), " ^^");
  EXPECT_EQ(marks_line(at(2, -5, "abc")), " ^");
}

TEST(Render, CopiesTabsSoThatTheMarksLineUp) {
  EXPECT_EQ(excerpt_line(at(4, 2, "\ta\tbc")), "\ta\tbc");
  EXPECT_EQ(marks_line(at(4, 2, "\ta\tbc")), "\t \t^^");
}

TEST(Render, CountsCharactersAndNotBytes) {
  const std::string text = "é€😀x";  // 2, 3, 4 and 1 bytes
  EXPECT_EQ(excerpt_line(at(10, 1, text)), text);
  EXPECT_EQ(marks_line(at(10, 1, text)), "   ^");
  EXPECT_EQ(marks_line(at(3, 7, text)), " ^^");
  EXPECT_EQ(marks_line(at(4, 1, text)), " ^");  // in the middle of a character
}

TEST(Render, LeavesOutTheEndOfTheLine) { EXPECT_EQ(excerpt_line(at(1, 1, "abc\r\n")), "abc"); }

TEST(Render, ShowsAllOfALineThatIsNotTooLong) {
  const std::string text(96, 'a');
  EXPECT_EQ(excerpt_line(at(50, 1, text)), text);
}

// Every position of a long line is shown with its context, and the mark is below it. Of the
// 96 characters that are shown, 32 come before the column, as long as 63 come after it.
TEST(Render, CutsALongLineAroundTheColumn) {
  std::string text(1000, '.');
  for (int column = 1; column <= 1000; ++column) {
    const auto index = static_cast<std::size_t>(column - 1);
    text[index] = '#';
    const Diagnostic d = at(column, 1, text);
    text[index] = '.';
    const std::string line = excerpt_line(d);
    EXPECT_LE(code_points(line), 98u);
    const auto place = line.find('#');
    ASSERT_NE(place, line.npos) << column;
    EXPECT_EQ(marks_line(d), std::string(code_points(line.substr(0, place)), ' ') + "^") << column;
    EXPECT_EQ(line.starts_with("…"), column > 33);
    EXPECT_EQ(line.ends_with("…"), column < 937);
  }
}

TEST(Render, CutsTheMarksWithTheLine) {
  const std::string marks = marks_line(at(500, 1000, std::string(2000, 'a')));
  EXPECT_EQ(code_points(marks), 97u);
  EXPECT_EQ(marks.back(), '^');
}

TEST(Render, CutsBetweenCharacters) {
  for (const std::string character : {"é", "€", "😀"}) {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += character;
    const int bytes = static_cast<int>(text.size());
    for (int column = 1; column <= bytes + 1; ++column) {
      const std::string line = excerpt_line(at(column, 1, text));
      ASSERT_EQ(line.find('?'), line.npos) << character << column;
      ASSERT_EQ(line.starts_with("…"), column > 33 * static_cast<int>(character.size()));
      ASSERT_GE(code_points(line), 96u) << character << column;
    }
  }
}

TEST(Render, ShowsAnEnormousLineQuickly) {
  const Diagnostic d = at(4'000'000, 1, std::string(8'000'000, 'a'));
  EXPECT_EQ(code_points(excerpt_line(d)), 98u);
}

bool is_harmless(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) return false;
    const bool c1 = byte == 0xC2 && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) return false;
  }
  return true;
}

TEST(Render, SendsNoCommandToTheTerminal) {
  for (const std::string evil : {"\033[2J", "\b\b\b", "\x7F",
                                 "\xC2\x9B"
                                 "2J",
                                 "\r", "a\rb", "\x01"}) {
    Diagnostic d = at(1, 1, "a" + evil + "b");
    d.code = d.what = d.why = d.help = evil;
    d.where.file = d.where.flag = d.where.operation = evil;
    EXPECT_TRUE(is_harmless(render(d))) << render(d);
  }
  EXPECT_EQ(excerpt_line(at(1, 1, "a\033[2Jb")), "a?[2Jb");
  EXPECT_EQ(excerpt_line(at(1, 1,
                            "a\xE2\x80\xAE"
                            "b")),
            "a?b");  // U+202E would turn the rest around
}

TEST(Render, ShowsBytesThatAreNotUtf8AsQuestionMarks) {
  EXPECT_EQ(excerpt_line(at(1, 1,
                            "a\xFF\xC3"
                            "b")),
            "a??b");
  EXPECT_EQ(marks_line(at(4, 1,
                          "a\xFF\xC3"
                          "b")),
            "   ^");
}

TEST(Render, KeepsTheLinesOfAnExplanationTogether) {
  Diagnostic d;
  d.what = "one\ntwo";
  d.why = "first\nsecond";
  d.help = "third\nfourth";
  EXPECT_EQ(render(d),
            "error: one?two\n"
            "  = first\n"
            "    second\n"
            "  help: third\n"
            "        fourth\n");
}

TEST(Render, ColourChangesNothingElse) {
  for (const Severity severity : {Severity::note, Severity::warning, Severity::error}) {
    Diagnostic d = example();
    d.severity = severity;
    EXPECT_NE(render(d, Colour::on), render(d));
    EXPECT_EQ(without_colour(render(d, Colour::on)), render(d));
  }
}

TEST(Render, PaintsTheSeverityAndTheHelp) {
  Diagnostic d = example();
  EXPECT_NE(render(d, Colour::on).find("\033[1;31merror[D101]\033[0m: "), std::string::npos);
  EXPECT_NE(render(d, Colour::on).find("\033[1;31m^^\033[0m\n"), std::string::npos);
  EXPECT_NE(render(d, Colour::on).find("\033[32mhelp:\033[0m did"), std::string::npos);
  d.severity = Severity::warning;
  EXPECT_TRUE(render(d, Colour::on).starts_with("\033[1;33mwarning[D101]\033[0m"));
  d.severity = Severity::note;
  EXPECT_TRUE(render(d, Colour::on).starts_with("\033[1;36mnote[D101]\033[0m"));
}

TEST(Render, PutsAnEmptyLineBetweenTwo) {
  Diagnostic d;
  d.what = "x";
  EXPECT_EQ(render(std::vector<Diagnostic>{d, d}), "error: x\n\nerror: x\n");
  EXPECT_EQ(render(std::vector<Diagnostic>{}), "");
}

TEST(Render, CutsTextsAndListsThatAreTooLong) {
  Diagnostic d;
  d.what = std::string(8'000'000, 'x');
  d.why = std::string(1'000'000, '\n');
  const std::string text = render(d);
  EXPECT_LT(text.size(), 100'000U);
  EXPECT_NE(text.find("xxx…\n"), std::string::npos);
  d = {.what = "x"};
  const std::string many = render(std::vector<Diagnostic>(1'000'000, d));
  EXPECT_LT(many.size(), 10'000U);
  EXPECT_TRUE(many.ends_with("error: x\n\nand 999900 more\n")) << many;
}

TEST(ToJson, HasAllThatIsKnown) {
  Diagnostic d = example();
  d.where.flag = "--plan";
  EXPECT_EQ(to_text(to_json(d), Layout::compact),
            R"({"code":"D101","severity":"error","what":"no buffer is called `ww`",)"
            R"("why":"the rule behind it","help":"did you mean `w`?",)"
            R"("where":{"file":"step.plan","line":12,"column":9,"flag":"--plan","rank":3,)"
            R"("operation":"b[1]: compute backward"}})");
}

TEST(ToJson, HasNothingThatIsNotKnown) {
  Diagnostic d;
  d.code = "D001";
  d.severity = Severity::note;
  d.what = "x";
  EXPECT_EQ(to_text(to_json(d), Layout::compact),
            R"({"code":"D001","severity":"note","what":"x"})");
  d.where.rank = 0;
  EXPECT_EQ(to_text(*to_json(d).find("where"), Layout::compact), R"({"rank":0})");
}

}  // namespace
}  // namespace shiplap
