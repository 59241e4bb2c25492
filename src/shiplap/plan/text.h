// The `.plan` text format: made to be read and written by people. docs/plan.md has its grammar.
#pragma once

#include <string>
#include <string_view>

#include "shiplap/base/json.h"
#include "shiplap/plan/plan.h"

namespace shiplap::plan {

// Whether a word can name a thing of a plan: letters, digits and underscores, no digit first, and
// no word that the format needs itself.
[[nodiscard]] bool is_name(std::string_view word);

// Reading it back gives an equal plan.
[[nodiscard]] std::string to_text(const Plan& plan);

// Throws InputError with all that is wrong (D1xx), each with line, column and a way to mend it;
// `file` is what to call the text.
[[nodiscard]] Plan parse_text(std::string_view text, std::string_view file);

// The same as JSON, schema "shiplap.plan/1": statements are objects; what a statement says of
// regions, values, peers and groups is in the words of the text.
[[nodiscard]] Json to_json(const Plan& plan);
[[nodiscard]] Plan parse_plan_json(std::string_view text, std::string_view file);

// Whether a text is the JSON form: its first character that is no blank is `{`.
[[nodiscard]] bool is_json_form(std::string_view text);

// Either form.
[[nodiscard]] Plan parse_plan(std::string_view text, std::string_view file);

}  // namespace shiplap::plan
