#include "shiplap/dispatch/json.h"

#include <gtest/gtest.h>

#include <string>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"
#include "shiplap/dispatch/testing_internal.h"

namespace shiplap::dispatch {
namespace {

// The example of two dimensions that the format was first described with; its two pieces of 128
// tokens both go to rank 1, offset 0.
constexpr const char* kUnsound = R"({
  "dst_rank": [[1, 0, -1], [0, 1, 0]],
  "dst_offset": [[0, 128, 0], [0, 0, 256]],
  "seq_len": [[128, 64, 0], [96, 128, 32]]
})";

QkvDispatch any_dispatch(std::uint64_t seed) {
  Random random(seed);
  return create_qkv_dispatch({.world_size = static_cast<int>(random.between(1, 6)),
                              .total_seq_len = static_cast<std::uint32_t>(random.between(4, 40)),
                              .num_seqs = static_cast<int>(random.between(1, 5)),
                              .max_cp_degree = static_cast<int>(random.between(1, 5)),
                              .seed = seed});
}

// The only diagnostic that reading throws.
Diagnostic rejected(const std::string& text) {
  try {
    (void)read_dispatch(text, "d.json");
  } catch (const InputError& error) {
    return error.diagnostics().at(0);
  }
  return {};
}

TEST(DispatchFile, ReadsBackWhatWasWritten) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const QkvDispatch dispatch = any_dispatch(seed);
    const DispatchFile file = read_dispatch(to_text(to_json(dispatch)), "d.json");
    ASSERT_EQ(file.tables.size(), 4U) << "seed " << seed;
    EXPECT_EQ(to_sparse(file.tables[0].table), dispatch.q.forward) << "seed " << seed;
    EXPECT_EQ(to_sparse(file.tables[1].table), dispatch.q.reverse) << "seed " << seed;
    EXPECT_EQ(to_sparse(file.tables[2].table), dispatch.kv.forward) << "seed " << seed;
    EXPECT_EQ(to_sparse(file.tables[3].table), dispatch.kv.reverse) << "seed " << seed;
    EXPECT_EQ(file.attention, dispatch.attention) << "seed " << seed;
    EXPECT_TRUE(file.warnings.empty());
    EXPECT_TRUE(validate(file).empty()) << "seed " << seed << render(validate(file));
  }
}

TEST(DispatchFile, MayHaveTheBytesOfAToken) {
  const QkvDispatch dispatch = any_dispatch(3);
  EXPECT_FALSE(read_dispatch(to_text(to_json(dispatch)), "d.json").token_bytes);
  const TokenBytes bytes{.q = 16384, .kv = 4096};
  EXPECT_EQ(read_dispatch(to_text(to_json(dispatch, bytes)), "d.json").token_bytes, bytes);
  for (const Json& wrong : {Json(0), Json(-1), Json("16"), Json((std::int64_t{1} << 30) + 1)}) {
    EXPECT_EQ(rejected(to_text(to_json(dispatch, bytes).set("q_row_bytes", wrong))).code, "D413");
  }
  EXPECT_EQ(rejected(to_text(to_json(dispatch).set("kv_row_bytes", 8))).code, "D413");
}

TEST(DispatchFile, OfOneTableIsReadAndChecked) {
  const Metadata metadata = any_dispatch(3).kv.forward;
  const DispatchFile file = read_dispatch(to_text(to_json(metadata)), "d.json");
  ASSERT_EQ(file.tables.size(), 1U);
  EXPECT_EQ(file.tables[0].name, "metadata");
  EXPECT_EQ(to_sparse(file.tables[0].table), metadata);
  EXPECT_TRUE(validate(file).empty());
}

TEST(DispatchFile, OfTheFirstDescriptionIsUnsound) {
  const DispatchFile file = read_dispatch(kUnsound, "d.json");
  const auto found = validate(file);
  ASSERT_EQ(found.size(), 1U) << render(found);
  EXPECT_EQ(found[0].code, "D405");
  EXPECT_EQ(found[0].where.rank, 1);
  EXPECT_NE(found[0].what.find("tokens 0 to 128 of rank 1"), std::string::npos) << found[0].what;
}

TEST(DispatchFile, WithoutAUnitMeansTokensAndWarns) {
  const DispatchFile file = read_dispatch(kUnsound, "d.json");
  ASSERT_EQ(file.warnings.size(), 1U);
  EXPECT_EQ(file.warnings[0].code, "D415");
  EXPECT_EQ(file.warnings[0].severity, Severity::warning);
  EXPECT_EQ(file.tables[0].table.dst_offset[1], 128);
}

TEST(DispatchFile, MayCountBytes) {
  const std::string text = R"({"offset_unit": "bytes", "row_bytes": 64,
    "dst_rank": [[0, 0]], "dst_offset": [[0, 640]], "seq_len": [[10, 5]]})";
  const DispatchFile file = read_dispatch(text, "d.json");
  EXPECT_TRUE(file.warnings.empty());
  EXPECT_EQ(file.tables[0].table.dst_offset[1], 10);
  EXPECT_TRUE(validate(file).empty());
}

TEST(DispatchFile, WithBytesInsideATokenIsRefused) {
  EXPECT_EQ(rejected(R"({"offset_unit": "bytes", "row_bytes": 64,
    "dst_rank": [[0]], "dst_offset": [[32]], "seq_len": [[10]]})")
                .code,
            "D404");
}

TEST(DispatchFile, MayGiveTheSizesOfBuffers) {
  const std::string text = R"({"offset_unit": "tokens", "buffer_tokens": [14],
    "dst_rank": [[0, 0]], "dst_offset": [[0, 10]], "seq_len": [[10, 5]]})";
  const auto found = validate(read_dispatch(text, "d.json"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].code, "D404");
}

TEST(DispatchFile, AMaskHasZeroesAndOnes) {
  for (const char* value : {"2", "-1", "256", "4294967296"}) {
    const std::string text = R"({"dst_rank": [[[0]]], "dst_offset": [[[0]]], "seq_len": [[1]],
      "seq_recv_mask": [[[)" +
                             std::string(value) + "]]]}";
    EXPECT_EQ(rejected(text).what, "expected 0 or 1, found " + std::string(value));
  }
}

TEST(DispatchFile, WithWrongFieldsIsRefused) {
  EXPECT_EQ(rejected("[1]").code, "D413");
  EXPECT_EQ(rejected("{}").code, "D413");
  EXPECT_EQ(rejected("{").code, "D010");
  EXPECT_EQ(rejected(R"({"dst_rank": [[0]], "dst_offset": [[0]]})").what, "`seq_len` is missing");
  EXPECT_EQ(rejected(R"({"dst_rank": [[0.5]], "dst_offset": [[0]], "seq_len": [[1]]})").code,
            "D413");
  EXPECT_EQ(rejected(R"({"dst_rank": 3, "dst_offset": [[0]], "seq_len": [[1]]})").code, "D413");
  const Diagnostic typo = rejected(R"({"dst_rank": [[0]], "dst_ofset": [[0]], "seq_len": [[1]]})");
  EXPECT_EQ(typo.code, "D413");
  EXPECT_EQ(typo.help, "did you mean `dst_offset`?");
  EXPECT_EQ(rejected(R"({"offset_unit": "words", "dst_rank": [[0]], "dst_offset": [[0]],
    "seq_len": [[1]]})")
                .code,
            "D413");
  EXPECT_EQ(rejected(R"({"offset_unit": "bytes", "dst_rank": [[0]], "dst_offset": [[0]],
    "seq_len": [[1]]})")
                .code,
            "D413");
}

// Unknown fields are errors, not ignored.
TEST(DispatchFile, WithFieldsInTheWrongPlaceIsRefused) {
  const Json whole = to_json(any_dispatch(2));
  for (const char* const field : {"offset_unit", "row_bytes", "buffer_tokens", "schema"}) {
    Json json = whole;
    Json table = *json.find("q_forward");
    json.set("q_forward", table.set(field, 1));
    EXPECT_EQ(rejected(to_text(json)).code, "D413") << field;
  }
  Json other = whole;
  EXPECT_EQ(rejected(to_text(other.set("schema", "something.else/9"))).code, "D413");
  Json attention = whole;
  Json layout = *attention.find("attention");
  EXPECT_EQ(rejected(to_text(attention.set("attention", layout.set("num_local_seqs", 9)))).code,
            "D413");
}

TEST(DispatchFile, MayLeaveOutWhatFollows) {
  // 20,000 ranks without a row: no table of their square is made.
  std::string rows = "[[]";
  for (int k = 1; k < 20000; ++k) rows += ",[]";
  rows += "]";
  const std::string text = R"({"offset_unit": "tokens", "dst_rank": )" + rows +
                           R"(, "dst_offset": )" + rows + R"(, "seq_len": )" + rows + "}";
  EXPECT_TRUE(validate(read_dispatch(text, "d.json")).empty());
}

TEST(DispatchFile, WithLengthsThatOverflowIsRefused) {
  const DispatchFile file = read_dispatch(R"({"offset_unit": "tokens", "dst_rank": [[0, 0]],
    "dst_offset": [[0, 0]], "seq_len": [[9223372036854775807, 9223372036854775807]]})",
                                          "d.json");
  EXPECT_EQ(validate(file).at(0).code, "D410");
}

TEST(DispatchFile, WithRowsOfDifferentLengthIsRefused) {
  EXPECT_EQ(rejected(R"({"dst_rank": [[0, 1], [0]], "dst_offset": [[0]], "seq_len": [[1]]})").code,
            "D401");
  EXPECT_EQ(rejected(R"({"world_size": 3, "dst_rank": [[0]], "dst_offset": [[0]],
    "seq_len": [[1]]})")
                .code,
            "D401");
}

TEST(DispatchFile, WhoseCumulativeLengthsFallIsRefused) {
  Json json = to_json(any_dispatch(1));
  json.set("attention",
           parse_json(R"({"cu_seqlens_q": [[0, 5, 3]], "cu_seqlens_kv": [[0, 5, 9]]})", "a"));
  EXPECT_EQ(rejected(to_text(json)).code, "D401");
}

// A file that was cut off or has a wrong bit ends in a diagnostic or is still sound; nothing else.
TEST(DispatchFile, SurvivesDamage) {
  const std::string text = to_text(to_json(any_dispatch(7)), shiplap::Layout::compact);
  for (std::size_t end = 0; end < text.size(); end += 7) {
    EXPECT_FALSE(rejected(text.substr(0, end)).code.empty()) << "cut at " << end;
  }
  Random random(1);
  int found = 0;
  for (int k = 0; k < 1000; ++k) {
    std::string flipped = text;
    char& victim = flipped[random.between(0, std::ssize(flipped))];
    victim = static_cast<char>(victim ^ (1 << random.between(0, 8)));
    try {
      if (!validate(read_dispatch(flipped, "d.json")).empty()) ++found;
    } catch (const InputError&) {
      ++found;
    }
  }
  // What is left changed nothing that is counted: white space, an offset that padding ignores.
  EXPECT_GT(found, 960);
}

}  // namespace
}  // namespace shiplap::dispatch
