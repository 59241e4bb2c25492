#include "shiplap/report/model.h"

#include <fmt/format.h>

#include <algorithm>

#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using workload::Layer;
using workload::Model;
using workload::Part;
using workload::PartKind;
using workload::Tokens;

// A layer and how often the model has it.
struct CountedLayer {
  const Layer& layer;
  std::int64_t count = 1;
};

std::vector<CountedLayer> layers_of(const Model& model) {
  std::vector<CountedLayer> all{{.layer = model.embedding}};
  for (std::size_t k = 0; k < model.kinds.size(); ++k) {
    all.push_back({.layer = model.kinds[k],
                   .count = std::ranges::count(model.layers, static_cast<std::int32_t>(k))});
  }
  all.push_back({.layer = model.head});
  for (const Layer& layer : model.mtp) all.push_back({.layer = layer});
  return all;
}

std::string shape_of(const Part& part) {
  std::string text;
  switch (part.kind) {
    case PartKind::embedding:
    case PartKind::linear:
      text = fmt::format("{} x {}", part.in, part.out);
      break;
    case PartKind::attention: {
      const workload::AttentionShape& shape = part.attention;
      text = fmt::format("{} heads of {}", shape.heads, shape.qk_dim);
      if (shape.v_dim != shape.qk_dim) text += fmt::format(" and {}", shape.v_dim);
      if (shape.kv_heads != shape.heads) text += fmt::format(", {} KV", shape.kv_heads);
      if (shape.window > 0) text += fmt::format(", window {}", shape.window);
      break;
    }
    case PartKind::norm:
    case PartKind::loss:
      text = fmt::format("{}", part.in);
      break;
    case PartKind::activation:
      text = fmt::format("{} to {}", part.in, part.out);
      break;
  }
  if (part.bias) text += " + bias";
  if (part.tied) text += ", tied";
  if (part.vectors > 1) text = fmt::format("{} of {}", part.vectors, text);
  if (part.experts > 1) text += fmt::format(", {} of {} experts", part.top_k, part.experts);
  return text;
}

double backward_flop(const Part& part, Tokens tokens, DType type) {
  return backward_input(part, tokens, type).flop + backward_weight(part, tokens, type).flop;
}

struct LayerTotals {
  double forward = 0;
  double backward = 0;
  Bytes kept;
};

LayerTotals totals_of(const Layer& layer, Tokens tokens, DType type) {
  LayerTotals totals;
  for (const Part& part : layer.parts) {
    totals.forward += forward(part, tokens, type).flop;
    totals.backward += backward_flop(part, tokens, type);
    totals.kept += workload::kept(part, tokens, type);
  }
  return totals;
}

std::string flop_cell(double flop) { return flop == 0 ? "" : to_string(Flops{flop}); }

std::string layer_title(const CountedLayer& entry) {
  return entry.count == 1 ? entry.layer.name
                          : fmt::format("{} x {}", entry.count, entry.layer.name);
}

Json part_json(const Part& part, Tokens tokens, DType type) {
  Json json = Json::object({{"name", part.name},
                            {"kind", std::string(name(part.kind))},
                            {"in", part.in},
                            {"out", part.out},
                            {"bias", part.bias}});
  if (part.vectors > 1) json.set("vectors", part.vectors);
  if (part.experts > 1) json.set("experts", part.experts).set("top_k", part.top_k);
  if (part.tied) json.set("tied", true);
  if (part.kind == PartKind::attention) {
    const workload::AttentionShape& shape = part.attention;
    json.set("attention", Json::object({{"heads", shape.heads},
                                        {"kv_heads", shape.kv_heads},
                                        {"qk_dim", shape.qk_dim},
                                        {"v_dim", shape.v_dim},
                                        {"window", shape.window}}));
  }
  json.set("parameters", part.parameters());
  const auto work = [](const workload::PartWork& w) {
    return Json::object({{"flop", w.flop}, {"bytes", w.bytes}});
  };
  json.set("forward", work(forward(part, tokens, type)));
  json.set("backward_input", work(backward_input(part, tokens, type)));
  json.set("backward_weight", work(backward_weight(part, tokens, type)));
  json.set("kept_bytes", workload::kept(part, tokens, type).count);
  return json;
}

}  // namespace

std::string parameter_count(std::int64_t parameters) {
  const auto n = static_cast<double>(parameters);
  if (n >= 1e11) return fmt::format("{:.0f} B", n / 1e9);
  if (n >= 1e10) return fmt::format("{:.1f} B", n / 1e9);
  if (n >= 1e9) return fmt::format("{:.2f} B", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.3g} M", n / 1e6);
  return with_separators(parameters);
}

std::string model_text(const Model& model, Tokens tokens, const TextStyle& style) {
  std::string text = fmt::format("{}: {}, {}, hidden size {}, vocabulary {}\n", model.name,
                                 model.family, counted(std::ssize(model.layers), "layer"),
                                 with_separators(model.hidden), with_separators(model.vocabulary));
  text += fmt::format("{} parameters ({})", with_separators(model.parameters()),
                      parameter_count(model.parameters()));
  if (model.active_parameters() != model.parameters()) {
    text += fmt::format(", {} active for a token", parameter_count(model.active_parameters()));
  }
  if (!model.mtp.empty()) {
    text += fmt::format(", {} more for {}", parameter_count(model.mtp_parameters()),
                        counted(std::ssize(model.mtp), "further predicted token"));
  }
  text += fmt::format("\nfor {} of {} in {}: {} forward, {} backward\n\n",
                      counted(tokens.sequences, "sequence"), counted(tokens.length, "token"),
                      long_name(model.type), to_string(Flops{model.forward_flop(tokens)}),
                      to_string(Flops{2 * model.forward_flop(tokens)}));
  Table table({Column::text("part", 9), Column::text("shape", 4), Column::numbers("parameters", 9),
               Column::numbers("forward", 5), Column::numbers("backward", 2),
               Column::numbers("kept", 3)});
  for (const CountedLayer& entry : layers_of(model)) {
    const LayerTotals totals = totals_of(entry.layer, tokens, model.type);
    table.add({layer_title(entry), "", with_separators(entry.layer.parameters()),
               flop_cell(totals.forward), flop_cell(totals.backward), totals.kept});
    for (const Part& part : entry.layer.parts) {
      table.add({"  " + part.name, shape_of(part),
                 part.parameters() == 0 ? "" : with_separators(part.parameters()),
                 flop_cell(forward(part, tokens, model.type).flop),
                 flop_cell(backward_flop(part, tokens, model.type)),
                 kept(part, tokens, model.type)});
    }
  }
  return text + table.text(style);
}

Json model_json(const Model& model, Tokens tokens) {
  Json layers = Json::array();
  for (const CountedLayer& entry : layers_of(model)) {
    Json parts = Json::array();
    for (const Part& part : entry.layer.parts) parts.push(part_json(part, tokens, model.type));
    layers.push(Json::object({{"name", entry.layer.name},
                              {"count", entry.count},
                              {"parameters", entry.layer.parameters()},
                              {"parts", std::move(parts)}}));
  }
  return Json::object({{"schema", "shiplap.model/1"},
                       {"name", model.name},
                       {"family", model.family},
                       {"type", std::string(name(model.type))},
                       {"hidden", model.hidden},
                       {"vocabulary", model.vocabulary},
                       {"positions", model.positions},
                       {"layers", std::ssize(model.layers)},
                       {"parameters", model.parameters()},
                       {"active_parameters", model.active_parameters()},
                       {"mtp_parameters", model.mtp_parameters()},
                       {"sequences", tokens.sequences},
                       {"seq_length", tokens.length},
                       {"forward_flop", model.forward_flop(tokens)},
                       {"kinds", std::move(layers)}});
}

std::string models_text(const std::vector<Model>& models, const TextStyle& style) {
  Table table({Column::text("name", 9), Column::text("family", 3), Column::numbers("layers", 4),
               Column::numbers("hidden", 4), Column::numbers("parameters", 8),
               Column::numbers("active", 6), Column::numbers("longest sequence", 2)});
  for (const Model& model : models) {
    const bool sparse = model.active_parameters() != model.parameters();
    table.add({model.name, model.family, std::to_string(model.layers.size()),
               std::to_string(model.hidden), parameter_count(model.parameters()),
               sparse ? parameter_count(model.active_parameters()) : "",
               model.positions == 0 ? "" : with_separators(model.positions)});
  }
  return table.text(style);
}

Json models_json(const std::vector<Model>& models) {
  Json list = Json::array();
  for (const Model& model : models) {
    list.push(Json::object({{"name", model.name},
                            {"family", model.family},
                            {"layers", std::ssize(model.layers)},
                            {"hidden", model.hidden},
                            {"parameters", model.parameters()},
                            {"active_parameters", model.active_parameters()}}));
  }
  return Json::object({{"schema", "shiplap.model.list/1"}, {"models", std::move(list)}});
}

}  // namespace shiplap::report
