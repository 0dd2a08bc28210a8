/* Bytes in and out. */
#include "helper.h"
#include <time.h>

void *allocate(size_t size) {
    void *data = malloc(size ? size : 1);
    if (!data) _exit(4); /* supervisors see us go, and end what they have */
    return data;
}

void reserve(struct buffer *b, size_t room) {
    if (b->cap - b->len >= room) return;
    size_t cap = b->cap ? b->cap : 4096;
    while (cap - b->len < room) cap *= 2;
    b->data = realloc(b->data, cap);
    if (!b->data) _exit(4);
    b->cap = cap;
}

void put(struct buffer *b, const void *data, size_t len) {
    reserve(b, len);
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
}

void drop_front(struct buffer *b, size_t len) {
    b->len -= len;
    if (b->len) memmove(b->data, b->data + len, b->len);
}

void give_back(struct buffer *b) {
    size_t enough = b->len > 32 << 10 ? 2 * b->len : 64 << 10;
    if (b->cap <= 2 * enough) return;
    b->data = realloc(b->data, enough);
    if (!b->data) _exit(4);
    b->cap = enough;
}

void store_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

void put_u8(struct buffer *b, uint8_t value) { put(b, &value, 1); }

void put_u32(struct buffer *b, uint32_t value) {
    uint8_t raw[4];
    store_u32(raw, value);
    put(b, raw, 4);
}

void put_u64(struct buffer *b, uint64_t value) {
    put_u32(b, (uint32_t)value);
    put_u32(b, (uint32_t)(value >> 32));
}

void put_str(struct buffer *b, const char *text) {
    size_t len = strlen(text) + 1;
    put_u32(b, (uint32_t)len);
    put(b, text, len);
}

const uint8_t *get(struct reader *r, size_t len) {
    if (r->bad || (size_t)(r->end - r->at) < len) {
        r->bad = true;
        return NULL;
    }
    const uint8_t *found = r->at;
    r->at += len;
    return found;
}

static uint64_t get_number(struct reader *r, size_t len) {
    const uint8_t *raw = get(r, len);
    uint64_t value = 0;
    for (size_t i = len; raw && i--;) value = value << 8 | raw[i];
    return value;
}

uint8_t get_u8(struct reader *r) { return (uint8_t)get_number(r, 1); }
uint16_t get_u16(struct reader *r) { return (uint16_t)get_number(r, 2); }
uint32_t get_u32(struct reader *r) { return (uint32_t)get_number(r, 4); }
uint64_t get_u64(struct reader *r) { return get_number(r, 8); }

const char *get_str(struct reader *r) {
    uint32_t len = get_u32(r);
    const uint8_t *raw = get(r, len);
    if (!raw || !len || memchr(raw, 0, len) != raw + len - 1) {
        r->bad = true;
        return "";
    }
    return (const char *)raw;
}

bool is_whole(const struct reader *r) { return !r->bad && r->at == r->end; }

bool write_all(int fd, const void *data, size_t len) {
    const uint8_t *at = data;
    while (len) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

bool read_all(int fd, void *data, size_t len) {
    uint8_t *at = data;
    while (len) {
        ssize_t n = read(fd, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void random_bytes(void *data, size_t len) {
    uint8_t *at = data;
    if (syscall(SYS_getrandom, data, len, 0) == (long)len) return;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool done = fd >= 0 && read_all(fd, data, len);
    if (fd >= 0) close(fd);
    if (done) return;
    for (size_t i = 0; i < len; i++) at[i] = (uint8_t)(now_us() >> i % 8 ^ (unsigned)getpid());
}

void random_name(char name[32]) {
    uint8_t raw[8];
    random_bytes(raw, sizeof raw);
    strcpy(name, ".pinfold-tmp-");
    for (int i = 0; i < 8; i++) {
        name[13 + 2 * i] = "0123456789abcdef"[raw[i] >> 4];
        name[14 + 2 * i] = "0123456789abcdef"[raw[i] & 15];
    }
    name[29] = 0;
}
