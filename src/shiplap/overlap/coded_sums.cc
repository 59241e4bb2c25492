#include <algorithm>

#include "shiplap/overlap/plan_writer_internal.h"

namespace shiplap::overlap {
namespace {

// Rows i .. i+n of what this rank owns are those of Y (or of what is scattered in bulk) from
// `first` on.
std::string own_part(const Choice& choice) {
  return choice.method == Method::bulk ? "Z row first +n" : "Y tok first +n";
}

}  // namespace

std::string CodedSums::write() && {
  head();
  const bool staged = choice_.method == Method::pipeline;
  if (staged) stage_lists();
  declare();
  switch (choice_.method) {
    case Method::none:
      one_by_one();
      break;
    case Method::bulk:
      bulk();
      break;
    case Method::pipeline:
      pipeline();
      break;
    case Method::ring_exchange:
      direct();
      break;
  }
  return std::move(text_);
}

void CodedSums::declare() {
  const bool is_bulk = choice_.method == Method::bulk;
  const bool is_direct = choice_.method == Method::ring_exchange;
  line("tensor X Activation tok {} ff {}", problem_.rows, ranks_);
  line("tensor W Weight ff {}", ranks_);
  line("tensor Y Activation tok {} sum ff {}", problem_.rows, ranks_);
  if (is_bulk) line("tensor Z Activation row {} sum ff {}", cut_.back(), ranks_);
  line("program all on all");
  depth_ = 2;
  const std::string rows = std::to_string(problem_.rows);
  const std::string columns = summed_columns();
  const std::string own = "cut[tp+1]-cut[tp]";
  const std::string all = std::to_string(cut_.back());
  buffer("x", rows, "ff[tp+1]-ff[tp]", problem_.x);
  buffer("w", std::to_string(problem_.columns * std::max(1, problem_.groups)), "ff[tp+1]-ff[tp]",
         problem_.w);
  if (is_bulk) {
    buffer("y", rows, std::to_string(problem_.columns), problem_.type);
    buffer("z", all, columns, problem_.sums);
  } else {
    buffer("y", rows, columns, problem_.sums);
  }
  buffer("got", fmt::format("{}*({})", is_direct ? ranks_ - 1 : ranks_, own), columns,
         problem_.sums);
  if (is_direct) buffer("mine", own, columns, DType::f32);
  buffer("total", own, columns, DType::f32);
  buffer("out", scatters() ? own : all, columns, problem_.type);
  line("streams net, reduce");
  line("let inner = ff[tp+1]-ff[tp]");
  line("let wide = {}", problem_.columns);
  line("given x = X tok 0 +{} ff tp +1", problem_.rows);
  line("given w = W ff tp +1");
}

void CodedSums::name_own_chunk() {
  line("let c = tp*{}+u", chunks_);
  line("let first = at[c]");
  line("let n = at[c+1]-at[c]");
  line("let i = at[c]-cut[tp]");
}

// Parts of all ranks, which lie one behind the other, in the order of ranks.
void CodedSums::add_turned(const std::string& after) {
  const std::string part = own_part(choice_);
  for (int p = 0; p < ranks_; ++p) {
    line("@reduce compute {}{}{}", p == 0 ? "cast" : "add", p == 0 ? after : "", conversion(p > 0));
    line("  reads got[{}*i+{}*n +n] = {} sum ff {} +1", ranks_, p, part, p);
    line("  {} total[i +n] = {} sum ff {} +1", p == 0 ? "writes" : "adds", part, p);
  }
}

// The sums of own rows, rounded.
void CodedSums::close_own(const std::string& into) {
  line("{}@reduce compute cast{}", choice_.type == Type::all_reduce ? "e[u]: " : "",
       conversion(false));
  line("  reads total[i +n] = {}", own_part(choice_));
  line("  writes {} = {}", into, own_part(choice_));
}

// Rows of all_reduce as everybody gets them, the owner as well.
void CodedSums::decode(const std::string& after, const std::string& region,
                       const std::string& rows) {
  line("@reduce compute cast{}{}", after, conversion(false));
  line("  reads {} = Y tok {}", region, rows);
  line("  writes out[c of at] = Y tok {}", rows);
}

void CodedSums::one_by_one() {
  goal();
  whole_product("p: ");
  line("r: @net all_to_all y to got over tp split cut after p");
  line("let u = 0");
  line("let first = cut[tp]");
  line("let n = cut[tp+1]-cut[tp]");
  line("let i = 0");
  add_turned(" after r");
  if (scatters()) return close_own("out");
  close_own("y[tp of cut]");
  line("g: @net all_gather y to y over tp split cut after e[0]");
  line("@reduce compute cast after g work vector {}*wide*{} bytes", problem_.rows,
       1 + bytes_of(problem_.type));
  line("  reads y = Y");
  line("  writes out = Y");
}

void CodedSums::bulk() {
  line("goal out = Z row cut[tp] +cut[tp+1]-cut[tp]");
  line("goal y = Y sum ff tp +1");
  line("given z = Z sum ff tp +1");
  line("r: @net all_to_all z to got over tp split cut");
  whole_product();
  line("let first = cut[tp]");
  line("let n = cut[tp+1]-cut[tp]");
  line("let i = 0");
  add_turned(" after r");
  close_own("out");
}

// What is turned of chunk i is followed by that of chunk i+1 before the sums of chunk i are
// gathered, so that nothing waits for sums that are still made.
void CodedSums::pipeline() {
  goal();
  stage_tiles();
  const auto region = [&](int i) {
    return fmt::format("y[stage[{0}] +stage[{1}]-stage[{0}]]", i * ranks_, (i + 1) * ranks_);
  };
  const auto turn = [&](int i) {
    line(
        "r[{3}]: @net all_to_all {0} to got[{1}*(at[tp*{2}+{3}]-cut[tp]) "
        "+{1}*(at[tp*{2}+{3}+1]-at[tp*{2}+{3}])] over tp split cut{3} after t[{3},{4}]",
        region(i), ranks_, chunks_, i, ranks_ - 1);
  };
  const auto sums = [&](int i) {
    repeat("v", 1, [&] {
      line("let u = v+{}", i);
      name_own_chunk();
      add_turned(" after r[u]");
      close_own(scatters() ? "out[i +n]" : fmt::format("y[u*{}+tp of stage]", ranks_));
    });
    if (scatters()) return;
    line("q[{0}]: @net all_gather {1} to {1} over tp split cut{0} after e[{0}]", i, region(i));
  };
  const auto decoded = [&](int i) {
    repeat("p", ranks_, [&] {
      line("let c = p*{}+{}", chunks_, i);
      line("let n = at[c+1]-at[c]");
      decode(fmt::format(" after q[{}]", i), fmt::format("y[{}+p of stage]", i * ranks_),
             "at[c] +n");
    });
  };
  for (int i = 0; i < chunks_ + 2; ++i) {
    if (i < chunks_) turn(i);
    if (i >= 1 && i <= chunks_) sums(i - 1);
    if (i >= 2 && !scatters()) decoded(i - 2);
  }
}

// What others own is multiplied first and sent to them; what this rank owns is never coded.
void CodedSums::direct() {
  goal();
  line("let own = cut[tp+1]-cut[tp]");
  repeat("d", ranks_ - 1, [&] {
    repeat("u", chunks_, [&] {
      name_own_chunk();
      line("g[d,u]: @net receive got[d*own+i +n] from tp-(d+1) wrap tag u async");
    });
  });
  repeat("d", ranks_ - 1, [&] {
    repeat("u", chunks_, [&] {
      line("let c = ((tp+d+1) mod {})*{}+u", ranks_, chunks_);
      tile("t[d,u]", "y[c of at]");
    });
  });
  repeat("u", chunks_, [&] {
    name_own_chunk();
    tile("o[u]", "mine[i +n]");
  });
  repeat("d", ranks_ - 1, [&] {
    repeat("u", chunks_, [&] {
      line("let c = ((tp+d+1) mod {})*{}+u", ranks_, chunks_);
      line("s[d,u]: @net send y[c of at] to tp+(d+1) wrap tag u after t[d,u] async");
    });
  });
  for (int d = 0; d + 1 < ranks_; ++d) {
    repeat("u", chunks_, [&] {
      name_own_chunk();
      const std::string from = fmt::format("(tp-{}) mod {}", d + 1, ranks_);
      line("@reduce compute {} after g[{},u]{}", d == 0 ? "cast" : "add", d, conversion(d > 0));
      line("  reads got[{}*own+i +n] = Y tok first +n sum ff {} +1", d, from);
      line("  {} total[i +n] = Y tok first +n sum ff {} +1", d == 0 ? "writes" : "adds", from);
    });
  }
  repeat("u", chunks_, [&] {
    name_own_chunk();
    line("@reduce compute {} after o[u] work vector {}n*wide*{} bytes",
         ranks_ == 1 ? "cast" : "add", ranks_ == 1 ? "" : "n*wide flop ", ranks_ == 1 ? 8 : 12);
    line("  reads mine[i +n] = Y tok first +n sum ff tp +1");
    line("  {} total[i +n] = Y tok first +n sum ff tp +1", ranks_ == 1 ? "writes" : "adds");
    close_own(scatters() ? "out[i +n]" : "y[c of at]");
    if (!scatters()) decode("", "y[c of at]", "first +n");
  });
  if (scatters()) return;
  spread();
  decode_arrivals();
}

void CodedSums::decode_arrivals() {
  repeat("d", ranks_ - 1, [&] {
    repeat("u", chunks_, [&] {
      line("let c = ((tp+d+1) mod {})*{}+u", ranks_, chunks_);
      line("let n = at[c+1]-at[c]");
      decode(" after b[d,u]", "y[c of at]", "at[c] +n");
    });
  });
}

}  // namespace shiplap::overlap
