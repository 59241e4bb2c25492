#include "shiplap/comm/ranks.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "shiplap/base/error.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/sockets/sockets.h"
#include "shiplap/comm/threads/threads.h"

namespace shiplap::comm {
namespace {

[[noreturn]] void refuse(const char* variable, const char* value, const char* expected) {
  throw InputError(Diagnostic{
      .code = "D300",
      .what = fmt::format("{} is `{}`, where {} was expected", variable, value, expected)});
}

Seconds timeout_of(const RankOptions& options) {
  const char* value = std::getenv("SHIPLAP_TIMEOUT");
  if (value == nullptr) return options.timeout;
  char* end = nullptr;
  const double seconds = std::strtod(value, &end);
  if (end == value || *end != '\0' || !(seconds > 0)) {
    refuse("SHIPLAP_TIMEOUT", value, "a number of seconds");
  }
  return Seconds{seconds};
}

bool checked_of(const RankOptions& options) {
  const char* value = std::getenv("SHIPLAP_CHECKED");
  if (value == nullptr) return options.checked;
  if (std::string_view(value) == "1") return true;
  if (std::string_view(value) == "0") return false;
  refuse("SHIPLAP_CHECKED", value, "0 or 1");
}

}  // namespace

void run_ranks(const RankOptions& options, const std::function<void(Communicator&)>& work) {
  const Seconds timeout = timeout_of(options);
  const bool checked = checked_of(options);
  if (const auto job = socket_job()) {
    run_on_sockets(*job, {.timeout = timeout, .checked = checked}, work);
  } else if (launched_by()) {
    run_on_mpi({.timeout = timeout, .checked = checked}, work);
  } else {
    run_on_threads({.ranks = options.threads, .timeout = timeout, .checked = checked}, work);
  }
}

}  // namespace shiplap::comm
