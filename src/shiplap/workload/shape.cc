#include "shiplap/workload/shape.h"

namespace shiplap::workload {

ModelShape shape_of(const Model& model, std::int64_t seq_length) {
  ModelShape shape{.hidden = model.hidden,
                   .block = seq_length,
                   .datatype = model.type,
                   .moments = bytes_of(model.type) == 2 ? 6 : 2};
  for (std::size_t k = 0; k < model.layers.size(); ++k) shape.layers.push_back(model.layer(k));
  std::vector<Part>& first = shape.layers.front().parts;
  first.insert(first.begin(), model.embedding.parts.begin(), model.embedding.parts.end());
  std::vector<Part>& last = shape.layers.back().parts;
  last.insert(last.end(), model.head.parts.begin(), model.head.parts.end());
  return shape;
}

}  // namespace shiplap::workload
