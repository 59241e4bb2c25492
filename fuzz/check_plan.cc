#include "check_plan.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/base/json.h"
#include "shiplap/plan/expand.h"
#include "shiplap/plan/summary.h"
#include "shiplap/plan/text.h"

namespace shiplap::plan {
namespace {

// The text was written from a valid plan, so an error is a bug.
template <class Read>
Plan read_again(const Read& read, const std::string& written) {
  try {
    return read(written, "again");
  } catch (const InputError& error) {
    throw InternalError("what was written cannot be read: " + render(error.diagnostics()) +
                        written);
  }
}

void check_text(const Plan& plan) {
  const std::string text = to_text(plan);
  const Plan again = read_again(parse_text, text);
  ensure(again == plan, "a plan that is written and read again is the same");
  ensure(to_text(again) == text, "printing is a fixed point");
}

void check_json(const Plan& plan) {
  const std::string text = shiplap::to_text(to_json(plan), Layout::compact);
  const Plan again = read_again(parse_plan_json, text);
  ensure(again == plan, "a plan that is written as JSON and read again is the same");
  ensure(shiplap::to_text(to_json(again), Layout::compact) == text, "JSON is a fixed point");
}

template <class Function>
void allow_input_error(const Function& function) {
  try {
    function();
  } catch (const InputError& error) {
    ensure(!error.diagnostics().empty(), "an InputError has a diagnostic");
  }
}

void check_expansion(const Plan& plan) {
  constexpr ExpandLimits kSmall{.operations = 10'000, .iterations = 100'000, .entries = 1'000'000};
  const std::int64_t last = plan.mesh.ranks() - 1;
  for (const std::int64_t rank : {std::int64_t{0}, last / 3, last / 2, last}) {
    allow_input_error([&] {
      const RankProgram program = expand(plan, Rank(static_cast<std::int32_t>(rank)), kSmall);
      for (const flat::Operation& operation : program.operations) {
        ensure(!program.describe(operation).empty(), "an operation can be named");
      }
      ensure(peak_bytes(program) >= 0, "memory is not negative");
    });
  }
}

}  // namespace

void check_plan(const Plan& plan) {
  check_text(plan);
  check_json(plan);
  check_expansion(plan);
  allow_input_error([&] { (void)summarize(plan, 10'000); });
}

void check_bytes(const std::uint8_t* data, std::size_t size,
                 Plan (*read)(std::string_view text, std::string_view file)) {
  std::optional<Plan> plan;
  allow_input_error([&] { plan = read({reinterpret_cast<const char*>(data), size}, "fuzz"); });
  if (plan) check_plan(*plan);
}

}  // namespace shiplap::plan
