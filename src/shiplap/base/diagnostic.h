// An error, its location, its cause, and the smallest change that fixes it.
//
// Every diagnostic has a code with a page of its own (docs/diagnostics/CODE.md, printed by `shiplap
// explain CODE`). The reporter fills in the known fields; rendering omits the empty ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shiplap/base/json.h"

namespace shiplap {

enum class Severity { note, warning, error };
[[nodiscard]] std::string_view name(Severity severity);  // "note"

// The location. Unknown fields are empty or 0.
struct Where {
  std::string file;
  int line = 0;         // from 1
  int column = 0;       // from 1, in bytes
  int length = 1;       // how much of `excerpt` to underline, in bytes
  std::string excerpt;  // the line in the file, verbatim
  std::string function;
  std::string flag;  // "--ranks"
  std::optional<std::int64_t> rank;
  std::string operation;  // "b[1]: compute backward"
  friend bool operator==(const Where&, const Where&) = default;
};

struct Diagnostic {
  std::string code;  // "D101"
  Severity severity = Severity::error;
  Where where;
  std::string what;  // one line, no full stop: "no buffer is called `ww`"
  std::string why;   // the violated rule, unless `what` states it already
  std::string help;  // the smallest change: "did you mean `w`?"
  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};

enum class Colour { off, on };

// In the format of compiler messages, with a newline at the end:
//
//   error[D101]: no buffer is called `ww`
//     --> step.plan:12:9, rank 3, b[1]: compute backward
//      |
//   12 |   reads ww = W[0]
//      |         ^^
//      = the rule behind it
//      help: did you mean `w`?
[[nodiscard]] std::string render(const Diagnostic& diagnostic, Colour colour = Colour::off);
[[nodiscard]] std::string render(std::span<const Diagnostic> diagnostics,
                                 Colour colour = Colour::off);

// {"code", "severity", "what"}, and "why", "help", "where" where known.
[[nodiscard]] Json to_json(const Diagnostic& diagnostic);
[[nodiscard]] Json to_json(std::span<const Diagnostic> diagnostics);

}  // namespace shiplap
