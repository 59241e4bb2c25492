#include "shiplap/check/check.h"

#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
#include <utility>

#include "shiplap/check/diagnosis_internal.h"
#include "shiplap/check/values_internal.h"

namespace shiplap::check {
namespace {

// Up to so many operations a plan with findings is looked at again rank by rank.
constexpr std::int64_t kMostForDetail = 20'000'000;
constexpr std::size_t kMaxNotes = 4;
constexpr std::array<std::string_view, 4> kRules{"any", "nccl", "mpi", "gloo"};  // by their number

bool is_law(const Trouble& trouble) { return trouble.symptom == Symptom::law; }

bool is_shape(const Trouble& trouble) { return trouble.symptom == Symptom::shape; }

bool is_race(const Trouble& trouble) {
  return trouble.symptom == Symptom::race_read || trouble.symptom == Symptom::race_write ||
         trouble.symptom == Symptom::unordered;
}

// The largest send that is eager where least is.
std::int64_t hardest_of(const Options& options) {
  // A limit of 0 makes no send eager, not even one of nothing: so it is in `simulate`.
  if (options.eager_up_to && options.eager_up_to->count > 0) return options.eager_up_to->count;
  return !options.eager_up_to && options.sends == Sends::eager ? plan::kAllEager
                                                               : plan::kAllRendezvous;
}

class Examination {
 public:
  Examination(const plan::Plan& plan, const Options& options, const Symmetry& symmetry)
      : options_(options), job_(load(plan, symmetry, options, troubles_)) {
    report_.ranks = plan.mesh.ranks();
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
      if (report_.findings.empty()) keep_rules();
    }
    report_.examined.push_back({"touched regions", job_->accesses});
    report_.examined.push_back({"computations", job_->computations});
    report_.examined.push_back({"statements", statements_, followed_});
    report_.examined.push_back({"sums", unions_, followed_});
    if (followed_) demand_statements();
    return std::move(report_);
  }

 private:
  void add(std::vector<Finding> findings) {
    for (Finding& finding : findings) report_.findings.push_back(std::move(finding));
  }

  bool match() {
    std::vector<Trouble> shapes;
    std::ranges::copy_if(troubles_, std::back_inserter(shapes), is_shape);
    const Mismatches mismatches = find_mismatches(*job_);
    report_.examined.push_back({"collective calls", job_->linked.matching.calls});
    report_.examined.push_back({"messages", job_->linked.matching.messages});
    add(diagnose_calls(*job_, mismatches));
    add(diagnose_messages(*job_, mismatches));
    add(diagnose_tables(*job_, mismatches));
    fold_by_rank();
    if (mismatches.none()) add(diagnose_shapes(*job_, shapes));
    return report_.findings.empty();
  }

  // What does not meet, and lies at one rank, has one cause.
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

  // Whether everything can be done; what is stated of values is followed on the way.
  void order() {
    std::vector<Trouble> races;
    std::ranges::copy_if(troubles_, std::back_inserter(races), is_race);
    report_.examined.push_back({"ordered operations", report_.operations});
    bool done = run(hardest_, races.empty());
    if (!done) {
      const bool hidden = hardest_ != plan::kAllEager && run(plan::kAllEager, races.empty());
      plan::Execution again(job_->linked, hidden ? hardest_ : plan::kAllEager);
      again.run();
      report_.findings.push_back(
          diagnose_deadlock(*job_, again, hidden ? Deadlock::rendezvous : Deadlock::always));
      done = hidden;
    }
    if (!done) return;
    add(diagnose_races(*job_, races));
    followed_ = races.empty();
    if (followed_) add(diagnose_values(*job_, value_troubles_));
  }

  // A plan that is sound by itself may still ask for more than a library does.
  void keep_rules() {
    add(diagnose_rules(*job_, options_.rules));
    if (!includes(options_.rules, Rules::nccl) || !report_.findings.empty()) return;
    plan::Execution strict(job_->linked, hardest_, nullptr, plan::LaunchOrder::one_queue);
    if (strict.run()) return;
    plan::Execution each(job_->linked, hardest_, nullptr, plan::LaunchOrder::by_communicator);
    if (!each.run()) {
      report_.findings.push_back(diagnose_deadlock(*job_, each, Deadlock::communicators));
      return;
    }
    Finding possible = diagnose_deadlock(*job_, strict, Deadlock::one_queue);
    possible.diagnostic.severity = Severity::warning;
    report_.advice.push_back(std::move(possible.diagnostic));
  }

  // Whether it comes to an end.
  bool run(std::int64_t eager, bool with_values) {
    if (!with_values) return plan::Execution(job_->linked, eager).run(options_.progress);
    value_troubles_.clear();
    std::ranges::copy_if(troubles_, std::back_inserter(value_troubles_), is_law);
    Values values(*job_, value_troubles_);
    const bool done = plan::Execution(job_->linked, eager, &values).run(options_.progress);
    if (done) values.finish();
    statements_ = values.statements();
    unions_ = values.unions();
    return done;
  }

  // Values were declared, and nothing said of them was put to the test.
  void demand_statements() {
    if (statements_ > 0 || job_->plan.tensors.empty() || report_.operations == 0) return;
    Finding finding;
    finding.diagnostic = {
        .code = "D760",
        .what = "no statement about a value was examined",
        .why = "the plan declares tensors, but nothing in it reads one and it has no goal",
        .help = "state what computations read, and what the ranks must hold at the end"};
    report_.findings.push_back(std::move(finding));
  }

  const Options& options_;
  std::vector<Trouble> troubles_;
  std::unique_ptr<Job> job_;
  Report report_;
  std::vector<Trouble> value_troubles_;
  std::int64_t hardest_ = hardest_of(options_);
  bool followed_ = false;
  std::int64_t statements_ = 0;
  std::int64_t unions_ = 0;
};

// The axis with the fewest positions is told apart first: that costs least.
void drop_one(Symmetry& symmetry) {
  const auto least = std::ranges::min_element(symmetry.sizes) - symmetry.sizes.begin();
  symmetry.axes.erase(symmetry.axes.begin() + least);
  symmetry.strides.erase(symmetry.strides.begin() + least);
  symmetry.sizes.erase(symmetry.sizes.begin() + least);
}

Report examine(const plan::Plan& plan, const Options& options) {
  Symmetry symmetry = options.symmetry ? find_symmetry(plan) : Symmetry{};
  for (;;) {
    try {
      Report report = Examination(plan, options, symmetry).run();
      if (symmetry.axes.empty() || report.findings.empty()) return report;
      const std::int64_t each = report.operations / std::max<std::int64_t>(1, report.programs);
      if (each * report.ranks > kMostForDetail) return report;
      symmetry = {};  // what is wrong is told rank by rank
    } catch (const Asymmetric&) {
      drop_one(symmetry);
    }
  }
}

}  // namespace

std::string_view name(Rules rules) { return kRules[static_cast<std::size_t>(rules)]; }

std::optional<Rules> rules_called(std::string_view name) {
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
  for (Diagnostic& warning : advise(plan)) report.advice.push_back(std::move(warning));
  return report;
}

}  // namespace shiplap::check
