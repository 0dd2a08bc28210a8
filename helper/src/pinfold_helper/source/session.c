/* Frames and jobs. A job is an OPEN that has not had its END, or a command whose background
 * processes still live. */
#include "helper.h"
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { /* frames */
    CALL = 1, OPEN, DATA, END_OF_INPUT, CREDIT, SIGNAL, KILL, RESIZE, ACK, BYE, DETACH,
    REPLY = 17, OUT, GRANT, END, ACKED
};
enum { /* operations */
    ROOT = 1, STAT, READ, WRITE, MKDIR, REMOVE, RENAME, SYMLINK, CHMOD, PING, JOBS,
    EXEC = 32, LIST, SCAN, FETCH, DOWNLOAD, UPLOAD, REMOVE_TREE, RESTORE, RECOVER
};
enum { BACKUP_MS = 6000 }; /* after which a supervisor that does not report is done for */

struct output {
    int fd;
    uint64_t credit, total;
    int64_t rest; /* bytes that still count; -1: until its end */
    bool drops;   /* beyond the credit: counted and dropped */
};

struct job {
    uint32_t id;
    uint8_t op;
    bool ended; /* END was sent; the command's background processes go on */
    bool terminal;
    pid_t pid;
    int control;
    int in;
    struct buffer queue; /* input that waits to be taken */
    bool input_over;
    uint64_t taken;      /* input not granted again yet */
    struct output out[2];
    bool reported, all_gone;
    struct buffer result; /* code and what follows, of END */
    struct report report;
    uint64_t counts[COUNTERS], give_up_at; /* when it began; 0: never */
    struct draft *draft;
    int polled[4]; /* where control, in and out stand in what is polled, or -1 */
};

struct session session;
static struct job *jobs[MAX_JOBS];
static size_t job_count;
static struct { bool waiting; uint32_t id; uint64_t until; } jobs_call;

/* --- frames out -------------------------------------------------------------------------- */

static size_t frame(uint8_t type, uint32_t id) {
    size_t start = session.out.len;
    put_u32(&session.out, 0);
    put_u8(&session.out, type);
    put_u32(&session.out, id);
    return start;
}

static void seal(size_t start) {
    store_u32(session.out.data + start, (uint32_t)(session.out.len - start - 4));
}

static void put_error(struct buffer *b, int error, const char *where) {
    put_u8(b, (uint8_t)code_of(error));
    put_u32(b, (uint32_t)error);
    put_str(b, where);
}

static bool is_full(void) { return session.out.len >= WINDOW; }

static void break_off(const char *rule) {
    (void)rule; /* for the reader of this code, and of a debugger */
    session.ended = true;
    session.status = 3;
}

/* --- jobs -------------------------------------------------------------------------------- */

static struct job *find(uint32_t id) {
    for (size_t i = 0; i < job_count; i++)
        if (jobs[i]->id == id && !jobs[i]->ended) return jobs[i];
    return NULL;
}

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static struct job *add_job(uint32_t id, uint8_t op, uint64_t credit) {
    struct job *j = allocate(sizeof *j);
    *j = (struct job){.id = id, .op = op, .control = -1, .in = -1};
    j->out[0] = (struct output){.fd = -1, .credit = credit, .rest = -1};
    j->out[1] = (struct output){.fd = -1, .rest = -1};
    jobs[job_count++] = j;
    return j;
}

static void remove_job(size_t index) {
    struct job *j = jobs[index];
    shut(&j->control);
    shut(&j->in);
    shut(&j->out[0].fd);
    shut(&j->out[1].fd);
    if (j->draft) draft_end(j->draft, -ECANCELED), free(j->draft);
    free(j->queue.data);
    free(j->result.data);
    free(j);
    jobs[index] = jobs[--job_count];
}

static void finish(struct job *j, int error, const char *where) {
    j->result.len = 0;
    if (error) put_error(&j->result, error, where);
    else put_u8(&j->result, 0);
    j->reported = true;
}

static void give_up_within(struct job *j, uint64_t ms) {
    uint64_t at = now_us() + ms * 1000;
    if (!j->give_up_at || at < j->give_up_at) j->give_up_at = at;
}

static void order(struct job *j, char what, uint32_t value) {
    struct order o = {.what = what, .value = value};
    if (j->control >= 0) send(j->control, &o, sizeof o, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* --- starting commands and workers ------------------------------------------------------- */

static int pipes(int made[3][2], bool input) {
    for (int i = 0; i < 3; i++) made[i][0] = made[i][1] = -1;
    for (int i = input ? 0 : 1; i < 3; i++)
        if (pipe2(made[i], O_CLOEXEC)) return -errno;
    return 0;
}

static void shut_all(int made[3][2], int side) {
    for (int i = 0; i < 3; i++) shut(&made[i][side]);
}

static void set_nonblocking(int fd) {
    if (fd >= 0) fcntl(fd, F_SETFL, O_NONBLOCK); /* a pipe has no other flag */
}

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
    if (slave < 0 || j->out[0].fd < 0) return -errno;
    for (int i = 0; i < 3; i++)
        if ((stdio[i] = fcntl(slave, F_DUPFD_CLOEXEC, 3)) < 0) return -errno;
    close(slave);
    return 0;
}

struct start { /* the arguments of EXEC */
    unsigned root;
    const char *cwd;
    uint8_t flags;
    uint64_t credit, timeout_ms;
    uint32_t grace_ms;
    uint16_t rows, columns;
    char **argv, **env;
};

static char **get_strings(struct reader *r, uint32_t *count) {
    *count = get_u32(r);
    if (*count > MAX_FRAME / 5) r->bad = true; /* each takes five bytes at least */
    if (r->bad) *count = 0;
    char **list = allocate((*count + 1) * sizeof *list);
    for (uint32_t i = 0; i < *count; i++) list[i] = (char *)(uintptr_t)get_str(r);
    list[*count] = NULL;
    return list;
}

static int start_command(struct job *j, const struct start *s) {
    int made[3][2], control[2] = {-1, -1}, error;
    struct command c = {.argv = s->argv, .env = s->env, .cwd = -1, .drain = {-1, -1},
                        .terminal = s->flags & 1, .timeout_ms = s->timeout_ms,
                        .grace_ms = s->grace_ms, .files = session.files};
    c.cwd = open_at(s->root, s->cwd, O_PATH | O_DIRECTORY);
    if (c.cwd < 0) return c.cwd;
    for (int i = 0; i < 3; i++) made[i][0] = made[i][1] = -1;
    int stdio[3] = {-1, -1, -1};
    j->terminal = c.terminal;
    if (c.terminal) {
        error = open_terminal(j, stdio, s->rows, s->columns);
    } else if (!(error = pipes(made, true))) {
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

typedef struct { /* the arguments of all workers */
    uint8_t op;
    unsigned root;
    const char *path, *name;
    const uint8_t *token;
    bool contents;
} task;

static _Noreturn void work(const task *t, int in, int out, int control) {
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

static int start_worker(struct job *j, const task *t) {
    bool input = t->op == FETCH || t->op == RESTORE;
    int made[3][2], control[2] = {-1, -1};
    int error = pipes(made, input);
    shut(&made[2][0]);
    shut(&made[2][1]);
    if (!error && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control)) error = -errno;
    if (!error) {
        j->in = made[0][1], j->out[0].fd = made[1][0], j->control = control[0];
        set_nonblocking(j->in);
        set_nonblocking(j->out[0].fd);
        fcntl(j->out[0].fd, F_SETPIPE_SZ, MAX_OUT); /* best effort */
        pid_t helper = getpid();
        j->pid = fork();
        if (!j->pid) {
            /* Not to go on beside the next helper, which finishes what this one has begun. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != helper) _exit(5);
            signal(SIGTERM, stop_work);
            signal(SIGPIPE, stop_work);
            forget_connections();
            for (size_t i = 0; i < job_count; i++) { /* nor other jobs' pipes: they'd never end */
                shut(&jobs[i]->control);
                shut(&jobs[i]->in);
                shut(&jobs[i]->out[0].fd);
                shut(&jobs[i]->out[1].fd);
            }
            work(t, made[0][0], made[1][1], control[1]);
        }
        if (j->pid < 0) error = -errno;
    } else {
        shut_all(made, 1);
        shut_all(made, 0);
        shut(&control[0]);
    }
    shut(&made[0][0]);
    shut(&made[1][1]);
    shut(&control[1]);
    return error;
}

static int start_upload(struct job *j, unsigned root, const char *path, uint32_t mode) {
    struct draft *d = allocate(sizeof *d);
    int error = draft_begin(d, root, path, mode);
    if (error) free(d);
    else j->draft = d;
    return error;
}

static int start_download(struct job *j, unsigned root, const char *path, uint64_t offset,
                          uint64_t length) {
    struct stat st;
    int fd = do_open(root, path, &st);
    if (fd < 0) return fd;
    if (offset > INT64_MAX || lseek(fd, (off_t)offset, SEEK_SET) < 0) {
        close(fd);
        return -EINVAL;
    }
    j->out[0].fd = fd;
    j->out[0].rest = length > INT64_MAX ? INT64_MAX : (int64_t)length;
    finish(j, 0, path);
    return 0;
}

static void open_job(uint32_t id, struct reader *r) {
    uint8_t op = get_u8(r);
    uint64_t credit = get_u64(r);
    unsigned root = get_u8(r);
    const char *path = get_str(r);
    struct start s = {.root = root, .cwd = path};
    task t = {.op = op, .root = root, .path = path, .name = ""};
    uint64_t offset = 0, length = 0;
    uint32_t mode = 0, argc = 0, envc = 0;
    char **extra = NULL;
    if (op == EXEC) {
        s.flags = get_u8(r), s.credit = get_u64(r), s.timeout_ms = get_u64(r);
        s.grace_ms = get_u32(r), s.rows = get_u16(r), s.columns = get_u16(r);
        s.argv = get_strings(r, &argc);
        extra = get_strings(r, &envc);
        if (!argc || s.timeout_ms > UINT64_MAX / 4000) r->bad = true;
    } else if (op == SCAN) {
        t.name = get_str(r), t.token = get(r, 32);
    } else if (op == FETCH) {
        t.contents = get_u8(r);
    } else if (op == DOWNLOAD) {
        offset = get_u64(r), length = get_u64(r);
    } else if (op == UPLOAD) {
        mode = get_u32(r);
    } else if (op == RESTORE || op == RECOVER) {
        t.name = get_str(r);
    } else if (op != LIST && op != REMOVE_TREE) {
        r->bad = true;
    }
    if (!is_whole(r) || find(id)) {
        free(s.argv);
        free(extra);
        break_off("an OPEN is well formed, and its id free");
        return;
    }
    if (job_count == MAX_JOBS) {
        size_t start = frame(END, id);
        put_error(&session.out, EAGAIN, "too many operations at once");
        seal(start);
        return;
    }
    struct job *j = add_job(id, op, credit);
    int error;
    if (op == EXEC) {
        j->out[0].drops = s.flags & 2, j->out[1].drops = s.flags & 4;
        j->out[1].credit = s.credit;
        s.env = merged_env(session.env, extra, envc);
        error = start_command(j, &s);
        free(s.env);
    } else if (op == UPLOAD) {
        error = start_upload(j, root, path, mode);
    } else if (op == DOWNLOAD) {
        error = start_download(j, root, path, offset, length);
    } else {
        error = start_worker(j, &t);
    }
    free(s.argv);
    free(extra);
    if (error) {
        shut(&j->control);
        shut(&j->in);
        shut(&j->out[0].fd);
        shut(&j->out[1].fd);
        finish(j, -error, path);
    }
}

/* --- calls ------------------------------------------------------------------------------- */

static int call_read(unsigned root, const char *path, uint64_t offset, uint32_t length,
                     struct buffer *out) {
    struct stat st;
    if (length > MAX_CALL || offset > INT64_MAX) return -EINVAL;
    int fd = do_open(root, path, &st);
    if (fd < 0) return fd;
    size_t start = out->len;
    put_u64(out, (uint64_t)st.st_size);
    int error = 0;
    while (length) {
        uint64_t left = (uint64_t)st.st_size > offset ? (uint64_t)st.st_size - offset : 0;
        size_t room = left < length ? left + 1 : length; /* one more: the end is seen, too */
        reserve(out, room);
        ssize_t n = pread(fd, out->data + out->len, room, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) error = -errno;
        if (n <= 0) break;
        out->len += (size_t)n, offset += (uint64_t)n, length -= (uint32_t)n;
    }
    close(fd);
    if (error) out->len = start;
    return error;
}

static int call_write(unsigned root, const char *path, uint32_t mode, const uint8_t *data,
                      size_t len) {
    struct draft d;
    int error = draft_begin(&d, root, path, mode);
    return error ? error : draft_end(&d, draft_write(&d, data, len));
}

uint32_t count_commands(void) {
    uint32_t count = 0;
    for (size_t i = 0; i < job_count; i++) count += jobs[i]->op == EXEC;
    return count;
}

static void call_jobs(uint32_t id, bool end) {
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

static void call(uint32_t id, struct reader *r) {
    uint8_t op = get_u8(r);
    const char *path = "", *other = "";
    unsigned root = 0, to = 0;
    uint64_t offset = 0;
    uint32_t number = 0, len = 0;
    const uint8_t *data = NULL;
    if (op == ROOT) path = get_str(r);
    else if (op >= STAT && op <= CHMOD) root = get_u8(r), path = get_str(r);
    if (op == READ) offset = get_u64(r), number = get_u32(r);
    if (op == WRITE) {
        number = get_u32(r), len = (uint32_t)(r->end - r->at), data = get(r, len);
        if (len > MAX_CALL) r->bad = true;
    }
    if (op == MKDIR || op == JOBS) number = get_u8(r);
    if (op == RENAME) to = get_u8(r), other = get_str(r);
    if (op == SYMLINK) other = get_str(r);
    if (op == CHMOD) number = get_u32(r);
    if (op < ROOT || op > JOBS || !is_whole(r)) {
        break_off("a CALL is well formed");
        return;
    }
    if (op == JOBS) {
        call_jobs(id, number == 1);
        return;
    }
    size_t start = frame(REPLY, id);
    size_t body = session.out.len;
    put_u8(&session.out, 0);
    int error = 0;
    switch (op) {
    case ROOT:
        error = add_root(path);
        if (error < 0) break;
        put_u8(&session.out, (uint8_t)error);
        put_str(&session.out, root_path((unsigned)error));
        error = 0;
        break;
    case STAT: error = do_stat(root, path, &session.out); break;
    case READ: error = call_read(root, path, offset, number, &session.out); break;
    case WRITE: error = call_write(root, path, number, data, len); break;
    case MKDIR: error = do_mkdir(root, path, number); break;
    case REMOVE: error = do_remove(root, path); break;
    case RENAME: error = do_rename(root, path, to, other); break;
    case SYMLINK: error = do_symlink(root, path, other); break;
    case CHMOD: error = do_chmod(root, path, number); break;
    }
    if (error) {
        session.out.len = body;
        put_error(&session.out, -error, path);
    }
    seal(start);
}

/* --- input ------------------------------------------------------------------------------- */

static void grant(struct job *j, uint64_t taken) {
    j->taken += taken;
    if (j->taken < IN_CREDIT / 4) return;
    size_t start = frame(GRANT, j->id);
    put_u64(&session.out, j->taken);
    seal(start);
    j->taken = 0;
}

static void pass_input(struct job *j) {
    while (j->in >= 0 && j->queue.len) {
        ssize_t n = write(j->in, j->queue.data, j->queue.len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) { /* nobody reads it: it is taken and dropped */
            shut(&j->in);
            n = (ssize_t)j->queue.len;
        }
        drop_front(&j->queue, (size_t)n);
        grant(j, (uint64_t)n);
    }
    if (j->in >= 0 && j->input_over && !j->queue.len) shut(&j->in);
}

static void input(struct job *j, const uint8_t *data, size_t len) {
    if (j->draft) {
        int error = draft_write(j->draft, data, len);
        j->out[0].total += len;
        grant(j, len);
        if (!error) return;
        finish(j, -draft_end(j->draft, error), "write");
        free(j->draft);
        j->draft = NULL;
    } else if (j->in < 0) {
        grant(j, len);
    } else if (j->queue.len + len > IN_CREDIT) {
        break_off("no more input than was granted");
    } else {
        put(&j->queue, data, len);
        pass_input(j);
    }
}

static void input_over(struct job *j) {
    j->input_over = true;
    if (!j->draft) {
        pass_input(j);
        return;
    }
    finish(j, -draft_end(j->draft, 0), "rename");
    free(j->draft);
    j->draft = NULL;
    if (!j->result.data[0]) put_u64(&j->result, j->out[0].total);
}

static void kill_job(struct job *j, uint32_t grace_ms) {
    if (j->op == EXEC) {
        order(j, 'k', grace_ms);
        give_up_within(j, grace_ms + (uint64_t)BACKUP_MS);
        return;
    }
    shut(&j->out[0].fd);
    if (j->draft) {
        finish(j, -draft_end(j->draft, -ECANCELED), "killed");
        free(j->draft);
        j->draft = NULL;
    } else if (j->op != DOWNLOAD && j->control >= 0) {
        kill(j->pid, SIGTERM);
    }
}

static void give_credit(struct job *j, struct reader *r) {
    unsigned stream = get_u8(r);
    uint64_t bytes = get_u64(r);
    if (!is_whole(r) || stream < 1 || stream > 2 || bytes > UINT64_MAX / 4)
        break_off("a CREDIT is well formed");
    else if (j && j->out[stream - 1].credit < UINT64_MAX / 4)
        j->out[stream - 1].credit += bytes;
}

static void acknowledged(struct reader *r) {
    uint64_t received = get_u64(r);
    if (!is_whole(r) || received < session.base || received > session.base + session.sent) {
        break_off("only what was sent is acknowledged");
        return;
    }
    size_t done = (size_t)(received - session.base);
    /* Moving the rest down is dear: only when more is gained than moved, or room is needed. */
    if (done < session.out.len - done && !(is_full() && done >= WINDOW / 8)) return;
    drop_front(&session.out, done);
    session.base += done;
    session.sent -= done;
}

static void carry_out(uint8_t type, uint32_t id, struct reader *r) {
    struct job *j = type > OPEN && type < ACK ? find(id) : NULL;
    uint32_t number = 0;
    switch (type) {
    case CALL: call(id, r); return;
    case OPEN: open_job(id, r); return;
    case DATA:
        if (j && !j->input_over) input(j, r->at, (size_t)(r->end - r->at));
        return;
    case CREDIT: give_credit(j, r); return;
    case ACK: acknowledged(r); return;
    case END_OF_INPUT: break;
    case SIGNAL: number = get_u8(r); break;
    case KILL: number = get_u32(r); break;
    case RESIZE: number = get_u16(r), number |= (uint32_t)get_u16(r) << 16; break;
    case BYE: session.ended = true; break;
    case DETACH: session.detached = true; break;
    default: r->bad = true;
    }
    if (!is_whole(r)) {
        break_off("a frame is well formed");
        return;
    }
    if (!j) return;
    if (type == END_OF_INPUT && !j->input_over) input_over(j);
    if (type == SIGNAL && j->op == EXEC && number && number < 65) order(j, 's', number);
    if (type == KILL) kill_job(j, number);
    if (type == RESIZE && j->op == EXEC && j->in >= 0) {
        struct winsize size = {.ws_row = (uint16_t)number, .ws_col = (uint16_t)(number >> 16)};
        ioctl(j->in, TIOCSWINSZ, &size);
    }
}

void session_frames(void) {
    size_t used = 0;
    while (!session.ended && session.in.len - used >= 4) {
        struct reader r = {session.in.data + used, session.in.data + session.in.len, false};
        uint32_t len = get_u32(&r);
        if (len < 5 || len > MAX_FRAME) {
            break_off("a frame has 5 bytes to 2 MiB");
            break;
        }
        if (session.in.len - used - 4 < len) {
            reserve(&session.in, 4 + len - (session.in.len - used));
            break;
        }
        r.end = r.at + len;
        uint8_t type = get_u8(&r);
        uint32_t id = get_u32(&r);
        carry_out(type, id, &r);
        used += 4 + len;
        if (session.out.len > OVERFLOW) break_off("replies are taken");
    }
    if (used) drop_front(&session.in, used);
    if (session.received - session.acked >= ACK_EVERY) {
        size_t start = frame(ACKED, 0);
        put_u64(&session.out, session.received);
        seal(start);
        session.acked = session.received;
    }
}

bool session_resume(uint64_t received) {
    if (received < session.base || received > session.base + session.out.len) return false;
    session.sent = (size_t)(received - session.base);
    return true;
}

/* --- output ------------------------------------------------------------------------------ */

static bool wants_output(const struct output *o) {
    return o->fd >= 0 && (o->drops || (o->credit && !is_full()));
}

static void pass_output(struct job *j, int index) {
    struct output *o = &j->out[index];
    static uint8_t waste[64 << 10];
    for (int turn = 0; turn < 16 && wants_output(o); turn++) {
        size_t room = o->credit ? MAX_OUT : sizeof waste, start = session.out.len;
        uint8_t *at = waste;
        if (!o->rest) {
            shut(&o->fd);
            return;
        }
        if (o->rest > 0 && room > (uint64_t)o->rest) room = (size_t)o->rest;
        if (o->credit) {
            if (is_full()) return;
            if (room > o->credit) room = (size_t)o->credit;
            frame(OUT, j->id);
            put_u8(&session.out, (uint8_t)(index + 1));
            reserve(&session.out, room);
            at = session.out.data + session.out.len;
        }
        ssize_t n = read(o->fd, at, room);
        if (n <= 0) session.out.len = start;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) { /* its end; EIO is that of a terminal */
            if (n < 0 && j->op == DOWNLOAD) finish(j, errno, "read");
            shut(&o->fd);
            return;
        }
        o->total += (uint64_t)n;
        if (o->rest > 0) o->rest -= n;
        if (!o->credit) continue;
        o->credit -= (uint64_t)n;
        session.out.len += (size_t)n;
        seal(start);
        if (j->op != DOWNLOAD && n < (ssize_t)room) return;
    }
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

static void hear_supervisor(struct job *j) {
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

static void hear_worker(struct job *j) {
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

/* --- the loop's part --------------------------------------------------------------------- */

/* Only what is open: the kernel refuses to poll for more than it lets us have open. */
size_t session_poll(struct pollfd *fds) {
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

static void kill_strays(void) {
    pid_t spared[MAX_JOBS];
    size_t count = 0;
    for (size_t i = 0; i < job_count; i++)
        if (jobs[i]->control >= 0) spared[count++] = jobs[i]->pid;
    for (int round = 0; round < 200; round++) {
        if (!have_proc || !kill_descendants(getpid(), spared, count)) return;
        poll(NULL, 0, 1);
    }
}

void session_step(const struct pollfd *fds) {
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

int session_timeout(void) {
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

void session_close(void) {
    for (size_t i = 0; i < job_count; i++) { /* a closed control is the order to end everything */
        if (jobs[i]->op != EXEC && jobs[i]->control >= 0) kill(jobs[i]->pid, SIGTERM);
        shut(&jobs[i]->control);
        if (jobs[i]->draft) draft_end(jobs[i]->draft, -ECANCELED);
    }
    for (uint64_t until = now_us() + 5000000; now_us() < until; poll(NULL, 0, 1))
        if (waitpid(-1, NULL, WNOHANG) < 0) return; /* no child is left: they are reaped unasked */
    for (int i = 0; i < 1000 && kill_descendants(getpid(), NULL, 0); i++) poll(NULL, 0, 1);
}
