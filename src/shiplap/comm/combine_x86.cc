// combine() with the widest vector registers of this x86 processor: half the width was a tenth
// slower for data in the L1 cache.
#include "shiplap/comm/combine_internal.h"

namespace shiplap::comm {
namespace {

using Combine = void(ReduceOp, DType, std::byte*, const std::byte*, const std::byte*, std::size_t);

[[gnu::target("avx512f,avx512vl,avx512bw,avx512dq")]] void combine_512(ReduceOp reduction,
                                                                       DType type, std::byte* into,
                                                                       const std::byte* left,
                                                                       const std::byte* right,
                                                                       std::size_t count) {
  combine_inline(reduction, type, into, left, right, count);
}

[[gnu::target("avx2")]] void combine_256(ReduceOp reduction, DType type, std::byte* into,
                                         const std::byte* left, const std::byte* right,
                                         std::size_t count) {
  combine_inline(reduction, type, into, left, right, count);
}

void combine_128(ReduceOp reduction, DType type, std::byte* into, const std::byte* left,
                 const std::byte* right, std::size_t count) {
  combine_inline(reduction, type, into, left, right, count);
}

Combine* widest() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    return combine_512;
  }
  return __builtin_cpu_supports("avx2") ? combine_256 : combine_128;
}

}  // namespace

void combine(ReduceOp reduction, DType type, std::byte* into, const std::byte* left,
             const std::byte* right, std::size_t count) {
  static Combine* const chosen = widest();
  chosen(reduction, type, into, left, right, count);
}

}  // namespace shiplap::comm
