// Small plans that can be expanded everywhere, as text.
#include <string>
#include <vector>

#include "random_plan.h"
#include "shiplap/base/random.h"

namespace shiplap::plan {
namespace {

class SoundText {
 public:
  explicit SoundText(std::uint64_t seed) : random_(seed) {}

  std::string text() {
    const bool two = random_.chance();
    out_ = std::string("shiplap-plan 1\nmesh dp=") + (two ? "3" : "1") + " tp=" + number(2, 4) +
           "\nalias both = tp dp\nlist cuts = 0 1 3 3 8\nlist rows = 7 2 5 0 1\n" +
           "tensor A[8] Activation tok 8 head 2\ntensor G[8] WeightGrad shard 4 sum sample 8\n";
    program("first on dp=0");
    if (two) program("others on dp=1..2");
    return out_;
  }

 private:
  std::string number(std::int64_t begin, std::int64_t end) {
    return std::to_string(random_.between(begin, end));
  }
  void program(const std::string& heading) {
    names_.clear();
    out_ += "program " + heading + "\n" +
            "  buffer x rows 8 row_bytes 16 bf16\n  buffer y rows 8+tp row_bytes 4 f32 host\n" +
            "  streams net\n";
    block(1);
  }

  // Any number; wrapped into 0 .. bound-1 where that matters.
  std::string expression() {
    std::vector<std::string> terms = {"dp", "tp", "rank", "both", number(0, 9), "cuts[tp]"};
    for (const std::string& local : locals_) terms.push_back(local);
    std::string text = random_.pick(terms);
    const std::vector<std::string> signs = {"+", "-", "*", " + "};
    for (std::int64_t k = random_.between(0, 3); k > 0; --k) {
      text += random_.pick(signs) + random_.pick(terms);
    }
    return text;
  }
  std::string below(int bound) { return "(" + expression() + ") mod " + std::to_string(bound); }

  std::string index() {
    std::string text = number(0, 2);
    for (const std::string& local : locals_) text += "," + local;
    return "[" + text + "]";
  }

  void line(const std::string& text) {
    out_ += std::string(2 * static_cast<std::size_t>(depth_), ' ') + text + "\n";
  }

  void block(int depth) {
    depth_ = depth;
    const std::vector<std::string> outer = locals_;
    for (std::int64_t k = random_.between(1, 5); k > 0; --k) {
      statement();
      depth_ = depth;
    }
    locals_ = outer;
  }

  void statement() {
    const std::int64_t kind = random_.between(0, depth_ < 4 ? 9 : 6);
    if (kind == 8) {
      const std::string name = "i" + std::to_string(count_++);
      line("repeat " + name + " " + number(0, 4));
      locals_.push_back(name);
      const int depth = depth_;
      block(depth + 1);
      depth_ = depth;
      locals_.pop_back();
      return line("end");
    }
    if (kind == 7) {
      line("when " + below(3) + "<=" + number(0, 3));
      const int depth = depth_;
      block(depth + 1);
      depth_ = depth;
      return line("end");
    }
    if (kind == 6) {
      const std::string name = "l" + std::to_string(count_++);
      line("let " + name + " = " + below(5));
      locals_.push_back(name);
      return;
    }
    if (kind == 5) {
      return line("given x[" + below(8) + " +1] = A[" + below(8) + "] tok " + below(8) +
                  " +1 head " + below(2) + " +1");
    }
    operation();
  }

  std::string after() {
    if (names_.empty() || random_.chance()) return "";
    return " after " + random_.pick(names_) + index();
  }

  void operation() {
    const std::vector<std::string> actions = {
        "send x[" + below(8) + " +1] to tp+" + expression() + " wrap tag " + expression(),
        "receive x[" + below(7) + " +2] from both-1 wrap add",
        "all_reduce x[" + below(4) + " of cuts] over tp",
        "all_gather x to y[" + below(8) + " +1] over both/side",
        "copy x[from rows[" + below(4) + " +2]] to y[" + below(7) + " +2]",
        "broadcast x over (dp, tp) root " + below(2),
    };
    // A name that is its own in every iteration: it carries all counters around it.
    const std::string name = "o" + std::to_string(count_++);
    std::string all;
    for (const std::string& local : locals_) all += (all.empty() ? "[" : ",") + local;
    if (!all.empty()) all += "]";
    line(name + all + ": " + (random_.chance() ? "@net " : "") + random_.pick(actions) + after());
    names_.push_back(name);
    if (random_.chance(0.3)) {
      line("compute k" + after());
      line("  reads x[" + below(7) + " +2] = A[" + below(8) + "] tok " + below(8) + " +1");
      line("  writes y[0 +4] = G[" + below(8) + "] sum sample " + below(8) + " +1");
    }
  }

  Random random_;
  std::string out_;
  std::vector<std::string> locals_;
  std::vector<std::string> names_;
  int depth_ = 0;
  int count_ = 0;
};

}  // namespace

std::string random_sound_text(std::uint64_t seed) { return SoundText(seed).text(); }

}  // namespace shiplap::plan
