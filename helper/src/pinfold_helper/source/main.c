/* The resident helper: `helper serve FOLDER`, and `helper connect FOLDER`, which joins stdin and
 * stdout to it. docs/helper.md tells what it is for, and its protocol.
 *
 * To be read in this order: helper.h and wire.c, connection.c, session.c; path.c, files.c and
 * call.c for what is answered at once; job.h, job.c, flow.c and open.c for what takes its time:
 * commands by command.c, supervisor.c and process.c, trees by worker.c, tree.c and restore.c. */
#include "helper.h"

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

bool have_close_range(void) {
#ifdef SYS_close_range
    return !syscall(SYS_close_range, ~0u, ~0u, 0);
#else
    return false;
#endif
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
    session.env = environment;
    if (!greet(folder)) return 6;
    dup2(null, 0);
    dup2(null, 1);
    int status = converse();
    jobs_close();
    if (folder_fd >= 0) {
        unlinkat(folder_fd, "socket", 0);
        unlinkat(folder_fd, "helper", 0);
        rmdir(folder);
    }
    return status;
}

static int relay(const char *folder) {
    static uint8_t chunk[2][MAX_OUT];
    size_t have[2] = {0, 0}, at[2] = {0, 0};
    int fd = connect_to(folder);
    if (fd < 0) return 6;
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
