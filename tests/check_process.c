#include "tests/check_process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- starting -------------------------------------------------------------------------------- */

static void stop(const char *what) {
    fprintf(stderr, "check: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* In the new process: the program gets the ends of its three channels and nothing else. */
static void become(struct candidate *c, int requests, const char *program, const char *op) {
    int from[] = {requests, c->memory_fd, c->output};
    for (int i = 0; i < 3; i++)
        from[i] = fcntl(from[i], F_DUPFD, 10); /* out of the way of the numbers below */
    int nothing = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(nothing, 0) < 0 || dup2(from[2], 1) < 0 || dup2(from[2], 2) < 0 ||
        dup2(from[0], CHECK_REQUESTS_FD) < 0 || dup2(from[1], CHECK_MEMORY_FD) < 0)
        _exit(2);
    close_range(CHECK_MEMORY_FD + 1, ~0u, 0);
    execl(program, program, op, (char *)NULL);
    _exit(2);
}

void candidate_start(struct candidate *c, const char *program, const char *op) {
    const char *limit = getenv("CHECK_SECONDS");
    int ends[2];
    c->limit = limit ? atoi(limit) : 300;
    c->memory_fd = memfd_create("check", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    c->output = memfd_create("output", MFD_CLOEXEC);
    c->bytes = CHECK_HEAD;
    if (c->memory_fd < 0 || c->output < 0 || ftruncate(c->memory_fd, CHECK_HEAD) ||
        fcntl(c->memory_fd, F_ADD_SEALS, F_SEAL_SHRINK) || pipe2(ends, O_CLOEXEC))
        stop("the memory for its arrays");
    c->memory = mmap(NULL, CHECK_HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, c->memory_fd, 0);
    if (c->memory == MAP_FAILED)
        stop("the memory for its arrays");
    signal(SIGPIPE, SIG_IGN);  /* a candidate that has ended: no answer */
#ifndef __SANITIZE_ADDRESS__   /* which reads its own memory */
    prctl(PR_SET_DUMPABLE, 0); /* no other process of this user may read or write this one */
#endif
    c->pid = fork();
    if (c->pid < 0)
        stop(program);
    if (c->pid == 0)
        become(c, ends[0], program, op);
    close(ends[0]);
    c->requests = ends[1];
    fcntl(c->requests, F_SETFL, O_NONBLOCK); /* a candidate that reads no requests stops nobody */
}

unsigned char *candidate_memory(struct candidate *c, const struct check_request *r) {
    size_t bytes = CHECK_HEAD + (size_t)r->n_calls * r->call_bytes;
    if (bytes > c->bytes) {
        void *memory = MAP_FAILED;
        if (!ftruncate(c->memory_fd, (off_t)bytes))
            memory = mremap(c->memory, c->bytes, bytes, MREMAP_MAYMOVE);
        if (memory == MAP_FAILED)
            stop("the memory for its arrays");
        c->memory = memory;
        c->bytes = bytes;
    }
    return (unsigned char *)c->memory + CHECK_HEAD;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What a candidate wrote, as one line that moves no cursor. */
static void make_plain(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127)
            *text = ' ';
}

/* Says how a process ended that should not have. */
static bool ended(struct candidate *c, int status, char *report) {
    if (WIFSIGNALED(status))
        snprintf(report, CHECK_REPORT, "the kernel's process ended before its answer: signal %d",
                 WTERMSIG(status));
    else
        snprintf(report, CHECK_REPORT, "the kernel's process ended before its answer: status %d",
                 WEXITSTATUS(status));
    c->is_lost = true;
    c->pid = 0;
    return false;
}

/* Waits for a state, at first without sleep, so that the clock is right. */
static bool wait_for(struct candidate *c, enum check_state state, double begin, char *report) {
    for (unsigned i = 1; atomic_load(&c->memory->state) < (int)state; i++) {
        int status;
        if (i % 4096)
            continue;
        if (waitpid(c->pid, &status, WNOHANG) == c->pid)
            return ended(c, status, report);
        double waited = now() - begin;
        if (waited > c->limit) {
            snprintf(report, CHECK_REPORT, "no answer within %d seconds", c->limit);
            return !(c->is_lost = true);
        }
        if (waited > 0.02)
            usleep(100);
        else
            sched_yield();
    }
    return true;
}

bool candidate_run(struct candidate *c, const struct check_request *r, double *seconds,
                   char *report) {
    struct check_memory *m = c->memory;
    double begin = now();
    atomic_store(&m->state, (int)CHECK_ASKED);
    ssize_t written = write(c->requests, r, sizeof *r);
    (void)written; /* if it was not, wait_for finds out what is wrong */
    if (!wait_for(c, CHECK_READY, begin, report))
        return false;
    begin = now();
    atomic_store(&m->state, (int)CHECK_GO);
    if (!wait_for(c, CHECK_DONE, begin, report))
        return false;
    if (seconds)
        *seconds = now() - begin;
    if (!wait_for(c, CHECK_ANSWERED, begin, report))
        return false;
    if (m->is_lost) {
        snprintf(report, CHECK_REPORT, "%.*s", (int)sizeof m->error - 1, m->error);
        make_plain(report);
    }
    c->is_lost = m->is_lost != 0;
    return !c->is_lost;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Faults that the emulation reports name a place in the code, which tests/check looks up. */
static void print_output(struct candidate *c) {
    FILE *f = fdopen(c->output, "r");
    char line[1024];
    int n_lines = 0;
    if (!f)
        return;
    rewind(f);
    while (n_lines++ < 200 && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        make_plain(line);
        bool is_fault = !strncmp(line, "emulation: kernel ", 18);
        fprintf(stderr, "%s%s%s\n", is_fault ? "" : c->name, is_fault ? "" : " printed: ", line);
    }
    fclose(f);
}

void candidate_stop(struct candidate *c) {
    if (c->pid) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
    }
    close(c->requests);
    close(c->memory_fd);
    munmap(c->memory, c->bytes);
    print_output(c);
}
