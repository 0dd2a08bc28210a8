/* OPEN: the arguments of a long operation, and how it is begun. */
#include "job.h"

static char **get_strings(struct reader *r, uint32_t *count) {
    *count = get_u32(r);
    if (*count > MAX_FRAME / 5) r->bad = true; /* each takes five bytes at least */
    if (r->bad) *count = 0;
    char **list = allocate((*count + 1) * sizeof *list);
    for (uint32_t i = 0; i < *count; i++) list[i] = (char *)(uintptr_t)get_str(r);
    list[*count] = NULL;
    return list;
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

void open_job(uint32_t id, struct reader *r) {
    uint8_t op = get_u8(r);
    uint64_t credit = get_u64(r);
    unsigned root = get_u8(r);
    const char *path = get_str(r);
    struct start s = {.root = root, .cwd = path};
    struct task t = {.op = op, .root = root, .path = path, .name = ""};
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
    if (!is_whole(r) || find_job(id)) {
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
        shut_all(j);
        finish(j, -error, path);
    }
}
