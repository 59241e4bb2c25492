// The published measurements of data/published/, and the machines that they are of.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/units.h"
#include "shiplap/cost/collective.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/hardware/system.h"

namespace shiplap {

using CsvRow = std::map<std::string, std::string>;
// Of a file with a header.
[[nodiscard]] std::vector<CsvRow> read_csv(const std::string& path);

// One size of one table: the faster of in place and out of place.
struct CollectivePoint {
  std::string table;
  std::string page;       // where it is published
  bool fit = false;       // the constants are fitted to this table; else it is held out
  std::string operation;  // a collective, or "sendrecv"
  std::string method;
  std::string machine;  // "h100_80g_nvl8"
  std::string fabric;   // "EFA"; "none" within a domain of the innermost network
  std::string network;  // as printed
  double gb_s = 0;      // of the fabric, per device; 0: that of the machine's file
  std::int64_t gpus = 0;
  cost::CollectiveChoice choice;
  Bytes bytes;
  double seconds = 0;

  [[nodiscard]] cost::RankSpan span(const hardware::System& system) const;
};
// All that are not marked as suspect.
[[nodiscard]] std::vector<CollectivePoint> read_collectives(const std::string& folder);

// The built-in machines, and what networks other than theirs differ by.
struct Machines {
  std::map<std::string, hardware::System> systems;
  std::map<std::string, double> fabrics;  // CollectiveRates::latency, by CollectivePoint::fabric
  // The machine of the point, with its network.
  [[nodiscard]] hardware::System of(const CollectivePoint& point) const;
};
// `file` is data/fabrics.csv.
[[nodiscard]] Machines read_machines(const std::string& file);

// REQUIRES: `system` is that of the point.
[[nodiscard]] cost::CollectiveEstimate predict(const hardware::System& system,
                                               const CollectivePoint& point);

// A GEMM or an attention.
struct ComputationPoint {
  std::string tool;
  bool fit = false;
  std::string device;  // as printed
  std::string machine;
  std::string shape;  // "4096 x 4096 x 1024"
  std::string type;
  cost::ComputeWork work;
  double seconds = 0;
};
// All that are not marked as suspect and whose type the machines know: not FP4.
[[nodiscard]] std::vector<ComputationPoint> read_computation(const std::string& folder);
[[nodiscard]] double predicted_seconds(const hardware::System& system,
                                       const ComputationPoint& point);

}  // namespace shiplap
