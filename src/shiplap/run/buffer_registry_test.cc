#include "shiplap/run/buffer_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/comm/ranks.h"

namespace shiplap::run {
namespace {

using overlap::Method;
using overlap::Type;
using testing::ElementsAre;
using testing::HasSubstr;

void on_threads(int ranks, const std::function<void(comm::Communicator&)>& work) {
  comm::run_ranks({.threads = ranks, .timeout = {20}}, work);
}

BufferRequest gathered(std::vector<std::int64_t> shape) {
  return {.comm_type = Type::all_gather,
          .method = Method::ring_exchange,
          .buffer_shape = std::move(shape),
          .buffer_dtype = DType::f32};
}

// "D805: what; help"
std::string refused(BufferRegistry& registry, const BufferRequest& request) {
  try {
    registry.create_comm_overlap_buffer(request);
  } catch (const InputError& error) {
    const Diagnostic& said = error.diagnostics().front();
    return said.code + ": " + said.what + "; " + said.help;
  }
  return "";
}

TEST(Create, RefusesShapesThatMakeNoSense) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto with_boundary = [](std::vector<std::int64_t> shape, int boundary) {
      BufferRequest request = gathered(std::move(shape));
      request.axis_boundary = boundary;
      return request;
    };
    EXPECT_EQ(refused(registry, gathered({2, 3, 4})), "");
    EXPECT_EQ(refused(registry, with_boundary({2, 3, 4}, 1)), "");
    EXPECT_EQ(
        refused(registry, with_boundary({2, 3, 4}, 0)),
        "D805: axis_boundary = 0 is out of range; choose 1 to 2, or -1 for the last dimension");
    EXPECT_EQ(
        refused(registry, with_boundary({2, 3, 4}, 3)),
        "D805: axis_boundary = 3 is out of range; choose 1 to 2, or -1 for the last dimension");
    EXPECT_THAT(refused(registry, gathered({4})), HasSubstr("at least one dimension of rows"));
    EXPECT_THAT(refused(registry, gathered({})), HasSubstr("at least one dimension of rows"));
    EXPECT_THAT(refused(registry, gathered({4, 0})), HasSubstr("dimension 1 has size 0"));
    EXPECT_THAT(refused(registry, gathered({-4, 4})), HasSubstr("dimension 0 has size -4"));
    const std::int64_t large = std::int64_t{1} << 32;
    EXPECT_THAT(refused(registry, gathered({large, large})), HasSubstr("overflows 64 bits"));
    EXPECT_THAT(refused(registry, gathered({large, large, large, 4})),
                HasSubstr("overflows 64 bits"));
    EXPECT_THAT(refused(registry, gathered({large, 2})), HasSubstr("D801: the rows of X"));
    EXPECT_THAT(registry.ids(), ElementsAre(1, 2));
  });
}

TEST(Create, RefusesWhatThereIsNot) {
  on_threads(2, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    BufferRequest request = gathered({4, 4});
    request.tp_size = 4;
    EXPECT_EQ(
        refused(registry, request),
        "D802: tp_size mismatch: tp_size = 4, but the communicator has 2 ranks; set tp_size to 2 "
        "or 0, or create the registry on a communicator of 4 ranks");
    request.tp_size = 2;
    EXPECT_EQ(refused(registry, request), "");
    request.method = Method::bulk;
    EXPECT_THAT(refused(registry, request), HasSubstr("D800: unsupported overlap"));
    request.comm_type = Type::none;
    EXPECT_THAT(refused(registry, request), HasSubstr("D803: Invalid collective type"));
    request = gathered({4, 4});
    request.chunks = 0;
    EXPECT_THAT(refused(registry, request), HasSubstr("D801: the number of chunks"));
    request = gathered({4, 4});
    request.buffer_dtype = DType::fp8_e4m3;
    EXPECT_THAT(refused(registry, request),
                HasSubstr("D813: no_scaling is unsupported for a buffer of fp8_e4m3"));
  });
}

// Sizes above 4 GiB do not overflow; the memory is not touched.
TEST(Create, CountsIn64Bits) {
  on_threads(1, [](comm::Communicator& world) {
    std::int64_t asked = 0;
    BufferRegistry registry(world, {.allocate = [&](std::int64_t bytes) {
                              asked = bytes;
                              throw std::bad_alloc();
                              return std::shared_ptr<std::byte>();
                            }});
    BufferRequest request = gathered({70'000, 70'000});
    request.lifetime = BufferLifetime::persistent;
    EXPECT_THAT(refused(registry, request), HasSubstr("D809: out of memory"));
    EXPECT_EQ(asked, 19'600'000'000);
    EXPECT_TRUE(registry.ids().empty());
    request.lifetime = BufferLifetime::per_call;
    EXPECT_EQ(refused(registry, request), "");
  });
}

TEST(Find, SaysWhatThereIs) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto said = [&](std::int64_t id) {
      try {
        static_cast<void>(registry.find(id));
      } catch (const InputError& error) {
        const Diagnostic& one = error.diagnostics().front();
        return one.code + ": " + one.what + "; " + one.why + "; " + one.help;
      }
      return std::string();
    };
    EXPECT_EQ(said(1),
              "D806: there is no buffer 1; no buffer has been created with this number; create a "
              "buffer first");
    for (int k = 0; k < 3; ++k) registry.create_comm_overlap_buffer(gathered({4, 4}));
    registry.destroy_comm_overlap_buffer(2);
    EXPECT_EQ(said(2), "D806: there is no buffer 2; it was destroyed; existing buffers: 1, 3");
    EXPECT_THROW(registry.destroy_comm_overlap_buffer(2), InputError);
    registry.destroy_all_comm_overlap_buffers();
    EXPECT_EQ(registry.create_comm_overlap_buffer(gathered({4, 4})), 4);  // no number twice
  });
}

TEST(Destroy, LeavesWhatIsInUse) {
  on_threads(1, [](comm::Communicator& world) {
    std::shared_ptr<CommOverlapCore> object;
    {
      BufferRegistry registry(world);
      BufferRequest request = gathered({4, 4});
      request.lifetime = BufferLifetime::persistent;
      const std::int64_t id = registry.create_comm_overlap_buffer(request);
      object = registry.find(id);
      registry.destroy_comm_overlap_buffer(id);
      EXPECT_EQ(registry.memory().persistent, 256);
      EXPECT_TRUE(registry.memory().buffers.empty());
      const Matrix rows = object->buffer();
      object.reset();
      EXPECT_EQ(registry.memory().persistent, 256);  // until the last use ends
      static_cast<float*>(rows.data)[15] = 1;
      object = registry.find(registry.create_comm_overlap_buffer(request));
    }
    static_cast<float*>(object->buffer().data)[15] = 1;
  });
}

TEST(Memory, IsReported) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    BufferRequest request = gathered({10, 10});
    registry.create_comm_overlap_buffer(request);
    request.lifetime = BufferLifetime::persistent;
    registry.create_comm_overlap_buffer(request);
    EXPECT_EQ(to_string(registry.memory()),
              "buffer 1: 0 bytes persistent, 0 shared (all_gather, ring_exchange: 10 x 10 f32)\n"
              "buffer 2: 512 bytes persistent, 0 shared (all_gather, ring_exchange: 10 x 10 f32)\n"
              "2 buffers: 512 bytes, 0 of them shared; 512 at most; 512 without sharing\n");
    const Json json = to_json(registry.memory());
    EXPECT_EQ(json.find("total")->as_integer(), 512);
    EXPECT_EQ(json.find("buffers")->as_array()[1].find("persistent")->as_integer(), 512);
  });
}

// ---- many threads

// x and w are all ones: every element of the result is `inner`.
void call_and_check(CommOverlapCore& object, std::int64_t rows, std::int64_t inner, int ranks) {
  std::vector<float> x(rows / ranks * inner, 1);
  std::vector<float> w(inner * 2, 1);
  std::vector<float> y(rows * 2);
  const auto matrix = [](std::vector<float>& numbers, std::int64_t count, std::int64_t columns) {
    return Matrix{.data = numbers.data(), .rows = count, .columns = columns, .type = DType::f32};
  };
  object.split_overlap_ag({.x = matrix(x, rows / ranks, inner),
                           .w = matrix(w, inner, 2),
                           .result = matrix(y, rows, 2)});
  EXPECT_THAT(y, testing::Each(static_cast<float>(inner)));
}

TEST(Threads, CreateFindCallAndDestroy) {
  on_threads(1, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const std::int64_t common = registry.create_comm_overlap_buffer(gathered({6, 5}));
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; ++k) {
      threads.emplace_back([&registry, common, k] {
        for (int round = 0; round < 10; ++round) {
          BufferRequest request = gathered({8, 3 + k});
          if (round % 2 == 1) request.lifetime = BufferLifetime::persistent;
          const std::int64_t id = registry.create_comm_overlap_buffer(request);
          call_and_check(*registry.find(id), 8, 3 + k, 1);
          call_and_check(*registry.find(common), 6, 5, 1);
          static_cast<void>(registry.memory());
          registry.destroy_comm_overlap_buffer(id);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(registry.ids(), ElementsAre(common));
    EXPECT_EQ(registry.memory().persistent, 0);
    EXPECT_EQ(registry.memory().leased, 0);
  });
}

// Buffers that were connected in one order may be called by threads in any order.
TEST(Threads, OfTwoRanksCallConnectedBuffersInAnyOrder) {
  on_threads(2, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    std::vector<std::int64_t> ids;
    for (int k = 0; k < 3; ++k) {
      ids.push_back(registry.create_comm_overlap_buffer(gathered({8, 4 + k})));
      registry.find(ids.back())->connect();
    }
    std::vector<std::thread> threads;
    for (int k = 0; k < 3; ++k) {
      // The ranks start them in opposite orders.
      const int mine = world.rank() == 0 ? k : 2 - k;
      threads.emplace_back([&registry, &ids, mine] {
        for (int round = 0; round < 5; ++round) {
          const auto object = registry.find(ids[mine]);
          call_and_check(*object, 8, 4 + mine, 2);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// A JAX handler runs on a different thread each time.
TEST(Threads, MayTakeTurnsWithOneBuffer) {
  on_threads(2, [](comm::Communicator& world) {
    BufferRegistry registry(world);
    const auto object = registry.find(registry.create_comm_overlap_buffer(gathered({8, 4})));
    for (int round = 0; round < 5; ++round) {
      std::thread([&] { call_and_check(*object, 8, 4, 2); }).join();
    }
  });
}

}  // namespace
}  // namespace shiplap::run
