// Models against what others have counted: transformers (data/models/parameters.csv, written by
// model_witness.py), the formulas of papers (flops.csv) and Calculon (calculon_flops.csv).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/workload/model.h"

namespace shiplap::workload {
namespace {

// The first columns of each row, which hold no quotes.
std::vector<std::vector<std::string>> rows_of(const std::string& file, std::size_t columns) {
  std::ifstream in("data/models/" + file);
  std::string line;
  std::getline(in, line);
  std::vector<std::vector<std::string>> rows;
  while (std::getline(in, line)) {
    std::istringstream cells(line);
    std::vector<std::string>& row = rows.emplace_back(columns);
    for (std::string& cell : row) std::getline(cells, cell, ',');
  }
  EXPECT_FALSE(rows.empty()) << file;
  return rows;
}

std::string published_part(const Part& part) {
  const auto begins = [&](std::string_view text) { return part.name.starts_with(text); };
  if (part.name == "embedding") return "embedding";
  if (part.name == "positions") return "position_embedding";
  if (part.name == "head") return "head";
  if (part.name == "router") return "router";
  if (part.kind == PartKind::norm) {
    return begins("attention.q_norm") || begins("attention.k_norm") || begins("attention.kv_norm")
               ? "attention_norms"
               : "norms";
  }
  if (begins("attention")) return "attention";
  if (begins("experts.")) return "experts";
  if (begins("shared.")) return "shared_experts";
  return "mlp";
}

using Counts = std::map<std::string, std::int64_t>;

Counts counts_of(const Model& model) {
  Counts counts;
  const auto add = [&](const Layer& layer) {
    for (const Part& part : layer.parts) {
      if (part.parameters() == 0) continue;
      counts[published_part(part)] += part.parameters();
      if (part.bias && part.kind != PartKind::norm) counts["biases"] += part.out * part.experts;
      if (part.bias && part.kind == PartKind::norm) counts["biases"] += part.in;
    }
  };
  add(model.embedding);
  for (std::size_t k = 0; k < model.layers.size(); ++k) add(model.layer(k));
  add(model.head);
  counts["total"] = model.parameters();
  counts["activated"] = model.active_parameters();
  counts["first_layer"] = model.layer(0).parameters();
  counts["last_layer"] = model.layer(model.layers.size() - 1).parameters();
  if (!model.mtp.empty()) counts["mtp"] = model.mtp_parameters();
  return counts;
}

TEST(PublishedModels, HaveTheParametersThatTransformersBuilds) {
  std::map<std::string, Counts> published;
  for (const auto& row : rows_of("parameters.csv", 3)) {
    if (row[1] == "router_bias") continue;  // a buffer
    published[row[0]][row[1]] = std::stoll(row[2]);
  }
  EXPECT_GE(published.size(), 20);
  EXPECT_EQ(published.size(), known_models().size());
  for (const auto& [name, counts] : published) {
    EXPECT_EQ(counts_of(find_model(name).model), counts) << name;
  }
}

// "h=2304 l=24"
std::map<std::string, std::int64_t> inputs_of(const std::string& text) {
  std::map<std::string, std::int64_t> inputs;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t is = word.find('=');
    inputs[word.substr(0, is)] = std::stoll(word.substr(is + 1));
  }
  return inputs;
}

// A GPT of this size.
Model gpt(std::int64_t hidden, std::int64_t layers, std::int64_t vocabulary) {
  return parse_model(to_text(Json::object({{"model_type", "gpt2"},
                                           {"n_embd", hidden},
                                           {"n_layer", layers},
                                           {"n_head", 16},
                                           {"n_positions", 2048},
                                           {"vocab_size", vocabulary}})),
                     "gpt.json")
      .model;
}

double forward_flop(const Layer& layer, Tokens tokens) {
  double flop = 0;
  for (const Part& part : layer.parts) {
    flop += forward(part, tokens, DType::bf16).flop;
  }
  return flop;
}

TEST(PublishedModels, HaveTheFlopsOfPapers) {
  int compared = 0;
  for (const auto& row : rows_of("flops.csv", 6)) {
    if (row[1] != "evaluated" || row[2] != "step_flops") continue;
    auto in = inputs_of(row[4]);
    const std::int64_t layers = in.contains("l") ? in["l"] : in["L"];
    const Model model = gpt(in["h"], layers, in.contains("V") ? in["V"] : in["v"]);
    const Tokens tokens{.sequences = 1, .length = in["s"]};
    // Papers count all pairs of a query and a key, also those that the mask removes.
    const double hidden = static_cast<double>(in["h"]);
    const double pairs =
        static_cast<double>(tokens.length * tokens.length - causal_pairs(tokens.length, 0));
    const double layer = forward_flop(model.kinds[0], tokens) + 4 * hidden * pairs;
    const double passes = row[5].find("96 B") != std::string::npos ? 4 : 3;  // recomputed or not
    const double step =
        static_cast<double>(in["B"]) *
        (passes * static_cast<double>(layers) * layer + 3 * forward_flop(model.head, tokens));
    EXPECT_NEAR(step / std::stod(row[3]), 1, 1e-12) << row[0];
    ++compared;
  }
  EXPECT_GE(compared, 6);
}

TEST(PublishedModels, HaveTheFlopsOfDeepseeksReport) {
  for (const auto& row : rows_of("flops.csv", 4)) {
    if (row[1] != "printed" || row[2] != "token_gigaflops") continue;
    if (!row[0].starts_with("deepseek")) continue;
    const double flop = 3 * find_model(row[0]).model.forward_flop({1, 4096}) / 4096 / 1e9;
    EXPECT_NEAR(flop, std::stod(row[3]), 0.6) << row[0];
  }
}

// Calculon counts each product of a block.
TEST(PublishedModels, HaveTheProductsOfCalculon) {
  int compared = 0;
  for (const auto& row : rows_of("calculon_flops.csv", 12)) {
    const auto number = [&](std::size_t k) { return std::stoll(row[k]); };
    const std::int64_t hidden = number(1);
    const std::int64_t wide = number(2);
    const std::int64_t attention = number(3) * number(4);
    const Tokens tokens{.sequences = number(6), .length = number(5)};
    const std::map<std::string, std::pair<std::int64_t, std::int64_t>> shapes = {
        {"AttnBlock_Query", {hidden, attention}}, {"AttnBlock_Key", {hidden, attention}},
        {"AttnBlock_Value", {hidden, attention}}, {"AttnBlock_MLP", {attention, hidden}},
        {"MlpBlock_Mlp1", {hidden, wide}},        {"MlpBlock_Mlp2", {wide, hidden}}};
    const auto shape = shapes.find(row[8]);
    if (shape == shapes.end()) continue;
    const Part part{.name = row[8], .in = shape->second.first, .out = shape->second.second};
    const auto ranks = static_cast<double>(number(7));
    EXPECT_EQ(forward(part, tokens, DType::f16).flop / ranks, static_cast<double>(number(9)))
        << row[0] << row[8];
    EXPECT_EQ(backward_input(part, tokens, DType::f16).flop / ranks,
              static_cast<double>(number(10)))
        << row[0];
    EXPECT_EQ(backward_weight(part, tokens, DType::f16).flop / ranks,
              static_cast<double>(number(11)))
        << row[0];
    ++compared;
  }
  EXPECT_GE(compared, 6 * 13);
}

}  // namespace
}  // namespace shiplap::workload
