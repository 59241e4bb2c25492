// Checks of the dispatcher that many ranks make together.
#pragma once

#include <vector>

#include "../comm/check.h"

namespace shiplap::run {

void add_dispatch_checks(std::vector<comm::Check>& checks);
void add_attention_checks(std::vector<comm::Check>& checks);
void add_fault_checks(std::vector<comm::Check>& checks);
void add_memory_checks(std::vector<comm::Check>& checks);

}  // namespace shiplap::run
