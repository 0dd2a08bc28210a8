/* A command as the helper sees it: started under a supervisor, and heard of at its end. */
#include "job.h"
#include <sys/ioctl.h>
#include <sys/socket.h>

static int open_terminal(struct job *j, int stdio[3], uint16_t rows, uint16_t columns) {
    int unlocked = 0, number;
    char path[32] = "/dev/pts/", digits[12];
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0) return -errno;
    j->in = master;
    if (ioctl(master, TIOCSPTLCK, &unlocked) || ioctl(master, (int)TIOCGPTN, &number))
        return -errno;
    int n = 0, at = 9;
    for (int rest = number; rest || !n; rest /= 10) digits[n++] = (char)('0' + rest % 10);
    while (n) path[at++] = digits[--n];
    ioctl(master, TIOCSWINSZ, &size);
    j->out[0].fd = fcntl(master, F_DUPFD_CLOEXEC, 3);
    int slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    int error = slave < 0 || j->out[0].fd < 0 ? -errno : 0;
    for (int i = 0; i < 3 && !error; i++)
        if ((stdio[i] = fcntl(slave, F_DUPFD_CLOEXEC, 3)) < 0) error = -errno;
    shut(&slave);
    return error;
}

int start_command(struct job *j, const struct start *s) {
    int made[3][2], control[2] = {-1, -1}, error;
    struct command c = {.argv = s->argv, .env = s->env, .cwd = -1, .drain = {-1, -1},
                        .terminal = s->flags & 1, .timeout_ms = s->timeout_ms,
                        .grace_ms = s->grace_ms, .files = session.files};
    c.cwd = open_at(s->root, s->cwd, O_PATH | O_DIRECTORY);
    if (c.cwd < 0) return c.cwd;
    int stdio[3] = {-1, -1, -1};
    j->terminal = c.terminal;
    if (c.terminal) {
        error = open_terminal(j, stdio, s->rows, s->columns);
    } else if (!(error = make_pipes(made, true))) {
        stdio[0] = made[0][0], stdio[1] = made[1][1], stdio[2] = made[2][1];
        j->in = made[0][1], j->out[0].fd = made[1][0], j->out[1].fd = made[2][0];
    }
    if (!error && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control)) error = -errno;
    if (!error) {
        set_nonblocking(j->in);
        set_nonblocking(j->out[0].fd);
        set_nonblocking(j->out[1].fd);
        memcpy(c.stdio, stdio, sizeof stdio);
        c.drain[0] = j->out[0].fd, c.drain[1] = j->out[1].fd;
        for (int i = 0; i < COUNTERS; i++) j->counts[i] = count(i);
        j->control = control[0];
        j->pid = fork();
        if (!j->pid) supervise(&c, control[1]);
        if (j->pid < 0) error = -errno;
        if (s->timeout_ms) give_up_within(j, s->timeout_ms + s->grace_ms + BACKUP_MS);
    }
    for (int i = 0; i < 3; i++) shut(&stdio[i]);
    shut(&control[1]);
    close(c.cwd);
    return error;
}

static uint8_t limit_of(const struct job *j) {
    const struct report *r = &j->report;
    bool killed = r->signalled ? r->value == SIGKILL : r->value == 128 + SIGKILL;
    if (r->timed_out) return 0;
    if (killed && count(MEMORY_KILLS) > j->counts[MEMORY_KILLS]) return 1;
    if (r->signalled && r->value == SIGXCPU) return 2;
    if (r->signalled && r->value == SIGXFSZ) return 3;
    if (r->value && count(FORKS_REFUSED) > j->counts[FORKS_REFUSED]) return 4;
    return 0;
}

/* What is in the pipes when the command has ended is its own; what comes later is not. */
static void end_outputs(struct job *j) {
    for (int i = 0; i < 2; i++) {
        int waiting = 0;
        struct output *o = &j->out[i];
        if (o->fd < 0) continue;
        if (!j->terminal) o->rest = ioctl(o->fd, FIONREAD, &waiting) ? 0 : waiting;
        else if (j->report.background) pass_output(j, i), shut(&o->fd); /* else it ends by itself */
    }
}

void hear_supervisor(struct job *j) {
    ssize_t n = recv(j->control, &j->report, sizeof j->report, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n == sizeof j->report && j->reported) {
        j->all_gone = true;
        return;
    }
    if (n == sizeof j->report) {
        shut(&j->in);
        j->all_gone = !j->report.background;
        if (j->all_gone) shut(&j->control);
        if (j->report.error) {
            shut(&j->out[0].fd);
            shut(&j->out[1].fd);
            finish(j, j->report.error, "exec");
        } else {
            end_outputs(j);
            finish(j, 0, "");
            put_u8(&j->result, j->report.signalled);
            put_u8(&j->result, j->report.value);
            put_u8(&j->result, j->report.timed_out);
            put_u8(&j->result, limit_of(j));
            put_u8(&j->result, j->report.background);
            put_u64(&j->result, j->report.us);
        }
        j->give_up_at = 0;
        return;
    }
    shut(&j->control); /* the supervisor is gone */
    if (j->reported) return;
    shut(&j->in);
    shut(&j->out[0].fd);
    shut(&j->out[1].fd);
    finish(j, EOWNERDEAD, "the supervisor was killed");
}

void kill_strays(void) {
    pid_t spared[MAX_JOBS];
    size_t count = 0;
    for (size_t i = 0; i < job_count; i++)
        if (jobs[i]->control >= 0) spared[count++] = jobs[i]->pid;
    for (int round = 0; round < 200; round++) {
        if (!have_proc || !kill_descendants(getpid(), spared, count)) return;
        poll(NULL, 0, 1);
    }
}
