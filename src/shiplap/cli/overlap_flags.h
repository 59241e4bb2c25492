// The flags of `shiplap overlap`, and the product that they describe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/cli/flags.h"
#include "shiplap/overlap/overlap.h"

namespace shiplap::cli {

struct OverlapOptions {
  std::optional<std::string> op;
  std::optional<std::string> method;
  std::optional<std::int64_t> rows;
  std::optional<std::int64_t> columns;
  std::optional<std::int64_t> depth;
  std::optional<std::int64_t> ranks;
  std::optional<std::int64_t> chunks;
  std::optional<std::string> type;
  std::optional<std::string> scaling;
  std::optional<std::string> fp8;
  std::optional<std::int64_t> groups;
  std::optional<std::string> hardware;
  std::optional<std::string> calibrate;
  std::optional<std::string> calibration;
  std::optional<std::string> backend;
  std::optional<std::int64_t> rounds;
  std::optional<std::string> report;
  std::optional<std::string> trace;
  std::optional<std::string> output;
  bool atomic = false;
  bool tapered = false;
  bool plain_sums = false;
  bool polled = false;
  bool run = false;
  bool list = false;
  bool json = false;

  // Whether the method is to be chosen.
  [[nodiscard]] bool chooses() const { return method == "auto"; }
  // Whether it is to be said how long it takes, and not only what is done.
  [[nodiscard]] bool wants_times() const { return hardware.has_value() || run; }
};

void declare_overlap(Flags& flags, OverlapOptions& options);
// Throws InputError D003 if flags make no sense together.
void check_overlap(const OverlapOptions& options);

// Of `--op`, which is given.
[[nodiscard]] overlap::Choice choice_of(const OverlapOptions& options);
// Throws InputError D003 if sizes are missing.
[[nodiscard]] overlap::Problem problem_of(const OverlapOptions& options);
// The number of a flag, or else the usual one.
[[nodiscard]] int small_number(const char* flag, std::optional<std::int64_t> given, int usual);

// The flags that were given, to be given again.
[[nodiscard]] std::vector<std::string> words_of(const OverlapOptions& options);
[[nodiscard]] std::string command_of(const OverlapOptions& options);

}  // namespace shiplap::cli
