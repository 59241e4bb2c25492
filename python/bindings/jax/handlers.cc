#include "handlers.h"

#include <fmt/format.h>
#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "gemm.h"
#include "group.h"
#include "parse.h"
#include "shiplap/base/diagnostic.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "thread_pool.h"

namespace shiplap::python::jax {
namespace {

namespace ffi = xla::ffi;

[[noreturn]] void throw_invalid(std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D817", .what = std::move(what), .help = std::move(help)});
}

// ---- arrays

DType type_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return DType::f32;
    case ffi::DataType::F16:
      return DType::f16;
    case ffi::DataType::BF16:
      return DType::bf16;
    case ffi::DataType::F8E4M3FN:
      return DType::fp8_e4m3;
    case ffi::DataType::F8E5M2:
      return DType::fp8_e5m2;
    case ffi::DataType::S64:
      return DType::i64;
    case ffi::DataType::S32:
      return DType::i32;
    case ffi::DataType::U8:
    case ffi::DataType::F8E8M0FNU:  // a byte that is an exponent
      return DType::u8;
    default:
      throw_invalid(fmt::format("unsupported array dtype {} of XLA", static_cast<int>(type)),
                    "give float32, float16, bfloat16, float8_e4m3fn or float8_e5m2");
  }
}

Array array_of(const ffi::AnyBuffer& buffer) {
  const auto shape = buffer.dimensions();
  return {.data = buffer.untyped_data(),
          .shape = {shape.begin(), shape.end()},
          .type = type_of(buffer.element_type())};
}

class Arguments {
 public:
  explicit Arguments(ffi::RemainingArgs all) : all_(all) {}
  Array next() {
    const auto found = all_.get<ffi::AnyBuffer>(at_++);
    if (!found.has_value()) throw_invalid("too few operands", "call it through shiplap.jax");
    return array_of(*found);
  }

 private:
  ffi::RemainingArgs all_;
  std::size_t at_ = 0;
};

Array result_at(ffi::RemainingRets& all, std::size_t index) {
  auto found = all.get<ffi::AnyBuffer>(index);
  if (!found.has_value()) throw_invalid("too few results", "call it through shiplap.jax");
  return array_of(**found);
}

// ---- attributes

class Attributes {
 public:
  explicit Attributes(const ffi::Dictionary& all) : all_(all) {}
  [[nodiscard]] bool has(std::string_view name) const { return all_.contains(name); }

  template <class T>
  [[nodiscard]] T get(std::string_view name, T otherwise) const {
    if (!has(name)) return otherwise;
    const auto found = all_.get<T>(name);
    if (found.has_value()) return *found;
    throw_invalid(fmt::format("type mismatch of the attribute {}", name),
                  "give names as strings, flags as bool, numbers as int64");
  }

 private:
  const ffi::Dictionary& all_;
};

overlap::Choice choice_in(const Attributes& from) {
  overlap::Choice choice{
      .type = parse_comm_type(from.get<std::string_view>("comm_type", "none")),
      .method = parse_method(from.get<std::string_view>("comm_overlap_method", "none")),
      .atomic = from.get("atomic_gemm", false)};
  // The name in recent versions of TransformerEngine: a number; its method is always ring exchange.
  if (!from.has("collective_op")) return choice;
  const auto op = from.get<std::int64_t>("collective_op", 0);
  if (op < 0 || op > 2) {
    throw_invalid(fmt::format("collective_op = {}", op),
                  "choose 0 none, 1 all_gather, 2 reduce_scatter");
  }
  if (op != 0 && choice.type == overlap::Type::none) {
    choice.type = static_cast<overlap::Type>(op);
    if (!from.has("comm_overlap_method")) choice.method = overlap::Method::ring_exchange;
  }
  return choice;
}

GemmAttributes attributes_in(const ffi::Dictionary& all) {
  const Attributes from(all);
  return {.group = from.get<std::int64_t>("group", 0),
          .choice = choice_in(from),
          .comm_overlap_id = from.get<std::int64_t>("comm_overlap_id", -1),
          .scaling_mode = kernels::scaling_mode_from_int(from.get<std::int64_t>("scaling_mode", 0)),
          .lhs_axis_boundary = from.get<std::int64_t>("lhs_axis_boundary", -1),
          .rhs_axis_boundary = from.get<std::int64_t>("rhs_axis_boundary", -1),
          .lhs_transposed = from.get("lhs_transposed", false),
          .rhs_transposed = from.get("rhs_transposed", false),
          .lhs_scale_swizzled = from.get("lhs_scale_swizzled", false),
          .rhs_scale_swizzled = from.get("rhs_scale_swizzled", false),
          .has_ragged_k = from.get("ragged_depth", false),
          .rows = from.get<std::int64_t>("rows", 0),
          // Programs that jax.export stored before have the former name.
          .global_size =
              from.get<std::int64_t>("global_size", from.get<std::int64_t>("size_of_all", 0)),
          .chunks = static_cast<int>(from.get<std::int64_t>("chunks", 1)),
          .cut = from.get("tapered", false) ? overlap::Cut::tapered : overlap::Cut::even,
          .activation = parse_activation(from.get<std::string_view>("activation", "none")),
          .comm_dtype = std::string(from.get<std::string_view>("comm_dtype", ""))};
}

// ---- calls

enum class GemmKind { single, grouped };

struct Call {
  std::int32_t device = 0;
  GemmAttributes attributes;
  GemmOperands operands;
  GemmResults results;
};

// Decodes a call. The result does not refer to XLA's call frame, which may be gone before our call
// ends.
Call decode_call(GemmKind kind, std::int32_t device, const ffi::RemainingArgs& arguments,
                 ffi::RemainingRets results, const ffi::Dictionary& dictionary) {
  Call call{.device = device, .attributes = attributes_in(dictionary)};
  call.attributes.is_grouped = kind == GemmKind::grouped;
  Arguments from(arguments);
  GemmOperands& operands = call.operands;
  operands.lhs = from.next();
  operands.lhs_scale_inv = from.next();
  operands.rhs = from.next();
  operands.rhs_scale_inv = from.next();
  operands.bias = from.next();
  if (call.attributes.is_grouped) operands.group_sizes = from.next();
  operands.alpha = from.next();
  operands.beta = from.next();
  operands.to_scatter = from.next();
  operands.axis_index = from.next();
  call.results = {.output = result_at(results, 0),
                  .gathered = result_at(results, 1),
                  .pre_activation = result_at(results, 2),
                  .scattered = result_at(results, 3)};
  return call;
}

void multiply(const Call& call) {
  multiply(call.device, call.attributes, call.operands, call.results);
}

// The exception being handled as an error of XLA. Python finds the exception by the message.
ffi::Error to_ffi_error(ffi::ErrorCode code, const std::string& message) {
  record_failure(message, std::current_exception());
  return {code, message};
}

template <class F>
ffi::Error run_and_catch(const F& task) {
  using ffi::ErrorCode;
  try {
    task();
    return ffi::Error::Success();
  } catch (const InputError& e) {
    return to_ffi_error(ErrorCode::kInvalidArgument, render(e.diagnostics()));
  } catch (const comm::TimeoutError& e) {
    return to_ffi_error(ErrorCode::kDeadlineExceeded, render(e.diagnostic()));
  } catch (const comm::Failure& e) {
    return to_ffi_error(ErrorCode::kAborted, render(e.diagnostic()));
  } catch (const std::exception& e) {
    return to_ffi_error(ErrorCode::kInternal,
                        fmt::format("this is a bug in Shiplap: {}", e.what()));
  } catch (...) {
    return to_ffi_error(ErrorCode::kInternal, "this is a bug in Shiplap: an unknown exception");
  }
}

void complete(ffi::Promise promise, const ffi::Error& outcome) {
  outcome.success() ? promise.SetAvailable() : promise.SetError(outcome);
}

ffi::Future start(GemmKind kind, std::int32_t device, const ffi::RemainingArgs& arguments,
                  const ffi::RemainingRets& results, const ffi::Dictionary& dictionary) {
  const ffi::Promise promise;
  ffi::Future future(promise);
  bool is_submitted = false;
  const ffi::Error outcome = run_and_catch([&] {
    Call call = decode_call(kind, device, arguments, results, dictionary);
    if (call.attributes.choice.type == overlap::Type::none) return multiply(call);
    // XLA runs a program on few threads and assumes that handlers do not block: a task queued
    // behind a blocked handler may be a reduction that another rank needs before it reaches the
    // matching call, which is a deadlock. So no call blocks a thread of XLA.
    ThreadPool::instance().submit([promise, call = std::move(call)] {
      complete(promise, run_and_catch([&] { multiply(call); }));
    });
    is_submitted = true;
  });
  if (!is_submitted) complete(promise, outcome);
  return future;
}

ffi::Future gemm(std::int32_t device, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                 ffi::Dictionary attributes) {
  return start(GemmKind::single, device, arguments, results, attributes);
}

ffi::Future grouped_gemm(std::int32_t device, ffi::RemainingArgs arguments,
                         ffi::RemainingRets results, ffi::Dictionary attributes) {
  return start(GemmKind::grouped, device, arguments, results, attributes);
}

XLA_FFI_DEFINE_HANDLER(
    kGemmHandler, gemm,
    ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER(
    kGroupedGemmHandler, grouped_gemm,
    ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets().Attrs());

}  // namespace

void* gemm_handler() { return reinterpret_cast<void*>(kGemmHandler); }
void* grouped_gemm_handler() { return reinterpret_cast<void*>(kGroupedGemmHandler); }

}  // namespace shiplap::python::jax
