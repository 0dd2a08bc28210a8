/* Whole trees: listed, scanned, read, removed. Each runs in a process of its own, with blocking
 * pipes, and returns 0 or -errno; w->where then says what it was about. */
#include "helper.h"
#include <time.h>

enum { HELD_BACK = 4 << 20, CHUNK = 256 << 10, DEEPEST = 64, LEASE_MS = 5000 };

struct listing { /* of a directory, without the 2 kB reads of readdir */
    int fd;
    long have, at;
    char data[32 << 10];
};

struct kernel_entry {
    uint64_t inode;
    int64_t next;
    unsigned short size;
    unsigned char type;
    char name[];
};

static const char *next_name(struct listing *l) {
    for (;;) {
        if (l->at >= l->have) {
            l->have = syscall(SYS_getdents64, l->fd, l->data, sizeof l->data);
            l->at = 0;
            if (l->have <= 0) return NULL;
        }
        struct kernel_entry *e = (void *)(l->data + l->at);
        l->at += e->size;
        if (strcmp(e->name, ".") && strcmp(e->name, "..")) return e->name;
    }
}

static int put_record(struct buffer *b, int dir, const char *name, const char *path,
                      struct stat *st) {
    char text[PATH_MAX + 1];
    ssize_t len = 0;
    if (fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW)) return -errno;
    if (S_ISLNK(st->st_mode) && (len = readlinkat(dir, name, text, PATH_MAX)) < 0) return -errno;
    text[len] = 0;
    put_facts(b, st);
    put_str(b, path);
    put_str(b, text);
    return 0;
}

int work_list(struct worker *w, unsigned root, const char *path) {
    struct listing *l = allocate(sizeof *l);
    struct buffer b = {0};
    *l = (struct listing){.fd = open_at(root, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK)};
    if (l->fd < 0) return l->fd;
    const char *name;
    while ((name = next_name(l))) {
        struct stat st;
        int error = put_record(&b, l->fd, name, name, &st);
        if (error == -ENOENT || error == -EINVAL) continue; /* gone, or another thing, meanwhile */
        if (error) return error;
        if (b.len > CHUNK) {
            if (!write_all(w->out, b.data, b.len)) return -errno;
            b.len = 0;
        }
    }
    if (l->have < 0) return -errno;
    return write_all(w->out, b.data, b.len) ? 0 : -errno;
}

struct queue { /* directories that are still to be read, the last one first */
    struct buffer text;
    struct buffer starts;
};

static void push(struct queue *q, const char *path) {
    uint64_t start = q->text.len;
    put(&q->text, path, strlen(path) + 1);
    put(&q->starts, &start, sizeof start);
}

static bool pop(struct queue *q, char *path, size_t size) {
    uint64_t start;
    if (!q->starts.len) return false;
    q->starts.len -= sizeof start;
    memcpy(&start, q->starts.data + q->starts.len, sizeof start);
    if (q->text.len - start > size) return false;
    memcpy(path, q->text.data + start, q->text.len - start);
    q->text.len = start;
    return true;
}

int work_scan(struct worker *w, unsigned root, const char *top, const char *leave,
              const uint8_t token[32]) {
    struct timespec begun;
    struct listing *l = allocate(sizeof *l);
    struct queue q = {0};
    struct buffer b = {0};
    struct sha256 hash;
    static char path[PATH_MAX], child[PATH_MAX + NAME_MAX + 2];
    bool sent = false;
    uint8_t now[32];
    clock_gettime(CLOCK_REALTIME, &begun);
    int base = open_at(root, top, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    if (base < 0) return base;
    sha256_begin(&hash);
    push(&q, "");
    size_t hashed = 0;
    while (pop(&q, path, sizeof path)) {
        size_t len = strlen(path);
        const char *name;
        w->where = path;
        *l = (struct listing){.fd = open_straight(base, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK)};
        if (l->fd == -ENOENT || l->fd == -ELOOP || l->fd == -ENOTDIR) continue; /* meanwhile */
        if (l->fd < 0) return l->fd;
        memcpy(child, path, len);
        if (len) child[len++] = '/';
        while ((name = next_name(l))) {
            struct stat st;
            if (*leave && !strncmp(name, leave, strlen(leave))) continue;
            if (strlen(name) > NAME_MAX) return -ENAMETOOLONG; /* FUSE has longer ones */
            strcpy(child + len, name);
            int error = put_record(&b, l->fd, name, child, &st);
            if (error == -ENOENT || error == -EINVAL) continue;
            if (error) return error;
            if (S_ISDIR(st.st_mode)) {
                if (strlen(child) >= sizeof path) return -ENAMETOOLONG;
                push(&q, child);
            }
            if (b.len < HELD_BACK && !(sent && b.len > CHUNK)) continue;
            sha256_add(&hash, b.data + hashed, b.len - hashed);
            if (!write_all(w->out, b.data, b.len)) return -errno;
            sent = true;
            b.len = hashed = 0;
        }
        if (l->have < 0) return -errno;
        close(l->fd);
        sha256_add(&hash, b.data + hashed, b.len - hashed);
        hashed = b.len;
    }
    sha256_end(&hash, now);
    bool same = !sent && !memcmp(now, token, 32);
    if (!same && !write_all(w->out, b.data, b.len)) return -errno;
    put_u8(&w->result, same);
    put(&w->result, now, 32);
    put_u64(&w->result, (uint64_t)(begun.tv_sec * 1000000000LL + begun.tv_nsec));
    return 0;
}

int next_str(struct worker *w, char **text) {
    static struct buffer in;
    static size_t used;
    for (;;) {
        if (in.len - used >= 4) {
            struct reader r = {in.data + used, in.data + in.len, false};
            uint32_t len = get_u32(&r);
            if (len > 2 * PATH_MAX) return -EINVAL;
            if (in.len - used >= 4 + len) {
                r.at = in.data + used;
                *text = (char *)(uintptr_t)get_str(&r);
                used += 4 + len;
                return r.bad ? -EINVAL : 1;
            }
        }
        drop_front(&in, used);
        used = 0;
        reserve(&in, 64 << 10);
        ssize_t n = read(w->in, in.data + in.len, 64 << 10);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        if (!n) return in.len ? -EINVAL : 0;
        in.len += (size_t)n;
    }
}

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_size == b->st_size && a->st_ino == b->st_ino &&
           !memcmp(&a->st_mtim, &b->st_mtim, sizeof a->st_mtim) &&
           !memcmp(&a->st_ctim, &b->st_ctim, sizeof a->st_ctim);
}

static int fetch_one(struct worker *w, int fd, bool contents, struct buffer *b) {
    struct stat before, after;
    struct sha256 hash;
    uint8_t digest[32];
    uint64_t size = 0;
    if (fstat(fd, &before)) return -errno;
    sha256_begin(&hash);
    for (;;) {
        reserve(b, 5 + CHUNK);
        uint8_t *head = b->data + b->len;
        ssize_t n = read(fd, head + 5, CHUNK);
        if (n < 0) return -errno;
        if (!n) break;
        sha256_add(&hash, head + 5, (size_t)n);
        size += (uint64_t)n;
        if (!contents) continue;
        head[0] = 0;
        store_u32(head + 1, (uint32_t)n);
        b->len += 5 + (size_t)n;
        if (b->len < CHUNK) continue;
        if (!write_all(w->out, b->data, b->len)) return -errno;
        b->len = 0;
    }
    sha256_end(&hash, digest);
    if (fstat(fd, &after)) return -errno;
    bool changed = !is_same(&before, &after) || size != (uint64_t)after.st_size;
    put_u8(b, 1);
    put_facts(b, &after);
    put(b, digest, 32);
    put_u8(b, changed);
    return 0;
}

/* Where a lease is held by another process it's asked to let go, and gets some time to do it. */
static int open_file(int base, const char *name) {
    for (int i = 0; i < LEASE_MS; i += 10, poll(NULL, 0, 10)) {
        int fd = open_own(base, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
        if (fd != -EAGAIN) return fd;
    }
    return -EBUSY;
}

/* There is no regular file of that name; any other error says nothing about that. */
static bool is_missing(int error) {
    return error == -ENOENT || error == -ENOTDIR || error == -ELOOP || error == -ENXIO ||
           error == -ENODEV;
}

int work_fetch(struct worker *w, unsigned root, const char *top, bool contents) {
    struct buffer b = {0};
    char *name;
    int more, base = open_at(root, top, O_PATH | O_DIRECTORY);
    if (base < 0) return base;
    while ((more = next_str(w, &name)) > 0) {
        struct stat st;
        int error = 0, fd = open_file(base, name);
        w->where = name;
        if (fd < 0 && !is_missing(fd)) return fd;
        if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode))) close(fd), fd = -ENXIO;
        if (fd < 0) put_u8(&b, 2);
        else error = fetch_one(w, fd, contents, &b), close(fd);
        if (error) return error;
        if (b.len >= CHUNK) {
            if (!write_all(w->out, b.data, b.len)) return -errno;
            b.len = 0;
        }
    }
    return more ? more : write_all(w->out, b.data, b.len) ? 0 : -errno;
}

/* Removes what a directory has; what lies too deep is moved up first, so that descriptors last. */
static int empty(int dir, int top, int depth) {
    struct listing *l = allocate(sizeof *l);
    bool moved = true;
    int error = 0;
    while (moved && !error) {
        const char *name;
        moved = false;
        *l = (struct listing){.fd = dir};
        lseek(dir, 0, SEEK_SET);
        while (!error && (name = next_name(l))) {
            if (!unlinkat(dir, name, 0) || errno == ENOENT) continue;
            if (errno != EISDIR && errno != EPERM) {
                error = -errno;
                break;
            }
            if (depth == DEEPEST) {
                char other[32];
                random_name(other);
                if (renameat(dir, name, top, other)) error = -errno;
                continue;
            }
            int child = open_own(dir, name, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
            if (child == -ENOENT || child == -ENOTDIR || child == -ELOOP) continue;
            if (child < 0) {
                error = child;
                break;
            }
            error = empty(child, top, depth + 1);
            close(child);
            if (!error && unlinkat(dir, name, AT_REMOVEDIR) && errno != ENOENT) {
                if (errno != ENOTEMPTY && errno != EEXIST) error = -errno;
            }
            moved = true; /* entries may have come; look again until a round finds none */
        }
    }
    free(l);
    return error;
}

int remove_tree(int dir, const char *name) {
    if (!unlinkat(dir, name, 0) || errno == ENOENT) return 0;
    int error = -errno;
    if (error != -EISDIR && error != -EPERM) return error;
    int fd = open_own(dir, name, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    if (fd == -ENOENT) return 0;
    if (fd < 0) return fd == -ENOTDIR || fd == -ELOOP ? error : fd;
    error = empty(fd, fd, 0);
    close(fd);
    if (!error && unlinkat(dir, name, AT_REMOVEDIR) && errno != ENOENT) error = -errno;
    return error == -EEXIST ? -ENOTEMPTY : error;
}

int work_remove(struct worker *w, unsigned root, const char *path) {
    struct place p;
    struct stat st;
    (void)w;
    int error = place_at(root, path, false, false, &p);
    if (error) return error;
    if (!p.name[0]) error = -EINVAL;
    else if (fstatat(p.dir, p.name, &st, AT_SYMLINK_NOFOLLOW)) error = -errno;
    else error = remove_tree(p.dir, p.name);
    place_close(&p);
    return error;
}
