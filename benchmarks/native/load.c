/* A load generator for one Kafka API: raw frames, one thread, epoll.
 *
 *   load HOST PORT produce TOPIC PARTITION VALUE_BYTES CONNECTIONS IN_FLIGHT SECONDS ACKS
 *   load HOST PORT fetch   TOPIC PARTITION MAX_BYTES   CONNECTIONS IN_FLIGHT SECONDS OFFSETS
 *   load HOST PORT fill    TOPIC PARTITION VALUE_BYTES 1 8 COUNT 1
 *
 * Produce sends version 7, one v2 batch of one record of VALUE_BYTES; fetch sends version 4 and asks for the
 * offsets 0..OFFSETS-1 in turn. Prints: requests seconds own_cpu_seconds bytes_in bytes_out errors p50_us p99_us.
 * OTTLA_PROGRESS names a file of 8 bytes in which the number of answered requests stands all the time.
 * OTTLA_FLOOR=1 skips the look into responses: the floor server does not speak Kafka.
 * Compiled with -DTLS and -lssl -lcrypto it speaks TLS 1.3, and trusts every certificate.
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
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

static void put16(char *p, int v) { p[0] = v >> 8; p[1] = v; }
static void put32(char *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static void put64(char *p, uint64_t v) { put32(p, v >> 32); put32(p + 4, (uint32_t)v); }
static uint32_t get32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static int get16(const char *p) { return (int16_t)(((unsigned char)p[0] << 8) | (unsigned char)p[1]); }

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_utime.tv_usec * 1e-6 + u.ru_stime.tv_sec + u.ru_stime.tv_usec * 1e-6;
}

static uint32_t crc32c(const char *data, size_t size) {
    uint32_t table[256], crc = 0xFFFFFFFFu;
    for (int i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
        table[i] = c;
    }
    for (size_t i = 0; i < size; i++) crc = table[(crc ^ (unsigned char)data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

static char *put_varint(char *p, int64_t value) {
    uint64_t v = (uint64_t)(value << 1) ^ (uint64_t)(value >> 63);
    while (v > 127) { *p++ = (char)(v | 128); v >>= 7; }
    *p++ = (char)v;
    return p;
}

/* One v2 batch of one record. */
static size_t make_batch(char *batch, size_t value_bytes) {
    char head[16], *h = head, *p = batch + 61;
    *h++ = 0;                     /* attributes */
    h = put_varint(h, 0);         /* timestamp delta */
    h = put_varint(h, 0);         /* offset delta */
    h = put_varint(h, -1);        /* no key */
    h = put_varint(h, (int64_t)value_bytes);
    p = put_varint(p, (h - head) + (int64_t)value_bytes + 1);
    memcpy(p, head, h - head);
    p += h - head;
    memset(p, 'v', value_bytes);
    p += value_bytes;
    *p++ = 0;                     /* no headers */
    size_t size = p - batch;
    uint64_t stamp = (uint64_t)time(NULL) * 1000;
    put64(batch, 0);
    put32(batch + 8, size - 12);
    put32(batch + 12, -1);
    batch[16] = 2;
    put16(batch + 21, 0);
    put32(batch + 23, 0);
    put64(batch + 27, stamp);
    put64(batch + 35, stamp);
    put64(batch + 43, -1);
    put16(batch + 51, -1);
    put32(batch + 53, -1);
    put32(batch + 57, 1);
    put32(batch + 17, crc32c(batch + 21, size - 21));
    return size;
}

static char *topic;
static int partition, is_fetch, acks, topic_size;

static size_t make_head(char *p, int key, int version) {
    put16(p + 4, key);
    put16(p + 6, version);
    put32(p + 8, 0);
    put16(p + 12, 4);
    memcpy(p + 14, "load", 4);
    return 18;
}

static size_t make_produce(char *p, size_t value_bytes) {
    size_t n = make_head(p, 0, 7);
    put16(p + n, -1); n += 2;
    put16(p + n, acks); n += 2;
    put32(p + n, 30000); n += 4;
    put32(p + n, 1); n += 4;
    put16(p + n, topic_size); n += 2;
    memcpy(p + n, topic, topic_size); n += topic_size;
    put32(p + n, 1); n += 4;
    put32(p + n, partition); n += 4;
    size_t batch = make_batch(p + n + 4, value_bytes);
    put32(p + n, batch);
    n += 4 + batch;
    put32(p, n - 4);
    return n;
}

static size_t offset_at;

static size_t make_fetch(char *p, size_t max_bytes) {
    size_t n = make_head(p, 1, 4);
    put32(p + n, -1); n += 4;
    put32(p + n, 500); n += 4;
    put32(p + n, 1); n += 4;
    put32(p + n, 64 << 20); n += 4;
    p[n++] = 0;
    put32(p + n, 1); n += 4;
    put16(p + n, topic_size); n += 2;
    memcpy(p + n, topic, topic_size); n += topic_size;
    put32(p + n, 1); n += 4;
    put32(p + n, partition); n += 4;
    offset_at = n;
    put64(p + n, 0); n += 8;
    put32(p + n, max_bytes); n += 4;
    put32(p, n - 4);
    return n;
}

struct connection {
    int fd, in_flight, armed;
#ifdef TLS
    SSL *tls;
#endif
    char *out;
    size_t out_have, out_sent;
    char head[512];
    size_t head_have, body_left;
    double sent_at[256];
    unsigned first, last;
};

#ifdef TLS
static SSL_CTX *make_context(void) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1);             /* one system call for several records */
    SSL_CTX_set_default_read_buffer_len(context, 128 << 10);
    return context;
}

static void begin_tls(struct connection *c, SSL_CTX *context) {
    c->tls = SSL_new(context);
    SSL_set_fd(c->tls, c->fd);
    if (SSL_connect(c->tls) != 1) { ERR_print_errors_fp(stderr); exit(1); }
}

static ssize_t tls_result(struct connection *c, int n) {
    if (n > 0) return n;
    int error = SSL_get_error(c->tls, n);
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return -1;
}

static ssize_t wire_send(struct connection *c, const char *data, size_t size) {
    return tls_result(c, SSL_write(c->tls, data, (int)size));
}

static ssize_t wire_recv(struct connection *c, char *data, size_t size) {
    return tls_result(c, SSL_read(c->tls, data, (int)size));
}
#else
static ssize_t wire_send(struct connection *c, const char *data, size_t size) {
    return send(c->fd, data, size, MSG_NOSIGNAL);
}

static ssize_t wire_recv(struct connection *c, char *data, size_t size) { return recv(c->fd, data, size, 0); }
#endif

static char *request;
static size_t request_size, out_room;
static uint64_t requests, bytes_in, bytes_out, errors, begun, limit = UINT64_MAX;
static uint64_t offsets = 1;
static int floor_server, want_in_flight;
static float *latencies;
static volatile uint64_t *progress;
static size_t latency_count, latency_room = 4 << 20;
static char sink[1 << 20];

static void look(struct connection *c) {
    const char *p = c->head + 8;
    size_t name_at = is_fetch ? 8 : 4;
    int name = get16(p + name_at);
    int error = get16(p + name_at + 2 + name + 8);
    if (error) errors++;
    if (is_fetch && !error) {
        int32_t records = (int32_t)get32(p + name_at + 2 + name + 8 + 2 + 8 + 8 + 4);
        if (records < 61) errors++;
    }
}

static void answered(struct connection *c) {
    if (!floor_server) look(c);
    if (latency_count < latency_room) latencies[latency_count++] = (float)((now() - c->sent_at[c->first]) * 1e6);
    c->first = (c->first + 1) & 255;
    c->in_flight--;
    c->head_have = 0;
    requests++;
    if (progress) *progress = requests;
}

static void arm(int ep, struct connection *c, int writing) {
    if (c->armed == writing) return;
    struct epoll_event e = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
    c->armed = writing;
}

static void fill(int ep, struct connection *c) {
    for (;;) {
        if (c->out_sent == c->out_have) {
            c->out_sent = c->out_have = 0;
            while (c->in_flight < want_in_flight && c->out_have + request_size <= out_room && begun < limit) {
                memcpy(c->out + c->out_have, request, request_size);
                put32(c->out + c->out_have + 8, (uint32_t)begun);
                if (is_fetch) put64(c->out + c->out_have + offset_at, begun % offsets);
                c->out_have += request_size;
                c->sent_at[c->last] = now();
                c->last = (c->last + 1) & 255;
                c->in_flight++;
                begun++;
            }
            if (!c->out_have) break;
        }
        ssize_t n = wire_send(c, c->out + c->out_sent, c->out_have - c->out_sent);
        if (n < 0) {
            if (errno == EAGAIN) { arm(ep, c, 1); return; }
            perror("send");
            exit(1);
        }
        c->out_sent += n;
        bytes_out += n;
    }
    arm(ep, c, 0);
}

/* The first bytes of a response are kept for a look; the rest is received and dropped. */
static void drain(struct connection *c) {
    for (;;) {
        ssize_t n = wire_recv(c, sink, sizeof sink);
        if (n == 0) { fprintf(stderr, "the broker closed the connection\n"); exit(1); }
        if (n < 0) {
            if (errno == EAGAIN) return;
            perror("recv");
            exit(1);
        }
        bytes_in += n;
        char *p = sink, *end = sink + n;
        while (p < end) {
            if (c->head_have < 4) {
                c->head[c->head_have++] = *p++;
                if (c->head_have == 4) c->body_left = get32(c->head);
                continue;
            }
            size_t take = (size_t)(end - p) < c->body_left ? (size_t)(end - p) : c->body_left;
            size_t keep = sizeof c->head - c->head_have < take ? sizeof c->head - c->head_have : take;
            memcpy(c->head + c->head_have, p, keep);
            c->head_have += keep;
            p += take;
            c->body_left -= take;
            if (!c->body_left) answered(c);
        }
#ifndef TLS
        if ((size_t)n < sizeof sink) return;
#endif
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc != 11) { fprintf(stderr, "see the head of load.c\n"); return 2; }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    is_fetch = !strcmp(argv[3], "fetch");
    int is_fill = !strcmp(argv[3], "fill");
    topic = argv[4];
    topic_size = strlen(topic);
    partition = atoi(argv[5]);
    size_t size = strtoul(argv[6], NULL, 10);
    int connections = atoi(argv[7]);
    want_in_flight = atoi(argv[8]);
    double seconds = atof(argv[9]);
    if (want_in_flight > 256) want_in_flight = 256;
    if (is_fetch) offsets = strtoull(argv[10], NULL, 10); else acks = atoi(argv[10]);
    if (is_fill) { limit = (uint64_t)seconds; seconds = 120; }
    floor_server = getenv("OTTLA_FLOOR") != NULL;
    if (getenv("OTTLA_PROGRESS")) {
        int file = open(getenv("OTTLA_PROGRESS"), O_RDWR);
        void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *progress, PROT_WRITE, MAP_SHARED, file, 0);
        if (at == MAP_FAILED) { perror("OTTLA_PROGRESS"); return 1; }
        progress = at;
    }
    request = malloc(size + 512);
    request_size = is_fetch ? make_fetch(request, size) : make_produce(request, size);
    out_room = request_size > (1 << 20) ? request_size : (1 << 20) + request_size;
    latencies = malloc(latency_room * sizeof *latencies);
    int ep = epoll_create1(0);
#ifdef TLS
    SSL_CTX *context = make_context();
#endif
    struct connection *all = calloc(connections, sizeof *all);
    for (int i = 0; i < connections; i++) {
        struct connection *c = &all[i];
        int one = 1;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) { perror("connect"); return 1; }
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifdef TLS
        begin_tls(c, context);
#endif
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->out = malloc(out_room);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
    }
    double start = now(), end = start + seconds, cpu_start = cpu();
    for (int i = 0; i < connections; i++) fill(ep, &all[i]);
    struct epoll_event events[256];
    while (now() < end && requests < limit) {
        int n = epoll_wait(ep, events, 256, 1000);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) drain(c);
            fill(ep, c);
        }
    }
    double took = now() - start;
    qsort(latencies, latency_count, sizeof *latencies, by_size);
    printf("%lu %.6f %.6f %lu %lu %lu %.1f %.1f\n", requests, took, cpu() - cpu_start, bytes_in, bytes_out, errors,
           latency_count ? latencies[latency_count / 2] : 0, latency_count ? latencies[latency_count * 99 / 100] : 0);
    return 0;
}
