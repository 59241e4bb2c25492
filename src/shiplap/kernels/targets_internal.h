// Function multiversioning: loops compiled for several x86 instruction sets.
#pragma once

#include <cstddef>

namespace shiplap::kernels {

// A loop inlined into one function per instruction set, so that no vector crosses a function
// boundary between instruction sets.
template <auto kLoop>
struct MultiTarget;
template <class Result, class... Arguments, Result (*kLoop)(Arguments...)>
struct MultiTarget<kLoop> {
  [[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] static Result for_512(
      Arguments... arguments) {
    return kLoop(arguments...);
  }
  [[gnu::target("avx2,fma")]] static Result for_256(Arguments... arguments) {
    return kLoop(arguments...);
  }
  static Result for_128(Arguments... arguments) { return kLoop(arguments...); }

  // The widest first.
  static constexpr Result (*kAll[])(Arguments...) = {for_512, for_256, for_128};
};

// Returns the index of the first one that this processor supports.
inline std::size_t best_target() {
  static const std::size_t first = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
      return 0;
    }
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 2;
  }();
  return first;
}

}  // namespace shiplap::kernels
