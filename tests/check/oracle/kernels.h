// Kernels, executed: what a computation writes follows from what it found, its name, and the cells
// that it is asked for. What it states is held against that.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "numbers.h"

namespace shiplap::oracle {

// A region that a kernel reads, and what was found there.
struct Found {
  const plan::flat::Value* value = nullptr;
  std::vector<Row> rows;
};

// All that a kernel read of one tensor, instance and version, put together: several regions, the
// rows of a cell.
struct ReadTensor {
  const plan::Tensor* tensor = nullptr;
  std::int64_t instance = 0;
  bool is_new = false;
  std::map<Coordinates, Coefficients> cells;     // what is there, by part
  std::vector<const plan::flat::Value*> values;  // one for each region
  std::vector<std::map<Coordinates, Coefficients>> cells_of_region;
};

// One computation: its name, what it read, what it states to write.
struct Execution {
  const plan::RankProgram* program = nullptr;
  std::string kernel;
  std::vector<ReadTensor> reads;
  std::vector<const plan::flat::Access*> writes;  // and adds

  [[nodiscard]] const plan::Tensor& tensor(const plan::flat::Value& value) const {
    return program->plan->tensors[value.tensor];
  }
};

// Breaks a rule if what it states to write is not what it computes.
void execute(const plan::RankProgram& program, const plan::flat::Operation& op,
             const std::vector<Found>& reads, Rules& rules);

// ---- the parts of it

// The kinds, layers and versions of the operands, and the scales at which they are read.
void check_signature(const Execution& run, Rules& rules);
// Whether a read adds nothing; whether it is of the instance that is written.
[[nodiscard]] bool is_nothing(const ReadTensor& read);
[[nodiscard]] bool is_for(const Execution& run, const ReadTensor& read,
                          const plan::flat::Access& write);
// `add`, `cast`, `scale`
void execute_linear(const Execution& run, const plan::flat::Access& write, Rules& rules);
// forward, loss, backward, update and all that have no rule of their own
void execute_contraction(const Execution& run, const plan::flat::Access& write, Rules& rules);

// Where the dimension is in the tensor, among those of its part and then of its sum; -1: nowhere.
[[nodiscard]] int find_dimension(const plan::Tensor& tensor, const std::string& name);

// The stated cells of a write, each once.
[[nodiscard]] std::map<Coordinates, Coefficients> stated_cells(const Execution& run,
                                                               const plan::flat::Access& write);

// How often a region names a cell, counting repeats of the given dimensions only.
[[nodiscard]] std::int64_t repeats(const Execution& run, const plan::flat::Value& value,
                                   const Coordinates& part, const std::vector<bool>& counted);

}  // namespace shiplap::oracle
