#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "shiplap/base/error.h"
#include "shiplap/hardware/system.h"

namespace shiplap::hardware {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSmall = R"({
  "note": "for tests",
  "matrix": { "float16": { "tflops": 100, "gflops_efficiency": [[2, 0.5], [0, 0.1]] } },
  "vector": { "float32": { "tflops": 1.5, "gflops_efficiency": [[0, 1]], "source": "none" } },
  "mem1": { "GiB": 1.5, "GBps": 1000, "MB_efficiency": [[3, 0.75], [0, 0.25]] },
  "mem2": { "GiB": 0, "GBps": 10, "MB_efficiency": [[0, 1]] },
  "processing_mode": "no_overlap",
  "networks": [{
    "bandwidth": 7, "efficiency": 0.5, "size": 8, "latency": 0.25,
    "ops": { "p2p": [1, null], "reduce_scatter": [1.5, -1], "all_gather": [3, 0],
             "all_reduce": [2, 1] },
    "must_be_filled": true, "processor_usage": 0.125
  }]
})";

std::vector<Diagnostic> problems(const std::string& text) {
  try {
    (void)parse_system(text, "dir/my.machine.json");
  } catch (const InputError& error) {
    return error.diagnostics();
  }
  return {};
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  const std::size_t at = text.find(from);
  ensure(at != std::string::npos, "the test names a part of the text");
  return text.replace(at, from.size(), to);
}

// The one problem that a text has.
Diagnostic problem(const std::string& from, const std::string& to) {
  const std::vector<Diagnostic> found = problems(replaced(from, to));
  EXPECT_EQ(found.size(), 1U) << render(found);
  return found.empty() ? Diagnostic() : found[0];
}

// The speed of a listed type.
const Processor::Speed& listed(const Processor& processor, DType type) {
  ensure(processor.speed(type).has_value(), "the test asks for what is listed");
  return *processor.usable(type);
}

TEST(ParseSystem, UnderstandsEveryField) {
  const System system = parse_system(kSmall, "dir/my.machine.json");
  EXPECT_EQ(system.name, "my.machine");
  const Processor::Speed& matrix = listed(system.matrix, DType::f16);
  EXPECT_EQ(matrix.peak.flops_per_second, 1e14);
  EXPECT_EQ(matrix.efficiency.of(2e9), 0.5);
  EXPECT_EQ(matrix.efficiency.of(1.999e9), 0.1);
  EXPECT_FALSE(system.matrix.speed(DType::f32).has_value());
  EXPECT_EQ(listed(system.vector, DType::f32).peak.flops_per_second, 1.5e12);
  EXPECT_EQ(system.mem1.capacity, Bytes{3 << 29});
  EXPECT_EQ(system.mem1.throughput({3'000'000}).bytes_per_second, 750e9);
  EXPECT_EQ(system.mem1.throughput({2'999'999}).bytes_per_second, 250e9);
  EXPECT_EQ(system.mem2.capacity, Bytes{0});
  EXPECT_EQ(system.mem2.peak.bytes_per_second, 10e9);
  EXPECT_EQ(system.processing_mode, ProcessingMode::no_overlap);
  EXPECT_EQ(system.launch.value, 0);
  const Network expected{.bandwidth = {7e9},
                         .efficiency = 0.5,
                         .size = 8,
                         .latency = {0.25},
                         .p2p = {.scalar = 1, .offset = 0},
                         .reduce_scatter = {.scalar = 1.5, .offset = -1},
                         .all_gather = {.scalar = 3, .offset = 0},
                         .all_reduce = {.scalar = 2, .offset = 1},
                         .must_be_filled = true,
                         .processor_usage = 0.125};
  EXPECT_THAT(system.networks, ElementsAre(expected));
}

// All fields that Calculon's files do not have.
constexpr const char* kFabric = R"({
  "matrix": { "float16": { "tflops": 100, "gflops_efficiency": { "limit": 0.7, "half": 2 } } },
  "vector": { "float32": { "tflops": 1.5, "gflops_efficiency": [[0, 1]] } },
  "mem1": { "GiB": 1.5, "GBps": 1000, "MB_efficiency": { "limit": 0.9, "half": 3 } },
  "mem2": { "GiB": 0, "GBps": 10, "MB_efficiency": [[0, 1]] },
  "processing_mode": "roofline",
  "launch": 3e-6,
  "node": { "devices": 4, "adapters": 2, "basis": { "published": ["devices", "adapters"] } },
  "networks": [{
    "kind": "NVLink", "bandwidth": 7, "efficiency": 0.5, "size": 8, "latency": 0.25,
    "collectives": { "latency": 1.5, "ramp": 6, "in_switch": { "share": 0.5, "ramp": 7 },
                     "one_peer": { "GBps": 80, "MiB": 64 } },
    "must_be_filled": true, "processor_usage": 0.125,
    "basis": { "published": ["bandwidth"], "fitted": ["collectives"], "assumed": ["latency"] }
  }, {
    "bandwidth": 3, "efficiency": 0.5, "size": 64, "latency": 0.25,
    "leaf": { "nodes": 16, "oversubscription": 1.5 },
    "collectives": { "ll": 0.25, "ll128": 0.75 },
    "must_be_filled": false, "processor_usage": 0
  }]
})";

TEST(ParseSystem, UnderstandsTheFabric) {
  const System system = parse_system(kFabric, "fabric.json");
  EXPECT_DOUBLE_EQ(listed(system.matrix, DType::f16).efficiency.of(2e9), 0.35);
  EXPECT_DOUBLE_EQ(system.mem1.efficiency.of(3e6), 0.45);
  EXPECT_EQ(system.launch.value, 3e-6);
  EXPECT_EQ(system.node, (Node{.devices = 4, .adapters = 2}));
  const Network& inner = system.networks[0];
  EXPECT_EQ(inner.kind, "NVLink");
  EXPECT_FALSE(inner.leaf.has_value());
  // A ramp of 6 is 6 us for 10^6 bytes.
  CollectiveRates expected{.latency = 1.5, .ramp = 1e-9 * 6};
  expected.in_switch = {.share = 0.5, .ramp = 1e-9 * 7};
  expected.one_peer = {.bandwidth = {80e9}, .bytes = {64 << 20}};
  EXPECT_EQ(inner.collectives, expected);
  EXPECT_EQ(system.networks[1].collectives, (CollectiveRates{.ll = 0.25, .ll128 = 0.75}));
  EXPECT_EQ(system.networks[1].leaf, (Leaf{.nodes = 16, .oversubscription = 1.5}));
  const auto figure = [](const char* path, Basis basis) {
    return FigureBasis{.path = path, .basis = basis};
  };
  EXPECT_THAT(system.figures,
              ::testing::UnorderedElementsAre(figure("node.devices", Basis::published),
                                              figure("node.adapters", Basis::published),
                                              figure("networks[0].bandwidth", Basis::published),
                                              figure("networks[0].collectives", Basis::fitted),
                                              figure("networks[0].latency", Basis::assumed)));
}

TEST(ParseSystem, SaysWhatIsWrongWithAFabric) {
  struct Case {
    const char* from;
    const char* to;
    const char* path;
    const char* what;
  };
  const std::vector<Case> cases{
      {"\"limit\": 0.7", "\"limit\": 1.7", "matrix.float16.gflops_efficiency.limit", "at most 1"},
      {"\"limit\": 0.9, ", "", "mem1.MB_efficiency.limit", "`limit` is missing"},
      {"\"devices\": 4", "\"devices\": 0", "node.devices", "at least 1"},
      {"\"adapters\": 2,", "\"adapters\": 2.5,", "node.adapters", "an integer"},
      {"\"NVLink\"", "4", "networks[0].kind", "expected a string"},
      {"\"share\": 0.5", "\"share\": 2", "networks[0].collectives.in_switch.share", "at most 1"},
      {"\"MiB\": 64", "\"MiB\": -1", "networks[0].collectives.one_peer.MiB", "at least 0"},
      {"\"ll\"", "\"lll\"", "networks[1].collectives.lll", "unknown key `lll`"},
      {"1.5 },\n    \"coll", "0.5 },\n    \"coll", "networks[1].leaf.oversubscription",
       "at least 1"},
      {"\"collectives\": { \"ll\": 0.25, \"ll128\": 0.75 }",
       "\"ops\": { \"p2p\": [1, 0], \"reduce_scatter\": [1, -1], \"all_gather\": [1, -1], "
       "\"all_reduce\": [2, -1] }",
       "networks[1]", "all networks must have `collectives`, or none"},
      {"[\"latency\"]", "[\"latncy\"]", "networks[0].basis.assumed[0]", "not a key"},
      {"\"fitted\"", "\"guessed\"", "networks[0].basis.guessed", "unknown basis `guessed`"},
      {"[\"latency\"]", "3", "networks[0].basis.assumed", "a list of keys"},
  };
  for (const Case& one : cases) {
    std::string text = kFabric;
    const std::size_t at = text.find(one.from);
    ASSERT_NE(at, std::string::npos) << one.from;
    const std::vector<Diagnostic> found =
        problems(text.replace(at, std::string(one.from).size(), one.to));
    ASSERT_EQ(found.size(), 1U) << one.to << render(found);
    EXPECT_EQ(found[0].where.operation, one.path) << one.to;
    EXPECT_THAT(found[0].what, HasSubstr(one.what)) << one.to;
  }
}

TEST(ParseSystem, SaysWhatIsWrongAndWhere) {
  struct Case {
    const char* from;
    const char* to;
    const char* path;
    const char* what;
  };
  const std::vector<Case> cases{
      {"\"tflops\": 100", "\"tflops\": 0", "matrix.float16.tflops", "0 is not above 0"},
      {"\"tflops\": 100", "\"tflops\": -1", "matrix.float16.tflops", "-1 is not above 0"},
      {"\"tflops\": 100", "\"tflops\": \"100\"", "matrix.float16.tflops",
       "expected a number, found a string"},
      {"\"tflops\": 100", "\"tflops\": 1e300", "matrix.float16.tflops", "at most 1e+18"},
      {"[0, 0.1]", "[1, 0.1]", "matrix.float16.gflops_efficiency", "the last threshold is not 0"},
      {"[0, 0.1]", "[0, 1.1]", "matrix.float16.gflops_efficiency[1][1]", "at most 1"},
      {"[0, 0.1]", "[0, 0]", "matrix.float16.gflops_efficiency[1][1]", "above 0"},
      {"[0, 0.1]", "[-1, 0.1]", "matrix.float16.gflops_efficiency[1][0]", "at least 0"},
      {"[0, 0.1]", "[0]", "matrix.float16.gflops_efficiency[1]", "[threshold, efficiency]"},
      {"[2, 0.5]", "[0, 0.5]", "matrix.float16.gflops_efficiency[1]", "not in decreasing order"},
      {"[[2, 0.5], [0, 0.1]]", "[]", "matrix.float16.gflops_efficiency", "is not 0"},
      {"[[2, 0.5], [0, 0.1]]", "0.5", "matrix.float16.gflops_efficiency", "found 0.5"},
      {"\"GiB\": 1.5", "\"GiB\": -1.5", "mem1.GiB", "-1.5 is not at least 0"},
      {"\"GBps\": 10,", "\"GBps\": null,", "mem2.GBps", "expected a number, found null"},
      {"\"no_overlap\"", "true", "processing_mode", "found true"},
      {"\"size\": 8", "\"size\": 0", "networks[0].size", "at least 1, found 0"},
      {"\"size\": 8", "\"size\": 8.5", "networks[0].size", "found 8.5"},
      {"\"latency\": 0.25", "\"latency\": -1", "networks[0].latency", "at least 0"},
      {"[1.5, -1]", "[1.5, -3]", "networks[0].ops.reduce_scatter[1]", "-3 is not at least -2"},
      {"[1.5, -1]", "[-1, 0]", "networks[0].ops.reduce_scatter[0]", "-1 is not at least 0"},
      {"[1.5, -1]", "[1.5]", "networks[0].ops.reduce_scatter", "[scalar, offset]"},
      {"filled\": true", "filled\": 1", "networks[0].must_be_filled", "true or false"},
      {"0.125", "1", "networks[0].processor_usage", "below 1"},
      {"\"for tests\"", "3", "note", "expected a string, found 3"},
  };
  for (const Case& one : cases) {
    const Diagnostic found = problem(one.from, one.to);
    EXPECT_EQ(found.code, "D600");
    EXPECT_EQ(found.where.file, "dir/my.machine.json");
    EXPECT_EQ(found.where.operation, one.path) << one.to;
    EXPECT_THAT(found.what, HasSubstr(one.what)) << one.to;
  }
}

TEST(ParseSystem, SuggestsWhatMayBeMeant) {
  const Diagnostic type = problem("\"float32\"", "\"flaot32\": 1, \"float32\"");
  EXPECT_EQ(type.what, "unknown key `flaot32`");
  EXPECT_EQ(type.help, "did you mean `float32`?");
  EXPECT_EQ(problem("\"no_overlap\"", "\"no-overlap\"").help, "did you mean `no_overlap`?");
  EXPECT_EQ(problem("\"vector\"", "\"vektor\": 1, \"vector\"").help, "did you mean `vector`?");
}

TEST(ParseSystem, TellsAllProblemsAtOnce) {
  const std::vector<Diagnostic> found = problems(
      R"({ "matrix": { "float64": 1 }, "vector": [], "mem1": { "GiB": "a" }, "networks": [] })");
  std::vector<std::string> paths;
  for (const Diagnostic& one : found) paths.push_back(one.where.operation);
  EXPECT_THAT(paths, ElementsAre("matrix.float64", "matrix", "vector", "mem1.GiB", "mem1.GBps",
                                 "mem1.MB_efficiency", "mem2", "processing_mode", "networks"));
}

TEST(ParseSystem, WantsTheNearestNetworkFirst) {
  const std::string text = kSmall;
  const std::size_t begin = text.find("[{") + 1;
  const std::string network = text.substr(begin, text.rfind(']') - begin);
  const Diagnostic found = problem(network, network + "," + network);
  EXPECT_EQ(found.where.operation, "networks[1]");
  EXPECT_THAT(found.help, HasSubstr("smallest"));
}

TEST(ParseSystem, BlocksOfAMiddleNetworkAreMadeOfWholeBlocks) {
  const std::string text = kSmall;
  const std::size_t begin = text.find("[{") + 1;
  const std::string network = text.substr(begin, text.rfind(']') - begin);
  const auto of_size = [&](const std::string& size) {
    std::string made = network;
    const std::size_t at = made.find("\"size\": ") + 8;
    return made.replace(at, made.find_first_of(",\n}", at) - at, size);
  };
  const auto networks = [&](const std::vector<std::string>& sizes) {
    std::string made;
    for (const std::string& size : sizes) made += (made.empty() ? "" : ",") + of_size(size);
    std::string whole = text;
    return whole.replace(begin, network.size(), made);
  };
  const std::vector<Diagnostic> found = problems(networks({"4", "6", "1000"}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].where.operation, "networks[1]");
  EXPECT_THAT(found[0].what, HasSubstr("whole blocks of 4"));
  EXPECT_NO_THROW((void)parse_system(networks({"4", "8", "1001"}), "test.json"));
  EXPECT_THAT(problems(networks({"9223372036854775807"}))[0].what, HasSubstr("at most 1,000,000"));
}

TEST(ParseSystem, RefusesWhatIsNoObjectAndWhatIsNoJson) {
  for (const char* const text : {"[]", "3", "null", "\"h100\""}) {
    ASSERT_EQ(problems(text).size(), 1U) << text;
    EXPECT_EQ(problems(text)[0].code, "D600") << text;
  }
  EXPECT_EQ(problems("{")[0].code, "D010");
}

// Calls `visit` with a copy of `whole` for every way to take one member away or to put `other` in
// place of one value, and with the path of that place.
using Visit = std::function<void(const Json&, const std::string&)>;
void each_change(const Json& json, const std::string& path, const Json& other, const Visit& visit) {
  visit(other, path);
  if (json.is_object()) {
    for (const auto& [key, value] : json.as_object()) {
      const std::string below = path.empty() ? key : path + "." + key;
      Json::Object without;
      for (const Json::Member& member : json.as_object()) {
        if (member.first != key) without.push_back(member);
      }
      visit(Json::object(without), below);
      each_change(value, below, other, [&](const Json& changed, const std::string& where) {
        Json copy = json;
        visit(copy.set(key, changed), where);
      });
    }
  }
  if (!json.is_array()) return;
  for (std::size_t k = 0; k < json.as_array().size(); ++k) {
    const std::string below = path + "[" + std::to_string(k) + "]";
    each_change(json.as_array()[k], below, other, [&](const Json& changed, const std::string& at) {
      Json::Array copy = json.as_array();
      copy[k] = changed;
      visit(copy, at);
    });
  }
}

TEST(ParseSystem, KnowsWhatALaunchCosts) {
  const auto with_launch = [](const std::string& value) {
    return replaced("\"processing_mode\"", "\"launch\": " + value + ", \"processing_mode\"");
  };
  EXPECT_EQ(parse_system(with_launch("4e-6"), "f.json").launch.value, 4e-6);
  EXPECT_EQ(problems(with_launch("-1")).front().where.operation, "launch");
  EXPECT_EQ(problems(with_launch("true")).front().where.operation, "launch");
}

TEST(ParseSystem, NoticesEveryMissingMemberAndEveryValueOfAWrongType) {
  const Json whole = parse_json(replaced("\"note\": \"for tests\",", ""), "small");
  int changes = 0;
  for (const Json& other : {Json(true), Json(Json::object()), Json(std::string("x"))}) {
    each_change(whole, "", other, [&](const Json& changed, const std::string& path) {
      const bool harmless = path.ends_with("source") || changed == whole;
      if (harmless || path.ends_with("must_be_filled")) return;
      const std::vector<Diagnostic> found = problems(to_text(changed));
      ++changes;
      ASSERT_FALSE(found.empty()) << path << " " << to_text(changed);
      // The error is at this path, or a value on it is missing.
      for (const Diagnostic& one : found) {
        EXPECT_TRUE(one.where.operation.starts_with(path) || path.starts_with(one.where.operation))
            << path << ": " << render(one);
      }
    });
  }
  EXPECT_GT(changes, 150);
}

// Calculon's own files, where they are at hand, against their raw values.
class Calculon : public ::testing::TestWithParam<const char*> {};

void expect_curve(const Json& raw, double unit, const Efficiency& read) {
  for (const Json& step : raw.as_array()) {
    const double threshold = step.as_array()[0].as_number() * unit;
    EXPECT_EQ(read.of(threshold), step.as_array()[1].as_number());
    if (threshold > 0) {
      EXPECT_LT(read.of(std::nextafter(threshold, 0)), step.as_array()[1].as_number());
    }
  }
}

void expect_memory(const Json& raw, const MemoryTier& read) {
  const double bytes = raw.find("GiB")->as_number() * 1024 * 1024 * 1024;
  EXPECT_EQ(static_cast<double>(read.capacity.count), std::min(bytes, 0x1p62));
  EXPECT_EQ(read.peak.bytes_per_second, raw.find("GBps")->as_number() * 1e9);
  expect_curve(*raw.find("MB_efficiency"), 1e6, read.efficiency);
}

void expect_factor(const Json& raw, const Network::Factor& read) {
  EXPECT_EQ(read.scalar, raw.as_array()[0].as_number());
  const Json& offset = raw.as_array()[1];
  EXPECT_EQ(read.offset, offset.is_null() ? 0 : offset.as_number());
}

TEST_P(Calculon, IsReadAsItStands) {
  const std::filesystem::path path = std::filesystem::path("../shared/data/calculon/systems") /
                                     (std::string(GetParam()) + ".json");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "Calculon's systems are not at " << path;
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const Json raw = parse_json(text, path.string());
  const System system = find_system(path.string());
  EXPECT_EQ(system.name, GetParam());
  for (const char* const unit : {"matrix", "vector"}) {
    const Processor& read = unit == std::string("matrix") ? system.matrix : system.vector;
    for (const auto type : {DType::fp8_e4m3, DType::f16, DType::bf16, DType::f32}) {
      const Json* const speed = raw.find(unit)->find(Processor::speed_name(type));
      ASSERT_EQ(read.speed(type).has_value(), speed != nullptr);
      if (speed == nullptr) continue;
      const Processor::Speed& one = listed(read, type);
      EXPECT_EQ(one.peak.flops_per_second, speed->find("tflops")->as_number() * 1e12);
      expect_curve(*speed->find("gflops_efficiency"), 1e9, one.efficiency);
    }
  }
  expect_memory(*raw.find("mem1"), system.mem1);
  expect_memory(*raw.find("mem2"), system.mem2);
  EXPECT_EQ(system.processing_mode, ProcessingMode::no_overlap);
  const Json::Array& networks = raw.find("networks")->as_array();
  ASSERT_EQ(system.networks.size(), networks.size());
  for (std::size_t k = 0; k < networks.size(); ++k) {
    const Network& read = system.networks[k];
    EXPECT_EQ(read.bandwidth.bytes_per_second, networks[k].find("bandwidth")->as_number() * 1e9);
    EXPECT_EQ(read.efficiency, networks[k].find("efficiency")->as_number());
    EXPECT_EQ(read.size, networks[k].find("size")->as_integer());
    EXPECT_EQ(read.latency.value, networks[k].find("latency")->as_number());
    EXPECT_EQ(read.must_be_filled, networks[k].find("must_be_filled")->as_bool());
    EXPECT_EQ(read.processor_usage, networks[k].find("processor_usage")->as_number());
    const Json& ops = *networks[k].find("ops");
    expect_factor(*ops.find("p2p"), read.p2p);
    expect_factor(*ops.find("reduce_scatter"), read.reduce_scatter);
    expect_factor(*ops.find("all_gather"), read.all_gather);
    expect_factor(*ops.find("all_reduce"), read.all_reduce);
  }
}
INSTANTIATE_TEST_SUITE_P(Systems, Calculon,
                         ::testing::Values("a100_80e", "a100_80g", "h100_80g_nvl8"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ParseSystem, APlanIsRecognized) {
  for (const char* text : {"shiplap-plan 1\nmesh dp=2\n", "# mine\n\n# yours\nshiplap-plan 1\n",
                           "  # mine\r\n\t\r\n \t# yours\n  shiplap-plan 1\n",
                           "{\n  \"schema\": \"shiplap.plan/1\",\n"}) {
    try {
      (void)parse_system(text, "ddp.plan");
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_EQ(error.diagnostics()[0].code, "D600");
      EXPECT_EQ(error.diagnostics()[0].what, "this is a plan, not a hardware file");
    }
  }
}

}  // namespace
}  // namespace shiplap::hardware
