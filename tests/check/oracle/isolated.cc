#include "isolated.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>

#include "shiplap/base/error.h"

namespace shiplap::oracle {

std::string isolated(const std::function<std::string()>& work) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw InternalError("no pipe");
  (void)std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw InternalError("no process");
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    const std::string text = work();
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t more = write(ends[1], text.data() + done, text.size() - done);
      if (more <= 0) break;
      done += static_cast<std::size_t>(more);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> some{};
  for (ssize_t got = 0; (got = read(ends[0], some.data(), some.size())) > 0;) {
    text.append(some.data(), static_cast<std::size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return std::string("crash: ") + strsignal(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? text : "crash: exit";
}

}  // namespace shiplap::oracle
