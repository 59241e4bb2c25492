// The number formats that processors compute with, by the names that hardware files give them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shiplap {

enum class Datatype : std::uint8_t { float8, float16, bfloat16, float32 };

[[nodiscard]] std::string_view name(Datatype type);  // "float16"
[[nodiscard]] std::int64_t bytes_of(Datatype type);
// Nothing if no datatype is called so.
[[nodiscard]] std::optional<Datatype> datatype_called(std::string_view name);

}  // namespace shiplap
