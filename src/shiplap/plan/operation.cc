#include "shiplap/plan/operation.h"

#include "shiplap/base/error.h"

namespace shiplap::plan {

std::string_view name(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return "f64";
    case ElementType::f32:
      return "f32";
    case ElementType::f16:
      return "f16";
    case ElementType::bf16:
      return "bf16";
    case ElementType::fp8_e4m3:
      return "fp8_e4m3";
    case ElementType::fp8_e5m2:
      return "fp8_e5m2";
    case ElementType::i64:
      return "i64";
    case ElementType::i32:
      return "i32";
    case ElementType::i16:
      return "i16";
    case ElementType::i8:
      return "i8";
    case ElementType::u8:
      return "u8";
  }
  throw InternalError("unknown element type");
}

std::int64_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::f64:
    case ElementType::i64:
      return 8;
    case ElementType::f32:
    case ElementType::i32:
      return 4;
    case ElementType::f16:
    case ElementType::bf16:
    case ElementType::i16:
      return 2;
    case ElementType::fp8_e4m3:
    case ElementType::fp8_e5m2:
    case ElementType::i8:
    case ElementType::u8:
      return 1;
  }
  throw InternalError("unknown element type");
}

std::string_view name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::broadcast:
      return "broadcast";
    case CollectiveKind::reduce:
      return "reduce";
    case CollectiveKind::barrier:
      return "barrier";
  }
  throw InternalError("unknown collective");
}

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter ||
         kind == CollectiveKind::reduce;
}

bool has_pieces(CollectiveKind kind) {
  return kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter ||
         kind == CollectiveKind::all_to_all;
}

bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce;
}

std::string_view name(Operator op) {
  switch (op) {
    case Operator::sum:
      return "sum";
    case Operator::max:
      return "max";
    case Operator::min:
      return "min";
    case Operator::product:
      return "product";
  }
  throw InternalError("unknown operator");
}

namespace {

struct Word {
  std::string_view operator()(const Compute&) const { return "compute"; }
  std::string_view operator()(const Copy&) const { return "copy"; }
  std::string_view operator()(const Send&) const { return "send"; }
  std::string_view operator()(const Receive&) const { return "receive"; }
  std::string_view operator()(const Collective& action) const { return name(action.kind); }
  std::string_view operator()(const Exchange&) const { return "exchange"; }
  std::string_view operator()(const Allocate&) const { return "allocate"; }
  std::string_view operator()(const Free&) const { return "free"; }
  std::string_view operator()(const Batch&) const { return "batch"; }
};

}  // namespace

std::string_view word(const Action& action) { return std::visit(Word{}, action); }

}  // namespace shiplap::plan
