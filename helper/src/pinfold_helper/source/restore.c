/* A restore: everything is staged and checked, then a journal is carried out; docs/helper.md. */
#include "helper.h"
#include <time.h>

enum { DIRECTORY = 1, FILE_NEW, LINK, GONE, FILE_KEPT, DONE };
enum { MAX_JOURNAL = 1 << 30 };

static const char MAGIC[9] = "pfj\0\0\0\0\1";

struct action {
    uint8_t what;
    const char *path, *text;
    uint32_t mode;
    int64_t mtime;
    uint64_t size;
    const uint8_t *digest;
};

static bool get_action(struct reader *r, struct action *a) {
    *a = (struct action){.what = get_u8(r), .text = ""};
    if (a->what < DIRECTORY || a->what > DONE) r->bad = true;
    if (a->what == DONE) return !r->bad;
    a->path = get_str(r);
    if (a->what == LINK) a->text = get_str(r);
    if (a->what == DIRECTORY || a->what == FILE_NEW || a->what == FILE_KEPT) {
        a->mode = get_u32(r);
        a->mtime = (int64_t)get_u64(r);
    }
    if (a->what == FILE_NEW) {
        a->size = get_u64(r);
        a->digest = get(r, 32);
    }
    if (a->mode > 07777 || !*a->path || *a->path == '/') r->bad = true;
    return !r->bad;
}

static void staged_name(char name[16], uint32_t index) {
    for (int i = 8; i--; index >>= 4) name[i] = "0123456789abcdef"[index & 15];
    name[8] = 0;
}

/* The directory that holds a path; no link on the way counts. */
static int parent_of(int base, const char *path, const char **name) {
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (len >= sizeof parent) return -ENAMETOOLONG;
    memcpy(parent, path, len);
    parent[len] = 0;
    *name = slash ? slash + 1 : path;
    if (!**name || !strcmp(*name, ".") || !strcmp(*name, "..")) return -EINVAL;
    return open_straight(base, parent, O_PATH | O_DIRECTORY);
}

static int put_attributes(int dir, const char *name, mode_t mode, int64_t mtime) {
    struct timespec times[2] = {{0, UTIME_OMIT},
                                {(time_t)(mtime / 1000000000), (long)(mtime % 1000000000)}};
    if (times[1].tv_nsec < 0) times[1].tv_sec--, times[1].tv_nsec += 1000000000;
    int fd = open_straight(dir, name, O_PATH);
    if (fd < 0) return fd;
    struct stat st;
    int error = fstat(fd, &st) ? -errno : 0;
    /* The time first: a directory's mode may take the right to it away. Best effort: exotic times
     * that the file system can't hold are no reason to leave a tree half done. */
    if (!error) utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
    if (!error && (st.st_mode & 07777) != mode) error = set_mode(fd, mode);
    close(fd);
    return error;
}

static int make_directory(int dir, const char *name) {
    struct stat st;
    if (!mkdirat(dir, name, 0700)) return 0;
    if (errno != EEXIST) return -errno;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) return -errno;
    if (!S_ISDIR(st.st_mode))
        return unlinkat(dir, name, 0) || mkdirat(dir, name, 0700) ? -errno : 0;
    if ((st.st_mode & 0700) == 0700) return 0;
    int fd = open_straight(dir, name, O_PATH | O_DIRECTORY);
    if (fd < 0) return fd;
    int error = set_mode(fd, (st.st_mode & 07777) | 0700);
    close(fd);
    return error;
}

static int make_link(int dir, const char *name, const char *text) {
    char now[PATH_MAX + 1];
    ssize_t len = readlinkat(dir, name, now, PATH_MAX);
    if (len >= 0 && (size_t)len == strlen(text) && !memcmp(now, text, (size_t)len)) return 0;
    int error = remove_tree(dir, name);
    if (!error && symlinkat(text, dir, name)) error = -errno;
    return error;
}

/* Carries out one action; a second time it changes nothing. */
static int carry_out(int base, int staging, const struct action *a, uint32_t index) {
    const char *name;
    char staged[16];
    int error = 0, dir = parent_of(base, a->path, &name);
    if (dir == -ENOENT && a->what == GONE) return 0;
    if (dir < 0) return dir;
    switch (a->what) {
    case GONE: error = remove_tree(dir, name); break;
    case DIRECTORY: error = make_directory(dir, name); break;
    case LINK: error = make_link(dir, name, a->text); break;
    case FILE_KEPT: error = put_attributes(dir, name, a->mode, a->mtime); break;
    case FILE_NEW:
        staged_name(staged, index);
        if (renameat(staging, staged, dir, name)) {
            if (errno == EISDIR) error = remove_tree(dir, name);
            else if (errno != ENOENT) error = -errno; /* ENOENT: done the first time */
            if (!error && renameat(staging, staged, dir, name) && errno != ENOENT) error = -errno;
        }
        break;
    }
    close(dir);
    return error;
}

static int carry_out_all(struct worker *w, int base, int staging, const struct buffer *journal) {
    struct reader r = {journal->data + 8, journal->data + journal->len - 32, false};
    struct action a;
    struct buffer directories = {0};
    uint32_t index = 0;
    int error = 0;
    while (get_action(&r, &a) && a.what != DONE) {
        w->where = a.path;
        if (a.what == DIRECTORY) put(&directories, &a, sizeof a);
        if ((error = carry_out(base, staging, &a, index))) return error;
        index += a.what == FILE_NEW;
    }
    if (r.bad) return -EBADMSG;
    /* Directories get their own modes and times last, the inner ones first. */
    while (directories.len) {
        const char *name;
        directories.len -= sizeof a;
        memcpy(&a, directories.data + directories.len, sizeof a);
        w->where = a.path;
        int dir = parent_of(base, a.path, &name);
        if (dir < 0) return dir;
        error = put_attributes(dir, name, a.mode, a.mtime);
        close(dir);
        if (error) return error;
    }
    return 0;
}

static int stage(struct worker *w, int staging, const struct action *a, uint32_t index) {
    static uint8_t chunk[64 << 10];
    char name[16];
    struct sha256 hash;
    uint8_t digest[32];
    staged_name(name, index);
    w->where = a->path;
    int error = 0, fd = openat(staging, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    sha256_begin(&hash);
    for (uint64_t rest = a->size; rest && !error;) {
        size_t part = rest < sizeof chunk ? (size_t)rest : sizeof chunk;
        if (!read_all(w->in, chunk, part)) error = -ECANCELED;
        else if (!write_all(fd, chunk, part)) error = -errno;
        sha256_add(&hash, chunk, part);
        rest -= part;
    }
    sha256_end(&hash, digest);
    if (!error && memcmp(digest, a->digest, 32)) error = -EBADMSG;
    struct timespec times[2] = {{0, UTIME_OMIT},
                                {(time_t)(a->mtime / 1000000000), (long)(a->mtime % 1000000000)}};
    if (times[1].tv_nsec < 0) times[1].tv_sec--, times[1].tv_nsec += 1000000000;
    if (!error) futimens(fd, times);
    if (!error && fchmod(fd, a->mode)) error = -errno;
    if (close(fd) && !error) error = -errno;
    return error;
}

/* Reads one action, whose length is known only while it is read. */
static int read_action(struct worker *w, struct buffer *b, struct action *a) {
    static const uint8_t strings[] = {0, 1, 1, 2, 1, 1, 0}, fixed[] = {0, 12, 52, 0, 0, 12, 0};
    b->len = 0;
    reserve(b, 1);
    if (!read_all(w->in, b->data, 1)) return -ECANCELED;
    b->len = 1;
    uint8_t what = b->data[0];
    if (what < DIRECTORY || what > DONE) return -EINVAL;
    for (int i = 0; i <= strings[what]; i++) { /* the strings, then what follows them */
        size_t len = fixed[what];
        if (i < strings[what]) {
            uint8_t raw[4];
            if (!read_all(w->in, raw, 4)) return -ECANCELED;
            struct reader r = {raw, raw + 4, false};
            put(b, raw, 4);
            len = get_u32(&r);
            if (len > 2 * PATH_MAX) return -EINVAL;
        }
        reserve(b, len);
        if (!read_all(w->in, b->data + b->len, len)) return -ECANCELED;
        b->len += len;
    }
    struct reader r = {b->data, b->data + b->len, false};
    return get_action(&r, a) && is_whole(&r) ? 0 : -EINVAL;
}

static int stage_all(struct worker *w, int staging, struct buffer *journal, uint32_t *count) {
    struct buffer one = {0};
    struct sha256 hash;
    uint8_t digest[32];
    uint32_t index = 0;
    put(journal, MAGIC, 8);
    for (struct action a = {0}; a.what != DONE; (*count)++) {
        int error = read_action(w, &one, &a);
        if (!error && a.what == FILE_NEW) error = stage(w, staging, &a, index++);
        if (error) return error;
        if (journal->len + one.len > MAX_JOURNAL - 32) return -EFBIG; /* nobody would read it */
        put(journal, one.data, one.len);
    }
    *count -= 1;
    sha256_begin(&hash);
    sha256_add(&hash, journal->data, journal->len);
    sha256_end(&hash, digest);
    put(journal, digest, 32);
    w->where = "the journal";
    int fd = openat(staging, "draft", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return -errno;
    bool written = write_all(fd, journal->data, journal->len) && !fsync(fd);
    int error = written ? 0 : -errno;
    close(fd);
    if (!error && renameat(staging, "draft", staging, "journal")) error = -errno;
    return error;
}

int work_restore(struct worker *w, unsigned root, const char *path, const char *name) {
    struct buffer journal = {0};
    uint32_t count = 0;
    int base = open_at(root, path, O_RDONLY | O_DIRECTORY);
    if (base < 0) return base;
    if (!*name || strchr(name, '/')) return -EINVAL;
    if (mkdirat(base, name, 0700)) return -errno;
    int staging = open_straight(base, name, O_RDONLY | O_DIRECTORY);
    int error = staging < 0 ? staging : stage_all(w, staging, &journal, &count);
    if (error) {
        remove_tree(base, name);
        return error;
    }
    if ((error = carry_out_all(w, base, staging, &journal))) return error; /* to be recovered */
    put_u32(&w->result, count);
    w->where = name;
    return remove_tree(base, name);
}

static int read_journal(int staging, struct buffer *b) {
    struct stat st;
    struct sha256 hash;
    uint8_t digest[32];
    int fd = open_straight(staging, "journal", O_RDONLY | O_NONBLOCK);
    if (fd < 0) return fd;
    int error = fstat(fd, &st) ? -errno : 0;
    if (!error && (!S_ISREG(st.st_mode) || st.st_size < 40 || st.st_size > MAX_JOURNAL))
        error = -EBADMSG;
    if (!error) {
        reserve(b, (size_t)st.st_size);
        b->len = (size_t)st.st_size;
        if (!read_all(fd, b->data, b->len)) error = -EIO;
    }
    close(fd);
    if (error) return error;
    sha256_begin(&hash);
    sha256_add(&hash, b->data, b->len - 32);
    sha256_end(&hash, digest);
    return memcmp(b->data, MAGIC, 8) || memcmp(digest, b->data + b->len - 32, 32) ? -EBADMSG : 0;
}

int work_recover(struct worker *w, unsigned root, const char *path, const char *name) {
    struct buffer journal = {0};
    int base = open_at(root, path, O_RDONLY | O_DIRECTORY);
    if (base < 0) return base;
    if (!*name || strchr(name, '/')) return -EINVAL;
    int staging = open_straight(base, name, O_RDONLY | O_DIRECTORY);
    int error = staging < 0 ? staging : read_journal(staging, &journal);
    uint8_t found = staging == -ENOENT ? 0 : error ? 1 : 2;
    if (found == 2 && (error = carry_out_all(w, base, staging, &journal))) return error;
    put_u8(&w->result, found);
    return found ? remove_tree(base, name) : 0;
}
