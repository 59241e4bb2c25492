#include "shiplap/strategy/pending_op.h"

#include <type_traits>

namespace shiplap::strategy {
namespace {

const IndexSet kNoIndices;

template <class T>
concept HeldValue = !std::is_same_v<T, std::monostate>;

}  // namespace

std::string describe(const AnyValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        if constexpr (HeldValue<std::decay_t<decltype(v)>>) {
          return workload::describe(v);
        } else {
          return "nothing";
        }
      },
      value);
}

Bytes memory(const AnyValue& value, const workload::ModelShape& shape) {
  return std::visit(
      [&](const auto& v) -> Bytes {
        if constexpr (HeldValue<std::decay_t<decltype(v)>>) {
          return v.memory(shape);
        } else {
          return {};
        }
      },
      value);
}

const IndexSet& shown_samples(const AnyValue& value) {
  if (const auto* a = std::get_if<workload::Activation>(&value)) return a->samples;
  if (const auto* d = std::get_if<workload::ActivationGrad>(&value)) return d->samples;
  return kNoIndices;
}

std::int32_t layer_of(const AnyValue& value) {
  return std::visit(
      [](const auto& v) -> std::int32_t {
        if constexpr (HeldValue<std::decay_t<decltype(v)>>) {
          return v.layer;
        } else {
          return -1;
        }
      },
      value);
}

}  // namespace shiplap::strategy
