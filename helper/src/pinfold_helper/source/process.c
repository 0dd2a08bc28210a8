/* Who descends from whom; what the control group counts. */
#include "helper.h"

bool have_proc;

struct process {
    pid_t pid, parent, session;
    char state;
    uid_t uid;
    uint64_t ticks;
};

static pid_t number(const char *text) {
    long value = 0;
    for (; *text >= '0' && *text <= '9' && value < 1 << 28; text++)
        value = value * 10 + *text - '0';
    return *text ? -1 : (pid_t)value;
}

static int open_of(const char *pid, const char *what) {
    char path[64];
    if (strlen(pid) + strlen(what) + 8 > sizeof path) return -1;
    strcpy(path, "/proc/");
    strcat(strcat(strcat(path, pid), "/"), what);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static bool look_at(const char *name, struct process *p) {
    char text[1024];
    struct stat st;
    int fd = open_of(name, "stat");
    if (fd < 0) return false;
    ssize_t len = read(fd, text, sizeof text - 1);
    bool known = !fstat(fd, &st);
    close(fd);
    if (len <= 0 || !known) return false;
    text[len] = 0;
    char *at = strrchr(text, ')'); /* a command's name may hold anything */
    if (!at || at[1] != ' ') return false;
    p->pid = number(name);
    p->uid = st.st_uid;
    p->state = at[2];
    p->parent = (pid_t)strtol(at + 3, &at, 10);
    strtol(at, &at, 10); /* the group */
    p->session = (pid_t)strtol(at, &at, 10);
    for (int field = 7; field <= 22; field++) p->ticks = strtoull(at, &at, 10);
    return p->pid > 0;
}

static struct process *look_at_all(size_t *count) {
    struct buffer found = {0};
    DIR *proc = opendir("/proc");
    struct dirent *e;
    while (proc && (e = readdir(proc))) {
        struct process p;
        if (e->d_name[0] >= '0' && e->d_name[0] <= '9' && look_at(e->d_name, &p))
            put(&found, &p, sizeof p);
    }
    if (proc) closedir(proc);
    *count = found.len / sizeof(struct process);
    return (struct process *)(void *)found.data;
}

static bool is_spared(pid_t pid, const pid_t *spared, size_t count) {
    while (count--)
        if (spared[count] == pid) return true;
    return false;
}

int signal_descendants(pid_t top, int signal_number, const pid_t *spared, size_t spared_count) {
    size_t count;
    int found = 0;
    struct process *all = look_at_all(&count);
    bool *below = allocate(count + 1);
    memset(below, 0, count + 1);
    for (bool grown = true; grown;) {
        grown = false;
        for (size_t i = 0; i < count; i++) {
            if (below[i] || is_spared(all[i].pid, spared, spared_count)) continue;
            bool under = all[i].parent == top;
            for (size_t k = 0; !under && k < count; k++)
                under = below[k] && all[k].pid == all[i].parent;
            if (under) below[i] = grown = true;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (!below[i] || all[i].state == 'Z') continue;
        if (signal_number == SIGSTOP && all[i].state == 'T') continue;
        found++;
        kill(all[i].pid, signal_number);
        if (signal_number == SIGTERM) kill(all[i].pid, SIGCONT);
    }
    free(below);
    free(all);
    return found;
}

bool kill_descendants(pid_t top, const pid_t *spared, size_t spared_count) {
    for (int round = 0, before = 0; round < 100; round++) {
        int found = signal_descendants(top, SIGSTOP, spared, spared_count);
        if (!found) break;
        if (found == before) poll(NULL, 0, 1); /* to stop they need a turn, which we'd take */
        before = found;
    }
    return signal_descendants(top, SIGKILL, spared, spared_count) > 0;
}

uint64_t start_ticks(pid_t pid) {
    char name[16];
    struct process p;
    int at = 15;
    name[at] = 0;
    for (; pid; pid /= 10) name[--at] = (char)('0' + pid % 10);
    return look_at(name + at, &p) ? p.ticks : 0;
}

static bool has_mark(pid_t pid, const char *mark) {
    char name[16];
    int at = 15;
    name[at] = 0;
    for (; pid; pid /= 10) name[--at] = (char)('0' + pid % 10);
    int fd = open_of(name + at, "environ");
    if (fd < 0) return false;
    struct buffer text = {0};
    ssize_t n;
    do {
        reserve(&text, 4096);
        n = read(fd, text.data + text.len, 4096);
        if (n > 0) text.len += (size_t)n;
    } while (n > 0);
    close(fd);
    put_u8(&text, 0);
    bool found = false;
    for (size_t i = 0; i < text.len && !found; i += strlen((char *)text.data + i) + 1)
        found = !strncmp((char *)text.data + i, mark, strlen(mark));
    free(text.data);
    return found;
}

bool purge(uint64_t ticks, const char *mark) {
    pid_t above[64];
    size_t depth = 0, count;
    int calm = 0;
    bool ever = false;
    for (int round = 0; round < 500 && calm < 2; round++) {
        struct process *all = look_at_all(&count);
        bool any = false;
        if (!depth) { /* ourselves, and those who wait for us */
            pid_t at = getpid();
            while (at > 0 && depth < 64) {
                above[depth++] = at;
                pid_t next = 0;
                for (size_t i = 0; i < count; i++)
                    if (all[i].pid == at) next = all[i].parent;
                at = next;
            }
        }
        pid_t init = 0; /* its session: whom it has started, and needs; nobody else can get in */
        for (size_t i = 0; i < count; i++)
            if (all[i].pid == 1) init = all[i].session;
        for (size_t i = 0; i < count; i++) {
            struct process *p = &all[i];
            if (p->pid == 1 || p->state == 'Z' || is_spared(p->pid, above, depth)) continue;
            bool ours = ticks && p->ticks > ticks && p->session != init;
            if (!ours && !has_mark(p->pid, mark)) continue;
            any |= !kill(p->pid, SIGKILL);
        }
        free(all);
        ever |= any;
        calm = any ? 0 : calm + 1; /* twice: one that forked and ended hid its child */
        if (any) poll(NULL, 0, 2);
    }
    return ever;
}

/* --- the control group's own counters --------------------------------------------------------- */

struct counter {
    int fd;
    const char *v1, *v1_file, *v2_file, *key; /* controller, files, and the line that counts */
};

static struct counter counters[COUNTERS] = {
    [MEMORY_KILLS] = {-1, "memory", "/memory.oom_control", "/memory.events", "oom_kill "},
    [FORKS_REFUSED] = {-1, "pids", "/pids.events", "/pids.events", "max "},
};

static bool try_counter(struct counter *c, bool v1, const char *group, size_t len) {
    char path[PATH_MAX] = "/sys/fs/cgroup";
    if (len + 64 >= sizeof path) return false;
    if (v1) strcat(strcat(path, "/"), c->v1);
    strncat(path, group, len);
    strcat(path, v1 ? c->v1_file : c->v2_file);
    c->fd = open(path, O_RDONLY | O_CLOEXEC);
    return c->fd >= 0;
}

/* A line is NUMBER:CONTROLLERS:PATH. A container may see its own group as the root of the mount. */
static void find_counter(struct counter *c, const char *line, size_t len) {
    const char *end = line + len, *names = memchr(line, ':', len);
    const char *path = names ? memchr(names + 1, ':', (size_t)(end - names - 1)) : NULL;
    if (!path || c->fd >= 0) return;
    size_t size = strlen(c->v1);
    bool v2 = path == names + 1, v1 = false;
    for (const char *at = names + 1; at < path && !v1; at += strcspn(at, ",:") + 1)
        v1 = !strncmp(at, c->v1, size) && (at[size] == ',' || at[size] == ':');
    if (!v1 && !v2) return;
    if (!try_counter(c, v1, path + 1, (size_t)(end - path - 1))) try_counter(c, v1, "", 0);
}

bool find_counters(void) {
    char text[4096];
    int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[got > 0 ? got : 0] = 0;
    for (char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        for (int i = 0; i < COUNTERS; i++) find_counter(&counters[i], line, len);
        line += len + (line[len] == '\n');
    }
    return counters[MEMORY_KILLS].fd >= 0;
}

uint64_t count(int which) {
    struct counter *c = &counters[which];
    char text[1024];
    ssize_t len = c->fd < 0 ? 0 : pread(c->fd, text, sizeof text - 1, 0);
    if (len <= 0) return 0;
    text[len] = 0;
    char *found = strstr(text, c->key);
    while (found && found != text && found[-1] != '\n') found = strstr(found + 1, c->key);
    return found ? strtoull(found + strlen(c->key), NULL, 10) : 0;
}
