#include "shiplap/comm/ranks.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "shiplap/base/error.h"
#include "shiplap/comm/environment_internal.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/sockets/sockets.h"
#include "shiplap/comm/threads/threads.h"

namespace shiplap::comm {
namespace {

[[noreturn]] void throw_bad_variable(const char* variable, const char* value,
                                     const char* expected) {
  throw InputError(Diagnostic{
      .code = "D300",
      .what = fmt::format("{} is `{}`, where {} was expected", variable, value, expected)});
}

// The value of an environment variable, or `fallback` if it is not set.
Seconds seconds_from(const char* variable, Seconds fallback) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return fallback;
  const std::string_view text = value;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  constexpr double kMaxSeconds = 1e7;  // four months
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) ||
      seconds > kMaxSeconds) {
    throw_bad_variable(variable, value, "a number of seconds");
  }
  return Seconds{seconds};
}

bool checked_from(const RankOptions& options) {
  const char* value = std::getenv("SHIPLAP_CHECKED");
  if (value == nullptr) return options.checked;
  if (std::string_view(value) == "1") return true;
  if (std::string_view(value) == "0") return false;
  throw_bad_variable("SHIPLAP_CHECKED", value, "0 or 1");
}

}  // namespace

void run_ranks(const RankOptions& options, const std::function<void(Communicator&)>& work) {
  const Seconds timeout = seconds_from("SHIPLAP_TIMEOUT", options.timeout);
  const Seconds connect_timeout = seconds_from(
      set_variable("SHIPLAP_CONNECT_TIMEOUT", "SHIPLAP_CONNECT_WITHIN"), options.connect_timeout);
  const bool checked = checked_from(options);
  if (const auto job = socket_job()) {
    run_on_sockets(
        *job, {.timeout = timeout, .checked = checked, .connect_timeout = connect_timeout}, work);
  } else if (launched_by()) {
    run_on_mpi({.timeout = timeout, .checked = checked, .connect_timeout = connect_timeout}, work);
  } else {
    run_on_threads({.ranks = options.threads, .timeout = timeout, .checked = checked}, work);
  }
}

}  // namespace shiplap::comm
