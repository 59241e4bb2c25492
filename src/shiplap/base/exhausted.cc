#include "shiplap/base/exhausted.h"

#include <system_error>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap {

void throw_exhausted(std::string what, std::string why, std::string help) {
  throw MissingPart(Diagnostic{
      .code = "D007", .what = std::move(what), .why = std::move(why), .help = std::move(help)});
}

std::jthread start_thread(std::function<void()> work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    throw_exhausted("this machine gives no further thread: " + error.code().message(),
                    "a limit on processes or memory counts threads as well",
                    "use fewer ranks or streams, or raise the limit (`ulimit -u`, the `pids` limit "
                    "of a container)");
  }
}

}  // namespace shiplap
