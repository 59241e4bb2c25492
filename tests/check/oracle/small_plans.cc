#include "small_plans.h"

#include <algorithm>

namespace shiplap::oracle {
namespace {

using Word = std::vector<std::size_t>;  // letters

// All words of up to `longest` letters.
std::vector<Word> words(std::size_t letters, std::size_t longest) {
  std::vector<Word> all{{}};
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (all[k].size() == longest) continue;
    for (std::size_t letter = 0; letter < letters; ++letter) {
      Word next = all[k];
      next.push_back(letter);
      all.push_back(std::move(next));
    }
  }
  return all;
}

// The first among its turns.
bool is_first_turn(const std::vector<std::size_t>& chosen) {
  std::vector<std::size_t> turned = chosen;
  for (std::size_t k = 0; k < chosen.size(); ++k) {
    std::ranges::rotate(turned, turned.begin() + 1);
    if (turned < chosen) return false;
  }
  return true;
}

bool is_wanted(const Family& family, const std::vector<std::size_t>& chosen) {
  switch (family.symmetry) {
    case Family::Symmetry::none:
      return true;
    case Family::Symmetry::rotation:
      return is_first_turn(chosen);
    case Family::Symmetry::equal:
      return std::ranges::all_of(chosen, [&](std::size_t k) { return k == chosen[0]; });
  }
  return true;
}

std::string text(const Family& family, const Word& word) {
  std::string all;
  for (std::size_t k = 0; k < word.size(); ++k) {
    for (const char c : family.letters[word[k]]) {
      // Operation 0 has none before it: `o[-1]` does not occur, and is no dependency.
      if (c == '#') {
        all += std::to_string(k);
      } else if (c == '$') {
        all += "-1+" + std::to_string(k);
      } else {
        all += c;
      }
    }
    all += "\n";
  }
  return all;
}

std::string text(const Family& family, const std::vector<const Word*>& words) {
  std::string all = "shiplap-plan 1\nmesh tp=" + std::to_string(words.size()) + "\n" + family.head;
  for (std::size_t rank = 0; rank < words.size(); ++rank) {
    const std::string name = std::to_string(rank);
    all += "program p" + name + " on rank=" + name + "\n" + family.body;
    all += text(family, *words[rank]);
  }
  return all;
}

const char* const kTwoBuffers =
    "  buffer x rows 1 row_bytes 8 bf16\n  buffer y rows 1 row_bytes 8 bf16\n"
    "  streams net\n  given x = X\n";

Family messages() {
  return {.name = "messages",
          .head = "tensor X Activation\n",
          .body = kTwoBuffers,
          .letters = {"  send x to tp+1 wrap", "  receive y from tp-1 wrap",
                      "  send x to tp-1 wrap", "  receive y from tp+1 wrap"}};
}

// Ranks 0 and 1 are in both groups.
Family collectives() {
  return {.name = "collectives",
          .head = "tensor X Activation sum k 3\n",
          .body = "  buffer x rows 1 row_bytes 8 bf16\n  given x = X sum k tp +1\n",
          .letters = {"  barrier over tp", "  when tp<2\n  barrier over ranks{0, 1}/b\n  end",
                      "  all_reduce x over tp/c", "  all_gather x over tp{tp}"},
          .symmetry = Family::Symmetry::none};
}

Family waits() {
  return {.name = "waits",
          .head = "tensor X Activation\n",
          .body = kTwoBuffers,
          .letters = {"  o[#]: @net send x to tp+1 wrap async",
                      "  o[#]: @net receive y from tp-1 wrap async",
                      "  o[#]: compute other after o[$]\n    writes x = X",
                      "  o[#]: compute other after o[$]\n    reads y = X",
                      "  o[#]: compute other\n    reads x = X"}};
}

Family values() {
  return {
      .name = "values",
      .head = "tensor G WeightGrad sum k 2\n",
      .body = "  buffer g rows 1 row_bytes 8 f32\n  buffer h rows 1 row_bytes 8 f32\n",
      .letters = {"  compute zero\n    writes g = G sum none",
                  "  compute make\n    adds g = G sum k tp +1", "  all_reduce g over tp",
                  "  copy g to h", "  allocate h", "  free h", "  compute use\n    reads h = G"}};
}

Family batches() {
  return {.name = "batches",
          .head = "tensor X Activation\n",
          .body = kTwoBuffers,
          .letters = {"  batch\n    send x to tp+1 wrap\n    receive y from tp-1 wrap\n  end",
                      "  batch async\n    receive y from tp-1 wrap\n    barrier over tp\n  end",
                      "  @net send x to tp+1 wrap async", "  receive y from tp-1 wrap"}};
}

Family masks() {
  return {.name = "masks",
          .head = "tensor O Output tok 2 sum key 2 mask key<=tok\n",
          .body = "  buffer o rows 2 row_bytes 8 f32\n  buffer p rows 1 row_bytes 8 f32\n",
          .letters = {"  compute make\n    writes o = O sum key 0 +1",
                      "  compute make\n    writes o = O sum key tp +1",
                      "  compute make\n    adds o = O sum key 1 +1",
                      "  compute make\n    adds o[1 +1] = O tok 1 +1 sum key 1 +1",
                      "  all_reduce o over tp", "  compute norm\n    reads o = O",
                      "  compute norm\n    reads o[0 +1] = O tok 0 +1 sum key 0 +1",
                      "  copy o[1 +1] to p\n  copy p to o[1 +1] add"}};
}

// Rank 0 has one row of three, rank 1 two.
Family pieces() {
  return {
      .name = "pieces",
      .head = "list cut = 0 1 3\nlist other = 0 2 3\ntensor Y Output tok 3 sum k 2\n",
      .body =
          "  buffer y rows 3 row_bytes 8 f32\n  buffer x rows 2 row_bytes 8 f32\n"
          "  let n = cut[tp+1]-cut[tp]\n  given y = Y sum k tp +1\n",
      .letters = {"  reduce_scatter y to x[0 +n] over tp split cut",
                  "  all_gather x[0 +n] to y over tp split cut", "  all_gather y over tp split cut",
                  "  reduce_scatter y over tp split other", "  compute norm\n    reads y = Y",
                  "  broadcast y over tp root 1", "  reduce y over tp", "  all_to_all x over tp",
                  "  compute norm\n    reads x[0 +n] = Y tok cut[tp] +n"}};
}

Family laws() {
  const std::string forward =
      "  compute forward\n    reads a[0 +1] = A[0] sample 0 +1\n    reads w = W[0]\n";
  const std::string backward =
      "    reads d = D[1] sample 0 +1\n    reads w = W[0]\n    adds g = G[0] sum sample 0 +1";
  return {.name = "laws",
          .head =
              "tensor A[3] Activation sample 2\ntensor D[3] ActivationGrad sample 2\n"
              "tensor W[2] Weight\ntensor G[2] WeightGrad sum sample 2 scale 1/2\n",
          .body =
              "  buffer a rows 2 row_bytes 8 bf16\n  buffer d rows 1 row_bytes 8 bf16\n"
              "  buffer w rows 1 row_bytes 8 bf16\n  buffer g rows 1 row_bytes 8 f32\n"
              "  given w = W[0]\n  given a[0 +1] = A[0] sample 0 +1\n"
              "  given a[1 +1] = A[1] sample 0 +1\n  given d = D[1] sample 0 +1\n"
              "  given g = G[0] sum sample 1 +1\n",
          .letters = {forward + "    writes a[1 +1] = A[1] sample 0 +1",
                      forward + "    writes a[1 +1] = A[1] sample 1 +1",
                      "  compute loss\n    reads a[1 +1] = A[1] sample 0 +1\n"
                      "    writes d = D[1] sample 0 +1",
                      "  compute backward\n    reads a[0 +1] = A[0] sample 0 +1\n" + backward,
                      "  compute backward\n    reads a[1 +1] = A[1] sample 0 +1\n" + backward,
                      "  compute scale\n    reads g = G[0]\n    writes g = G[0] scale 1/2",
                      "  compute update\n    reads g = G[0] scale 1/2\n    reads w = W[0]\n"
                      "    writes w = new W[0]",
                      "  compute update\n    reads g = G[0]\n    reads w = W[0]\n"
                      "    writes w = new W[0]"}};
}

// The same with other ranks, lengths and symmetries.
Family with(Family family, std::size_t ranks, std::size_t longest, Family::Symmetry symmetry) {
  family.ranks = ranks;
  family.longest = longest;
  family.symmetry = symmetry;
  return family;
}

}  // namespace

std::vector<Family> families() {
  using Symmetry = Family::Symmetry;
  Family pair = collectives();
  pair.letters[1] = "  barrier over tp{1, 0}";
  return {with(messages(), 2, 3, Symmetry::rotation), with(messages(), 3, 2, Symmetry::rotation),
          with(pair, 2, 3, Symmetry::none),           with(collectives(), 3, 2, Symmetry::none),
          with(waits(), 2, 2, Symmetry::rotation),    with(waits(), 2, 4, Symmetry::equal),
          with(values(), 2, 2, Symmetry::rotation),   with(values(), 2, 4, Symmetry::equal),
          with(batches(), 2, 3, Symmetry::rotation),  with(batches(), 3, 2, Symmetry::rotation),
          with(masks(), 2, 1, Symmetry::none),        with(masks(), 2, 3, Symmetry::equal),
          with(pieces(), 2, 1, Symmetry::none),       with(pieces(), 2, 3, Symmetry::equal),
          with(laws(), 1, 3, Symmetry::equal)};
}

void for_each_plan(const Family& family, const std::function<void(const std::string&)>& look) {
  const std::vector<Word> all = words(family.letters.size(), family.longest);
  std::vector<std::size_t> chosen(family.ranks, 0);
  for (bool more = true; more;) {
    if (is_wanted(family, chosen)) {
      std::vector<const Word*> programs;
      for (const std::size_t k : chosen) programs.push_back(&all[k]);
      look(text(family, programs));
    }
    more = false;
    for (std::size_t k = chosen.size(); k-- > 0 && !more;) {
      more = ++chosen[k] < all.size();
      if (!more) chosen[k] = 0;
    }
  }
}

}  // namespace shiplap::oracle
