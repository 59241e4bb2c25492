// check in a process of its own: a plan on which it crashes is one more disagreement.
#pragma once

#include <functional>
#include <string>

namespace shiplap::oracle {

// Calls `work` in a child process and returns what it returns there, or "crash: SIGSEGV" and the
// like.
[[nodiscard]] std::string isolated(const std::function<std::string()>& work);

}  // namespace shiplap::oracle
