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
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- starting -------------------------------------------------------------------------------- */

static void stop(const char *what) {
    fprintf(stderr, "check: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* In the new process: the program gets the ends of its channels and nothing else. */
static void become(struct process *p, int requests, const char *const *argv) {
    enum { OUTPUT_BYTES = 64 << 20 }; /* a loop that prints ends here */
    int from[] = {requests, p->memory_fd, p->output};
    for (int i = 0; i < 3; i++)
        from[i] = fcntl(from[i], F_DUPFD, 10); /* out of the way of the numbers below */
    int nothing = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){OUTPUT_BYTES, OUTPUT_BYTES});
    if (dup2(nothing, 0) < 0 || dup2(from[2], 1) < 0 || dup2(from[2], 2) < 0 ||
        dup2(from[0], PROCESS_REQUESTS_FD) < 0 || dup2(from[1], PROCESS_MEMORY_FD) < 0)
        _exit(2);
    close_range(PROCESS_MEMORY_FD + 1, ~0u, 0);
    execv(argv[0], (char *const *)argv);
    _exit(2);
}

void process_start(struct process *p, const char *name, const char *const *argv) {
    const char *limit = getenv("CHECK_SECONDS");
    int ends[2];
    *p = (struct process){.name = name, .limit = limit ? atoi(limit) : 30};
    p->memory_fd = memfd_create("check", MFD_CLOEXEC);
    p->output = memfd_create("output", MFD_CLOEXEC);
    if (p->memory_fd < 0 || p->output < 0 || pipe2(ends, O_CLOEXEC))
        stop("no channels");
    process_memory(p, sizeof(atomic_int));
    signal(SIGPIPE, SIG_IGN); /* a program that has ended: process_wait says so */
    p->pid = fork();
    if (p->pid < 0)
        stop(argv[0]);
    if (p->pid == 0)
        become(p, ends[0], argv);
    close(ends[0]);
    p->requests = ends[1];
    fcntl(p->requests, F_SETFL, O_NONBLOCK);
}

void *process_memory(struct process *p, size_t bytes) {
    if (bytes <= p->bytes)
        return p->memory;
    if (p->bytes)
        munmap(p->memory, p->bytes);
    p->memory = MAP_FAILED;
    if (!ftruncate(p->memory_fd, (off_t)bytes))
        p->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->memory_fd, 0);
    if (p->memory == MAP_FAILED)
        stop("the memory for its arrays");
    p->bytes = bytes;
    return p->memory;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static double seconds_of(clockid_t clock) {
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double process_clock(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

void process_plain(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127)
            *text = ' ';
}

void process_ask(struct process *p, const void *request, size_t bytes) {
    ssize_t written = write(p->requests, request, bytes);
    (void)written; /* if it was not, process_wait finds out what is wrong */
}

/* Whether the process has ended; the report says how. */
static bool has_ended(struct process *p, char *report) {
    static const char before[] = "the process ended before its answer";
    int status;
    if (waitpid(p->pid, &status, WNOHANG) != p->pid)
        return false;
    if (WIFSIGNALED(status))
        snprintf(report, PROCESS_REPORT, "%s: signal %d (%s)", before, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(report, PROCESS_REPORT, "%s: status %d", before, WEXITSTATUS(status));
    p->pid = 0;
    return true;
}

/* Whether the process has had its time: that of the processor, which does not depend on what else
 * the machine does, and for one that sleeps that of the clock. */
static bool is_late(const struct process *p, double used, double waited, char *report) {
    bool is_busy = used > p->limit;
    if (!is_busy && waited <= 10.0 * p->limit)
        return false;
    snprintf(report, PROCESS_REPORT, "no answer within %d seconds%s",
             is_busy ? p->limit : 10 * p->limit, is_busy ? " of processor time" : "");
    return true;
}

bool process_wait(struct process *p, int state, char *report) {
    atomic_int *now = p->memory;
    clockid_t processor = CLOCK_MONOTONIC; /* stays, if it has ended: has_ended says so */
    clock_getcpuclockid(p->pid, &processor);
    double begin = process_clock(), used = seconds_of(processor);
    for (unsigned i = 1; atomic_load(now) < state; i++) {
        if (i % 4096) /* the clock and the kernel are asked now and then */
            continue;
        double waited = process_clock() - begin;
        if (has_ended(p, report) || is_late(p, seconds_of(processor) - used, waited, report))
            return !(p->is_lost = true);
        if (waited > 0.02) /* before that without sleep, so that a short time is right */
            usleep(100);
        else
            sched_yield();
    }
    return true;
}

/* ---- ending ---------------------------------------------------------------------------------- */

/* Faults that the emulation reports name a place in the code, which tests/check looks up. */
static void print_output(struct process *p) {
    enum { MOST_LINES = 200 };
    FILE *f = fdopen(p->output, "r");
    char line[1024];
    if (!f)
        return;
    rewind(f);
    for (int i = 0; i < MOST_LINES && fgets(line, sizeof line, f); i++) {
        line[strcspn(line, "\n")] = '\0';
        process_plain(line);
        bool is_fault = !strncmp(line, "emulation: kernel ", 18);
        fprintf(stderr, "%s%s%s\n", is_fault ? "" : p->name, is_fault ? "" : " printed: ", line);
    }
    fclose(f);
}

void process_stop(struct process *p) {
    if (p->pid) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
    }
    close(p->requests);
    close(p->memory_fd);
    munmap(p->memory, p->bytes);
    print_output(p);
}
