// Rows times weights by oneDNN's matmul.
//
// oneDNN chooses the blocks of the weights for the typical number of rows; the primitives for other
// numbers are then made for these blocks. It has several ways to multiply (for bf16: the tiles of
// AMX, or vectors where there is little to do) that round differently, but each gives a row the
// same bits however many others there are. So the way of the typical number is the only one used.
// It knows no gaps in matrices that are not transposed.
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/kernels/linear_internal.h"
#include "shiplap/kernels/onednn_internal.h"

namespace shiplap::kernels {
namespace {

using Description = dnnl::matmul::primitive_desc;

DataType data_type(DType type) {
  switch (type) {
    case DType::f32:
      return DataType::f32;
    case DType::bf16:
      return DataType::bf16;
    case DType::f16:
      return DataType::f16;
    default:
      throw InternalError("no type that oneDNN multiplies");
  }
}

// The ways that are called so are loops slower than ours.
bool is_slow(const std::string& way) { return way.starts_with("ref"); }

class OnednnLinear final : public LinearEngine {
 public:
  explicit OnednnLinear(const LinearShape& shape)
      : shape_(shape), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const OneThread only;
    choose_blocks();
  }

  [[nodiscard]] bool is_fast() const { return !way_.empty() && !is_slow(way_); }
  [[nodiscard]] DType type() const override { return shape_.type; }
  [[nodiscard]] std::string_view name() const override { return way_; }

  void prepare(const GroupWeights& weights) override {
    const OneThread only;
    const auto group = static_cast<std::size_t>(weights.group);
    if (group >= groups_.size()) groups_.resize(group + 1);
    if (shape_.packing == Packing::every_call && multiplies_in_place(weights.layout)) {
      groups_[group].weights = weights.data;
    } else {
      pack(weights, groups_[group]);
    }
  }

  [[nodiscard]] bool can(const RowsProduct& product) override {
    const OneThread only;
    return find(product) != nullptr;
  }

  void multiply(const RowsProduct& product, const RowsOperands& operands) override {
    const OneThread only;
    Prepared* const prepared = find(product);
    ensure(prepared != nullptr, "only what can be multiplied is");
    void* const weights = groups_[operands.group].weights;
    prepared->execute(stream_, {operands.a, weights, operands.c, scratchpad_.start()});
    stream_.wait();
  }

 private:
  struct Group {
    Memory packed{nullptr};
    void* weights = nullptr;  // these, or those of the caller
  };

  [[nodiscard]] RowsProduct typical() const {
    return {.rows = shape_.typical_rows, .a = {.stride = shape_.depth}, .stride_c = shape_.columns};
  }

  void choose_blocks() {
    const Memory::desc any({shape_.depth, shape_.columns}, data_type(shape_.type),
                           Memory::format_tag::any);
    if (const std::optional<Description> best = description(typical(), any)) use(*best);
  }

  void use(const Description& best) {
    way_ = best.impl_info_str();
    layout_of_weights_ = best.weights_desc();
    prepared_.clear();
  }

  // Whether there is a fast way to multiply by weights that lie so, which is then used.
  bool multiplies_in_place(const Layout& layout) {
    const Memory::desc here = layout_of(layout);
    if (here == layout_of_weights_) return true;
    const std::optional<Description> best = description(typical(), here);
    if (!best || is_slow(best->impl_info_str())) return false;
    use(*best);
    return true;
  }

  void pack(const GroupWeights& weights, Group& group) {
    if (!group.packed) group.packed = Memory(layout_of_weights_, engine_);
    Memory from(layout_of(weights.layout), engine_, weights.data);
    dnnl::reorder(from, group.packed).execute(stream_, from, group.packed);
    stream_.wait();
    group.weights = group.packed.get_data_handle();
  }

  [[nodiscard]] Memory::desc layout_of(const Layout& layout) const {
    return matrix({shape_.depth, shape_.columns}, data_type(shape_.type), layout);
  }

  // Nothing if oneDNN cannot do it.
  [[nodiscard]] std::optional<Description> description(const RowsProduct& product,
                                                       const Memory::desc& weights) const {
    try {
      return Description(
          engine_, matrix({product.rows, shape_.depth}, data_type(shape_.type), product.a), weights,
          matrix({product.rows, shape_.columns}, DataType::f32, {.stride = product.stride_c}),
          attributes_for(product.into));
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
      return std::nullopt;
    }
  }

  // Null if oneDNN cannot do it, or would in another way than usual.
  Prepared* find(const RowsProduct& product) {
    if (const auto found = prepared_.find(product); found != prepared_.end()) {
      return found->second.get();
    }
    std::unique_ptr<Prepared> made;
    const std::optional<Description> best = description(product, layout_of_weights_);
    if (best && best->impl_info_str() == way_) {
      made = std::make_unique<Prepared>(engine_, *best);
      scratchpad_.grow(made->scratchpad_bytes());
    }
    return prepared_.emplace(product, std::move(made)).first->second.get();
  }

  LinearShape shape_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::string way_;
  Memory::desc layout_of_weights_;
  std::vector<Group> groups_;
  std::map<RowsProduct, std::unique_ptr<Prepared>> prepared_;
  Scratchpad scratchpad_;
};

}  // namespace

LinearEngine* make_onednn_linear(const LinearShape& shape) {
  auto made = std::make_unique<OnednnLinear>(shape);
  return made->is_fast() ? made.release() : nullptr;
}

}  // namespace shiplap::kernels
