#include "small_text.h"

#include <array>

namespace shiplap::oracle {
namespace {

constexpr std::array kOrder{3, 0, 2, 1};

std::string number(int value) { return std::to_string(value); }

std::string text(const std::set<int>& set) {
  std::string runs;
  for (auto it = set.begin(); it != set.end();) {
    const int begin = *it;
    int end = begin;
    while (it != set.end() && *it == end) ++it, ++end;
    runs += (runs.empty() ? "" : " | ") + number(begin) + " +" + number(end - begin);
  }
  return runs;
}

// Of `toks` tokens in a row.
std::string text(const Content& content, int toks = 1) {
  std::string all = content.is_new ? "new " : "";
  all += content.tensor;
  all += "[" + number(content.instance) + "]";
  if (has_tok(content.tensor)) all += " tok " + number(content.tok) + " +" + number(toks);
  if (has_sum(content.tensor) && content.sum.empty()) return all + " sum none";
  if (has_sum(content.tensor) && !is_complete(content)) all += " sum k " + text(content.sum);
  if (content.denominator != 1) all += " scale 1/" + number(content.denominator);
  return all;
}

std::string text(const SmallRegion& region) {
  const std::string rows = "[" + number(region.begin) + " +" + number(region.count) + "]";
  if (region.listed) return std::string(1, region.buffer) + "[from order" + rows + "]";
  return std::string(1, region.buffer) + rows;
}

std::string group_text(const SmallOp& op, std::size_t ranks) {
  bool whole = op.group.size() == ranks;
  for (std::size_t k = 0; k < op.group.size(); ++k) {
    whole = whole && op.group[k] == static_cast<int>(k);
  }
  std::string all = "ranks{";
  for (const int rank : op.group) all += (all.back() == '{' ? "" : ", ") + number(rank);
  all = whole && op.id % 2 == 0 ? "tp" : all + "}";
  return op.channel.empty() ? all : all + "/" + op.channel;
}

bool is_reduction(const SmallOp& op) {
  return op.action == "all_reduce" || op.action == "reduce_scatter" || op.action == "reduce";
}

std::string operands(const SmallOp& op, std::size_t ranks) {
  std::string all = op.action;
  if (op.action == "compute") return all + " " + op.kernel;
  if (op.action == "receive") {
    all += " " + text(op.to) + " from rank " + number(op.peer) + (op.add ? " add" : "");
  } else {
    if (op.has_from) all += " " + text(op.from);
    if (op.has_to) all += " to " + text(op.to);
  }
  if (op.action == "send") all += " to rank " + number(op.peer);
  if (op.action == "send" || op.action == "receive") {
    if (op.tag != 0) all += " tag " + number(op.tag);
    if (!op.channel.empty()) all += " channel " + op.channel;
    return all;
  }
  if (op.action == "exchange") all += " by t" + number(op.table);
  if (!op.group.empty()) all += " over " + group_text(op, ranks);
  if (op.add) all += " add";
  if (is_reduction(op) && op.op != "sum") all += " operator " + op.op;
  if (is_reduction(op) && op.denominator != 1) all += " scale 1/" + number(op.denominator);
  if ((op.action == "reduce" || op.action == "broadcast") && op.root != 0) {
    all += " root " + number(op.root);
  }
  return all;
}

// Whether two rows can be stated as one region: the next row and the next token.
bool continues(const SmallAccess& a, SmallAccess b, int toks) {
  if (!has_tok(a.content.tensor) || a.content.tensor == 'M' || b.region.count != 1) return false;
  const bool next =
      b.region.begin == a.region.begin + toks && b.content.tok == a.content.tok + toks;
  b.content.tok = a.content.tok;
  return next && a.region.count == 1 && a.kind == b.kind && a.content == b.content &&
         a.region.buffer == b.region.buffer;
}

std::string text(const std::vector<SmallAccess>& accesses) {
  std::string all;
  for (std::size_t k = 0; k < accesses.size();) {
    SmallAccess access = accesses[k++];
    int toks = 1;
    for (; k < accesses.size() && continues(access, accesses[k], toks); ++k) ++toks;
    if (toks > 1) access.region.count = toks;
    all += "    " + access.kind + " " + text(access.region) + " = " + text(access.content, toks);
    all += "\n";
  }
  return all;
}

std::string text(const SmallOp& op, const std::set<int>& known, std::size_t ranks) {
  std::string all = "  o" + number(op.id) + ": ";
  if (op.stream != "main") all += "@" + op.stream + " ";
  all += operands(op, ranks);
  std::string after;
  for (const int id : op.after) {
    if (known.contains(id)) after += (after.empty() ? " after o" : ", o") + number(id);
  }
  all += after + (op.async ? " async\n" : "\n");
  all += text(op.accesses);
  for (const SmallOp& member : op.members) all += "    " + operands(member, ranks) + "\n";
  return op.action == "batch" ? all + "  end\n" : all;
}

}  // namespace

int SmallRegion::row(int k) const { return listed ? kOrder[begin + k] : begin + k; }

bool has_sum(char tensor) { return tensor == 'T' || tensor == 'M' || tensor == 'G'; }
bool has_tok(char tensor) { return tensor == 'T' || tensor == 'M' || tensor == 'A'; }

std::set<int> full_sum(const Content& content) {
  std::set<int> all;
  if (!has_sum(content.tensor)) return all;
  for (int k = 0; k < 6 && (content.tensor != 'M' || k <= content.tok); ++k) all.insert(k);
  return all;
}

bool is_complete(const Content& content) { return content.sum == full_sum(content); }

std::string to_text(const SmallPlan& plan) {
  std::string all = "shiplap-plan 1\nmesh tp=" + std::to_string(plan.ranks.size()) +
                    "\nlist order = 3 0 2 1\ntensor T[3] Partial tok 4 sum k 6\n"
                    "tensor M[2] Partial tok 4 sum k 6 mask k<=tok\n"
                    "tensor G[2] WeightGrad sum k 6 scale 1/2\n"
                    "tensor A[3] Activation tok 4\ntensor W[2] Weight\n";
  for (std::size_t k = 0; k < plan.tables.size(); ++k) {
    all += "table t" + std::to_string(k) + "\n";
    for (const SmallMessage& m : plan.tables[k]) {
      all += "  message";
      for (const int n : {m.from, m.to, m.first, m.count, m.into}) all += " " + number(n);
      all += "\n";
    }
  }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const std::string name = std::to_string(rank);
    all += "program r" + name + " on rank=" + name + "\n";
    for (const char* buffer :
         {"x rows 8 row_bytes 8 bf16", "y rows 8 row_bytes 8 bf16", "z rows 2 row_bytes 8 bf16",
          "w rows 2 row_bytes 8 bf16", "h rows 8 row_bytes 8 f32"}) {
      all += std::string("  buffer ") + buffer + "\n";
    }
    all += "  streams net, aux\n";
    for (const SmallAccess& fact : plan.ranks[rank].facts) {
      all += "  " + fact.kind + " " + text(fact.region) + " = " + text(fact.content) + "\n";
    }
    std::set<int> known;
    for (const SmallOp& op : plan.ranks[rank].ops) {
      all += text(op, known, plan.ranks.size());
      known.insert(op.id);
    }
  }
  return all;
}

}  // namespace shiplap::oracle
