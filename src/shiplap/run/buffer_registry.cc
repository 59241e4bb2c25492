#include "shiplap/run/buffer_registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <mutex>
#include <utility>

#include "shiplap/base/error.h"
#include "shiplap/run/buffer_pool_internal.h"
#include "shiplap/run/comm_overlap_internal.h"

namespace shiplap::run {

std::int64_t MemoryReport::unshared() const {
  std::int64_t all = persistent;
  for (const Buffer& buffer : buffers) all += buffer.shared;
  return all;
}

Json to_json(const MemoryReport& report) {
  Json buffers = Json::array();
  for (const MemoryReport::Buffer& buffer : report.buffers) {
    buffers.push(Json::object({{"id", buffer.id},
                               {"what", buffer.what},
                               {"persistent", buffer.persistent},
                               {"shared", buffer.shared}}));
  }
  return Json::object({{"total", report.total()},
                       {"persistent", report.persistent},
                       {"shared", report.shared},
                       {"leased", report.leased},
                       {"peak", report.peak},
                       {"unshared", report.unshared()},
                       {"buffers", std::move(buffers)}});
}

std::string to_string(const MemoryReport& report) {
  std::string text;
  for (const MemoryReport::Buffer& buffer : report.buffers) {
    text += fmt::format("buffer {}: {} bytes persistent, {} shared ({})\n", buffer.id,
                        buffer.persistent, buffer.shared, buffer.what);
  }
  return text +
         fmt::format("{} buffers: {} bytes, {} of them shared; {} at most; {} without sharing\n",
                     report.buffers.size(), report.total(), report.shared, report.peak,
                     report.unshared());
}

class BufferRegistry::State {
 public:
  State(comm::Communicator& world, BufferOptions options)
      : context_(std::make_shared<OverlapContext>(world, std::move(options))) {}

  std::int64_t create(const BufferRequest& request) {
    OverlapBuffer buffer = checked(request, context_->world);
    {
      const std::lock_guard lock(mutex_);
      buffer.id = next_++;
    }
    const std::int64_t id = buffer.id;
    const std::string what = describe(buffer);
    const bool is_p2p = buffer.choice.method == overlap::Method::ring_exchange;
    std::unique_ptr<OverlapObject> object;
    try {
      object = std::make_unique<OverlapObject>(std::move(buffer), context_);
    } catch (...) {
      // The next buffer gets this id, as on ranks that did not try to create this one.
      const std::lock_guard lock(mutex_);
      if (next_ == id + 1) next_ = id;
      throw;
    }
    std::shared_ptr<CommOverlapCore> made;
    if (is_p2p) {
      made = std::make_shared<CommOverlapP2PBase>(std::move(object));
    } else {
      made = std::make_shared<CommOverlapBase>(std::move(object));
    }
    const std::lock_guard lock(mutex_);
    buffers_.emplace(id, Entry{what, std::move(made)});
    return id;
  }

  [[nodiscard]] std::shared_ptr<CommOverlapCore> find(std::int64_t id) const {
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) throw_unknown_buffer(id);
    return found->second.object;
  }

  // The buffer is destroyed after the lock is released: that may take long.
  void destroy(std::int64_t id) {
    std::shared_ptr<CommOverlapCore> last;
    const std::lock_guard lock(mutex_);
    const auto found = buffers_.find(id);
    if (found == buffers_.end()) throw_unknown_buffer(id);
    last = std::move(found->second.object);
    buffers_.erase(found);
  }
  void destroy_all() {
    std::map<std::int64_t, Entry> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(buffers_);
    }
    all.clear();
    context_->pool->trim();
  }

  [[nodiscard]] std::vector<std::int64_t> ids() const {
    const std::lock_guard lock(mutex_);
    return ids_locked();
  }

  [[nodiscard]] MemoryReport memory() const {
    const BufferPool::Usage usage = context_->pool->usage();
    MemoryReport report{.persistent = usage.persistent,
                        .shared = usage.shared,
                        .leased = usage.leased,
                        .peak = usage.peak};
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : buffers_) {
      report.buffers.push_back(
          {id, entry.what, entry.object->persistent_bytes(), entry.object->shared_bytes()});
    }
    return report;
  }

 private:
  struct Entry {
    std::string what;
    std::shared_ptr<CommOverlapCore> object;
  };

  [[nodiscard]] std::vector<std::int64_t> ids_locked() const {
    std::vector<std::int64_t> all;
    for (const auto& [id, entry] : buffers_) all.push_back(id);
    return all;
  }
  [[noreturn]] void throw_unknown_buffer(std::int64_t id) const {
    const bool was_there = id >= 1 && id < next_;
    const std::vector<std::int64_t> all = ids_locked();
    throw InputError(Diagnostic{
        .code = "D806",
        .where = {.rank = context_->world.rank()},
        .what = fmt::format("there is no buffer {}", id),
        .why = was_there ? "it was destroyed" : "no buffer has been created with this number",
        .help = all.empty() ? "create a buffer first"
                            : fmt::format("existing buffers: {}", fmt::join(all, ", "))});
  }

  std::shared_ptr<OverlapContext> context_;
  mutable std::mutex mutex_;
  std::int64_t next_ = 1;
  std::map<std::int64_t, Entry> buffers_;
};

BufferRegistry::BufferRegistry(comm::Communicator& world, BufferOptions options)
    : state_(std::make_unique<State>(world, std::move(options))) {}
BufferRegistry::~BufferRegistry() = default;

std::int64_t BufferRegistry::create_comm_overlap_buffer(const BufferRequest& request) {
  return state_->create(request);
}
std::shared_ptr<CommOverlapCore> BufferRegistry::find(std::int64_t id) const {
  return state_->find(id);
}
std::vector<std::int64_t> BufferRegistry::ids() const { return state_->ids(); }
void BufferRegistry::destroy_comm_overlap_buffer(std::int64_t id) { state_->destroy(id); }
void BufferRegistry::destroy_all_comm_overlap_buffers() { state_->destroy_all(); }
MemoryReport BufferRegistry::memory() const { return state_->memory(); }

}  // namespace shiplap::run
