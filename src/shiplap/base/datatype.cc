#include "shiplap/base/datatype.h"

#include <array>

#include "shiplap/base/error.h"

namespace shiplap {
namespace {

struct Entry {
  Datatype type;
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array<Entry, 4> kTypes{{{Datatype::float8, "float8", 1},
                                       {Datatype::float16, "float16", 2},
                                       {Datatype::bfloat16, "bfloat16", 2},
                                       {Datatype::float32, "float32", 4}}};

const Entry& entry(Datatype type) {
  for (const Entry& e : kTypes) {
    if (e.type == type) return e;
  }
  throw InternalError("unknown datatype");
}

}  // namespace

std::string_view name(Datatype type) { return entry(type).name; }

std::int64_t bytes_of(Datatype type) { return entry(type).bytes; }

std::optional<Datatype> datatype_called(std::string_view name) {
  for (const Entry& e : kTypes) {
    if (e.name == name) return e.type;
  }
  return std::nullopt;
}

}  // namespace shiplap
