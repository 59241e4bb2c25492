// Checks one computation against the contract of its kernel.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/check/kernel_contracts_internal.h"

namespace shiplap::check {

class KernelCheck {
 public:
  KernelCheck(KernelContracts& contracts, const plan::RankProgram& program,
              std::span<const SlopeId> slopes, const plan::flat::Operation& op);

  // Throws ContractViolationError, Asymmetric.
  void check();

 private:
  // All regions that a computation reads of one tensor, instance and version.
  struct Source {
    plan::TensorId tensor;
    std::int64_t instance = 0;
    bool is_new = false;
    std::vector<const plan::flat::Access*> accesses;
  };
  // The coefficient of a point of a linear combination.
  struct Coefficient {
    plan::Ratio ratio;
    bool repeated = false;  // several regions have it
    friend bool operator==(const Coefficient&, const Coefficient&) = default;
  };
  // By coordinates of the dimensions that a source shares with the output: what was read along the
  // dimensions that it does not share. Both in the order of the source's dimensions.
  using Fibers = Piecewise<Piecewise<Coefficient>>;

  // kernel_signature.cc: kinds, layers, versions, scales
  void check_signature(const plan::KernelRule& rule) const;
  void check_operands(std::span<const plan::Operand> operands,
                      std::span<const plan::flat::Access* const> accesses, bool reads) const;
  void check_layers(const plan::KernelRule& rule) const;
  void check_versions() const;
  void check_update() const;
  void check_scales_read() const;
  void check_scale_written(const plan::flat::Access& write) const;

  // kernel_contraction.cc
  void check_contraction(const plan::flat::Access& write);
  void check_complete(const plan::flat::Access& read);
  void check_read_once(const Source& source, plan::TensorId to);
  void check_shapes(plan::TensorId to);
  // The points that all sources have, among the stated cells.
  [[nodiscard]] Boxes contracted(const plan::flat::Access& write, const Box& stated);
  [[noreturn]] void throw_unread(const plan::flat::Access& write, const Box& stated,
                                 const Boxes& unread);

  // kernel_addition.cc
  void check_zero(const plan::flat::Access& write) const;
  void check_addition(const plan::flat::Access& write);
  void check_addend(const Source& source, const plan::flat::Access& write);
  void check_addends_used() const;
  [[nodiscard]] bool same_layer(const Source& source, const plan::flat::Access& write) const;
  [[nodiscard]] static bool is_empty(const Source& source);
  void add(const Source& source, const plan::flat::Access& write, const Box& stated,
           Piecewise<Coefficient>& sum);
  void check_coefficients(const plan::flat::Access& write, const Piecewise<Coefficient>& sum) const;
  static void combine(Coefficient& there, const Coefficient& more);

  // kernel_contracts.cc
  [[nodiscard]] Fibers fibers(const Source& source, plan::TensorId to, bool with_sums);
  // The boxes of a value: one, or more if it names a coordinate several times in a dimension that
  // is not in the part of the output.
  [[nodiscard]] Boxes boxes_of(const plan::flat::Value& value, plan::TensorId to) const;
  // Whether a value whose coordinates of a dimension are `set` names one of them several times.
  [[nodiscard]] bool has_duplicates(const plan::flat::Value& value, std::size_t dimension,
                                    const IndexSet& set) const;
  [[nodiscard]] Box whole_along(const Source& source, plan::TensorId to, bool with_sums);
  [[nodiscard]] const plan::Tensor& tensor(plan::TensorId id) const {
    return contracts_.plan_.tensors[id];
  }
  [[nodiscard]] const plan::Tensor& tensor(const plan::flat::Access& access) const {
    return tensor(access.value.tensor);
  }
  // By dimension of the part and of the sum; empty without rows or contributions.
  [[nodiscard]] Box box(const plan::flat::Access& access) const;
  [[nodiscard]] std::string format_access(const plan::flat::Access& access) const;
  // "sample 0-2, key 5": coordinates of the sum, and of dimensions of the part that are not whole.
  [[nodiscard]] std::string format_points(const plan::Tensor& tensor, const Box& box) const;

  KernelContracts& contracts_;
  const plan::RankProgram& program_;
  std::span<const SlopeId> slopes_;
  std::string_view kernel_;
  std::vector<Source> sources_;
  std::vector<const plan::flat::Access*> reads_;
  std::vector<const plan::flat::Access*> writes_;
};

class ContractViolationError : public std::exception {
 public:
  explicit ContractViolationError(ContractViolation violation) : violation_(std::move(violation)) {}
  [[nodiscard]] const ContractViolation& violation() const { return violation_; }

 private:
  ContractViolation violation_;
};

[[noreturn]] void throw_violation(std::string code, std::string what, std::string why,
                                  std::string help);

// Intersects `side` with `by`. Throws Asymmetric.
void narrow(BoxSide& side, const BoxSide& by, std::int64_t size);

}  // namespace shiplap::check
