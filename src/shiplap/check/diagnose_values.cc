// Findings about values: which statement fails, and which operation is the cause.
//
// Violations arrive in an order that the plan allows, so the first one is no consequence of
// another; the others become notes, one per code. To find the cause the plan is executed once more,
// with eager sends and with watches on the rows of the failed statements (ValueHistory): which
// operation wrote the wanted content, which one overwrote it before the read, and what each message
// carried. The answer selects the code: overwritten or freed too early (D735, D733), messages in
// the wrong order (D714), an outdated version (D748), another part (D744, D747, D749), an
// incomplete sum (D740, D741), or content that no rank computes (D750, D753).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "shiplap/check/diagnosis_internal.h"
#include "shiplap/check/value_tracker_internal.h"
#include "shiplap/plan/kernel.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMaxDetailed = 32;

bool is_read(const Violation& violation) {
  return violation.symptom == Symptom::read_mismatch ||
         violation.symptom == Symptom::read_uninitialized;
}

// Executes the plan once more and records which operation made and overwrote the rows that are
// wrong.
class ValueHistory {
 public:
  ValueHistory(Job& job, const std::vector<Violation>& violations)
      : job_(job), values_(job, ignored_) {
    std::vector<ValueTracker::Watch> watches;
    for (const Violation& violation : violations) {
      if (!is_read(violation) || watches.size() == kMaxDetailed) continue;
      watch_of_[{violation.place, violation.row_range.buffer, violation.row_range.begin}] =
          watches.size();
      watches.push_back({.script = job.script_of[violation.place.rank],
                         .row_range = violation.row_range,
                         .wanted = violation.wanted,
                         .first_row = violation.first_row,
                         .until = violation.place.operation});
    }
    values_.watch(std::move(watches));
    values_.keep_messages();
    plan::Execution(job_.linked, plan::kAllEager, &values_).run();
    for (const Script& script : job.scripts) {
      for (const Assertion& assertion : script.given) remember(script, assertion);
      for (const ScriptOp& op : script.ops) {
        for (const Assertion& assertion : script.assertions_of(op)) {
          if (assertion.kind != plan::Access::Kind::reads) remember(script, assertion);
        }
      }
    }
  }

  // Whether a rank computes any part of this instance.
  [[nodiscard]] bool makes_some(std::int32_t rank, const Content& wanted) const {
    const Script& script = job_.script(rank);
    for (const Assertion& assertion : script.assertions) {
      if (assertion.kind == plan::Access::Kind::reads) continue;
      for (const Piece& piece : script.pieces_of(assertion)) {
        const Content& content = job_.contents[piece.content];
        if (content.tensor == wanted.tensor && content.instance == wanted.instance) return true;
      }
    }
    return false;
  }

  // The operation of the rank that sent the content; none if no rank did.
  [[nodiscard]] OperationId source(const Violation& violation) const {
    if (violation.held.writer < 0) return {};
    const OperationId here{violation.place.rank, violation.held.writer};
    const ScriptOp& op = job_.op(here);
    if (op.action == ActionKind::receive) {
      const MessageQueue& key = job_.queues()[op.match.with];
      return {key.from, key.sends[op.match.n]};
    }
    const auto* collective = std::get_if<plan::Collective>(&op.source->action);
    if (collective == nullptr || collective->kind != CollectiveKind::all_gather) return {};
    const CallGroup& group = job_.groups[op.match.with];
    std::int32_t row = op.to.begin;
    const std::int32_t wanted = violation.row_range.begin + violation.first_row;
    for (const Member& member : group.members) {
      const auto slot = static_cast<std::size_t>(member.slot);
      const OperationId call{member.rank, group.calls(slot)[op.match.n]};
      const std::int32_t script = group.scripts[slot];
      row += job_.scripts[script][call.operation].from.count;
      if (wanted < row) return call;
    }
    return {};
  }

  // The operation that overwrote it before it was read; -1: none.
  [[nodiscard]] std::int32_t lost_by(const Violation& violation) const {
    const auto found =
        watch_of_.find({violation.place, violation.row_range.buffer, violation.row_range.begin});
    return found == watch_of_.end() ? -1 : values_.watches()[found->second].lost_by;
  }

  struct Made {
    bool cells = false;  // some rank computes these cells
    Box sums;            // the contributions to them, by dimension
  };
  [[nodiscard]] Made made(const Content& wanted) const {
    const auto found = made_.find({wanted.tensor.value, wanted.instance, wanted.is_new});
    if (found == made_.end()) return {};
    Made result;
    Boxes boxes;
    for (const ContentId id : found->second) {
      const Content& content = job_.contents[id];
      if (!overlap(wanted, content)) continue;
      result.cells = true;
      for (const Box& box : job_.contents.sums()[content.sum]) {
        const auto count = static_cast<std::ptrdiff_t>(job_.contents.tensor(wanted).sum.size());
        boxes.emplace_back(box.end() - count, box.end());  // without the cell of a row
      }
    }
    result.sums = bounding_box(boxes);
    return result;
  }

  // If the content was received and another message of the same queue carried the wanted one: both
  // sends, in program order.
  [[nodiscard]] std::vector<OperationId> exchanged(const Violation& violation) const {
    if (violation.held.writer < 0) return {};
    const ScriptOp& op = job_.op({violation.place.rank, violation.held.writer});
    if (op.action != ActionKind::receive) return {};
    const MessageQueue& key = job_.queues()[op.match.with];
    for (std::size_t n = 0; n < key.sends.size(); ++n) {
      if (static_cast<std::int32_t>(n) == op.match.n) continue;
      const bool carries = std::ranges::any_of(values_.carried(key, n), [&](const Piece& piece) {
        return piece.rows == violation.wanted.rows && job_.contents.same(piece, violation.wanted);
      });
      if (!carries) continue;
      const OperationId a{key.from, key.sends[op.match.n]};
      const OperationId b{key.from, key.sends[n]};
      return {std::min(a, b), std::max(a, b)};
    }
    return {};
  }

 private:
  void remember(const Script& script, const Assertion& assertion) {
    for (const Piece& piece : script.pieces_of(assertion)) {
      const Content& content = job_.contents[piece.content];
      made_[{content.tensor.value, content.instance, content.is_new}].insert(piece.content);
    }
  }

  [[nodiscard]] bool overlap(const Content& a, const Content& b) const {
    const auto count = static_cast<std::int32_t>(job_.contents.tensor(a).part.size());
    for (std::int32_t k = 0; k < count; ++k) {
      if (!job_.contents.coordinates(a, k).overlaps(job_.contents.coordinates(b, k))) return false;
    }
    return true;
  }

  Job& job_;
  std::vector<Violation> ignored_;
  ValueTracker values_;
  std::map<std::tuple<OperationId, std::int32_t, std::int32_t>, std::size_t> watch_of_;
  std::map<std::tuple<std::int32_t, std::int64_t, bool>, std::set<ContentId>> made_;
};

class ValueDiagnosis {
 public:
  ValueDiagnosis(Job& job, const std::vector<Violation>& violations)
      : job_(job), formatter_(job), history_(job, violations) {}

  // Returns one finding for the first violation, with a note for each other code.
  std::vector<Finding> diagnose(const std::vector<Violation>& violations) {
    std::vector<Finding> all;
    for (const Violation& violation : violations) {
      if (all.size() < kMaxDetailed) all.push_back(diagnose_one(violation));
    }
    Finding finding = all.front();
    finding.folded = std::ssize(violations) - 1;
    if (finding.diagnostic.code == "D741" || finding.diagnostic.code == "D745") {
      finding.diagnostic.why += other_gradients(violations);
    }
    std::set<std::string> reported{finding.diagnostic.code};
    for (const Finding& other : all) {
      if (other.diagnostic.code == finding.diagnostic.code && finding.witness.size() < 16 &&
          std::ranges::find(finding.witness, other.place) == finding.witness.end()) {
        finding.witness.push_back(other.place);
      }
      if (!reported.insert(other.diagnostic.code).second) continue;
      finding.notes.push_back(as_note(other.diagnostic));
    }
    return {std::move(finding)};
  }

 private:
  // "; also wrong: G_mlp, G_norms": one layer's or all of them, which tells their causes apart.
  [[nodiscard]] std::string other_gradients(const std::vector<Violation>& violations) const {
    constexpr std::size_t kMaxNamed = 6;
    const auto tensor_of = [&](const Violation& violation) -> const plan::Tensor& {
      return job_.contents.tensor(job_.contents[violation.wanted.content]);
    };
    std::set<std::string> names;
    for (const Violation& violation : violations) {
      if (!is_read(violation) || tensor_of(violation).kind != "WeightGrad") continue;
      names.insert(tensor_of(violation).name);
    }
    if (is_read(violations.front())) names.erase(tensor_of(violations.front()).name);
    if (names.empty()) return "";
    std::string text = "; also wrong: ";
    std::size_t named = 0;
    for (const std::string& name : names) {
      if (named == kMaxNamed) return text + fmt::format(" and {} more", names.size() - named);
      text += (named++ == 0 ? "" : ", ") + name;
    }
    return text;
  }

  Finding start(const Violation& violation, std::string code) {
    return start(violation, std::move(code), violation.place);
  }
  Finding start(const Violation& violation, std::string code, OperationId place) {
    Finding finding = finding_at(formatter_, place, {.code = std::move(code)});
    finding.witness = {place};
    for (const OperationId& other : {violation.place, violation.other}) {
      if (other.exists() && other.operation >= 0 && other != place)
        finding.witness.push_back(other);
    }
    return finding;
  }

  Finding diagnose_one(const Violation& violation) {
    switch (violation.symptom) {
      case Symptom::invalid_operation: {
        Finding finding = start(violation, violation.code);
        finding.diagnostic.what = violation.what;
        finding.diagnostic.why = violation.why;
        finding.diagnostic.help = violation.help;
        return finding;
      }
      case Symptom::bad_lifetime:
        return bad_lifetime(violation);
      case Symptom::leak:
        return leaked(violation);
      case Symptom::add_duplicate:
        return twice(violation);
      case Symptom::add_different:
      case Symptom::add_scale_mismatch:
      case Symptom::add_uninitialized:
        return union_of(violation);
      case Symptom::exchange_overlap: {
        Finding finding = start(violation, "D731");
        finding.diagnostic.what = fmt::format(
            "two messages of one exchange write {} of rank {}",
            formatter_.row_range(violation.place.rank, violation.row_range), violation.place.rank);
        finding.diagnostic.why = "without `add` the later one replaces the earlier";
        finding.diagnostic.help = "add them, or send them to separate rows";
        return finding;
      }
      default:
        return read_mismatch(violation);
    }
  }

  Finding bad_lifetime(const Violation& violation) {
    Finding finding = start(violation, "D733");
    Diagnostic& diagnostic = finding.diagnostic;
    const std::string rows = formatter_.row_range(violation.place.rank, violation.row_range);
    const bool freed = violation.held.state == RowState::unallocated && violation.held.writer >= 0;
    if (violation.held.state != RowState::unallocated) {
      diagnostic.what = fmt::format("{} is allocated again while it is in use", rows);
      diagnostic.help = "free it first";
      return finding;
    }
    diagnostic.what =
        fmt::format("{} is used {}", rows, freed ? "after it was freed" : "before it is allocated");
    if (freed) {
      const std::string by = formatter_.operation({violation.place.rank, violation.held.writer});
      diagnostic.why = fmt::format("`{}` freed it", by);
    }
    diagnostic.help = freed ? "free it later" : "allocate it first";
    return finding;
  }

  Finding leaked(const Violation& violation) {
    Finding finding = start(violation, "D734");
    Diagnostic& diagnostic = finding.diagnostic;
    const bool used = violation.other.operation >= 0;
    diagnostic.what = fmt::format("memory leak: {} is not freed by the end of the step",
                                  formatter_.row_range(violation.place.rank, violation.row_range));
    diagnostic.why = "every step allocates it again";
    diagnostic.help = used ? fmt::format("free it after `{}`, its last use",
                                         formatter_.operation(violation.other))
                           : "free it, or do not allocate it";
    return finding;
  }

  Finding twice(const Violation& violation) {
    Finding finding = start(violation, "D742");
    Diagnostic& diagnostic = finding.diagnostic;
    const std::string tensor = formatter_.tensor(violation.wanted);
    const Content& wanted = job_.contents[violation.wanted.content];
    const Boxes common =
        job_.contents.sums().common(wanted.sum, job_.contents[violation.held.content].sum);
    diagnostic.what = job_.contents.tensor(wanted).sum.empty()
                          ? fmt::format("`{}` is not a sum, but is added to", tensor)
                          : fmt::format("{} of `{}` is counted twice",
                                        formatter_.boxes(violation.wanted, common), tensor);
    diagnostic.why = fmt::format("{} is added to {}", formatter_.content(violation.wanted),
                                 formatter_.content(violation.held));
    if (violation.other.exists() && violation.other.rank != violation.place.rank) {
      diagnostic.why += fmt::format("; ranks {} and {} both contribute it", violation.place.rank,
                                    violation.other.rank);
    }
    diagnostic.help = "add every contribution once";
    return finding;
  }

  Finding union_of(const Violation& violation) {
    const bool other = violation.symptom == Symptom::add_different;
    const bool scale = violation.symptom == Symptom::add_scale_mismatch;
    Finding finding = start(violation, other ? "D743" : scale ? "D745" : "D732");
    Diagnostic& diagnostic = finding.diagnostic;
    const std::string one = formatter_.content(violation.wanted);
    const std::string two = formatter_.content(violation.held);
    if (other) {
      diagnostic.what = fmt::format("different values are summed: {} and {}", one, two);
      diagnostic.why = "only equal parts of one tensor can be summed";
      diagnostic.help = "gather different parts; reduce contributions to one part";
    } else if (scale) {
      diagnostic.what = fmt::format("{} is added to {}", two, one);
      diagnostic.why = "their scales differ: one was reduced and scaled already";
      diagnostic.help = "scale once, after all contributions are added";
    } else {
      diagnostic.what = fmt::format("an operation adds to {} of rank {}, which is uninitialized",
                                    formatter_.row_range(violation.place.rank, violation.row_range),
                                    violation.place.rank);
      diagnostic.why = "a sum starts at zero, which an operation must write";
      diagnostic.help = "run `compute zero` first, or write instead of adding";
    }
    return finding;
  }

  // A statement that fails.
  Finding read_mismatch(const Violation& violation) {
    const Content wanted = job_.contents[violation.wanted.content];
    const bool stated = violation.held.state == RowState::known;
    if (stated && only_scale_differs(wanted, job_.contents[violation.held.content])) {
      return scale(violation);
    }
    const std::int32_t lost = history_.lost_by(violation);
    if (lost >= 0) return overwritten(violation, lost);
    const std::vector<OperationId> swapped = history_.exchanged(violation);
    if (!swapped.empty()) return messages(violation, swapped);
    if (is_unknown(violation.held.state)) return unknown(violation);
    if (stated) {
      const Content held = job_.contents[violation.held.content];
      if (wanted.tensor == held.tensor && wanted.instance == held.instance) {
        if (wanted.is_new != held.is_new) return stale(violation);
        if (!same_cells(wanted, held)) return other_part(violation, wanted);
        return sum(violation, wanted, held);
      }
    }
    return absent(violation, wanted);
  }

  [[nodiscard]] bool only_scale_differs(const Content& a, const Content& b) const {
    return a.tensor == b.tensor && a.instance == b.instance && a.is_new == b.is_new &&
           same_cells(a, b) && job_.contents.sums().same(a.sum, b.sum);
  }
  [[nodiscard]] bool same_cells(const Content& a, const Content& b) const {
    return std::ranges::equal(job_.contents.runs(a), job_.contents.runs(b)) && a.first == b.first;
  }

  [[nodiscard]] std::string state_of(const Violation& violation) {
    std::string text = fmt::format("{} of rank {} holds {}",
                                   formatter_.row_range(violation.place.rank, violation.row_range),
                                   violation.place.rank, formatter_.content(violation.held));
    if (violation.held.writer >= 0) {
      text += fmt::format(", written by `{}`",
                          formatter_.operation({violation.place.rank, violation.held.writer}));
    }
    return text;
  }
  [[nodiscard]] std::string reader(const Violation& violation) {
    return violation.place.operation < 0
               ? fmt::format("at the end of the step rank {} needs", violation.place.rank)
               : fmt::format("`{}` of rank {} reads", formatter_.operation(violation.place),
                             violation.place.rank);
  }

  Finding messages(const Violation& violation, const std::vector<OperationId>& sends) {
    Finding finding = start(violation, "D714", sends.front());
    Diagnostic& diagnostic = finding.diagnostic;
    diagnostic.what =
        fmt::format("rank {} sends `{}` and `{}` in a different order than rank {} receives them",
                    sends.front().rank, formatter_.operation(sends.front()),
                    formatter_.operation(sends.back()), violation.place.rank);
    diagnostic.why = fmt::format("{} {}, but {}", reader(violation),
                                 formatter_.content(violation.wanted), state_of(violation));
    diagnostic.help = "swap the two, or give them different tags";
    finding.witness = {sends.front(), sends.back(), violation.place};
    return finding;
  }

  Finding overwritten(const Violation& violation, std::int32_t by) {
    const OperationId place{violation.place.rank, by};
    const bool frees =
        job_.op(place).action == ActionKind::free || job_.op(place).action == ActionKind::allocate;
    Finding finding = start(violation, frees ? "D733" : "D735", place);
    Diagnostic& diagnostic = finding.diagnostic;
    diagnostic.what = fmt::format(
        "`{}` of rank {} {} {}, which is still needed", formatter_.operation(place), place.rank,
        frees ? "frees" : "overwrites", formatter_.content(violation.wanted));
    diagnostic.why = fmt::format("{} it later from {}", reader(violation),
                                 formatter_.row_range(place.rank, violation.row_range));
    diagnostic.help = "use other rows, or do it after the last read";
    return finding;
  }

  Finding unknown(const Violation& violation) {
    Finding finding = start(violation, "D746");
    const char* why = "those rows do not hold a sum";
    const char* help = "reduce with `sum`";
    if (violation.held.state == RowState::leftover) {
      why = "this rank has no result in those rows";
      help =
          "read it where the result is: on the root of a `reduce`, in the rank's own piece of a "
          "`reduce_scatter`; or give the call separate rows for the result";
    } else if (violation.held.state == RowState::overflow) {
      why = "its scale is unknown";
      help = "scale by ratios of smaller numbers";
    }
    finding.diagnostic.what =
        fmt::format("{} {}, but {}", reader(violation), formatter_.content(violation.wanted), why);
    finding.diagnostic.why = state_of(violation);
    finding.diagnostic.help = help;
    return finding;
  }

  Finding stale(const Violation& violation) {
    const bool old = job_.contents[violation.wanted.content].is_new;
    Finding finding = start(violation, old ? "D748" : "D735");
    Diagnostic& diagnostic = finding.diagnostic;
    const bool updated = history_.made(job_.contents[violation.wanted.content]).cells;
    diagnostic.what =
        fmt::format("{} {}, and has {}", reader(violation), formatter_.content(violation.wanted),
                    formatter_.content(violation.held));
    diagnostic.why = !old      ? state_of(violation)
                     : updated ? "it is updated, but not sent to this rank"
                               : "no rank updates it";
    diagnostic.help = !old      ? "update it after the last read of the old version"
                      : updated ? "gather or broadcast it after the update"
                                : "update it";
    return finding;
  }

  Finding other_part(const Violation& violation, const Content& wanted) {
    const plan::Tensor& tensor = job_.contents.tensor(wanted);
    const bool goal = violation.place.operation < 0;
    const auto* compute =
        goal ? nullptr : std::get_if<plan::Compute>(&job_.op(violation.place).source->action);
    const bool update = compute != nullptr && compute->kernel == plan::kUpdateKernel;
    Finding finding = start(violation, update                         ? "D749"
                                       : tensor.kind == plan::kWeight ? "D747"
                                                                      : "D744");
    Diagnostic& diagnostic = finding.diagnostic;
    diagnostic.what =
        fmt::format("{} {}, and finds {}", reader(violation), formatter_.content(violation.wanted),
                    formatter_.content(violation.held));
    diagnostic.why = state_of(violation);
    diagnostic.help = update ? "update the part that this rank owns"
                      : tensor.kind == plan::kWeight
                          ? "gather it from the ranks that have the other parts"
                          : "write the wanted part to these rows, or read the part that they hold";
    const bool is_reordered =
        formatter_.content(violation.wanted) == formatter_.content(violation.held) &&
        formatter_.order(violation.wanted) != formatter_.order(violation.held);
    if (is_reordered) {
      diagnostic.what = fmt::format("{} {}, and finds its cells in a different order",
                                    reader(violation), formatter_.content(violation.wanted));
      diagnostic.why =
          fmt::format("stated: by {}; found: by {}", formatter_.order(violation.wanted),
                      formatter_.order(violation.held));
      diagnostic.help = "use one order of the dimensions";
    }
    return finding;
  }

  Finding sum(const Violation& violation, const Content& wanted, const Content& held) {
    const Sums& sums = job_.contents.sums();
    const auto [found, is_new] =
        missing_contributions_.try_emplace({wanted.tensor, wanted.sum, held.sum});
    MissingContributions& contributions = found->second;
    if (is_new) {
      const Boxes boxes = sums.missing(wanted.sum, held.sum);
      contributions = {bounding_box(boxes), formatter_.boxes(violation.wanted, boxes),
                       share_of(boxes, sums[wanted.sum])};
    }
    const std::string tensor = formatter_.tensor(violation.wanted);
    if (contributions.text.empty()) {
      Finding finding = start(violation, "D742");
      finding.diagnostic.what =
          fmt::format("`{}` has extra {}", tensor,
                      formatter_.boxes(violation.wanted, sums.missing(held.sum, wanted.sum)));
      finding.diagnostic.why = state_of(violation);
      finding.diagnostic.help = "leave out the contributions of other ranks";
      return finding;
    }
    // If other ranks have the missing contributions, only a reduction is missing.
    const Box& missing = contributions.bounding_box;
    const Box made = history_.made(wanted).sums;
    bool elsewhere = !made.empty();
    const std::size_t first = missing.size() - std::min(missing.size(), made.size());
    for (std::size_t k = first; k < missing.size() && elsewhere; ++k) {
      elsewhere = made[k - first].set.includes(missing[k].set);
    }
    const bool goal = violation.place.operation < 0;
    const bool gradient = job_.contents.tensor(wanted).kind == "WeightGrad";
    Finding finding = start(violation, elsewhere && !goal && !gradient ? "D740" : "D741");
    Diagnostic& diagnostic = finding.diagnostic;
    diagnostic.what = fmt::format("{} `{}`, which is missing {}{}", reader(violation), tensor,
                                  contributions.text, contributions.share);
    diagnostic.why = state_of(violation);
    diagnostic.help = elsewhere ? "reduce it over the ranks that have the rest"
                                : "compute the missing contributions: no rank does";
    return finding;
  }

  [[nodiscard]] static std::string share_of(const Boxes& missing, const Boxes& all) {
    const std::optional<std::int64_t> part = points_in(missing);
    const std::optional<std::int64_t> whole = points_in(all);
    if (!part || !whole || *part == 0 || *part == *whole) return "";
    const plan::Ratio share(*part, *whole);
    return fmt::format(", {}/{} of the sum", share.numerator(), share.denominator());
  }

  Finding scale(const Violation& violation) {
    Finding finding = start(violation, "D745");
    finding.diagnostic.what = fmt::format(
        "{} {} at scale {}, and finds it at {}: {}", reader(violation),
        formatter_.tensor(violation.wanted), formatter_.scale(violation.wanted),
        formatter_.scale(violation.held), formatter_.factor(violation.held, violation.wanted));
    finding.diagnostic.why = state_of(violation);
    finding.diagnostic.help = "scale it once: in the reduction, or with `compute scale`";
    return finding;
  }

  // The rows hold something else, or are uninitialized.
  Finding absent(const Violation& violation, const Content& wanted) {
    const std::string& kind = job_.contents.tensor(wanted).kind;
    const ValueHistory::Made made = history_.made(wanted);
    const bool goal = violation.place.operation < 0;
    const bool nothing = violation.held.state == RowState::uninitialized;
    const bool moves = kind == "Activation" || kind == "ActivationGrad";
    const OperationId source = history_.source(violation);
    const std::int32_t maker = source.exists() ? source.rank : violation.place.rank;
    const bool known = source.exists() && job_.script_of[maker] >= 0;
    std::string code = nothing ? "D732" : "D744";
    std::string help = "write it before, or read what these rows hold";
    if (kind == plan::kWeight && made.cells) {
      code = goal ? "D748" : "D747";
      help = "gather it from the ranks that have it";
    } else if (goal && made.cells) {
      code = "D756";
      help = "send it to this rank";
    } else if (moves && !made.cells &&
               !history_.makes_some(known ? maker : violation.place.rank, wanted)) {
      code = "D750";
      help = fmt::format("compute `{}` somewhere", formatter_.tensor(violation.wanted));
    } else if (!made.cells && moves) {
      code = "D753";
      help = "compute it for these samples too";
    }
    Finding finding = start(violation, code, nothing && known ? source : violation.place);
    Diagnostic& diagnostic = finding.diagnostic;
    diagnostic.what =
        fmt::format("{} {}{}", reader(violation), formatter_.content(violation.wanted),
                    code == "D750"   ? ", a layer that no rank computes"
                    : code == "D753" ? ", which no rank computes"
                                     : ", and finds " + formatter_.content(violation.held));
    diagnostic.why = state_of(violation);
    if (nothing && known)
      diagnostic.why += fmt::format("; it comes from {}", formatter_.at(source));
    diagnostic.help = help;
    return finding;
  }

  Job& job_;
  Formatter formatter_;
  ValueHistory history_;
  struct MissingContributions {
    Box bounding_box;
    std::string text;   // empty: none
    std::string share;  // ", 1/2 of the sum"; empty if all, or too many to count
  };
  // By tensor, wanted sum, held sum.
  std::map<std::tuple<plan::TensorId, SumId, SumId>, MissingContributions> missing_contributions_;
};

}  // namespace

std::vector<Finding> diagnose_values(Job& job, const std::vector<Violation>& violations) {
  if (violations.empty()) return {};
  return ValueDiagnosis(job, violations).diagnose(violations);
}

}  // namespace shiplap::check
