#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "shiplap/base/units.h"
#include "shiplap/sim/fit_internal.h"
#include "shiplap/sim/words_internal.h"

namespace shiplap::sim {
namespace {

using plan::Collective;
using plan::Exchange;

constexpr std::size_t kMostMisfits = 20;

bool same_pieces(const plan::Plan& plan, plan::ListId a, plan::ListId b) {
  if (a == b) return true;
  if (!a.exists() || !b.exists()) return false;
  return plan.lists[a].values == plan.lists[b].values;
}

std::string in_words(const plan::Ratio& ratio) {
  if (ratio.denominator() == 1) return std::to_string(ratio.numerator());
  return fmt::format("{}/{}", ratio.numerator(), ratio.denominator());
}

std::string in_words(const plan::Plan& plan, const Exchange& exchange) {
  return fmt::format("by `{}`{}", plan.tables[exchange.table].name,
                     exchange.reversed ? " reversed" : "");
}

// The first thing in which two operations differ, or nothing.
class Difference {
 public:
  explicit Difference(const plan::Plan& plan) : plan_(plan) {}

  std::string between(const Step& a, const Step& b) {
    const auto* first = std::get_if<Collective>(&a.source->action);
    const auto* second = std::get_if<Collective>(&b.source->action);
    const auto* one = std::get_if<Exchange>(&a.source->action);
    const auto* other = std::get_if<Exchange>(&b.source->action);
    const bool message = a.act == Act::send || a.act == Act::receive;
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
    differs("scale " + in_words(first.scale), "scale " + in_words(second.scale));
    differs(fmt::format("root {}", a.detail), fmt::format("root {}", b.detail));
    if (!same_pieces(plan_, first.split, second.split) && text_.empty()) {
      text_ = "they split their buffers differently";
    }
  }

  void exchanges(const Step& a, const Step& b, const Exchange& first, const Exchange& second) {
    differs(in_words(plan_, first), in_words(plan_, second));
    differs(fmt::format("rows of {} bytes", a.detail), fmt::format("rows of {} bytes", b.detail));
  }

  const plan::Plan& plan_;
  std::string text_;
};

Diagnostic problem(const LinkedProgram& linked, const Misfit& misfit, Words& words) {
  Diagnostic diagnostic{.code = "D631", .where = words.where(misfit.second)};
  diagnostic.what = fmt::format("`{}` of rank {} meets `{}` of rank {}, and they do not fit",
                                words.operation(misfit.first), misfit.first.rank,
                                diagnostic.where.operation, misfit.second.rank);
  diagnostic.why =
      Difference(*linked.plan).between(linked.step(misfit.first), linked.step(misfit.second));
  if (misfit.more > 0) {
    diagnostic.why += fmt::format("; {} more of the group do not fit the first either",
                                  with_separators(misfit.more));
  }
  diagnostic.help =
      "make both the same; or, as equal numbers meet, look for a call before these that only one "
      "of the two makes";
  return diagnostic;
}

}  // namespace

bool fit(const plan::Plan& plan, const Step& a, const Step& b) {
  const bool sizes = a.act == Act::exchange || a.bytes == b.bytes;
  if (!sizes || a.type != b.type) return false;
  if (a.act == Act::send || a.act == Act::receive) return true;
  if (a.act != b.act || a.kind != b.kind || a.detail != b.detail) return false;
  if (a.source == b.source) return true;
  if (a.act == Act::exchange) {
    const auto& first = std::get<Exchange>(a.source->action);
    const auto& second = std::get<Exchange>(b.source->action);
    return first.table == second.table && first.reversed == second.reversed;
  }
  const auto& first = std::get<Collective>(a.source->action);
  const auto& second = std::get<Collective>(b.source->action);
  return first.op == second.op && first.scale == second.scale &&
         same_pieces(plan, first.split, second.split);
}

std::vector<Diagnostic> misfit_problems(const LinkedProgram& linked, std::vector<Misfit> misfits) {
  std::ranges::sort(misfits, {}, [](const Misfit& m) { return std::tuple(m.first, m.second); });
  Words words(linked);
  std::vector<Diagnostic> problems;
  for (std::size_t k = 0; k < std::min(misfits.size(), kMostMisfits); ++k) {
    problems.push_back(problem(linked, misfits[k], words));
  }
  if (misfits.size() > kMostMisfits) {
    const auto more = static_cast<std::int64_t>(misfits.size() - kMostMisfits);
    problems.push_back(
        {.code = "D631",
         .severity = Severity::note,
         .what = fmt::format("{} more operations meet and do not fit", with_separators(more))});
  }
  return problems;
}

}  // namespace shiplap::sim
