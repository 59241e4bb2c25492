#include "shiplap/cli/verbs.h"

#include <algorithm>

namespace shiplap::cli {

// Each is defined in the file verb_NAME.cc.
using MakeVerb = Verb();
MakeVerb show_verb, export_verb, check_verb, simulate_verb, run_verb, dispatch_verb, overlap_verb,
    record_verb, postmortem_verb, model_verb, plan_verb, hardware_verb, calibrate_verb,
    explain_verb, completion_verb;

std::vector<Verb> all_verbs() {
  return {
      plan_verb(),  show_verb(),     export_verb(),    check_verb(),   simulate_verb(),
      run_verb(),   dispatch_verb(), overlap_verb(),   record_verb(),  postmortem_verb(),
      model_verb(), hardware_verb(), calibrate_verb(), explain_verb(), completion_verb(),
  };
}

const Verb* find_verb(std::span<const Verb> verbs, std::string_view name) {
  const auto found =
      std::ranges::find_if(verbs, [&](const Verb& verb) { return verb.info.name == name; });
  return found == verbs.end() ? nullptr : &*found;
}

}  // namespace shiplap::cli
