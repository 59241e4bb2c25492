// Threads for works that wait for other processes, and so must not be done on threads of somebody
// who has few of them.
#pragma once

#include <functional>

namespace shiplap {

// Begins whatever other works do: at once, on a thread that has nothing to do or on a new one. It
// must not throw. Threads stay until the process ends, as many as there were works at one time.
//
// Called from within a work (which told somebody that it is done, who went on to the next on the
// same thread), the new work is for this thread as soon as it is free, since waking another costs
// more than a small work; another one takes it if this one is not free within 2 ms. Where that has
// happened, others are woken at once for a while.
void run_aside(std::function<void()> work);

}  // namespace shiplap
