/* Input and output of what is under way: never more than the other side has room for. */
#include "job.h"

static void grant(struct job *j, uint64_t taken) {
    j->taken += taken;
    if (j->taken < IN_CREDIT / 4) return;
    size_t start = frame(GRANT, j->id);
    put_u64(&session.out, j->taken);
    seal(start);
    j->taken = 0;
}

void pass_input(struct job *j) {
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

void end_draft(struct job *j, int error, const char *where) {
    finish(j, -draft_end(j->draft, error), where);
    free(j->draft);
    j->draft = NULL;
}

void input(struct job *j, const uint8_t *data, size_t len) {
    if (j->draft) {
        int error = draft_write(j->draft, data, len);
        j->out[0].total += len;
        grant(j, len);
        if (!error) return;
        end_draft(j, error, "write");
    } else if (j->in < 0) {
        grant(j, len);
    } else if (j->queue.len + len > IN_CREDIT) {
        break_off("no more input than was granted");
    } else {
        put(&j->queue, data, len);
        pass_input(j);
    }
}

void input_over(struct job *j) {
    j->input_over = true;
    if (!j->draft) {
        pass_input(j);
        return;
    }
    end_draft(j, 0, "rename");
    if (!j->result.data[0]) put_u64(&j->result, j->out[0].total);
}

void give_credit(struct job *j, struct reader *r) {
    unsigned stream = get_u8(r);
    uint64_t bytes = get_u64(r);
    if (!is_whole(r) || stream < 1 || stream > 2 || bytes > UINT64_MAX / 4)
        break_off("a CREDIT is well formed");
    else if (j && j->out[stream - 1].credit < UINT64_MAX / 4)
        j->out[stream - 1].credit += bytes;
}

bool wants_output(const struct output *o) {
    return o->fd >= 0 && (o->drops || (o->credit && !is_full()));
}

void pass_output(struct job *j, int index) {
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
