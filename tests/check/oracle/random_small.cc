// A random plan is first played: each event is written on all ranks that take part in it at once,
// with what every row then holds, so that the plan is sound. Then one or two things are changed.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/base/random.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/text.h"
#include "small_change.h"
#include "small_plans.h"
#include "small_text.h"

namespace shiplap::oracle {
namespace {

constexpr int kRows = 8;  // of x and y

using Place = std::pair<char, int>;  // buffer, row

// Rows that an operation touches; true: written.
std::vector<std::pair<Place, bool>> footprint(const SmallOp& op) {
  std::vector<std::pair<Place, bool>> all;
  const auto add = [&](const SmallRegion& region, bool writes) {
    for (int k = 0; k < region.count; ++k) {
      all.push_back({{region.buffer, region.row(k)}, writes});
    }
  };
  const bool in_place = op.has_from && !op.has_to && op.action != "send";
  if (op.has_from) add(op.from, in_place);
  if (op.has_to) add(op.to, true);
  for (const SmallAccess& access : op.accesses) add(access.region, access.kind != "reads");
  for (const SmallOp& member : op.members) {
    const auto more = footprint(member);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

using Key = std::tuple<std::string, int, int, std::string, std::vector<int>>;

std::vector<Key> keys(const SmallOp& op) {
  if (op.action == "send" || op.action == "receive") {
    return {{op.action, op.peer, op.tag, op.channel, {}}};
  }
  if (!op.group.empty()) return {{"group", 0, 0, op.channel, op.group}};
  std::vector<Key> all;
  for (const SmallOp& member : op.members) {
    const auto more = keys(member);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

bool conflict(const SmallOp& a, const SmallOp& b) {
  for (const auto& [here, writes] : footprint(a)) {
    for (const auto& [there, also] : footprint(b)) {
      if (here == there && (writes || also)) return true;
    }
  }
  return false;
}

bool share_key(const SmallOp& a, const SmallOp& b) {
  const auto others = keys(b);
  return std::ranges::any_of(
      keys(a), [&](const Key& key) { return std::ranges::find(others, key) != others.end(); });
}

std::optional<Content> united(const std::optional<Content>& a, const std::optional<Content>& b) {
  if (!a || !b || a->tensor == '?' || b->tensor == '?' || !has_sum(a->tensor)) return std::nullopt;
  Content sum = *a;
  sum.sum = b->sum;
  sum.denominator = b->denominator;
  const bool zero = a->sum.empty() || b->sum.empty();
  if (sum != *b || (!zero && a->denominator != b->denominator)) return std::nullopt;
  if (b->sum.empty()) sum.denominator = a->denominator;
  for (const int k : a->sum) {
    if (!sum.sum.insert(k).second) return std::nullopt;
  }
  return sum;
}

class Player {
 public:
  explicit Player(std::uint64_t seed) : random_(seed) {
    const int ranks = random_.chance(0.05) ? upto(5, 8) : upto(2, 4);
    plan_.ranks.resize(ranks);
    memory_.resize(plan_.ranks.size());
    z_lives_.resize(plan_.ranks.size());
  }

  SmallPlan play() {
    for (int rank = 0; rank < ranks(); ++rank) find_given(rank);
    const int events = upto(1, random_.chance(0.4) ? 3 : 12);
    for (int k = 0; k < events; ++k) event();
    while (!pending_.empty()) receive_pending();
    for (int rank = 0; rank < ranks(); ++rank) {
      if (z_lives_[rank]) live(rank);
      if (at(rank).ops.empty()) compute(rank);
      set_goals(rank);
    }
    return std::move(plan_);
  }

 private:
  struct Pending {
    int from = 0;
    int to = 0;
    int tag = 0;
    std::string channel;
    std::vector<std::optional<Content>> rows;
  };
  using Held = std::vector<std::optional<Content>>;

  // ---- what is there

  int upto(int first, int last) { return static_cast<int>(random_.between(first, last + 1)); }
  [[nodiscard]] int ranks() const { return static_cast<int>(plan_.ranks.size()); }
  std::map<Place, Content>& memory(int rank) { return memory_[rank]; }
  SmallRank& at(int rank) { return plan_.ranks[rank]; }

  Held get(int rank, const SmallRegion& region) {
    Held all;
    for (int k = 0; k < region.count; ++k) {
      const auto found = memory(rank).find({region.buffer, region.row(k)});
      all.push_back(found == memory(rank).end() ? std::nullopt : std::optional(found->second));
    }
    return all;
  }

  void put(int rank, const SmallRegion& region, const Held& rows) {
    for (int k = 0; k < region.count; ++k) {
      const Place place{region.buffer, region.row(k)};
      memory(rank).erase(place);
      if (const auto& row = rows[k]) memory(rank)[place] = *row;
    }
  }

  // Unites if possible, else replaces; returns which.
  bool put_or_add(int rank, const SmallRegion& region, const Held& rows) {
    Held sums = get(rank, region);
    bool can = true;
    for (std::size_t k = 0; k < sums.size(); ++k) {
      sums[k] = united(sums[k], rows[k]);
      can = can && sums[k].has_value();
    }
    put(rank, region, can ? sums : rows);
    return can;
  }

  SmallRegion some_rows(int rank, int count) {
    std::vector<char> buffers{'x', 'x', 'y', 'y'};
    if (z_lives_[rank] && count <= 2) buffers.push_back('z');
    const char buffer = random_.pick(buffers);
    return {buffer, upto(0, (buffer == 'z' ? 2 : 4) - std::min(count, 4)), count};
  }

  Content some_content() {
    Content content{.tensor = "TTTMGA"[upto(0, 5)], .instance = upto(0, 1), .tok = 0};
    if (has_tok(content.tensor)) content.tok = upto(0, 3);
    const double part = random_.chance() ? 1.0 : 0.4;
    for (const int k : full_sum(content)) {
      if (random_.chance(part)) content.sum.insert(k);
    }
    if (content.tensor == 'G' && !content.sum.empty() && random_.chance()) content.denominator = 2;
    return content;
  }

  void find_given(int rank) {
    const auto give = [&](const SmallRegion& region, const Content& content) {
      at(rank).facts.push_back({"given", region, content});
      put(rank, region, {content});
    };
    for (int row = 0; row < 4; ++row) {
      if (random_.chance()) give({'x', row, 1}, some_content());
    }
    give({'w', 0, 1}, {.tensor = 'W', .instance = 0});
    give({'w', 1, 1}, {.tensor = 'W', .instance = 1});
  }

  void set_goals(int rank) {
    for (const auto& [place, content] : memory(rank)) {
      if (content.tensor == '?' || !random_.chance(0.4)) continue;
      at(rank).facts.push_back({"goal", {place.first, place.second, 1}, content});
    }
  }

  // ---- operations

  // Puts it on a stream and behind all that it must wait for.
  void emit(int rank, SmallOp op) {
    op.id = next_id_++;
    const double where = random_.unit();
    if (where > 0.6) op.stream = where > 0.9 ? "aux" : "net";
    const bool lives = op.action == "allocate" || op.action == "free";
    op.async = op.action != "compute" && !lives && random_.chance(0.3);
    for (const SmallOp& before : at(rank).ops) {
      const bool starts = before.stream == op.stream;
      const bool completes = starts && !before.async;
      if ((conflict(before, op) && !completes) || (share_key(before, op) && !starts)) {
        op.after.push_back(before.id);
      }
    }
    at(rank).ops.push_back(std::move(op));
  }

  void event() {
    const int rank = upto(0, ranks() - 1);
    if (!pending_.empty() && random_.chance(0.4)) return receive_pending();
    const int what = upto(0, 19);
    if (what < 6) return compute(rank);
    if (what < 8) return copy(rank);
    if (what < 9) return live(rank);
    if (what < 13) return message(rank);
    if (what < 14) return swap_in_batches(rank);
    if (what < 15) return exchange();
    if (what < 18) return reduction();
    return collective();
  }

  void live(int rank) {
    const bool lives = z_lives_[rank];
    const SmallRegion rows{'z', 0, 2};
    put(rank, rows, {std::nullopt, std::nullopt});
    z_lives_[rank] = !lives;
    emit(rank, {.action = lives ? "free" : "allocate", .from = rows, .has_from = true});
  }

  void copy(int rank) {
    const int count = upto(1, 2);
    SmallRegion from = some_rows(rank, count);
    SmallRegion to = some_rows(rank, count);
    from.listed = from.buffer != 'z' && random_.chance(0.2);
    if (to.buffer == from.buffer) to.buffer = from.buffer == 'x' ? 'y' : 'x';
    const Held rows = get(rank, from);
    const bool add = random_.chance(0.3) && put_or_add(rank, to, rows);
    if (!add) put(rank, to, rows);
    emit(rank,
         {.action = "copy", .from = from, .to = to, .has_from = true, .has_to = true, .add = add});
  }

  void compute(int rank) {
    const SmallRegion row = some_rows(rank, 1);
    const std::optional<Content> held = get(rank, row)[0];
    const bool known = held && held->tensor != '?';
    if (known && random_.chance(0.7)) return use(rank, row, *held);
    Content content = some_content();
    const bool zero = has_sum(content.tensor) && random_.chance(0.3);
    if (zero) content.sum.clear();
    if (zero) content.denominator = 1;
    put(rank, row, {content});
    emit(rank, {.action = "compute",
                .kernel = zero ? "zero" : "make",
                .accesses = {{"writes", row, content}}});
  }

  // Reads what a row holds, or adds to it.
  void use(int rank, const SmallRegion& row, const Content& held) {
    Content more = held;
    more.sum.clear();
    for (const int k : full_sum(held)) {
      if (!held.sum.contains(k) && random_.chance()) more.sum.insert(k);
    }
    if (held.sum.empty()) more.denominator = 1;
    if (has_sum(held.tensor) && !more.sum.empty() && random_.chance(0.6)) {
      put(rank, row, {united(held, more)});
      return emit(rank, {.action = "compute",
                         .kernel = random_.chance() ? "make" : "other",
                         .accesses = {{"adds", row, more}}});
    }
    SmallOp op{.action = "compute",
               .kernel = is_complete(held) ? "norm" : "cast",
               .accesses = {{"reads", row, held}}};
    if (held.tensor == 'A' && held.instance < 2 && random_.chance(0.8)) {
      forward(rank, op);
    } else if (held.tensor == 'G' && is_complete(held) && held.denominator == 2) {
      update(rank, op);
    } else if (random_.chance()) {
      const SmallRegion to{row.buffer == 'x' ? 'y' : 'x', upto(0, 3), 1};
      put(rank, to, {held});
      op.accesses.push_back({"writes", to, held});
    }
    emit(rank, std::move(op));
  }

  void forward(int rank, SmallOp& op) {
    const Content held = op.accesses[0].content;
    const auto weight = get(rank, {'w', held.instance, 1})[0];
    if (!weight || weight->tensor != 'W') return;
    Content next = held;
    ++next.instance;
    const SmallRegion from = op.accesses[0].region;
    const SmallRegion to{from.buffer == 'x' ? 'y' : 'x', upto(0, 3), 1};
    op.kernel = "forward";
    op.accesses.push_back({"reads", {'w', held.instance, 1}, *weight});
    op.accesses.push_back({"writes", to, next});
    put(rank, to, {next});
  }

  void update(int rank, SmallOp& op) {
    const int layer = op.accesses[0].content.instance;
    const SmallRegion row{'w', layer, 1};
    auto weight = get(rank, row)[0];
    if (!weight || weight->tensor != 'W' || weight->is_new) return;
    op.kernel = "update";
    op.accesses.push_back({"reads", row, *weight});
    weight->is_new = true;
    op.accesses.push_back({"writes", row, *weight});
    put(rank, row, {weight});
  }

  // ---- messages

  int another(int rank) {
    if (random_.chance(0.04)) return rank;
    return (rank + upto(1, ranks() - 1)) % ranks();
  }

  void message(int from) {
    const int count = upto(1, 2);
    const SmallRegion rows = some_rows(from, count);
    const Pending pending{from, another(from), random_.chance(0.25) ? 1 : 0,
                          random_.chance(0.1) ? "b" : "", get(from, rows)};
    emit(from, {.action = "send",
                .from = rows,
                .has_from = true,
                .peer = pending.to,
                .tag = pending.tag,
                .channel = pending.channel});
    pending_.push_back(pending);
    if (random_.chance(0.75)) {
      while (!pending_.empty()) receive_pending();
    }
  }

  void receive_pending() {
    const Pending message = pending_.front();
    pending_.erase(pending_.begin());
    const SmallRegion to = some_rows(message.to, static_cast<int>(message.rows.size()));
    const bool add = random_.chance(0.4) && put_or_add(message.to, to, message.rows);
    if (!add) put(message.to, to, message.rows);
    emit(message.to, {.action = "receive",
                      .to = to,
                      .has_to = true,
                      .peer = message.from,
                      .tag = message.tag,
                      .channel = message.channel,
                      .add = add});
  }

  void swap_in_batches(int one) {
    while (!pending_.empty()) receive_pending();
    const int two = (one + 1) % ranks();
    const SmallRegion from{'x', upto(0, 3), 1};
    const SmallRegion to{'y', upto(0, 3), 1};
    const Held first = get(one, from);
    const Held second = get(two, from);
    put(one, to, second);
    put(two, to, first);
    for (const auto& [me, peer] : {std::pair(one, two), std::pair(two, one)}) {
      SmallOp send{.action = "send", .from = from, .has_from = true, .peer = peer};
      SmallOp receive{.action = "receive", .to = to, .has_to = true, .peer = peer};
      emit(me, {.action = "batch", .members = {send, receive}});
    }
  }

  void exchange() {
    SmallOp op{.action = "exchange",
               .from = {'x', 0, kRows},
               .to = {'y', 0, kRows},
               .has_from = true,
               .has_to = true,
               .table = static_cast<int>(plan_.tables.size())};
    std::vector<SmallMessage> table;
    std::vector<std::map<Place, Content>> before = memory_;
    for (int to = 0; to < ranks(); ++to) {
      for (int into = upto(0, 2); into < 4; into += upto(1, 2)) {
        const SmallMessage message{upto(0, ranks() - 1), to, upto(0, 3), 1, into};
        table.push_back(message);
        const auto found = before[message.from].find({'x', message.first});
        const bool any = found != before[message.from].end();
        put(to, {'y', into, 1}, {any ? std::optional(found->second) : std::nullopt});
      }
      op.group.push_back(to);
    }
    plan_.tables.push_back(std::move(table));
    for (int rank = 0; rank < ranks(); ++rank) emit(rank, op);
  }

  // ---- collectives

  std::vector<int> some_group() {
    std::vector<int> group;
    for (int rank = 0; rank < ranks(); ++rank) group.push_back(rank);
    if (random_.chance(0.6)) return group;
    random_.shuffle(group);
    group.resize(upto(std::min(2, ranks()), ranks()));
    return group;
  }

  SmallOp some_call(const std::string& action, const std::vector<int>& group) {
    SmallOp op{.action = action, .has_from = true, .group = group};
    if (random_.chance(0.15)) op.channel = "b";
    if (random_.chance()) op.root = upto(0, static_cast<int>(group.size()) - 1);
    op.has_to = random_.chance();
    return op;
  }

  // Each member makes its part of a sum, then they are added up.
  void reduction() {
    const std::vector<int> group = some_group();
    const int size = static_cast<int>(group.size());
    const std::vector<std::string> actions{"all_reduce", "all_reduce", "reduce_scatter", "reduce"};
    SmallOp op = some_call(random_.pick(actions), group);
    const int count = op.action == "reduce_scatter" ? size : 1;
    op.from = {random_.chance() ? 'x' : 'y', upto(0, kRows - count), count};
    if (random_.chance(0.3)) op.denominator = 2;
    if (random_.chance(0.05)) op.op = "max";
    Held sums;
    std::vector<std::vector<Content>> parts(group.size());
    const bool together = count > 1 && count <= 4 && random_.chance();
    for (int row = 0; row < count; ++row) {
      Content cell{.tensor = "TTMG"[upto(0, 3)], .instance = upto(0, 1)};
      if (has_tok(cell.tensor)) cell.tok = upto(0, 3);
      if (together) cell = {.tensor = 'T', .tok = row};
      for (auto& part : parts) part.push_back(cell);
      for (const int k : full_sum(cell)) {
        const int who = together ? k % size : upto(0, size - (random_.chance(0.8) ? 1 : 0));
        if (who == size) continue;
        parts[who].back().sum.insert(k);
        cell.sum.insert(k);
      }
      if (!cell.sum.empty()) cell.denominator = op.denominator;
      sums.emplace_back(op.op == "sum" ? cell : Content{});
    }
    for (std::size_t k = 0; k < group.size(); ++k) make(group[k], op.from, parts[k]);
    for (std::size_t k = 0; k < group.size(); ++k) reduce(op, static_cast<int>(k), sums);
  }

  void make(int rank, const SmallRegion& region, const std::vector<Content>& rows) {
    SmallOp op{.action = "compute", .kernel = "make"};
    for (int k = 0; k < region.count; ++k) {
      op.accesses.push_back({"writes", {region.buffer, region.begin + k, 1}, rows[k]});
    }
    put(rank, region, Held(rows.begin(), rows.end()));
    emit(rank, std::move(op));
  }

  void reduce(SmallOp op, int position, const Held& sums) {
    const int rank = op.group[position];
    SmallRegion target = op.from;
    if (op.has_to) target = {op.from.buffer == 'x' ? 'y' : 'x', upto(0, 3), op.from.count};
    if (op.action == "reduce_scatter") {
      if (op.has_to) target.count = 1;
      const SmallRegion own =
          op.has_to ? target : SmallRegion{target.buffer, target.begin + position, 1};
      if (!op.has_to) put(rank, target, Held(sums.size()));  // what is left is nobody's promise
      put(rank, own, {sums[position]});
    } else {
      target.begin = op.has_to ? upto(0, 3) : target.begin;
      const bool has_result = op.action != "reduce" || position == op.root;
      if (has_result || !op.has_to) put(rank, target, has_result ? sums : Held(sums.size()));
    }
    op.to = target;
    emit(rank, std::move(op));
  }

  void collective() {
    const std::vector<int> group = some_group();
    const int size = static_cast<int>(group.size());
    const std::vector<std::string> actions{"all_gather", "all_gather", "broadcast", "all_to_all",
                                           "barrier"};
    SmallOp op = some_call(random_.pick(actions), group);
    if (op.action == "barrier") op.has_from = op.has_to = false;
    const bool gathers = op.action == "all_gather";
    const int whole = op.action == "broadcast" ? 1 : size;
    op.from = {'x', upto(0, std::min(3, kRows - whole)), gathers && op.has_to ? 1 : whole};
    op.to = {op.has_to ? 'y' : 'x', op.has_to ? 0 : op.from.begin, whole};
    std::vector<Held> given;
    for (const int rank : group) given.push_back(get(rank, op.from));
    for (std::size_t me = 0; me < group.size(); ++me) {
      Held rows;
      for (std::size_t k = 0; k < group.size(); ++k) {
        rows.push_back(given[k][gathers ? (op.has_to ? 0 : k) : op.action == "broadcast" ? 0 : me]);
      }
      if (op.action == "broadcast") rows = given[op.root];
      if (op.action != "barrier") put(group[me], op.to, rows);
      emit(group[me], op);
    }
  }

  Random random_;
  SmallPlan plan_;
  std::vector<std::map<Place, Content>> memory_;
  std::vector<bool> z_lives_;
  std::vector<Pending> pending_;
  int next_id_ = 0;
};

}  // namespace

bool has_meaning(const std::string& text) {
  try {
    const plan::Plan plan = plan::parse_text(text, "small.plan");
    for (std::int32_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
      (void)plan::expand(plan, Rank(rank));
    }
    return true;
  } catch (const InputError&) {
    return false;
  }
}

std::string random_sound(std::uint64_t seed) { return to_text(Player(seed).play()); }

std::string random_small(std::uint64_t seed) {
  const SmallPlan sound = Player(seed).play();
  Random random = Random(seed).split(1);
  std::string unchanged = to_text(sound);
  if (!random.chance(0.6)) return unchanged;
  for (int tries = 0; tries < 20; ++tries) {
    SmallPlan changed = sound;
    change_something(changed, random);
    if (random.chance(0.4)) change_something(changed, random);
    std::string text = to_text(changed);
    if (text != unchanged && has_meaning(text)) return text;
  }
  return unchanged;
}

}  // namespace shiplap::oracle
