#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "shiplap/check/local_order_internal.h"
#include "shiplap/check/rows_internal.h"

namespace shiplap::check {

LocalOrder::LocalOrder(const plan::RankTemplate& steps)
    : steps_(steps), streams_(steps.heads.size()) {
  const std::size_t count = steps.steps.size();
  clocks_.assign(count * streams_, 0);
  position_.assign(count, 0);
  first_waiter_.assign(count, -1);
  std::vector<std::int32_t> length(streams_);
  for (std::size_t k = 0; k < count; ++k) {
    const plan::Step& op = steps.steps[k];
    if (op.member) continue;  // its batch is asked
    const auto stream = static_cast<std::size_t>(op.stream);
    position_[k] = length[stream]++;
    if (op.gate >= 0) merge(k, op.gate);
    for (const std::int32_t dependency : steps.after_of(op)) {
      const std::int32_t earlier = owner(dependency);
      merge(k, earlier);
      const plan::Step& awaited = steps[earlier];
      if (awaited.source->async) {
        next_waiter_.push_back(first_waiter_[earlier]);
        first_waiter_[earlier] = static_cast<std::int32_t>(waiters_.size());
        waiters_.push_back({earlier, op.stream, position_[k]});
        continue;
      }
      const std::int32_t done = 2 * position_[earlier] + 2;
      std::int32_t& clock = clocks_[k * streams_ + static_cast<std::size_t>(awaited.stream)];
      clock = std::max(clock, done);
    }
    clocks_[k * streams_ + stream] = 2 * position_[k] + 1;
  }
}

void LocalOrder::merge(std::size_t into, std::int32_t from) {
  for (std::size_t s = 0; s < streams_; ++s) {
    std::int32_t& clock = clocks_[into * streams_ + s];
    clock = std::max(clock, at(from, static_cast<std::int32_t>(s)));
  }
}

bool LocalOrder::complete_before(std::int32_t earlier, std::int32_t later) const {
  const std::int32_t a = owner(earlier);
  const std::int32_t b = owner(later);
  if (a == b) return false;
  const plan::Step& op = steps_[a];
  if (!op.source->async) return at(b, op.stream) >= 2 * position_[a] + 2;
  for (std::int32_t k = first_waiter_[a]; k >= 0; k = next_waiter_[k]) {
    const Waiter& waiter = waiters_[k];
    if (at(b, waiter.stream) >= 2 * waiter.position + 1) return true;
  }
  return false;
}

bool LocalOrder::started_before(std::int32_t earlier, std::int32_t later) const {
  const std::int32_t a = owner(earlier);
  const std::int32_t b = owner(later);
  if (a == b) return true;
  return at(b, steps_[a].stream) >= 2 * position_[a] + 1;
}

namespace {

// Who touched a row last.
struct Touched {
  std::int32_t writer = -1;
  std::int32_t reader = -1;
  std::vector<std::int32_t> readers;  // further ones; some may be complete before later ones
  std::size_t prune_at = 8;           // readers
  void skip(std::int32_t) {}
};

class Races {
 public:
  Races(const Script& script, std::vector<Trouble>& troubles)
      : script_(script), order_(*script.steps), troubles_(troubles) {
    for (const std::int32_t rows : script.rows) buffers_.emplace_back(rows, Touched{});
  }

  std::int64_t find() {
    for (std::size_t k = 0; k < script_.ops.size(); ++k) {
      op_ = static_cast<std::int32_t>(k);
      const Op& op = script_.ops[k];
      for (const Claim& claim : script_.claims_of(op)) {
        if (claim.kind == plan::Access::Kind::reads) touch(claim.zone, false);
      }
      for (const Claim& claim : script_.claims_of(op)) {
        if (claim.kind != plan::Access::Kind::reads) touch(claim.zone, true);
      }
      const bool lives = op.act == Act::allocate || op.act == Act::free;
      touch(op.from, lives || op.spoils);
      if (!op.keeps) touch(op.to, true);
      key(op);
    }
    return looked_at_;
  }

 private:
  void touch(const Zone& zone, bool writes) {
    if (!zone.exists()) return;
    ++looked_at_;
    if (zone.listed < 0) return touch(zone, zone.begin, zone.end(), writes);
    for (const std::int32_t row : script_.rows_of(zone)) touch(zone, row, row + 1, writes);
  }

  void touch(const Zone& zone, std::int32_t begin, std::int32_t end, bool writes) {
    if (begin == end) return;
    Rows<Touched>& rows = buffers_[zone.buffer];
    rows.change(begin, end, [&](Rows<Touched>::Range& range) {
      Touched& touched = range.value;
      const std::int32_t row = range.begin;
      clash(touched.writer, zone, row, writes ? Symptom::race_write : Symptom::race_read);
      if (!writes) return read(touched);
      clash(touched.reader, zone, row, Symptom::race_read);
      for (const std::int32_t reader : touched.readers)
        clash(reader, zone, row, Symptom::race_read);
      touched.writer = op_;
      touched.reader = -1;
      touched.readers.clear();
      touched.prune_at = 8;
    });
  }

  // A reader that is complete before this one starts need not be remembered: whoever comes after
  // this comes after that.
  void read(Touched& touched) {
    if (touched.reader == op_) return;
    if (touched.reader < 0 || order_.complete_before(touched.reader, op_)) {
      touched.reader = op_;
      return;
    }
    if (!touched.readers.empty() && touched.readers.back() == op_) return;
    if (touched.readers.size() >= touched.prune_at) {  // each time twice as many: amortized
      std::erase_if(touched.readers,
                    [&](std::int32_t reader) { return order_.complete_before(reader, op_); });
      touched.prune_at = std::max<std::size_t>(8, 2 * touched.readers.size());
    }
    touched.readers.push_back(op_);
  }

  void clash(std::int32_t earlier, const Zone& zone, std::int32_t row, Symptom symptom) {
    if (earlier < 0 || earlier == op_ || order_.complete_before(earlier, op_)) return;
    if (!told_.emplace(earlier, op_).second) return;
    troubles_.push_back({.symptom = symptom,
                         .place = {script_.rank, op_},
                         .other = {script_.rank, earlier},
                         .zone = zone,
                         .first_row = row});
  }

  void key(const Op& op) {
    const bool meets = plan::is_call(op.act);
    if (!plan::is_message(op.act) && !meets) return;
    std::int32_t* last = nullptr;
    if (meets) {
      last = &calls_.try_emplace(op.match.with, -1).first->second;
    } else {
      const auto n = std::tuple(op.act == Act::send, op.match.with);
      last = &messages_.try_emplace(n, -1).first->second;
    }
    if (*last >= 0 && !order_.started_before(*last, op_)) {
      troubles_.push_back({.symptom = Symptom::unordered,
                           .place = {script_.rank, op_},
                           .other = {script_.rank, *last}});
    }
    *last = op_;
  }

  const Script& script_;
  LocalOrder order_;
  std::vector<Trouble>& troubles_;
  std::vector<Rows<Touched>> buffers_;
  std::set<std::pair<std::int32_t, std::int32_t>> told_;
  std::map<std::int32_t, std::int32_t> calls_;                       // by group
  std::map<std::tuple<bool, std::int32_t>, std::int32_t> messages_;  // by key
  std::int32_t op_ = 0;
  std::int64_t looked_at_ = 0;
};

}  // namespace

std::int64_t find_races(const Script& script, std::vector<Trouble>& troubles) {
  return Races(script, troubles).find();
}

}  // namespace shiplap::check
