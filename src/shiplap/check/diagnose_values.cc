// What is wrong with the values: which statement fails, and which operation made it fail.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "shiplap/check/diagnosis_internal.h"
#include "shiplap/check/values_internal.h"
#include "shiplap/plan/kernel.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMostLookedInto = 32;

bool is_read(const Trouble& trouble) {
  return trouble.symptom == Symptom::read_other || trouble.symptom == Symptom::read_nothing;
}

// Who makes what, and what became of it: the plan is followed once more, with an eye on the rows
// that were wrong.
class History {
 public:
  History(Job& job, const std::vector<Trouble>& troubles) : job_(job), values_(job, ignored_) {
    std::vector<Values::Watch> watches;
    for (const Trouble& trouble : troubles) {
      if (!is_read(trouble) || watches.size() == kMostLookedInto) continue;
      watch_of_[{trouble.place, trouble.zone.buffer, trouble.zone.begin}] = watches.size();
      watches.push_back({.script = job.script_of[trouble.place.rank],
                         .zone = trouble.zone,
                         .wanted = trouble.wanted,
                         .first_row = trouble.first_row,
                         .until = trouble.place.operation});
    }
    values_.watch(std::move(watches));
    values_.keep_messages();
    plan::Execution(job_.linked, plan::kAllEager, &values_).run();
    for (const Script& script : job.scripts) {
      for (const Claim& claim : script.given) remember(script, claim);
      for (const Op& op : script.ops) {
        for (const Claim& claim : script.claims_of(op)) {
          if (claim.kind != plan::Access::Kind::reads) remember(script, claim);
        }
      }
    }
  }

  // Whether a rank makes any of an instance.
  [[nodiscard]] bool makes_some(std::int32_t rank, const Content& wanted) const {
    const Script& script = job_.script(rank);
    for (const Claim& claim : script.claims) {
      if (claim.kind == plan::Access::Kind::reads) continue;
      for (const Piece& piece : script.pieces_of(claim)) {
        const Content& content = job_.contents[piece.content];
        if (content.tensor == wanted.tensor && content.instance == wanted.instance) return true;
      }
    }
    return false;
  }

  // Whence it came: the operation of the rank that moved it here, or none.
  [[nodiscard]] Place source(const Trouble& trouble) const {
    if (trouble.held.writer < 0) return {};
    const Place here{trouble.place.rank, trouble.held.writer};
    const Op& op = job_.op(here);
    if (op.act == Act::receive) {
      const MessageQueue& key = job_.queues()[op.match.with];
      return {key.from, key.sends[op.match.n]};
    }
    const auto* collective = std::get_if<plan::Collective>(&op.source->action);
    if (collective == nullptr || collective->kind != CollectiveKind::all_gather) return {};
    const CallGroup& group = job_.groups[op.match.with];
    std::int32_t row = op.to.begin;
    const std::int32_t wanted = trouble.zone.begin + trouble.first_row;
    for (const Member& member : group.members) {
      const auto slot = static_cast<std::size_t>(member.slot);
      const Place call{member.rank, group.calls(slot)[op.match.n]};
      const std::int32_t script = group.scripts[slot];
      row += job_.scripts[script][call.operation].from.count;
      if (wanted < row) return call;
    }
    return {};
  }

  // Who overwrote it before it was read; -1: nobody.
  [[nodiscard]] std::int32_t lost_by(const Trouble& trouble) const {
    const auto found = watch_of_.find({trouble.place, trouble.zone.buffer, trouble.zone.begin});
    return found == watch_of_.end() ? -1 : values_.watches()[found->second].lost_by;
  }

  struct Made {
    bool cells = false;  // these very cells
    Box sums;            // what contributions to them, by dimension
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
    result.sums = outline(boxes);
    return result;
  }

  // If what lies there came in a message and another of the same key carried what should lie there:
  // both sends, in the order of the program.
  [[nodiscard]] std::vector<Place> exchanged(const Trouble& trouble) const {
    if (trouble.held.writer < 0) return {};
    const Op& op = job_.op({trouble.place.rank, trouble.held.writer});
    if (op.act != Act::receive) return {};
    const MessageQueue& key = job_.queues()[op.match.with];
    for (std::size_t n = 0; n < key.sends.size(); ++n) {
      if (static_cast<std::int32_t>(n) == op.match.n) continue;
      const bool carries = std::ranges::any_of(values_.carried(key, n), [&](const Piece& piece) {
        return piece.rows == trouble.wanted.rows && job_.contents.same(piece, trouble.wanted);
      });
      if (!carries) continue;
      const Place a{key.from, key.sends[op.match.n]};
      const Place b{key.from, key.sends[n]};
      return {std::min(a, b), std::max(a, b)};
    }
    return {};
  }

 private:
  void remember(const Script& script, const Claim& claim) {
    for (const Piece& piece : script.pieces_of(claim)) {
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
  std::vector<Trouble> ignored_;
  Values values_;
  std::map<std::tuple<Place, std::int32_t, std::int32_t>, std::size_t> watch_of_;
  std::map<std::tuple<std::int32_t, std::int64_t, bool>, std::set<ContentId>> made_;
};

class Diagnosis {
 public:
  Diagnosis(Job& job, const std::vector<Trouble>& troubles)
      : job_(job), words_(job), history_(job, troubles) {}

  // The first in an order that the plan allows is no consequence of another. What came later is
  // told in a line for each code.
  std::vector<Finding> diagnose(const std::vector<Trouble>& troubles) {
    std::vector<Finding> all;
    for (const Trouble& trouble : troubles) {
      if (all.size() < kMostLookedInto) all.push_back(of(trouble));
    }
    Finding finding = all.front();
    finding.folded = std::ssize(troubles) - 1;
    std::set<std::string> said{finding.diagnostic.code};
    for (const Finding& other : all) {
      if (other.diagnostic.code == finding.diagnostic.code && finding.witness.size() < 16 &&
          std::ranges::find(finding.witness, other.place) == finding.witness.end()) {
        finding.witness.push_back(other.place);
      }
      if (!said.insert(other.diagnostic.code).second) continue;
      finding.notes.push_back(as_note(other.diagnostic));
    }
    return {std::move(finding)};
  }

 private:
  Finding start(const Trouble& trouble, std::string code) {
    return start(trouble, std::move(code), trouble.place);
  }
  Finding start(const Trouble& trouble, std::string code, Place place) {
    Finding finding = finding_at(words_, place, {.code = std::move(code)});
    finding.witness = {place};
    for (const Place& other : {trouble.place, trouble.other}) {
      if (other.exists() && other.operation >= 0 && other != place)
        finding.witness.push_back(other);
    }
    return finding;
  }

  Finding of(const Trouble& trouble) {
    switch (trouble.symptom) {
      case Symptom::law: {
        Finding finding = start(trouble, trouble.code);
        finding.diagnostic.what = trouble.what;
        finding.diagnostic.why = trouble.why;
        finding.diagnostic.help = trouble.help;
        return finding;
      }
      case Symptom::read_dead:
        return dead(trouble);
      case Symptom::not_freed:
        return leaked(trouble);
      case Symptom::unite_twice:
        return twice(trouble);
      case Symptom::unite_other:
      case Symptom::unite_scale:
      case Symptom::unite_nothing:
        return union_of(trouble);
      case Symptom::overlap: {
        Finding finding = start(trouble, "D731");
        finding.diagnostic.what =
            fmt::format("two messages of one exchange write {} of rank {}",
                        words_.zone(trouble.place.rank, trouble.zone), trouble.place.rank);
        finding.diagnostic.why = "without `add` the later one replaces the earlier";
        finding.diagnostic.help = "add them up, or send them to rows of their own";
        return finding;
      }
      default:
        return read(trouble);
    }
  }

  Finding dead(const Trouble& trouble) {
    Finding finding = start(trouble, "D733");
    Diagnostic& said = finding.diagnostic;
    const std::string rows = words_.zone(trouble.place.rank, trouble.zone);
    const bool freed = trouble.held.nature == Nature::dead && trouble.held.writer >= 0;
    if (trouble.held.nature != Nature::dead) {
      said.what = fmt::format("{} is allocated again while it is in use", rows);
      said.help = "free it first";
      return finding;
    }
    said.what =
        fmt::format("{} is used {}", rows, freed ? "after it was freed" : "before it is allocated");
    if (freed) {
      const std::string by = words_.operation({trouble.place.rank, trouble.held.writer});
      said.why = fmt::format("`{}` freed it", by);
    }
    said.help = freed ? "free it later" : "allocate it first";
    return finding;
  }

  Finding leaked(const Trouble& trouble) {
    Finding finding = start(trouble, "D734");
    Diagnostic& said = finding.diagnostic;
    const bool used = trouble.other.operation >= 0;
    said.what = fmt::format("{} is allocated, and not freed by the end of the step",
                            words_.zone(trouble.place.rank, trouble.zone));
    said.why = "the next step allocates it again: memory is lost in every step";
    said.help =
        used ? fmt::format("free it after `{}`, its last use", words_.operation(trouble.other))
             : "free it, or do not allocate it";
    return finding;
  }

  Finding twice(const Trouble& trouble) {
    Finding finding = start(trouble, "D742");
    Diagnostic& said = finding.diagnostic;
    const std::string tensor = words_.tensor(trouble.wanted);
    const Content& wanted = job_.contents[trouble.wanted.content];
    const Boxes common =
        job_.contents.sums().common(wanted.sum, job_.contents[trouble.held.content].sum);
    said.what = job_.contents.tensor(wanted).sum.empty()
                    ? fmt::format("`{}` is no sum, and is added up", tensor)
                    : fmt::format("{} of `{}` is counted twice",
                                  words_.boxes(trouble.wanted, common), tensor);
    said.why = fmt::format("{} is united with {}", words_.content(trouble.wanted),
                           words_.content(trouble.held));
    if (trouble.other.exists() && trouble.other.rank != trouble.place.rank) {
      said.why +=
          fmt::format("; ranks {} and {} both bring it", trouble.place.rank, trouble.other.rank);
    }
    said.help = "add every contribution once";
    return finding;
  }

  Finding union_of(const Trouble& trouble) {
    const bool other = trouble.symptom == Symptom::unite_other;
    const bool scale = trouble.symptom == Symptom::unite_scale;
    Finding finding = start(trouble, other ? "D743" : scale ? "D745" : "D732");
    Diagnostic& said = finding.diagnostic;
    const std::string one = words_.content(trouble.wanted);
    const std::string two = words_.content(trouble.held);
    if (other) {
      said.what = fmt::format("different things are summed: {} and {}", one, two);
      said.why = "only equal parts of one tensor can be summed";
      said.help = "gather what are different parts; reduce what are contributions to one";
    } else if (scale) {
      said.what = fmt::format("{} is added to {}", two, one);
      said.why = "their scales differ: one was reduced and scaled already";
      said.help = "scale once, when all contributions are there";
    } else {
      said.what = fmt::format("something is added to {} of rank {}, which was never written",
                              words_.zone(trouble.place.rank, trouble.zone), trouble.place.rank);
      said.why = "a sum begins at zero, and somebody must write that";
      said.help = "`compute zero` first, or write instead of adding";
    }
    return finding;
  }

  // A statement that fails.
  Finding read(const Trouble& trouble) {
    const Content wanted = job_.contents[trouble.wanted.content];
    const bool stated = trouble.held.nature == Nature::stated;
    if (stated && only_scale_differs(wanted, job_.contents[trouble.held.content])) {
      return scale(trouble);
    }
    const std::int32_t lost = history_.lost_by(trouble);
    if (lost >= 0) return overwritten(trouble, lost);
    const std::vector<Place> swapped = history_.exchanged(trouble);
    if (!swapped.empty()) return messages(trouble, swapped);
    if (is_unknown(trouble.held.nature)) return unknown(trouble);
    if (stated) {
      const Content held = job_.contents[trouble.held.content];
      if (wanted.tensor == held.tensor && wanted.instance == held.instance) {
        if (wanted.is_new != held.is_new) return stale(trouble);
        if (!same_cells(wanted, held)) return other_part(trouble, wanted);
        return sum(trouble, wanted, held);
      }
    }
    return absent(trouble, wanted);
  }

  [[nodiscard]] bool only_scale_differs(const Content& a, const Content& b) const {
    return a.tensor == b.tensor && a.instance == b.instance && a.is_new == b.is_new &&
           same_cells(a, b) && job_.contents.sums().same(a.sum, b.sum);
  }
  [[nodiscard]] bool same_cells(const Content& a, const Content& b) const {
    return std::ranges::equal(job_.contents.runs(a), job_.contents.runs(b)) && a.first == b.first;
  }

  [[nodiscard]] std::string state_of(const Trouble& trouble) {
    std::string text =
        fmt::format("{} of rank {} holds {}", words_.zone(trouble.place.rank, trouble.zone),
                    trouble.place.rank, words_.content(trouble.held));
    if (trouble.held.writer >= 0) {
      text += fmt::format(", put there by `{}`",
                          words_.operation({trouble.place.rank, trouble.held.writer}));
    }
    return text;
  }
  [[nodiscard]] std::string reader(const Trouble& trouble) {
    return trouble.place.operation < 0
               ? fmt::format("at its end rank {} needs", trouble.place.rank)
               : fmt::format("`{}` of rank {} reads", words_.operation(trouble.place),
                             trouble.place.rank);
  }

  Finding messages(const Trouble& trouble, const std::vector<Place>& sends) {
    Finding finding = start(trouble, "D714", sends.front());
    Diagnostic& said = finding.diagnostic;
    said.what =
        fmt::format("rank {} sends `{}` and `{}` in another order than rank {} receives them",
                    sends.front().rank, words_.operation(sends.front()),
                    words_.operation(sends.back()), trouble.place.rank);
    said.why = fmt::format("{} {}, but {}", reader(trouble), words_.content(trouble.wanted),
                           state_of(trouble));
    said.help = "exchange the two, or give them tags of their own";
    finding.witness = {sends.front(), sends.back(), trouble.place};
    return finding;
  }

  Finding overwritten(const Trouble& trouble, std::int32_t by) {
    const Place place{trouble.place.rank, by};
    const bool frees = job_.op(place).act == Act::free || job_.op(place).act == Act::allocate;
    Finding finding = start(trouble, frees ? "D733" : "D735", place);
    Diagnostic& said = finding.diagnostic;
    said.what =
        fmt::format("`{}` of rank {} {} {}, which is still needed", words_.operation(place),
                    place.rank, frees ? "gives up" : "overwrites", words_.content(trouble.wanted));
    said.why =
        fmt::format("{} it later from {}", reader(trouble), words_.zone(place.rank, trouble.zone));
    said.help = "use other rows, or do it after the last one that reads them";
    return finding;
  }

  Finding unknown(const Trouble& trouble) {
    Finding finding = start(trouble, "D746");
    const char* why = "what lies there was not summed";
    const char* help = "reduce with `sum`";
    if (trouble.held.nature == Nature::leftover) {
      why = "this rank has no result there";
      help =
          "read it where the result is: on the root of a `reduce`, in the rank's own piece of a "
          "`reduce_scatter`; or give the call rows of its own for the result";
    } else if (trouble.held.nature == Nature::overflow) {
      why = "its scale is not known";
      help = "scale by ratios of smaller numbers";
    }
    finding.diagnostic.what =
        fmt::format("{} {}, but {}", reader(trouble), words_.content(trouble.wanted), why);
    finding.diagnostic.why = state_of(trouble);
    finding.diagnostic.help = help;
    return finding;
  }

  Finding stale(const Trouble& trouble) {
    const bool old = job_.contents[trouble.wanted.content].is_new;
    Finding finding = start(trouble, old ? "D748" : "D735");
    Diagnostic& said = finding.diagnostic;
    const bool updated = history_.made(job_.contents[trouble.wanted.content]).cells;
    said.what = fmt::format("{} {}, and has {}", reader(trouble), words_.content(trouble.wanted),
                            words_.content(trouble.held));
    said.why = !old      ? state_of(trouble)
               : updated ? "it is updated, but does not reach this rank"
                         : "nobody updates it";
    said.help = !old      ? "update it after the last one that reads the old version"
                : updated ? "gather or broadcast it after the update"
                          : "update it";
    return finding;
  }

  Finding other_part(const Trouble& trouble, const Content& wanted) {
    const plan::Tensor& tensor = job_.contents.tensor(wanted);
    const bool goal = trouble.place.operation < 0;
    const auto* compute =
        goal ? nullptr : std::get_if<plan::Compute>(&job_.op(trouble.place).source->action);
    const bool update = compute != nullptr && compute->kernel == plan::kUpdateKernel;
    Finding finding = start(trouble, update                         ? "D749"
                                     : tensor.kind == plan::kWeight ? "D747"
                                                                    : "D744");
    Diagnostic& said = finding.diagnostic;
    said.what = fmt::format("{} {}, and finds {}", reader(trouble), words_.content(trouble.wanted),
                            words_.content(trouble.held));
    said.why = state_of(trouble);
    said.help = update ? "update the part that this rank owns"
                : tensor.kind == plan::kWeight
                    ? "gather it from the ranks that have the other parts"
                    : "put that part there, or read the one that is there";
    const bool is_reordered = words_.content(trouble.wanted) == words_.content(trouble.held) &&
                              words_.order(trouble.wanted) != words_.order(trouble.held);
    if (is_reordered) {
      said.what = fmt::format("{} {}, and finds its cells in another order", reader(trouble),
                              words_.content(trouble.wanted));
      said.why = fmt::format("stated: by {}; there: by {}", words_.order(trouble.wanted),
                             words_.order(trouble.held));
      said.help = "put the dimensions into one order";
    }
    return finding;
  }

  Finding sum(const Trouble& trouble, const Content& wanted, const Content& held) {
    const Sums& sums = job_.contents.sums();
    const auto [found, is_new] = lacks_.try_emplace({wanted.tensor, wanted.sum, held.sum});
    Lacking& lacks = found->second;
    if (is_new) {
      const Boxes boxes = sums.missing(wanted.sum, held.sum);
      lacks = {outline(boxes), words_.boxes(trouble.wanted, boxes)};
    }
    const std::string tensor = words_.tensor(trouble.wanted);
    if (lacks.text.empty()) {
      Finding finding = start(trouble, "D742");
      finding.diagnostic.what =
          fmt::format("`{}` has {} too much", tensor,
                      words_.boxes(trouble.wanted, sums.missing(held.sum, wanted.sum)));
      finding.diagnostic.why = state_of(trouble);
      finding.diagnostic.help = "leave out what belongs to others";
      return finding;
    }
    // What is missing is there, on other ranks: then only a reduction is missing.
    const Box& missing = lacks.outline;
    const Box made = history_.made(wanted).sums;
    bool elsewhere = !made.empty();
    const std::size_t first = missing.size() - std::min(missing.size(), made.size());
    for (std::size_t k = first; k < missing.size() && elsewhere; ++k) {
      elsewhere = made[k - first].set.includes(missing[k].set);
    }
    const bool goal = trouble.place.operation < 0;
    const bool gradient = job_.contents.tensor(wanted).kind == "WeightGrad";
    Finding finding = start(trouble, elsewhere && !goal && !gradient ? "D740" : "D741");
    Diagnostic& said = finding.diagnostic;
    said.what = fmt::format("{} `{}`, which lacks {}", reader(trouble), tensor, lacks.text);
    said.why = state_of(trouble);
    said.help = elsewhere ? "reduce it over the ranks that have the rest"
                          : "compute what is missing: nobody does";
    return finding;
  }

  Finding scale(const Trouble& trouble) {
    Finding finding = start(trouble, "D745");
    finding.diagnostic.what = fmt::format("{} {} at scale {}, and finds it at {}", reader(trouble),
                                          words_.tensor(trouble.wanted),
                                          words_.scale(trouble.wanted), words_.scale(trouble.held));
    finding.diagnostic.why = state_of(trouble);
    finding.diagnostic.help = "scale it once: where it is reduced, or by a computation `scale`";
    return finding;
  }

  // Something else, or nothing, lies there.
  Finding absent(const Trouble& trouble, const Content& wanted) {
    const std::string& kind = job_.contents.tensor(wanted).kind;
    const History::Made made = history_.made(wanted);
    const bool goal = trouble.place.operation < 0;
    const bool nothing = trouble.held.nature == Nature::nothing;
    const bool moves = kind == "Activation" || kind == "ActivationGrad";
    const Place source = history_.source(trouble);
    const std::int32_t maker = source.exists() ? source.rank : trouble.place.rank;
    const bool known = source.exists() && job_.script_of[maker] >= 0;
    std::string code = nothing ? "D732" : "D744";
    std::string help = "put it there before, or read what is there";
    if (kind == plan::kWeight && made.cells) {
      code = goal ? "D748" : "D747";
      help = "gather it from the ranks that have it";
    } else if (goal && made.cells) {
      code = "D756";
      help = "bring it to this rank";
    } else if (moves && !made.cells &&
               !history_.makes_some(known ? maker : trouble.place.rank, wanted)) {
      code = "D750";
      help = fmt::format("compute `{}` somewhere", words_.tensor(trouble.wanted));
    } else if (!made.cells && moves) {
      code = "D753";
      help = "compute it for these samples too";
    }
    Finding finding = start(trouble, code, nothing && known ? source : trouble.place);
    Diagnostic& said = finding.diagnostic;
    said.what = fmt::format("{} {}{}", reader(trouble), words_.content(trouble.wanted),
                            code == "D750"   ? ", a layer that nobody computes"
                            : code == "D753" ? ", which nobody computes"
                                             : ", and finds " + words_.content(trouble.held));
    said.why = state_of(trouble);
    if (nothing && known) said.why += fmt::format("; it comes from {}", words_.at(source));
    said.help = help;
    return finding;
  }

  Job& job_;
  Words words_;
  History history_;
  struct Lacking {
    Box outline;
    std::string text;  // empty: nothing
  };
  // By tensor, and sums that were wanted and found.
  std::map<std::tuple<plan::TensorId, SumId, SumId>, Lacking> lacks_;
};

}  // namespace

std::vector<Finding> diagnose_values(Job& job, const std::vector<Trouble>& troubles) {
  if (troubles.empty()) return {};
  return Diagnosis(job, troubles).diagnose(troubles);
}

}  // namespace shiplap::check
