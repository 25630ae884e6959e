/*
 * mqttload - MQTT 3.1.1 / 5.0 load generator and delivery checker.
 *
 * One file, libc only, single threaded, epoll.  Build: cc -O2 -o mqttload mqttload.c
 * See mqttload.md beside this file for the scenarios and the fields of the JSON line.
 *
 * Every PUBLISH carries a 32 byte header (magic, run, stream, aux, sequence, timestamp) and a
 * checked body, so each delivery is accounted for: lost, duplicated, reordered, corrupted and
 * misrouted messages are counted, never assumed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define NS 1000000000ull
#define MAGIC 0x4d514c44u /* "MQLD" */
#define HDR 32
#define WB_HIGH (256 * 1024) /* stop producing into a socket buffer above this */
#define RD_CHUNK (256 * 1024)

/* ------------------------------------------------------------------ utilities */

static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("mqttload: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(2);
}

static void *xrealloc(void *p, size_t n)
{
    void *r = realloc(p, n ? n : 1);
    if (!r) die("out of memory (%zu bytes)", n);
    return r;
}

static void *xcalloc(size_t n, size_t s)
{
    void *r = calloc(n ? n : 1, s ? s : 1);
    if (!r) die("out of memory (%zu x %zu bytes)", n, s);
    return r;
}

static u64 nowns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * NS + (u64)t.tv_nsec;
}

static u64 rng_state = 88172645463325252ull;
static u64 rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

static void put16(u8 *p, u32 v) { p[0] = (u8)(v >> 8); p[1] = (u8)v; }
static u32 get16(const u8 *p) { return (u32)p[0] << 8 | p[1]; }
static u32 get32(const u8 *p) { return (u32)p[0] << 24 | (u32)p[1] << 16 | (u32)p[2] << 8 | p[3]; }
static void put32(u8 *p, u32 v) { put16(p, v >> 16); put16(p + 2, v & 0xffff); }

static size_t varint_put(u8 *p, u32 v)
{
    size_t n = 0;
    do {
        u8 b = v & 0x7f;
        v >>= 7;
        p[n++] = v ? b | 0x80 : b;
    } while (v);
    return n;
}

/* returns bytes used, 0 when more input is needed, -1 when malformed */
static int varint_get(const u8 *p, size_t n, u32 *out)
{
    u32 v = 0;
    for (int i = 0; i < 4; i++) {
        if ((size_t)i >= n) return 0;
        v |= (u32)(p[i] & 0x7f) << (7 * i);
        if (!(p[i] & 0x80)) {
            *out = v;
            return i + 1;
        }
    }
    return -1;
}

static char *utoa(char *o, u64 v)
{
    char t[24];
    int n = 0;
    do t[n++] = (char)('0' + v % 10); while (v /= 10);
    while (n) *o++ = t[--n];
    return o;
}

/* ------------------------------------------------------------------ options */

static int g_argc;
static char **g_argv;
static u8 *g_used;

static const char *opt(const char *name)
{
    size_t l = strlen(name);
    const char *r = NULL;
    for (int i = 0; i < g_argc; i++) {
        const char *a = g_argv[i];
        if (strncmp(a, "--", 2) || strncmp(a + 2, name, l)) continue;
        if (a[2 + l] == '=') r = a + 3 + l;
        else if (!a[2 + l]) r = "1";
        else continue;
        g_used[i] = 1;
    }
    return r;
}

static const char *opt_s(const char *n, const char *d)
{
    const char *v = opt(n);
    return v ? v : d;
}

static double opt_d(const char *n, double d)
{
    const char *v = opt(n);
    if (!v) return d;
    char *e;
    double x = strtod(v, &e);
    if (*e == 'k' || *e == 'K') x *= 1e3, e++;
    else if (*e == 'm' || *e == 'M') x *= 1e6, e++;
    if (*e || e == v) die("--%s: not a number: %s", n, v);
    return x;
}

static long opt_i(const char *n, long d) { return (long)opt_d(n, (double)d); }

static void opts_done(void)
{
    for (int i = 0; i < g_argc; i++)
        if (!g_used[i]) die("unknown or unused option: %s", g_argv[i]);
}

/* ------------------------------------------------------------------ histogram: 64 sub-buckets per power of two */

typedef struct { u64 b[64 * 64], n, max; double sum; } hist;

static void h_add(hist *h, u64 v)
{
    u32 i;
    if (v < 64) i = (u32)v;
    else {
        int e = 63 - __builtin_clzll(v); /* >= 6 */
        i = (u32)(e - 5) * 64 + (u32)((v >> (e - 6)) & 63);
    }
    h->b[i]++;
    h->n++;
    h->sum += (double)v;
    if (v > h->max) h->max = v;
}

static double h_pct(const hist *h, double p)
{
    if (!h->n) return 0;
    u64 want = (u64)(p / 100.0 * (double)h->n + 0.999999), s = 0;
    if (!want) want = 1;
    for (u32 i = 0; i < 64 * 64; i++) {
        s += h->b[i];
        if (s >= want) {
            double v;
            if (i < 64) v = i;
            else {
                u32 e = i / 64 + 5, m = i % 64;
                v = (double)((u64)(64 + m) << (e - 6)) + (double)(1ull << (e - 6)) / 2;
            }
            return v > (double)h->max ? (double)h->max : v;
        }
    }
    return (double)h->max;
}

static void h_json(const char *name, const hist *h)
{
    printf(",\"%s\":{\"n\":%" PRIu64 ",\"mean\":%.1f,\"p50\":%.1f,\"p90\":%.1f,\"p99\":%.1f,\"p99_9\":%.1f,\"max\":%.1f}", name,
           h->n, h->n ? h->sum / (double)h->n / 1e3 : 0.0, h_pct(h, 50) / 1e3, h_pct(h, 90) / 1e3, h_pct(h, 99) / 1e3,
           h_pct(h, 99.9) / 1e3, (double)h->max / 1e3);
}

/* ------------------------------------------------------------------ delivery tracking of one ordered stream */

typedef struct { u64 next, maxp1, distinct, dup, ooo, base, words; u64 *bm; } track;

static int t_has(const track *t, u64 s)
{
    if (s < t->next) return 1;
    if (!t->bm || s < t->base) return 0;
    u64 i = s - t->base;
    return i / 64 < t->words && (t->bm[i / 64] >> (i % 64) & 1);
}

/* 1 when seen before */
static int t_add(track *t, u64 s)
{
    if (s == t->next && !t->bm) {
        t->next++;
        t->maxp1 = t->next;
        t->distinct++;
        return 0;
    }
    if (t_has(t, s)) {
        t->dup++;
        return 1;
    }
    if (!t->bm) t->base = t->next & ~63ull;
    u64 w = (s - t->base) / 64;
    if (w >= t->words) {
        u64 nw = t->words ? t->words * 2 : 16;
        while (nw <= w) nw *= 2;
        t->bm = xrealloc(t->bm, nw * 8);
        memset(t->bm + t->words, 0, (nw - t->words) * 8);
        t->words = nw;
    }
    t->bm[w] |= 1ull << ((s - t->base) % 64);
    t->distinct++;
    if (s + 1 < t->maxp1) t->ooo++;
    else t->maxp1 = s + 1;
    while (t->next < t->maxp1) {
        u64 i = t->next - t->base;
        if (!(t->bm[i / 64] >> (i % 64) & 1)) break;
        t->next++;
    }
    if (t->next == t->maxp1) {
        free(t->bm);
        t->bm = NULL;
        t->words = 0;
    }
    return 0;
}

/* ------------------------------------------------------------------ the broker's cost, from /proc */

#define TIDS 128 /* threads told apart: a broker that has more has no single busiest one anyway */
typedef struct { int tid; u64 ticks; } thread_cpu;
#define BESIDE 4 /* groups of processes that serve the broker, such as the servers of its log */
typedef struct { double user, sys, gen, machine, beside[BESIDE]; long rss, anon, hwm, threads; u64 wbytes, rbytes; int ok, ntid; thread_cpu tid[TIDS]; } usage;
typedef struct { int n, pid[32]; } group;
static group g_broker, g_beside[BESIDE];
static int g_nbeside;

static const char *pids_parse(const char *s, group *g, const char *name)
{
    while (s && *s && *s != '/') {
        char *e;
        long v = strtol(s, &e, 10);
        if (e == s || v <= 0 || g->n == 32 || (*e && *e != ',' && *e != '/')) die("%s: bad list", name);
        g->pid[g->n++] = (int)v;
        s = *e == ',' ? e + 1 : e;
    }
    return s;
}

static void beside_parse(const char *s)
{
    while (s && *s) {
        if (g_nbeside == BESIDE) die("--beside: at most %d groups", BESIDE);
        s = pids_parse(s, &g_beside[g_nbeside++], "--beside");
        if (*s) s++;
    }
}

static size_t slurp(const char *path, char *buf, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    size_t o = 0;
    ssize_t r;
    while (o + 1 < n && (r = read(fd, buf + o, n - 1 - o)) > 0) o += (size_t)r;
    close(fd);
    buf[o] = 0;
    return o;
}

static u64 field(const char *buf, const char *key)
{
    const char *p = strstr(buf, key);
    return p ? strtoull(p + strlen(key), NULL, 10) : 0;
}

/* user and system ticks of a process or thread; 0 when it is gone */
static int cpu_ticks(const char *path, u64 *user, u64 *sys)
{
    char buf[1024];
    unsigned long long ut, st;
    if (!slurp(path, buf, sizeof buf)) return 0;
    char *p = strrchr(buf, ')');
    if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &ut, &st) != 2) return 0;
    *user = ut;
    *sys = st;
    return 1;
}

static void threads_now(usage *u, int pid)
{
    char path[300];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *d = opendir(path);
    if (!d) return;
    struct dirent *e;
    while ((e = readdir(d)) && u->ntid < TIDS) {
        u64 a, b;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", pid, e->d_name);
        if (cpu_ticks(path, &a, &b)) u->tid[u->ntid++] = (thread_cpu){atoi(e->d_name), a + b};
    }
    closedir(d);
}

/* CPU seconds of the thread that used most between two snapshots: a broker is at its limit when this one is */
static double busiest_s(const usage *a, const usage *b)
{
    u64 most = 0;
    for (int i = 0; i < b->ntid; i++) {
        u64 t = b->tid[i].ticks;
        for (int j = 0; j < a->ntid; j++)
            if (a->tid[j].tid == b->tid[i].tid) {
                t -= a->tid[j].ticks;
                break;
            }
        if (t > most) most = t;
    }
    return (double)most / (double)sysconf(_SC_CLK_TCK);
}

static double self_cpu(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_utime.tv_sec + (double)r.ru_stime.tv_sec + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static usage usage_now(void)
{
    usage u = {.gen = self_cpu()};
    double hz = (double)sysconf(_SC_CLK_TCK);
    char all[512];
    unsigned long long us, ni, sy, steal;
    if (slurp("/proc/stat", all, sizeof all) && sscanf(all, "cpu %llu %llu %llu %*u %*u %*u %*u %llu", &us, &ni, &sy, &steal) == 4)
        u.machine = (double)(us + ni + sy + steal) / hz;
    for (int i = 0; i < g_nbeside; i++)
        for (int j = 0; j < g_beside[i].n; j++) {
            char path[64];
            u64 ut, st;
            snprintf(path, sizeof path, "/proc/%d/stat", g_beside[i].pid[j]);
            if (cpu_ticks(path, &ut, &st)) u.beside[i] += (double)(ut + st) / hz;
        }
    for (int i = 0; i < g_broker.n; i++) {
        char path[64], buf[8192];
        snprintf(path, sizeof path, "/proc/%d/stat", g_broker.pid[i]);
        u64 ut, st;
        if (!cpu_ticks(path, &ut, &st)) continue;
        threads_now(&u, g_broker.pid[i]);
        u.user += (double)ut / hz;
        u.sys += (double)st / hz;
        u.ok = 1;
        snprintf(path, sizeof path, "/proc/%d/status", g_broker.pid[i]);
        if (slurp(path, buf, sizeof buf)) {
            u.rss += (long)field(buf, "VmRSS:");
            u.anon += (long)field(buf, "RssAnon:");
            u.hwm += (long)field(buf, "VmHWM:");
            u.threads += (long)field(buf, "Threads:");
        }
        snprintf(path, sizeof path, "/proc/%d/io", g_broker.pid[i]);
        if (slurp(path, buf, sizeof buf)) {
            u.rbytes += field(buf, "\nread_bytes: ");
            u.wbytes += field(buf, "\nwrite_bytes: ");
        }
    }
    return u;
}

/* CPU seconds that neither the broker nor this generator used: other processes, or other virtual machines */
static double others_s(const usage *a, const usage *b)
{
    double o = b->machine - a->machine - (b->user + b->sys - a->user - a->sys) - (b->gen - a->gen);
    for (int i = 0; i < g_nbeside; i++) o -= b->beside[i] - a->beside[i];
    return o > 0 ? o : 0;
}

static void j_beside(const usage *a, const usage *b)
{
    if (!g_nbeside) return;
    printf(",\"beside_s\":[");
    for (int i = 0; i < g_nbeside; i++) printf("%s%.2f", i ? "," : "", b->beside[i] - a->beside[i]);
    printf("]");
}

/* ------------------------------------------------------------------ connections */

typedef struct { u8 *p; size_t off, len, cap; } buf;

static u8 *b_reserve(buf *b, size_t n)
{
    if (b->off && !b->len) b->off = 0;
    if (b->off + b->len + n > b->cap) {
        if (b->off && b->len + n <= b->cap) {
            memmove(b->p, b->p + b->off, b->len);
            b->off = 0;
        } else {
            size_t c = b->cap ? b->cap : 128;
            while (b->len + n > c) c *= 2;
            u8 *q = xrealloc(NULL, c);
            if (b->len) memcpy(q, b->p + b->off, b->len);
            free(b->p);
            b->p = q;
            b->off = 0;
            b->cap = c;
        }
    }
    return b->p + b->off + b->len;
}

static void b_free(buf *b)
{
    free(b->p);
    memset(b, 0, sizeof *b);
}

enum { C_IDLE, C_TCP, C_CONNECT, C_UP, C_BYE, C_DEAD };
enum { S_FREE, S_PUBACK, S_PUBREC, S_PUBCOMP };

typedef struct { u64 seq, ts, order; u32 stream; u32 aux; u8 st; } slot;

struct pub;
typedef struct conn {
    int fd;
    u8 st, want_out, dirty, clean, sp, launching, pubrole, suback_left;
    u32 idx;      /* index within its role */
    u32 batch;    /* epoll batch in which the socket was opened: stale events are ignored */
    u32 srv_rmax; /* v5 Receive Maximum of the server */
    u32 srv_maxpkt;
    buf rb, wb;
    u64 t0, last_write, retry_at;
    u64 *q2; /* QoS 2 packet ids received, not yet released */
    struct pub *pub;
    u32 sub_lo, sub_hi; /* `subs`: filters being subscribed */
} conn;

typedef struct pub {
    conn *c;
    u32 id, win, inflight;
    slot *slots;
    u16 *fq;
    u32 fh, fn;
    u64 next, limit, acked, nacked, sent, delivered, order;
    u64 fan;
    u64 due, interval;
    u32 heap_pos; /* 0: not in the heap */
    u8 queued, stop;
    char topic[192];
    u32 tlen;
} pub;

static struct {
    const char *host, *user, *pass, *prefix;
    int port, ver, keepalive, rmax, srcaddrs;
    u32 expiry;
    int qos, subqos, payload, window;
    double idle, timeout;
    struct sockaddr_storage sa;
    socklen_t salen;
    u32 run;
    int nodelay, conc, coalesce;
} G;

static struct {
    u64 connect_fail, refused, closed, proto, suback_fail, nack, misrouted, corrupt, foreign, io;
    int last_connack, last_disconnect, last_errno, last_nack;
    u64 retransmit, downgraded;
} E;

static int ep, tfd;
static u32 g_batch;
static u64 g_now;      /* refreshed per epoll batch and per read */
static u64 g_progress; /* bumped by anything that counts as progress */
static u64 g_closing, g_open, g_connacks;
static u8 *g_pat;
static volatile sig_atomic_t g_stop;

/* scenario hooks */
static void (*on_up)(conn *);
static void (*on_down)(conn *, int expected);
static void (*on_suback)(conn *);
static void (*on_msg)(conn *, u32 stream, u32 aux, u64 seq, u64 ts, int qos, u32 pid);
static void (*on_pubrec)(pub *, slot *, u32 pid);
static void (*on_acked)(pub *, slot *, int ok);
static void (*on_pubrel)(conn *, u32 pid);
static void (*pump)(pub *);

static conn **dirty_list;
static u32 dirty_n, dirty_cap;
static pub **pump_list;
static u32 pump_n, pump_cap;

static void mark_dirty(conn *c)
{
    if (c->dirty) return;
    c->dirty = 1;
    if (dirty_n == dirty_cap) {
        dirty_cap = dirty_cap ? dirty_cap * 2 : 256;
        dirty_list = xrealloc(dirty_list, dirty_cap * sizeof *dirty_list);
    }
    dirty_list[dirty_n++] = c;
}

static void mark_pump(pub *p)
{
    if (p->queued) return;
    p->queued = 1;
    if (pump_n == pump_cap) {
        pump_cap = pump_cap ? pump_cap * 2 : 256;
        pump_list = xrealloc(pump_list, pump_cap * sizeof *pump_list);
    }
    pump_list[pump_n++] = p;
}

static u32 launch_active;
static void launch_done(conn *c)
{
    if (c->launching) {
        c->launching = 0;
        launch_active--;
    }
}

static void conn_close(conn *c)
{
    if (c->fd < 0) return;
    int was = c->st;
    close(c->fd);
    c->fd = -1;
    g_open--;
    b_free(&c->rb);
    b_free(&c->wb);
    c->want_out = 0;
    c->st = C_DEAD;
    launch_done(c);
    if (was == C_BYE) g_closing--;
    else if (was == C_TCP) E.connect_fail++;
    else E.closed++;
    g_progress++;
    if (on_down) on_down(c, was == C_BYE);
}

static void conn_fail(conn *c)
{
    if (c->st != C_BYE) E.last_errno = errno;
    conn_close(c);
}

static void ep_set(conn *c, u32 events, int op)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    if (epoll_ctl(ep, op, c->fd, &ev)) die("epoll_ctl: %s", strerror(errno));
}

static void flush_conn(conn *c)
{
    while (c->fd >= 0 && c->wb.len && c->st != C_TCP) {
        ssize_t n = send(c->fd, c->wb.p + c->wb.off, c->wb.len, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) break;
            if (c->st != C_BYE) E.io++;
            conn_fail(c);
            return;
        }
        c->wb.off += (size_t)n;
        c->wb.len -= (size_t)n;
        c->last_write = g_now;
    }
    if (c->fd < 0) return;
    if (!c->wb.len) {
        c->wb.off = 0;
        if (c->wb.cap > 64 * 1024) b_free(&c->wb);
        if (c->want_out && c->st != C_TCP) {
            c->want_out = 0;
            ep_set(c, EPOLLIN, EPOLL_CTL_MOD);
            if (c->pub) mark_pump(c->pub);
        }
        if (c->st == C_BYE) shutdown(c->fd, SHUT_WR);
    } else if (!c->want_out) {
        c->want_out = 1;
        ep_set(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    }
}

static void enc_connect(conn *c)
{
    char id[96];
    int idl = snprintf(id, sizeof id, "%s-%s%u", G.prefix, c->pubrole ? "p" : "s", c->idx);
    size_t ul = G.user ? strlen(G.user) : 0, pl = G.pass ? strlen(G.pass) : 0;
    u8 props[16];
    size_t np = 0;
    if (G.ver == 5) {
        if (!c->clean) {
            props[np++] = 0x11;
            put32(props + np, G.expiry);
            np += 4;
        }
        if (G.rmax) {
            props[np++] = 0x21;
            put16(props + np, (u32)G.rmax);
            np += 2;
        }
    }
    size_t rl = 10 + (G.ver == 5 ? 1 + np : 0) + 2 + (size_t)idl + (G.user ? 2 + ul : 0) + (G.pass ? 2 + pl : 0);
    u8 *p = b_reserve(&c->wb, rl + 5), *o = p;
    *p++ = 0x10;
    p += varint_put(p, (u32)rl);
    memcpy(p, "\0\4MQTT", 6);
    p += 6;
    *p++ = (u8)G.ver;
    *p++ = (u8)((c->clean ? 2 : 0) | (G.user ? 0x80 : 0) | (G.pass ? 0x40 : 0));
    put16(p, (u32)G.keepalive);
    p += 2;
    if (G.ver == 5) {
        *p++ = (u8)np;
        memcpy(p, props, np);
        p += np;
    }
    put16(p, (u32)idl);
    memcpy(p + 2, id, (size_t)idl);
    p += 2 + idl;
    if (G.user) {
        put16(p, (u32)ul);
        memcpy(p + 2, G.user, ul);
        p += 2 + ul;
    }
    if (G.pass) {
        put16(p, (u32)pl);
        memcpy(p + 2, G.pass, pl);
        p += 2 + pl;
    }
    c->wb.len += (size_t)(p - o);
    mark_dirty(c);
}

static u32 g_conn_seq;

/* start connecting; 0 when the attempt failed at once */
static int conn_open(conn *c)
{
    int fd = socket(G.sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket: %s (open files: raise ulimit -n)", strerror(errno));
    int one = 1;
    if (G.nodelay) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (G.srcaddrs > 1 && G.sa.ss_family == AF_INET) {
        struct sockaddr_in s = {.sin_family = AF_INET};
        s.sin_addr.s_addr = htonl(0x7f000001u + g_conn_seq++ % (u32)G.srcaddrs);
#ifdef IP_BIND_ADDRESS_NO_PORT
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
#endif
        if (bind(fd, (struct sockaddr *)&s, sizeof s)) die("bind: %s", strerror(errno));
    }
    c->fd = fd;
    c->st = C_TCP;
    c->batch = g_batch;
    c->t0 = nowns();
    c->want_out = 1;
    c->srv_rmax = 65535;
    c->srv_maxpkt = 0;
    c->sp = 0;
    b_free(&c->rb);
    b_free(&c->wb);
    g_open++;
    ep_set(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
    if (connect(fd, (struct sockaddr *)&G.sa, G.salen) && errno != EINPROGRESS) {
        conn_fail(c);
        return 0;
    }
    return 1;
}

static void conn_bye(conn *c)
{
    if (c->fd < 0) return;
    if (c->st == C_BYE) return;
    if (c->st == C_TCP || c->st == C_CONNECT) { /* no session to end: just drop it */
        c->st = C_BYE;
        g_closing++;
        conn_close(c);
        return;
    }
    u8 *p = b_reserve(&c->wb, 2);
    p[0] = 0xe0;
    p[1] = 0;
    c->wb.len += 2;
    c->st = C_BYE;
    g_closing++;
    mark_dirty(c);
}

static void send_ack(conn *c, u8 type, u32 pid)
{
    u8 *p = b_reserve(&c->wb, 4);
    p[0] = type;
    p[1] = 2;
    put16(p + 2, pid);
    c->wb.len += 4;
    mark_dirty(c);
}

/* filters: concatenated via callback so that large batches need no copies */
static void send_subscribe(conn *c, u32 n, u32 first, size_t (*name)(conn *, u32, char *))
{
    char t[256];
    size_t rl = 2 + (G.ver == 5 ? 1 : 0);
    for (u32 i = 0; i < n; i++) rl += 3 + name(c, first + i, t);
    u8 *p = b_reserve(&c->wb, rl + 5), *o = p;
    *p++ = 0x82;
    p += varint_put(p, (u32)rl);
    put16(p, 1);
    p += 2;
    if (G.ver == 5) *p++ = 0;
    for (u32 i = 0; i < n; i++) {
        size_t l = name(c, first + i, t);
        put16(p, (u32)l);
        memcpy(p + 2, t, l);
        p += 2 + l;
        *p++ = (u8)G.subqos;
    }
    c->wb.len += (size_t)(p - o);
    mark_dirty(c);
}

/* ------------------------------------------------------------------ publishing */

static void pub_init(pub *p, conn *c, u32 id)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    c->pub = p;
    p->id = id;
    p->win = (u32)G.window;
    p->slots = xcalloc(p->win + 1, sizeof(slot));
    p->fq = xcalloc(p->win, sizeof(u16));
    for (u32 i = 0; i < p->win; i++) p->fq[i] = (u16)(i + 1);
    p->fn = p->win;
    p->fan = 1;
    p->limit = UINT64_MAX;
}

static void enc_publish(conn *c, const char *topic, u32 tl, int qos, int dup, u32 pid, u32 stream, u32 aux, u64 seq, u64 ts)
{
    size_t rl = 2 + tl + (qos ? 2 : 0) + (G.ver == 5 ? 1 : 0) + (size_t)G.payload;
    u8 *p = b_reserve(&c->wb, rl + 5), *o = p;
    *p++ = (u8)(0x30 | qos << 1 | (dup ? 8 : 0));
    p += varint_put(p, (u32)rl);
    put16(p, tl);
    memcpy(p + 2, topic, tl);
    p += 2 + tl;
    if (qos) {
        put16(p, pid);
        p += 2;
    }
    if (G.ver == 5) *p++ = 0;
    u32 h[4] = {MAGIC, G.run, stream, aux};
    memcpy(p, h, 16);
    memcpy(p + 16, &seq, 8);
    memcpy(p + 24, &ts, 8);
    memcpy(p + HDR, g_pat + (seq & 63), (size_t)G.payload - HDR);
    p += G.payload;
    c->wb.len += (size_t)(p - o);
    mark_dirty(c);
}

/* room for one more PUBLISH from this publisher */
static int pub_room(pub *p)
{
    if (p->c->st != C_UP || p->c->wb.len > WB_HIGH) return 0;
    return !G.qos || (p->fn && p->inflight < p->c->srv_rmax);
}

/* returns the packet id (0 for QoS 0) */
static u32 pub_send(pub *p, const char *topic, u32 tl, u32 stream, u32 aux, u64 seq, u64 ts)
{
    u32 pid = 0;
    if (G.qos) {
        pid = p->fq[p->fh];
        p->fh = p->fh + 1 == p->win ? 0 : p->fh + 1;
        p->fn--;
        p->inflight++;
        slot *s = &p->slots[pid];
        s->st = G.qos == 1 ? S_PUBACK : S_PUBREC;
        s->seq = seq;
        s->stream = stream;
        s->aux = aux;
        s->ts = ts;
        s->order = p->order++;
    }
    enc_publish(p->c, topic, tl, G.qos, 0, pid, stream, aux, seq, ts);
    p->sent++;
    return pid;
}

static void pid_free(pub *p, u32 pid)
{
    p->slots[pid].st = S_FREE;
    u32 i = p->fh + p->fn;
    p->fq[i >= p->win ? i - p->win : i] = (u16)pid;
    p->fn++;
    p->inflight--;
}

static hist H_ack, H_lat, H_conn;
static u64 g_first_ack, g_last_ack;

static void pub_ack(conn *c, u8 type, u32 pid, int rc)
{
    pub *p = c->pub;
    if (!p || !pid || pid > p->win || p->slots[pid].st == S_FREE) {
        E.proto++;
        return;
    }
    slot *s = &p->slots[pid];
    int want = type == 0x40 ? S_PUBACK : type == 0x50 ? S_PUBREC : S_PUBCOMP;
    if (type == 0x50 && s->st == S_PUBCOMP) { /* PUBREC again after a resend */
        send_ack(c, 0x62, pid);
        return;
    }
    if (s->st != want) {
        E.proto++;
        return;
    }
    g_progress++;
    if (type == 0x50 && rc < 0x80) {
        s->st = S_PUBCOMP;
        if (on_pubrec) on_pubrec(p, s, pid);
        send_ack(c, 0x62, pid);
        return;
    }
    int ok = rc < 0x80;
    if (ok) {
        p->acked++;
        h_add(&H_ack, g_now > s->ts ? g_now - s->ts : 0);
    } else {
        p->nacked++;
        E.nack++;
        E.last_nack = rc;
    }
    if (!g_first_ack) g_first_ack = g_now;
    g_last_ack = g_now;
    if (on_acked) on_acked(p, s, ok);
    pid_free(p, pid);
    mark_pump(p);
}

/* ------------------------------------------------------------------ packets from the broker */

/* Walks v5 properties; returns 0 when malformed. Only CONNACK's values are kept. */
static int props_walk(conn *c, const u8 *p, size_t n, int connack)
{
    size_t i = 0;
    while (i < n) {
        u8 id = p[i++];
        size_t left = n - i, sz;
        switch (id) {
        case 0x01: case 0x17: case 0x19: case 0x24: case 0x25: case 0x28: case 0x29: case 0x2a: sz = 1; break;
        case 0x13: case 0x21: case 0x22: case 0x23: sz = 2; break;
        case 0x02: case 0x11: case 0x18: case 0x27: sz = 4; break;
        case 0x0b: {
            u32 v;
            int k = varint_get(p + i, left, &v);
            if (k <= 0) return 0;
            sz = (size_t)k;
            break;
        }
        case 0x03: case 0x08: case 0x09: case 0x12: case 0x15: case 0x16: case 0x1a: case 0x1c: case 0x1f:
            if (left < 2) return 0;
            sz = 2 + get16(p + i);
            break;
        case 0x26:
            if (left < 2) return 0;
            sz = 2 + get16(p + i);
            if (left < sz + 2) return 0;
            sz += 2 + get16(p + i + sz);
            break;
        default: return 0;
        }
        if (left < sz) return 0;
        if (connack) {
            if (id == 0x21) c->srv_rmax = get16(p + i);
            if (id == 0x27) c->srv_maxpkt = get32(p + i);
            if (id == 0x24 && p[i] < G.qos) die("the server's Maximum QoS is %d, asked for %d", p[i], G.qos);
        }
        i += sz;
    }
    return 1;
}

static void bad(conn *c, const char *what)
{
    E.proto++;
    if (E.proto <= 3) fprintf(stderr, "mqttload: protocol error from the server: %s\n", what);
    errno = EPROTO;
    conn_fail(c);
}

static void handle(conn *c, u8 h, const u8 *p, size_t n)
{
    switch (h >> 4) {
    case 2: { /* CONNACK */
        if (n < 2 || c->st != C_CONNECT) {
            bad(c, "CONNACK");
            return;
        }
        if (p[1]) {
            E.refused++;
            E.last_connack = p[1];
            errno = ECONNREFUSED;
            conn_fail(c);
            return;
        }
        if (G.ver == 5) {
            u32 pl;
            int k = n > 2 ? varint_get(p + 2, n - 2, &pl) : -1;
            if (k <= 0 || 2 + (size_t)k + pl != n || !props_walk(c, p + 2 + k, pl, 1)) {
                bad(c, "CONNACK properties");
                return;
            }
        }
        c->sp = p[0] & 1;
        if (!c->sp) { /* no session there: ours is void too */
            free(c->q2);
            c->q2 = NULL;
        }
        c->st = C_UP;
        g_connacks++;
        g_progress++;
        h_add(&H_conn, g_now - c->t0);
        if (on_up) on_up(c);
        break;
    }
    case 3: { /* PUBLISH */
        int qos = h >> 1 & 3;
        if (n < 2 || qos == 3) {
            bad(c, "PUBLISH");
            return;
        }
        size_t tl = get16(p), i = 2 + tl;
        u32 pid = 0;
        if (qos) {
            if (n < i + 2) {
                bad(c, "PUBLISH without a packet id");
                return;
            }
            pid = get16(p + i);
            i += 2;
        }
        if (G.ver == 5) {
            u32 pl;
            int k = i < n ? varint_get(p + i, n - i, &pl) : -1;
            if (k <= 0 || i + (size_t)k + pl > n || !props_walk(c, p + i + k, pl, 0)) {
                bad(c, "PUBLISH properties");
                return;
            }
            i += (size_t)k + pl;
        }
        if (i > n || (qos && !pid)) {
            bad(c, "PUBLISH length");
            return;
        }
        int deliver = 1;
        if (qos == 2) {
            if (!c->q2) c->q2 = xcalloc(1024, 8);
            u64 bit = 1ull << (pid & 63);
            if (c->q2[pid >> 6] & bit) deliver = 0, E.retransmit++; /* not released yet: the same message again */
            c->q2[pid >> 6] |= bit;
        }
        const u8 *b = p + i;
        size_t bl = n - i;
        u32 hd[4];
        u64 seq, ts;
        if (bl < HDR || (memcpy(hd, b, 16), hd[0] != MAGIC) || hd[1] != G.run) E.foreign++;
        else if (deliver) {
            memcpy(&seq, b + 16, 8);
            memcpy(&ts, b + 24, 8);
            if (bl != (size_t)G.payload || memcmp(b + HDR, g_pat + (seq & 63), bl - HDR)) E.corrupt++;
            g_progress++;
            on_msg(c, hd[2], hd[3], seq, ts, qos, pid);
        }
        if (c->fd < 0 || c->st == C_BYE) return;
        if (qos == 1) send_ack(c, 0x40, pid);
        else if (qos == 2) send_ack(c, 0x50, pid);
        break;
    }
    case 4: case 5: case 7: /* PUBACK, PUBREC, PUBCOMP */
        if (n < 2) {
            bad(c, "ack");
            return;
        }
        if (G.ver == 5 && n > 3) {
            u32 pl;
            int k = varint_get(p + 3, n - 3, &pl);
            if (k <= 0 || 3 + (size_t)k + pl != n || !props_walk(c, p + 3 + k, pl, 0)) {
                bad(c, "ack properties");
                return;
            }
        }
        pub_ack(c, h & 0xf0, get16(p), G.ver == 5 && n > 2 ? p[2] : 0);
        break;
    case 6: { /* PUBREL */
        if (n < 2) {
            bad(c, "PUBREL");
            return;
        }
        u32 pid = get16(p);
        if (c->q2) c->q2[pid >> 6] &= ~(1ull << (pid & 63));
        if (on_pubrel) on_pubrel(c, pid);
        if (c->st == C_UP) send_ack(c, 0x70, pid);
        break;
    }
    case 9: { /* SUBACK */
        size_t i = 2;
        if (G.ver == 5) {
            u32 pl;
            int k = n > 2 ? varint_get(p + 2, n - 2, &pl) : -1;
            if (k <= 0 || 2 + (size_t)k + pl > n || !props_walk(c, p + 2 + k, pl, 0)) {
                bad(c, "SUBACK properties");
                return;
            }
            i += (size_t)k + pl;
        }
        for (; i < n; i++) {
            if (p[i] >= 0x80) E.suback_fail++;
            else if (p[i] < G.subqos) E.downgraded++;
        }
        g_progress++;
        if (on_suback) on_suback(c);
        break;
    }
    case 11: case 13: break; /* UNSUBACK, PINGRESP */
    case 14:
        E.last_disconnect = n ? p[0] : 0;
        errno = ECONNRESET;
        conn_fail(c);
        break;
    default: bad(c, "packet type");
    }
}

static u8 *g_rd;
static size_t g_rdcap;

static void do_read(conn *c)
{
    size_t have = c->rb.len;
    if (have + RD_CHUNK > g_rdcap) {
        g_rdcap = have + 2 * RD_CHUNK;
        g_rd = xrealloc(g_rd, g_rdcap);
    }
    if (have) memcpy(g_rd, c->rb.p + c->rb.off, have);
    ssize_t r = recv(c->fd, g_rd + have, RD_CHUNK, 0);
    if (r < 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        conn_fail(c);
        return;
    }
    if (r == 0) {
        errno = 0;
        conn_fail(c);
        return;
    }
    g_now = nowns();
    size_t n = have + (size_t)r, o = 0;
    while (n - o >= 2) {
        u32 rl;
        int k = varint_get(g_rd + o + 1, n - o - 1, &rl);
        if (k < 0) {
            bad(c, "remaining length");
            return;
        }
        if (!k || n - o < 1 + (size_t)k + rl) break;
        handle(c, g_rd[o], g_rd + o + 1 + k, rl);
        if (c->fd < 0) return;
        o += 1 + (size_t)k + rl;
    }
    c->rb.off = c->rb.len = 0;
    if (o < n) {
        memcpy(b_reserve(&c->rb, n - o), g_rd + o, n - o);
        c->rb.len = n - o;
    } else if (c->rb.p) b_free(&c->rb);
}

/* ------------------------------------------------------------------ rate caps: a heap of publishers by due time */

static pub **heap;
static u32 heap_n, heap_cap;
static u64 timer_at;

static void heap_put(u32 i, pub *p)
{
    heap[i] = p;
    p->heap_pos = i;
}

static void heap_push(pub *p)
{
    if (p->heap_pos) return;
    if (heap_n + 2 > heap_cap) {
        heap_cap = heap_cap ? heap_cap * 2 : 64;
        heap = xrealloc(heap, heap_cap * sizeof *heap);
    }
    u32 i = ++heap_n;
    while (i > 1 && heap[i / 2]->due > p->due) {
        heap_put(i, heap[i / 2]);
        i /= 2;
    }
    heap_put(i, p);
}

static pub *heap_pop(void)
{
    pub *top = heap[1], *l = heap[heap_n--];
    top->heap_pos = 0;
    if (heap_n) {
        u32 i = 1, k;
        while ((k = i * 2) <= heap_n) {
            if (k < heap_n && heap[k + 1]->due < heap[k]->due) k++;
            if (heap[k]->due >= l->due) break;
            heap_put(i, heap[k]);
            i = k;
        }
        heap_put(i, l);
    }
    return top;
}

static void rate_init(pub *p, double rate, u64 start, u32 i, u32 n)
{
    if (rate <= 0) return;
    p->interval = (u64)((double)NS / rate);
    p->due = start + p->interval * i / (n ? n : 1);
}

/* may this publisher send now? sets *ts to the intended time (so a late send counts as latency) */
static int rate_ok(pub *p, u64 *ts)
{
    if (!p->interval) {
        *ts = g_now;
        return 1;
    }
    if (p->due > g_now) {
        heap_push(p);
        return 0;
    }
    *ts = p->due;
    p->due += p->interval;
    return 1;
}

/* ------------------------------------------------------------------ the loop */

static conn **g_all; /* every connection, for keep-alive */
static u32 g_nall;
static u64 g_last_ping;

static int g_busy;

static void loop_once(int ms)
{
    struct epoll_event ev[512];
    g_now = nowns();
    while (heap_n && heap[1]->due <= g_now) mark_pump(heap_pop());
    for (;;) { /* pumps may fail connections, which may mark more */
        for (u32 i = 0; i < pump_n; i++) {
            pump_list[i]->queued = 0;
            pump(pump_list[i]);
        }
        pump_n = 0;
        for (u32 i = 0; i < dirty_n; i++) {
            conn *c = dirty_list[i];
            c->dirty = 0;
            if (c->fd >= 0) flush_conn(c);
        }
        dirty_n = 0;
        if (!pump_n) break;
    }
    if (heap_n && heap[1]->due != timer_at) {
        timer_at = heap[1]->due;
        struct itimerspec it = {.it_value = {(time_t)(timer_at / NS), (long)(timer_at % NS)}};
        timerfd_settime(tfd, TFD_TIMER_ABSTIME, &it, NULL);
    }
    if (G.coalesce && g_busy) { /* let more events gather: fewer, larger batches */
        struct timespec z = {0, G.coalesce * 1000L};
        nanosleep(&z, NULL);
    }
    int n = epoll_wait(ep, ev, 512, ms);
    g_now = nowns();
    g_batch++;
    g_busy = n;
    for (int i = 0; i < n; i++) {
        conn *c = ev[i].data.ptr;
        if (!c) {
            u64 x;
            if (read(tfd, &x, 8) < 0) {}
            timer_at = 0;
            continue;
        }
        if (c->fd < 0 || c->batch == g_batch) continue;
        if (c->st == C_TCP) {
            int err = 0;
            socklen_t l = sizeof err;
            getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &l);
            if (err) {
                errno = err;
                conn_fail(c);
                continue;
            }
            if (!(ev[i].events & EPOLLOUT)) continue;
            c->st = C_CONNECT;
            enc_connect(c);
            continue;
        }
        if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) do_read(c);
        if (c->fd >= 0 && (ev[i].events & EPOLLOUT)) flush_conn(c);
    }
    if (G.keepalive && g_now - g_last_ping > NS / 2) {
        g_last_ping = g_now;
        for (u32 i = 0; i < g_nall; i++) {
            conn *c = g_all[i];
            if (c->st == C_UP && g_now - c->last_write > (u64)G.keepalive * NS / 2) {
                u8 *p = b_reserve(&c->wb, 2);
                p[0] = 0xc0;
                p[1] = 0;
                c->wb.len += 2;
                mark_dirty(c);
            }
        }
    }
}

static conn *conn_new(int pubrole, u32 idx, int clean)
{
    conn *c = xcalloc(1, sizeof *c);
    c->fd = -1;
    c->pubrole = (u8)pubrole;
    c->idx = idx;
    c->clean = (u8)clean;
    if (!(g_nall & (g_nall + 1)) || !g_all) g_all = xrealloc(g_all, (size_t)(g_nall + 1) * 2 * sizeof *g_all);
    g_all[g_nall++] = c;
    return c;
}

/* Opens `n` connections, at most G.conc unfinished at a time, until `done()` or no progress for the timeout. */
static int launch(conn **l, u32 n, int (*done)(void), double timeout)
{
    u32 next = 0;
    u64 last = nowns(), prog = g_progress;
    while (!g_stop) {
        while (next < n && launch_active < (u32)G.conc) {
            conn *c = l[next++];
            c->launching = 1;
            launch_active++;
            conn_open(c);
        }
        if (done()) return 1;
        loop_once(next < n && launch_active < (u32)G.conc ? 0 : 20);
        if (g_progress != prog) prog = g_progress, last = g_now;
        else if (g_now - last > (u64)(timeout * 1e9)) return 0;
    }
    return 0;
}

static int run_until(int (*done)(void), double idle)
{
    u64 last = nowns(), prog = g_progress;
    while (!g_stop && !done()) {
        loop_once(20);
        if (g_progress != prog) prog = g_progress, last = g_now;
        else if (g_now - last > (u64)(idle * 1e9)) return 0;
    }
    return 1;
}

static int none_closing(void) { return !g_closing; }

static void bye_all(conn **l, u32 n)
{
    for (u32 i = 0; i < n; i++) conn_bye(l[i]);
    run_until(none_closing, 3);
    for (u32 i = 0; i < n; i++)
        if (l[i]->fd >= 0) {
            if (l[i]->st != C_BYE) g_closing++;
            l[i]->st = C_BYE;
            conn_close(l[i]);
        }
}

static void sleep_loop(double s)
{
    u64 end = nowns() + (u64)(s * 1e9);
    while (nowns() < end && !g_stop) loop_once(10);
}

/* ------------------------------------------------------------------ output */

static void j_begin(const char *scenario)
{
    printf("{\"scenario\":\"%s\",\"v\":%d,\"qos\":%d,\"payload\":%d,\"coalesce_us\":%d", scenario, G.ver, G.qos, G.payload, G.coalesce);
}

static void j_errors(void)
{
    printf(",\"errors\":{\"connect_fail\":%" PRIu64 ",\"refused\":%" PRIu64 ",\"closed\":%" PRIu64 ",\"proto\":%" PRIu64
           ",\"suback_fail\":%" PRIu64 ",\"nack\":%" PRIu64 ",\"io\":%" PRIu64 ",\"misrouted\":%" PRIu64 ",\"corrupt\":%" PRIu64
           ",\"foreign\":%" PRIu64,
           E.connect_fail, E.refused, E.closed, E.proto, E.suback_fail, E.nack, E.io, E.misrouted, E.corrupt, E.foreign);
    if (E.last_connack) printf(",\"last_connack\":%d", E.last_connack);
    if (E.last_disconnect) printf(",\"last_disconnect\":%d", E.last_disconnect);
    if (E.last_nack) printf(",\"last_nack\":%d", E.last_nack);
    if (E.last_errno) printf(",\"last_errno\":\"%s\"", strerror(E.last_errno));
    printf("},\"downgraded\":%" PRIu64 ",\"retransmit\":%" PRIu64, E.downgraded, E.retransmit);
}

static u64 errors_total(void)
{
    return E.connect_fail + E.refused + E.closed + E.proto + E.suback_fail + E.nack + E.io + E.misrouted + E.corrupt;
}

/* cost between two snapshots; `msgs` = messages handled (deliveries, or publishes when there are none) */
static void j_cost(usage a, usage b, double gen, u64 sent, u64 delivered)
{
    if (b.ok) {
        double cpu = b.user + b.sys - a.user - a.sys;
        printf(",\"broker\":{\"cpu_s\":%.2f,\"busiest_s\":%.2f,\"others_s\":%.2f,\"user_s\":%.2f,\"sys_s\":%.2f,\"rss_kb\":%ld,\"rss_before_kb\":%ld,\"anon_kb\":%ld,\"hwm_kb\":%ld,\"threads\":%ld"
               ",\"write_mb\":%.2f,\"read_mb\":%.2f",
               cpu, busiest_s(&a, &b), others_s(&a, &b), b.user - a.user, b.sys - a.sys, b.rss, a.rss, b.anon, b.hwm, b.threads, (double)(b.wbytes - a.wbytes) / 1e6,
               (double)(b.rbytes - a.rbytes) / 1e6);
        if (sent) printf(",\"us_per_sent\":%.3f", cpu * 1e6 / (double)sent);
        if (delivered) printf(",\"us_per_delivered\":%.3f", cpu * 1e6 / (double)delivered);
        j_beside(&a, &b);
        printf("}");
    }
    printf(",\"gen_cpu_s\":%.2f", gen);
}

static void j_end(int ok)
{
    printf(",\"ok\":%s}\n", ok ? "true" : "false");
    fflush(stdout);
}

static double per_s(u64 n, u64 t0, u64 t1) { return t1 > t0 ? (double)n * 1e9 / (double)(t1 - t0) : 0; }

/* ------------------------------------------------------------------ pubsub */

enum { PAIR, FANIN, FANOUT, SHARED, SPLIT };
static int g_phase;
static struct {
    int pattern;
    u32 np, ns, ready;
    pub *pubs;
    conn **pc, **sc;
    track *tr;
    u64 e2e, sent, delivered, distinct, stop_at, t_first, t_last_send, t_last_del;
    int stopped;
} PS;

static size_t ps_filter(conn *c, u32 i, char *o)
{
    (void)i;
    switch (PS.pattern) {
    case PAIR: return (size_t)sprintf(o, "load/%u/%u", G.run, c->idx);
    case FANOUT: return (size_t)sprintf(o, "load/%u/all", G.run);
    case SPLIT: return (size_t)sprintf(o, "load/%u/%u/+", G.run, c->idx);
    case SHARED: return (size_t)sprintf(o, "$share/g%u/load/%u/+", G.run, G.run);
    default: return (size_t)sprintf(o, "load/%u/+", G.run);
    }
}

static void ps_up(conn *c)
{
    if (c->pubrole) {
        launch_done(c);
        PS.ready++;
    } else send_subscribe(c, 1, 0, ps_filter);
}

static void ps_suback(conn *c)
{
    launch_done(c);
    PS.ready++;
}

static void ps_msg(conn *c, u32 stream, u32 aux, u64 seq, u64 ts, int qos, u32 pid)
{
    (void)aux, (void)qos, (void)pid;
    if (stream >= PS.np || (PS.pattern == PAIR && stream != c->idx) || (PS.pattern == SPLIT && stream % PS.ns != c->idx)) {
        E.misrouted++;
        return;
    }
    track *t = PS.pattern == PAIR || PS.pattern == SHARED || PS.pattern == SPLIT ? &PS.tr[stream] : &PS.tr[(size_t)stream * PS.ns + c->idx];
    h_add(&H_lat, g_now > ts ? g_now - ts : 0);
    PS.delivered++;
    PS.t_last_del = g_now;
    if (!t_add(t, seq)) {
        PS.distinct++;
        pub *p = &PS.pubs[stream];
        p->delivered++;
        if (PS.e2e) mark_pump(p);
    }
}

static void ps_pump(pub *p)
{
    u64 ts;
    while (!PS.stopped && p->next < p->limit && pub_room(p)) {
        if (PS.e2e && p->sent * p->fan >= p->delivered + PS.e2e * p->fan) return;
        if (!rate_ok(p, &ts)) return;
        if (ts >= PS.stop_at) return;
        pub_send(p, p->topic, p->tlen, p->id, 0, p->next++, ts);
        PS.sent++;
        PS.t_last_send = g_now;
    }
}

static int ps_ready(void) { return PS.ready == PS.np + PS.ns || E.closed || E.suback_fail; }

static u64 ps_acked(u64 *nack)
{
    u64 a = 0;
    *nack = 0;
    for (u32 i = 0; i < PS.np; i++) a += PS.pubs[i].acked, *nack += PS.pubs[i].nacked;
    return a;
}

static int cmd_pubsub(void)
{
    const char *pat = opt_s("pattern", "pair");
    PS.pattern = !strcmp(pat, "pair") ? PAIR : !strcmp(pat, "fanin") ? FANIN : !strcmp(pat, "fanout") ? FANOUT : !strcmp(pat, "shared") ? SHARED : !strcmp(pat, "split") ? SPLIT : -1;
    { const char *ph = opt_s("phase", "even"); g_phase = !strcmp(ph, "even") ? 0 : !strcmp(ph, "random") ? 1 : 2; }
    if (PS.pattern < 0) die("--pattern=pair|fanin|fanout|shared");
    PS.np = (u32)opt_i("pubs", 1);
    PS.ns = (u32)opt_i("subs", PS.pattern == PAIR ? (long)PS.np : 1);
    if (PS.pattern == PAIR && PS.ns != PS.np) die("pair: --subs must equal --pubs");
    u64 messages = (u64)opt_d("messages", 0);
    double seconds = opt_d("seconds", messages ? 600 : 10), rate = opt_d("rate", 0), warm = opt_d("warmup", 0), stall = opt_d("stall", 1);
    PS.e2e = (u64)opt_i("e2e", G.qos ? 0 : 1000);
    int subclean = !opt_i("persistent", 0);
    opts_done();
    if (!PS.np) die("--pubs must be positive");
    if (!PS.ns) { /* publish only */
        if (PS.pattern == SHARED) die("shared: --subs must be positive");
        PS.e2e = 0;
    }

    size_t ntr = PS.pattern == PAIR || PS.pattern == SHARED || PS.pattern == SPLIT ? PS.np : (size_t)PS.np * PS.ns;
    PS.tr = xcalloc(ntr, sizeof(track));
    PS.pubs = xcalloc(PS.np, sizeof(pub));
    conn **all = xcalloc(PS.np + PS.ns, sizeof *all);
    PS.sc = all;
    PS.pc = all + PS.ns;
    for (u32 i = 0; i < PS.ns; i++) all[i] = conn_new(0, i, subclean);
    for (u32 i = 0; i < PS.np; i++) {
        pub *p = &PS.pubs[i];
        PS.pc[i] = conn_new(1, i, 1);
        pub_init(p, PS.pc[i], i);
        p->fan = PS.pattern == FANIN || PS.pattern == FANOUT ? PS.ns : 1;
        p->limit = messages ? messages / PS.np + (i < messages % PS.np) : UINT64_MAX;
        p->tlen = (u32)(PS.pattern == SPLIT ? sprintf(p->topic, "load/%u/%u/%u", G.run, i % PS.ns, i) : PS.pattern == FANOUT ? sprintf(p->topic, "load/%u/all", G.run) : sprintf(p->topic, "load/%u/%u", G.run, i));
    }
    on_up = ps_up;
    on_suback = ps_suback;
    on_msg = ps_msg;
    pump = ps_pump;
    PS.stopped = 1;
    int up = launch(all, PS.np + PS.ns, ps_ready, G.timeout) && PS.ready == PS.np + PS.ns;
    if (up) sleep_loop(0.2);

    usage u0 = usage_now();
    double g0 = self_cpu();
    u64 start = nowns(), base_sent = 0, base_acked = 0, base_del = 0, nack = 0, resets = 0;
    u64 t0 = start, warm_at = warm > 0 ? start + (u64)(warm * 1e9) : 0;
    PS.stopped = 0;
    PS.stop_at = start + (u64)((seconds + warm) * 1e9);
    u64 last = start, prog = g_progress;
    if (up) {
        for (u32 i = 0; i < PS.np; i++) {
            rate_init(&PS.pubs[i], rate, start, i, PS.np);
            if (rate > 0 && g_phase) PS.pubs[i].due = start + (g_phase == 2 ? 0 : (u64)((double)PS.pubs[i].interval * ((double)((i * 2654435761u) ^ (i * 40503u << 7)) / 4294967296.0)));
            mark_pump(&PS.pubs[i]);
        }
        while (!g_stop) {
            loop_once(20);
            if (warm_at && g_now >= warm_at) {
                warm_at = 0;
                t0 = g_now;
                base_sent = PS.sent;
                base_del = PS.delivered;
                base_acked = ps_acked(&nack);
                memset(&H_lat, 0, sizeof H_lat);
                memset(&H_ack, 0, sizeof H_ack);
                u0 = usage_now();
                g0 = self_cpu();
            }
            if (!PS.stopped) {
                int all_done = 1;
                for (u32 i = 0; i < PS.np && all_done; i++) all_done = PS.pubs[i].next >= PS.pubs[i].limit || PS.pubs[i].c->st != C_UP;
                if (all_done || g_now >= PS.stop_at) PS.stopped = 1;
            }
            if (g_progress != prog) prog = g_progress, last = g_now;
            double quiet = (double)(g_now - last) / 1e9;
            if (PS.stopped) {
                u64 exp = 0, infl = 0;
                for (u32 i = 0; i < PS.np; i++) exp += (PS.pubs[i].sent - PS.pubs[i].nacked) * PS.pubs[i].fan, infl += PS.pubs[i].inflight;
                if (PS.distinct >= exp && (!infl || !g_open)) break;
                if (quiet > G.idle || !g_open) break;
            } else if (!rate && quiet > stall && !G.qos && PS.e2e) { /* QoS 0 losses would hold the window shut */
                resets++;
                for (u32 i = 0; i < PS.np; i++) {
                    PS.pubs[i].delivered = PS.pubs[i].sent * PS.pubs[i].fan;
                    mark_pump(&PS.pubs[i]);
                }
                last = g_now;
            } else if (quiet > G.idle && quiet > (rate > 0 ? 2 / rate : 0)) break;
        }
    }
    usage u1 = usage_now();
    double gen = self_cpu() - g0;
    u64 acked = ps_acked(&nack), expected = 0, distinct = 0, dup = 0, ooo = 0, inflight = 0;
    for (u32 i = 0; i < PS.np; i++) expected += (PS.pubs[i].sent - PS.pubs[i].nacked) * PS.pubs[i].fan, inflight += PS.pubs[i].inflight;
    for (size_t i = 0; i < ntr; i++) distinct += PS.tr[i].distinct, dup += PS.tr[i].dup, ooo += PS.pattern == SHARED ? 0 : PS.tr[i].ooo;
    u64 lost = expected > distinct ? expected - distinct : 0;
    u64 tend = PS.t_last_del > g_last_ack ? PS.t_last_del : g_last_ack;
    if (!tend) tend = PS.t_last_send;

    j_begin("pubsub");
    printf(",\"pattern\":\"%s\",\"pubs\":%u,\"subs\":%u,\"window\":%d,\"e2e_window\":%" PRIu64 ",\"rate\":%g", pat, PS.np, PS.ns, G.window, PS.e2e, rate);
    printf(",\"sent\":%" PRIu64 ",\"acked\":%" PRIu64 ",\"unacked\":%" PRIu64 ",\"expected\":%" PRIu64 ",\"delivered\":%" PRIu64 ",\"lost\":%" PRIu64
           ",\"dup\":%" PRIu64 ",\"ooo\":%" PRIu64 ",\"stall_resets\":%" PRIu64,
           PS.sent, acked, inflight, expected, PS.delivered, lost, dup, ooo, resets);
    printf(",\"secs\":%.3f,\"sent_per_s\":%.0f,\"acked_per_s\":%.0f,\"delivered_per_s\":%.0f", tend > t0 ? (double)(tend - t0) / 1e9 : 0,
           per_s(PS.sent - base_sent, t0, PS.t_last_send), per_s(acked - base_acked, t0, g_last_ack), per_s(PS.delivered - base_del, t0, PS.t_last_del));
    h_json("lat_us", &H_lat);
    if (G.qos) h_json("ack_us", &H_ack);
    j_errors();
    j_cost(u0, u1, gen, PS.sent - base_sent, PS.delivered - base_del);
    int ok = up && !errors_total() && (!lost || !G.qos) && !ooo && !inflight && (G.qos == 1 || !dup);
    j_end(ok);
    on_down = NULL;
    bye_all(all, PS.np + PS.ns);
    return ok ? 0 : 1;
}

/* ------------------------------------------------------------------ offline */

enum { M_NONE, M_SENT, M_REC, M_ACKED, M_NACKED };
typedef struct {
    char magic[8];
    u32 run, sessions, messages, shared, qos, ver, payload, npub;
    char prefix[48];
} off_hdr;

static struct {
    off_hdr h;
    u8 *st; /* per message of each topic */
    u32 topics, npub;
    conn **c;
    pub *pubs;
    u64 ready, sp, closed_ok, delivered, distinct, expected, unacked_del, t_last;
    track *tr;
    u32 *want; /* acked messages still expected per session */
    int phase;
} OF;

static size_t of_topic(u32 i, char *o)
{
    return OF.h.shared ? (size_t)sprintf(o, "off/%u/all", G.run) : (size_t)sprintf(o, "off/%u/%u/d", G.run, i);
}

static size_t of_filter(conn *c, u32 i, char *o)
{
    (void)i;
    return of_topic(c->idx, o);
}

static void of_up(conn *c)
{
    if (OF.phase == 'c') send_subscribe(c, 1, 0, of_filter);
    else if (OF.phase == 'x') {
        OF.ready++;
        conn_bye(c);
    } else {
        launch_done(c);
        OF.ready++;
        OF.sp += c->sp;
    }
}

static void of_suback(conn *c)
{
    if (OF.phase != 'c') return;
    OF.ready++;
    conn_bye(c);
}

static int of_launched(void) { return OF.ready + E.connect_fail + E.closed >= OF.h.sessions && (OF.phase == 'd' || !g_closing); }
static int of_pubs_up(void) { return OF.ready + E.connect_fail + E.closed >= OF.npub; }

static void of_pump(pub *p)
{
    u64 ts;
    while (p->next < p->limit && pub_room(p)) {
        if (!rate_ok(p, &ts)) return;
        u64 n = p->next++;
        u32 cnt = OF.h.shared ? 1 : (OF.h.sessions - p->id + OF.npub - 1) / OF.npub;
        u32 topic = OF.h.shared ? 0 : p->id + (u32)(n % cnt) * OF.npub;
        u64 seq = OF.h.shared ? n : n / cnt;
        char t[96];
        size_t tl = of_topic(topic, t);
        pub_send(p, t, (u32)tl, topic, 0, seq, ts);
        OF.st[(size_t)topic * OF.h.messages + seq] = M_SENT;
    }
}

static void of_rec(pub *p, slot *s, u32 pid)
{
    (void)p, (void)pid;
    OF.st[(size_t)s->stream * OF.h.messages + s->seq] = M_REC;
}

static void of_acked(pub *p, slot *s, int ok)
{
    (void)p;
    OF.st[(size_t)s->stream * OF.h.messages + s->seq] = ok ? M_ACKED : M_NACKED;
}

static int of_pubs_done(void)
{
    for (u32 i = 0; i < OF.npub; i++) {
        pub *p = &OF.pubs[i];
        if (p->c->st == C_UP && (p->next < p->limit || p->inflight || (!G.qos && p->c->wb.len))) return 0;
    }
    return 1;
}

static void of_msg(conn *c, u32 stream, u32 aux, u64 seq, u64 ts, int qos, u32 pid)
{
    (void)aux, (void)qos, (void)pid, (void)ts;
    if (OF.phase != 'd' || seq >= OF.h.messages || stream != (OF.h.shared ? 0 : c->idx)) {
        E.misrouted++;
        return;
    }
    OF.delivered++;
    OF.t_last = g_now;
    h_add(&H_lat, g_now - c->t0); /* since the reconnect began */
    if (!t_add(&OF.tr[c->idx], seq)) {
        OF.distinct++;
        if (OF.st[(size_t)stream * OF.h.messages + seq] != M_ACKED) OF.unacked_del++;
    }
}

static int of_drained(void) { return OF.distinct >= OF.expected; }

static void of_state(const char *path, int write_it)
{
    if (!path) {
        if (write_it) return;
        die("--state is needed for this phase");
    }
    FILE *f = fopen(path, write_it ? "wb" : "rb");
    if (!f) die("%s: %s", path, strerror(errno));
    size_t n;
    if (write_it) {
        n = (size_t)OF.topics * OF.h.messages;
        if (fwrite(&OF.h, sizeof OF.h, 1, f) != 1 || (n && fwrite(OF.st, 1, n, f) != n)) die("%s: write failed", path);
    } else {
        if (fread(&OF.h, sizeof OF.h, 1, f) != 1 || memcmp(OF.h.magic, "MQLOFF1", 8)) die("%s: not a state file", path);
        OF.topics = OF.h.shared ? 1 : OF.h.sessions;
        n = (size_t)OF.topics * OF.h.messages;
        OF.st = xcalloc(n, 1);
        if (n && fread(OF.st, 1, n, f) != n) die("%s: truncated", path);
    }
    if (fclose(f)) die("%s: %s", path, strerror(errno));
}

static void rebuild_pattern(void)
{
    g_pat = xrealloc(g_pat, (size_t)G.payload + 64);
    for (int i = 0; i < G.payload + 64; i++) g_pat[i] = (u8)(i * 131 + 17);
}

static int cmd_offline(void)
{
    const char *phases = opt_s("phase", "create,publish,drain,cleanup"), *state = opt("state");
    off_hdr h = {.magic = "MQLOFF1"};
    h.sessions = (u32)opt_i("sessions", 1000);
    h.messages = (u32)opt_i("messages", 100);
    h.shared = opt("shared") ? 1 : 0;
    OF.npub = (u32)opt_i("pubs", 1);
    double rate = opt_d("rate", 0);
    double settle = opt_d("settle", 0.5);
    opts_done();
    int create = strstr(phases, "create") != NULL, ok = 1;
    if (create) {
        OF.h = h;
        OF.h.run = G.run;
        OF.h.qos = (u32)G.qos;
        OF.h.ver = (u32)G.ver;
        OF.h.payload = (u32)G.payload;
        snprintf(OF.h.prefix, sizeof OF.h.prefix, "%s", G.prefix);
        OF.topics = h.shared ? 1 : h.sessions;
        OF.st = xcalloc((size_t)OF.topics * h.messages, 1);
    } else {
        of_state(state, 0);
        G.run = OF.h.run;
        G.qos = G.subqos = (int)OF.h.qos;
        G.ver = (int)OF.h.ver;
        G.payload = (int)OF.h.payload;
        G.prefix = strdup(OF.h.prefix);
        rebuild_pattern();
    }
    u32 N = OF.h.sessions;
    if (OF.h.shared) OF.npub = 1;
    if (OF.npub > N) OF.npub = N;
    OF.c = xcalloc(N, sizeof *OF.c);
    for (u32 i = 0; i < N; i++) OF.c[i] = conn_new(0, i, 0);
    on_up = of_up;
    on_suback = of_suback;
    on_msg = of_msg;
    on_pubrec = of_rec;
    on_acked = of_acked;
    pump = of_pump;

    j_begin("offline");
    printf(",\"sessions\":%u,\"messages\":%u,\"shared\":%u,\"window\":%d,\"phases\":\"%s\"", N, OF.h.messages, OF.h.shared, G.window, phases);
    double g0 = self_cpu();
    if (create) {
        usage a = usage_now();
        u64 t0 = nowns();
        OF.phase = 'c';
        OF.ready = 0;
        double gp = self_cpu();
        int up = launch(OF.c, N, of_launched, G.timeout) && OF.ready == N;
        u64 t1 = nowns();
        sleep_loop(settle);
        usage b = usage_now();
        ok &= up;
        printf(",\"create\":{\"created\":%" PRIu64 ",\"secs\":%.3f,\"per_s\":%.0f", OF.ready, (double)(t1 - t0) / 1e9, per_s(OF.ready, t0, t1));
        if (b.ok) printf(",\"cpu_s\":%.2f,\"busiest_s\":%.2f,\"others_s\":%.2f,\"us_per_session\":%.1f,\"rss_before_kb\":%ld,\"rss_kb\":%ld,\"rss_bytes_per_session\":%.0f,\"write_mb\":%.2f",
                         b.user + b.sys - a.user - a.sys, busiest_s(&a, &b), others_s(&a, &b), (b.user + b.sys - a.user - a.sys) * 1e6 / N, a.rss, b.rss, (double)(b.rss - a.rss) * 1024.0 / N, (double)(b.wbytes - a.wbytes) / 1e6);
        printf(",\"gen_cpu_s\":%.2f}", self_cpu() - gp);
        of_state(state, 1);
    }
    if (strstr(phases, "publish") && ok) {
        usage a = usage_now();
        OF.phase = 'p';
        OF.ready = 0;
        double gp = self_cpu();
        E.closed = E.connect_fail = 0;
        OF.pubs = xcalloc(OF.npub, sizeof(pub));
        conn **pc = xcalloc(OF.npub, sizeof *pc);
        for (u32 i = 0; i < OF.npub; i++) {
            pc[i] = conn_new(1, i, 1);
            pub_init(&OF.pubs[i], pc[i], i);
            OF.pubs[i].limit = OF.h.shared ? OF.h.messages : (u64)((N - i + OF.npub - 1) / OF.npub) * OF.h.messages;
        }
        int up = launch(pc, OF.npub, of_pubs_up, G.timeout) && OF.ready == OF.npub;
        memset(&H_ack, 0, sizeof H_ack);
        u64 t0 = nowns();
        for (u32 i = 0; i < OF.npub && up; i++) {
            rate_init(&OF.pubs[i], rate, t0, i, OF.npub);
            mark_pump(&OF.pubs[i]);
        }
        int done = up && run_until(of_pubs_done, G.idle > 10 ? G.idle : 10);
        u64 t1 = g_last_ack > t0 ? g_last_ack : nowns();
        sleep_loop(settle);
        usage b = usage_now();
        u64 sent = 0, acked = 0, nack = 0, lim = 0;
        for (u32 i = 0; i < OF.npub; i++) sent += OF.pubs[i].sent, acked += OF.pubs[i].acked, nack += OF.pubs[i].nacked, lim += OF.pubs[i].limit;
        ok &= done && sent == lim && (!G.qos || acked == sent);
        printf(",\"publish\":{\"sent\":%" PRIu64 ",\"acked\":%" PRIu64 ",\"nacked\":%" PRIu64 ",\"secs\":%.3f,\"acked_per_s\":%.0f,\"stored_per_s\":%.0f", sent, acked, nack,
               (double)(t1 - t0) / 1e9, per_s(acked, t0, t1), per_s(OF.h.shared ? acked * N : acked, t0, t1));
        u64 stored = OF.h.shared ? sent * N : sent;
        if (b.ok && sent) printf(",\"cpu_s\":%.2f,\"busiest_s\":%.2f,\"others_s\":%.2f,\"us_per_msg\":%.3f,\"us_per_stored\":%.3f,\"rss_before_kb\":%ld,\"rss_kb\":%ld,\"rss_bytes_per_stored\":%.0f,\"write_mb\":%.2f",
                         b.user + b.sys - a.user - a.sys, busiest_s(&a, &b), others_s(&a, &b), (b.user + b.sys - a.user - a.sys) * 1e6 / (double)sent, (b.user + b.sys - a.user - a.sys) * 1e6 / (double)stored,
                         a.rss, b.rss, (double)(b.rss - a.rss) * 1024.0 / (double)stored, (double)(b.wbytes - a.wbytes) / 1e6);
        j_beside(&a, &b);
        h_json("ack_us", &H_ack);
        printf(",\"gen_cpu_s\":%.2f}", self_cpu() - gp);
        of_state(state, 1);
        bye_all(pc, OF.npub);
    }
    if (strstr(phases, "drain")) {
        usage a = usage_now();
        OF.phase = 'd';
        OF.ready = OF.sp = 0;
        double gp = self_cpu();
        E.closed = E.connect_fail = 0;
        OF.tr = xcalloc(N, sizeof(track));
        u64 per = 0;
        for (u32 i = 0; i < OF.topics; i++)
            for (u32 m = 0; m < OF.h.messages; m++) per += OF.st[(size_t)i * OF.h.messages + m] == M_ACKED;
        OF.expected = OF.h.shared ? per * N : per;
        memset(&H_conn, 0, sizeof H_conn);
        memset(&H_lat, 0, sizeof H_lat);
        u64 t0 = nowns();
        int up = launch(OF.c, N, of_launched, G.timeout) && OF.ready == N;
        u64 t1 = nowns();
        int all = run_until(of_drained, G.idle);
        if (all) sleep_loop(0.5); /* late duplicates */
        u64 t2 = OF.t_last > t0 ? OF.t_last : t1;
        usage b = usage_now();
        u64 lost = 0, dup = 0, ooo = 0, hit = 0;
        for (u32 i = 0; i < N; i++) {
            track *t = &OF.tr[i];
            dup += t->dup;
            ooo += t->ooo;
            u64 l = 0;
            u32 topic = OF.h.shared ? 0 : i;
            for (u32 m = 0; m < OF.h.messages; m++) l += OF.st[(size_t)topic * OF.h.messages + m] == M_ACKED && !t_has(t, m);
            lost += l;
            hit += l != 0;
        }
        ok &= up && !lost && !ooo && OF.sp == N && (G.qos != 2 || !dup);
        printf(",\"drain\":{\"reconnected\":%" PRIu64 ",\"session_present\":%" PRIu64 ",\"reconnect_secs\":%.3f,\"reconnect_per_s\":%.0f,\"expected\":%" PRIu64
               ",\"delivered\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"sessions_with_loss\":%" PRIu64 ",\"dup\":%" PRIu64 ",\"ooo\":%" PRIu64 ",\"unacked_delivered\":%" PRIu64
               ",\"secs\":%.3f,\"drain_per_s\":%.0f",
               OF.ready, OF.sp, (double)(t1 - t0) / 1e9, per_s(OF.ready, t0, t1), OF.expected, OF.delivered, lost, hit, dup, ooo, OF.unacked_del,
               (double)(t2 - t0) / 1e9, per_s(OF.delivered, t0, t2));
        if (b.ok && OF.delivered) printf(",\"cpu_s\":%.2f,\"busiest_s\":%.2f,\"others_s\":%.2f,\"us_per_msg\":%.3f,\"rss_kb\":%ld,\"hwm_kb\":%ld,\"write_mb\":%.2f", b.user + b.sys - a.user - a.sys, busiest_s(&a, &b), others_s(&a, &b),
                         (b.user + b.sys - a.user - a.sys) * 1e6 / (double)OF.delivered, b.rss, b.hwm, (double)(b.wbytes - a.wbytes) / 1e6);
        j_beside(&a, &b);
        h_json("connack_us", &H_conn);
        h_json("since_connect_us", &H_lat);
        printf(",\"gen_cpu_s\":%.2f}", self_cpu() - gp);
        bye_all(OF.c, N);
    }
    if (strstr(phases, "cleanup")) {
        OF.phase = 'x';
        OF.ready = 0;
        u64 t0 = nowns();
        E.closed = E.connect_fail = 0;
        for (u32 i = 0; i < N; i++) OF.c[i]->clean = 1;
        launch(OF.c, N, of_launched, G.timeout);
        printf(",\"cleanup\":{\"cleaned\":%" PRIu64 ",\"secs\":%.3f}", OF.ready, (double)(nowns() - t0) / 1e9);
    }
    j_errors();
    printf(",\"gen_cpu_s\":%.2f", self_cpu() - g0);
    ok &= !errors_total();
    j_end(ok);
    return ok ? 0 : 1;
}

/* ------------------------------------------------------------------ connect */

static u64 cn_up;
static u32 cn_n;
static u64 cn_sp;
static void cn_on_up(conn *c)
{
    launch_done(c);
    cn_up++;
    cn_sp += c->sp;
}
static int cn_done(void) { return cn_up + E.connect_fail + E.closed >= cn_n; }
static void no_msg(conn *c, u32 a, u32 b, u64 s, u64 t, int q, u32 p) { (void)c, (void)a, (void)b, (void)s, (void)t, (void)q, (void)p; E.misrouted++; }

static int cmd_connect(void)
{
    cn_n = (u32)opt_i("count", 1000);
    int clean = (int)opt_i("clean", 1);
    double hold = opt_d("hold", 1);
    u32 stride = (u32)opt_i("stride", 1);
    opts_done();
    conn **c = xcalloc(cn_n, sizeof *c);
    for (u32 i = 0; i < cn_n; i++) c[i] = conn_new(0, i * stride, clean);
    on_up = cn_on_up;
    on_msg = no_msg;
    usage a = usage_now();
    double g0 = self_cpu();
    u64 t0 = nowns();
    launch(c, cn_n, cn_done, G.timeout);
    u64 t1 = nowns();
    usage m = usage_now();
    double gen = self_cpu() - g0;
    sleep_loop(hold);
    usage b = usage_now();
    u64 lost = E.closed;
    u64 t2 = nowns();
    bye_all(c, cn_n);
    u64 t3 = nowns();
    j_begin("connect");
    printf(",\"count\":%u,\"clean\":%d,\"concurrency\":%d,\"connected\":%" PRIu64 ",\"session_present\":%" PRIu64 ",\"secs\":%.3f,\"connack_per_s\":%.0f,\"disconnect_secs\":%.3f",
           cn_n, clean, G.conc, cn_up, cn_sp, (double)(t1 - t0) / 1e9, per_s(cn_up, t0, t1), (double)(t3 - t2) / 1e9);
    h_json("connack_us", &H_conn);
    if (b.ok && cn_up) printf(",\"rss_bytes_per_conn\":%.0f,\"us_per_connect\":%.1f,\"idle_cpu_s\":%.2f", (double)(b.rss - a.rss) * 1024.0 / (double)cn_up,
                     (m.user + m.sys - a.user - a.sys) * 1e6 / (double)cn_up, b.user + b.sys - m.user - m.sys);
    j_errors();
    j_cost(a, b, gen, 0, 0);
    int ok = cn_up == cn_n && !lost;
    j_end(ok);
    return ok ? 0 : 1;
}

/* ------------------------------------------------------------------ subs */

static struct {
    u32 nc, depth, batch, target, np;
    int wild;
    conn **c;
    pub *pubs;
    u64 ready, acked_filters, e2e, delivered, sent;
    track *tr;
    u64 t_last;
    int stopped;
} SB;

/* filter/topic j: depth middle levels out of 10 words each, then a leaf unique to j */
static size_t sb_name(u32 j, int filter, char *o)
{
    char *p = o;
    memcpy(p, "subs/", 5);
    p = utoa(p + 5, G.run);
    u32 x = j;
    int w = filter ? SB.wild : 0;
    if (w == 3) w = j % 3 == 0 ? 0 : j % 3 == 1 ? 1 : 2;
    if (w == 4) w = 1 + j % 2;
    for (u32 d = 0; d < SB.depth; d++) {
        *p++ = '/';
        if (w == 1 && d == j % SB.depth) *p++ = '+';
        else {
            *p++ = (char)('a' + d % 26);
            *p++ = (char)('0' + x % 10);
        }
        x = x / 10 + j * 7;
    }
    *p++ = '/';
    *p++ = 'x';
    p = utoa(p, j);
    if (w == 2) {
        *p++ = '/';
        *p++ = '#';
    }
    return (size_t)(p - o);
}

/* the i-th filter of a client is filter i * clients + client */
static size_t sb_filter(conn *c, u32 i, char *o) { return sb_name(i * SB.nc + c->idx, 1, o); }

static u32 sb_count(u32 idx) { return SB.target > idx ? (SB.target - idx + SB.nc - 1) / SB.nc : 0; }

static void sb_next(conn *c)
{
    u32 want = sb_count(c->idx), n = want - c->sub_lo;
    if (want <= c->sub_lo || c->st != C_UP) return;
    if (n > SB.batch) n = SB.batch;
    c->sub_hi = c->sub_lo + n;
    send_subscribe(c, n, c->sub_lo, sb_filter);
}

static void sb_up(conn *c)
{
    launch_done(c);
    SB.ready++;
}

static void sb_suback(conn *c)
{
    SB.acked_filters += c->sub_hi - c->sub_lo;
    c->sub_lo = c->sub_hi;
    sb_next(c);
}

static int sb_conns(void) { return SB.ready + E.connect_fail + E.closed >= SB.nc + SB.np; }
static int sb_subbed(void) { return SB.acked_filters >= SB.target || E.closed; }

static void sb_pump(pub *p)
{
    u64 ts;
    while (!SB.stopped && p->next < p->limit && pub_room(p)) {
        if (SB.e2e && p->sent >= p->delivered + SB.e2e) return;
        if (!rate_ok(p, &ts)) return;
        u32 j = (u32)(rng() % SB.target);
        char t[256];
        size_t tl = sb_name(j, 0, t);
        pub_send(p, t, (u32)tl, p->id, j, p->next++, ts);
        SB.sent++;
    }
}

static void sb_msg(conn *c, u32 stream, u32 aux, u64 seq, u64 ts, int qos, u32 pid)
{
    (void)qos, (void)pid;
    if (stream >= SB.np || aux % SB.nc != c->idx) {
        E.misrouted++;
        return;
    }
    h_add(&H_lat, g_now > ts ? g_now - ts : 0);
    SB.delivered++;
    SB.t_last = g_now;
    if (!t_add(&SB.tr[stream], seq)) {
        SB.pubs[stream].delivered++;
        if (SB.e2e) mark_pump(&SB.pubs[stream]);
    }
}

static int sb_done(void)
{
    u64 d = 0, infl = 0, want = 0;
    for (u32 i = 0; i < SB.np; i++) d += SB.tr[i].distinct, infl += SB.pubs[i].inflight, want += SB.pubs[i].limit - SB.pubs[i].nacked;
    return d >= want && !infl;
}

static int cmd_subs(void)
{
    SB.nc = (u32)opt_i("clients", 100);
    SB.depth = (u32)opt_i("depth", 4);
    SB.batch = (u32)opt_i("batch", 50);
    SB.np = (u32)opt_i("pubs", 1);
    const char *steps = opt_s("steps", "1000,10000,100000"), *wild = opt_s("wild", "mixed");
    u64 messages = (u64)opt_d("messages", 20000);
    double rate = opt_d("rate", 0);
    SB.e2e = (u64)opt_i("e2e", 200);
    SB.wild = !strcmp(wild, "none") ? 0 : !strcmp(wild, "plus") ? 1 : !strcmp(wild, "hash") ? 2 : !strcmp(wild, "mixed") ? 3 : !strcmp(wild, "both") ? 4 : -1;
    if (SB.wild < 0 || !SB.depth || SB.depth > 40 || !SB.nc) die("--wild=none|plus|hash|mixed|both, --depth=1..40, --clients>=1");
    opts_done();
    conn **c = xcalloc(SB.nc + SB.np, sizeof *c);
    SB.c = c;
    SB.pubs = xcalloc(SB.np, sizeof(pub));
    SB.tr = xcalloc(SB.np, sizeof(track));
    for (u32 i = 0; i < SB.nc; i++) c[i] = conn_new(0, i, 1);
    for (u32 i = 0; i < SB.np; i++) {
        c[SB.nc + i] = conn_new(1, i, 1);
        pub_init(&SB.pubs[i], c[SB.nc + i], i);
        SB.pubs[i].limit = 0;
    }
    on_up = sb_up;
    on_suback = sb_suback;
    on_msg = sb_msg;
    pump = sb_pump;
    double g0 = self_cpu();
    int ok = launch(c, SB.nc + SB.np, sb_conns, G.timeout) && SB.ready == SB.nc + SB.np;
    sleep_loop(0.2);
    j_begin("subs");
    printf(",\"clients\":%u,\"depth\":%u,\"wild\":\"%s\",\"batch\":%u,\"pubs\":%u,\"window\":%d,\"e2e_window\":%" PRIu64 ",\"steps\":[", SB.nc, SB.depth, wild, SB.batch, SB.np,
           G.window, SB.e2e);
    int first = 1, lossless = 1;
    u32 prev = 0;
    while (*steps && ok && !g_stop) {
        char *e;
        double v = strtod(steps, &e);
        if (*e == 'k') v *= 1e3, e++;
        if (*e == 'm') v *= 1e6, e++;
        steps = *e == ',' ? e + 1 : e;
        if (*e && *e != ',') die("--steps: bad list");
        SB.target = (u32)v;
        if (SB.target <= prev) die("--steps must grow");
        usage a = usage_now();
        u64 t0 = nowns();
        for (u32 i = 0; i < SB.nc; i++) sb_next(c[i]);
        ok &= run_until(sb_subbed, G.timeout) && SB.acked_filters >= SB.target;
        u64 t1 = nowns();
        sleep_loop(0.3);
        usage b = usage_now();
        printf("%s{\"subs\":%u,\"subscribe_secs\":%.3f,\"subscribe_per_s\":%.0f", first ? "" : ",", SB.target, (double)(t1 - t0) / 1e9, per_s(SB.target - prev, t0, t1));
        if (b.ok) printf(",\"us_per_subscribe\":%.2f,\"rss_bytes_per_sub\":%.0f,\"rss_kb\":%ld", (b.user + b.sys - a.user - a.sys) * 1e6 / (SB.target - prev),
                         (double)(b.rss - a.rss) * 1024.0 / (SB.target - prev), b.rss);
        first = 0;
        prev = SB.target;
        memset(&H_lat, 0, sizeof H_lat);
        u64 del0 = SB.delivered, dup0 = 0, d0 = 0, d1 = 0, dup1 = 0;
        for (u32 i = 0; i < SB.np; i++) d0 += SB.tr[i].distinct, dup0 += SB.tr[i].dup;
        a = usage_now();
        double gg = self_cpu();
        t0 = nowns();
        SB.t_last = t0;
        for (u32 i = 0; i < SB.np; i++) {
            SB.pubs[i].limit = SB.pubs[i].next + messages / SB.np;
            SB.pubs[i].delivered = SB.pubs[i].sent; /* losses of the step before do not hold the window shut */
            rate_init(&SB.pubs[i], rate, t0, i, SB.np);
            mark_pump(&SB.pubs[i]);
        }
        int all = run_until(sb_done, G.idle);
        b = usage_now();
        gg = self_cpu() - gg;
        for (u32 i = 0; i < SB.np; i++) d1 += SB.tr[i].distinct, dup1 += SB.tr[i].dup;
        u64 want = messages / SB.np * SB.np;
        printf(",\"sent\":%" PRIu64 ",\"delivered\":%" PRIu64 ",\"lost\":%" PRIu64 ",\"dup\":%" PRIu64 ",\"secs\":%.3f,\"delivered_per_s\":%.0f", want,
               SB.delivered - del0, want > d1 - d0 ? want - (d1 - d0) : 0, dup1 - dup0, (double)(SB.t_last - t0) / 1e9, per_s(SB.delivered - del0, t0, SB.t_last));
        if (b.ok && want) printf(",\"us_per_msg\":%.3f,\"busiest_s\":%.2f,\"others_s\":%.2f", (b.user + b.sys - a.user - a.sys) * 1e6 / (double)want, busiest_s(&a, &b), others_s(&a, &b));
        printf(",\"gen_cpu_s\":%.2f", gg);
        h_json("lat_us", &H_lat);
        printf("}");
        lossless &= all || !G.qos;
    }
    ok &= lossless;
    printf("]");
    j_errors();
    printf(",\"gen_cpu_s\":%.2f", self_cpu() - g0);
    ok &= !errors_total();
    j_end(ok);
    bye_all(c, SB.nc + SB.np);
    return ok ? 0 : 1;
}

/* ------------------------------------------------------------------ crash and verify
 * The log is text, one event a line:
 *   H key=value ...           the run
 *   S pub seq pid             PUBLISH written (again with D after a reconnect: not logged)
 *   R pub seq pid             PUBREC came (the broker has taken the QoS 2 message)
 *   A pub seq                 PUBACK / PUBCOMP came: the broker has promised it
 *   N pub seq                 refused by reason code
 *   X pub                     the broker forgot the publisher's session: its unacknowledged messages are given up
 *   G pub seq pid qos         delivered to the online subscriber
 *   L pid                     PUBREL came to the online subscriber
 *   W ms                      all connections lost / back (ms since the start)
 */

static struct {
    int fd, online, reconnect;
    char buf[1 << 16];
    size_t n;
    u32 np, run;
    pub *pubs;
    conn **pc, *sub;
    u64 ready, sub_ready, start, stop_at, t_down, t_up, t_ack, downs, delivered, dup, ooo, given_up, maxmsg;
    track *tr;
    int stopped, verifying;
    u64 sp_pub, pub_seen;
} CR;

static void lg_flush(void)
{
    size_t o = 0;
    while (o < CR.n) {
        ssize_t r = write(CR.fd, CR.buf + o, CR.n - o);
        if (r < 0) die("log: %s", strerror(errno));
        o += (size_t)r;
    }
    CR.n = 0;
}

static void lg(char t, u64 a, u64 b, u64 c, u64 d, int n)
{
    if (CR.fd < 0) return;
    if (CR.n + 96 > sizeof CR.buf) lg_flush();
    char *o = CR.buf + CR.n;
    u64 v[4] = {a, b, c, d};
    *o++ = t;
    for (int i = 0; i < n; i++) {
        *o++ = ' ';
        o = utoa(o, v[i]);
    }
    *o++ = '\n';
    CR.n = (size_t)(o - CR.buf);
}

static size_t cr_filter(conn *c, u32 i, char *o)
{
    (void)c, (void)i;
    return (size_t)sprintf(o, "crash/%u/#", G.run);
}

static int slot_cmp(const void *a, const void *b)
{
    const slot *x = *(slot *const *)a, *y = *(slot *const *)b;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* what a client owes the broker after a reconnect into a kept session */
static void cr_resend(pub *p)
{
    slot **l = xcalloc(p->win, sizeof *l);
    u32 n = 0;
    for (u32 i = 1; i <= p->win; i++)
        if (p->slots[i].st != S_FREE) l[n++] = &p->slots[i];
    qsort(l, n, sizeof *l, slot_cmp);
    for (u32 i = 0; i < n; i++) {
        u32 pid = (u32)(l[i] - p->slots);
        if (l[i]->st == S_PUBCOMP) send_ack(p->c, 0x62, pid);
        else enc_publish(p->c, p->topic, p->tlen, G.qos, 1, pid, p->id, 0, l[i]->seq, l[i]->ts);
    }
    free(l);
}

static void cr_up(conn *c)
{
    launch_done(c);
    if (!c->pubrole) {
        CR.sub_ready = 1;
        if (!CR.verifying) {
            if (c->sp && CR.downs) return; /* back in its session */
            send_subscribe(c, 1, 0, cr_filter);
        }
        return;
    }
    pub *p = c->pub;
    CR.ready++;
    CR.sp_pub += c->sp;
    CR.pub_seen++;
    if (CR.downs && !CR.t_up) CR.t_up = g_now;
    if (p->inflight) {
        if (c->sp) cr_resend(p);
        else {
            CR.given_up += p->inflight;
            lg('X', p->id, 0, 0, 0, 1);
            for (u32 i = 1; i <= p->win; i++)
                if (p->slots[i].st != S_FREE) pid_free(p, i);
        }
    }
    mark_pump(p);
}

static u64 cr_subacks;
static void cr_suback(conn *c) { (void)c; cr_subacks++; }

static void cr_down(conn *c, int expected)
{
    if (expected || CR.verifying) return;
    if (!CR.t_down && c->pubrole) {
        CR.t_down = g_now;
        CR.downs++;
        lg('W', (g_now - CR.start) / 1000000, 0, 0, 0, 1);
    }
    c->retry_at = g_now + 20 * 1000000ull;
}

static void cr_pump(pub *p)
{
    u64 ts;
    while (!CR.stopped && p->next < p->limit && pub_room(p)) {
        if (!rate_ok(p, &ts)) return;
        u64 seq = p->next++;
        u32 pid = pub_send(p, p->topic, p->tlen, p->id, 0, seq, ts);
        lg('S', p->id, seq, pid, 0, 3);
    }
}

static void cr_rec(pub *p, slot *s, u32 pid) { lg('R', p->id, s->seq, pid, 0, 3); }
static void cr_acked(pub *p, slot *s, int ok)
{
    if (CR.downs && !CR.t_ack && CR.t_up) CR.t_ack = g_now;
    lg(ok ? 'A' : 'N', p->id, s->seq, 0, 0, 2);
}

static void cr_msg(conn *c, u32 stream, u32 aux, u64 seq, u64 ts, int qos, u32 pid)
{
    (void)c, (void)aux, (void)ts;
    if (stream >= CR.np) {
        E.misrouted++;
        return;
    }
    CR.delivered++;
    t_add(&CR.tr[stream], seq);
    if (!CR.verifying) lg('G', stream, seq, pid, (u64)qos, 4);
}

static void cr_pubrel(conn *c, u32 pid)
{
    if (!CR.verifying && !c->pubrole) lg('L', pid, 0, 0, 0, 1);
}

static int cr_sub_done(void) { return cr_subacks || E.closed || E.connect_fail; }
static int cr_pubs_up(void) { return CR.ready + E.connect_fail + E.closed >= CR.np; }
static int cr_idle(void)
{
    for (u32 i = 0; i < CR.np; i++)
        if (CR.pubs[i].inflight && CR.pubs[i].c->st == C_UP) return 0;
    return 1;
}

static void cr_setup(void)
{
    CR.pubs = xcalloc(CR.np, sizeof(pub));
    CR.pc = xcalloc(CR.np, sizeof *CR.pc);
    CR.tr = xcalloc(CR.np, sizeof(track));
    CR.sub = conn_new(0, 0, 0);
    for (u32 i = 0; i < CR.np; i++) {
        CR.pc[i] = conn_new(1, i, 0);
        pub_init(&CR.pubs[i], CR.pc[i], i);
        CR.pubs[i].tlen = (u32)sprintf(CR.pubs[i].topic, "crash/%u/%u", G.run, i);
    }
    on_up = cr_up;
    on_suback = cr_suback;
    on_msg = cr_msg;
    on_pubrec = cr_rec;
    on_acked = cr_acked;
    on_pubrel = cr_pubrel;
    on_down = cr_down;
    pump = cr_pump;
}

static int cmd_crash(void)
{
    const char *path = opt("state");
    CR.np = (u32)opt_i("pubs", 1);
    u64 messages = (u64)opt_d("messages", 0);
    double seconds = opt_d("seconds", messages ? 600 : 10), rate = opt_d("rate", 0);
    CR.online = opt("online") ? 1 : 0;
    CR.reconnect = opt("reconnect") ? 1 : 0;
    opts_done();
    if (!path) die("--state=FILE is needed");
    if (!G.qos) die("crash: --qos=1 or 2");
    CR.fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (CR.fd < 0) die("%s: %s", path, strerror(errno));
    CR.n = (size_t)snprintf(CR.buf, sizeof CR.buf, "H mqttload-crash 1 run=%u qos=%d v=%d pubs=%u window=%d payload=%d expiry=%u online=%d prefix=%s\n", G.run, G.qos, G.ver,
                            CR.np, G.window, G.payload, G.expiry, CR.online, G.prefix);
    lg_flush();
    cr_setup();
    CR.stopped = 1;
    launch(&CR.sub, 1, cr_sub_done, G.timeout);
    if (!cr_subacks || E.suback_fail) die("could not set up the persistent subscriber (connect_fail %" PRIu64 ", refused %" PRIu64 ", suback_fail %" PRIu64 ")", E.connect_fail, E.refused,
                         E.suback_fail);
    if (!CR.online) bye_all(&CR.sub, 1);
    if (!launch(CR.pc, CR.np, cr_pubs_up, G.timeout) || CR.ready < CR.np) die("could not connect the publishers");
    usage u0 = usage_now();
    double g0 = self_cpu();
    CR.start = nowns();
    CR.stop_at = CR.start + (u64)(seconds * 1e9);
    CR.stopped = 0;
    for (u32 i = 0; i < CR.np; i++) {
        if (messages) CR.pubs[i].limit = messages / CR.np + (i < messages % CR.np);
        rate_init(&CR.pubs[i], rate, CR.start, i, CR.np);
        mark_pump(&CR.pubs[i]);
    }
    u64 drain_until = 0;
    while (!g_stop) {
        loop_once(10);
        lg_flush();
        int up = 0, left = 0;
        for (u32 i = 0; i < CR.np; i++) {
            up += CR.pc[i]->st == C_UP;
            left += CR.pubs[i].next < CR.pubs[i].limit || CR.pubs[i].inflight;
        }
        if (!left) break;
        if (CR.reconnect && CR.t_up && CR.t_ack && up == (int)CR.np) CR.t_down = 0; /* the next kill counts anew */
        if (!up && CR.downs && !CR.reconnect) break;
        if (CR.reconnect)
            for (u32 i = 0; i <= CR.np; i++) {
                conn *c = i < CR.np ? CR.pc[i] : CR.sub;
                if (i == CR.np && !CR.online) continue;
                if (c->st == C_DEAD && g_now >= c->retry_at) conn_open(c);
            }
        if (g_now >= CR.stop_at) {
            CR.stopped = 1;
            if (!drain_until) drain_until = g_now + 5 * NS;
            if (cr_idle() && up == (int)CR.np) break;
            if (g_now > drain_until) break;
        }
    }
    lg_flush();
    usage u1 = usage_now();
    u64 sent = 0, acked = 0, nack = 0, infl = 0;
    for (u32 i = 0; i < CR.np; i++) sent += CR.pubs[i].sent, acked += CR.pubs[i].acked, nack += CR.pubs[i].nacked, infl += CR.pubs[i].inflight;
    j_begin("crash");
    printf(",\"pubs\":%u,\"window\":%d,\"online\":%d,\"sent\":%" PRIu64 ",\"acked\":%" PRIu64 ",\"nacked\":%" PRIu64 ",\"inflight\":%" PRIu64 ",\"given_up\":%" PRIu64
           ",\"delivered_online\":%" PRIu64 ",\"secs\":%.3f,\"acked_per_s\":%.0f,\"connection_losses\":%" PRIu64,
           CR.np, G.window, CR.online, sent, acked, nack, infl, CR.given_up, CR.delivered, (double)(g_last_ack - CR.start) / 1e9, per_s(acked, CR.start, g_last_ack), CR.downs);
    if (CR.t_up) printf(",\"outage_to_connack_ms\":%.1f,\"outage_to_first_ack_ms\":%.1f", 0.0 + (double)(CR.t_up - (CR.t_down ? CR.t_down : CR.start)) / 1e6,
                        CR.t_ack ? (double)(CR.t_ack - (CR.t_down ? CR.t_down : CR.start)) / 1e6 : -1.0);
    h_json("ack_us", &H_ack);
    j_errors();
    j_cost(u0, u1, self_cpu() - g0, sent, 0);
    j_end(acked > 0 && !nack && !E.proto);
    on_down = NULL;
    CR.verifying = 1;
    conn **all = xcalloc(CR.np + 1, sizeof *all);
    memcpy(all, CR.pc, CR.np * sizeof *all);
    all[CR.np] = CR.sub;
    bye_all(all, CR.np + 1);
    close(CR.fd);
    return 0;
}

static int cmd_verify(void)
{
    const char *path = opt("state");
    int resend = !opt("no-resend");
    opts_done();
    if (!path) die("--state=FILE is needed");
    FILE *f = fopen(path, "r");
    if (!f) die("%s: %s", path, strerror(errno));
    char line[512], prefix[96];
    unsigned run, pubs, expiry;
    int qos, v, win, pay, online;
    if (!fgets(line, sizeof line, f) ||
        sscanf(line, "H mqttload-crash 1 run=%u qos=%d v=%d pubs=%u window=%d payload=%d expiry=%u online=%d prefix=%95s", &run, &qos, &v, &pubs, &win, &pay, &expiry, &online,
               prefix) != 9)
        die("%s: not a crash log", path);
    G.run = run;
    G.qos = G.subqos = qos;
    G.ver = v;
    G.window = win;
    G.payload = pay;
    G.expiry = expiry;
    G.prefix = strdup(prefix);
    rebuild_pattern();
    CR.np = pubs;
    CR.fd = -1;
    CR.verifying = 1;
    cr_setup();
    u8 **st = xcalloc(pubs, sizeof *st);
    u32 **pid = xcalloc(pubs, sizeof *pid);
    u64 *cap = xcalloc(pubs, 8), *top = xcalloc(pubs, 8);
    while (fgets(line, sizeof line, f)) {
        unsigned long long a = 0, b = 0, c = 0, d = 0;
        char t = line[0];
        if (!strchr(line, '\n')) break; /* torn last line */
        if (sscanf(line + 1, "%llu %llu %llu %llu", &a, &b, &c, &d) < 1) continue;
        if (t == 'W') continue;
        if (t == 'L') {
            if (CR.sub->q2) CR.sub->q2[a >> 6 & 1023] &= ~(1ull << (a & 63));
            continue;
        }
        if (a >= pubs) die("%s: bad line: %s", path, line);
        if (t == 'G') {
            CR.delivered++;
            t_add(&CR.tr[a], b);
            if (d == 2) {
                if (!CR.sub->q2) CR.sub->q2 = xcalloc(1024, 8);
                CR.sub->q2[c >> 6 & 1023] |= 1ull << (c & 63);
            }
            continue;
        }
        if (t == 'X') {
            for (u64 i = 0; i < top[a]; i++)
                if (st[a][i] == M_SENT || st[a][i] == M_REC) pid[a][i] = 0; /* nothing to resend */
            continue;
        }
        if (b >= cap[a]) {
            u64 nc = cap[a] ? cap[a] * 2 : 4096;
            while (nc <= b) nc *= 2;
            st[a] = xrealloc(st[a], nc);
            pid[a] = xrealloc(pid[a], nc * 4);
            memset(st[a] + cap[a], 0, nc - cap[a]);
            memset(pid[a] + cap[a], 0, (nc - cap[a]) * 4);
            cap[a] = nc;
        }
        if (b >= top[a]) top[a] = b + 1;
        if (t == 'S') st[a][b] = M_SENT, pid[a][b] = (u32)c;
        else if (t == 'R') st[a][b] = M_REC;
        else if (t == 'A') st[a][b] = M_ACKED;
        else if (t == 'N') st[a][b] = M_NACKED;
    }
    fclose(f);
    u64 online_del = CR.delivered, resent = 0;
    /* the publishers finish what they owe */
    for (u32 i = 0; i < pubs; i++) {
        pub *p = &CR.pubs[i];
        p->limit = p->next = top[i];
        u8 *used = xcalloc((size_t)win + 1, 1);
        for (u64 s = 0; s < top[i]; s++)
            if ((st[i][s] == M_SENT || st[i][s] == M_REC) && pid[i][s] && pid[i][s] <= (u32)win) {
                slot *x = &p->slots[pid[i][s]];
                x->st = st[i][s] == M_REC ? S_PUBCOMP : qos == 1 ? S_PUBACK : S_PUBREC;
                x->seq = s;
                x->stream = i;
                x->ts = nowns();
                x->order = p->order++;
                used[pid[i][s]] = 1;
                resent++;
            }
        p->fn = p->fh = p->inflight = 0;
        for (u32 k = 1; k <= (u32)win; k++)
            if (used[k]) p->inflight++;
            else p->fq[p->fn++] = (u16)k;
        free(used);
    }
    u64 t0 = nowns();
    if (resend) {
        launch(CR.pc, pubs, cr_pubs_up, G.timeout);
        run_until(cr_idle, G.idle);
    }
    u64 finished = 0, left = 0;
    for (u32 i = 0; i < pubs; i++) finished += CR.pubs[i].acked, left += CR.pubs[i].inflight;
    /* messages finished just now were promised too */
    for (u32 i = 0; i < pubs; i++)
        for (u64 s = 0; s < top[i]; s++)
            if ((st[i][s] == M_SENT || st[i][s] == M_REC) && pid[i][s] && pid[i][s] <= (u32)win && CR.pc[i]->sp && resend &&
                CR.pubs[i].slots[pid[i][s]].st == S_FREE)
                st[i][s] = M_ACKED;
    u64 closed0 = E.closed + E.connect_fail + E.refused;
    launch_active = 0;
    u64 t1 = nowns(), last = t1, prog;
    CR.sub->launching = 1;
    launch_active = 1;
    conn_open(CR.sub);
    prog = g_progress;
    while (!g_stop) {
        loop_once(20);
        if (g_progress != prog) prog = g_progress, last = g_now;
        else if ((double)(g_now - last) / 1e9 > (CR.sub_ready ? G.idle : G.timeout)) break;
        if (CR.sub->fd < 0) break;
        if (CR.sub_ready && !CR.sub->sp && (double)(g_now - last) / 1e9 > 1) break;
    }
    int sub_sp = CR.sub->sp;
    u64 t2 = last;
    u64 sent = 0, acked = 0, rec = 0, lost = 0, rec_lost = 0, sent_lost = 0, extra = 0, dup = 0, ooo = 0, distinct = 0, firstl = UINT64_MAX, lastl = 0;
    for (u32 i = 0; i < pubs; i++) {
        dup += CR.tr[i].dup;
        ooo += CR.tr[i].ooo;
        distinct += CR.tr[i].distinct;
        for (u64 s = 0; s < top[i]; s++) {
            int got = t_has(&CR.tr[i], s);
            sent += st[i][s] != M_NONE;
            if (st[i][s] == M_ACKED) {
                acked++;
                if (!got) {
                    lost++;
                    if (s < firstl) firstl = s;
                    if (s > lastl) lastl = s;
                }
            } else if (st[i][s] == M_REC) rec++, rec_lost += !got;
            else if (st[i][s] == M_SENT) sent_lost += !got, extra += got;
        }
    }
    j_begin("verify");
    printf(",\"pubs\":%u,\"online\":%d,\"sent\":%" PRIu64 ",\"acked\":%" PRIu64 ",\"pubrec_only\":%" PRIu64 ",\"resent\":%" PRIu64 ",\"finished_after_restart\":%" PRIu64 ",\"still_inflight\":%" PRIu64
           ",\"pub_session_present\":%" PRIu64 ",\"sub_session_present\":%d,\"delivered_online\":%" PRIu64 ",\"delivered_after\":%" PRIu64 ",\"distinct\":%" PRIu64
           ",\"acked_lost\":%" PRIu64 ",\"pubrec_lost\":%" PRIu64 ",\"unacked_lost\":%" PRIu64 ",\"unacked_delivered\":%" PRIu64 ",\"dup\":%" PRIu64 ",\"ooo\":%" PRIu64,
           pubs, online, sent, acked, rec, resent, finished, left, CR.sp_pub, sub_sp, online_del, CR.delivered - online_del, distinct, lost, rec_lost, sent_lost, extra, dup, ooo);
    if (lost) printf(",\"first_lost\":%" PRIu64 ",\"last_lost\":%" PRIu64, firstl, lastl);
    printf(",\"drain_secs\":%.3f,\"resend_secs\":%.3f", (double)(t2 - t1) / 1e9, (double)(t1 - t0) / 1e9);
    j_errors();
    int ok = !lost && !rec_lost && sub_sp && (qos == 1 || !dup) && E.closed + E.connect_fail + E.refused == closed0;
    j_end(ok);
    on_down = NULL;
    conn **all = xcalloc(pubs + 1, sizeof *all);
    memcpy(all, CR.pc, pubs * sizeof *all);
    all[pubs] = CR.sub;
    bye_all(all, pubs + 1);
    return ok ? 0 : 1;
}

/* ------------------------------------------------------------------ wait: until the broker answers CONNECT */

static u64 wt_up;
static void wt_on_up(conn *c) { launch_done(c); wt_up = 1; }
static int wt_done(void) { return wt_up || E.connect_fail || E.closed; }

static int cmd_wait(void)
{
    double limit = opt_d("for", 60);
    opts_done();
    on_up = wt_on_up;
    on_msg = no_msg;
    u64 t0 = nowns(), tries = 0;
    conn *c = conn_new(1, 999999, 1);
    while (!wt_up && (double)(nowns() - t0) / 1e9 < limit && !g_stop) {
        E.connect_fail = E.closed = 0;
        tries++;
        launch(&c, 1, wt_done, 5);
        if (!wt_up) {
            if (c->fd >= 0) {
                c->st = C_BYE;
                g_closing++;
                conn_close(c);
            }
            usleep(10000);
        }
    }
    double ms = (double)(nowns() - t0) / 1e6;
    if (wt_up) bye_all(&c, 1);
    printf("{\"scenario\":\"wait\",\"ready\":%s,\"ms\":%.1f,\"tries\":%" PRIu64 ",\"last_connack\":%d}\n", wt_up ? "true" : "false", ms, tries, E.last_connack);
    return wt_up ? 0 : 1;
}

/* ------------------------------------------------------------------ main */

static void on_signal(int s) { (void)s; g_stop = 1; }

static const char *usage_text =
    "usage: mqttload SCENARIO [--key=value ...]\n"
    "scenarios: pubsub offline connect subs crash verify wait   (see mqttload.md)\n"
    "common: --host=127.0.0.1 --port=1883 --v=4|5 --qos=0|1|2 --sub-qos=Q --payload=128 --window=20 --user= --password=\n"
    "        --prefix=ID --run=N --keepalive=0 --recv-max=0 --expiry=86400 --concurrency=100 --src-addrs=1\n"
    "        --idle=5 --timeout=30 --coalesce=100 (0 with --rate) --pid=PID[,PID...]\n"
    "pubsub: --pattern=pair|fanin|fanout|shared --pubs=1 --subs=1 --messages=N --seconds=S --rate=R --e2e=N --warmup=S --persistent\n"
    "offline: --sessions=1000 --messages=100 [--shared] --pubs=1 --rate= --phase=create,publish,drain,cleanup --state=FILE\n"
    "connect: --count=1000 --clean=1 --hold=1 --stride=1\n"
    "subs: --clients=100 --steps=1000,10000,100000 --depth=4 --wild=none|plus|hash|mixed|both --batch=50 --messages=20000 --e2e=200\n"
    "crash: --state=FILE --pubs=1 --messages= --seconds= --rate= [--online] [--reconnect]\n"
    "verify: --state=FILE [--no-resend]\n"
    "wait: --for=60\n";

int main(int argc, char **argv)
{
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        fputs(usage_text, stderr);
        return 2;
    }
    g_argc = argc - 2;
    g_argv = argv + 2;
    g_used = xcalloc((size_t)argc, 1);
    G.host = opt_s("host", "127.0.0.1");
    G.port = (int)opt_i("port", 1883);
    G.ver = (int)opt_i("v", 4);
    G.qos = (int)opt_i("qos", 1);
    G.subqos = (int)opt_i("sub-qos", G.qos);
    G.payload = (int)opt_i("payload", 128);
    G.window = (int)opt_i("window", 20);
    G.user = opt("user");
    G.pass = opt("password");
    G.keepalive = (int)opt_i("keepalive", 0);
    G.rmax = (int)opt_i("recv-max", 0);
    G.expiry = (u32)opt_d("expiry", 86400);
    G.conc = (int)opt_i("concurrency", 100);
    G.srcaddrs = (int)opt_i("src-addrs", 1);
    G.idle = opt_d("idle", 5);
    G.timeout = opt_d("timeout", 30);
    G.nodelay = (int)opt_i("nodelay", 1);
    G.coalesce = (int)opt_i("coalesce", opt("rate") ? 0 : 100); /* a rate cap measures latency, no cap measures throughput */
    if (G.coalesce < 0 || G.coalesce > 100000) die("--coalesce: 0..100000 us");
    prctl(PR_SET_TIMERSLACK, 1000ul);
    const char *rest = pids_parse(opt("pid"), &g_broker, "--pid");
    if (rest && *rest) die("--pid: bad list");
    beside_parse(opt("beside"));
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    rng_state ^= (u64)ts.tv_nsec << 20 ^ (u64)ts.tv_sec ^ (u64)getpid() << 40;
    for (int i = 0; i < 8; i++) rng();
    G.run = (u32)opt_d("run", (double)(rng() % 1000000000u));
    char pfx[48];
    snprintf(pfx, sizeof pfx, "ml%u", G.run);
    G.prefix = opt_s("prefix", pfx);
    if (strlen(G.prefix) > 40) die("--prefix: at most 40 characters");
    if (G.ver != 4 && G.ver != 5) die("--v=4 or 5");
    if (G.qos < 0 || G.qos > 2 || G.subqos < 0 || G.subqos > 2) die("--qos=0, 1 or 2");
    if (G.payload < HDR) die("--payload: at least %d", HDR);
    if (G.window < 1 || G.window > 65535) die("--window=1..65535");
    if (G.conc < 1) die("--concurrency: at least 1");
    rebuild_pattern();

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *ai;
    char port[16];
    snprintf(port, sizeof port, "%d", G.port);
    if (getaddrinfo(G.host, port, &hints, &ai)) die("cannot resolve %s", G.host);
    memcpy(&G.sa, ai->ai_addr, ai->ai_addrlen);
    G.salen = ai->ai_addrlen;
    freeaddrinfo(ai);

    struct rlimit rl;
    if (!getrlimit(RLIMIT_NOFILE, &rl)) {
        rl.rlim_cur = rl.rlim_max;
        setrlimit(RLIMIT_NOFILE, &rl);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    ep = epoll_create1(EPOLL_CLOEXEC);
    tfd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    if (ep < 0 || tfd < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, tfd, &ev)) die("epoll: %s", strerror(errno));
    g_now = nowns();
    CR.fd = -1;

    const char *s = argv[1];
    if (!strcmp(s, "pubsub")) return cmd_pubsub();
    if (!strcmp(s, "offline")) return cmd_offline();
    if (!strcmp(s, "connect")) return cmd_connect();
    if (!strcmp(s, "subs")) return cmd_subs();
    if (!strcmp(s, "crash")) return cmd_crash();
    if (!strcmp(s, "verify")) return cmd_verify();
    if (!strcmp(s, "wait")) return cmd_wait();
    fputs(usage_text, stderr);
    return 2;
}
