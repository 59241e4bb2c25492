#include "shiplap/run/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numbers>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/kernels/elementwise.h"
#include "shiplap/kernels/gemm.h"
#include "shiplap/run/packing_internal.h"
#include "shiplap/run/training_layout_internal.h"

namespace shiplap::run {
namespace {

using AccessKind = plan::Access::Kind;
using kernels::row_major;
using kernels::transposed;

// ---- pseudo-random numbers

double unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15 + stream * 0xbf58476d1ce4e5b9 + index + 1;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

enum RandomStream : std::uint64_t {
  phase_of_feature,
  pitch_of_feature,
  phase_of_sample,
  first_layer
};

// The target of a feature is made of this one.
std::int64_t next_feature(const TrainingOptions& options, std::int64_t feature) {
  return feature + 1 < options.hidden ? feature + 1 : 0;
}

// ---- the accesses of a call

const KernelAccess* find(const KernelCall& call, std::string_view tensor_kind, bool is_read) {
  for (const KernelAccess& access : call.accesses) {
    if (access.is_of(tensor_kind) && (access.kind == AccessKind::reads) == is_read) return &access;
  }
  return nullptr;
}

const KernelAccess& get(const KernelCall& call, std::string_view tensor_kind, bool is_read) {
  if (const KernelAccess* const found = find(call, tensor_kind, is_read)) return *found;
  throw InputError(
      Diagnostic{.code = "D641",
                 .what = fmt::format("not supported by run: this kernel {} no tensor of kind {}",
                                     is_read ? "reads" : "writes", tensor_kind)});
}

void check_same_samples(const Activations& a, const Activations& b) {
  if (std::ranges::equal(a.samples(), b.samples())) return;
  throw_unsupported_layout(
      b.access(), fmt::format("sample mismatch: other samples than `{}`, or in another order",
                              a.access().tensor->name));
}

void check_plain(const Activations& gradient) {
  if (gradient.is_plain()) return;
  throw_unsupported_layout(gradient.access(), "sharded gradients of activations");
}

// The features that two stripes have in common.
struct FeatureRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
FeatureRange intersect(const Stripe& a, const Stripe& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {.begin = begin, .count = std::min(a.begin + a.count, b.begin + b.count) - begin};
}

// Columns begin .. of a matrix of `tokens` rows that begins with column `stripe.begin`.
kernels::MatrixView columns(const Stripe& stripe, const FeatureRange& which, std::int64_t tokens) {
  return {.data = stripe.data + (which.begin - stripe.begin),
          .rows = tokens,
          .columns = which.count,
          .stride = stripe.stride};
}

}  // namespace

float initial_weight(const TrainingOptions& options, std::int64_t layer, std::int64_t element) {
  const double spread = std::sqrt(3.0 / static_cast<double>(options.hidden));
  const double at = unit(options.seed, first_layer + static_cast<std::uint64_t>(layer),
                         static_cast<std::uint64_t>(element));
  return static_cast<float>((2 * at - 1) * spread);
}

float input(const TrainingOptions& options, std::int64_t sample, std::int64_t element) {
  const auto feature = static_cast<std::uint64_t>(element % options.hidden);
  const std::int64_t token = element / options.hidden;
  const double pitch = 0.2 + unit(options.seed, pitch_of_feature, feature);
  const double phase = unit(options.seed, phase_of_feature, feature) +
                       unit(options.seed, phase_of_sample, static_cast<std::uint64_t>(sample));
  return static_cast<float>(
      std::sin(pitch * static_cast<double>(token) + 2 * std::numbers::pi * phase));
}

// Half of the input, shifted by one feature: a single layer nearly learns it.
float target(const TrainingOptions& options, std::int64_t sample, std::int64_t element) {
  const std::int64_t feature = element % options.hidden;
  return input(options, sample, element - feature + next_feature(options, feature)) / 2;
}

class TrainingKernels::Impl {
 public:
  explicit Impl(const TrainingOptions& options) : options_(options) {}

  // ---- inputs of a step

  void fill(const KernelAccess& access, std::int64_t step) {
    if (access.is_of("Activation")) return fill_inputs(access);
    if (step > 0) return;
    if (access.is_of(plan::kWeight)) fill_weights(access);
    if (access.is_of(plan::kOptState)) std::ranges::fill(access.bytes, std::byte{0});
  }

  void load_weights(const KernelCall& call) {
    for (const KernelAccess& access : call.accesses) {
      if (access.kind != AccessKind::reads) fill(access, call.step);
    }
  }

  void read_batch(const KernelCall& call) { fill_inputs(get(call, "Activation", false)); }

  // ---- layers

  void forward(const KernelCall& call) {
    Workspace& work = workspace(call);
    const Activations x(get(call, "Activation", true), options_);
    const Activations y(get(call, "Activation", false), options_);
    check_same_samples(x, y);
    const std::vector<Stripe> weights = weight_stripes(get(call, plan::kWeight, true), options_);
    for (std::size_t s = 0; s < x.samples().size(); ++s) {
      float* const t = apply_tanh(work, x.whole(s, work.gathered));
      for (const Stripe& to : y.stripes(s)) {
        std::int64_t done = 0;
        for (const Stripe& weight : weights) {
          const FeatureRange both = intersect(weight, to);
          if (both.count <= 0) continue;
          done += both.count;
          float* const rows = weight.data + (both.begin - weight.begin) * weight.stride;
          work.gemm.multiply(row_major(t, options_.block, options_.hidden),
                             transposed(row_major(rows, both.count, options_.hidden)),
                             {.data = to.data + (both.begin - to.begin), .stride = to.stride});
        }
        if (done != to.count) throw_unsupported_layout(y.access(), "features without a weight");
      }
    }
  }

  void backward(const KernelCall& call) {
    const bool makes_input = find(call, "ActivationGrad", false) != nullptr;
    const bool makes_weight = find(call, "WeightGrad", false) != nullptr;
    if (makes_input) backward_input(call);
    if (makes_weight) backward_weight(call);
  }

  void backward_input(const KernelCall& call) {
    Workspace& work = workspace(call);
    const Activations x(get(call, "Activation", true), options_);
    const Activations dy(get(call, "ActivationGrad", true), options_);
    const Activations dx(get(call, "ActivationGrad", false), options_);
    const bool adds = dx.access().kind == AccessKind::adds;
    check_same_samples(x, dy);
    check_same_samples(x, dx);
    check_plain(dx);
    check_plain(dy);
    const std::vector<Stripe> weights = weight_stripes(get(call, plan::kWeight, true), options_);
    for (std::size_t s = 0; s < x.samples().size(); ++s) {
      float* const t = apply_tanh(work, x.whole(s, work.gathered));
      bool is_first = true;
      for (const Stripe& weight : weights) {
        multiply_by_weight(work, dy.stripes(s), weight, is_first);
        is_first = false;
      }
      float* const to = dx.plain(s);
      for (std::size_t i = 0; i < work.product.size(); ++i) {
        const float value = work.product[i] * (1 - t[i] * t[i]);
        to[i] = adds ? to[i] + value : value;
      }
    }
  }

  void backward_weight(const KernelCall& call) {
    Workspace& work = workspace(call);
    const Activations x(get(call, "Activation", true), options_);
    const Activations dy(get(call, "ActivationGrad", true), options_);
    const KernelAccess& gradient = get(call, "WeightGrad", false);
    check_same_samples(x, dy);
    check_plain(dy);
    const std::vector<Stripe> stripes = weight_stripes(gradient, options_);
    for (std::size_t s = 0; s < x.samples().size(); ++s) {
      const bool adds = s > 0 || gradient.kind == AccessKind::adds;
      float* const t = apply_tanh(work, x.whole(s, work.gathered));
      for (const Stripe& to : stripes) add_outer(work, dy.stripes(s), t, to, adds);
    }
  }

  // ---- loss

  void loss(const KernelCall& call) {
    Workspace& work = workspace(call);
    const Activations y(get(call, "Activation", true), options_);
    const Activations dy(get(call, "ActivationGrad", false), options_);
    check_same_samples(y, dy);
    check_plain(dy);
    const std::int64_t size = options_.block * options_.hidden;
    const double share =
        1.0 / (static_cast<double>(size) * all_samples(y.access()) * scale_left_to_plan(call));
    for (std::size_t s = 0; s < y.samples().size(); ++s) {
      const float* const from = y.whole(s, work.gathered);
      const double sum = loss_of(y.samples()[s], from, {dy.plain(s), static_cast<float>(share)});
      const std::lock_guard lock(mutex_);
      losses_[y.samples()[s]] = sum / static_cast<double>(size);
    }
  }

  std::map<std::int64_t, double> take_losses() {
    const std::lock_guard lock(mutex_);
    return std::exchange(losses_, {});
  }

  // ---- update

  // Adam with two moments, SGD with momentum with one, plain SGD with none.
  void update(const KernelCall& call) {
    const KernelAccess& g = get(call, "WeightGrad", true);
    const KernelAccess& w = get(call, plan::kWeight, true);
    const KernelAccess& new_w = get(call, plan::kWeight, false);
    const std::size_t shards = shard_layout_of(g).pieces.size();
    for (const KernelAccess* one : {&g, &w, &new_w}) {
      (void)weight_stripes(*one, options_);
      check_same_shards(g, *one);
    }
    const KernelAccess* const o = find(call, plan::kOptState, true);
    std::size_t moments = 0;
    std::span<float> state;
    if (o != nullptr) {
      const KernelAccess& new_o = get(call, plan::kOptState, false);
      check_same_shards(g, *o);
      check_same_shards(g, new_o);
      moments = o->bytes.size() / w.bytes.size();
      const bool fits = moments >= 1 && moments <= 2 &&
                        o->bytes.size() == moments * w.bytes.size() &&
                        new_o.bytes.size() == o->bytes.size();
      if (!fits) {
        throw_unsupported_layout(
            *o, fmt::format("{} bytes of optimizer state for {} bytes of weights", o->bytes.size(),
                            w.bytes.size()));
      }
      std::memmove(new_o.bytes.data(), o->bytes.data(), o->bytes.size());
      state = new_o.as<float>();
    }
    std::memmove(new_w.bytes.data(), w.bytes.data(), w.bytes.size());
    const std::size_t count = new_w.as<float>().size() / std::max<std::size_t>(shards, 1);
    for (std::size_t k = 0; k < shards; ++k) {
      update_shard(call.step, g.as<float>().subspan(k * count, count),
                   new_w.as<float>().subspan(k * count, count),
                   state.subspan(k * count * moments, count * moments));
    }
  }

  // ---- data movement

  static void zero(const KernelCall& call) {
    for (const KernelAccess& access : call.accesses) {
      if (access.kind != AccessKind::reads) std::ranges::fill(access.bytes, std::byte{0});
    }
  }

  static void add(const KernelCall& call) {
    const auto& [from, to] = pair_of(call);
    if (from.bytes.size() != to.bytes.size() || from.type != DType::f32 || to.type != DType::f32) {
      throw_unsupported_layout(to, "adding values of different sizes, or not of f32");
    }
    const std::span<const float> numbers = from.as<float>();
    const std::span<float> sums = to.as<float>();
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += numbers[i];
  }

  // Cell by cell: the output is a subset of the input, possibly in another order.
  static void cast(const KernelCall& call) {
    const auto& [from, to] = pair_of(call);
    const std::vector<std::int64_t> have = cells_of(from);
    const std::vector<std::int64_t> want = cells_of(to);
    const std::size_t bytes = have.empty() ? 0 : from.bytes.size() / have.size();
    if (bytes * want.size() != to.bytes.size())
      throw_unsupported_layout(to, "a cast that changes the size");
    for (std::size_t k = 0; k < want.size(); ++k) {
      const auto found = std::ranges::find(have, want[k]);
      if (found == have.end()) throw_unsupported_layout(to, "a cast of missing values");
      const auto at = static_cast<std::size_t>(found - have.begin());
      std::memmove(to.bytes.data() + k * bytes, from.bytes.data() + at * bytes, bytes);
    }
  }

 private:
  struct Workspace {
    explicit Workspace(const TrainingOptions& options)
        : gathered(static_cast<std::size_t>(options.block * options.hidden)),
          tanh_x(gathered.size()),
          product(gathered.size()) {}
    kernels::Gemm gemm;
    std::vector<float> gathered;  // a sample, all features
    std::vector<float> tanh_x;    // tanh of the sample
    std::vector<float> product;
    std::vector<float> outer;  // a sample's gradient of a weight
  };

  // Each stream has its own.
  Workspace& workspace(const KernelCall& call) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Workspace>& found = workspaces_[call.stream];
    if (found == nullptr) found = std::make_unique<Workspace>(options_);
    return *found;
  }

  // The input of a sample. Computing one takes longer than a layer, so each is computed once.
  const std::vector<float>& input_of(std::int64_t sample) {
    const std::lock_guard lock(mutex_);
    std::vector<float>& known = inputs_[sample];
    if (!known.empty()) return known;
    known.resize(static_cast<std::size_t>(options_.block * options_.hidden));
    for (std::size_t i = 0; i < known.size(); ++i) {
      known[i] = input(options_, sample, static_cast<std::int64_t>(i));
    }
    return known;
  }

  void fill_inputs(const KernelAccess& access) {
    const Activations x(access, options_);
    for (std::size_t s = 0; s < x.samples().size(); ++s) {
      const float* const from = input_of(x.samples()[s]).data();
      for (const Stripe& stripe : x.stripes(s)) {
        for (std::int64_t token = 0; token < options_.block; ++token) {
          std::copy_n(from + token * options_.hidden + stripe.begin, stripe.count,
                      stripe.data + token * stripe.count);
        }
      }
    }
  }

  // Writes the gradient of a sample, and returns the sum of its squared errors, halved.
  struct ScaledGradient {
    float* data = nullptr;
    float scale = 1;
  };
  double loss_of(std::int64_t sample, const float* y, const ScaledGradient& gradient) {
    const float* const x = input_of(sample).data();
    double sum = 0;
    for (std::int64_t token = 0; token < options_.block; ++token) {
      const std::int64_t row = token * options_.hidden;
      for (std::int64_t feature = 0; feature < options_.hidden; ++feature) {
        const float right = x[row + next_feature(options_, feature)] / 2;  // as target()
        const float off = y[row + feature] - right;
        sum += 0.5 * static_cast<double>(off) * static_cast<double>(off);
        gradient.data[row + feature] = off * gradient.scale;
      }
    }
    return sum;
  }

  void fill_weights(const KernelAccess& access) const {
    for (const Stripe& stripe : weight_stripes(access, options_)) {
      const std::int64_t first = stripe.begin * options_.hidden;
      for (std::int64_t i = 0; i < stripe.count * options_.hidden; ++i) {
        stripe.data[i] = initial_weight(options_, access.instance(), first + i);
      }
    }
  }

  static float* apply_tanh(Workspace& work, const float* x) {
    kernels::apply_tanh(std::span(x, work.tanh_x.size()), work.tanh_x);
    return work.tanh_x.data();
  }

  // product = or += dy W, for the local rows of W.
  void multiply_by_weight(Workspace& work, const std::vector<Stripe>& dy, const Stripe& weight,
                          bool is_first) const {
    for (const Stripe& from : dy) {
      const FeatureRange both = intersect(weight, from);
      if (both.count <= 0) continue;
      float* const rows = weight.data + (both.begin - weight.begin) * weight.stride;
      const kernels::MatrixView a = columns(from, both, options_.block);
      const kernels::MatrixView b = row_major(rows, both.count, options_.hidden);
      const kernels::MatrixView c{.data = work.product.data(), .stride = options_.hidden};
      is_first ? work.gemm.multiply(a, b, c) : work.gemm.multiply_add(a, b, c);
      is_first = false;
    }
  }

  // to = or += dy^T t, computed separately first, so that sums do not depend on the microbatch
  // size.
  void add_outer(Workspace& work, const std::vector<Stripe>& dy, float* t, const Stripe& to,
                 bool adds) const {
    work.outer.resize(to.count * options_.hidden);
    float* const made = adds ? work.outer.data() : to.data;
    for (const Stripe& from : dy) {
      const FeatureRange both = intersect(to, from);
      if (both.count <= 0) continue;
      work.gemm.multiply(
          transposed(columns(from, both, options_.block)),
          row_major(t, options_.block, options_.hidden),
          {.data = made + (both.begin - to.begin) * options_.hidden, .stride = options_.hidden});
    }
    for (std::size_t i = 0; i < work.outer.size() && adds; ++i) to.data[i] += made[i];
  }

  static double all_samples(const KernelAccess& access) {
    const auto found = std::ranges::find(access.tensor->part, "sample", &plan::Dimension::name);
    return found == access.tensor->part.end() ? 1.0 : static_cast<double>(found->size);
  }

  // The scale that the plan itself applies to gradients; the loss must not apply it again.
  static double scale_left_to_plan(const KernelCall& call) {
    for (const plan::Tensor& tensor : call.program->plan->tensors) {
      if (tensor.kind != "WeightGrad") continue;
      return static_cast<double>(tensor.scale.numerator()) /
             static_cast<double>(tensor.scale.denominator());
    }
    return 1;
  }

  static void check_same_shards(const KernelAccess& a, const KernelAccess& b) {
    if (shard_layout_of(a).pieces != shard_layout_of(b).pieces) {
      throw_unsupported_layout(b, fmt::format("other shards than those of `{}`", a.tensor->name));
    }
  }

  // The state of a shard: its first moments, then its second.
  void update_shard(std::int64_t step, std::span<const float> g, std::span<float> w,
                    std::span<float> state) const {
    const auto rate = static_cast<float>(options_.learning_rate);
    if (state.empty()) {
      for (std::size_t i = 0; i < w.size(); ++i) w[i] -= rate * g[i];
      return;
    }
    const auto beta1 = static_cast<float>(options_.beta1);
    const std::span<float> m = state.first(w.size());
    if (state.size() == w.size()) {
      for (std::size_t i = 0; i < w.size(); ++i) {
        m[i] = beta1 * m[i] + g[i];
        w[i] -= rate * m[i];
      }
      return;
    }
    const auto beta2 = static_cast<float>(options_.beta2);
    const auto epsilon = static_cast<float>(options_.epsilon);
    const auto steps = static_cast<double>(step + 1);
    const auto unbias1 = static_cast<float>(1 / (1 - std::pow(options_.beta1, steps)));
    const auto unbias2 = static_cast<float>(1 / (1 - std::pow(options_.beta2, steps)));
    const std::span<float> v = state.last(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
      w[i] -= rate * (m[i] * unbias1) / (std::sqrt(v[i] * unbias2) + epsilon);
    }
  }

  struct Pair {
    const KernelAccess& from;
    const KernelAccess& to;
  };
  static Pair pair_of(const KernelCall& call) {
    const KernelAccess* from = nullptr;
    const KernelAccess* to = nullptr;
    for (const KernelAccess& access : call.accesses) {
      const KernelAccess*& place = access.kind == AccessKind::reads ? from : to;
      if (place == nullptr) place = &access;
    }
    if (from != nullptr && to != nullptr) return {.from = *from, .to = *to};
    throw InputError(Diagnostic{
        .code = "D641",
        .what = "not supported by run: this kernel reads one value and writes or adds to another"});
  }

  // One index for each cell, in memory order.
  static std::vector<std::int64_t> cells_of(const KernelAccess& access) {
    const ShardLayout part = shard_layout_of(access);
    std::vector<std::int64_t> cells;
    const auto number = [&](std::size_t sample, std::size_t piece) {
      cells.push_back(part.samples[sample] * part.all_pieces + part.pieces[piece]);
    };
    for (std::size_t a = 0; a < (part.samples_vary_fastest ? part.pieces : part.samples).size();
         ++a) {
      for (std::size_t b = 0; b < (part.samples_vary_fastest ? part.samples : part.pieces).size();
           ++b) {
        part.samples_vary_fastest ? number(b, a) : number(a, b);
      }
    }
    return cells;
  }

  TrainingOptions options_;
  std::mutex mutex_;
  std::map<std::int32_t, std::unique_ptr<Workspace>> workspaces_;  // by stream
  std::map<std::int64_t, double> losses_;                          // by sample
  std::map<std::int64_t, std::vector<float>> inputs_;              // likewise
};

TrainingKernels::TrainingKernels(const TrainingOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
TrainingKernels::~TrainingKernels() = default;

void TrainingKernels::bind(KernelTable& table) {
  Impl& impl = *impl_;
  table.bind("load_weights", [&impl](const KernelCall& call) { impl.load_weights(call); });
  table.bind("read_batch", [&impl](const KernelCall& call) { impl.read_batch(call); });
  table.bind("forward", [&impl](const KernelCall& call) { impl.forward(call); });
  table.bind("loss", [&impl](const KernelCall& call) { impl.loss(call); });
  table.bind("backward", [&impl](const KernelCall& call) { impl.backward(call); });
  table.bind("backward_input", [&impl](const KernelCall& call) { impl.backward_input(call); });
  table.bind("backward_weight", [&impl](const KernelCall& call) { impl.backward_weight(call); });
  table.bind("update", [&impl](const KernelCall& call) { impl.update(call); });
  table.bind("zero", [](const KernelCall& call) { Impl::zero(call); });
  table.bind("add", [](const KernelCall& call) { Impl::add(call); });
  table.bind("cast", [](const KernelCall& call) { Impl::cast(call); });
  table.bind_given([&impl](const GivenCall& call) { impl.fill(call.access, call.step); });
}

double TrainingKernels::mean_loss(comm::Communicator& world) {
  Packer packer;
  const std::map<std::int64_t, double> own = impl_->take_losses();
  packer.put(static_cast<std::int64_t>(own.size()));
  for (const auto& [sample, value] : own) {
    packer.put(sample);
    packer.put(value);
  }
  std::map<std::int64_t, double> all;
  for (std::vector<std::byte>& bytes : gather_bytes(world, packer.take())) {
    Unpacker from(std::move(bytes));
    for (std::int64_t k = from.number(); k > 0; --k) {
      const std::int64_t sample = from.number();
      all.try_emplace(sample, from.fraction());
    }
  }
  double sum = 0;
  for (const auto& [sample, value] : all) sum += value;
  return all.empty() ? 0 : sum / static_cast<double>(all.size());
}

GatheredWeights gather_weights(comm::Communicator& world, const Executor& executor,
                               const TrainingOptions& options) {
  Packer packer;
  std::int64_t stripes = 0;
  Packer body;
  for (const KernelAccess& access : executor.goals()) {
    if (!access.is_of(plan::kWeight)) continue;
    for (const Stripe& stripe : weight_stripes(access, options)) {
      ++stripes;
      body.put(access.instance());
      body.put(stripe.begin * options.hidden);
      body.put(
          std::string(reinterpret_cast<const char*>(stripe.data),
                      static_cast<std::size_t>(stripe.count * options.hidden) * sizeof(float)));
    }
  }
  packer.put(stripes);
  std::vector<std::byte> own = packer.take();
  const std::vector<std::byte> rest = body.take();
  own.insert(own.end(), rest.begin(), rest.end());
  GatheredWeights gathered;
  std::map<std::int64_t, std::vector<bool>> filled;
  const auto whole = static_cast<std::size_t>(options.hidden * options.hidden);
  for (std::vector<std::byte>& bytes : gather_bytes(world, own)) {
    Unpacker from(std::move(bytes));
    for (std::int64_t k = from.number(); k > 0; --k) {
      const std::int64_t number = from.number();
      std::vector<float>& layer = gathered.layers[number];
      layer.resize(whole, std::numeric_limits<float>::quiet_NaN());
      std::vector<bool>& known = filled[number];
      known.resize(whole, false);
      const auto first = static_cast<std::size_t>(from.number());
      const std::string numbers = from.text();
      for (std::size_t i = 0; i * sizeof(float) < numbers.size(); ++i) {
        float value = 0;
        std::memcpy(&value, numbers.data() + i * sizeof(float), sizeof value);
        float& here = layer[first + i];
        const bool same = std::bit_cast<std::uint32_t>(here) == std::bit_cast<std::uint32_t>(value);
        if (known[first + i] && !same) ++gathered.unequal;
        known[first + i] = true;
        here = value;
      }
    }
  }
  return gathered;
}

}  // namespace shiplap::run
