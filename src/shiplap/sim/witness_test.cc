// An independent implementation of the times: the equations of start and completion, evaluated
// again and again until a fixed point, with linear searches for matching operations. It shares
// nothing with the replay but expansion and costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/cost/cost_model.h"
#include "shiplap/plan/expand.h"
#include "shiplap/sim/replay.h"
#include "shiplap/sim/testing_internal.h"

namespace shiplap::sim {
namespace {

using plan::RankProgram;
using FlatOperation = plan::flat::Operation;

// ---- the reference

constexpr double kNever = -1;
bool known(double time) { return time != kNever; }

struct Times {
  double start = kNever;
  double begin = kNever;  // of the event
  double complete = kNever;
};

class ReferenceSolver {
 public:
  ReferenceSolver(const plan::Plan& plan, const ReplayOptions& options)
      : plan_(plan), options_(options) {
    for (std::int64_t rank = 0; rank < plan.mesh.ranks(); ++rank) {
      programs_.push_back(plan::expand(plan, Rank(static_cast<std::int32_t>(rank))));
      times_.emplace_back(programs_.back().operations.size());
    }
  }

  std::vector<std::vector<Times>> solve() {
    bool changed = true;
    while (changed) {
      changed = false;
      for (std::size_t r = 0; r < programs_.size(); ++r) {
        for (std::size_t k = 0; k < times_[r].size(); ++k) {
          changed = try_start(r, k) || changed;
          changed = try_complete(r, k) || changed;
        }
      }
    }
    return times_;
  }

  // Whether the wait-for graph has a cycle: repeatedly removes operations that wait only for
  // removed operations or for none, and returns whether any remain. REQUIRES: solve() has returned.
  bool has_cycle() {
    std::set<At> left;
    for (std::size_t r = 0; r < times_.size(); ++r) {
      for (std::size_t k = 0; k < times_[r].size(); ++k) {
        if (!known(times_[r][k].complete)) left.insert({r, k});
      }
    }
    const auto waits = [&](const At& at) {
      return std::ranges::any_of(waits_for(at),
                                 [&](const At& other) { return left.contains(other); });
    };
    while (std::erase_if(left, [&](const At& at) { return !waits(at); }) > 0) {
    }
    return !left.empty();
  }

 private:
  using At = std::pair<std::size_t, std::size_t>;
  using PlainGroup = std::pair<std::vector<std::int32_t>, std::string>;

  // What it waits for in order to start, or to complete if it has started.
  std::vector<At> waits_for(const At& at) const {
    const auto [r, k] = at;
    std::vector<At> result;
    if (!known(times_[r][k].start)) {
      if (op(r, k).batch >= 0) return {{r, static_cast<std::size_t>(op(r, k).batch)}};
      for (std::size_t before = k; before-- > 0;) {
        if (op(r, before).batch >= 0 || op(r, before).stream != op(r, k).stream) continue;
        const bool async = op(r, before).source->async;
        if (!async || !known(times_[r][before].start)) result.emplace_back(r, before);
        break;
      }
      for (const std::int32_t after : programs_[r].after(op(r, k))) {
        result.emplace_back(r, static_cast<std::size_t>(after));
      }
      return result;
    }
    if (as<plan::Batch>(r, k) != nullptr) {
      for (std::size_t m = 0; m < times_[r].size(); ++m) {
        if (op(r, m).batch == static_cast<std::int32_t>(k)) result.emplace_back(r, m);
      }
      return result;
    }
    if (op(r, k).group.exists()) return members(r, k);
    const auto other = as<plan::Send>(r, k) != nullptr ? other_end<plan::Send, plan::Receive>(r, k)
                                                       : other_end<plan::Receive, plan::Send>(r, k);
    if (other) result.emplace_back(op(r, k).peer.index(), *other);
    return result;
  }

  // The members of the same call that have not started it.
  std::vector<At> members(std::size_t r, std::size_t k) const {
    std::vector<At> result;
    const PlainGroup mine = group(r, k);
    const auto alike = [&](std::size_t rank, std::size_t at) { return group(rank, at) == mine; };
    const std::size_t n = number(r, k, alike);
    for (const std::int32_t member : mine.first) {
      const auto rank = static_cast<std::size_t>(member);
      const auto at = nth(rank, n, alike);
      if (at && !known(times_[rank][*at].start)) result.emplace_back(rank, *at);
    }
    return result;
  }

  const FlatOperation& op(std::size_t r, std::size_t k) const { return programs_[r].operations[k]; }
  template <class Action>
  const Action* as(std::size_t r, std::size_t k) const {
    return std::get_if<Action>(&op(r, k).source->action);
  }

  bool try_start(std::size_t r, std::size_t k) {
    if (known(times_[r][k].start)) return false;
    double start = 0;
    if (op(r, k).batch >= 0) {
      times_[r][k].start = times_[r][op(r, k).batch].start;
      return known(times_[r][k].start);
    }
    for (std::size_t before = k; before-- > 0;) {
      if (op(r, before).batch >= 0 || op(r, before).stream != op(r, k).stream) continue;
      const bool async = op(r, before).source->async;
      const double time = async ? times_[r][before].start : times_[r][before].complete;
      if (!known(time)) return false;
      start = std::max(start, time);
      break;
    }
    for (const std::int32_t after : programs_[r].after(op(r, k))) {
      const double time = times_[r][after].complete;
      if (!known(time)) return false;
      start = std::max(start, time);
    }
    times_[r][k].start = start;
    return true;
  }

  bool try_complete(std::size_t r, std::size_t k) {
    Times& t = times_[r][k];
    if (!known(t.start) || known(t.complete)) return false;
    if (as<plan::Batch>(r, k) != nullptr) return complete_batch(r, k);
    if (as<plan::Send>(r, k) != nullptr) return complete_send(r, k);
    if (as<plan::Receive>(r, k) != nullptr) return complete_receive(r, k);
    if (op(r, k).group.exists()) return complete_call(r, k);
    return complete(t, t.start, alone(r, k));
  }

  static bool complete(Times& t, double begin, double duration) {
    t.begin = begin;
    t.complete = begin + duration;
    return true;
  }

  bool complete_batch(std::size_t r, std::size_t k) {
    double end = times_[r][k].start;
    for (std::size_t m = 0; m < times_[r].size(); ++m) {
      if (op(r, m).batch != static_cast<std::int32_t>(k)) continue;
      if (!known(times_[r][m].complete)) return false;
      end = std::max(end, times_[r][m].complete);
    }
    return complete(times_[r][k], end, 0);
  }

  // The number of this operation among those before it for which `alike` holds.
  template <class Alike>
  std::size_t number(std::size_t r, std::size_t k, const Alike& alike) const {
    std::size_t n = 0;
    for (std::size_t before = 0; before < k; ++before) n += alike(r, before) ? 1U : 0U;
    return n;
  }
  template <class Alike>
  std::optional<std::size_t> nth(std::size_t r, std::size_t n, const Alike& alike) const {
    for (std::size_t k = 0; k < times_[r].size(); ++k) {
      if (alike(r, k) && n-- == 0) return k;
    }
    return {};
  }

  // Whether it is a send (or receive) from a to b with this tag and channel.
  template <class Action>
  bool is(std::size_t r, std::size_t k, std::size_t peer,
          const std::pair<std::int64_t, std::string>& key) const {
    const auto* action = as<Action>(r, k);
    return action != nullptr && op(r, k).peer.index() == peer && op(r, k).tag == key.first &&
           action->channel == key.second;
  }

  template <class Mine, class Theirs>
  std::optional<std::size_t> other_end(std::size_t r, std::size_t k) const {
    const std::size_t peer = op(r, k).peer.index();
    const std::pair key(op(r, k).tag, as<Mine>(r, k)->channel);
    const std::size_t n = number(
        r, k, [&](std::size_t rank, std::size_t at) { return is<Mine>(rank, at, peer, key); });
    return nth(peer, n,
               [&](std::size_t rank, std::size_t at) { return is<Theirs>(rank, at, r, key); });
  }

  bool eager(std::int64_t bytes) const {
    return options_.eager_limit.count > 0 && bytes <= options_.eager_limit.count;
  }

  bool complete_send(std::size_t r, std::size_t k) {
    const std::int64_t bytes = programs_[r].bytes_of(op(r, k).from);
    Times& t = times_[r][k];
    if (eager(bytes)) return complete(t, t.start, 0);
    const auto other = other_end<plan::Send, plan::Receive>(r, k);
    if (!other) return false;
    const double there = times_[op(r, k).peer.index()][*other].start;
    if (!known(there)) return false;
    return complete(t, std::max(t.start, there), message(bytes, r, op(r, k).peer.index()));
  }

  bool complete_receive(std::size_t r, std::size_t k) {
    const std::size_t peer = op(r, k).peer.index();
    const auto other = other_end<plan::Receive, plan::Send>(r, k);
    if (!other || !known(times_[peer][*other].start)) return false;
    const std::int64_t bytes = programs_[peer].bytes_of(op(peer, *other).from);
    const double begin = std::max(times_[r][k].start, times_[peer][*other].start);
    return complete(times_[r][k], begin, message(bytes, peer, r));
  }

  double message(std::int64_t bytes, std::size_t from, std::size_t to) const {
    return cost::message_time(options_.system, {bytes}, Rank(from), Rank(to)).value;
  }

  PlainGroup group(std::size_t r, std::size_t k) const {
    if (!op(r, k).group.exists()) return {};
    const plan::flat::Group& flat = programs_[r].groups[op(r, k).group];
    PlainGroup plain{{}, flat.channel};
    for (std::int64_t i = 0; i < flat.ranks.size(); ++i) plain.first.push_back(flat.ranks[i].value);
    return plain;
  }

  bool complete_call(std::size_t r, std::size_t k) {
    const PlainGroup mine = group(r, k);
    const auto alike = [&](std::size_t rank, std::size_t at) { return group(rank, at) == mine; };
    const std::size_t n = number(r, k, alike);
    double begin = 0;
    for (const std::int32_t member : mine.first) {
      const auto rank = static_cast<std::size_t>(member);
      const auto at = nth(rank, n, alike);
      if (!at || !known(times_[rank][*at].start)) return false;
      begin = std::max(begin, times_[rank][*at].start);
    }
    return complete(times_[r][k], begin, alone(r, k));
  }

  // Its duration when it does not wait.
  double alone(std::size_t r, std::size_t k) const {
    const FlatOperation& o = op(r, k);
    const RankProgram& program = programs_[r];
    if (as<plan::Compute>(r, k) != nullptr) return o.source->work ? o.work.seconds : 0;
    if (as<plan::Copy>(r, k) != nullptr) {
      return cost::copy_time(options_.system, {program.bytes_of(o.from)}, plan::Memory::device,
                             plan::Memory::device)
          .value;
    }
    if (const auto* exchange = as<plan::Exchange>(r, k)) return exchanged(r, o, *exchange);
    const auto* collective = as<plan::Collective>(r, k);
    if (collective == nullptr) return 0;
    const auto& ranks = program.groups[o.group].ranks;
    const bool is_gather = collective->kind == CollectiveKind::all_gather;
    const auto& whole = is_gather ? o.to : o.from;
    return cost::collective_time(options_.system, collective->kind, {program.bytes_of(whole)},
                                 cost::rank_span(ranks))
        .value;
  }

  double exchanged(std::size_t r, const FlatOperation& o, const plan::Exchange& exchange) const {
    const plan::ExchangeTable& table = plan_.tables[exchange.table];
    const RankProgram& program = programs_[r];
    const std::size_t networks = options_.system.networks.size();
    std::vector<double> out(networks);
    std::vector<double> in(networks);
    std::vector<bool> used(networks);
    const auto count = [&](std::span<const plan::TableRow> rows, std::vector<double>& bytes,
                           plan::BufferId buffer) {
      for (const plan::TableRow& row : rows) {
        const bool mine = row.rank == static_cast<std::int32_t>(r) && row.peer != row.rank;
        const auto members =
            group(r, static_cast<std::size_t>(&o - program.operations.data())).first;
        if (!mine || std::ranges::find(members, row.peer) == members.end()) continue;
        std::size_t network = 0;  // blocks of `size` neighbours
        while (network + 1 < networks && row.rank / options_.system.networks[network].size !=
                                             row.peer / options_.system.networks[network].size) {
          ++network;
        }
        used[network] = true;
        bytes[network] += static_cast<double>(row.count * program.buffers[buffer].row_bytes);
      }
    };
    count(exchange.reversed ? table.receives() : table.sends(), out, o.from.buffer);
    count(exchange.reversed ? table.sends() : table.receives(), in, o.to.buffer);
    double longest = 0;
    for (std::size_t n = 0; n < networks; ++n) {
      const hardware::Network& network = options_.system.networks[n];
      if (!used[n]) continue;
      longest = std::max(longest, network.latency.value +
                                      std::max(out[n], in[n]) / network.bandwidth.bytes_per_second);
    }
    return longest;
  }

  const plan::Plan& plan_;
  const ReplayOptions& options_;
  std::vector<RankProgram> programs_;
  std::vector<std::vector<Times>> times_;
};

// ---- random plans

// All ranks are generated in one global order, so that the plan completes; then some lines are
// dropped or swapped, and it often deadlocks.
class RandomPlan {
 public:
  explicit RandomPlan(std::uint64_t seed) : random_(seed), ranks_(random_.between(1, 7)) {
    programs_.resize(ranks_);
  }

  std::string text() {
    for (std::int64_t k = random_.between(1, 25); k > 0; --k) happen();
    if (random_.chance()) spoil();
    std::string out = "mesh r=" + std::to_string(ranks_) + "\ntable t\n";
    for (std::int64_t k = random_.between(0, 9); k > 0; --k) {
      out += "  message " + any_rank() + " " + any_rank() + " 0 " + number(1, 8) + " 0\n";
    }
    for (std::size_t r = 0; r < programs_.size(); ++r) {
      out += "program p" + std::to_string(r) + " on r=" + std::to_string(r) +
             "\n  buffer x rows 8 row_bytes 10 u8\n  streams s, t\n";
      for (const Line& line : programs_[r]) out += to_text(line, programs_[r]);
    }
    return out;
  }

 private:
  struct Line {
    std::string name;
    std::string stream;
    std::string action;
    std::string more;  // `async`, `work`
    std::string members;
    std::vector<std::string> after;
  };

  std::string number(std::int64_t begin, std::int64_t end) {
    return std::to_string(random_.between(begin, end));
  }
  std::string any_rank() { return number(0, ranks_); }
  std::string rows() { return "x[0 +" + number(0, 9) + "]"; }

  // Leaves out references to operations that were dropped or now come later.
  static std::string to_text(const Line& line, const std::vector<Line>& program) {
    std::string text = "  " + line.name + ": " + line.stream + line.action;
    bool first = true;
    for (const std::string& name : line.after) {
      const auto target = std::ranges::find(program, name, &Line::name);
      if (target == program.end() || &*target >= &line) continue;
      text += (first ? " after " : ", ") + name;
      first = false;
    }
    return text + line.more + "\n" + line.members;
  }

  Line& add(const std::string& rank, const std::string& action) {
    std::vector<Line>& program = programs_[std::stoi(rank)];
    const std::vector<std::string> streams = {"", "", "@s ", "@t "};
    Line line{
        .name = "o" + std::to_string(names_++), .stream = random_.pick(streams), .action = action};
    for (std::int64_t k = random_.between(0, 3); k > 0 && !program.empty(); --k) {
      line.after.push_back(random_.pick(program).name);
    }
    program.push_back(line);
    return program.back();
  }
  void add_communication(const std::string& rank, const std::string& action) {
    Line& line = add(rank, action);
    if (random_.chance(0.3)) line.more = " async";
  }

  std::vector<std::string> some_ranks() {
    std::vector<std::string> all;
    for (std::int64_t r = 0; r < ranks_; ++r) all.push_back(std::to_string(r));
    random_.shuffle(all);
    all.resize(random_.between(1, ranks_ + 1));
    return all;
  }

  void happen() {
    switch (random_.between(0, 8)) {
      case 0:
      case 1:
        add(any_rank(), "compute c").more = " work 0.5 seconds times " + number(0, 20);
        break;
      case 2:
        add(any_rank(), random_.chance() ? "allocate x[0 +2]" : "free x[0 +2]");
        break;
      case 3:
        add_communication(any_rank(), "copy x[0 +3] to x[4 +3]");
        break;
      case 4:
      case 5:
        send();
        break;
      case 6:
        collective_call();
        break;
      default:
        batch();
    }
  }

  void send() {
    const std::string from = any_rank();
    const std::string to = any_rank();
    const std::string region = rows();
    const std::string key = random_.chance(0.3)   ? " tag 1"
                            : random_.chance(0.3) ? " channel c"
                                                  : "";
    add_communication(from, "send " + region + " to rank " + to + key);
    if (from == to) programs_[std::stoi(from)].back().more = " async";
    add_communication(to, "receive " + region + " from rank " + from + key);
  }

  std::string call(const std::vector<std::string>& members) {
    const std::vector<std::string> actions = {"all_reduce " + rows(),
                                              "all_gather x[0 +1] to " + rows(),
                                              "reduce_scatter " + rows() + " to x[0 +1]",
                                              "broadcast " + rows(),
                                              "barrier",
                                              "exchange x to x by t",
                                              "exchange x to x by t reversed"};
    std::string group = "ranks{";
    for (const std::string& rank : members) group += (group.back() == '{' ? "" : ", ") + rank;
    return random_.pick(actions) + " over " + group + (random_.chance(0.3) ? "}/c" : "}");
  }

  void collective_call() {
    const std::vector<std::string> members = some_ranks();
    const std::string action = call(members);
    for (const std::string& rank : members) add_communication(rank, action);
  }

  // A ring of messages, and perhaps a collective with it.
  void batch() {
    const std::vector<std::string> members = some_ranks();
    const std::string region = rows();
    const std::string both = random_.chance() ? "    " + call(members) + "\n" : "";
    for (std::size_t k = 0; k < members.size(); ++k) {
      const std::string& next = members[(k + 1) % members.size()];
      const std::string& last = members[(k + members.size() - 1) % members.size()];
      add_communication(members[k], "batch");
      programs_[std::stoi(members[k])].back().members = "    send " + region + " to rank " + next +
                                                        "\n    receive " + region + " from rank " +
                                                        last + "\n" + both + "  end\n";
    }
  }

  void spoil() {
    for (std::int64_t k = random_.between(1, 3); k > 0; --k) {
      std::vector<Line>& program = programs_[random_.between(0, ranks_)];
      if (program.size() < 2) continue;
      const std::int64_t at = random_.between(0, std::ssize(program) - 1);
      if (random_.chance(0.3)) {
        program.erase(program.begin() + at);
      } else {
        std::swap(program[at], program[static_cast<std::size_t>(at) + 1]);
      }
    }
  }

  Random random_;
  std::int64_t ranks_;
  std::vector<std::vector<Line>> programs_;
  std::int64_t names_ = 0;
};

// ---- the comparison

bool has_event(const plan::Operation& operation) {
  return !std::holds_alternative<plan::Batch>(operation.action) &&
         !std::holds_alternative<plan::Allocate>(operation.action) &&
         !std::holds_alternative<plan::Free>(operation.action);
}

bool has_problem(const Replay& replay, const std::string& code) {
  return std::ranges::find(replay.problems, code, &Diagnostic::code) != replay.problems.end();
}

// Returns whether the plan completed.
bool compare(const plan::Plan& plan, const ReplayOptions& options) {
  const Replay fast = replay(plan, options);
  ReferenceSolver solver(plan, options);
  const std::vector<std::vector<Times>> slow = solver.solve();
  bool stuck = false;
  double end = 0;
  for (std::size_t r = 0; r < slow.size(); ++r) {
    const RankProgram program = plan::expand(plan, Rank(r));
    std::size_t at = 0;
    const std::vector<trace::Event>& events = fast.trace.ranks[r].events;
    for (std::size_t k = 0; k < slow[r].size(); ++k) {
      if (!known(slow[r][k].complete)) {
        stuck = true;
        continue;
      }
      end = std::max(end, slow[r][k].complete);
      if (!has_event(*program.operations[k].source)) continue;
      if (at == events.size() || events[at].operation != static_cast<std::int32_t>(k)) {
        ADD_FAILURE() << "rank " << r << " lacks operation " << k;
        return !stuck;
      }
      EXPECT_DOUBLE_EQ(events[at].time.value, slow[r][k].begin) << "rank " << r << ", " << k;
      EXPECT_DOUBLE_EQ(events[at].end().value, slow[r][k].complete) << "rank " << r << ", " << k;
      ++at;
    }
    EXPECT_EQ(at, events.size()) << "rank " << r << " has events that cannot be";
  }
  EXPECT_EQ(has_problem(fast, "D630"), stuck);
  if (stuck) {
    const auto reported = std::ranges::find(fast.problems, "D630", &Diagnostic::code);
    EXPECT_EQ(reported->why.starts_with("wait cycle"), solver.has_cycle()) << reported->why;
  }
  EXPECT_DOUBLE_EQ(fast.end.value, end);
  return !stuck;
}

TEST(Replay, AgreesWithTryingTheEquationsUntilNothingChanges) {
  int completed = 0;
  int stuck = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::string text = "shiplap-plan 1\n" + RandomPlan(seed).text();
    const plan::Plan plan = plan::parse_text(text, "random.plan");
    const std::vector<std::int64_t> limits = {0, 40, 1000};
    const ReplayOptions options{.system = slow_system(), .eager_limit = {limits[seed % 3]}};
    ++(compare(plan, options) ? completed : stuck);
    if (testing::Test::HasFailure()) {
      FAIL() << text;
    }
  }
  EXPECT_GT(completed, 400);
  EXPECT_GT(stuck, 200);
}

TEST(Replay, GivesTheSameTwice) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const plan::Plan plan =
        plan::parse_text("shiplap-plan 1\n" + RandomPlan(seed).text(), "random.plan");
    const Replay first = replay(plan, {.system = slow_system()});
    const Replay second = replay(plan, {.system = slow_system()});
    EXPECT_EQ(first.trace, second.trace) << seed;
    EXPECT_EQ(first.problems, second.problems) << seed;
  }
}

}  // namespace
}  // namespace shiplap::sim
