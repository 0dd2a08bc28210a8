/* Names below the roots: opened in one step, or component by component; never checked first and
 * opened later. */
#include "helper.h"

struct open_how_1 { /* of linux/openat2.h, which older headers lack */
    uint64_t flags, mode, resolve;
};

enum { NO_MAGICLINKS = 2, NO_SYMLINKS = 4, BENEATH = 8, MAX_LINKS = 40, RETRIES = 32 };

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

struct root {
    int fd;
    char *path;
    size_t len;
};

static struct root roots[MAX_ROOTS];
static unsigned root_count;
bool have_openat2;

static int openat2(int dir, const char *path, int flags, uint64_t resolve) {
    struct open_how_1 how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = resolve};
    long fd = syscall(SYS_openat2, dir, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

void probe_openat2(void) {
    int fd = openat2(AT_FDCWD, ".", O_PATH | O_DIRECTORY, BENEATH | NO_MAGICLINKS);
    have_openat2 = fd >= 0;
    if (fd >= 0) close(fd);
}

int code_of(int error) {
    switch (error) {
    case 0: return 0;
    case ENOENT: return 1;
    case EISDIR: return 2;
    case ENOTDIR: return 3;
    case EEXIST: return 4;
    case EACCES: case EPERM: case EROFS: return 5;
    case EXDEV: return 6;
    case EFBIG: case E2BIG: return 7;
    case ENOSPC: case EDQUOT: return 8;
    case ENXIO: case ENODEV: return 9;
    case ENOTEMPTY: return 10;
    case EINVAL: case ENAMETOOLONG: case ELOOP: return 11;
    case EAGAIN: case ENOMEM: case EMFILE: case ENFILE: return 12;
    case EOWNERDEAD: return 14;
    case EBADMSG: return 15;
    default: return 13;
    }
}

void proc_name(int fd, char name[32]) {
    char digits[12];
    int n = 0, at = 14;
    strcpy(name, "/proc/self/fd/");
    for (int rest = fd; rest || !n; rest /= 10) digits[n++] = (char)('0' + rest % 10);
    while (n) name[at++] = digits[--n];
    name[at] = 0;
}

int add_root(const char *path) {
    char name[32], real[PATH_MAX + 1];
    if (path[0] != '/' || strlen(path) > PATH_MAX) return -EINVAL;
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -errno;
    proc_name(fd, name);
    ssize_t got = readlink(name, real, PATH_MAX); /* where it really is; without /proc, as given */
    if (got > 0) real[got] = 0;
    else strcpy(real, path);
    size_t len = strlen(real);
    while (len > 1 && real[len - 1] == '/') real[--len] = 0;
    for (unsigned i = 0; i < root_count; i++)
        if (!strcmp(roots[i].path, real)) return close(fd), (int)i;
    if (root_count == MAX_ROOTS) return close(fd), -EINVAL;
    char *copy = allocate(len + 1);
    strcpy(copy, real);
    roots[root_count] = (struct root){fd, copy, len};
    return (int)root_count++;
}

bool is_root(unsigned root) { return root < root_count; }
const char *root_path(unsigned root) { return roots[root].path; }

/* A path of the protocol: relative, without "." , ".." or empty components. 0, or what is wrong. */
static int check_path(const char *path) {
    if (strnlen(path, PATH_MAX) == PATH_MAX) return -ENAMETOOLONG;
    for (const char *at = path; *at;) {
        size_t len = strcspn(at, "/");
        if (!len || (len == 1 && at[0] == '.') || (len == 2 && at[0] == '.' && at[1] == '.'))
            return -EINVAL;
        at += len;
        if (*at == '/' && !*++at) return -EINVAL;
    }
    return 0;
}

int open_straight(int dir, const char *path, int flags) {
    int wrong = check_path(path);
    if (wrong) return wrong;
    if (!*path) path = ".";
    if (have_openat2) return openat2(dir, path, flags, BENEATH | NO_MAGICLINKS | NO_SYMLINKS);
    int at = dir;
    for (;;) {
        char name[NAME_MAX + 1];
        size_t len = strcspn(path, "/");
        bool last = !path[len];
        if (len > NAME_MAX) return at == dir ? -ENAMETOOLONG : (close(at), -ENAMETOOLONG);
        memcpy(name, path, len);
        name[len] = 0;
        int next = openat(at, name, (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC);
        int error = errno;
        struct stat st;
        if (next >= 0 && flags & O_PATH && last && !fstat(next, &st) && S_ISLNK(st.st_mode)) {
            close(next); /* O_PATH opens the link itself */
            next = -1, error = ELOOP;
        }
        if (at != dir) close(at);
        if (next < 0 || last) return next < 0 ? -error : next;
        at = next;
        path += len + 1;
    }
}

/* Whether an absolute path, as a link may have it, leads into a root by its text; which one, and
 * what remains of it. */
static bool leads_to_root(const char *path, unsigned *root, const char **rest) {
    size_t best = 0;
    for (unsigned i = 0; i < root_count; i++) {
        const char *at = path, *want = roots[i].path;
        while (*want) { /* component by component, since text may have "//" and "/./" */
            while (*at == '/' || (*at == '.' && (at[1] == '/' || !at[1]))) at++;
            while (*want == '/') want++;
            size_t len = strcspn(want, "/");
            if (strncmp(at, want, len) || (at[len] && at[len] != '/')) break;
            at += len;
            want += len;
        }
        if (*want || roots[i].len < best) continue;
        best = roots[i].len;
        *root = i;
        while (*at == '/') at++;
        *rest = at;
    }
    return best > 0;
}

struct walk { /* by hand: what was passed (no link in it), and what is still to come */
    unsigned root;
    int at;
    char done[PATH_MAX], todo[2 * PATH_MAX];
    int links;
    unsigned made; /* so many of the last in `done` are new */
};

static int walk_to(struct walk *w, unsigned root, const char *rest) {
    char copy[2 * PATH_MAX];
    if (strlen(rest) >= sizeof copy) return -ENAMETOOLONG;
    strcpy(copy, rest);
    strcpy(w->todo, copy);
    if (w->at >= 0) close(w->at);
    w->root = root;
    w->done[0] = 0;
    w->made = 0;
    w->at = fcntl(roots[root].fd, F_DUPFD_CLOEXEC, 3);
    return w->at < 0 ? -errno : 0;
}

static int walk_absolute(struct walk *w, const char *path) {
    unsigned root;
    const char *rest;
    return leads_to_root(path, &root, &rest) ? walk_to(w, root, rest) : -EXDEV;
}

static int walk_up(struct walk *w) {
    char *slash = strrchr(w->done, '/');
    if (!w->done[0]) { /* above the root: only its own name leads back */
        char path[3 * PATH_MAX];
        size_t len = (size_t)(strrchr(roots[w->root].path, '/') - roots[w->root].path);
        if (len >= PATH_MAX) return -ENAMETOOLONG;
        memcpy(path, roots[w->root].path, len);
        path[len] = '/';
        strcpy(path + len + 1, w->todo);
        return walk_absolute(w, path);
    }
    *(slash ? slash : w->done) = 0;
    w->made = 0;
    close(w->at);
    w->at = open_straight(roots[w->root].fd, w->done, O_PATH | O_DIRECTORY);
    return w->at < 0 ? w->at : 0;
}

static int walk_link(struct walk *w, int link) {
    char text[2 * PATH_MAX];
    ssize_t len = readlinkat(link, "", text, PATH_MAX);
    if (len < 0) return -errno;
    size_t rest = strlen(w->todo);
    if ((size_t)len + rest + 2 > sizeof text) return -ENAMETOOLONG;
    if (++w->links > MAX_LINKS) return -ELOOP;
    text[len] = '/';
    memcpy(text + len + 1, w->todo, rest + 1);
    if (text[0] == '/') return walk_absolute(w, text);
    strcpy(w->todo, text);
    return 0;
}

static int walk_down(struct walk *w, const char *name, int fd) {
    size_t have = strlen(w->done);
    if (have + strlen(name) + 2 > sizeof w->done) return -ENAMETOOLONG;
    if (have) w->done[have++] = '/';
    strcpy(w->done + have, name);
    close(w->at);
    w->at = fd;
    return 0;
}

/* Walks to the directory that holds the last component; -> where it is, with w->at as the dir. */
static int walk(struct walk *w, bool follow, bool make, char name[NAME_MAX + 1]) {
    for (;;) {
        char *at = w->todo + strspn(w->todo, "/");
        size_t len = strcspn(at, "/");
        if (len > NAME_MAX) return -ENAMETOOLONG;
        memcpy(name, at, len);
        name[len] = 0;
        at += len;
        bool last = !at[strspn(at, "/")];
        memmove(w->todo, at, strlen(at) + 1);
        if (!len) return 0; /* a root, or where a link ended in ".." */
        int error = 0;
        if (!strcmp(name, ".")) continue;
        if (!strcmp(name, "..")) {
            if ((error = walk_up(w))) return error;
            continue;
        }
        if (last && !follow) return 0;
        int fd = openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        bool fresh = false;
        if (fd < 0 && errno == ENOENT && make && !last && !w->links) {
            fresh = !mkdirat(w->at, name, 0755);
            if (!fresh && errno != EEXIST) return -errno;
            fd = openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        }
        if (fd < 0) return errno == ENOENT && last ? 0 : -errno;
        struct stat st;
        if (fstat(fd, &st)) error = -errno;
        else if (S_ISLNK(st.st_mode)) error = walk_link(w, fd);
        else if (last) return close(fd), 0;
        else if (!S_ISDIR(st.st_mode)) error = -ENOTDIR;
        else if (!(error = walk_down(w, name, fd))) {
            w->made = fresh ? w->made + 1 : 0;
            continue;
        }
        close(fd);
        if (error) return error;
    }
}

/* Removes the last directories of a path, as many as were made for it, but those in use by now. */
static void unmake(unsigned root, char *path, unsigned made) {
    while (made--) {
        char *slash = strrchr(path, '/');
        const char *name = slash ? slash + 1 : path, *parent = slash ? path : "";
        if (slash) *slash = 0;
        int fd = open_straight(roots[root].fd, parent, O_PATH | O_DIRECTORY);
        bool gone = fd >= 0 && !unlinkat(fd, name, AT_REMOVEDIR);
        if (fd >= 0) close(fd);
        if (!gone) return;
    }
}

void unmake_parents(unsigned root, const char *path, unsigned made) {
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!made || !slash || slash - path >= PATH_MAX) return;
    memcpy(parent, path, (size_t)(slash - path));
    parent[slash - path] = 0;
    unmake(root, parent, made);
}

static int slow_place(unsigned root, const char *path, bool follow, bool make, struct place *out) {
    static struct walk w; /* large; one at a time */
    w.at = -1;
    w.links = 0;
    int error = walk_to(&w, root, path);
    if (!error) error = walk(&w, follow, make, out->name);
    if (error) {
        if (w.at >= 0) close(w.at);
        unmake(w.root, w.done, w.made);
        return error;
    }
    out->dir = w.at;
    out->own = true;
    out->made = w.made;
    return 0;
}

int open_at(unsigned root, const char *path, int flags) {
    int wrong = is_root(root) ? check_path(path) : -EINVAL;
    if (wrong) return wrong;
    if (have_openat2) {
        const char *name = *path ? path : ".";
        int fd = openat2(roots[root].fd, name, flags, BENEATH | NO_MAGICLINKS);
        if (fd != -EXDEV && fd != -EAGAIN) return fd;
    }
    for (int i = 0; i < RETRIES; i++) {
        struct place p;
        int error = slow_place(root, path, true, false, &p);
        if (error) return error;
        const char *name = p.name[0] ? p.name : ".";
        int fd = openat(p.dir, name, flags | O_NOFOLLOW | O_CLOEXEC);
        error = fd < 0 ? -errno : 0;
        struct stat st;
        if (fd >= 0 && flags & O_PATH && !fstat(fd, &st) && S_ISLNK(st.st_mode)) {
            close(fd);
            error = -ELOOP;
        }
        place_close(&p);
        if (error == -EAGAIN) return -EBUSY; /* another process has a lease on it */
        /* A link was put there in between: judge that one. With O_DIRECTORY it is ENOTDIR. */
        if (error != -ELOOP && error != -ENOTDIR) return error ? error : fd;
        if (error == -ENOTDIR && i) return error;
    }
    return -ELOOP;
}

int place_at(unsigned root, const char *path, bool follow, bool make, struct place *out) {
    int wrong = is_root(root) ? check_path(path) : -EINVAL;
    if (wrong) return wrong;
    *out = (struct place){.dir = roots[root].fd};
    if (!*path) return 0;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strlen(name) > NAME_MAX) return -ENAMETOOLONG;
    if (slash && !have_openat2) return slow_place(root, path, follow, make, out);
    strcpy(out->name, name);
    if (slash) {
        char parent[PATH_MAX];
        size_t len = (size_t)(slash - path);
        if (len >= sizeof parent) return -ENAMETOOLONG;
        memcpy(parent, path, len);
        parent[len] = 0;
        int fd = open_at(root, parent, O_PATH | O_DIRECTORY);
        if (fd == -ENOENT && make) return slow_place(root, path, follow, make, out);
        if (fd < 0) return fd;
        out->dir = fd;
        out->own = true;
    }
    struct stat st;
    if (follow && !fstatat(out->dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode)) {
        place_close(out);
        return slow_place(root, path, follow, make, out);
    }
    return 0;
}

void place_close(struct place *place) {
    if (place->own) close(place->dir);
    place->own = false;
}

int set_mode(int fd, mode_t mode) {
    if (!fchmod(fd, mode)) return 0;
    if (errno != EBADF) return -errno; /* an O_PATH descriptor */
    char link[32];
    proc_name(fd, link);
    if (!chmod(link, mode)) return 0;
    if (errno != ENOENT) return -errno;
    /* No /proc. Not asked first: a filter may kill who asks for what is as new as this. */
    return syscall(SYS_fchmodat2, fd, "", mode, AT_EMPTY_PATH) ? -errno : 0;
}

int open_own(int dir, const char *path, int flags) {
    int fd = open_straight(dir, path, flags);
    if (fd != -EACCES) return fd;
    struct stat st;
    int handle = open_straight(dir, path, O_PATH);
    if (handle < 0) return handle;
    if (!fstat(handle, &st) && st.st_uid == geteuid() && !set_mode(handle, st.st_mode | 0700)) {
        fd = open_straight(dir, path, flags);
        if (S_ISREG(st.st_mode)) set_mode(handle, st.st_mode & 07777);
    }
    close(handle);
    return fd;
}
