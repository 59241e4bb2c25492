// combine() for other processors.
#include "shiplap/comm/combine_internal.h"

namespace shiplap::comm {

void combine(ReduceOp reduction, DType type, std::byte* into, const std::byte* left,
             const std::byte* right, std::size_t count) {
  combine_inline(reduction, type, into, left, right, count);
}

}  // namespace shiplap::comm
