#include "shiplap/comm/type.h"

#include "shiplap/base/error.h"

namespace shiplap::comm {
std::size_t bytes_of(Type type) {
  switch (type) {
    case Type::u8:
      return 1;
    case Type::i32:
    case Type::f32:
      return 4;
    case Type::i64:
    case Type::f64:
      return 8;
  }
  throw InternalError("unknown type");
}

std::string_view name(Type type) {
  switch (type) {
    case Type::u8:
      return "u8";
    case Type::i32:
      return "i32";
    case Type::i64:
      return "i64";
    case Type::f32:
      return "f32";
    case Type::f64:
      return "f64";
  }
  return "unknown type";  // another rank may say anything
}

std::string_view name(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return "sum";
    case Reduction::max:
      return "max";
    case Reduction::min:
      return "min";
  }
  return "unknown reduction";
}

}  // namespace shiplap::comm
