// Reads and writes files that the user names, and adds source locations to diagnostics.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"
#include "shiplap/base/error.h"

namespace shiplap {

// A file that cannot be read or written (D004, D005).
class FileError : public InputError {
 public:
  FileError(Diagnostic diagnostic, int error_number)
      : InputError(std::move(diagnostic)), error_number_(error_number) {}
  [[nodiscard]] int error_number() const { return error_number_; }  // of errno

 private:
  int error_number_;
};

struct SourceText {
  std::string file;  // its name in messages
  std::string text;

  // Without its directory: for titles.
  [[nodiscard]] std::string short_name() const;
};

// `-` reads `in`, standard input. Strips a byte order mark. Throws InputError D004; for a directory
// the message names a file in it whose name ends so.
[[nodiscard]] SourceText read_text(const std::string& file, std::istream& in,
                                   std::string_view ending = ".plan");

// Whether the text is a plan, as text or JSON, perhaps with errors. A plan may begin with comments.
[[nodiscard]] bool is_plan_text(std::string_view text);

// Writes atomically: on failure the previous file is unchanged. Throws InputError D005; `flag` is
// the flag that named the file.
void write_text(const std::string& file, std::string_view text, std::string_view flag);
// Throws the error that write_text would throw, as far as it can be determined in advance: to be
// called before hours of work. `-` and nullopt are always accepted.
void check_writable(const std::optional<std::string>& file, std::string_view flag);

// Adds file and excerpt to a diagnostic that has only a line number.
[[nodiscard]] Diagnostic add_source_location(Diagnostic diagnostic, const SourceText& source);

// Calls `act` and adds file, line and excerpt of `source` to the InputErrors that it throws.
template <class Function>
auto with_source_locations(const SourceText& source, const Function& act) {
  try {
    return act();
  } catch (const MissingDependency&) {
    throw;
  } catch (const InputError& error) {
    std::vector<Diagnostic> diagnostics = error.diagnostics();
    for (Diagnostic& diagnostic : diagnostics)
      diagnostic = add_source_location(std::move(diagnostic), source);
    throw InputError(std::move(diagnostics));
  }
}

}  // namespace shiplap
