/* The floor: what a broker's network costs at least on this machine. One thread, epoll, no protocol, no CRC.
 *
 *   floor produce FILE           appends each request's bytes to FILE with one write(2), answers 60 bytes
 *   floor fetch FILE BYTES       answers 60 bytes and BYTES of FILE, which must hold at least 256 MiB or BYTES
 *
 * Fetch uses sendfile up to 64 KiB, and pread into a warm buffer with send above. Prints its port.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOM (2 << 20)
#define HEAD 60
#define CAP (512l << 20)

struct connection {
    int fd, armed, waiting;
    char *in;
    size_t start, end;
    unsigned queued;
    off_t at;
    size_t left, head_left;
};

static int file, is_fetch;
static size_t answer_bytes;
static off_t position, file_size;
static char chunk[256 << 10];

static uint32_t get32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }

static void append(const char *p, size_t n) {
    if (write(file, p, n) < 0) perror("write");
    position += n;
    if (position >= CAP) { lseek(file, 0, SEEK_SET); position = 0; }
}

static int head_of(char *head, size_t body) {
    memset(head, 0, HEAD);
    uint32_t size = htonl(HEAD - 4 + body);
    memcpy(head, &size, 4);
    return HEAD;
}

/* Returns 0 when the socket is full. */
static int answer(struct connection *c) {
    char head[HEAD];
    while (c->queued) {
        if (c->head_left) {
            head_of(head, answer_bytes);
            ssize_t n = send(c->fd, head + HEAD - c->head_left, c->head_left, MSG_NOSIGNAL | MSG_MORE);
            if (n < 0) return errno == EAGAIN ? 0 : -1;
            c->head_left -= n;
            continue;
        }
        if (c->left) {
            ssize_t n;
            if (answer_bytes <= 65536) {
                n = sendfile(c->fd, file, &c->at, c->left);
            } else {
                size_t want = c->left < sizeof chunk ? c->left : sizeof chunk;
                ssize_t got = pread(file, chunk, want, c->at);
                n = send(c->fd, chunk, got, MSG_NOSIGNAL);
                if (n > 0) c->at += n;
            }
            if (n <= 0) return errno == EAGAIN ? 0 : -1;
            c->left -= n;
            if (c->left) continue;
        }
        if (--c->queued) {
            c->head_left = HEAD;
            c->left = answer_bytes;
            c->at = (position += answer_bytes) + answer_bytes > file_size ? (position = 0) : position;
        }
    }
    return 1;
}

static void ready(int ep, struct connection *c) {
    ssize_t n = recv(c->fd, c->in + c->end, ROOM - c->end, 0);
    if (n <= 0) {
        if (n < 0 && errno == EAGAIN) return;
        close(c->fd);
        free(c->in);
        free(c);
        return;
    }
    c->end += n;
    unsigned whole = 0;
    while (c->end - c->start >= 4) {
        size_t size = get32(c->in + c->start);
        if (c->end - c->start - 4 < size) break;
        if (!is_fetch) append(c->in + c->start + 4, size);
        c->start += 4 + size;
        whole++;
    }
    if (c->start == c->end) c->start = c->end = 0;
    else if (ROOM - c->end < (256 << 10) || c->start > ROOM / 2) {
        memmove(c->in, c->in + c->start, c->end - c->start);
        c->end -= c->start;
        c->start = 0;
    }
    if (!whole) return;
    if (is_fetch) {
        int idle = !c->queued;
        c->queued += whole;
        if (idle) {
            c->head_left = HEAD;
            c->left = answer_bytes;
            c->at = (position += answer_bytes) + answer_bytes > file_size ? (position = 0) : position;
        }
        int full = answer(c) == 0;
        if (full != c->armed) {
            struct epoll_event e = {.events = full ? EPOLLOUT : EPOLLIN, .data.ptr = c};
            epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
            c->armed = full;
        }
        return;
    }
    static char heads[HEAD * 16384];
    if (!heads[3]) for (int i = 0; i < 16384; i++) head_of(heads + HEAD * i, 0);
    if (send(c->fd, heads, (size_t)whole * HEAD, MSG_NOSIGNAL) != (ssize_t)whole * HEAD) perror("send");
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    is_fetch = !strcmp(argv[1], "fetch");
    file = open(argv[2], is_fetch ? O_RDONLY : O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0) { perror(argv[2]); return 1; }
    if (is_fetch) {
        struct stat s;
        fstat(file, &s);
        file_size = s.st_size;
        answer_bytes = strtoul(argv[3], NULL, 10);
    }
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    bind(listener, (struct sockaddr *)&address, sizeof address);
    listen(listener, 128);
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(ep, events, 256, -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                c = calloc(1, sizeof *c);
                c->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                c->in = malloc(ROOM);
                setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                e.data.ptr = c;
                epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
            } else if (c->armed) {
                if (answer(c)) {
                    struct epoll_event in = {.events = EPOLLIN, .data.ptr = c};
                    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &in);
                    c->armed = 0;
                }
            } else {
                ready(ep, c);
            }
        }
    }
}
