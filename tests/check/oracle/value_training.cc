// Small training steps: data parallel, with microbatches, sharded weights, scales in every place.
#include <algorithm>

#include "value_builder.h"

namespace shiplap::oracle {
namespace {

class Training {
 public:
  explicit Training(ValueBuilder& builder) : b_(builder) {
    layers_ = b_.upto(1, 2);
    micro_ = b_.upto(1, 2);
    per_ = b_.upto(1, b_.ranks() > 2 ? 1 : 2);
    zero_ = b_.ranks() > 1 && b_.random.chance(0.3);
    shards_ = zero_ ? b_.ranks() : b_.upto(1, 2);
    tokens_ = b_.random.chance(0.25);
    rows_ = b_.layouts && b_.random.chance() ? 2 : 1;
    optimizer_ = b_.random.chance(0.3);
    accumulate_ = b_.upto(0, 3);
    scaled_ = b_.upto(0, 4);
    if (b_.is(Fault::scale_twice) || b_.is(Fault::scale_never)) scaled_ = b_.upto(1, 4);
    splits_ = b_.random.chance(0.4) || b_.is(Fault::new_weights_early);
    if (b_.is(Fault::new_weights_early) || b_.is(Fault::wrong_layer) ||
        b_.is(Fault::loss_in_the_middle)) {
      layers_ = 2;
    }
    if (b_.is(Fault::overlapping_sums) || b_.is(Fault::reads_nothing)) accumulate_ = 2;
    if (b_.is(Fault::same_row_twice)) accumulate_ = 3;
    if (b_.is(Fault::two_scales)) per_ = 2;
    if (b_.is(Fault::new_weights_early)) {
      micro_ = 1;
      accumulate_ = 0;
      optimizer_ = false;
      scaled_ = b_.random.chance() ? 0 : 4;
    }
    samples_ = b_.ranks() * micro_ * per_;
    declare();
  }

  void build() {
    for (int rank = 0; rank < b_.ranks(); ++rank) begin(rank);
    if (zero_) gather_weights();
    for (int m = 0; m < micro_; ++m) {
      for (int rank = 0; rank < b_.ranks(); ++rank) microbatch(rank, m);
    }
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      for (int rank = 0; rank < b_.ranks(); ++rank) add_up(rank, layer);
      if (early_ && layer == layers_ - 1) continue;
      reduce(layer);
      for (int rank = 0; rank < b_.ranks(); ++rank) update(rank, layer);
    }
  }

 private:
  struct State {
    std::vector<BufferRows> weights;  // by layer: all shards
    std::vector<BufferRows> shard;    // by layer: those that this rank keeps
    std::vector<BufferRows> optimizer;
    std::vector<BufferRows> gradient;             // by layer
    std::vector<std::vector<BufferRows>> pieces;  // by layer and microbatch
    std::vector<std::vector<int>> summed;         // by microbatch: samples that are stated
  };

  void declare() {
    std::vector<std::pair<std::string, int>> cells{{"sample", samples_}};
    if (tokens_) cells.emplace_back("tok", 2);
    b_.declare({.name = "A", .instances = layers_ + 1, .kind = "Activation", .part = cells});
    b_.declare({.name = "D", .instances = layers_ + 1, .kind = "ActivationGrad", .part = cells});
    const std::vector<std::pair<std::string, int>> shards{{"shard", shards_}};
    b_.declare({.name = "W", .instances = layers_, .kind = "Weight", .part = shards});
    if (optimizer_) {
      b_.declare({.name = "O", .instances = layers_, .kind = "OptState", .part = shards});
    }
    b_.declare({.name = "G",
                .instances = layers_,
                .kind = "WeightGrad",
                .part = shards,
                .sum = cells,
                .denominator = scaled_ == 0 ? 1 : samples_});
    states_.resize(b_.ranks());
  }

  State& at(int rank) { return states_[rank]; }

  // ---- values

  static StatedValue cells(const std::string& tensor, int layer, const std::vector<int>& samples) {
    return {.tensor = tensor, .instance = layer, .part = {{"sample", samples}}};
  }
  StatedValue shards(const std::string& tensor, int layer, int begin, int count) const {
    StatedValue value{.tensor = tensor, .instance = layer};
    if (count < shards_) value.part = {{"shard", range(begin, count)}};
    return value;
  }
  StatedValue gradient(int layer, const std::vector<int>& samples, int denominator) const {
    StatedValue value{.tensor = "G", .instance = layer, .denominator = denominator};
    if (static_cast<int>(samples.size()) < samples_) value.sum = {{"sample", samples}};
    return value;
  }

  // Of the gradients, when the backward pass leaves them, and after the reduction.
  [[nodiscard]] int early_scale() const { return scaled_ == 1 || scaled_ == 4 ? samples_ : 1; }

  // ---- steps

  void begin(int rank) {
    State& state = at(rank);
    for (int layer = 0; layer < layers_; ++layer) {
      state.weights.push_back(b_.rows(rank, shards_));
      state.shard.push_back(zero_ ? b_.rows(rank, 1) : state.weights.back());
      const int begin = zero_ ? rank : 0;
      const int count = zero_ ? 1 : shards_;
      const bool is_given = b_.is(Fault::stale_update) || b_.is(Fault::begins_new);
      const std::string kind = is_given ? "given" : "keep";
      StatedValue weights = shards("W", layer, begin, count);
      weights.is_new = b_.is(Fault::begins_new);
      b_.fact(rank, kind, state.shard.back(), weights);
      state.gradient.push_back(b_.rows(rank, shards_));
      state.pieces.emplace_back();
      if (!optimizer_) continue;
      state.optimizer.push_back(b_.rows(rank, count));
      b_.fact(rank, kind, state.optimizer.back(), shards("O", layer, begin, count));
    }
  }

  void gather_weights() {
    for (int layer = 0; layer < layers_; ++layer) {
      std::vector<BufferRows> from;
      std::vector<BufferRows> to;
      for (const State& state : states_) {
        from.push_back(state.shard[layer]);
        to.push_back(state.weights[layer]);
      }
      b_.collective("all_gather", from, to);
    }
  }

  // As one operand, or in two pieces.
  void read_weights(int rank, int layer, std::vector<Assertion>& assertions, bool is_new = false) {
    const BufferRows place = at(rank).weights[layer];
    const bool pieces = b_.pieces && shards_ > 1 && b_.random.chance(0.4);
    const int first = pieces ? 1 : shards_;
    StatedValue value = shards("W", layer, 0, first);
    value.is_new = is_new;
    assertions.push_back({"reads", ValueBuilder::slice(place, 0, first), value});
    if (!pieces) return;
    value = shards("W", layer, 1, shards_ - 1);
    value.is_new = is_new;
    assertions.push_back({"reads", ValueBuilder::slice(place, 1, shards_ - 1), value});
  }

  // Activations of a microbatch, perhaps in two pieces.
  void read_cells(const BufferRows& place, const StatedValue& value,
                  std::vector<Assertion>& assertions) {
    const auto count = static_cast<int>(value.part[0].at.size());
    const bool pieces = b_.is(Fault::two_scales) || (b_.pieces && b_.random.chance(0.4));
    if (count < 2 || !pieces) {
      assertions.push_back({"reads", place, value});
      return;
    }
    const std::vector<int>& all = value.part[0].at;
    StatedValue first = value;
    first.part[0].at = {all[0]};
    StatedValue rest = value;
    rest.part[0].at.assign(all.begin() + 1, all.end());
    assertions.push_back({"reads", ValueBuilder::slice(place, 0, rows_), first});
    assertions.push_back({"reads", ValueBuilder::slice(place, rows_, (count - 1) * rows_), rest});
  }

  void microbatch(int rank, int m) {
    const std::vector<int> due = range((rank * micro_ + m) * per_, per_);
    std::vector<int> read = due;
    std::vector<int> claimed = due;
    const int another = (due.back() + 1) % samples_;
    const bool liar = rank == 0 && m == 0 && samples_ > per_;
    if (liar && (b_.is(Fault::claims_less) || b_.is(Fault::operand_shape))) read.push_back(another);
    if (liar && b_.is(Fault::claims_more)) claimed.push_back(another);
    if (b_.is(Fault::claims_more) && !liar && samples_ > per_ &&
        due.front() == another_of_first()) {
      claimed.erase(claimed.begin());  // so that nothing is counted twice
    }
    at(rank).summed.push_back(claimed);
    const int rows = rows_ * static_cast<int>(read.size());
    std::vector<BufferRows> activations;
    for (int layer = 0; layer <= layers_; ++layer) activations.push_back(b_.rows(rank, rows));
    b_.random.chance()
        ? b_.fact(rank, "given", activations[0], cells("A", 0, read))
        : b_.compute(rank, "read_batch", {{"writes", activations[0], cells("A", 0, read)}});
    for (int layer = 0; layer < layers_; ++layer) forward(rank, layer, activations, read);
    backward(rank, m, activations, read, claimed);
  }

  [[nodiscard]] int another_of_first() const { return per_ % samples_; }

  void forward(int rank, int layer, const std::vector<BufferRows>& activations,
               const std::vector<int>& samples) {
    const auto k = static_cast<std::size_t>(layer);
    std::vector<Assertion> assertions;
    if (b_.is(Fault::scaled_operand) && layer == 0 && rank == 0) {
      StatedValue half = cells("A", 0, samples);
      half.denominator = 2;
      b_.compute(
          rank, "scale",
          {{"reads", activations[k], cells("A", 0, samples)}, {"writes", activations[k], half}});
      assertions.push_back({"reads", activations[k], half});
    } else {
      read_cells(activations[k], cells("A", layer, samples), assertions);
    }
    read_weights(rank, layer, assertions);
    assertions.push_back({"writes", activations[k + 1], cells("A", layer + 1, samples)});
    b_.compute(rank, "forward", assertions);
    if (!b_.is(Fault::scaled_operand) || layer > 0 || rank > 0) return;
    StatedValue half = cells("A", 0, samples);
    half.denominator = 2;
    b_.compute(
        rank, "scale",
        {{"reads", activations[k], half}, {"writes", activations[k], cells("A", 0, samples)}});
  }

  void backward(int rank, int m, const std::vector<BufferRows>& activations,
                const std::vector<int>& read, const std::vector<int>& claimed) {
    const int rows = activations[0].count;
    BufferRows above = b_.rows(rank, rows);
    StatedValue d = cells("D", layers_, read);
    const bool twice = b_.is(Fault::scale_twice);
    if (scaled_ == 1 || (twice && scaled_ != 4)) d.denominator = samples_;
    b_.compute(rank, "loss",
               {{"reads", activations.back(), cells("A", layers_, read)}, {"writes", above, d}});
    if (scaled_ == 4 && !b_.is(Fault::scale_never)) {
      StatedValue after = d;
      after.denominator = samples_;
      b_.compute(rank, "scale", {{"reads", above, d}, {"writes", above, after}});
      d = after;
    }
    if (b_.is(Fault::two_scales) && read.size() > 1) {
      StatedValue first = d;
      first.part[0].at = {read[0]};
      StatedValue half = first;
      half.denominator *= 2;
      const BufferRows place = ValueBuilder::slice(above, 0, rows_);
      b_.compute(rank, "scale", {{"reads", place, first}, {"writes", place, half}});
    }
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      const BufferRows below = b_.rows(rank, rows);
      const LayerRows places{activations[layer], above, below};
      backward_layer(rank, m, layer, places, d, claimed);
      above = below;
      if (b_.is(Fault::loss_in_the_middle) && layer == 1) {
        StatedValue own = cells("D", 1, read);
        own.denominator = d.denominator;
        b_.compute(rank, "loss",
                   {{"reads", activations[1], cells("A", 1, read)}, {"writes", below, own}});
      }
      d.denominator = backward_scale(d);
      --d.instance;
    }
  }

  // Its activations, the gradient that it reads, and the one that it leaves.
  struct LayerRows {
    BufferRows input;
    BufferRows above;
    BufferRows below;
  };

  void backward_layer(int rank, int m, int layer, const LayerRows& places, const StatedValue& d,
                      const std::vector<int>& claimed) {
    const auto& [input, above, below] = places;
    State& state = at(rank);
    const auto k = static_cast<std::size_t>(layer);
    const int scale = backward_scale(d);
    const StatedValue g = gradient(layer, claimed, scale);
    const bool once = micro_ == 1 && b_.random.chance();
    const bool direct = accumulate_ == 0 || (accumulate_ > 1 && micro_ == 1 && !needs_pieces());
    const BufferRows target = direct ? state.gradient[k] : b_.rows(rank, shards_);
    if (!direct) state.pieces[k].push_back(target);
    if (direct && !once && m == 0) {
      StatedValue none{.tensor = "G", .instance = layer, .zero = true};
      b_.compute(rank, "zero", {{"writes", target, none}});
    }
    const Assertion leaves{direct && !once ? "adds" : "writes", target, g};
    StatedValue activation = cells("A", layer, d.part[0].at);
    if (b_.is(Fault::operand_shape) && activation.part[0].at.size() > claimed.size()) {
      activation.part[0].at.pop_back();
    }
    const BufferRows shown =
        ValueBuilder::slice(input, 0, rows_ * static_cast<int>(activation.part[0].at.size()));
    std::vector<Assertion> assertions;
    read_cells(shown, activation, assertions);
    if (b_.is(Fault::reads_twice) && rank == 0) assertions.push_back({"reads", shown, activation});
    read_gradient(above, d, assertions);
    StatedValue next = d;
    --next.instance;
    next.denominator = scale;
    if (!splits_) {
      read_weights(rank, layer, assertions);
      assertions.push_back(leaves);
      if (layer > 0) assertions.push_back({"writes", below, next});
      return b_.compute(rank, "backward", assertions);
    }
    assertions.push_back(leaves);
    b_.compute(rank, "backward_weight", assertions);
    const bool early = b_.is(Fault::new_weights_early) && layer == layers_ - 1;
    if (early) update(rank, layer);
    early_ = early_ || early;
    if (layer == 0) return;
    std::vector<Assertion> input_claims;
    read_gradient(above, d, input_claims);
    read_weights(rank, layer, input_claims, early);
    input_claims.push_back({"writes", below, next});
    b_.compute(rank, "backward_input", input_claims);
  }

  [[nodiscard]] bool needs_pieces() const {
    return b_.is(Fault::overlapping_sums) || b_.is(Fault::same_row_twice) ||
           b_.is(Fault::reads_nothing);
  }

  // What the backward pass states.
  [[nodiscard]] int backward_scale(const StatedValue& d) const {
    if (b_.is(Fault::scale_never)) return early_scale();
    return b_.is(Fault::scale_twice) && scaled_ != 1 && scaled_ != 4 ? 1 : d.denominator;
  }

  void read_gradient(const BufferRows& place, const StatedValue& d,
                     std::vector<Assertion>& assertions) {
    read_cells(place, d, assertions);
    if (!b_.is(Fault::two_scales) || d.instance != layers_ || d.part[0].at.size() < 2) return;
    assertions[assertions.size() - 2].value.denominator *= 2;
  }

  // ---- the gradient of all microbatches, then of all ranks

  void add_up(int rank, int layer) {
    State& state = at(rank);
    const auto k = static_cast<std::size_t>(layer);
    const std::vector<BufferRows>& pieces = state.pieces[k];
    if (pieces.empty()) return;
    const int scale = early_scale();
    std::vector<int> all;
    for (const std::vector<int>& some : state.summed)
      all.insert(all.end(), some.begin(), some.end());
    const BufferRows target = state.gradient[k];
    if (accumulate_ == 2) {
      std::vector<Assertion> assertions;
      for (std::size_t m = 0; m < pieces.size(); ++m) {
        assertions.push_back({"reads", pieces[m], gradient(layer, state.summed[m], scale)});
      }
      if (b_.is(Fault::overlapping_sums)) assertions.push_back(assertions.front());
      if (b_.is(Fault::reads_nothing)) assertions.clear();
      assertions.push_back({"writes", target, gradient(layer, all, scale)});
      return b_.compute(rank, "add", assertions);
    }
    StatedValue none{.tensor = "G", .instance = layer, .zero = true};
    b_.compute(rank, "zero", {{"writes", target, none}});
    if (accumulate_ == 1) {
      for (const BufferRows& piece : pieces) b_.copy(rank, piece, target, true);
      return;
    }
    scatter(rank, pieces, target);
  }

  // All pieces in one buffer, and a list that names each row of the gradient as often as there are
  // pieces.
  void scatter(int rank, const std::vector<BufferRows>& pieces, const BufferRows& target) {
    const auto count = static_cast<int>(pieces.size());
    BufferRows all = b_.rows(rank, count * shards_);
    BufferRows to = target;
    for (int m = 0; m < count; ++m) {
      b_.copy(rank, pieces[m], ValueBuilder::slice(all, m * shards_, shards_));
      for (int row = 0; row < shards_; ++row) to.listed.push_back(row);
    }
    if (b_.is(Fault::same_row_twice) && rank == 0) {
      for (int row = 0; row < all.count; ++row) all.listed.push_back(row);
      all.listed.push_back(0);
      to.listed.push_back(0);
    } else if (b_.random.chance(0.3)) {  // in any order
      std::vector<int> order = range(0, all.count);
      b_.random.shuffle(order);
      std::vector<int> rows;
      for (const int row : order) rows.push_back(to.listed[row]);
      all.listed = std::move(order);
      to.listed = std::move(rows);
    }
    b_.copy(rank, all, to, true);
  }

  void reduce(int layer) {
    const auto k = static_cast<std::size_t>(layer);
    std::vector<BufferRows> places;
    for (const State& state : states_) places.push_back(state.gradient[k]);
    const int denominator = scaled_ == 2 ? samples_ : 1;
    if (zero_) {
      std::vector<BufferRows> own;
      for (int rank = 0; rank < b_.ranks(); ++rank) {
        own.push_back(ValueBuilder::slice(places[rank], rank, 1));
      }
      b_.collective("reduce_scatter", places, own, "", denominator);
    } else if (b_.ranks() > 1 || denominator > 1) {
      b_.all_reduce(places, denominator);
    }
    if (scaled_ != 3) return;
    for (int rank = 0; rank < b_.ranks(); ++rank) {
      const auto [place, before] = local_gradient(rank, layer, 1);
      const StatedValue after = local_gradient(rank, layer, samples_).second;
      b_.compute(rank, "scale", {{"reads", place, before}, {"writes", place, after}});
    }
  }

  std::pair<BufferRows, StatedValue> local_gradient(int rank, int layer, int denominator) {
    const int begin = zero_ ? rank : 0;
    const int count = zero_ ? 1 : shards_;
    StatedValue value = shards("G", layer, begin, count);
    value.denominator = denominator;
    return {ValueBuilder::slice(at(rank).gradient[layer], begin, count), value};
  }

  void update(int rank, int layer) {
    State& state = at(rank);
    const auto k = static_cast<std::size_t>(layer);
    const int begin = zero_ ? rank : 0;
    const int count = zero_ ? 1 : shards_;
    const int from = b_.is(Fault::wrong_layer) && layer == 0 ? 1 : layer;
    const auto [place, g] = local_gradient(rank, from, scaled_ == 0 ? 1 : samples_);
    const StatedValue old = shards("W", layer, begin, count);
    StatedValue next = old;
    next.is_new = !b_.is(Fault::stale_update) || optimizer_;
    std::vector<Assertion> assertions{{"reads", place, g}, {"reads", state.shard[k], old}};
    if (optimizer_)
      assertions.push_back({"reads", state.optimizer[k], shards("O", layer, begin, count)});
    assertions.push_back({"writes", state.shard[k], next});
    if (optimizer_) {
      StatedValue moved = shards("O", layer, begin, count);
      moved.is_new = !b_.is(Fault::stale_update);
      assertions.push_back({"writes", state.optimizer[k], moved});
    }
    b_.compute(rank, "update", assertions);
  }

  ValueBuilder& b_;
  int layers_ = 1;
  int micro_ = 1;
  int per_ = 1;
  int samples_ = 1;
  int shards_ = 1;
  int rows_ = 1;  // of a sample
  bool zero_ = false;
  bool tokens_ = false;
  bool optimizer_ = false;
  bool splits_ = false;
  bool early_ = false;  // the last layer was updated within the backward pass
  int accumulate_ = 0;  // adds; copy add; compute add; one copy add by a list
  int scaled_ = 0;      // nowhere; loss; reduction; kernel on G; kernel on D
  std::vector<State> states_;
};

}  // namespace

void build_training(ValueBuilder& builder) { Training(builder).build(); }

}  // namespace shiplap::oracle
