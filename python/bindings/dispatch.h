// Declarations shared by the bindings of shiplap::dispatch.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "bind.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/metadata.h"

namespace shiplap::python {

// In the order in which bind_dispatch calls them.
void bind_dispatch_layout(nb::module_& m);
void bind_dispatch_metadata(nb::module_& m);
void bind_dispatch_dense(nb::module_& m);
void bind_dispatch_whole(nb::module_& m);
void bind_dispatch_exchange(nb::module_& m);

// All five results of one dispatch, with the routing that they were computed from, if it is known.
// Only then can it be drawn, because the tables do not contain document boundaries.
struct Dispatch {
  dispatch::QkvDispatch dispatch;
  std::shared_ptr<const dispatch::Routing> routing;
};

// Throws InputError D003.
[[nodiscard]] dispatch::ArrivalMode parse_arrival(const std::string& word);
// Throws InputError D400 unless 0 <= rank < world_size.
void check_rank(std::int64_t rank, int world_size);

// A table in any of its forms: Metadata, DenseMetadata, NormalizedMetadata, shiplap.torch.Metadata,
// or any object with the tensors dst_rank, dst_offset and seq_len. The only conversion: functions
// that take a table call it. A Metadata is not copied. REQUIRES: the GIL is held, and `from` lives
// while the result is used. Throws InputError D003, or the findings of validate.
using SharedTable = std::shared_ptr<const dispatch::Metadata>;
[[nodiscard]] SharedTable table_of(nb::handle from, const char* argument = "metadata");
// A MetadataPair, or a sequence of two tables in any form. A reverse table of another program's
// class has no `arrival`: it sums if the forward table has rows with several copies.
[[nodiscard]] dispatch::MetadataPair pair_of(nb::handle from, const char* argument);
[[nodiscard]] dispatch::MetadataPair pair_of(nb::handle forward, const char* forward_argument,
                                             nb::handle reverse, const char* reverse_argument);

// Makes objects of a NamedTuple of shiplap/_dispatch_values.py, without calling Python code.
class TupleMaker {
 public:
  explicit TupleMaker(const char* name) : type_(cached(name)), new_(cached("")) {}
  template <class... Fields>
  [[nodiscard]] nb::object operator()(Fields&&... fields) const {
    return new_(type_, nb::make_tuple(std::forward<Fields>(fields)...));
  }

 private:
  // The class of this name, or for "" the function that makes tuples. An import takes longer than a
  // row, so they are kept for as long as the process runs.
  static nb::handle cached(const std::string& name);

  nb::handle type_;
  nb::handle new_;
};

// What is hashed of a value: equal for equal values.
[[nodiscard]] nb::object hash_key(const dispatch::Metadata& metadata);
[[nodiscard]] nb::object hash_key(const dispatch::MetadataPair& pair);

// For __repr__: "4 ranks".
[[nodiscard]] std::string ranks_text(int ranks);

}  // namespace shiplap::python
