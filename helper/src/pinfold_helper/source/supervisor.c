/* One command and its supervisor: a child of the helper that adopts all orphans of the command, so
 * that it can end every process of the command's tree, whatever session or group they made. */
#include "helper.h"
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { HARD_LIMIT_US = 4000000 }; /* after the first KILL: then what is left is said to be left */

static const struct command *command;
static volatile int start_error; /* set by the child while it shares our memory */

/* By the helper; not by commands. Who ignores the end of children has no zombies. */
static const int ignored[] = {SIGPIPE, SIGHUP, SIGINT, SIGCHLD};

static bool is_name(const char *entry, const char *name) {
    size_t len = strlen(name);
    return !strncmp(entry, name, len) && entry[len] == '=';
}

/* What the shell that started the helper, or pinfold, left in its environment. */
static bool is_ours(const char *entry) {
    return !strncmp(entry, "PINFOLD_", 8) || is_name(entry, "_") || is_name(entry, "SHLVL") ||
           is_name(entry, "PWD") || is_name(entry, "OLDPWD");
}

/* The helper's own environment and what the request adds, which wins. */
char **merged_env(char *const *base, char *const *extra, size_t extra_count) {
    size_t have = 0, used = 0;
    while (base[have]) have++;
    char **env = allocate((have + extra_count + 1) * sizeof *env);
    for (size_t i = 0; i < have; i++) {
        size_t len = strcspn(base[i], "=") + 1;
        bool replaced = is_ours(base[i]);
        for (size_t k = 0; k < extra_count && !replaced; k++)
            replaced = !strncmp(base[i], extra[k], len);
        if (!replaced) env[used++] = base[i];
    }
    for (size_t k = 0; k < extra_count; k++) env[used++] = extra[k];
    env[used] = NULL;
    return env;
}

static void run_script(const char *path) { /* no "#!": by the shell, as execvp does (POSIX) */
    size_t count = 0;
    while (command->argv[count]) count++;
    const char **argv = allocate((count + 2) * sizeof *argv);
    argv[0] = "/bin/sh";
    argv[1] = path;
    for (size_t i = 1; i <= count; i++) argv[i + 1] = command->argv[i];
    execve("/bin/sh", (char *const *)(uintptr_t)argv, command->env);
}

static int run(const char *path) {
    execve(path, command->argv, command->env);
    if (errno == ENOEXEC) run_script(path);
    return errno;
}

static int search(void) {
    const char *name = command->argv[0], *path = "/usr/local/bin:/usr/bin:/bin";
    int error = ENOENT;
    if (strchr(name, '/') || !*name) return *name ? run(name) : ENOENT;
    for (char *const *e = command->env; *e; e++)
        if (is_name(*e, "PATH")) path = *e + 5;
    while (*path || path[-1] == ':') {
        char full[PATH_MAX];
        size_t len = strcspn(path, ":");
        if (len + strlen(name) + 2 <= sizeof full) {
            memcpy(full, path, len);
            if (len) full[len++] = '/';
            strcpy(full + len, name);
            int now = run(full);
            if (now != ENOENT && now != ENOTDIR) error = now;
            if (now != ENOENT && now != ENOTDIR && now != EACCES) return error;
        }
        path += strcspn(path, ":");
        if (!*path++) break;
    }
    return error;
}

static void complain(int error) {
    const char *why = error == ENOENT || error == ENOTDIR ? "not found"
                      : error == EACCES || error == EPERM ? "permission denied"
                      : error == ENOEXEC                  ? "not a program"
                                                          : "can't be run";
    const char *parts[] = {"pinfold: ", command->argv[0], ": ", why, "\n"};
    for (size_t i = 0; i < 5; i++) write_all(2, parts[i], strlen(parts[i]));
}

static const uint64_t zeros[8]; /* the kernel's own struct: SIG_DFL; and an empty mask */

/* Whoever started us may have had signals ignored or blocked, as a shell does for its jobs in the
 * background. Not by the C library, which keeps some of them to itself. */
void set_signals(void) {
    for (int n = 1; n <= 64; n++) syscall(SYS_rt_sigaction, n, zeros, NULL, 8);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, zeros, NULL, 8);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++) signal(ignored[i], SIG_IGN);
}

static void command_signals(void) { /* what is handled the exec itself puts back */
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        syscall(SYS_rt_sigaction, ignored[i], zeros, NULL, 8);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, zeros, NULL, 8);
}

static int child(void *unused) {
    (void)unused;
    setsid();
    if (command->terminal) ioctl(command->stdio[0], TIOCSCTTY, 0);
    for (int i = 0; i < 3; i++) /* none of them is below 3 */
        if (dup2(command->stdio[i], i) < 0) start_error = errno;
    if (fchdir(command->cwd)) start_error = errno;
    if (start_error) _exit(125);
    setrlimit(RLIMIT_NOFILE, &command->files);
    command_signals();
    int error = search();
    if (error == E2BIG || error == ENOMEM || error == EAGAIN) {
        start_error = error;
        _exit(125);
    }
    complain(error);
    _exit(error == ENOENT || error == ENOTDIR ? 127 : 126);
}

static void nothing(int number) { (void)number; }

struct supervisor {
    int control;
    pid_t leader;
    bool ended, reported, released, timed_out, alone; /* alone: no child is left */
    int status;
    uint64_t begun, deadline, kill_at, give_up_at; /* µs; 0: none */
};

static void tell(struct supervisor *s) {
    struct report r = {.timed_out = s->timed_out, .background = !s->alone, .error = start_error,
                       .us = now_us() - s->begun};
    r.signalled = WIFSIGNALED(s->status);
    r.value = (uint8_t)(r.signalled ? WTERMSIG(s->status) : WEXITSTATUS(s->status));
    while (send(s->control, &r, sizeof r, MSG_NOSIGNAL) < 0 && errno == EINTR) {}
    s->reported = true;
}

static void reap(struct supervisor *s) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != s->leader) continue;
        s->ended = true;
        s->status = status;
    }
    s->alone = pid < 0 && errno == ECHILD;
}

/* Once the leader is reaped its number is the group's only while a child of ours is in it. */
static bool has_group(const struct supervisor *s) {
    siginfo_t child;
    return !s->ended || !waitid(P_PGID, (id_t)s->leader, &child, WEXITED | WNOHANG | WNOWAIT);
}

static void end_tree(struct supervisor *s, uint32_t grace_ms) {
    if (grace_ms && !s->kill_at) {
        if (have_proc) signal_descendants(getpid(), SIGTERM, NULL, 0);
        else if (has_group(s)) kill(-s->leader, SIGTERM), kill(-s->leader, SIGCONT);
    }
    uint64_t at = now_us() + grace_ms * (uint64_t)1000;
    if (!s->kill_at || at < s->kill_at) s->kill_at = at;
    if (!s->give_up_at || s->kill_at + HARD_LIMIT_US < s->give_up_at)
        s->give_up_at = s->kill_at + HARD_LIMIT_US;
}

static void kill_tree(struct supervisor *s) {
    if (has_group(s)) kill(-s->leader, SIGKILL);
    if (have_proc) kill_descendants(getpid(), NULL, 0);
}

static void obey(struct supervisor *s) {
    struct order o;
    ssize_t n = recv(s->control, &o, sizeof o, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n != sizeof o) { /* the helper is gone, or has no more use for us */
        close(s->control);
        s->control = -1;
        end_tree(s, 0);
    } else if (o.what == 's' && !s->ended) {
        kill(-s->leader, (int)o.value);
    } else if (o.what == 'k') {
        end_tree(s, o.value);
    } else if (o.what == 'r') {
        s->released = true;
    }
}

static void empty_pipe(int *fd) {
    char waste[16 << 10];
    ssize_t n = read(*fd, waste, sizeof waste);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
    close(*fd);
    *fd = -1;
}

static int wait_ms(const struct supervisor *s) {
    uint64_t now = now_us(), at = UINT64_MAX;
    if (s->kill_at) at = now >= s->kill_at ? now + 1000 : s->kill_at;
    else if (s->deadline && !s->ended) at = s->deadline;
    if (at == UINT64_MAX) return -1;
    uint64_t ms = at <= now ? 0 : (at - now + 999) / 1000;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Keeps the few descriptors that it needs: what others read would never end. */
static void keep_only(const struct command *c, int control) {
    const int kept[] = {c->cwd,      c->stdio[0], c->stdio[1], c->stdio[2],
                        c->drain[0], c->drain[1], control};
    for (int from = 3, next; from < INT_MAX; from = next + 1) {
        next = INT_MAX;
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            if (kept[i] >= from && kept[i] < next) next = kept[i];
        close_between(from, next);
        if (next == INT_MAX) return;
    }
}

static void let_go(struct command *c, int first, int end) { /* of the command's own */
    for (; first < end; first++) {
        if (c->stdio[first] >= 0) close(c->stdio[first]);
        c->stdio[first] = -1;
    }
}

_Noreturn void supervise(const struct command *given, int control) {
    static char stack[256 << 10] __attribute__((aligned(16)));
    struct command mine = *given;
    struct supervisor s = {.begun = now_us(), .control = control};
    struct sigaction action = {.sa_handler = nothing};
    sigset_t child_ended, none;
    sigemptyset(&none);
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    sigprocmask(SIG_SETMASK, &child_ended, NULL);
    sigaction(SIGCHLD, &action, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    keep_only(&mine, control);
    command = &mine;
    s.leader = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    if (s.leader < 0) {
        start_error = errno;
        s.alone = true;
        tell(&s);
        _exit(0);
    }
    /* Of a pipe's output end: not before the report, with which the helper looks what is in it, and
     * for whose sake alone it is woken then. */
    let_go(&mine, 0, mine.terminal ? 3 : 1);
    if (mine.timeout_ms) s.deadline = s.begun + mine.timeout_ms * 1000;
    for (;;) {
        reap(&s);
        uint64_t now = now_us();
        bool ending = s.kill_at, over = s.ended && (!ending || s.alone || now >= s.give_up_at);
        if (s.alone && s.ended) { /* said again if background jobs had gone on */
            tell(&s);
            _exit(0);
        }
        if (over && !s.reported) {
            tell(&s);
            let_go(&mine, 1, 3);
        }
        if (s.deadline && !s.ended && !s.timed_out && now >= s.deadline) {
            s.timed_out = true;
            end_tree(&s, mine.grace_ms);
        }
        if (s.kill_at && now >= s.kill_at) {
            if (s.control < 0 && now >= s.give_up_at) _exit(0);
            kill_tree(&s);
        }
        struct pollfd fds[3] = {{s.control, POLLIN, 0},
                                {s.released ? mine.drain[0] : -1, POLLIN, 0},
                                {s.released ? mine.drain[1] : -1, POLLIN, 0}};
        int ms = wait_ms(&s);
        struct timespec limit = {ms / 1000, ms % 1000 * 1000000L};
        if (ppoll(fds, 3, ms < 0 ? NULL : &limit, &none) <= 0) continue;
        if (fds[0].revents) obey(&s);
        for (int i = 0; i < 2; i++)
            if (fds[1 + i].revents) empty_pipe(&mine.drain[i]);
    }
}
