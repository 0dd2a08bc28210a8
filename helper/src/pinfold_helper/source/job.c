/* All that is under way. A job is an OPEN that has not had its END, or a command whose background
 * processes still live. */
#include "job.h"
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

struct job *jobs[MAX_JOBS];
size_t job_count;
static struct { bool waiting; uint32_t id; uint64_t until; } jobs_call;

struct job *find_job(uint32_t id) {
    for (size_t i = 0; i < job_count; i++)
        if (jobs[i]->id == id && !jobs[i]->ended) return jobs[i];
    return NULL;
}

void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void shut_all(struct job *j) {
    shut(&j->control);
    shut(&j->in);
    shut(&j->out[0].fd);
    shut(&j->out[1].fd);
}

int make_pipes(int made[3][2], bool input) {
    int error = 0;
    for (int i = 0; i < 3; i++) made[i][0] = made[i][1] = -1;
    for (int i = input ? 0 : 1; i < 3 && !error; i++)
        if (pipe2(made[i], O_CLOEXEC)) error = -errno;
    for (int i = 0; i < 6 && error; i++) shut(&made[i / 2][i % 2]);
    return error;
}

void set_nonblocking(int fd) {
    if (fd >= 0) fcntl(fd, F_SETFL, O_NONBLOCK); /* a pipe has no other flag */
}

struct job *add_job(uint32_t id, uint8_t op, uint64_t credit) {
    struct job *j = allocate(sizeof *j);
    *j = (struct job){.id = id, .op = op, .control = -1, .in = -1};
    j->out[0] = (struct output){.fd = -1, .credit = credit, .rest = -1};
    j->out[1] = (struct output){.fd = -1, .rest = -1};
    jobs[job_count++] = j;
    return j;
}

static void remove_job(size_t index) {
    struct job *j = jobs[index];
    shut_all(j);
    if (j->draft) end_draft(j, -ECANCELED, "");
    free(j->queue.data);
    free(j->result.data);
    free(j);
    jobs[index] = jobs[--job_count];
}

void finish(struct job *j, int error, const char *where) {
    j->result.len = 0;
    if (error) put_error(&j->result, error, where);
    else put_u8(&j->result, 0);
    j->reported = true;
}

void give_up_within(struct job *j, uint64_t ms) {
    uint64_t at = now_us() + ms * 1000;
    if (!j->give_up_at || at < j->give_up_at) j->give_up_at = at;
}

void order(struct job *j, char what, uint32_t value) {
    struct order o = {.what = what, .value = value};
    int waiting = 0;
    /* Signals that a supervisor is slow to take leave room for what must not be lost. */
    if (what == 's' && (ioctl(j->control, TIOCOUTQ, &waiting) || waiting > SIGNALS_BYTES)) return;
    if (j->control >= 0) send(j->control, &o, sizeof o, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void kill_job(struct job *j, uint32_t grace_ms) {
    if (j->op == EXEC) {
        order(j, 'k', grace_ms);
        give_up_within(j, grace_ms + (uint64_t)BACKUP_MS);
        return;
    }
    shut(&j->out[0].fd);
    if (j->draft) {
        end_draft(j, -ECANCELED, "killed");
    } else if (j->op != DOWNLOAD && j->control >= 0) {
        kill(j->pid, SIGTERM);
    }
}

uint32_t count_commands(void) {
    uint32_t count = 0;
    for (size_t i = 0; i < job_count; i++) count += jobs[i]->op == EXEC;
    return count;
}

void call_jobs(uint32_t id, bool end) {
    if (end && count_commands()) {
        for (size_t i = 0; i < job_count; i++) {
            if (jobs[i]->op != EXEC) continue;
            order(jobs[i], 'k', 0);
            give_up_within(jobs[i], BACKUP_MS);
        }
        if (!jobs_call.waiting) {
            jobs_call.waiting = true, jobs_call.id = id;
            jobs_call.until = now_us() + BACKUP_MS * 1000ull;
            return;
        }
    }
    size_t start = frame(REPLY, id);
    put_u8(&session.out, 0);
    put_u32(&session.out, count_commands());
    seal(start);
}

static void send_end(struct job *j) {
    size_t start = frame(END, j->id);
    put(&session.out, j->result.data, j->result.len);
    if (j->op == EXEC && !j->result.data[0]) {
        put_u64(&session.out, j->out[0].total);
        put_u64(&session.out, j->out[1].total);
    }
    seal(start);
    order(j, 'r', 0);
    j->ended = true;
}

/* Only what is open: the kernel refuses to poll for more than it lets us have open. */
size_t jobs_poll(struct pollfd *fds) {
    size_t n = 0;
    for (size_t i = 0; i < job_count; i++) {
        struct job *j = jobs[i];
        int wanted[] = {j->control, j->queue.len ? j->in : -1,
                        wants_output(&j->out[0]) ? j->out[0].fd : -1,
                        wants_output(&j->out[1]) ? j->out[1].fd : -1};
        for (int k = 0; k < 4; k++) {
            j->polled[k] = wanted[k] < 0 ? -1 : (int)n;
            if (wanted[k] >= 0) fds[n++] = (struct pollfd){wanted[k], k == 1 ? POLLOUT : POLLIN, 0};
        }
    }
    return n;
}

static bool is_ready(const struct job *j, const struct pollfd *fds, int which) {
    return j->polled[which] >= 0 && fds[j->polled[which]].revents;
}

void jobs_step(const struct pollfd *fds) {
    size_t known = job_count; /* jobs only come at the end, and go below */
    uint64_t now = now_us();
    bool strays = false;
    for (size_t i = 0; i < known && fds; i++) {
        struct job *j = jobs[i];
        bool had = j->control >= 0;
        if (is_ready(j, fds, 0) && j->control >= 0) {
            if (j->op == EXEC) hear_supervisor(j);
            else hear_worker(j);
        }
        if (had && j->op == EXEC && j->control < 0 && !j->all_gone) strays = true;
        if (is_ready(j, fds, 1)) pass_input(j);
        for (int k = 0; k < 2; k++)
            if (is_ready(j, fds, 2 + k)) pass_output(j, k);
    }
    for (size_t i = known; i--;) {
        struct job *j = jobs[i];
        if (j->give_up_at && now >= j->give_up_at && j->control >= 0) {
            kill(j->pid, SIGKILL); /* stopped, most likely: its tree comes to us */
            j->give_up_at = 0;
        }
        for (int k = 0; k < 2; k++)
            if (j->reported && j->out[k].fd >= 0 && !j->out[k].rest) shut(&j->out[k].fd);
        if (j->reported && !j->ended && j->out[0].fd < 0 && j->out[1].fd < 0) send_end(j);
    }
    if (strays) kill_strays();
    for (size_t i = job_count; i--;)
        if (jobs[i]->ended && jobs[i]->control < 0) remove_job(i);
    if (!job_count) {
        give_back(&session.in);
        give_back(&session.out);
    }
    if (jobs_call.waiting && (!count_commands() || now >= jobs_call.until)) {
        jobs_call.waiting = false;
        call_jobs(jobs_call.id, false);
    }
}

int jobs_timeout(void) {
    uint64_t at = jobs_call.waiting ? jobs_call.until : UINT64_MAX, now = now_us();
    for (size_t i = 0; i < job_count; i++) {
        struct job *j = jobs[i];
        if (j->give_up_at && j->give_up_at < at) at = j->give_up_at;
        if (j->reported && !j->ended && j->out[0].fd < 0 && j->out[1].fd < 0) at = now;
        if (j->ended && j->control < 0) at = now;
    }
    if (at == UINT64_MAX) return -1;
    return at <= now ? 0 : (int)((at - now) / 1000 > 60000 ? 60000 : (at - now) / 1000 + 1);
}

void jobs_close(void) {
    for (size_t i = 0; i < job_count; i++) { /* a closed control is the order to end everything */
        if (jobs[i]->op != EXEC && jobs[i]->control >= 0) kill(jobs[i]->pid, SIGTERM);
        shut(&jobs[i]->control);
        if (jobs[i]->draft) end_draft(jobs[i], -ECANCELED, "");
    }
    for (uint64_t until = now_us() + 5000000; now_us() < until; poll(NULL, 0, 1))
        if (waitpid(-1, NULL, WNOHANG) < 0) return; /* no child is left: they are reaped unasked */
    for (int i = 0; i < 1000 && kill_descendants(getpid(), NULL, 0); i++) poll(NULL, 0, 1);
}
