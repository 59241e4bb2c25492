// How a Model talks to others.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shiplap/plan/text.h"
#include "shiplap/strategy/model.h"

namespace shiplap::strategy {
namespace {

using trace::Kind;
using workload::Trail;

const Trail& trail_of(const AnyValue& value) {
  static const Trail kNoTrail;
  return std::visit(
      [](const auto& v) -> const Trail& {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return kNoTrail;
        } else {
          return v.trail;
        }
      },
      value);
}

// Whether the result may stand where the operand lies.
bool may_be_in_place(Kind kind) {
  return kind == Kind::all_reduce || kind == Kind::reduce_scatter || kind == Kind::all_gather;
}

bool writes_operand(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }

template <class T>
bool allows(Kind kind) {
  if (kind == Kind::all_reduce) return workload::Reduceable<T>;
  if (kind == Kind::all_gather) return workload::Gatherable<T>;
  return workload::ReduceableGatherable<T>;
}

bool allows(Kind kind, const AnyValue& value) {
  return std::visit([&]<class T>(const T& /*value*/) { return allows<T>(kind); }, value);
}

}  // namespace

Flight Model::ask_any(Kind kind, const AnyValue& value, int layer, const Over& over,
                      std::string_view channel) {
  ensure(kind == Kind::all_reduce || kind == Kind::all_gather || kind == Kind::reduce_scatter,
         "a collective of values");
  begin_call(kind, layer);
  if (!allows(kind, value)) {
    refuse("D614", fmt::format("there is no {} of {}", name(kind), describe(value)),
           "gradients are sums, so they can be reduced; what is cut into shards can be gathered",
           "gradients of weights allow both, weights and activations only all_gather, gradients "
           "of activations only all_reduce");
  }
  return ask(kind, value, layer, over, channel);
}

Flight Model::ask(Kind kind, const AnyValue& value, int layer, const Over& over,
                  std::string_view channel) {
  begin_call(kind, layer);
  require_stored(trail_of(value), value);
  if (writes_operand(kind) && known_[trail_of(value).first].readers > 0) {
    refuse("D620", fmt::format("{} is in use", describe(value)),
           "a reduction writes where its operand lies, which a communication under way reads",
           "wait for that first: `co_await` what the start_ call returned");
  }
  if (layer_of(value) != layer) {
    refuse("D614", fmt::format("{} is not of layer {}", describe(value), layer),
           "the layer of a collective is that of its value",
           fmt::format("say layer {}", layer_of(value)));
  }
  Flight flight;
  flight.kind = kind;
  flight.rank = rank_;
  flight.group = dist_.group(over.axes, channel);
  flight.in = value;
  if (static_cast<std::size_t>(flight.group) >= numbers_.size()) {
    numbers_.resize(static_cast<std::size_t>(flight.group) + 1, 0);
  }
  return flight;
}

Flight Model::message(Kind kind, int peer, const AnyValue& value, Tagged tagged) {
  begin_call(kind, kind == Kind::send ? layer_of(value) : -1);
  if (peer < 0 || peer >= dist_.size() || peer == rank_) {
    refuse("D621",
           fmt::format("rank {} cannot {} rank {}", rank_,
                       kind == Kind::send ? "send to" : "receive from", peer),
           fmt::format("the others are among ranks 0 to {}", dist_.size() - 1),
           "look at the ends of the pipeline: the first rank has nobody before it");
  }
  Flight flight;
  flight.kind = kind;
  flight.rank = rank_;
  flight.peer = peer;
  flight.tag = tagged.tag;
  flight.channel = dist_.channel(tagged.channel);
  if (kind == Kind::send) require_stored(trail_of(value), value);
  flight.in = value;
  return flight;
}

void Model::issue(Flight& flight, std::int32_t stream, bool async) {
  const bool collective = flight.peer < 0;
  if (collective) flight.number = numbers_[flight.group]++;
  if (flight.kind != Kind::recv) {
    Known& known = known_[trail_of(flight.in).first];
    ++known.readers;
    if (writes_operand(flight.kind)) known.held = true;
  }
  flight.beside = async || stream != 0;
  flight.step =
      record({.what = Step::What::communicate,
              .kind = flight.kind,
              .async = async,
              .stream = stream,
              .group = collective ? flight.group : -1,
              .peer = flight.peer,
              .tag = flight.tag,
              .channel = flight.channel,
              .reads = {flight.kind == Kind::recv ? -1 : trail_of(flight.in).first, -1, -1}});
}

Flight& Model::keep(Flight&& flight) {
  under_way_.push_back(std::make_unique<Flight>(std::move(flight)));
  return *under_way_.back();
}

void Model::forget(const Flight& flight) {
  const auto found =
      std::ranges::find_if(under_way_, [&](const auto& own) { return own.get() == &flight; });
  ensure(found != under_way_.end(), "what is under way is kept");
  std::ranges::replace(streams_, found->get(), static_cast<Flight*>(nullptr));
  std::swap(*found, under_way_.back());
  under_way_.pop_back();
}

std::int32_t Model::stream_called(std::string_view name) {
  const auto found = std::ranges::find(stream_names_, name);
  if (found == stream_names_.end()) {
    stream_names_.emplace_back(name);
    streams_.push_back(nullptr);
    return static_cast<std::int32_t>(stream_names_.size() - 1);
  }
  return static_cast<std::int32_t>(found - stream_names_.begin());
}

// Messages start at once; collectives of one stream follow each other.
void Model::start(Flight& flight, const Over& over) {
  if (flight.peer >= 0) {
    issue(flight, 0, true);
    dist_.start(flight);
    return;
  }
  if (!plan::is_name(over.stream) || over.stream == stream_names_.front()) {
    refuse("D614", fmt::format("a collective cannot be started on stream `{}`", over.stream),
           "what is started runs beside `main`, on a stream with a name of letters and digits",
           "name another stream, or `co_await` the call itself");
  }
  const std::int32_t stream = stream_called(over.stream);
  issue(flight, stream, false);
  Flight* const last = std::exchange(streams_[stream], &flight);
  if (last != nullptr && !last->complete) {
    last->behind = &flight;
  } else {
    dist_.start(flight);
  }
}

void Model::await(Flight& flight, std::coroutine_handle<> caller) {
  flight.handle = caller;
  flight.awaited = true;
  flight.next = nullptr;
  waiting_for_ = &flight;
  begin_call(flight.kind, flight.kind == Kind::recv ? -1 : layer_of(flight.in));
}

const Flight* Model::waiting_for() const {
  const Flight* flight = waiting_for_;
  for (std::size_t i = 0; flight != nullptr && i < under_way_.size(); ++i) {
    const auto before = std::ranges::find(under_way_, flight, [](const auto& own) {
      return static_cast<const Flight*>(own->behind);
    });
    if (before == under_way_.end()) break;
    flight = before->get();
  }
  return flight;
}

Recording Model::recording_so_far() const {
  Recording all = recorder_.recording();
  const auto add = [&](const Flight& flight) {
    if (!flight.complete || flight.kind == Kind::send) return;
    all.steps[flight.step].writes[0] = static_cast<ValueNumber>(all.values.size());
    all.values.push_back({.value = flight.out, .in_place_of = -1});
  };
  for (const auto& flight : under_way_) add(*flight);
  if (waiting_for_ != nullptr && waiting_for_->step >= 0 &&
      all.steps[waiting_for_->step].writes[0] < 0) {
    add(*waiting_for_);
  }
  return all;
}

// The rank has waited until it was complete.
void Model::taken(Flight& flight) {
  waiting_for_ = nullptr;
  begin_call(flight.kind, flight.kind == Kind::recv ? -1 : layer_of(flight.in));
  if (flight.kind != Kind::recv) {
    Known& known = known_[trail_of(flight.in).first];
    --known.readers;
    known.held = false;
  }
  if (flight.beside) record({.what = Step::What::wait, .of = flight.step});
}

template <class T>
T Model::take(Flight& flight) {
  taken(flight);
  if (flight.kind == Kind::send) return std::get<T>(flight.in);
  T* const value = std::get_if<T>(&flight.out);
  if (value == nullptr) {
    refuse("D616", fmt::format("rank {} sent {}", flight.peer, describe(flight.out)),
           "a receive names the kind of value that comes", "receive what is sent");
  }
  const ValueNumber source =
      may_be_in_place(flight.kind) ? trail_of(flight.in).first : ValueNumber{-1};
  T result = std::move(*value);
  make(result, source);
  record({.what = Step::What::take, .of = flight.step, .writes = {result.trail.first, -1}});
  return result;
}

template <>
AnyValue Model::take(Flight& flight) {
  const AnyValue& known = flight.kind == Kind::send ? flight.in : flight.out;
  return std::visit(
      [&]<class T>(const T& /*value*/) -> AnyValue {
        if constexpr (std::is_same_v<T, std::monostate>) {
          throw InternalError("what has landed has a value");
        } else {
          return take<T>(flight);
        }
      },
      known);
}

template Weight Model::take(Flight&);
template OptState Model::take(Flight&);
template WeightGrad Model::take(Flight&);
template Activation Model::take(Flight&);
template ActivationGrad Model::take(Flight&);

}  // namespace shiplap::strategy
