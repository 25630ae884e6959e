/* A disk that fails on demand: an LD_PRELOAD shim between a process and its writes.
 *
 * Built at test time by tests/durability/iofault.py, which also describes the rules. One rule a line:
 *
 *     mode=eio|enospc|delay|kill|drop ops=write,pwrite,fsync,fdatasync,open,rename|all|pread
 *         [path=SUBSTRING] [nth=1] [times=0] [ms=0] [at=OFFSET]
 *
 * A rule counts the calls that match ops and path; the nth one and the times-1 after it (0: all after
 * it) are faulted. Rules come from $HOLDFAST_IOFAULT (';' between them) and from the file named by
 * $HOLDFAST_IOFAULT_CONTROL, which is read again whenever it changed, so that a running process can
 * be switched. Calls before a fault run normally; a delay sleeps first and then runs the call. With
 * at, only calls of pread and read count whose range has this byte: a bad sector. `all` is without
 * pread, which stands for both.
 *
 * mode=drop fails nothing. It appends to $HOLDFAST_IOFAULT_SIDE what a power cut would leave of each
 * file, "INODE LENGTH" a line: 0 when it is created or truncated, its length at the start of every
 * completed sync. It also notes what changed the names in directories, and when a directory was synced;
 * a file whose name goes gets another one in $HOLDFAST_IOFAULT_SIDE.d, so that it can come back:
 *
 *     + PATH    - PATH INODE    > FROM TO INODE-OF-OLD-TO    [ DIRECTORY    = DIRECTORY
 *
 * ([ and = are begin and end of a sync; the fields are separated by tabs.) powercut.py applies all
 * that after a kill -9.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, PWRITE = 2, FSYNC = 4, FDATASYNC = 8, OPEN = 16, RENAME = 32, ALL = 63, PREAD = 64 };
enum { NONE, EIO_, ENOSPC_, DELAY, KILL, DROP };
enum { RULES_MAX = 32 };

struct rule {
    int mode, ops;
    char path[256];
    long nth, times, ms, seen, at;
};

static struct rule rules[RULES_MAX];
static int rules_fixed, rules_count, dropping, reading;
static int side = -1;
static const char *control;
static struct timespec control_time;
static ino_t control_inode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);
static char graves[3072];

static int parse_ops(char *text) {
    static const char *const names[] = {"write", "pwrite", "fsync", "fdatasync",
                                         "open", "rename", "pread"};
    int ops = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (!strcmp(word, "all")) ops = ALL;
        for (int i = 0; i < 7; i++)
            if (!strcmp(word, names[i])) ops |= 1 << i;
    }
    return ops;
}

static int parse_mode(const char *text) {
    if (!strcmp(text, "eio")) return EIO_;
    if (!strcmp(text, "enospc")) return ENOSPC_;
    if (!strcmp(text, "delay")) return DELAY;
    if (!strcmp(text, "kill")) return KILL;
    if (!strcmp(text, "drop")) return DROP;
    dprintf(2, "iofault: unknown mode %s\n", text);
    abort();
}

static void parse(char *text) {
    char *lines = NULL, *words = NULL;
    for (char *line = strtok_r(text, ";\n", &lines); line; line = strtok_r(NULL, ";\n", &lines)) {
        struct rule rule = {.mode = NONE, .ops = ALL, .nth = 1, .at = -1};
        for (char *word = strtok_r(line, " ", &words); word; word = strtok_r(NULL, " ", &words)) {
            char *value = strchr(word, '=');
            if (!value) continue;
            *value++ = 0;
            if (!strcmp(word, "mode")) rule.mode = parse_mode(value);
            if (!strcmp(word, "ops")) rule.ops = parse_ops(value);
            if (!strcmp(word, "path")) snprintf(rule.path, sizeof rule.path, "%s", value);
            if (!strcmp(word, "nth")) rule.nth = atol(value);
            if (!strcmp(word, "times")) rule.times = atol(value);
            if (!strcmp(word, "ms")) rule.ms = atol(value);
            if (!strcmp(word, "at")) rule.at = atol(value);
        }
        if (rule.ops & PREAD) reading = 1;
        if (rule.mode == DROP) dropping = 1;
        else if (rule.mode != NONE && rules_count < RULES_MAX) rules[rules_count++] = rule;
    }
}

__attribute__((constructor)) static void start(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_read = dlsym(RTLD_NEXT, "read");
    real_pread = dlsym(RTLD_NEXT, "pread");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_open = dlsym(RTLD_NEXT, "open");
    real_openat = dlsym(RTLD_NEXT, "openat");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    const char *text = getenv("HOLDFAST_IOFAULT");
    if (text) {
        char *copy = strdup(text);
        parse(copy);
        free(copy);
    }
    rules_fixed = rules_count;
    control = getenv("HOLDFAST_IOFAULT_CONTROL");
    const char *side_path = getenv("HOLDFAST_IOFAULT_SIDE");
    if (side_path) snprintf(graves, sizeof graves, "%s.d", side_path);
    if (side_path) side = real_open(side_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* With the lock held: read the control file again if it is another one than last time. */
static void refresh(void) {
    struct stat now;
    if (!control) return;
    if (stat(control, &now) != 0) {
        rules_count = rules_fixed;
        control_inode = 0;
        return;
    }
    if (now.st_ino == control_inode && now.st_mtim.tv_sec == control_time.tv_sec &&
        now.st_mtim.tv_nsec == control_time.tv_nsec)
        return;
    control_inode = now.st_ino;
    control_time = now.st_mtim;
    rules_count = rules_fixed;
    char text[4096];
    int fd = real_open(control, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : real_read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[size < 0 ? 0 : size] = 0;
    parse(text);
}

/* Return the errno to fail with, or 0 to run the call. Sleeps or kills when a rule says so. */
static int fault_in(int op, int fd, const char *path, off_t from, size_t size) {
    char link[64], name[4096];
    long sleep_ms = 0;
    int error = 0;
    sigset_t all, before;
    /* Python's handler of a signal writes to a descriptor: with the lock held it would wait for itself. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&lock);
    refresh();
    for (int i = 0; i < rules_count; i++) {
        struct rule *rule = &rules[i];
        if (!(rule->ops & op)) continue;
        if (rule->at >= 0 && (rule->at < from || rule->at >= from + (off_t)size)) continue;
        if (rule->path[0] && !path) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t size = readlink(link, name, sizeof name - 1);
            name[size < 0 ? 0 : size] = 0;
            path = name;
        }
        if (rule->path[0] && !strstr(path, rule->path)) continue;
        rule->seen++;
        if (rule->seen < rule->nth) continue;
        if (rule->times && rule->seen >= rule->nth + rule->times) continue;
        if (rule->mode == DELAY) sleep_ms += rule->ms;
        else if (rule->mode == KILL) kill(getpid(), SIGKILL);
        else error = rule->mode == EIO_ ? EIO : ENOSPC;
    }
    pthread_mutex_unlock(&lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (sleep_ms) {
        struct timespec wait = {sleep_ms / 1000, (sleep_ms % 1000) * 1000000};
        nanosleep(&wait, NULL);
    }
    return error;
}

static int fault(int op, int fd, const char *path) { return fault_in(op, fd, path, 0, 0); }

static void record(ino_t inode, off_t length) {
    char line[64];
    int size = snprintf(line, sizeof line, "%lu %ld\n", (unsigned long)inode, (long)length);
    if (side >= 0 && real_write(side, line, size) != size) abort();
}

static void record_names(const char *kind, const char *a, const char *b, ino_t inode) {
    char line[9000];
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\t%lu\n", kind, a, b, (unsigned long)inode);
    if (side >= 0 && real_write(side, line, size) != size) abort();
}

/* Give the file at `path` a second name before it loses this one; return its inode, 0: there is none. */
static ino_t bury(const char *path) {
    struct stat now;
    char grave[4096];
    if (lstat(path, &now) != 0 || !S_ISREG(now.st_mode)) return 0;
    snprintf(grave, sizeof grave, "%s/%lu", graves, (unsigned long)now.st_ino);
    link(path, grave);
    return now.st_ino;
}

static int synced(int fd, int op, int (*sync)(int)) {
    struct stat before;
    char link_name[64], path[4096];
    int error = fault(op, fd, NULL);
    if (error) return errno = error, -1;
    int seen = dropping && fstat(fd, &before) == 0;
    int known = seen && S_ISREG(before.st_mode);
    if (seen && S_ISDIR(before.st_mode)) {
        snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link_name, path, sizeof path - 1);
        path[size < 0 ? 0 : size] = 0;
        record_names("[", path, "", 0);
        int result = sync(fd);
        if (result == 0) record_names("=", path, "", 0);
        return result;
    }
    int result = sync(fd);
    if (known && result == 0) record(before.st_ino, before.st_size);
    return result;
}

int fsync(int fd) { return synced(fd, FSYNC, real_fsync); }
int fdatasync(int fd) { return synced(fd, FDATASYNC, real_fdatasync); }

ssize_t write(int fd, const void *data, size_t size) {
    int error = fd == side ? 0 : fault(WRITE, fd, NULL);
    if (error) return errno = error, -1;
    return real_write(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    int error = fault(PWRITE, fd, NULL);
    if (error) return errno = error, -1;
    return real_pwrite(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
    return pwrite(fd, data, size, offset);
}

ssize_t read(int fd, void *data, size_t size) {
    off_t offset = reading ? lseek(fd, 0, SEEK_CUR) : -1;
    int error = offset < 0 ? 0 : fault_in(PREAD, fd, NULL, offset, size);
    if (error) return errno = error, -1;
    return real_read(fd, data, size);
}

ssize_t pread(int fd, void *data, size_t size, off_t offset) {
    int error = fault_in(PREAD, fd, NULL, offset, size);
    if (error) return errno = error, -1;
    return real_pread(fd, data, size, offset);
}
ssize_t pread64(int fd, void *data, size_t size, off_t offset) {
    return pread(fd, data, size, offset);
}

static int opened(int fd, int flags) {
    struct stat now;
    if (fd >= 0 && dropping && (flags & (O_CREAT | O_TRUNC)) && fstat(fd, &now) == 0 &&
        S_ISREG(now.st_mode) && now.st_size == 0)
        record(now.st_ino, 0);
    return fd;
}

static int open_any(int directory, const char *path, int flags, mode_t mode) {
    if ((flags & O_ACCMODE) != O_RDONLY) {
        int error = fault(OPEN, -1, path);
        if (error) return errno = error, -1;
    }
    int is_new = dropping && (flags & O_CREAT) && path[0] == '/' && access(path, F_OK) != 0;
    int fd = opened(real_openat(directory, path, flags, mode), flags);
    if (fd >= 0 && is_new) record_names("+", path, "", 0);
    return fd;
}

#define MODE_ARGUMENT                                  \
    mode_t mode = 0;                                   \
    if (flags & (O_CREAT | __O_TMPFILE)) {             \
        va_list arguments;                             \
        va_start(arguments, flags);                    \
        mode = va_arg(arguments, mode_t);              \
        va_end(arguments);                             \
    }

int open(const char *path, int flags, ...) {
    MODE_ARGUMENT return open_any(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE_ARGUMENT return open_any(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int directory, const char *path, int flags, ...) {
    MODE_ARGUMENT return open_any(directory, path, flags, mode);
}
int openat64(int directory, const char *path, int flags, ...) {
    MODE_ARGUMENT return open_any(directory, path, flags | O_LARGEFILE, mode);
}

int rename(const char *from, const char *to) {
    int error = fault(RENAME, -1, to);
    if (error) return errno = error, -1;
    ino_t old = dropping ? bury(to) : 0;
    int result = real_rename(from, to);
    if (dropping && result == 0) record_names(">", from, to, old);
    return result;
}

int unlink(const char *path) {
    ino_t inode = dropping ? bury(path) : 0;
    int result = real_unlink(path);
    if (inode && result == 0) record_names("-", path, "", inode);
    return result;
}
