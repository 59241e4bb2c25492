// What the checker stumbles over, before anybody asks for the cause.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/check/content_internal.h"
#include "shiplap/check/script_internal.h"

namespace shiplap::check {

enum class Symptom : std::uint8_t {
  exchange_differs,  // the two ends of a table do not fit
  exchange_outside,  // a message of a table leaves its group or region
  unordered,         // operations with one key start in either order
  race_read,         // read and written at once
  race_write,        // written twice at once
  shape,             // the regions of one operation do not fit each other
  law,               // a computation breaks the rule of its kernel
  read_nothing,      // what was never written
  read_dead,         // what is not allocated
  read_other,        // something else than stated
  unite_nothing,     // added to what was never written
  unite_other,       // different things are summed
  unite_scale,       // at different scales
  unite_twice,       // contributions counted twice
  overlap,           // rows that an exchange writes twice
  not_freed,         // allocated, and alive at the end of the step
};

struct Trouble {
  Symptom symptom = Symptom::law;
  Place place;
  Place other;
  Zone zone;
  std::int32_t first_row = 0;  // of the zone: where it begins
  Piece wanted;
  Piece held;
  std::string code;  // where it is known already
  std::string what;
  std::string why;
  std::string help;
};

}  // namespace shiplap::check
