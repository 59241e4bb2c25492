#include "shiplap/workload/model.h"

#include <algorithm>
#include <numeric>

#include "shiplap/base/error.h"

namespace shiplap::workload {
namespace {

bool has_weight(PartKind kind) {
  return kind == PartKind::embedding || kind == PartKind::linear || kind == PartKind::norm;
}

// Parameters of one copy.
std::int64_t parameters_of_copy(const Part& part) {
  if (part.tied) return part.other;
  if (!has_weight(part.kind)) return part.other;
  if (part.kind == PartKind::norm) return (part.bias ? 2 : 1) * part.in + part.other;
  return part.in * part.out + (part.bias ? part.out : 0) + part.other;
}

double product(std::initializer_list<std::int64_t> factors) {
  double result = 1;
  for (const std::int64_t factor : factors) result *= static_cast<double>(factor);
  return result;
}

// Bytes of the weights that a batch meets: of experts, at most one for each token and choice.
double weight_bytes(const Part& part, Tokens tokens, DType type) {
  const double met = std::min(product({part.experts}), product({part.top_k, tokens.count()}));
  const std::int64_t size = part.tied ? part.in * part.out : parameters_of_copy(part);
  return product({size, bytes_of(type)}) * met;
}

// Bytes of what a token brings and takes.
double token_bytes(const Part& part, std::int64_t features, Tokens tokens, DType type) {
  return product({features, part.vectors, part.top_k, tokens.count(), bytes_of(type)});
}

template <class Of>
std::int64_t sum(std::span<const Part> parts, Of of) {
  return std::transform_reduce(parts.begin(), parts.end(), std::int64_t{0}, std::plus<>(), of);
}

// Over all layers, `of` one.
template <class Of>
auto sum_of_layers(const Model& model, Of of) {
  auto total = of(model.embedding) + of(model.head);
  for (const std::int32_t kind : model.layers) total += of(model.kinds[kind]);
  return total;
}

}  // namespace

std::string_view name(PartKind kind) {
  switch (kind) {
    case PartKind::embedding:
      return "embedding";
    case PartKind::linear:
      return "linear";
    case PartKind::attention:
      return "attention";
    case PartKind::activation:
      return "activation";
    case PartKind::norm:
      return "norm";
    case PartKind::loss:
      return "loss";
  }
  throw InternalError("unknown kind of part");
}

std::int64_t Part::parameters() const { return parameters_of_copy(*this) * experts; }

std::int64_t Part::active_parameters() const { return parameters_of_copy(*this) * top_k; }

std::int64_t causal_pairs(std::int64_t length, std::int64_t window) {
  const std::int64_t seen = window == 0 ? length : std::min(window, length);
  // The first `seen` queries see 1, 2, ..; the others all of their window.
  return seen * (seen + 1) / 2 + (length - seen) * seen;
}

PartWork forward(const Part& part, Tokens tokens, DType type) {
  PartWork work{.bytes = token_bytes(part, part.in + part.out, tokens, type)};
  switch (part.kind) {
    case PartKind::linear:
      work.flop = product({2, part.in, part.out, part.top_k, tokens.count()});
      work.bytes += weight_bytes(part, tokens, type);
      return work;
    case PartKind::attention: {
      const AttentionShape& shape = part.attention;
      work.flop = product({2, shape.heads, shape.qk_dim + shape.v_dim,
                           causal_pairs(tokens.length, shape.window), tokens.sequences});
      return work;
    }
    case PartKind::embedding:  // reads only the rows it needs
      work.bytes = token_bytes(part, 2 * part.out, tokens, type);
      return work;
    case PartKind::activation:
    case PartKind::norm:
    case PartKind::loss:
      return work;
  }
  throw InternalError("unknown kind of part");
}

PartWork backward_input(const Part& part, Tokens tokens, DType type) {
  PartWork work = forward(part, tokens, type);
  switch (part.kind) {
    case PartKind::linear:
      return work;
    case PartKind::attention:  // gradients of q, k and v: two products for each of the forward pass
      work.flop *= 2;
      work.bytes *= 2;
      return work;
    case PartKind::embedding:
      return {};
    case PartKind::activation:
    case PartKind::norm:
    case PartKind::loss:  // also reads what the forward pass read
      work.bytes += token_bytes(part, part.in, tokens, type);
      return work;
  }
  throw InternalError("unknown kind of part");
}

PartWork backward_weight(const Part& part, Tokens tokens, DType type) {
  if (part.kind == PartKind::linear || part.kind == PartKind::embedding) {
    return forward(part, tokens, type);
  }
  return {};
}

Bytes kept(const Part& part, Tokens tokens, DType type) {
  double bytes = token_bytes(part, part.in, tokens, type);
  if (part.kind == PartKind::embedding) bytes = product({8, tokens.count()});  // the indices
  // The logarithm of each sum of exponentials, in f32.
  if (part.kind == PartKind::attention) {
    bytes += product({4, part.attention.heads, tokens.count()});
  }
  return {static_cast<std::int64_t>(std::min(bytes, 0x1p62))};
}

std::int64_t Layer::parameters() const {
  return sum(parts, [](const Part& part) { return part.parameters(); });
}

std::int64_t Layer::active_parameters() const {
  return sum(parts, [](const Part& part) { return part.active_parameters(); });
}

std::int64_t Model::parameters() const {
  return sum_of_layers(*this, [](const Layer& layer) { return layer.parameters(); });
}

std::int64_t Model::active_parameters() const {
  return sum_of_layers(*this, [](const Layer& layer) { return layer.active_parameters(); });
}

std::int64_t Model::mtp_parameters() const {
  std::int64_t total = 0;
  for (const Layer& layer : mtp) total += layer.parameters();
  return total;
}

double Model::forward_flop(Tokens tokens, std::int64_t modules) const {
  const auto of_layer = [&](const Layer& layer) {
    double flop = 0;
    for (const Part& part : layer.parts) {
      flop += forward(part, tokens, type).flop;
    }
    return flop;
  };
  double flop = sum_of_layers(*this, of_layer);
  for (std::int64_t k = 0; k < modules; ++k) flop += of_layer(mtp[k]);
  return flop;
}

}  // namespace shiplap::workload
