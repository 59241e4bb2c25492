#include "published.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <regex>
#include <string_view>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t k = 0; k < line.size(); ++k) {
    const bool doubled = quoted && line[k] == '"' && k + 1 < line.size() && line[k + 1] == '"';
    if (doubled) {
      fields.back() += line[++k];
    } else if (line[k] == '"') {
      quoted = !quoted;
    } else if (line[k] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[k];
    }
  }
  return fields;
}

std::string machine_of_device(std::string_view device) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kMachines{
      {{"A100", "a100_80g"},
       {"H100", "h100_80g_nvl8"},
       {"H800", "h100_80g_nvl8"},  // of another link
       {"H200", "h200"},
       {"B200", "b200"},
       {"GB200", "gb200_nvl72"},
       {"MI300X", "mi300x"}}};
  for (const auto& [prefix, name] : kMachines) {
    if (device.starts_with(prefix)) return std::string(name);
  }
  throw InternalError("no machine for " + std::string(device));
}

double number(const std::string& text) { return text.empty() ? 0 : std::stod(text); }

// As nccl-tests computes it.
double bus_factor(const std::string& operation, double n) {
  if (operation == "sendrecv") return 1;
  return (operation == "all_reduce" ? 2 : 1) * (n - 1) / n;
}

double seconds_of(const CsvRow& row) {
  const double bytes = number(row.at("bytes"));
  if (const double time = number(row.at("time_us")); time > 0) return 1e-6 * time;
  if (const double rate = number(row.at("algbw_gb_s")); rate > 0) return bytes / rate / 1e9;
  const double rate = number(row.at("busbw_gb_s"));
  const double factor = bus_factor(row.at("operation"), number(row.at("gpus")));
  return rate > 0 ? bytes * factor / rate / 1e9 : 0;
}

// "EFA 32x100 Gbps per node (3200 Gbps)"; of GB200, what follows the NVLink domain.
void set_fabric(CollectivePoint& point, std::string network, double devices_per_node) {
  if (const auto at = network.find("; "); at != std::string::npos) network = network.substr(at + 2);
  point.fabric = network.starts_with("NVLink") ? "none" : network;
  static const std::regex kRate(R"((.*?) (\d+)x(\d+) Gbps per (node|tray).*)");
  std::smatch match;
  if (!std::regex_match(network, match, kRate)) return;
  point.fabric = match[1];
  point.gb_s = std::stod(match[2]) * std::stod(match[3]) / 8 / devices_per_node;
}

void set_choice(CollectivePoint& point, const CsvRow& row) {
  using cost::Algorithm;
  static const std::map<std::string, Algorithm> kAlgorithms{{"Ring", Algorithm::ring},
                                                            {"Tree", Algorithm::tree},
                                                            {"NVLS", Algorithm::in_switch},
                                                            {"NVLSTree", Algorithm::in_switch_tree},
                                                            {"SHARP", Algorithm::in_network}};
  if (const auto found = kAlgorithms.find(row.at("algorithm")); found != kAlgorithms.end()) {
    point.choice.algorithm = found->second;
  }
  if (row.at("protocol") == "LL128") point.choice.protocol = cost::Protocol::ll128;
}

struct Size {
  std::string shape;
  double flop = 0;
  double bytes = 0;
};

// Both operands once, and the result in at least 16 bits.
Size gemm_size(const CsvRow& row, DType type) {
  const double m = number(row.at("m"));
  const double n = number(row.at("n"));
  const double k = number(row.at("k"));
  const double bytes = static_cast<double>(bytes_of(type));
  return {.shape = row.at("m") + " x " + row.at("n") + " x " + row.at("k"),
          .flop = 2 * m * n * k,
          .bytes = bytes * k * (m + n) + std::max(2.0, bytes) * m * n};
}

// As FlashAttention counts; backward reads and writes twice as much. Rows without a number of heads
// are of 16.
Size attention_size(const CsvRow& row, DType type) {
  const bool backward = row.at("kind") == "attention_bwd";
  const double heads = row.at("heads").empty() ? 16 : number(row.at("heads"));
  const double rows = number(row.at("batch")) * heads * number(row.at("seq"));
  const double width = number(row.at("head_dim"));
  const double passes = (backward ? 2.5 : 1) * (row.at("causal") == "yes" ? 0.5 : 1);
  return {.shape = row.at("kind") + " " + row.at("batch") + " x " + row.at("seq") + " x " +
                   row.at("head_dim"),
          .flop = 4 * rows * number(row.at("seq")) * width * passes,
          .bytes = (backward ? 8 : 4) * static_cast<double>(bytes_of(type)) * rows * width};
}

}  // namespace

std::vector<CsvRow> read_csv(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  ensure(!line.empty(), "the published measurements can be read");
  const std::vector<std::string> names = fields_of(line);
  std::vector<CsvRow> rows;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = fields_of(line);
    ensure(fields.size() == names.size(), "a row has the fields of the header");
    CsvRow& row = rows.emplace_back();
    for (std::size_t k = 0; k < names.size(); ++k) row[names[k]] = fields[k];
  }
  return rows;
}

cost::RankSpan CollectivePoint::span(const hardware::System& system) const {
  cost::RankSpan span{.ranks = gpus, .lowest = 0, .highest = gpus - 1};
  // A job takes equally many devices of each domain: 64 of two racks each.
  const std::int64_t size = system.networks.front().size;
  span.domains = (gpus + size - 1) / size;
  span.per_domain = (gpus + span.domains - 1) / span.domains;
  return span;
}

std::vector<CollectivePoint> read_collectives(const std::string& folder) {
  std::map<std::string, CsvRow> tables;
  for (const CsvRow& row : read_csv(folder + "/collective_tables.csv")) {
    tables[row.at("table")] = row;
  }
  std::vector<CollectivePoint> points;
  std::map<std::pair<std::string, std::int64_t>, std::vector<CsvRow>> sizes;
  for (const CsvRow& row : read_csv(folder + "/collectives.csv")) {
    if (row.at("suspect") == "yes" || seconds_of(row) == 0) continue;
    sizes[{row.at("table"), std::stoll(row.at("bytes"))}].push_back(row);
  }
  for (const auto& [key, rows] : sizes) {
    const CsvRow& row = rows.front();
    CollectivePoint point{.table = key.first,
                          .page = tables.at(key.first).at("source"),
                          .fit = tables.at(key.first).at("fit") == "yes",
                          .operation = row.at("operation"),
                          .method = row.at("method"),
                          .machine = machine_of_device(row.at("device")),
                          .gpus = std::stoll(row.at("gpus")),
                          .bytes = {key.second}};
    point.network = row.at("network");
    set_fabric(point, point.network, point.machine == "gb200_nvl72" ? 4 : 8);
    set_choice(point, row);
    // The faster of in place and out of place: an interruption only makes a call slower.
    point.seconds = seconds_of(row);
    for (const CsvRow& each : rows) point.seconds = std::min(point.seconds, seconds_of(each));
    points.push_back(point);
  }
  return points;
}

hardware::System Machines::of(const CollectivePoint& point) const {
  hardware::System system = systems.at(point.machine);
  hardware::Network& outer = system.networks.back();
  if (point.gb_s > 0) outer.bandwidth = {1e9 * point.gb_s};
  const auto fabric = fabrics.find(point.fabric);
  if (fabric != fabrics.end() && outer.collectives) outer.collectives->latency = fabric->second;
  return system;
}

Machines read_machines(const std::string& file) {
  Machines machines;
  for (const std::string& name : hardware::known_systems()) {
    machines.systems[name] = hardware::find_system(name);
  }
  for (const CsvRow& row : read_csv(file)) {
    machines.fabrics[row.at("fabric")] = number(row.at("latency"));
  }
  return machines;
}

cost::CollectiveEstimate predict(const hardware::System& system, const CollectivePoint& point) {
  const cost::RankSpan span = point.span(system);
  if (point.operation == "sendrecv") {
    const hardware::Network& network =
        span.domains == 1 ? system.networks.front() : system.networks.back();
    return {.time = cost::estimate_message(system, network, point.bytes),
            .algorithm = cost::Algorithm::pairwise};
  }
  static const std::map<std::string, CollectiveKind> kKinds{
      {"all_reduce", CollectiveKind::all_reduce},
      {"all_gather", CollectiveKind::all_gather},
      {"reduce_scatter", CollectiveKind::reduce_scatter},
      {"all_to_all", CollectiveKind::all_to_all}};
  const CollectiveKind kind = kKinds.at(point.operation);
  for (const cost::CollectiveChoice& choice : {point.choice, cost::CollectiveChoice{}}) {
    const auto allowed = cost::estimate_collective(system, kind, point.bytes, span, choice);
    if (allowed) return *allowed;
  }
  throw InternalError("NCCL has an algorithm for every collective");
}

std::vector<ComputationPoint> read_computation(const std::string& folder) {
  static const std::map<std::string, DType> kTypes{
      {"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp8", DType::fp8_e4m3}, {"tf32", DType::f32}};
  std::vector<ComputationPoint> points;
  for (const CsvRow& row : read_csv(folder + "/computation.csv")) {
    const auto type = kTypes.find(row.at("type"));
    if (row.at("suspect") == "yes" || type == kTypes.end()) continue;
    ComputationPoint& point = points.emplace_back();
    point.tool = row.at("tool");
    point.fit = row.at("fit") == "yes";
    point.device = row.at("device");
    point.machine = machine_of_device(point.device);
    point.type = type->first;
    const Size size =
        row.at("kind") == "gemm" ? gemm_size(row, type->second) : attention_size(row, type->second);
    point.shape = size.shape;
    point.work = {.kernel_class = row.at("kind") == "gemm" ? "gemm" : "attention",
                  .flop = size.flop,
                  .bytes = size.bytes,
                  .type = type->second};
    const double time = number(row.at("time_us"));
    point.seconds = time > 0 ? 1e-6 * time : size.flop / number(row.at("tflops")) / 1e12;
  }
  return points;
}

double predicted_seconds(const hardware::System& system, const ComputationPoint& point) {
  return (system.launch + cost::compute_time(system, point.work)).value;
}

}  // namespace shiplap
