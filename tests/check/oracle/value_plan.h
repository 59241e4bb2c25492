// A small plan about values, in plain numbers, rank by rank: made to be changed at random and
// written as text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shiplap::oracle {

// Coordinates of one dimension, in order.
struct Extent {
  std::string dimension;
  std::vector<int> at;
  friend bool operator==(const Extent&, const Extent&) = default;
};

struct StatedValue {
  std::string tensor;
  int instance = -1;  // -1: it has none
  bool is_new = false;
  std::vector<Extent> part;
  bool zero = false;
  std::vector<Extent> sum;  // none: complete
  int numerator = 1;        // of the scale
  int denominator = 1;
  friend bool operator==(const StatedValue&, const StatedValue&) = default;
};

// Rows of a buffer; or rows in the order of a list, which only a copy can name.
struct BufferRows {
  int buffer = -1;
  int begin = 0;
  int count = 1;
  std::vector<int> listed;
  friend bool operator==(const BufferRows&, const BufferRows&) = default;
};

struct Assertion {
  std::string kind;  // reads, writes, adds; given, goal, keep
  BufferRows place;
  StatedValue value;
};

struct Step {
  std::string action;
  std::string kernel;
  std::vector<Assertion> assertions;
  BufferRows from;
  BufferRows to;
  std::string words;  // all that follows the regions: "over ranks{0, 1}"
  bool add = false;
  int numerator = 1;  // of a reduction
  int denominator = 1;
  std::vector<Step> members;
};

struct ValueRank {
  std::vector<int> buffers;  // how many rows
  std::vector<Assertion> facts;
  std::vector<Step> steps;
};

struct Declaration {
  std::string name;
  int instances = 0;
  std::string kind;
  std::vector<std::pair<std::string, int>> part;
  std::vector<std::pair<std::string, int>> sum;
  int numerator = 1;
  int denominator = 1;
  std::string mask;
};

struct ValuePlan {
  std::vector<std::string> lists;  // lines of the text
  std::vector<Declaration> tensors;
  std::vector<std::string> tables;
  std::vector<ValueRank> ranks;

  // REQUIRES: it is declared.
  [[nodiscard]] const Declaration& declaration(const std::string& name) const;
};

[[nodiscard]] std::string to_text(const ValuePlan& plan);

}  // namespace shiplap::oracle
