// Preloaded into a program, lets one call of the system fail:
//
//   LD_PRELOAD=libfail_nth.so SHIPLAP_FAIL=malloc:17 PROGRAM     the 17th allocation gives nothing
//   LD_PRELOAD=libfail_nth.so SHIPLAP_FAIL=write:3+ PROGRAM      the third write and all after it
//   .. SHIPLAP_FAIL_COUNT=FILE                                   how many calls there were goes
//   there
//
// malloc (and calloc, realloc: so `new` as well), thread, open, read, write (not to standard error:
// that is where the failure is told), accept, socket. Calls count from the start of main.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// The names are those of glibc, and so are the forms of the functions.
// NOLINTBEGIN

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* block, size_t size);
}

namespace {

enum class Call { none, malloc, thread, open, read, write, accept, socket };

Call wanted = Call::none;
long first = 0;
bool and_all_after = false;
std::atomic<bool> is_armed = false;
std::atomic<long> calls = 0;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// Whether this call is the one.
bool fails(Call call) {
  if (call != wanted || !is_armed) return false;
  const long number = ++calls;
  return number == first || (and_all_after && number > first && first > 0);
}

void write_count() {
  const char* const file = std::getenv("SHIPLAP_FAIL_COUNT");
  if (file == nullptr) return;
  is_armed = false;
  if (std::FILE* const out = std::fopen(file, "w")) {
    std::fprintf(out, "%ld\n", calls.load());
    std::fclose(out);
  }
}

void read_wish() {
  const char* const wish = std::getenv("SHIPLAP_FAIL");
  if (wish == nullptr) return;
  const char* const colon = std::strchr(wish, ':');
  if (colon == nullptr) return;
  constexpr const char* kNames[] = {"none", "malloc", "thread", "open",
                                    "read", "write",  "accept", "socket"};
  for (int k = 1; k < 8; ++k) {
    const auto length = static_cast<std::size_t>(colon - wish);
    if (std::strlen(kNames[k]) == length && std::strncmp(kNames[k], wish, length) == 0) {
      wanted = static_cast<Call>(k);
    }
  }
  char* end = nullptr;
  first = std::strtol(colon + 1, &end, 10);
  and_all_after = *end == '+';
}

int (*real_main)(int, char**, char**) = nullptr;

int armed_main(int count, char** words, char** environment) {
  read_wish();
  std::atexit(write_count);
  is_armed = true;
  return real_main(count, words, environment);
}

}  // namespace

extern "C" {

int __libc_start_main(int (*main)(int, char**, char**), int count, char** words, void (*init)(),
                      void (*fini)(), void (*rtld_fini)(), void* stack_end) {
  real_main = main;
  using Start =
      int (*)(int (*)(int, char**, char**), int, char**, void (*)(), void (*)(), void (*)(), void*);
  return next<Start>("__libc_start_main")(armed_main, count, words, init, fini, rtld_fini,
                                          stack_end);
}

void* malloc(size_t size) {
  if (fails(Call::malloc)) return errno = ENOMEM, nullptr;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  if (fails(Call::malloc)) return errno = ENOMEM, nullptr;
  return __libc_calloc(count, size);
}
void* realloc(void* block, size_t size) {
  if (fails(Call::malloc)) return errno = ENOMEM, nullptr;
  return __libc_realloc(block, size);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (fails(Call::thread)) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  return next<Create>("pthread_create")(thread, attributes, start, argument);
}

int open(const char* file, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>((flags & O_CREAT) != 0 ? va_arg(rest, int) : 0);
  va_end(rest);
  if (fails(Call::open)) return errno = EMFILE, -1;
  return next<int (*)(const char*, int, mode_t)>("open")(file, flags, mode);
}
int open64(const char* file, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>((flags & O_CREAT) != 0 ? va_arg(rest, int) : 0);
  va_end(rest);
  if (fails(Call::open)) return errno = EMFILE, -1;
  return next<int (*)(const char*, int, mode_t)>("open64")(file, flags, mode);
}
// libstdc++ opens files by this.
std::FILE* fopen(const char* file, const char* mode) {
  if (fails(Call::open)) return errno = EMFILE, nullptr;
  return next<std::FILE* (*)(const char*, const char*)>("fopen")(file, mode);
}
std::FILE* fopen64(const char* file, const char* mode) {
  if (fails(Call::open)) return errno = EMFILE, nullptr;
  return next<std::FILE* (*)(const char*, const char*)>("fopen64")(file, mode);
}

ssize_t read(int descriptor, void* data, size_t bytes) {
  if (fails(Call::read)) return errno = EIO, -1;
  return next<ssize_t (*)(int, void*, size_t)>("read")(descriptor, data, bytes);
}
ssize_t readv(int descriptor, const iovec* pieces, int count) {
  if (fails(Call::read)) return errno = EIO, -1;
  return next<ssize_t (*)(int, const iovec*, int)>("readv")(descriptor, pieces, count);
}
ssize_t write(int descriptor, const void* data, size_t bytes) {
  if (descriptor != STDERR_FILENO && fails(Call::write)) return errno = ENOSPC, -1;
  return next<ssize_t (*)(int, const void*, size_t)>("write")(descriptor, data, bytes);
}
ssize_t writev(int descriptor, const iovec* pieces, int count) {
  if (descriptor != STDERR_FILENO && fails(Call::write)) return errno = ENOSPC, -1;
  return next<ssize_t (*)(int, const iovec*, int)>("writev")(descriptor, pieces, count);
}

int accept4(int descriptor, sockaddr* address, socklen_t* length, int flags) {
  if (fails(Call::accept)) return errno = EMFILE, -1;
  return next<int (*)(int, sockaddr*, socklen_t*, int)>("accept4")(descriptor, address, length,
                                                                   flags);
}
int socket(int domain, int type, int protocol) {
  if (fails(Call::socket)) return errno = EMFILE, -1;
  return next<int (*)(int, int, int)>("socket")(domain, type, protocol);
}

}  // extern "C"

// NOLINTEND
