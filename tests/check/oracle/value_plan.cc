#include "value_plan.h"

#include <algorithm>
#include <map>

#include "shiplap/base/error.h"

namespace shiplap::oracle {
namespace {

std::string to_plan_text(int number) { return std::to_string(number); }

std::string ratio(int numerator, int denominator) {
  if (numerator == 1 && denominator == 1) return "";
  return " scale " + to_plan_text(numerator) +
         (denominator == 1 ? "" : "/" + to_plan_text(denominator));
}

// Runs of coordinates that follow each other.
std::string to_plan_text(const Extent& extent) {
  std::string all = " " + extent.dimension;
  for (std::size_t k = 0; k < extent.at.size();) {
    std::size_t end = k + 1;
    while (end < extent.at.size() && extent.at[end] == extent.at[end - 1] + 1) ++end;
    all += (k == 0 ? " " : " | ") + to_plan_text(extent.at[k]) + " +" +
           to_plan_text(static_cast<int>(end - k));
    k = end;
  }
  return extent.at.empty() ? all + " 0 +0" : all;
}

std::string to_plan_text(const StatedValue& value) {
  std::string all = (value.is_new ? "new " : "") + value.tensor;
  if (value.instance >= 0) all += "[" + to_plan_text(value.instance) + "]";
  for (const Extent& extent : value.part) all += to_plan_text(extent);
  if (value.zero) return all + " sum none";
  if (!value.sum.empty()) all += " sum";
  for (const Extent& extent : value.sum) all += to_plan_text(extent);
  return all + ratio(value.numerator, value.denominator);
}

// The text of a plan; lists of rows are declared where they are first used.
class ValueWriter {
 public:
  explicit ValueWriter(const ValuePlan& plan) : plan_(plan) {}

  std::string write() {
    std::string programs;
    for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      const std::string name = std::to_string(rank);
      programs += "program p" + name + " on rank=" + name + "\n" + write(plan_.ranks[rank]);
    }
    std::string all = "shiplap-plan 1\nmesh r=" + std::to_string(plan_.ranks.size()) + "\n";
    for (const std::string& list : plan_.lists) all += list + "\n";
    for (const auto& [rows, name] : lists_) all += "list " + name + " =" + rows + "\n";
    for (const Declaration& tensor : plan_.tensors) all += write(tensor);
    for (const std::string& table : plan_.tables) all += table;
    return all + programs;
  }

 private:
  static std::string write(const Declaration& tensor) {
    std::string all = "tensor " + tensor.name;
    if (tensor.instances > 0) all += "[" + to_plan_text(tensor.instances) + "]";
    all += " " + tensor.kind;
    for (const auto& [dimension, size] : tensor.part)
      all += " " + dimension + " " + to_plan_text(size);
    if (!tensor.sum.empty()) all += " sum";
    for (const auto& [dimension, size] : tensor.sum)
      all += " " + dimension + " " + to_plan_text(size);
    all += ratio(tensor.numerator, tensor.denominator);
    if (!tensor.mask.empty()) all += " mask " + tensor.mask;
    return all + "\n";
  }

  std::string write(const ValueRank& rank) {
    std::string all;
    for (std::size_t k = 0; k < rank.buffers.size(); ++k) {
      all += "  buffer b" + std::to_string(k) + " rows " + to_plan_text(rank.buffers[k]) +
             " row_bytes 8 f32\n";
    }
    for (const Assertion& fact : rank.facts) all += write(fact, "  ");
    for (const Step& step : rank.steps) all += write(step, "  ");
    return all;
  }

  std::string write(const Assertion& assertion, const std::string& indent) {
    return indent + assertion.kind + " " + write(assertion.place) + " = " +
           to_plan_text(assertion.value) + "\n";
  }

  std::string write(const BufferRows& place) {
    const std::string buffer = "b" + to_plan_text(place.buffer);
    if (place.listed.empty()) {
      return buffer + "[" + to_plan_text(place.begin) + " +" + to_plan_text(place.count) + "]";
    }
    std::string rows;
    for (const int row : place.listed) rows += " " + to_plan_text(row);
    const auto [found, is_new] = lists_.try_emplace(rows, "l" + std::to_string(lists_.size()));
    return buffer + "[from " + found->second + "[0 +" + std::to_string(place.listed.size()) + "]]";
  }

  std::string write(const Step& step, const std::string& indent) {
    std::string all = indent + step.action;
    if (step.action == "compute") all += " " + step.kernel;
    if (step.from.buffer >= 0) all += " " + write(step.from);
    if (step.to.buffer >= 0) {
      const bool only = step.from.buffer < 0;
      all += (only ? " " : " to ") + write(step.to);
    }
    if (!step.words.empty()) all += " " + step.words;
    if (step.add) all += " add";
    all += ratio(step.numerator, step.denominator) + "\n";
    for (const Assertion& assertion : step.assertions) all += write(assertion, indent + "  ");
    for (const Step& member : step.members) all += write(member, indent + "  ");
    if (step.action == "batch") all += indent + "end\n";
    return all;
  }

  const ValuePlan& plan_;
  std::map<std::string, std::string> lists_;
};

}  // namespace

const Declaration& ValuePlan::declaration(const std::string& name) const {
  const auto found = std::ranges::find(tensors, name, &Declaration::name);
  if (found == tensors.end()) throw InternalError("tensor " + name + " is declared");
  return *found;
}

std::string to_text(const ValuePlan& plan) { return ValueWriter(plan).write(); }

}  // namespace shiplap::oracle
