// Conversion between JSON and Python's types.
#include <fmt/format.h>

#include "bind.h"
#include "shiplap/base/error.h"

namespace shiplap::python {

nb::object to_python(const Json& json) {
  if (json.is_null()) return nb::none();
  if (json.is_bool()) return nb::bool_(json.as_bool());
  if (json.is_integer()) return nb::int_(json.as_integer());
  if (json.is_number()) return nb::float_(json.as_number());
  if (json.is_string()) return nb::str(json.as_string().c_str(), json.as_string().size());
  if (json.is_array()) {
    nb::list list;
    for (const Json& item : json.as_array()) list.append(to_python(item));
    return list;
  }
  raise_signals();
  nb::dict dict;
  for (const auto& [key, value] : json.as_object()) dict[key.c_str()] = to_python(value);
  return dict;
}

Json from_python(nb::handle value, int depth) {
  constexpr int kMaxDepth = 200;  // as for the JSON parser; also stops at a list in itself
  if (depth > kMaxDepth) {
    throw InputError(Diagnostic{.code = "D003", .what = "the values are nested too deeply"});
  }
  if (value.is_none()) return nullptr;
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
  if (nb::isinstance<nb::int_>(value)) return nb::cast<std::int64_t>(value);
  if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (nb::isinstance<nb::dict>(value)) {
    Json object = Json::object();
    for (const auto [key, item] : nb::borrow<nb::dict>(value)) {
      object.set(nb::cast<std::string>(nb::str(key)), from_python(item, depth + 1));
    }
    return object;
  }
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    Json array = Json::array();
    for (const nb::handle item : value) array.push(from_python(item, depth + 1));
    return array;
  }
  throw InputTypeError(
      Diagnostic{.code = "D003",
                 .what = fmt::format("unsupported type for JSON: {}",
                                     nb::cast<std::string>(value.type().attr("__name__"))),
                 .help = "use dict, list, str, int, float, bool or None"});
}

}  // namespace shiplap::python
