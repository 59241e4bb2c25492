// Labels of events: the layer and samples of the rows that an operation moves. See labels.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/index_set.h"
#include "shiplap/plan/link.h"

namespace shiplap::plan {

// The label of some of the rows that an operation moves: known, or that of an earlier operation of
// its rank.
struct LabelSource {
  std::int32_t layer = -1;
  IndexSet samples;
  std::int32_t operation = -1;  // the operation that received the rows; -1: known
};

// An event whose label depends on other events. Without sources it has the label of its other end:
// a receive that of its send, a broadcast that of its root.
struct DeferredLabel {
  OperationId id;
  std::int32_t first = 0;  // in DeferredLabels::sources; the most recently written one first
  std::int32_t count = 0;
};

struct DeferredLabels {
  std::vector<DeferredLabel> deferred;
  std::vector<LabelSource> sources;
};

class Labeller {
 public:
  explicit Labeller(const Plan& plan);
  // Sets layer and samples of the events of a rank; those that depend on other ranks are deferred.
  void annotate(const RankProgram& program, LinkedProgram& linked, DeferredLabels& deferred);

 private:
  // The kind of a tensor determines the label of its values.
  enum class TensorKind : std::uint8_t { weight, weight_grad, activation, activation_grad, other };
  struct TensorLabel {
    TensorKind kind = TensorKind::other;
    bool indexed = false;
    std::int32_t sample = -1;  // its dimension `sample`
  };
  // Rows begin .. end-1 of a buffer, and the last write to them.
  struct Segment {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t when = 0;               // number of the write, on this rank
    const flat::Value* value = nullptr;  // null: received by `operation`
    std::int32_t operation = -1;
  };
  using Segments = std::vector<Segment>;

  void start(const RankProgram& program);
  void compute(const flat::Operation& op, trace::Event& event);
  void move(const flat::Operation& op, OperationId id, LinkedProgram& linked,
            DeferredLabels& deferred);
  // Labels the event with the contents of the rows.
  void set_label(const flat::Region& region, OperationId id, LinkedProgram& linked,
                 DeferredLabels& deferred);

  [[nodiscard]] std::int32_t layer_of(const flat::Operation& op, trace::EventKind kind) const;
  [[nodiscard]] IndexSet samples_of(const flat::Value& value) const;
  [[nodiscard]] IndexSet samples_of(const flat::Operation& op, Access::Kind kind) const;
  [[nodiscard]] LabelSource label_of(const flat::Value& value) const;

  // The segments of a region, which is a range or a list of rows.
  void find(const flat::Region& region, Segments& found) const;
  void put(const flat::Region& region, Segment what);
  void put(BufferId buffer, const Segment& what);
  void copy(const flat::Region& from, const flat::Region& to);
  void arrive(const flat::Region& from, const flat::Region& to);

  std::vector<TensorLabel> tensors_;
  // Of the current rank:
  const RankProgram* program_ = nullptr;
  std::vector<Segments> buffers_;  // each sorted, without overlap
  std::int64_t writes_ = 0;
  Segments found_;
  Segments rest_;
};

// Resolves all deferred labels.
void resolve_labels(const DeferredLabels& deferred, LinkedProgram& linked);

}  // namespace shiplap::plan
