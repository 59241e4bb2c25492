// The state of a JobReader: what all files share, and what each of them says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shiplap/dump/document.h"
#include "shiplap/dump/flight_recorder.h"

namespace shiplap::dump {

// What one file says.
struct FileDump {
  DumpFile file;
  RankDump dump;
  std::vector<std::int32_t> candidates;  // ranks that may have written it
};

template <class IdType, class Value>
class Interner {
 public:
  explicit Interner(IdVector<IdType, Value>& values) : values_(values) {}
  template <class Make>
  IdType operator()(std::string_view key, const Make& make) {
    const auto found = ids_.find(key);
    if (found != ids_.end()) return found->second;
    const IdType id(values_.size());
    values_.push_back(make());
    ids_.emplace(std::string(key), id);
    return id;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  IdVector<IdType, Value>& values_;
  std::unordered_map<std::string, IdType, Hash, std::equal_to<>> ids_;
};

// A key for an interner: parts that cannot run into each other.
class KeyBuilder {
 public:
  void clear() { key_.clear(); }
  void add(std::string_view text) {
    add(static_cast<std::int64_t>(text.size()));
    key_.append(text);
  }
  void add(std::int64_t number) {
    key_.append(reinterpret_cast<const char*>(&number), sizeof number);  // NOLINT: bytes
  }
  [[nodiscard]] std::string_view view() const { return key_; }

 private:
  std::string key_;
};

class JobReader::Impl {
 public:
  void add(const DumpFile& file);
  void add_stack(std::int32_t rank, const std::vector<Frame>& frames);
  JobDump finish();

 private:
  class DocumentReader;

  StackId stack_of_ids(const std::vector<FrameId>& ids);
  FrameId frame_of(std::string_view function, std::string_view file, std::int64_t line);
  GroupId group_of(std::string_view name, std::string_view description,
                   const std::vector<std::int32_t>& ranks);
  [[nodiscard]] bool is_listed(std::string_view name) const;
  void adopt_members(RankDump& dump) const;
  void find_world(std::int32_t rank);

  JobDump job_;
  Document document_;  // the file that is being read
  std::vector<FileDump> files_;
  std::map<std::int32_t, StackId> stacks_of_ranks_;
  KeyBuilder key_;
  Interner<GroupId, Group> group_ids_{job_.groups};
  Interner<SignatureId, Signature> signature_ids_{job_.signatures};
  Interner<StackId, std::vector<FrameId>> stack_ids_{job_.stacks};
  Interner<FrameId, Frame> frame_ids_{job_.frames};
};

// The most likely rank in the name of a file, or -1.
[[nodiscard]] std::int32_t rank_in_name(std::string_view name);

// Sets the rank of each file. Throws InputError D014.
void assign_ranks(std::vector<FileDump>& files);

}  // namespace shiplap::dump
