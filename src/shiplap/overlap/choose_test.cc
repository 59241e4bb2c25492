// What is chosen on machines of which every part is known.
#include "shiplap/overlap/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"

namespace shiplap::overlap {
namespace {

using testing::HasSubstr;

constexpr Problem kProblem{.m = 4096, .n = 4096, .k = 4096, .ranks = 4};

// A row takes so long to be multiplied on a rank, and so long on the link.
Machine plain_machine(double row_seconds, double byte_seconds) {
  Machine machine;
  machine.name = "paper";
  machine.tile = [=](double rows) { return Seconds{rows * row_seconds}; };
  machine.message = [=](double bytes) { return Seconds{bytes * byte_seconds}; };
  machine.collective = [=](CollectiveKind kind, double bytes) {
    return Seconds{(kind == CollectiveKind::all_reduce ? 2 : 1) * 0.75 * bytes * byte_seconds};
  };
  machine.cast = machine.add = [](double) { return Seconds{}; };
  return machine;
}

TEST(Choose, SaysWhyNothingIsOverlapped) {
  Problem alone = kProblem;
  alone.ranks = 1;
  const Chosen one = choose(Type::all_gather, alone, plain_machine(1e-6, 1e-10));
  EXPECT_FALSE(one.overlaps());
  EXPECT_THAT(one.why, HasSubstr("there is one rank"));

  EXPECT_EQ(choose(Type::none, kProblem, plain_machine(1e-6, 1e-10)).why,
            "GEMM only: nothing is sent");
  Problem uncut = kProblem;
  uncut.chunks = 0;
  EXPECT_GE(choose(Type::all_gather, uncut, plain_machine(1e-6, 1e-10)).problem.chunks, 1);

  const Chosen free_link = choose(Type::all_gather, kProblem, plain_machine(1e-6, 0));
  EXPECT_FALSE(free_link.overlaps());
  EXPECT_EQ(free_link.problem.chunks, 1);

  Machine slow_pieces = plain_machine(1e-6, 1e-10);
  slow_pieces.tile_overhead = {1};
  const Chosen slow = choose(Type::reduce_scatter, kProblem, slow_pieces);
  EXPECT_FALSE(slow.overlaps());
  EXPECT_THAT(slow.why, HasSubstr("costs more than it hides"));

  // 1 % of what there is can be hidden.
  const Chosen little = choose(Type::all_gather, kProblem, plain_machine(1e-6, 1.6e-12));
  EXPECT_FALSE(little.overlaps());
  EXPECT_THAT(little.why, HasSubstr("too little to be sure of"));
  EXPECT_EQ(little.time, little.serial);
}

TEST(Choose, HidesWhatCanBeHidden) {
  // 4096 rows take 4.1 ms; 3 of 4 parts of 32 MiB take as long.
  const Machine machine = plain_machine(1e-6, 4096e-6 / (0.75 * 33554432));
  for (const Type type : {Type::all_gather, Type::reduce_scatter, Type::all_reduce}) {
    const Chosen chosen = choose(type, kProblem, machine);
    EXPECT_TRUE(chosen.overlaps()) << chosen.why;
    EXPECT_THAT(chosen.why, HasSubstr("instead of")) << chosen.why;
    EXPECT_LT(chosen.time.value, (type == Type::all_reduce ? 0.8 : 0.55) * chosen.serial.value);
    EXPECT_GE(chosen.time.value, chosen.gemm.value * 0.999);
    EXPECT_GE(chosen.time.value, chosen.communication.value * 0.999);
    EXPECT_FALSE(chosen.choice.atomic) << "nothing is gained by it";
  }
}

// For two ranks: G/2, then what arrives; a ring of one chunk.
TEST(Estimate, IsTheKnownBoundOfARing) {
  const Problem two{.m = 1024, .n = 64, .k = 512, .ranks = 2};
  const double g = 1024e-6;
  for (const double c : {0.1 * g, 0.5 * g, g, 3 * g}) {
    const Machine machine = plain_machine(1e-6, c / (512 * 512 * 2));
    EXPECT_NEAR(estimate({Type::all_gather, Method::ring_exchange}, two, machine).value,
                std::max(g / 2, c) + g / 2, 1e-9);
    EXPECT_NEAR(estimate({Type::all_gather, Method::none}, two, machine).value, g + 1.5 * c, 1e-9);
  }
}

TEST(Choose, TakesTilesTogetherWhereLaunchesCost) {
  Machine machine = plain_machine(1e-6, 4096e-6 / (0.75 * 33554432));
  machine.launch = {100e-6};
  const Chosen chosen = choose(Type::all_gather, kProblem, machine);
  EXPECT_TRUE(chosen.choice.atomic) << chosen.why;
  EXPECT_THAT(chosen.why, HasSubstr("atomic"));
}

Calibration some_calibration() {
  return {.machine = "2 ranks, mpi",
          .ranks = 2,
          .latency = {30e-6},
          .message = {2e-6},
          .seconds_per_byte = 4e-8,
          .processor_seconds_per_byte = 1e-10,
          .sum_seconds_per_byte = 1e-10,
          .collective = {40e-6},
          .step = {10e-6},
          .tile_overhead = {15e-6},
          .launch = {3e-6},
          .gemms = {{.type = DType::bf16,
                     .call = {1e-6},
                     .seconds_per_weight_byte = 2e-11,
                     .seconds_per_flop = 2e-12}}};
}

// On a CPU a GEMM of few rows reads the weights as one of 128 does; one call multiplies neighbours
// together. Their messages start when all are done.
TEST(Estimate, OfAnAtomicGemmReadsTheWeightsOncePerGroup) {
  Calibration calibration = some_calibration();
  calibration.launch = calibration.tile_overhead = calibration.step = {};
  calibration.latency = calibration.message = {};
  calibration.seconds_per_byte = calibration.processor_seconds_per_byte = 0;
  calibration.sum_seconds_per_byte = 0;
  calibration.gemms.front() = {.type = DType::bf16, .call = {1}};  // a GEMM of up to 128 rows
  const auto time = [&](Type type, std::int64_t m, bool atomic) {
    const Problem problem{.m = m, .n = 64, .k = 64, .ranks = 2, .chunks = 8};
    return estimate({type, Method::ring_exchange, atomic}, problem,
                    machine_of(calibration, type, problem))
        .value;
  };
  // 16 chunks of 32 rows in groups of 128, of 16 in groups of 64, of 96 alone.
  EXPECT_NEAR(time(Type::reduce_scatter, 512, false), 16, 1e-9);
  EXPECT_NEAR(time(Type::reduce_scatter, 512, true), 4, 1e-9);
  EXPECT_NEAR(time(Type::reduce_scatter, 256, true), 4, 1e-9);
  EXPECT_NEAR(time(Type::reduce_scatter, 1536, true), 16, 1e-9);
  // The local rows are two GEMMs of 128, then come 8 chunks that have arrived.
  EXPECT_NEAR(time(Type::all_gather, 512, false), 2 + 8, 1e-9);
  EXPECT_NEAR(time(Type::all_gather, 512, true), 2 + 2, 1e-9);
}

TEST(Choose, IsNeverSlowerThanOneAfterTheOther) {
  Random random(20261116);
  const auto between = [&](double least, double most) {
    return least * std::exp(random.unit() * std::log(most / least));
  };
  int overlapped = 0;
  for (int k = 0; k < 400; ++k) {
    Machine machine = plain_machine(between(1e-8, 1e-4), between(1e-12, 1e-8));
    machine.latency = {between(1e-7, 1e-4)};
    machine.tile_overhead = {between(1e-7, 1e-4)};
    const double add = between(1e-10, 1e-6);
    machine.cast = machine.add = [=](double rows) { return Seconds{rows * add}; };
    machine.adds_in_parallel = k % 2 == 0;
    const Problem problem{.m = static_cast<std::int64_t>(between(1, 10000)),
                          .n = static_cast<std::int64_t>(between(16, 9000)),
                          .k = static_cast<std::int64_t>(between(16, 9000)),
                          .ranks = static_cast<int>(between(1, 16))};
    for (const Type type : {Type::all_gather, Type::reduce_scatter, Type::all_reduce}) {
      const Chosen chosen = choose(type, problem, machine);
      EXPECT_LE(chosen.time, chosen.serial);
      EXPECT_GE(chosen.time.value, chosen.gemm.value * 0.999999) << chosen.why;
      EXPECT_NO_THROW(static_cast<void>(plan_text(chosen.choice, chosen.problem)));
      EXPECT_EQ(chosen.why.find('\n'), std::string::npos);
      overlapped += chosen.overlaps() ? 1 : 0;
    }
  }
  EXPECT_GT(overlapped, 100);
  EXPECT_LT(overlapped, 1100);
}

TEST(Choose, RefusesWhatMakesNoSense) {
  EXPECT_THROW(static_cast<void>(choose(Type::all_gather, {.m = 0, .n = 8, .k = 8, .ranks = 2},
                                        plain_machine(1, 1))),
               InputError);
}

// ---- calibrations

TEST(Calibration, IsReadAsItWasWritten) {
  const Calibration one = some_calibration();
  const Calibration read = calibration_from(parse_json(to_text(to_json(one)), "c.json"), "c.json");
  EXPECT_EQ(read, one);
}

TEST(Calibration, ThatIsNoneIsRefused) {
  const Json right = to_json(some_calibration());
  for (const auto& [key, value] : right.as_object()) {
    Json wrong = right;
    wrong.set(key, Json(-1));
    try {
      static_cast<void>(calibration_from(wrong, "c.json"));
      ADD_FAILURE() << key << " is not checked";
    } catch (const InputError& error) {
      EXPECT_EQ(error.diagnostics().front().code, "D815");
    }
  }
  EXPECT_THROW(static_cast<void>(calibration_from(Json(3), "c.json")), InputError);
  Problem other = kProblem;
  other.type = DType::f32;
  EXPECT_THROW(static_cast<void>(machine_of(some_calibration(), Type::all_gather, other)),
               InputError);
}

TEST(Calibration, DecidesOverWhatIsChosen) {
  // 16 MiB for a rank take 0.7 s each way: far longer than the product. Small ones are left alone.
  Problem problem{.m = 1024, .n = 8192, .k = 2048, .ranks = 2};
  Calibration calibration = some_calibration();
  EXPECT_TRUE(choose(Type::all_gather, problem, machine_of(calibration, Type::all_gather, problem))
                  .overlaps());
  // A processor that has to move every byte itself hides nothing.
  calibration.processor_seconds_per_byte = calibration.seconds_per_byte;
  EXPECT_FALSE(choose(Type::all_gather, problem, machine_of(calibration, Type::all_gather, problem))
                   .overlaps());
  problem = {.m = 16, .n = 64, .k = 64, .ranks = 2};
  EXPECT_FALSE(
      choose(Type::all_gather, problem, machine_of(some_calibration(), Type::all_gather, problem))
          .overlaps());
}

}  // namespace
}  // namespace shiplap::overlap
