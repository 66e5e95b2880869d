/* The floor: what a broker's network and file cost at least on this machine. One thread, epoll, no CRC, no offsets.
 *
 *   floor produce FILE TOPIC_BYTES                appends each request's batch with one write(2), and answers;
 *                                                 a new file, FILE.1 and so on, behind every GiB, as a log has
 *   floor fetch FILE TOPIC_BYTES BATCH_BYTES      answers the batch at the asked offset, with sendfile from FILE,
 *                                                 which is a broker's segment of batches of one record
 *
 * OTTLA_FLOOR_BUFFER_BYTES sets the send and receive buffers of its sockets, as socket.send.buffer.bytes and
 * socket.receive.buffer.bytes do for a broker: without it the system chooses, and larger buffers need fewer turns.
 *
 * Requests and sizes of answers are those of load.c: Produce version 7 and Fetch version 4, for a topic whose name has
 * TOPIC_BYTES. All memory is touched before the first request. Prints its port.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
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
#define MAX_CONNECTIONS 64
#define MAX_QUEUED 1024
#define MAX_HEAD 512
#define SEGMENT_BYTES (1l << 30)
#define BATCH_AT 40          /* in a Produce request, beside the topic */
#define HEAD_BYTES 52        /* of either response, beside the topic and the records */
#define OFFSET_FROM_END 12   /* in a Fetch request: the offset and the limit are its last fields */

struct connection {
    int fd, armed;
    char *in;
    size_t start, end;
    unsigned first, queued;
    off_t ask[MAX_QUEUED];   /* positions of the answers that are due */
    off_t at;
    size_t left, head_left;
};

static int file, is_fetch, files, buffer_bytes;
static const char *path;
static size_t batch_at, head_bytes, batch_bytes;
static off_t position, file_size;
static char head[MAX_HEAD], heads[MAX_QUEUED * MAX_HEAD];
static struct connection pool[MAX_CONNECTIONS];
static char memory[MAX_CONNECTIONS][ROOM];

static uint32_t get32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static uint64_t get64(const char *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static void fail(const char *what) { perror(what); exit(1); }

static void open_next(void) {
    char name[4096];
    if (file) close(file);
    snprintf(name, sizeof name, files ? "%s.%d" : "%s", path, files);
    files++;
    position = 0;
    file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) fail(name);
}

static void append(const char *p, size_t n) {
    if (position + (off_t)n > SEGMENT_BYTES) open_next();
    while (n) {
        ssize_t written = pwrite(file, p, n, position);
        if (written < 0) fail("write");
        p += written;
        n -= written;
        position += written;
    }
}

static void make_head(char *into, size_t body) {
    uint32_t size = htonl(head_bytes - 4 + body);
    memset(into, 0, head_bytes);
    memcpy(into, &size, 4);
}

static void next(struct connection *c) {
    c->head_left = head_bytes;
    c->left = batch_bytes;
    c->at = c->ask[c->first];
}

/* Returns 0 when the socket is full, and -1 when the client has gone. */
static int answer(struct connection *c) {
    while (c->queued) {
        ssize_t n;
        if (c->head_left) {
            n = send(c->fd, head + head_bytes - c->head_left, c->head_left, MSG_NOSIGNAL | MSG_MORE);
            if (n < 0) return errno == EAGAIN ? 0 : -1;
            c->head_left -= n;
            continue;
        }
        n = sendfile(c->fd, file, &c->at, c->left);
        if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : -1;
        c->left -= n;
        if (c->left) continue;
        c->first = (c->first + 1) % MAX_QUEUED;
        if (--c->queued) next(c);
    }
    return 1;
}

/* A load that ends closes with answers unread, so ECONNRESET and EPIPE are no errors. */
static void gone(struct connection *c) {
    close(c->fd);
    c->fd = -1;
}

static void take(struct connection *c, const char *frame, size_t size) {
    if (!is_fetch) {
        append(frame + batch_at, size - batch_at);
        return;
    }
    off_t at = (off_t)get64(frame + size - OFFSET_FROM_END) * (off_t)batch_bytes;
    if (at + (off_t)batch_bytes > file_size || c->queued == MAX_QUEUED) {
        fprintf(stderr, "floor: a request that cannot be answered\n");
        exit(1);
    }
    c->ask[(c->first + c->queued) % MAX_QUEUED] = at;
    if (!c->queued++) next(c);
}

static void write_answers(int ep, struct connection *c) {
    int done = answer(c), full = done == 0;
    if (done < 0) {
        gone(c);
    } else if (full != c->armed) {
        struct epoll_event e = {.events = full ? EPOLLOUT : EPOLLIN, .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
        c->armed = full;
    }
}

static void ready(int ep, struct connection *c) {
    ssize_t n = recv(c->fd, c->in + c->end, ROOM - c->end, 0);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) gone(c);
        return;
    }
    c->end += n;
    size_t whole = 0;
    while (c->end - c->start >= 4) {
        size_t size = get32(c->in + c->start);
        if (c->end - c->start - 4 < size) break;
        take(c, c->in + c->start + 4, size);
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
        write_answers(ep, c);
        return;
    }
    while (whole) {
        size_t some = whole < MAX_QUEUED ? whole : MAX_QUEUED;
        ssize_t sent = send(c->fd, heads, some * head_bytes, MSG_NOSIGNAL);
        if (sent != (ssize_t)(some * head_bytes)) {
            if (sent >= 0 || errno == EAGAIN) fail("floor: the answers do not fit into the socket");
            gone(c);
            return;
        }
        whole -= some;
    }
}

static void prepare(char **argv) {
    struct stat s;
    size_t topic_bytes = strtoul(argv[3], NULL, 10);
    is_fetch = !strcmp(argv[1], "fetch");
    path = argv[2];
    batch_at = BATCH_AT + topic_bytes;
    head_bytes = HEAD_BYTES + topic_bytes;
    batch_bytes = is_fetch ? strtoul(argv[4], NULL, 10) : 0;
    if (head_bytes > MAX_HEAD) exit(2);
    if (is_fetch) {
        file = open(path, O_RDONLY);
        if (file < 0 || fstat(file, &s)) fail(path);
        file_size = s.st_size;
    } else {
        open_next();
    }
    const char *buffer = getenv("OTTLA_FLOOR_BUFFER_BYTES");
    buffer_bytes = buffer ? atoi(buffer) : 0;
    make_head(head, batch_bytes);
    for (int i = 0; i < MAX_QUEUED; i++) make_head(heads + head_bytes * i, 0);
    memset(memory, 1, sizeof memory);
    memset(pool, 0, sizeof pool);
    for (int i = 0; i < MAX_CONNECTIONS; i++) pool[i].fd = -1, pool[i].in = memory[i];
}

static void size_buffer(int fd, int which) {
    if (buffer_bytes > 0 && setsockopt(fd, SOL_SOCKET, which, &buffer_bytes, sizeof buffer_bytes)) fail("buffer");
}

static void accept_one(int ep, int listener) {
    int one = 1;
    struct connection *c = pool;
    while (c < pool + MAX_CONNECTIONS && c->fd >= 0) c++;
    if (c == pool + MAX_CONNECTIONS) { fprintf(stderr, "floor: too many connections\n"); exit(1); }
    char *in = c->in;
    memset(c, 0, sizeof *c);
    c->in = in;
    c->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (c->fd < 0) return;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    size_buffer(c->fd, SO_SNDBUF);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}

int main(int argc, char **argv) {
    if (argc < 4 || (!strcmp(argv[1], "fetch") && argc < 5)) { fprintf(stderr, "see the head of floor.c\n"); return 2; }
    signal(SIGPIPE, SIG_IGN);
    prepare(argv);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    size_buffer(listener, SO_RCVBUF);  /* connections inherit it: a window is settled before accept */
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 128)) fail("listen");
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
            if (!c) accept_one(ep, listener);
            else if (c->fd < 0) continue;  /* closed in this round */
            else if (c->armed) write_answers(ep, c);
            else ready(ep, c);
        }
    }
}
