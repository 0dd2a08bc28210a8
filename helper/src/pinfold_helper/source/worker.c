/* Operations on whole trees take long: each runs in a process of its own, a worker. */
#include "job.h"
#include <sys/prctl.h>
#include <sys/socket.h>

static _Noreturn void work(const struct task *t, int in, int out, int control) {
    struct worker w = {.in = in, .out = out, .where = t->path};
    int error;
    switch (t->op) {
    case LIST: error = work_list(&w, t->root, t->path); break;
    case SCAN: error = work_scan(&w, t->root, t->path, t->name, t->token); break;
    case FETCH: error = work_fetch(&w, t->root, t->path, t->contents); break;
    case REMOVE_TREE: error = work_remove(&w, t->root, t->path); break;
    case RESTORE: error = work_restore(&w, t->root, t->path, t->name); break;
    default: error = work_recover(&w, t->root, t->path, t->name); break;
    }
    struct buffer end = {0};
    if (error) {
        put_error(&end, -error, w.where);
    } else {
        put_u8(&end, 0);
        put(&end, w.result.data, w.result.len);
    }
    send(control, end.data, end.len, MSG_NOSIGNAL);
    _exit(0);
}

static void stop_work(int number) { /* leaves what it stages to recover */
    (void)number;
    _exit(5);
}

/* In the child: what is not its own. Not to go on beside the next helper, which finishes what this
 * one has begun, it ends with the helper; other jobs' pipes would never end if it kept them. */
static void become_worker(pid_t helper) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != helper) _exit(5);
    signal(SIGTERM, stop_work);
    signal(SIGPIPE, stop_work);
    forget_connections();
    for (size_t i = 0; i < job_count; i++) shut_all(jobs[i]);
}

int start_worker(struct job *j, const struct task *t) {
    int made[3][2], control[2] = {-1, -1};
    pid_t helper = getpid();
    int error = make_pipes(made, t->op == FETCH || t->op == RESTORE);
    if (error) return error;
    shut(&made[2][0]); /* there is no stderr */
    shut(&made[2][1]);
    j->in = made[0][1], j->out[0].fd = made[1][0];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control)) error = -errno;
    if (!error) {
        j->control = control[0];
        set_nonblocking(j->in);
        set_nonblocking(j->out[0].fd);
        fcntl(j->out[0].fd, F_SETPIPE_SZ, MAX_OUT); /* best effort */
        j->pid = fork();
        if (j->pid < 0) error = -errno;
        if (!j->pid) {
            become_worker(helper);
            work(t, made[0][0], made[1][1], control[1]);
        }
    }
    shut(&made[0][0]);
    shut(&made[1][1]);
    shut(&control[1]);
    return error;
}

void hear_worker(struct job *j) {
    uint8_t data[PATH_MAX * 3];
    ssize_t n = recv(j->control, data, sizeof data, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0 && !j->reported) {
        put(&j->result, data, (size_t)n);
        j->reported = true;
    }
    shut(&j->control);
    shut(&j->in);
    if (!j->reported) finish(j, ECANCELED, "the worker was ended");
}
