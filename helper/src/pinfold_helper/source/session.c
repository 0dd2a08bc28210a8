/* The session: the stream of frames in both directions, which outlives any one connection. */
#include "job.h"
#include <sys/ioctl.h>

struct session session;

size_t frame(uint8_t type, uint32_t id) {
    size_t start = session.out.len;
    put_u32(&session.out, 0);
    put_u8(&session.out, type);
    put_u32(&session.out, id);
    return start;
}

void seal(size_t start) {
    store_u32(session.out.data + start, (uint32_t)(session.out.len - start - 4));
}

void put_error(struct buffer *b, int error, const char *where) {
    put_u8(b, (uint8_t)code_of(error));
    put_u32(b, (uint32_t)error);
    size_t len = strnlen(where, PATH_MAX); /* an END has to fit what its worker can say at once */
    put_u32(b, (uint32_t)len + 1);
    put(b, where, len);
    put_u8(b, 0);
}

bool is_full(void) { return session.out.len >= WINDOW; }

void break_off(const char *rule) {
    (void)rule; /* for the reader of this code, and of a debugger */
    session.ended = true;
    session.status = 3;
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
    struct job *j = type > OPEN && type < ACK ? find_job(id) : NULL;
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
