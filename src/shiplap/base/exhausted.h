// Memory, threads and open files: a machine has only so many, and a process may have fewer.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace shiplap {

// MissingPart D007: this machine, or a limit of this process, does not give more of something.
[[noreturn]] void throw_exhausted(std::string what, std::string why = "", std::string help = "");

// Joined by its destructor. Throws D007 if the system gives no further thread.
[[nodiscard]] std::jthread start_thread(std::function<void()> work);

}  // namespace shiplap
