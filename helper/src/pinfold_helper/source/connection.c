/* Connections: one at a time is in use, each new one has to prove itself, and without any the
 * helper waits for a while. */
#include "helper.h"
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    GREETING = 8 + 4 * 4 + 8 + 16 + 32,
    ANSWER = 8 + 32 + 8,
    WAITING = 4,          /* connections that have not proved themselves */
    ANSWER_MS = 10000,    /* and have so long to do it */
    PIPE_BYTES = 1 << 20,
};

static const char MAGIC[] = "pinfold1"; /* 8 bytes of it */

struct connection {
    int in, out; /* one and the same for a socket; -1: none */
    uint8_t answer[ANSWER];
    size_t have;
    uint64_t since;
};

static uint8_t greeting[GREETING], token[32];
static bool have_token;
static int listener = -1;
static struct connection live = {.in = -1, .out = -1}, waiting[WAITING];
static uint64_t welcome_left; /* bytes of the welcome that were not sent yet */
static uint8_t welcome[8];

static int socket_at(const char *folder, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(folder) + sizeof "/socket" > sizeof address->sun_path) return -1;
    strcpy(address->sun_path, folder);
    strcat(address->sun_path, "/socket");
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int connect_to(const char *folder) {
    struct sockaddr_un address;
    int fd = socket_at(folder, &address);
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static int listen_at(const char *folder) {
    struct sockaddr_un address;
    int fd = socket_at(folder, &address);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, WAITING)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void hash_program(uint8_t digest[32]) {
    uint8_t chunk[4 << 10];
    struct sha256 hash;
    ssize_t n;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    sha256_begin(&hash);
    while (fd >= 0 && (n = read(fd, chunk, sizeof chunk)) > 0) sha256_add(&hash, chunk, (size_t)n);
    sha256_end(&hash, digest);
    if (fd < 0) memset(digest, 0, 32); /* no /proc: it can't tell */
    else close(fd);
}

static void make_greeting(void) {
    struct buffer b = {0};
    uint8_t session_id[16], digest[32];
    struct stat st;
    random_bytes(session_id, sizeof session_id);
    hash_program(digest);
    have_proc = !stat("/proc/self/stat", &st);
    probe_openat2();
    bool reaper = !prctl(PR_SET_CHILD_SUBREAPER, 1);
    put(&b, MAGIC, 8);
    put_u32(&b, PROTOCOL_VERSION);
    put_u32(&b, (have_openat2 ? 1 : 0) | (have_proc ? 2 : 0) | (reaper ? 4 : 0) |
                    (have_close_range() ? 8 : 0) | (find_counters() ? 16 : 0));
    put_u32(&b, (uint32_t)getpid());
    put_u32(&b, geteuid());
    put_u64(&b, start_ticks(getpid()));
    put(&b, session_id, 16);
    put(&b, digest, 32);
    memcpy(greeting, b.data, GREETING);
    free(b.data);
}

static void drop(struct connection *c) {
    if (c->in >= 0) close(c->in);
    if (c->out >= 0 && c->out != c->in) close(c->out);
    *c = (struct connection){.in = -1, .out = -1};
}

static bool is_token(const uint8_t *given) {
    uint8_t differs = 0;
    if (!have_token) memcpy(token, given, 32);
    have_token = true;
    for (int i = 0; i < 32; i++) differs |= given[i] ^ token[i];
    return !differs;
}

/* Takes an answer to the greeting; once it is whole and right, that is the connection. */
static void take_answer(struct connection *c) {
    ssize_t n = read(c->in, c->answer + c->have, ANSWER - c->have);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        drop(c);
        return;
    }
    c->have += (size_t)n;
    if (c->have < ANSWER) return;
    struct reader r = {c->answer + 40, c->answer + ANSWER, false};
    uint64_t received = get_u64(&r);
    if (memcmp(c->answer, MAGIC, 8) || !is_token(c->answer + 8) || !session_resume(received)) {
        drop(c);
        return;
    }
    drop(&live);
    live = *c;
    session.detached = false;
    *c = (struct connection){.in = -1, .out = -1};
    for (int i = 0; i < 8; i++) welcome[i] = (uint8_t)(session.received >> 8 * i);
    welcome_left = 8;
}

static void admit(void) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    for (int i = 0; i < WAITING; i++) {
        if (waiting[i].in >= 0) continue;
        waiting[i] = (struct connection){.in = fd, .out = fd, .since = now_us()};
        if (write(fd, greeting, GREETING) != GREETING) drop(&waiting[i]);
        return;
    }
    close(fd);
}

static bool pending_answers(void) {
    bool any = false;
    for (int i = 0; i < WAITING; i++) any |= waiting[i].in >= 0;
    return any;
}

void forget_connections(void) {
    drop(&live);
    for (int i = 0; i < WAITING; i++) drop(&waiting[i]);
    if (listener >= 0) close(listener);
}

static void receive(void) {
    reserve(&session.in, 64 << 10); /* a larger frame has made room for itself */
    ssize_t n = read(live.in, session.in.data + session.in.len, session.in.cap - session.in.len);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        drop(&live);
        return;
    }
    session.in.len += (size_t)n;
    session.received += (uint64_t)n;
    session_frames();
}

static void transmit(void) {
    while (welcome_left || session.sent < session.out.len) {
        bool first = welcome_left;
        const uint8_t *from = first ? welcome + 8 - welcome_left : session.out.data + session.sent;
        ssize_t n = write(live.out, from, first ? welcome_left : session.out.len - session.sent);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) {
            drop(&live);
            return;
        }
        if (welcome_left) welcome_left -= (uint64_t)n;
        else session.sent += (size_t)n;
    }
}

/* The first connection is stdin and stdout. */
bool greet(const char *folder) {
    make_greeting();
    prctl(PR_SET_DUMPABLE, 0);
    for (int i = 0; i < WAITING; i++) waiting[i] = (struct connection){.in = -1, .out = -1};
    listener = listen_at(folder); /* none: then no connection can follow the first */
    struct connection *first = &waiting[0];
    first->in = fcntl(0, F_DUPFD_CLOEXEC, 3);
    first->out = fcntl(1, F_DUPFD_CLOEXEC, 3);
    if (first->in < 0 || first->out < 0) return false;
    /* Best effort: who passes it on has to wait for us less often. */
    fcntl(first->in, F_SETPIPE_SZ, PIPE_BYTES);
    fcntl(first->out, F_SETPIPE_SZ, PIPE_BYTES);
    fcntl(first->in, F_SETFL, fcntl(first->in, F_GETFL) | O_NONBLOCK);
    if (!write_all(first->out, greeting, GREETING)) return false;
    fcntl(first->out, F_SETFL, fcntl(first->out, F_GETFL) | O_NONBLOCK);
    first->since = now_us();
    return true;
}

int converse(void) {
    static struct pollfd fds[3 + WAITING + 4 * MAX_JOBS];
    uint64_t alone_since = now_us();
    while (!session.ended) {
        bool connected = live.in >= 0;
        bool pending = connected && (welcome_left || session.sent < session.out.len);
        if (connected) alone_since = 0;
        else if (!alone_since) alone_since = now_us();
        fds[0] = (struct pollfd){live.in, POLLIN, 0};
        fds[1] = (struct pollfd){pending ? live.out : -1, POLLOUT, 0};
        /* Nobody may come before the one whose token counts. */
        fds[2] = (struct pollfd){have_token ? listener : -1, POLLIN, 0};
        for (int i = 0; i < WAITING; i++) fds[3 + i] = (struct pollfd){waiting[i].in, POLLIN, 0};
        size_t n = 3 + WAITING + jobs_poll(fds + 3 + WAITING);
        int ms = jobs_timeout();
        if ((!connected || pending_answers()) && (ms < 0 || ms > 500)) ms = 500;
        if (poll(fds, n, ms) < 0) {
            if (errno != EINTR) return 4;
            continue;
        }
        jobs_step(fds + 3 + WAITING);
        if (fds[0].revents && live.in >= 0) receive();
        for (int i = 0; i < WAITING; i++) {
            if (waiting[i].in < 0) continue;
            if (fds[3 + i].revents) take_answer(&waiting[i]);
            else if (now_us() - waiting[i].since > ANSWER_MS * 1000ull) drop(&waiting[i]);
        }
        if (fds[2].revents) admit();
        if (live.out >= 0) transmit();
        if (connected || live.in >= 0) continue;
        if (session.detached ? !count_commands() : now_us() - alone_since > GRACE_MS * 1000ull)
            break;
    }
    if (live.out >= 0) transmit();
    return session.status;
}
