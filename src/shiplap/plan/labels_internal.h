// What lies in the rows that an operation moves: which layer, which samples. Events show it.
//
// Computations state what they write; all else moves rows. Followed in listed order, one rank at a
// time: of what arrives from another rank, only from which operation it came is noted, and
// resolve_labels() fills it in when all ranks are known.
#pragma once

#include <cstdint>
#include <vector>

#include "shiplap/base/index_set.h"
#include "shiplap/plan/link.h"

namespace shiplap::plan {

// A share of what an operation moves: known, or what another operation of its rank brought.
struct Source {
  std::int32_t layer = -1;
  IndexSet samples;
  std::int32_t operation = -1;  // the one that brought it; -1: known
};

// An event whose layer and samples depend on other events. One without sources shows what its other
// end shows: a receive its send, a broadcast its root.
struct DeferredLabel {
  Place place;
  std::int32_t first = 0;  // in DeferredLabels::sources; the first of them was written last
  std::int32_t count = 0;
};

struct DeferredLabels {
  std::vector<DeferredLabel> deferred;
  std::vector<Source> sources;
};

class Labeller {
 public:
  explicit Labeller(const Plan& plan);
  // Fills in layer and samples of the events of a rank that is loaded, but for the deferred.
  void follow(const RankProgram& program, LinkedProgram& linked, DeferredLabels& deferred);

 private:
  // What an event shows of a value depends on the kind of its tensor.
  enum class Kind : std::uint8_t { weight, weight_grad, activation, activation_grad, other };
  struct TensorLabel {
    Kind kind = Kind::other;
    bool indexed = false;
    std::int32_t sample = -1;  // its dimension of that name
  };
  // Rows begin .. end-1 of a buffer and what was put there.
  struct Segment {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t when = 0;               // counts the writes of this rank
    const flat::Value* value = nullptr;  // none: `operation` brought it
    std::int32_t operation = -1;
  };
  using Segments = std::vector<Segment>;

  void start(const RankProgram& program);
  void compute(const flat::Operation& op, trace::Event& event);
  void move(const flat::Operation& op, Place place, LinkedProgram& linked,
            DeferredLabels& deferred);
  // What lies in the rows becomes what the event shows.
  void show(const flat::Region& region, Place place, LinkedProgram& linked,
            DeferredLabels& deferred);

  [[nodiscard]] std::int32_t layer_of(const flat::Operation& op, trace::Kind kind) const;
  [[nodiscard]] IndexSet samples_of(const flat::Value& value) const;
  [[nodiscard]] IndexSet samples_of(const flat::Operation& op, Access::Kind kind) const;
  [[nodiscard]] Source known(const flat::Value& value) const;

  // Rows of a region: a span, or those a list names.
  void find(const flat::Region& region, Segments& found) const;
  void put(const flat::Region& region, Segment what);
  void put(BufferId buffer, const Segment& what);
  void copy(const flat::Region& from, const flat::Region& to);
  void arrive(const flat::Region& from, const flat::Region& to);

  std::vector<TensorLabel> tensors_;
  // Of the rank that is followed:
  const RankProgram* program_ = nullptr;
  std::vector<Segments> buffers_;  // each sorted, without overlap
  std::int64_t writes_ = 0;
  Segments found_;
  Segments rest_;
};

// Follows every label to where its data was made.
void resolve_labels(const DeferredLabels& deferred, LinkedProgram& linked);

}  // namespace shiplap::plan
