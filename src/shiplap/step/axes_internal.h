// The mesh of a layout: axes that both the groups of the dense layers and those of the experts are
// products of, and what a rank has along them, as text of a plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/layout/layout.h"

namespace shiplap::step {

// "a*k", "a+b", without what is 0 or 1.
[[nodiscard]] std::string times(const std::string& a, std::int64_t k);
[[nodiscard]] std::string plus(const std::string& a, const std::string& b);
// "name begin +count".
[[nodiscard]] std::string run(const std::string& dimension, const std::string& begin,
                              std::int64_t count);

struct Axes {
  // Throws InputError D645 if no mesh has all groups as products of axes.
  Axes(const layout::Layout& layout, bool has_experts);

  std::string mesh;                  // "pp=16 dp=8 tp=8"
  std::vector<std::string> aliases;  // "dp = dp1 dp0"

  // Positions: the name of an axis or alias, or "0". Those of more than one rank are groups too.
  std::string dp = "0";
  std::string cp = "0";
  std::string tp = "0";
  std::string ep = "0";
  std::string etp = "0";

  // A group of ranks that share a weight, split into shards and, outside, replicas.
  struct Sharing {
    std::int64_t shards = 1;
    std::string position = "0";  // which shard
    std::string over;            // the group; empty if it has one rank
    std::string over_replicas;
  };
  Sharing dense;
  Sharing experts;

  // The blocks of tokens. Between the layers a rank has one: `tok` and `te` (its position on
  // `etp`) say which; attention has those of its context rank.
  std::int64_t toks = 1;  // size of the dimension `tok`
  std::int64_t tes = 1;   // of `te`; 1: there is no such dimension
  std::string block;      // "tok cp*4+tp +1 te 0 +1"
  std::string sequence;   // "tok cp*4 +4"
  std::int64_t blocks_of_sequence = 1;
  std::string sample;  // what `m` is added to, of the sample of microbatch m

  // The samples and blocks of the ranks that share all experts; of those, the ones whose `te` is
  // this rank's.
  std::string samples_at_experts;  // "sample dp1*32+m +4 by 8"
  std::string toks_at_experts;
  std::string te;  // "te etp +1"
};

}  // namespace shiplap::step
