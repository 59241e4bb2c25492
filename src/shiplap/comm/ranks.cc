#include "shiplap/comm/ranks.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

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

// What an environment variable says, or else `usual`.
Seconds seconds_of(const char* variable, Seconds usual) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return usual;
  const std::string_view text = value;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  constexpr double kLongest = 1e7;  // four months
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) ||
      seconds > kLongest) {
    refuse(variable, value, "a number of seconds");
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
  const Seconds timeout = seconds_of("SHIPLAP_TIMEOUT", options.timeout);
  const Seconds connect_within = seconds_of("SHIPLAP_CONNECT_WITHIN", options.connect_within);
  const bool checked = checked_of(options);
  if (const auto job = socket_job()) {
    run_on_sockets(*job, {.timeout = timeout, .checked = checked, .connect_within = connect_within},
                   work);
  } else if (launched_by()) {
    run_on_mpi({.timeout = timeout, .checked = checked, .connect_within = connect_within}, work);
  } else {
    run_on_threads({.ranks = options.threads, .timeout = timeout, .checked = checked}, work);
  }
}

}  // namespace shiplap::comm
