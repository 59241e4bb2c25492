// The loops with the widest registers that this x86 processor has.
#include "shiplap/kernels/epilogue_loops_internal.h"

namespace shiplap::kernels {
namespace {

// One entry per processor, each a whole function, so that no vector crosses from code for one
// processor into code for another.
struct Loops {
  void (*apply_epilogue)(const EpilogueStep&);
  void (*widen)(const WidenStep&);
};

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void epilogue_512(
    const EpilogueStep& step) {
  apply_epilogue_here(step);
}

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq,fma")]] void widen_512(const WidenStep& step) {
  widen_here(step);
}

[[gnu::target("avx2,fma")]] void epilogue_256(const EpilogueStep& step) {
  apply_epilogue_here(step);
}

[[gnu::target("avx2,fma")]] void widen_256(const WidenStep& step) { widen_here(step); }

void epilogue_128(const EpilogueStep& step) { apply_epilogue_here(step); }
void widen_128(const WidenStep& step) { widen_here(step); }

Loops widest() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    return {epilogue_512, widen_512};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {epilogue_256, widen_256};
  }
  return {epilogue_128, widen_128};
}

const Loops& loops() {
  static const Loops chosen = widest();
  return chosen;
}

}  // namespace

void apply_epilogue(const EpilogueStep& step) { loops().apply_epilogue(step); }
void widen(const WidenStep& step) { loops().widen(step); }

}  // namespace shiplap::kernels
