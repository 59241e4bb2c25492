// A small plan in plain numbers, rank by rank, made to be changed at random and written as text.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace shiplap::oracle {

// What one row holds, of the tensors that all small plans share:
//   T[3] Partial tok 4 sum k 6;  M[2] the same, mask k<=tok;  G[2] WeightGrad sum k 6 scale 1/2
//   A[3] Activation tok 4;  W[2] Weight
struct Content {
  char tensor = '?';  // '?': unknown
  int instance = 0;
  int tok = 0;          // of T, M, A
  std::set<int> sum;    // of T, M, G; what the mask leaves
  int denominator = 1;  // of the scale
  bool is_new = false;
  friend bool operator==(const Content&, const Content&) = default;
};

[[nodiscard]] bool has_sum(char tensor);
[[nodiscard]] bool has_tok(char tensor);
// All contributions there are.
[[nodiscard]] std::set<int> full_sum(const Content& content);
[[nodiscard]] bool is_complete(const Content& content);

struct SmallRegion {
  char buffer = 'x';  // x, y: 8 rows; z: 2 rows that are allocated; w: 2 rows; h: 8 rows of f32
  int begin = 0;
  int count = 1;
  bool listed = false;  // entries of the list `order`, which names rows; only in copies

  [[nodiscard]] int row(int k) const;
};

struct SmallAccess {
  std::string kind;  // reads, writes, adds; given, goal
  SmallRegion region;
  Content content;
};

struct SmallOp {
  int id = 0;
  std::string stream = "main";
  std::string action;
  std::string kernel;
  SmallRegion from;
  SmallRegion to;
  bool has_from = false;
  bool has_to = false;
  int peer = 0;
  int tag = 0;
  std::string channel;
  std::vector<int> group;
  std::string op = "sum";
  int denominator = 1;
  int root = 0;
  int table = 0;
  bool add = false;
  bool async = false;
  std::vector<int> after;  // ids
  std::vector<SmallAccess> accesses;
  std::vector<SmallOp> members;
};

struct SmallRank {
  std::vector<SmallAccess> facts;
  std::vector<SmallOp> ops;
};

struct SmallMessage {
  int from = 0;
  int to = 0;
  int first = 0;
  int count = 1;
  int into = 0;
};

struct SmallPlan {
  std::vector<SmallRank> ranks;
  std::vector<std::vector<SmallMessage>> tables;
};

// An `after` that names no operation above it is left out.
[[nodiscard]] std::string to_text(const SmallPlan& plan);

}  // namespace shiplap::oracle
