#include "shiplap/trace/spans.h"

#include <algorithm>
#include <cstddef>

namespace shiplap::trace {

Spans united(std::vector<Span> spans) {
  std::erase_if(spans, [](const Span& span) { return span.end <= span.begin; });
  const auto begins_earlier = [](const Span& a, const Span& b) { return a.begin < b.begin; };
  if (!std::ranges::is_sorted(spans, begins_earlier)) std::ranges::sort(spans, begins_earlier);
  std::size_t kept = 0;
  for (const Span& span : spans) {
    if (kept > 0 && span.begin <= spans[kept - 1].end) {
      spans[kept - 1].end = std::max(spans[kept - 1].end, span.end);
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
  return spans;
}

Spans without(const Spans& spans, const Spans& others) {
  Spans left;
  std::size_t k = 0;
  for (const Span& span : spans) {
    Seconds from = span.begin;
    while (k < others.size() && others[k].end <= from) ++k;
    // The last of them may overlap the next span, too, so `k` stays there.
    for (std::size_t i = k; i < others.size() && others[i].begin < span.end; ++i) {
      if (others[i].begin > from) left.push_back({.begin = from, .end = others[i].begin});
      from = std::max(from, others[i].end);
      k = i;
    }
    if (from < span.end) left.push_back({.begin = from, .end = span.end});
  }
  return left;
}

Spans within(const Spans& spans, const Span& window) {
  Spans left;
  for (const Span& span : spans) {
    const Span part{.begin = std::max(span.begin, window.begin),
                    .end = std::min(span.end, window.end)};
    if (part.begin < part.end) left.push_back(part);
  }
  return left;
}

Seconds length(const Spans& spans) {
  Seconds sum;
  for (const Span& span : spans) sum += span.length();
  return sum;
}

}  // namespace shiplap::trace
