// The order of the checks, and which of them run.
//
// First the plan is loaded with as few ranks as possible (symmetry.cc): this expands and links
// them, checks each operation by itself, and finds races. Then, in this order, each stage only if
// the stages before it have no findings: idle ranks; matching of calls, messages and tables;
// execution (deadlocks; then races; then values, which do not depend on the order if there are no
// races); the rules of the libraries.
//
// Deadlocks: the execution is deterministic up to commutation, so if one order gets stuck, every
// order does. It runs with as few eager sends as the options allow. If it is stuck, it runs again
// with all sends eager: stuck again is D720, otherwise D721. For NCCL it runs with all
// communication of a rank in one queue (D726 if only that is stuck) and with one queue per
// communicator (D723).
//
// Symmetry is only an optimization. If an answer would depend on the rank (Asymmetric), the check
// starts again with one axis less. A plan with findings is checked again without symmetry, so that
// the findings name actual ranks, unless it is too large.
#include "shiplap/check/check.h"

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
#include <utility>

#include "shiplap/check/diagnosis_internal.h"
#include "shiplap/check/value_tracker_internal.h"

namespace shiplap::check {
namespace {

// Plans with findings and at most this many operations are checked again without symmetry.
constexpr std::int64_t kMaxOperationsForDetail = 20'000'000;
constexpr std::size_t kMaxNotes = 4;
constexpr std::array<std::string_view, 4> kRules{"any", "nccl", "mpi", "gloo"};  // by enum value

bool is_invalid_operation(const Violation& violation) {
  return violation.symptom == Symptom::invalid_operation;
}

bool is_shape(const Violation& violation) { return violation.symptom == Symptom::shape_mismatch; }

bool is_race(const Violation& violation) {
  return violation.symptom == Symptom::race_read || violation.symptom == Symptom::race_write ||
         violation.symptom == Symptom::unordered;
}

// The smallest eager limit that the options allow.
std::int64_t min_eager_limit(const Options& options) {
  // With a limit of 0 not even an empty send is eager, as in `simulate`.
  if (options.eager_limit && options.eager_limit->count > 0) return options.eager_limit->count;
  return !options.eager_limit && options.sends == Sends::eager ? plan::kAllEager
                                                               : plan::kAllRendezvous;
}

class Checker {
 public:
  Checker(const plan::Plan& plan, const Options& options, const Symmetry& symmetry)
      : options_(options), job_(load(plan, symmetry, options, violations_)) {
    report_.ranks = plan.mesh.ranks();
    report_.declares_values = plan.declares_values;
    report_.programs = std::ssize(job_->scripts);
    report_.assumed = job_->assumed;
    for (const Script& script : job_->scripts) {
      report_.operations += std::ssize(script.ops);
      report_.absent += script.absent;
    }
  }

  Report run() {
    add(diagnose_idle(*job_));
    if (report_.findings.empty() && match()) {
      order();
      if (report_.findings.empty()) check_library_rules();
    }
    report_.examined.push_back({"accessed regions", job_->accesses});
    if (job_->plan.declares_values) {
      report_.examined.push_back({"computations", job_->computations});
      report_.examined.push_back({"declared values", statements_, followed_});
      report_.examined.push_back({"sums", unions_, followed_});
    }
    if (followed_) check_statements_exist();
    return std::move(report_);
  }

 private:
  void add(std::vector<Finding> findings) {
    for (Finding& finding : findings) report_.findings.push_back(std::move(finding));
  }

  [[nodiscard]] std::vector<Violation> violations_of(bool (*is_one)(const Violation&)) const {
    std::vector<Violation> found;
    std::ranges::copy_if(violations_, std::back_inserter(found), is_one);
    return found;
  }

  bool match() {
    const Mismatches mismatches = find_mismatches(*job_);
    report_.examined.push_back({"collective calls", job_->linked.matching.calls});
    report_.examined.push_back({"messages", job_->linked.matching.messages});
    add(diagnose_calls(*job_, mismatches));
    add(diagnose_messages(*job_, mismatches));
    add(diagnose_tables(*job_, mismatches));
    fold_by_rank();
    if (mismatches.none()) add(diagnose_shapes(*job_, violations_of(is_shape)));
    return report_.findings.empty();
  }

  // Mismatches on one rank have one cause.
  void fold_by_rank() {
    std::vector<Finding> kept;
    std::unordered_map<std::int32_t, std::size_t> by_rank;
    for (Finding& finding : report_.findings) {
      const auto [known, is_new] = by_rank.try_emplace(finding.place.rank, kept.size());
      if (is_new) {
        kept.push_back(std::move(finding));
        continue;
      }
      Finding& first = kept[known->second];
      first.folded += 1 + finding.folded;
      if (first.notes.size() < kMaxNotes) {
        first.notes.push_back(as_note(std::move(finding.diagnostic)));
      }
    }
    report_.findings = std::move(kept);
  }

  // Executes the plan: deadlocks, and the declared values.
  void order() {
    const std::vector<Violation> races = violations_of(is_race);
    report_.examined.push_back({"ordered operations", report_.operations});
    followed_ = races.empty() && job_->plan.declares_values;
    bool done = run(min_eager_limit_);
    if (!done) {
      const bool hidden = min_eager_limit_ != plan::kAllEager && run(plan::kAllEager);
      plan::Execution again(job_->linked, hidden ? min_eager_limit_ : plan::kAllEager);
      again.run();
      report_.findings.push_back(
          diagnose_deadlock(*job_, again, hidden ? Deadlock::rendezvous : Deadlock::always));
      done = hidden;
    }
    followed_ = followed_ && done;
    if (!done) return;
    add(diagnose_races(*job_, races));
    if (followed_) add(diagnose_values(*job_, value_violations_));
    if (job_->plan.declares_values || !races.empty()) return;
    add(diagnose_shapes(*job_, violations_of(is_invalid_operation)));
  }

  // A plan that is sound by itself may still need something that a library does not support.
  void check_library_rules() {
    add(diagnose_rules(*job_, options_.rules));
    if (!includes(options_.rules, Rules::nccl) || !report_.findings.empty()) return;
    plan::Execution strict(job_->linked, min_eager_limit_, nullptr, plan::LaunchOrder::one_queue);
    if (strict.run()) return;
    plan::Execution each(job_->linked, min_eager_limit_, nullptr,
                         plan::LaunchOrder::by_communicator);
    if (!each.run()) {
      report_.findings.push_back(diagnose_deadlock(*job_, each, Deadlock::communicators));
      return;
    }
    Finding possible = diagnose_deadlock(*job_, strict, Deadlock::one_queue);
    possible.diagnostic.severity = Severity::warning;
    report_.advice.push_back(std::move(possible.diagnostic));
  }

  // Whether the execution completes.
  bool run(std::int64_t eager) {
    if (!followed_) return plan::Execution(job_->linked, eager).run(options_.progress);
    value_violations_ = violations_of(is_invalid_operation);
    ValueTracker values(*job_, value_violations_);
    const bool done = plan::Execution(job_->linked, eager, &values).run(options_.progress);
    if (done) values.finish();
    statements_ = values.statements();
    unions_ = values.unions();
    return done;
  }

  // The plan declares tensors but no statement about them was checked.
  void check_statements_exist() {
    if (statements_ > 0 || job_->plan.tensors.empty() || report_.operations == 0) return;
    Finding finding;
    finding.diagnostic = {
        .code = "D760",
        .what = "no declared value was checked",
        .why = "the plan declares tensors, but nothing in it reads one and it has no goal",
        .help = "state what computations read, and what the ranks must hold at the end"};
    report_.findings.push_back(std::move(finding));
  }

  const Options& options_;
  std::vector<Violation> violations_;
  std::unique_ptr<Job> job_;
  Report report_;
  std::vector<Violation> value_violations_;
  std::int64_t min_eager_limit_ = min_eager_limit(options_);
  bool followed_ = false;  // the values
  std::int64_t statements_ = 0;
  std::int64_t unions_ = 0;
};

Report examine(const plan::Plan& plan, const Options& options) {
  Symmetry symmetry = options.symmetry ? plan::find_symmetry(plan) : Symmetry{};
  for (;;) {
    try {
      Report report = Checker(plan, options, symmetry).run();
      if (symmetry.axes.empty() || report.findings.empty()) return report;
      const std::int64_t each = report.operations / std::max<std::int64_t>(1, report.programs);
      if (each * report.ranks > kMaxOperationsForDetail) return report;
      symmetry = {};  // findings then name actual ranks
    } catch (const Asymmetric&) {
      symmetry.drop_smallest();
    }
  }
}

}  // namespace

std::string_view name(Rules rules) { return kRules[static_cast<std::size_t>(rules)]; }

std::optional<Rules> parse_rules(std::string_view name) {
  const auto found = std::ranges::find(kRules, name);
  if (found == kRules.end()) return std::nullopt;
  return static_cast<Rules>(found - kRules.begin());
}

std::vector<std::string> rules_names() { return {kRules.begin(), kRules.end()}; }

bool Report::sound() const {
  return std::ranges::none_of(findings, [](const Finding& finding) {
    return finding.diagnostic.severity == Severity::error;
  });
}

Report check(const plan::Plan& plan, const Options& options) {
  Report report = examine(plan, options);
  if (!plan.declares_values) return report;
  for (Diagnostic& warning : advise(plan)) report.advice.push_back(std::move(warning));
  return report;
}

}  // namespace shiplap::check
