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

// The achieved fraction of the peak, by the amount of work: steps, as in Calculon's files, or a
// smooth curve.
class Efficiency {
 public:
  // In decreasing order of `at_least`; the first step that the amount reaches applies.
  struct Step {
    double at_least = 0;  // flops or bytes
    double share = 1;
    friend bool operator==(const Step&, const Step&) = default;
  };
  // limit * amount / (amount + half): the time is a fixed part plus one proportional to the work
  // (R. Hockney, "The communication challenge for MPP", 1994: half-performance length).
  struct Curve {
    double limit = 1;
    double half = 0;  // the amount at which half of the limit is reached
    friend bool operator==(const Curve&, const Curve&) = default;
  };
  Efficiency() = default;  // always 1
  // REQUIRES: `at_least` decreases and ends at 0, and shares are above 0.
  explicit Efficiency(std::vector<Step> steps);
  // REQUIRES: the limit is above 0.
  explicit Efficiency(Curve curve);
  [[nodiscard]] double of(double amount) const;
  friend bool operator==(const Efficiency&, const Efficiency&) = default;

 private:
  std::vector<Step> steps_;  // empty: the curve
  Curve curve_;
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

// What NCCL's algorithms reach on one network (docs/hardware.md has the formulas). A rate is a
// share of what a ring reaches with protocol Simple: bandwidth * efficiency.
struct CollectiveRates {
  double latency = 1;  // multiplies the latencies of NCCL's own cost model
  double ll = 0.5;     // between domains, with protocol LL
  double ll128 = 0.9;  // ... LL128
  // Filling the pipeline of chunks takes ramp * sqrt(bytes).
  double ramp = 0;
  // Reduction in the switch: NVLS within a domain, SHARP between domains.
  struct InSwitch {
    double share = 1;  // bytes of the buffer per second, as a share of the bandwidth
    double ramp = 0;
    friend bool operator==(const InSwitch&, const InSwitch&) = default;
  };
  std::optional<InSwitch> in_switch;
  // A message to one peer uses few channels, until it has `bytes`.
  struct OnePeer {
    Bandwidth bandwidth;
    Bytes bytes;
    friend bool operator==(const OnePeer&, const OnePeer&) = default;
  };
  std::optional<OnePeer> one_peer;
  friend bool operator==(const CollectiveRates&, const CollectiveRates&) = default;
};

// The nodes below one leaf switch of each rail. Traffic between leaves has 1 / oversubscription of
// the bandwidth.
struct Leaf {
  std::int64_t nodes = 1;
  double oversubscription = 1;
  friend bool operator==(const Leaf&, const Leaf&) = default;
};

// Without `collectives`, a message (n = 2) or a collective of n ranks on S bytes takes latency + S
// * scalar * (1 + offset / n) / (bandwidth * efficiency).
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
  std::string kind;             // "NVLink 4"; may be empty
  std::optional<CollectiveRates> collectives;
  std::optional<Leaf> leaf;
  friend bool operator==(const Network&, const Network&) = default;
};

enum class ProcessingMode : std::uint8_t {
  roofline,    // the maximum of compute and memory time
  no_overlap,  // the sum of both
};

// A host. An NVLink domain, the innermost network, may be smaller or span several.
struct Node {
  std::int64_t devices = 1;
  std::int64_t adapters = 1;  // network adapters; each begins one rail
  friend bool operator==(const Node&, const Node&) = default;
};

// Where a figure of a hardware file is from.
enum class Basis : std::uint8_t { unstated, published, fitted, assumed };
[[nodiscard]] std::string_view to_string(Basis basis);
struct FigureBasis {
  std::string path;  // "networks[0].bandwidth"
  Basis basis = Basis::unstated;
  friend bool operator==(const FigureBasis&, const FigureBasis&) = default;
};

struct System {
  std::string name;
  Processor matrix;
  Processor vector;
  MemoryTier mem1;  // device memory
  MemoryTier mem2;  // host memory, over the bus
  ProcessingMode processing_mode = ProcessingMode::roofline;
  // Starting a kernel. Computations that are `joined` are one kernel.
  Seconds launch;
  std::vector<Network> networks;  // at least one; the innermost (smallest) first
  std::optional<Node> node;
  std::vector<FigureBasis> figures;  // those whose basis the file states
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
