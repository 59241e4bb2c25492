// Limited resources: memory, threads, open files.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace shiplap {

// Throws MissingDependency D007: a resource of this machine or a limit of this process is
// exhausted.
[[noreturn]] void throw_resource_exhausted(std::string what, std::string why = "",
                                           std::string help = "");

// The destructor joins the thread. Throws D007 if the system cannot create another thread.
[[nodiscard]] std::jthread start_thread(std::function<void()> task);

}  // namespace shiplap
