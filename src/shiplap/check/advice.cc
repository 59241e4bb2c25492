// Warnings about what a plan leaves unstated. They do not make it unsound: its statements are
// proved all the same, but a reader may assume more than they say.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <span>
#include <string>

#include "shiplap/base/suggest.h"
#include "shiplap/check/diagnosis_internal.h"
#include "shiplap/plan/kernel.h"

namespace shiplap::check {
namespace {

std::string lower(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

// Where a kernel is used first, and the kinds of its operands.
struct KernelUse {
  int line = 0;
  std::set<std::string> reads;
  std::set<std::string> writes;
};

class AdviceCollector {
 public:
  explicit AdviceCollector(const plan::Plan& plan) : plan_(plan) {
    for (const plan::Program& program : plan.programs) block(program.body);
  }

  [[nodiscard]] std::vector<Diagnostic> advice() const {
    std::vector<Diagnostic> result;
    for (const auto& [kernel, use] : kernels_) warn_kernel_name(kernel, use, result);
    if (has_goal_) {
      for (const auto& [tensor, line] : updated_) {
        if (!kept_.contains(tensor)) warn_update(tensor, line, result);
      }
    } else if (states_ && !plan_.tensors.empty()) {
      result.push_back(warning(
          0, "D761", "the plan does not state what the ranks must hold at the end of the step",
          "it has neither `goal` nor `keep`, so no gradient need be complete and no weight updated",
          "state it: `keep w = W` for a tensor that every step leaves as it found it, one version "
          "later; `goal` for all others"));
    }
    return result;
  }

 private:
  void block(const std::vector<plan::Statement>& body) {
    for (const plan::Statement& statement : body) {
      std::visit([this](const auto& node) { read(node); }, statement.node);
    }
  }
  void read(const plan::Repeat& repeat) { block(repeat.body); }
  void read(const plan::When& when) { block(when.body); }
  void read(const plan::Let&) {}
  void read(const plan::Fact& fact) {
    if (fact.kind == plan::Fact::Kind::given) return;
    has_goal_ = true;
    kept_.insert(fact.value.tensor.value);
  }
  void read(const plan::Operation& operation) {
    if (const auto* batch = std::get_if<plan::Batch>(&operation.action)) block(batch->body);
    const auto* compute = std::get_if<plan::Compute>(&operation.action);
    if (compute == nullptr) return;
    KernelUse& use = kernels_.try_emplace(compute->kernel, KernelUse{.line = operation.origin.line})
                         .first->second;
    for (const plan::Access& access : compute->accesses) {
      states_ = true;
      const bool read = access.kind == plan::Access::Kind::reads;
      (read ? use.reads : use.writes).insert(plan_.tensors[access.value.tensor].kind);
      if (access.kind == plan::Access::Kind::reads || !access.value.is_new) continue;
      updated_.emplace(access.value.tensor.value, operation.origin.line);
    }
  }

  static Diagnostic warning(int line, std::string code, std::string what, std::string why,
                            std::string help) {
    return {.code = std::move(code),
            .severity = Severity::warning,
            .where = {.line = line},
            .what = std::move(what),
            .why = std::move(why),
            .help = std::move(help)};
  }

  void warn_kernel_name(const std::string& kernel, const KernelUse& use,
                        std::vector<Diagnostic>& out) const {
    const std::vector<std::string_view> all = plan::kernel_names();
    if (std::ranges::find(all, kernel) != all.end()) return;
    const auto near = std::ranges::find_if(all, [&](std::string_view known) {
      return lower(kernel) == known || (known.size() > 4 && edit_distance(kernel, known) == 1) ||
             is_abbreviation(lower(kernel), known);
    });
    const std::string_view meant = near != all.end() ? *near : missing_pass(use);
    if (meant.empty()) return;
    const bool pass = meant.starts_with("forward") || meant.starts_with("backward");
    out.push_back(warning(
        use.line, "D757", fmt::format("there is no rule for a kernel `{}`", kernel),
        fmt::format("it is checked only as a contraction{}",
                    pass ? ", and `simulate` does not count it as a forward or backward" : ""),
        fmt::format("did you mean `{}`?", meant)));
  }

  // "bwd" of "backward", "fwd" of "forward": at least three of its letters, in order, with the
  // first one. Only of kernels that have a rule: `cat` is not short for `cast`.
  static bool is_abbreviation(std::string_view text, std::string_view known) {
    if (text.size() < 3 || text[0] != known[0] || plan::find_kernel_rule(known) == nullptr) {
      return false;
    }
    std::size_t found = 0;
    for (const char c : known) found += found < text.size() && text[found] == c ? 1 : 0;
    return found == text.size();
  }

  // Without a forward or without a backward, a step has no bubble. Returns the one that the plan
  // lacks and whose operands this kernel has, or "".
  [[nodiscard]] std::string_view missing_pass(const KernelUse& use) const {
    const bool forward = kernels_.contains("forward");
    const bool backward = kernels_.contains("backward") || kernels_.contains("backward_input");
    if (forward == backward) return "";
    const std::string_view lacking = forward ? "backward" : "forward";
    const plan::KernelRule& rule = *plan::find_kernel_rule(lacking);
    return has_operands(use.reads, rule.reads) && has_operands(use.writes, rule.writes) ? lacking
                                                                                        : "";
  }
  // All that are required, and no others.
  static bool has_operands(const std::set<std::string>& kinds,
                           std::span<const plan::Operand> operands) {
    const bool required = std::ranges::all_of(operands, [&](const plan::Operand& operand) {
      return operand.optional || kinds.contains(std::string(operand.kind));
    });
    return required && !kinds.empty() && std::ranges::all_of(kinds, [&](const std::string& kind) {
             return std::ranges::find(operands, kind, &plan::Operand::kind) != operands.end();
           });
  }

  void warn_update(std::int32_t tensor, int line, std::vector<Diagnostic>& out) const {
    const std::string& name = plan_.tensors[tensor].name;
    out.push_back(warning(
        line, "D761",
        fmt::format("the plan does not state which rank holds `{}` at the end of the step", name),
        "it is updated, and no `keep` or `goal` names it",
        fmt::format("state it: `keep .. = {}`", name)));
  }

  const plan::Plan& plan_;
  std::map<std::string, KernelUse> kernels_;
  std::map<std::int32_t, int> updated_;  // by tensor
  std::set<std::int32_t> kept_;          // tensors
  bool has_goal_ = false;
  bool states_ = false;  // anything about values
};

}  // namespace

std::vector<Diagnostic> advise(const plan::Plan& plan) { return AdviceCollector(plan).advice(); }

}  // namespace shiplap::check
