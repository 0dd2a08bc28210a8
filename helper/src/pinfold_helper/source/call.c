/* CALL: short operations, answered at once. */
#include "job.h"

static int call_read(unsigned root, const char *path, uint64_t offset, uint32_t length,
                     struct buffer *out) {
    struct stat st;
    if (length > MAX_CALL || offset > INT64_MAX) return -EINVAL;
    if (out->len > OVERFLOW / 2) return -EAGAIN; /* much is on its way: DOWNLOAD has credit */
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

void call(uint32_t id, struct reader *r) {
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
