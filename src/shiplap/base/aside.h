// Threads for works that wait for other processes, and so must not be done on threads of somebody
// who has few of them.
#pragma once

#include <functional>

namespace shiplap {

// Begins whatever other works do: at once, on a thread that has nothing to do or on a new one. It
// must not throw. Threads stay until the process ends, as many as there were works at one time; a
// child that was forked has none, and must not call this. Throws std::system_error if there can be
// no further thread; then the work is not done.
//
// Called from within a work (which told somebody that it is done, who went on to the next on the
// same thread), the new work waits for this thread to be free, if others are idle: waking one costs
// more than a small work. One is woken if this one is not free within 2 ms. Where that has
// happened, they are woken at once for a while.
void run_aside(std::function<void()> work);

}  // namespace shiplap
