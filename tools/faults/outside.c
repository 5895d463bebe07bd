// Faults of the machine for tools/faults/outside.py, loaded before the C library: a clock that jumps
// by days ($JUMP), and files below $SHARE that fail with $ERROR while the file $FAIL exists.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ORIGINAL(name) static __typeof__(name)* original; if (!original) original = dlsym(RTLD_NEXT, #name)
#define DAY 86400L

int clock_gettime(clockid_t clock, struct timespec* now) {
  ORIGINAL(clock_gettime);
  static long calls = 0;
  int code = original(clock, now);
  if (clock == CLOCK_REALTIME && getenv("JUMP")) now->tv_sec += (calls++ / 50) % 2 ? 3 * DAY : -2 * DAY;
  return code;
}

time_t time(time_t* seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}

static int fails(const char* path) {
  ORIGINAL(access);
  const char* share = getenv("SHARE");
  const char* fail = getenv("FAIL");
  return share && fail && path && !strncmp(path, share, strlen(share)) && !original(fail, F_OK);
}

static int fails_fd(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  return fails(path);
}

static int failure(void) {
  errno = atoi(getenv("ERROR"));
  return -1;
}

ssize_t write(int fd, const void* bytes, size_t count) {
  ORIGINAL(write);
  return fails_fd(fd) ? failure() : original(fd, bytes, count);
}

int fsync(int fd) {
  ORIGINAL(fsync);
  return fails_fd(fd) ? failure() : original(fd);
}

int rename(const char* from, const char* to) {
  ORIGINAL(rename);
  return fails(from) || fails(to) ? failure() : original(from, to);
}

int mkdir(const char* path, mode_t mode) {
  ORIGINAL(mkdir);
  return fails(path) ? failure() : original(path, mode);
}

int open(const char* path, int flags, ...) {
  ORIGINAL(open);
  va_list rest;
  va_start(rest, flags);
  int mode = va_arg(rest, int);
  va_end(rest);
  return fails(path) ? failure() : original(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  ORIGINAL(open64);
  va_list rest;
  va_start(rest, flags);
  int mode = va_arg(rest, int);
  va_end(rest);
  return fails(path) ? failure() : original(path, flags, mode);
}
