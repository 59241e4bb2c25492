#include "shiplap/comm/ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <stdexcept>

#include "shiplap/base/cancellation.h"
#include "shiplap/base/error.h"
#include "shiplap/comm/mpi/mpi.h"
#include "shiplap/comm/threads/threads.h"

namespace shiplap::comm {
namespace {

// Sets an environment variable as long as it lives.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  ~Setting() { unsetenv(name_); }

 private:
  const char* name_;
};

std::string code_of(const InputError& error) { return error.diagnostics().front().code; }

TEST(Ranks, AreThreadsWithoutALauncher) {
  std::mutex mutex;
  std::set<int> seen;
  run_ranks({.threads = 5}, [&](Communicator& world) {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(world.size(), 5);
    seen.insert(world.rank());
  });
  EXPECT_EQ(seen, (std::set<int>{0, 1, 2, 3, 4}));
}

TEST(Ranks, TakeTheirSettingsFromTheEnvironment) {
  const Setting timeout("SHIPLAP_TIMEOUT", "2.5");
  const Setting checked("SHIPLAP_CHECKED", "1");
  run_ranks({.threads = 2}, [](Communicator& world) {
    EXPECT_DOUBLE_EQ(world.timeout().value, 2.5);
    EXPECT_TRUE(world.checked());
  });
}

TEST(Ranks, RejectInvalidSettings) {
  for (const char* const value : {"soon", "0", "-1", "3s", ""}) {
    const Setting timeout("SHIPLAP_TIMEOUT", value);
    EXPECT_THROW(run_ranks({}, [](Communicator&) {}), InputError) << value;
  }
  for (const char* const variable : {"SHIPLAP_CONNECT_TIMEOUT", "SHIPLAP_CONNECT_WITHIN"}) {
    const Setting timeout(variable, "soon");
    EXPECT_THROW(run_ranks({}, [](Communicator&) {}), InputError) << variable;
  }
  const Setting checked("SHIPLAP_CHECKED", "yes");
  try {
    run_ranks({}, [](Communicator&) {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InputError& error) {
    EXPECT_EQ(code_of(error), "D300");
    EXPECT_EQ(error.diagnostics().front().what,
              "SHIPLAP_CHECKED is `yes`, where 0 or 1 was expected");
  }
}

TEST(Ranks, AreAtLeastOne) {
  EXPECT_THROW(run_ranks({.threads = 0}, [](Communicator&) {}), InputError);
}

TEST(Ranks, ThrowWhatTheFirstThrew) {
  EXPECT_THROW(run_ranks({.threads = 3},
                         [](Communicator& world) {
                           if (world.rank() == 1) throw std::domain_error("planted");
                           world.barrier();
                         }),
               std::domain_error);
}

// A call is cancelled while one rank is blocked and the other computes.
TEST(Ranks, EndWhenTheirCallIsCancelled) {
  const CancellationScope scope([] { throw std::domain_error("cancelled"); });
  EXPECT_THROW(run_ranks({.threads = 3},
                         [](Communicator& world) {
                           if (world.rank() == 0) world.barrier();
                           while (true) throw_if_cancelled();
                         }),
               std::domain_error);
}

TEST(Mpi, NeedsALauncher) {
  try {
    run_on_mpi({}, [](Communicator&) {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const MissingDependency& error) {
    EXPECT_EQ(code_of(error), "D306");
  }
}

TEST(Mpi, SaysWhereItLookedForAPlugin) {
  const Setting launcher("PMI_RANK", "0");
  const Setting folder("SHIPLAP_PLUGINS", "there/is/no/such/folder");
  // Skipped if the plugin is next to the test: the message for a missing one is tested.
  const auto folder_of_test = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  if (std::filesystem::exists(folder_of_test / "shiplap_mpich.so")) return;
  try {
    run_on_mpi({}, [](Communicator&) {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const MissingDependency& error) {
    EXPECT_NE(error.diagnostics().front().help.find("there/is/no/such/folder"), std::string::npos);
  }
}

}  // namespace
}  // namespace shiplap::comm
