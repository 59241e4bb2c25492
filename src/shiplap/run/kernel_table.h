// Maps the names of computations in a plan to functions. The caller of the executor builds the
// table; there is no global registry.
//
//   KernelTable kernels;
//   kernels.bind("zero", [](const KernelCall& call) { .. });
//   Executor executor(plan, world, kernels);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/plan/expand.h"

namespace shiplap::run {

// One region that a computation reads or writes, as the plan states it. `bytes` may be written only
// if `kind` is not `reads`.
struct KernelAccess {
  plan::Access::Kind kind = plan::Access::Kind::reads;
  std::span<std::byte> bytes;
  DType type = DType::f32;
  std::int64_t row_bytes = 0;
  const plan::Tensor* tensor = nullptr;
  const plan::flat::Value* value = nullptr;
  std::span<const plan::flat::Run>
      runs;  // of all dimensions; those of the part first, in memory order

  [[nodiscard]] bool is_of(std::string_view tensor_kind) const {
    return tensor->kind == tensor_kind;
  }
  [[nodiscard]] std::int64_t rows() const { return std::ssize(bytes) / row_bytes; }
  // The instance of the tensor: the layer.
  [[nodiscard]] std::int64_t instance() const { return value->instance; }

  // REQUIRES: T has the size of the element type.
  template <class T>
  [[nodiscard]] std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// Returns the coordinates of the value in one dimension of its part, in memory order.
[[nodiscard]] std::vector<std::int64_t> coordinates(const KernelAccess& access,
                                                    plan::DimensionId dimension);

// One call of a kernel. Operations on different streams may call concurrently, each on the thread
// of its stream.
struct KernelCall {
  const plan::RankProgram* program = nullptr;
  const plan::flat::Operation* operation = nullptr;
  std::int64_t step = 0;    // number of steps this executor has run before
  std::int32_t stream = 0;  // 0 is `main`
  std::span<const KernelAccess> accesses;
  const std::function<void()>* poll = nullptr;

  [[nodiscard]] Rank rank() const { return program->rank; }
  // Whether messages make progress only when the kernel polls (Progress::polled). It should then
  // call poll_progress() every few milliseconds.
  [[nodiscard]] bool is_polled() const { return poll != nullptr; }
  void poll_progress() const {
    if (poll != nullptr) (*poll)();
  }
};

// One call of a kernel for consecutive `joined` computations of a stream. It works through them in
// order, and raises the counter of each when it is done: whatever depends on it, such as a message,
// starts then, not when the call ends.
struct JoinedCall {
  std::span<const KernelCall> tiles;
  // Whether the dependencies of a tile are complete.
  std::function<bool(std::size_t tile)> is_ready;
  // Waits for them. Returns false if the kernel must return, and be called again for the rest:
  // with Progress::polled, this rank has something else to run.
  std::function<bool(std::size_t tile)> await;
  // Raises the counter. REQUIRES: all tiles before are complete.
  std::function<void(std::size_t tile)> complete;
};

// A value that a rank has in memory when a step begins (`given`, `keep`).
struct GivenCall {
  const plan::RankProgram* program = nullptr;
  std::int64_t step = 0;
  KernelAccess access;
};

class KernelTable {
 public:
  using Kernel = std::function<void(const KernelCall&)>;
  using JoinedKernel = std::function<void(const JoinedCall&)>;
  using Provider = std::function<void(const GivenCall&)>;

  // REQUIRES: no kernel of this name is bound.
  void bind(std::string name, Kernel kernel);
  // Calls `kernel` for `joined` computations. Without it they are calls of their own. REQUIRES: a
  // kernel of this name is bound.
  void bind_joined(std::string_view name, JoinedKernel kernel);
  // Called for every `given` and `keep` of the plan before each step. It writes the batch, and
  // before step 0 the weights. Without a provider, memory is left unchanged.
  void bind_given(Provider provider) { given_ = std::move(provider); }

  // Returns null if there is none.
  [[nodiscard]] const Kernel* find(std::string_view name) const;
  [[nodiscard]] const JoinedKernel* find_joined(std::string_view name) const;
  [[nodiscard]] const Provider& given() const { return given_; }
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::map<std::string, Kernel, std::less<>> kernels_;
  std::map<std::string, JoinedKernel, std::less<>> joined_;
  Provider given_;
};

// Returns D640, once per name, for every computation of this rank that the table does not have.
[[nodiscard]] std::vector<Diagnostic> unknown_kernels(const plan::RankProgram& program,
                                                      const KernelTable& kernels);

}  // namespace shiplap::run
