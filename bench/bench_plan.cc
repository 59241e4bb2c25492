// Benchmark of plans: the memory of a large one, and the time to print, parse, compare, copy and
// expand it.
//
//   bench_plan [--json] [--write FILE]
//
// Prints a table, or one JSON object. --write leaves the large plan in a file, for `shiplap show`.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/base/random.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/summary.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

// ---- measuring

struct Timing {
  double median = 0;
  double min = 0;
  double max = 0;
};

Timing timed(const std::function<void()>& work, int repetitions = 7) {
  std::vector<double> seconds;
  for (int k = 0; k < repetitions; ++k) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds.push_back(took.count());
  }
  std::ranges::sort(seconds);
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

std::int64_t heap_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// Keeps the compiler from removing the measured code.
std::size_t sink = 0;

// ---- (a) 131,072 ranks on five axes, 64 programs of 1,000 operations

enum Buffers : std::int32_t { weights, gradients, activations, deltas, gathered };
enum Tensors : std::int32_t { activation, activation_grad, weight, weight_grad };

constexpr std::int64_t kLayers = 128;
constexpr std::int64_t kSamples = 4096;

Region rows(Buffers buffer, Expr begin, Expr count) {
  return {.buffer = BufferId(static_cast<std::int32_t>(buffer)),
          .kind = Region::Kind::rows,
          .begin = std::move(begin),
          .count = std::move(count)};
}

Value instance(Tensors tensor, std::int64_t index) {
  return {.tensor = TensorId(static_cast<std::int32_t>(tensor)), .indexed = true, .index = index};
}

// `buffer[index +1] = tensor[index] sample 64*dp+index +1`, in its part or, of a gradient, in its
// sum.
Access access(Access::Kind kind, Buffers buffer, Tensors tensor, std::int64_t index) {
  Access access{.kind = kind, .region = rows(buffer, index, 1), .value = instance(tensor, index)};
  access.value.sum = tensor == weight_grad ? Sum::some : Sum::complete;
  access.value.runs.push_back(
      {.dimension = DimensionId(std::int32_t{0}),
       .begin = Expr(64) * Expr::axis(AxisId(std::int32_t{0})) + Expr(index % 64),
       .count = 1});
  return access;
}

class LargePlan {
 public:
  Plan make() {
    plan_.mesh.axes = {{"dp", 64}, {"pp", 16}, {"cp", 4}, {"tp", 8}, {"ep", 4}};
    plan_.tensors = {
        {.name = "A", .kind = "Activation", .instances = kLayers, .part = {{"sample", kSamples}}},
        {.name = "D",
         .kind = "ActivationGrad",
         .instances = kLayers,
         .part = {{"sample", kSamples}}},
        {.name = "W", .kind = "Weight", .instances = kLayers},
        {.name = "G", .kind = "WeightGrad", .instances = kLayers, .sum = {{"sample", kSamples}}}};
    for (std::int64_t pp = 0; pp < 16; ++pp) {
      for (std::int64_t cp = 0; cp < 4; ++cp) plan_.programs.push_back(program(pp, cp));
    }
    return std::move(plan_);
  }

 private:
  Program program(std::int64_t pp, std::int64_t cp) {
    Program program{.name = "stage_" + std::to_string(pp) + "_" + std::to_string(cp)};
    program.on.terms = {{.axis = AxisId(std::int32_t{1}), .positions = {{pp, pp}}},
                        {.axis = AxisId(std::int32_t{2}), .positions = {{cp, cp}}}};
    for (const char* name : {"w", "g", "a", "d", "full"}) {
      program.buffers.push_back({.name = name, .rows = kLayers, .row_bytes = 1 << 20});
    }
    program.streams = {"net", "out"};
    // A layer: gather, forward, messages between stages, loss, backward, reduce, cast.
    for (std::int64_t i = 0; std::ssize(program.body) < 1000; ++i) layer(program, i, pp, cp);
    program.body.resize(1000);
    return program;
  }

  void layer(Program& program, std::int64_t i, std::int64_t pp, std::int64_t cp) {
    const std::int64_t l = (i + pp + cp) % (kLayers - 1);
    const Expr slot = mod(Expr::axis(AxisId(std::int32_t{3})) + Expr(i), Expr(kLayers));
    const Access input = access(Access::Kind::reads, activations, activation, l);
    const Access error = access(Access::Kind::reads, deltas, activation_grad, l + 1);
    const Access whole{.kind = Access::Kind::reads,
                       .region = rows(gathered, slot, 1),
                       .value = instance(weight, l)};
    gather(program, i, slot);
    compute(program, "forward", i,
            {input, whole, access(Access::Kind::writes, activations, activation, l + 1)});
    message(program, i, pp);
    compute(program, "loss", i, {input, access(Access::Kind::writes, deltas, activation_grad, l)});
    compute(program, "backward", i,
            {error, whole, access(Access::Kind::writes, deltas, activation_grad, l),
             access(Access::Kind::adds, gradients, weight_grad, l)});
    reduce(program, i, l);
    compute(program, "cast", i,
            {access(Access::Kind::reads, gradients, weight_grad, l),
             {.kind = Access::Kind::writes,
              .region = rows(weights, l, 1),
              .value = instance(weight, l)}});
  }

  static void gather(Program& program, std::int64_t i, const Expr& slot) {
    Operation operation{.name = {"ag", {i}}, .stream = StreamId(std::int32_t{1})};
    operation.action = Collective{.kind = CollectiveKind::all_gather,
                                  .from = rows(weights, i % kLayers, 1),
                                  .to = rows(gathered, slot, 1),
                                  .over = {.axes = {AxisId(std::int32_t{0})}}};
    if (i > 1) operation.after = {{"forward", {i - 2}}};
    program.body.push_back({std::move(operation)});
  }

  static void compute(Program& program, const char* kernel, std::int64_t i,
                      std::vector<Access> accesses) {
    Operation operation{.name = {kernel, {i}}, .action = Compute{kernel, std::move(accesses)}};
    if (std::string_view(kernel) == "forward") operation.after = {{"ag", {i}}};
    operation.work = Work{.kernel_class = "gemm", .flop = 4'000'000'000};
    program.body.push_back({std::move(operation)});
  }

  static void message(Program& program, std::int64_t i, std::int64_t pp) {
    const Peer next{.axis = AxisId(std::int32_t{1}), .wrap = true, .where = 1};
    const Peer previous{.axis = AxisId(std::int32_t{1}), .wrap = true, .where = -1};
    Operation send{.stream = StreamId(std::int32_t{2}), .after = {{"forward", {i}}}};
    send.action = Send{rows(activations, i % kLayers, 1), next, Expr(i), ""};
    Operation receive{.name = {"r", {i}}, .stream = StreamId(std::int32_t{2})};
    receive.action =
        Receive{rows(activations, (i + pp) % kLayers, 1), previous, Expr(i), "", false};
    program.body.push_back({std::move(send)});
    program.body.push_back({std::move(receive)});
  }

  static void reduce(Program& program, std::int64_t i, std::int64_t l) {
    Operation operation{
        .name = {"rs", {i}}, .stream = StreamId(std::int32_t{1}), .after = {{"backward", {i}}}};
    operation.action =
        Collective{.kind = CollectiveKind::all_reduce,
                   .from = rows(gradients, l, 1),
                   .to = rows(gradients, l, 1),
                   .over = {.axes = {AxisId(std::int32_t{0}), AxisId(std::int32_t{2})}},
                   .scale = Ratio(1, 64)};
    program.body.push_back({std::move(operation)});
  }

  Plan plan_;
};

// ---- (b) interleaved 1F1B, dp 1024 x pp 16 x tp 8, 4 chunks

constexpr int kStages = 16;
constexpr int kChunks = 4;

struct Order {
  std::string back;
  std::string chunk;
  std::string microbatch;
};

// The order of a stage: warm-up forwards, one forward and one backward in turn, the remaining
// backwards (Narayanan et al. 2021). `k` counts a stage's forwards, or its backwards.
void append_order(Order& order, int stage, int microbatches) {
  const int total = kChunks * microbatches;
  const int warm_up = std::min(total, 2 * (kStages - stage - 1) + (kChunks - 1) * kStages);
  const auto add = [&](int k, bool back) {
    const int chunk = k / kStages % kChunks;
    order.back += back ? " 1" : " 0";
    order.chunk += " " + std::to_string(back ? kChunks - 1 - chunk : chunk);
    order.microbatch += " " + std::to_string(k / (kStages * kChunks) * kStages + k % kStages);
  };
  for (int k = 0; k < warm_up; ++k) add(k, false);
  for (int k = 0; k < total - warm_up; ++k) {
    add(warm_up + k, false);
    add(k, true);
  }
  for (int k = total - warm_up; k < total; ++k) add(k, true);
}

// The text of a plan is one long literal. NOLINTNEXTLINE(readability-function-size)
std::string interleaved(int microbatches) {
  Order order;
  for (int stage = 0; stage < kStages; ++stage) append_order(order, stage, microbatches);
  const std::string m = std::to_string(microbatches);
  const std::string slots = std::to_string(kChunks * microbatches);
  const std::string turns = std::to_string(2 * kChunks * microbatches);
  std::string text = "shiplap-plan 1\nmesh dp=1024 pp=16 tp=8\n";
  text += "list back =" + order.back + "\nlist chunk =" + order.chunk +
          "\nlist mb =" + order.microbatch;
  text += "\ntensor A[65] Activation sample " + m + "\ntensor D[65] ActivationGrad sample " + m;
  text += "\ntensor W[64] Weight\ntensor G[64] WeightGrad sum sample " + m;
  text +=
      "\nprogram all on all\n  buffer w rows 4 row_bytes 8 bf16\n  buffer g rows 4 row_bytes 8 "
      "f32\n";
  for (const char* buffer : {"x", "y", "dy", "dx"}) {
    text += std::string("  buffer ") + buffer + " rows " + slots + " row_bytes 8 bf16\n";
  }
  text += R"(  streams fr, fs, br, bs
  repeat c 4
    keep w[c +1] = W[16*c+pp]
  end
  when pp=0
    given x[0 +)" +
          m + R"(] = A[0]
  end
  compute zero
    writes g = G[pp] sum none
  repeat j )" +
          turns + R"(
    let c = chunk[)" +
          turns + R"(*pp+j]
    let m = mb[)" +
          turns + R"(*pp+j]
    let l = 16*c+pp
    let slot = )" +
          m + R"(*c+m
    when back[)" +
          turns + R"(*pp+j]=0
      when l>0
        al[j]: @fr allocate x[slot +1]
        fr[j]: @fr receive x[slot +1] from pp-1 wrap tag )" +
          m + R"(*l+m
      end
      f[j]: compute forward after fr[j]
        reads  x[slot +1] = A[l] sample m +1
        reads  w[c +1] = W[l]
        writes y[slot +1] = A[l+1] sample m +1
      when l<63
        @fs send y[slot +1] to pp+1 wrap tag )" +
          m + R"(*(l+1)+m after f[j]
      end
    end
    when back[)" +
          turns + R"(*pp+j]=1
      when l=63
        compute loss
          reads  y[slot +1] = A[64] sample m +1
          writes dy[slot +1] = D[64] sample m +1
      end
      when l<63
        br[j]: @br receive dy[slot +1] from pp+1 wrap tag )" +
          m + R"(*(l+1)+m
      end
      b[j]: compute backward after br[j]
        reads  x[slot +1] = A[l] sample m +1
        reads  dy[slot +1] = D[l+1] sample m +1
        reads  w[c +1] = W[l]
        writes dx[slot +1] = D[l] sample m +1
        adds   g[c +1] = G[l] sum sample m +1
      free x[slot +1]
      when l>0
        @bs send dx[slot +1] to pp-1 wrap tag )" +
          m + R"(*l+m after b[j]
      end
    end
  end
  repeat c 4
    let l = 16*c+pp
    compute update
      reads  g[c +1] = G[l]
      reads  w[c +1] = W[l]
      writes w[c +1] = new W[l]
  end
)";
  return text;
}

// ---- (c) an exchange table of a million messages

Plan million_messages() {
  Random random(1);
  std::vector<TableRow> sends;
  std::vector<TableRow> receives;
  for (std::int32_t from = 0; from < 1000; ++from) {
    for (std::int32_t to = 0; to < 1000; ++to) {
      const std::int64_t count = random.between(1, 4096);
      sends.push_back({from, to, random.between(0, 1'000'000), count});
      receives.push_back({to, from, random.between(0, 1'000'000), count});
    }
  }
  Plan plan;
  plan.mesh.axes = {{"cp", 1000}};
  plan.tables.emplace_back("there", std::move(sends), std::move(receives));
  plan.spares.emplace_back();
  return plan;
}

// ---- main

class Report {
 public:
  void number(const char* key, double value) { json_.set(key, value); }
  void count(const char* key, std::int64_t value) { json_.set(key, value); }
  void timing(const std::string& key, const Timing& t) {
    json_.set(key, t.median);
    json_.set(key + "_spread", Json::array({t.min, t.max}));
  }
  void list(const char* key, Json values) { json_.set(key, std::move(values)); }
  [[nodiscard]] const Json& json() const { return json_; }

 private:
  Json json_ = Json::object({{"schema", "shiplap.bench_plan/1"}});
};

void measure_large(Report& report, const std::string& file) {
  const std::int64_t before = heap_in_use();
  const Plan plan = LargePlan().make();
  report.count("plan_131072_bytes", heap_in_use() - before);
  report.count("plan_131072_ranks", plan.mesh.ranks());
  const std::string text = to_text(plan);
  report.count("text_bytes", static_cast<std::int64_t>(text.size()));
  if (!file.empty()) std::ofstream(file) << text;
  const Plan other = parse_text(text, "large.plan");
  report.timing("print_s", timed([&] { sink += to_text(plan).size(); }));
  report.timing("parse_s", timed([&] { sink += parse_text(text, "large.plan").programs.size(); }));
  report.timing("compare_s", timed([&] { sink += plan == other ? 1 : 0; }));
  report.timing("copy_s", timed([&] { sink += Plan(plan).programs.size(); }));
  report.timing("summarize_s", timed([&] { sink += summarize(plan).traffic.size(); }));
  report.number("equal_after_reading", plan == other ? 1 : 0);
}

void measure_expansion(Report& report) {
  Json per_operation = Json::array();
  for (const int microbatches : {16, 32, 64, 128}) {
    const Plan plan = parse_text(interleaved(microbatches), "interleaved.plan");
    const Rank middle(std::int32_t{512 * 128 + 7 * 8 + 3});
    const std::size_t operations = expand(plan, middle).operations.size();
    const Timing t = timed([&] { sink += expand(plan, middle).operations.size(); }, 31);
    per_operation.push(Json::object({{"operations", static_cast<std::int64_t>(operations)},
                                     {"ns", t.median * 1e9 / static_cast<double>(operations)}}));
    if (microbatches != 128) continue;
    report.count("expand_operations", static_cast<std::int64_t>(operations));
    report.timing("expand_ms", {t.median * 1e3, t.min * 1e3, t.max * 1e3});
  }
  report.list("expand_ns_per_operation", std::move(per_operation));
}

void measure_table(Report& report) {
  const Plan plan = million_messages();
  const std::string text = to_text(plan);
  report.timing("table_write_s", timed([&] { sink += to_text(plan).size(); }, 5));
  report.timing("table_read_s",
                timed([&] { sink += parse_text(text, "table.plan").tables.size(); }, 5));
}

}  // namespace
}  // namespace shiplap::plan

int main(int argc, char** argv) try {
  bool json = false;
  std::string file;
  for (int k = 1; k < argc; ++k) {
    const std::string_view argument = argv[k];
    if (argument == "--json") {
      json = true;
    } else if (argument == "--write" && k + 1 < argc) {
      file = argv[++k];
    } else {
      std::fprintf(stderr, "usage: bench_plan [--json] [--write FILE]\n");
      return 2;
    }
  }
  shiplap::plan::Report report;
  shiplap::plan::measure_large(report, file);
  shiplap::plan::measure_expansion(report);
  shiplap::plan::measure_table(report);
  if (json) {
    std::printf("%s\n", shiplap::to_text(report.json()).c_str());
  } else {
    for (const auto& [key, value] : report.json().as_object()) {
      std::printf("%-24s %s\n", key.c_str(), shiplap::to_text(value).c_str());
    }
  }
  return shiplap::plan::sink == 0 ? 1 : 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
