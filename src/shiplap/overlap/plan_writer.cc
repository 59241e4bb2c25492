#include <fmt/ranges.h>

#include <algorithm>

#include "shiplap/overlap/plan_writer_internal.h"

namespace shiplap::overlap {
namespace {

// The rows that are cut over ranks: those of the product, or of what is scattered beside it.
std::int64_t cut_rows(const Choice& choice, const Problem& problem) {
  return choice.method == Method::bulk && problem.bulk_rows != 0 ? problem.bulk_rows : problem.rows;
}

// Bytes of a number, without what belongs to many.
std::int64_t bytes_in(const Form& form, DType type) {
  return bytes_of(form.scaling == Scaling::none ? type : form.type);
}

}  // namespace

Cuts cuts_of(std::int64_t count, std::int64_t parts) {
  Cuts cuts;
  for (std::int64_t k = 0; k <= parts; ++k) {
    cuts.push_back(k * (count / parts) + std::min(k, count % parts));
  }
  return cuts;
}

PlanWriter::PlanWriter(const Choice& choice, const Problem& problem)
    : choice_(choice),
      problem_(problem),
      ranks_(problem.ranks),
      chunks_(problem.chunks),
      joined_(choice.atomic ? " joined" : ""),
      cut_(cuts_of(cut_rows(choice, problem), problem.ranks)) {
  for (std::size_t p = 0; p + 1 < cut_.size(); ++p) {
    Cuts within = chunks_of(cut_[p + 1] - cut_[p], choice, problem);
    within.pop_back();
    for (const std::int64_t begin : within) at_.push_back(cut_[p] + begin);
  }
  at_.push_back(cut_.back());
}

void PlanWriter::list(const std::string& name, const Cuts& entries) {
  line("list {} = {}", name, fmt::join(entries, " "));
}

void PlanWriter::buffer(const char* name, const std::string& rows, const std::string& width,
                        DType type) {
  line("buffer {} rows {} row_bytes {}*({}) {}", name, rows, bytes_of(type), width,
       shiplap::name(type));
}

void PlanWriter::buffer(const char* name, const std::string& rows, const std::string& width,
                        const Form& form, std::int64_t more) {
  const std::string behind = more == 0 ? "" : fmt::format("+{}", more);
  switch (form.scaling) {
    case Scaling::none:
      return line("buffer {} rows {} row_bytes {}*({}){} {}", name, rows, bytes_of(problem_.type),
                  width, behind, shiplap::name(problem_.type));
    case Scaling::row:
      return line("buffer {} rows {} row_bytes ({})+4{} {}", name, rows, width, behind,
                  shiplap::name(form.type));
    case Scaling::blocks:
      return line("buffer {0} rows {1} row_bytes ({2})+(({2})+31) div 32{3} {4}", name, rows, width,
                  behind, shiplap::name(form.type));
  }
}

void PlanWriter::access(const char* kind, const std::string& region, const std::string& value) {
  line("  {} {} = {}", kind, region, value);
}

std::string PlanWriter::product_of(const std::string& rows) const {
  const bool has_codes = problem_.x.scaling != Scaling::none && problem_.w.scaling != Scaling::none;
  const std::int64_t wide = bytes_of(problem_.type);
  const std::int64_t x = bytes_in(problem_.x, problem_.type);
  const std::int64_t w = bytes_in(problem_.w, problem_.type) * std::max(1, problem_.groups);
  const std::string bytes =
      x == wide && w == wide
          ? fmt::format("{1}*(({0})*(inner+wide)+inner*wide)", rows, wide)
          : fmt::format("({0})*({1}*inner+{2}*wide)+{3}*inner*wide", rows, x, wide, w);
  return fmt::format(" work gemm 2*({})*inner*wide flop {} bytes{}{}", rows, bytes,
                     has_codes ? " " : "", has_codes ? shiplap::name(problem_.x.type) : "");
}

std::string PlanWriter::conversion(bool adds) const {
  const std::int64_t bytes = bytes_in(problem_.sums, problem_.type) + (adds ? 8 : 4);
  return fmt::format(" work vector {}n*{}*{} bytes", adds ? "n*wide flop " : "",
                     choice_.method == Method::bulk ? summed_columns() : "wide", bytes);
}

std::string PlanWriter::summed_columns() const {
  const bool beside = choice_.method == Method::bulk && problem_.bulk_columns != 0;
  return std::to_string(beside ? problem_.bulk_columns : problem_.columns);
}

void PlanWriter::head() {
  line("shiplap-plan 1");
  line("# {}; {} x {} by {} x {}", to_string(choice_), problem_.rows, problem_.depth,
       problem_.depth, problem_.columns);
  line("mesh tp={}", ranks_);
  const bool gathers = choice_.type == Type::all_gather;
  list("cut", cut_);
  list("at", at_);
  list("ff", cuts_of(gathers ? problem_.columns : problem_.depth, ranks_));
}

void PlanWriter::goal() {
  const bool coded = problem_.sums.scaling != Scaling::none;
  if (choice_.type == Type::reduce_scatter) {
    line("goal out = Y tok cut[tp] +cut[tp+1]-cut[tp]");
  } else if (choice_.type == Type::all_reduce) {
    line("goal {} = Y", coded ? "out" : "y");
  } else {
    line("goal y = Y sum ff tp +1");
  }
}

void PlanWriter::whole_product(const char* name) {
  line("{}compute gemm{}", name, product_of(std::to_string(problem_.rows)));
  line("  reads x = X tok 0 +{} ff tp +1", problem_.rows);
  access("reads", "w", "W ff tp +1");
  access("writes", "y", "Y sum ff tp +1");
}

void PlanWriter::tile(const char* name, const std::string& into) {
  line("{}: compute gemm{}{}", name, joined_, product_of("at[c+1]-at[c]"));
  access("reads", "x[c of at]", "X tok at[c] +at[c+1]-at[c] ff tp +1");
  access("reads", "w", "W ff tp +1");
  access("writes", into, "Y tok at[c] +at[c+1]-at[c] sum ff tp +1");
}

void PlanWriter::stage_lists() {
  Cuts stage{0};
  for (int i = 0; i < chunks_; ++i) {
    Cuts within{0};
    for (int p = 0; p < ranks_; ++p) {
      const auto c = static_cast<std::size_t>(p * chunks_ + i);
      within.push_back(within.back() + at_[c + 1] - at_[c]);
      stage.push_back(stage.back() + at_[c + 1] - at_[c]);
    }
    list(fmt::format("cut{}", i), within);
  }
  list("stage", stage);
}

void PlanWriter::stage_tiles() {
  repeat("i", chunks_, [&] {
    repeat("p", ranks_, [&] {
      line("let c = p*{}+i", chunks_);
      tile("t[i,p]", fmt::format("y[i*{}+p of stage]", ranks_));
    });
  });
}

void PlanWriter::spread() {
  repeat("d", ranks_ - 1, [&] {
    repeat("u", chunks_, [&] {
      line("let c = ((tp+d+1) mod {})*{}+u", ranks_, chunks_);
      line("b[d,u]: @net receive y[c of at] from tp+(d+1) wrap tag {}+u after s[d,u] async",
           chunks_);
    });
  });
  repeat("u", chunks_, [&] {
    repeat("d", ranks_ - 1, [&] {
      line("let c = tp*{}+u", chunks_);
      line("f[d,u]: @net send y[c of at] to tp-(d+1) wrap tag {}+u after e[u] async", chunks_);
    });
  });
}

}  // namespace shiplap::overlap
