// What the names of computations in a plan stand for. Whoever runs a plan builds the table; nothing
// registers itself, and the executor knows no kernel.
//
//   KernelTable kernels;
//   kernels.bind("zero", [](const KernelCall& call) { .. });
//   Executor executor(plan, world, kernels);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::run {

// One region that a computation reads or writes, as the plan states it. `bytes` may be written only
// where the kind says so.
struct KernelAccess {
  plan::Access::Kind kind = plan::Access::Kind::reads;
  std::span<std::byte> bytes;
  DType type = DType::f32;
  std::int64_t row_bytes = 0;
  const plan::Tensor* tensor = nullptr;
  const plan::flat::Value* value = nullptr;
  std::span<const plan::flat::Run> runs;  // of all its dimensions; the part's first, as they lie

  [[nodiscard]] bool is_of(std::string_view tensor_kind) const {
    return tensor->kind == tensor_kind;
  }
  // Which one of the tensor's instances: the layer.
  [[nodiscard]] std::int64_t instance() const { return value->instance; }

  // Memory as numbers. Promises that T has the size of the element type.
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// The coordinates that the value has in one dimension of its part, in the order in which they lie.
[[nodiscard]] std::vector<std::int64_t> coordinates(const KernelAccess& access,
                                                    plan::DimensionId dimension);

// One call of a kernel. Operations on different streams may call at the same time, each from the
// thread of its stream.
struct KernelCall {
  const plan::RankProgram* program = nullptr;
  const plan::flat::Operation* operation = nullptr;
  std::int64_t step = 0;    // how many steps this executor has done before
  std::int32_t stream = 0;  // 0 is `main`
  std::span<const KernelAccess> accesses;
  const std::function<void()>* look = nullptr;

  [[nodiscard]] Rank rank() const { return program->rank; }
  // Whether nobody else moves messages on while the kernel computes. It should then look around
  // every few milliseconds.
  [[nodiscard]] bool is_polled() const { return look != nullptr; }
  void look_around() const {
    if (look != nullptr) (*look)();
  }
};

// What a rank finds in its memory when a step begins (`given`, `keep`).
struct GivenCall {
  const plan::RankProgram* program = nullptr;
  std::int64_t step = 0;
  KernelAccess access;
};

class KernelTable {
 public:
  using Kernel = std::function<void(const KernelCall&)>;
  using Provider = std::function<void(const GivenCall&)>;

  // Promises that the name is new.
  void bind(std::string name, Kernel kernel);
  // Called for every `given` and `keep` of the plan before each step: it writes the batch, and
  // before step 0 the weights. Without one, memory is as it was.
  void bind_given(Provider provider) { given_ = std::move(provider); }

  // Null if there is none.
  [[nodiscard]] const Kernel* find(std::string_view name) const;
  [[nodiscard]] const Provider& given() const { return given_; }
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::map<std::string, Kernel, std::less<>> kernels_;
  Provider given_;
};

// Everything in the plan of this rank that the table does not have: D640, once per name.
[[nodiscard]] std::vector<Diagnostic> unknown_kernels(const plan::RankProgram& program,
                                                      const KernelTable& kernels);

}  // namespace shiplap::run
