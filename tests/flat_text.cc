#include "flat_text.h"

#include <span>

#include "shiplap/base/error.h"

namespace shiplap::plan {
namespace {

class Writer {
 public:
  explicit Writer(const RankProgram& program) : program_(program) {}

  std::string text() {
    for (const flat::Buffer& buffer : program_.buffers)
      put("buffer", buffer.rows, buffer.row_bytes);
    for (const flat::Fact& fact : program_.given) describe("given", fact);
    for (const flat::Fact& fact : program_.goal) describe("goal", fact);
    for (const flat::Operation& operation : program_.operations) describe(operation);
    for (const flat::AbsentReference& absent : program_.absent) {
      put("absent", absent.operation);
      out_ += absent.reference->name;
      numbers(absent.indices);
    }
    return out_;
  }

 private:
  template <class... Numbers>
  void put(const char* word, Numbers... numbers) {
    out_ += std::string("\n") + word;
    ((out_ += " " + std::to_string(numbers)), ...);
    out_ += " ";
  }

  void numbers(flat::Slice slice) {
    for (std::int32_t k = 0; k < slice.count; ++k) {
      out_ += "," + std::to_string(program_.numbers[slice.first + k]);
    }
  }

  void describe(const char* word, const flat::Region& region) {
    if (!region.buffer.exists()) return;
    put(word, region.buffer.value, region.begin, region.count);
    for (std::int64_t k = 0; region.listed >= 0 && k < region.count; ++k) {
      out_ += std::to_string(program_.listed_rows[region.listed + k]) + " ";
    }
  }

  void describe(const flat::Value& value) {
    put("value", value.tensor.value, value.is_new, value.zero, value.instance,
        value.scale.numerator(), value.scale.denominator());
    for (const flat::Run& run : program_.runs_of(value)) {
      put("run", run.dimension.value, run.begin, run.count, run.stride);
    }
  }

  void describe(const char* word, const flat::Fact& fact) {
    describe(word, fact.region);
    describe(fact.value);
  }

  void describe(const flat::Operation& operation) {
    // Without the iteration of a loop, as in "send [i=1]": an unrolled plan has no loops.
    const std::string text = program_.describe(operation);
    out_ += "\n" + text.substr(0, text.find(" [")) + " label " + operation.source->label;
    put("on", operation.stream.value, operation.batch, operation.peer.value, operation.tag,
        operation.root, operation.source->async, operation.source->joined);
    put("work", operation.work.flop, operation.work.bytes, operation.work.seconds);
    for (const std::int32_t before : program_.after(operation)) put("after", before);
    describe("from", operation.from);
    describe("to", operation.to);
    for (const flat::Access& access : program_.accesses_of(operation)) {
      put("access", static_cast<int>(access.kind));
      describe("at", access.region);
      describe(access.value);
    }
    if (!operation.group.exists()) return;
    const flat::Group& group = program_.groups[operation.group];
    out_ += "\ngroup " + group.channel;
    for (std::int64_t k = 0; k < group.ranks.size(); ++k) {
      out_ += " " + std::to_string(group.ranks[k].value);
    }
  }

  const RankProgram& program_;
  std::string out_;
};

}  // namespace

std::string flat_text(const RankProgram& program) { return Writer(program).text(); }

std::string expansion_text(const Plan& plan, Rank rank) {
  try {
    return flat_text(expand(plan, rank, {.operations = 10'000, .iterations = 10'000}));
  } catch (const InputError& error) {
    return "refused: " + error.diagnostics().front().code + " " + error.diagnostics().front().what;
  }
}

}  // namespace shiplap::plan
