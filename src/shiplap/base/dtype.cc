#include "shiplap/base/dtype.h"

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

struct DTypeInfo {
  std::string_view name;
  std::string_view long_name;
  std::int64_t bytes;
};

constexpr std::array<DTypeInfo, kDTypes.size()> kDTypeInfos{{{"f64", "float64", 8},
                                                             {"f32", "float32", 4},
                                                             {"f16", "float16", 2},
                                                             {"bf16", "bfloat16", 2},
                                                             {"fp8_e4m3", "float8", 1},
                                                             {"fp8_e5m2", "float8", 1},
                                                             {"i64", "int64", 8},
                                                             {"i32", "int32", 4},
                                                             {"i16", "int16", 2},
                                                             {"i8", "int8", 1},
                                                             {"u8", "uint8", 1}}};

const DTypeInfo* find_info(DType type) {
  const auto index = static_cast<std::size_t>(type);
  return index < kDTypeInfos.size() ? &kDTypeInfos[index] : nullptr;
}

}  // namespace

// A peer may send any number as a type.
std::string_view name(DType type) {
  const DTypeInfo* const info = find_info(type);
  return info == nullptr ? "unknown type" : info->name;
}

std::string_view long_name(DType type) {
  const DTypeInfo* const info = find_info(type);
  return info == nullptr ? "unknown type" : info->long_name;
}

std::int64_t bytes_of(DType type) {
  if (const DTypeInfo* const info = find_info(type)) return info->bytes;
  throw InternalError("unknown element type");
}

}  // namespace shiplap
