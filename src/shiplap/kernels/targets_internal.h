// Loops compiled for several kinds of x86 processors.
#pragma once

#include <cstddef>

namespace shiplap::kernels {

// A loop that is inlined into a whole function for each kind of processor, so that no vector
// crosses from code for one processor into code for another.
template <auto kLoop>
struct Compiled;
template <class Result, class... Arguments, Result (*kLoop)(Arguments...)>
struct Compiled<kLoop> {
  [[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]]
  static Result for_512(Arguments... arguments) {
    return kLoop(arguments...);
  }
  [[gnu::target("avx2,fma")]]
  static Result for_256(Arguments... arguments) {
    return kLoop(arguments...);
  }
  static Result for_128(Arguments... arguments) { return kLoop(arguments...); }

  // The widest first.
  static constexpr Result (*kAll[])(Arguments...) = {for_512, for_256, for_128};
};

// Which of these is the first that this processor can run.
inline std::size_t first_that_runs() {
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
