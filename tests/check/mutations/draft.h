// An unrolled plan that is being changed: its operations have marks, which stay when others come
// and go, and an operation can be taken out without untying the order of those around it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shiplap/check/check.h"
#include "shiplap/plan/plan.h"

namespace shiplap::mutations {

// Identifies one operation of one rank. Stored in Origin::line, which plan equality ignores.
using Mark = std::int32_t;

struct Line {
  std::int32_t rank = -1;
  std::int32_t index = -1;  // in the expansion
  Mark mark = 0;
  Mark batch = 0;  // whose member it is; 0: none
  plan::Operation* operation = nullptr;
};

class Draft {
 public:
  // `unrolled`: what plan::unrolled gives.
  explicit Draft(plan::Plan unrolled);
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  ~Draft() = default;

  plan::Plan plan;

  [[nodiscard]] std::int32_t ranks() const { return static_cast<std::int32_t>(lines_.size()); }
  [[nodiscard]] const std::vector<Line>& lines(std::int32_t rank) const { return lines_[rank]; }
  [[nodiscard]] std::vector<Line> all_lines() const;
  [[nodiscard]] const Line& line(Mark mark) const;
  [[nodiscard]] bool exists(Mark mark) const;
  // -1: a spare.
  [[nodiscard]] std::int32_t program_of(std::int32_t rank) const { return program_of_[rank]; }
  [[nodiscard]] plan::Program& program(std::int32_t rank) {
    return plan.programs[program_of(rank)];
  }
  [[nodiscard]] const plan::Program& program(std::int32_t rank) const {
    return plan.programs[program_of(rank)];
  }
  [[nodiscard]] std::vector<plan::Fact*> facts(std::int32_t rank, plan::Fact::Kind kind);
  [[nodiscard]] std::vector<const plan::Fact*> facts(std::int32_t rank,
                                                     plan::Fact::Kind kind) const;
  [[nodiscard]] check::OperationId place(Mark mark) const;

  // The name of an operation, which gets one if it has none.
  plan::Reference name_of(Mark mark);
  // What was ordered by this operation stays ordered.
  void erase(Mark mark);
  // Without a name; returns its mark.
  Mark insert_before(Mark mark, plan::Operation operation);
  Mark insert_after(Mark mark, plan::Operation operation);
  Mark append(std::int32_t rank, plan::Operation operation);
  // To just before `other`, of the same rank; keeps name, stream and order of those it leaves.
  void move_before(Mark mark, Mark other);
  // Also after all that `reference` is after, as far as it is valid at `mark`.
  void wait(Mark mark, const plan::Reference& reference);

  // After actions were replaced that have members.
  void refresh();

 private:
  struct Where {
    std::vector<plan::Statement>* body;
    std::size_t at;
  };
  [[nodiscard]] Where where(Mark mark);
  [[nodiscard]] const Line* stream_neighbour(Mark mark, int step) const;
  [[nodiscard]] std::vector<plan::Reference> starts_after(Mark mark);
  void untie(Mark mark);
  Mark insert(Where where, plan::Operation operation);

  std::vector<std::vector<Line>> lines_;
  std::vector<std::int32_t> program_of_;
  std::vector<std::pair<std::int32_t, std::size_t>> by_mark_;  // rank and index; -1: gone
  Mark next_ = 1;
};

}  // namespace shiplap::mutations
