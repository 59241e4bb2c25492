#include "shiplap/report/legend.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "shiplap/base/error.h"

namespace shiplap::report {
namespace {

std::string_view class_of(Swatch swatch) {
  switch (swatch) {
    case Swatch::computation:
      return "computation";
    case Swatch::communication:
      return "communication";
    case Swatch::waiting:
      return "waiting";
    case Swatch::memory:
      return "memory";
    case Swatch::wrong:
      return "wrong";
    case Swatch::ramp:
      return "ramp";
    case Swatch::solid:
      return "solid";
    case Swatch::pale:
      return "pale";
    case Swatch::intensity:
      return "intensity";
    case Swatch::update:
      return "update";
    case Swatch::hidden:
      return "hidden";
    case Swatch::exposed:
      return "exposed";
    case Swatch::suspect:
      return "suspect";
    case Swatch::absent:
      return "absent";
    case Swatch::near:
      return "near";
  }
  throw InternalError("unknown swatch");
}

}  // namespace

Html to_html(const Legend& legend) {
  if (legend.entries.empty()) return {};
  std::string out = "<ul class=\"legend\">\n";
  for (const Legend::Entry& entry : legend.entries) {
    fmt::format_to(std::back_inserter(out), "<li><span class=\"swatch {}\"></span>{}</li>\n",
                   class_of(entry.swatch), escaped(entry.text));
  }
  return {out + "</ul>\n"};
}

}  // namespace shiplap::report
