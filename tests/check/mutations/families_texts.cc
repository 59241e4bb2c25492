// The plans in tests/check/plans, and the numbers that go into them.
#include <algorithm>
#include <utility>

#include "families_internal.h"
#include "shiplap/base/random.h"

namespace shiplap::mutations {
namespace {

std::string text(std::int64_t number) { return std::to_string(number); }

void add_data_parallel(std::vector<Sound>& all) {
  for (const int n : {2, 3, 4, 5, 8}) {
    for (const int m : {1, 2, 3, 4}) {
      for (const int l : {1, 2, 3}) {
        Substitutions substitutions = {
            {"n", text(n)},        {"m", text(m)}, {"l", text(l)}, {"b", text(std::int64_t{n} * m)},
            {"acts", text(l + 1)}, {"net", ""},    {"scale", ""}};
        all.push_back(from_text("zero_full", substitutions));
        all.push_back(from_text("accumulate", substitutions));
        substitutions["net"] = "@net";
        all.push_back(from_text("accumulate", substitutions));
        all.back().family = "accumulate_net";
        substitutions["scale"] = " scale 1/" + substitutions["b"];
        all.push_back(from_text("accumulate", substitutions));
        all.back().family = "accumulate_scale";
      }
    }
    for (const int l : {2, 3, 4, 5, 6, 7, 8, 9}) {
      all.push_back(from_text("prefetch", {{"n", text(n)}, {"l", text(l)}, {"acts", text(l + 1)}}));
    }
  }
}

// What each stage does in turn: forward (0) or backward (1), and of which microbatch.
struct Order {
  std::vector<std::int64_t> back;
  std::vector<std::int64_t> microbatch;
};

Order one_forward_one_backward(int stages, int microbatches) {
  Order order;
  for (int stage = 0; stage < stages; ++stage) {
    const int ahead = std::min(stages - stage, microbatches);
    int forward = 0;
    for (int backward = 0; backward < microbatches; ++backward) {
      while (forward < microbatches && forward < backward + ahead) {
        order.back.push_back(0);
        order.microbatch.push_back(forward++);
      }
      order.back.push_back(1);
      order.microbatch.push_back(backward);
    }
  }
  return order;
}

Order all_forward_then_backward(int stages, int microbatches) {
  Order order;
  for (int stage = 0; stage < stages; ++stage) {
    for (int k = 0; k < 2 * microbatches; ++k) {
      order.back.push_back(k / microbatches);
      order.microbatch.push_back(k % microbatches);
    }
  }
  return order;
}

void add_pipelines(std::vector<Sound>& all) {
  for (const int p : {2, 3, 4, 5, 6}) {
    for (const int m : {1, 2, 3, 4, 5, 6, 8}) {
      for (const bool turns : {false, true}) {
        const Order order =
            turns ? one_forward_one_backward(p, m) : all_forward_then_backward(p, m);
        all.push_back(from_text("pipeline", {{"p", text(p)},
                                             {"m", text(m)},
                                             {"acts", text(p + 1)},
                                             {"back", joined(order.back)},
                                             {"mb", joined(order.microbatch)}}));
        all.back().family = turns ? "pipeline_1f1b" : "pipeline_gpipe";
      }
    }
  }
  for (const int d : {1, 2, 3, 4}) {
    for (const int p : {2, 3, 4}) {
      for (const int m : {1, 2, 3, 4}) {
        all.push_back(from_text(
            "tied",
            {{"d", text(d)}, {"p", text(p)}, {"m", text(m)}, {"b", text(std::int64_t{d} * m)}}));
      }
    }
  }
}

void add_meshes(std::vector<Sound>& all) {
  for (const int d : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
    for (const int n : {2, 3, 4, 5, 6, 7, 8}) {
      const Substitutions substitutions = {{"d", text(d)}, {"n", text(n)}};
      if (d * n <= 36) all.push_back(from_text("sequence", substitutions));
      if (d * n <= 16) all.push_back(from_text("mesh3", substitutions));
    }
  }
}

void add_rings(std::vector<Sound>& all) {
  for (const int n : {2, 3, 4, 5, 6, 7, 8}) {
    for (const int t : {1, 2, 3, 4, 5, 6}) {
      all.push_back(
          from_text("ring_attention",
                    {{"n", text(n)}, {"t", text(t)}, {"tokens", text(std::int64_t{2} * n * t)}}));
      const Substitutions substitutions = {
          {"n", text(n)}, {"u", text(t)}, {"tokens", text(std::int64_t{n} * t)}};
      all.push_back(from_text("ring_gather", substitutions));
      all.push_back(from_text("scatter_tiles", substitutions));
      for (const int k : {1, 2, 3}) {
        all.push_back(from_text("shift", {{"n", text(n)}, {"k", text(k)}, {"c", text(t)}}));
      }
      for (const int k : {2, 3}) {
        all.push_back(from_text("tiles", {{"n", text(n)}, {"k", text(k)}, {"c", text(t)}}));
        if (n < 6)
          all.push_back(from_text("swap", {{"d", text(n - 1)}, {"k", text(k)}, {"c", text(t)}}));
      }
    }
  }
}

void add_collectives(std::vector<Sound>& all) {
  for (const int n : {2, 3, 4, 5, 6, 8}) {
    for (const int c : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
      all.push_back(from_text("root", {{"n", text(n)}, {"c", text(c)}, {"root", text(c % n)}}));
      all.push_back(from_text("bundle", {{"n", text(n)}, {"c", text(c)}, {"net", ""}}));
      all.push_back(from_text("bundle", {{"n", text(n)}, {"c", text(c)}, {"net", "@net"}}));
      if (n == 2) continue;
      std::string firsts = "0";
      for (int k = 1; k < n - 1; ++k) firsts += ", " + text(k);
      all.push_back(from_text("two_groups", {{"n", text(n)},
                                             {"c", text(c)},
                                             {"last", text(n - 1)},
                                             {"last2", text(n - 2)},
                                             {"firsts", firsts}}));
    }
  }
  Random random(7);
  for (int seed = 0; seed < 50; ++seed) {
    const std::int64_t n = 2 + seed % 6;
    std::vector<std::int64_t> cuts = {0};
    for (std::int64_t k = 0; k < n; ++k) cuts.push_back(cuts.back() + random.between(1, 5));
    all.push_back(from_text(
        "ragged", {{"n", text(n)}, {"tokens", text(cuts.back())}, {"cut", joined(cuts)}}));
    all.back().name += " seed=" + text(seed);
  }
}

// ---- experts

struct Routes {
  std::vector<std::int64_t> route;  // expert of each token
  std::vector<std::int64_t> pack;   // tokens of each rank, by expert
  std::vector<std::int64_t> order;  // the same as rows
  std::vector<std::int64_t> got;    // tokens of each expert's rank, in order of arrival
  std::vector<std::int64_t> at = {0};
  std::string messages;
  std::int64_t most = 1;
};

Routes routes_for(std::int64_t copies, std::int64_t experts, std::int64_t tokens, Random& random) {
  Routes routes;
  const std::int64_t ranks = copies * experts;
  for (std::int64_t k = 0; k < ranks * tokens; ++k) {
    routes.route.push_back(random.between(0, experts));
  }
  std::vector<std::vector<std::int64_t>> arrived(ranks);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t row = 0;
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const std::int64_t first = row;
      const std::int64_t peer = rank / experts * experts + expert;
      auto& there = arrived[peer];
      const std::int64_t into = std::ssize(there);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t token = rank * tokens + t;
        if (routes.route[token] != expert) continue;
        routes.pack.push_back(token);
        routes.order.push_back(t);
        there.push_back(token);
        ++row;
      }
      if (row > first) {
        routes.messages += "  message " + joined({rank, peer, first, row - first, into}) + "\n";
      }
    }
  }
  for (const auto& there : arrived) {
    routes.got.insert(routes.got.end(), there.begin(), there.end());
    routes.at.push_back(std::ssize(routes.got));
    routes.most = std::max(routes.most, std::ssize(there));
  }
  return routes;
}

}  // namespace

void add_experts(std::vector<Sound>& all) {
  Random random(11);
  for (int seed = 0; seed < 60; ++seed) {
    const std::int64_t copies = 1 + seed % 2;
    const std::int64_t experts = 2 + seed % 3;
    const std::int64_t tokens = 3 + seed % 5;
    const Routes routes = routes_for(copies, experts, tokens, random);
    all.push_back(from_text("expert", {{"d", text(copies)},
                                       {"n", text(experts)},
                                       {"t", text(tokens)},
                                       {"tokens", text(copies * experts * tokens)},
                                       {"route", joined(routes.route)},
                                       {"pack", joined(routes.pack)},
                                       {"order", joined(routes.order)},
                                       {"got", joined(routes.got)},
                                       {"at", joined(routes.at)},
                                       {"most", text(routes.most)},
                                       {"messages", routes.messages}}));
    all.back().name += " seed=" + text(seed);
  }
}

void add_texts(std::vector<Sound>& all) {
  add_data_parallel(all);
  add_pipelines(all);
  add_meshes(all);
  add_rings(all);
  add_collectives(all);
}

}  // namespace shiplap::mutations
