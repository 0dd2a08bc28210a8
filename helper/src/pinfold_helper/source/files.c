/* One name at a time. All return 0 or -errno. */
#include "helper.h"

/* Since the epoch, as i64: a file system's time may be one that this can't hold. */
static uint64_t nanoseconds(struct timespec t) {
    int64_t value;
    if (__builtin_mul_overflow(t.tv_sec, 1000000000, &value) ||
        __builtin_add_overflow(value, t.tv_nsec, &value))
        value = t.tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return (uint64_t)value;
}

void put_facts(struct buffer *b, const struct stat *st) {
    uint8_t type = S_ISREG(st->st_mode)   ? 1
                   : S_ISDIR(st->st_mode) ? 2
                   : S_ISLNK(st->st_mode) ? 3
                                          : 4;
    put_u8(b, type);
    put_u32(b, st->st_mode & 07777);
    put_u64(b, (uint64_t)st->st_size);
    put_u64(b, nanoseconds(st->st_mtim));
    put_u64(b, nanoseconds(st->st_ctim));
    put_u64(b, st->st_ino);
    put_u64(b, st->st_dev);
}

int do_stat(unsigned root, const char *path, struct buffer *out) {
    struct place p;
    struct stat st;
    char text[PATH_MAX + 1];
    int error = place_at(root, path, false, false, &p);
    if (error) return error;
    ssize_t len = 0;
    if (fstatat(p.dir, p.name, &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)) {
        error = -errno;
    } else if (S_ISLNK(st.st_mode)) {
        len = readlinkat(p.dir, p.name, text, PATH_MAX);
        if (len < 0) error = errno == EINVAL ? -EAGAIN : -errno; /* swapped in between */
    }
    place_close(&p);
    if (error) return error;
    text[len] = 0;
    put_facts(out, &st);
    put_str(out, text);
    return 0;
}

/* A regular file for reading; never a FIFO or a device. */
int do_open(unsigned root, const char *path, struct stat *st) {
    int fd = open_at(root, path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return fd;
    int error = fstat(fd, st)            ? -errno
                : S_ISDIR(st->st_mode)   ? -EISDIR
                : !S_ISREG(st->st_mode)  ? -ENXIO
                                         : 0;
    if (error) close(fd);
    return error ? error : fd;
}

int do_mkdir(unsigned root, const char *path, unsigned flags) {
    struct place p;
    int error = place_at(root, path, false, flags & 1, &p);
    if (error) return error;
    if (!p.name[0] || mkdirat(p.dir, p.name, 0755)) error = p.name[0] ? -errno : -EEXIST;
    place_close(&p);
    if (error && error != -EEXIST) unmake_parents(root, path, p.made);
    if (error == -EEXIST && flags & 2) { /* a directory, or a link to one that stays inside */
        int fd = open_at(root, path, O_PATH | O_DIRECTORY);
        if (fd >= 0) error = 0, close(fd);
        else if (fd == -EXDEV) error = fd;
    }
    return error;
}

int do_remove(unsigned root, const char *path) {
    struct place p;
    int error = place_at(root, path, false, false, &p);
    if (error) return error;
    if (!p.name[0]) {
        error = -EINVAL;
    } else if (unlinkat(p.dir, p.name, 0)) {
        error = -errno;
        if (error == -EISDIR || error == -EPERM) {
            int first = error;
            error = unlinkat(p.dir, p.name, AT_REMOVEDIR) ? -errno : 0;
            if (error == -ENOTDIR) error = first;
        }
    }
    place_close(&p);
    return error == -EEXIST ? -ENOTEMPTY : error;
}

int do_rename(unsigned root, const char *path, unsigned to_root, const char *to) {
    struct place a, b;
    int error = place_at(root, path, false, false, &a);
    if (error) return error;
    error = place_at(to_root, to, false, false, &b);
    if (!error) {
        if (!a.name[0] || !b.name[0]) error = -EINVAL;
        else if (renameat(a.dir, a.name, b.dir, b.name))
            error = errno == EEXIST ? -ENOTEMPTY : errno == EXDEV ? -EOPNOTSUPP : -errno;
        place_close(&b);
    }
    place_close(&a);
    return error;
}

int do_symlink(unsigned root, const char *path, const char *text) {
    struct place p;
    int error = place_at(root, path, false, false, &p);
    if (error) return error;
    if (!p.name[0]) error = -EEXIST;
    else if (symlinkat(text, p.dir, p.name)) error = -errno;
    place_close(&p);
    return error;
}

int do_chmod(unsigned root, const char *path, uint32_t mode) {
    if (mode > 07777) return -EINVAL;
    int fd = open_at(root, path, O_PATH);
    if (fd < 0) return fd;
    int error = set_mode(fd, mode);
    close(fd);
    return error;
}

static int draft_close(struct draft *d, int error) {
    place_close(&d->place);
    if (d->path && error) unmake_parents(d->root, d->path, d->place.made);
    free(d->path);
    return error;
}

int draft_begin(struct draft *d, unsigned root, const char *path, uint32_t mode) {
    bool keep = mode == UINT32_MAX;
    struct stat st;
    int error;
    if (!keep && mode > 07777) return -EINVAL;
    if ((error = place_at(root, path, true, true, &d->place))) return error;
    d->root = root;
    d->path = NULL;
    if (d->place.made) d->path = strcpy(allocate(strlen(path) + 1), path);
    if (!d->place.name[0]) error = -EISDIR;
    else if (!fstatat(d->place.dir, d->place.name, &st, AT_SYMLINK_NOFOLLOW)) {
        if (S_ISDIR(st.st_mode)) error = -EISDIR;
        else if (S_ISLNK(st.st_mode)) error = -EAGAIN; /* swapped in between */
        else if (!S_ISREG(st.st_mode)) error = -ENXIO;
        else if (faccessat(d->place.dir, d->place.name, W_OK, 0)) error = -errno;
        if (keep) mode = st.st_mode & 07777;
    } else if (errno != ENOENT) {
        error = -errno;
    } else if (keep) {
        mode = 0644;
    }
    if (!error) {
        do {
            random_name(d->name);
            d->fd = openat(d->place.dir, d->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        } while (d->fd < 0 && errno == EEXIST);
        if (d->fd < 0) error = -errno;
        else if (fchmod(d->fd, mode)) return draft_end(d, -errno);
    }
    return error ? draft_close(d, error) : 0;
}

int draft_write(struct draft *d, const void *data, size_t len) {
    return write_all(d->fd, data, len) ? 0 : -errno;
}

/* Puts the file into its place, or with an error removes what there is of it. */
int draft_end(struct draft *d, int error) {
    if (close(d->fd) && !error) error = -errno;
    if (!error && renameat(d->place.dir, d->name, d->place.dir, d->place.name)) error = -errno;
    if (error) unlinkat(d->place.dir, d->name, 0);
    return draft_close(d, error);
}
