/* The resident helper: what its parts share. The protocol is described in docs/helper.md. */
#ifndef HELPER_H
#define HELPER_H

#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    PROTOCOL_VERSION = 1,
    MAX_FRAME = 2 << 20,      /* bytes of one frame after its length */
    MAX_CALL = 1 << 20,       /* bytes that one READ or WRITE carries */
    MAX_OUT = 256 << 10,      /* bytes that one OUT carries */
    IN_CREDIT = 1 << 20,      /* input that may be sent unasked */
    ACK_EVERY = 256 << 10,    /* received bytes after which an ACK is due */
    WINDOW = 4 << 20,         /* unacknowledged output at which commands have to wait */
    OVERFLOW = 64 << 20,      /* unacknowledged output at which the session is given up */
    GRACE_MS = 30000,         /* how long the helper waits for a new connection */
    MAX_ROOTS = 64,
    MAX_JOBS = 4096,
};

/* --- wire.c: bytes in and out ------------------------------------------------------------ */

struct buffer {
    uint8_t *data;
    size_t len, cap;
};

void put(struct buffer *b, const void *data, size_t len);
void put_u8(struct buffer *b, uint8_t value);
void put_u32(struct buffer *b, uint32_t value);
void put_u64(struct buffer *b, uint64_t value);
void put_str(struct buffer *b, const char *text);
void reserve(struct buffer *b, size_t room);
void drop_front(struct buffer *b, size_t len);
void give_back(struct buffer *b); /* what it has kept of a large transfer */
void store_u32(uint8_t *at, uint32_t value);
void *allocate(size_t size);

/* A strict reader: the first thing that is not as it should be sets `bad`, and all that follows
 * reads as nothing. */
struct reader {
    const uint8_t *at, *end;
    bool bad;
};

const uint8_t *get(struct reader *r, size_t len);
uint8_t get_u8(struct reader *r);
uint16_t get_u16(struct reader *r);
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
const char *get_str(struct reader *r); /* NUL-terminated, in place */
bool is_whole(const struct reader *r); /* nothing bad, nothing left over */

bool write_all(int fd, const void *data, size_t len);
bool read_all(int fd, void *data, size_t len);
uint64_t now_us(void);
void random_bytes(void *data, size_t len);
void random_name(char name[32]);

/* --- sha256.c ---------------------------------------------------------------------------- */

struct sha256 {
    uint32_t state[8];
    uint64_t total;
    uint8_t block[64];
};

void sha256_begin(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *data, size_t len);
void sha256_end(struct sha256 *h, uint8_t digest[32]);

/* --- path.c: names below the roots. Everything returns 0 or a descriptor, or -errno ------ */

/* Where a name lies: the directory that holds it, and its last component, "" for a root. */
struct place {
    int dir;
    bool own; /* dir is to be closed */
    char name[NAME_MAX + 1];
    unsigned made; /* how many directories were made on the way, each in the one before */
};

extern bool have_openat2;

void probe_openat2(void);
int add_root(const char *path);
bool is_root(unsigned root);
const char *root_path(unsigned root);
void proc_name(int fd, char name[32]);
int open_at(unsigned root, const char *path, int flags);
int place_at(unsigned root, const char *path, bool follow, bool make, struct place *out);
void place_close(struct place *place);
void unmake_parents(unsigned root, const char *path, unsigned made); /* what was made for a path */
int open_straight(int dir, const char *path, int flags); /* follows no link at all */
int open_own(int dir, const char *path, int flags);      /* likewise; lifts the owner's own ban */
int set_mode(int fd, mode_t mode);                       /* also of an O_PATH descriptor */
int code_of(int error);

/* --- files.c: one name at a time --------------------------------------------------------- */

struct draft { /* a file that is being written, under a name of its own until it is complete */
    struct place place;
    char name[32];
    int fd;
    unsigned root;
    char *path; /* where its parents were made for it */
};

void put_facts(struct buffer *b, const struct stat *st);
int do_stat(unsigned root, const char *path, struct buffer *out);
int do_open(unsigned root, const char *path, struct stat *st);
int do_mkdir(unsigned root, const char *path, unsigned flags);
int do_remove(unsigned root, const char *path);
int do_rename(unsigned root, const char *path, unsigned to_root, const char *to);
int do_symlink(unsigned root, const char *path, const char *text);
int do_chmod(unsigned root, const char *path, uint32_t mode);
int draft_begin(struct draft *d, unsigned root, const char *path, uint32_t mode);
int draft_write(struct draft *d, const void *data, size_t len);
int draft_end(struct draft *d, int error);

/* --- tree.c, restore.c: long operations, run in a process of their own ------------------- */

struct worker {
    int in, out;           /* pipes, blocking */
    struct buffer result;  /* of END, after its code */
    const char *where;     /* what an error is about */
};

int work_list(struct worker *w, unsigned root, const char *path);
int work_scan(struct worker *w, unsigned root, const char *path, const char *leave,
              const uint8_t token[32]);
int work_fetch(struct worker *w, unsigned root, const char *path, bool contents);
int work_remove(struct worker *w, unsigned root, const char *path);
int work_restore(struct worker *w, unsigned root, const char *path, const char *staging);
int work_recover(struct worker *w, unsigned root, const char *path, const char *staging);
int remove_tree(int dir, const char *name);
int next_str(struct worker *w, char **text); /* 1: one was read, 0: end of input */

/* --- process.c: who descends from whom --------------------------------------------------- */

extern bool have_proc;

/* Signals every descendant of `top`, none below `spared`. Returns how many there were; for SIGSTOP
 * those that had not stopped yet. */
int signal_descendants(pid_t top, int number, const pid_t *spared, size_t spared_count);
/* Stops them first, until none is left to fork, then kills them; true if there were any. */
bool kill_descendants(pid_t top, const pid_t *spared, size_t spared_count);
/* Ends what earlier helpers left: the processes whose environment has `mark`, and where `ticks` is
 * not 0 all that began after it, but those in the session of process 1. True if there were any. */
bool purge(uint64_t ticks, const char *mark);
uint64_t start_ticks(pid_t pid);
enum { MEMORY_KILLS, FORKS_REFUSED, COUNTERS };
bool find_counters(void); /* true: memory kills can be told */
uint64_t count(int which);

/* --- supervisor.c: the process that watches over one command ----------------------------- */

struct command {
    char *const *argv;
    char *const *env;
    int cwd;
    int stdio[3];       /* for the command */
    int drain[2];       /* reading ends, to be emptied once the helper has let go of them; or -1 */
    bool terminal;
    uint64_t timeout_ms;
    uint32_t grace_ms;
    struct rlimit files; /* the limit as it was before the helper raised its own */
};

struct report { /* a supervisor to the helper: when the command ends, and when all of it has */
    uint8_t signalled, value, timed_out, background;
    int32_t error; /* the command could not be started: errno */
    uint64_t us;
};

struct order { /* the helper to a supervisor */
    char what; /* 's'ignal, 'k'ill, 'r'eleased */
    uint32_t value;
};

_Noreturn void supervise(const struct command *command, int control);
void set_signals(void); /* the helper's own; commands have every one at its default */
char **merged_env(char *const *base, char *const *extra, size_t extra_count);

/* --- session.c: the stream of frames ----------------------------------------------------- */

enum { /* frames */
    CALL = 1, OPEN, DATA, END_OF_INPUT, CREDIT, SIGNAL, KILL, RESIZE, ACK, BYE, DETACH,
    REPLY = 17, OUT, GRANT, END, ACKED
};
enum { /* operations */
    ROOT = 1, STAT, READ, WRITE, MKDIR, REMOVE, RENAME, SYMLINK, CHMOD, PING, JOBS,
    EXEC = 32, LIST, SCAN, FETCH, DOWNLOAD, UPLOAD, REMOVE_TREE, RESTORE, RECOVER
};

struct session {
    uint64_t received;   /* of the controller's stream */
    uint64_t acked;      /* the last ACK that we sent */
    uint64_t base;       /* offset of out.data[0] in our stream */
    size_t sent;         /* of out, to the present connection */
    struct buffer in, out;
    bool ended;          /* BYE, or a broken rule */
    bool detached;       /* nobody will come back: it stays as long as there are jobs */
    int status;          /* to exit with */
    char *const *env;
    struct rlimit files;
};

extern struct session session;

void session_frames(void);               /* carries out all whole frames of session.in */
bool session_resume(uint64_t received);  /* goes on from what the other side has */
size_t frame(uint8_t type, uint32_t id); /* begins one that goes out; where it begins */
void seal(size_t start);                 /* ends it */
void put_error(struct buffer *b, int error, const char *where);
bool is_full(void);                      /* the other side has much to acknowledge */
void break_off(const char *rule);        /* that the other side has broken */

/* --- call.c, open.c: the two kinds of operation ------------------------------------------ */

void call(uint32_t id, struct reader *r);
void open_job(uint32_t id, struct reader *r);

/* --- job.c: what is under way ------------------------------------------------------------ */

size_t jobs_poll(struct pollfd *fds);      /* adds what they wait for */
void jobs_step(const struct pollfd *fds);  /* does what can be done without waiting */
int jobs_timeout(void);                    /* ms until jobs_step is due again, -1 never */
void jobs_close(void);                     /* ends everything */
void call_jobs(uint32_t id, bool end);     /* CALL JOBS */
uint32_t count_commands(void);             /* and background jobs */

/* --- connection.c: whom we talk to ------------------------------------------------------- */

bool greet(const char *folder); /* the first of them; later ones come to a socket in the folder */
int converse(void);             /* until the session has ended; the status to exit with */
void forget_connections(void);  /* in a child: none of them is its business */
int connect_to(const char *folder); /* from outside; or -1 */

/* --- main.c ------------------------------------------------------------------------------ */

void close_between(int first, int end); /* the end is not */
bool have_close_range(void);

#endif
