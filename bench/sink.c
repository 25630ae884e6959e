/*
 * sink - the least that can pass for an MQTT 3.1.1 broker: what is left of a benchmark without one.
 *
 * It knows nothing but what mqttload's `pubsub` and `connect` need: it answers every handshake at
 * once, copies a PUBLISH to the subscribers of exactly that topic (or of its parent with "/+") and
 * forgets it.  No sessions, no queues, no checks.  A rate measured against it is the ceiling of the
 * generator, and says nothing about brokers.  Build: cc -O2 -o sink sink.c; run: sink PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define RD (256 * 1024)
#define TABLE (1 << 16)
#define WB_HIGH (4 * 1024 * 1024) /* above this a subscriber is behind: stop reading from publishers */

typedef struct conn {
    int fd, dirty, want_out;
    uint8_t *rb, *wb;
    size_t rn, rcap, wo, wn, wcap;
    unsigned pid;
    struct conn *next_dirty;
} conn;

typedef struct filter {
    uint32_t hash;
    int wild; /* the filter ends with "/+", which is not in `name` */
    size_t len;
    char *name;
    conn *c;
    struct filter *next;
} filter;

static filter *table[TABLE];
static conn *dirty;
static int ep, behind, wildcards;

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static uint32_t hash(const uint8_t *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 16777619u;
    return h;
}

static uint8_t *room(conn *c, size_t n)
{
    if (c->wo && c->wo + c->wn + n > c->wcap) {
        memmove(c->wb, c->wb + c->wo, c->wn);
        c->wo = 0;
    }
    if (c->wn + n > c->wcap) {
        c->wcap = c->wcap ? c->wcap : 4096;
        while (c->wn + n > c->wcap) c->wcap *= 2;
        if (!(c->wb = realloc(c->wb, c->wcap))) fail("realloc");
    }
    if (!c->dirty) {
        c->dirty = 1;
        c->next_dirty = dirty;
        dirty = c;
    }
    uint8_t *p = c->wb + c->wo + c->wn;
    if (c->wn < WB_HIGH && c->wn + n >= WB_HIGH) behind++;
    c->wn += n;
    return p;
}

static void answer(conn *c, uint8_t a, uint8_t b, uint8_t x, uint8_t y)
{
    uint8_t *p = room(c, 4);
    p[0] = a, p[1] = b, p[2] = x, p[3] = y;
}

static void subscribe(conn *c, const uint8_t *p)
{
    size_t n = (size_t)p[2] << 8 | p[3];
    filter *f = calloc(1, sizeof *f);
    f->wild = n > 2 && !memcmp(p + 4 + n - 2, "/+", 2);
    f->len = f->wild ? n - 2 : n;
    f->name = malloc(n);
    memcpy(f->name, p + 4, n);
    f->hash = hash(p + 4, f->len);
    f->c = c;
    f->next = table[f->hash % TABLE];
    table[f->hash % TABLE] = f;
    wildcards += f->wild;
    uint8_t *o = room(c, 5);
    o[0] = 0x90, o[1] = 3, o[2] = p[0], o[3] = p[1], o[4] = p[4 + n];
}

static void forward(const uint8_t *packet, size_t size, const uint8_t *topic, size_t tl, int qos, int wild)
{
    uint32_t h = hash(topic, tl);
    for (filter *f = table[h % TABLE]; f; f = f->next) {
        if (f->hash != h || f->len != tl || f->wild != wild || memcmp(f->name, topic, tl)) continue;
        if (f->c->fd < 0) continue;
        uint8_t *o = room(f->c, size);
        memcpy(o, packet, size);
        if (qos) {
            size_t at = (size_t)(topic - packet) + (wild ? 0 : tl);
            if (wild)
                at += (size_t)packet[topic - packet - 2] << 8 | packet[topic - packet - 1];
            f->c->pid = f->c->pid % 65535 + 1;
            o[at] = (uint8_t)(f->c->pid >> 8);
            o[at + 1] = (uint8_t)f->c->pid;
        }
    }
}

static void publish(conn *c, const uint8_t *packet, size_t size, const uint8_t *p)
{
    int qos = packet[0] >> 1 & 3;
    size_t tl = (size_t)p[0] << 8 | p[1], parent = tl;
    forward(packet, size, p + 2, tl, qos, 0);
    if (wildcards) {
        while (parent && p[2 + parent - 1] != '/') parent--;
        if (parent) forward(packet, size, p + 2, parent - 1, qos, 1);
    }
    if (qos) answer(c, qos == 1 ? 0x40 : 0x50, 2, p[2 + tl], p[3 + tl]);
}

static void drop(conn *c)
{
    close(c->fd);
    c->fd = -1; /* the struct stays: filters may point at it */
}

static void handle(conn *c, const uint8_t *packet, size_t size, const uint8_t *p)
{
    switch (packet[0] >> 4) {
    case 1: answer(c, 0x20, 2, 0, 0); break;
    case 3: publish(c, packet, size, p); break;
    case 5: answer(c, 0x62, 2, p[0], p[1]); break;
    case 6: answer(c, 0x70, 2, p[0], p[1]); break;
    case 8: subscribe(c, p); break;
    case 12: {
        uint8_t *o = room(c, 2);
        o[0] = 0xd0, o[1] = 0;
        break;
    }
    case 14: drop(c); break;
    default: break; /* PUBACK, PUBCOMP */
    }
}

static void receive(conn *c)
{
    if (c->rn + RD > c->rcap) {
        c->rcap = c->rn + 2 * RD;
        if (!(c->rb = realloc(c->rb, c->rcap))) fail("realloc");
    }
    ssize_t r = recv(c->fd, c->rb + c->rn, RD, 0);
    if (r <= 0) {
        drop(c);
        return;
    }
    c->rn += (size_t)r;
    size_t o = 0;
    while (c->fd >= 0 && c->rn - o >= 2) {
        size_t rl = 0, i = 1, shift = 0;
        while (i < c->rn - o && c->rb[o + i] & 0x80 && i < 4) rl |= (size_t)(c->rb[o + i++] & 0x7f) << shift, shift += 7;
        if (i >= c->rn - o) break;
        rl |= (size_t)(c->rb[o + i++] & 0x7f) << shift;
        if (c->rn - o < i + rl) break;
        handle(c, c->rb + o, i + rl, c->rb + o + i);
        o += i + rl;
    }
    memmove(c->rb, c->rb + o, c->rn - o);
    c->rn -= o;
    if (!c->rn) { /* ten thousand idle connections need no buffers */
        free(c->rb);
        c->rb = NULL;
        c->rcap = 0;
    }
}

static void flush(conn *c)
{
    size_t before = c->wn;
    while (c->fd >= 0 && c->wn) {
        ssize_t n = send(c->fd, c->wb + c->wo, c->wn, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) break;
        c->wo += (size_t)n;
        c->wn -= (size_t)n;
    }
    if (c->fd < 0) c->wn = 0;
    if (before >= WB_HIGH && c->wn < WB_HIGH) behind--;
    if (!c->wn) c->wo = 0;
    if (c->fd >= 0 && c->want_out != (c->wn > 0)) {
        c->want_out = c->wn > 0;
        struct epoll_event e = {.events = EPOLLIN | (c->want_out ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
    }
}

static void accept_all(int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e)) fail("epoll_ctl");
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rlimit rl;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (argc != 2) {
        fputs("usage: sink PORT\n", stderr);
        return 2;
    }
    a.sin_port = htons((uint16_t)atoi(argv[1]));
    if (!getrlimit(RLIMIT_NOFILE, &rl)) {
        rl.rlim_cur = rl.rlim_max;
        setrlimit(RLIMIT_NOFILE, &rl);
    }
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 1024)) fail("listen");
    ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, ev[512];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(ep, ev, 512, -1);
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (!c) accept_all(listener);
            else if (c->fd < 0) continue;
            else {
                if (ev[i].events & EPOLLOUT) flush(c);
                if (c->fd >= 0 && ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !behind) receive(c);
            }
        }
        while (dirty) {
            conn *c = dirty;
            dirty = c->next_dirty;
            c->dirty = 0;
            flush(c);
        }
    }
}
