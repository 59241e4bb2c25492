// A product of two 64x64 matrices by oneDNN, against three plain loops.
#include <cstddef>
#include <cstdio>
#include <dnnl.hpp>
#include <exception>
#include <vector>

namespace {

constexpr dnnl::memory::dim kSide = 64;
constexpr auto kSize = static_cast<std::size_t>(kSide);
using Matrix = std::vector<float>;

// Small whole numbers, so that every product and sum is exact.
Matrix pattern(std::size_t step) {
  Matrix matrix(kSize * kSize);
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    matrix[i] = static_cast<float>(i * step % 17) - 8.0F;
  }
  return matrix;
}

Matrix plain_product(const Matrix& a, const Matrix& b) {
  Matrix c(kSize * kSize, 0.0F);
  for (std::size_t i = 0; i < kSize; ++i) {
    for (std::size_t j = 0; j < kSize; ++j) {
      for (std::size_t k = 0; k < kSize; ++k) {
        c[i * kSize + j] += a[i * kSize + k] * b[k * kSize + j];
      }
    }
  }
  return c;
}

Matrix onednn_product(Matrix a, Matrix b) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::memory::desc shape({kSide, kSide}, dnnl::memory::data_type::f32,
                                 dnnl::memory::format_tag::ab);
  Matrix c(kSize * kSize, 0.0F);
  const dnnl::matmul::primitive_desc description(engine, shape, shape, shape);
  dnnl::matmul(description)
      .execute(stream, {{DNNL_ARG_SRC, dnnl::memory(shape, engine, a.data())},
                        {DNNL_ARG_WEIGHTS, dnnl::memory(shape, engine, b.data())},
                        {DNNL_ARG_DST, dnnl::memory(shape, engine, c.data())}});
  stream.wait();
  return c;
}

}  // namespace

int main() {
  try {
    const Matrix a = pattern(5);
    const Matrix b = pattern(7);
    const bool good = onednn_product(a, b) == plain_product(a, b);
    std::puts(good ? "right" : "wrong");
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
}
