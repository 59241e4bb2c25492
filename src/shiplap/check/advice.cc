// Warnings about what a plan leaves unstated. They do not make it unsound: its statements are
// proved all the same, but a reader may assume more than they say.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
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

class AdviceCollector {
 public:
  explicit AdviceCollector(const plan::Plan& plan) : plan_(plan) {
    for (const plan::Program& program : plan.programs) block(program.body);
  }

  [[nodiscard]] std::vector<Diagnostic> advice() const {
    std::vector<Diagnostic> result;
    for (const auto& [kernel, line] : kernels_) warn_kernel_name(kernel, line, result);
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
    kernels_.emplace(compute->kernel, operation.origin.line);
    for (const plan::Access& access : compute->accesses) {
      states_ = true;
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

  void warn_kernel_name(const std::string& kernel, int line, std::vector<Diagnostic>& out) const {
    const std::vector<std::string_view> all = plan::kernel_names();
    if (std::ranges::find(all, kernel) != all.end()) return;
    const auto near = std::ranges::find_if(all, [&](std::string_view known) {
      return lower(kernel) == known || (known.size() > 4 && edit_distance(kernel, known) == 1);
    });
    if (near == all.end()) return;
    out.push_back(warning(line, "D757", fmt::format("there is no rule for a kernel `{}`", kernel),
                          "it is checked only as a contraction",
                          fmt::format("did you mean `{}`?", *near)));
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
  std::map<std::string, int> kernels_;   // the first line of each
  std::map<std::int32_t, int> updated_;  // by tensor
  std::set<std::int32_t> kept_;          // tensors
  bool has_goal_ = false;
  bool states_ = false;  // anything about values
};

}  // namespace

std::vector<Diagnostic> advise(const plan::Plan& plan) { return AdviceCollector(plan).advice(); }

}  // namespace shiplap::check
