#include "shiplap/report/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shiplap/cost/collective.h"
#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using hardware::Basis;
using hardware::CollectiveRates;
using hardware::Network;
using hardware::System;

std::string kind_of(const Network& network, std::string_view otherwise) {
  return network.kind.empty() ? std::string(otherwise) : network.kind;
}

std::int64_t devices_per_node(const System& system) {
  return system.node ? system.node->devices : system.networks.front().size;
}

// ---- the picture

// A box around `lines`.
std::string boxed(const std::vector<std::string>& lines, std::size_t indent) {
  std::size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, display_width(line));
  const std::string margin(indent, ' ');
  const std::string edge = fmt::format("{}+{:->{}}+\n", margin, "", width + 2);
  std::string text = edge;
  for (const std::string& line : lines) text += fmt::format("{}| {:<{}} |\n", margin, line, width);
  return text + edge;
}

std::string joined(std::string_view what) { return fmt::format("        |  {}\n", what); }

std::string devices_line(std::int64_t devices) {
  constexpr std::int64_t kMaxDrawn = 8;
  std::string text;
  for (std::int64_t k = 0; k < std::min(devices, kMaxDrawn); ++k) text += fmt::format("[{}] ", k);
  if (devices > kMaxDrawn) text += fmt::format(".. [{}] ", devices - 1);
  return text + (devices == 1 ? "device" : "devices");
}

std::string picture(const System& system) {
  const Network& inner = system.networks.front();
  const std::int64_t devices = devices_per_node(system);
  std::string text =
      boxed({devices_line(devices),
             fmt::format("each {} at {}, host memory over {}", to_string(system.mem1.capacity),
                         to_string(system.mem1.peak), to_string(system.mem2.peak))},
            2);
  const bool adds = inner.collectives && inner.collectives->in_switch;
  text += joined(fmt::format("{}: {} per device, {} devices in a domain{}",
                             kind_of(inner, "inner network"), to_string(inner.bandwidth),
                             inner.size, adds ? ", the switch adds (NVLS)" : ""));
  if (inner.size > devices) text += joined(fmt::format("{} nodes", inner.size / devices));
  for (std::size_t k = 1; k < system.networks.size(); ++k) {
    const Network& outer = system.networks[k];
    text += joined(fmt::format(
        "{}: {} per device, {} per node", kind_of(outer, "outer network"),
        to_string(outer.bandwidth),
        to_string(Bandwidth{static_cast<double>(devices) * outer.bandwidth.bytes_per_second})));
    if (system.node) {
      text += joined(fmt::format("{} adapters per node: {} rails", system.node->adapters,
                                 system.node->adapters));
    }
    if (!outer.leaf) continue;
    text += boxed({fmt::format("leaf switch of each rail: {} nodes", outer.leaf->nodes)}, 2);
    text += joined(fmt::format("oversubscription {:g} : 1", outer.leaf->oversubscription));
    text += boxed({fmt::format("spine: {} devices", with_separators(outer.size))}, 2);
  }
  return text;
}

// ---- what it reaches

std::string collectives_table(const System& system, const TextStyle& style) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;
  Table table({Column::numbers("devices"), Column::numbers("time, ms"),
               Column::numbers("bus bandwidth, GB/s"), Column::text("algorithm")});
  const std::int64_t size = system.networks.front().size;
  for (const std::int64_t domains : {1, 2, 4, 16, 128}) {
    const std::int64_t ranks = domains * size;
    if (ranks > system.networks.back().size) continue;
    const cost::RankSpan span{.ranks = ranks, .lowest = 0, .highest = ranks - 1};
    const auto found =
        cost::estimate_collective(system, CollectiveKind::all_reduce, {kBytes}, span);
    if (!found) continue;
    const double n = static_cast<double>(ranks);
    table.add({with_separators(ranks), fmt::format("{:.2f}", 1e3 * found->time.value),
               fmt::format("{:.0f}",
                           2 * (n - 1) / n * static_cast<double>(kBytes) / found->time.value / 1e9),
               fmt::format("{}, {}", to_string(found->algorithm), to_string(found->protocol))});
  }
  return "all-reduce of 1 GiB\n" + table.text(style);
}

// ---- the figures

class Figures {
 public:
  Figures(const System& system, const Json& file)
      : system_(system),
        file_(file),
        table_({Column::text("figure", 9), Column::numbers("value", 8), Column::text("basis", 7)}) {
  }

  std::string text(const TextStyle& style) {
    processor("matrix", system_.matrix);
    processor("vector", system_.vector);
    memory("mem1", system_.mem1);
    memory("mem2", system_.mem2);
    if (system_.launch.value > 0) add("launch", to_string(system_.launch));
    if (system_.node) {
      source("node", file_.find("node"));
      add("node.devices", fmt::format("{}", system_.node->devices));
      add("node.adapters", fmt::format("{}", system_.node->adapters));
    }
    for (std::size_t k = 0; k < system_.networks.size(); ++k) network(k, system_.networks[k]);
    return table_.text(style) + sources_;
  }

 private:
  void add(const std::string& path, const std::string& value) {
    const auto found = std::ranges::find(system_.figures, path, &hardware::FigureBasis::path);
    const Basis basis = found == system_.figures.end() ? Basis::unstated : found->basis;
    table_.add({path, value, basis == Basis::unstated ? "not stated" : to_string(basis)});
  }
  void source(const std::string& path, const Json* section) {
    const Json* const text = section == nullptr ? nullptr : section->find("source");
    if (text == nullptr) return;
    if (sources_.empty()) sources_ = "\nsources\n";
    sources_ +=
        "  " + wrapped(fmt::format("{}: {}", path, printable(text->as_string())), 4, 96) + "\n";
  }
  static std::string share(double value) { return fmt::format("{:.3g}", value); }
  // What large work reaches, and what the smallest takes.
  static std::string reached(const hardware::Efficiency& efficiency, double peak) {
    constexpr double kLarge = 1e15;
    constexpr double kSmall = 1;
    constexpr Seconds kNegligible{1e-8};
    const Seconds least{kSmall / (peak * efficiency.of(kSmall))};
    const std::string large = share(efficiency.of(kLarge));
    return least > kNegligible ? fmt::format("{}, {} at least", large, to_string(least)) : large;
  }

  void processor(const std::string& name, const hardware::Processor& processor) {
    source(name, file_.find(name));
    for (const DType type : {DType::fp8_e4m3, DType::f16, DType::bf16, DType::f32}) {
      const auto& speed = processor.speed(type);
      if (!speed) continue;
      const std::string path = fmt::format("{}.{}", name, hardware::Processor::speed_name(type));
      add(path + ".tflops", to_string(speed->peak));
      add(path + ".gflops_efficiency", reached(speed->efficiency, speed->peak.flops_per_second));
    }
  }
  void memory(const std::string& name, const hardware::MemoryTier& memory) {
    source(name, file_.find(name));
    add(name + ".GiB", to_string(memory.capacity));
    add(name + ".GBps", to_string(memory.peak));
    add(name + ".MB_efficiency", reached(memory.efficiency, memory.peak.bytes_per_second));
  }
  void network(std::size_t index, const Network& network) {
    const std::string path = fmt::format("networks[{}]", index);
    source(path, &file_.find("networks")->as_array()[index]);
    add(path + ".bandwidth", to_string(network.bandwidth));
    add(path + ".efficiency", share(network.efficiency));
    add(path + ".size", with_separators(network.size));
    add(path + ".latency", to_string(network.latency));
    if (network.leaf) {
      add(path + ".leaf",
          fmt::format("{} nodes, {:g} : 1", network.leaf->nodes, network.leaf->oversubscription));
    }
    if (network.collectives) add(path + ".collectives", rates(*network.collectives, index > 0));
  }
  static std::string rates(const CollectiveRates& rates, bool between_domains) {
    std::string text = fmt::format("latency x {:g}", rates.latency);
    if (between_domains) text += fmt::format(", LL {:g}, LL128 {:g}", rates.ll, rates.ll128);
    if (rates.in_switch) text += fmt::format(", in switch {:g}", rates.in_switch->share);
    return text;
  }

  const System& system_;
  const Json& file_;
  Table table_;
  std::string sources_;
};

}  // namespace

std::string hardware_text(const System& system, const Json& file, const TextStyle& style) {
  std::string text = styled(system.name, kBold, style.colour) + "\n\n" + picture(system) + "\n";
  if (cost::has_collective_rates(system)) text += collectives_table(system, style) + "\n";
  return text + Figures(system, file).text(style);
}

}  // namespace shiplap::report
