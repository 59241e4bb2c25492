#include "shiplap/base/argument_error.h"

#include <utility>

#include "shiplap/base/error.h"

namespace shiplap {

void throw_argument_error(std::string argument, std::string what, std::string help) {
  throw InputError(Diagnostic{.code = "D003",
                              .where = {.flag = std::move(argument)},
                              .what = std::move(what),
                              .help = std::move(help)});
}

}  // namespace shiplap
