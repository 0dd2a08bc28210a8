/* Feeds whatever a fuzzer makes up to the helper's parser, as a controller that is an enemy would.
 * Nothing is started and no file is touched: there is never a root, so that every path is refused
 * once the parser has taken the frame apart. Built only by tests. */
#include "helper.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int add_root(const char *path) { /* the true one is compiled under another name */
    return path[0] ? -ENOENT : -EINVAL;
}

pid_t no_fork(void); /* stands for fork: at the limit of processes */

pid_t no_fork(void) {
    errno = EAGAIN;
    return -1;
}

void close_between(int first, int end) { (void)first, (void)end; }

void forget_connections(void) {}

static char *no_environment[] = {NULL};

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    signal(SIGPIPE, SIG_IGN); /* as main does */
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    jobs_close();
    free(session.in.data);
    free(session.out.data);
    session = (struct session){.env = no_environment};
    /* In two pieces: frames are cut anywhere. */
    size_t cut = size ? data[0] * size / 256 : 0;
    for (int i = 0; i < 2; i++) {
        put(&session.in, i ? data + cut : data, i ? size - cut : cut);
        session.received += i ? size - cut : cut;
        session_frames();
        jobs_step(NULL);
    }
    session_resume(session.base);
    return 0;
}
