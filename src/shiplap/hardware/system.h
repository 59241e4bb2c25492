// The hardware model for predictions: the rates of processor, memories and networks, each with an
// efficiency that grows with the amount of work. Read from Calculon's system files
// (docs/hardware.md describes the format).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/base/dtype.h"
#include "shiplap/base/units.h"

namespace shiplap::hardware {

// The achieved fraction of the peak, by the amount of work. Steps in decreasing order of
// `at_least`; the first step that the amount reaches applies.
class Efficiency {
 public:
  struct Step {
    double at_least = 0;  // flops or bytes
    double share = 1;
    friend bool operator==(const Step&, const Step&) = default;
  };
  Efficiency() = default;  // always 1
  // REQUIRES: `at_least` decreases and ends at 0, and shares are above 0.
  explicit Efficiency(std::vector<Step> steps);
  [[nodiscard]] double of(double amount) const;
  friend bool operator==(const Efficiency&, const Efficiency&) = default;

 private:
  std::vector<Step> steps_;
};

// The matrix unit or the vector unit.
struct Processor {
  struct Speed {
    FlopRate peak;
    Efficiency efficiency;
    [[nodiscard]] FlopRate throughput(Flops flops) const;
    friend bool operator==(const Speed&, const Speed&) = default;
  };
  std::array<std::optional<Speed>, 4> speeds;  // of fp8, f16, bf16, f32
  // Both FP8 formats have the same speed; integers and wider types use that of f32.
  [[nodiscard]] static std::string_view speed_name(DType type);  // in files: "float16"
  [[nodiscard]] const std::optional<Speed>& speed(DType type) const;
  [[nodiscard]] std::optional<Speed>& speed(DType type);
  // The speed of the type or, since every number fits into a wider type, that of the other 16-bit
  // type or of the next wider type. Null if there is none.
  [[nodiscard]] const Speed* usable(DType type) const;
  friend bool operator==(const Processor&, const Processor&) = default;
};

// Larger capacities are clamped to this: Calculon's "unlimited" exceeds 64 bits.
inline constexpr Bytes kMaxCapacity{std::int64_t{1} << 62};

struct MemoryTier {
  Bytes capacity;
  Bandwidth peak;
  Efficiency efficiency;
  [[nodiscard]] Bandwidth throughput(Bytes bytes) const;
  friend bool operator==(const MemoryTier&, const MemoryTier&) = default;
};

// A message (n = 2) or a collective of n ranks on S bytes takes latency + S * scalar * (1 + offset
// / n) / (bandwidth * efficiency).
struct Network {
  struct Factor {
    double scalar = 1;
    double offset = 0;
    friend bool operator==(const Factor&, const Factor&) = default;
  };
  Bandwidth bandwidth;  // one direction, per rank
  double efficiency = 1;
  std::int64_t size = 1;  // number of consecutive ranks that it connects
  Seconds latency;
  Factor p2p;
  Factor reduce_scatter;
  Factor all_gather;
  Factor all_reduce;
  bool must_be_filled = false;  // a job that uses part of a block allocates all of it
  double processor_usage = 0;   // the fraction of the processor that it occupies
  friend bool operator==(const Network&, const Network&) = default;
};

enum class ProcessingMode : std::uint8_t {
  roofline,    // the maximum of compute and memory time
  no_overlap,  // the sum of both
};

struct System {
  std::string name;
  Processor matrix;
  Processor vector;
  MemoryTier mem1;  // device memory
  MemoryTier mem2;  // host memory, over the bus
  ProcessingMode processing_mode = ProcessingMode::roofline;
  std::vector<Network> networks;  // at least one; the innermost (smallest) first
  friend bool operator==(const System&, const System&) = default;
};

// Throws InputError D600 with all errors, or D010 if the text is not JSON. `file` is its name in
// messages; without directory and extension it is the name of the system.
[[nodiscard]] System parse_system(std::string_view text, std::string_view file);

// The names of the built-in systems, sorted.
[[nodiscard]] std::vector<std::string> known_systems();
// The hardware file of a built-in system. Throws InputError D601.
[[nodiscard]] std::string_view system_file(const std::string& name);
// A built-in system, or else a file. Throws InputError D601 if it is neither, with similar names.
[[nodiscard]] System find_system(const std::string& name_or_path);

// A system on which everything takes no time: a base for tests and models of a single cost.
[[nodiscard]] System zero_cost_system();

}  // namespace shiplap::hardware
