// The `.plan` text format, and its JSON form. docs/plan.md has the grammar.
#pragma once

#include <string>
#include <string_view>

#include "shiplap/base/json.h"
#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Whether a word is a valid name: letters, digits and underscores, not starting with a digit, and
// not reserved.
[[nodiscard]] bool is_name(std::string_view word);

// Round trip: parsing the text gives an equal plan.
[[nodiscard]] std::string to_text(const Plan& plan);

// Throws InputError with all errors (D1xx), each with line, column and a fix. `file` is the name of
// the text in diagnostics.
[[nodiscard]] Plan parse_text(std::string_view text, std::string_view file);

// The same as JSON, schema "shiplap.plan/1": statements are objects; regions, values, peers and
// groups are strings in the syntax of the text.
[[nodiscard]] Json to_json(const Plan& plan);
[[nodiscard]] Plan parse_plan_json(std::string_view text, std::string_view file);

// Whether a text is in the JSON form: its first nonblank character is `{`.
[[nodiscard]] bool is_json_form(std::string_view text);

// Parses either form.
[[nodiscard]] Plan parse_plan(std::string_view text, std::string_view file);

}  // namespace shiplap::plan
