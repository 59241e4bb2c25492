#include "shiplap/base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace shiplap {
namespace {

Diagnostic saying(const std::string& what) {
  Diagnostic d;
  d.code = "D003";
  d.what = what;
  return d;
}

TEST(InputError, SaysWhatItsDiagnosticsSay) {
  const std::vector<Diagnostic> diagnostics{saying("one"), saying("two")};
  const InputError error(diagnostics);
  EXPECT_EQ(error.diagnostics(), diagnostics);
  EXPECT_EQ(error.what(), render(diagnostics));
  EXPECT_EQ(std::string(InputError(saying("one")).what()), "error[D003]: one\n");
}

TEST(InputError, HasAtLeastOneDiagnostic) {
  EXPECT_THROW(throw InputError(std::vector<Diagnostic>{}), InternalError);
}

TEST(MissingDependency, IsCaughtAsAnInputError) {
  EXPECT_THROW(throw MissingDependency(saying("no MPI")), InputError);
}

TEST(Ensure, SaysWhichPromiseWasBrokenAndWhere) {
  EXPECT_NO_THROW(ensure(true, "all is well"));
  const int line = __LINE__ + 2;
  try {
    ensure(false, "the sky is up");
    FAIL() << "nothing was thrown";
  } catch (const InternalError& error) {
    const std::string end =
        "error_test.cc:" + std::to_string(line) + ": invariant violated: the sky is up";
    EXPECT_TRUE(std::string(error.what()).ends_with(end)) << error.what();
  }
}

}  // namespace
}  // namespace shiplap
