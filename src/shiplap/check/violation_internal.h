// A violation as the checker finds it. diagnose_*.cc finds the cause, once for many violations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/check/content_internal.h"
#include "shiplap/check/script_internal.h"

namespace shiplap::check {

enum class Symptom : std::uint8_t {
  exchange_mismatch,   // the two ends of a table's message differ in length
  exchange_outside,    // a message of a table leaves its group or region
  unordered,           // operations with one key may start in either order
  race_read,           // concurrent read and write
  race_write,          // concurrent writes
  shape_mismatch,      // the regions of one operation differ in size or type
  invalid_operation,   // wrong by itself: a kernel's contract, or rows written twice
  read_uninitialized,  // rows that were never written
  bad_lifetime,        // rows used while not allocated, or allocated twice
  read_mismatch,       // rows hold something else than stated
  add_uninitialized,   // added to rows that were never written
  add_different,       // the operands are different cells or tensors
  add_scale_mismatch,  // the operands have different scales
  add_duplicate,       // a contribution is counted twice
  exchange_overlap,    // an exchange writes rows twice
  leak,                // allocated, and not freed by the end of the step
};

struct Violation {
  Symptom symptom = Symptom::invalid_operation;
  OperationId place;
  OperationId other;
  RowRange row_range;
  std::int32_t first_row = 0;  // where the violation begins, relative to `row_range`
  Piece wanted;
  Piece held;
  std::string code;  // empty: the diagnosis chooses it
  std::string what;
  std::string why;
  std::string help;
};

}  // namespace shiplap::check
