// The loops with the widest registers that this x86 processor has.
#include "shiplap/kernels/softmax_loops_internal.h"

namespace shiplap::kernels {
namespace {

// One entry per processor, each a whole function, so that no vector crosses from code for one
// processor into code for another.
struct Loops {
  void (*softmax_f32)(const SoftmaxStep<float>&);
  void (*softmax_bf16)(const SoftmaxStep<Bf16>&);
  void (*gradient_f32)(const GradientStep<float>&);
  void (*gradient_bf16)(const GradientStep<Bf16>&);
};

template <class T>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void softmax_512(
    const SoftmaxStep<T>& step) {
  softmax_step_here(step);
}

template <class T>
[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void gradient_512(
    const GradientStep<T>& step) {
  gradient_step_here(step);
}

template <class T>
[[gnu::target("avx2,fma")]] void softmax_256(const SoftmaxStep<T>& step) {
  softmax_step_here(step);
}

template <class T>
[[gnu::target("avx2,fma")]] void gradient_256(const GradientStep<T>& step) {
  gradient_step_here(step);
}

template <class T>
void softmax_128(const SoftmaxStep<T>& step) {
  softmax_step_here(step);
}

template <class T>
void gradient_128(const GradientStep<T>& step) {
  gradient_step_here(step);
}

Loops widest() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    return {softmax_512<float>, softmax_512<Bf16>, gradient_512<float>, gradient_512<Bf16>};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {softmax_256<float>, softmax_256<Bf16>, gradient_256<float>, gradient_256<Bf16>};
  }
  return {softmax_128<float>, softmax_128<Bf16>, gradient_128<float>, gradient_128<Bf16>};
}

const Loops& loops() {
  static const Loops chosen = widest();
  return chosen;
}

}  // namespace

void softmax_step(const SoftmaxStep<float>& step) { loops().softmax_f32(step); }
void softmax_step(const SoftmaxStep<Bf16>& step) { loops().softmax_bf16(step); }
void gradient_step(const GradientStep<float>& step) { loops().gradient_f32(step); }
void gradient_step(const GradientStep<Bf16>& step) { loops().gradient_bf16(step); }

}  // namespace shiplap::kernels
