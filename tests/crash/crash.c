/* Preloaded before the C library (LD_PRELOAD): kills the process right before its n-th call that changes something below CRASH_ROOT,
 * and writes every such call to CRASH_LOG, with the number of the file or directory if there is one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#pragma GCC visibility push(default)

static const char *root;
static long fatal;
static int log_at = -1;
static atomic_long calls;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("CRASH_AT"), *log = getenv("CRASH_LOG");
    root = getenv("CRASH_ROOT");
    fatal = text ? atol(text) : 0;
    if (log) log_at = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

/* A path through an open directory, as in /proc/self/fd/7/x, by the directory's name. */
static const char *named(const char *path, char *out) {
    static const char open_files[] = "/proc/self/fd/";
    if (!path || strncmp(path, open_files, sizeof open_files - 1)) return path;
    const char *rest = strchr(path + sizeof open_files - 1, '/');
    char link[64];
    size_t size = rest ? (size_t)(rest - path) : strlen(path);
    if (size >= sizeof link) return path;
    memcpy(link, path, size);
    link[size] = 0;
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    if (length < 0) return path;
    out[length] = 0;
    if (rest && length + strlen(rest) < PATH_MAX) strcpy(out + length, rest);
    return out;
}

static void step(const char *what, const char *path, unsigned long long number) {
    char own[PATH_MAX];
    path = named(path, own);
    size_t length = root ? strlen(root) : 0;
    if (!root || !path || strncmp(path, root, length) || (path[length] && path[length] != '/')) return;
    if (log_at >= 0) {
        char line[PATH_MAX + 64];
        int bytes = snprintf(line, sizeof line, "%s %llu %s\n", what, number, path);
        if (bytes > 0) syscall(SYS_write, log_at, line, (size_t)bytes);
    }
    if (atomic_fetch_add(&calls, 1) + 1 == fatal) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
}

/* The path behind a descriptor, with a name below it. */
static const char *behind(int fd, const char *name, char *out) {
    if (name && (name[0] == '/' || fd == AT_FDCWD)) return name;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    if (length < 0) return NULL;
    out[length] = 0;
    if (name && length + strlen(name) + 2 < PATH_MAX) {
        out[length] = '/';
        strcpy(out + length + 1, name);
    }
    return out;
}

static void on_open_file(const char *what, int fd) {
    char path[PATH_MAX];
    struct stat found;
    if (!root || fstat(fd, &found) || !(S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))) return;
    step(what, behind(fd, NULL, path), (unsigned long long)found.st_ino);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int rename(const char *from, const char *to) { step("rename", from, 0); return REAL(rename)(from, to); }
int mkdir(const char *path, mode_t mode) { step("mkdir", path, 0); return REAL(mkdir)(path, mode); }
int rmdir(const char *path) { step("rmdir", path, 0); return REAL(rmdir)(path); }
int unlink(const char *path) { step("unlink", path, 0); return REAL(unlink)(path); }
int symlink(const char *to, const char *path) { step("symlink", path, 0); return REAL(symlink)(to, path); }
int link(const char *from, const char *to) { step("link", to, 0); return REAL(link)(from, to); }

int linkat(int a, const char *from, int b, const char *to, int flags) {
    char path[PATH_MAX];
    step("link", behind(b, to, path), 0);
    return REAL(linkat)(a, from, b, to, flags);
}

int unlinkat(int at, const char *name, int flags) {
    char path[PATH_MAX];
    step("unlink", behind(at, name, path), 0);
    return REAL(unlinkat)(at, name, flags);
}

int fsync(int fd) { on_open_file("fsync", fd); return REAL(fsync)(fd); }
int fdatasync(int fd) { on_open_file("fsync", fd); return REAL(fdatasync)(fd); }
ssize_t write(int fd, const void *bytes, size_t count) { on_open_file("write", fd); return REAL(write)(fd, bytes, count); }

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...) {                            \
        mode_t mode = 0;                                                    \
        if (flags & (O_CREAT | __O_TMPFILE)) {                              \
            va_list rest;                                                   \
            va_start(rest, flags);                                          \
            mode = va_arg(rest, mode_t);                                    \
            va_end(rest);                                                   \
        }                                                                   \
        if (flags & O_CREAT) step("create", path, 0);                       \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
