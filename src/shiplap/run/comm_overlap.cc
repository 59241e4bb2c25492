#include "shiplap/run/comm_overlap.h"

#include <fmt/format.h>

#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/comm_overlap_internal.h"

namespace shiplap::run {

using overlap::Choice;
using overlap::Method;
using overlap::Type;

namespace {

// The request that makes a buffer for it: "comm_type = all_gather, method = ring_exchange".
std::string request_for(const Choice& choice) {
  return fmt::format("comm_type = {}, method = {}{}", name(choice.type), name(choice.method),
                     choice.atomic ? ", atomic_gemm = true" : "");
}

std::string buffers_for(std::string_view function) {
  std::string all;
  for (const overlap::Legal& legal : overlap::legal_choices()) {
    if (function_of(legal.choice) != function) continue;
    all += (all.empty() ? "" : " or ") + request_for(legal.choice);
  }
  return all;
}

}  // namespace

std::int64_t bytes_of(const Matrix& matrix) {
  return matrix.rows * matrix.columns * bytes_of(matrix.type);
}

std::string function_of(const Choice& choice) {
  if (choice.method == Method::none) return "multiply";
  if (choice.method == Method::bulk) return "bulk_overlap";
  const std::string_view type = choice.type == Type::all_gather       ? "ag"
                                : choice.type == Type::reduce_scatter ? "rs"
                                                                      : "ar";
  return fmt::format("{}_{}", choice.atomic ? "atomic_gemm_overlap" : "split_overlap", type);
}

CommOverlapCore::CommOverlapCore(std::unique_ptr<OverlapObject> object)
    : object_(std::move(object)) {}
CommOverlapCore::~CommOverlapCore() = default;
CommOverlapBase::CommOverlapBase(std::unique_ptr<OverlapObject> object)
    : CommOverlapCore(std::move(object)) {}
CommOverlapP2PBase::CommOverlapP2PBase(std::unique_ptr<OverlapObject> object)
    : CommOverlapCore(std::move(object)) {}

std::int64_t CommOverlapCore::id() const { return object_->buffer().id; }
const BufferRequest& CommOverlapCore::request() const { return object_->buffer().request; }
Choice CommOverlapCore::choice() const { return object_->buffer().choice; }
Matrix CommOverlapCore::buffer(Part part) const { return object_->matrix(part); }
void CommOverlapCore::copy_into_buffer(const Matrix& source, Part part) {
  object_->copy_in(source, part);
}
std::int64_t CommOverlapCore::own_bytes() const { return object_->own_bytes(); }
std::int64_t CommOverlapCore::shared_bytes() const { return object_->shared_bytes(); }
void CommOverlapCore::connect() { object_->connect(); }
StepResult CommOverlapCore::multiply(const OverlapCall& call) { return object_->run(call); }

StepResult CommOverlapCore::multiply_as(std::string_view function, const OverlapCall& call) {
  if (function != function_of(choice())) refuse(function);
  return object_->run(call);
}

void CommOverlapCore::refuse(std::string_view function) const {
  throw InputError(
      Diagnostic{.code = "D803",
                 .where = {.rank = object_->buffer().rank},
                 .what = fmt::format("Invalid collective type: {}() of a buffer for {}", function,
                                     to_string(choice())),
                 .why = describe_with_id(object_->buffer()),
                 .help = fmt::format("call {}(), or create a buffer with {}", function_of(choice()),
                                     buffers_for(function))});
}

StepResult CommOverlapCore::bulk_overlap(const OverlapCall& call) {
  return multiply_as("bulk_overlap", call);
}
StepResult CommOverlapCore::split_overlap_ag(const OverlapCall& call) {
  return multiply_as("split_overlap_ag", call);
}
StepResult CommOverlapCore::split_overlap_rs(const OverlapCall& call) {
  return multiply_as("split_overlap_rs", call);
}
StepResult CommOverlapCore::split_overlap_ar(const OverlapCall& call) {
  return multiply_as("split_overlap_ar", call);
}
StepResult CommOverlapCore::atomic_gemm_overlap_ag(const OverlapCall& call) {
  return multiply_as("atomic_gemm_overlap_ag", call);
}
StepResult CommOverlapCore::atomic_gemm_overlap_rs(const OverlapCall& call) {
  return multiply_as("atomic_gemm_overlap_rs", call);
}
StepResult CommOverlapCore::atomic_gemm_overlap_ar(const OverlapCall& call) {
  return multiply_as("atomic_gemm_overlap_ar", call);
}

}  // namespace shiplap::run
