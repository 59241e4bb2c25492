// What all plans of overlaps are written with.
//
// Every plan is one program for all ranks. The rows of rank p are those from cut[p] on; they are
// cut into chunks, of which chunk c = p*S + u has the rows from at[c] on. Empty chunks are there as
// well: an empty message costs little, and all ranks agree on it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shiplap/overlap/overlap.h"

namespace shiplap::overlap {

using Cuts = std::vector<std::int64_t>;

// Where `parts` parts of `count` things begin, and the end.
[[nodiscard]] Cuts cuts_of(std::int64_t count, std::int64_t parts);

class PlanWriter {
 public:
  PlanWriter(const Choice& choice, const Problem& problem);

 protected:
  template <class... Words>
  void line(fmt::format_string<Words...> format, Words&&... words) {
    text_ += std::string(depth_, ' ') + fmt::format(format, std::forward<Words>(words)...) + "\n";
  }
  template <class Body>
  void repeat(const char* variable, std::int64_t times, const Body& body) {
    line("repeat {} {}", variable, times);
    depth_ += 2;
    body();
    depth_ -= 2;
    line("end");
  }
  void list(const std::string& name, const Cuts& entries);
  // Numbers of `type`, one after the other.
  void buffer(const char* name, const std::string& rows, const std::string& width, DType type);
  // Numbers of the problem's type unless the form has a scale; `more` bytes behind each row.
  void buffer(const char* name, const std::string& rows, const std::string& width, const Form& form,
              std::int64_t more = 0);
  // What the rows of a region are, in a statement.
  void access(const char* kind, const std::string& region, const std::string& value);

  // What it costs to multiply so many rows. Every tile reads all of the weights.
  [[nodiscard]] std::string product_of(const std::string& rows) const;
  // To take n rows over into f32, to add them to others there, or to round those.
  [[nodiscard]] std::string conversion(bool adds) const;

  [[nodiscard]] bool scatters() const { return choice_.type == Type::reduce_scatter; }
  // The columns of what is summed: in bulk it may be another matrix than the product.
  [[nodiscard]] std::string summed_columns() const;

  void head();
  void goal();
  // The product in one piece, of which this rank has all factors.
  void whole_product(const char* name = "");
  // Chunk c of it, into these rows.
  void tile(const char* name, const std::string& into);
  // Chunk i of a pipeline is chunk i of every rank. They lie together in y: that of rank p from
  // stage[i*P + p] on.
  void stage_lists();
  void stage_tiles();
  // The sums of own rows go to everybody; what was sent from the rows of others has left by then.
  void spread();

  Choice choice_;
  Problem problem_;
  int ranks_;
  int chunks_;
  const char* joined_;
  Cuts cut_;  // by rank
  Cuts at_;   // by chunk
  std::size_t depth_ = 0;
  std::string text_;
};

// Y is summed, and its parts travel as FP8 with their scales: nothing can be added on the way, so
// that owners get all parts of their rows and add them up in f32.
class CodedSums : protected PlanWriter {
 public:
  using PlanWriter::PlanWriter;
  [[nodiscard]] std::string write() &&;

 private:
  void declare();
  void one_by_one();
  void bulk();
  void pipeline();
  void direct();
  void add_turned(const std::string& after);
  void name_own_chunk();
  void decode(const std::string& after, const std::string& region, const std::string& rows);
  void close_own(const std::string& into);
  void decode_arrivals();
};

}  // namespace shiplap::overlap
