#include "words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap::python::jax {
namespace {

std::string_view name(kernels::Activation activation) {
  return activation == kernels::Activation::none ? "none" : "gelu_tanh";
}

template <class T, std::size_t N>
T called(std::string_view what, std::string_view word, const std::array<T, N>& all) {
  std::vector<std::string_view> words;
  for (const T& one : all) {
    words.push_back(name(one));
    if (words.back() == word) return one;
  }
  throw InputError(Diagnostic{.code = "D817",
                              .what = fmt::format("{} = {}", what, word),
                              .help = fmt::format("choose {}", fmt::join(words, ", "))});
}

}  // namespace

overlap::Type type_called(std::string_view word) {
  using overlap::Type;
  return called("comm_type", word,
                std::array{Type::none, Type::all_gather, Type::reduce_scatter, Type::all_reduce});
}

overlap::Method method_called(std::string_view word) {
  using overlap::Method;
  return called("comm_overlap_method", word,
                std::array{Method::none, Method::bulk, Method::pipeline, Method::ring_exchange});
}

kernels::Activation activation_called(std::string_view word) {
  using kernels::Activation;
  return called("activation", word, std::array{Activation::none, Activation::gelu_tanh});
}

DType element_type_called(std::string_view word) {
  return called("comm_dtype", word,
                std::array{DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2});
}

}  // namespace shiplap::python::jax
