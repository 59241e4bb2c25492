#include "parse.h"

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
T parse_word(std::string_view what, std::string_view word, const std::array<T, N>& all) {
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

overlap::Type parse_comm_type(std::string_view word) {
  using overlap::Type;
  return parse_word(
      "comm_type", word,
      std::array{Type::none, Type::all_gather, Type::reduce_scatter, Type::all_reduce});
}

overlap::Method parse_method(std::string_view word) {
  using overlap::Method;
  return parse_word(
      "comm_overlap_method", word,
      std::array{Method::none, Method::bulk, Method::pipeline, Method::ring_exchange});
}

kernels::Activation parse_activation(std::string_view word) {
  using kernels::Activation;
  return parse_word("activation", word, std::array{Activation::none, Activation::gelu_tanh});
}

DType parse_dtype(std::string_view word) {
  return parse_word(
      "comm_dtype", word,
      std::array{DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2});
}

}  // namespace shiplap::python::jax
