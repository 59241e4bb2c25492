// Errors of one argument: a flag of a command, a parameter of a function.
#pragma once

#include <string>

namespace shiplap {

// Throws InputError D003 for an argument, or for a combination of several ("").
[[noreturn]] void throw_argument_error(std::string argument, std::string what,
                                       std::string help = "");

}  // namespace shiplap
