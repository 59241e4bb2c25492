// The picture of an overlapped product: on every rank what is multiplied, sent and received when,
// predicted and measured in one scale.
#pragma once

#include <string>

#include "shiplap/cli/overlap_show.h"
#include "shiplap/report/page.h"

namespace shiplap::cli {

// `command` made it.
[[nodiscard]] report::Page overlap_page(const OverlapView& view, const std::string& command);

}  // namespace shiplap::cli
