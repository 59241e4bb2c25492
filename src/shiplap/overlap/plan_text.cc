#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/overlap/plan_writer_internal.h"
#include "shiplap/plan/text.h"

namespace shiplap::overlap {
namespace {

class Writer : protected PlanWriter {
 public:
  using PlanWriter::PlanWriter;

  std::string write() && {
    head();
    if (choice_.type == Type::all_gather) {
      gathered();
    } else {
      summed();
    }
    return std::move(text_);
  }

 private:
  // ---- X is gathered

  void gathered() {
    line("tensor X Activation tok {}", problem_.rows);
    line("tensor W Weight ff {}", ranks_);
    line("tensor Y Activation tok {} ff {}", problem_.rows, ranks_);
    line("program all on all");
    depth_ = 2;
    const std::string depth = std::to_string(problem_.depth);
    // A row that is multiplied by the weights of its group says which that is.
    const int more = problem_.groups == 0 ? 0 : kGroupBytes;
    buffer("x", std::to_string(problem_.rows), depth, problem_.x, more);
    const std::string own = "ff[tp+1]-ff[tp]";
    buffer("w", problem_.groups == 0 ? own : fmt::format("{}*({})", problem_.groups, own), depth,
           problem_.w);
    buffer("y", std::to_string(problem_.rows), "ff[tp+1]-ff[tp]", problem_.type);
    line("streams net");
    line("let inner = {}", problem_.depth);
    line("let wide = ff[tp+1]-ff[tp]");
    line("given x[tp of cut] = X tok cut[tp] +cut[tp+1]-cut[tp]");
    line("given w = W ff tp +1");
    line("goal x = X");
    line("goal y = Y tok 0 +{} ff tp +1", problem_.rows);
    if (choice_.method == Method::none) {
      line("all_gather x to x over tp split cut");
      line("compute gemm{}", product_of(std::to_string(problem_.rows)));
      access("reads", "x", "X");
      access("reads", "w", "W ff tp +1");
      line("  writes y = Y tok 0 +{} ff tp +1", problem_.rows);
      return;
    }
    ring();
  }

  // Chunks go to the next rank, each as soon as it is there; what arrives is multiplied.
  void ring() {
    repeat("s", ranks_ - 1, [&] {
      repeat("u", chunks_, [&] {
        line("let c = ((tp-s-1) mod {})*{}+u", ranks_, chunks_);
        line("r[s+1,u]: @net receive x[c of at] from tp-1 wrap tag u async");
      });
    });
    repeat("s", ranks_ - 1, [&] {
      repeat("u", chunks_, [&] {
        line("let c = ((tp-s) mod {})*{}+u", ranks_, chunks_);
        line("s[s,u]: @net send x[c of at] to tp+1 wrap tag u after r[s,u] async");
      });
    });
    // Its own rows are there, all of them.
    line("compute gemm{}{}", joined_, product_of("cut[tp+1]-cut[tp]"));
    access("reads", "x[tp of cut]", "X tok cut[tp] +cut[tp+1]-cut[tp]");
    access("reads", "w", "W ff tp +1");
    access("writes", "y[tp of cut]", "Y tok cut[tp] +cut[tp+1]-cut[tp] ff tp +1");
    repeat("s", ranks_ - 1, [&] {
      repeat("u", chunks_, [&] {
        line("let c = ((tp-s-1) mod {})*{}+u", ranks_, chunks_);
        line("compute gemm after r[s+1,u]{}{}", joined_, product_of("at[c+1]-at[c]"));
        access("reads", "x[c of at]", "X tok at[c] +at[c+1]-at[c]");
        access("reads", "w", "W ff tp +1");
        access("writes", "y[c of at]", "Y tok at[c] +at[c+1]-at[c] ff tp +1");
      });
    });
  }

  // ---- Y is summed

  void summed() {
    if (choice_.method == Method::pipeline && choice_.type == Type::reduce_scatter) stage_lists();
    line("tensor X Activation tok {} ff {}", problem_.rows, ranks_);
    line("tensor W Weight ff {}", ranks_);
    line("tensor Y Activation tok {} sum ff {}", problem_.rows, ranks_);
    if (choice_.method == Method::bulk) {
      line("tensor Z Activation row {} sum ff {}", cut_.back(), ranks_);
    }
    line("program all on all");
    depth_ = 2;
    const std::string rows = std::to_string(problem_.rows);
    const std::string columns = std::to_string(problem_.columns);
    buffer("x", rows, "ff[tp+1]-ff[tp]", problem_.x);
    buffer("w", std::to_string(problem_.columns * std::max(1, problem_.groups)), "ff[tp+1]-ff[tp]",
           problem_.w);
    buffer("y", rows, columns, problem_.type);
    if (scatters()) buffer("out", "cut[tp+1]-cut[tp]", summed_columns(), problem_.type);
    if (choice_.method == Method::bulk) {
      buffer("z", std::to_string(cut_.back()), summed_columns(), problem_.type);
    }
    if (choice_.method == Method::ring_exchange) {
      buffer("got", fmt::format("{}*(cut[tp+1]-cut[tp])", ranks_ - 1), columns, problem_.type);
      buffer("total", "cut[tp+1]-cut[tp]", columns, DType::f32);
    }
    line("streams net{}", choice_.method == Method::ring_exchange ? ", reduce" : "");
    line("let inner = ff[tp+1]-ff[tp]");
    line("let wide = {}", problem_.columns);
    line("given x = X tok 0 +{} ff tp +1", problem_.rows);
    line("given w = W ff tp +1");
    switch (choice_.method) {
      case Method::none:
        return one_by_one();
      case Method::bulk:
        return bulk();
      case Method::pipeline:
        return scatters() ? pipeline() : reduce_chunks();
      case Method::ring_exchange:
        return direct();
    }
  }

  void one_by_one() {
    goal();
    whole_product();
    if (choice_.type == Type::reduce_scatter) line("reduce_scatter y to out over tp split cut");
    if (choice_.type == Type::all_reduce) line("all_reduce y over tp");
  }

  void bulk() {
    line("goal out = Z row cut[tp] +cut[tp+1]-cut[tp]");
    line("goal y = Y sum ff tp +1");
    line("given z = Z sum ff tp +1");
    line("@net reduce_scatter z to out over tp split cut async");
    whole_product();
  }

  void pipeline() {
    goal();
    stage_tiles();
    for (int i = 0; i < chunks_; ++i) {
      const int first = i * ranks_;
      line(
          "@net reduce_scatter y[stage[{0}] +stage[{1}]-stage[{0}]] to "
          "out[at[tp*{2}+{3}]-cut[tp] +at[tp*{2}+{3}+1]-at[tp*{2}+{3}]] over tp split cut{3} "
          "after t[{3},{4}]",
          first, first + ranks_, chunks_, i, ranks_ - 1);
    }
  }

  void reduce_chunks() {
    goal();
    repeat("c", std::int64_t{ranks_} * chunks_, [&] { tile("t[c]", "y[c of at]"); });
    repeat("c", std::int64_t{ranks_} * chunks_,
           [&] { line("@net all_reduce y[c of at] over tp after t[c]"); });
  }

  // What others own is multiplied first and sent to them; what arrives is added in one order.
  void direct() {
    goal();
    line("let own = cut[tp+1]-cut[tp]");
    repeat("d", ranks_ - 1, [&] {
      repeat("u", chunks_, [&] {
        line("let c = tp*{}+u", chunks_);
        line(
            "g[d,u]: @net receive got[d*own+at[c]-cut[tp] +at[c+1]-at[c]] from tp-(d+1) wrap "
            "tag u async");
      });
    });
    repeat("d", ranks_, [&] {
      repeat("u", chunks_, [&] {
        line("let c = ((tp+d+1) mod {})*{}+u", ranks_, chunks_);
        tile("t[d,u]", "y[c of at]");
      });
    });
    repeat("d", ranks_ - 1, [&] {
      repeat("u", chunks_, [&] {
        line("let c = ((tp+d+1) mod {})*{}+u", ranks_, chunks_);
        line("s[d,u]: @net send y[c of at] to tp+(d+1) wrap tag u after t[d,u] async");
      });
    });
    reduce();
    if (choice_.type == Type::all_reduce) spread();
  }
  // First what has arrived, in the order in which it does, then what this rank has made, which is
  // ready last.
  void reduce() {
    const auto own_chunk = [&] {
      line("let c = tp*{}+u", chunks_);
      line("let n = at[c+1]-at[c]");
      line("let i = at[c]-cut[tp]");
    };
    for (int d = 0; d + 1 < ranks_; ++d) {
      repeat("u", chunks_, [&] {
        own_chunk();
        const std::string from = fmt::format("(tp-{}) mod {}", d + 1, ranks_);
        line("@reduce compute {} after g[{},u]{}", d == 0 ? "cast" : "add", d, conversion(d > 0));
        line("  reads got[{}*own+i +n] = Y tok at[c] +n sum ff {} +1", d, from);
        line("  {} total[i +n] = Y tok at[c] +n sum ff {} +1", d == 0 ? "writes" : "adds", from);
      });
    }
    repeat("u", chunks_, [&] {
      own_chunk();
      line("@reduce compute {} after t[{},u]{}", ranks_ == 1 ? "cast" : "add", ranks_ - 1,
           conversion(ranks_ > 1));
      line("  reads y[c of at] = Y tok at[c] +n sum ff tp +1");
      line("  {} total[i +n] = Y tok at[c] +n sum ff tp +1", ranks_ == 1 ? "writes" : "adds");
      line("e[u]: @reduce compute cast{}", conversion(false));
      line("  reads total[i +n] = Y tok at[c] +n");
      line("  writes {} = Y tok at[c] +n",
           choice_.type == Type::all_reduce ? "y[c of at]" : "out[i +n]");
    });
  }
};

void demand_within(std::string_view what, std::int64_t number, std::int64_t least,
                   std::int64_t most) {
  if (least <= number && number <= most) return;
  throw InputError(Diagnostic{.code = "D801",
                              .what = fmt::format("{}: {}", what, number),
                              .help = fmt::format("choose {} to {}", least, most)});
}

void demand_form(const char* what, const Form& form) {
  using enum DType;
  if (is_plain(form) || form.type == fp8_e4m3 || form.type == fp8_e5m2) return;
  throw InputError(Diagnostic{
      .code = "D801",
      .what = fmt::format("the codes of {} with scales: {}", what, shiplap::name(form.type)),
      .help = "choose fp8_e4m3 or fp8_e5m2"});
}

void demand_forms(const Choice& choice, const Problem& problem) {
  demand_form("X", problem.x);
  demand_form("W", problem.w);
  demand_form("sums", problem.sums);
  const bool has_sums = choice.type == Type::reduce_scatter || choice.type == Type::all_reduce;
  if (has_sums || is_plain(problem.sums)) return;
  throw InputError(Diagnostic{.code = "D801",
                              .what = fmt::format("scaled sums in {}", to_string(choice)),
                              .why = "no parts of sums travel",
                              .help = "leave out the form of sums"});
}

void demand_sense(const Choice& choice, const Problem& problem) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 2;
  demand_within("the number of ranks", problem.ranks, 1, 1024);
  demand_within("the number of chunks of a rank's rows", problem.chunks, 1, 4096);
  const bool gathers = choice.type == Type::all_gather;  // then columns are cut, else depth
  demand_within("the rows of X", problem.rows, 1, kMost);
  demand_within("the columns of W", problem.columns, gathers ? problem.ranks : 1, kMost);
  demand_within("the columns of X", problem.depth, gathers ? 1 : problem.ranks, kMost);
  // The plan states how many operations each tile takes, in 64 bits.
  const std::int64_t most_depth = (std::int64_t{1} << 61) / problem.rows / problem.columns;
  demand_within("the columns of X, with so many rows and columns of W", problem.depth, 0,
                most_depth);
  demand_within("the number of groups", problem.groups, 0, 65536);
  demand_within("the columns of all W", problem.columns, 0, kMost / std::max(1, problem.groups));
  demand_forms(choice, problem);
  if (choice.method != Method::bulk) return;
  demand_within("the rows of what is scattered", problem.bulk_rows, 0, kMost);
  demand_within("the columns of what is scattered", problem.bulk_columns, 0, kMost);
}

}  // namespace

Cuts chunks_of(std::int64_t rows, const Choice& choice, const Problem& problem) {
  const std::int64_t chunks = problem.chunks;
  if (problem.cut == Cut::even) return cuts_of(rows, chunks);
  // Rows of a tile of the processors that multiply bf16 fastest.
  constexpr std::int64_t kTile = 16;
  const std::int64_t all = chunks * (chunks + 1) / 2;
  const std::int64_t unit = 2 * rows >= kTile * all ? kTile : 1;
  Cuts cuts;
  for (std::int64_t k = 0; k <= chunks; ++k) {
    // Those before chunk k, if it is the smallest that comes first.
    const std::int64_t before = rows * (k * (k + 1) / 2) / all;
    cuts.push_back(k == chunks ? rows : (before + unit / 2) / unit * unit);
  }
  if (choice.type != Type::all_gather) return cuts;
  Cuts mirrored;
  for (const std::int64_t cut : cuts) mirrored.insert(mirrored.begin(), rows - cut);
  return mirrored;
}

std::string plan_text(const Choice& choice, const Problem& problem) {
  demand_legal(choice);
  demand_sense(choice, problem);
  if (choice.type != Type::all_gather && problem.sums.scaling != Scaling::none) {
    return CodedSums(choice, problem).write();
  }
  return Writer(choice, problem).write();
}

plan::Plan make_plan(const Choice& choice, const Problem& problem) {
  return plan::parse_text(plan_text(choice, problem), to_string(choice));
}

}  // namespace shiplap::overlap
