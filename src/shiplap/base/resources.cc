#include "shiplap/base/resources.h"

#include <system_error>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap {

void throw_resource_exhausted(std::string what, std::string why, std::string help) {
  throw MissingDependency(Diagnostic{
      .code = "D007", .what = std::move(what), .why = std::move(why), .help = std::move(help)});
}

std::jthread start_thread(std::function<void()> task) {
  try {
    return std::jthread(std::move(task));
  } catch (const std::system_error& error) {
    throw_resource_exhausted(
        "cannot create another thread: " + error.code().message(),
        "limits on processes and memory also count threads",
        "use fewer ranks or streams, or raise the limit (`ulimit -u`, the `pids` limit "
        "of a container)");
  }
}

}  // namespace shiplap
