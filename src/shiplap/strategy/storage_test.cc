#include "shiplap/strategy/storage.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "shiplap/base/error.h"

namespace shiplap::strategy {
namespace {

// Numbers every value and records the notifications.
class RecordingObserver final : public StorageObserver {
 public:
  std::vector<std::string> lines;
  Bytes stored;

  void store(Weight& value, const Weight* before) override { note("weight", value, before); }
  void store(OptState& value, const OptState* before) override { note("opt", value, before); }
  void store(Activation& value, const Activation* before) override { note("act", value, before); }
  void store(ActivationGrad& value, const ActivationGrad* before) override {
    note("act grad", value, before);
  }
  void store(WeightGrad& value, const WeightGrad* before) override { note("grad", value, before); }
  void drop(const workload::Provenance& provenance, Bytes bytes) override {
    if (reject) throw InputError(Diagnostic{.code = "D620", .what = "in use"});
    lines.push_back("drop " + std::to_string(provenance.first));
    stored = stored - bytes;
  }
  [[nodiscard]] const workload::ModelShape& shape() const override { return shape_; }
  [[noreturn]] void throw_empty_slot(Key key) const override {
    throw InputError(Diagnostic{
        .code = "D613",
        .what = "nothing under " + std::to_string(key.first) + "/" + std::to_string(key.second)});
  }

  bool reject = false;

 private:
  template <class T>
  void note(const std::string& kind, T& value, const T* before) {
    if (reject) throw InputError(Diagnostic{.code = "D620", .what = "in use"});
    value.provenance = {.kind = workload::Provenance::Kind::result, .first = next_++};
    lines.push_back(kind + " " + std::to_string(value.provenance.first) +
                    (before == nullptr ? "" : " for " + std::to_string(before->provenance.first)));
    stored = stored + value.memory(shape_);
    if (before != nullptr) stored = stored - before->memory(shape_);
  }
  workload::ModelShape shape_{.hidden = 8, .block = 4};
  std::int32_t next_ = 0;
};

using Lines = std::vector<std::string>;

std::string thrown_by(const auto& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.diagnostics().front().code + " " + error.diagnostics().front().what;
  }
  return "";
}

template <class T>
int places(const ValueMap<T>& shelf) {
  int count = 0;
  shelf.for_each([&](Key, const auto&) { ++count; });
  return count;
}

TEST(Storage, IsFiveMapsForStructuredBindings) {
  RecordingObserver notes;
  Storage storage(notes);
  auto& [weights, opt_states, activations, grad_activations, grad_weights] = storage;
  weights[0] = Weight{};
  opt_states[0] = OptState{};
  activations[0] = Activation{};
  grad_activations[0] = ActivationGrad{};
  grad_weights[0] = WeightGrad{};
  EXPECT_EQ(notes.lines, (Lines{"weight 0", "opt 1", "act 2", "act grad 3", "grad 4"}));
}

TEST(Storage, TakesTwoResultsAtOnce) {
  RecordingObserver notes;
  Storage storage(notes);
  std::tie(storage.weights[2], storage.opt_states[2]) =
      std::pair(Weight{.layer = 7}, OptState{.layer = 8});
  EXPECT_EQ(storage.weights[2]->layer, 7);
  EXPECT_EQ(storage.opt_states[2]->layer, 8);
}

TEST(Key, IsOneNumberOrTwo) {
  RecordingObserver notes;
  Storage storage(notes);
  storage.activations[3] = Activation{.layer = 1};
  storage.activations[{3, 0}] = Activation{.layer = 2};
  storage.activations[{3, 1}] = Activation{.layer = 3};
  storage.activations[{0, 3}] = Activation{.layer = 4};
  EXPECT_EQ(storage.activations[3]->layer, 1);
  EXPECT_EQ((storage.activations[{3, 0}]->layer), 2);
  EXPECT_EQ((storage.activations[{3, 1}]->layer), 3);
  EXPECT_EQ((storage.activations[{0, 3}]->layer), 4);
  EXPECT_EQ(places(storage.activations), 4);
  EXPECT_EQ(Key(3), Key(3, -1));
  EXPECT_LT(Key(3), Key(3, 0));
  EXPECT_LT(Key(3, 9), Key(4));
}

TEST(Slot, ReadsAsItsValue) {
  RecordingObserver notes;
  ValueMap<WeightGrad> grads(notes);
  grads[0] = WeightGrad{.layer = 5, .samples = IndexSet(0), .total_samples = 2};
  const WeightGrad& value = grads[0];
  EXPECT_EQ(value.layer, 5);
  EXPECT_EQ(grads[0].value().layer, 5);
  EXPECT_EQ(grads[0]->is_complete(), true);
  EXPECT_EQ(grads[0].key(), Key(0));
  const WeightGrad more{.layer = 5, .samples = IndexSet(1), .total_samples = 2};
  EXPECT_EQ((grads[0] + more).samples, IndexSet::range(0, 2));
}

TEST(Slot, TellsWhatItReplaces) {
  RecordingObserver notes;
  ValueMap<Weight> weights(notes);
  weights[0] = Weight{};
  weights[0] = Weight{.step = 1};
  weights.erase(0);
  weights[0] = Weight{};
  EXPECT_EQ(notes.lines, (Lines{"weight 0", "weight 1 for 0", "drop 1", "weight 2"}));
  EXPECT_EQ(notes.stored, Bytes{128});
}

TEST(Slot, CopiesFromAnotherPlaceButNotFromItself) {
  RecordingObserver notes;
  ValueMap<Weight> weights(notes);
  weights[0] = Weight{.layer = 4};
  weights[1] = weights[0];
  EXPECT_EQ(weights[1]->layer, 4);
  weights[0] = weights[0];
  EXPECT_EQ(notes.lines, (Lines{"weight 0", "weight 1"}));
  EXPECT_EQ(notes.stored, Bytes{256});
  EXPECT_EQ(thrown_by([&] { weights[2] = weights[9]; }), "D613 nothing under 9/-1");
  EXPECT_FALSE(weights.contains(2));
}

TEST(Slot, ThatIsEmptyHasNothingToRead) {
  RecordingObserver notes;
  ValueMap<Weight> weights(notes);
  EXPECT_TRUE(weights[4].empty());
  EXPECT_EQ(thrown_by([&] { (void)weights[4].value(); }), "D613 nothing under 4/-1");
  EXPECT_EQ(thrown_by([&] { (void)weights[{4, 2}]->step; }), "D613 nothing under 4/2");
  EXPECT_EQ(thrown_by([&] { (void)static_cast<const Weight&>(weights[4]); }),
            "D613 nothing under 4/-1");
}

TEST(ValueMap, ContainsOnlyWhatWasStored) {
  RecordingObserver notes;
  ValueMap<Weight> weights(notes);
  EXPECT_FALSE(weights.contains(0));
  (void)weights[0];  // a look makes a place, but puts nothing there
  EXPECT_FALSE(weights.contains(0));
  weights[0] = Weight{};
  EXPECT_TRUE(weights.contains(0));
  weights.erase(0);
  EXPECT_FALSE(weights.contains(0));
  EXPECT_EQ(places(weights), 0);
}

TEST(ValueMap, ErasesOnlyWhatIsThere) {
  RecordingObserver notes;
  ValueMap<Weight> weights(notes);
  EXPECT_EQ(thrown_by([&] { weights.erase(1); }), "D613 nothing under 1/-1");
  (void)weights[1];
  EXPECT_EQ(thrown_by([&] { weights.erase(1); }), "D613 nothing under 1/-1");
  weights[1] = Weight{};
  weights.erase(1);
  EXPECT_EQ(thrown_by([&] { weights.erase(1); }), "D613 nothing under 1/-1");
}

// Strong exception guarantee.
TEST(ValueMap, IsUnchangedWhenTheObserverThrows) {
  RecordingObserver notes;
  ValueMap<Weight> weights(notes);
  weights[1] = Weight{.layer = 3};
  notes.reject = true;
  EXPECT_EQ(thrown_by([&] { weights.erase(1); }), "D620 in use");
  EXPECT_EQ(thrown_by([&] { weights[1] = Weight{.layer = 4}; }), "D620 in use");
  EXPECT_EQ(thrown_by([&] { weights[2] = Weight{}; }), "D620 in use");
  EXPECT_EQ(weights[1]->layer, 3);
  EXPECT_FALSE(weights.contains(2));
}

TEST(Slot, KeepsItsPlaceWhileOthersComeAndGo) {
  RecordingObserver notes;
  ValueMap<Weight> weights(notes);
  Slot<Weight>& kept = weights[50];
  kept = Weight{.layer = 50};
  for (int i = 0; i < 100; ++i) {
    if (i != 50) weights[i] = Weight{.layer = i};
  }
  for (int i = 0; i < 100; i += 3) weights.erase(i);
  EXPECT_EQ(kept->layer, 50);
}

}  // namespace
}  // namespace shiplap::strategy
