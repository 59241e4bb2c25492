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
#include "shiplap/base/diagnostic.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/failure.h"
#include "thread_pool.h"
#include "words.h"

namespace shiplap::python::jax {
namespace {

namespace ffi = xla::ffi;

[[noreturn]] void refuse(std::string what, std::string help) {
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
      refuse(fmt::format("an array of XLA's type {}", static_cast<int>(type)),
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
    if (!found.has_value()) refuse("too few operands", "call it through shiplap.jax");
    return array_of(*found);
  }

 private:
  ffi::RemainingArgs all_;
  std::size_t at_ = 0;
};

Array result_at(ffi::RemainingRets& all, std::size_t index) {
  auto found = all.get<ffi::AnyBuffer>(index);
  if (!found.has_value()) refuse("too few results", "call it through shiplap.jax");
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
    refuse(fmt::format("the attribute {} is of another type", name),
           "give words as strings, yes or no as bool, numbers as int64");
  }

 private:
  const ffi::Dictionary& all_;
};

overlap::Choice choice_in(const Attributes& from) {
  overlap::Choice choice{
      .type = type_called(from.get<std::string_view>("comm_type", "none")),
      .method = method_called(from.get<std::string_view>("comm_overlap_method", "none")),
      .atomic = from.get("atomic_gemm", false)};
  // What TransformerEngine calls it now: a number, and always the exchange on a ring.
  if (!from.has("collective_op")) return choice;
  const auto op = from.get<std::int64_t>("collective_op", 0);
  if (op < 0 || op > 2) {
    refuse(fmt::format("collective_op = {}", op), "choose 0 none, 1 all_gather, 2 reduce_scatter");
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
          .scaling_mode = kernels::scaling_mode_of(from.get<std::int64_t>("scaling_mode", 0)),
          .lhs_axis_boundary = from.get<std::int64_t>("lhs_axis_boundary", -1),
          .rhs_axis_boundary = from.get<std::int64_t>("rhs_axis_boundary", -1),
          .lhs_transposed = from.get("lhs_transposed", false),
          .rhs_transposed = from.get("rhs_transposed", false),
          .lhs_scale_swizzled = from.get("lhs_scale_swizzled", false),
          .rhs_scale_swizzled = from.get("rhs_scale_swizzled", false),
          .has_ragged_depth = from.get("ragged_depth", false),
          .rows = from.get<std::int64_t>("rows", 0),
          .size_of_all = from.get<std::int64_t>("size_of_all", 0),
          .chunks = static_cast<int>(from.get<std::int64_t>("chunks", 1)),
          .cut = from.get("tapered", false) ? overlap::Cut::tapered : overlap::Cut::even,
          .activation = activation_called(from.get<std::string_view>("activation", "none")),
          .comm_dtype = std::string(from.get<std::string_view>("comm_dtype", ""))};
}

// ---- calls

enum class Form { one, grouped };

struct Call {
  std::int32_t device = 0;
  GemmAttributes attributes;
  GemmOperands operands;
  GemmResults results;
};

// Nothing in it belongs to the frame of XLA's call, which may be over before ours is.
Call call_in(Form form, std::int32_t device, const ffi::RemainingArgs& arguments,
             ffi::RemainingRets results, const ffi::Dictionary& dictionary) {
  Call call{.device = device, .attributes = attributes_in(dictionary)};
  call.attributes.is_grouped = form == Form::grouped;
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
  operands.place = from.next();
  call.results = {.output = result_at(results, 0),
                  .gathered = result_at(results, 1),
                  .before_activation = result_at(results, 2),
                  .scattered = result_at(results, 3)};
  return call;
}

void multiply(const Call& call) {
  multiply(call.device, call.attributes, call.operands, call.results);
}

// What is being thrown, in words for XLA, so that Python finds it by them.
ffi::Error error_with(ffi::ErrorCode code, const std::string& said) {
  note_failure(said, std::current_exception());
  return {code, said};
}

template <class F>
ffi::Error outcome_of(const F& work) {
  using ffi::ErrorCode;
  try {
    work();
    return ffi::Error::Success();
  } catch (const InputError& e) {
    return error_with(ErrorCode::kInvalidArgument, render(e.diagnostics()));
  } catch (const comm::DeadlinePassed& e) {
    return error_with(ErrorCode::kDeadlineExceeded, render(e.diagnostic()));
  } catch (const comm::Failure& e) {
    return error_with(ErrorCode::kAborted, render(e.diagnostic()));
  } catch (const std::exception& e) {
    return error_with(ErrorCode::kInternal, fmt::format("this is a bug of Shiplap: {}", e.what()));
  } catch (...) {
    return error_with(ErrorCode::kInternal, "this is a bug of Shiplap: an unknown exception");
  }
}

void complete(ffi::Promise promise, const ffi::Error& outcome) {
  outcome.success() ? promise.SetAvailable() : promise.SetError(outcome);
}

ffi::Future start(Form form, std::int32_t device, const ffi::RemainingArgs& arguments,
                  const ffi::RemainingRets& results, const ffi::Dictionary& dictionary) {
  const ffi::Promise promise;
  ffi::Future future(promise);
  bool is_submitted = false;
  const ffi::Error outcome = outcome_of([&] {
    Call call = call_in(form, device, arguments, results, dictionary);
    if (call.attributes.choice.type == overlap::Type::none) return multiply(call);
    // XLA runs a program on few threads, and takes a handler for work that never waits: behind one
    // that does, in the queue of its thread, may stand a sum that another rank waits for before it
    // comes to its own call. So nobody waits on a thread of XLA.
    ThreadPool::instance().submit([promise, call = std::move(call)] {
      complete(promise, outcome_of([&] { multiply(call); }));
    });
    is_submitted = true;
  });
  if (!is_submitted) complete(promise, outcome);
  return future;
}

ffi::Future gemm(std::int32_t device, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                 ffi::Dictionary attributes) {
  return start(Form::one, device, arguments, results, attributes);
}

ffi::Future grouped_gemm(std::int32_t device, ffi::RemainingArgs arguments,
                         ffi::RemainingRets results, ffi::Dictionary attributes) {
  return start(Form::grouped, device, arguments, results, attributes);
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
