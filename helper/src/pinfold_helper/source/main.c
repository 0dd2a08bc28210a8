/* The resident helper: `helper serve FOLDER`, and `helper connect FOLDER`, which joins stdin and
 * stdout to it. docs/helper.md tells what it is for, and its protocol. */
#include "helper.h"
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { GREETING = 8 + 4 * 4 + 8 + 16 + 32, ANSWER = 8 + 32 + 8, WAITING = 4, ANSWER_MS = 10000 };

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

void close_between(int first, int end) { /* the end is not */
    if (first >= end) return;
#ifdef SYS_close_range
    if (!syscall(SYS_close_range, first, end - 1, 0)) return;
#endif
    struct rlimit limit = {.rlim_cur = 65536};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur > 65536) limit.rlim_cur = 65536;
    if ((rlim_t)end > limit.rlim_cur) end = (int)limit.rlim_cur;
    for (int fd = first; fd < end; fd++) close(fd);
}

static bool have_close_range(void) {
#ifdef SYS_close_range
    return !syscall(SYS_close_range, ~0u, ~0u, 0);
#else
    return false;
#endif
}

static int socket_at(const char *folder, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(folder) + sizeof "/socket" > sizeof address->sun_path) return -1;
    strcpy(address->sun_path, folder);
    strcat(address->sun_path, "/socket");
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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

static int loop(void) {
    static struct pollfd fds[3 + WAITING + 4 * MAX_JOBS];
    uint64_t alone_since = now_us();
    while (!session.ended) {
        bool connected = live.in >= 0;
        bool pending = connected && (welcome_left || session.sent < session.out.len);
        if (connected) alone_since = 0;
        else if (!alone_since) alone_since = now_us();
        fds[0] = (struct pollfd){live.in, POLLIN, 0};
        fds[1] = (struct pollfd){pending ? live.out : -1, POLLOUT, 0};
        fds[2] = (struct pollfd){listener, POLLIN, 0};
        for (int i = 0; i < WAITING; i++) fds[3 + i] = (struct pollfd){waiting[i].in, POLLIN, 0};
        size_t n = 3 + WAITING + session_poll(fds + 3 + WAITING);
        int ms = session_timeout();
        if ((!connected || pending_answers()) && (ms < 0 || ms > 500)) ms = 500;
        if (poll(fds, n, ms) < 0) {
            if (errno != EINTR) return 4;
            continue;
        }
        session_step(fds + 3 + WAITING);
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
    return session.status;
}

static int serve(const char *folder, char **environment) {
    struct rlimit limit;
    int ends[2], null;
    close_between(3, INT_MAX);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) null = pipe2(ends, O_CLOEXEC) ? -1 : ends[0];
    if (null < 0) return 6;
    dup2(null, 2); /* nothing of ours is for the controller's eyes but frames */
    set_signals();
    setsid();
    umask(022);
    getrlimit(RLIMIT_NOFILE, &session.files);
    limit = session.files;
    limit.rlim_cur = limit.rlim_max < 65536 ? limit.rlim_max : 65536;
    if (limit.rlim_cur > session.files.rlim_cur) setrlimit(RLIMIT_NOFILE, &limit);
    int folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    make_greeting();
    prctl(PR_SET_DUMPABLE, 0);
    session.env = environment;
    for (int i = 0; i < WAITING; i++) waiting[i] = (struct connection){.in = -1, .out = -1};
    listener = listen_at(folder); /* none: then no connection can follow the first */
    waiting[0].in = fcntl(0, F_DUPFD_CLOEXEC, 3);
    waiting[0].out = fcntl(1, F_DUPFD_CLOEXEC, 3);
    if (waiting[0].in < 0 || waiting[0].out < 0) return 6;
    fcntl(waiting[0].in, F_SETFL, fcntl(waiting[0].in, F_GETFL) | O_NONBLOCK);
    if (!write_all(waiting[0].out, greeting, GREETING)) return 6;
    fcntl(waiting[0].out, F_SETFL, fcntl(waiting[0].out, F_GETFL) | O_NONBLOCK);
    waiting[0].since = now_us();
    dup2(null, 0);
    dup2(null, 1);
    int status = loop();
    if (live.out >= 0) transmit();
    session_close();
    if (folder_fd >= 0) {
        unlinkat(folder_fd, "socket", 0);
        unlinkat(folder_fd, "helper", 0);
        rmdir(folder);
    }
    return status;
}

static int relay(const char *folder) {
    struct sockaddr_un address;
    static uint8_t chunk[2][MAX_OUT];
    size_t have[2] = {0, 0}, at[2] = {0, 0};
    int fd = socket_at(folder, &address);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return 6;
    int from[2] = {0, fd}, to[2] = {fd, 1};
    fcntl(1, F_SETFL, fcntl(1, F_GETFL) | O_NONBLOCK);
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        struct pollfd fds[4];
        for (int i = 0; i < 2; i++) {
            fds[i] = (struct pollfd){have[i] ? -1 : from[i], POLLIN, 0};
            fds[2 + i] = (struct pollfd){have[i] ? to[i] : -1, POLLOUT, 0};
        }
        if (poll(fds, 4, -1) < 0 && errno != EINTR) return 6;
        for (int i = 0; i < 2; i++) {
            ssize_t n = 1;
            if (fds[i].revents) {
                n = read(from[i], chunk[i], sizeof chunk[i]);
                if (n > 0) have[i] = (size_t)n, at[i] = 0;
            } else if (fds[2 + i].revents) {
                n = write(to[i], chunk[i] + at[i], have[i]);
                if (n > 0) have[i] -= (size_t)n, at[i] += (size_t)n;
            }
            if (n <= 0 && !(n < 0 && (errno == EINTR || errno == EAGAIN))) return 0;
        }
    }
}

int main(int argc, char **argv, char **environment) {
    if (argc == 3 && !strcmp(argv[1], "connect")) return relay(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "purge")) /* NAME=VALUE, and ticks since boot or 0 */
        return purge(strtoull(argv[3], NULL, 10), argv[2]) ? 7 : 0;
    if (argc == 3 && !strcmp(argv[1], "serve")) return serve(argv[2], environment);
    static const char usage[] = "usage: helper serve FOLDER | connect FOLDER | purge MARK TICKS\n";
    write_all(2, usage, sizeof usage - 1);
    return 2;
}
