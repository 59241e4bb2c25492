// Reports of a model: its parts with their shapes, parameters, FLOPs and bytes.
#pragma once

#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/report/text.h"
#include "shiplap/workload/model.h"

namespace shiplap::report {

// A table of the parts of each kind of layer; FLOPs and bytes are those of `tokens`.
[[nodiscard]] std::string model_text(const workload::Model& model, workload::Tokens tokens,
                                     const TextStyle& style);
// Schema "shiplap.model/1".
[[nodiscard]] Json model_json(const workload::Model& model, workload::Tokens tokens);

// One row per model.
[[nodiscard]] std::string models_text(const std::vector<workload::Model>& models,
                                      const TextStyle& style);
// Schema "shiplap.model.list/1".
[[nodiscard]] Json models_json(const std::vector<workload::Model>& models);

// "8.03 B", "124 M".
[[nodiscard]] std::string parameter_count(std::int64_t parameters);

}  // namespace shiplap::report
