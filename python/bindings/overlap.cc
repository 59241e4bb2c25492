// shiplap.overlap(): its keyword arguments are the flags of the command.
#include "shiplap/report/overlap.h"

#include <sstream>

#include "bind.h"
#include "shiplap/cli/files.h"
#include "shiplap/cli/overlap_flags.h"
#include "shiplap/kernels/attention.h"
#include "shiplap/run/overlap_study.h"

namespace shiplap::python {
namespace {

// The result as JSON and as text.
struct Answer {
  Json json = Json::object();
  std::string text;
};

Answer answer(const std::vector<std::string>& words) {
  cli::OverlapOptions options;
  cli::Flags flags("overlap");
  declare_overlap(flags, options);
  flags.parse(words);
  options.json = true;
  check_overlap(options);
  if (options.list) {
    return {.json = report::overlap_list_json(), .text = report::overlap_list_text({})};
  }
  std::istringstream nothing;
  const std::optional<overlap::Study> study =
      run::study_overlap(query_of(options, nothing), cli::shell_command(to_arguments(options)));
  if (!study) return {};      // another rank returns the result
  std::ostringstream unused;  // Python prints nothing about files
  cli::Context context{
      .in = nothing, .out = {.stream = unused}, .err = {.stream = unused}, .progress = {}};
  write_files(options, *study, context);
  return {.json = report::overlap_json(*study), .text = report::overlap_text(*study, {})};
}

}  // namespace

void bind_overlap(nb::module_& m) {
  m.def(
      "_overlap",
      [](const std::vector<std::string>& words) {
        Answer found;
        {
          const LongCall released;
          found = naming_arguments([&] { return answer(words); });
        }
        return nb::make_tuple(to_python(found.json), found.text);
      },
      "words"_a, nb::sig("def _overlap(words: Sequence[str]) -> tuple[dict[str, Any], str]"),
      "Returns the result of `shiplap overlap` as a dict and as text.");
  m.def(
      "_gemm_backend", [] { return std::string(kernels::gemm_backend_name()); },
      nb::sig("def _gemm_backend() -> str"),
      "What multiplies: the name of a library, or `reference` for plain loops.");
}

}  // namespace shiplap::python
