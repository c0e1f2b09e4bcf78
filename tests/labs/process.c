#include "tests/labs/grade.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    WALL_FACTOR = 10,       /* a process that sleeps gets so many times its processor time */
    MOST_NOTES = 256 << 20, /* bytes that it may write */
    MOST_SIZES = 64
};

static void stop(const char *what) {
    perror(what);
    exit(2);
}

static void limit(int which, rlim_t most) {
    setrlimit(which, &(struct rlimit){most, most});
}

/* In the new process: nothing is open but the notes and a file for what it prints. */
static void become(const struct lab_process *p, const char *program, const struct lab_check *check,
                   const int *sizes, int n) {
    char numbers[MOST_SIZES][12], fd[12];
    const char *argv[MOST_SIZES + 4] = {program, fd, check->name};
    int nothing = open("/dev/null", O_RDONLY);
    int notes = fcntl(p->notes_fd, F_DUPFD, 10), output = fcntl(p->output_fd, F_DUPFD, 10);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0 ||
        dup2(notes, 3) < 0)
        _exit(2);
    close_range(4, ~0u, 0);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit(RLIMIT_CPU, (rlim_t)p->seconds);
    limit(RLIMIT_FSIZE, MOST_NOTES);
    limit(RLIMIT_CORE, 0);
    if (!program) {
        lab_run(check, sizes, n, 3);
        exit(0);
    }
    snprintf(fd, sizeof fd, "3");
    for (int i = 0; i < n; i++) {
        snprintf(numbers[i], sizeof numbers[i], "%d", sizes[i]);
        argv[3 + i] = numbers[i];
    }
    setenv("ASAN_OPTIONS", "detect_leaks=1:allocator_may_return_null=1", 1);
    setenv("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1", 1);
    execv(program, (char *const *)argv);
    _exit(2);
}

void lab_process_start(struct lab_process *p, const char *program, const struct lab_check *check,
                       const int *sizes, int n) {
    *p = (struct lab_process){.notes_fd = memfd_create("notes", MFD_CLOEXEC),
                              .output_fd = memfd_create("output", MFD_CLOEXEC),
                              .seconds = check->seconds ? check->seconds : LAB_SECONDS};
    if (p->notes_fd < 0 || p->output_fd < 0)
        stop("memfd_create");
    fflush(stdout);
    p->pid = fork();
    if (p->pid < 0)
        stop("fork");
    if (p->pid == 0)
        become(p, program, check, sizes, n < MOST_SIZES ? n : MOST_SIZES);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The contents of a file as one text. */
static char *text_of(int fd) {
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc((size_t)size + 1, 1);
    if (!text)
        stop("the notes");
    for (off_t at = 0; at < size;) {
        ssize_t n = pread(fd, text + at, (size_t)(size - at), at);
        if (n <= 0)
            break;
        at += n;
    }
    for (off_t i = 0; i < size; i++)
        if (!text[i])
            text[i] = '?';
    close(fd);
    return text;
}

void lab_process_finish(struct lab_process *p) {
    double begin = now();
    pid_t ended;
    while (!(ended = waitpid(p->pid, &p->status, WNOHANG))) {
        if (now() - begin > (double)p->seconds * WALL_FACTOR) {
            p->hung = true;
            kill(p->pid, SIGKILL);
            waitpid(p->pid, &p->status, 0);
            break;
        }
        usleep(1000);
    }
    kill(-p->pid, SIGKILL); /* what it may have started */
    if (WIFSIGNALED(p->status) && WTERMSIG(p->status) == SIGKILL)
        p->hung = true; /* the limit of processor time */
    p->notes = text_of(p->notes_fd);
    p->output = text_of(p->output_fd);
}

void lab_process_free(struct lab_process *p) {
    free(p->notes);
    free(p->output);
}
