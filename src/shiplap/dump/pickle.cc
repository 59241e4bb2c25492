// A reader of pickles that cannot execute anything.
//
// The problem. A flight recorder dumps a pickle, and unpickling a file with Python runs whatever
// the file says: a pickle is a program for a stack machine, and some of its instructions import
// names and call them (GLOBAL, REDUCE, BUILD, ...).
//
// The idea. This machine has only the instructions that push plain data: numbers, strings, lists,
// dictionaries, tuples. It has no instruction that looks up a name, so there is nothing to escape
// from; the others are rejected by name, with their position (D013).
//
// The machine (PEP 307, PEP 3154): a stack of values; marks, which are positions on the stack; and
// a memo, which numbers values for reuse. APPENDS moves everything above the last mark into the
// list below it, SETITEMS into the dictionary.
//
// Values of the memo are shared, so a few bytes can describe a tree of exponential size; readers of
// the result must count what they visit. Lists can contain themselves.
//
// A file that ends early is the dump of a job that was killed while it wrote. What is above a mark
// then belongs to the container below it, so the open containers are closed from the top, and the
// entries before the end are kept.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/dump/document.h"

namespace shiplap::dump {
namespace {

// More than any dump has; a memo index is allocated up to it.
constexpr std::size_t kMaxMemo = std::size_t{1} << 26;

// Of PEP 307 and PEP 3154.
enum Instruction : std::uint8_t {
  op_mark = '(',
  op_stop = '.',
  op_pop = '0',
  op_none = 'N',
  op_proto = 0x80,
  op_new_true = 0x88,
  op_new_false = 0x89,
  op_bin_int = 'J',
  op_bin_int1 = 'K',
  op_bin_int2 = 'M',
  op_long1 = 0x8a,
  op_bin_float = 'G',
  op_bin_unicode = 'X',
  op_short_bin_unicode = 0x8c,
  op_bin_unicode8 = 0x8d,
  op_empty_dict = '}',
  op_empty_list = ']',
  op_empty_tuple = ')',
  op_set_item = 's',
  op_set_items = 'u',
  op_append = 'a',
  op_appends = 'e',
  op_tuple = 't',
  op_tuple1 = 0x85,
  op_tuple2 = 0x86,
  op_tuple3 = 0x87,
  op_bin_put = 'q',
  op_long_bin_put = 'r',
  op_bin_get = 'h',
  op_long_bin_get = 'j',
  op_memoize = 0x94,
  op_frame = 0x95,
};

// The instructions that import, call or fetch something.
std::string_view name_of_executing(std::uint8_t instruction) {
  switch (instruction) {
    case 'c':
      return "GLOBAL";
    case 0x93:
      return "STACK_GLOBAL";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 'P':
      return "PERSID";
    case 'Q':
      return "BINPERSID";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    default:
      return "";
  }
}

// The bytes ended within an instruction.
struct EndOfBytes : std::exception {};

// A vector whose push is a store and an increment: the machine does little else.
class NodeStack {
 public:
  explicit NodeStack(std::vector<Node>& nodes) : nodes_(nodes) { grow(); }
  NodeStack(const NodeStack&) = delete;
  NodeStack& operator=(const NodeStack&) = delete;

  [[gnu::always_inline]] void push(Node value) {
    if (end_ == limit_) grow();
    *end_++ = value;
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end_ - begin_); }
  [[nodiscard]] bool empty() const { return end_ == begin_; }
  [[nodiscard]] Node& operator[](std::size_t k) { return begin_[k]; }
  [[nodiscard]] Node& back() { return end_[-1]; }
  [[nodiscard]] std::span<const Node> from(std::size_t first) const {
    return {begin_ + first, end_};
  }
  // REQUIRES: not more than there are.
  void truncate(std::size_t size) { end_ = begin_ + size; }

 private:
  void grow() {
    const std::size_t size = this->size();
    nodes_.resize(std::max<std::size_t>(nodes_.size(), 2 * size + 64));
    begin_ = nodes_.data();
    end_ = begin_ + size;
    limit_ = begin_ + nodes_.size();
  }

  std::vector<Node>& nodes_;  // those above the top have any value
  Node* begin_ = nullptr;
  Node* end_ = nullptr;
  Node* limit_ = nullptr;
};

class Machine {
 public:
  Machine(std::string_view bytes, std::string_view file, Document& document)
      : begin_(bytes.data()),
        at_(begin_),
        end_(begin_ + bytes.size()),
        file_(file),
        document_(document),
        memory_(document.memory),
        stack_(document.stack),
        memo_(document.memo) {}

  void run() {
    try {
      while (step()) {
      }
    } catch (const EndOfBytes&) {
      document_.truncated = true;
      while (!marks_.empty()) close();
    }
    if (stack_.empty()) fail("there is no value in the file");
    document_.root = document_.truncated ? stack_[0] : stack_.back();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(
        {.code = "D012",
         .where = {.file = std::string(file_)},
         .what = fmt::format("not a flight recorder dump: {}, at byte {}", what, position()),
         .help = "the file is damaged, or not a pickle of plain data"});
  }

  [[noreturn]] void reject(std::uint8_t instruction) const {
    const std::string_view name = name_of_executing(instruction);
    if (name.empty()) fail(fmt::format("unknown pickle instruction 0x{:02x}", instruction));
    throw InputError(
        {.code = "D013",
         .where = {.file = std::string(file_)},
         .what = fmt::format("the pickle would execute code: instruction {} at byte {}", name,
                             position()),
         .why = "a flight recorder dump has only numbers, strings, lists and "
                "dictionaries; this file imports or calls something when it is "
                "unpickled. Nothing was executed",
         .help = "do not open it with Python; find out who wrote it"});
  }

  // Of the instruction.
  [[nodiscard]] std::size_t position() const {
    return static_cast<std::size_t>(instruction_ - begin_);
  }
  [[nodiscard]] std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  std::string_view take(std::size_t count) {
    if (count > left()) throw EndOfBytes{};
    at_ += count;
    return {at_ - count, count};
  }

  // A little-endian number.
  template <class Integer>
  Integer number() {
    static_assert(std::endian::native == std::endian::little);
    if (sizeof(Integer) > left()) throw EndOfBytes{};
    Integer value;
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  void push(Node value) { stack_.push(value); }

  // Throws unless this many values lie above the last mark. So marks never point above the stack.
  void require_values(std::size_t count) const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + count) fail("an instruction has no operand");
  }

  Node& top() {
    if (stack_.empty()) fail("an instruction has no operand");
    return stack_.back();
  }

  [[gnu::always_inline]] std::size_t pop_mark() {
    if (marks_.empty()) fail("there is no mark");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }

  // Moves the values from `first` on into the container below them.
  void move_into(std::size_t first, Node::Type type) {
    if (first == 0 || stack_[first - 1].type() != type) fail("items without their container");
    const std::span<const Node> items = stack_.from(first);
    if (type == Node::Type::dictionary && items.size() % 2 != 0) fail("a key without a value");
    memory_.append(stack_[first - 1].container(), items);
    stack_.truncate(first);
  }

  // Closes the innermost open container of a truncated file.
  void close() {
    const std::size_t first = marks_.back();
    marks_.pop_back();
    const Node::Type type = first == 0 ? Node::Type::null : stack_[first - 1].type();
    const bool has_lone_key = type == Node::Type::dictionary && (stack_.size() - first) % 2 != 0;
    if (has_lone_key) stack_.truncate(stack_.size() - 1);
    if (type == Node::Type::dictionary || type == Node::Type::list) move_into(first, type);
    stack_.truncate(std::min(std::max<std::size_t>(first, 1), stack_.size()));
  }

  void tuple(std::size_t first) {
    Container* items = memory_.container();
    memory_.append(*items, stack_.from(first));
    stack_.truncate(first);
    push(Node::list(items));
  }

  void tuple_of(std::size_t count) {
    require_values(count);
    tuple(stack_.size() - count);
  }

  // Values are numbered in order, nearly always.
  [[gnu::always_inline]] void put(std::size_t index) {
    const Node value = top();
    if (index >= memoized_) extend_memo(index);
    memo_[index] = value;
  }

  void extend_memo(std::size_t index) {
    if (index >= kMaxMemo || index > position()) fail("a memo index is too large");
    if (index >= memo_.size()) memo_.resize(std::max(index + 1, 2 * memo_.size()));
    for (; memoized_ < index; ++memoized_) memo_[memoized_] = kUndefined;
    ++memoized_;
  }

  [[gnu::always_inline]] void get(std::size_t index) {
    if (index >= memoized_ || is_undefined(memo_[index])) fail("a memo index is not defined");
    push(memo_[index]);
  }

  // A value that no instruction makes.
  inline static const Node kUndefined = Node::list(nullptr);
  static bool is_undefined(const Node& value) {
    return value.is_list() && value.identity() == nullptr;
  }

  // At most 8 bytes, two's complement.
  void long_integer() {
    const std::string_view digits = take(number<std::uint8_t>());
    if (digits.size() > 8) {
      push(Node::real(0));  // nothing in a dump needs it
      return;
    }
    std::uint64_t value = 0;
    for (std::size_t k = 0; k < digits.size(); ++k) {
      value |= std::uint64_t{static_cast<std::uint8_t>(digits[k])} << (8 * k);
    }
    const unsigned unused = static_cast<unsigned>(64 - 8 * digits.size());
    if (digits.empty()) {
      push(Node::integer(0));
    } else {
      push(Node::integer(static_cast<std::int64_t>(value << unused) >> unused));
    }
  }

  // Big-endian, alone among the numbers.
  void real() {
    std::uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<std::uint8_t>(byte);
    push(Node::real(std::bit_cast<double>(bits)));
  }

  void string(std::uint64_t size) {
    if (size > left()) throw EndOfBytes{};
    push(Node::string(take(static_cast<std::size_t>(size))));
  }

  // The instructions for containers and the memo.
  void step_container(std::uint8_t instruction) {
    switch (instruction) {
      case op_empty_dict:
        push(Node::dictionary(memory_.container()));
        break;
      case op_empty_list:
      case op_empty_tuple:
        push(Node::list(memory_.container()));
        break;
      case op_set_item:
        require_values(3);
        move_into(stack_.size() - 2, Node::Type::dictionary);
        break;
      case op_append:
        require_values(2);
        move_into(stack_.size() - 1, Node::Type::list);
        break;
      case op_set_items:
        move_into(pop_mark(), Node::Type::dictionary);
        break;
      case op_appends:
        move_into(pop_mark(), Node::Type::list);
        break;
      case op_tuple:
        tuple(pop_mark());
        break;
      case op_tuple1:
      case op_tuple2:
      case op_tuple3:
        tuple_of(instruction - op_tuple1 + std::size_t{1});
        break;
      case op_bin_put:
        put(number<std::uint8_t>());
        break;
      case op_long_bin_put:
        put(number<std::uint32_t>());
        break;
      case op_memoize:
        put(memoized_);
        break;
      case op_bin_get:
        get(number<std::uint8_t>());
        break;
      case op_long_bin_get:
        get(number<std::uint32_t>());
        break;
      default:
        reject(instruction);
    }
  }

  // Returns false after the last instruction.
  bool step() {
    instruction_ = at_;
    const auto instruction = number<std::uint8_t>();
    switch (instruction) {
      case op_proto:
        if (number<std::uint8_t>() > 5) fail("a newer pickle protocol");
        break;
      case op_frame:
        number<std::uint64_t>();
        break;
      case op_mark:
        marks_.push_back(stack_.size());
        break;
      case op_stop:
        return false;
      case op_pop:
        require_values(1);
        stack_.truncate(stack_.size() - 1);
        break;
      case op_none:
        push(Node());
        break;
      case op_new_true:
        push(Node::boolean(true));
        break;
      case op_new_false:
        push(Node::boolean(false));
        break;
      case op_bin_int:
        push(Node::integer(number<std::int32_t>()));
        break;
      case op_bin_int1:
        push(Node::integer(number<std::uint8_t>()));
        break;
      case op_bin_int2:
        push(Node::integer(number<std::uint16_t>()));
        break;
      case op_long1:
        long_integer();
        break;
      case op_bin_float:
        real();
        break;
      case op_bin_unicode:
        string(number<std::uint32_t>());
        break;
      case op_short_bin_unicode:
        string(number<std::uint8_t>());
        break;
      case op_bin_unicode8:
        string(number<std::uint64_t>());
        break;
      default:
        step_container(instruction);
    }
    return true;
  }

  const char* begin_;
  const char* at_;
  const char* end_;
  const char* instruction_ = begin_;  // the one that is executed
  std::string_view file_;
  Document& document_;
  DocumentBuilder& memory_;
  NodeStack stack_;
  std::vector<std::size_t> marks_;
  std::vector<Node>& memo_;
  std::size_t memoized_ = 0;  // the rest of the memo has any values
};

}  // namespace

void parse_pickle(std::string_view bytes, std::string_view file, Document& document) {
  Machine(bytes, file, document).run();
}

}  // namespace shiplap::dump
