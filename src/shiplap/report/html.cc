#include "shiplap/report/html.h"

namespace shiplap::report {
namespace {

bool is_forbidden(char c) {
  const auto code = static_cast<unsigned char>(c);
  return code == 0x7F || (code < 0x20 && c != '\n' && c != '\t');
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        if (is_forbidden(c)) {
          result += "\xEF\xBF\xBD";
        } else {
          result += c;
        }
    }
  }
  return result;
}

Html paragraph(std::string_view text) {
  return text.empty() ? Html{} : Html{"<p>" + escaped(text) + "</p>\n"};
}

}  // namespace shiplap::report
