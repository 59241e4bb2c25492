// Reports of `postmortem`: text, JSON and a page.
#pragma once

#include <string>

#include "shiplap/base/json.h"
#include "shiplap/postmortem/postmortem.h"
#include "shiplap/report/page.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

// The answer first: the most likely culprit in at most five lines, then other suspects, what proves
// the hang, and where the ranks are; ranks in the same place share a row.
[[nodiscard]] std::string postmortem_text(const postmortem::Postmortem& found,
                                          const TextStyle& style);

// Schema "shiplap.postmortem/1".
[[nodiscard]] Json postmortem_json(const postmortem::Postmortem& found);

// The same as a page, with the last calls of the interesting ranks. `command` is shown at its end.
[[nodiscard]] Page postmortem_page(const postmortem::Postmortem& found, const std::string& command);

// "rank 1 did not come to .. (cpu_stuck)": the title.
[[nodiscard]] std::string postmortem_title(const postmortem::Postmortem& found);

}  // namespace shiplap::report
