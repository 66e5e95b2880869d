/* Connects again and again to a Kafka broker, and asks each time for its API versions: one thread, epoll.
 *
 *   connects HOST PORT plain|full|resumed CONCURRENT COUNT
 *
 * The connection closes behind the answer. `full` makes a TLS 1.3 handshake each time; with `resumed` each of
 * the CONCURRENT clients makes one first, which is not counted, and then uses the newest ticket that it has.
 * Prints: connections seconds own_cpu_seconds resumed p50_us p99_us. The latency is that of one client, from
 * connect() to the answer.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char request[] = "\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff";
enum { REQUEST_BYTES = 14 };

struct client {
    int fd, shaken, asked;
    SSL *tls;
    SSL_SESSION *ticket;
    size_t have;
    char head[4];
    double since;
};

static struct sockaddr_in address;
static SSL_CTX *context;
static int is_tls, is_resumed, ep;
static long begun, done, reused, count;
static float *latencies;

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_utime.tv_usec * 1e-6 + u.ru_stime.tv_sec + u.ru_stime.tv_usec * 1e-6;
}

static void fail(const char *what) {
    perror(what);
    ERR_print_errors_fp(stderr);
    exit(1);
}

static int keep_ticket(SSL *tls, SSL_SESSION *session) {
    struct client *c = SSL_get_app_data(tls);
    if (c->ticket) SSL_SESSION_free(c->ticket);
    c->ticket = session;
    return 1;
}

static void begin(struct client *c) {
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    c->shaken = c->asked = 0;
    c->have = 0;
    c->since = now();
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) fail("connect");
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (is_tls) {
        c->tls = SSL_new(context);
        SSL_set_app_data(c->tls, c);
        SSL_set_fd(c->tls, c->fd);
        SSL_set_connect_state(c->tls);
        if (is_resumed && c->ticket) SSL_set_session(c->tls, c->ticket);
    }
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    begun++;
}

static void end(struct client *c) {
    if (is_tls) {
        reused += SSL_session_reused(c->tls);
        SSL_shutdown(c->tls);
        SSL_free(c->tls);
    }
    close(c->fd);
    latencies[done++] = (float)((now() - c->since) * 1e6);
}

/* Returns the bytes, 0 when it has to wait; the end of the stream is a failure here. */
static ssize_t moved(struct client *c, ssize_t n) {
    if (n > 0) return n;
    if (is_tls) {
        int error = SSL_get_error(c->tls, (int)n);
        if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return 0;
    } else if (n < 0 && (errno == EAGAIN || errno == ENOTCONN)) return 0;
    fail("the broker closed the connection");
    return 0;
}

/* Goes on as far as the socket allows; returns whether the answer is there. */
static int step(struct client *c) {
    char body[65536];
    if (is_tls && !c->shaken) {
        if (moved(c, SSL_do_handshake(c->tls)) <= 0) return 0;
        c->shaken = 1;
    }
    if (!c->asked) {
        ssize_t n = is_tls ? SSL_write(c->tls, request, REQUEST_BYTES) : send(c->fd, request, REQUEST_BYTES, MSG_NOSIGNAL);
        if (!moved(c, n)) return 0;
        c->asked = 1;
    }
    for (;;) {
        ssize_t n = moved(c, is_tls ? SSL_read(c->tls, body, sizeof body) : recv(c->fd, body, sizeof body, 0));
        if (!n) return 0;
        for (size_t i = 0; c->have + i < 4 && i < (size_t)n; i++) c->head[c->have + i] = body[i];
        c->have += n;
        if (c->have >= 4) {
            unsigned char *h = (unsigned char *)c->head;
            if (c->have - 4 >= ((size_t)h[0] << 24 | h[1] << 16 | h[2] << 8 | h[3])) return 1;
        }
    }
}

static void run(struct client *all, int concurrent, long wanted) {
    begun = done = reused = 0;
    count = wanted;
    for (int i = 0; i < concurrent && begun < count; i++) begin(&all[i]);
    struct epoll_event events[256];
    while (done < count) {
        int n = epoll_wait(ep, events, 256, 30000);
        if (n <= 0) { fprintf(stderr, "no answer within 30 s\n"); exit(1); }
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (!step(c)) continue;
            end(c);
            if (begun < count) begin(c);
        }
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "see the head of connects.c\n"); return 2; }
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(argv[2]));
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    is_tls = strcmp(argv[3], "plain") != 0;
    is_resumed = !strcmp(argv[3], "resumed");
    int concurrent = atoi(argv[4]);
    long wanted = atol(argv[5]);
    latencies = malloc((wanted + concurrent) * sizeof *latencies);
    ep = epoll_create1(0);
    context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
    SSL_CTX_sess_set_new_cb(context, keep_ticket);
    struct client *all = calloc(concurrent, sizeof *all);
    if (is_resumed) run(all, concurrent, concurrent);
    double start = now(), cpu_start = cpu();
    run(all, concurrent, wanted);
    double took = now() - start, used = cpu() - cpu_start;
    qsort(latencies, done, sizeof *latencies, by_size);
    printf("%ld %.6f %.6f %ld %.1f %.1f\n", done, took, used, reused, latencies[done / 2], latencies[done * 99 / 100]);
    return 0;
}
