// What can be read off an unrolled plan: who meets whom, what touches what, in which order, and
// what a region holds. Written plainly and apart from `check`, since mutations judge it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "draft.h"

namespace shiplap::mutations {

// One call of a group: the operation of each member, in group order.
struct Call {
  std::vector<std::int32_t> ranks;
  std::string channel;
  std::int64_t n = 0;
  std::vector<Mark> members;
};
[[nodiscard]] std::vector<Call> calls(const Draft& draft);
// Of collectives only, over two ranks or more.
[[nodiscard]] std::vector<Call> collectives(const Draft& draft);
[[nodiscard]] plan::Collective& collective(const Draft& draft, Mark mark);
[[nodiscard]] std::vector<std::int32_t> members_of(const plan::Group& group);

struct Message {
  Mark send = 0;
  Mark receive = 0;
  std::int64_t n = 0;      // of its key
  std::int64_t count = 0;  // messages with this key
};
[[nodiscard]] std::vector<Message> messages(const Draft& draft);

// Rows that an operation touches; those of a batch are those of its members.
struct Touch {
  plan::Region region;
  bool reads = false;
  bool writes = false;
  bool lifetime = false;  // allocate, free
};
[[nodiscard]] std::vector<Touch> touches(const Draft& draft, Mark mark);
[[nodiscard]] std::vector<std::int64_t> rows_of(const Draft& draft, const plan::Region& region);
[[nodiscard]] bool overlap(const Draft& draft, const plan::Region& a, const plan::Region& b);
[[nodiscard]] bool touch_each_other(const Draft& draft, Mark a, Mark b);

// Pairs of operations of a rank that touch the same rows, one writing, in no order by streams and
// `after`; the second is listed later. `only`: those whose first is this one.
struct Race {
  Mark first = 0;
  Mark second = 0;
  bool both_write = false;
  bool lifetime = false;
};
[[nodiscard]] std::vector<Race> races(const Draft& draft, std::int32_t rank, Mark only = 0);
// Whether `first` is complete before `second` starts.
[[nodiscard]] bool ordered(const Draft& draft, Mark first, Mark second);

// What the last operation that wrote (part of) the region before `mark` stated, followed through
// communication.
[[nodiscard]] const plan::Value* content(const Draft& draft, Mark mark, const plan::Region& region);
[[nodiscard]] const plan::Tensor& tensor_of(const Draft& draft, const plan::Value& value);
[[nodiscard]] bool same_tensor(const plan::Value& a, const plan::Value& b);

// Computations that state to read this tensor and instance.
struct Readers {
  std::vector<Mark> marks;
  std::vector<std::int32_t> goals;  // ranks whose goal it is
  [[nodiscard]] bool any() const { return !marks.empty() || !goals.empty(); }
};
[[nodiscard]] Readers readers(const Draft& draft, const plan::Value& value);
// Of them, those of the given ranks that are listed after these operations, and goals.
[[nodiscard]] Readers readers_after(const Draft& draft, const plan::Value& value,
                                    const std::vector<Mark>& marks);

// What a read of these rows would meet just before `mark`, by program order.
enum class Rows { written, never_written, not_alive };
[[nodiscard]] Rows rows_before(const Draft& draft, Mark mark, const plan::Region& region);
// Whether an operation after `mark` reads these rows before others write all of them.
[[nodiscard]] bool read_later(const Draft& draft, Mark mark, const plan::Region& region);

[[nodiscard]] std::vector<const plan::Access*> accesses(const plan::Operation& operation,
                                                        plan::Access::Kind kind);
[[nodiscard]] bool is_kernel(const plan::Operation& operation, std::string_view kernel);
[[nodiscard]] bool same_rows(const plan::Region& a, const plan::Region& b);

}  // namespace shiplap::mutations
