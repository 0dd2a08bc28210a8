/* One operation under way: what job.c, open.c, flow.c, command.c and worker.c have in common. */
#ifndef JOB_H
#define JOB_H

#include "helper.h"

enum {
    BACKUP_MS = 6000,           /* after which a supervisor that does not report is done for */
    SIGNALS_BYTES = 64 << 10,   /* of the kernel's memory, for signals on their way to one */
};

struct output {
    int fd;
    uint64_t credit, total;
    int64_t rest; /* bytes that still count; -1: until its end */
    bool drops;   /* beyond the credit: counted and dropped */
};

struct job {
    uint32_t id;
    uint8_t op;
    bool ended; /* END was sent; the command's background processes go on */
    bool terminal;
    pid_t pid;
    int control;
    int in;
    struct buffer queue; /* input that waits to be taken */
    bool input_over;
    uint64_t taken;      /* input not granted again yet */
    struct output out[2];
    bool reported, all_gone;
    struct buffer result; /* code and what follows, of END */
    struct report report;
    uint64_t counts[COUNTERS], give_up_at; /* when it began; 0: never */
    struct draft *draft;
    int polled[4]; /* where control, in and out stand in what is polled, or -1 */
};

/* --- job.c: all there are ---------------------------------------------------------------- */

extern struct job *jobs[MAX_JOBS];
extern size_t job_count;

struct job *find_job(uint32_t id); /* one that has not had its END, or NULL */
struct job *add_job(uint32_t id, uint8_t op, uint64_t credit);
void shut(int *fd);
void shut_all(struct job *j); /* all that leads to its processes */
void set_nonblocking(int fd);
int make_pipes(int made[3][2], bool input); /* stdin if there is input, stdout, stderr; or none */
void finish(struct job *j, int error, const char *where); /* begins what its END will say */
void give_up_within(struct job *j, uint64_t ms);
void order(struct job *j, char what, uint32_t value); /* to its supervisor */
void kill_job(struct job *j, uint32_t grace_ms);

/* --- flow.c: what goes in and comes out, as far as credit reaches ------------------------ */

void input(struct job *j, const uint8_t *data, size_t len);
void input_over(struct job *j);
void pass_input(struct job *j);
void give_credit(struct job *j, struct reader *r);
bool wants_output(const struct output *o);
void pass_output(struct job *j, int index);
void end_draft(struct job *j, int error, const char *where);

/* --- command.c: a command, and what its supervisor says of it ---------------------------- */

struct start { /* the arguments of EXEC */
    unsigned root;
    const char *cwd;
    uint8_t flags;
    uint64_t credit, timeout_ms;
    uint32_t grace_ms;
    uint16_t rows, columns;
    char **argv, **env;
};

int start_command(struct job *j, const struct start *s);
void hear_supervisor(struct job *j);
void kill_strays(void); /* what a supervisor has left that was killed */

/* --- worker.c: what walks trees, in a process of its own --------------------------------- */

struct task { /* the arguments of all workers */
    uint8_t op;
    unsigned root;
    const char *path, *name;
    const uint8_t *token;
    bool contents;
};

int start_worker(struct job *j, const struct task *t);
void hear_worker(struct job *j);

#endif
