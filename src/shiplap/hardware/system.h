// A machine as prediction sees it: how fast its processor computes, its memories deliver and its
// networks carry, each with an efficiency that grows with the size of the job. Read from Calculon's
// system files (docs/hardware.md has the format).
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

// The share of the peak that is reached, by the amount of work. Steps in falling order of
// `at_least`; the first that the amount reaches counts.
class Efficiency {
 public:
  struct Step {
    double at_least = 0;  // flops or bytes
    double share = 1;
    friend bool operator==(const Step&, const Step&) = default;
  };
  Efficiency() = default;  // 1, always
  // Promises falling `at_least` that end at 0, and shares above 0.
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
  // Both kinds of FP8 have one speed; integers and wider numbers that of f32.
  [[nodiscard]] static std::string_view speed_name(DType type);  // in files: "float16"
  [[nodiscard]] const std::optional<Speed>& speed(DType type) const;
  [[nodiscard]] std::optional<Speed>& speed(DType type);
  // Its own speed or, as every number fits into a wider one, that of the other 16 bit type or of
  // the next wider one. Null if there is none.
  [[nodiscard]] const Speed* usable(DType type) const;
  friend bool operator==(const Processor&, const Processor&) = default;
};

// What a file states beyond this counts as this: Calculon's way to say "unlimited" passes 64 bits.
inline constexpr Bytes kMostCapacity{std::int64_t{1} << 62};

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
  Bandwidth bandwidth;  // one way, per rank
  double efficiency = 1;
  std::int64_t size = 1;  // how many neighbouring ranks it connects
  Seconds latency;
  Factor p2p;
  Factor reduce_scatter;
  Factor all_gather;
  Factor all_reduce;
  bool must_be_filled = false;  // whoever uses a part of a block has all of it to itself
  double processor_usage = 0;   // the share of the processor that it keeps busy
  friend bool operator==(const Network&, const Network&) = default;
};

enum class ProcessingMode : std::uint8_t {
  roofline,    // the slower of computing and memory
  no_overlap,  // one after the other
};

struct System {
  std::string name;
  Processor matrix;
  Processor vector;
  MemoryTier mem1;  // the device's own
  MemoryTier mem2;  // the host's, over the bus
  ProcessingMode processing_mode = ProcessingMode::roofline;
  std::vector<Network> networks;  // at least one; the nearest, and smallest, first
  friend bool operator==(const System&, const System&) = default;
};

// Throws InputError D600 with all that is wrong, or D010 if the text is no JSON. `file` is what to
// call it; without folder and extension it becomes the name of the system.
[[nodiscard]] System parse_system(std::string_view text, std::string_view file);

// The systems that come with Shiplap, by name, in order.
[[nodiscard]] std::vector<std::string> known_systems();
// One of them, or else a file. Throws InputError D601 if it is neither, with the nearest names.
[[nodiscard]] System find_system(const std::string& name_or_path);

// Everything takes no time: for laws that speak of one thing alone, start from it.
[[nodiscard]] System free_system();

}  // namespace shiplap::hardware
