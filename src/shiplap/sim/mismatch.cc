#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "shiplap/base/units.h"
#include "shiplap/sim/format_internal.h"
#include "shiplap/sim/mismatch_internal.h"

namespace shiplap::sim {
namespace {

using plan::Collective;
using plan::Exchange;

constexpr std::size_t kMaxMismatches = 20;

bool same_pieces(const plan::Plan& plan, plan::ListId a, plan::ListId b) {
  if (a == b) return true;
  if (!a.exists() || !b.exists()) return false;
  return plan.lists[a].values == plan.lists[b].values;
}

std::string to_string(const plan::Ratio& ratio) {
  if (ratio.denominator() == 1) return std::to_string(ratio.numerator());
  return fmt::format("{}/{}", ratio.numerator(), ratio.denominator());
}

std::string to_string(const plan::Plan& plan, const Exchange& exchange) {
  return fmt::format("by `{}`{}", plan.tables[exchange.table].name,
                     exchange.reversed ? " reversed" : "");
}

// Describes the first attribute in which two operations differ; empty if they agree.
class FirstDifference {
 public:
  explicit FirstDifference(const plan::Plan& plan) : plan_(plan) {}

  std::string between(const Step& a, const Step& b) {
    const auto* first = std::get_if<Collective>(&a.source->action);
    const auto* second = std::get_if<Collective>(&b.source->action);
    const auto* one = std::get_if<Exchange>(&a.source->action);
    const auto* other = std::get_if<Exchange>(&b.source->action);
    const bool message = a.action == ActionKind::send || a.action == ActionKind::receive;
    if (!message) differs(trace::name(a.kind), trace::name(b.kind));
    if (first != nullptr && second != nullptr) collectives(a, b, *first, *second);
    if (one != nullptr && other != nullptr) exchanges(a, b, *one, *other);
    if (one == nullptr && other == nullptr) {
      differs(with_separators(a.bytes) + " bytes", with_separators(b.bytes) + " bytes");
    }
    differs(shiplap::name(a.type), shiplap::name(b.type));
    return text_;
  }

 private:
  void differs(std::string_view a, std::string_view b) {
    if (a != b && text_.empty()) text_ = fmt::format("{} against {}", a, b);
  }

  void collectives(const Step& a, const Step& b, const Collective& first,
                   const Collective& second) {
    differs(fmt::format("operator {}", shiplap::name(first.op)),
            fmt::format("operator {}", shiplap::name(second.op)));
    differs("scale " + to_string(first.scale), "scale " + to_string(second.scale));
    differs(fmt::format("root {}", a.detail), fmt::format("root {}", b.detail));
    if (!same_pieces(plan_, first.split, second.split) && text_.empty()) {
      text_ = "they split their buffers differently";
    }
  }

  void exchanges(const Step& a, const Step& b, const Exchange& first, const Exchange& second) {
    differs(to_string(plan_, first), to_string(plan_, second));
    differs(fmt::format("rows of {} bytes", a.detail), fmt::format("rows of {} bytes", b.detail));
  }

  const plan::Plan& plan_;
  std::string text_;
};

Diagnostic problem(const LinkedProgram& linked, const Mismatch& mismatch, Formatter& formatter) {
  Diagnostic diagnostic{.code = "D631", .where = formatter.where(mismatch.second)};
  diagnostic.what = fmt::format("mismatch: `{}` of rank {} is matched with `{}` of rank {}",
                                formatter.operation(mismatch.first), mismatch.first.rank,
                                diagnostic.where.operation, mismatch.second.rank);
  diagnostic.why = FirstDifference(*linked.plan)
                       .between(linked.step(mismatch.first), linked.step(mismatch.second));
  if (mismatch.more > 0) {
    diagnostic.why += fmt::format("; {} more members of the group do not match the first",
                                  with_separators(mismatch.more));
  }
  diagnostic.help =
      "make both the same; the n-th calls match, so also look for an earlier call that only one "
      "of the two makes";
  return diagnostic;
}

}  // namespace

bool compatible(const plan::Plan& plan, const Step& a, const Step& b) {
  const bool sizes = a.action == ActionKind::exchange || a.bytes == b.bytes;
  if (!sizes || a.type != b.type) return false;
  if (a.action == ActionKind::send || a.action == ActionKind::receive) return true;
  if (a.action != b.action || a.kind != b.kind || a.detail != b.detail) return false;
  if (a.source == b.source) return true;
  if (a.action == ActionKind::exchange) {
    const auto& first = std::get<Exchange>(a.source->action);
    const auto& second = std::get<Exchange>(b.source->action);
    return first.table == second.table && first.reversed == second.reversed;
  }
  const auto& first = std::get<Collective>(a.source->action);
  const auto& second = std::get<Collective>(b.source->action);
  return first.op == second.op && first.scale == second.scale &&
         same_pieces(plan, first.split, second.split);
}

std::vector<Diagnostic> mismatch_problems(const LinkedProgram& linked,
                                          std::vector<Mismatch> mismatches) {
  std::ranges::sort(mismatches, {},
                    [](const Mismatch& m) { return std::tuple(m.first, m.second); });
  Formatter formatter(linked);
  std::vector<Diagnostic> problems;
  for (std::size_t k = 0; k < std::min(mismatches.size(), kMaxMismatches); ++k) {
    problems.push_back(problem(linked, mismatches[k], formatter));
  }
  if (mismatches.size() > kMaxMismatches) {
    const auto more = static_cast<std::int64_t>(mismatches.size() - kMaxMismatches);
    problems.push_back({.code = "D631",
                        .severity = Severity::note,
                        .what = fmt::format("{} more mismatches", with_separators(more))});
  }
  return problems;
}

}  // namespace shiplap::sim
