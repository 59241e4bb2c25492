#include "draft.h"

#include <algorithm>
#include <utility>

#include "shiplap/base/error.h"

namespace shiplap::mutations {

using plan::Batch;
using plan::Fact;
using plan::Operation;
using plan::Reference;
using plan::Statement;

Draft::Draft(plan::Plan unrolled) : plan(std::move(unrolled)) {
  program_of_.assign(plan.mesh.ranks(), -1);
  for (std::size_t k = 0; k < plan.programs.size(); ++k) {
    const auto rank = plan.programs[k].on.terms.front().positions.front().first;
    program_of_[rank] = static_cast<std::int32_t>(k);
    for (Statement& statement : plan.programs[k].body) {
      auto* operation = std::get_if<Operation>(&statement.node);
      if (operation == nullptr) continue;
      operation->origin.line = next_++;
      if (auto* batch = std::get_if<Batch>(&operation->action)) {
        for (Statement& member : batch->body) {
          std::get<Operation>(member.node).origin.line = next_++;
        }
      }
    }
  }
  refresh();
}

void Draft::refresh() {
  lines_.assign(program_of_.size(), {});
  by_mark_.assign(next_, {-1, 0});
  for (std::int32_t rank = 0; rank < ranks(); ++rank) {
    if (program_of(rank) < 0) continue;
    auto& lines = lines_[rank];
    const auto add = [&](Operation& operation, Mark batch) {
      by_mark_[operation.origin.line] = {rank, lines.size()};
      lines.push_back({.rank = rank,
                       .index = static_cast<std::int32_t>(lines.size()),
                       .mark = operation.origin.line,
                       .batch = batch,
                       .operation = &operation});
    };
    for (Statement& statement : program(rank).body) {
      auto* operation = std::get_if<Operation>(&statement.node);
      if (operation == nullptr) continue;
      add(*operation, 0);
      if (auto* batch = std::get_if<Batch>(&operation->action)) {
        for (Statement& member : batch->body) {
          add(std::get<Operation>(member.node), operation->origin.line);
        }
      }
    }
  }
}

std::vector<Line> Draft::all_lines() const {
  std::vector<Line> all;
  for (const auto& lines : lines_) all.insert(all.end(), lines.begin(), lines.end());
  return all;
}

bool Draft::exists(Mark mark) const {
  return mark > 0 && mark < next_ && by_mark_[mark].first >= 0;
}

const Line& Draft::line(Mark mark) const {
  ensure(exists(mark), "marks name operations that are there");
  const auto [rank, index] = by_mark_[mark];
  return lines(rank)[index];
}

std::vector<const Fact*> Draft::facts(std::int32_t rank, Fact::Kind kind) const {
  std::vector<const Fact*> found;
  if (program_of(rank) < 0) return found;
  for (const Statement& statement : program(rank).body) {
    const auto* fact = std::get_if<Fact>(&statement.node);
    if (fact != nullptr && fact->kind == kind) found.push_back(fact);
  }
  return found;
}

std::vector<Fact*> Draft::facts(std::int32_t rank, Fact::Kind kind) {
  std::vector<Fact*> found;
  if (program_of(rank) < 0) return found;
  for (Statement& statement : program(rank).body) {
    auto* fact = std::get_if<Fact>(&statement.node);
    if (fact != nullptr && fact->kind == kind) found.push_back(fact);
  }
  return found;
}

check::OperationId Draft::place(Mark mark) const {
  return {.rank = line(mark).rank, .operation = line(mark).index};
}

Draft::Where Draft::where(Mark mark) {
  const Line& found = line(mark);
  auto* body = &program(found.rank).body;
  if (found.batch != 0) body = &std::get<Batch>(line(found.batch).operation->action).body;
  const auto at = std::ranges::find_if(*body, [&](const Statement& statement) {
    const auto* operation = std::get_if<Operation>(&statement.node);
    return operation != nullptr && operation->origin.line == mark;
  });
  return {body, static_cast<std::size_t>(at - body->begin())};
}

Reference Draft::name_of(Mark mark) {
  Operation& operation = *line(mark).operation;
  if (operation.name.name.empty()) operation.name = {.name = "mark", .indices = {mark}};
  return operation.name;
}

const Line* Draft::stream_neighbour(Mark mark, int step) const {
  const Line& self = line(mark);
  for (auto k = self.index + step; k >= 0 && k < std::ssize(lines(self.rank)); k += step) {
    const Line& other = lines(self.rank)[k];
    if (other.batch == 0 && other.operation->stream == self.operation->stream) return &other;
  }
  return nullptr;
}

// What must be complete before it starts.
std::vector<Reference> Draft::starts_after(Mark mark) {
  std::vector<Reference> all = line(mark).operation->after;
  if (const Line* before = stream_neighbour(mark, -1)) {
    if (before->operation->async) {
      const auto more = starts_after(before->mark);
      all.insert(all.end(), more.begin(), more.end());
    } else {
      all.push_back(name_of(before->mark));
    }
  }
  return all;
}

void Draft::wait(Mark mark, const Reference& reference) {
  Operation& operation = *line(mark).operation;
  if (std::ranges::find(operation.after, reference) == operation.after.end()) {
    operation.after.push_back(reference);
  }
}

// Operations that waited for it inherit its dependencies.
void Draft::untie(Mark mark) {
  const Operation& gone = *line(mark).operation;
  const Reference name = gone.name;
  const std::vector<Reference> waited = gone.after;
  if (const Line* next = stream_neighbour(mark, +1)) {
    for (const Reference& reference : waited) wait(next->mark, reference);
  }
  if (name.name.empty()) return;
  const std::vector<Reference> instead = starts_after(mark);
  for (const Line& other : lines(line(mark).rank)) {
    if (std::erase(other.operation->after, name) == 0) continue;
    for (const Reference& reference : instead) wait(other.mark, reference);
  }
}

void Draft::erase(Mark mark) {
  const Mark batch = line(mark).batch;
  if (batch == 0) untie(mark);
  const Where found = where(mark);
  found.body->erase(found.body->begin() + static_cast<std::ptrdiff_t>(found.at));
  const bool emptied = batch != 0 && found.body->empty();
  refresh();
  if (emptied) erase(batch);
}

Mark Draft::insert(Where where, Operation operation) {
  const Mark mark = next_++;
  operation.origin.line = mark;
  if (auto* batch = std::get_if<Batch>(&operation.action)) {
    for (Statement& member : batch->body) std::get<Operation>(member.node).origin.line = next_++;
  }
  where.body->insert(where.body->begin() + static_cast<std::ptrdiff_t>(where.at),
                     {std::move(operation)});
  refresh();
  return mark;
}

Mark Draft::insert_before(Mark mark, Operation operation) {
  operation.name = {};
  return insert(where(mark), std::move(operation));
}

Mark Draft::insert_after(Mark mark, Operation operation) {
  operation.name = {};
  const Where found = where(mark);
  return insert({found.body, found.at + 1}, std::move(operation));
}

Mark Draft::append(std::int32_t rank, Operation operation) {
  operation.name = {};
  auto& body = program(rank).body;
  return insert({&body, body.size()}, std::move(operation));
}

void Draft::move_before(Mark mark, Mark other) {
  const Where from = where(mark);
  Statement moved = (*from.body)[from.at];
  from.body->erase(from.body->begin() + static_cast<std::ptrdiff_t>(from.at));
  const Where to = where(other);
  to.body->insert(to.body->begin() + static_cast<std::ptrdiff_t>(to.at), std::move(moved));
  refresh();
}

}  // namespace shiplap::mutations
